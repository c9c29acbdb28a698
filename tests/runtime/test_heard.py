"""A listener who is told a turn by several, one after another, hears it once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pylash.runtime.recorded_events import Heard
from pylash.turn import TurnEvent

WHOLE = "It ships today."


def delta(text: str) -> TurnEvent:
    return TurnEvent("text_delta", "i1.llm", text=text)


USAGE = TurnEvent("usage", "i1.llm")


def told(heard: Heard, *events: TurnEvent) -> list[str]:
    """Return what is new in events, as lines."""
    fresh = [one for event in events for one in heard.new_of(event)]
    return [one.text or one.type for one in fresh]


@given(st.lists(st.integers(0, len(WHOLE)), max_size=5), st.integers(1, 4))
def test_a_reply_told_from_its_start_by_one_after_another_is_heard_once(
    places: list[int], size: int
) -> None:
    heard, lines = Heard(), []
    for upto in [*places, len(WHOLE)]:
        heard.begin_again()
        pieces = [WHOLE[at : min(at + size, upto)] for at in range(0, upto, size)]
        lines += told(heard, *map(delta, pieces))
    lines += told(heard, USAGE)
    heard.begin_again()
    lines += told(heard, delta(WHOLE), USAGE)
    assert "".join(lines) == f"{WHOLE}usage"


def test_a_reply_that_is_another_the_second_time_starts_anew() -> None:
    heard = Heard()
    assert told(heard, delta("It sh"), delta("ips.")) == ["It sh", "ips."]
    heard.begin_again()
    assert told(heard, delta("It "), delta("does not."), USAGE) == [
        "text_reset",
        "It does not.",
        "usage",
    ]


def test_a_reply_that_is_shorter_the_second_time_starts_anew() -> None:
    heard = Heard()
    told(heard, delta("It ships today."))
    heard.begin_again()
    assert told(heard, delta("It ships"), USAGE) == ["text_reset", "It ships", "usage"]


def test_what_is_recorded_is_told_where_it_was_not_heard() -> None:
    heard = Heard()
    told(heard, delta("It ships"))
    assert [one.text for one in heard.left_of(delta(WHOLE))] == [" today."]
    assert heard.left_of(delta(WHOLE)) == []


def test_recorded_thoughts_are_told_only_to_who_heard_none() -> None:
    thought = TurnEvent("reasoning_delta", "i1.llm", text="Let me see.")
    assert Heard().left_of(thought) == [thought]
    heard = Heard()
    heard.new_of(TurnEvent("reasoning_delta", "i1.llm", text="Let "))
    assert heard.left_of(thought) == []


def test_that_something_is_tried_again_is_told_once() -> None:
    heard = Heard()
    reset = TurnEvent("text_reset", "i1.llm", text="overloaded", attempt=2)
    again = TurnEvent("tool_progress", "c1", text="it fell", attempt=2)
    half = TurnEvent("tool_progress", "c1", text="half")
    assert told(heard, reset, again, half, half) == ["overloaded", "it fell", "half", "half"]
    heard.begin_again()
    assert told(heard, reset, again) == []
    assert told(heard, delta("It"), reset) == ["It", "overloaded"]  # what was heard does not count
