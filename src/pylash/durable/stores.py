"""The ports of stores: what the runtime needs of a database.

Rule 1. Every operation of a store is atomic, and carries its own idempotency token: doing it
        again after a COMMIT whose answer was lost changes nothing.
Rule 2. An operation on behalf of a run takes its fence and writes nothing once it is stale.
Rule 3. Times are computed and compared with the store's clock; callers pass durations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from pylash.durable.commands import AwaitProcess, ProcessCommand, StartProcess
from pylash.durable.ports import DurabilityTier
from pylash.durable.processes import (
    HandleGrant,
    LeasedStart,
    Output,
    ProcessEvent,
    ProcessRecord,
    ProcessView,
    Registration,
    Resumed,
    SessionRef,
    SignalWait,
)
from pylash.durable.runs import (
    Attached,
    Claim,
    Fence,
    Instant,
    JournalEntry,
    RunView,
    WorkerId,
)
from pylash.durable.scopes import ExecutionScope
from pylash.durable.session_store import Attachments, Sessions, TurnEvents
from pylash.durable.triggers import Delivery, Occurrence, Subscription, SubscriptionView
from pylash.durable.waits import (
    Resolution,
    ResolveOutcome,
    WaitName,
    WaitView,
)

Wrap = Callable[[Any], bytes]
"""Encodes the result of a process command as an outcome."""


class WaitOpening(msgspec.Struct, frozen=True, kw_only=True):
    """A wait to open, and what people are shown of it."""

    name: WaitName
    kind: str = "custom"
    title: str = ""
    tool: str | None = None
    arguments: bytes | None = None
    timeout: int | None = None


class Answer(msgspec.Struct, frozen=True):
    """An answer to a wait: ``token`` identifies a repeated one, ``by`` names its author.

    ``fence`` is for a run that ends a wait of its own: refused once the run belongs to another.
    """

    token: str
    by: str | None = None
    fence: Fence | None = None


class WaitStatus(msgspec.Struct, frozen=True):
    """The status of a wait: its end, if it has one, else how long until its deadline."""

    terminal: Resolution | None = None
    revoked: bool = False
    remaining: int | None = None


class Journal(Protocol):
    """The records of runs, and the right to add more."""

    def attach(self, scope: ExecutionScope, worker: WorkerId) -> Awaitable[Attached]:
        """Own scope's run (made if missing) and return its journal; ``lease_held`` if another does."""
        ...

    def release(self, fence: Fence) -> Awaitable[None]:
        """Give the run up; nothing is lost, and any worker may own it next."""
        ...

    def record(self, fence: Fence, entry: JournalEntry) -> Awaitable[JournalEntry]:
        """Record entry unless its key is taken; return the entry that holds the key."""
        ...

    def begin_sleep(
        self, fence: Fence, entry: JournalEntry, duration: int
    ) -> Awaitable[tuple[JournalEntry, Instant]]:
        """Record a sleep's end; return the entry that holds the key, and the time now."""
        ...

    def close(self, fence: Fence, entry: JournalEntry) -> Awaitable[JournalEntry]:
        """Give an open effect its outcome unless it has one; return the entry that stands."""
        ...

    def record_all(self, fence: Fence, entries: Sequence[JournalEntry]) -> Awaitable[None]:
        """Record entries together; those whose key is taken stay as they are."""
        ...

    def deliver(
        self, fence: Fence, decisions: Sequence[JournalEntry], cancelled: Sequence[JournalEntry]
    ) -> Awaitable[set[str]]:
        """Record decisions, and open effects as cancelled; return the keys that are cancelled now."""
        ...

    def prune(self, age: int, limit: int) -> Awaitable[int]:
        """Forget the effects of some runs that ended longer ago than age; return how many runs."""
        ...

    def timeline(self, run: int) -> Awaitable[list[JournalEntry]]:
        """Return every effect of a run in the order of their beginnings, with small outcomes."""
        ...

    def entry(self, run: int, key: str) -> Awaitable[JournalEntry | None]:
        """Return a whole entry: its command and its outcome, however large."""
        ...


class Waits(Protocol):
    """Waits and their ends."""

    def open(self, opening: WaitOpening) -> Awaitable[WaitStatus]:
        """Open a wait that people can see, once; return its status."""
        ...

    def open_for(
        self, fence: Fence, entry: JournalEntry, opening: WaitOpening
    ) -> Awaitable[tuple[JournalEntry, WaitStatus]]:
        """Open a wait as an effect of a run: recorded, so that its end wakes the run."""
        ...

    def resolve(
        self, name: WaitName, resolution: Resolution, answer: Answer
    ) -> Awaitable[ResolveOutcome]:
        """End a wait unless it has ended, is late or revoked; wake every run that waits for it."""
        ...

    def expire(self, name: WaitName) -> Awaitable[WaitStatus]:
        """End a wait whose deadline has passed; return its status."""
        ...

    def look(self, waits: Sequence[str]) -> Awaitable[dict[str, WaitStatus]]:
        """Return the status of waits, by their ids."""
        ...

    def listed(self, session_id: str | None = None) -> Awaitable[list[WaitView]]:
        """Return the open waits, oldest first."""
        ...

    def generation(self, session_id: str) -> Awaitable[int]:
        """Return how often the session's waits were revoked."""
        ...

    def revoke(self, session_id: str, generation: int) -> Awaitable[None]:
        """Revoke the session's waits up to generation, and wake the runs that wait for them."""
        ...


