"""Declared event types of a process: the type of each payload, and what an event does.

Rule 1. Types are declared by the code; their JSON Schemas are captured with each start. A process that was started without
        declared events may emit any.
Rule 2. A declared event never ends a process: only the end of its run does, in the transaction that settles the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from pylash.durable.processes import EventType, Semantics, is_reserved
from pylash.tools.signatures import ANY, Shape, reason_of
from pylash.values.names import check_name
from pylash.values.process_errors import ArgumentsInvalid, ProcessEventInvalid


class ProcessEventType(msgspec.Struct, frozen=True):
    """A type of event that a process may emit: the type of its payload, and what the event does.

    A ``plain`` event is an entry of the log. A ``wake`` event also sends its payload to the session that the process
    wakes.

    >>> @app.process(events={"progress": Progress, "stuck": ProcessEventType(str, "wake")})
    ... async def import_orders(ctx: ProcessContext[None]) -> None: ...
    """

    payload: Any = Any
    semantics: Literal["plain", "wake"] = "plain"


class DeclaredEvents:
    """The event types of one process, by name."""

    def __init__(self, owner: str, events: Mapping[str, Any]) -> None:
        if not isinstance(events, Mapping):
            raise ArgumentsInvalid(owner, f"events={events!r} is not a mapping of names to types")
        self._owner = owner
        self._semantics: dict[str, Semantics] = {}
        self._shapes: dict[str, Shape] = {}
        for name, given in events.items():
            declared = given if isinstance(given, ProcessEventType) else ProcessEventType(given)
            self._refuse(check_name("event type", name), declared.semantics)
            self._semantics[name] = Semantics(declared.semantics)
            self._shapes[name] = Shape.declared(declared.payload, owner, f"event {name!r}")

    def _refuse(self, name: str, semantics: Any) -> None:
        reason = None
        if is_reserved(name):
            reason = f"the event {name!r} has a reserved name"
        elif semantics == "terminal":
            reason = f"the event {name!r} cannot end the process: let it return instead"
        elif semantics not in ("plain", "wake"):
            reason = f"the event {name!r} has semantics={semantics!r}, not 'plain' or 'wake'"
        if reason is not None:
            raise ArgumentsInvalid(self._owner, reason)

    async def prepare(self) -> None:
        """Prepare the checks of payloads."""
        for name, shape in self._shapes.items():
            await shape.prepare(self._owner, f"event {name!r}")

    def captured(self) -> tuple[EventType, ...]:
        """Return the types as they are stored with a start."""
        return tuple(
            EventType(name, None if shape.is_plain else shape.serialized_schema(), semantics)
            for (name, shape), semantics in zip(
                self._shapes.items(), self._semantics.values(), strict=True
            )
        )

    def dump(self, process_id: str, name: str, payload: Any) -> Any:
        """Return a payload as plain JSON, or refuse one that does not fit; one of an unknown type is taken as it is."""
        try:
            return self._shapes.get(name, ANY).dump(payload)
        except ValueError as error:
            raise ProcessEventInvalid(process_id, name, reason_of("payload", error)) from None
