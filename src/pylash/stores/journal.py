"""The journal: what every effect of a run returned, recorded once.

Rule 1. A record is one insert that locks the run's row and compares the fence in the same
        statement. A plain EXISTS would let a stale owner's insert slip past a claim.
Rule 2. The first record of a key stands; whoever comes later reads it.
Rule 3. A sleep is its deadline and a wait is its wait: their ends are not written again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Final

from pylash.durable import (
    SECOND,
    SETTLED,
    Attached,
    Cancelled,
    Clock,
    Entropy,
    ExecutionScope,
    Fence,
    Instant,
    JournalEntry,
    RunState,
    WorkerId,
    first_run_id,
    scope_name,
    scope_text,
    scope_type,
)
from pylash.stores.carried import LOADED_BYTES, carried_of
from pylash.stores.numbers import DrawsNumbers
from pylash.stores.sql import (
    MAX_REPEATS,
    Again,
    Bulk,
    Driver,
    Notify,
    Operation,
    Port,
    Rows,
    Statement,
    Steps,
    gave_up,
    operation,
)
from pylash.values import LeaseHeld, LeaseLost, check_size, write

HEAVY_BYTES: Final = 64 * 1024
"""Outcomes over this size are written by themselves, and never on the event loop."""

INLINE_BYTES: Final = 1024 * 1024
"""Outcomes over this size are stored by reference."""

MAX_RECORDS: Final = 4
"""How many records, one in another, may be around the payload of an outcome."""

SKEW: Final = 60 * SECOND
"""How far the clocks of workers may be apart before pruning waits for the difference."""

_FIND_RUN = """
select id, fence, owner, settled,
       case when lane is not null and state = 'queued' and at is null then 1 end, state, {now}
from pylash_runs where scope = ? {update}"""

# A statement of its own: one that had to wait for the run would see the workers as they were before it did.
_IS_HELD = "select 1 from pylash_workers where id = ? and expires > {now}"

_MEMBER = "select 1 from pylash_workers where id = ? {share}"

_ADD_RUN = """
insert into pylash_runs(id, scope, kind, target, state, owner, fence, attempts, created)
select ?, ?, ?, '', 'running', id, 1, 1, {now} from pylash_workers where id = ? {share}
on conflict do nothing returning created"""

_TAKE_RUN = """
update pylash_runs set state = 'running', owner = ?, token = null, fence = fence + 1,
  attempts = attempts + 1, at = null where id = ?"""

# What the run itself recorded of a wait (that it was cancelled) counts more than how the wait ended.
_LOADED = f"""
e.key, e.kind, e.hash, null,
case when length(coalesce(e.outcome, w.terminal)) <= {LOADED_BYTES}
     then coalesce(e.outcome, w.terminal) end,
case when e.attachment is not null then {INLINE_BYTES}
     else coalesce(length(coalesce(e.outcome, w.terminal)), 0) end,
e.due, e.wait, e.started, e.ended, e.label"""

_LOAD = f"""
select {_LOADED}
from pylash_effects e left join pylash_waits w on w.id = e.wait where e.run = ?"""

_LOAD_MANY = f"""
select e.run, {_LOADED}
from pylash_effects e left join pylash_waits w on w.id = e.wait where e.run in ({{bigints}})"""

EFFECT_COLUMNS = "run, key, kind, hash, command, outcome, attachment, due, started, ended, label"

RECORD_EFFECT = f"""
insert into pylash_effects({EFFECT_COLUMNS})
select id, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? from pylash_runs where id = ? and fence = ? {{share}}
on conflict do nothing"""

# Rows of other runs are locked in the order of their ids, as everywhere.
_RECORD_MANY = f"""
insert into pylash_effects({EFFECT_COLUMNS})
select x.run, x.key, x.kind, x.hash, x.command, x.outcome, x.attachment, x.due, x.started, x.ended, x.label
from unnest(?::text[], ?::text[], ?::bytea[], ?::bytea[], ?::bytea[], ?::text[], ?::bigint[], ?::bigint[],
            ?::bigint[], ?::text[], ?::bigint[], ?::bigint[])
     as x(key, kind, hash, command, outcome, attachment, due, started, ended, label, run, fence)
join pylash_runs r on r.id = x.run and r.fence = x.fence order by r.id for share of r
on conflict do nothing returning run, key"""

_ATTACH_BODY = "insert into pylash_attachments(digest, body) values (?, ?) on conflict do nothing"

_FENCE = "select 1 from pylash_runs where id = ? and fence = ? {share}"

_OWN = "select 1 from pylash_runs where id = ? and fence = ? {update}"

_READ = """
select e.key, e.kind, e.hash, e.command, coalesce(e.outcome, w.terminal, a.body),
       coalesce(length(coalesce(e.outcome, w.terminal, a.body)), 0), e.due, e.wait, e.started, e.ended, e.label
