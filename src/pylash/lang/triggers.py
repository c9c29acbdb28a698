"""Trigger subscriptions: `triggers.register` creates them, and an occurrence starts their process.

1. A key is unique per owner: registering it again replaces the definition and keeps the id.
2. A subscription has references, as a registration does; when there is an occurrence, its event is put among
   the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pylash.lang.running.data import TRIGGER_EVENT, equal, from_json
from pylash.lang.starting import Registration
from pylash.values.canonical import stable_hash
from pylash.values.errors import Misuse

DERIVED: Final = "derived/"
_PROCESS: Final = ("process_name", "module_ref", "process_ref", "required_surface_ref")


class InvalidTrigger(Misuse):
    """A registration that is wrong, in a way that the linker could not detect."""


class Subscription(msgspec.Struct, frozen=True):
    """A process to start for each occurrence at a source."""

    id: str
    key: str
    name: str | None
    source_type: str
    source: Any
    target: dict[str, Any]
    inputs: dict[str, Any]

    def handle(self) -> dict[str, Any]:
        """Return the handle that the program gets."""
        return {
            "type": "trigger_handle",
            "id": self.id,
            "key": self.key,
            "name": self.name,
            "source_type": self.source_type,
            "target": self.target["process_name"],
        }

    def with_id(self, known: str) -> Subscription:
        """Return the same subscription with the existing id of its key."""
        return msgspec.structs.replace(self, id=known)

    def hears(self, source_type: str, source: Any) -> bool:
        """Return whether the subscription is for occurrences at this source."""
        return self.source_type == source_type and equal(from_json(self.source), from_json(source))

    def listed(self, wanted: Mapping[str, Any]) -> bool:
        """Return whether the subscription matches the filters of `triggers.list`."""
        target = wanted.get("target")
        return (
            (target is None or _reference(target) == _reference(self.target))
            and wanted.get("name") in (None, self.name)
            and wanted.get("source_type") in (None, self.source_type)
        )

    def registration(self, event: Any) -> Registration:
        """Return the process to start for an event."""
        args = {
            name: event if value == {TRIGGER_EVENT: True} else value
            for name, value in self.inputs.items()
        }
        return Registration(**{name: self.target[name] for name in _PROCESS}, args=args)


def _reference(process: Any) -> Any:
    return process.get("process_ref") if isinstance(process, dict) else None


def subscription(
    payload: Mapping[str, Any], sources: Mapping[str, Any], new_id: str
) -> Subscription:
    """Return the subscription for this payload of `triggers.register`.

    `sources` are the trigger sources of the surface by type.

    Raises InvalidTrigger: the source, the target or the key cannot be used.
    """
    source, target, inputs = (payload.get(name) for name in ("source", "target", "inputs"))
    if not isinstance(source, dict) or source.get("$lash_host_type") not in sources:
        raise InvalidTrigger("the source is not a trigger source of this host")
    if not isinstance(target, dict) or target.get("$lash_process") is not True:
        raise InvalidTrigger("the target must be the name of a process")
    if not isinstance(inputs, dict) or {TRIGGER_EVENT: True} not in inputs.values():
        raise InvalidTrigger("one of the inputs must be trigger.event")
    source_type, value = source["$lash_host_type"], source.get("$lash_host_value")
    given = payload.get("key")
    if given is not None and (not isinstance(given, str) or not given or given.startswith(DERIVED)):
        raise InvalidTrigger(
            f"a trigger key must be text that is not empty and does not begin with {DERIVED}"
        )
    name = payload.get("name")
    if name is not None and not isinstance(name, str):
        raise InvalidTrigger("the name of a trigger must be text")
    return Subscription(
        id=new_id,
        key=given or derived_key(target["process_name"], source_type, value),
        name=name,
        source_type=source_type,
        source=value,
        target=target,
        inputs=inputs,
    )


def derived_key(target: str, source_type: str, source: Any) -> str:
    """Return the key of a registration without one."""
    return f"{DERIVED}v1/{stable_hash([target, source_type, source]).hex()}"
