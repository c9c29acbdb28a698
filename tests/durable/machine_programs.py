"""Small programs that are executed with the machine of a run, over a record of what happened before.

A program is a nested tuple: ``("step",)`` and ``("wait",)`` are effects; ``("fail",)`` raises; ``("all", …)``,
``("gather", …)`` and ``("race", …)`` have programs inside; ``("finally", body, cleanup)`` cleans up; ``("catch", body)``
continues after a cancel or a failure. Branches are generators, so that the order does not depend on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import takewhile
from typing import Any

from pylash.durable.machines.effect_table import WORK, Answer, Effect, Perform, StopWork
from pylash.durable.machines.run_cancels import cancel_key
from pylash.durable.machines.run_decisions import (
    Decision,
    Deliver,
    GoOn,
    RaiseCancelled,
    TakeSlot,
    Withdraw,
)
from pylash.durable.machines.run_machine import RunMachine
from pylash.durable.machines.run_state import (
    Branch,
    Caller,
    CodeEnd,
    Group,
    Phase,
    Recorded,
    RecordedCancel,
    RunConfig,
)
from tests.durable.machine_world import Choices

Program = tuple[Any, ...]
Code = Generator[Any, Any, Any]
Transaction = dict[str, Any]
CANCELLED = "cancelled"


class Cancelled(Exception):
    """A cancel reaches the code."""


class Failed(Exception):
    """The program raises."""


def random_program(choices: Choices, depth: int = 3) -> Program:
    """Return a program that contains everything sooner or later."""
    if depth == 0:
        return [("step",), ("wait",), ("wait",), ("fail",)][choices.below(4)]
    inner = [random_program(choices, depth - 1) for _ in range(1 + choices.below(3))]
    match choices.below(8):
        case 0 | 1:
            return ("gather", *inner)
        case 2 | 3:
            return ("race", *inner)
        case 4 | 5:
            return ("finally", inner[0], inner[-1])
        case 6:
            return ("catch", inner[0])
        case _:
            return ("all", *inner)


class Execution:
    """One execution of a program over what is recorded, to its end."""

    def __init__(self, program: Program, records: list[Transaction], choices: Choices) -> None:
        self.choices = choices
        self.records = list(records)
        self.journal: dict[str, Any] = {}
        for transaction in records:
            self.journal |= transaction
        root = Branch()
        self.machine = RunMachine(RunConfig(), root, cancelled=self.decision(cancel_key()))
        self.code = self.machine.code
        self.tasks: dict[Branch, Code] = {root: self.run(program, root)}
        self.to_resume: list[Branch] = [root]
        self.answers: dict[Caller, Any] = {}
        self.performing: list[Effect] = []
        self.deliveries: list[Deliver] = []
        self.deciders: dict[str, tuple[int, Branch]] = {}
        self.withdrawals: list[Withdraw] = []
        self.slots_asked = 0
        self.ended: dict[Branch, Any] = {}
        self.counts: dict[Branch, int] = {}
        self.trace: dict[str, list[tuple[str, Any]]] = {}
        """What the code of each branch was answered, in its order."""

    # --- the record ---

    def decision(self, key: str) -> RecordedCancel | None:
        found = self.journal.get(key)
        if found is None:
            return None
        return RecordedCancel(frozenset(found["cancelled"]), frozenset(found["groups"]))

    def record(self, entries: Transaction) -> None:
        assert not entries.keys() & self.journal.keys(), "a key is recorded once"
        self.records.append(entries)
        self.journal |= entries

    # --- programs ---

    def run(self, program: Program, branch: Branch) -> Code:
        kind, *inner = program
        match kind:
            case "step" | "wait":
                return (yield from self.effect(kind, branch))
            case "fail":
                raise Failed
            case "all":
                results = []
                for one in inner:
                    results.append((yield from self.run(one, branch)))  # noqa: PERF401 - it yields
                return results
            case "gather" | "race":
                return (yield from self.fork(kind, inner, branch))
            case "catch":
                try:
                    return (yield from self.run(inner[0], branch))
                except (Cancelled, Failed) as error:
                    return type(error).__name__
            case _:
                try:
                    return (yield from self.run(inner[0], branch))
                finally:
                    yield from self.run(inner[1], branch)

    def name(self, branch: Branch, kind: str) -> str:
        self.counts[branch] = self.counts.get(branch, 0) + 1
        return f"{branch.name}/{kind}{self.counts[branch]}"

    def effect(self, kind: str, branch: Branch) -> Code:
        key = self.name(branch, kind)
        answer = self.journal.get(key)
        if answer is None:
            self.obey(self.code.ask(branch, key))
            answer = yield
        else:
            recorded = Recorded.CANCELLED if answer == CANCELLED else Recorded.OUTCOME
            self.obey(self.code.replay(branch, recorded))
        self.trace.setdefault(branch.name, []).append((key, answer))
        if answer == CANCELLED:
            raise Cancelled
        return answer

    def fork(self, kind: str, programs: list[Program], parent: Branch) -> Code:
        group = Group(self.name(parent, kind), parent)
        decided, passed_on = self.decision(group.key), self.decision(cancel_key(group.key))
        self.obey(self.code.open_group(group, decided, passed_on))
        branches = [Branch(f"{group.key}.{n}", group) for n in range(len(programs))]
        for branch, program in zip(branches, programs, strict=True):
            assert self.code.fork(branch) == (), "the gate is open to its parent"
            self.tasks[branch] = self.run(program, branch)
            self.to_resume.append(branch)
        first = None if decided is None else self.journal[group.key]["first"]
        wait = self.race if kind == "race" else self.gather
        return (yield from wait(group, branches, first))

    def race(self, group: Group, branches: list[Branch], first: int | None) -> Code:
        if first is None:
            yield from self.join(group, first=0)
            first = next(n for n, branch in enumerate(branches) if branch in self.ended)
            is_cancelled = isinstance(self.ended[branches[first]], Cancelled)
            if not (self.machine.is_interrupted(group) or is_cancelled):
                yield from self.decide(group, first)
        yield from self.join(group)
        if self.machine.is_interrupted(group):
            raise Cancelled
        return self.outcome(branches[first])

    def gather(self, group: Group, branches: list[Branch], first: int | None) -> Code:
        seen = 0
        while seen < len(branches):
            yield from self.join(group, first=seen)
            seen = len(group.ended)
            failed = [isinstance(self.ended.get(branch), Failed) for branch in branches]
            if first is None and any(failed):
                first = failed.index(True)
                yield from self.decide(group, first)
        is_cancelled = any(isinstance(self.ended[branch], Cancelled) for branch in branches)
        if self.machine.is_interrupted(group) or (first is None and is_cancelled):
            raise Cancelled
        if first is not None:
            raise Failed
        return [self.outcome(branch) for branch in branches]

    def outcome(self, branch: Branch) -> Any:
        end = self.ended[branch]
        if isinstance(end, Exception):
            raise type(end)
        return end

    def join(self, group: Group, first: int | None = None) -> Code:
        self.obey(self.code.join(group.parent, group, first=first))
        yield

    def decide(self, group: Group, first: int) -> Code:
        self.deciders[group.key] = (first, group.parent)
        self.obey(self.code.decide(group))
        yield

    # --- the driver ---

    def obey(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Perform(effect=effect):
                    self.performing.append(effect)
                case StopWork(effect=effect):
                    self.performing.remove(effect)
                case Answer(effect=effect, callers=callers):
                    self.answers |= dict.fromkeys(callers, self.journal[effect.key])
                case RaiseCancelled(callers=callers):
                    self.answers |= dict.fromkeys(callers, CANCELLED)
                case GoOn(callers=callers):
                    self.to_resume += [one for one in callers if isinstance(one, Branch)]
                case Deliver():
                    self.deliveries.append(decision)
                case Withdraw():
                    self.withdrawals.append(decision)
                case TakeSlot():
                    self.slots_asked += 1
                case _:
                    pass

    def resume(self, branch: Branch) -> None:
        self.to_resume.remove(branch)
        try:
            self.tasks[branch].send(self.answers.pop(branch, None))
        except StopIteration as stop:
            self.ended[branch] = stop.value
        except (Cancelled, Failed) as error:
            self.ended[branch] = error
        if branch in self.ended:
            is_root = branch.group is None
            end = CodeEnd.FINISHED
            self.obey(self.machine.code_ended(end) if is_root else self.code.branch_ended(branch))

    def end_effect(self, effect: Effect) -> None:
        if "wait" in effect.key.rpartition("/")[2] and self.choices.below(2):
            self.obey(self.code.rest(effect) if effect.state is WORK else self.code.stir(effect))
            return
        self.performing.remove(effect)
        self.record({effect.key: f"value {self.choices.below(1000)}"})
        self.obey(self.code.land(effect))

    def write(self, delivery: Deliver) -> None:
        """Record a delivery: the decision and the cancels of what has no outcome, in one transaction."""
        self.deliveries.remove(delivery)
        first, decider = self.deciders.get(delivery.key, (None, None))
        decision = {"first": first, "cancelled": delivery.cancelled, "groups": delivery.groups}
        cancelled = [one.key for one in delivery.effects if one.key not in self.journal]
        self.record({delivery.key: decision} | dict.fromkeys(cancelled, CANCELLED))
        self.obey(self.machine.delivered(delivery.key, cancelled))
        if decider is not None:
            self.to_resume.append(decider)

    def withdraw(self, withdrawal: Withdraw) -> None:
        self.withdrawals.remove(withdrawal)
        self.record({withdrawal.key: CANCELLED})
        self.obey(self.code.withdrawn(withdrawal.caller, True))

    def grant(self) -> None:
        self.slots_asked -= 1
        self.obey(self.machine.slot_granted())

    def execute(self, *, cancel: bool) -> Any:
        """Execute the program to its end; with ``cancel``, it is asked to end at some moment. Return its result."""
        self.machine.begin()
        while self.machine.phase is not Phase.ENDING:
            acts: list[Callable[[], object]] = [
                *(partial(self.resume, branch) for branch in self.to_resume),
                *(partial(self.end_effect, effect) for effect in self.performing),
                *(partial(self.write, delivery) for delivery in self.deliveries),
                *(partial(self.withdraw, withdrawal) for withdrawal in self.withdrawals),
                *[self.grant] * self.slots_asked,
            ]
            assert acts, "it is stuck"
            if cancel and self.choices.below(12) == 0:
                cancel = False
                self.obey(self.machine.cancel_seen())
            else:
                acts[self.choices.below(len(acts))]()
        (end,) = [end for branch, end in self.ended.items() if branch.group is None]
        return type(end).__name__ if isinstance(end, Exception) else end


def is_known(keys: frozenset[str], answer: tuple[str, Any]) -> bool:
    return answer[0] in keys


def check_replays(choices: Choices) -> int:
    """Execute a random program, then again over every prefix of its records; return how many there were."""
    program, cancel = random_program(choices), choices.below(3) > 0
    original = Execution(program, [], choices)
    result = original.execute(cancel=cancel)
    for length in range(len(original.records) + 1):
        again = Execution(program, original.records[:length], choices)
        known = frozenset(again.journal)
        is_whole = length == len(original.records)
        found = again.execute(cancel=cancel and not is_whole)
        for name, answers in original.trace.items():
            replayed = list(takewhile(partial(is_known, known), answers))
            assert again.trace.get(name, [])[: len(replayed)] == replayed, name
        if is_whole:
            assert (again.trace, found, again.records) == (original.trace, result, original.records)
    return len(original.records)
