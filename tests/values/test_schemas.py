"""Plain values match the schemas of declarations, or the first mismatch is returned with its path."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from pylash.values.schemas import schema_trouble

ITEM = {"type": "integer"}
NODE = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
            },
            "required": ["name"],
        }
    },
}


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({"age": 7}, {"properties": {"age": ITEM}}),
        (7, {"type": ["integer", "null"]}),
        (7.0, ITEM),
        (5, {"minimum": 5, "maximum": 5}),
        ("five", {"minimum": 6, "minItems": 9}),
        ("abc", {"minLength": 3, "maxLength": 3, "pattern": "b"}),
        ([1, "a", "b"], {"prefixItems": [ITEM], "items": {"type": "string"}}),
        ([1], {"prefixItems": [ITEM, ITEM]}),
        ({"name": "a", "next": {"name": "b", "next": None}}, NODE),
        (1, {"oneOf": [ITEM, {"type": "string"}]}),
        (1, {"oneOf": [ITEM, {"minimum": 0}]}),
        ("abc", {"pattern": "^[[:alpha:]]+$"}),
        ("ac", {"pattern": "^[a-z&&[^b]]+$"}),
        ("हिन्दी", {"pattern": r"^\w+$"}),
        (6, {"allOf": [ITEM, {"minimum": 5}]}),
        ({"a/b": 1}, {"properties": {"a/b": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": ITEM}}),
    ],
)
def test_a_value_that_fits_is_no_trouble(value: Any, schema: Any) -> None:
    assert schema_trouble(value, schema) is None


@pytest.mark.parametrize(
    ("value", "schema", "trouble"),
    [
        ({"age": "7"}, {"properties": {"age": ITEM}}, "$.age is '7', not of type integer"),
        (True, ITEM, "$ is True, not of type integer"),
        (True, {"enum": [1, 2]}, "$ is True, not one of [1, 2]"),
        (1, {"const": True}, "$ is 1, not True"),
        (4, {"minimum": 5}, "$ is 4, not at least 5"),
        (6, {"maximum": 5}, "$ is 6, not at most 5"),
        (5, {"exclusiveMinimum": 5}, "$ is 5, not more than 5"),
        (5, {"exclusiveMaximum": 5}, "$ is 5, not less than 5"),
        ("a", {"minLength": 2}, "$ is 'a', not at least 2 long"),
        ("abc", {"maxLength": 2}, "$ is 'abc', not at most 2 long"),
        ("abc", {"pattern": "^b"}, "$ is 'abc', not like '^b'"),
        ([], {"minItems": 1}, "$ is [], not of at least 1 items"),
        ([1, 2], {"maxItems": 1}, "$ is [1, 2], not of at most 1 items"),
        ({}, {"minProperties": 1}, "$ is {}, not of at least 1 names"),
        ({}, {"required": ["a"]}, "$.a is missing"),
        ({"b": 1}, {"additionalProperties": False}, "$.b is not expected"),
        ({"b": "x"}, {"additionalProperties": ITEM}, "$.b is 'x', not of type integer"),
        (["x"], {"prefixItems": [ITEM]}, "$[0] is 'x', not of type integer"),
        ([1, 2], {"prefixItems": [ITEM], "items": False}, "$[1] is not expected"),
        (None, {"oneOf": [ITEM]}, "$ is None and fits none of the alternatives"),
        (3, {"allOf": [ITEM, {"minimum": 5}]}, "$ is 3, not at least 5"),
        (1, False, "nothing fits at $"),
        ({"name": 1}, NODE, "$.name is 1, not of type string"),
        ({"name": "a", "next": {"name": "b", "next": {}}}, NODE, "$.next.next.name is missing"),
    ],
)
def test_the_first_mismatch_is_returned_with_its_path(
    value: Any, schema: Any, trouble: str
) -> None:
    assert schema_trouble(value, schema) == trouble


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
    ],
)
def test_references_that_go_in_a_circle_say_nothing(schema: Any) -> None:
    assert schema_trouble({"a": [1]}, schema) is None


@pytest.mark.parametrize(
    "schema", [{"$ref": "#/$defs/Nobody"}, {"$ref": "https://a.example/b"}, {"pattern": "("}]
)
def test_what_cannot_be_checked_refuses_nothing(schema: Any) -> None:
    assert schema_trouble("a", schema) is None


def test_a_value_nested_too_deeply_is_a_mismatch_and_does_not_raise() -> None:
    value: dict[str, Any] = {"name": "leaf"}
    for _ in range(5_000):
        value = {"name": "a", "next": value}
    assert schema_trouble(value, NODE) == "$ is nested too deeply"


def test_a_long_value_is_shown_in_part() -> None:
    trouble = schema_trouble("x" * 10_000, ITEM)
    assert trouble is not None
    assert len(trouble) < 150


class Square(BaseModel):
    kind: Literal["square"]
    side: Annotated[int, Field(gt=0, le=9)]


class Round(BaseModel):
    kind: Literal["round"]
    radius: Annotated[int, Field(ge=1, lt=9)]


class Drawing(BaseModel, extra="forbid"):
    title: Annotated[str, Field(min_length=1, max_length=3, pattern="^[ab]*$")]
    shapes: Annotated[
        list[Annotated[Square | Round, Field(discriminator="kind")]], Field(max_length=2)
    ] = []
    corner: tuple[int, int] | None = None
    within: Drawing | None = None


NUMBERS = st.integers(-1, 10)
SHAPES = st.fixed_dictionaries(
    {"kind": st.sampled_from(["square", "round"])}, optional={"side": NUMBERS, "radius": NUMBERS}
)
FLAT = st.fixed_dictionaries(
    {"title": st.text("abc", max_size=4)},
    optional={
        "shapes": st.lists(SHAPES, max_size=3),
        "corner": st.none() | st.lists(NUMBERS, max_size=3),
        "color": st.just("red"),
    },
)
DRAWINGS = st.recursive(
    FLAT, lambda inner: st.tuples(FLAT, inner).map(lambda two: {**two[0], "within": two[1]})
)


@pytest.mark.slow
@given(DRAWINGS)
def test_what_fits_the_schema_of_a_model_is_what_the_model_takes(value: Any) -> None:
    adapter = TypeAdapter(Drawing)
    try:
        adapter.validate_python(value)
        taken = True
    except ValidationError:
        taken = False
    assert (schema_trouble(value, adapter.json_schema()) is None) == taken
