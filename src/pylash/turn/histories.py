"""Long chats: which of a session's messages are sent to a model.

Rule 1. Only requests are shorten: the stored history stays complete.
Rule 2. A history is cut only before a message of a person or a process, so that no call is separated from
        its result. The prompt and the current turn are always sent whole.
Rule 3. The cost of the selection depends on the size of the request, not on the length of the history.

Tokens are estimated: one per four bytes of text, four more per message, and a thousand per attachment (a picture,
a tool's result).
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
from pylash.turn.transcripts import Transcript
from pylash.values.canonical import write
from pylash.values.process_errors import ArgumentsInvalid

TOKEN_BYTES: Final = 4
MESSAGE_TOKENS: Final = 4
ATTACHMENT_TOKENS: Final = 1_000

PIECES: Final = 8
"""How many requests a summary may take; messages that are too old to fit into them are left out."""

SUMMARY: Final = "Summary of the conversation so far:\n"


class Window(msgspec.Struct, frozen=True, tag_field="kind", tag="window"):
    """Sends the newest turns that fit the given number of tokens (estimated), and always the current turn.

    ``Window()`` has no limit: it removes the limit of a session that had one.

    >>> session = app.session("chat-42", history=Window(tokens=100_000))
    """

    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None:
            _check("Window", self.tokens)


class Summarise(msgspec.Struct, frozen=True, tag_field="kind", tag="summarise", omit_defaults=True):
    """Sends a summary in place of old turns, made when a request would have more than ``tokens``.

    The newest turns up to ``keep`` tokens (by default a quarter of ``tokens``) are sent unchanged. ``model`` is
    the name of the model that summarises; the default is the session's.

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
        """How many tokens are sent unchanged after a summary."""
        return self.share if self.keep is None else self.keep

    @property
    def share(self) -> int:
        """How many tokens a summary may have. With the default ``keep``, half of ``tokens`` stays free."""
        return self.tokens // 4


History = Window | Summarise
"""Which part of a session's history is sent."""


def checked_history(given: object) -> History | None:
    """Return a valid history option, or refuse any other value."""
    if given is None or isinstance(given, Window | Summarise):
        return given
    reason = f"history={given!r} is neither Window(tokens=…) nor Summarise(tokens=…)"
    raise ArgumentsInvalid("app.session", reason)


def _check(name: str, tokens: object) -> None:
    if not isinstance(tokens, int) or tokens < 1:
        raise ArgumentsInvalid(name, f"tokens={tokens!r} is not a number of at least 1")


# --- estimates ---


def tokens_of(messages: Iterable[SystemMessage | Message]) -> int:
    """Return the estimated number of tokens of messages."""
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


# --- selection ---


class Tail(msgspec.Struct, frozen=True):
    """The newest committed messages of a session. Places count from the session's first message.

    ``start`` is the place of the first message here: older ones were not read. ``has_attachments`` tells
    whether any message here refers to bytes that are stored elsewhere.
    """

    messages: Transcript[Message] = msgspec.field(default_factory=Transcript)
    start: int = 0
    has_attachments: bool = False

    @property
    def stop(self) -> int:
        """The place after the last message."""
        return self.start + len(self.messages)

    def at(self, place: int) -> Message:
        """Return the message at a place, which must not be before ``start``."""
        assert place >= self.start, "an older message was not read"
        return self.messages[place - self.start]


class Extent(NamedTuple):
    """The part of a history that is sent: a summary, if there is one, and all messages from ``start`` on.

    With None as the start, everything is sent unchanged, including older summaries.
    """

    start: int | None = None
    summary: UserMessage | None = None

    def of(
        self, history: Tail, current: Sequence[Message], system: Sequence[SystemMessage] = ()
    ) -> Transcript[SystemMessage | Message]:
        """Return the messages to send, with the prompt and the messages of the current turn."""
        if self.start is None:
            return history.messages.sent(system, current)
        kept = history.messages[self.start - history.start :]
        sent = [m for m in (*kept, *current) if not is_summary(m)]
        summary = () if self.summary is None else (self.summary,)
        return Transcript[Message]().sent(system, (*summary, *sent))


def is_summary(message: Message) -> TypeGuard[UserMessage]:
    """Return whether a message is a summary of older ones."""
    return isinstance(message, UserMessage) and message.summary is not None


