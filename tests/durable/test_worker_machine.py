"""The machine of a worker: slots, idle runs, suspects and closing."""

from __future__ import annotations

import random  # noqa: TID251 - a seed repeats a walk
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from pylash.durable.machines.worker_machine import (
    CLEARING_SECONDS,
    MAX_IDLE,
    WORKER_FACTS,
    AllGone,
    ClaimSuspect,
    DetachRun,
    GrantSlot,
    ImpossibleWorkerFact,
    LookForWork,
    ParkRun,
    WorkerDecision,
    WorkerMachine,
    WorkerPhase,
)

AFTER = 5.0


def worker(slots: int = 2, *runs: str) -> WorkerMachine:
    """Return a worker that executes runs."""
    machine = WorkerMachine(slots, AFTER)
    for run in runs:
        machine.claim_sent(1)
        machine.claim_answered(1, [run])
    return machine


def clearing(*runs: str) -> WorkerMachine:
    machine = worker(3, *runs)
    machine.looked(backlog=False, suspect=True, now=0.0)
    assert machine.phase is WorkerPhase.CLEARING
    return machine


def test_a_slot_that_is_given_back_goes_to_the_run_that_has_waited_longest() -> None:
    machine = worker(1, "a")
    assert machine.slot_wanted("b") == ()
    assert machine.slot_wanted("c") == ()
    assert machine.slot_returned() == [GrantSlot("b")]
    assert machine.slot_returned() == [GrantSlot("c")]
    assert machine.slot_returned() == []
    assert machine.free == 1


def test_runs_that_go_on_come_before_runs_that_begin() -> None:
    machine = worker(1, "a")
    machine.slot_wanted("a")
    machine.slot_returned()
    assert (machine.room, machine.may_start) == (0, False)


def test_slots_that_a_claim_did_not_need_are_given_back() -> None:
    machine = worker(3)
    machine.claim_sent(3)
    machine.slot_wanted("old")
    assert machine.claim_answered(3, ["new"]) == [GrantSlot("old")]
    assert (machine.free, machine.live) == (1, {"new"})


def test_a_slot_that_becomes_free_makes_the_worker_look_if_runs_are_ready() -> None:
    machine = worker(1, "a")
    machine.looked(backlog=True, suspect=False, now=0.0)
    assert machine.slot_returned() == [LookForWork()]
    assert not machine.may_start, "what is ready comes before what is started"
    machine.looked(backlog=False, suspect=False, now=0.0)
    assert machine.may_start


def test_a_slot_that_became_free_during_a_look_makes_the_worker_look_again() -> None:
    machine = worker(2, "a")
    assert machine.looked(backlog=True, suspect=False, now=0.0) == (LookForWork(),)


def test_a_run_that_ends_makes_room_for_runs_that_are_ready() -> None:
    machine = worker(MAX_IDLE * 2)
    runs = [f"run {n}" for n in range(MAX_IDLE * 3)]
    for run in runs:
        machine.claim_sent(1)
        machine.claim_answered(1, [run])
        machine.slot_returned()
        machine.became_idle(run, 0.0)
    assert machine.room == 0
    assert machine.looked(backlog=True, suspect=False, now=0.0) == ()
    assert machine.run_gone(runs[0]) == (LookForWork(),)


def test_a_new_run_does_not_begin_before_runs_that_are_ready() -> None:
    machine = worker(2, "a")
    machine.looked(backlog=True, suspect=False, now=0.0)
    assert (machine.room, machine.may_start) == (1, False)


def test_idle_runs_take_room_too() -> None:
    machine = worker(MAX_IDLE * 2)
    runs = [f"run {n}" for n in range(MAX_IDLE * 2)]
    machine.claim_sent(len(runs))
    machine.claim_answered(len(runs), runs)
    for run in runs:
        machine.slot_returned()
        machine.became_idle(run, 0.0)
    assert machine.room == MAX_IDLE


def test_a_run_is_parked_when_it_has_been_idle_long_enough() -> None:
    machine = worker(2, "a", "b")
    machine.became_idle("a", 1.0)
    machine.became_idle("b", 3.0)
    assert machine.next_due == 1.0 + AFTER
    assert machine.time_passed(1.0 + AFTER) == [ParkRun("a")]
    machine.became_busy("a")
    assert machine.next_due == 3.0 + AFTER


