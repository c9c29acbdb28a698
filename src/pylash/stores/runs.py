"""Runs in SQL: enqueue, claim, park, wake, settle.

Rule 1. ``at`` is when the scheduler must look: now for a ready run, the deadline for a parked one,
        null for all others. One index over it is the whole schedule.
Rule 2. A lane is taken where runs are enqueued and settled, under the lane row's lock; never by
        looking for other runs at a claim, where two claims would both see none.
Rule 3. Parking is a compare-and-set on ``wake_seq``. "Park unless something is ready" loses
        wake-ups that commit in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, Final

from pylash.durable import (
    Claim,
    Clock,
    Entropy,
    ExecutionScope,
    Fence,
    Instant,
    NewRun,
    RunState,
    RunView,
    WorkerId,
    scope_from_text,
    scope_text,
)
from pylash.stores.carried import RECORDED
from pylash.stores.journal import is_member
from pylash.stores.lanes import JOIN_LANE, LOCK_USED_LANE, NEXT_IN_LANE, hand_over
from pylash.stores.numbers import DrawsNumbers
from pylash.stores.sql import (
    Again,
    Driver,
    Notify,
    Operation,
    Port,
    Statement,
    Steps,
    operation,
)
from pylash.values import LeaseLost, StoreRefused, storable

_VIEW = "id, scope, kind, target, lane, state, reason, at, wake_seq, owner, fence, attempts, input, result"

_GET = f"select {_VIEW} from pylash_runs where scope = ?"

_NOW = "select {now}"

_ADD = """
insert into pylash_runs(id, scope, kind, target, lane, lane_seq, state, at, input, created)
values (?, ?, ?, ?, ?, ?, 'queued', ?, ?, {now}) on conflict do nothing"""

# The update happens whether or not the lane is free: it locks the row and counts the run.
_CLAIMED = f"""
select {_VIEW} from pylash_runs
where token = ? and owner = ? and state = 'running' and settled is null"""

# A worker that others gave up claims nothing until it has joined again.
_READY_RUNS = """
with ready as (select id from pylash_runs where at <= {now} and target in ({texts})
               and state in ('queued', 'waiting') and attempts < ? order by at limit ? {skip})"""

_SUSPECT_RUNS = _READY_RUNS.replace("attempts <", "attempts >=")

_THESE_RUNS = """
with ready as (select id from pylash_runs where id in ({bigints}) and at <= {now} and target in ({texts})
               and state in ('queued', 'waiting') and attempts < ? order by at {skip})"""

_THIS_RUN = """
with ready as (select id from pylash_runs where id = ? and at <= {now}
               and state in ('queued', 'waiting') {skip})"""

_TAKE = f"""
update pylash_runs set state = 'running', owner = ?, token = ?, fence = fence + 1,
  attempts = attempts + 1, at = null,
  seen = {RECORDED}
where id in (select id from ready)
returning {_VIEW}, slot, slot_limit"""

_CLAIM = _READY_RUNS + _TAKE

_CLAIM_SUSPECT = _SUSPECT_RUNS + _TAKE

_CLAIM_THIS = _THIS_RUN + _TAKE

_CLAIM_THESE = _THESE_RUNS + _TAKE

_READY = _READY_RUNS + " select id from ready"

_SUSPECT = _SUSPECT_RUNS + " select id from ready"

_BLOCK_READY = """
update pylash_runs set state = 'blocked', reason = ?, at = null, owner = null
where id = ? and state in ('queued', 'waiting') and settled is null returning scope"""

# The update locks the row of the key, and counts.
_LOCK_SLOT = """
insert into pylash_lanes(lane, last_seq) values (?, 1)
on conflict (lane) do update set last_seq = pylash_lanes.last_seq + 1 returning last_seq"""

_HOLDS_SLOT = "select 1 from pylash_slots where holder = ?"

_SLOTS_TAKEN = "select count(*) from pylash_slots where slot = ?"

_TAKE_SLOT = "insert into pylash_slots(slot, holder) values (?, ?)"

_HOLD = """
update pylash_runs set state = 'queued', owner = null, token = null, at = null,
  attempts = attempts - 1, slot = ?, slot_seq = ? where id = ?"""

_FREE_SLOT = "delete from pylash_slots where holder = ? returning slot"

_NEXT_HELD = """
select id from pylash_runs where slot = ? and slot_seq is not null and state = 'queued'
order by slot_seq limit 1"""

_PROMOTE = """
update pylash_runs set at = {now}, slot_seq = null
where id = ? and state = 'queued' and slot_seq is not null"""

_PARK = """
update pylash_runs set state = 'waiting', at = ?, owner = null, token = null, attempts = 0
where id = ? and fence = ? and wake_seq = ? and state = 'running'"""

_WAKE = """
update pylash_runs set wake_seq = wake_seq + 1,
  at = case when state = 'waiting' then {now} else at end,
  state = case when state = 'waiting' then 'queued' else state end
