"""The port of session stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from pylash.durable.commands import AwaitTurn
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
    Submitted,
    TurnCommit,
    TurnRecord,
    Writing,
)


class Sessions(Protocol):
    """Sessions, their turns and their queues."""

    def submit(
        self, new: NewTurn, token: str, worker: WorkerId | None = None
    ) -> Awaitable[Submitted]:
        """Accept a turn, once; owned by worker from the first moment if its session is free."""
        ...

    def resume(self, runs: Sequence[int]) -> Awaitable[dict[int, ResumedTurn]]:
        """Return what is needed to go on with turns, by run."""
        ...

    def open(self, session_id: str, options: Any = None) -> Awaitable[SessionRecord]:
        """Return a session, made if it is missing."""
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

    def reader(self, segments: Sequence[Segment]) -> Callable[[], list[bytes]] | None:
        """Return how a thread that may wait reads the nodes of segments; None if none can."""
        ...

    @property
    def is_far(self) -> bool:
        """Whether who waits for a reader waits for a network."""
        ...

    def uncommitted(self, session: SessionRecord) -> Awaitable[dict[int, bytes]]:
        """Return the nodes behind the head, by place: those of a turn that has not ended."""
        ...

    def record(self, fence: Fence, session: SessionRecord, writing: Writing) -> Awaitable[None]:
        """Write what a turn did, all of it or nothing; what is there already stays."""
        ...

    def commit(self, fence: Fence, commit: TurnCommit) -> Awaitable[None]:
        """Append a turn to its session, and end its run if it is the turn's own."""
        ...

    def enqueue(self, session_id: str, key: str, body: Any, policy: Policy) -> Awaitable[bool]:
        """Queue a person's words, once, and wake or start the turn that hears them; False if known."""
        ...

    def take(
        self,
        fence: Fence,
        session: SessionRecord,
        make: Callable[[list[Queued]], Writing],
        *,
        begins: bool = True,
    ) -> Awaitable[list[Queued]]:
        """Take what is queued for a session, as an effect that ``make`` writes.

        Only a turn that ``begins`` takes what waits for the next turn.
        """
        ...

    def queued(self, session_id: str) -> Awaitable[list[Queued]]:
        """Return what waits for a session, the oldest first."""
        ...

    def take_back(self, session_id: str, keys: Sequence[str]) -> Awaitable[list[str]]:
        """Forget a person's words that no turn has heard yet; return the keys of those."""
        ...

    def cancel(self, session_id: str, reason: str) -> Awaitable[TurnRecord | None]:
        """Ask the turn that has the session's lane to end; return it, if there is one."""
        ...

    def blocked(self, session_id: str) -> Awaitable[int | None]:
        """Return the run of the turn that blocks a session, if one does."""
        ...

    def asked_to_end(self, run: int) -> Awaitable[bool]:
        """Return whether a turn was asked to end."""
        ...

    def watch(
        self, fence: Fence, entry: JournalEntry, command: AwaitTurn, wrap: Callable[[Any], bytes]
    ) -> Awaitable[JournalEntry]:
        """Begin to wait for a turn as an effect of a run, or end the wait if it has ended."""
        ...

    def results(self, scopes: Sequence[str]) -> Awaitable[dict[str, tuple[RunState, Any]]]:
        """Return how those turns ended that have, by the text of their scopes."""
        ...

    def states(self, scopes: Sequence[str]) -> Awaitable[dict[str, tuple[RunState, str | None]]]:
        """Return where turns stand, and why those that are blocked are."""
        ...

    def fork(
        self, source: SessionRecord, new_id: str, head: int, counts: tuple[int, int]
    ) -> Awaitable[None]:
        """Make a session that begins with another one's nodes, up to a place."""
        ...

    def current(self, session_id: str) -> Awaitable[TurnRecord | None]:
        """Return the turn that has the session's lane: it runs, waits, is blocked, or is next."""
        ...

    def turns(self, session_id: str) -> Awaitable[list[TurnRecord]]:
        """Return the turns of a session, the oldest first."""
        ...

    def delete(self, session_id: str) -> Awaitable[DeleteReport]:
        """Remove a session: its turns, its nodes and what waits for it."""
        ...


class Attachments(Protocol):
    """Bytes under their hashes."""

    def put(self, digest: str, body: bytes) -> Awaitable[None]:
        """Keep bytes under their hash."""
        ...

    def get(self, digest: str) -> Awaitable[bytes | None]:
        """Return the bytes of a hash."""
        ...


class TurnEvents(Protocol):
    """What turns say while they run, for listeners in other processes."""

    def ask(self, run: int) -> Awaitable[None]:
        """Say that somebody elsewhere listens to a turn."""
        ...

    def is_asked(self, run: int) -> Awaitable[bool]:
        """Return whether somebody elsewhere listens to a turn."""
        ...

    def add(self, run: int, fence: int, sequence: int, body: bytes) -> Awaitable[None]:
        """Add a chunk of events."""
        ...

    def read(self, run: int, after: int) -> Awaitable[list[tuple[int, bytes]]]:
        """Return the chunks after a number."""
        ...
