"""Sessions inside processes: a turn is submitted and awaited as two effects of the process."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from pylash.durable import AwaitTurn, SubmitTurn, checked_session
from pylash.runtime.process_steps import digest
from pylash.runtime.sessions import TurnResult
from pylash.runtime.signatures import Shape
from pylash.turn import Attachment, Input, SessionOptions, TurnAsk, parts_of
from pylash.values import ArgumentsInvalid, check_name, decode, write

if TYPE_CHECKING:
    from pylash.runtime.context import ProcessContext


class ProcessSession:
    """A conversation, as a process sees it: everything it asks is an effect of the process.

    >>> draft = await ctx.session(f"writer-{user}").turn("Write to Ann")
    """

    def __init__(self, session_id: str, options: SessionOptions, ctx: ProcessContext[Any]) -> None:
        self.id = checked_session(session_id)
        self._options = options
        self._ctx = ctx

    def __repr__(self) -> str:
        return f"ProcessSession({self.id!r})"

    def turn(
        self,
        input: Input,  # noqa: A002 - the public name
        *,
        turn_id: str | None = None,
        output: Any = None,
    ) -> Coroutine[Any, Any, TurnResult[Any]]:
        """Ask, and return how the turn ended; other workers may run it."""
        parts = parts_of(input)
        if any(isinstance(part, Attachment) and part.ref is None for part in parts):
            reason = "attachments are not stored in processes: pass one that has a ref"
            raise ArgumentsInvalid("ctx.session.turn", reason)
        shape = None if output is None else Shape(output)
        schema = None if shape is None else shape.answer_schema()
        ask = TurnAsk(parts=parts, output_schema=schema)
        if turn_id is None:
            name = digest(self._ctx.id, self._ctx.uuid())[:8].hex()
        else:
            name = check_name("turn id", turn_id)
        command = SubmitTurn(
            self.id, name, ask.digest().hex(), decode(write(ask)), decode(write(self._options))
        )
        submit = self._ctx.command("session.turn", command)
        wait = self._ctx.command("session.turn", AwaitTurn(self.id, name))

        async def ended() -> TurnResult[Any]:
            try:
                await submit
                answer = await wait
            finally:
                wait.close()  # if nobody came to it
            return TurnResult(name, answer["result"], shape)

        return ended()
