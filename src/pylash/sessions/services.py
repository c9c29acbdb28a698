"""Objects that the sessions of one app share."""

from __future__ import annotations

from typing import Any

from pylash.durable.ports import Clock, EffectHost, Entropy
from pylash.durable.stores import Store
from pylash.engine.hub import Hub
from pylash.processes.services import Services
from pylash.sessions.feeds import Feeds
from pylash.sessions.histories import Histories
from pylash.tasks import TaskOwner
from pylash.turn.messages import MESSAGES, attachment_refs
from pylash.turn.views import view_of


class SessionServices(Services):
    """Adds the events of turns that run here, and the cache of histories."""

    def __init__(
        self,
        store: Store,
        effects: EffectHost,
        hub: Hub,
        tasks: TaskOwner,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        super().__init__(store, effects, hub, tasks, clock, entropy)
        self.feeds = Feeds()
        self.histories = Histories(store.sessions)
        self.view_session = self._view_session
        self.attachments_of = self._attachments_of

    async def _view_session(self, session_id: str, last: int | None) -> list[dict[str, Any]]:
        record = await self.store.sessions.get(session_id)
        return [] if record is None else view_of(await self.histories.messages(record), last)

    async def _attachments_of(self, session_id: str) -> set[str]:
        """Return the references to attachments in the messages of a session, those of a running turn included."""
        record = await self.store.sessions.get(session_id)
        if record is None:
            return set()
        uncommitted = (await self.store.sessions.uncommitted(record)).values()
        messages = [*await self.histories.messages(record), *map(MESSAGES.decode, uncommitted)]
        return {ref for message in messages for ref in attachment_refs(message)}
