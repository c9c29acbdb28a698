"""A naive world around the machine of a run, for random walks.

It carries out the machine's decisions, and derives the place of every caller from the decisions alone. After every
fact it compares the counters of the machine with a scan, and its own state with the machine's.
"""

from __future__ import annotations

import random  # noqa: TID251 - a seed repeats a walk
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol

from pylash.durable.machines.effect_table import (
    QUEUED,
    RECORD,
    REST,
    WORK,
    Answer,
    Effect,
    Perform,
    Share,
    StopWork,
)
from pylash.durable.machines.run_cancels import is_below_cancel
from pylash.durable.machines.run_decisions import (
    BecomeIdle,
    BreakOff,
    Decision,
    Deliver,
    GoOn,
    Hang,
    Hold,
    Queue,
    RaiseCancelled,
    Refuse,
    Replay,
    Withdraw,
)
from pylash.durable.machines.run_machine import RunMachine
from pylash.durable.machines.run_state import (
    At,
    Branch,
    Caller,
    CodeEnd,
    DetachReason,
    Group,
    ParkAnswer,
    Phase,
    Recorded,
    RecordedCancel,
    RunConfig,
    SideCall,
    WriteAnswer,
)
from pylash.durable.machines.run_table import TABLE

CLOSED: Final = (Phase.DETACHED, Phase.ENDING, Phase.GONE)
AFTER_DETACHED: Final = {"Refuse", "Hang", "GiveSlot", "Write", "Forget"}
"""The decisions that may follow once a run is detached; those of the move itself aside."""
MAX_BRANCHES: Final = 12
TROUBLES: Final = [reason for reason in DetachReason if reason is not DetachReason.PARKED]
PLACES: Final = {
    At.CODE: "code",
    At.READY: "gate",
    At.EFFECT: "effect",
    At.JOIN: "join",
    At.HELD: "held",
    At.WITHDRAW: "withdraw",
    At.DONE: "done",
}

Act = Callable[[], object]


class Choices(Protocol):
    """A source of choices: seeded, or drawn by hypothesis."""

    def below(self, number: int) -> int:
        """Return a number from 0 up to a bound."""
        ...