where id = ? and settled is null returning state, lane"""

_LOCK = "select lane, state, wake_seq from pylash_runs where id = ? and fence = ? {update}"

_SETTLED = "select 1 from pylash_runs where id = ? and token = ?"

_LOCK_NEXT = NEXT_IN_LANE + " {update}"

_SETTLE = """
update pylash_runs set state = ?, result = ?, settled = {now}, at = null, owner = null,
  fence = fence + 1, token = ? where id = ?"""

_BLOCK = """
update pylash_runs set state = 'blocked', reason = ?, owner = null, at = null
where id = ? and fence = ?"""

_LOCK_CLAIMED = f"""
select attempts, {RECORDED} <= seen from pylash_runs
where id = ? and fence = ? and state = 'running' {{update}}"""

_POSTPONE = """
update pylash_runs set state = 'queued', owner = null, token = null, attempts = ?,
  at = case when target = '' then null else {now} + ? end where id = ?"""

_RETRY = """
update pylash_runs set state = 'queued', reason = null, at = {now}, attempts = 0, token = ?
where id = ? and state = 'blocked'"""

_RETRIED = "select 1 from pylash_runs where id = ? and token = ?"

_NEXT_DUE = """
select at - {now} from pylash_runs where at is not null and target in ({texts})
  and state in ('queued', 'waiting') and attempts < ? order by at limit 1"""

_NEXT_SUSPECT = _NEXT_DUE.replace("attempts <", "attempts >=")

_OWNED = """
select id, fence, scope from pylash_runs
where owner = ? and state = 'running' and settled is null and target <> ''"""

_WAKE_SEQS = "select id, wake_seq, fence from pylash_runs where id in ({bigints})"

ALONE_AFTER: Final = 3
"""Claims without progress after which a run is executed alone on a worker."""


REFUSED_AFTER: Final = 3
"""Claims that the store ended by a refusal, without progress, after which a run is blocked.

