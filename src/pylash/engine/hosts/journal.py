"""The durable host: creates controllers that record effects in the journal of a store.

It joins the workers of the store as a member (``Membership``), so that its runs have a live owner. It claims no runs:
``engine.worker`` does that, with the membership of its host.

Rule 1. There is one controller per scope and host, so that all callers of a scope share its effects in flight.
Rule 2. A controller that lost its run is forgotten; the next call for its scope attaches the run again.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import msgspec

from pylash.durable.ports import Cancellation, Clock, EffectHost, Entropy, ScopedController
from pylash.durable.runs import Attached, LeaseTimings
from pylash.durable.scopes import ExecutionScope, checked_scope, session_of
from pylash.durable.stores import Store, WaitOpening, WaitStatus
from pylash.durable.waits import (
    UNKNOWN_OR_REVOKED,
    OpenWait,
    Resolution,
    ResolveOutcome,
    Signer,
    WaitIdentity,
    WaitName,
    checked_identity,
    checked_resolution,
)
from pylash.engine.hosts.controller import JournalController
from pylash.engine.hosts.journal_memory import JournalMemory
from pylash.engine.hosts.operations import OPERATION_SCOPES, OperationController
from pylash.engine.hosts.shared import SharedController
from pylash.engine.hub import Hub
from pylash.engine.waiting import LiveWaits
from pylash.engine.worker.membership import Membership
from pylash.tasks import TaskOwner
from pylash.values.durations import Duration, micros
from pylash.values.errors import AwaitEventUnknownOrRevoked


class JournalHost(EffectHost):
    """Hands out controllers that record every effect in a store's journal."""

    supports_durable_effects = True

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        entropy: Entropy,
        signer: Signer | None = None,
        timings: LeaseTimings | None = None,
    ) -> None:
        self.store = store
        self.durability = store.durability
        self.clock = clock
        self._entropy = entropy
        self.signer = signer or Signer([store.secret])
        # Effects and registry work run in these. A worker closes its own tasks first, so that a record that is being
        # written outlives the code that asked for it.
        self.tasks = TaskOwner()
        self.membership = Membership(store, clock, entropy, timings or LeaseTimings())
        # Written by ``open`` and ``close`` only. Controllers check it before they begin an effect.
        self.is_open = False
        # The controllers of runs that this worker executes, and those for callers outside a run. Weak: a controller is
        # needed while a run or a caller has it, and its effects in flight are shared exactly that long.
        self._adopted: WeakValueDictionary[ExecutionScope, JournalController]
        self._adopted = WeakValueDictionary()
        self._shared: WeakValueDictionary[ExecutionScope, SharedController]
        self._shared = WeakValueDictionary()

    async def open(self, *, member: bool = True) -> None:
        """Become a worker of the store. A host that is no ``member`` reads and answers waits, and executes nothing."""
        self.hub = Hub(self.store)
        self.live = LiveWaits(self.store, self.hub, self.clock, self._entropy, self.tasks)
        if member:
            await self.membership.join(self.tasks)
        self._is_member = member
        self.is_open = True

    async def close(self) -> None:
        """Detach every run: nothing is recorded, and any worker may go on with them."""
        if self.is_open:
            # First, so that no effect begins; the effects under way then end with their tasks, and the membership last:
            # it gives up every run that is still ours.
            self.is_open = False
            self.hub.close()
            await self.tasks.close()
            # After the tasks: a task that was cancelled before its first step, or ignores its cancel, has answered no caller.
            for controller in tuple(self._shared.values()):
                controller.detach()
            if self._is_member:
                await self.membership.leave()

    def scoped(self, scope: ExecutionScope) -> ScopedController:
        """Return the controller of scope."""
        if isinstance(scope, OPERATION_SCOPES):
            return ScopedController(OperationController(self, scope), scope)
        return ScopedController(self.shared(checked_scope(scope)), scope)

    def shared(self, scope: ExecutionScope) -> SharedController:
        """Return the controller that records the effects of scope for callers outside its run."""
        shared = self._shared.get(scope)
        if shared is None:
            controller = self._adopted.get(scope) or JournalController(self, scope)
            shared = self._shared[scope] = SharedController(controller, self)
        return shared

    def adopt(self, attached: Attached, clock: Clock) -> tuple[JournalController, JournalMemory]:  # noqa: ARG002 - it has its own
        """Return the controller of a run that this worker has claimed, and the memory of the run."""
        scope = attached.fence.scope
        # It replaces the controller of an earlier claim, which keeps its old fence: what that one writes is refused.
        controller = self._adopted[scope] = JournalController(self, scope)
        # A shared controller over the run before this claim has an old fence.
        self._shared.pop(scope, None)
        controller.memory.adopt(attached)
        return controller, controller.memory

    def new_token(self) -> str:
        """Return a token that makes an operation happen once."""
        return self._entropy(8).hex()

    def forget(self, scope: ExecutionScope, controller: JournalController) -> None:
        """Create a new controller for scope next time: the run of this one belongs to another worker."""
        # The run may have been claimed again meanwhile: then another controller has the scope, and stays.
        if self._adopted.get(scope) is controller:
            del self._adopted[scope]
        shared = self._shared.get(scope)
        if shared is not None and shared.controller is controller:
            del self._shared[scope]

    async def wait_key(self, scope: ExecutionScope, wait: WaitIdentity) -> str:
        """Return the signed key of a wait: the same on every host that has the secret."""
        session = session_of(checked_scope(scope))
        checked_identity(wait)
        generation = 0 if session is None else await self.store.waits.generation(session)
        return self.signer.key(scope, wait, generation)

    async def resolve(
        self, key: str, resolution: Resolution, *, by: str | None = None
    ) -> ResolveOutcome:
        """Answer a wait. The first answer wins.

        Cancellation: atomic.
        """
        resolution = checked_resolution(resolution)
        name = self.signer.name(key)
        if name is None:
            return UNKNOWN_OR_REVOKED
        return await self.live.resolve(name, resolution, by)

    async def wait(
        self, key: str, *, cancel: Cancellation | None = None, timeout: Duration | None = None
    ) -> Resolution:
        """Return how the wait ended.

        Cancellation: safe, the wait stays open; only ``cancel`` ends it.
        """
        name = self.name_in(key)
        opening = WaitOpening(name=name, timeout=None if timeout is None else micros(timeout))
        return await self.live.wait(name, self._open_wait(opening), cancel)

    async def _open_wait(self, opening: WaitOpening) -> WaitStatus:
        status = await self.store.waits.open(opening)
        if status.revoked:  # an outsider may not even read how it ended
            raise AwaitEventUnknownOrRevoked
        return status

    async def revoke_waits(self, session_id: str) -> None:
        """Make every key of the session unknown, and wake the tasks that wait for one."""
        generation = await self.store.waits.generation(session_id)
        await self.store.waits.revoke(session_id, generation)

    async def open_waits(self, session_id: str | None = None) -> list[OpenWait]:
        """Return the open waits, oldest first, each with the key that answers it."""
        views = await self.store.waits.listed(session_id)
        return [
            OpenWait(
                **msgspec.structs.asdict(view),
                key=self.signer.sign(view.name),
            )
            for view in views
        ]

    def sign(self, name: WaitName) -> str:
        """Return the key of a wait."""
        return self.signer.sign(name)

    def name_in(self, key: str) -> WaitName:
        """Return the wait that key names, or refuse a key that is not ours."""
        name = self.signer.name(key)
        if name is None:
            raise AwaitEventUnknownOrRevoked
        return name
