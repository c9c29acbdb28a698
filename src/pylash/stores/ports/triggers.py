"""Triggers in SQL: one transaction records an occurrence and starts its processes."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from pylash.durable.commands import StartProcess
from pylash.durable.runs import Instant
from pylash.durable.triggers import (
    SUBSCRIPTIONS,
    Delivery,
    Occurrence,
    Subscription,
    SubscriptionView,
    Upgrade,
    as_registered,
    checked_occurrence,
    checked_subscription,
)
from pylash.stores.operation import Notify, Operation, Statement, Steps, operation
from pylash.stores.ports.numbers import RunPort
from pylash.stores.ports.processes import check_known, register_process
from pylash.stores.tables import triggers as table
from pylash.values.canonical import write_payload
from pylash.values.process_errors import TriggerConflict

_LISTED = """
select body, created from pylash_triggers where enabled = 1 order by created, key"""

_LISTED_OF_SESSION = _LISTED.replace("where ", "where session = ? and ")

_OCCURRED = "select digest from pylash_occurrences where id = ?"

# Shared lock: a concurrent change of a subscription is applied before or after, as a whole.
_MATCHING = """
select body from pylash_triggers where type = ? and source = ? and enabled = 1 order by key {share}"""

_DELIVERIES = """
select occurrence, subscription, process from pylash_deliveries where occurrence = ?
order by subscription"""


class SqlTriggers(RunPort):
    """Subscriptions, occurrences and deliveries in SQL."""

    @operation()
    def register(self, subscription: Subscription) -> Steps[None]:
        """Add a subscription, or replace the one with its key; raises TriggerConflict if that is of another session."""
        checked_subscription(subscription)
        key, source, session = subscription.key, subscription.source, subscription.session_id
        body = (subscription.template.target, write_payload(subscription, 1))
        row = (key, subscription.type, source, *body, session)
        if not (yield Statement(table.REGISTER, row)).changed:
            raise TriggerConflict("subscription", subscription.key)

    @operation(read_only=True)
    def listed(self, session_id: str | None = None) -> Steps[list[SubscriptionView]]:
        """Return the enabled subscriptions, the oldest first."""
        if session_id is None:
            rows = (yield Statement(_LISTED)).rows
        else:
            rows = (yield Statement(_LISTED_OF_SESSION, (session_id,))).rows
        return [SubscriptionView(SUBSCRIPTIONS.decode(body), Instant(at)) for body, at in rows]

    @operation()
    def cancel(self, key: str) -> Steps[bool]:
        """End a subscription; False if there is none."""
        return bool((yield Statement(table.CANCEL, (key,))).changed)

    @operation()
    def cancel_owned(self, key: str, session_id: str | None) -> Steps[bool]:
        """End a subscription of a session, or of no session (None); False if there is none with the key."""
        return bool((yield Statement(table.CANCEL_OWNED, (key, session_id or ""))).changed)

    def emit(
        self, occurrence: Occurrence, upgrade: Upgrade = as_registered
    ) -> Awaitable[list[Delivery]]:
        """Record an occurrence and start its processes, once, each as ``upgrade`` returns it; return the deliveries."""
        checked_occurrence(occurrence)
        steps = partial(self._emit, occurrence, upgrade)
        return self.driver.run(Operation("emit", steps, flow=f"emit:{occurrence.type}"))

    def _emit(self, occurrence: Occurrence, upgrade: Upgrade) -> Steps[list[Delivery]]:
        what = (occurrence.id, occurrence.type, occurrence.source, occurrence.digest)
        row = (*what, write_payload(occurrence.payload, 1))
        if (yield Statement(table.ADD_OCCURRENCE, row)).changed:
            matching = (yield Statement(_MATCHING, (occurrence.type, occurrence.source))).rows
            for (body,) in matching:
                subscription = SUBSCRIPTIONS.decode(body)
                registration = upgrade(subscription.registration(occurrence))
                command = StartProcess(registration, subscription.delay, registration.holder)
                if (yield from register_process(command, self._draws())) is None:
                    yield from check_known(registration)  # a process of this id was started before
                delivery = (occurrence.id, subscription.key, registration.id)
                yield Statement(table.ADD_DELIVERY, delivery)
            yield Notify("runs")
        known = (yield Statement(_OCCURRED, (occurrence.id,))).rows
        if bytes(known[0][0]) != occurrence.digest:
            raise TriggerConflict("occurrence", occurrence.idempotency_key)
        return [Delivery(*row) for row in (yield Statement(_DELIVERIES, (occurrence.id,))).rows]
