"""Operations outside any run: the registry's own row is the record of a process command.

A start happens once for its process id and input, a signal once for its id, an event once for its key. So a process
command of an operation needs no run, no journal entry and no second write: it costs what the registry costs.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from pylash.durable.effects import Envelope, Outcome, Process
from pylash.durable.ports import LocalExecutor
from pylash.durable.scopes import ExecutionScope, RuntimeOperationScope, SessionDeleteScope
from pylash.engine.hosts.controller import HostedController
from pylash.engine.hosts.registry_work import perform_registry_work
from pylash.engine.records import check_call
from pylash.values.errors import MissingReplayKey, StoreClosed

if TYPE_CHECKING:
    from pylash.engine.hosts.journal import JournalHost
    from pylash.engine.hosts.shared import SharedController

OPERATION_SCOPES: Final = (RuntimeOperationScope, SessionDeleteScope)
"""The scopes whose process commands are not recorded."""


class OperationController(HostedController):
    """The boundary of one operation: performs process commands, and records all other effects."""

    def __init__(self, host: JournalHost, scope: ExecutionScope) -> None:
        super().__init__(host)
        self._scope = scope
        # Made for the first recorded effect, and kept: it owns the run of the scope.
        self._shared: SharedController | None = None

    def execute(self, envelope: Envelope, local: LocalExecutor) -> Coroutine[Any, Any, Outcome]:
        """Perform a process command with the registry; return the recorded outcome of any other effect.

        Cancellation: registry work goes on; for other effects see SharedController.
        """
        command = envelope.command
        if isinstance(command, Process):
            return self._perform(envelope, command, local)
        if self._shared is None:
            self._shared = self._host.shared(self._scope)
        return self._shared.execute(envelope, local)

    def _perform(
        self, envelope: Envelope, command: Process, local: LocalExecutor
    ) -> Coroutine[Any, Any, Outcome]:
        # A step or tool may use the app: its operations are no part of it.
        check_call(envelope, local, nested=True)
        if not envelope.invocation.replay_key:
            raise MissingReplayKey(envelope.invocation.effect_id)
        # A host that has closed does not await its tasks again, so work that began now would be left behind.
        if not self._host.is_open:
            raise StoreClosed
        return perform_registry_work(self._host.tasks, command, local)
