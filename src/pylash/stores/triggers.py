"""Triggers in SQL: an occurrence and everything it starts are one transaction."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from pylash.durable import (
    SUBSCRIPTIONS,
    Clock,
    Delivery,
    Entropy,
    Instant,
    Occurrence,
    StartProcess,
    Subscription,
    SubscriptionView,
    checked_occurrence,
    checked_subscription,
)
from pylash.stores.numbers import DrawsNumbers
from pylash.stores.processes import check_known, register_process
from pylash.stores.sql import Driver, Notify, Operation, Port, Statement, Steps, operation
from pylash.values import TriggerConflict, write_payload

_REGISTER = """
insert into pylash_triggers(key, type, source, target, body, session, created)
values (?, ?, ?, ?, ?, ?, {now})
on conflict (key) do update set type = excluded.type, source = excluded.source,
  target = excluded.target, body = excluded.body, session = excluded.session, enabled = 1
where pylash_triggers.enabled = 0
  or coalesce(pylash_triggers.session, '') = coalesce(excluded.session, '')"""

_LISTED = """
select body, created from pylash_triggers where enabled = 1 order by created, key"""

_LISTED_OF_SESSION = _LISTED.replace("where ", "where session = ? and ")

_CANCEL = "update pylash_triggers set enabled = 0 where key = ? and enabled = 1"

# No session has an empty id.
_CANCEL_OWNED = f"{_CANCEL} and coalesce(session, '') = ?"

_FORGET = "delete from pylash_triggers where session = ?"

_OCCUR = """
insert into pylash_occurrences(id, type, source, digest, payload, at) values (?, ?, ?, ?, ?, {now})
on conflict do nothing"""

_OCCURRED = "select digest from pylash_occurrences where id = ?"

# Shared, so that a subscription that is being changed is either the old one or the new one.
_MATCHING = """
select body from pylash_triggers where type = ? and source = ? and enabled = 1 order by key {share}"""

_DELIVER = """
insert into pylash_deliveries(occurrence, subscription, process) values (?, ?, ?)
on conflict do nothing"""

_DELIVERIES = """
select occurrence, subscription, process from pylash_deliveries where occurrence = ?
order by subscription"""


class SqlTriggers(Port, DrawsNumbers):
    """Subscriptions, occurrences and deliveries in SQL."""

    def __init__(self, driver: Driver, clock: Clock, entropy: Entropy) -> None:
        super().__init__(driver)
        self._clock = clock
        self._entropy = entropy

    @operation()
    def register(self, subscription: Subscription) -> Steps[None]:
        """Subscribe; the same key again replaces what it stood for, but not what another session registered."""
        target = checked_subscription(subscription).template.target
        body = (target, write_payload(subscription, 1), subscription.session_id)
        row = (subscription.key, subscription.type, subscription.source, *body)
        if not (yield Statement(_REGISTER, row)).changed:
            raise TriggerConflict("subscription", subscription.key)

    @operation(read_only=True)
    def listed(self, session_id: str | None = None) -> Steps[list[SubscriptionView]]:
        """Return the subscriptions, the oldest first."""
        if session_id is None:
            rows = (yield Statement(_LISTED)).rows
        else:
            rows = (yield Statement(_LISTED_OF_SESSION, (session_id,))).rows
        return [SubscriptionView(SUBSCRIPTIONS.decode(body), Instant(at)) for body, at in rows]

    @operation()
    def cancel(self, key: str) -> Steps[bool]:
        """End a subscription; False if there is none."""
        return bool((yield Statement(_CANCEL, (key,))).changed)

    @operation()
    def cancel_owned(self, key: str, session_id: str | None) -> Steps[bool]:
        """End a subscription of a session, or of none (None); False if it has none of that key."""
        return bool((yield Statement(_CANCEL_OWNED, (key, session_id or ""))).changed)

    @operation()
    def forget_session(self, session_id: str) -> Steps[int]:
        """Remove a session's subscriptions; return how many there were."""
        return (yield Statement(_FORGET, (session_id,))).changed

    def emit(self, occurrence: Occurrence) -> Awaitable[list[Delivery]]:
        """Record an occurrence once, with the processes it starts; return them."""
        checked_occurrence(occurrence)
        steps = partial(self._emit, occurrence)
        return self.driver.run(Operation("emit", steps, flow=f"emit:{occurrence.type}"))

    def _emit(self, occurrence: Occurrence) -> Steps[list[Delivery]]:
        row = (occurrence.id, occurrence.type, occurrence.source, occurrence.digest)
        if (yield Statement(_OCCUR, (*row, write_payload(occurrence.payload, 1)))).changed:
            matching = (yield Statement(_MATCHING, (occurrence.type, occurrence.source))).rows
            for (body,) in matching:
                subscription = SUBSCRIPTIONS.decode(body)
                registration = subscription.registration(occurrence)
                command = StartProcess(registration, subscription.delay)
                if (yield from register_process(command, self._draws())) is None:
                    yield from check_known(registration)  # somebody has started it by its id
                delivery = (occurrence.id, subscription.key, registration.id)
                yield Statement(_DELIVER, delivery)
            yield Notify("runs")
        known = (yield Statement(_OCCURRED, (occurrence.id,))).rows
        if bytes(known[0][0]) != occurrence.digest:
            raise TriggerConflict("occurrence", occurrence.idempotency_key)
        return [Delivery(*row) for row in (yield Statement(_DELIVERIES, (occurrence.id,))).rows]
