"""The port of session stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from pylash.durable.commands import AwaitTurn
from pylash.durable.ports import DurabilityTier
from pylash.durable.runs import Fence, JournalEntry, RunState, WorkerId
from pylash.durable.scopes import QueueDrainScope, TurnScope
from pylash.durable.sessions import (
    DeleteReport,
    NewTurn,
    Policy,
    Queued,
    ResumedTurn,
    Segment,
    SessionRecord,
    SessionView,
    Submitted,
    TurnCommit,
    TurnRecord,
    Writing,
)


class SessionLists(Protocol):
    """Lists of sessions."""

    def listed(
        self, limit: int, after: str | None = None, tag: str | None = None
    ) -> Awaitable[list[SessionView]]:
        """Return sessions, the newest first; ``after`` is the last session of the page before."""
        ...


class Sessions(SessionLists, Protocol):
    """Sessions, their turns and their queues."""

    durability: DurabilityTier

    def submit(
        self, new: NewTurn, token: str, worker: WorkerId | None = None
    ) -> Awaitable[Submitted]:
        """Accept a turn, once; worker owns it at once if its session is free."""
        ...

    def resume(self, runs: Sequence[int]) -> Awaitable[dict[int, ResumedTurn]]:
        """Return the input for continuing turns, by run."""
        ...

    def open(self, session_id: str, options: Any = None) -> Awaitable[SessionRecord]:
        """Return a session; create it if it is missing."""
        ...

    def get(self, session_id: str) -> Awaitable[SessionRecord | None]:
        """Return a session, if there is one."""
        ...

    def turn(self, scope: TurnScope | QueueDrainScope) -> Awaitable[TurnRecord | None]:
        """Return a turn, if there is one."""
        ...

    def nodes(self, segment: Segment, after: int = 0) -> Awaitable[list[bytes]]:
        """Return the nodes of a segment after a place, the oldest first."""
        ...

    def uncommitted(self, session: SessionRecord) -> Awaitable[dict[int, bytes]]:
        """Return the nodes behind the head, by place: those of a turn that has not ended."""
        ...

    def hold(self, fence: Fence, session_id: str) -> Awaitable[None]:
        """Let the run of a process hold a session's lane until it ends; refuse a session that has other turns."""
        ...

    def record(self, fence: Fence, session: SessionRecord, writing: Writing) -> Awaitable[None]:
        """Write rows of a turn, all or nothing; rows that exist already stay."""
        ...

    def commit(self, fence: Fence, commit: TurnCommit) -> Awaitable[None]:
        """Append a turn to its session, and end its run if it is the turn's own."""
        ...

    def enqueue(self, session_id: str, key: str, body: Any, policy: Policy) -> Awaitable[bool]:
        """Queue a person's message, once, and wake or start the turn that takes it; False if the key is known."""
        ...

    def take(
        self,
        fence: Fence,
        session: SessionRecord,
        make: Callable[[list[Queued]], Writing],
        *,
        begins: bool = True,
    ) -> Awaitable[list[Queued]]:
        """Take the queued messages of a session, maybe none; ``make`` returns the rows that record them.

        Only a turn that ``begins`` takes messages for the next turn.
        """
        ...

    def queued(self, session_id: str) -> Awaitable[list[Queued]]:
        """Return the queued messages of a session, the oldest first."""
        ...

    def take_back(self, session_id: str, keys: Sequence[str]) -> Awaitable[list[str]]:
        """Remove queued messages of a person, if no turn has taken them; return the keys of the removed ones."""
        ...

    def cancel(self, session_id: str, reason: str) -> Awaitable[TurnRecord | None]:
        """Request the cancellation of the turn that holds the session's lane; return it, if there is one."""
        ...

    def blocked(self, session_id: str) -> Awaitable[int | None]:
        """Return the run of the turn that blocks a session, if one does."""
        ...

    def asked_to_end(self, run: int) -> Awaitable[bool]:
        """Return whether the cancellation of a turn was requested."""
        ...

    def watch(
        self,
        fence: Fence,
        entry: JournalEntry,
        command: AwaitTurn,
        wrap: Callable[[Any], bytes],
        notes: Sequence[JournalEntry] = (),
    ) -> Awaitable[JournalEntry]:
        """Open a wait for a turn as an effect of a run, or close it if the turn has ended."""
        ...

    def results(self, scopes: Sequence[str]) -> Awaitable[dict[str, tuple[RunState, Any]]]:
        """Return state and result of the turns that have ended, by the text of their scopes."""
        ...

    def states(self, scopes: Sequence[str]) -> Awaitable[dict[str, tuple[RunState, str | None]]]:
        """Return the states of turns, and the reasons of those that are blocked."""
        ...

    def fork(
        self,
        source: SessionRecord,
        new_id: str,
        head: int,
        counts: tuple[int, int],
        *,
        player: int | None = None,
    ) -> Awaitable[None]:
        """Create a session that begins with the nodes of another one, up to a place.

        ``player`` is the run of a process that holds the lane of the new session, which may be open and empty.
        """
        ...

    def current(self, session_id: str) -> Awaitable[TurnRecord | None]:
        """Return the turn that holds the session's lane: it runs, waits, is blocked, or is next."""
        ...

    def played(self, session_id: str) -> Awaitable[TurnRecord | None]:
        """Return the turn of a session that a process plays, with its nodes; both have the id of the session."""
        ...

    def turns(self, session_id: str) -> Awaitable[list[TurnRecord]]:
        """Return the turns of a session, the oldest first."""
        ...

    def delete(self, session_id: str) -> Awaitable[DeleteReport]:
        """Remove a session with its turns, nodes, waits and queued messages."""
        ...


class Attachments(Protocol):
    """Attachments, stored under their hashes."""

    durability: DurabilityTier

    def put(self, ref: str, body: bytes) -> Awaitable[None]:
        """Store bytes under their hash."""
        ...

    def get(self, ref: str) -> Awaitable[bytes | None]:
        """Return the bytes of a hash."""
        ...


class TurnEvents(Protocol):
    """Events of running turns, for listeners in other operating system processes."""

    def ask(self, run: int) -> Awaitable[None]:
        """Request the events of a turn for a listener in another process."""
        ...

    def is_asked(self, run: int) -> Awaitable[bool]:
        """Return whether a listener in another process requested the events of a turn."""
        ...

    def add(self, run: int, fence: int, sequence: int, body: bytes) -> Awaitable[None]:
        """Add a chunk of events."""
        ...

    def read(self, run: int, after: int) -> Awaitable[list[tuple[int, bytes]]]:
        """Return the chunks after a number."""
        ...
