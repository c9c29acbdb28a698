"""Handles of processes: for apps, and for the process that started them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import UNSET

from pylash.durable.commands import AwaitProcess, By, CancelProcess, SignalProcess
from pylash.durable.processes import (
    OUTPUTS,
    Aborted,
    Failure,
    Output,
    ProcessEvent,
    SessionRef,
    Success,
    signal_type,
)
from pylash.durable.runs import RunState
from pylash.durable.stores import Store
from pylash.engine.hub import NET_SECONDS, Hub
from pylash.processes.timeline import Effect, effects_of
from pylash.tools.signatures import ANY, Shape
from pylash.values.arguments import check_flag, check_text
from pylash.values.canonical import encode
from pylash.values.durations import Duration, seconds
from pylash.values.names import check_name
from pylash.values.process_errors import (
    ProcessBlocked,
    ProcessCancelled,
    ProcessFailed,
    ProcessUnknown,
)

if TYPE_CHECKING:
    from pylash.processes.operations.context import ProcessContext
    from pylash.processes.services import Services

R = TypeVar("R")


class ProcessHandle(Generic[R]):
    """A process, wherever it runs.

    >>> handle = await app.start(onboarding.options(id="onboard-ann"), user="ann")
    >>> await handle.signal("answer", "yes")
    >>> print(await handle.result(timeout="1m"))
    """

    def __init__(
        self,
        process_id: str,
        services: Services,
        result: Shape | None = None,
        holder: SessionRef | None = None,
    ) -> None:
        self.id = process_id
        self._services = services
        self._result = result
        self._holder = holder

    def __repr__(self) -> str:
        return f"ProcessHandle({self.id!r})"

    async def status(self) -> RunState:
        """Return the state: ``queued``, ``running``, ``waiting``, ``blocked`` or how the process ended."""
        self._services.refuse_inside_process("handle.status")
        await self._check_access()
        view = await self._services.store.processes.view(self.id)
        if view is None:
            raise ProcessUnknown(self.id)
        return view.status

    async def version(self) -> int:
        """Return the version of the program that the process runs, as ``@app.process(version=…)`` declares it; 1 for all others.

        >>> await handle.version()
        2
        """
        self._services.refuse_inside_process("handle.version")
        await self._check_access()
        view = await self._services.store.processes.view(self.id)
        if view is None:
            raise ProcessUnknown(self.id)
        return view.version

    async def result(self, timeout: Duration | None = None) -> R:
        """Return the result of the process, once it has ended; ``timeout`` ends the waiting, not the process.

        Raises ProcessFailed, ProcessCancelled, ProcessBlocked if it is blocked when the time is over,
        and TimeoutError if it is not.

        Cancellation: safe, the process goes on.
        """
        self._services.refuse_inside_process("handle.result")
        limit = None if timeout is None else seconds(timeout)
        output = None
        try:
            async with asyncio.timeout(limit):
                output = await self._services.control.result_of(self.id, self._by)
        except TimeoutError:
            if limit is None:
                raise
        if output is None:
            assert limit is not None
            output = await self._output_after(limit)
        value: R = value_of(self.id, output, self._result)
        return value

    async def _output_after(self, limit: float) -> Output:
        """Return the output of a process that ended while its result was waited for, or raise why there is none."""
        processes = self._services.store.processes
        outputs = await processes.outputs([self.id])
        view = None if self.id in outputs else await processes.view(self.id)
        # After the reads: a session that has lost access meanwhile learns nothing about the process.
        await self._check_access()
        if self.id in outputs:
            return outputs[self.id]
        if view is None:
            raise ProcessUnknown(self.id)
        if view.status is RunState.BLOCKED:
            raise ProcessBlocked(self.id, view.reason or "")
        raise TimeoutError(f"Process {self.id!r} has not ended in {limit:g} s.")

    async def signal(self, name: str, payload: Any = None, *, id: str | None = None) -> None:  # noqa: A002 - the public name
        """Send a signal; the same ``id`` again is the same signal.

        Cancellation: atomic.
        """
        self._services.refuse_inside_process("handle.signal")
        signal_id = self._services.new_id() if id is None else id
        command = signal_command(self.id, name, signal_id, payload, self._by)
        await self._services.control.perform(command)

    async def cancel(self, reason: str | None = None, force: bool = False) -> None:
        """Ask the process to end, so that it can clean up; ``force`` ends it without asking.

        Cancellation: atomic.
        """
        self._services.refuse_inside_process("handle.cancel")
        command = cancel_command("handle.cancel", self.id, reason, force, self._by)
        await self._services.control.perform(command)

    def events(self, after: int = 0, follow: bool = False) -> AsyncIterator[ProcessEvent]:
        """Yield the process's log after a sequence number; ``follow`` waits for more until the process has ended."""
        self._services.refuse_inside_process("handle.events")
        services, check = self._services, self._check_access
        return process_log(services.hub, services.store, self.id, after, follow, check=check)

    async def timeline(self) -> list[Effect]:
        """Return the effects of the process so far, with their times: draw them with ``draw_timeline``."""
        self._services.refuse_inside_process("handle.timeline")
        await self._check_access()
        services = self._services
        return await effects_of(services.control.effects, services.store, self.id)

    @property
    def _by(self) -> By:
        """The session whose handle it is; unset for a handle of the app."""
        return UNSET if self._holder is None else self._holder

    async def _check_access(self) -> None:
        """Raise ProcessNotVisible if the session whose handle this is does not hold it any more."""
        if self._holder is not None:
            await self._services.control.check_visible(self._holder, [self.id])


