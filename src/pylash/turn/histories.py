"""Long chats: what of a session's messages a model is sent.

Rule 1. Only requests are shortened: what is stored stays whole.
Rule 2. A history is cut only where a person or a process begins to speak, so that no call is parted from
        its result. The prompt and the turn that runs are always sent whole.
Rule 3. Looking costs what is sent and no more, however long the history is.

Tokens are estimated: four bytes of text are one, a message has four more, and an attachment (of a
tool's result, a picture) is a thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeGuard, assert_never

import msgspec

from pylash.turn.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    Text,
    ToolMessage,
    UserMessage,
)
from pylash.turn.transcripts import Joined
from pylash.values import ArgumentsInvalid, write

TOKEN_BYTES: Final = 4
MESSAGE_TOKENS: Final = 4
ATTACHMENT_TOKENS: Final = 1_000

PIECES: Final = 8
"""How many requests a summary may take; what is older than fits them is left out of it."""

SUMMARY: Final = "Summary of the conversation so far:\n"


class Window(msgspec.Struct, frozen=True, tag_field="kind", tag="window"):
    """Sends the newest turns that fit so many tokens, as they are estimated; the turn that runs always.

    ``Window()`` has no limit: a session that had one sends everything again.

    >>> session = app.session("chat-42", history=Window(tokens=100_000))
    """

    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None:
            _check("Window", self.tokens)


class Summarise(msgspec.Struct, frozen=True, tag_field="kind", tag="summarise", omit_defaults=True):
    """Sends a summary in place of old turns, made when a request would have more than ``tokens``.

    The newest turns up to ``keep`` tokens (a quarter, unless given) are sent as they are. ``model`` is
    the name of the model that summarises; without one it is the session's.

    >>> session = app.session("chat-42", history=Summarise(tokens=100_000, model="fast"))
    """

    tokens: int
    keep: int | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        _check("Summarise", self.tokens)
        most = self.tokens // 2
        if self.keep is not None and not 0 <= self.keep <= most:
            reason = f"keep={self.keep!r} is not from 0 to {most}, which is half of the tokens"
            raise ArgumentsInvalid("Summarise", reason)

    @property
    def kept(self) -> int:
        """How many tokens are sent as they are after a summary was made."""
        return self.share if self.keep is None else self.keep

    @property
    def share(self) -> int:
        """How many tokens a summary has: with what is kept, half of them stay free for what comes."""
        return self.tokens // 4


History = Window | Summarise
"""How a session's long history is sent."""


def checked_history(given: object) -> History | None:
    """Return how a history is sent, or refuse what says nothing about it."""
    if given is None or isinstance(given, Window | Summarise):
        return given
    reason = f"history={given!r} is neither Window(tokens=…) nor Summarise(tokens=…)"
    raise ArgumentsInvalid("app.session", reason)


def _check(name: str, tokens: object) -> None:
    if not isinstance(tokens, int) or tokens < 1:
        raise ArgumentsInvalid(name, f"tokens={tokens!r} is no number of at least 1")


# --- estimates ---


def tokens_of(messages: Iterable[SystemMessage | Message]) -> int:
    """Return about how many tokens messages are."""
    return sum(map(_tokens, messages))


