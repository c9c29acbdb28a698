"""The journal: the outcome of every effect of a run, recorded once (``tables.effects``).

A sleep is recorded with its end time and a wait with the id of its wait: their ends are not written to the journal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

from pylash.durable.effects import EffectKind
from pylash.durable.ports import Clock, Entropy
from pylash.durable.runs import (
    SECOND,
    SETTLED,
    Attached,
    Fence,
    Instant,
    JournalEntry,
    RunState,
    WorkerId,
    first_run_id,
)
from pylash.durable.scopes import ExecutionScope, ProcessScope, scope_name, scope_text, scope_type
from pylash.stores.operation import (
    MAX_REPEATS,
    Bulk,
    Driver,
    Operation,
    Statement,
    Steps,
    operation,
    store_time,
    too_many_conflicts,
)
from pylash.stores.ports.numbers import RunPort
from pylash.stores.tables import effects, runs
from pylash.stores.tables.packed_effects import LOADED_BYTES, effects_of_turn
from pylash.stores.tables.waits import cancel_wait
from pylash.stores.tables.workers import is_member
from pylash.values.canonical import check_size
from pylash.values.errors import LeaseHeld, LeaseLost

HEAVY_BYTES: Final = 64 * 1024
"""Outcomes over this size are not written in batches."""

MAX_RECORDS: Final = 4
"""How many levels of records may be around the payload of an outcome."""

SKEW: Final = 60 * SECOND
"""The difference between the clocks of workers that does not delay pruning."""

_FIND_RUN = """
select id, fence, owner, settled,
       case when lane is not null and state = 'queued' and at is null then 1 end, state, {now}
from pylash_runs where scope = ? {update}"""

# A separate statement: a statement that waited for the lock of the run would see the workers as of its start.
_IS_HELD = "select 1 from pylash_workers where id = ? and expires > {now}"

# An outcome that the run recorded for a wait (a cancel) takes precedence over the end of the wait.
_LOAD = f"""
select e.run, e.key, e.kind, e.hash, null,
       case when length(coalesce(e.outcome, w.terminal)) <= {LOADED_BYTES}
            then coalesce(e.outcome, w.terminal) end,
       case when e.attachment is not null then {effects.INLINE_BYTES}
            else coalesce(length(coalesce(e.outcome, w.terminal)), 0) end,
       e.due, e.wait, e.started, e.ended, e.label
from pylash_effects e left join pylash_waits w on w.id = e.wait where e.run in ({{bigints}})"""

# The next runs that have effects, by an index skip scan, and whether each ended before a time.
_NEXT_RUNS = """
with recursive x(run) as (
  select min(run) from pylash_effects where run > ?
  union all select (select min(e.run) from pylash_effects e where e.run > x.run) from x where x.run < ?)
select x.run, (select r.settled <= ? from pylash_runs r where r.id = x.run)
from x where x.run is not null limit ?"""

_TIMELINE = """
select e.key, e.kind, e.hash, null, substr(coalesce(e.outcome, w.terminal), 1, 4096),
       coalesce(length(coalesce(e.outcome, w.terminal, a.body)), 0), e.due, e.wait, e.started,
       coalesce(e.ended, w.resolved), e.label
