"""A listener that gets the events of a turn from several workers, one after another, yields each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pylash.sessions.listening import ReceivedEvents
from pylash.turn.events import TurnEvent

WHOLE = "It ships today."


def delta(text: str) -> TurnEvent:
    return TurnEvent("text_delta", "i1.llm", text=text)


USAGE = TurnEvent("usage", "i1.llm")


def told(heard: ReceivedEvents, *events: TurnEvent) -> list[str]:
    """Return what is new in events, as lines."""
    fresh = [one for event in events for one in heard.new_part(event)]
    return [one.text or one.type for one in fresh]


@given(st.lists(st.integers(0, len(WHOLE)), max_size=5), st.integers(1, 4))
def test_a_reply_streamed_from_its_start_by_several_workers_is_yielded_once(
    places: list[int], size: int
) -> None:
    heard, lines = ReceivedEvents(), []
    for upto in [*places, len(WHOLE)]:
        heard.restart()
        pieces = [WHOLE[at : min(at + size, upto)] for at in range(0, upto, size)]
        lines += told(heard, *map(delta, pieces))
    lines += told(heard, USAGE)
    heard.restart()
    lines += told(heard, delta(WHOLE), USAGE)
    assert "".join(lines) == f"{WHOLE}usage"


def test_a_reply_that_is_another_the_second_time_starts_anew() -> None:
    heard = ReceivedEvents()
    assert told(heard, delta("It sh"), delta("ips.")) == ["It sh", "ips."]
    heard.restart()
    assert told(heard, delta("It "), delta("does not."), USAGE) == [
        "text_reset",
        "It does not.",
        "usage",
    ]


def test_a_reply_that_is_shorter_the_second_time_starts_anew() -> None:
    heard = ReceivedEvents()
    told(heard, delta("It ships today."))
    heard.restart()
    assert told(heard, delta("It ships"), USAGE) == ["text_reset", "It ships", "usage"]


def test_recorded_events_are_yielded_if_they_were_not_streamed() -> None:
    heard = ReceivedEvents()
    told(heard, delta("It ships"))
    assert [one.text for one in heard.missing_part(delta(WHOLE))] == [" today."]
    assert heard.missing_part(delta(WHOLE)) == []


def test_recorded_reasoning_is_yielded_only_if_none_was_streamed() -> None:
    thought = TurnEvent("reasoning_delta", "i1.llm", text="Let me see.")
    assert ReceivedEvents().missing_part(thought) == [thought]
    heard = ReceivedEvents()
    heard.new_part(TurnEvent("reasoning_delta", "i1.llm", text="Let "))
    assert heard.missing_part(thought) == []


def test_a_retry_is_reported_once() -> None:
    heard = ReceivedEvents()
    reset = TurnEvent("text_reset", "i1.llm", text="overloaded", attempt=2)
    again = TurnEvent("tool_progress", "c1", text="it fell", attempt=2)
    half = TurnEvent("tool_progress", "c1", text="half")
    assert told(heard, reset, again, half, half) == ["overloaded", "it fell", "half", "half"]
    heard.restart()
    assert told(heard, reset, again) == []
    assert told(heard, delta("It"), reset) == ["It", "overloaded"]  # streamed events do not count