class Seeded:
    """Choices that a seed repeats."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, number: int) -> int:
        return self._random.randrange(number)


class Model:
    """What is known of a run from the decisions of its machine, and what must be true of it."""

    def __init__(self, config: RunConfig, cancelled: RecordedCancel | None = None) -> None:
        self.config = config
        self.root = Branch()
        self.machine = RunMachine(config, self.root, cancelled=cancelled)
        self.code = self.machine.code
        self.seen: Counter[tuple[str, Phase, str]] = Counter()
        """How often what followed from which fact in which phase: decisions and phases, by name."""
        self.where: dict[Caller, str] = {self.root: "code"}
        self.performing: dict[str, Effect] = {}
        self.queued: dict[str, Effect] = {}
        self.in_line: set[Effect] = set()
        self.outdated: set[Effect] = set()
        """Effects of calls that were held or queued while their key was recorded: the driver finds the record."""
        self.broken_off: list[Effect] = []
        self.records: dict[str, str] = {}
        self.deciding: dict[str, str] = {}
        self.deliveries: dict[str, Deliver] = {}
        self.withdrawing: list[Caller] = []
        self.looking: set[Branch] = set()
        self.mixed: set[Branch] = set()
        """Branches that were not in their code all the time since the first of their asides."""
        self.slots, self.asked_slots = 1, 0
        self.is_idle = False
        self.writes = self.refused_writes = 0

    # --- telling ---

    def tell(
        self, fact: str, method: Callable[..., Any], *args: Any, **named: Any
    ) -> list[Decision]:
        """Tell the machine a fact, do what it decides, and check everything."""
        before = self.machine.phase
        decisions = list(method(*args, **named))
        after, cell = self.machine.phase, TABLE[fact][before]
        assert after in cell.phases, (fact, before, after)
        self.seen[fact, before, after.value] += 1
        for decision in decisions:
            name = type(decision).__name__
            assert name in cell.decisions, (fact, before, name)
            assert before not in CLOSED or name in AFTER_DETACHED
            self.seen[fact, before, name] += 1
            if (handler := getattr(self, f"on_{name}", None)) is not None:
                handler(decision)
        self.check()
        return decisions

    def on_Perform(self, decision: Perform) -> None:  # noqa: N802 - it is named after the decision
        effect, caller = decision.effect, decision.caller
        assert effect.key not in self.performing, "it is performed twice at a time"
        assert effect.key not in self.deciding
        was_queued = self.queued.pop(effect.key, None) is not None
        if not was_queued and self.where[caller] != "held":  # then it may be recorded since
            assert effect.key not in self.records or effect.state is RECORD
        if effect.key in self.records:
            self.outdated.add(effect)
        if self.config.is_serial:
            assert not self.in_line & set(self.performing.values()), "two effects at a time"
            self.in_line.add(effect)
        self.performing[effect.key] = effect
        self.where[caller] = "effect"

    def on_Queue(self, decision: Queue) -> None:  # noqa: N802
        assert self.config.is_serial
        self.queued[decision.effect.key] = decision.effect
        if decision.effect.key in self.records:
            self.outdated.add(decision.effect)
        self.where[decision.caller] = "effect"

    def on_Share(self, decision: Share) -> None:  # noqa: N802
        key = decision.effect.key
        assert (self.performing.get(key) or self.queued.get(key)) is decision.effect
        self.where[decision.caller] = "effect"

    def on_Hold(self, decision: Hold) -> None:  # noqa: N802
        self.where[decision.caller] = "held"

    def on_Withdraw(self, decision: Withdraw) -> None:  # noqa: N802
        assert decision.key not in self.records or self.where[decision.caller] == "held"
        self.where[decision.caller] = "withdraw"
        self.withdrawing.append(decision.caller)

    def on_Replay(self, decision: Replay) -> None:  # noqa: N802
        self.where[decision.caller] = "gate"

    def on_Answer(self, decision: Answer) -> None:  # noqa: N802
        key = decision.effect.key
        assert self.performing.pop(key) is decision.effect
        assert key not in self.deciding, "its verdict is open"
        assert self.records.get(key) != "cancelled", "it is answered and cancelled"
        self.records.setdefault(key, "outcome")
        self.to_gate(decision.callers)

    def on_RaiseCancelled(self, decision: RaiseCancelled) -> None:  # noqa: N802
        waited = [
            caller
            for caller in decision.callers
            if self.where[caller] != "code" or isinstance(caller, SideCall)
        ]
        self.to_gate(waited)

    def on_StopWork(self, decision: StopWork) -> None:  # noqa: N802
        assert self.performing.pop(decision.effect.key) is decision.effect

    def to_gate(self, callers: Iterable[Caller]) -> None:
        for caller in callers:
            assert self.where[caller] != "done"
            self.where[caller] = "gate"

    def on_GoOn(self, decision: GoOn) -> None:  # noqa: N802
        assert self.slots == 1
        assert self.machine.phase in (Phase.RUNNING, Phase.IDLE)
        requests = [caller.request for caller in decision.callers]
        assert requests == sorted(requests), "not in the order of the requests"
        for caller in decision.callers:
            assert self.where[caller] == "gate"
            self.where[caller] = "code" if isinstance(caller, Branch) else "done"
            if isinstance(caller, Branch) and self.asides_of(caller):
                self.mixed.add(caller)

    def on_Deliver(self, decision: Deliver) -> None:  # noqa: N802
        assert decision.key not in self.deliveries
        assert not (self.deliveries and decision.key.startswith("!cancel ")), "one after another"
        self.deliveries[decision.key] = decision
        for effect in decision.effects:
            assert effect.key not in self.deciding, "two deliveries decide about it"
            assert effect.state is not RECORD, "it is being recorded"
            is_cancelled = self.records.get(effect.key) == "cancelled"
            assert not is_cancelled or effect in self.outdated, "it is cancelled twice"
            self.deciding[effect.key] = decision.key

    def on_TakeSlot(self, _: Decision) -> None:  # noqa: N802
        assert (self.slots, self.asked_slots) == (0, 0)
        self.asked_slots = 1

    def on_GiveSlot(self, _: Decision) -> None:  # noqa: N802
        assert self.slots == 1
        self.slots = 0

    def on_BecomeIdle(self, decision: BecomeIdle) -> None:  # noqa: N802
        assert not decision.park_now or self.config.parks_at_once
        self.is_idle = True

    def on_BecomeBusy(self, _: Decision) -> None:  # noqa: N802
        assert self.is_idle
        self.is_idle = False

    def on_BreakOff(self, decision: BreakOff) -> None:  # noqa: N802
        self.broken_off += decision.effects
        self.performing.clear()
        self.queued.clear()

    def on_Detach(self, _: Decision) -> None:  # noqa: N802
        for caller, where in self.where.items():
            if where in ("effect", "join"):
                self.where[caller] = "code"

    def on_Refuse(self, decision: Refuse) -> None:  # noqa: N802
        if self.where[decision.caller] != "done":
            self.where[decision.caller] = "code"

    def on_Hang(self, decision: Hang) -> None:  # noqa: N802
        self.where[decision.caller] = "hangs"

    def on_Write(self, _: Decision) -> None:  # noqa: N802
        self.writes += 1

    def on_Forget(self, _: Decision) -> None:  # noqa: N802
        assert self.machine.phase is Phase.GONE

    # --- checking ---

    @property
    def branches(self) -> list[Branch]:
        return [caller for caller in self.where if isinstance(caller, Branch)]

    @property
    def sides(self) -> list[SideCall]:
        return [caller for caller in self.where if isinstance(caller, SideCall)]

    def check(self) -> None:
        """Check every property that must hold after any fact."""
        phase = self.machine.phase
        assert self.slots + self.asked_slots <= 1
        assert self.writes <= 1 + self.refused_writes
        if phase in CLOSED:
            assert phase is not Phase.GONE or self.slots == 0
            return
        self.check_counters()
        self.check_places()
        self.check_cancels()
        if phase is Phase.IDLE:
            assert (self.slots, self.is_idle) == (0, True)
        if self.machine.state.ready and phase is Phase.RUNNING:
            assert self.asked_slots == 1, "a ready caller goes on, or a slot is asked for"

    def check_counters(self) -> None:
        """Compare the counters and idleness with a scan."""
        state, phase = self.machine.state, self.machine.phase
        self.note_mixed()
        busy = sum(self.is_busy(branch) for branch in self.branches)
        busy += sum(self.where[call] in ("gate", "held", "withdraw") for call in self.sides)
        assert state.busy == busy
        in_flight = state.effects.in_flight.values()
        working = sum(effect.state not in (REST, QUEUED) for effect in in_flight)
        assert state.effects.working == working
        for branch in self.branches:
            waiting = [call for call in self.sides if call.owner is branch]
            waiting = [call for call in waiting if self.where[call] in ("effect", "held")]
            assert set(branch.calls) == set(waiting)
            assert branch.asides == sum(call.excuses for call in waiting)
        quiet = self.config.is_durable and not (busy or working or self.deliveries)
        quiet = quiet and bool(state.effects.in_flight) and not self.asked_slots
        if phase in (Phase.RUNNING, Phase.IDLE):
            assert (phase is Phase.IDLE) == quiet

    def asides_of(self, branch: Branch) -> list[SideCall]:
        """Return the asides that wait in the code of a branch."""
        calls = [call for call in self.sides if call.owner is branch and call.excuses]
        return [call for call in calls if self.where[call] in ("effect", "held")]

    def note_mixed(self) -> None:
        for branch in self.branches:
            if not self.asides_of(branch):
                self.mixed.discard(branch)
            elif self.where[branch] != "code":
                self.mixed.add(branch)
            assert branch.mixed == (branch in self.mixed)

    def is_busy(self, branch: Branch) -> bool:
        where = self.where[branch]
        if where == "code":
            return not self.asides_of(branch) or branch in self.mixed
        return where in ("gate", "held", "withdraw")

    def check_places(self) -> None:
        """Compare where the decisions put each caller with where the machine has it."""
        for caller, where in self.where.items():
            assert PLACES[caller.at] == where, (caller, caller.at, where)
        in_flight = self.performing | self.queued
        assert in_flight == self.machine.state.effects.in_flight
        for key, effect in in_flight.items():
            assert (effect.state is QUEUED) == (key in self.queued)
            waiting = [one for one, where in self.where.items() if where == "effect"]
            assert set(effect.callers) == {one for one in waiting if one.effect is effect}
        held = {one for one, where in self.where.items() if where == "held"}
        assert set(self.machine.state.cancels.held) == held

    def check_cancels(self) -> None:
        """Check that nobody is held for nothing, and that no cancel is forgotten."""
        for caller, where in self.where.items():
            if where == "held":
                assert self.deliveries or is_below_cancel(caller.owner)
        cancelling = {branch for branch in self.branches if branch.cancelling}
        pressing = {branch for branch in cancelling if branch.join is not None}
        assert set(self.machine.state.cancels.pressing) == pressing
        if self.machine.phase is not Phase.PARKING:
            for branch in cancelling:
                if self.where[branch] == "join":
                    assert self.deliveries or not self.waits(branch)

    def waits(self, branch: Branch) -> bool:
        """Return whether a cancel finds a branch where it is; by a scan, without the machine's shortcuts."""
        if self.where[branch] == "join" and branch.awaits is not None:
            if branch in self.looking:
                return True
            self.looking.add(branch)
            try:
                return self.waits(branch.awaits)
            finally:
                self.looking.discard(branch)
        if self.where[branch] == "join":
            join = branch.join
            assert join is not None
            below = list(join.group.open) if join.one is None else [join.one]
            return all(self.waits(child) for child in below)
        if branch in self.mixed and self.where[branch] in ("code", "gate", "withdraw"):
            return False
        callers: list[Caller] = [branch, *branch.calls]
        if any(self.where[caller] == "held" for caller in callers):
            return True
        pending = [one.effect for one in callers if self.where[one] == "effect"]
        return bool(pending) and all(
            effect is not None and effect.state is not RECORD and not effect.landed
            for effect in pending
        )