from pylash_effects e left join pylash_waits w on w.id = e.wait
left join pylash_attachments a on a.digest = e.attachment where e.run = ? and e.key = ?"""

_SLEEP = """
insert into pylash_effects(run, key, kind, hash, command, due, started, label)
select id, ?, ?, ?, ?, {now} + ?, ?, ? from pylash_runs where id = ? and fence = ? {share}
on conflict do nothing"""

_OPEN = """
insert into pylash_effects(run, key, kind, hash, command, wait, due, started, label)
values (?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing"""

_END = """
update pylash_effects set outcome = ?, ended = {now} where run = ? and key = ? and outcome is null"""

_CLOSE = """
update pylash_effects set outcome = ?, ended = ? where run = ? and key = ? and outcome is null"""

_RELEASE = """
update pylash_runs set state = 'queued', owner = null, token = null, attempts = attempts - 1,
  at = case when target = '' then null else {now} end
where id = ? and fence = ? and state = 'running'"""

_NOW = "select {now}"

_LOCK_WAIT = "select terminal from pylash_waits where id = ? {update}"

_CANCEL_WAIT = "update pylash_waits set terminal = ?, resolved = {now} where id = ?"

# The next runs that have effects, by jumps along the index over them, and whether each ended long ago.
_NEXT_RUNS = """
with recursive x(run) as (
  select min(run) from pylash_effects where run > ?
  union all select (select min(e.run) from pylash_effects e where e.run > x.run) from x where x.run < ?)
select x.run, (select r.settled <= ? from pylash_runs r where r.id = x.run)
from x where x.run is not null limit ?"""

_FORGET = "delete from pylash_effects where run in ({bigints})"

_TIMELINE = """
select e.key, e.kind, e.hash, null, substr(coalesce(e.outcome, w.terminal), 1, 4096),
       coalesce(length(coalesce(e.outcome, w.terminal, a.body)), 0), e.due, e.wait, e.started,
       coalesce(e.ended, w.resolved), e.label
from pylash_effects e left join pylash_waits w on w.id = e.wait
left join pylash_attachments a on a.digest = e.attachment where e.run = ? order by e.started, e.key"""


class SqlJournal(Port, DrawsNumbers):
    """The journal in SQL."""

    def __init__(self, driver: Driver, clock: Clock, entropy: Entropy) -> None:
        super().__init__(driver)
        self._clock = clock
        self._entropy = entropy
        self._pruned_to = 0

    async def attach(self, scope: ExecutionScope, worker: WorkerId) -> Attached:
        """Own the run of scope and return its journal."""
        # More than once only if the number that was drawn is taken, or the run was deleted meanwhile.
        for _ in range(MAX_REPEATS):
            attached = await self._start(scope, worker) or await self._resume(scope, worker)
            if attached is not None:
                return attached
        raise gave_up(f"Attaching {scope_name(scope)}")

    @operation(bare=True)
    def _start(self, scope: ExecutionScope, worker: WorkerId) -> Steps[Attached | None]:
        """Make the run of scope, ours from the first moment, unless there is one."""
        run = self._draw()
        row = (run, scope_text(scope), scope_type(scope), worker)
        added = (yield Statement(_ADD_RUN, row)).rows
        return Attached(Fence(run, 1, scope), Instant(added[0][0])) if added else None

    @operation()
    def _resume(self, scope: ExecutionScope, worker: WorkerId) -> Steps[Attached | None]:
        """Own the run of scope, if it is there, and load its journal."""
        if not (yield from is_member(worker)):
            raise LeaseLost(scope_name(scope))
        found = (yield Statement(_FIND_RUN, (scope_text(scope),))).rows
        if not found:
            return None
        run, token, owner, settled, queued, state, now = found[0]
        if owner not in (None, worker) and (yield Statement(_IS_HELD, (owner,))).rows:
            raise LeaseHeld(scope_name(scope), owner)
        if state == RunState.BLOCKED:
            raise LeaseHeld(scope_name(scope), "of whoever retries it: it is blocked")
        if queued:
            raise LeaseHeld(scope_name(scope), "of the run before it in its lane")
        if settled is not None:
            token = SETTLED
        elif owner != worker:
            token += (yield Statement(_TAKE_RUN, (worker, run))).changed
        rows = (yield Statement(_LOAD, (run,))).rows
        entries = {row[0]: JournalEntry(*row) for row in rows}
        return Attached(Fence(run, token, scope), Instant(now), entries)

    @operation()
    def release(self, fence: Fence) -> Steps[None]:
        """Give the run up."""
        if (yield Statement(_RELEASE, (fence.run, fence.token))).changed:
            yield Notify("runs")

    def record(self, fence: Fence, entry: JournalEntry) -> Awaitable[JournalEntry]:
        """Record entry; return what stands under its key."""
        size = len(entry.outcome or b"")
        check_size(entry.outcome or b"", MAX_RECORDS)
        row = effect_row(fence, entry)
        steps = partial(_record, fence, entry, row)
        if size > HEAVY_BYTES:
            bare = size <= INLINE_BYTES
            return self.driver.run(Operation("record", steps, bare=bare, heavy=True))
        bulk = Bulk(RECORD_EFFECT, _RECORD_MANY, row, (fence.run, entry.key), entry)
        return self.driver.run(Operation("record", steps, bare=True, bulk=bulk))

    @operation(bare=True)
    def begin_sleep(
        self, fence: Fence, entry: JournalEntry, duration: int
    ) -> Steps[tuple[JournalEntry, Instant]]:
        """Record when the sleep ends."""
        what = (
            entry.key,
            entry.kind,
            entry.hash,
            entry.command,
            duration,
            entry.started,
            entry.label,
        )
        yield Statement(_SLEEP, (*what, fence.run, fence.token))
        # An insert that changed nothing found its key taken, or the fence stale.
        stands = yield from standing(fence, entry.key)
        now = (yield Statement(_NOW)).rows[0][0]
        return stands, Instant(now)

    @operation()
    def close(self, fence: Fence, entry: JournalEntry) -> Steps[JournalEntry]:
        """Give an open effect its outcome."""
        yield from fenced(fence)
        yield Statement(_CLOSE, (entry.outcome, entry.ended, fence.run, entry.key))
        return (yield from standing(fence, entry.key))

    @operation()
    def record_all(self, fence: Fence, entries: Sequence[JournalEntry]) -> Steps[None]:
        """Record entries together; those whose key is taken stay as they are."""
        yield from fenced(fence)
        for entry in entries:
            yield Statement(RECORD_EFFECT, effect_row(fence, entry))

    @operation()
    def deliver(
        self, fence: Fence, decisions: Sequence[JournalEntry], cancelled: Sequence[JournalEntry]
    ) -> Steps[set[str]]:
        """Record decisions, and open effects as cancelled; return the keys that are cancelled now.

        An effect that has an outcome keeps it, and is not cancelled.
        """
        yield from fenced(fence, alone=True)
        delivered = set()
        for entry in decisions:
            yield Statement(RECORD_EFFECT, effect_row(fence, entry))
        for entry in sorted(cancelled, key=lambda entry: entry.wait or ""):
            ended = entry.wait is not None and (yield from _has_ended(entry.wait))
            if not ended and not (yield Statement(RECORD_EFFECT, effect_row(fence, entry))).changed:
                closing = (entry.outcome, entry.ended, fence.run, entry.key)
                yield Statement(_CLOSE, closing)
            # A wait that has ended may be one that we cancelled; the answer was lost.
            stands = yield from standing(fence, entry.key)
            if stands.outcome == entry.outcome:
                delivered.add(entry.key)
        return delivered

    async def prune(self, age: int, limit: int) -> int:
        """Forget the effects of some runs that ended longer ago than age; return how many runs.

        Calls that follow each other go on where the last one stopped, until one finds fewer than limit.
        """
        runs, self._pruned_to = await self._old(age, limit, self._pruned_to)
        if runs:
            await self._forget(runs)
        return len(runs)

    @operation(read_only=True)
    def _old(self, age: int, limit: int, after: int) -> Steps[tuple[list[int], int]]:
        """Return the next runs to forget, and behind which run to go on: 0 if there are no more.

        Ids grow with time: whoever began after the age cannot have ended before it. Behind the clocks of other
        machines a run is forgotten that much later.
        """
        ended = (yield Statement(_NOW)).rows[0][0] - age
        begun = first_run_id(ended + SKEW)
        runs: list[int] = []
        while after < begun and len(runs) < limit:
            rows = (yield Statement(_NEXT_RUNS, (after, begun, ended, limit))).rows
            after = rows[-1][0] if rows else begun
            for run, is_old in rows:
                if is_old and len(runs) == limit:
                    return runs, runs[-1]
                if is_old:
                    runs.append(run)
        return runs, after if after < begun else 0

    @operation()
    def _forget(self, runs: Sequence[int]) -> Steps[None]:
        yield Statement(_FORGET, (list(runs),))

    @operation(read_only=True)
    def timeline(self, run: int) -> Steps[list[JournalEntry]]:
        """Return every effect of a run in the order of their beginnings, with small outcomes."""
        entries = [JournalEntry(*row) for row in (yield Statement(_TIMELINE, (run,))).rows]
        known = {entry.key for entry in entries}
        carried = yield from carried_of(run)
        entries += [entry for entry in carried if entry.key not in known]
        return sorted(entries, key=lambda entry: (entry.started, entry.key))

    @operation(read_only=True)
    def entry(self, run: int, key: str) -> Steps[JournalEntry | None]:
        """Return a whole entry."""
        rows = (yield Statement(_READ, (run, key))).rows
        if rows:
            return JournalEntry(*rows[0])
        carried = yield from carried_of(run)
        return next((entry for entry in carried if entry.key == key), None)


def effect_row(fence: Fence, entry: JournalEntry) -> tuple[Any, ...]:
    """Return entry as the parameters of ``RECORD_EFFECT``: a large outcome becomes a reference."""
    outcome = entry.outcome
    attachment: str | None = None
    if outcome is not None and len(outcome) > INLINE_BYTES:
        attachment = hashlib.sha256(outcome).hexdigest()
        outcome = None
    return (
        entry.key,
        entry.kind,
        entry.hash,
        entry.command,
        outcome,
        attachment,
        entry.due,
        entry.started,
        entry.ended,
        entry.label,
        fence.run,
        fence.token,
    )


def open_effect(
    fence: Fence, entry: JournalEntry, wait: str, due: int | None = None
) -> Steps[None]:
    """Record that an effect of a run that is locked began to wait."""
    row = (fence.run, entry.key, entry.kind, entry.hash, entry.command, wait, due)
    yield Statement(_OPEN, (*row, entry.started, entry.label))


def close_effect(fence: Fence, key: str, outcome: bytes) -> Steps[None]:
    """Give an effect that waits its outcome, now."""
    yield Statement(_END, (outcome, fence.run, key))


def is_member(worker: WorkerId) -> Steps[bool]:
    """Return whether a worker may take runs; its row is locked against those who would give it up."""
    return bool((yield Statement(_MEMBER, (worker,))).rows)


def keep_body(digest: str, body: bytes) -> Steps[None]:
    """Keep bytes under their hash."""
    yield Statement(_ATTACH_BODY, (digest, body))


def _record(fence: Fence, entry: JournalEntry, row: tuple[Any, ...]) -> Steps[JournalEntry]:
    if row[5] is not None:
        yield from keep_body(row[5], entry.outcome or b"")
    written: Rows = yield Statement(RECORD_EFFECT, row)
    if written.changed:
        return entry
    return (yield from standing(fence, entry.key))


def fenced(fence: Fence, *, alone: bool = False) -> Steps[None]:
    """Lock the run's row against a claim (``alone``: against everyone), or refuse a stale fence."""
    if not (yield Statement(_OWN if alone else _FENCE, (fence.run, fence.token))).rows:
        raise LeaseLost(fence.name)


def standing(fence: Fence, key: str) -> Steps[JournalEntry]:
    """Return the entry that holds key, or refuse a stale fence."""
    yield from fenced(fence)
    known = yield from recorded(fence, key)
    if known is None:
        raise Again
    return known


def recorded(fence: Fence, key: str) -> Steps[JournalEntry | None]:
    """Return the entry that holds key, if there is one."""
    rows = (yield Statement(_READ, (fence.run, key))).rows
    return JournalEntry(*rows[0]) if rows else None


def journals_of(runs: Sequence[int]) -> Steps[dict[int, dict[str, JournalEntry]]]:
    """Return the journals of runs."""
    journals: dict[int, dict[str, JournalEntry]] = {run: {} for run in runs}
    for run, *row in (yield Statement(_LOAD_MANY, (list(runs),))).rows:
        journals[run][row[0]] = JournalEntry(*row)
    return journals


def _has_ended(wait: str) -> Steps[bool]:
    """End a wait as cancelled unless it has ended; the waits of signals and children have no row."""
    rows = (yield Statement(_LOCK_WAIT, (wait,))).rows
    if not rows:
        return False
    if rows[0][0] is None:
        yield Statement(_CANCEL_WAIT, (write(Cancelled()), wait))
        yield Notify(f"wait:{wait}")
    return rows[0][0] is not None
