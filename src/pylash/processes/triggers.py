"""Triggers: declared types of events, and the processes that subscribe to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, Unpack

import msgspec

from pylash.durable.commands import EmitTrigger
from pylash.durable.processes import Registration
from pylash.durable.scopes import MAX_ID_BYTES
from pylash.durable.sessions import checked_session
from pylash.durable.triggers import (
    SESSION_KEYS,
    Delivery,
    EventBinding,
    Occurrence,
    Subscription,
    SubscriptionView,
    ValueBinding,
    checked_occurrence,
)
from pylash.engine.user_code import call_function
from pylash.processes.control import AskedBy
from pylash.processes.definition import as_prepared
from pylash.processes.services import Services
from pylash.tools.catalog import Catalog
from pylash.tools.signatures import Shape, reason_of
from pylash.values.names import check_name
from pylash.values.process_errors import ArgumentsInvalid, TriggerUnknown

EVENT: Final = EventBinding()
"""Placeholder for the event's payload in the inputs of a subscription."""


SourceGrant = bool | Callable[[str, str], bool | Awaitable[bool]]
"""The sources that programs of sessions may subscribe to: all, none, or decided by a function of session id and source key."""


class TriggerType(msgspec.Struct, frozen=True):
    """A declared type of event; ``sessions`` grants its sources to programs that act for a session."""

    name: str
    payload: Any = Any
    sessions: SourceGrant = False

    async def grants(self, session_id: str, source_key: str) -> bool:
        """Return whether a program of a session may subscribe to a source."""
        if not callable(self.sessions):
            return self.sessions
        return await call_function(self.sessions, (session_id, source_key), {}) is True


class AppParts(Protocol):
    """The parts of an app that triggers and workflows use."""

    @property
    def services(self) -> Services:
        """The shared services; raises AppNotOpen."""

    @property
    def running(self) -> Services:
        """The shared services, also while the app closes."""

    @property
    def catalog(self) -> Catalog:
        """The catalog of the app."""

    @property
    def template(self) -> Registration:
        """The registration that every process of the app inherits."""

    @property
    def trigger_types(self) -> dict[str, TriggerType]:
        """The declared types of events."""


class Triggers:
    """Subscriptions of processes to events.

    >>> app.trigger("github.push", payload=Push)
    >>> await app.triggers.register("github.push", source_key="org/repo", target=on_push, key="ci",
    ...                             inputs={"event": EVENT, "branch": "main"})
    """

    def __init__(self, app: AppParts) -> None:
        self._app = app

    async def register(
        self,
        type: str,  # noqa: A002 - the public name
        *,
        source_key: str,
        target: Any,
        key: str,
        inputs: Mapping[str, Any] | None = None,
        session_id: str | None = None,
    ) -> None:
        """Start target whenever an event of a type comes from a source.

        The same key again replaces the subscription. Cancellation: atomic.
        """
        self._app.services.refuse_inside_process("triggers.register")
        check_name("trigger key", key)
        self._declared_type(type)
        if key.startswith(SESSION_KEYS):
            reason = f"its key {key!r} starts with {SESSION_KEYS!r}, which is reserved for sessions"
            raise ArgumentsInvalid("triggers.register", reason)
        chosen = as_prepared(target)
        given = dict(inputs or {})
        constants = {name: one for name, one in given.items() if not isinstance(one, EventBinding)}
        chosen.definition.arguments.check_names(given)
        await chosen.definition.prepare()
        command = chosen.template(constants, self._app.template, session_id)
        subscription = Subscription(
            key=key,
            type=type,
            source=source_key,
            template=command,
            inputs={
                name: one
                if isinstance(one, EventBinding)
                else ValueBinding(getattr(command.input, "arguments", {}).get(name))
                for name, one in given.items()
            },
            session_id=session_id,
            delay=chosen.delay,
        )
        await self._app.services.store.triggers.register(subscription)

    async def emit(
        self,
        type: str,  # noqa: A002 - the public name
        *,
        source_key: str,
        payload: Any = None,
        idempotency_key: str | None = None,
    ) -> list[Delivery]:
        """Record an event and start the subscribed processes; the same key again starts nothing.

        Cancellation: atomic.
        """
        self._app.services.refuse_inside_process("triggers.emit")
        if idempotency_key is not None:
            check_name("idempotency key", idempotency_key)
        plain = self.payload(type, payload)
        new_key = idempotency_key or self._app.running.new_id()
        return await self._emit(type, source_key, plain, new_key)

    async def emit_recorded(self, emitted: Mapping[str, Any], key: str) -> None:
        """Emit a trigger that an effect recorded, once. Its payload was checked before it was recorded.

        The operation has the key as its id: a host that records operations finds an earlier emission under it.
        """
        name, source = emitted["trigger"], emitted["source_key"]
        await self._emit(name, source, emitted["payload"], key, parent=key)

    async def _emit(
        self, name: str, source_key: str, plain: Any, key: str, **options: Unpack[AskedBy]
    ) -> list[Delivery]:
        occurrence = Occurrence(type=name, source=source_key, payload=plain, idempotency_key=key)
        # Before the boundary, because names that cannot be stored are not an error of a host.
        command = EmitTrigger(checked_occurrence(occurrence))
        found = await self._app.running.control.perform(command, **options)
        return msgspec.convert(found, list[Delivery])

    def payload(self, name: str, payload: Any) -> Any:
        """Return a payload as plain JSON; refuse one that does not fit, or a type that is not declared."""
        declared = self._declared_type(name)
        try:
            return Shape(declared.payload).dump(payload)
        except ValueError as error:
            raise ArgumentsInvalid(f"trigger {name!r}", reason_of("payload", error)) from None

    async def list(self, session_id: str | None = None) -> list[SubscriptionView]:
        """Return the subscriptions, the oldest first."""
        self._app.services.refuse_inside_process("triggers.list")
        if session_id is not None:
            checked_session(session_id)
        return await self._app.services.store.triggers.listed(session_id)

    async def cancel(self, key: str) -> bool:
        """End a subscription; False if there is none."""
        self._app.services.refuse_inside_process("triggers.cancel")
        check_name("trigger key", key, limit=MAX_ID_BYTES)
        return await self._app.services.store.triggers.cancel(key)

    def _declared_type(self, name: str) -> TriggerType:
        types = self._app.trigger_types
        if name not in types:
            raise TriggerUnknown(name, ", ".join(sorted(types)) or "none")
        return types[name]
