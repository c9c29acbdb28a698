"""The journal of an attempt over the state machine of Restate's SDK.

The SDK's own futures poll for themselves, so two of them cannot be awaited at once. This module uses the state machine below them
instead, with one poller. No other module uses names of the SDK that are not documented; ``tests/restate/test_sdk.py``
fails if one of them is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Final

from restate.exceptions import SuspendedException
from restate.server_context import DisconnectedException, ServerInvocationContext
from restate.vm import (
    DoProgressAnyCompleted,
    DoProgressCancelSignalReceived,
    DoProgressExecuteRun,
    DoProgressWaitExternalProgress,
    Failure,
    FirstCompletedUnresolvedFuture,
    NotReady,
    SingleUnresolvedFuture,
    Suspended,
)

from pylash.restate.attempt_journal import (
    Action,
    ActionFailed,
    Bell,
    EngineRefused,
    RecordedName,
    Ticket,
)
from pylash.restate.attempt_journal import Suspended as AttemptSuspended
from pylash.tasks import TaskOwner

Disconnected = DisconnectedException
"""Ends a handler without an answer."""

QUICK_CYCLES: Final = 3
"""Cycles of the event loop after which an action that does not wait has ended: its task, that of the effect, and back."""

_RUN_COMPLETED = {"type": "restate.run_completed", "data": None}


class SdkJournal:
    """The journal of one attempt of an invocation."""

    may_suspend = True

    def __init__(
        self,
        context: Any,
        tasks: TaskOwner,
        on_cancel: Callable[[], Awaitable[None]],
        read_names: Callable[[], Awaitable[Sequence[RecordedName]]],
    ) -> None:
        assert isinstance(context, ServerInvocationContext)
        # Untyped: most of what is used of both is not documented, and not annotated.
        self._context: Any = context
        self._vm: Any = context.vm
        self._tasks = tasks
        self._on_cancel = on_cancel
        self._read_names = read_names
        # How many commands were asked for. An awakeable is none: the server has no entry for it.
        self.position = 0
        # The actions of entries that have no result, by handle; each is taken when the state machine asks for it.
        self._actions: dict[int, Action] = {}
        self._running: set[asyncio.Task[None]] = set()
        # Whether an action was started since output was sent.
        self._has_started = False
        # Set while the attempt may be suspended.
        self._prepare: Callable[[], Awaitable[bool]] | None = None
        # Why the state machine has refused an entry; no call of it is possible after that.
        self._refusal: BaseException | None = None
        # The command that it refused, and its place.
        self._refused: tuple[str, int] | None = None
        # What an action has raised: it ends the attempt, and the server tries again.
        self._failure: Exception | None = None

    @property
    def is_replaying(self) -> bool:
        """Whether there are recorded entries that the attempt has not asked for."""
        return bool(self._vm.is_replaying())

    async def recorded(self) -> Sequence[RecordedName]:
        """Return the commands of the journal, which the server is asked for."""
        return await self._read_names()

    def run(self, name: str, action: Action) -> Ticket:
        """Ask for the result of an action."""
        run = self._command(name, lambda: self._vm.sys_run(name))
        if run is None:
            return Ticket(name, None)
        if not run.replayed:
            self._actions[run.handle] = action
        return Ticket(name, run.handle)

    def sleep(self, name: str, seconds: float) -> Ticket:
        """Ask for a timer."""
        milliseconds = round(seconds * 1000)
        return Ticket(name, self._command(name, lambda: self._vm.sys_sleep(milliseconds, name)))

    def bell(self) -> Bell:
        """Ask for a completion from outside: an awakeable."""
        known = self._ask(self._vm.sys_awakeable)
        name, handle = ("", None) if known is None else known
        return Bell(name, Ticket("bell", handle))

    def _command(self, name: str, ask: Callable[[], Any]) -> Any:
        """Return the answer of the state machine to a command; note which one it refuses."""
        is_refused, answer = self._refusal is not None, self._ask(ask)
        if self._refusal is not None and not is_refused:
            self._refused = (name, self.position)
        self.position += 1
        return answer

    def _ask(self, ask: Callable[[], Any]) -> Any:
        """Return the answer of the state machine; None after a refusal, which ``next_completed`` raises."""
        if self._refusal is None:
            try:
                return ask()
            except Exception as error:  # noqa: BLE001 - the class is not documented
                self._refusal = error
        return None

    def suspend(self, prepare: Callable[[], Awaitable[bool]]) -> None:
        """Let the server suspend the attempt as soon as no completion is available."""
        self._prepare = prepare

    def resume(self) -> None:
        """Take back ``suspend``."""
        self._prepare = None

    async def next_completed(self, tickets: Collection[Ticket]) -> tuple[Ticket, bytes]:
        """Return the next entry that completes, and its result."""
        self._check()  # an entry that was refused has no handle
        by_handle = {int(str(ticket.engine_future)): ticket for ticket in tickets}
        awaited = FirstCompletedUnresolvedFuture(
            [SingleUnresolvedFuture(handle) for handle in by_handle]
        )
        while True:
            self._check()
            progress = self._vm.do_progress(awaited)
            match progress:
                case Suspended():
                    raise AttemptSuspended from SuspendedException()
                case DoProgressAnyCompleted():
                    handle = next(one for one in by_handle if self._vm.is_completed(one))
                    return by_handle[handle], await self._take(handle)
                case DoProgressExecuteRun():
                    self._start(progress.handle)
                case DoProgressCancelSignalReceived():
                    await self._on_cancel()
                case DoProgressWaitExternalProgress():
                    await self._send_output()
                    if self._prepare is None or self._running or not await self._prepare():
                        await self._receive()
                    else:
                        self._vm.notify_input_closed()
                case BaseException():
                    self._refusal = progress

    def _check(self) -> None:
        if self._failure is not None:
            raise ActionFailed(str(self._failure)) from self._failure
        if self._refusal is not None:
            name, position = self._refused or (None, 0)
            raise EngineRefused(str(self._refusal), name, position) from self._refusal

    async def _take(self, handle: int) -> bytes:
        result = self._vm.take_notification(handle)
        if isinstance(result, Suspended):
            raise AttemptSuspended from SuspendedException()
        if isinstance(result, BaseException):
            self._refusal = result
            self._check()
        if isinstance(result, Failure):
            raise EngineRefused(f"{result.message} ({result.code})")
        assert not isinstance(result, NotReady)
        return result if isinstance(result, bytes) else b""

    async def _send_output(self) -> None:
        """Send the entries that were asked for and the results of actions: both in one message if an action ends at once."""
        if self._has_started:
            self._has_started = False
            for _ in range(QUICK_CYCLES):
                await asyncio.sleep(0)
        await self._context.take_and_send_output()

    async def _receive(self) -> None:
        """Wait for a message of the server, or the end of an action."""
        message = await self._context.receive()
        kind = message.get("type")
        if kind == _RUN_COMPLETED["type"]:
            return
        if kind == "http.disconnect":
            raise DisconnectedException
        body = message.get("body")
        if body:
            self._vm.notify_input(body)
        if not message.get("more_body", False):
            self._vm.notify_input_closed()

    # --- actions ---

    def _start(self, handle: int) -> None:
        self._has_started = True
        task = self._tasks.start(self._execute(handle, self._actions.pop(handle)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _execute(self, handle: int, action: Action) -> None:
        """Perform an action and propose its result; ``next_completed`` raises its failure, which ends the attempt."""
        try:
            result = await action()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return  # the effect was cancelled: nobody awaits the entry, and it has no result
        except Exception as error:  # noqa: BLE001 - the server tries again
            self._failure = self._failure or error
        else:
            # The state machine refuses it if the attempt has failed meanwhile. The class of that is not documented.
            with suppress(Exception):
                self._vm.propose_run_completion_success(handle, result)
        finally:
            await self._context.receive.enqueue_restate_event(dict(_RUN_COMPLETED))

    def stop(self) -> None:
        """Cancel the actions that still run: the attempt is over."""
        for task in tuple(self._running):
            task.cancel()
