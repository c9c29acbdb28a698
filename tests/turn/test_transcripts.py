"""Sequences of messages that are read only where somebody looks."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pylash.turn import Joined, Text, Transcript, UserMessage
from pylash.values import write


def said(text: str) -> UserMessage:
    return UserMessage((Text(text),))


def test_a_transcript_decodes_what_is_read_and_nothing_else() -> None:
    transcript = Transcript([b"no message at all", write(said("a")), write(said("b"))])
    transcript.add([said("c")])
    assert transcript[-1] == said("c")
    assert transcript[1:3] == [said("a"), said("b")]
    assert transcript[1] is transcript[1]
    with pytest.raises(ValueError, match="malformed"):
        transcript[0]


def test_joined_sequences_read_as_one() -> None:
    joined = Joined([1, 2], (), (3,), [4, 5])
    assert list(joined) == [1, 2, 3, 4, 5]
    assert [joined[n] for n in range(-5, 5)] == [1, 2, 3, 4, 5] * 2
    assert joined[1:4] == [2, 3, 4]
    assert joined[::-2] == [5, 3, 1]
    assert joined == [1, 2, 3, 4, 5]
    assert joined != [1, 2, 3, 4]
    assert repr(joined) == "[1, 2, 3, 4, 5]"
    for beyond in (5, -6):
        with pytest.raises(IndexError):
            joined[beyond]


def test_joined_sequences_do_not_grow() -> None:
    transcript = Transcript([write(said("a"))])
    joined = Joined(transcript, [said("z")])
    transcript.add([said("b")])
    assert joined == [said("a"), said("z")]
    assert list(transcript) == [said("a"), said("b")]


def test_a_transcript_may_be_fetched_from_its_end() -> None:
    transcript = Transcript(missing=3)
    transcript.add([said("d")])
    assert len(transcript) == 4
    assert transcript[3] == transcript[-1] == said("d")
    with pytest.raises(AssertionError, match="not fetched"):
        transcript[2]
    transcript.add_before([write(said("b")), write(said("c"))], missing=1)
    assert transcript[1:] == [said("b"), said("c"), said("d")]
    for missing in (0, -4):
        with pytest.raises(AssertionError, match="not fetched"):
            transcript[missing]
    transcript.add_before([write(said("a"))], missing=0)
    assert list(transcript) == [said("a"), said("b"), said("c"), said("d")]


def test_what_was_not_fetched_is_fetched_for_who_looks_once() -> None:
    fetched: list[str] = []

    def fetch() -> list[bytes]:
        fetched.append("now")
        return [write(said("a")), write(said("b"))]

    transcript = Transcript([write(said("c"))], missing=2)
    transcript.fetch = fetch
    assert (len(transcript), transcript[-1], transcript[2]) == (3, said("c"), said("c"))
    for beyond in (3, -4):
        with pytest.raises(IndexError):
            transcript[beyond]
    assert fetched == []
    assert transcript[-3] == said("a")
    assert list(transcript) == [said("a"), said("b"), said("c")]
    assert fetched == ["now"]


def test_nobody_else_waits_while_a_thread_fetches() -> None:
    begun, gate = threading.Event(), threading.Event()

    def fetch() -> list[bytes]:
        begun.set()
        assert gate.wait(10)
        return [write(said("a"))]

    transcript = Transcript([write(said("b"))], missing=1, lock=threading.RLock)
    transcript.fetch = fetch
    with ThreadPoolExecutor(2) as pool:
        looking = pool.submit(list, transcript)
        assert begun.wait(10)
        assert pool.submit(lambda: (len(transcript), transcript[-1])).result(10) == (2, said("b"))
        gate.set()
        assert looking.result(10) == [said("a"), said("b")]


def test_a_copy_of_a_transcript_is_a_list() -> None:
    transcript = Transcript([write(said("a"))], lock=threading.RLock)
    joined = Joined(transcript, [said("b")])
    for copied in (copy.deepcopy(joined), pickle.loads(pickle.dumps(joined))):
        assert copied == [said("a"), said("b")]
