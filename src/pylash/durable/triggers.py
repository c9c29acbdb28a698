"""Triggers: external events that start processes.

Rule 1. One transaction records an occurrence and starts its processes.
Rule 2. The id of a started process is derived from the subscription and the occurrence, so it is unique.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from pylash.durable.processes import (
    EngineInput,
    LashlangInput,
    Registration,
    SessionTurnInput,
)
from pylash.durable.runs import Instant
from pylash.durable.scopes import MAX_ID_BYTES
from pylash.values.canonical import encode
from pylash.values.names import MAX_NAME_BYTES, check_name, storable
from pylash.values.turn_errors import SessionIdInvalid


class EventBinding(msgspec.Struct, frozen=True, tag_field="from", tag="event"):
    """An argument whose value is the payload of the event."""


class ValueBinding(msgspec.Struct, frozen=True, tag_field="from", tag="value"):
    """An argument with a constant value."""

    value: Any = None


Binding = EventBinding | ValueBinding

SESSION_KEYS: Final = "session:"
"""The prefix of the keys of subscriptions that programs register for sessions; other keys must not use it."""


_MAX_AGENT_KEY_BYTES: Final = MAX_NAME_BYTES - 64
"""The longest key of a subscription that starts an agent: the id of its process is the id of a session."""


def session_key(session_id: str, key: str) -> str:
    """Return the stored key of a subscription that a session calls ``key``.

    The quoted id ends at the first slash, so two sessions never share a key.

    >>> session_key("a/b", "x"), session_key("a", "b/x")
    ('session:a%2Fb/x', 'session:a/b/x')
    """
    quoted = session_id.replace("%", "%25").replace("/", "%2F")
    return f"{SESSION_KEYS}{quoted}/{key}"


def unquoted_session_key(session_id: str, key: str) -> str:
    """Return the key as older versions stored it, with an unquoted id. It may belong to another session."""
    return f"{SESSION_KEYS}{session_id}/{key}"


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A process to start for each event of a type from a source.

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
        given, process_id = self.template.input, f"trigger:{self.key}:{occurrence.id}"
        if isinstance(given, SessionTurnInput):
            turn = self._turn(given, process_id, occurrence)
            return msgspec.structs.replace(self.template, id=process_id, input=turn)
        assert isinstance(given, EngineInput | LashlangInput)  # there are no other targets
        arguments = dict(given.arguments)
        for name, binding in self.inputs.items():
            if isinstance(binding, ValueBinding):
                arguments[name] = binding.value
        if isinstance(given, LashlangInput) and given.handles is msgspec.UNSET:
            # Older versions did not store handles: every constant that looks like a handle was one. The payload
            # of an event never contains handles.
            given = msgspec.structs.replace(given, handles=tuple(_shaped_ids(arguments)))
        for name, binding in self.inputs.items():
            if isinstance(binding, EventBinding):
                arguments[name] = occurrence.payload
        slot = self.template.slot
        if slot is not None:
            slot = msgspec.structs.replace(slot, key=storable(slot.key.format(**arguments)))
        return msgspec.structs.replace(
            self.template,
            id=process_id,
            input=msgspec.structs.replace(given, arguments=arguments),
            slot=slot,
        )

    def _turn(
        self, given: SessionTurnInput, process_id: str, occurrence: Occurrence
    ) -> SessionTurnInput:
        """Return the turn of an agent: in a session with the id of its process, its task a constant or the payload."""
        ask, payload = given.ask, occurrence.payload
        if any(isinstance(binding, EventBinding) for binding in self.inputs.values()):
            text = payload if isinstance(payload, str) else encode(payload).decode()
            ask = {**ask, "parts": [{"type": "text", "text": text}]}
        return msgspec.structs.replace(given, session_id=process_id, ask=ask)


def _shaped_ids(value: Any) -> Iterator[str]:
    """Yield the ids in all values that look like a handle of Lashlang, at any depth of plain JSON."""
    items: Iterable[Any] = ()
    if isinstance(value, dict):
        if value.get("__handle__") == "process" and isinstance(value.get("id"), str):
            yield value["id"]
        items = value.values()
    elif isinstance(value, list):
        items = value
    for item in items:
        yield from _shaped_ids(item)


Upgrade = Callable[[Registration], Registration]
"""Returns the registration that is started for a subscription, such as one for a newer version of its program."""


def as_registered(registration: Registration) -> Registration:
    """Return a registration unchanged."""
    return registration


def checked_subscription(subscription: Subscription) -> Subscription:
    """Return subscription, or raise an error if one of its names cannot be stored."""
    is_agent = isinstance(subscription.template.input, SessionTurnInput)
    limit = _MAX_AGENT_KEY_BYTES if is_agent else MAX_ID_BYTES
    check_name("trigger key", subscription.key, limit=limit)
    check_name("trigger type", subscription.type)
    check_name("source key", subscription.source)
    if subscription.session_id is not None:
        check_name("session id", subscription.session_id, error=SessionIdInvalid)
    return subscription


SUBSCRIPTIONS: msgspec.json.Decoder[Subscription] = msgspec.json.Decoder(Subscription)
"""Decodes a stored subscription."""


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was reported. The same ``idempotency_key`` again is the same occurrence."""

    type: str
    source: str
    payload: Any = None
    idempotency_key: str

    @property
    def id(self) -> str:
        """The id, derived from type, source and idempotency key."""
        name = encode([self.type, self.source, self.idempotency_key])
        return hashlib.sha256(name).hexdigest()[:32]

    @property
    def digest(self) -> bytes:
        """The hash of its payload. The same id with another digest is a conflict."""
        return hashlib.sha256(encode(self.payload)).digest()


def checked_occurrence(occurrence: Occurrence) -> Occurrence:
    """Return occurrence, or raise an error if one of its names cannot be stored."""
    check_name("trigger type", occurrence.type)
    check_name("source key", occurrence.source)
    check_name("idempotency key", occurrence.idempotency_key, limit=None)  # only its hash is stored
    return occurrence


class Delivery(msgspec.Struct, frozen=True):
    """A process that an occurrence started for a subscription."""

    occurrence: str
    subscription: str
    process_id: str


class SubscriptionView(msgspec.Struct, frozen=True):
    """A subscription in a list."""

    subscription: Subscription
    created: Instant