def test_a_run_that_is_idle_again_waits_as_long_again() -> None:
    machine = worker(1, "a")
    machine.became_idle("a", 1.0)
    machine.became_idle("a", 4.0)
    assert machine.time_passed(1.0 + AFTER) == []


def test_a_run_with_a_concurrency_key_is_parked_at_once() -> None:
    machine = worker(1, "a")
    assert machine.became_idle("a", 0.0, park_now=True) == [ParkRun("a")]


def test_beyond_the_most_idle_runs_the_longest_idle_is_parked() -> None:
    machine = worker(MAX_IDLE + 1, *(f"{n}" for n in range(MAX_IDLE + 1)))
    for n in range(MAX_IDLE):
        assert machine.became_idle(f"{n}", 0.0) == ()
    assert machine.became_idle(f"{MAX_IDLE}", 0.0) == [ParkRun("0")]
    assert machine.time_passed(0.0) == []


def test_a_suspect_is_claimed_when_nothing_else_runs_here() -> None:
    machine = clearing("a", "b")
    assert (machine.room, machine.may_start) == (0, False)
    assert machine.became_idle("a", 0.0) == [ParkRun("a")]
    assert machine.run_gone("a") == ()
    machine.slot_returned()
    machine.slot_returned()
    assert machine.run_gone("b") == (ClaimSuspect(),)
    machine.suspect_claimed("suspect")
    assert (machine.phase, machine.room) == (WorkerPhase.ALONE, 0)
    assert machine.run_gone("suspect") == (LookForWork(),)
    assert machine.phase is WorkerPhase.OPEN


def test_a_suspect_is_claimed_when_the_last_slot_comes_back_after_its_run_is_gone() -> None:
    machine = worker(1, "a")
    machine.looked(backlog=False, suspect=True, now=0.0)
    assert machine.run_gone("a") == ()
    assert machine.slot_returned() == [ClaimSuspect()]


def test_idle_runs_are_parked_for_a_suspect() -> None:
    machine = worker(2, "a")
    machine.became_idle("a", 0.0)
    assert machine.looked(backlog=False, suspect=True, now=0.0) == [ParkRun("a")]


def test_a_suspect_waits_for_starts_that_the_store_has_not_answered() -> None:
    machine = worker(2)
    machine.claim_sent(1)
    assert machine.looked(backlog=False, suspect=True, now=0.0) == []
    assert machine.claim_answered(1, []) == [ClaimSuspect()]


def test_a_suspect_that_is_gone_lets_the_others_go_on() -> None:
    machine = clearing()
    assert machine.suspect_claimed(None) == [LookForWork()]
    assert (machine.phase, machine.free) == (WorkerPhase.OPEN, 3)


def test_a_suspect_makes_the_others_wait_for_a_while_only() -> None:
    machine = clearing("a")
    late = CLEARING_SECONDS
    machine.looked(backlog=False, suspect=True, now=late)
    assert machine.phase is WorkerPhase.OPEN
    machine.looked(backlog=False, suspect=True, now=2 * late + 1)
    assert machine.phase is not WorkerPhase.OPEN


def test_a_worker_that_closes_parks_what_is_idle_and_begins_nothing() -> None:
    machine = worker(2, "a", "b")
    machine.became_idle("a", 0.0)
    assert machine.close() == [ParkRun("a")]
    assert machine.room == 0
    assert machine.became_idle("b", 0.0) == [ParkRun("b")]
    assert machine.time_passed(0.0) == [], "they are being parked"
    assert machine.became_idle("b", 0.0) == [ParkRun("b")], "it was not, and is idle again"
    assert machine.run_gone("a") == ()
    assert machine.run_gone("b") == (AllGone(),)


def test_a_worker_that_closes_waits_for_starts_and_detaches_the_rest_after_its_grace() -> None:
    machine = worker(2, "a")
    machine.claim_sent(1)
    assert machine.close() == []
    assert machine.run_gone("a") == ()
    machine.claim_answered(1, ["late"])
    assert machine.grace_over() == [DetachRun("late")]
    assert machine.run_gone("late") == (AllGone(),)


