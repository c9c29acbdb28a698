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
        found: list[dict[str, Any]] = await self._perform(ListProcesses(holder, mode))
        return found

    async def transfer(
        self, source: SessionRef, target: SessionRef, process_ids: Sequence[str]
    ) -> None:
        """Give handles of one session to another."""
        if process_ids:
            await self._perform(TransferHandles(source, target, tuple(process_ids)))

    async def cancel_unreferenced(self, holder: SessionRef, keep: Sequence[str] = ()) -> list[str]:
        """Release every handle except those in ``keep``; return the processes that were cancelled because of it."""
        cancelled: list[str] = await self._perform(CancelUnreferenced(holder, tuple(keep)))
        return cancelled

    async def delete_session(self, session_id: str) -> SessionReport:
        """Remove the process handles of a session, and report it."""
        return SessionReport(**await self._perform(DeleteSessionProcesses(session_id)))

    async def check_visible(self, holder: SessionRef, process_ids: Sequence[str]) -> None:
        """Refuse processes that a session neither has a handle of nor started itself."""
        registry = self._require_registry()
        held = {grant.process_id for grant in await registry.grants(holder)}
        for process in process_ids:
            if process not in held | self._started:
                raise ProcessNotVisible(process, holder.session_id)

    def _require_registry(self) -> Processes:
        if self._registry is None:
            raise ProcessRegistryUnavailable
        return self._registry

    async def _perform(self, command: ProcessCommand) -> Any:
        registry = self._require_registry()
        request = envelope(
            Process(decode(write(command))),
            scope=RuntimeScope.of(self._boundary.execution_scope),
            effect_id=command.effect_id,
            replay_key=process_key(self._parent, command.effect_id),
            causal_parent=self._parent,
        )
        local = process_executor(lambda command, _timeout: registry.perform(command))
        return expect(await self._boundary.execute(request, local), ProcessOutcome).result