class Runs(Protocol):
    """Runs: claim, park, block, retry. The ports of processes and sessions enqueue and settle them."""

    def claim(
        self,
        worker: WorkerId,
        *,
        limit: int,
        targets: Sequence[str],
        suspect: bool = False,
        first: Sequence[int] = (),
    ) -> Awaitable[list[Claim]]:
        """Claim ready runs of known targets, the oldest first.

        ``suspect`` claims those that made no progress in several claims, which run alone. ``first`` are at most
        ``limit`` runs that are claimed before older ones, as far as they are ready.
        """
        ...

    def park(self, fence: Fence, wake_seq: int, until: Instant | None = None) -> Awaitable[bool]:
        """Give the run up until it is woken; False if it was woken since ``wake_seq`` was read."""
        ...

    def block(self, fence: Fence, reason: str) -> Awaitable[None]:
        """Stop the run with a reason. It keeps its lane."""
        ...

    def postpone(self, fence: Fence, refusal: str | None) -> Awaitable[None]:
        """Give up a run that had trouble with the store; it is ready again after a pause.

        ``refusal`` is what the store answered: claims that end so without progress are counted, with longer
        pauses, and the last one blocks the run with it. None: the store could not be reached, and nothing counts.
        """
        ...

    def retry(self, run: int, token: str) -> Awaitable[bool]:
        """Make a blocked run ready again; False if it is not blocked."""
        ...

    def get(self, scope: ExecutionScope) -> Awaitable[RunView | None]:
        """Return the run of scope."""
        ...

    def next_due(self, targets: Sequence[str]) -> Awaitable[tuple[int | None, bool]]:
        """Return the microseconds until the scheduler must look, and whether a suspect is ready."""
        ...

    def owned_by(self, worker: WorkerId) -> Awaitable[list[Fence]]:
        """Return the runs that a worker owns."""
        ...

    def wake_seqs(self, runs: Sequence[int]) -> Awaitable[dict[int, tuple[int, int]]]:
        """Return how often runs were woken, and the number of their current fence."""
        ...


class Workers(Protocol):
    """The workers that are alive."""

    def join(self, worker: WorkerId, ttl: int, targets: Sequence[str] = ()) -> Awaitable[None]:
        """Take the lock that this process cannot outlive, and a lease of ttl microseconds."""
        ...

    def beat(self, worker: WorkerId, ttl: int) -> Awaitable[bool]:
        """Renew the lease; False if this worker was taken for dead."""
        ...

    def has_any(self) -> Awaitable[bool]:
        """Return whether a live worker can execute anything; one that only asks has no targets."""
        ...

    def leave(self, worker: WorkerId) -> Awaitable[None]:
        """Give up the lock, the lease and every run still owned."""
        ...

    def bury_the_dead(self, me: WorkerId) -> Awaitable[list[WorkerId]]:
        """Make the runs of dead and expired workers ready again; return those workers."""
        ...


