"""The ports of stores: the interface between the runtime and a database.

Rule 1. Every operation of a store is atomic and idempotent: a repetition after a COMMIT whose answer was lost
        changes nothing.
Rule 2. An operation for a run has its fence as an argument, and writes nothing once the fence is stale.
Rule 3. Times are computed and compared with the store's clock; callers pass durations.
Rule 4. ``notes`` are written together with the effect, also if its key is taken; a note whose key is taken stays as it is.
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
    ProcessFilter,
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
    Dispatch,
    Fence,
    Instant,
    JournalEntry,
    RunView,
    WorkerId,
)
from pylash.durable.scopes import ExecutionScope
from pylash.durable.session_store import Attachments, Sessions, TurnEvents
from pylash.durable.sessions import SessionRecord, TurnRecord
from pylash.durable.triggers import (
    Delivery,
    Occurrence,
    Subscription,
    SubscriptionView,
    Upgrade,
    as_registered,
)
from pylash.durable.waits import (
    Resolution,
    ResolveOutcome,
    WaitName,
    WaitView,
)

Wrap = Callable[[Any], bytes]
"""Encodes the result of a process command as an outcome."""


class WaitOpening(msgspec.Struct, frozen=True, kw_only=True):
    """A wait to open, and the text that people see. ``schema``: the JSON Schema of the answer; None accepts any."""

    name: WaitName
    kind: str = "custom"
    title: str = ""
    tool: str | None = None
    arguments: bytes | None = None
    timeout: int | None = None
    # How long the effect waits. It may be shorter than ``timeout``, which ends the wait for everyone.
    within: int | None = None
    schema: bytes | None = None


class Answer(msgspec.Struct, frozen=True):
    """An answer to a wait: ``token`` identifies a repetition, ``by`` is its author.

    ``fence`` is that of a run that ends its own wait: the answer is refused once the fence is stale.
    """

    token: str
    by: str | None = None
    fence: Fence | None = None


class WaitStatus(msgspec.Struct, frozen=True):
    """The status of a wait: its resolution, or the microseconds until its deadline or the end of the effect's time."""

    terminal: Resolution | None = None
    revoked: bool = False
    remaining: int | None = None


class Taken(msgspec.Struct, frozen=True):
    """A run that an attempt of its engine owns now, and its process, or its turn with the session.

    ``subject`` is None if it cannot be read: newer code has written it, or the session is gone. ``is_queued``: messages
    are queued for the turn. ``moves``: how often its records were moved to a new journal of the engine.
    """

    fence: Fence
    now: Instant
    wake_seq: int
    moves: int = 0
    subject: ProcessRecord | TurnRecord | None = None
    session: SessionRecord | None = None
    is_queued: bool = False


class Journal(Protocol):
    """The recorded effects of runs."""

    def attach(self, scope: ExecutionScope, worker: WorkerId) -> Awaitable[Attached]:
        """Own the run of scope, created if it is missing; return its journal. Raises LeaseHeld."""
        ...

    def release(self, fence: Fence) -> Awaitable[None]:
        """Give up the run: any worker may claim it next."""
        ...

    def record(
        self, fence: Fence, entry: JournalEntry, notes: Sequence[JournalEntry] = ()
    ) -> Awaitable[JournalEntry]:
        """Record entry unless its key is taken; return the entry of the key."""
        ...

    def begin_sleep(
        self,
        fence: Fence,
        entry: JournalEntry,
        duration: int,
        notes: Sequence[JournalEntry] = (),
    ) -> Awaitable[tuple[JournalEntry, Instant]]:
        """Record the end time of a sleep; return the entry of the key, and the time now."""
        ...

    def close(self, fence: Fence, entry: JournalEntry) -> Awaitable[JournalEntry]:
        """Give an open effect its outcome unless it has one; return its entry."""
        ...

    def deliver(
        self, fence: Fence, decisions: Sequence[JournalEntry], cancelled: Sequence[JournalEntry]
    ) -> Awaitable[set[str]]:
        """Record decisions and notes, and open effects as cancelled; return the keys that are cancelled now."""
        ...

    def collect(self, run: int, entries: Sequence[JournalEntry]) -> Awaitable[None]:
        """Add what another engine has recorded for a run; what is there stays."""
        ...

    def move(
        self,
        fence: Fence,
        entries: Sequence[JournalEntry],
        cancelled: Sequence[JournalEntry],
        moves: int,
    ) -> Awaitable[None]:
        """Add what another engine has recorded for a run, and make the run ready for a new journal there.

        ``cancelled`` are effects that were cancelled; ``moves``: how often the records were moved by now.
        """
        ...

    def prune(self, age: int, limit: int) -> Awaitable[int]:
        """Delete the effects of up to ``limit`` runs that ended longer ago than age; return how many runs."""
        ...

    def timeline(self, run: int) -> Awaitable[list[JournalEntry]]:
        """Return every effect of a run in the order of their starts; outcomes are truncated."""
        ...

    def entry(self, run: int, key: str) -> Awaitable[JournalEntry | None]:
        """Return an entry with its command and its whole outcome."""
        ...


