"""The scheduler of a worker: looks for runs that are ready, and claims them.

Rule 1. A look reads ready rows only, and one timer serves all due times of the store.
Rule 2. When slots are lacking, turns that a hint has named get every second one; the others go to the oldest ready
        runs. A session has one ready turn at a time, so a burst of starts, or of turns for another session, does
        not delay a turn by the whole burst.
Rule 3. A claim whose answer is lost may have been made. Its runs are found as orphans before the next claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from pylash.durable.machines.worker_machine import (
    CLEARING,
    CLEARING_SECONDS,
    WorkerDecisions,
    WorkerMachine,
)
from pylash.durable.runs import Claim
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.hub import wait_for_hint
from pylash.engine.runs.loaded_runs import load_runs
from pylash.engine.runs.programs import Programs
from pylash.engine.runs.run import LiveRun
from pylash.engine.store_answers import STORE_AWAY_SECONDS
from pylash.engine.worker.run_tasks import RunTasks
from pylash.tasks import TaskOwner
from pylash.values.errors import StoreError

CLAIM_AT_ONCE: Final = 200
EMPTY_MICROS: Final = 50_000
"""How long to wait when something is due and nothing could be claimed."""
MAX_NAMED: Final = 10_000
"""How many ready turns are remembered by name; the others are claimed as any ready run is."""
UNREADABLE: Final = "unreadable: its row was written by code that this code does not understand"

_log = logging.getLogger("pylash")


class Scheduler:
    """Claims ready runs for one worker."""

    def __init__(
        self,
        machine: WorkerMachine,
        carry_out: Callable[[WorkerDecisions], None],
        runs: RunTasks,
        host: JournalHost,
        programs: Programs,
    ) -> None:
        # Set by hints, the timer and the machine; cleared before a look, so that a hint during the look leads to another.
        self.kick = asyncio.Event()
        self._machine = machine
        self._carry_out = carry_out
        self._runs = runs
        self._host = host
        self._programs = programs
        runs.orphans.on_found = self.kick.set
        # Whether the last look found more ready runs than slots.
        self._is_crowded = False
        # Turns that became ready, the first one first: hints, for they may be claimed elsewhere since.
        self._ready_turns: dict[int, None] = {}
        # The rest of dividing slots between turns and others, so that an odd slot goes to either in turn.
        self._odd = 0
        # Sets ``kick`` at the next due time. Each look replaces it, so that there is never more than one.
        self._timer: asyncio.Task[None] | None = None
        # Whether a claim is on its way, and a future that ends with it.
        self._claiming: asyncio.Future[None] | None = None
        self._is_looking = False
        # The machine has reserved a slot for a suspect: the next look claims it and nothing else.
        self._wants_suspect = False

    @property
    def is_busy(self) -> bool:
        """Whether it looks for ready runs, or is about to."""
        return self.kick.is_set() or self._is_looking

    def note_ready(self, turn: str) -> None:
        """Note that runs are ready; ``turn``: which turn became so, blank if it is not known."""
        if turn and len(self._ready_turns) < MAX_NAMED:
            self._ready_turns[int(turn)] = None
        self.kick.set()

    def want_suspect(self) -> None:
        """Claim a suspect next: nothing else runs here."""
        self._wants_suspect = True
        self.kick.set()

    async def has_room_for(self, target: str) -> bool:
        """Return whether a run may begin here, now or once a claim has given back the slots it did not need."""
        if not self._machine.may_start and self._claiming is not None:
            await asyncio.wait((self._claiming,))
        return self._machine.may_start and self.knows(target)

    def knows(self, target: str) -> bool:
        """Return whether a run of this target can be executed here."""
        return self._programs.knows(target)

    async def has_due_runs(self) -> bool:
        """Return whether the store has runs that are ready and known here."""
        due, suspect = await self._host.store.runs.next_due(self._programs.targets())
        return suspect or (due is not None and due <= 0)

    async def announce(self) -> None:
        """Announce to other workers what can run here, if that has changed."""
        targets = self._programs.targets()
        if targets != self._host.membership.targets:
            await self._host.membership.announce(targets)

    async def run_forever(self, tasks: TaskOwner) -> None:
        """Look for work whenever there may be some; ``tasks`` owns the timer of the next look."""
        while True:
            await wait_for_hint(self.kick)
            self._is_looking = True
            try:
                await self.announce()
                # With a start on its way it is not known yet which runs of ours are executed here.
                if self._runs.orphans.suspected and not self._machine.pending:
                    await self._runs.orphans.find()
                await self._runs.orphans.release()
                if self._wants_suspect:
                    await self._claim_suspect()
                else:
                    self._look_in(await self._claim_ready(), tasks)
            except StoreError:  # it is away for the moment
                await asyncio.sleep(STORE_AWAY_SECONDS)
                self.kick.set()
            except Exception:  # noqa: BLE001 - one broken row must not stop the others
                _log.exception("the scheduler failed and continues")
                await asyncio.sleep(STORE_AWAY_SECONDS)
                self.kick.set()
            finally:
                self._is_looking = False

    async def _claim_ready(self) -> float | None:
        """Claim ready runs; return the seconds until the next one is ready, if that is known."""
        machine, targets = self._machine, self._programs.targets()
        claimed, is_crowded = 0, self._is_crowded
        while limit := min(machine.room, CLAIM_AT_ONCE):
            named = list(self._ready_turns)
            claimed = await self._claim_runs(limit, targets, self._first(limit, is_crowded))
            if claimed < limit:
                for run in named:  # their hints are used up
                    self._ready_turns.pop(run, None)
                break
            is_crowded = True
        # The machine counts slots that are freed from here on, and claims again if there is a backlog.
        is_full = not limit
        due, suspect = await self._host.store.runs.next_due(targets)
        self._is_crowded = is_full and due is not None and due <= 0
        now = asyncio.get_running_loop().time()
        self._carry_out(machine.looked(backlog=self._is_crowded, suspect=suspect, now=now))
        if machine.phase is CLEARING:
            # It may not take longer: then everything else has its turn.
            asyncio.get_running_loop().call_later(CLEARING_SECONDS, self.kick.set)
        if due is None or self._is_crowded:
            return None
        if due <= 0 and not (claimed or machine.phase is CLEARING):
            await self._host.membership.renew()  # perhaps others gave us up
            due = EMPTY_MICROS
        return max(0, due) / 1_000_000

    def _first(self, limit: int, is_crowded: bool) -> list[int]:
        """Return the turns to claim before older runs: half of the limit, if there is not room for all."""
        if not is_crowded:
            return []
        half, self._odd = divmod(limit + self._odd, 2)
        first = list(islice(self._ready_turns, half))
        for run in first:
            del self._ready_turns[run]
        return first

    async def _claim_runs(self, limit: int, targets: Sequence[str], first: Sequence[int]) -> int:
        """Claim up to limit runs and execute them; return how many were claimed."""
        machine = self._machine
        self._carry_out(machine.claim_sent(limit))
        self._claiming = asyncio.get_running_loop().create_future()
        runs: list[LiveRun] = []
        try:
            claims = await self._claim(limit, targets, first=first)
            runs, unreadable = await self._add(claims)
        finally:
            # Before they are executed: a run that waits must be known to the machine. Also if the claim failed, as
            # its slots are reserved.
            self._carry_out(machine.claim_answered(limit, runs))
            self._claiming.set_result(None)
            self._claiming = None
        for run in runs:
            self._runs.execute(run)
        await self._block(unreadable)
        return len(claims)

    async def _claim_suspect(self) -> None:
        """Claim one run that may be to blame for crashes; its slot is reserved."""
        self._wants_suspect = False
        runs: list[LiveRun] = []
        unreadable: list[Claim] = []
        try:
            claims = await self._claim(1, self._programs.targets(), suspect=True)
            runs, unreadable = await self._add(claims)
        finally:
            # In any case: the machine starts no run until it knows whether the reserved slot is used.
            run = runs[0] if runs else None
            self._carry_out(self._machine.suspect_claimed(run))
        for run in runs:
            self._runs.execute(run)
        await self._block(unreadable)

    async def _claim(
        self,
        limit: int,
        targets: Sequence[str],
        *,
        suspect: bool = False,
        first: Sequence[int] = (),
    ) -> list[Claim]:
        worker, runs = self._host.membership.worker, self._host.store.runs
        try:
            claims = await runs.claim(
                worker, limit=limit, targets=targets, suspect=suspect, first=first
            )
        except BaseException:
            # Also if the task was cancelled: the statement may have reached the store.
            self._runs.orphans.suspected = True
            raise
        for claim in claims:
            self._ready_turns.pop(claim.fence.run, None)
        return claims

    async def _add(self, claims: list[Claim]) -> tuple[list[LiveRun], list[Claim]]:
        """Return live runs for claims, and the claims whose runs cannot be read."""
        if not claims:
            return [], []
        try:
            fences = {claim.fence.run: claim.fence for claim in claims}
            processes = [claim.fence.run for claim in claims if claim.run.kind == "process"]
            read = await load_runs(self._host.store, fences, processes)
        except Exception:
            self._runs.orphans.add(claim.fence for claim in claims)
            raise
        unreadable = [claim for claim in claims if claim.fence.run not in read]
        return [
            self._runs.add(read[claim.fence.run], claim.run.wake_seq)
            for claim in claims
            if claim.fence.run in read
        ], unreadable

    async def _block(self, unreadable: list[Claim]) -> None:
        while unreadable:
            try:
                await self._host.store.runs.block(unreadable[-1].fence, UNREADABLE)
            except Exception:
                self._runs.orphans.add(claim.fence for claim in unreadable)
                raise
            unreadable.pop()

    def _look_in(self, delay: float | None, tasks: TaskOwner) -> None:
        if delay is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = tasks.start(self._look_after(delay))

    async def _look_after(self, delay: float) -> None:
        await self._host.clock.sleep(delay)
        self.kick.set()
