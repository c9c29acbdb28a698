"""The worker: claims runs, executes them, parks them, and gives them up in order.

Rule 1. A claim costs what is ready, a parked run costs a row, and all timers cost one task.
Rule 2. A run that waits holds no slot, so that a parent never keeps one its child needs.
Rule 3. A run that may be to blame for crashes is executed alone.
Rule 4. When slots are lacking, turns that have become ready get every second one; the others go to the oldest
        ready runs. A session has one ready turn at a time, so a burst of starts, or of turns for another
        session, never puts a turn behind all of its backlog.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

from pylash.durable import (
    TURN_TARGET,
    Attached,
    Claim,
    EffectHost,
    LeasedStart,
    NewTurn,
    Registration,
    StartProcess,
    Submitted,
    just_started,
)
from pylash.runtime.config import Drive, Programs, Retention, WorkerConfig
from pylash.runtime.endings import STORE_AWAY_SECONDS, block
from pylash.runtime.execution import Execution
from pylash.runtime.journal import JournalHost
from pylash.runtime.launches import Launches
from pylash.runtime.lookout import Lookout
from pylash.runtime.orphans import Orphans
from pylash.runtime.parking import MAX_IDLE, Parking
from pylash.runtime.pruning import prune_forever
from pylash.runtime.records import message_of
from pylash.runtime.runs import LiveRun
from pylash.runtime.slots import SlotPool
from pylash.runtime.standings import Standing, standing_of, standings
from pylash.runtime.user_code import current_task, is_failure
from pylash.tasks import TaskOwner
from pylash.values import (
    ProcessStumbled,
    StaticScopesRequired,
    StoreError,
    TurnStumbled,
    seconds,
)

LOOK_SECONDS: Final = 0.05  # of a worker that closes, at its runs
NET_SECONDS: Final = 5.0
"""How often everything is looked at, hint or no hint."""

CLAIM_AT_ONCE: Final = 200
QUIET_SECONDS: Final = 0.001
EMPTY_MICROS: Final = 50_000
"""How long to wait when something is due and nothing could be claimed."""
MAX_NAMED: Final = 10_000
"""How many ready turns are remembered by name; the others are claimed as any ready run is."""
DRAIN_SECONDS: Final = 10.0
"""How long a suspect may make everything else wait."""
UNREADABLE: Final = "unreadable: its row was written by code that this code does not understand"

_log = logging.getLogger("pylash")


class Worker:
    """Executes runs of one store."""

    def __init__(
        self,
        host: JournalHost,
        effects: EffectHost,
        programs: Programs,
        turns: Callable[[Callable[[], bool]], Drive],
        config: WorkerConfig,
        retention: Retention,
    ) -> None:
        self.live: dict[int, LiveRun] = {}
        self.is_open = False
        self._host = host
        self._effects = effects
        self._programs = programs
        self._config = config
        self._retention = retention
        self._slots = SlotPool(config.concurrency, self._slot_is_free)
        self._tasks = TaskOwner()
        self._runs = TaskOwner()
        park_after = seconds(config.park_after)
        self._lookout = Lookout(host, self.live)
        self._parking = Parking(host.store.runs, park_after, self._lookout.look_again, self._tasks)
        self._execution: Drive = Execution(host, programs, self._tasks, lambda: self.is_open)
        self._turns = turns(lambda: self.is_open)
        self._kick = asyncio.Event()
        self._timer: asyncio.Task[None] | None = None
        self._backlog = False
        self._ready_turns: dict[int, None] = {}
        """Turns that became ready, the first one first: hints, for they may be claimed elsewhere since."""
        self._odd = 0
        self._orphans = Orphans(host, self.live, self._kick.set)
        self._launches = Launches(host, self, self._slots, self._orphans, self._runs)
        self._alone = False
        self._suspicious = False
        self._claiming = False
        self._claim_out: asyncio.Future[None] | None = None
        self._suspect_everything = asyncio.Event()
        self._claim_token: str | None = None
        self._draining_since: float | None = None
        self.told: Callable[[str, Any], None] = lambda _id, _output: None
        self._ids: set[str] = set()

    # --- opening and closing ---

    async def open(self) -> None:
        """Begin to work."""
        if not self._effects.gives_static_scopes:
            raise StaticScopesRequired
        await self._announce()
        self.is_open = True
        self._unsubscribe = self._host.store.subscribe(self._hear)
        self._kick.set()
        self._tasks.serve(self._schedule())
        self._tasks.serve(self._parking.park_forever())
        self._tasks.serve(self._look_forever())
        self._tasks.serve(prune_forever(self._host.store.journal, self._retention))

    async def close(self) -> None:
        """Stop claiming, wait the grace, park or release the rest.

        Cancellation: safe, what is left is given up at once.
        """
        if not self.is_open:
            return
        self.is_open = False
        self._unsubscribe()
        try:
            await self._drain(seconds(self._config.grace))
            while self._launches.pending:  # noqa: ASYNC110 - the store answers, or says that it cannot
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._launches.give_up()
            for run in tuple(self.live.values()):
                run.close()
            await self._tasks.close()
            await self._runs.close()

    async def _drain(self, grace: float) -> None:
        """Let busy runs end or come to wait; park those that wait."""
        loop = asyncio.get_running_loop()
        until = loop.time() + grace
        while (self.live or self._launches.pending) and loop.time() < until:
            idle = [run for run in self.live.values() if run.is_idle]
            if idle:
                parks = [self._tasks.start(self._parking.park(run)) for run in idle]
                await asyncio.wait(parks, timeout=max(0.0, until - loop.time()))
            if not (self.live or self._launches.pending):
                return
            self._parking.changed.clear()
            # Not only when told: who was woken while it was parked may wait again since.
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, loop.time() + LOOK_SECONDS)):
                    await self._parking.changed.wait()

    async def _announce(self) -> None:
        """Tell the others what can run here, when that has changed."""
        targets = self._programs.targets()
        if targets != self._host.membership.targets:
            await self._host.membership.announce(targets)

    def turn_here(self, session_id: str) -> str | None:
        """Return the turn of a session that is executed here."""
        for run in self.live.values():
            if run.turn is not None and run.turn.session.id == session_id:
                return run.id
        return None

    def runs_here(self, process_id: str) -> bool:
        """Return whether a process is being executed here."""
        return process_id in self._ids

    async def quiet(self) -> None:
        """Return once every run here waits, and none is ready: a simulated clock may go on."""
        while self.is_open:
            while self.stirring():  # noqa: ASYNC110 - only simulated clocks ask, and there are many reasons
                await asyncio.sleep(QUIET_SECONDS)
            due, suspect = await self._host.store.runs.next_due(self._programs.targets())
            if (due is None or due > 0) and not (suspect or self.stirring()):
                return
            self._kick.set()

    def stirring(self) -> bool:
        """Return whether anything here has something to do."""
        if self._kick.is_set() or self._claiming:
            return True
        return any(not run.is_idle or run.parking is not None for run in self.live.values())

    # --- starting ---

    async def start(self, command: StartProcess, *, is_new: bool = False) -> None:
        """Start a process; here, if there is a slot for it and nothing that must come before it.

        ``is_new``: its id was made for it, so that nobody else can have started it.
        """
        registration, processes = command.registration, self._host.store.processes
        special = command.delay or registration.slot
        if special or not await self._will_have_room_for(registration.target):
            await processes.start(command)
        elif is_new and registration.timeout is None and self._effects is self._host:
            await self._launches.begin(command)
        else:
            started = processes.start(command, self._host.membership.worker)
            await self._launches.launched(started, partial(self._started_process, registration))

    def _started_process(
        self, registration: Registration, leased: LeasedStart | None
    ) -> Standing | None:
        if leased is None:
            return None
        record = just_started(registration, leased.number, leased.now)
        return Standing(record, Attached(leased.fence, leased.now))

    async def submit(self, new: NewTurn) -> Submitted:
        """Submit a turn; it runs here, if there is a slot for it and its session is free."""
        sessions, token = self._host.store.sessions, self._host.new_token()
        if not await self._will_have_room_for(TURN_TARGET):
            return await sessions.submit(new, token)

        worker = self._host.membership.worker
        return await self._launches.launched(sessions.submit(new, token, worker), standing_of)

    async def _will_have_room_for(self, target: str) -> bool:
        """Return whether a run may begin here, now or once a claim gives back the slots it did not need."""
        if self._claim_out is not None and not self._has_room_for(target):
            await asyncio.wait((self._claim_out,))
        return self._has_room_for(target)

    def _has_room_for(self, target: str) -> bool:
        others_first = self._backlog or self._suspicious or self._alone
        ready = self.is_open and self._room() > 0 and not others_first
        return ready and self._programs.knows(target)

    # --- scheduling ---

    def _hear(self, topic: str) -> None:
        kind, _, rest = topic.partition(":")
        if kind == "runs":
            if rest and len(self._ready_turns) < MAX_NAMED:
                self._ready_turns[int(rest)] = None
            self._kick.set()
        elif kind == "wake" and (run := self.live.get(int(rest))) is not None:
            run.woken()
        elif kind == "cancel" and (run := self.live.get(int(rest))) is not None:
            self._tasks.serve(self._lookout.look_soon(run))
        elif not topic:
            self._kick.set()
            self._suspect_everything.set()

    async def _schedule(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(NET_SECONDS):
                    await self._kick.wait()
            self._kick.clear()
            self._claiming = True
            try:
                await self._announce()
                await self._orphans.release()
                await self._claim_ready()
            except StoreError:  # it is away for the moment
                await asyncio.sleep(STORE_AWAY_SECONDS)
                self._kick.set()
            except Exception:  # noqa: BLE001 - one broken row must not stop the others
                _log.exception("the scheduler stumbled, and goes on")
                await asyncio.sleep(STORE_AWAY_SECONDS)
                self._kick.set()
            finally:
                self._claiming = False

    async def _claim_ready(self) -> None:
        runs, targets = self._host.store.runs, self._programs.targets()
        claimed, full, crowded = 0, False, self._backlog
        self._backlog = False
        while self.is_open and not (self._suspicious or full):
            limit = min(self._room(), CLAIM_AT_ONCE)
            full = limit <= 0
            if not full:
                named = list(self._ready_turns)
                claimed = await self._claim(limit, targets, first=self._first(limit, crowded))
                if claimed < limit:
                    for run in named:  # all that was ready is claimed
                        self._ready_turns.pop(run, None)
                    break
                crowded = True
        self._backlog = full  # from now on a slot that is given back makes us look again
        due, suspect = await runs.next_due(targets)
        self._backlog = full and due is not None and due <= 0
        self._suspicious = suspect and self._may_drain()
        if self._suspicious and self.is_open:
            await self._claim_suspect(targets)
        if due is None or self._backlog:
            return
        if due <= 0 and not (claimed or self._suspicious):
            await self._host.membership.renew()  # perhaps others gave us up
            due = EMPTY_MICROS
        self._ring_in(max(0, due) / 1_000_000)

    def _first(self, limit: int, crowded: bool) -> list[int]:
        """Return the turns to claim before older runs: half of the limit, if there is not room for all."""
        if not crowded:
            return []
        half, self._odd = divmod(limit + self._odd, 2)
        first = list(islice(self._ready_turns, half))
        for run in first:
            del self._ready_turns[run]
        return first

    def _may_drain(self) -> bool:
        """Return whether to let everything else wait for a suspect: for a while, not for ever."""
        now = asyncio.get_running_loop().time()
        if self._draining_since is None or now - self._draining_since > 2 * DRAIN_SECONDS:
            self._draining_since = now
            asyncio.get_running_loop().call_later(DRAIN_SECONDS, self._kick.set)
        return now - self._draining_since < DRAIN_SECONDS

    async def _claim(
        self,
        limit: int,
        targets: Sequence[str],
        *,
        suspect: bool = False,
        first: Sequence[int] = (),
    ) -> int:
        """Claim up to limit runs and begin them; return how many there were."""
        self._slots.reserve(limit)
        self._claim_out = asyncio.get_running_loop().create_future()
        begun = 0
        try:
            again = self._claim_token is not None
            token = self._claim_token = self._claim_token or self._host.new_token()
            worker = self._host.membership.worker
            claims = await self._host.store.runs.claim(
                worker,
                token,
                limit=limit,
                targets=targets,
                suspect=suspect,
                again=again,
                first=first,
            )
            self._claim_token = None  # until we had an answer, asking again is the same claim
            for claim in claims:
                self._ready_turns.pop(claim.fence.run, None)
            if claims:
                begun = len(claims)
                await self._resume(claims)
        finally:
            self._slots.give_back(limit - begun)
            self._claim_out.set_result(None)
            self._claim_out = None
        return begun

    async def _claim_suspect(self, targets: Sequence[str]) -> None:
        """Execute a run that may be to blame for crashes, when nothing else runs here."""
        for run in [run for run in self.live.values() if run.is_idle]:
            await self._parking.park(run)
        if self.live:
            return  # the last of them to end kicks us
        self._alone = bool(await self._claim(1, targets, suspect=True))
        self._suspicious = self._alone
        if not self._alone:
            self._kick.set()

    async def _resume(self, claims: list[Claim]) -> None:
        """Begin what was claimed."""
        try:
            resumed = await standings(self._host.store, claims)
        except Exception:
            self._orphans.add(claim.fence for claim in claims)
            self._slots.give_back(len(claims))
            raise
        unreadable = [claim.fence for claim in claims if claim.fence.run not in resumed]
        for claim in claims:
            if claim.fence.run in resumed:
                self._begin(resumed[claim.fence.run], claim.run.wake_seq)
        self._slots.give_back(len(unreadable))
        while unreadable:
            try:
                await self._host.store.runs.block(unreadable[-1], UNREADABLE)
            except Exception:
                self._orphans.add(unreadable)
                raise
            unreadable.pop()

    def _ring_in(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._tasks.start(self._ring(delay))

    async def _ring(self, delay: float) -> None:
        await self._host.clock.sleep(delay)
        self._kick.set()

    # --- slots ---

    async def take_slot(self, run: LiveRun) -> None:
        """Return once the run may execute."""
        await self._slots.take()
        if run.closed:
            self._slots.give_back()
        else:
            run.has_slot = True

    def _room(self) -> int:
        """Return how many runs may begin: there are slots, and those that wait take memory too."""
        most = self._config.concurrency + MAX_IDLE
        return min(self._slots.free, most - len(self.live) - self._launches.pending)

    def _slot_is_free(self) -> None:
        if self._backlog or (self._suspicious and not self.live):
            self._kick.set()

    def idle(self, run: LiveRun) -> None:
        """Hear that every branch of the run waits: its slot is free, and it may be parked."""
        if run.has_slot:
            run.has_slot = False
            self._slots.give_back()
        self._parking.add(run)
        if run.record.slot is not None:
            # Its concurrency key counts it until it is parked.
            self._tasks.serve(self._parking.park(run))

    def busy(self, run: LiveRun) -> None:
        """Hear that a branch of the run goes on."""
        self._parking.remove(run)

    # --- executing ---

    def _begin(self, standing: Standing, wake_seq: int) -> None:
        self._runs.serve(self.drive(self.made(standing, wake_seq)))

    def made(self, standing: Standing, wake_seq: int) -> LiveRun:
        """Return a run that stands like this, to be executed here."""
        record, attached = standing.subject, standing.attached
        controller: Any
        if self._effects is self._host:
            controller = self._host.adopt(attached)
        else:
            scoped = self._effects.scoped_static(attached.fence.scope)
            assert scoped is not None  # checked when we were opened
            controller = scoped.controller
        run = LiveRun(record, attached.fence, controller, self, self._runs)
        run.wake_seq = wake_seq
        run.turn = standing.turn
        self.adopt(run)
        return run

    def adopt(self, run: LiveRun) -> None:
        """Know a run as executed here."""
        self.live[run.record.run] = run
        self._ids.add(run.id)

    async def drive(self, run: LiveRun) -> None:
        """Execute the run here until it ends, or is detached."""
        task = current_task()
        try:
            execution = self._execution if run.turn is None else self._turns
            output = await execution.drive(run)
            if output is not None:
                self._ids.discard(run.id)
                self.told(run.id, output)
        except BaseException as error:
            if not is_failure(error, task):
                self._orphans.add((run.fence,))
                raise
            await self._stop(run, error)
        finally:
            self._forget(run)

    async def _stop(self, run: LiveRun, error: BaseException) -> None:
        """Block a run that the code of ours which drives it has failed for: it ends for nobody else."""
        _log.error("%s stumbled", run.fence.name, exc_info=error)
        kind = ProcessStumbled if run.turn is None else TurnStumbled
        trouble = kind(run.fence.name, f"{type(error).__name__}: {message_of(error)}")
        run.close(trouble)
        try:
            await block(self._host.store, run, trouble, lambda: self.is_open)
        except Exception:  # noqa: BLE001 - whatever it is, somebody else may have more luck
            _log.exception("%s cannot be blocked, and is released", run.fence.name)
            self._orphans.add((run.fence,))

    def _forget(self, run: LiveRun) -> None:
        if self.live.get(run.record.run) is run:
            del self.live[run.record.run]
        if run.id in self._ids and not any(other.id == run.id for other in self.live.values()):
            self._ids.discard(run.id)
            self.told(run.id, None)
        self._parking.remove(run)
        if self._alone:
            self._alone = self._suspicious = False
            self._kick.set()
        if run.has_slot:
            run.has_slot = False
            self._slots.give_back()
        else:
            self._slot_is_free()
        if not self.is_open:  # somebody waits until all are gone
            self._parking.changed.set()
        run.dispose()

    async def _look_forever(self) -> None:
        """Look at every live run now and then: a hint may have been lost."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(NET_SECONDS):
                    await self._suspect_everything.wait()
            self._suspect_everything.clear()
            try:
                if self._orphans.suspected and not (self._launches.pending or self._claiming):
                    await self._orphans.find()
                await self._lookout.look_at_all()
            except StoreError:  # away for the moment; the net comes again
                pass
            except Exception:  # noqa: BLE001 - one broken row must not stop the others
                _log.exception("looking at the runs here went wrong, and goes on")
