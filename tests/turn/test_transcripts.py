"""Transcripts: values, although the list of a session grows under them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylash.turn.messages import Message, SystemMessage
from pylash.turn.transcripts import Transcript
from tests.turn.scenario import said, says

MESSAGES = st.lists(st.sampled_from("abc").map(said), max_size=3)
INDEX = st.integers(-9, 9) | st.slices(9)
HELP = SystemMessage("Help.")


@given(MESSAGES, MESSAGES, MESSAGES, st.lists(st.just(HELP), max_size=2), INDEX)
def test_a_transcript_reads_like_a_list(
    before: list[Message], later: list[Message], after: list[Message], system: Any, index: Any
) -> None:
    history = Transcript([*before])
    history.plus(later)  # of which the history has nothing
    found: Any = history.sent(system, after)
    wanted: Any = [*system, *before, *after]
    assert found == wanted
    assert wanted == found
    assert (len(found), [*found], [*reversed(found)]) == (len(wanted), wanted, wanted[::-1])
    assert repr(found) == repr(wanted)
    assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == wanted
    try:
        expected = wanted[index]
    except IndexError:
        with pytest.raises(IndexError):
            found[index]
    else:
        assert found[index] == expected


def test_transcripts_of_other_messages_differ() -> None:
    history = Transcript([said("a")])
    assert history != [said("b")]
    assert history != [said("a"), said("a")]
    assert history != 5


class Model:
    """Transcripts beside the lists that they must equal."""

    def __init__(self) -> None:
        self.known: list[tuple[Transcript[Any], list[Any], int]] = [(Transcript(), [], 0)]

    def add(self, transcript: Transcript[Any], wanted: list[Any], system: int = 0) -> None:
        self.known.append((transcript, wanted, system))

    def check(self) -> None:
        for transcript, wanted, _ in self.known:
            assert transcript == wanted
        for later, wanted, system in self.known:
            for earlier, begun, before in self.known:
                is_begin = wanted[system:][: len(begun) - before] == begun[before:]
                assert later.continues(earlier) == is_begin


@given(st.data())
def test_no_transcript_changes_and_each_knows_which_it_continues(data: st.DataObject) -> None:
    model = Model()
    for _ in range(data.draw(st.integers(1, 8))):
        histories = [one for one in model.known if not one[2] and not one[0].after]
        history, wanted, _ = data.draw(st.sampled_from(histories))
        match data.draw(st.sampled_from(["plus", "sent", "first", "read again"])):
            case "plus":  # also onto one that is not the longest of its list
                added = data.draw(MESSAGES)
                model.add(history.plus([*added]), [*wanted, *added])
            case "sent":
                after = data.draw(MESSAGES)
                model.add(history.sent([HELP], after), [HELP, *wanted, *after], 1)
            case "first":
                count = data.draw(st.integers(0, 4))
                model.add(history.first(count), wanted[:count])
            case "read again":
                model.add(Transcript([*wanted]), wanted)
    model.check()


class Counted(list[Any]):
    """A list that counts the messages that are read from it."""

    read = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.read += len(found) if isinstance(found, list) else 1
        return found


def test_messages_of_a_shared_list_are_not_looked_at() -> None:
    turn: list[Any] = [said("?"), says("!")]
    shared = Counted([said("a"), says("b")] * 1_000)
    history = Transcript[Any](shared)
    asked = history.sent([HELP], turn[:1])
    assert history.sent([HELP], turn).continues(asked)
    assert history.plus(turn).sent([HELP], [said("and?")]).continues(asked)
    assert not history.plus(turn).sent([HELP], []).continues(history.sent([], [said("other")]))
    assert shared.read < 10


def test_two_readers_who_add_the_same_messages_share_a_list() -> None:
    shared = Counted([said("a")] * 1_000)
    history, added = Transcript[Any](shared), [said("b"), says("c")]
    first = history.plus(added[:1])
    second = history.plus(copy.deepcopy(added))
    third = history.plus(copy.deepcopy(added[:1]))
    for one in (first, third):
        assert second.continues(one)
        assert one.plus(added[1:]) == second
    assert shared.read < 10
    other = history.plus(
        [said("x")]
    )  # which would be another session: the list is left to the others
    assert not second.continues(other)
    assert (other[-1], second[-2:]) == (said("x"), added)
