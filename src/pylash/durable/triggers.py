"""Triggers: events of the outside world that start processes.

Rule 1. An occurrence is recorded with everything it starts, in one transaction.
Rule 2. The process that a delivery starts has a name made of both: there can be only one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from pylash.durable.processes import EngineInput, LashlangInput, Registration
from pylash.durable.runs import Instant
from pylash.durable.scopes import MAX_ID_BYTES
from pylash.values import SessionIdInvalid, check_name, encode, storable


class EventBinding(msgspec.Struct, frozen=True, tag_field="from", tag="event"):
    """An argument that is the event's payload."""


class ValueBinding(msgspec.Struct, frozen=True, tag_field="from", tag="value"):
    """An argument that was given with the subscription."""

    value: Any = None


Binding = EventBinding | ValueBinding

SESSION_KEYS: Final = "session:"
"""The prefix of the keys of subscriptions that programs register for sessions; nobody else may use it."""


def session_key(session_id: str, key: str) -> str:
    """Return the stored key of a subscription that a session calls ``key``.

    The quoted id ends at the first slash, so two sessions never share a key.

    >>> session_key("a/b", "x"), session_key("a", "b/x")
    ('session:a%2Fb/x', 'session:a/b/x')
    """
    quoted = session_id.replace("%", "%25").replace("/", "%2F")
    return f"{SESSION_KEYS}{quoted}/{key}"


def unquoted_session_key(session_id: str, key: str) -> str:
    """Return the key that was stored before ids were quoted. It may be the key of another session as well."""
    return f"{SESSION_KEYS}{session_id}/{key}"


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """What starts when an event of a type comes from a source.

    ``template`` has no id yet, and the key of its slot is filled in from the arguments.
    """

    key: str
    type: str
    source: str
    template: Registration
    inputs: dict[str, Binding] = {}
    session_id: str | None = None
    delay: int = 0
    name: str | None = None

    def registration(self, occurrence: Occurrence) -> Registration:
        """Return the process that an occurrence starts."""
        given = self.template.input
        assert isinstance(given, EngineInput | LashlangInput)  # nothing else can be subscribed
        arguments = dict(given.arguments)
        for name, binding in self.inputs.items():
            if isinstance(binding, ValueBinding):
                arguments[name] = binding.value
        if isinstance(given, LashlangInput) and given.handles is msgspec.UNSET:
            # Stored by an older version, for which everything that looked like a handle was one. Whatever comes
            # with an event is data.
            given = msgspec.structs.replace(given, handles=tuple(_shaped_ids(arguments)))
        for name, binding in self.inputs.items():
            if isinstance(binding, EventBinding):
                arguments[name] = occurrence.payload
        slot = self.template.slot
        if slot is not None:
            slot = msgspec.structs.replace(slot, key=storable(slot.key.format(**arguments)))
        return msgspec.structs.replace(
            self.template,
            id=f"trigger:{self.key}:{occurrence.id}",
            input=msgspec.structs.replace(given, arguments=arguments),
            slot=slot,
        )


def _shaped_ids(value: Any) -> Iterator[str]:
    """Yield the ids in what looks like a handle of Lashlang, at any depth of plain JSON."""
    items: Iterable[Any] = ()
    if isinstance(value, dict):
        if value.get("__handle__") == "process" and isinstance(value.get("id"), str):
            yield value["id"]
        items = value.values()
    elif isinstance(value, list):
        items = value
    for item in items:
        yield from _shaped_ids(item)


def checked_subscription(subscription: Subscription) -> Subscription:
    """Return subscription, or refuse one with a name that cannot be stored."""
    check_name("trigger key", subscription.key, limit=MAX_ID_BYTES)
    check_name("trigger type", subscription.type)
    check_name("source key", subscription.source)
    if subscription.session_id is not None:
        check_name("session id", subscription.session_id, error=SessionIdInvalid)
    return subscription


SUBSCRIPTIONS: msgspec.json.Decoder[Subscription] = msgspec.json.Decoder(Subscription)
"""Reads a stored subscription."""


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened. ``idempotency_key`` makes a repeated report the same occurrence."""

    type: str
    source: str
    payload: Any = None
    idempotency_key: str

    @property
    def id(self) -> str:
        """The occurrence's id: the same for the same report."""
        name = encode([self.type, self.source, self.idempotency_key])
        return hashlib.sha256(name).hexdigest()[:32]

    @property
    def digest(self) -> bytes:
        """What makes another report of the id the same one: its payload."""
        return hashlib.sha256(encode(self.payload)).digest()


def checked_occurrence(occurrence: Occurrence) -> Occurrence:
    """Return occurrence, or refuse one with a name that cannot be stored."""
    check_name("trigger type", occurrence.type)
    check_name("source key", occurrence.source)
    check_name("idempotency key", occurrence.idempotency_key, limit=None)  # it is hashed
    return occurrence


class Delivery(msgspec.Struct, frozen=True):
    """One process that one occurrence started for one subscription."""

    occurrence: str
    subscription: str
    process_id: str


class SubscriptionView(msgspec.Struct, frozen=True):
    """A subscription as people see it."""

    subscription: Subscription
    created: Instant