def test_more_slots_than_there_are_cannot_be_reserved() -> None:
    machine = worker(1, "a")
    with pytest.raises(ImpossibleWorkerFact, match="0 slots are free"):
        machine.claim_sent(1)


FACTS: dict[str, Callable[[WorkerMachine], object]] = {
    "claim_sent": lambda machine: machine.claim_sent(1),
    "claim_answered": lambda machine: machine.claim_answered(1, ()),
    "slot_wanted": lambda machine: machine.slot_wanted("other"),
    "slot_returned": lambda machine: machine.slot_returned(),
    "became_idle": lambda machine: machine.became_idle("a", 0.0),
    "became_busy": lambda machine: machine.became_busy("a"),
    "run_gone": lambda machine: machine.run_gone("a"),
    "time_passed": lambda machine: machine.time_passed(0.0),
    "looked": lambda machine: machine.looked(backlog=False, suspect=False, now=0.0),
    "suspect_claimed": lambda machine: machine.suspect_claimed(None),
    "close": lambda machine: machine.close(),
    "grace_over": lambda machine: machine.grace_over(),
}


def in_phase(phase: WorkerPhase) -> WorkerMachine:
    machine = worker(5, "a")
    machine.claim_sent(1)  # so that there is a start to be answered
    if phase is WorkerPhase.CLEARING:
        machine = clearing()
        machine.live.add("a")
    elif phase is WorkerPhase.ALONE:
        machine = clearing()
        machine.suspect_claimed("a")
        machine.pending = 1
    elif phase is WorkerPhase.CLOSING:
        machine = clearing()
        machine.live.add("a")
        machine.close()
    assert machine.phase is phase
    return machine


def test_a_suspect_that_was_not_claimed_is_impossible() -> None:
    machine = clearing("a")
    with pytest.raises(ImpossibleWorkerFact, match="none is being claimed"):
        machine.suspect_claimed("suspect")


@pytest.mark.parametrize("phase", WorkerPhase)
@pytest.mark.parametrize("fact", WORKER_FACTS)
def test_every_fact_is_possible_in_a_phase_or_raises(fact: str, phase: WorkerPhase) -> None:
    assert list(FACTS) == list(WORKER_FACTS)
    machine = in_phase(phase)
    if phase in WORKER_FACTS[fact]:
        FACTS[fact](machine)
    else:
        with pytest.raises(ImpossibleWorkerFact, match=fact):
            FACTS[fact](machine)


