"""Surfaces as hosts describe them, and the schemas of tools as types."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict

from pylash.lang.static_types import show_type
from pylash.lang.surface import surface_of, type_of_schema
from pylash.values.process_errors import SurfaceInvalid
from tests.lang.host import DOCUMENT, operation


def test_a_resource_type_has_the_operations_of_all_its_modules() -> None:
    module = {
        "type": "Tools",
        "operations": {"more": operation("more"), "echo": operation("echo2")},
    }
    host = surface_of({**DOCUMENT, "modules": {**DOCUMENT["modules"], "other": module}})
    assert set(host.operations_of("Tools")) == {"echo", "lookup", "more"}


def test_modules_of_one_type_must_agree() -> None:
    module = {"type": "Tools", "operations": {"echo": operation("echo", "str")}}
    with pytest.raises(SurfaceInvalid, match=r"tools.echo and other.echo"):
        surface_of({**DOCUMENT, "modules": {**DOCUMENT["modules"], "other": module}})


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"abilities": ["flight"]}, "flight"),
        ({"types": {"A": "list["}}, "the type A"),
        ({"types": {"A": "list[B]", "B": "A?"}}, "the type B"),
        ({"types": {"A": "list[B]", "B": "A"}}, "in terms of itself"),
        ({"modules": {"m": {"operations": {}}}}, "type"),
    ],
)
def test_a_wrong_document_is_refused_with_a_reason(document: dict[str, Any], words: str) -> None:
    with pytest.raises(SurfaceInvalid, match=words):
        surface_of(document)


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    item: str
    count: int = 1
    parent: Line | None = None


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    lines: list[Line]
    pair: tuple[int, str]
    state: Literal["new", "paid"] | None
    kind: Literal["order"]
    note: dict[str, Any]
    weight: float | str
    anything: Any


def test_the_schema_of_a_model_becomes_a_type() -> None:
    assert show_type(type_of_schema(Order.model_json_schema())) == (
        "{ lines: list[{ item: str, count: int?, parent: any? }], pair: list[int | str], "
        'state: enum["new", "paid"] | null, kind: enum["order"], note: dict, weight: float | str, '
        "anything: any }"
    )


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        (True, "any"),
        ({}, "any"),
        ({"type": ["string", "null"]}, "str | null"),
        ({"type": "array"}, "list[any]"),
        ({"type": "object", "properties": {"a": {}}}, "dict"),
        ({"type": "object", "additionalProperties": False}, "{}"),
        ({"enum": ["a", "b", None]}, 'enum["a", "b"] | null'),
        ({"enum": [1, 2]}, "any"),
        ({"allOf": [{"type": "boolean"}]}, "bool"),
        ({"oneOf": [{"type": "integer"}, {"const": "x"}]}, 'int | enum["x"]'),
        ({"$ref": "#/$defs/A~1B", "$defs": {"A/B": {"type": "null"}}}, "null"),
        ({"$ref": "#/$defs/missing"}, "any"),
        ({"$ref": "other.json#/a"}, "any"),
    ],
)
def test_a_schema_becomes_a_type(schema: Any, type_: str) -> None:
    assert show_type(type_of_schema(schema)) == type_


def test_schemas_that_double_at_every_step_become_any() -> None:
    definitions: dict[str, Any] = {"T0": {"type": "integer"}}
    for i in range(1, 60):
        part = {"$ref": f"#/$defs/T{i - 1}"}
        definitions[f"T{i}"] = {
            "type": "object",
            "properties": {"a": part, "b": part},
            "additionalProperties": False,
        }
    assert show_type(type_of_schema({"$ref": "#/$defs/T59", "$defs": definitions})) == "any"
