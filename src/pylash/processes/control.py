"""Process control: the operations of a session on its process handles, each as an effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pylash.durable.commands import (
    CancelUnreferenced,
    DeleteSessionProcesses,
    ListProcesses,
    ProcessCommand,
    TransferHandles,
    process_key,
)
from pylash.durable.effects import Process, ProcessOutcome, RuntimeScope, envelope, expect
from pylash.durable.ports import ScopedController
from pylash.durable.processes import SessionRef, SessionReport
from pylash.durable.stores import Processes
from pylash.engine.executors import process_executor
from pylash.values.canonical import decode, write
from pylash.values.process_errors import ProcessNotVisible, ProcessRegistryUnavailable


class ProcessControl:
    """The process registry for one session, under the key of the caller.

    >>> control = ProcessControl(host.scoped(scope), store.processes, "turn-1:control")
    >>> await control.transfer(SessionRef("a"), SessionRef("b"), ["onboard-ann"])
    """

    def __init__(
        self,
        boundary: ScopedController,
        registry: Processes | None,
        parent: str,
        started: Sequence[str] = (),
    ) -> None:
        self._boundary = boundary
        self._registry = registry
        self._parent = parent
        self._started = frozenset(started)

    async def listed(
        self, holder: SessionRef, mode: Literal["live", "all"] = "live"
    ) -> list[dict[str, Any]]:
        """Return the processes whose handles a session holds."""
        found: list[dict[str, Any]] = await self._ask(ListProcesses(holder, mode))
        return found

    async def transfer(
        self, source: SessionRef, target: SessionRef, process_ids: Sequence[str]
    ) -> None:
        """Give handles of one session to another."""
        if process_ids:
            await self._ask(TransferHandles(source, target, tuple(process_ids)))

    async def cancel_unreferenced(self, holder: SessionRef, keep: Sequence[str] = ()) -> list[str]:
        """Let go of every handle but those kept; return the processes that are cancelled by that."""
        cancelled: list[str] = await self._ask(CancelUnreferenced(holder, tuple(keep)))
        return cancelled

    async def delete_session(self, session_id: str) -> SessionReport:
        """Remove the process handles of a session, and report it."""
        return SessionReport(**await self._ask(DeleteSessionProcesses(session_id)))

    async def check_visible(self, holder: SessionRef, process_ids: Sequence[str]) -> None:
        """Refuse processes that a session has no handle of, and that it did not start itself."""
        registry = self._available()
        held = {grant.process_id for grant in await registry.grants(holder)}
        for process in process_ids:
            if process not in held | self._started:
                raise ProcessNotVisible(process, holder.session_id)

    def _available(self) -> Processes:
        if self._registry is None:
            raise ProcessRegistryUnavailable
        return self._registry

    async def _ask(self, command: ProcessCommand) -> Any:
        registry = self._available()
        asked = envelope(
            Process(decode(write(command))),
            scope=RuntimeScope.of(self._boundary.execution_scope),
            effect_id=command.effect_id,
            replay_key=process_key(self._parent, command.effect_id),
            causal_parent=self._parent,
        )
        local = process_executor(lambda wanted, _timeout: registry.perform(wanted))
        return expect(await self._boundary.execute(asked, local), ProcessOutcome).result
