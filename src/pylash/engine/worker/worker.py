"""The worker: executes runs, parks them, and gives them up in order.

Rule 1. The machine of the worker (``durable.machines.worker_machine``) decides which run gets a slot and which is
        parked; ``carry_out`` does it. The machine of each run decides about that run.
Rule 2. A parked run costs a row, and nothing here. ``RunTasks`` has the runs that are executed here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from pylash.durable.commands import StartProcess
from pylash.durable.machines.run_state import Phase, Slot
from pylash.durable.machines.worker_machine import (
    AllGone,
    ClaimSuspect,
    DetachRun,
    GrantSlot,
    LookForWork,
    ParkRun,
    WorkerDecision,
    WorkerDecisions,
    WorkerMachine,
)
from pylash.durable.ports import EffectHost
from pylash.durable.processes import LeasedStart, Registration, just_started
from pylash.durable.runs import Attached
from pylash.durable.sessions import TURN_TARGET, NewTurn
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.hub import wait_for_hint
from pylash.engine.runs.endings import Endings
from pylash.engine.runs.loaded_runs import LoadedRun, loaded_turn
from pylash.engine.runs.programs import Drives, Programs
from pylash.engine.runs.run import LiveRun
from pylash.engine.worker.blocked_runs import retry_fitting
from pylash.engine.worker.config import Retention, WorkerConfig
from pylash.engine.worker.endings import StoreEndings
from pylash.engine.worker.live_runs import LiveRuns
from pylash.engine.worker.parking import Parking
from pylash.engine.worker.pruning import prune_forever
from pylash.engine.worker.run_checks import RunChecks
from pylash.engine.worker.run_tasks import RunTasks
from pylash.engine.worker.scheduler import Scheduler
from pylash.tasks import TaskOwner
from pylash.values.durations import seconds
from pylash.values.errors import StoreClosed, StoreError
from pylash.values.process_errors import StaticScopesRequired

T = TypeVar("T")

QUIET_SECONDS: Final = 0.001
"""How often a simulated clock checks whether anything here has something to do."""
STUCK_SECONDS: Final = 3.0
"""How long a simulated clock waits for processes whose code waits for something that is not an effect."""
ANSWER_SECONDS: Final = 0.05
"""How often a worker that closes checks whether the store has answered its starts."""

_log = logging.getLogger("pylash")


class Worker:
    """The runner on a SQL store: it claims runs and executes them here."""

    def __init__(
        self,
        host: JournalHost,
        effects: EffectHost,
        programs: Programs,
        drives: Callable[[TaskOwner, Endings], Drives],
        config: WorkerConfig,
        retention: Retention,
        on_end: Callable[[str, Any], None],
    ) -> None:
        self.live = LiveRuns(on_end)
        # Written by ``open`` and ``close`` only. Once it is False, no start begins here and no last write is repeated.
        self.is_open = False
        self.machine = WorkerMachine(config.concurrency, seconds(config.park_after))
        # The host of the worker has its store, membership and hub; the other records the effects of runs. They are the
        # same, unless the app was given a host.
        self._host = host
        self._effects = effects
        self._grace = seconds(config.grace)
        self._tasks = TaskOwner()
        endings = StoreEndings(host.store, lambda: self.is_open)
        self._runs = RunTasks(host, effects, self.live, drives(self._tasks, endings), endings, self)
        self._scheduler = Scheduler(self.machine, self.carry_out, self._runs, host, programs)
        self._checks = RunChecks(host, self.live)
        self._parking = Parking(self.machine, host.store.runs, self._checks)
        # What the worker does beside its runs, from its start on.
        self._chores: list[Callable[[], Coroutine[Any, Any, None]]] = [
            partial(prune_forever, host.store.journal, retention)
        ]
        if effects is host:  # else the records of runs are not in this store
            self._chores.append(partial(retry_fitting, host, programs, drives))
        # Set when the worker closes and nothing is executed here any more.
        self._all_gone = asyncio.Event()
        # The decisions that are being carried out.
        self._queue: list[WorkerDecision] | None = None

    # --- the machine ---

    def carry_out(self, decisions: WorkerDecisions) -> None:
        """Carry out what the machine has decided, in order: carrying one out may lead to others."""
        if not decisions:
            return
        if self._queue is not None:
            self._queue.extend(decisions)
            return
        self._queue = list(decisions)
        try:
            for decision in self._queue:
                self._carry_out_one(decision)
        finally:
            self._queue = None

    def _carry_out_one(self, decision: WorkerDecision) -> None:
        match decision:
            case GrantSlot(run=run):
                run.driver.tell(run.machine.slot_granted)
            case ParkRun(run=run):
                self._tasks.serve(self._parking.park(run))
            case DetachRun(run=run):
                run.close()
            case LookForWork():
                self._scheduler.kick.set()
            case ClaimSuspect():
                self._scheduler.want_suspect()
            case AllGone():
                self._all_gone.set()

    def take_slot(self, run: LiveRun) -> None:
        """Grant a slot to the run, now or when its turn comes."""
        self.carry_out(self.machine.slot_wanted(run))

    def give_slot(self) -> None:
        """Return the slot of a run to the worker."""
        self.carry_out(self.machine.slot_returned())

    def become_idle(self, run: LiveRun, *, park_now: bool) -> None:
        """Note that the run may be parked."""
        now = asyncio.get_running_loop().time()
        self.carry_out(self.machine.became_idle(run, now, park_now=park_now))
        self._parking.changed.set()

    def become_busy(self, run: LiveRun) -> None:
        """Note that the run must not be parked any more."""
        self.carry_out(self.machine.became_busy(run))

    def forget(self, run: LiveRun) -> None:
        """Note that the run is not executed here any more."""
        # The run's machine gives the slot back with the last write. It holds one here if the drive raised an exception.
        if run.machine.slot is Slot.HELD:
            self.give_slot()
        self.carry_out(self.machine.run_gone(run))

    # --- opening and closing ---

    async def open(self) -> None:
        """Begin to work."""
        if not self._effects.gives_static_scopes:
            raise StaticScopesRequired
        await self._scheduler.announce()
        self.is_open = True
        self._unsubscribe = self._host.hub.subscribe(self._on_topic, "runs", "wake", "cancel")
        # Subscribed before the first look: a run that becomes ready in between gives a hint.
        self._scheduler.kick.set()
        self._tasks.serve(self._scheduler.run_forever(self._tasks))
        self._tasks.serve(self._parking.park_forever(self.carry_out))
        self._tasks.serve(self._check_forever())
        for chore in self._chores:
            self._tasks.serve(chore())

    async def close(self) -> None:
        """Stop claiming, park idle runs at once, and others that become idle; wait for all up to the grace period.

        After it, wait until the store has answered the starts and claims that were sent, and release the runs that are left.

        Cancellation: safe, the runs that are left are released at once.
        """
        if not self.is_open:
            return
        self.is_open = False
        self._unsubscribe()
        # From here on ``pending`` only shrinks: the machine has no room for claims, and starts are queued.
        self.carry_out(self.machine.close())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._grace):
                    await self._all_gone.wait()
            while self.machine.pending:  # noqa: ASYNC110 - the store answers, or says that it cannot
                await asyncio.sleep(ANSWER_SECONDS)
        finally:
            self.carry_out(self.machine.grace_over())
            # The code of runs last: what the worker does for them (parking, checks) must not find it gone.
            await self._tasks.close()
            await self._runs.tasks.close()

    async def quiet(self) -> None:
        """Return once every run here waits, and none is ready: a simulated clock may advance.

        Raises TimeoutError if the code of a process waits for something that is not an effect, such as a lock: it may need
        the clock to advance, and this cannot be known.
        """
        while self.is_open:
            # How often the same processes were found in their code, in this order. Polls and not time: code that
            # computes blocks the event loop, and is not polled.
            found: list[tuple[LiveRun, int]] = []
            times = 0
            while self._is_busy():  # only simulated clocks ask, and there are many reasons
                await asyncio.sleep(QUIET_SECONDS)
                stuck = [] if self._scheduler.is_busy else _stuck(self.live)
                before, found = found, [(run, run.machine.state.requests) for run in stuck]
                times = times + 1 if found and found == before else 0
                if times * QUIET_SECONDS > STUCK_SECONDS:
                    raise TimeoutError(_stuck_message(found[0][0]))
            if not await self._scheduler.has_due_runs() and not self._is_busy():
                return
            self._scheduler.kick.set()

    def own(self, registration: Registration) -> Registration:
        """Return a registration without the mark of another engine."""
        return replace(registration, carrier="") if registration.carrier else registration

    def has(self, run_id: str) -> bool:
        """Return whether a run is executed here."""
        return self.live.has(run_id)

    @property
    def busy(self) -> int:
        """How many runs must stop before it is closed."""
        return self.live.busy

    def turn_of(self, session_id: str) -> str | None:
        """Return the turn of a session that is executed here, if there is one."""
        return self.live.turn_of(session_id)

    def _is_busy(self) -> bool:
        if self._scheduler.is_busy:
            return True
        # A run without a record is never idle.
        return any(
            run.machine.phase is not Phase.IDLE
            and (run.machine.state.config.is_durable or not run.machine.state.is_waiting)
            for run in self.live
        )

    # --- hints ---

    def _on_topic(self, topic: str) -> None:
        """Act on a notification of the store: ``runs`` or ``runs:turn``, ``wake:run``, ``cancel:run``; blank for all."""
        kind, _, rest = topic.partition(":")
        if not kind:
            self._scheduler.kick.set()
            self.live.check_due.set()
        elif kind == "runs":
            self._scheduler.note_ready(rest)
        elif (run := self.live.by_number.get(int(rest))) is None:
            self.live.note_missed(int(rest), is_claiming=self.machine.pending > 0)
        elif kind == "wake":
            run.driver.tell(run.machine.woken)
        else:
            self._tasks.serve(self._checks.check_cancel(run))

    async def _check_forever(self) -> None:
        """Check every live run now and then: a hint may have been lost."""
        while True:
            await wait_for_hint(self.live.check_due)
            try:
                await self._checks.check_all()
            except StoreError:  # away for the moment; the next check comes
                pass
            except Exception:  # noqa: BLE001 - one broken row must not stop the others
                _log.exception("the check of the runs on this worker failed and continues")

    # --- starting ---

    def start(self, command: StartProcess) -> Awaitable[Any]:
        """Start a process; here, if there is a slot for it and nothing that must come before it.

        If it is known at once that the process starts here, the answer is a future, and the start goes on if that is
        cancelled; registry work needs no other task then.
        """
        is_here = self.machine.may_start and self._may_execute(command)
        return self._start_here(command) if is_here else self._start_or_queue(command)

    async def _start_or_queue(self, command: StartProcess) -> Any:
        target, has_room_for = command.registration.target, self._scheduler.has_room_for
        if self._may_execute(command) and await has_room_for(target):
            return await self._start_here(command)
        await self._host.store.processes.start(command)
        return {"id": command.registration.id}

    def _may_execute(self, command: StartProcess) -> bool:
        must_be_queued = command.delay or command.registration.slot
        knows = self._scheduler.knows
        return not must_be_queued and self.is_open and knows(command.registration.target)

    def _start_here(self, command: StartProcess) -> asyncio.Future[Any]:
        processes, worker = self._host.store.processes, self._host.membership.worker
        return self._launch(
            processes.start(command, worker),
            partial(_started_process, command.registration),
            {"id": command.registration.id},
        )

    async def submit(self, new: NewTurn) -> None:
        """Submit a turn; it runs here, if there is a slot for it and its session is free."""
        sessions, token = self._host.store.sessions, self._host.new_token()
        if not (self.is_open and await self._scheduler.has_room_for(TURN_TARGET)):
            await sessions.submit(new, token)
            return
        worker = self._host.membership.worker
        await self._launch(sessions.submit(new, token, worker), loaded_turn)

    def _launch(
        self, starting: Awaitable[T], load: Callable[[T], LoadedRun | None], answer: Any = None
    ) -> asyncio.Future[Any]:
        """Execute the run that ``starting`` starts, if it is ours then; also if the caller is cancelled meanwhile.

        The caller gets ``answer``.
        """
        self.carry_out(self.machine.claim_sent(1))
        caller: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._runs.tasks.serve(self._launch_run(starting, load, answer, caller))
        return caller

    async def _launch_run(
        self,
        starting: Awaitable[T],
        load: Callable[[T], LoadedRun | None],
        answer: Any,
        caller: asyncio.Future[Any],
    ) -> None:
        """Wait for the store's answer in the task that then executes the run, so that no answer is left without one."""
        run = None
        try:
            loaded = load(await starting)
            run = None if loaded is None else self._runs.add(loaded, 0)
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            # It may have been started before the store went away.
            self._runs.orphans.suspected = True
            if not caller.done():
                # This task is cancelled when a worker that closes does not wait for the answer.
                is_late = isinstance(error, asyncio.CancelledError)
                caller.set_exception(StoreClosed() if is_late else error)
            return
        finally:
            # Before its code begins: a run that waits must be known to the machine.
            self.carry_out(self.machine.claim_answered(1, () if run is None else (run,)))
        if not caller.done():
            caller.set_result(answer)
        if run is not None:
            await self._runs.drive(run)


def _stuck(live: Iterable[LiveRun]) -> list[LiveRun]:
    """Return the processes that are in their code while all their effects only wait; none if anything else works."""
    busy = [run for run in live if not run.machine.state.is_waiting]
    is_stuck = all(
        run.turn is None
        and run.machine.phase is Phase.RUNNING
        and not (run.machine.state.effects.working or run.machine.state.cancels.deliveries)
        for run in busy
    )
    return busy if is_stuck else []


def _stuck_message(run: LiveRun) -> str:
    """Return why a simulated clock cannot go on because of a run."""
    effects = (effect.envelope for effect in run.machine.state.effects.in_flight.values())
    names = ", ".join(repr(one.invocation.effect_id) for one in effects if one is not None)
    return (
        f"The clock cannot go on: the code of process {run.id!r} waits for something that is not a call of ctx, such as a "
        f"lock or a semaphore. Its effects that wait: {names or 'none'}. Use ctx.gather(..., limit=n) instead of a "
        "semaphore, and a step for other waits."
    )


def _started_process(registration: Registration, leased: LeasedStart | None) -> LoadedRun | None:
    if leased is None:
        return None
    record = just_started(registration, leased.number, leased.now)
    return LoadedRun(record, Attached(leased.fence, leased.now))
