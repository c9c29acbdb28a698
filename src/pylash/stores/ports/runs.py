"""The port of runs: claims, parking, and reads of the scheduler. ``tables.runs`` has the transitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from pylash.durable.runs import Claim, Dispatch, Fence, Instant, RunView, WorkerId
from pylash.durable.scopes import ExecutionScope, ProcessScope, scope_from_text, scope_text
from pylash.durable.stores import Taken
from pylash.stores.operation import (
    Notify,
    Operation,
    Statement,
    Steps,
    operation,
)
from pylash.stores.ports.numbers import RunPort
from pylash.stores.ports.process_reads import process_records
from pylash.stores.ports.session_reads import turn_records
from pylash.stores.tables import queue
from pylash.stores.tables import runs as table
from pylash.stores.tables.packed_effects import RECORDED
from pylash.stores.tables.workers import is_member
from pylash.values.errors import LeaseLost, StoreRefused

_GET = f"select {table.VIEW} from pylash_runs where scope = ?"

_LOCK_CLAIMED = f"""
select attempts, {RECORDED} <= seen from pylash_runs
where id = ? and fence = ? and state = 'running' {{update}}"""

_NEXT_DUE = """
select at - {now} from pylash_runs where at is not null and target in ({texts})
  and state in ('queued', 'waiting') and attempts < ? order by at limit 1"""

_NEXT_SUSPECT = _NEXT_DUE.replace("attempts <", "attempts >=")

_OWNED = """
select id, fence, scope from pylash_runs
where owner = ? and state = 'running' and settled is null and target <> ''"""

_WAKE_SEQS = "select id, wake_seq, fence from pylash_runs where id in ({bigints})"

REFUSED_AFTER: Final = 3
"""After this many claims in a row that ended with a refusal of the store, without progress, a run is blocked.

