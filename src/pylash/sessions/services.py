"""Objects that the sessions of one app share."""

from __future__ import annotations

from pylash.durable.ports import Clock, Entropy
from pylash.durable.stores import Store
from pylash.engine.hub import Hub
from pylash.processes.services import Services
from pylash.sessions.feeds import Feeds
from pylash.sessions.histories import Histories
from pylash.tasks import TaskOwner


class SessionServices(Services):
    """Adds the events of turns that run here; ``histories`` has the messages of sessions."""

    histories: Histories

    def __init__(
        self,
        store: Store,
        histories: Histories,
        hub: Hub,
        tasks: TaskOwner,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        super().__init__(store, histories, hub, tasks, clock, entropy)
        self.feeds = Feeds()