from pylash_effects e left join pylash_waits w on w.id = e.wait
left join pylash_attachments a on a.digest = e.attachment where e.run = ? order by e.started, e.key"""


class SqlJournal(RunPort):
    """The journal in SQL."""

    def __init__(self, driver: Driver, clock: Clock, entropy: Entropy) -> None:
        super().__init__(driver, clock, entropy)
        self._pruned_to = 0  # the next call of prune continues after this run

    async def attach(self, scope: ExecutionScope, worker: WorkerId) -> Attached:
        """Own the run of scope and return its journal."""
        # Repeated only if the number is taken, or the run was deleted meanwhile.
        for _ in range(MAX_REPEATS):
            attached = await self._start(scope, worker) or await self._resume(scope, worker)
            if attached is not None:
                return attached
        raise too_many_conflicts(f"Attaching {scope_name(scope)}")

    @operation(bare=True)
    def _start(self, scope: ExecutionScope, worker: WorkerId) -> Steps[Attached | None]:
        """Create the run of scope, owned by worker, unless there is one."""
        run = self._draw()
        created = yield from runs.start_attached(run, scope_text(scope), scope_type(scope), worker)
        return None if created is None else Attached(Fence(run, 1, scope), created)

    @operation()
    def _resume(self, scope: ExecutionScope, worker: WorkerId) -> Steps[Attached | None]:
        """Own the run of scope, if there is one, and load its journal."""
        if not (yield from is_member(worker)):
            raise LeaseLost(scope_name(scope))
        found = (yield Statement(_FIND_RUN, (scope_text(scope),))).rows
        if not found:
            return None
        run, token, owner, settled, queued, state, now = found[0]
        if owner not in (None, worker) and (yield Statement(_IS_HELD, (owner,))).rows:
            reason = f"worker {owner!r} is alive and owns it; wait for its end, or stop that worker"
            raise LeaseHeld(scope_name(scope), reason)
        if state == RunState.BLOCKED:
            raise LeaseHeld(scope_name(scope), "it is blocked; retry it first")
        if queued:
            raise LeaseHeld(scope_name(scope), "it waits for the run before it in its lane")
        if settled is not None:
            token = SETTLED
        elif owner != worker:
            yield from runs.attach(run, worker)
            token += 1
        journals = yield from journals_of([run])
        return Attached(Fence(run, token, scope), Instant(now), journals[run])

    @operation()
    def release(self, fence: Fence) -> Steps[None]:
        """Give the run up."""
        yield from runs.release(fence)

    def record(
        self, fence: Fence, entry: JournalEntry, notes: Sequence[JournalEntry] = ()
    ) -> Awaitable[JournalEntry]:
        """Record entry unless its key is taken; return the entry of the key."""
        size = len(entry.outcome or b"")
        check_size(entry.outcome or b"", MAX_RECORDS)
        steps, is_heavy = partial(_record, fence, entry, notes), size > HEAVY_BYTES
        if is_heavy or notes:
            bare = size <= effects.INLINE_BYTES and not notes
            return self.driver.run(Operation("record", steps, bare=bare, heavy=is_heavy))
        row, key = effects.effect_row(fence, entry), (fence.run, entry.key)
        bulk = Bulk(effects.RECORD_EFFECT, effects.RECORD_MANY, row, key, entry)
        return self.driver.run(Operation("record", steps, bare=True, bulk=bulk))

    def begin_sleep(
        self,
        fence: Fence,
        entry: JournalEntry,
        duration: int,
        notes: Sequence[JournalEntry] = (),
    ) -> Awaitable[tuple[JournalEntry, Instant]]:
        """Record when the sleep ends."""
        steps = partial(_begin_sleep, fence, entry, duration, notes)
        return self.driver.run(Operation("begin_sleep", steps, bare=not notes))

    @operation()
    def close(self, fence: Fence, entry: JournalEntry) -> Steps[JournalEntry]:
        """Give an open effect its outcome."""
        yield from runs.lock_fenced(fence)
        yield from effects.end_effect(fence, entry)
        return (yield from effects.read_effect(fence.run, entry.key))

    @operation()
    def deliver(
        self, fence: Fence, decisions: Sequence[JournalEntry], cancelled: Sequence[JournalEntry]
    ) -> Steps[set[str]]:
        """Record decisions and notes, and open effects as cancelled; return the keys that are cancelled now.

        An effect that has an outcome keeps it, and is not cancelled.
        """
        yield from runs.lock_fenced(fence, alone=True)
        for entry in decisions:
            yield from effects.record_effect(fence, entry)
        return (yield from _cancel_effects(fence, cancelled))

    @operation()
    def collect(self, run: int, entries: Sequence[JournalEntry]) -> Steps[None]:
        """Add what another engine has recorded for a run; what is there stays."""
        for locked, token in (yield from runs.lock_runs([run])).items():
            for entry in entries:
                yield from effects.record_effect(Fence(locked, token, ProcessScope("")), entry)

    @operation()
    def move(
        self,
        fence: Fence,
        entries: Sequence[JournalEntry],
        cancelled: Sequence[JournalEntry],
        moves: int,
    ) -> Steps[None]:
        """Add what another engine has recorded for a run, and make the run ready for a new journal there."""
        yield from runs.lock_fenced(fence, alone=True)
        for entry in entries:
            yield from effects.record_effect(fence, entry)
        yield from _cancel_effects(fence, cancelled)
        yield from effects.set_moves(fence.run, moves)
        yield from runs.release(fence)

    async def prune(self, age: int, limit: int) -> int:
        """Delete the effects of up to ``limit`` runs that ended longer ago than age; return how many runs.

        A call continues where the last one stopped; a call that returns less than ``limit`` has reached the end.
        """
        found, self._pruned_to = await self._old(age, limit, self._pruned_to)
        if found:
            await self._forget(found)
        return len(found)

    @operation(read_only=True)
    def _old(self, age: int, limit: int, after: int) -> Steps[tuple[list[int], int]]:
        """Return the next runs to prune, and the run after which to continue: 0 if there are no more.

        Ids grow with time, so a run that began later cannot have ended earlier. If the clocks of other machines are
        behind, their runs are pruned that much later.
        """
        ended = (yield from store_time()) - age
        begun = first_run_id(ended + SKEW)
        found: list[int] = []
        while after < begun and len(found) < limit:
            rows = (yield Statement(_NEXT_RUNS, (after, begun, ended, limit))).rows
            after = rows[-1][0] if rows else begun
            for run, is_old in rows:
                if is_old and len(found) == limit:
                    return found, found[-1]
                if is_old:
                    found.append(run)
        return found, after if after < begun else 0

    @operation()
    def _forget(self, ended: Sequence[int]) -> Steps[None]:
        yield Statement(effects.FORGET_EFFECTS, (list(ended),))

    @operation(read_only=True)
    def timeline(self, run: int) -> Steps[list[JournalEntry]]:
        """Return every effect of a run in the order of their starts; outcomes are truncated."""
        entries = [JournalEntry(*row) for row in (yield Statement(_TIMELINE, (run,))).rows]
        known = {entry.key for entry in entries}
        packed = yield from effects_of_turn(run)
        entries += [entry for entry in packed if entry.key not in known]
        return sorted(entries, key=lambda entry: (entry.started, entry.key))

    @operation(read_only=True)
    def entry(self, run: int, key: str) -> Steps[JournalEntry | None]:
        """Return an entry with its command and its whole outcome."""
        known = yield from effects.find_effect(run, key)
        if known is not None:
            return known
        packed = yield from effects_of_turn(run)
        return next((entry for entry in packed if entry.key == key), None)


def _cancel_effects(fence: Fence, cancelled: Sequence[JournalEntry]) -> Steps[set[str]]:
    """Record open effects of a locked run as cancelled; return the keys that are cancelled now."""
    delivered = set()
    waits = {}
    for entry in cancelled:
        waits[entry.key] = entry.wait
        if entry.wait is None and entry.kind == EffectKind.AWAIT_EVENT:
            # Its opening was under way when it was cancelled: it may be in the store by now.
            known = yield from effects.find_effect(fence.run, entry.key)
            waits[entry.key] = None if known is None else known.wait
    for entry in sorted(cancelled, key=lambda entry: waits[entry.key] or ""):
        wait = waits[entry.key]
        ended = wait is not None and not (yield from cancel_wait(fence, wait, entry.key))
        if not ended and not (yield from effects.record_effect(fence, entry)):
            yield from effects.end_effect(fence, entry)
        # A wait that has ended may have been cancelled by an earlier attempt, whose answer was lost.
        stands = yield from effects.read_effect(fence.run, entry.key)
        if stands.outcome == entry.outcome:
            delivered.add(entry.key)
    return delivered


def _record(
    fence: Fence, entry: JournalEntry, notes: Sequence[JournalEntry]
) -> Steps[JournalEntry]:
    yield from effects.record_notes(fence, notes)
    if (yield from effects.record_effect(fence, entry)):
        return entry
    yield from runs.lock_fenced(fence)
    return (yield from effects.read_effect(fence.run, entry.key))


def _begin_sleep(
    fence: Fence, entry: JournalEntry, duration: int, notes: Sequence[JournalEntry]
) -> Steps[tuple[JournalEntry, Instant]]:
    yield from effects.record_notes(fence, notes)
    yield from effects.record_sleep(fence, entry, duration)
    # If the insert changed nothing, the key is taken or the fence is stale.
    now = yield from runs.lock_fenced(fence)
    return (yield from effects.read_effect(fence.run, entry.key)), now


def journals_of(some: Sequence[int]) -> Steps[dict[int, dict[str, JournalEntry]]]:
    """Return the journals of some runs."""
    journals: dict[int, dict[str, JournalEntry]] = {run: {} for run in some}
    for run, *row in (yield Statement(_LOAD, (list(some),))).rows:
        journals[run][row[0]] = JournalEntry(*row)
    return journals