class Waits(Protocol):
    """Waits and their resolutions."""

    def open(self, opening: WaitOpening) -> Awaitable[WaitStatus]:
        """Open a wait, once; return its status."""
        ...

    def open_for(
        self,
        fence: Fence,
        entry: JournalEntry,
        opening: WaitOpening,
        notes: Sequence[JournalEntry] = (),
    ) -> Awaitable[tuple[JournalEntry, WaitStatus]]:
        """Open a wait as an effect of a run: its end wakes the run."""
        ...

    def resolve(
        self, name: WaitName, resolution: Resolution, answer: Answer
    ) -> Awaitable[ResolveOutcome]:
        """End a wait unless it has ended, is overdue or revoked; wake every run that waits for it."""
        ...

    def expire(self, name: WaitName) -> Awaitable[WaitStatus]:
        """End a wait whose deadline has passed; return its status."""
        ...

    def leave(self, fence: Fence, key: str, name: WaitName) -> Awaitable[WaitStatus]:
        """End the effect of key if its time is over and its wait is open, which stays open; return the status."""
        ...

    def look(self, waits: Sequence[str]) -> Awaitable[dict[str, WaitStatus]]:
        """Return the status of waits, by their ids."""
        ...

    def listed(self, session_id: str | None = None) -> Awaitable[list[WaitView]]:
        """Return the open waits, oldest first."""
        ...

    def generation(self, session_id: str) -> Awaitable[int]:
        """Return how often the waits of a session were revoked."""
        ...

    def revoke(self, session_id: str, generation: int) -> Awaitable[None]:
        """Revoke the waits of a session up to a generation, and wake the runs that wait for them."""
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

        ``suspect`` claims runs without progress in several claims, which are executed alone. ``first`` are at most
        ``limit`` runs that are claimed before older ones if they are ready.
        """
        ...

    def park(
        self,
        fence: Fence,
        wake_seq: int,
        until: Instant | None = None,
        bell: str | None = None,
    ) -> Awaitable[bool]:
        """Park the run until it is woken; False if it was woken since ``wake_seq`` was read.

        ``bell``: what wakes it in the engine that executes it, unless that is a worker of the store.
        """
        ...

    def dispatch(
        self, carrier: str, targets: Sequence[str], limit: int
    ) -> Awaitable[tuple[list[Dispatch], int | None]]:
        """Return ready runs of another engine and turns of no engine yet, the oldest first, to be sent to it.

        They stay queued, and are returned again after a pause, which grows, until their engine takes them. The second
        value is the microseconds until the next run is due.
        """
        ...

    def take(
        self, runs: Sequence[int], worker: WorkerId, token: str
    ) -> Awaitable[dict[int, Taken]]:
        """Own runs for attempts of their engine, whoever owned them before; runs that have ended are left out.

        The token makes a repetition return the same fences. Raises LeaseLost if worker is not a member.
        """
        ...

    def unpark(self, fence: Fence, worker: WorkerId) -> Awaitable[int]:
        """Execute a run on that the attempt with this fence had parked; return its ``wake_seq``."""
        ...

    def note_invocation(self, fence: Fence, invocation: str) -> Awaitable[None]:
        """Write what a blocked run is at its engine, as its bell: if it is ended by force, the engine must end it too."""
        ...

    def ended_elsewhere(
        self, targets: Sequence[str], limit: int
    ) -> Awaitable[list[tuple[int, str]]]:
        """Return settled runs that were parked or blocked at their engine, and their bells; ``forget_bell`` removes one."""
        ...

    def forget_bell(self, run: int) -> Awaitable[None]:
        """Note that the engine was told that a run has ended."""
        ...

    def block(self, fence: Fence, reason: str) -> Awaitable[None]:
        """Block the run with a reason. It keeps its lane."""
        ...

    def postpone(self, fence: Fence, refusal: str | None) -> Awaitable[None]:
        """Give up a run after an error of the store; it is ready again after a pause.

        ``refusal`` is the error of the store: claims that end with one, without progress, are counted, with longer
        pauses, and the last one blocks the run. None: the store could not be reached, and the claim does not count.
        """
        ...

    def retry(self, run: int, token: str) -> Awaitable[bool]:
        """Make a blocked run ready again; False if it is not blocked."""
        ...

    def begin_trials(
        self, targets: Sequence[str], codes: Sequence[str], after: int, limit: int
    ) -> Awaitable[list[RunView]]:
        """Count a try of blocked processes whose reason has one of the codes, the oldest after a run first; return them.

        Those with several tries that were not ended are left out: their replay may kill workers.
        """
        ...

    def end_trials(self, runs: Sequence[int]) -> Awaitable[None]:
        """Forget the tries of processes that are still blocked."""
        ...

    def get(self, scope: ExecutionScope) -> Awaitable[RunView | None]:
        """Return the run of scope."""
        ...

    def next_due(self, targets: Sequence[str]) -> Awaitable[tuple[int | None, bool]]:
        """Return the microseconds until the next run is due, and whether a suspect is ready."""
        ...

    def owned_by(self, worker: WorkerId) -> Awaitable[list[Fence]]:
        """Return the runs that a worker owns."""
        ...

    def wake_seqs(self, runs: Sequence[int]) -> Awaitable[dict[int, tuple[int, int]]]:
        """Return the wake-ups of runs, and the tokens of their current fences."""
        ...


class Workers(Protocol):
    """Workers and their leases."""

    def join(self, worker: WorkerId, ttl: int, targets: Sequence[str] = ()) -> Awaitable[None]:
        """Take the lock of the worker, which is released with this process, and a lease of ttl microseconds."""
        ...

    def beat(self, worker: WorkerId, ttl: int) -> Awaitable[bool]:
        """Renew the lease; False if this worker was taken for dead."""
        ...

    def has_any(self) -> Awaitable[bool]:
        """Return whether a live worker can execute anything; a client registers no targets."""
        ...

    def leave(self, worker: WorkerId) -> Awaitable[None]:
        """Give up the lock, the lease and every run of the worker."""
        ...

    def bury_the_dead(self, me: WorkerId) -> Awaitable[list[WorkerId]]:
        """Make the runs of workers that are dead or whose lease has expired ready again; return those workers."""
        ...


class Processes(Protocol):
    """The process registry."""

    durability: DurabilityTier

    def start(
        self, command: StartProcess, worker: WorkerId | None = None
    ) -> Awaitable[LeasedStart | None]:
        """Start a process, once; worker owns it at once if one is given and it can run now."""
        ...

    def perform(self, command: ProcessCommand, asker: str | None = None) -> Awaitable[Any]:
        """Do what command asks; ``asker`` is the process, or the turn, that asks.

        Raises ProcessNotVisible if the command names a session that has no access to the process.
        """
        ...

    def perform_for(
        self,
        fence: Fence,
        entry: JournalEntry,
        command: ProcessCommand,
        wrap: Wrap,
        notes: Sequence[JournalEntry] = (),
    ) -> Awaitable[JournalEntry]:
        """Perform a command as an effect of a run, and record it, in one transaction."""
        ...

    def watch(
        self,
        fence: Fence,
        entry: JournalEntry,
        command: AwaitProcess,
        wrap: Wrap,
        notes: Sequence[JournalEntry] = (),
    ) -> Awaitable[JournalEntry]:
        """Open a wait for a process as an effect of a run, or close it if the process has ended."""
        ...

    def take_signal(
        self,
        fence: Fence,
        entry: JournalEntry,
        name: str,
        timeout: int | None,
        wrap: Wrap,
        notes: Sequence[JournalEntry] = (),
    ) -> Awaitable[tuple[JournalEntry, Instant]]:
        """Take the oldest signal of a name, or open a wait for one, or close a wait whose time is over."""
        ...

    def observe(self, process_ids: Sequence[str]) -> Awaitable[dict[str, Output | None]]:
        """Note that a listener waits for the ends of processes.

        Returns those that are observed now or have ended, with their outputs; call it again for the others.
        """
        ...

    def settle(self, fence: Fence, number: int, output: Output) -> Awaitable[None]:
        """End a process and its run."""
        ...

    def continue_as(
        self, fence: Fence, registration: Registration, *, cancelled: bool = False
    ) -> Awaitable[None]:
        """Settle the run and continue with a new one, under the same process and log."""
        ...

    def fork(
        self, process_id: str, registration: Registration, keys: Sequence[str]
    ) -> Awaitable[None]:
        """Start a process with recorded effects of another one."""
        ...

    def get(self, process_id: str) -> Awaitable[ProcessRecord | None]:
        """Return a process."""
        ...

    def resume(self, runs: Sequence[int]) -> Awaitable[dict[int, Resumed]]:
        """Return the input for continuing runs, by run."""
        ...

    def look(self, process_id: str) -> Awaitable[tuple[bool, set[str]]]:
        """Return whether a process has a cancel request, and the names of signals that it has not received."""
        ...

    def unreceived(self, process_id: str) -> Awaitable[list[ProcessEvent]]:
        """Return the signals that a process has not received, the oldest first."""
        ...

    def cancel_reason(self, process_id: str) -> Awaitable[str | None]:
        """Return the reason of the cancel request of a process."""
        ...

    def view(self, process_id: str) -> Awaitable[ProcessView | None]:
        """Return the view of a process."""
        ...

    def listed(self, wanted: ProcessFilter, limit: int) -> Awaitable[list[ProcessView]]:
        """Return the views of processes, the newest first."""
        ...

    def signal_waits(self, process_id: str | None = None) -> Awaitable[list[SignalWait]]:
        """Return the open waits for signals, the oldest first."""
        ...

    def known(self, process_ids: Sequence[str]) -> Awaitable[set[str]]:
        """Return the ids that exist."""
        ...

    def outputs(self, process_ids: Sequence[str]) -> Awaitable[dict[str, Output]]:
        """Return the outputs of the processes that have ended."""
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
        """Add a subscription, or replace the one with its key."""
        ...

    def listed(self, session_id: str | None = None) -> Awaitable[list[SubscriptionView]]:
        """Return the subscriptions, the oldest first."""
        ...

    def cancel(self, key: str) -> Awaitable[bool]:
        """End a subscription; False if there is none."""
        ...

    def cancel_owned(self, key: str, session_id: str | None) -> Awaitable[bool]:
        """End a subscription of a session, or of no session (None); False if there is none with the key."""
        ...

    def emit(
        self, occurrence: Occurrence, upgrade: Upgrade = as_registered
    ) -> Awaitable[list[Delivery]]:
        """Record an occurrence and start its processes, once, each as ``upgrade`` returns it; return the deliveries.

        ``upgrade`` may be called again if the transaction is repeated.
        """
        ...


class Envs(Protocol):
    """Captured environments, stored under the hashes of their contents."""

    durability: DurabilityTier

    def put(self, ref: str, body: bytes) -> Awaitable[None]:
        """Store an environment under its hash."""
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
        """Call listener with a topic (blank: anything may have changed) after changes; return a function that stops it.

        Notifications may be lost: a listener that depends on changes polls too.
        """
        ...

    async def close(self) -> None:
        """Finish the operations that were submitted, then close."""
        ...
