"""The operations of Lashlang's module ``triggers``: programs subscribe processes of their own module to events.

Rule 1. A program that acts for a session can access only the triggers of that session, and sources granted to it.
Rule 2. A stored key contains the session, so that sessions do not share keys.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from pylash.durable.processes import LashlangInput, Registration, SessionRef
from pylash.durable.triggers import (
    SESSION_KEYS,
    EventBinding,
    Subscription,
    ValueBinding,
    session_key,
    unquoted_session_key,
)
from pylash.engine.runs.run import LiveRun
from pylash.lang import TRIGGER_EVENT, Artifact, HostCall, InvalidTrigger, Surface, subscription
from pylash.processes.operations.context import ProcessContext
from pylash.processes.services import Services
from pylash.processes.triggers import TriggerType
from pylash.values.canonical import stable_hash
from pylash.values.errors import LashError
from pylash.values.names import check_name
from pylash.values.process_errors import TriggerSourceNotGranted
from pylash.workflows.modules import process_input
from pylash.workflows.surfaces import source_type

NewProcess = Callable[[str, LashlangInput], Registration]
"""Returns the registration, still without an id, of a process that acts for the same session."""


class TriggerOperations:
    """Performs the trigger operations of one process."""

    def __init__(
        self,
        services: Services,
        run: LiveRun,
        artifact: Artifact,
        surface: Surface,
        types: Mapping[str, TriggerType],
        new_process: NewProcess,
    ) -> None:
        self._services = services
        self._run = run
        self._artifact = artifact
        self._sources = surface.trigger_sources
        self._triggers = {source_type(name): one for name, one in types.items()}
        self._new_process = new_process
        self._context: ProcessContext[Any] = ProcessContext(run, services)

    async def perform(self, call: HostCall, key: str) -> Any:
        """Perform an operation of the module ``triggers`` as a step of the process."""
        # Handles are not part of the recorded command.
        register = partial(self._register, call.handles)
        operations: dict[str, Callable[[dict[str, Any]], Coroutine[Any, Any, Any]]]
        operations = {"register": register, "list": self._list, "cancel": self._unregister}
        step = self._context.options(key=key).step
        return await step(operations[call.operation], dict(call.payload))

    @property
    def _session(self) -> str | None:
        """The session that owns the triggers registered here."""
        target = self._run.process.registration.wake_target
        return None if target is None else target.session_id

    def _stored_keys(self, key: str) -> list[str]:
        """Return the keys under which a trigger of the owner may be stored: the current form first."""
        owner = self._session
        if owner is None:
            return [] if key.startswith(SESSION_KEYS) else [key]
        found = [session_key(owner, key), unquoted_session_key(owner, key)]
        return list(dict.fromkeys(found))

    async def _stored_key(self, key: str) -> str:
        """Return the key under which a trigger of the owner is stored, or will be stored."""
        keys = self._stored_keys(key)
        if not keys:
            message = (
                f"the key {key!r} begins with {SESSION_KEYS!r}, which is reserved for sessions"
            )
            raise InvalidTrigger(message)
        if len(keys) > 1:
            with self._run.guarded():
                listed = await self._services.store.triggers.listed(self._session)
            stored = {view.subscription.key for view in listed}
            return next((one for one in keys if one in stored), keys[0])
        return keys[0]

    async def _check_granted(self, type_: TriggerType, source_key: str) -> None:
        """Refuse a source that the app has not granted to the sessions that this process acts for."""
        registration = self._run.process.registration
        acting = (registration.originator, registration.wake_target)
        for session in dict.fromkeys(
            one.session_id for one in acting if isinstance(one, SessionRef)
        ):
            if not await type_.grants(session, source_key):
                raise TriggerSourceNotGranted(session, type_.name, source_key)

    async def _register(self, handles: tuple[str, ...], payload: dict[str, Any]) -> Any:
        try:
            return await self._subscribe(handles, payload)
        except InvalidTrigger as error:
            raise LashError(error.message, code=error.code) from None

    async def _subscribe(self, handles: tuple[str, ...], payload: dict[str, Any]) -> Any:
        wanted = subscription(payload, self._sources, "")
        type_, source_key = self._triggers[wanted.source_type], _source_key(wanted.source)
        await self._check_granted(type_, source_key)
        key = await self._stored_key(check_name("trigger key", wanted.key))
        target = wanted.target["process_name"]  # a process of this module: the linker checked that
        template = self._new_process(target, process_input(self._artifact, target, {}, handles))
        inputs = {
            name: EventBinding() if value == {TRIGGER_EVENT: True} else ValueBinding(value)
            for name, value in wanted.inputs.items()
        }
        made = Subscription(
            key=key,
            type=type_.name,
            source=source_key,
            template=template,
            inputs=inputs,
            session_id=self._session,
            name=wanted.name,
        )
        with self._run.guarded():
            await self._services.store.triggers.register(made)
        return wanted.with_id(_handle_id(key)).handle()

    async def _list(self, payload: dict[str, Any]) -> Any:
        with self._run.guarded():
            views = await self._services.store.triggers.listed(self._session)
        found = [view.subscription for view in views]
        return [
            self._handle(one, one.template.input)
            for one in found
            if one.session_id == self._session
            and isinstance(one.template.input, LashlangInput)
            and payload.get("name") in (None, one.name)
            and payload.get("source_type") in (None, source_type(one.type))
            and (payload.get("target") or {}).get("process_ref")
            in (None, one.template.input.process_ref)
        ]

    def _handle(self, found: Subscription, given: LashlangInput) -> dict[str, Any]:
        return {
            "type": "trigger_handle",
            "id": _handle_id(found.key),
            "key": self._own_name(found.key),
            "name": found.name,
            "source_type": source_type(found.type),
            "target": given.process_name,
        }

    def _own_name(self, stored: str) -> str:
        """Return the key of a trigger as its owner wrote it."""
        for prefix in self._stored_keys(""):
            if stored.startswith(prefix):
                return stored.removeprefix(prefix)
        return stored  # the app registered it

    async def _unregister(self, payload: dict[str, Any]) -> Any:
        key, cancel = str(payload["key"]), self._services.store.triggers.cancel_owned
        with self._run.guarded():
            found = [await cancel(one, self._session) for one in self._stored_keys(key)]
        return {"key": key, "cancelled": any(found)}


def _source_key(source: Any) -> str:
    """Return the key of a source. The program may have built the record itself, so it is checked."""
    key = source.get("source_key") if isinstance(source, dict) else None
    if not isinstance(key, str):
        raise InvalidTrigger(f"the source_key of a trigger source must be text, not {key!r}")
    return key


def _handle_id(key: str) -> str:
    return f"trigger-{stable_hash(key).hex()[:32]}"
