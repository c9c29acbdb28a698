"""Runs in SQL: enqueue, claim, park, wake, settle.

Rule 1. ``at`` is when the scheduler must look: now for a ready run, the deadline for a parked one,
        null for all others. One index over it is the whole schedule.
Rule 2. A lane is taken where runs are enqueued and settled, under the lane row's lock; never by
        looking for other runs at a claim, where two claims would both see none.
Rule 3. Parking is a compare-and-set on ``wake_seq``. "Park unless something is ready" loses
        wake-ups that commit in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    new_run_id,
    scope_from_text,
    scope_text,
)
from pylash.stores.sql import Again, Driver, Notify, Port, Statement, Steps, operation
from pylash.values import LeaseLost

_VIEW = "id, scope, kind, target, lane, state, reason, at, wake_seq, owner, fence, attempts, input, result"

_GET = f"select {_VIEW} from pylash_runs where scope = ?"  # noqa: S608 - our own constants

_NOW = "select {now}"

_ADD = """
insert into pylash_runs(id, scope, kind, target, lane, lane_seq, state, at, input, created)
values (?, ?, ?, ?, ?, ?, 'queued', ?, ?, {now}) on conflict do nothing"""

# The update happens whether or not the lane is free: it locks the row and counts the run.
_JOIN_LANE = """
insert into pylash_lanes(lane, holder, last_seq) values (?, ?, 1)
on conflict (lane) do update set last_seq = pylash_lanes.last_seq + 1,
  holder = coalesce(pylash_lanes.holder, excluded.holder)
returning holder, last_seq"""

_CLAIMED = f"""
select {_VIEW} from pylash_runs where token = ? and owner = ? and state = 'running'"""  # noqa: S608 - our own constants

# A worker that others gave up claims nothing until it has joined again.
_MEMBER = "select 1 from pylash_workers where id = ? {share}"

_CLAIM = f"""
with ready as (select id from pylash_runs where at <= {{now}} and target in ({{texts}})
               and state in ('queued', 'waiting') order by at limit ? {{skip}})
update pylash_runs set state = 'running', owner = ?, token = ?, fence = fence + 1,
  attempts = attempts + 1, at = null
where id in (select id from ready)
returning {_VIEW}"""  # noqa: S608 - our own constants

_PARK = """
update pylash_runs set state = 'waiting', at = ?, owner = null, token = null, attempts = 0
where id = ? and fence = ? and wake_seq = ? and state = 'running'"""

_WAKE = """
update pylash_runs set wake_seq = wake_seq + 1,
  at = case when state = 'waiting' then {now} else at end,
  state = case when state = 'waiting' then 'queued' else state end
where id = ? and settled is null"""

_LOCK = "select lane, state, wake_seq from pylash_runs where id = ? and fence = ? {update}"

_SETTLED = "select 1 from pylash_runs where id = ? and token = ?"

_NEXT = """
select id from pylash_runs where lane = ? and state = 'queued' and at is null
order by lane_seq limit 1 {update}"""

_NEXT_UNLOCKED = """
select id from pylash_runs where lane = ? and state = 'queued' and at is null
order by lane_seq limit 1"""

_LOCK_LANE = "select holder from pylash_lanes where lane = ? {update}"

_HAND_OVER_LANE = "update pylash_lanes set holder = ? where lane = ?"

_SETTLE = """
update pylash_runs set state = ?, result = ?, settled = {now}, at = null, owner = null,
  fence = fence + 1, token = ? where id = ?"""

_READY = "update pylash_runs set at = {now} where id = ?"

_BLOCK = """
update pylash_runs set state = 'blocked', reason = ?, owner = null, at = null
where id = ? and fence = ?"""

_RETRY = """
update pylash_runs set state = 'queued', reason = null, at = {now}, attempts = 0
where id = ? and state = 'blocked'"""

_NEXT_DUE = "select min(at) - {now} from pylash_runs where at is not null"


class SqlRuns(Port):
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
        run_id = new_run_id(self._clock.now(), self._entropy)
        at, seq = run.at or now, None
        if run.lane is not None:
            holder, seq = (yield Statement(_JOIN_LANE, (run.lane, run_id))).rows[0]
            at = at if holder == run_id else None
        row = (run_id, text, run.kind, run.target, run.lane, seq, at, run.input)
        if not (yield Statement(_ADD, row)).changed:
            raise Again  # enqueued by another meanwhile: what we did to the lane is undone with us
        if at is not None:
            yield Notify("runs")
        return _view((yield Statement(_GET, (text,))).rows[0])

    @operation()
    def claim(
        self, worker: WorkerId, token: str, *, limit: int, targets: Sequence[str]
    ) -> Steps[list[Claim]]:
        """Claim ready runs."""
        if not (yield Statement(_MEMBER, (worker,))).rows:
            return []
        rows = (yield Statement(_CLAIMED, (token, worker))).rows
        if not rows:
            rows = (yield Statement(_CLAIM, (list(targets), limit, worker, token))).rows
        return [Claim(Fence(view.id, view.fence, view.scope), view) for view in map(_view, rows)]

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
        if not (yield Statement(_BLOCK, (reason, fence.run, fence.token))).changed:
            raise LeaseLost(fence.name)

    @operation()
    def retry(self, run: int) -> Steps[bool]:
        """Make a blocked run ready again."""
        changed = (yield Statement(_RETRY, (run,))).changed
        if changed:
            yield Notify("runs")
        return bool(changed)

    @operation(read_only=True)
    def get(self, scope: ExecutionScope) -> Steps[RunView | None]:
        """Return the run of scope."""
        rows = (yield Statement(_GET, (scope_text(scope),))).rows
        return _view(rows[0]) if rows else None

    @operation(read_only=True)
    def next_due(self) -> Steps[int | None]:
        """Return how long until the scheduler must look."""
        due: int | None = (yield Statement(_NEXT_DUE)).rows[0][0]
        return due


def wake_run(run: int) -> Steps[None]:
    """Raise the run's ``wake_seq`` and make it ready if it is parked."""
    yield Statement(_WAKE, (run,))
    yield Notify("runs")


def _locked(fence: Fence) -> Steps[tuple[Any, ...] | None]:
    rows = (yield Statement(_LOCK, (fence.run, fence.token))).rows
    return rows[0] if rows else None


def _pass_on(
    lane: str, fence: Fence, state: RunState, result: bytes | None, token: str
) -> Steps[None]:
    """Settle a run of a lane: the next run's row is locked before the lane's, as everywhere."""
    candidate = (yield Statement(_NEXT, (lane,))).rows
    yield Statement(_LOCK_LANE, (lane,))
    if (yield Statement(_NEXT_UNLOCKED, (lane,))).rows != candidate:
        raise Again
    following = candidate[0][0] if candidate else None
    yield Statement(_SETTLE, (state, result, token, fence.run))
    yield Statement(_HAND_OVER_LANE, (following, lane))
    if following is not None:
        yield Statement(_READY, (following,))
        yield Notify("runs")


def _view(row: tuple[Any, ...]) -> RunView:
    run_id, scope, kind, target, lane, state, *rest = row
    return RunView(run_id, scope_from_text(scope), kind, target, lane, RunState(state), *rest)
