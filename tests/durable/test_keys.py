"""Replay keys: two different paths never make the same text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pylash.durable.keys import key_parts, replay_key

parts = st.lists(st.tuples(st.text(), st.integers(1, 99)), min_size=1, max_size=4)


def test_a_key_reads_like_a_path() -> None:
    assert replay_key("gather.1", ("fetch", 2)) == "gather.1/fetch#2"
    assert replay_key("fetch") == "fetch"


def test_user_names_are_escaped() -> None:
    assert replay_key("a/b#2") == "a%2Fb%232"
    assert replay_key("a", "b#2") != replay_key("a/b", "2")


@given(parts)
def test_the_parts_of_a_key_can_be_read_back(path: list[tuple[str, int]]) -> None:
    assert key_parts(replay_key(*path)) == tuple(path)


@given(parts, parts)
def test_different_paths_have_different_keys(
    one: list[tuple[str, int]], two: list[tuple[str, int]]
) -> None:
    assert (replay_key(*one) == replay_key(*two)) == (one == two)