Not more than ``ALONE_AFTER``: such a run is not to blame for crashes, and nobody waits for it.
"""

BACK_OFF: Final = 1_000_000
"""Microseconds until a run is ready again after trouble with the store; twice as many after each refusal."""

MAX_BACK_OFF: Final = 60_000_000

_BAD_ROW: Final = (StoreRefused, ValueError)
"""How a claim fails if one of its rows is refused by the database, or cannot be read by this code."""

SLOT_BYTES: Final = 512
"""Concurrency keys up to this size are stored as they are: they stand in two indexes, and in PostgreSQL
an entry of an index has at most 2,704 bytes."""


def slot_name(key: str) -> str:
    """Return a concurrency key as it is stored and indexed: a long one as its beginning and its hash."""
    body = key.encode()
    if len(body) <= SLOT_BYTES:
        return key
    return f"{key[:32]}~{hashlib.sha256(body).hexdigest()}"


class SqlRuns(Port, DrawsNumbers):
    """The runs in SQL."""

    def __init__(self, driver: Driver, clock: Clock, entropy: Entropy) -> None:
        super().__init__(driver)
        self._clock = clock
        self._entropy = entropy

    @operation()
    def enqueue(self, run: NewRun) -> Steps[RunView]:
        """Enqueue a run, once."""
        text = scope_text(run.scope)
        if known := (yield Statement(_GET, (text,))).rows:
            return _view(known[0])
        now = (yield Statement(_NOW)).rows[0][0]
        run_id = self._draw()
        at, seq = run.at or now, None
        if run.lane is not None:
            holder, seq = (yield Statement(JOIN_LANE, (run.lane, run_id))).rows[0]
            at = at if holder == run_id else None
        row = (run_id, text, run.kind, run.target, run.lane, seq, at, run.input)
        if not (yield Statement(_ADD, row)).changed:
            # Enqueued by another meanwhile, or the number is taken: what we did to the lane is undone with us.
            raise Again
        if at is not None:
            yield Notify("runs")
        return _view((yield Statement(_GET, (text,))).rows[0])

    async def claim(
        self,
        worker: WorkerId,
        token: str,
        *,
        limit: int,
        targets: Sequence[str],
        suspect: bool = False,
        again: bool = False,
        first: Sequence[int] = (),
    ) -> list[Claim]:
        """Claim ready runs, those of ``first`` before older ones, or one that may be to blame for crashes.

        A run that cannot be claimed is blocked with the reason, and stops no other.
        """
        sql = _CLAIM_SUSPECT if suspect else _CLAIM
        asked = (list(targets), ALONE_AFTER, limit)
        try:
            return await self._claim(sql, asked, worker, token, again=again, first=first)
        except _BAD_ROW:  # which of them it was shows when each is claimed alone
            claims: list[Claim] = []
        for run in await self._ready(_SUSPECT if suspect else _READY, asked):
            try:
                claims += await self._claim(_CLAIM_THIS, (run,), worker, token)
            except _BAD_ROW as error:
                await self._block_ready(run, f"unclaimable: {error}")
        return claims

    def _claim(
        self,
        sql: str,
        asked: tuple[Any, ...],
        worker: WorkerId,
        token: str,
        *,
        again: bool = False,
        first: Sequence[int] = (),
    ) -> Awaitable[list[Claim]]:
        tries = [again]

        def steps() -> Steps[list[Claim]]:
            repeated = any(tries)  # only then is it worth a look through all runs
            tries.append(True)
            if not (yield from is_member(worker)):
                return []
            rows = (yield Statement(_CLAIMED, (token, worker))).rows if repeated else []
            if not rows:
                taken = yield from _taken(sql, asked, (worker, token), first)
                rows = yield from _with_slots(taken)
            views = map(_view, rows)
            return [Claim(Fence(view.id, view.fence, view.scope), view) for view in views]

        return self.driver.run(Operation("claim", steps))

    @operation()
    def _ready(self, sql: str, asked: tuple[Any, ...]) -> Steps[list[int]]:
        return [run for (run,) in (yield Statement(sql, asked)).rows]

    @operation()
    def _block_ready(self, run: int, reason: str) -> Steps[None]:
        """Block a run that nobody could claim; a row that another holds is left alone."""
        for (scope,) in (yield Statement(_BLOCK_READY, (storable(reason), run))).rows:
            yield from release_slot(run)
            with suppress(ValueError):  # perhaps it is what cannot be read
                yield Notify(f"process:{scope_from_text(scope).id}")

    @operation()
    def park(self, fence: Fence, wake_seq: int, until: Instant | None = None) -> Steps[bool]:
        """Give the run up until it is woken."""
        known = yield from _locked(fence)
        if known is None:
            raise LeaseLost(fence.name)
        _, state, seen = known
        if state != RunState.RUNNING:  # parked by us already; the answer was lost
            return True
        if seen != wake_seq:
            return False
        yield Statement(_PARK, (until, fence.run, fence.token, wake_seq))
        yield from release_slot(fence.run)
        if until is not None:
            yield Notify("runs")
        return True

    @operation()
    def wake(self, run: int) -> Steps[None]:
        """Say that the run can make progress."""
        yield from wake_run(run)

    @operation()
    def settle(self, fence: Fence, state: RunState, result: bytes | None) -> Steps[None]:
        """End the run, and give its lane to the next one."""
        token = f"settled:{fence.token}"
        known = yield from _locked(fence)
        if known is None:
            if (yield Statement(_SETTLED, (fence.run, token))).rows:
                return  # done by us already; the answer was lost
            raise LeaseLost(fence.name)
        lane = known[0]
        if lane is not None:
            yield from _pass_on(lane, fence, state, result, token)
        else:
            yield Statement(_SETTLE, (state, result, token, fence.run))
        yield Notify(f"settled:{fence.run}")

    @operation()
    def block(self, fence: Fence, reason: str) -> Steps[None]:
        """Stop the run with a reason."""
        if not (yield Statement(_BLOCK, (storable(reason), fence.run, fence.token))).changed:
            raise LeaseLost(fence.name)
        yield from release_slot(fence.run)
        yield Notify(f"process:{fence.scope.id}")

    @operation()
    def postpone(self, fence: Fence, refusal: str | None) -> Steps[None]:
        """Give up a run that had trouble with the store; it is ready again after a pause."""
        rows = (yield Statement(_LOCK_CLAIMED, (fence.run, fence.token))).rows
        if not rows:
            return  # given up by us already (the answer was lost), or taken by another
        attempts, is_stuck = rows[0]
        if refusal is None:  # the claim does not count, as if the run had been released in order
            counted, pause = attempts - 1, BACK_OFF if is_stuck else 0
        else:
            counted = attempts if is_stuck else 1
            pause = min(BACK_OFF << (counted - 1), MAX_BACK_OFF)
        yield from release_slot(fence.run)
        if refusal is not None and counted >= REFUSED_AFTER:
            yield Statement(_BLOCK, (storable(refusal), fence.run, fence.token))
            yield Notify(f"process:{fence.scope.id}")
        else:
            yield Statement(_POSTPONE, (counted, pause, fence.run))
            yield Notify("runs")

    @operation()
    def retry(self, run: int, token: str) -> Steps[bool]:
        """Make a blocked run ready again."""
        if (yield Statement(_RETRY, (token, run))).changed:
            yield Notify("runs")
            return True
        return bool((yield Statement(_RETRIED, (run, token))).rows)

    @operation(read_only=True)
    def get(self, scope: ExecutionScope) -> Steps[RunView | None]:
        """Return the run of scope."""
        rows = (yield Statement(_GET, (scope_text(scope),))).rows
        return _view(rows[0]) if rows else None

    @operation(read_only=True)
    def next_due(self, targets: Sequence[str]) -> Steps[tuple[int | None, bool]]:
        """Return how long until the scheduler must look, and whether a suspect is ready."""
        due = (yield Statement(_NEXT_DUE, (list(targets), ALONE_AFTER))).rows
        suspect = (yield Statement(_NEXT_SUSPECT, (list(targets), ALONE_AFTER))).rows
        later = [row[0][0] for row in (due, suspect) if row and (row is due or row[0][0] > 0)]
        return min(later, default=None), bool(suspect) and suspect[0][0] <= 0

    @operation(read_only=True)
    def owned_by(self, worker: WorkerId) -> Steps[list[Fence]]:
        """Return the runs that a worker owns."""
        rows = (yield Statement(_OWNED, (worker,))).rows
        return [Fence(run, token, scope_from_text(scope)) for run, token, scope in rows]

    @operation(read_only=True)
    def wake_seqs(self, runs: Sequence[int]) -> Steps[dict[int, tuple[int, int]]]:
        """Return how often runs were woken, and the token of the fence they have now."""
        rows = (yield Statement(_WAKE_SEQS, (list(runs),))).rows
        return {row[0]: (row[1], row[2]) for row in rows}


def _taken(
    sql: str, asked: tuple[Any, ...], owner: tuple[WorkerId, str], first: Sequence[int]
) -> Steps[list[tuple[Any, ...]]]:
    """Claim the runs of ``first`` that are ready, and others up to the limit, which ends ``asked``."""
    rows: list[tuple[Any, ...]] = []
    if first:
        *known, limit = asked
        rows = (yield Statement(_CLAIM_THESE, (list(first), *known, *owner))).rows
        asked = (*known, limit - len(rows))
    return rows + (yield Statement(sql, (*asked, *owner))).rows


def wake_run(run: int) -> Steps[None]:
    """Raise the run's ``wake_seq`` and make it ready if it is parked."""
    for state, lane in (yield Statement(_WAKE, (run,))).rows:
        yield Notify(woken(run, state, lane))