def last_summary(option: History | None, history: Tail) -> UserMessage | None:
    """Return the newest summary in a history, unless it is so old that it covers too little."""
    left = option.tokens * (PIECES + 1) if isinstance(option, Summarise) else 0
    for message in reversed(history.messages):
        if left <= 0:
            break
        if is_summary(message):
            return message
        left -= _tokens(message)
    return None


def suffices(option: History | None, history: Tail) -> bool:
    """Return whether an option needs no message older than those in ``history``."""
    if option is None or option.tokens is None or not history.start:
        return not history.start
    left = option.tokens * (PIECES + 1 if isinstance(option, Summarise) else 1)
    for message in reversed(history.messages):
        if is_summary(message):
            if isinstance(option, Summarise):
                return _floor(message) >= history.start
            continue
        left -= _tokens(message)
        if left < 0:
            return True
    return not history.start


def extent(
    option: History | None,
    history: Tail,
    current: Sequence[Message],
    summary: UserMessage | None = None,
    *,
    prompt: int = 0,
) -> Extent:
    """Return the part of a history to send: together with the prompt and the turn it fits, or it is empty.

    ``summary`` is the newest in the history; a summary made by the current turn is newer.
    """
    if option is None or option.tokens is None:
        return Extent()
    if isinstance(option, Summarise):
        summary = next((m for m in reversed(current) if is_summary(m)), summary)
    room = _room(option.tokens, current, summary, prompt)
    return Extent(_fitting(history, _floor(summary), room), summary)


def to_summarise(
    option: Summarise,
    history: Tail,
    current: Sequence[Message],
    summary: UserMessage | None,
    *,
    prompt: int = 0,
) -> range | None:
    """Return the span that the next summary covers, or None if none is needed.

    A turn makes at most one summary, and its own messages are not summarised.
    """
    floor, room = _floor(summary), _room(option.tokens, current, summary, prompt)
    if any(map(is_summary, current)) or _fitting(history, floor, room) == floor:
        return None
    upto = _fitting(history, floor, min(option.kept, room))
    start, left = upto, option.tokens * PIECES
    while start > floor and (left := left - _tokens(history.at(start - 1))) >= 0:
        start -= 1
    return range(start, upto)


def _floor(summary: UserMessage | None) -> int:
    """Return the place of the first message that the summary does not cover."""
    return 0 if summary is None or summary.summary is None else summary.summary.covers


def _room(tokens: int, current: Sequence[Message], summary: UserMessage | None, prompt: int) -> int:
    """Return how many tokens are left for the history."""
    whole = [m for m in current if not is_summary(m)]
    return tokens - prompt - tokens_of(whole if summary is None else [summary, *whole])


def _fitting(history: Tail, floor: int, room: int) -> int:
    """Return the start of the longest tail of a history that fits.

    It is cut before a message of a person or a process: every call before that has its result.
    """
    start = history.stop
    for index in range(history.stop - 1, floor - 1, -1):
        message = history.at(index)
        room -= 0 if is_summary(message) else _tokens(message)
        if room < 0:
            return start
        if isinstance(message, UserMessage) and message.source in ("user", "wake"):
            start = index
    return floor


# --- summaries ---


def piece_of(history: Tail, span: range, tokens: int) -> tuple[str, int]:
    """Return the first messages of a span that fit the given tokens, as a text, and the place of the rest."""
    lines: list[str] = []
    upto = span.start
    while upto < span.stop:
        message = history.at(upto)
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
    """Return the prompt to summarise a piece of a history, given the summary of the earlier pieces."""
    known = f"What came before, summarised:\n{before}\n\n" if before else ""
    return (
        "Summarise this conversation for the assistant that goes on with it without seeing it. Keep the "
        "instructions people gave, names, numbers, dates, decisions, results, promises and what is still "
        f"open. Write nothing else, in the language of the conversation, in at most {option.share // 2} "
        f"words.\n\n{known}The conversation:\n{shorten(piece, option.tokens)}"
    )


def shorten(text: str, tokens: int) -> str:
    """Return the beginning and the end of a text that exceeds the given tokens."""
    data = text.encode("utf-8", "replace")
    half = max(1, tokens * TOKEN_BYTES // 2 - 2)
    if len(data) <= tokens * TOKEN_BYTES:
        return text
    return f"{data[:half].decode('utf-8', 'ignore')}…{data[-half:].decode('utf-8', 'ignore')}"
