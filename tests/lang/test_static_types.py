"""The laws of types: what fits where, what could be one value, how types are written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylash.lang.parsing.parser import parse_type
from pylash.lang.static_types import (
    ANY,
    INT,
    NULL,
    STR,
    Types,
    bounded,
    expand,
    schema_of,
    show_type,
)
from pylash.lang.tree import (
    EnumType,
    ListType,
    RecordType,
    Type,
    TypeField,
    TypeName,
    UnionType,
)

NAMES = ("any", "null", "bool", "int", "float", "str", "dict", "Process", "Tools", "Alias", "Pair")
DEFINITIONS = {
    "Alias": parse_type('int | enum["a"]'),
    "Pair": parse_type("{ left: Alias, right: Alias? }"),
}
TYPES = Types(DEFINITIONS)


def _records(types: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    fields = st.dictionaries(st.sampled_from(("a", "b", "a key")), st.tuples(types, st.booleans()))
    return fields.map(
        lambda found: RecordType(tuple(TypeField(key, *rest) for key, rest in found.items()))
    )


ANY_TYPE: st.SearchStrategy[Type] = st.recursive(
    st.sampled_from(NAMES).map(TypeName)
    | st.lists(st.sampled_from("abc"), min_size=1, unique=True).map(lambda m: EnumType(tuple(m))),
    lambda types: (
        types.map(ListType)
        | _records(types)
        | st.lists(types, min_size=2, max_size=3).map(lambda m: UnionType(tuple(m)))
    ),
    max_leaves=6,
)


@given(ANY_TYPE)
def test_every_type_fits_itself_and_any(type_: Type) -> None:
    assert TYPES.assignable(type_, type_)
    assert TYPES.assignable(type_, ANY)
    assert TYPES.assignable(ANY, type_)
    assert TYPES.overlap(type_, type_)


@given(ANY_TYPE, ANY_TYPE)
def test_what_fits_overlaps(one: Type, other: Type) -> None:
    if TYPES.assignable(one, other):
        assert TYPES.overlap(one, other)


@given(ANY_TYPE, ANY_TYPE)
def test_overlap_and_kinship_go_both_ways(one: Type, other: Type) -> None:
    assert TYPES.overlap(one, other) == TYPES.overlap(other, one)
    assert TYPES.kin(one, other) == TYPES.kin(other, one)


@given(ANY_TYPE, ANY_TYPE)
def test_what_overlaps_can_be_compared(one: Type, other: Type) -> None:
    if TYPES.overlap(one, other):
        assert TYPES.kin(one, other)


@given(ANY_TYPE, ANY_TYPE)
def test_both_fit_their_union(one: Type, other: Type) -> None:
    union = TYPES.union((one, other))
    assert TYPES.assignable(one, union)
    assert TYPES.assignable(other, union)
    assert TYPES.union((union, one)) == union


@given(ANY_TYPE, ANY_TYPE)
def test_a_name_means_what_it_stands_for(one: Type, other: Type) -> None:
    plain = Types({})
    whole, rest = expand(one, DEFINITIONS), expand(other, DEFINITIONS)
    assert TYPES.assignable(one, other) == plain.assignable(whole, rest)
    assert TYPES.overlap(one, other) == plain.overlap(whole, rest)
    assert schema_of(one, DEFINITIONS) == schema_of(whole, {})


@given(ANY_TYPE)
def test_a_type_is_written_as_it_is_read(type_: Type) -> None:
    assert show_type(parse_type(show_type(type_))) == show_type(type_)


@pytest.mark.parametrize(
    ("source", "target", "fits"),
    [
        ("int", "float", True),
        ("float", "int", False),
        ("bool", "int", False),
        ("str", 'enum["a"]', True),
        ('enum["a", "b"]', "str", True),
        ('enum["a"]', 'enum["b", "a"]', True),
        ('enum["a", "b"]', 'enum["a"]', False),
        ("int | null", "int", False),
        ("int", "null | int", True),
        ("list[int]", "list[float]", True),
        ("list[float]", "list[int]", False),
        ("dict", "{ a: int }", True),
        ("{ a: int }", "dict", True),
        ("{ a: int, b: str }", "{ a: float }", True),
        ("{ b: str }", "{ a: int }", False),
        ("{ b: str }", "{ a: int? }", True),
        ("{ a: int? }", "{ a: int }", False),
        ("{ a: str }", "{ a: int? }", False),
        ("Process", "dict", False),
        ("Tools", "Mail", False),
    ],
)
def test_what_fits(source: str, target: str, fits: bool) -> None:
    assert TYPES.assignable(parse_type(source), parse_type(target)) is fits


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("int", "float", True),
        ("int", "str", False),
        ("bool", "int", False),
        ("str", 'enum["a"]', True),
        ('enum["a"]', 'enum["b"]', False),
        ("list[int]", "list[str]", False),
        ("{ a: int }", "{ b: str }", True),
        ("Process", "{ b: str }", True),
        ("Process", "dict", True),
        ("null | int", "str | null", True),
    ],
)
def test_what_overlaps(one: str, other: str, overlap: bool) -> None:
    assert TYPES.overlap(parse_type(one), parse_type(other)) is overlap


@pytest.mark.parametrize(
    "text",
    [
        '{ to: str, level: enum["lo"]? }',
        "{}",
        "list[int | null]",
        '{ "a b": any, for: dict }',
        r'enum["say \"hi\"", "a\\b\nc"]',
        "timer.Tick | Process",
    ],
)
def test_notation(text: str) -> None:
    assert show_type(parse_type(text)) == text


def test_schemas() -> None:
    written = parse_type('{ a: int, b: list[str | null]?, c: enum["x"], d: any, e: Alias }')
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            "c": {"type": "string", "enum": ["x"]},
            "d": {},
            "e": {"anyOf": [{"type": "integer"}, {"type": "string", "enum": ["a"]}]},
        },
        "required": ["a", "c", "d", "e"],
        "additionalProperties": False,
    }
    assert schema_of(written, DEFINITIONS) == schema
    assert schema_of(TypeName("Tools"), DEFINITIONS) == {"type": "object"}
    assert schema_of(TypeName("$v"), DEFINITIONS, {"v": {"type": "null"}}) == {"type": "null"}


def test_a_union_merges_what_is_equal_and_any_swallows_it() -> None:
    assert TYPES.union((INT, UnionType((INT, NULL)))) == UnionType((INT, NULL))
    assert TYPES.union((INT, INT)) == INT
    assert TYPES.union((INT, UnionType((STR, ANY)))) == ANY


def test_a_type_out_of_proportion_is_any() -> None:
    large = RecordType(tuple(TypeField(str(i), INT, optional=False) for i in range(2000)))
    deep: Type = INT
    for _ in range(100):
        deep = ListType(deep)
    assert bounded(large) == bounded(deep) == ANY
    assert bounded(ListType(INT)) == ListType(INT)
