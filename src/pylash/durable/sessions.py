"""Sessions and turns as stored: rows, and messages as bytes.

Rule 1. A session is a line of nodes with a head. A commit appends nodes and moves the head, once. A
        fork is a new line that begins with nodes of another one; both share them.
Rule 2. A turn is a run in its session's lane: its input and its result are in the run's row.
Rule 3. The nodes of a running turn are written behind the head: they are not visible before the commit.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Final

import msgspec

from pylash.durable.processes import Slot
from pylash.durable.runs import TERMINAL, Fence, Instant, JournalEntry, RunState
from pylash.durable.scopes import QueueDrainScope, TurnScope, scope_text
from pylash.values.names import check_name
from pylash.values.turn_errors import SessionIdInvalid

TURN_TARGET = "turn"
"""The target of turns: every worker with a model claims it."""


def session_lane(session_id: str) -> str:
    """Return the lane in which a session's turns wait for each other."""
    return f"session:{session_id}"


def checked_session(session_id: str) -> str:
    """Return a session id, or raise SessionIdInvalid if it cannot be stored."""
    return check_name("session id", session_id, error=SessionIdInvalid)


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """The nodes of one line up to a number: the beginning of a fork."""

    number: int
    upto: int


class SessionRecord(msgspec.Struct, frozen=True):
    """The row of a session.

    ``streak`` counts the turns since the last message of a person. ``usage`` is the usage of its turns, and whether
    any of its messages has ``attachments``, if that is known.
    """

    id: str
    number: int
    head: int = 0
    revision: int = 0
    calls: int = 0
    generation: int = 0
    streak: int = 0
    usage: Any = None
    options: Any = None
    origin: tuple[Segment, ...] = ()

    @property
    def path(self) -> tuple[Segment, ...]:
        """Every committed node, from the first to the head."""
        return (*self.origin, Segment(self.number, self.head))


class SessionView(msgspec.Struct, frozen=True):
    """A session in a list.

    ``status`` is that of the turn that runs, waits or is blocked; None if there is none. ``turns`` counts the committed turns, in a
    fork also those that it begins with. ``created`` is when its first turn was submitted, ``updated`` when its last one ended; None
    before that.
    """

    id: str
    turns: int
    status: RunState | None
    created: Instant | None
    updated: Instant | None
    tags: tuple[str, ...] = ()


class NewTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn to submit: its input (identified by ``digest``) and its options. ``person``: a person asked.

    The session keeps ``options``. ``defaults`` are those of this turn that its session has not got.
    """

    scope: TurnScope | QueueDrainScope
    digest: bytes
    body: bytes
    options: Any = None
    defaults: Any = None
    person: bool = True


class TurnRecord(msgspec.Struct, frozen=True):
    """The row of a turn. ``result`` is None until it has ended, ``cancel_reason`` unless it is to be cancelled."""

    scope: TurnScope | QueueDrainScope
    run: int
    body: bytes
    state: RunState
    reason: str | None
    result: Any
    created: Instant
    cancel: bool = False
    cancel_delivered: bool = False
    options: Any = None
    cancel_reason: str | None = None
    timeout: ClassVar[int | None] = None
    slot: ClassVar[Slot | None] = None

    @property
    def settled(self) -> bool:
        """Whether the turn has ended."""
        return self.state in TERMINAL

    @property
    def id(self) -> str:
        """The turn's name among all runs."""
        return scope_text(self.scope)

    @property
    def seed(self) -> str:
        """The text that its random names are derived from."""
        return self.id


class Submitted(msgspec.Struct, frozen=True):
    """A turn that was submitted, now or before.

    It has a fence if the caller owns it now; ``stirred``: messages are queued for it.
    """

    turn: TurnRecord
    session: SessionRecord
    now: Instant
    fence: Fence | None = None
    stirred: bool = False


class ResumedTurn(msgspec.Struct, frozen=True):
    """The input for continuing a turn: its recorded effects, and its nodes by number."""

    turn: TurnRecord
    session: SessionRecord
    entries: dict[str, JournalEntry]
    nodes: dict[int, bytes]
    now: Instant


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a turn that are written together: effects, nodes by number, and bodies under their hashes."""

    entries: tuple[JournalEntry, ...] = ()
    nodes: tuple[tuple[int, bytes], ...] = ()
    envs: tuple[tuple[str, bytes], ...] = ()
    attachments: tuple[tuple[str, bytes], ...] = ()


class TurnCommit(msgspec.Struct, frozen=True, kw_only=True):
    """The last write of a turn.

    ``settle``: the run is the turn's own, and ends with it. ``fresh``: nodes that the turn wrote before are deleted.
    """

    session: SessionRecord
    writing: Writing
    head: int
    calls: int
    usage: Any
    state: RunState
    result: Any
    settle: bool = True
    fresh: bool = False


class Policy(StrEnum):
    """When a queued message is delivered."""

    NEXT_TURN = "next_turn"
    NOW = "now"
    INTERRUPT = "interrupt"
    WAKE = "wake"


SAID: Final = "key:"
"""The prefix of the source of a person's message; the rest is the key of the message."""


class Queued(msgspec.Struct, frozen=True):
    """A message in the queue of a session. ``source`` is the process that sent it, or ``key:`` and its key."""

    source: str
    sequence: int
    body: Any
    policy: Policy
    at: Instant

    @property
    def key(self) -> str | None:
        """The key of a person's message; None for a message of a process."""
        return self.source[len(SAID) :] if self.source.startswith(SAID) else None


class DeleteReport(msgspec.Struct, frozen=True):
    """Counts of rows that were removed with a session; ``kept`` messages belong to forks too."""

    turns: int = 0
    messages: int = 0
    waits: int = 0
    queued: int = 0
    handles: int = 0
    subscriptions: int = 0
    kept: int = 0