class Shop:
    """A naive model of a worker and its runs, which act by chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.size = self.random.randrange(1, 5)
        self.machine = WorkerMachine(self.size, AFTER)
        self.now = 0.0
        self.names = 0
        self.where: dict[str, str] = {}
        """Where each run is: runs, waits for a slot, is idle, or unwinds."""
        self.queue: list[str] = []
        self.starts = 0
        self.claims: list[int] = []
        self.claiming_suspect = False
        self.suspect: str | None = None
        self.parking: set[str] = set()
        self.must_look = self.is_over = False

    def tell(self, decisions: Iterable[WorkerDecision]) -> None:
        for decision in decisions:
            match decision:
                case GrantSlot(run=run):
                    assert run == self.queue.pop(0), "the longest waiting comes first"
                    self.where[run] = "runs"
                case ParkRun(run=run):
                    assert self.where[run] == "idle"
                    self.parking.add(run)
                case DetachRun(run=run):
                    assert run in self.where
                case LookForWork():
                    self.must_look = True
                case ClaimSuspect():
                    assert self.is_empty
                    self.claiming_suspect = True
                case AllGone():
                    assert self.is_empty
                    self.is_over = True
        self.check()

    @property
    def is_empty(self) -> bool:
        return not (self.where or self.starts or self.claims)

    def check(self) -> None:
        machine = self.machine
        reserved = self.starts + sum(self.claims) + self.claiming_suspect
        held = sum(where == "runs" for where in self.where.values())
        assert machine.free + held + reserved == self.size
        assert not (machine.free and self.queue), "a slot is free while a run waits for one"
        assert set(self.where) == machine.live
        assert list(machine._waiting) == self.queue
        idle = {run for run, where in self.where.items() if where == "idle"}
        assert set(machine._idle) == idle - self.parking
        if machine.phase is WorkerPhase.ALONE:
            assert set(self.where) <= {self.suspect}
        if machine.phase is not WorkerPhase.OPEN:
            assert machine.room == 0

    def new(self) -> str:
        self.names += 1
        return f"run {self.names}"

    def begin(self) -> None:
        limit = self.random.randrange(1, self.machine.room + 1)
        if self.machine.may_start and self.random.random() < 0.5:
            decisions = self.machine.claim_sent(1)
            self.starts += 1
        else:
            decisions = self.machine.claim_sent(limit)
            self.claims.append(limit)
        self.tell(decisions)

    def answer_start(self) -> None:
        self.starts -= 1
        run = self.new() if self.random.random() < 0.7 else None
        if run is not None:
            self.where[run] = "runs"
        self.tell(self.machine.claim_answered(1, [] if run is None else [run]))

    def answer_claim(self) -> None:
        limit = self.claims.pop()
        runs = [self.new() for _ in range(self.random.randrange(limit + 1))]
        self.where |= dict.fromkeys(runs, "runs")
        self.tell(self.machine.claim_answered(limit, runs))

    def answer_suspect(self) -> None:
        self.claiming_suspect = False
        self.suspect = self.new() if self.random.random() < 0.7 else None
        if self.suspect is not None:
            self.where[self.suspect] = "runs"
        self.tell(self.machine.suspect_claimed(self.suspect))

    def move(self, run: str) -> None:
        match self.where[run]:
            case "runs" if self.random.random() < 0.5:
                self.where[run] = "idle"
                # A slot goes back first, as the machine of a run decides it.
                found = [*self.machine.slot_returned(), *self.machine.became_idle(run, self.now)]
                self.tell(found)
            case "runs":
                self.go(run)
            case "idle" if self.random.random() < 0.5:
                self.parking.discard(run)
                self.where[run] = "waits"
                self.queue.append(run)
                found = [*self.machine.became_busy(run), *self.machine.slot_wanted(run)]
                self.tell(found)
            case "idle" if run in self.parking and self.random.random() < 0.3:
                self.parking.discard(run)  # it was woken since it looked, and waits for more
                self.tell(self.machine.became_idle(run, self.now))
            case "idle" if run in self.parking:
                self.go(run)
            case _:
                pass

    def go(self, run: str) -> None:
        """End a run, or let it be parked; it gives back the slot it has."""
        self.parking.discard(run)
        had_slot = self.where.pop(run) == "runs"
        decisions = list(self.machine.run_gone(run))
        if had_slot:
            decisions += self.machine.slot_returned()
        self.tell(decisions)

    def look(self) -> None:
        self.must_look = False
        suspect = self.random.random() < 0.2
        backlog = self.random.random() < 0.3
        self.tell(self.machine.looked(backlog=backlog, suspect=suspect, now=self.now))

    def pass_time(self) -> None:
        self.now += self.random.random() * 6
        self.tell(self.machine.time_passed(self.now))

    def acts(self) -> list[Callable[[], Any]]:
        acts: list[Callable[[], Any]] = [self.pass_time, self.look]
        acts += [partial(self.move, run) for run in self.where]
        if self.machine.room:
            acts.append(self.begin)
        if self.starts:
            acts.append(self.answer_start)
        if self.claims:
            acts.append(self.answer_claim)
        if self.claiming_suspect:
            acts.append(self.answer_suspect)
        return acts

    def walk(self) -> None:
        for _ in range(120):
            self.random.choice(self.acts())()
        self.tell(self.machine.close())
        for _ in range(5_000):
            if self.is_over:
                return
            self.random.choice(self.acts())()
        raise AssertionError("it does not end")


def test_the_machine_of_a_worker_keeps_its_properties_on_random_walks() -> None:
    for seed in range(150):
        try:
            Shop(seed).walk()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
