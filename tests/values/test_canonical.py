"""Canonical JSON: equality, hash, exact round trip, and refusals with their path."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylash.values.canonical import (
    decode,
    digest_for_difference,
    encode,
    first_difference,
    round_trip,
    stable_hash,
    write,
)
from pylash.values.errors import ValueNotJson

texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


def test_keys_are_sorted_and_unicode_is_kept() -> None:
    assert encode({"b": [1, 2.5], "a": "é\n"}) == '{"a":"é\\n","b":[1,2.5]}'.encode()


def test_the_hash_is_the_sha256_of_the_text() -> None:
    assert stable_hash({"a": 1}) == hashlib.sha256(b'{"a":1}').digest()


@given(json_values)
def test_every_json_value_comes_back_as_it_was(value: Any) -> None:
    back = round_trip(value)
    assert back == value
    assert encode(back) == encode(value)
    assert stable_hash(back) == stable_hash(value)


@pytest.mark.slow
@given(json_values, json_values)
def test_two_values_share_a_hash_only_if_they_share_a_text(one: Any, two: Any) -> None:
    assert (stable_hash(one) == stable_hash(two)) == (encode(one) == encode(two))


@pytest.mark.slow
@given(st.dictionaries(texts, json_values, min_size=2))
def test_the_order_of_keys_makes_no_difference(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert stable_hash(turned) == stable_hash(value)


def test_an_integer_and_a_float_differ() -> None:
    assert stable_hash(1) != stable_hash(1.0)
    assert type(round_trip(1.0)) is float


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$"),
        ({"a": [0, float("inf")]}, "$.a[1]"),
        ({"a": None, "b": float("-inf")}, "$.b"),
        ({"a": {1: "x"}}, "$.a"),
        ([{"deep": {2}}], "$[0].deep"),
        ({"t": (1, 2)}, "$.t"),
        ({"when": datetime(2026, 1, 1, tzinfo=UTC)}, "$.when"),
        ([Decimal(1)], "$[0]"),
        ({"b": b"raw"}, "$.b"),
        ({"s": "\ud800"}, "$.s"),
        ({"o": object()}, "$.o"),
    ],
)
def test_what_would_not_come_back_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(ValueNotJson) as caught:
        round_trip(value)
    assert caught.value.data == {"path": path}


@pytest.mark.parametrize("depth", [201, 900])
def test_a_value_that_could_only_be_read_from_a_shallow_stack_is_refused(depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    with pytest.raises(ValueNotJson, match="levels deep"):
        round_trip(value)


def test_a_value_that_is_too_deep_is_refused_not_crashed_on() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueNotJson, match="levels deep"):
        encode(value)


# --- the first difference ---


def difference(old: Any, new: Any) -> str:
    return first_difference(digest_for_difference(encode(old)), encode(new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "$.b: recorded 2, now 3"),
        ({"a": 1}, {"a": 1, "b": 3}, "$.b: not recorded, now 3"),
        ({"a": 1, "b": 3}, {"a": 1}, "$.b: recorded 3, now missing"),
        ({"a": [1, 2]}, {"a": [1, 5]}, "$.a[1]: recorded 2, now 5"),
        ([1], [1, 2], "$[1]: not recorded, now 2"),
        (1, 1.0, "$: recorded 1, now 1.0"),
        ({"a": "x"}, {"a": {"b": 1}}, '$.a: recorded "x", now {"b":1}'),
    ],
)
def test_the_first_difference_is_named(old: Any, new: Any, said: str) -> None:
    assert difference(old, new) == said


def test_of_a_large_command_only_hashes_are_kept_and_the_difference_is_still_found() -> None:
    old = {"name": "send", "command": {"input": {"body": "x" * 20_000, "to": "ann"}}}
    new = {"name": "send", "command": {"input": {"body": "x" * 19_999 + "y", "to": "ann"}}}
    assert len(digest_for_difference(encode(old))) < 500
    assert difference(old, new).startswith("$.command.input.body: recorded ")


@given(json_values, json_values)
def test_a_difference_is_named_whenever_there_is_one(old: Any, new: Any) -> None:
    if encode(old) != encode(new):
        assert difference(old, new).startswith("$")


def test_decoding_is_the_inverse() -> None:
    assert decode(b'{"a":[1,null,true]}') == {"a": [1, None, True]}


def test_a_text_of_a_class_of_its_own_is_its_text() -> None:
    class Key(str):
        __slots__ = ()

    assert encode({"key": Key("v1")}) == write({"key": Key("v1")}) == b'{"key":"v1"}'
    assert round_trip([Key("v1")]) == ["v1"]


class Line(msgspec.Struct):
    words: tuple[Any, ...] = ()
    more: Any = None


@pytest.mark.parametrize("text", ["null", "[{" * 300, "null" + "[{" * 300])
def test_a_text_may_say_anything(text: str) -> None:
    line = Line((text, {"n": [None, text]}))
    for data in (write(line), encode(line)):
        assert msgspec.json.decode(data, type=Line) == line


def test_a_struct_may_hold_many_values_in_a_tuple() -> None:
    line = Line(tuple({"n": [None]} for _ in range(300)))
    for data in (write(line), encode(line)):
        assert msgspec.json.decode(data, type=Line) == line


def test_a_tuple_that_no_struct_speaks_of_is_refused() -> None:
    for line in (Line(({}, {"n": (None,)})), Line(more=({"n": (None,)},))):
        with pytest.raises(ValueNotJson, match="JSON has no type tuple: use a list"):
            encode(line)


class Newer(msgspec.Struct):
    """A struct that older versions wrote without its last field."""

    value: Any
    added: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


@pytest.mark.parametrize("value", [None, "null", 5])
def test_a_field_that_is_unset_is_not_written(value: Any) -> None:
    assert encode(Newer(value)) == encode({"value": value})
