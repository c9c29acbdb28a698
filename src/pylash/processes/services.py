"""Services: objects that the contexts, handles and programs of one app share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from pylash.durable.commands import Awaited, ProcessCommand, WaitSignal
from pylash.durable.effects import EffectKind, ProcessOutcome, expect
from pylash.durable.ports import Clock, Entropy, RegistryWork
from pylash.durable.processes import LashlangInput
from pylash.durable.runs import SECOND, JournalEntry
from pylash.durable.stores import Store
from pylash.durable.waits import CustomWait, ProcessSignal, WaitIdentity, WaitName, checked_identity
from pylash.engine.hub import NET_SECONDS, Hub
from pylash.engine.races import cancelled_first
from pylash.engine.records import answer
from pylash.engine.registry_waits import look
from pylash.engine.runs.branches import CURRENT
from pylash.engine.runs.run import LiveRun
from pylash.processes.control import ProcessControl
from pylash.processes.declarations import Declarations
from pylash.processes.environments import Environments
from pylash.tasks import TaskOwner
from pylash.tools.catalog import Catalog
from pylash.values.errors import AwaitEventUnknownOrRevoked
from pylash.values.process_errors import AppInsideProcess, AppNotOpen

if TYPE_CHECKING:
    from pylash.processes.triggers import Triggers


class SessionReads(Protocol):
    """What processes read of sessions, which are a layer above."""

    async def view(self, session_id: str, last: int | None) -> list[dict[str, Any]]:
        """Return the last messages of a session as plain JSON, all by default; none if there is no session."""
        ...

    async def attachments(self, session_id: str) -> set[str]:
        """Return the references to attachments in the messages of a session, those of a running turn included."""
        ...


class Services:
    """The parts of an app that contexts and handles use. The app sets those without a default before anything runs."""

    control: ProcessControl
    triggers: Triggers
    run_workflow: Callable[[LiveRun, LashlangInput], Awaitable[Any]]

    def __init__(
        self,
        store: Store,
        histories: SessionReads,
        hub: Hub,
        tasks: TaskOwner,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.store = store
        self.histories = histories
        self.hub = hub
        self.tasks = tasks
        self.clock = clock
        self.deps: Any = None
        self.catalog = Catalog(None, "", ())
        self.environments = Environments(store.envs)
        self.env = ""
        self.definitions = Declarations()
        self._entropy = entropy

    def new_id(self) -> str:
        """Return a new id; ids sort by time, so that indexes grow at one end.

        Equal ids would be the same process, so there are 48 random bits within a millisecond.
        """
        return f"{self.clock.now() // 1000:x}{self._entropy(6).hex()}"

    def refuse_inside_process(self, name: str) -> None:
        """Refuse a call inside a process, or after the app was closed; ``name`` is the called method, for the error."""
        if self.hub.is_closed:
            raise AppNotOpen
        if CURRENT.get() is not None:
            raise AppInsideProcess(name)

    def wait_key(self, run: LiveRun, wait: WaitIdentity, generation: int) -> str:
        """Return the signed key of a wait of a run: a process's epoch or a session's generation revokes it."""
        return self.control.effects.sign(WaitName(run.scope, checked_identity(wait), generation))

    def wait_name(self, key: str) -> str:
        """Return the name of the wait of a key."""
        match self.control.effects.name_in(key).wait:
            case CustomWait(key=text):
                return text
            case ProcessSignal(signal_name=text):
                return text
            case _:
                raise AwaitEventUnknownOrRevoked

    def registry_work(self, run: LiveRun, key: str) -> RegistryWork:
        """Return the function that performs process commands for controllers without a registry."""
        return lambda command, timeout: self._perform_command(run, key, command, timeout)

    async def _perform_command(
        self, run: LiveRun, key: str, command: ProcessCommand, timeout: int | None
    ) -> Any:
        name = (
            command.name if isinstance(command, WaitSignal) else None
        )  # shown in the list of waits
        entry = JournalEntry(key, "process", b"", started=self.clock.now(), label=name)
        if not isinstance(command, Awaited):
            return await self.store.processes.perform(command, run.id)
        changed = asyncio.Event()
        # The store wakes a run that waits for a signal, a process or a turn with its own topic.
        unsubscribe = self.hub.subscribe(lambda _: changed.set(), f"wake:{run.fence.run}")
        try:
            while True:
                state, left = await look(self.store, run.fence, entry, command, timeout)
                if state.outcome is not None:
                    return expect(answer(state.outcome, EffectKind.PROCESS), ProcessOutcome).result
                await self._wait_for_change(changed, left)
        finally:
            unsubscribe()

    async def _wait_for_change(self, changed: asyncio.Event, left: int | None) -> None:
        """Wait for a wake-up, or until so many microseconds are over: the caller reads after that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(NET_SECONDS):
                if left is None:
                    await changed.wait()
                else:
                    await cancelled_first(self.clock.sleep(max(0, left) / SECOND), changed)
        changed.clear()
