"""Runs: every transition of a row of ``pylash_runs``, and the slots of concurrency keys.

This module owns every write to ``pylash_runs`` and ``pylash_slots``. A transition is a generator that operations
``yield from``; its docstring names what must hold before it. ``tables.bulk`` writes starts and ends of many processes
on PostgreSQL; it follows ``start_process`` and ``settle_process``.

Rule 1. ``at`` is the time from which a scheduler may claim the run: for a queued run, when it became ready or when its
        delay is over; for a parked run, when its first sleep, timeout or deadline ends. It is null if the run waits for wake-ups
        only, for its lane or its concurrency key, has no scheduler, or is running, blocked or settled. A settled run
        with a ``bell`` has one until its engine is told. One index over it is the whole schedule.
Rule 2. A run gets its lane when it is enqueued or when the run before it is settled, under the lock of the lane's
        row. A claim does not check for other runs of the lane: two concurrent claims would both see none.
Rule 3. Parking is a compare-and-set on ``wake_seq``. A check whether something is ready would miss wake-ups that
        commit after it.
Rule 4. ``fence`` is incremented whenever the owner may change: at claims, takeovers and ends.
Rule 5. ``token`` identifies the last transition, only for its repetition after a lost answer. A turn that ended with
        its session has ``forgotten``; a turn with a cancel request has ``cancel_reason``. Workers of schema 5 do not
        know these columns, so the token and the result that they read are written too (decision 0042).
Rule 6. Slots are those of concurrency keys here, not those of a worker. A run takes one at its claim, or when it is
        admitted after it was held. It keeps the slot while it is running, and if it is released, given up or taken
        over. The slot becomes free when the run is parked, postponed, blocked or settled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from pylash.durable.processes import carrier_target
from pylash.durable.runs import Fence, Instant, RunState, RunView, WorkerId
from pylash.durable.scopes import QueueDrainScope, TurnScope, scope_from_text, scope_text
from pylash.durable.sessions import TURN_TARGET, NewTurn, session_lane
from pylash.stores.operation import Again, Notify, Statement, Steps
from pylash.stores.tables.lanes import join_lane, lock_slot, set_holder
from pylash.stores.tables.packed_effects import RECORDED
from pylash.values.canonical import write, write_payload
from pylash.values.errors import LeaseLost
from pylash.values.names import storable

ALONE_AFTER: Final = 3
"""Claims without progress after which a run is executed alone on a worker."""

BLOCKED_AFTER: Final = 10
"""Claims without progress after which a run is blocked."""

FORGOTTEN: Final = "(coalesce(forgotten, 0) = 1 or coalesce(token, '') = 'deleted')"
"""A condition: the turn ended because its session was deleted, so its id is free. Schema 5 wrote only the token."""

SLOT_BYTES: Final = 512
"""Concurrency keys up to this size are stored as they are. They are in two indexes, and an index entry of
PostgreSQL has at most 2,704 bytes."""

Row = tuple[Any, ...]

VIEW = "id, scope, kind, target, lane, state, reason, at, wake_seq, owner, fence, attempts, input, result"

# --- enqueue, start leased ---

# Changes nothing if the scope or the number is taken; _IS_TAKEN checks which.
_ADD_PROCESS = """
insert into pylash_runs(id, scope, kind, target, state, at, owner, token, fence, attempts, slot, slot_limit,
  created) values (?, ?, 'process', ?, ?, {now} + ?, ?, ?, ?, ?, ?, ?, {now}) on conflict do nothing"""

_IS_TAKEN = "select 1 from pylash_runs where scope = ?"

_ADD_TURN = """
insert into pylash_runs(id, scope, kind, target, lane, lane_seq, state, at, input, options, owner, token,
  fence, attempts, created)
values (?, ?, ?, ?, ?, ?, ?, case when ? then {now} end, ?, ?, ?, ?, ?, ?, {now}) on conflict do nothing"""

_ADD_DRAIN = """
insert into pylash_runs(id, scope, kind, target, lane, lane_seq, state, at, created)
values (?, ?, 'queue_drain', ?, ?, ?, 'queued', {now}, {now}) on conflict (id) do nothing"""

_ADD_ATTACHED = """
insert into pylash_runs(id, scope, kind, target, state, owner, fence, attempts, created)
select ?, ?, ?, '', 'running', id, 1, 1, {now} from pylash_workers where id = ? {share}
on conflict do nothing returning created"""

_IMPORT = """
insert into pylash_runs(id, scope, kind, target, lane, lane_seq, state, reason, at, input, options, result, slot,
  slot_limit, cancel, cancel_reason, created, settled)