def _tokens(message: SystemMessage | Message) -> int:
    match message:
        case SystemMessage(text=text):
            size = _size(text)
        case ToolMessage(text=text, attachments=attachments):
            shown = sum(one.media_type.startswith("image/") for one in attachments)
            size = _size(text) + shown * ATTACHMENT_TOKENS * TOKEN_BYTES
        case AssistantMessage(text=text, calls=calls, attachments=attachments):
            size = _size(text) + sum(
                len(call.tool) + len(write(call.arguments)) + TOKEN_BYTES for call in calls
            )
            size += len(attachments) * ATTACHMENT_TOKENS * TOKEN_BYTES
        case UserMessage(parts=parts):
            size = sum(
                _size(part.text) if isinstance(part, Text) else ATTACHMENT_TOKENS * TOKEN_BYTES
                for part in parts
            )
        case _:
            assert_never(message)
    return MESSAGE_TOKENS + -(-size // TOKEN_BYTES)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


# --- what is sent ---


class Extent(NamedTuple):
    """What of a history is sent: a summary, if there is one, and everything from ``start`` on.

    With None as the start everything is sent as it is, older summaries too.
    """

    start: int | None = None
    summary: UserMessage | None = None

    def of(self, history: Sequence[Message], said: Sequence[Message]) -> Sequence[Message]:
        """Return the messages that are sent, with those of the turn that runs."""
        if self.start is None:
            return Joined(history, tuple(said))
        sent = [m for m in (*history[self.start :], *said) if not is_summary(m)]
        return sent if self.summary is None else [self.summary, *sent]


def is_summary(message: Message) -> TypeGuard[UserMessage]:
    """Return whether a message stands for older ones."""
    return isinstance(message, UserMessage) and message.summary is not None


def last_summary(option: History | None, history: Sequence[Message]) -> UserMessage | None:
    """Return the newest summary in a history, unless it is so old that it stands for too little."""
    left = option.tokens * (PIECES + 1) if isinstance(option, Summarise) else 0
    for index in range(len(history) - 1, -1, -1):
        if left <= 0:
            break
        if is_summary(message := history[index]):
            return message
        left -= _tokens(message)
    return None


def suffices(option: History, history: Sequence[Message], missing: int) -> bool:
    """Return whether nobody looks at the first messages of a history, of which so many are missing."""
    if option.tokens is None:
        return not missing
    left = option.tokens * (PIECES + 1 if isinstance(option, Summarise) else 1)
    for index in range(len(history) - 1, missing - 1, -1):
        message = history[index]
        if is_summary(message):
            if isinstance(option, Summarise):
                return _floor(message) >= missing
            continue
        left -= _tokens(message)
        if left < 0:
            return True
    return not missing


def extent(
    option: History | None,
    history: Sequence[Message],
    said: Sequence[Message],
    summary: UserMessage | None = None,
    *,
    prompt: int = 0,
) -> Extent:
    """Return what of a history is sent: with the prompt and the turn it fits, or there is nothing of it.

    ``summary`` is the newest in the history; one that the turn made is newer.
    """
    if option is None or option.tokens is None:
        return Extent()
    if isinstance(option, Summarise):
        summary = next((m for m in reversed(said) if is_summary(m)), summary)
    room = _room(option.tokens, said, summary, prompt)
    return Extent(_fitting(history, _floor(summary), room), summary)


def to_summarise(
    option: Summarise,
    history: Sequence[Message],
    said: Sequence[Message],
    summary: UserMessage | None,
    *,
    prompt: int = 0,
) -> range | None:
    """Return what of a history the next summary stands for, or None if none is needed.

    A turn makes at most one: what it says itself is not summarised.
    """
    floor, room = _floor(summary), _room(option.tokens, said, summary, prompt)
    if any(map(is_summary, said)) or _fitting(history, floor, room) == floor:
        return None
    upto = _fitting(history, floor, min(option.kept, room))
    start, left = upto, option.tokens * PIECES
    while start > floor and (left := left - _tokens(history[start - 1])) >= 0:
        start -= 1
    return range(start, upto)


def _floor(summary: UserMessage | None) -> int:
    """Return where what a summary does not stand for begins."""
    return 0 if summary is None or summary.summary is None else summary.summary.covers


def _room(tokens: int, said: Sequence[Message], summary: UserMessage | None, prompt: int) -> int:
    """Return how many tokens are left for a history."""
    whole = [m for m in said if not is_summary(m)]
    return tokens - prompt - tokens_of(whole if summary is None else [summary, *whole])


def _fitting(history: Sequence[Message], floor: int, room: int) -> int:
    """Return where the longest end of a history begins that has room.

    It is cut where a person or a process speaks: every call before that has its result.
    """
    start = len(history)
    for index in range(len(history) - 1, floor - 1, -1):
        message = history[index]
        room -= 0 if is_summary(message) else _tokens(message)
        if room < 0:
            return start
        if isinstance(message, UserMessage) and message.source in ("user", "wake"):
            start = index
    return floor


# --- summaries ---


def piece_of(history: Sequence[Message], span: range, tokens: int) -> tuple[str, int]:
    """Return the first messages of a span that fit so many tokens, as a text, and where the rest begins."""
    lines: list[str] = []
    upto = span.start
    while upto < span.stop:
        message = history[upto]
        tokens -= _tokens(message)
        if lines and tokens < 0:
            break
        if not is_summary(message):
            lines.append(_line(message))
        upto += 1
    return "\n".join(lines), upto


def _line(message: Message) -> str:
    match message:
        case UserMessage(text=text):
            return f"user: {text}"
        case ToolMessage(tool=tool, text=text):
            return f"result of {tool}: {text}"
        case AssistantMessage(text=text, calls=calls, attachments=attachments):
            called = [f"calls {call.tool}({write(call.arguments).decode()})" for call in calls]
            made = [f"[{one.media_type}]" for one in attachments]
            end = ["[interrupted]"] if message.interrupted else []
            return f"assistant: {' '.join([text, *made, *called, *end]).strip()}"
        case _:
            assert_never(message)


def summary_prompt(option: Summarise, before: str, piece: str) -> str:
    """Return what a model is asked to summarise a piece of a history, after a summary of the rest."""
    known = f"What came before, summarised:\n{before}\n\n" if before else ""
    return (
        "Summarise this conversation for the assistant that goes on with it without seeing it. Keep the "
        "instructions people gave, names, numbers, dates, decisions, results, promises and what is still "
        f"open. Write nothing else, in the language of the conversation, in at most {option.share // 2} "
        f"words.\n\n{known}The conversation:\n{shortened(piece, option.tokens)}"
    )


def shortened(text: str, tokens: int) -> str:
    """Return the beginning and the end of a text that has more than so many tokens."""
    data = text.encode("utf-8", "replace")
    half = max(1, tokens * TOKEN_BYTES // 2 - 2)
    if len(data) <= tokens * TOKEN_BYTES:
        return text
    return f"{data[:half].decode('utf-8', 'ignore')}…{data[-half:].decode('utf-8', 'ignore')}"
