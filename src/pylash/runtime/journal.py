"""The durable host: a worker of a store, handing out controllers over its journal.

Rule 1. One controller per scope and host, so that all callers of a scope share its flights.
Rule 2. A controller that lost its run is forgotten: who asks again attaches anew.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import msgspec

from pylash.durable import (
    UNKNOWN_OR_REVOKED,
    Attached,
    Cancellation,
    Clock,
    EffectHost,
    Entropy,
    ExecutionScope,
    LeaseTimings,
    Resolution,
    ResolveOutcome,
    ScopedController,
    Signer,
    Store,
    WaitIdentity,
    WaitName,
    WaitOpening,
    WaitStatus,
    WaitView,
    checked_identity,
    checked_resolution,
    checked_scope,
    new_run_id,
    session_of,
)
from pylash.runtime.controller import JournalController
from pylash.runtime.membership import Membership
from pylash.runtime.waiting import LiveWaits
from pylash.tasks import TaskOwner
from pylash.values import AwaitEventUnknownOrRevoked, Duration, micros


class OpenWait(WaitView, frozen=True):
    """An open wait as people see it; ``key`` answers it."""

    key: str


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
        self.tasks = TaskOwner()
        self.membership = Membership(store, clock, entropy, timings or LeaseTimings())
        self.is_open = False
        self._controllers: WeakValueDictionary[ExecutionScope, JournalController]
        self._controllers = WeakValueDictionary()

    async def open(self, *, member: bool = True) -> None:
        """Become a worker of the store; whoever is no ``member`` looks and answers, and runs nothing."""
        self.live = LiveWaits(self.store, self.clock, self._entropy, self.tasks)
        if member:
            await self.membership.join(self.tasks)
        self._is_member = member
        self.is_open = True

    async def close(self) -> None:
        """Detach every run: nothing is recorded, and any worker may go on with them."""
        if self.is_open:
            self.is_open = False
            self.live.close()
            await self.tasks.close()
            for controller in tuple(self._controllers.values()):
                controller.detach()
            if self._is_member:
                await self.membership.leave()

    def scoped(self, scope: ExecutionScope) -> ScopedController:
        """Return the controller of scope: one per scope, so that all its callers share flights."""
        controller = self._controllers.get(checked_scope(scope))
        if controller is None:
            controller = self._controllers[scope] = JournalController(self, scope)
        return ScopedController(controller, scope)

    def adopt(self, attached: Attached) -> JournalController:
        """Return the controller of a run that this worker has claimed."""
        controller = self.controller(attached.fence.scope)
        controller.adopt(attached)
        return controller

    def controller(self, scope: ExecutionScope) -> JournalController:
        """Return a controller of a run that will be this worker's."""
        made = self._controllers[scope] = JournalController(self, scope)
        return made

    def new_run(self) -> int:
        """Return a number for a run."""
        return new_run_id(self.clock.now(), self._entropy)

    def new_token(self) -> str:
        """Return a token that makes an operation happen once."""
        return self._entropy(8).hex()

    def forget(self, scope: ExecutionScope, controller: JournalController) -> None:
        """Hand out a new controller for scope next time: this one's run belongs to another."""
        if self._controllers.get(scope) is controller:
            del self._controllers[scope]

    async def wait_key(self, scope: ExecutionScope, wait: WaitIdentity) -> str:
        """Return the signed key of a wait: the same for everyone who shares the secret."""
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
        """Make every key of the session unknown, and wake who waits for one."""
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

    def name_in(self, key: str) -> WaitName:
        """Return the wait that key names, or refuse a key that is not ours."""
        name = self.signer.name(key)
        if name is None:
            raise AwaitEventUnknownOrRevoked
        return name
