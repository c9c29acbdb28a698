"""ProcessContext: what a process can do, each time the same under replay."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar, overload

from pylash.durable import (
    WAKE,
    AppendEvent,
    AwaitEvent,
    AwaitEventOutcome,
    CustomWait,
    Err,
    Ok,
    Process,
    ProcessCommand,
    ProcessOutcome,
    Sleep,
    Timeout,
    WaitSignal,
    expect,
    process_key,
    signal_type,
)
from pylash.runtime.branches import Branch, BranchGroup, BranchTask, own_branch
from pylash.runtime.catalog import several_tools
from pylash.runtime.completions import ProcessCompletion
from pylash.runtime.executors import await_options, process_executor, sleep_executor
from pylash.runtime.process_steps import (
    Retry,
    StepContext,
    StepOptions,
    chance,
    checked_name,
    digest,
    uuid_text,
)
from pylash.runtime.process_tools import ProcessToolCall
from pylash.runtime.runs import ContinueAs, LiveRun
from pylash.runtime.signatures import Shape
from pylash.turn import History, Input, SessionOptions, TurnBudget, checked_options
from pylash.values import (
    ArgumentsInvalid,
    AwaitEventUnknownOrRevoked,
    Duration,
    ProcessSignalWaitTimeout,
    WaitFailed,
    WaitTimeout,
    decode,
    micros,
    write,
    write_payload,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pylash.runtime.handles import ChildHandle
    from pylash.runtime.process_sessions import ProcessSession
    from pylash.runtime.programs import Definition, Prepared, Services

D = TypeVar("D")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_MISSING: Final[Any] = object()


class WaitKey(str):
    """The signed key of a wait: a string, safe to mail. Awaiting it gives itself."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, WaitKey]:
        """Return the key: there is nothing to wait for."""
        yield from ()
        return self


class QuietWhileReplaying(logging.LoggerAdapter[logging.Logger]):
    """A logger that says nothing twice."""

    def __init__(self, run: LiveRun) -> None:
        super().__init__(logging.getLogger("pylash.process"), {"run": run.id})
        self._run = run

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's own name
        """Return whether anyone wants to hear it now."""
        return not self._run.replaying and super().isEnabledFor(level)


