"""The part of a long history that is sent: valid, within its token limit, and found without reading the rest."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylash import ArgumentsInvalid, Attachment, Summarise, Summary, Text, Window
from pylash.turn.asks import OPTIONS, SessionOptions
from pylash.turn.budgets import spent
from pylash.turn.histories import (
    SUMMARY,
    Tail,
    extent,
    is_summary,
    last_summary,
    piece_of,
    shorten,
    suffices,
    to_summarise,
    tokens_of,
)
from pylash.turn.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from pylash.turn.transcripts import Transcript
from tests.turn.provider_rules import refusal
from tests.turn.scenario import said, says

WORDS = st.sampled_from(["", "Hi.", "word " * 20, "long " * 200, "λόγος " * 30])


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """Draw the messages of one turn: calls at once, words in between, an answer again."""
    messages: list[Message] = [said(draw(WORDS), draw(st.sampled_from(["user", "wake"])))]
    for iteration in range(1, draw(st.integers(0, 3)) + 1):
        ids = [f"i{iteration}.c{n}" for n in range(draw(st.integers(1, 3)))]
        calls = tuple(ToolCall(one, "look", {"for": draw(WORDS)}) for one in ids)
        messages.append(AssistantMessage(draw(WORDS), calls))
        messages += [ToolMessage(one, "look", draw(WORDS)) for one in ids]
        source = draw(st.sampled_from([None, "user", "wake", "plugin", "runtime"]))
        if source is not None:
            messages.append(said(draw(WORDS), source))
    if draw(st.booleans()) or len(messages) == 1:
        messages.append(says(draw(WORDS)))
    return messages


HISTORIES = st.lists(turns(), max_size=6).map(lambda some: [m for turn in some for m in turn])
TOKENS = st.integers(1, 2_000)


# --- windows ---


@given(HISTORIES, turns(), TOKENS, st.integers(0, 300))
def test_any_provider_takes_what_a_window_sends(
    history: list[Message], turn: list[Message], tokens: int, prompt: int
) -> None:
    tail = Tail(Transcript(history))
    sent: Any = extent(Window(tokens=tokens), tail, turn, prompt=prompt).of(tail, turn)
    assert refusal(sent) is None
    assert sent[-len(turn) :] == turn  # the turn that runs, whole
    older = sent[: -len(turn)]
    assert older == history[len(history) - len(older) :]  # and the newest before it
    assert not older or prompt + tokens_of(sent) <= tokens


@given(HISTORIES, turns(), TOKENS)
def test_a_window_sends_all_that_fits(
    history: list[Message], turn: list[Message], tokens: int
) -> None:
    start = extent(Window(tokens=tokens), Tail(Transcript(history)), turn).start
    assert start is not None
    for earlier in range(start):
        longer = [*history[earlier:], *turn]
        here = history[earlier]
        if refusal(longer) is None and isinstance(here, UserMessage):
            begins = here.source in ("user", "wake")
            assert not begins or tokens_of(longer) > tokens


def test_without_an_option_everything_is_sent_as_it_is() -> None:
    history: list[Message] = [said("a"), summary(1, "of a"), says("b")]
    tail = Tail(Transcript(history))
    assert extent(None, tail, [said("c")]).of(tail, [said("c")]) == [*history, said("c")]


class Looked(list[Message]):
    """Messages that count how often they are looked at."""

    times = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.times += len(found) if isinstance(found, list) else 1
        return found


@pytest.mark.parametrize("option", [Window(tokens=100), Summarise(tokens=100)])
def test_the_cost_depends_on_the_sent_messages_and_not_on_the_history(option: Any) -> None:
    times = []
    for length in (1_000, 100_000):
        looked = Looked([said("Hi."), says("Ho.")] * (length // 2))
        history = Tail(Transcript(looked))
        known = last_summary(option, history)
        sent = extent(option, history, [said("?")], known).of(history, [said("?")])
        if isinstance(option, Summarise):
            assert to_summarise(option, history, [said("?")], known) is not None
        times.append(looked.times)
        assert len(sent) < 25
    assert times[0] == times[1]


@given(HISTORIES, turns(), st.integers(1, 300), st.booleans(), st.integers(0, 9), st.data())
def test_no_more_messages_are_read_than_needed(
    history: list[Message],
    turn: list[Message],
    tokens: int,
    window: bool,
    covers: int,
    data: st.DataObject,
) -> None:
    if covers <= len(history):
        history = [*history[: 2 * covers], summary(covers), *history[2 * covers :]]
    option: Any = Window(tokens=tokens) if window else Summarise(tokens=tokens)
    missing = data.draw(st.integers(0, len(history)))
    whole, part = Tail(Transcript(history)), Tail(Transcript(history[missing:]), missing)
    if not suffices(option, part):
        assert missing
        return
    known = last_summary(option, whole)
    assert last_summary(option, part) == known
    sent = extent(option, part, turn, known)
    assert sent == extent(option, whole, turn, known)
    assert list(sent.of(part, turn)) == list(sent.of(whole, turn))
    if isinstance(option, Summarise):
        span = to_summarise(option, part, turn, known)
        assert span == to_summarise(option, whole, turn, known)
        if span:
            assert piece_of(part, span, tokens) == piece_of(whole, span, tokens)


# --- summaries ---


def summary(covers: int, text: str = "what was", **used: Any) -> UserMessage:
    made = Summary(covers, **used)
    return UserMessage((Text(SUMMARY + text),), source="runtime", summary=made)


OPTIONS_OF_SUMMARIES = st.integers(40, 2_000).flatmap(
    lambda tokens: st.builds(
        Summarise, tokens=st.just(tokens), keep=st.none() | st.integers(0, tokens // 2)
    )
)


@pytest.mark.slow
@given(st.lists(turns(), max_size=9), OPTIONS_OF_SUMMARIES, st.integers(0, 100))
def test_a_chat_with_summaries_is_always_valid_and_within_its_tokens(
    chat: list[list[Message]], option: Summarise, prompt: int
) -> None:
    history: list[Message] = []
    for turn in chat:
        known = last_summary(option, Tail(Transcript(history)))
        span = to_summarise(option, Tail(Transcript(history)), turn[:1], known, prompt=prompt)
        running = [*turn[:1], *made(option, history, span), *turn[1:]]
        for upto in range(2, len(running) + 1):
            if refusal([m for m in running[:upto] if not is_summary(m)]) is not None:
                continue  # a batch is open: the model is not asked
            now = running[:upto]
            sent = extent(option, Tail(Transcript(history)), now, known, prompt=prompt)
            messages: Any = sent.of(Tail(Transcript(history)), now)
            assert refusal(messages) is None
            assert sum(map(is_summary, messages)) == (sent.summary is not None)
            ours = [m for m in now if not is_summary(m)]
            assert messages[-len(ours) :] == ours
            older = [m for m in messages[: -len(ours)] if not is_summary(m)]
            assert not older or prompt + tokens_of(messages) <= option.tokens
            if span is None:  # nothing had to go, so everything is there
                continue
            assert (
                to_summarise(option, Tail(Transcript(history)), now, known, prompt=prompt) is None
            )
        covered = 0 if span is None else span.stop
        floor = 0 if known is None or known.summary is None else known.summary.covers
        assert span is None or covered > floor
        history += running


def made(option: Summarise, history: list[Message], span: range | None) -> list[Message]:
    """Return the summary of a span, as long as may be."""
    if not span:
        return []
    return [summary(span.stop, "s" * (option.share * 4 - len(SUMMARY)))]


def test_a_summary_lasts_until_new_messages_have_half_of_the_tokens() -> None:
    option, history, summaries = Summarise(tokens=1_000), list[Message](), 0
    for number in range(200):
        turn: list[Message] = [said("word " * 20), says("word " * 20)]  # 58 tokens
        span = to_summarise(
            option,
            Tail(Transcript(history)),
            turn[:1],
            last_summary(option, Tail(Transcript(history))),
        )
        summaries += span is not None
        history += [turn[0], *made(option, history, span), turn[1]]
        assert number > 15 or span is None
    assert summaries == pytest.approx(200 * 58 / 500, rel=0.25)


def test_the_next_summary_stands_for_what_came_since_and_the_last_one() -> None:
    option = Summarise(tokens=100, keep=20)
    old: list[Message] = [said("a" * 200), says("b" * 200)]
    history = [*old, said("c"), summary(2), says("d" * 300), said("e"), says("f")]
    known = last_summary(option, Tail(Transcript(history)))
    assert known is history[3]
    span = to_summarise(option, Tail(Transcript(history)), [said("?")], known)
    assert span == range(2, 5)
    text, upto = piece_of(Tail(Transcript(history)), span, option.tokens)
    assert (text, upto) == (f"user: c\nassistant: {'d' * 300}", 5)


def test_what_is_summarised_comes_in_pieces_that_fit() -> None:
    history: list[Message] = [said("a" * 400), says("b" * 80), said("c" * 80), says("d" * 80)]
    span, pieces = range(4), []
    while span:
        text, upto = piece_of(Tail(Transcript(history)), span, 50)
        pieces.append("".join(dict.fromkeys(text[-1])))
        span = range(upto, 4)
    assert pieces == ["a", "c", "d"]  # one that is too long is alone


def test_only_so_much_is_summarised_at_once() -> None:
    history: list[Message] = [said("a" * 392), says("b" * 384)] * 100  # 102 and 100 tokens
    span = to_summarise(Summarise(tokens=100, keep=0), Tail(Transcript(history)), [said("?")], None)
    assert span is not None
    assert (span.stop, len(span)) == (200, 7)


# --- estimates and options ---


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (said(""), 4),
        (said("abcd" * 10), 14),
        (said("λ" * 10), 9),
        (SystemMessage("abcde"), 6),
        (UserMessage((Text("abcd"), Attachment(b"x" * 9_000, "image/png"))), 1_005),
        (ToolMessage("i1.c0", "look", "abcd"), 5),
        (ToolMessage("i1.c0", "draw", attachments=(Attachment(media_type="image/png"),)), 1_004),
        (ToolMessage("i1.c0", "dump", attachments=(Attachment(media_type="text/csv"),)), 4),
        (AssistantMessage("", (ToolCall("i1.c0", "look", {"n": 7}),)), 4 + 4),
    ],
)
def test_four_bytes_are_a_token(message: Any, tokens: int) -> None:
    assert tokens_of([message]) == tokens


@given(WORDS, st.integers(1, 300))
def test_a_text_is_shortened_to_so_many_tokens(text: str, tokens: int) -> None:
    short = shorten(text, tokens)
    assert short == text or len(short.encode()) <= max(tokens * 4, 8)


def test_a_summary_counts_for_its_turn_but_is_no_iteration() -> None:
    used = spent([said("?"), summary(2, usage=Usage(1, 70, 7), seconds=1.5), says("!")])
    assert (used.iterations, used.usage, used.seconds) == (1, Usage(2, 70, 7), 1.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Window(tokens=0),
        lambda: Window(tokens="many"),  # type: ignore[arg-type]
        lambda: Summarise(tokens=100, keep=51),
        lambda: Summarise(tokens=100, keep=-1),
    ],
)
def test_options_that_mean_nothing_are_refused(make: Any) -> None:
    with pytest.raises(ArgumentsInvalid):
        make()


@pytest.mark.parametrize(
    "option", [None, Window(), Window(5), Summarise(tokens=8, keep=2, model="m")]
)
def test_options_survive_being_stored(option: Any) -> None:
    stored = msgspec.json.encode(SessionOptions(history=option))
    assert OPTIONS.decode(stored).history == option