At most ``ALONE_AFTER``: such a run does not cause crashes, and need not be executed alone.
"""

BACK_OFF: Final = 1_000_000
"""Microseconds until a run is ready again after an error of the store; doubled after each refusal."""

MAX_BACK_OFF: Final = 60_000_000

_BAD_ROW: Final = (StoreRefused, ValueError)
"""The errors of a claim if the database refuses one of its rows, or this code cannot read it."""


class SqlRuns(RunPort):
    """The runs in SQL."""

    async def claim(
        self,
        worker: WorkerId,
        *,
        limit: int,
        targets: Sequence[str],
        suspect: bool = False,
        first: Sequence[int] = (),
    ) -> list[Claim]:
        """Claim ready runs, those of ``first`` before older ones, or suspects of crashes.

        A run that cannot be claimed is blocked with the reason, and the others are claimed.
        """
        token = self._entropy(8).hex()
        take = partial(
            table.claim_ready, worker, token, targets, limit, suspect=suspect, first=first
        )
        try:
            return await self._claim(take, worker, token)
        except _BAD_ROW:  # each run is claimed alone to find the bad row
            claims: list[Claim] = []
        for run in await self._ready(targets, limit, suspect=suspect):
            take_one = partial(table.claim_one, run, worker, token)
            try:
                claims += await self._claim(take_one, worker, token)
            except _BAD_ROW as error:
                await self._block_ready(run, f"unclaimable: {error}")
        return claims

    def _claim(
        self, take: Callable[[], Steps[list[table.Row]]], worker: WorkerId, token: str
    ) -> Awaitable[list[Claim]]:
        tried: list[str] = []

        def steps() -> Steps[list[Claim]]:
            # Only a repetition looks for what an earlier attempt claimed: that reads all running runs of the worker.
            is_repeated = bool(tried)
            tried.append(token)
            if not (yield from is_member(worker)):
                return []  # it was taken for dead, and must join again first
            rows = (yield from table.repeated_claim(worker, token)) if is_repeated else []
            if not rows:
                rows = yield from take()
            views = map(table.view_from, rows)
            return [Claim(Fence(view.id, view.fence, view.scope), view) for view in views]

        return self.driver.run(Operation("claim", steps))

    @operation()
    def _ready(self, targets: Sequence[str], limit: int, *, suspect: bool) -> Steps[list[int]]:
        return (yield from table.ready_runs(targets, limit, suspect=suspect))

    @operation()
    def _block_ready(self, run: int, reason: str) -> Steps[None]:
        """Block a ready run that cannot be claimed."""
        scope = yield from table.block_ready(run, reason)
        if scope is not None:
            with suppress(ValueError):  # the scope itself may be unreadable
                yield Notify(f"process:{scope_from_text(scope).id}")

    @operation()
    def park(
        self,
        fence: Fence,
        wake_seq: int,
        until: Instant | None = None,
        bell: str | None = None,
    ) -> Steps[bool]:
        """Park the run until it is woken."""
        return (yield from table.park(fence, wake_seq, until, bell))

    @operation()
    def dispatch(
        self, carrier: str, targets: Sequence[str], limit: int
    ) -> Steps[tuple[list[Dispatch], int | None]]:
        """Return ready runs of another engine, to be sent to it, and when the next one is due."""
        rows = yield from table.dispatch(carrier, targets, limit)
        due = yield from table.next_dispatch(targets)
        ready = [
            Dispatch(run, scope_from_text(scope), kind, bell, epoch, _moves_in(moves))
            for run, scope, kind, bell, epoch, moves in rows
        ]
        return ready, due

    @operation()
    def take(self, runs: Sequence[int], worker: WorkerId, token: str) -> Steps[dict[int, Taken]]:
        """Own runs for attempts of their engine, and read their processes and turns."""
        if not (yield from is_member(worker)):
            raise LeaseLost(worker)
        yield from table.lock_runs(runs)
        rows = yield from table.take(runs, worker, token)
        fences = {run: Fence(run, fence, scope_from_text(scope)) for run, fence, scope, *_ in rows}
        of_processes = [run for run, one in fences.items() if isinstance(one.scope, ProcessScope)]
        processes = yield from process_records(of_processes)
        turns = yield from turn_records([run for run in fences if run not in of_processes])
        sessions = [session.id for _, session in turns.values()]
        queued = (yield from queue.with_messages(sessions)) if sessions else ()
        taken = {}
        for run, _, _, wake_seq, now, moves in rows:
            begun = fences[run], Instant(now), wake_seq, _moves_in(moves)
            if run in turns:
                turn, session = turns[run]
                taken[run] = Taken(*begun, turn, session, session.id in queued)
            else:
                taken[run] = Taken(*begun, processes.get(run))
        return taken

    @operation()
    def unpark(self, fence: Fence, worker: WorkerId) -> Steps[int]:
        """Execute a run on that the attempt with this fence had parked."""
        yield from table.lock_runs([fence.run])
        return (yield from table.unpark(fence, worker))

    @operation()
    def note_invocation(self, fence: Fence, invocation: str) -> Steps[None]:
        """Write what a blocked run is at its engine."""
        yield from table.note_invocation(fence, invocation)

    @operation(read_only=True)
    def ended_elsewhere(self, targets: Sequence[str], limit: int) -> Steps[list[tuple[int, str]]]:
        """Return settled runs that their engine has not ended, and their bells."""
        rows = yield from table.ended_elsewhere(targets, limit)
        return [(run, bell) for run, bell in rows]

    @operation()
    def forget_bell(self, run: int) -> Steps[None]:
        """Note that the engine of a settled run was told."""
        yield from table.forget_bell(run)

    @operation()
    def block(self, fence: Fence, reason: str) -> Steps[None]:
        """Stop the run with a reason."""
        if not (yield from table.block(fence, reason)):
            raise LeaseLost(fence.name)

    @operation()
    def postpone(self, fence: Fence, refusal: str | None) -> Steps[None]:
        """Give up a run after an error of the store; it is ready again after a pause."""
        rows = (yield Statement(_LOCK_CLAIMED, (fence.run, fence.token))).rows
        if not rows:
            return  # an earlier attempt gave it up, or another worker owns it
        attempts, is_stuck = rows[0]
        if refusal is None:  # the claim does not count, as after a release
            counted, pause = attempts - 1, BACK_OFF if is_stuck else 0
        else:
            counted = attempts if is_stuck else 1
            pause = min(BACK_OFF << (counted - 1), MAX_BACK_OFF)
        if refusal is not None and counted >= REFUSED_AFTER:
            yield from table.block(fence, refusal)
        else:
            yield from table.postpone(fence.run, counted, pause)

    @operation()
    def retry(self, run: int, token: str) -> Steps[bool]:
        """Make a blocked run ready again."""
        return (yield from table.retry(run, token))

    @operation()
    def begin_trials(
        self, targets: Sequence[str], codes: Sequence[str], after: int, limit: int
    ) -> Steps[list[RunView]]:
        """Count a try of blocked processes, and return them."""
        return (yield from table.begin_trials(targets, codes, after, limit))

    @operation()
    def end_trials(self, runs: Sequence[int]) -> Steps[None]:
        """Forget the tries of processes that are still blocked."""
        yield from table.end_trials(runs)

    @operation(read_only=True)
    def get(self, scope: ExecutionScope) -> Steps[RunView | None]:
        """Return the run of scope."""
        rows = (yield Statement(_GET, (scope_text(scope),))).rows
        return table.view_from(rows[0]) if rows else None

    @operation(read_only=True)
    def next_due(self, targets: Sequence[str]) -> Steps[tuple[int | None, bool]]:
        """Return the microseconds until the next run is due, and whether a suspect is ready."""
        due = (yield Statement(_NEXT_DUE, (list(targets), table.ALONE_AFTER))).rows
        suspect = (yield Statement(_NEXT_SUSPECT, (list(targets), table.ALONE_AFTER))).rows
        later = [row[0][0] for row in (due, suspect) if row and (row is due or row[0][0] > 0)]
        return min(later, default=None), bool(suspect) and suspect[0][0] <= 0

    @operation(read_only=True)
    def owned_by(self, worker: WorkerId) -> Steps[list[Fence]]:
        """Return the runs that a worker owns."""
        rows = (yield Statement(_OWNED, (worker,))).rows
        return [Fence(run, token, scope_from_text(scope)) for run, token, scope in rows]

    @operation(read_only=True)
    def wake_seqs(self, runs: Sequence[int]) -> Steps[dict[int, tuple[int, int]]]:
        """Return the wake-ups of runs, and the tokens of their current fences."""
        rows = (yield Statement(_WAKE_SEQS, (list(runs),))).rows
        return {row[0]: (row[1], row[2]) for row in rows}


def _moves_in(outcome: bytes | None) -> int:
    """Return how often the records of a run were moved, as the note in its journal says."""
    return 0 if outcome is None else int(bytes(outcome))