class ProcessContext(StepContext[D]):
    """What a process can do: every method is recorded once and replayed ever after.

    >>> @app.process
    ... async def onboarding(ctx: ProcessContext[Deps], user: str) -> str:
    ...     profile = await ctx.step(load_profile, user)
    ...     await ctx.sleep("2d")
    ...     return profile["name"]
    """

    def __init__(self, run: LiveRun, services: Services) -> None:
        super().__init__(run, StepOptions())
        self._services = services
        self._log: QuietWhileReplaying | None = None
        self._completions = count()

    @property
    def id(self) -> str:
        """The process's id."""
        return self._run.id

    @property
    def deps(self) -> D:
        """What this worker was given as ``Lash(deps=...)``; never recorded."""
        deps: D = self._services.deps
        return deps

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent during replay."""
        self._log = self._log or QuietWhileReplaying(self._run)
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
            checked_name(self._run, "step key", key)
        return StepContext(self._run, StepOptions(key, retry, timeout))

    # --- time and chance ---

    def sleep(self, duration: Duration) -> Coroutine[Any, Any, None]:
        """Wait; a restart waits only for the rest."""
        return self._sleep(micros(duration) // 1000)

    def sleep_until(self, moment: datetime) -> Coroutine[Any, Any, None]:
        """Wait until a moment; a datetime without a zone is UTC."""
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        remaining = (aware - self.now()) / timedelta(milliseconds=1)
        return self._sleep(max(0, round(remaining)), key=f"sleep_until {aware.isoformat()}")

    def _sleep(self, milliseconds: int, key: str = "sleep") -> Coroutine[Any, Any, None]:
        branch = own_branch(self._run, "sleep")
        part = branch.take(key)
        command = Sleep(milliseconds, retry=key != "sleep")

        async def slept() -> None:
            await self._run.effect(branch, branch.key(part), key, command, sleep_executor())

        return slept()

    def now(self) -> datetime:
        """Return the time, the same on every replay."""
        branch = own_branch(self._run, "now")
        key = branch.key(branch.take("now"))
        at = self._services.ride(self._run, key)
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

    # --- signals and waits ---

    def wait_signal(
        self, name: str, *, timeout: Duration | None = None, default: Any = _MISSING
    ) -> Coroutine[Any, Any, Any]:
        """Return the payload of the oldest signal of a name that was not received yet.

        Without one in time it is ``default``, or WaitTimeout is raised.

        >>> answer = await ctx.wait_signal("answer", timeout="1w", default=None)
        """
        signal_type(name)
        command = WaitSignal(name)
        ask = self._command("wait_signal", command, timeout=timeout, label=name)

        async def received() -> Any:
            result = await ask
            if result.get("timeout"):
                if default is _MISSING:
                    raise ProcessSignalWaitTimeout(name)
                return default
            return result["payload"]

        return received()

    def wait_key(self, name: str) -> WaitKey:
        """Return the signed key of a wait of this process: whoever has it may answer.

        >>> key = ctx.wait_key("approval")
        """
        checked_name(self._run, "wait name", name)
        return WaitKey(self._services.wait_key(self._run, CustomWait(name)))

    def wait(self, key: str, *, timeout: Duration | None = None) -> Coroutine[Any, Any, Any]:
        """Return the answer to a wait; raises WaitTimeout, or WaitFailed if it was answered so."""
        branch = own_branch(self._run, "wait")
        name = self._services.wait_name(key)
        part = branch.take(f"wait {name}")
        command = AwaitEvent(key, title=name)

        async def answered() -> Any:
            local = await_options(timeout=timeout)
            outcome = await self._run.effect(branch, branch.key(part), name, command, local)
            match expect(outcome, AwaitEventOutcome).resolution:
                case Ok(value=value):
                    return value
                case Err(code=code, message=message, raw=raw):
                    raise WaitFailed(message, code=code, data=raw)
                case Timeout():
                    raise WaitTimeout(name)
                case _:
                    raise AwaitEventUnknownOrRevoked

        return answered()

    # --- others ---

    def start(
        self, target: Definition[P, R] | Prepared[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, ChildHandle[R]]:
        """Start a process of this one and return its handle.

        >>> child = await ctx.start(resize, picture="cat.png")
        >>> await child.result()
        """
        branch = own_branch(self._run, "start")
        name = f"start {target.name}"
        part = branch.take(name)
        seed = digest(self._run.seed, self._run.epoch, branch.key(part))
        start, result = self._services.child(self._run, target, args, kwargs, seed[:8].hex())
        # The effect's name is in recorded hashes. Its key is counted by target, which all processes of Lashlang share.
        ask = self._command("start", start, label=name)

        async def started() -> ChildHandle[R]:
            await ask
            return self._services.child_handle(self, start.registration.id, result)

        return started()

    def call_tool(self, name: str, /, **arguments: Any) -> Coroutine[Any, Any, Any]:
        """Return the result of a tool, as often tried and as approved as the tool says.

        Raises CallRefused if a person does not agree to the call.

        >>> await ctx.call_tool("refund", order_id="7", cents=500)
        """
        branch = own_branch(self._run, "call_tool")
        part = branch.take(name)
        tool = self._services.tool(name)
        call = ProcessToolCall(self._run, self._services, branch, part, tool)
        return call.result(arguments)

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
        asking = ProcessCompletion(
            self._run, self._services, branch, part, self._completions, model
        )
        return asking.answer(prompt, output)

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

        >>> draft = await ctx.session("writer").turn("Write to Ann")
        """
        from pylash.runtime.process_sessions import ProcessSession  # noqa: PLC0415 - it needs us

        names = None if tools is None else tuple(several_tools("ctx.session", tools))
        options = SessionOptions(
            model=model,
            instructions=instructions,
            tools=names,
            budget=budget,
            history=history,
        )
        return ProcessSession(id, checked_options("ctx.session", options), self)

    def emit(self, kind: str, payload: Any = None) -> Coroutine[Any, Any, None]:
        """Append an event to the process's log, once."""
        return self._append("emit", checked_name(self._run, "event type", kind), payload)

    def wake(self, text: str) -> Coroutine[Any, Any, None]:
        """Tell the session that started this process."""
        if not isinstance(text, str):
            raise ArgumentsInvalid("ctx.wake", f"text={text!r} is not a text")
        return self._append("wake", WAKE, {"text": text})

    def _append(self, method: str, kind: str, payload: Any) -> Coroutine[Any, Any, None]:
        branch = own_branch(self._run, method)
        part = branch.take(f"{method} {kind}")
        number = (
            branch.key(part) if self._run.epoch == "0" else f"{self._run.epoch}:{branch.key(part)}"
        )
        event = AppendEvent("", kind, Shape(Any).dump(payload), number)
        ask = self._command(method, event, part=part)

        async def appended() -> None:
            await ask

        return appended()

    def continue_as(self, **arguments: Any) -> NoReturn:
        """End this run and go on with new arguments and a fresh journal, as the same process."""
        own_branch(self._run, "continue_as")
        plain = self._services.arguments(self._run, arguments)
        write_payload(plain)  # refused here, where the process may go on otherwise
        raise ContinueAs(plain)

    # --- branches ---

    def gather(self, *works: Awaitable[Any], key: str = "gather") -> Coroutine[Any, Any, list[Any]]:
        """Run works at once and return their results in order; the first failure cancels the others.

        >>> names = await ctx.gather(fetch(ctx, 1), fetch(ctx, 2))
        """
        branch = own_branch(self._run, "gather")
        checked_name(self._run, "gather key", key)
        return self._gathered(branch, branch.take(key), works)

    async def _gathered(
        self, branch: Branch, part: tuple[str, int], works: tuple[Awaitable[Any], ...]
    ) -> list[Any]:
        if not works:
            return []
        group = BranchGroup(self._run, branch, part)
        for work in works:
            group.start(work)
        return await group.all()

    def race(self, *works: Awaitable[T], key: str = "race") -> Coroutine[Any, Any, T]:
        """Run works at once and return the result of the first to end; the others are cancelled."""
        branch = own_branch(self._run, "race")
        checked_name(self._run, "race key", key)
        return self._raced(branch, branch.take(key), works)

    async def _raced(
        self, branch: Branch, part: tuple[str, int], works: tuple[Awaitable[T], ...]
    ) -> T:
        if not works:
            raise ValueError("ctx.race needs at least one awaitable")
        group = BranchGroup(self._run, branch, part)
        for work in works:
            group.start(work)
        winner: T = await group.first()
        return winner

    @asynccontextmanager
    async def task_group(self, *, key: str = "group") -> AsyncIterator[TaskGroup]:
        """Run branches until the block ends; the first failure cancels the others.

        >>> async with ctx.task_group() as group:
        ...     first = group.create_task(fetch(ctx, 1))
        """
        branch = own_branch(self._run, "task_group")
        checked_name(self._run, "task group key", key)
        group = BranchGroup(self._run, branch, branch.take(key))
        try:
            yield TaskGroup(group)
        except Exception as error:  # noqa: BLE001 - the block's, and raised again with its branches'
            if group.tasks:
                await group.cancel()
            raise ExceptionGroup("unhandled errors in a task group", [error]) from None
        except BaseException:
            if group.tasks and not self._run.closed:
                await group.cancel()
            raise
        errors = await group.settled() if group.tasks else []
        if errors:
            raise BaseExceptionGroup("unhandled errors in a task group", errors)

    # --- commands ---

    def _command(
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
        local = process_executor(self._services.registry_work(self._run, key), timeout)
        plain = decode(write(command))

        async def asked() -> Any:
            work = Process(plain)
            outcome = await self._run.effect(branch, key, label or name, work, local)
            return expect(outcome, ProcessOutcome).result

        return asked()

    def command(self, method: str, command: ProcessCommand) -> Coroutine[Any, Any, Any]:
        """Ask the process registry, as an effect of this run."""
        return self._command(method, command)


class TaskGroup:
    """Branches of a process that end before the block does."""

    def __init__(self, group: BranchGroup) -> None:
        self._group = group

    def create_task(self, work: Awaitable[T]) -> BranchTask[T]:
        """Start work in a branch of its own; await what is returned for its result."""
        task = self._group.start(work)
        return BranchTask(self._group, self._group.branches[-1], task)