class ChildHandle(Generic[R]):
    """A process, as its parent process sees it: every method is an effect of the parent."""

    def __init__(
        self, process_id: str, ctx: ProcessContext[Any], result: Shape | None = None
    ) -> None:
        self.id = process_id
        self._ctx = ctx
        self._result = result

    def __repr__(self) -> str:
        return f"ChildHandle({self.id!r})"

    def result(self) -> Coroutine[Any, Any, R]:
        """Wait for the result of the process; raises ProcessFailed or ProcessCancelled."""
        ask = self._ctx.command("result", AwaitProcess(self.id))

        async def wait_for_result() -> R:
            output = OUTPUTS.decode(encode((await ask)["output"]))
            try:
                value: R = value_of(self.id, output, self._result)
            except ValueError as error:  # recorded by code with another annotation
                self._ctx.refuse_recorded(f"a result of {self.id!r}", error, self._result)
            return value

        return wait_for_result()

    def signal(
        self,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - the public name
    ) -> Coroutine[Any, Any, None]:
        """Send a signal, once."""
        signal_id = self._ctx.uuid() if id is None else id
        command = signal_command(self.id, name, signal_id, payload)
        return without_result(self._ctx.command("signal", command))

    def cancel(self, reason: str | None = None, force: bool = False) -> Coroutine[Any, Any, None]:
        """Ask the process to end."""
        command = cancel_command("child.cancel", self.id, reason, force)
        return without_result(self._ctx.command("cancel", command))


async def without_result(work: Coroutine[Any, Any, Any]) -> None:
    """Await a command and drop its result, which is not for users."""
    await work


async def process_log(
    hub: Hub,
    store: Store,
    process_id: str,
    after: int = 0,
    follow: bool = False,
    net: float = NET_SECONDS,
    check: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[ProcessEvent]:
    """Yield the log of a process after a sequence number; ``follow`` waits for more until the process has ended.

    ``net``: the seconds after which the store is read again even without a hint. ``check`` is called before each read,
    and may raise an error.
    """
    with hub.listen(f"events:{process_id}", f"process:{process_id}") as listener:
        while True:
            if check is not None:
                await check()
            # Read before the log, so that the log of a process that has ended is complete.
            record = await store.processes.get(process_id)
            if record is None:
                raise ProcessUnknown(process_id)
            while events := await store.processes.events(process_id, after):
                for event in events:
                    after = event.sequence
                    yield event
            if not follow or record.state.status != "open":
                return
            await listener.wait(net)


def signal_command(
    process_id: str, name: str, signal_id: str, payload: Any, by: By = UNSET
) -> SignalProcess:
    """Return the command that sends a signal, or refuse a name or an id that cannot be stored."""
    signal_type(name)
    check_name("signal id", signal_id)
    return SignalProcess(process_id, name, signal_id, ANY.dump(payload), by)


def cancel_command(
    method: str, process_id: str, reason: str | None, force: bool, by: By = UNSET
) -> CancelProcess:
    """Return the command that cancels a process, or refuse a reason that is not a text."""
    if reason is not None:
        check_text(method, "reason", reason)
    check_flag(method, "force", force)
    return CancelProcess(process_id, reason, force, by)


def value_of(process_id: str, output: Output, result: Shape | None) -> Any:
    """Return the result of a process, or raise its failure."""
    match output:
        case Success(value=value):
            return value if result is None else result.load(value)
        case Failure():
            raise ProcessFailed(process_id, output)
        case Aborted(reason=reason):
            raise ProcessCancelled(process_id, reason)