def woken(run: int, state: str, lane: str | None) -> str:
    """Return the topic of a run that was woken: its own while it is live, else that of ready runs.

    Ready turns are named, so that workers can claim them before older runs.
    """
    if state == RunState.RUNNING:
        return f"wake:{run}"
    return "runs" if lane is None else f"runs:{run}"


def release_slot(run: int) -> Steps[None]:
    """Give up the slot of a run that stops executing, to the next run that is held for it."""
    for (slot,) in (yield Statement(_FREE_SLOT, (run,))).rows:
        yield Statement(_LOCK_SLOT, (f"slot:{slot}",))
        while following := (yield Statement(_NEXT_HELD, (slot,))).rows:
            if (yield Statement(_PROMOTE, following[0])).changed:  # else it was ended meanwhile
                yield Statement(_TAKE_SLOT, (slot, following[0][0]))
                yield Notify("runs")
                break


def _with_slots(rows: list[tuple[Any, ...]]) -> Steps[list[tuple[Any, ...]]]:
    """Return the claimed rows whose concurrency key has a slot for them; hold the others back."""
    claimed = []
    for row in sorted(rows, key=lambda row: (row[-2] or "", row[0])):  # the oldest first
        run, slot, limit = row[0], row[-2], row[-1]
        if slot is None or (yield from _has_slot(run, slot_name(slot), limit)):
            claimed.append(row[:-2])
    return claimed


