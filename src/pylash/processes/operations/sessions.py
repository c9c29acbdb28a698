"""Sessions inside processes: a turn is submitted and awaited as two effects of the process, a view is one."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import msgspec

from pylash.durable.commands import AwaitTurn, SubmitTurn, process_key
from pylash.durable.effects import (
    DurableStep,
    DurableStepOutcome,
    EffectKind,
    Envelope,
    Outcome,
    expect,
)
from pylash.durable.seeds import digest
from pylash.durable.sessions import checked_session
from pylash.engine.executors import Executor
from pylash.engine.runs.branches import own_branch
from pylash.engine.runs.run import LiveRun
from pylash.tools.signatures import Shape
from pylash.turn.asks import SessionOptions, TurnAsk
from pylash.turn.messages import Attachment, Input, Part, Usage, parts_of
from pylash.turn.views import checked_last
from pylash.values.canonical import decode, write
from pylash.values.names import check_name
from pylash.values.process_errors import ArgumentsInvalid
from pylash.values.turn_errors import TurnFailed, TurnOutputInvalid

if TYPE_CHECKING:
    from pylash.processes.operations.context import ProcessContext
    from pylash.processes.services import Services

T = TypeVar("T")

_STEP: Final = frozenset({EffectKind.DURABLE_STEP})


class TurnResult(Generic[T]):
    """The result of a turn. If it did not complete, ``text`` and ``value`` raise TurnFailed.

    >>> result = await session.turn("Refund order 7, please")
    >>> print(result.text)
    """

    def __init__(
        self, turn_id: str, plain: Any, shape: Shape | None = None, session_id: str = ""
    ) -> None:
        self.session_id = session_id
        self.turn_id = turn_id
        self.status: Literal["completed", "failed", "cancelled", "stopped"] = plain["status"]
        self.usage = msgspec.convert(plain.get("usage") or {}, Usage)
        self.error: str | None = plain.get("error")
        self.code: str | None = plain.get("code")
        attachments = plain.get("attachments") or ()
        self.attachments = msgspec.convert(attachments, tuple[Attachment, ...])
        self._plain = plain
        self._shape = shape

    def __repr__(self) -> str:
        why = "" if self.error is None else f", error={self.error!r}"
        return f"TurnResult({self.turn_id!r}, status={self.status!r}{why})"

    @property
    def text(self) -> str:
        """The model's answer."""
        self._check()
        text: str = self._plain.get("text", "")
        return text

    @property
    def value(self) -> T:
        """The answer as the type of ``output=``."""
        self._check()
        plain = self._plain.get("value")
        if self._shape is None:
            return plain  # type: ignore[no-any-return]  # without output= it is None
        if self._shape.is_text:
            plain = self._plain.get("text", "")
        try:
            value: T = self._shape.load(plain)
        except ValueError as error:
            raise TurnOutputInvalid(self.turn_id, str(error).replace("\n", " ")) from None
        return value

    def _check(self) -> None:
        if self.status != "completed":
            raise TurnFailed(self.turn_id, self.status, self.error, self.code)


def stored_parts(method: str, given: Input) -> tuple[Part, ...]:
    """Return the parts of an input; refuse an attachment whose bytes are not in the store."""
    parts = parts_of(given)
    if any(isinstance(part, Attachment) and part.ref is None for part in parts):
        reason = "attachments are not stored in processes: pass one that has a ref"
        raise ArgumentsInvalid(method, reason)
    return parts


class ProcessSession:
    """A conversation of a process: its turns are effects of the process.

    >>> draft = await ctx.session(f"writer-{user}").turn("Write to Ann")
    """

    def __init__(
        self,
        session_id: str,
        options: SessionOptions,
        defaults: SessionOptions,
        ctx: ProcessContext[Any],
        run: LiveRun,
        services: Services,
    ) -> None:
        self.id = checked_session(session_id)
        self._options = options
        self._defaults = defaults
        self._ctx = ctx
        self._run = run
        self._services = services

    def __repr__(self) -> str:
        return f"ProcessSession({self.id!r})"

    def turn(
        self,
        input: Input,  # noqa: A002 - the public name
        *,
        turn_id: str | None = None,
        output: Any = None,
    ) -> Coroutine[Any, Any, TurnResult[Any]]:
        """Submit a turn and return its result; any worker may run it."""
        shape = None if output is None else Shape(output)
        schema = None if shape is None else shape.answer_schema()
        ask = TurnAsk(parts=stored_parts("ctx.session.turn", input), output_schema=schema)
        name = self._turn_id() if turn_id is None else check_name("turn id", turn_id)
        command = SubmitTurn(
            self.id,
            name,
            ask.digest().hex(),
            decode(write(ask)),
            decode(write(self._options)),
            decode(write(self._defaults)),
        )
        submit = self._ctx.command("session.turn", command)
        wait = self._ctx.command("session.turn", AwaitTurn(self.id, name))

        async def wait_for_result() -> TurnResult[Any]:
            try:
                await submit
                answer = await wait
            finally:
                wait.close()  # it was never awaited if the submission failed
            return TurnResult(name, answer["result"], shape, self.id)

        return wait_for_result()

    def _turn_id(self) -> str:
        """Return the id of a turn: its own, or in a fork, that of the turn whose submission the fork took over here."""
        branch, number = own_branch(self._run, "session.turn"), self._ctx.uuid()
        origins = [one.process_id for one in self._run.process.registration.origins]
        own, *recorded = (digest(one, number)[:8].hex() for one in (self._ctx.id, *origins))
        for name in recorded:
            effect_id = SubmitTurn(self.id, name, "", None).effect_id
            if self._run.memory.recorded(process_key(branch.name or "root", effect_id)):
                return name
        return own

    def view(self, last: int | None = None) -> Coroutine[Any, Any, list[dict[str, Any]]]:
        """Return the history of the session as plain records, the oldest first; ``last`` limits it to the newest.

        The records are an effect: a replay returns the history as it was at the first execution.

        >>> questions = await ctx.session("chat-42").view(last=50)
        """
        limit = checked_last("ctx.session.view", last)
        branch, run = own_branch(self._run, "session.view"), self._run
        key = branch.key(branch.take(f"session.view {self.id}"))
        command = DurableStep("session.view", {"session_id": self.id, "last": limit})

        async def perform(_: Envelope) -> Outcome:
            with run.guarded():
                return DurableStepOutcome(await self._services.histories.view(self.id, limit))

        async def viewed() -> list[dict[str, Any]]:
            local = Executor("step", _STEP, perform)
            outcome = await run.effect(branch, key, "session.view", command, local)
            records: list[dict[str, Any]] = expect(outcome, DurableStepOutcome).value
            return records

        return viewed()