values (?, ?, ?, ?, ?, ?, ?, ?, coalesce(?, case when ? then {now} end), ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict do nothing"""

# --- claim ---

# SKIP LOCKED: concurrent claims take different runs instead of waiting for each other, and a run that another
# transaction is settling, waking or blocking is left for the next claim.
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

# seen is compared at a takeover: more records than at the claim are progress.
_TAKE = f"""
update pylash_runs set state = 'running', owner = ?, token = ?, fence = fence + 1,
  attempts = attempts + 1, at = null,
  seen = {RECORDED}
where id in (select id from ready)
returning {VIEW}, slot, slot_limit"""

_CLAIM = _READY_RUNS + _TAKE

_CLAIM_SUSPECT = _SUSPECT_RUNS + _TAKE

_CLAIM_THIS = _THIS_RUN + _TAKE

_CLAIM_THESE = _THESE_RUNS + _TAKE

_READY = _READY_RUNS + " select id from ready"

_SUSPECT = _SUSPECT_RUNS + " select id from ready"

_CLAIMED = f"""
select {VIEW} from pylash_runs
where token = ? and owner = ? and state = 'running' and settled is null"""

_ATTACH = """
update pylash_runs set state = 'running', owner = ?, token = null, fence = fence + 1,
  attempts = attempts + 1, at = null where id = ?"""

# --- dispatch, take, unpark: runs of other engines ---

# A courier may end before it has sent what it got here, so the first pauses are short: another one sends it. A run that was sent
# and that no worker takes is sent less and less often, up to every 5 minutes. A turn that a worker of the store has begun has
# records there, which another engine would not find.
_DISPATCH = """
with ready as (select id from pylash_runs where at <= {now} and target in ({texts})
               and state in ('queued', 'waiting') and (target <> 'turn' or fence = 0) order by at limit ? {skip})
update pylash_runs set state = 'queued', attempts = attempts + 1,
  target = case when target = 'turn' then ? else target end,
  at = {now} + case when attempts < 3 then 5000000 when attempts = 3 then 10000000 when attempts = 4 then 20000000
    when attempts = 5 then 40000000 when attempts = 6 then 80000000 when attempts = 7 then 160000000 else 300000000 end
where id in (select id from ready)
returning id, scope, kind, bell, coalesce(
  (select epoch from pylash_processes p where p.number = pylash_runs.id and p.run = p.number),
  (select epoch from pylash_processes p where p.run = pylash_runs.id and p.run <> p.number), 0),
  (select outcome from pylash_effects e where e.run = pylash_runs.id and e.key = '!moves')"""

_DISPATCH_DUE = """
select at - {now} from pylash_runs where at is not null and target in ({texts})
  and state in ('queued', 'waiting') and (target <> 'turn' or fence = 0) order by at limit 1"""

_TAKE_FOR_ENGINE = """
update pylash_runs set state = 'running', owner = ?, token = ?, fence = fence + 1, at = null, attempts = 0,
  reason = null, bell = null
where id in ({bigints}) and settled is null and (token is null or token <> ?)
returning id, fence, scope, wake_seq, {now},
  (select outcome from pylash_effects e where e.run = pylash_runs.id and e.key = '!moves')"""

_TAKEN = """
select id, fence, scope, wake_seq, {now},
  (select outcome from pylash_effects e where e.run = pylash_runs.id and e.key = '!moves') from pylash_runs
where id in ({bigints}) and token = ? and settled is null"""

_UNPARK = """
update pylash_runs set state = 'running', owner = ?, at = null, attempts = 0, bell = null
where id = ? and fence = ? and state in ('queued', 'waiting')"""

_WAKE_SEQ = "select wake_seq from pylash_runs where id = ? and fence = ? and settled is null"

# The invocation of a blocked run at its engine.
_NOTE_INVOCATION = """
update pylash_runs set bell = ? where id = ? and fence = ? and state = 'blocked'"""

_ENDED = """
select id, bell from pylash_runs where at <= {now} and target in ({texts}) and settled is not null order by at limit ?"""

_FORGET_BELL = "update pylash_runs set at = null, bell = null where id = ? and settled is not null"

# --- slots, hold, admit ---

_HOLDS_SLOT = "select 1 from pylash_slots where holder = ?"

_SLOTS_TAKEN = "select count(*) from pylash_slots where slot = ?"

_TAKE_SLOT = "insert into pylash_slots(slot, holder) values (?, ?)"

_FREE_SLOT = "delete from pylash_slots where holder = ? returning slot"

_HOLD = """
update pylash_runs set state = 'queued', owner = null, token = null, at = null,
  attempts = attempts - 1, slot = ?, slot_seq = ? where id = ?"""

_NEXT_HELD = """
select id from pylash_runs where slot = ? and slot_seq is not null and state = 'queued'
order by slot_seq limit 1"""

_ADMIT_HELD = """
update pylash_runs set at = {now}, slot_seq = null
where id = ? and state = 'queued' and slot_seq is not null"""

_ADMIT_NEXT = "update pylash_runs set at = {now} where id = ?"

# --- park, wake, hurry ---

_STATE = "select state from pylash_runs where id = ? and fence = ?"

# The comparison and the update are one statement: a wake-up commits before it, and is seen, or after it, and finds
# the run parked.
_PARK = """
update pylash_runs set state = 'waiting', at = ?, owner = null, token = null, attempts = 0, bell = ?
where id = ? and fence = ? and wake_seq = ? and state = 'running'"""

# Also while the run is executed: a notification may be lost, but wake_seq is compared when the run is parked.
_WAKE = """
update pylash_runs set wake_seq = wake_seq + 1,
  at = case when state = 'waiting' then {now} else at end,
  state = case when state = 'waiting' then 'queued' else state end
where id = ? and settled is null returning state, lane"""

_WAKE_WAITERS = """
update pylash_runs set wake_seq = wake_seq + 1,
  at = case when state = 'waiting' then {now} else at end,
  state = case when state = 'waiting' then 'queued' else state end
where settled is null and id in
  (select run from pylash_effects where wait = ? and outcome is null) returning id, state, lane"""

_HURRY = """
update pylash_runs set state = 'queued', at = {now}, reason = null, attempts = 0
where id = ? and (state = 'blocked' or (state = 'queued' and at > {now}))"""

# Until the turn ends, workers of schema 5 read the reason from the column of the result.
_HURRY_TURN = """
update pylash_runs set cancel = case when cancel = 0 then 1 else cancel end,
  cancel_reason = case when cancel = 0 then ? else cancel_reason end,
  result = case when cancel = 0 then ? else result end, reason = null, attempts = 0,
  at = case when state = 'blocked' then {now} else at end,
  state = case when state = 'blocked' then 'queued' else state end
where id = ? and settled is null and (cancel = 0 or state = 'blocked')"""

# --- release, postpone, give up, take over ---

_RELEASE = """
update pylash_runs set state = 'queued', owner = null, token = null, attempts = attempts - 1,
  at = case when target = '' then null else {now} end
where id = ? and fence = ? and state = 'running'"""

_POSTPONE = """
update pylash_runs set state = 'queued', owner = null, token = null, attempts = ?,
  at = case when target = '' then null else {now} + ? end where id = ?"""

# In the order of their ids, as in all operations.
_LOCK_OWNED = """
select id from pylash_runs where owner = ? and state = 'running' and settled is null
order by id {update}"""

_GIVE_UP = """
update pylash_runs set state = 'queued', owner = null, token = null, fence = fence + 1,
  attempts = attempts - 1, at = case when target = '' then null else {now} end
where id in ({bigints})"""

# A run that has recorded something since its claim is not the cause of the crash.
_TAKE_OVER = f"""
update pylash_runs set owner = null, token = null, fence = fence + 1,
  state = case when attempts >= {BLOCKED_AFTER} and {{stuck}} then 'blocked' else 'queued' end,
  reason = case when attempts >= {BLOCKED_AFTER} and {{stuck}} then 'crash_loop' end,
  attempts = case when {{stuck}} then attempts else 0 end,
  at = case when target = '' or (attempts >= {BLOCKED_AFTER} and {{stuck}}) then null else {{now}} end
where id in ({{bigints}})""".replace("{stuck}", f"({RECORDED} <= seen)")

_BLOCKED = """
select id, scope from pylash_runs where id in ({bigints}) and state = 'blocked' order by id"""

# --- block, retry ---

_BLOCK = """
update pylash_runs set state = 'blocked', reason = ?, owner = null, at = null
where id = ? and fence = ?"""

_BLOCK_READY = """
update pylash_runs set state = 'blocked', reason = ?, at = null, owner = null
where id = ? and state in ('queued', 'waiting') and settled is null returning scope"""

_RETRY = """
update pylash_runs set state = 'queued', reason = null, at = {now}, attempts = 0, token = ?
where id = ? and state = 'blocked'"""

# Reads pylash_runs_open.
_BEGIN_TRIALS = f"""
with codes(code) as ({{texts}})
update pylash_runs set attempts = attempts + 1
where id in (select id from pylash_runs
             where state = 'blocked' and owner is null and settled is null and id > ? and kind = 'process'
               and target in ({{texts}}) and attempts < {ALONE_AFTER}
               and exists (select 1 from codes where substr(reason, 1, length(code)) = code)
             order by id limit ? {{skip}})
returning {VIEW}"""

_END_TRIALS = "update pylash_runs set attempts = 0 where id in ({bigints}) and state = 'blocked'"

# --- settle, continue ---

_SETTLE_PROCESS = """
update pylash_runs set state = ?, settled = {now}, at = case when bell is not null then {now} end, owner = null,
  fence = fence + 1, token = ? where id = ?"""

_SETTLE_TURN = """
update pylash_runs set state = ?, result = ?, settled = {now}, at = null, owner = null,
  fence = fence + 1, token = ? where id = ?"""

_SETTLE_DELETED = """
update pylash_runs set state = 'cancelled', result = ?, settled = {now},
  at = case when bell is not null then {now} end, owner = null, cancel = 1,
  fence = fence + 1, token = 'deleted', forgotten = 1, lane = null where id = ?"""

_SETTLE_CONTINUED = """
update pylash_runs set scope = ?, state = 'completed', settled = {now}, at = null, owner = null,
  fence = fence + 1, token = ? where id = ?"""

_ADD_NEXT = """
insert into pylash_runs(id, scope, kind, target, state, at, owner, fence, slot, slot_limit, created)
select ?, ?, kind, ?, 'queued', {now}, null, 0, slot, slot_limit, {now} from pylash_runs where id = ?
on conflict (id) do nothing"""

# --- rename, forget ---

_RENAME = "update pylash_runs set scope = ? where id = ?"

# Runs may still wait for the result of a turn that ended with its session; its row is deleted when its id is reused.
_FORGET = f"""
delete from pylash_runs where id in ({{bigints}}) and kind <> 'process' and settled is not null
  and not {FORGOTTEN}"""

_FREE_ID = f"delete from pylash_runs where id = ? and {FORGOTTEN}"

# --- locks and reads ---

_LOCK = "select id, fence from pylash_runs where id in ({bigints}) order by id {update}"

_LOCK_OF_PROCESS = """
select id, fence from pylash_runs where id = (select run from pylash_processes where id = ?) {update}"""

_SHARE_FENCED = "select {now} from pylash_runs where id = ? and fence = ? {share}"

_OWN_FENCED = "select {now} from pylash_runs where id = ? and fence = ? {update}"

_IS_OPEN = "select 1 from pylash_runs where id = ? and settled is null"

_IS_REPEATED = "select 1 from pylash_runs where id = ? and token = ?"


def lock_runs(runs: Sequence[int]) -> Steps[dict[int, int]]:
    """Lock runs in the order of their ids; return their fences."""
    return dict((yield Statement(_LOCK, (list(runs),))).rows) if runs else {}


def lock_run_of(process: str) -> Steps[dict[int, int]]:
    """Lock the run of a process, if there is one; return its fence."""
    return dict((yield Statement(_LOCK_OF_PROCESS, (process,))).rows)


def lock_fenced(fence: Fence, *, alone: bool = False) -> Steps[Instant]:
    """Lock the run's row against a claim (``alone``: against every transaction), or refuse a stale fence.

    Returns the time now.
    """
    sql = _OWN_FENCED if alone else _SHARE_FENCED
    rows = (yield Statement(sql, (fence.run, fence.token))).rows
    if not rows:
        raise LeaseLost(fence.name)
    return Instant(rows[0][0])


def lock_owned(fence: Fence, others: Sequence[int] = (), token: str = "") -> Steps[bool]:
    """Lock the run of a fence and others, or refuse a stale fence.

    Returns False if the last transition of the run has this token: its answer was lost, and it is repeated.
    """
    locked = yield from lock_runs([fence.run, *others])
    if locked.get(fence.run) == fence.token:
        return True
    if not token or not (yield from is_repeated(fence.run, token)):
        raise LeaseLost(fence.name)
    return False


def has_ended(run: int) -> Steps[bool]:
    """Return whether a run has ended, also if its row is gone by now."""
    return not (yield Statement(_IS_OPEN, (run,))).rows


def is_repeated(run: int, token: str) -> Steps[bool]:
    """Return whether the last transition of a run has this token, so that it is a repetition after a lost answer."""
    return bool((yield Statement(_IS_REPEATED, (run, token))).rows)


def view_from(row: Row) -> RunView:
    """Return the run in a row of ``VIEW``."""
    run_id, scope, kind, target, lane, state, *rest = row
    return RunView(run_id, scope_from_text(scope), kind, target, lane, RunState(state), *rest)


# --- enqueue, start leased ---


def enqueue_process(
    run: int, scope: str, target: str, delay: int, slot: tuple[str, int] | None
) -> Steps[bool]:
    """Enqueue a process's first run, with its concurrency key and limit; False if scope or number is taken."""
    key, limit = (None, None) if slot is None else (slot_name(slot[0]), slot[1])
    row = (run, scope, target, "queued", delay, None, None, 0, 0, key, limit)
    return bool((yield Statement(_ADD_PROCESS, row)).changed)


def start_process(run: int, scope: str, target: str, worker: WorkerId, token: str) -> Steps[bool]:
    """Start a process's first run as owned by worker, a locked member; False if scope or number is taken.

    It has no concurrency key: slots are given where runs are claimed.
    """
    row = (run, scope, target, "running", None, worker, token, 1, 1, None, None)
    return bool((yield Statement(_ADD_PROCESS, row)).changed)


def is_scope_taken(scope: str) -> Steps[bool]:
    """Return whether a scope is taken; if not, it was the number."""
    return bool((yield Statement(_IS_TAKEN, (scope,))).rows)


def enqueue_turn(run: int, new: NewTurn, options: Any, seq: int, *, ready: bool) -> Steps[None]:
    """Enqueue a turn at its place of its session's locked lane; ``ready`` if it holds the lane."""
    yield from _add_turn(run, new, options, seq, RunState.QUEUED, ready, (None, None, 0, 0))
    if ready:
        yield Notify(f"runs:{run}")


def start_turn(
    run: int, new: NewTurn, options: Any, seq: int, worker: WorkerId, token: str
) -> Steps[None]:
    """Start a turn that holds its session's locked lane as owned by worker, a locked member."""
    yield from _add_turn(run, new, options, seq, RunState.RUNNING, False, (worker, token, 1, 1))


def _add_turn(
    run: int, new: NewTurn, options: Any, seq: int, state: RunState, ready: bool, owner: Row
) -> Steps[None]:
    kind = "turn" if isinstance(new.scope, TurnScope) else "queue_drain"
    lane = session_lane(new.scope.session_id)
    what = (new.digest + new.body, write_payload(options or {}, 1))
    row = (run, scope_text(new.scope), kind, TURN_TARGET, lane, seq, state, ready, *what, *owner)
    if not (yield Statement(_ADD_TURN, row)).changed:
        # Another transaction submitted it meanwhile, or the number is taken. The rollback undoes the lane too.
        raise Again


def enqueue_drain(run: int, session_id: str) -> Steps[None]:
    """Enqueue a turn for the queued messages of a session whose lane is locked and free."""
    lane = session_lane(session_id)
    holder, seq = yield from join_lane(lane, run)
    if holder != run:
        raise Again
    scope = scope_text(QueueDrainScope(session_id, f"{run:x}"))
    if not (yield Statement(_ADD_DRAIN, (run, scope, TURN_TARGET, lane, seq))).changed:
        raise Again  # the number is taken; the rollback frees the lane


def import_run(row: Row) -> Steps[bool]:
    """Add a run of another store, without an owner; False if its scope or its number is taken.

    ``row`` has the columns of ``_IMPORT``; after ``at`` it says whether a run without one is ready now.
    """
    return bool((yield Statement(_IMPORT, row)).changed)


def start_attached(run: int, scope: str, kind: str, worker: WorkerId) -> Steps[Instant | None]:
    """Start a run that no scheduler claims (target ''), owned by worker if it is a member; return its creation time."""
    rows = (yield Statement(_ADD_ATTACHED, (run, scope, kind, worker))).rows
    return Instant(rows[0][0]) if rows else None


# --- claim ---


def claim_ready(
    worker: WorkerId,
    token: str,
    targets: Sequence[str],
    limit: int,
    *,
    suspect: bool = False,
    first: Sequence[int] = (),
) -> Steps[list[Row]]:
    """Claim runs that are queued or waiting and due, those of ``first`` before older ones.

    Worker is a locked member. A run with ``ALONE_AFTER`` attempts without progress or more is a suspect: only those
    are claimed with ``suspect``, and only others without. A run whose concurrency key is full is held.
    """
    rows: list[Row] = []
    if first:
        asked = (list(first), list(targets), ALONE_AFTER)
        rows = (yield Statement(_CLAIM_THESE, (*asked, worker, token))).rows
    sql = _CLAIM_SUSPECT if suspect else _CLAIM
    more = (list(targets), ALONE_AFTER, limit - len(rows), worker, token)
    rows = rows + (yield Statement(sql, more)).rows
    return (yield from _with_slots(rows))


def claim_one(run: int, worker: WorkerId, token: str) -> Steps[list[Row]]:
    """Claim one run, if it is queued or waiting and due. Worker is a locked member."""
    return (yield from _with_slots((yield Statement(_CLAIM_THIS, (run, worker, token))).rows))


def repeated_claim(worker: WorkerId, token: str) -> Steps[list[Row]]:
    """Return the runs that an earlier attempt of a claim took, whose answer was lost."""
    return (yield Statement(_CLAIMED, (token, worker))).rows


def ready_runs(targets: Sequence[str], limit: int, *, suspect: bool) -> Steps[list[int]]:
    """Return the runs that a claim would take."""
    asked = (list(targets), ALONE_AFTER, limit)
    return [run for (run,) in (yield Statement(_SUSPECT if suspect else _READY, asked)).rows]


def attach(run: int, worker: WorkerId) -> Steps[None]:
    """Claim a locked run without a live owner, for a controller of a host."""
    yield Statement(_ATTACH, (worker, run))


# --- dispatch, take, unpark: runs of other engines ---


def dispatch(carrier: str, targets: Sequence[str], limit: int) -> Steps[list[Row]]:
    """Return ready runs of another engine; each is ready again after a pause, unless its engine takes it.

    A turn belongs to whichever takes it first, the engine or a worker of the store. From then on it is the engine's.
    """
    own = carrier_target(carrier, TURN_TARGET)
    return (yield Statement(_DISPATCH, ([*targets, TURN_TARGET], limit, own))).rows


def next_dispatch(targets: Sequence[str]) -> Steps[int | None]:
    """Return the microseconds until the next run of another engine is due."""
    rows = (yield Statement(_DISPATCH_DUE, ([*targets, TURN_TARGET],))).rows
    return rows[0][0] if rows else None


def take(runs: Sequence[int], worker: WorkerId, token: str) -> Steps[list[Row]]:
    """Own locked runs for attempts of their engine; those that have ended are left out. Worker is a locked member.

    A run that is blocked is executed again: its engine decides when.
    """
    rows = (yield Statement(_TAKE_FOR_ENGINE, (worker, token, list(runs), token))).rows
    # An earlier attempt of this operation may have been committed and its answer lost.
    left = sorted(set(runs) - {row[0] for row in rows})
    return [*rows, *(yield Statement(_TAKEN, (left, token))).rows] if left else rows


def unpark(fence: Fence, worker: WorkerId) -> Steps[int]:
    """Execute a locked run on that was parked under this fence; return its ``wake_seq``."""
    yield Statement(_UNPARK, (worker, fence.run, fence.token))
    rows = (yield Statement(_WAKE_SEQ, (fence.run, fence.token))).rows
    if not rows:
        raise LeaseLost(fence.name)
    return int(rows[0][0])


def note_invocation(fence: Fence, invocation: str) -> Steps[None]:
    """Write what a blocked run is at its engine, so that its engine can end it."""
    yield Statement(_NOTE_INVOCATION, (invocation, fence.run, fence.token))


def ended_elsewhere(targets: Sequence[str], limit: int) -> Steps[list[Row]]:
    """Return settled runs of another engine that it has not ended, and their bells."""
    return (yield Statement(_ENDED, (list(targets), limit))).rows


def forget_bell(run: int) -> Steps[None]:
    """Note that its engine was told that a settled run has ended."""
    yield Statement(_FORGET_BELL, (run,))


# --- slots: hold, admit ---


def slot_name(key: str) -> str:
    """Return a concurrency key as it is stored: a long one as its beginning and its hash."""
    body = key.encode()
    if len(body) <= SLOT_BYTES:
        return key
    return f"{key[:32]}~{hashlib.sha256(body).hexdigest()}"


def _with_slots(rows: list[Row]) -> Steps[list[Row]]:
    """Return the claimed rows whose concurrency key has a free slot; hold the others."""
    claimed = []
    for row in sorted(rows, key=lambda row: (row[-2] or "", row[0])):  # the oldest first
        run, slot, limit = row[0], row[-2], row[-1]
        if slot is None or (yield from _take_slot(run, slot_name(slot), limit)):
            claimed.append(row[:-2])
    return claimed


def _take_slot(run: int, slot: str, limit: int) -> Steps[bool]:
    """Give a claimed run a slot, or hold it: it is queued without a time, in the order of claims."""
    # The row of the key serialises claims and releases of its slots; a count without its lock would admit too many.
    order = yield from lock_slot(slot)
    if (yield Statement(_HOLDS_SLOT, (run,))).rows:
        return True
    if (yield Statement(_SLOTS_TAKEN, (slot,))).rows[0][0] < limit:
        yield Statement(_TAKE_SLOT, (slot, run))
        return True
    yield Statement(_HOLD, (slot, order, run))
    return False


def release_slot(run: int) -> Steps[None]:
    """Release the slot of a locked run that stops executing, and admit the next run that is held for it."""
    for (slot,) in (yield Statement(_FREE_SLOT, (run,))).rows:
        yield from lock_slot(slot)
        while following := (yield Statement(_NEXT_HELD, (slot,))).rows:
            if (yield Statement(_ADMIT_HELD, following[0])).changed:  # otherwise it ended meanwhile
                yield Statement(_TAKE_SLOT, (slot, following[0][0]))
                yield Notify("runs")
                break


def admit_next(lane: str, following: int | None) -> Steps[None]:
    """Give a locked lane to the next run, which is locked too and becomes ready, or to none."""
    yield from set_holder(lane, following)
    if following is not None:
        yield Statement(_ADMIT_NEXT, (following,))
        yield Notify(f"runs:{following}")


# --- park, wake, hurry ---


def park(
    fence: Fence, wake_seq: int, until: Instant | None, bell: str | None = None
) -> Steps[bool]:
    """Park a running run until it is woken or ``until``; False if it was woken after ``wake_seq``.

    Raises LeaseLost for a stale fence. A run that is not running under the fence was parked by an earlier attempt.
    """
    if not (yield Statement(_PARK, (until, bell, fence.run, fence.token, wake_seq))).changed:
        rows = (yield Statement(_STATE, (fence.run, fence.token))).rows
        if not rows:
            raise LeaseLost(fence.name)
        return bool(rows[0][0] != RunState.RUNNING)
    yield from release_slot(fence.run)
    if until is not None:
        yield Notify("runs")
    return True


def wake(run: int) -> Steps[None]:
    """Increment ``wake_seq`` of a run that is not settled, and make it ready if it is parked."""
    for state, lane in (yield Statement(_WAKE, (run,))).rows:
        yield Notify(_wake_topic(run, state, lane))


def wake_waiters(wait: str) -> Steps[None]:
    """Wake every run that waits for a wait. The runs are locked."""
    for run, state, lane in (yield Statement(_WAKE_WAITERS, (wait,))).rows:
        yield Notify(_wake_topic(run, state, lane))


def _wake_topic(run: int, state: str, lane: str | None) -> str:
    """Return the topic of a run that was woken: its own while it is executed, otherwise that of ready runs.

    The topic of a ready turn has its number, so that workers can claim it before older runs.
    """
    if state == RunState.RUNNING:
        return f"wake:{run}"
    return "runs" if lane is None else f"runs:{run}"


def hurry(run: int) -> Steps[None]:
    """Wake the locked run of a process with a cancel request; its delay ends, and a blocked run is retried."""
    yield Statement(_HURRY, (run,))
    yield from wake(run)
    yield Notify(f"cancel:{run}")
    yield Notify("runs")


def hurry_turn(run: int, reason: str) -> Steps[None]:
    """Request the cancel of a locked turn, unless it is settled, or was requested before and the turn is not blocked."""
    asked = (storable(reason), write({"cancelled": reason}), run)
    if (yield Statement(_HURRY_TURN, asked)).changed:
        yield from wake(run)
        yield Notify(f"cancel:{run}")
        yield Notify("runs")


# --- release, postpone, give up, take over ---


def release(fence: Fence) -> Steps[None]:
    """Give up the run of a fence: it is ready again, keeps its slot, and no attempt is counted."""
    if (yield Statement(_RELEASE, (fence.run, fence.token))).changed:
        yield Notify("runs")


def postpone(run: int, attempts: int, pause: int) -> Steps[None]:
    """Give up a locked running run after an error of the store: it is ready again after a pause."""
    yield from release_slot(run)
    yield Statement(_POSTPONE, (attempts, pause, run))
    yield Notify("runs")


def give_up(worker: WorkerId) -> Steps[None]:
    """Make the runs of a worker that leaves ready again; no attempt is counted. The worker's row is locked."""
    yield from _disown(worker, _GIVE_UP)


def take_over(worker: WorkerId) -> Steps[None]:
    """Make the runs of a worker that is dead or expired ready again. The worker's row is locked.

    A run that recorded nothing since its claim keeps its attempts, and is blocked after ``BLOCKED_AFTER`` of them.
    """
    yield from _disown(worker, _TAKE_OVER)


def _disown(worker: WorkerId, sql: str) -> Steps[None]:
    runs = [run for (run,) in (yield Statement(_LOCK_OWNED, (worker,))).rows]
    if runs:
        yield Statement(sql, (runs,))
        yield Notify("runs")
        for run, scope in (yield Statement(_BLOCKED, (runs,))).rows:
            yield from release_slot(run)
            yield Notify(f"process:{scope_from_text(scope).id}")


# --- block, retry ---


def block(fence: Fence, reason: str) -> Steps[bool]:
    """Block the run of a fence with a reason; False if the fence is stale. It keeps its lane, not its slot."""
    if not (yield Statement(_BLOCK, (storable(reason), fence.run, fence.token))).changed:
        return False
    yield from release_slot(fence.run)
    yield Notify(f"process:{fence.scope.id}")
    return True


def block_ready(run: int, reason: str) -> Steps[str | None]:
    """Block a queued or waiting run that cannot be claimed; return its scope, None if it is not queued or waiting."""
    rows = (yield Statement(_BLOCK_READY, (storable(reason), run))).rows
    if not rows:
        return None
    yield from release_slot(run)
    return str(rows[0][0])


def retry(run: int, token: str) -> Steps[bool]:
    """Make a blocked run ready again; False if it is not blocked, and this token did not retry it before."""
    if (yield Statement(_RETRY, (token, run))).changed:
        yield Notify("runs")
        return True
    return (yield from is_repeated(run, token))


def begin_trials(
    targets: Sequence[str], codes: Sequence[str], after: int, limit: int
) -> Steps[list[RunView]]:
    """Count a try of blocked processes, the oldest first, whose reason begins with one of the codes; return them."""
    prefixes = [f"{code}:" for code in codes]
    rows = (yield Statement(_BEGIN_TRIALS, (prefixes, after, list(targets), limit))).rows
    return sorted(map(view_from, rows), key=lambda view: view.id)


def end_trials(runs: Sequence[int]) -> Steps[None]:
    """Forget the tries of processes that are still blocked."""
    yield Statement(_END_TRIALS, (list(runs),))


# --- settle, continue ---


def settle_process(run: int, state: str, token: str) -> Steps[None]:
    """Settle the locked run of a process, by its owner or by force, and release its slot."""
    yield from release_slot(run)
    yield Statement(_SETTLE_PROCESS, (state, token, run))


def settle_turn(run: int, state: RunState, result: bytes | None, token: str) -> Steps[None]:
    """Settle a locked turn by its owner; the caller passes its lane on."""
    yield Statement(_SETTLE_TURN, (state, result, token, run))


def settle_deleted(run: int, result: bytes) -> Steps[None]:
    """Settle a locked turn of a session that is being deleted, regardless of its owner; the caller frees its lane."""
    yield Statement(_SETTLE_DELETED, (result, run))
    yield Notify(f"wake:{run}")
    yield Notify("runs")


def settle_continued(run: int, scope: str, epoch: int, token: str) -> Steps[None]:
    """Settle a locked run by its owner, and free its scope for ``enqueue_next``."""
    yield Statement(_SETTLE_CONTINUED, (f"{scope}#{epoch}", token, run))
    yield from release_slot(run)


def enqueue_next(number: int, scope: str, target: str, run: int) -> Steps[bool]:
    """Enqueue the continuation of a settled run, with its scope, key and limit; False if the number is taken."""
    return bool((yield Statement(_ADD_NEXT, (number, scope, target, run))).changed)


# --- rename, forget ---


def rename(run: int, scope: str) -> Steps[None]:
    """Give a settled run another scope, so that its own is free."""
    yield Statement(_RENAME, (scope, run))


def forget(runs: Sequence[int]) -> Steps[None]:
    """Delete settled turns, except those that ended with their session."""
    yield Statement(_FORGET, (list(runs),))


def free_id(run: int) -> Steps[None]:
    """Delete a turn that ended with its session, because its id is reused."""
    yield Statement(_FREE_ID, (run,))
