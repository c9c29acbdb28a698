"""Handles: how others, and processes themselves, talk to a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pylash.durable import (
    OUTPUTS,
    Aborted,
    AwaitProcess,
    CancelProcess,
    Failure,
    Output,
    ProcessEvent,
    RunState,
    SignalProcess,
    Success,
    signal_type,
)
from pylash.runtime.signatures import Shape
from pylash.runtime.timeline import Effect, effects_of
from pylash.values import (
    Duration,
    ProcessBlocked,
    ProcessCancelled,
    ProcessFailed,
    ProcessUnknown,
    check_name,
    encode,
    seconds,
)

if TYPE_CHECKING:
    from pylash.runtime.context import ProcessContext
    from pylash.runtime.observers import Observers
    from pylash.runtime.programs import Services

R = TypeVar("R")


class ProcessHandle(Generic[R]):
    """A process, wherever it runs.

    >>> handle = await app.start(onboarding.options(id="onboard-ann"), user="ann")
    >>> await handle.signal("answer", "yes")
    >>> print(await handle.result(timeout="1m"))
    """

    def __init__(
        self, process_id: str, services: Services, observers: Observers, result: Shape | None = None
    ) -> None:
        self.id = process_id
        self._services = services
        self._observers = observers
        self._result = result

    def __repr__(self) -> str:
        return f"ProcessHandle({self.id!r})"

    async def status(self) -> RunState:
        """Return where the process stands: ``queued``, ``running``, ``waiting``, ``blocked`` or how it ended."""
        self._services.outside("handle.status")
        view = await self._services.store.processes.view(self.id)
        if view is None:
            raise ProcessUnknown(self.id)
        return view.status

    async def result(self, timeout: Duration | None = None) -> R:
        """Return what the process returned, once it has; ``timeout`` ends the waiting, not the process.

        Raises ProcessFailed, ProcessCancelled, ProcessBlocked if it is blocked when the time is over,
        and TimeoutError if it is not.

        Cancellation: safe, the process goes on.
        """
        self._services.outside("handle.result")
        if timeout is None:
            ended: R = value_of(self.id, await self._observers.end(self.id), self._result)
            return ended
        limit = seconds(timeout)
        try:
            async with asyncio.timeout(limit):
                output = await self._observers.end(self.id)
        except TimeoutError:
            outputs = await self._services.store.processes.outputs([self.id])
            if self.id in outputs:
                found: R = value_of(self.id, outputs[self.id], self._result)
                return found
            view = await self._services.store.processes.view(self.id)
            if view is not None and view.status is RunState.BLOCKED:
                raise ProcessBlocked(self.id, view.reason or "") from None
            raise TimeoutError(f"Process {self.id!r} has not ended in {limit:g} s.") from None
        value: R = value_of(self.id, output, self._result)
        return value

    async def signal(self, name: str, payload: Any = None, *, id: str | None = None) -> None:  # noqa: A002 - the public name
        """Send a signal; the same ``id`` again is the same signal.

        Cancellation: atomic.
        """
        self._services.outside("handle.signal")
        signal_id = self._services.new_id() if id is None else id
        command = signal_command(self.id, name, signal_id, payload)
        await self._services.store.processes.perform(command)

    async def cancel(self, reason: str | None = None, force: bool = False) -> None:
        """Ask the process to end, so that it can clean up; ``force`` ends it without asking.

        Cancellation: atomic.
        """
        self._services.outside("handle.cancel")
        command = CancelProcess(self.id, reason, force)
        await self._services.store.processes.perform(command)

    async def events(self, after: int = 0, follow: bool = False) -> AsyncIterator[ProcessEvent]:
        """Yield the process's log after a sequence; ``follow`` waits for more until it ends."""
        self._services.outside("handle.events")
        processes = self._services.store.processes
        while True:
            events = await processes.events(self.id, after)
            for event in events:
                after = event.sequence
                yield event
            if events:
                continue
            record = await processes.get(self.id)
            ended = record is not None and record.state.status != "open"
            if ended and record is not None and record.state.sequence <= after:
                return
            if not follow:
                return
            await self._observers.news(self.id, after)

    async def timeline(self) -> list[Effect]:
        """Return what the process did so far and when: draw it with ``draw_timeline``."""
        self._services.outside("handle.timeline")
        return await effects_of(self._services.store, self.id)


class ChildHandle(Generic[R]):
    """A process, as another process sees it: everything it asks is an effect of that one."""

    def __init__(
        self, process_id: str, ctx: ProcessContext[Any], result: Shape | None = None
    ) -> None:
        self.id = process_id
        self._ctx = ctx
        self._result = result

    def __repr__(self) -> str:
        return f"ChildHandle({self.id!r})"

    def result(self) -> Coroutine[Any, Any, R]:
        """Wait for what the process returns; raises ProcessFailed or ProcessCancelled."""
        ask = self._ctx.command("result", AwaitProcess(self.id))

        async def ended() -> R:
            output = OUTPUTS.decode(encode((await ask)["output"]))
            value: R = value_of(self.id, output, self._result)
            return value

        return ended()

    def signal(
        self,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - the public name
    ) -> Coroutine[Any, Any, None]:
        """Send a signal, once."""
        signal_id = self._ctx.uuid() if id is None else id
        return self._done("signal", signal_command(self.id, name, signal_id, payload))

    def cancel(self, reason: str | None = None, force: bool = False) -> Coroutine[Any, Any, None]:
        """Ask the process to end."""
        return self._done("cancel", CancelProcess(self.id, reason, force))

    def _done(self, method: str, command: Any) -> Coroutine[Any, Any, None]:
        ask = self._ctx.command(method, command)

        async def done() -> None:
            await ask

        return done()


def signal_command(process_id: str, name: str, signal_id: str, payload: Any) -> SignalProcess:
    """Return the command that sends a signal, or refuse a name or an id that cannot be stored."""
    signal_type(name)
    check_name("signal id", signal_id)
    return SignalProcess(process_id, name, signal_id, Shape(Any).dump(payload))


def value_of(process_id: str, output: Output, result: Shape | None) -> Any:
    """Return what a process returned, or raise how it failed."""
    match output:
        case Success(value=value):
            return value if result is None else result.load(value)
        case Failure():
            raise ProcessFailed(process_id, output)
        case Aborted(reason=reason):
            raise ProcessCancelled(process_id, reason)
