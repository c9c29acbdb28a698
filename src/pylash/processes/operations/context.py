"""ProcessContext: the operations of a process, each recorded once and replayed.

Rule 1. The key of an effect is taken when its method is called, not when the result is awaited: methods are
        plain functions that return a coroutine.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Coroutine, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar, overload

import msgspec

from pylash.durable.commands import (
    AppendEvent,
    ProcessCommand,
    StartProcess,
    WaitSignal,
    process_key,
)
from pylash.durable.effects import (
    AwaitEvent,
    AwaitEventOutcome,
    Process,
    ProcessOutcome,
    Sleep,
    expect,
)
from pylash.durable.processes import WAKE, EngineInput, semantics_of, signal_type
from pylash.durable.seeds import chance, digest, uuid_text
from pylash.durable.waits import CustomWait, Err, Ok, Timeout
from pylash.engine.executors import await_options, process_executor, sleep_executor
from pylash.engine.retries import Retry
from pylash.engine.runs.branch_groups import BranchGroup, BranchTask
from pylash.engine.runs.branches import Branch, own_branch
from pylash.engine.runs.replays import is_patched
from pylash.engine.runs.run import ContinueAs, LiveRun
from pylash.processes.definition import Definition, Prepared, as_prepared
from pylash.processes.environments import NO_ENVIRONMENT, Environment
from pylash.processes.handles import ChildHandle, without_result
from pylash.processes.operations.completions import ProcessCompletion
from pylash.processes.operations.sessions import ProcessSession
from pylash.processes.operations.steps import (
    DEFAULT_OPTIONS,
    StepContext,
    StepOptions,
    check_effect_name,
    refuse_data,
)
from pylash.processes.operations.tool_calls import ProcessCallSite
from pylash.processes.waits import signal_wait
from pylash.tools.catalog import Catalog, check_tool_list
from pylash.tools.signatures import ANY, Shape
from pylash.turn.asks import SessionOptions, checked_options
from pylash.turn.budgets import TurnBudget
from pylash.turn.histories import History
from pylash.turn.messages import Input
from pylash.values.canonical import decode, write, write_payload
from pylash.values.durations import Duration, micros
from pylash.values.errors import AwaitEventUnknownOrRevoked
from pylash.values.names import check_name
from pylash.values.process_errors import (
    ArgumentsInvalid,
    NotAProcess,
    ProcessSignalWaitTimeout,
    WaitFailed,
    WaitTimeout,
)
from pylash.values.turn_errors import InputInvalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pylash.processes.services import Services

D = TypeVar("D")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_MISSING: Final[Any] = object()


class WaitKey(str):
    """The signed key of a wait: a string, safe to mail. Awaiting it returns it at once."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, WaitKey]:
        """Return the key: there is nothing to wait for."""
        yield from ()
        return self


class ReplayAwareLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that is silent while recorded effects are replayed."""

    def __init__(self, run: LiveRun) -> None:
        super().__init__(logging.getLogger("pylash.process"), {"run": run.id})
        self._run = run

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's own name
        """Return whether a record of this level is logged now."""
        return not self._run.memory.is_replaying and super().isEnabledFor(level)


class ProcessContext(StepContext[D]):
    """The operations of a process: each is recorded once and replayed ever after.

    >>> @app.process
    ... async def onboarding(ctx: ProcessContext[Deps], user: str) -> str:
    ...     profile = await ctx.step(load_profile, user)
    ...     await ctx.sleep("2d")
    ...     return profile["name"]
    """

    def __init__(
        self,
        run: LiveRun,
        services: Services,
        catalog: Catalog | None = None,
        environment: Environment = NO_ENVIRONMENT,
    ) -> None:
        super().__init__(run, DEFAULT_OPTIONS)
        self._services = services
        self._catalog = catalog or services.catalog
        self._environment = environment
        self._log: ReplayAwareLogger | None = None
        self._completions = count()
        self._events: Counter[str] = Counter()
        """How many events each branch has appended."""
        self._attachments: set[str] = set()
        """References of bytes that tools of this process stored."""

    @property
    def id(self) -> str:
        """The process's id."""
        return self._run.id

    @property
    def deps(self) -> D:
        """The value of ``Lash(deps=...)`` on this worker; never recorded."""
        deps: D = self._services.deps
        return deps

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent during replay."""
        self._log = self._log or ReplayAwareLogger(self._run)
        return self._log

    def options(
        self,
        *,
        key: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> StepContext[D]:
        """Return this context with options for one step.

        >>> await ctx.options(retry=Retry(5), timeout="30s").step(fetch, url)
        """
        if key is not None:
            check_effect_name(self._run, "step key", key)
        return StepContext(self._run, StepOptions(key, retry, timeout))

    # --- time and chance ---

    def sleep(self, duration: Duration, *, name: str | None = None) -> Coroutine[Any, Any, None]:
        """Wait; a restart waits only for the rest.

        ``name`` is what ``pylash show`` prints, and a part of the key: a named sleep can be moved among others.

        >>> await ctx.sleep("1d", name="reminder")
        """
        if name is None:
            return self._sleep(micros(duration) // 1000)
        check_effect_name(self._run, "sleep name", name)
        return self._sleep(micros(duration) // 1000, f"sleep {name}", name)

    def sleep_until(self, moment: datetime) -> Coroutine[Any, Any, None]:
        """Wait until a moment; a datetime without a zone is UTC."""
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        remaining = (aware - self.now()) / timedelta(milliseconds=1)
        key = f"sleep_until {aware.isoformat()}"
        # The moment is in the key. The duration is not compared: a replay computes it from another time.
        return self._sleep(max(0, round(remaining)), key, key, is_compared=False)

    def _sleep(
        self,
        milliseconds: int,
        key: str = "sleep",
        name: str = "sleep",
        *,
        is_compared: bool = True,
    ) -> Coroutine[Any, Any, None]:
        branch = own_branch(self._run, "sleep")
        part = branch.take(key)
        command = Sleep(milliseconds, retry=not is_compared)

        async def perform() -> None:
            await self._run.effect(branch, branch.key(part), name, command, sleep_executor())

        return perform()

    def now(self) -> datetime:
        """Return the time, the same on every replay."""
        branch = own_branch(self._run, "now")
        key = branch.key(branch.take("now"))
        at = self._run.memory.note(key, self._run.memory.now)
        return datetime.fromtimestamp(at / 1_000_000, UTC)

    def random(self) -> float:
        """Return a number from 0 to 1, the same on every replay."""
        branch = own_branch(self._run, "random")
        return chance(self._run.seed, self._run.epoch, branch.key(branch.take("random")))

    def uuid(self) -> str:
        """Return a UUID, the same on every replay."""
        branch = own_branch(self._run, "uuid")
        data = digest(self._run.seed, self._run.epoch, branch.key(branch.take("uuid")))
        return uuid_text(data[:16])

    # --- changed code ---

    async def patched(self, patch: str) -> bool:
        """Return whether this run takes a patch: new code behind which nothing is recorded yet.

        A run that has passed this place with the old code gets False, on every replay; all others get True. The answer
        holds for the whole branch.

        >>> if await ctx.patched("fraud-check"):
        ...     await ctx.step(check_fraud, order)
        """
        branch = own_branch(self._run, "patched")
        return await is_patched(self._run, branch, check_name("patch", patch))

    def deprecate_patch(self, patch: str) -> None:
        """Mark a patch that every run has taken: its old code is gone, and runs that recorded it go on.

        >>> ctx.deprecate_patch("fraud-check")
        """
        own_branch(self._run, "deprecate_patch")
        check_name("patch", patch)

    # --- signals and waits ---

    def wait_signal(
        self, name: str, *, timeout: Duration | None = None, default: Any = _MISSING
    ) -> Coroutine[Any, Any, Any]:
        """Return the payload of the oldest signal of a name that was not received yet.

        Without one in time it is ``default``, or WaitTimeout is raised; a signal that comes later is received by the next
        call. If the process is cancelled meanwhile, the CancelledError has a ProcessSignalWaitCancelled as its cause.

        >>> answer = await ctx.wait_signal("answer", timeout="1w", default=None)
        """
        signal_type(name)
        command = WaitSignal(name)
        ask = self.command("wait_signal", command, timeout=timeout, label=name)

        async def receive() -> Any:
            result = await ask
            if result.get("timeout"):
                if default is _MISSING:
                    raise ProcessSignalWaitTimeout(name)
                return default
            return result["payload"]

        return receive()

    def wait_key(self, name: str) -> WaitKey:
        """Return the signed key of a wait of this process: anyone who has it may answer.

        >>> key = ctx.wait_key("approval")
        """
        check_effect_name(self._run, "wait name", name)
        epoch = self._run.process.state.epoch
        return WaitKey(self._services.wait_key(self._run, CustomWait(name), epoch))

    def wait(
        self,
        key: str,
        *,
        timeout: Duration | None = None,
        within: Duration | None = None,
        default: Any = _MISSING,
    ) -> Coroutine[Any, Any, Any]:
        """Return the answer to a wait; raises WaitTimeout, or WaitFailed if the answer is an error.

        ``timeout`` ends the wait for everyone: a later answer is refused. ``within`` only ends this call, which returns
        ``default`` or None: the key stays valid, and the next call for it returns an answer that came meanwhile. If None can
        be an answer, pass a ``default`` that cannot.

        >>> key = ctx.wait_key("approval")
        >>> while (answer := await ctx.wait(key, within="1d")) is None:
        ...     await ctx.step(remind, key)
        """
        branch = own_branch(self._run, "wait")
        if within is None and default is not _MISSING:
            raise ArgumentsInvalid("ctx.wait", "default= is only for a call with within=")
        name = self._services.wait_name(key)
        part = branch.take(f"wait {name}")
        limit = None if within is None else micros(within) // 1000
        command = AwaitEvent(key, title=name, within_ms=limit)

        async def wait_for_answer() -> Any:
            local = await_options(timeout=timeout)
            outcome = await self._run.effect(branch, branch.key(part), name, command, local)
            match expect(outcome, AwaitEventOutcome).resolution:
                case Ok(value=value):
                    return value
                case Err(code=code, message=message, raw=raw):
                    raise WaitFailed(message, code=code, data=raw)
                case Timeout(still_open=True):
                    return None if default is _MISSING else default
                case Timeout():
                    raise WaitTimeout(name)
                case _:
                    raise AwaitEventUnknownOrRevoked

        return wait_for_answer()

    # --- processes, tools, models and sessions ---

    def start(
        self, target: Definition[P, R] | Prepared[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, ChildHandle[R]]:
        """Start a child process and return its handle.

        >>> child = await ctx.start(resize, picture="cat.png")
        >>> await child.result()
        """
        branch, run = own_branch(self._run, "start"), self._run
        chosen = as_prepared(target)
        name = f"start {chosen.name}"
        place, registration = branch.key(branch.take(name)), run.process.registration

        def start_of(parent: str, seed: str) -> StartProcess:
            child = digest(seed, run.epoch, place)[:8].hex()
            inherited = msgspec.structs.replace(registration, parent=parent)
            plugin_options = self._environment.plugins or None
            return chosen.command(args, kwargs, lambda: child, inherited, plugin_options)

        if registration.recorded_id is None:
            start = start_of(run.id, run.seed)
        else:
            recorded = start_of(registration.recorded_id, run.seed).registration
            start = msgspec.structs.replace(start_of(run.id, run.id), recorded=recorded)
        # ``name`` determines the child's id, which is in recorded hashes, so it must not change. The key of the effect
        # counts by target instead, which all Lashlang processes share.
        ask = self.command("start", start, label=name)

        async def start_child() -> ChildHandle[R]:
            # Not the id of the command: a fork may have taken over the start of another child.
            child = (await ask)["id"]
            return ChildHandle(child, self, chosen.definition.arguments.result)

        return start_child()

    def call_tool(self, name: str, /, **arguments: Any) -> Coroutine[Any, Any, Any]:
        """Return the result of a tool, with the tool's own retries and approval.

        Raises CallRefused if a person rejects the call.

        >>> await ctx.call_tool("refund", order_id="7", cents=500)
        """
        branch = own_branch(self._run, "call_tool")
        part = branch.take(name)
        tool = self._catalog.tool(name)
        place = (branch, part)
        site = ProcessCallSite(self._run, self._services, place, part[0], self._attachments)
        return site.call(tool, arguments)

    @overload
    def complete(
        self, prompt: Input, *, output: type[T], model: str | None = None
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def complete(
        self, prompt: Input, *, output: None = None, model: str | None = None
    ) -> Coroutine[Any, Any, str]: ...
    def complete(
        self, prompt: Input, *, output: Any = None, model: str | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Ask a model outside any conversation: return its text, or its answer as ``output``.

        Without a name it is the model that the process was started with. Raises ProviderError, or
        TurnOutputInvalid if no answer fits.

        >>> verdict = await ctx.complete(f"Is this spam? {mail}", output=Verdict)
        """
        branch = own_branch(self._run, "complete")
        part = branch.take("complete")
        completion = ProcessCompletion(
            self._run, self._services, branch, part, self._completions, model
        )
        return completion.answer(prompt, output)

    def session(
        self,
        id: str,  # noqa: A002 - the public name
        *,
        model: str | None = None,
        instructions: str | None = None,
        tools: Sequence[str] | None = None,
        budget: TurnBudget | None = None,
        history: History | None = None,
    ) -> ProcessSession:
        """Return a conversation whose turns are effects of this process.

        For these turns, what neither the call nor the session itself sets is what the process was captured with: the
        model, the instructions and the options of plugins. The session does not keep it.

        >>> draft = await ctx.session("writer").turn("Write to Ann")
        """
        names = None if tools is None else tuple(check_tool_list("ctx.session", tools))
        options = SessionOptions(
            model=model,
            instructions=instructions,
            tools=names,
            budget=budget,
            history=history,
        )
        checked = checked_options("ctx.session", options)
        defaults = self._environment.session_options
        return ProcessSession(id, checked, defaults, self, self._run, self._services)

    def emit(self, kind: str, payload: Any = None) -> Coroutine[Any, Any, None]:
        """Append an event to the process's log, once.

        If the process declares its events, raises ProcessEventInvalid for one that was not declared or does not fit.

        >>> await ctx.emit("progress", Progress(done=3, total=10))
        """
        check_effect_name(self._run, "event type", kind)
        return self._append("emit", kind, self._event_payload(kind, payload))

    def _event_payload(self, kind: str, payload: Any) -> Any:
        """Return the payload of an event as plain JSON, or refuse the event."""
        registration, given = self._run.process.registration, self._run.process.registration.input
        if registration.event_types is None or not isinstance(given, EngineInput):
            return ANY.dump(payload)
        declared = self._services.definitions.of(given).events
        plain = (
            ANY.dump(payload) if declared is None else declared.dump(self._run.id, kind, payload)
        )
        semantics_of(registration, kind, plain)
        return plain

    def wake(self, text: str) -> Coroutine[Any, Any, None]:
        """Send a message to the session that started this process."""
        if not isinstance(text, str):
            raise ArgumentsInvalid("ctx.wake", f"text={text!r} is not a string")
        if not text.strip():
            raise InputInvalid(text)
        return self._append("wake", WAKE, ANY.dump({"text": text}))

    def _append(self, method: str, kind: str, payload: Any) -> Coroutine[Any, Any, None]:
        branch, epoch = own_branch(self._run, method), self._run.epoch
        part, count = branch.take(f"{method} {kind}"), self._events[branch.name]
        self._events[branch.name] += 1
        # A branch counts its own events, and so does each journal of a process that continues as itself: the order
        # of branches may be another in a replay.
        key, number = (
            text if epoch == "0" else f"{epoch}:{text}"
            for text in (branch.key(part), branch.key(str(count)))
        )
        event = AppendEvent("", kind, payload, key, number)
        return without_result(self.command(method, event, part=part))

    def continue_as(self, **arguments: Any) -> NoReturn:
        """End this run and continue the same process with new arguments and a fresh journal.

        It continues with the newest version of the process that this worker has and that takes the arguments.
        """
        own_branch(self._run, "continue_as")
        given = self._run.process.registration.input
        if not isinstance(given, EngineInput):
            raise NotAProcess(self._run.id)
        following = self._services.definitions.continuation(given, arguments)
        write_payload(
            following.arguments
        )  # refused here, where the process can still handle the error
        raise ContinueAs(following)

    # --- branches ---

    def gather(
        self,
        *works: Awaitable[Any],
        key: str = "gather",
        limit: int | None = None,
        return_exceptions: bool = False,
    ) -> Coroutine[Any, Any, list[Any]]:
        """Run works at once and return their results in order; the first failure cancels the others.

        With ``limit``, at most that many run at once; the others follow in their order. With ``return_exceptions``, no work is
        cancelled, and an exception of a work is in the place of its result. A cancel of the process is raised.

        >>> names = await ctx.gather(*(fetch(ctx, n) for n in range(100)), limit=5)
        """
        branch = own_branch(self._run, "gather")
        with _closing_on_error(works):
            check_effect_name(self._run, "gather key", key)
            if limit is not None and (not isinstance(limit, int) or limit < 1):
                reason = f"limit={limit!r} is not a number of at least 1"
                raise ArgumentsInvalid("ctx.gather", reason)
        part = branch.take(key)

        async def run_all() -> list[Any]:
            if not works:
                return []
            group = self._group(branch, part, works, limit)
            return await (group.outcomes() if return_exceptions else group.all())

        return run_all()

    def race(self, *works: Awaitable[T], key: str = "race") -> Coroutine[Any, Any, T]:
        """Run works at once and return the result of the first to end; the others are cancelled."""
        branch = own_branch(self._run, "race")
        with _closing_on_error(works):
            check_effect_name(self._run, "race key", key)
        part = branch.take(key)

        async def run_race() -> T:
            if not works:
                raise ValueError("ctx.race needs at least one awaitable")
            winner: T = await self._group(branch, part, works).first()
            return winner

        return run_race()

    def _group(
        self,
        branch: Branch,
        part: tuple[str, int],
        works: Sequence[Awaitable[Any]],
        limit: int | None = None,
    ) -> BranchGroup:
        group = BranchGroup(self._run, branch, part)
        group.start_all(works, limit)
        return group

    @asynccontextmanager
    async def task_group(self, *, key: str = "group") -> AsyncIterator[TaskGroup]:
        """Run branches until the block ends; the first failure cancels the others.

        >>> async with ctx.task_group() as group:
        ...     first = group.create_task(fetch(ctx, 1))
        """
        branch = own_branch(self._run, "task_group")
        check_effect_name(self._run, "task group key", key)
        group = BranchGroup(self._run, branch, branch.take(key))
        try:
            yield TaskGroup(group)
        except Exception as error:  # noqa: BLE001 - of the block; raised again in a group
            if group.tasks:
                await group.cancel()
            raise ExceptionGroup("unhandled errors in a task group", [error]) from None
        except BaseException:
            if group.tasks and not self._run.closed:
                await group.cancel()
            raise
        errors = await group.failures() if group.tasks else []
        if errors:
            raise BaseExceptionGroup("unhandled errors in a task group", errors)

    # --- commands ---

    def refuse_recorded(self, what: str, error: ValueError, shape: Shape | None) -> NoReturn:
        """Block this process, whose code does not accept what is recorded; for its handles."""
        refuse_data(self._run, what, error, shape)

    def command(
        self,
        method: str,
        command: ProcessCommand,
        *,
        part: tuple[str, int] | None = None,
        timeout: Duration | None = None,
        label: str | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Return a process command as an effect of this run; its key is taken now."""
        branch = own_branch(self._run, method)
        name, number = part or branch.take(command.effect_id)
        numbered = command.effect_id if number == 1 else f"{command.effect_id}#{number}"
        key = process_key(branch.name or "root", numbered)
        if self._run.memory.replay is not None:
            self._run.memory.replay.ask(key)
        local = process_executor(self._services.registry_work(self._run, key), timeout)
        plain = decode(write(command))

        async def perform() -> Any:
            work = Process(plain)
            with signal_wait(self._run, key, command):
                outcome = await self._run.effect(branch, key, label or name, work, local)
            return expect(outcome, ProcessOutcome).result

        return perform()


class TaskGroup:
    """Branches of a process that end before the block does."""

    def __init__(self, group: BranchGroup) -> None:
        self._group = group

    def create_task(self, work: Awaitable[T]) -> BranchTask[T]:
        """Start work in a branch of its own; await the returned object for its result."""
        task = self._group.start(work)
        return BranchTask(self._group, self._group.branches[-1], task)


@contextmanager
def _closing_on_error(works: Sequence[Awaitable[Any]]) -> Iterator[None]:
    """Close coroutines if the block refuses them: they are never awaited, and Python would warn about each."""
    try:
        yield
    except BaseException:
        for work in works:
            if inspect.iscoroutine(work):
                work.close()
        raise