class World(Model):
    """Everything around a run, which acts by chance."""

    def __init__(
        self, choices: Choices, config: RunConfig, cancelled: RecordedCancel | None = None
    ) -> None:
        super().__init__(config, cancelled)
        self.choices = choices
        self.groups: dict[Branch, list[Group]] = {}
        self.decided: set[str] = set()
        self.names = 0

    def walk(self, facts: int) -> None:
        """Let something happen, a number of times."""
        while self.chance(20):
            self.worker_act()
        if self.machine.phase is Phase.STARTING:
            self.tell("begin", self.machine.begin)
        for _ in range(facts):
            self.pick(self.acts())()

    def pick(self, things: list[Any]) -> Any:
        return things[self.choices.below(len(things))]

    def chance(self, percent: int) -> bool:
        return self.choices.below(100) < percent

    def acts(self) -> list[Act]:
        """Return what may happen next."""
        acts: list[Act] = [self.worker_act]
        acts += [partial(self.deliver, key) for key in self.deliveries]
        acts += [partial(self.withdraw, caller) for caller in self.withdrawing]
        acts += [self.grant] * self.asked_slots
        in_code = [branch for branch in self.branches if self.where[branch] == "code"]
        if self.machine.phase in CLOSED:
            acts += [partial(self.unwind, branch) for branch in in_code]
            acts += [partial(self.late, effect) for effect in self.broken_off]
            return acts
        acts += [partial(self.act, branch) for branch in in_code] * 2
        acts += [partial(self.aside, self.pick(self.branches))]
        acts += [partial(self.effect_act, effect) for effect in self.performing.values()] * 2
        if self.chance(10):
            acts += [partial(self.hear_cancel, branch) for branch in in_code]
            acts += [partial(self.decide_beside, group) for group in self.undecided()]
        if self.chance(15):
            waiting = [one for one, at in self.where.items() if at not in ("code", "done")]
            acts += [partial(self.leave, caller) for caller in waiting]
        return acts

    # --- the code ---

    def hear_cancel(self, branch: Branch) -> None:
        """Raise a cancel in the code of a branch, as if one that it awaited had been cancelled."""
        self.tell("hear_cancel", self.code.hear_cancel, branch)

    def undecided(self) -> list[Group]:
        """Return the groups that a task of user code may decide about, whatever their parent does."""
        if self.machine.phase is Phase.PARKING:
            return []
        groups = [group for groups in self.groups.values() for group in groups]
        return [one for one in groups if one.open and one.ended and one.key not in self.decided]

    def decide_beside(self, group: Group) -> None:
        self.decided.add(group.key)
        self.tell("decide", self.code.decide, group)

    def act(self, branch: Branch) -> None:
        """Let the code of a branch do something."""
        if not self.code.is_gate_open:
            self.enter_or_end(branch)
        elif self.chance(55):
            self.ask(branch)
        elif self.chance(15) and self.await_other(branch):
            pass
        elif self.chance(50) and len(self.where) < MAX_BRANCHES:
            self.fork(branch)
        elif self.open_groups(branch):
            self.join_or_decide(branch)
        else:
            self.end_branch(branch)

    def unwind(self, branch: Branch) -> None:
        """Let the code of a branch act on a closed context."""
        group = Group("late", branch)
        group.open[branch] = None
        facts: list[Act] = [
            partial(self.tell, "ask", self.code.ask, branch, "late"),
            partial(self.tell, "ask_aside", self.code.ask, self.new_side(branch), "late"),
            partial(self.tell, "replay", self.code.replay, branch, Recorded.OUTCOME),
            partial(self.tell, "enter", self.code.enter, branch),
            partial(self.tell, "leave", self.code.leave, branch),
            partial(self.tell, "open_group", self.code.open_group, group),
            partial(self.tell, "fork", self.code.fork, Branch("late.0", group)),
            partial(self.tell, "join", self.code.join, branch, group),
            partial(self.tell, "await_branch", self.code.await_branch, branch, branch),
            partial(self.tell, "hear_cancel", self.code.hear_cancel, branch),
            partial(self.tell, "decide", self.code.decide, group),
            partial(self.tell, "branch_ended", self.code.branch_ended, branch),
        ]
        self.pick(facts)()

    def enter_or_end(self, branch: Branch) -> None:
        if branch is not self.root and not self.open_groups(branch) and self.chance(40):
            self.end_branch(branch)
        elif self.chance(15) and len(self.where) < MAX_BRANCHES:
            self.fork(branch)  # as below, by a branch that has not entered
        else:
            self.enter(branch)
            if self.code.is_gate_open or self.machine.phase is not Phase.RUNNING:
                return
            if self.chance(30) and len(self.where) < MAX_BRANCHES:
                self.fork(branch)  # a task group starts a branch without waiting for anything

    def enter(self, branch: Branch) -> None:
        self.where[branch] = "gate"  # unless the machine decides otherwise
        self.tell("enter", self.code.enter, branch)

    def ask(self, caller: Caller) -> None:
        key, recorded = self.key_for(caller)
        if isinstance(caller, SideCall):
            self.tell("ask_aside", self.code.ask, caller, key, recorded)
        elif recorded in (Recorded.OUTCOME, Recorded.CANCELLED):
            self.tell("replay", self.code.replay, caller, recorded)
        else:
            self.tell("ask", self.code.ask, caller, key, recorded)

    def key_for(self, caller: Caller) -> tuple[str, Recorded]:
        """Return the key of a new effect, or of one that several callers ask for, and what is recorded."""
        self.names += 1
        key = f"{caller.owner.name}/{self.names}"
        if self.chance(25):
            key = f"shared{self.choices.below(6)}"
        if not self.config.is_durable:
            self.records.pop(key, None)
        match self.records.get(key):
            case "cancelled":
                return key, self.pick([Recorded.CANCELLED, Recorded.ELSEWHERE])
            case "outcome":
                return key, self.pick([Recorded.OUTCOME, Recorded.ELSEWHERE])
            case _:
                return key, Recorded.NOTHING

    def new_side(self, owner: Branch) -> SideCall:
        call = SideCall(owner, self.chance(85))
        self.where[call] = "code"
        return call

    def aside(self, owner: Branch) -> None:
        if len(self.where) < 2 * MAX_BRANCHES:
            self.ask(self.new_side(owner))

    def fork(self, parent: Branch) -> None:
        self.names += 1
        group = Group(f"{parent.name}g{self.names}", parent)
        self.groups.setdefault(parent, []).append(group)
        self.tell("open_group", self.code.open_group, group)
        for number in range(1 + self.choices.below(3)):
            child = Branch(f"{group.key}.{number}", group)
            self.where[child] = "code" if self.code.is_gate_open else "gate"
            self.tell("fork", self.code.fork, child)
        is_open = self.where[parent] == "code" and self.code.is_gate_open
        if is_open and self.chance(80):
            self.join_or_decide(parent)

    def open_groups(self, branch: Branch) -> list[Group]:
        return [group for group in self.groups.get(branch, ()) if group.open]

    def await_other(self, branch: Branch) -> bool:
        """Let a branch wait for one of another group; return whether there is one."""
        others = [
            other
            for other in self.branches
            if other.group is not None
            and other.parent is not branch
            and self.where[other] != "done"
            and branch not in self.needed_by(other)
        ]
        if not others:
            return False
        self.where[branch] = "join"
        self.tell("await_branch", self.code.await_branch, branch, self.pick(others))
        return True

    def needed_by(self, branch: Branch) -> set[Branch]:
        """Return the branches that must end before this one can; code that waits in a circle waits for ever."""
        found, new = set[Branch](), [branch]
        while new:
            one = new.pop()
            if one not in found:
                found.add(one)
                new += [child for group in self.groups.get(one, ()) for child in group.open]
                new += [one.awaits] if one.awaits is not None else []
        return found

    def join_or_decide(self, branch: Branch) -> None:
        group = self.pick(self.open_groups(branch))
        if group.ended and group.key not in self.decided and self.chance(40):
            self.decided.add(group.key)
            self.tell("decide", self.code.decide, group)
            return
        how: dict[str, Any] = {}
        if self.chance(30):
            ended = len(group.ended)
            how["first"] = ended - (ended > 0 and self.chance(30))
        elif self.chance(20):
            how["one"] = self.pick(list(group.open))
        is_met = "first" in how and len(group.ended) > how["first"]
        self.where[branch] = "join"
        if is_met:
            self.end_join(branch, group)
        self.tell("join", self.code.join, branch, group, **how)

    def end_branch(self, branch: Branch) -> None:
        if branch.group is None:
            if self.code.is_gate_open and self.chance(10):
                self.end()
            return
        self.where[branch] = "done"
        parent = branch.group.parent
        join = parent.join
        if self.where[parent] == "join" and join is not None and join.group is branch.group:
            is_last = list(branch.group.open) == [branch]
            if join.one is not None:
                is_met = join.one is branch
            else:
                is_met = is_last or join.after is not None
            if is_met:
                self.end_join(parent, branch.group)
        for other in branch.awaited_by:
            self.where[other] = "gate"
        self.tell("branch_ended", self.code.branch_ended, branch)

    def end_join(self, branch: Branch, group: Group) -> None:
        """Note that what a branch joins has happened: it waits for the delivery that interrupts it, if any."""
        is_interrupted = any(group.key in one.groups for one in self.deliveries.values())
        self.where[branch] = "join" if is_interrupted else "gate"

    def leave(self, caller: Caller) -> None:
        """Cancel the task of a caller from outside."""
        where, effect = self.where[caller], caller.effect
        if where == "withdraw":
            self.withdrawing.remove(caller)
            if effect is not None and effect.landed and effect.has_cancel:
                self.performing.pop(effect.key, None)
        is_last = where == "effect" and effect is not None and len(effect.callers) == 1
        if effect is not None and is_last and effect.state is not RECORD:
            self.deciding.pop(effect.key, None)  # the verdict is about an effect that has left
            self.queued.pop(effect.key, None)
            if effect.landed:
                del self.performing[effect.key]
        self.where[caller] = "gate"
        if where == "gate":
            self.where[caller] = "code" if isinstance(caller, Branch) else "done"
        self.tell("leave", self.code.leave, caller)

    # --- effects and the store ---

    def effect_act(self, effect: Effect) -> None:
        if self.performing.get(effect.key) is not effect or effect.landed:
            return  # it was stopped, or its task waits for the verdict
        if effect.state is WORK and self.chance(40):
            self.tell("rest", self.code.rest, effect, 100 + self.choices.below(100))
        elif effect.state is WORK and self.chance(40):
            self.tell("recording", self.code.recording, effect)
        elif effect.state is REST and self.chance(40):
            self.tell("stir", self.code.stir, effect)
        else:
            self.land(effect)

    def land(self, effect: Effect) -> None:
        """End an effect as the record says, if it says anything."""
        cancelled = self.records.get(effect.key) == "cancelled"
        if cancelled and effect.verdict is None:
            del self.performing[effect.key]  # there is no Answer for it
        self.tell("land", self.code.land, effect, cancelled=cancelled)

    def late(self, effect: Effect) -> None:
        """Report something of an effect that was broken off."""
        self.broken_off.remove(effect)
        method = self.pick(["land", "stir", "rest", "recording"])
        assert self.tell(method, getattr(self.code, method), effect) == []

    def deliver(self, key: str) -> None:
        """Answer a delivery: some of its effects are cancelled, the others have an outcome."""
        delivery = self.deliveries.pop(key)
        is_live = self.machine.phase not in CLOSED
        if is_live:
            self.end_joins(delivery)
        for effect in delivery.effects:
            self.deciding.pop(effect.key, None)
        if not self.config.is_durable:
            self.tell("delivered", self.machine.delivered, key)
            for leaf in delivery.leaves:
                if is_live and self.where[leaf] not in ("code", "done"):
                    self.leave(leaf)
            return
        open_keys = [one.key for one in delivery.effects if one.key not in self.records]
        cancelled = [one for one in open_keys if self.chance(70)]
        for effect in delivery.effects if is_live else ():
            if effect.key in cancelled:
                self.cancel(effect.key)
            elif effect.landed and effect.has_cancel:
                # There is no Answer for it. A withdrawal of its key may have removed it before.
                self.performing.pop(effect.key, None)
            elif effect.key in self.performing:
                self.records.setdefault(effect.key, "outcome")  # by others; it lands by and by
        self.tell("delivered", self.machine.delivered, key, cancelled)

    def end_joins(self, delivery: Deliver) -> None:
        for branch in self.branches:
            join = branch.join if self.where[branch] == "join" else None
            if join is not None and branch.is_joined and join.group.key in delivery.groups:
                self.end_join(branch, join.group)

    def withdraw(self, caller: Caller) -> None:
        """Answer a withdrawal."""
        self.withdrawing.remove(caller)
        yes = self.chance(70) and caller.key not in self.records
        if yes:
            self.deciding.pop(caller.key, None)
            self.cancel(caller.key)
        else:
            self.records.setdefault(caller.key, "outcome")
        shared = self.machine.state.effects.in_flight.get(caller.key)
        if not yes and shared is not None and shared.landed and shared.has_cancel:
            del self.performing[caller.key]
        self.tell("withdrawn", self.code.withdrawn, caller, yes)

    def cancel(self, key: str) -> None:
        """Record a cancel; an effect without work to stop is over by that."""
        self.records[key] = "cancelled"
        self.queued.pop(key, None)
        effect = self.performing.get(key)
        if effect is not None and (effect.state is RECORD or effect.landed):
            del self.performing[key]

    # --- the worker ---

    def grant(self) -> None:
        self.asked_slots, self.slots = 0, 1
        self.tell("slot_granted", self.machine.slot_granted)

    def worker_act(self) -> None:
        """Let the worker or a person do something."""
        machine = self.machine
        match machine.phase:
            case Phase.PARKING if self.chance(60):
                self.answer_park()
            case Phase.IDLE if self.chance(60):
                self.tell("park_due", machine.park_due)
            case Phase.DETACHED if self.chance(30):
                self.end()
            case Phase.ENDING if self.chance(50):
                self.written()
            case _:
                self.any_time()

    def any_time(self) -> None:
        machine = self.machine
        facts: list[Act] = [
            partial(self.tell, "woken", machine.woken),
            partial(self.tell, "looked", machine.looked, machine.wake_seq + 1),
            partial(self.tell, "deadline_passed", machine.deadline_passed),
            partial(self.tell, "park_due", machine.park_due),
            *[partial(self.tell, "cancel_seen", machine.cancel_seen)] * 3,
            partial(self.tell, "hold_over", machine.hold_over),
            partial(self.trouble, 100 if machine.phase in CLOSED else 15),
        ]
        self.pick(facts)()

    def trouble(self, percent: int) -> None:
        if self.machine.phase in CLOSED and self.chance(30):
            self.answer_park()
        elif self.chance(percent):
            self.tell("trouble", self.machine.trouble, self.pick(TROUBLES))

    def answer_park(self) -> None:
        answers = [ParkAnswer.PARKED, *[ParkAnswer.WOKEN] * 3, ParkAnswer.STORE_AWAY]
        self.tell("park_answered", self.machine.park_answered, self.pick(answers))

    def end(self) -> None:
        asked = self.config.is_turn and self.chance(50)
        end = self.pick(list(CodeEnd))
        self.tell("code_ended", self.machine.code_ended, end, asked_to_end=asked)

    def written(self) -> None:
        answer = self.pick(list(WriteAnswer))
        self.refused_writes += answer is WriteAnswer.REFUSED
        self.tell("written", self.machine.written, answer)

    # --- going to the end ---

    def finish(self) -> None:
        """Do what the machine asks for, and let the code end, until the run is gone."""
        for _ in range(2_000):
            phase = self.machine.phase
            if phase is Phase.GONE and not self.asked_slots:
                return
            assert self.finish_one(), f"stuck while {phase}: {list(self.where.values())}"
        raise AssertionError("it does not end")

    def finish_one(self) -> bool:
        """Do one thing that the machine waits for; False if there is none."""
        flying = [effect for effect in self.performing.values() if not effect.landed]
        todo: list[tuple[bool, Act]] = [
            (self.machine.phase is Phase.STARTING, partial(self.tell, "begin", self.machine.begin)),
            (self.machine.phase is Phase.ENDING, self.written),
            (self.asked_slots > 0, self.grant),
            (self.machine.phase is Phase.DETACHED, self.end),
            (bool(self.deliveries), lambda: self.deliver(next(iter(self.deliveries)))),
            (bool(self.withdrawing), lambda: self.withdraw(self.withdrawing[0])),
            (self.machine.phase is Phase.PARKING, self.answer_park),
        ]
        for is_due, act in todo:
            if is_due:
                act()
                return True
        if self.finish_code():
            return True
        if flying:
            self.land(flying[0])
        return bool(flying)

    def finish_code(self) -> bool:
        """Let one branch come nearer to its end; False if all wait."""
        for branch in self.branches:
            if self.where[branch] != "code":
                continue
            if not self.code.is_gate_open:
                self.enter(branch)
            elif groups := self.open_groups(branch):
                self.where[branch] = "join"
                self.tell("join", self.code.join, branch, groups[0])
            elif branch is not self.root:
                self.end_branch(branch)
            else:
                self.tell("code_ended", self.machine.code_ended, CodeEnd.FINISHED)
            return True
        return False


CONFIGS: Final = [
    RunConfig(),
    RunConfig(parks_at_once=True, deadline=150),
    RunConfig(is_turn=True, heard_before=True),
    RunConfig(is_serial=True),
    RunConfig(is_durable=False),
    RunConfig(is_durable=False, is_serial=True, is_turn=True),
]


def walk(choices: Choices, facts: int) -> World:
    """Walk at random with one of the configurations, then to the end."""
    config = CONFIGS[choices.below(3 * len(CONFIGS)) % len(CONFIGS)]
    recorded = None
    if choices.below(5) == 0:
        names = frozenset({"", "g1.0"} if choices.below(2) else {"g1.0"})
        recorded = RecordedCancel(names, frozenset({"g1"}))
    world = World(choices, config, recorded)
    world.walk(facts)
    world.finish()
    return world