class Processes(Protocol):
    """The process registry."""

    durability: DurabilityTier

    def start(
        self, command: StartProcess, worker: WorkerId | None = None
    ) -> Awaitable[LeasedStart | None]:
        """Start a process, once; owned by worker from the first moment if one is given and it can."""
        ...

    def perform(self, command: ProcessCommand, asker: str | None = None) -> Awaitable[Any]:
        """Do what command asks; ``asker`` is the process, or the turn, that asks.

        Raises ProcessNotVisible if it asks for a session that has no access to the process.
        """
        ...

    def perform_for(
        self, fence: Fence, entry: JournalEntry, command: ProcessCommand, wrap: Wrap
    ) -> Awaitable[JournalEntry]:
        """Do what command asks as an effect of a run, and record it, in one transaction."""
        ...

    def watch(
        self, fence: Fence, entry: JournalEntry, command: AwaitProcess, wrap: Wrap
    ) -> Awaitable[JournalEntry]:
        """Begin to wait for a process as an effect of a run, or end the wait if it has ended."""
        ...

    def take_signal(
        self, fence: Fence, entry: JournalEntry, name: str, timeout: int | None, wrap: Wrap
    ) -> Awaitable[tuple[JournalEntry, Instant]]:
        """Take the oldest signal of a name, or begin to wait for one, or end a wait that is late."""
        ...

    def observe(self, process_ids: Sequence[str]) -> Awaitable[dict[str, Output | None]]:
        """Note that a listener outside waits for the ends of processes.

        Returns those that are known and watched now, or have ended, with how; ask again for the rest.
        """
        ...

    def settle(self, fence: Fence, number: int, output: Output) -> Awaitable[None]:
        """End a process and its run."""
        ...

    def continue_as(
        self, fence: Fence, registration: Registration, *, cancelled: bool = False
    ) -> Awaitable[None]:
        """Settle the run and go on with a fresh one, under the same process and log."""
        ...

    def fork(
        self, process_id: str, registration: Registration, keys: Sequence[str]
    ) -> Awaitable[None]:
        """Start a process with some of what another recorded."""
        ...

    def get(self, process_id: str) -> Awaitable[ProcessRecord | None]:
        """Return a process."""
        ...

    def resume(self, runs: Sequence[int]) -> Awaitable[dict[int, Resumed]]:
        """Return what is needed to go on with runs, by run."""
        ...

    def look(self, process_id: str) -> Awaitable[tuple[bool, set[str]]]:
        """Return whether the process was asked to end, and the names of signals that it has not taken."""
        ...

    def cancel_reason(self, process_id: str) -> Awaitable[str | None]:
        """Return why a process was asked to end."""
        ...

    def view(self, process_id: str) -> Awaitable[ProcessView | None]:
        """Return a process as people see it."""
        ...

    def listed(self, status: str | None, limit: int) -> Awaitable[list[ProcessView]]:
        """Return processes as people see them, the newest first."""
        ...

    def signal_waits(self, process_id: str | None = None) -> Awaitable[list[SignalWait]]:
        """Return the open waits for signals, the oldest first."""
        ...

    def known(self, process_ids: Sequence[str]) -> Awaitable[set[str]]:
        """Return those of the ids that are processes."""
        ...

    def outputs(self, process_ids: Sequence[str]) -> Awaitable[dict[str, Output]]:
        """Return how those processes ended that have."""
        ...

    def events(
        self, process_id: str, after: int = 0, limit: int = 500
    ) -> Awaitable[list[ProcessEvent]]:
        """Return the log of a process after a sequence, the oldest first."""
        ...

    def grants(self, holder: SessionRef) -> Awaitable[list[HandleGrant]]:
        """Return the handles that a session holds."""
        ...

    def check_visible(self, holder: SessionRef, process_ids: Sequence[str]) -> Awaitable[None]:
        """Raise ProcessNotVisible for a process whose handle a session does not hold."""
        ...


class Triggers(Protocol):
    """Subscriptions, occurrences, and the processes that they start."""

    durability: DurabilityTier

    def register(self, subscription: Subscription) -> Awaitable[None]:
        """Subscribe; the same key again replaces what it stood for."""
        ...

    def listed(self, session_id: str | None = None) -> Awaitable[list[SubscriptionView]]:
        """Return the subscriptions, the oldest first."""
        ...

    def cancel(self, key: str) -> Awaitable[bool]:
        """End a subscription; False if there is none."""
        ...

    def cancel_owned(self, key: str, session_id: str | None) -> Awaitable[bool]:
        """End a subscription of a session, or of none (None); False if it has none of that key."""
        ...

    def emit(self, occurrence: Occurrence) -> Awaitable[list[Delivery]]:
        """Record an occurrence once, with the processes it starts; return them."""
        ...


class Envs(Protocol):
    """Captured environments: immutable, under the hash of their content."""

    durability: DurabilityTier

    def put(self, ref: str, body: bytes) -> Awaitable[None]:
        """Keep an environment under its hash."""
        ...

    def get(self, ref: str) -> Awaitable[bytes | None]:
        """Return an environment."""
        ...


class Store(Protocol):
    """A database, open. ``durability`` is that of its journal, waits and runs; the other parts state their own."""

    durability: DurabilityTier

    @property
    def journal(self) -> Journal:
        """The journal."""
        ...

    @property
    def waits(self) -> Waits:
        """The waits."""
        ...

    @property
    def runs(self) -> Runs:
        """The runs."""
        ...

    @property
    def workers(self) -> Workers:
        """The workers."""
        ...

    @property
    def processes(self) -> Processes:
        """The process registry."""
        ...

    @property
    def triggers(self) -> Triggers:
        """The triggers."""
        ...

    @property
    def envs(self) -> Envs:
        """The captured environments."""
        ...

    @property
    def sessions(self) -> Sessions:
        """The sessions."""
        ...

    @property
    def turn_events(self) -> TurnEvents:
        """The events of running turns."""
        ...

    @property
    def attachments(self) -> Attachments:
        """The attachments."""
        ...

    @property
    def secret(self) -> bytes:
        """The secret of this database, which signs the keys of waits."""
        ...

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call listener with a topic (blank: anything) after changes; return a function that stops it.

        A hint, never a promise: a listener that depends on a change looks again now and then.
        """
        ...

    async def close(self) -> None:
        """Finish what was submitted and close."""
        ...
