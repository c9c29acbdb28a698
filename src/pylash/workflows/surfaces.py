"""The surface of an app for Lashlang: its tools as operations, its trigger types as sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pylash.lang import ABILITIES, Surface, show_type, surface_of, type_of_schema
from pylash.tools.operation_names import identifier, resource_type, trigger_path
from pylash.tools.signatures import Shape
from pylash.tools.tool import Tool


def app_surface(tools: Iterable[Tool[..., Any]], trigger_payloads: Mapping[str, Any]) -> Surface:
    """Return the surface of an app: modules of tools, and a constructor for each type of trigger.

    A trigger type `github.push` is the constructor `github.push({ source_key: … })`, whose events are of
    type `github.push.Event`; one without a dot, `tick`, is `events.tick`. Characters that a name
    cannot contain become underscores.
    """
    modules: dict[str, Any] = {"triggers": {**_TRIGGERS, "operations": {**_OPERATIONS}}}
    for tool in tools:
        operations = modules.setdefault(tool.module, _module(tool.module))["operations"]
        operation = {"id": tool.id, "input": _input(tool), "output": _output(tool)}
        operations[identifier(tool.name)] = operation  # unique: the catalog refuses another one
    document = {"abilities": list(ABILITIES), "modules": modules}
    return surface_of({**document, **_sources(trigger_payloads)})


_TRIGGERS: Final = {"type": "Triggers"}
_OPERATIONS: Final = {
    "register": {"id": "triggers_register", "input": "any", "output": "TriggerHandle"},
    "list": {
        "id": "triggers_list",
        "input": "{ target: Process?, name: str?, source_type: str? }",
        "output": "list[TriggerHandle]",
    },
    "cancel": {
        "id": "triggers_cancel",
        "input": "{ key: str }",
        "output": "{ key: str, cancelled: bool }",
    },
}


def source_type(trigger: str) -> str:
    """Return the type of the sources of a trigger's events."""
    return f"{trigger_path(trigger)}.Source"


def close_schema(schema: Any) -> Any:
    """Return a schema whose objects allow only the fields that they name, unless the schema states otherwise.

    Arguments and results are checked in the same way: an unknown field is an error.
    """
    if isinstance(schema, list):
        return [close_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: close_schema(value) for key, value in schema.items()}
    named = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    return {"additionalProperties": False, **inner} if named else inner


def _module(path: str) -> dict[str, Any]:
    return {"type": resource_type(path), "operations": {}}


def _input(tool: Tool[..., Any]) -> str:
    shown = show_type(type_of_schema(close_schema(tool.schema)))
    # A tool without required arguments may be called without arguments.
    return shown if tool.schema.get("required") else f"{shown} | null"


def _output(tool: Tool[..., Any]) -> str:
    return show_type(type_of_schema(close_schema(tool.result_schema)))


def _sources(payloads: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "types": {
            f"{trigger_path(name)}.Event": show_type(_payload(one))
            for name, one in payloads.items()
        },
        "constructors": {
            trigger_path(name): {"input": "{ source_key: str }", "type": source_type(name)}
            for name in payloads
        },
        "trigger_sources": {source_type(name): f"{trigger_path(name)}.Event" for name in payloads},
    }


def _payload(annotation: Any) -> Any:
    shape = Shape(annotation)
    return type_of_schema({} if shape.is_plain else close_schema(shape.json_schema()))