def _has_slot(run: int, slot: str, limit: int) -> Steps[bool]:
    order = (yield Statement(_LOCK_SLOT, (f"slot:{slot}",))).rows[0][0]
    if (yield Statement(_HOLDS_SLOT, (run,))).rows:
        return True
    if (yield Statement(_SLOTS_TAKEN, (slot,))).rows[0][0] < limit:
        yield Statement(_TAKE_SLOT, (slot, run))
        return True
    yield Statement(_HOLD, (slot, order, run))
    return False


def _locked(fence: Fence) -> Steps[tuple[Any, ...] | None]:
    rows = (yield Statement(_LOCK, (fence.run, fence.token))).rows
    return rows[0] if rows else None


def _pass_on(
    lane: str, fence: Fence, state: RunState, result: bytes | None, token: str
) -> Steps[None]:
    """Settle a run of a lane: the next run's row is locked before the lane's, as everywhere."""
    candidate = (yield Statement(_LOCK_NEXT, (lane,))).rows
    yield Statement(LOCK_USED_LANE, (lane,))
    if (yield Statement(NEXT_IN_LANE, (lane,))).rows != candidate:
        raise Again
    yield Statement(_SETTLE, (state, result, token, fence.run))
    yield from hand_over(lane, candidate[0][0] if candidate else None)


def _view(row: tuple[Any, ...]) -> RunView:
    run_id, scope, kind, target, lane, state, *rest = row
    return RunView(run_id, scope_from_text(scope), kind, target, lane, RunState(state), *rest)
