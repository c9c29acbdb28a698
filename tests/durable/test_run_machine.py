"""The machine of a run, rule by rule."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pylash.durable.machines.effect_table import Answer, Effect
from pylash.durable.machines.run_decisions import (
    Deliver,
    GoOn,
    Park,
    RaiseCancelled,
    Withdraw,
    Write,
)
from pylash.durable.machines.run_machine import MAX_REFUSALS, RunMachine
from pylash.durable.machines.run_state import (
    Branch,
    CancelState,
    CodeEnd,
    DetachReason,
    Group,
    LastWrite,
    ParkAnswer,
    Phase,
    Recorded,
    RecordedCancel,
    RunConfig,
    SideCall,
    Slot,
    WriteAnswer,
)
from pylash.durable.machines.run_table import TABLE, ImpossibleFact
from tests.durable.machine_page import PAGE, with_parts


def names(decisions: Iterable[Any]) -> list[str]:
    return [type(decision).__name__ for decision in decisions]


def only(decisions: Iterable[Any], kind: type) -> Any:
    """Return the one decision of a kind."""
    (found,) = [decision for decision in decisions if isinstance(decision, kind)]
    return found


class Running:
    """A run whose code has begun, with a few words for what its tests tell it."""

    def __init__(self, **config: Any) -> None:
        self.root = Branch()
        self.machine = RunMachine(RunConfig(**config), self.root)
        self.code = self.machine.code
        self.machine.begin()

    def is_in(self, phase: Phase) -> bool:
        return self.machine.phase is phase

    def perform(self, caller: Branch | SideCall, key: str) -> Effect:
        """Ask for an effect that is performed."""
        decision = self.code.ask(caller, key)[0]
        assert type(decision).__name__ in ("Perform", "Queue")
        return decision.effect  # type: ignore[union-attr]  # both have one

    def wait(self, caller: Branch | SideCall, key: str, due: int | None = None) -> Effect:
        """Ask for an effect that rests."""
        effect = self.perform(caller, key)
        self.code.rest(effect, due)
        return effect

    def fork(self, parent: Branch, key: str, number: int = 2) -> tuple[Group, list[Branch]]:
        group = Group(key, parent)
        self.code.open_group(group)
        branches = [Branch(f"{key}.{n}", group) for n in range(number)]
        for branch in branches:
            self.code.fork(branch)
        return group, branches

    def gather(self, number: int = 2) -> tuple[Group, list[Branch]]:
        group, branches = self.fork(self.root, "g", number)
        self.code.join(self.root, group)
        return group, branches

    def idle(self, due: int | None = None) -> Effect:
        effect = self.wait(self.root, "wait", due)
        assert self.is_in(Phase.IDLE)
        return effect


# --- idle ---


def test_a_run_is_idle_when_every_branch_waits_and_every_effect_rests() -> None:
    run = Running()
    _, (one, two) = run.gather()
    run.wait(one, "one")
    second = run.perform(two, "two")
    assert run.is_in(Phase.RUNNING)
    assert names(run.code.rest(second)) == ["GiveSlot", "BecomeIdle"]
    assert run.is_in(Phase.IDLE)


def test_a_run_without_an_effect_is_not_idle() -> None:
    run = Running()
    _, (one, two) = run.gather()
    first = run.perform(one, "one")
    run.code.land(first)
    run.code.branch_ended(one)
    run.code.branch_ended(two)
    assert run.is_in(Phase.RUNNING)


def test_a_run_without_a_record_is_never_idle() -> None:
    run = Running(is_durable=False)
    run.wait(run.root, "wait")
    assert run.is_in(Phase.RUNNING)


def test_a_step_in_flight_does_not_rest_but_can_be_cancelled() -> None:
    run = Running()
    effect = run.perform(run.root, "step")
    assert run.is_in(Phase.RUNNING)
    assert only(run.machine.cancel_seen(), Deliver).effects == (effect,)


def test_a_recorded_outcome_that_is_fetched_keeps_the_run_busy_and_is_not_cancelled() -> None:
    run = Running()
    _, (one, two) = run.gather()
    run.wait(one, "one")
    fetched = run.code.ask(two, "big", Recorded.ELSEWHERE)[0]
    assert names([fetched]) == ["Perform"]
    assert run.is_in(Phase.RUNNING)
    delivery = only(run.machine.cancel_seen(), Deliver)
    assert (delivery.cancelled, delivery.effects) == (("",), ())


def test_an_effect_that_works_again_ends_idleness_without_a_slot() -> None:
    run = Running()
    effect = run.idle()
    assert names(run.code.stir(effect)) == ["BecomeBusy"]
    assert (run.machine.phase, run.machine.slot) == (Phase.RUNNING, Slot.NONE)
    assert names(run.code.rest(effect)) == ["BecomeIdle"]


def test_a_caller_that_gets_an_answer_is_busy_in_the_same_move() -> None:
    run = Running()
    _, (one, two) = run.gather()
    run.wait(two, "two")
    landed = run.wait(one, "one")
    assert run.is_in(Phase.IDLE)
    assert names(run.code.land(landed)) == ["Answer", "BecomeBusy", "TakeSlot"]
    run.machine.slot_granted()
    assert run.is_in(Phase.RUNNING)


def test_a_joiner_is_busy_in_the_same_move_as_the_last_branch_ends() -> None:
    run = Running()
    run.wait(SideCall(run.root, excuses=False), "stray")
    _, (one,) = run.gather(1)
    assert names(run.code.branch_ended(one)) == ["GoOn"]
    assert run.is_in(Phase.RUNNING)


# --- asides ---


def test_a_branch_that_a_library_waits_in_counts_as_waiting() -> None:
    run = Running()
    run.wait(SideCall(run.root), "library")
    assert run.is_in(Phase.IDLE)


def test_a_task_that_user_code_started_does_not_excuse_its_branch() -> None:
    run = Running()
    run.wait(SideCall(run.root, excuses=False), "task")
    assert run.is_in(Phase.RUNNING)


def test_a_branch_that_waits_beside_a_library_counts_once() -> None:
    run = Running()
    _, (mixed, computes) = run.gather()
    run.wait(SideCall(mixed), "pause")
    run.wait(mixed, "signal")
    assert run.is_in(Phase.RUNNING), "the other branch computes"
    run.wait(computes, "signal 2")
    assert run.is_in(Phase.IDLE)


def test_a_branch_that_waited_since_its_first_aside_is_busy_in_its_code() -> None:
    run = Running()
    run.wait(SideCall(run.root), "library")
    run.code.enter(run.root)
    run.machine.slot_granted()
    assert run.is_in(Phase.RUNNING)
    step = run.perform(run.root, "step")
    run.code.land(step)
    assert run.is_in(Phase.RUNNING), "what its code does is not known"


def test_a_branch_acts_in_an_idle_run_only_after_it_entered() -> None:
    run = Running()
    run.wait(SideCall(run.root), "library")
    with pytest.raises(ImpossibleFact, match="'ask' of a run that is idle"):
        run.code.ask(run.root, "step")
    assert names(run.code.enter(run.root)) == ["BecomeBusy", "TakeSlot"]
    assert run.machine.slot_granted() == [GoOn((run.root,))]
    run.perform(run.root, "step")


def test_a_branch_that_enters_while_the_run_is_parked_waits_for_the_answer() -> None:
    run = Running()
    run.wait(SideCall(run.root), "library")
    run.machine.park_due()
    assert run.code.enter(run.root) == []
    assert "TakeSlot" in names(run.machine.park_answered(ParkAnswer.STORE_AWAY))
    assert run.is_in(Phase.RUNNING)


def test_an_excused_branch_may_end_in_an_idle_run() -> None:
    run = Running()
    _, (one, two) = run.gather()
    run.wait(two, "two")
    run.wait(SideCall(one), "library")
    assert run.is_in(Phase.IDLE)
    assert run.code.branch_ended(one) == []
    assert run.is_in(Phase.IDLE)


def test_an_aside_wakes_an_idle_run_and_its_answer_waits_for_a_slot() -> None:
    run = Running()
    run.idle()
    aside = SideCall(run.root)
    assert names(run.code.ask(aside, "old", Recorded.OUTCOME)) == [
        "Replay",
        "BecomeBusy",
        "TakeSlot",
    ]
    assert names(run.machine.slot_granted()) == ["GoOn", "GiveSlot", "BecomeIdle"]


def test_the_cancel_of_an_aside_surfaces_in_its_task_and_clears_the_flag_of_its_owner() -> None:
    run = Running()
    aside = SideCall(run.root)
    library = run.perform(aside, "library")
    assert only(run.machine.cancel_seen(), Deliver).effects == (library,)
    assert run.root.cancelling
    assert RaiseCancelled((aside,)) in run.machine.delivered("!cancel", ["library"])
    assert (run.root.cancelling, run.machine.cancel) == (False, CancelState.DELIVERED)


def test_a_branch_with_one_effect_that_cannot_be_cancelled_is_flagged_and_the_others_are_cancelled() -> (
    None
):
    run = Running()
    own = run.perform(run.root, "own")
    run.code.recording(run.perform(SideCall(run.root), "library"))
    delivery = only(run.machine.cancel_seen(), Deliver)
    assert (delivery.cancelled, delivery.effects) == (("",), (own,))


# --- slots and the gate ---


def test_one_slot_is_requested_and_callers_continue_in_the_order_of_their_requests() -> None:
    run = Running()
    _, (one, two) = run.gather()
    first, second = run.wait(one, "one"), run.wait(two, "two")
    assert "TakeSlot" in names(run.code.land(second))
    assert names(run.code.land(first)) == ["Answer"]
    assert run.machine.slot_granted() == [GoOn((one, two))]


def test_effects_under_way_are_not_stopped_for_want_of_a_slot() -> None:
    run = Running()
    _, (one, two) = run.gather()
    first, second = run.wait(one, "one"), run.wait(two, "two")
    run.code.stir(first)
    assert run.machine.slot is Slot.NONE
    assert run.code.recording(first) == ()
    assert names(run.code.land(second)) == ["Answer", "TakeSlot"]


def test_a_slot_that_nobody_asked_for_is_impossible() -> None:
    run = Running()
    with pytest.raises(ImpossibleFact, match="slot_granted"):
        run.machine.slot_granted()


def test_a_slot_that_arrives_after_the_run_was_detached_is_given_back() -> None:
    run = Running()
    run.code.land(run.idle())
    run.machine.trouble(DetachReason.LEASE_LOST)
    assert names(run.machine.slot_granted()) == ["GiveSlot"]
    assert names(run.machine.code_ended(CodeEnd.FINISHED)) == ["Forget"]


def test_a_run_that_is_gone_gives_back_what_it_holds() -> None:
    run = Running()
    run.machine.code_ended(CodeEnd.FINISHED)
    assert names(run.machine.written(WriteAnswer.WRITTEN)) == ["Forget", "GiveSlot"]
    assert run.machine.slot is Slot.NONE


def test_a_run_with_a_concurrency_key_asks_to_be_parked_at_once() -> None:
    run = Running(parks_at_once=True)
    effect = run.perform(run.root, "wait")
    assert run.code.rest(effect)[-1].park_now  # type: ignore[union-attr]  # it is BecomeIdle


# --- parking and wake-ups ---


def test_only_an_idle_run_is_parked() -> None:
    run = Running()
    assert run.machine.park_due() == ()
    run.idle()
    assert names(run.machine.park_due()) == ["Park"]
    assert run.machine.park_due() == ()


@pytest.mark.parametrize(
    ("due", "deadline", "until"), [(None, None, None), (5, None, 5), (5, 3, 3), (2, 3, 2)]
)
def test_a_parked_run_is_looked_at_when_its_first_effect_or_its_deadline_is_due(
    due: int | None, deadline: int | None, until: int | None
) -> None:
    run = Running(deadline=deadline)
    run.machine.looked(7)
    run.idle(due)
    assert run.machine.park_due() == (Park(until, 7),)


def test_the_deadline_does_not_wake_a_run_that_was_told_to_end() -> None:
    run = Running(deadline=3)
    run.idle()
    run.machine.cancel_seen()
    run.machine.delivered("!cancel", ["wait"])
    run.machine.slot_granted()
    run.wait(run.root, "clean up", 9)
    assert run.machine.park_due() == (Park(9, 0),)
    heard = Running(deadline=3, heard_before=True)
    heard.idle(9)
    assert heard.machine.park_due() == (Park(9, 0),)


def test_no_caller_continues_while_the_run_is_being_parked() -> None:
    run = Running()
    effect = run.idle()
    run.machine.park_due()
    assert names(run.code.land(effect)) == ["Answer"]
    assert names(run.machine.park_answered(ParkAnswer.WOKEN)) == [
        "LookAgain",
        "BecomeBusy",
        "TakeSlot",
    ]


def test_an_aside_of_a_flagged_branch_is_withdrawn_while_the_run_is_being_parked() -> None:
    run = Running()
    effect = run.idle()
    run.machine.cancel_seen()
    run.machine.delivered("!cancel")
    assert run.machine.park_due() == (Park(None, 0),), (
        "the effect has an outcome that nobody saw yet"
    )
    aside = SideCall(run.root)
    assert run.code.ask(aside, "library") == [Withdraw(aside, "library")]
    assert run.code.withdrawn(aside, True) == [RaiseCancelled((aside,))]
    assert names(run.code.land(effect)) == ["Answer"]
    assert run.is_in(Phase.PARKING)


def test_a_parked_run_is_detached_and_writes_nothing_more() -> None:
    run = Running()
    effect = run.idle()
    run.machine.park_due()
    assert names(run.machine.park_answered(ParkAnswer.PARKED)) == ["Detach", "BreakOff"]
    assert run.code.land(effect) == ()
    assert names(run.machine.code_ended(CodeEnd.FINISHED)) == ["Forget"]
    assert run.is_in(Phase.GONE)


@pytest.mark.parametrize("answer", [ParkAnswer.WOKEN, ParkAnswer.STORE_AWAY])
def test_a_run_that_could_not_be_parked_stays_idle_and_is_not_parked_at_once(
    answer: ParkAnswer,
) -> None:
    run = Running(parks_at_once=True)
    run.idle()
    run.machine.park_due()
    *_, idle = run.machine.park_answered(answer)
    assert names([idle]) == ["BecomeIdle"]
    assert not idle.park_now  # type: ignore[union-attr]  # it is BecomeIdle
    assert run.is_in(Phase.IDLE)


def test_a_hint_only_makes_the_driver_look_and_the_next_park_after_it_may_be_refused() -> None:
    run = Running()
    run.machine.looked(3)
    run.idle()
    assert names(run.machine.woken()) == ["LookAgain"]
    assert run.machine.stirred
    assert run.machine.park_due() == (Park(None, 3),)
    run.machine.park_answered(ParkAnswer.WOKEN)
    run.machine.looked(4)
    assert run.machine.park_due() == (Park(None, 4),)


def test_an_older_look_does_not_move_the_count_of_wake_ups_back() -> None:
    run = Running()
    run.machine.looked(4)
    run.machine.looked(3)
    assert run.machine.wake_seq == 4


# --- single flight ---


def test_a_second_caller_shares_the_effect_and_both_are_answered() -> None:
    run = Running()
    _, (one, two) = run.gather()
    effect = run.perform(one, "same")
    assert names(run.code.ask(two, "same")) == ["Share"]
    answer, go_on = run.code.land(effect)
    assert answer.callers == (one, two)  # type: ignore[union-attr]  # it is Answer
    assert go_on == GoOn((one, two))


def test_work_is_stopped_when_the_last_caller_has_left() -> None:
    run = Running()
    _, (one, two) = run.gather()
    effect = run.perform(one, "same")
    run.code.ask(two, "same")
    assert names(run.code.leave(one)) == ["GoOn"]
    assert names(run.code.leave(two)) == ["StopWork", "GoOn"]
    again = run.perform(one, "same")
    assert again is not effect
    assert run.code.land(effect) == (), "it has left the table"


def test_a_record_on_its_way_is_written_though_nobody_waits_for_it() -> None:
    run = Running()
    _, (one, two) = run.gather()
    effect = run.perform(one, "step")
    run.code.recording(effect)
    assert names(run.code.leave(one)) == ["GoOn"]
    assert names(run.code.ask(two, "step")) == ["Share"]
    assert names(run.code.land(effect)) == ["Answer", "GoOn"]


def test_a_task_that_is_cancelled_in_an_idle_run_waits_for_a_slot() -> None:
    run = Running()
    run.idle()
    assert names(run.code.leave(run.root)) == ["StopWork", "BecomeBusy", "TakeSlot"]
    assert run.machine.slot_granted() == [GoOn((run.root,))]


def test_a_task_that_is_cancelled_at_the_gate_goes_on_at_once() -> None:
    run = Running()
    run.code.land(run.idle())
    assert run.code.leave(run.root) == []
    assert run.machine.slot_granted() == []
    run.perform(run.root, "next")


# --- replay ---


def test_a_remembered_outcome_is_answered_without_a_move() -> None:
    run = Running()
    assert names(run.code.replay(run.root, Recorded.OUTCOME)) == []
    assert names(run.code.replay(run.root, Recorded.OUTCOME)) == []
    assert run.is_in(Phase.RUNNING)


def test_a_recorded_key_is_never_cancelled() -> None:
    run = Running()
    run.machine.cancel_seen()
    run.machine.delivered("!cancel")
    assert names(run.code.replay(run.root, Recorded.OUTCOME)) == []
    fetched = run.code.ask(run.root, "big", Recorded.ELSEWHERE)
    assert names(fetched) == ["Perform"]
    run.code.land(fetched[0].effect)  # type: ignore[union-attr]  # it is Perform
    assert names(run.code.ask(run.root, "new")) == ["Withdraw"]


def test_a_recorded_cancel_consumes_the_flag() -> None:
    root = Branch()
    machine = RunMachine(RunConfig(), root, cancelled=RecordedCancel(frozenset({""})))
    machine.begin()
    assert root.cancelling
    assert names(machine.code.replay(root, Recorded.CANCELLED)) == []
    assert names(machine.code.ask(root, "clean up")) == ["Perform"]
    assert machine.cancel is CancelState.DELIVERED


def test_a_recorded_decision_flags_the_branches_it_names_and_interrupts_its_groups() -> None:
    run = Running()
    group = Group("race", run.root)
    run.code.open_group(group, RecordedCancel(frozenset({"race.1"}), frozenset({"inner"})))
    one, two = Branch("race.0", group), Branch("race.1", group)
    run.code.fork(one)
    run.code.fork(two)
    assert (one.cancelling, two.cancelling) == (False, True)
    assert run.machine.is_interrupted(Group("inner", two))


# --- cancel ---


def test_a_cancel_is_written_before_anyone_learns_of_it_and_the_effect_does_not_land_meanwhile() -> (
    None
):
    run = Running()
    effect = run.idle()
    assert names(run.machine.cancel_seen()) == ["Deliver", "BecomeBusy"]
    assert run.code.land(effect) == []
    assert names(run.machine.delivered("!cancel", ["wait"])) == ["RaiseCancelled", "TakeSlot"]


def test_a_cancelled_effect_stops_and_its_callers_get_the_cancel() -> None:
    run = Running()
    run.perform(run.root, "step")
    run.machine.cancel_seen()
    stop, raised, go_on = run.machine.delivered("!cancel", ["step"])
    assert names([stop, raised, go_on]) == ["StopWork", "RaiseCancelled", "GoOn"]
    assert run.machine.cancel is CancelState.DELIVERED


def test_an_effect_with_an_outcome_keeps_it_and_the_branch_is_told_at_its_next() -> None:
    run = Running()
    effect = run.perform(run.root, "step")
    run.machine.cancel_seen()
    run.code.land(effect)
    assert names(run.machine.delivered("!cancel")) == ["Answer", "GoOn"]
    assert names(run.code.ask(run.root, "next")) == ["Withdraw"]
    assert names(run.code.withdrawn(run.root, True)) == ["RaiseCancelled", "GoOn"]


def test_an_effect_that_is_recorded_or_over_is_not_cancelled() -> None:
    run = Running()
    run.code.recording(run.perform(run.root, "step"))
    assert only(run.machine.cancel_seen(), Deliver).effects == ()
    run = Running()
    run.code.ask(run.root, "sleep that is over", Recorded.ELSEWHERE)
    assert only(run.machine.cancel_seen(), Deliver).effects == ()


def test_a_withdrawal_that_finds_an_outcome_fetches_it_and_the_branch_keeps_its_flag() -> None:
    run = Running()
    run.machine.cancel_seen()
    run.machine.delivered("!cancel")
    run.code.ask(run.root, "wait")
    fetched = run.code.withdrawn(run.root, False)
    assert names(fetched) == ["Perform"]
    run.code.land(fetched[0].effect)  # type: ignore[union-attr]  # it is Perform
    assert names(run.code.ask(run.root, "next")) == ["Withdraw"]


def flagged_beside_the_same_effect() -> tuple[Running, Branch, Branch, Effect]:
    """Return two branches: one has an effect in flight, the other is flagged and withdraws the same one."""
    run = Running()
    group, (one, two, three) = run.fork(run.root, "g", 3)
    effect = run.perform(one, "same")
    run.code.recording(effect)
    run.code.branch_ended(three)
    run.code.decide(group)
    run.machine.delivered("g")
    return run, one, two, effect


def test_a_flagged_branch_shares_an_effect_that_is_being_recorded() -> None:
    run, _, two, _ = flagged_beside_the_same_effect()
    assert names(run.code.ask(two, "same")) == ["Share"]
    assert two.cancelling


def withdrawn_beside_another_caller() -> tuple[Running, Branch, Branch, Effect]:
    run = Running()
    group, (one, two) = run.fork(run.root, "g")
    inner, (three,) = run.fork(one, "inner", 1)
    effect = run.perform(three, "same")
    run.code.join(one, inner)
    two.cancelling = True  # as if it were cancelled before
    assert run.code.ask(two, "same") == [Withdraw(two, "same")]
    assert run.code.land(effect) == [], "its verdict is open"
    assert group.open
    return run, two, three, effect


def test_a_withdrawal_cancels_the_effect_that_another_caller_has_in_flight() -> None:
    run, two, three, _ = withdrawn_beside_another_caller()
    decisions = run.code.withdrawn(two, True)
    assert RaiseCancelled((two,)) in decisions
    assert RaiseCancelled((three,)) in decisions


def test_an_effect_lands_when_the_withdrawal_finds_its_outcome_or_the_caller_has_left() -> None:
    run, two, three, effect = withdrawn_beside_another_caller()
    answer = run.code.withdrawn(two, False)[1]
    assert answer == Answer(effect, (three, two))
    run, two, three, effect = withdrawn_beside_another_caller()
    assert run.code.leave(two)[0] == Answer(effect, (three,))


def test_a_fetched_outcome_that_is_a_cancel_is_raised_and_consumes_the_flag() -> None:
    run = Running()
    run.machine.cancel_seen()
    run.machine.delivered("!cancel")
    effect = run.code.ask(run.root, "old", Recorded.ELSEWHERE)[0].effect  # type: ignore[union-attr]  # it is Perform
    assert names(run.code.land(effect, cancelled=True)) == ["RaiseCancelled", "GoOn"]
    assert names(run.code.ask(run.root, "next")) == ["Perform"]


def test_a_branch_that_joins_is_cancelled_at_its_leaves_and_the_joins_are_interrupted() -> None:
    run = Running()
    group, (one, two) = run.gather()
    inner, (three,) = run.fork(two, "inner", 1)
    run.code.join(two, inner)
    effects = (run.wait(one, "one"), run.wait(three, "three"))
    delivery = only(run.machine.cancel_seen(), Deliver)
    assert delivery.cancelled == ("g.0", "inner.0")
    assert delivery.groups == ("g", "inner")
    assert delivery.effects == effects
    assert run.machine.is_interrupted(group)
    assert run.machine.is_interrupted(inner)


def test_a_join_of_one_branch_is_not_interrupted() -> None:
    run = Running()
    group, (one, two) = run.fork(run.root, "g")
    run.code.join(run.root, group, one=one)
    run.wait(one, "one")
    run.wait(two, "two")
    delivery = only(run.machine.cancel_seen(), Deliver)
    assert (delivery.cancelled, delivery.groups) == (("g.0",), ())


def test_a_branch_in_its_code_is_flagged_and_told_at_its_next_new_effect() -> None:
    run = Running()
    _, (one, two) = run.gather()
    run.wait(one, "one")
    delivery = only(run.machine.cancel_seen(), Deliver)
    assert (delivery.cancelled, delivery.groups, delivery.effects) == (("",), (), ())
    run.machine.delivered("!cancel")
    assert names(run.code.ask(two, "two")) == ["Hold", "Deliver"]


def held_below_a_cancel() -> tuple[Running, Branch, Branch, Deliver]:
    run = Running()
    _, (one, two) = run.gather()
    run.wait(one, "one")
    run.machine.cancel_seen()
    run.machine.delivered("!cancel")
    return run, one, two, only(run.code.ask(two, "two"), Deliver)


def test_a_cancel_is_passed_on_when_all_below_wait_then_held_branches_ask_again() -> None:
    run, _, two, delivery = held_below_a_cancel()
    assert (delivery.key, delivery.cancelled) == ("!cancel g", ("g.0", "g.1"))
    decisions = run.machine.delivered("!cancel g", ["one"])
    assert Withdraw(two, "two") in decisions
    assert "RaiseCancelled" in names(decisions)


def test_a_cancel_that_was_passed_on_to_a_group_is_not_passed_on_again() -> None:
    run, one, two, _ = held_below_a_cancel()
    run.machine.delivered("!cancel g", ["one"])
    run.code.withdrawn(two, True)
    run.code.leave(run.root)
    run.root.cancelling = True  # as if it were cancelled from further up
    assert two.group is not None
    run.code.join(run.root, two.group)
    assert names(run.code.ask(one, "clean one")) == ["Hold"]
    assert names(run.code.ask(two, "clean two")) == ["Hold", "Perform", "Perform"]


def test_a_cancel_is_not_passed_on_while_another_delivery_is_on_its_way() -> None:
    run = Running()
    _, (one, two) = run.gather()
    run.wait(one, "one")
    run.machine.cancel_seen()
    assert names(run.code.ask(two, "two")) == ["Hold"]
    assert only(run.machine.delivered("!cancel"), Deliver).key == "!cancel g"


def test_a_recorded_pass_on_clears_the_flag_of_the_parent() -> None:
    root = Branch()
    machine = RunMachine(RunConfig(), root, cancelled=RecordedCancel(frozenset({""})))
    machine.begin()
    group = Group("g", root)
    machine.code.open_group(group, passed_on=RecordedCancel(frozenset({"g.0"})))
    child = Branch("g.0", group)
    machine.code.fork(child)
    assert (root.cancelling, child.cancelling) == (False, True)


def test_asides_are_held_with_their_owner() -> None:
    run = Running()
    _, (one, two) = run.gather()
    run.wait(one, "one")
    run.machine.cancel_seen()
    run.machine.delivered("!cancel")
    aside = SideCall(two)
    assert names(run.code.ask(aside, "library")) == ["Hold", "Deliver"]
    assert Withdraw(aside, "library") in run.machine.delivered("!cancel g")


def test_a_flagged_branch_begins_no_effect_before_its_cancel_is_recorded() -> None:
    run = Running()
    run.machine.cancel_seen()
    assert names(run.code.ask(run.root, "next")) == ["Hold"]
    assert run.machine.delivered("!cancel") == [Withdraw(run.root, "next")]


def test_a_join_that_a_delivery_interrupts_does_not_end_before_that_is_written() -> None:
    run = Running()
    _, (one,) = run.gather(1)
    run.wait(SideCall(one), "library")
    run.machine.cancel_seen()
    assert run.code.branch_ended(one) == []
    assert names(run.machine.delivered("!cancel")) == ["TakeSlot"]


def test_branches_stay_held_while_their_parent_looks_at_its_group_again_and_again() -> None:
    run = Running()
    group, (one, two, three) = run.fork(run.root, "g", 3)
    run.code.join(run.root, group, first=0)
    run.machine.cancel_seen()
    run.machine.delivered("!cancel")
    assert names(run.code.ask(one, "one")) == ["Hold"]
    assert names(run.code.branch_ended(two)) == ["GoOn"]
    assert names(run.code.ask(three, "three")) == ["Hold"], "its parent has not looked yet"
    assert names(run.code.join(run.root, group, first=1)) == ["Deliver"]


def test_branches_are_held_no_longer_when_their_parent_waits_for_another_one_only() -> None:
    run = Running()
    group, (one, two, _) = run.fork(run.root, "g", 3)
    run.code.join(run.root, group, first=0)
    run.machine.cancel_seen()
    run.machine.delivered("!cancel")
    run.code.ask(one, "one")
    run.code.branch_ended(two)
    assert names(run.code.join(run.root, group, one=list(group.open)[1])) == ["Perform"]


def test_branches_are_held_no_longer_when_their_parent_does_something_else() -> None:
    run = Running()
    group, (one, two) = run.fork(run.root, "g")
    run.code.join(run.root, group, first=0)
    run.machine.cancel_seen()
    run.machine.delivered("!cancel")
    run.code.ask(one, "one")
    run.code.branch_ended(two)
    assert names(run.code.ask(run.root, "next")) == ["Withdraw", "Perform"]


def test_a_held_branch_asks_again_when_the_join_above_it_ends() -> None:
    run = Running()
    _, (one, two) = run.gather()
    busy = run.perform(two, "two")
    run.code.recording(busy)
    run.machine.cancel_seen()
    run.machine.delivered("!cancel")
    assert names(run.code.ask(one, "one")) == ["Hold"]
    assert names(run.code.leave(run.root)) == ["Perform", "GoOn"]


def test_the_losers_of_a_race_are_cancelled_where_they_wait() -> None:
    run = Running()
    group, (one, two) = run.fork(run.root, "race")
    run.code.join(run.root, group, first=0)
    run.wait(two, "two")
    assert names(run.code.branch_ended(one)) == ["GoOn"]
    delivery = only(run.code.decide(group), Deliver)
    assert (delivery.key, delivery.cancelled) == ("race", ("race.1",))
    assert run.is_in(Phase.RUNNING), "a delivery is on its way"


def test_two_deliveries_never_decide_about_one_effect() -> None:
    run = Running()
    group, (one, two) = run.fork(run.root, "race")
    effect = run.wait(two, "two")
    run.code.branch_ended(one)
    assert only(run.code.decide(group), Deliver).effects == (effect,)
    run.code.join(run.root, group)
    assert only(run.machine.cancel_seen(), Deliver).effects == ()
    run.machine.delivered("race", ["two"])
    run.machine.delivered("!cancel")
    assert not two.cancelling, "it has heard of both at once"


def test_a_cancel_is_told_once() -> None:
    run = Running()
    run.machine.cancel_seen()
    run.machine.delivered("!cancel")
    assert run.machine.cancel_seen() == ()
    assert Running(heard_before=True).machine.cancel_seen() == ()


def test_a_cancel_before_the_code_begins_is_noted_on_the_root() -> None:
    root = Branch()
    machine = RunMachine(RunConfig(), root)
    assert machine.cancel_seen() == ()
    assert machine.cancel is CancelState.NOTED
    machine.begin()
    assert names(machine.code.ask(root, "first")) == ["Withdraw"]


def pressing_beside_a_withdrawal() -> tuple[Running, Branch]:
    """Return a run and a branch of it that withdraws an effect, beside a cancelled branch that joins another.

    The effect has landed, and a call in the code of the joined branch shares it: that branch does not wait.
    """
    run = Running()
    group, (withdrawing, joining, other) = run.fork(run.root, "g", 3)
    inner, (child,) = run.fork(joining, "h", 1)
    run.code.join(joining, inner)
    shared = run.perform(other, "shared")
    run.code.decide(group)
    run.machine.delivered("g")
    assert isinstance(run.code.ask(withdrawing, "shared")[0], Withdraw)
    run.code.land(shared)
    assert names(run.code.ask(SideCall(child, excuses=False), "shared")) == ["Share"]
    assert names(run.code.ask(SideCall(child, excuses=False), "alone")) == ["Perform"]
    return run, withdrawing


def test_a_cancel_is_passed_on_when_a_withdrawal_ends_what_did_not_wait_below() -> None:
    run, withdrawing = pressing_beside_a_withdrawal()
    assert only(run.code.withdrawn(withdrawing, True), Deliver).key == "!cancel h"


def test_a_cancel_is_passed_on_when_a_caller_leaves_the_withdrawal_of_a_shared_effect() -> None:
    run, withdrawing = pressing_beside_a_withdrawal()
    assert only(run.code.leave(withdrawing), Deliver).key == "!cancel h"


def test_a_cancel_that_is_seen_while_parking_waits_for_the_answer() -> None:
    run = Running()
    run.idle()
    run.machine.park_due()
    assert run.machine.cancel_seen() == ()
    assert "Deliver" in names(run.machine.park_answered(ParkAnswer.WOKEN))
    assert run.is_in(Phase.RUNNING)


def test_without_a_record_leaves_are_cancelled_through_their_tasks() -> None:
    run = Running(is_durable=False)
    _, (one, two) = run.gather()
    run.perform(one, "one")
    delivery = only(run.machine.cancel_seen(), Deliver)
    assert delivery.leaves == (one, two)
    run.machine.delivered("!cancel")
    assert not two.cancelling
    assert names(run.code.leave(one)) == ["StopWork", "GoOn"]


def test_without_a_record_a_flagged_branch_raises_at_its_next_effect() -> None:
    root = Branch()
    machine = RunMachine(RunConfig(is_durable=False), root)
    machine.cancel_seen()
    machine.begin()
    assert names(machine.code.ask(root, "first")) == ["RaiseCancelled"]
    assert names(machine.code.ask(root, "second")) == ["Perform"]


def test_without_a_record_a_cancel_before_the_first_line_reaches_branches() -> None:
    root = Branch()
    machine = RunMachine(RunConfig(is_durable=False), root)
    machine.cancel_seen()
    machine.begin()
    code, group = machine.code, Group("gather", root)
    code.open_group(group)
    one, two = Branch("gather.0", group), Branch("gather.1", group)
    for branch in (one, two):
        code.fork(branch)
    code.join(root, group)
    assert names(code.ask(one, "one")) == ["Hold"]
    delivery = only(code.ask(two, "two"), Deliver)
    assert delivery.leaves == (one, two)
    assert names(machine.delivered(delivery.key)) == ["RaiseCancelled", "GoOn"]


def test_a_branch_that_asides_excuse_may_start_others_while_the_run_is_idle() -> None:
    run = Running()
    run.wait(SideCall(run.root), "library")
    assert run.is_in(Phase.IDLE)
    group = Group("group", run.root)
    assert run.code.open_group(group) == ()
    assert names(run.code.fork(Branch("group.0", group))) == ["BecomeBusy", "TakeSlot"]
    assert names(run.machine.slot_granted()) == ["GoOn"]


# --- branches of other groups ---


def test_a_branch_that_awaits_another_goes_on_when_that_one_ends() -> None:
    run = Running()
    _, (one, two) = run.gather()
    assert run.code.await_branch(one, two) == []
    assert names(run.code.branch_ended(two)) == ["GoOn"]
    assert run.code.branch_ended(one) != ()


def test_a_run_whose_branches_await_one_that_rests_is_idle() -> None:
    run = Running()
    _, (one, two) = run.gather()
    run.code.await_branch(one, two)
    run.wait(two, "wait")
    assert run.is_in(Phase.IDLE)


def test_a_cancel_finds_a_branch_that_awaits_another_beside_it() -> None:
    run = Running()
    _, (one, two) = run.gather()
    run.code.await_branch(one, two)
    run.wait(two, "wait")
    delivery = only(run.machine.cancel_seen(), Deliver)
    assert delivery.cancelled == (one.name, two.name)
    run.machine.delivered("!cancel", ["wait"])
    run.machine.slot_granted()
    assert one.cancelling, "it hears of its cancel because the other is cancelled"
    run.code.branch_ended(two)
    run.code.hear_cancel(one)
    assert not one.cancelling


def test_a_branch_gets_its_cancel_where_it_awaits_one_that_is_not_cancelled() -> None:
    run = Running()
    _, (one, two) = run.fork(run.root, "g", 2)
    group = Group("inner", run.root)
    run.code.open_group(group)
    three = Branch("inner.0", group)
    run.code.fork(three)
    run.code.join(run.root, group)
    run.wait(one, "one")
    run.wait(two, "two")
    run.code.await_branch(three, one)
    delivery = only(run.machine.cancel_seen(), Deliver)
    assert (delivery.cancelled, delivery.effects) == ((three.name,), ())
    assert "RaiseCancelled" in names(run.machine.delivered("!cancel"))
    assert not three.cancelling


def test_branches_that_await_each_other_can_be_cancelled() -> None:
    run = Running()
    _, (one, two) = run.gather()
    run.code.await_branch(one, two)
    run.code.await_branch(two, one)
    assert only(run.machine.cancel_seen(), Deliver).cancelled == (one.name, two.name)


def test_leaving_children_is_no_fact_and_a_deadline_asks_for_a_durable_cancel() -> None:
    run = Running()
    assert names(run.machine.deadline_passed()) == ["AskCancel"]
    run.machine.trouble(DetachReason.RELEASED)
    assert run.machine.deadline_passed() == ()


# --- serial hosts ---


def test_a_serial_host_performs_one_effect_at_a_time_in_the_order_of_requests() -> None:
    run = Running(is_serial=True)
    _, (one, two, three) = run.gather(3)
    first = run.perform(one, "one")
    assert names(run.code.ask(two, "two")) == ["Queue"]
    assert names(run.code.ask(three, "three")) == ["Queue"]
    decisions = run.code.land(first)
    assert names(decisions) == ["Answer", "Perform", "GoOn"]
    assert decisions[1].caller is two  # type: ignore[union-attr]  # it is Perform


def test_a_serial_host_does_not_begin_an_effect_whose_verdict_is_open() -> None:
    run = Running(is_serial=True)
    group, (one, two) = run.fork(run.root, "g")
    first = run.perform(one, "one")
    run.code.recording(first)
    run.code.ask(two, "two")
    run.code.decide(group)
    assert names(run.code.land(first)) == ["Answer", "GoOn"]
    assert names(run.machine.delivered("g")) == ["Perform"]


def test_a_serial_host_does_not_begin_an_effect_that_was_cancelled_before_its_turn() -> None:
    run = Running(is_serial=True)
    group, (one, two) = run.fork(run.root, "g")
    run.perform(one, "one")
    run.code.ask(two, "two")
    run.code.decide(group)
    decisions = run.machine.delivered("g", ["two"])
    assert names(decisions) == ["RaiseCancelled", "GoOn"]


def test_a_serial_host_fetches_from_the_record_in_turn_too() -> None:
    run = Running(is_serial=True)
    _, (one, two) = run.gather()
    first = run.perform(one, "one")
    assert names(run.code.ask(two, "big", Recorded.ELSEWHERE)) == ["Queue"]
    assert names(run.code.land(first)) == ["Answer", "Perform", "GoOn"]


def test_an_effect_behind_one_that_rests_lets_the_run_be_idle_and_begins_with_a_slot() -> None:
    run = Running(is_serial=True)
    _, (one, two) = run.gather()
    first = run.wait(one, "one")
    assert names(run.code.ask(two, "two")) == ["Queue", "GiveSlot", "BecomeIdle"]
    assert names(run.code.land(first)) == ["Answer", "BecomeBusy", "TakeSlot"]
    assert names(run.machine.slot_granted()) == ["Perform", "GoOn"]


# --- the end ---


@pytest.mark.parametrize(
    ("is_turn", "end", "what"),
    [
        (False, CodeEnd.FINISHED, LastWrite.SETTLE),
        (True, CodeEnd.FINISHED, LastWrite.COMMIT),
        (False, CodeEnd.CONTINUED, LastWrite.CONTINUE),
        (False, CodeEnd.STOPPED, LastWrite.RELEASE),
    ],
)
def test_the_last_write_says_how_the_code_ended(
    is_turn: bool, end: CodeEnd, what: LastWrite
) -> None:
    run = Running(is_turn=is_turn)
    assert run.machine.code_ended(end)[-1] == Write(what)
    assert run.is_in(Phase.ENDING)


@pytest.mark.parametrize(
    ("reason", "asked_to_end", "what"),
    [
        (DetachReason.CANNOT_REPLAY, False, LastWrite.BLOCK),
        (DetachReason.CANNOT_REPLAY, True, LastWrite.GIVE_UP),
        (DetachReason.NOT_HERE, False, LastWrite.BLOCK),
        (DetachReason.NOT_HERE, True, LastWrite.RELEASE),
        (DetachReason.STORE_AWAY, False, LastWrite.POSTPONE),
        (DetachReason.RELEASED, False, LastWrite.RELEASE),
    ],
)
def test_the_last_write_of_a_detached_run_follows_from_its_reason(
    reason: DetachReason, asked_to_end: bool, what: LastWrite
) -> None:
    run = Running(is_turn=True)
    run.machine.trouble(reason)
    decisions = run.machine.code_ended(CodeEnd.FINISHED, asked_to_end=asked_to_end)
    assert decisions == [Write(what)]


def test_a_run_whose_lease_is_lost_writes_nothing() -> None:
    run = Running()
    run.machine.trouble(DetachReason.LEASE_LOST)
    assert names(run.machine.code_ended(CodeEnd.FINISHED)) == ["Forget", "GiveSlot"]


@pytest.mark.parametrize(
    ("is_turn", "writes"),
    [
        (False, [Write(LastWrite.SETTLE), Write(LastWrite.SETTLE, True), Write(LastWrite.BLOCK)]),
        (True, [Write(LastWrite.COMMIT), Write(LastWrite.BLOCK)]),
    ],
)
def test_what_cannot_be_written_is_settled_as_a_failure_or_blocked(
    is_turn: bool, writes: list[Write]
) -> None:
    run = Running(is_turn=is_turn)
    found = list(run.machine.code_ended(CodeEnd.FINISHED))
    for _ in writes:
        found += run.machine.written(WriteAnswer.REFUSED)
    assert run.is_in(Phase.GONE)
    assert [one for one in found if isinstance(one, Write)] == writes


def test_a_detached_run_breaks_off_its_effects_and_refuses_its_code() -> None:
    run = Running()
    _, (one, two, three) = run.gather(3)
    effect = run.perform(one, "one")
    assert names(run.machine.trouble(DetachReason.STORE_AWAY)) == ["Detach", "BreakOff"]
    assert run.code.land(effect) == ()
    assert names(run.code.ask(two, "two")) == ["Refuse"]
    assert names(run.code.join(three, Group("h", three))) == ["Refuse"]
    assert run.code.branch_ended(two) == ()


def test_code_that_calls_a_closed_run_in_a_loop_hangs() -> None:
    run = Running()
    run.machine.trouble(DetachReason.RELEASED)
    answers = [run.code.ask(run.root, "again")[0] for _ in range(MAX_REFUSALS + 1)]
    assert names(answers) == ["Refuse"] * MAX_REFUSALS + ["Hang"]


def test_callers_at_the_gate_are_refused_when_the_run_is_detached() -> None:
    run = Running()
    run.code.land(run.idle())
    decisions = run.machine.trouble(DetachReason.LEASE_LOST)
    assert names(decisions) == ["Detach", "Refuse"]


# --- totality ---


def in_phase(phase: Phase) -> tuple[Running, SideCall, Effect]:
    """Return a run in a phase, and a caller with its effect: in flight, if the phase allows one."""
    run = Running()
    if phase is Phase.STARTING:
        run.machine = RunMachine(RunConfig(), run.root)
        run.code = run.machine.code
    if phase in (Phase.RUNNING, Phase.IDLE, Phase.PARKING):
        caller = SideCall(run.root, excuses=phase is not Phase.RUNNING)
        effect = run.wait(caller, "wait")
    else:
        # The phase is what makes a fact impossible, and not that there is no such effect.
        caller, effect = SideCall(run.root), Effect("wait")
        run.machine.state.effects.in_flight["wait"] = effect
    if phase is Phase.PARKING:
        run.machine.park_due()
    elif phase is Phase.DETACHED:
        run.machine.trouble(DetachReason.RELEASED)
    elif phase in (Phase.ENDING, Phase.GONE):
        run.machine.code_ended(CodeEnd.FINISHED)
        if phase is Phase.GONE:
            run.machine.written(WriteAnswer.WRITTEN)
    assert run.is_in(phase)
    return run, caller, effect


def facts_of(run: Running, caller: SideCall, effect: Effect) -> dict[str, Callable[[], object]]:
    """Return one call for every fact."""
    machine, code, root = run.machine, run.code, run.root
    group = Group("g", root)
    child = Branch("g.0", group)
    group.open[child] = None
    return {
        "begin": machine.begin,
        "enter": lambda: code.enter(root),
        "ask": lambda: code.ask(root, "key"),
        "ask_aside": lambda: code.ask(SideCall(root), "key"),
        "replay": lambda: code.replay(root, Recorded.OUTCOME),
        "withdrawn": lambda: code.withdrawn(root, True),
        "recording": lambda: code.recording(effect),
        "rest": lambda: code.rest(effect),
        "stir": lambda: code.stir(effect),
        "land": lambda: code.land(effect),
        "leave": lambda: code.leave(caller),
        "open_group": lambda: code.open_group(group),
        "fork": lambda: code.fork(Branch("g.1", group)),
        "join": lambda: code.join(root, group),
        "await_branch": lambda: code.await_branch(root, child),
        "hear_cancel": lambda: code.hear_cancel(root),
        "branch_ended": lambda: code.branch_ended(child),
        "decide": lambda: code.decide(group),
        "cancel_seen": machine.cancel_seen,
        "hold_over": machine.hold_over,
        "delivered": lambda: machine.delivered("none"),
        "slot_granted": machine.slot_granted,
        "woken": machine.woken,
        "looked": lambda: machine.looked(1),
        "park_due": machine.park_due,
        "park_answered": lambda: machine.park_answered(ParkAnswer.WOKEN),
        "trouble": lambda: machine.trouble(DetachReason.RELEASED),
        "deadline_passed": machine.deadline_passed,
        "code_ended": lambda: machine.code_ended(CodeEnd.FINISHED),
        "written": lambda: machine.written(WriteAnswer.WRITTEN),
    }


NEEDS_MORE = {("delivered", Phase.RUNNING), *(("slot_granted", phase) for phase in Phase)}
"""Facts that are impossible unless something was asked for before, whatever the phase."""


def test_every_fact_of_the_table_is_one_that_can_be_told() -> None:
    assert list(facts_of(*in_phase(Phase.RUNNING))) == list(TABLE)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("fact", TABLE)
def test_every_fact_is_possible_in_a_phase_or_raises(fact: str, phase: Phase) -> None:
    run, caller, effect = in_phase(phase)
    tell = facts_of(run, caller, effect)[fact]
    if phase in TABLE[fact] and (fact, phase) not in NEEDS_MORE:
        tell()
        assert run.machine.phase in TABLE[fact][phase].phases
    else:
        with pytest.raises(ImpossibleFact) as caught:
            tell()
        assert (caught.value.fact, caught.value.phase) == (fact, phase)
        assert run.is_in(phase)


def test_a_branch_that_waits_can_report_nothing_of_its_code() -> None:
    run = Running()
    run.perform(run.root, "step")
    with pytest.raises(ImpossibleFact, match=r"running \(a branch at effect\)"):
        run.code.ask(run.root, "another")


def test_the_page_about_the_machines_shows_the_table_of_the_code() -> None:
    page = PAGE.read_text()
    assert page == with_parts(page), "write it again: python -m tests.durable.machine_page"


# --- cost ---


def test_the_moves_of_a_gather_cost_the_same_however_many_branches_there_are() -> None:
    """Count the calls of functions, which no load on the machine changes."""
    assert calls_of_a_gather(400) < 4.5 * calls_of_a_gather(100)


def calls_of_a_gather(number: int) -> int:
    """Run a gather that is cancelled while its branches record, and clean up; return the calls it took."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        gather_with_cancel(number)
    finally:
        sys.setprofile(None)
    return calls


def gather_with_cancel(number: int) -> None:
    run = Running()
    group, branches = run.gather(number)
    effects = [run.perform(branch, branch.name) for branch in branches]
    for effect in effects:
        run.code.recording(effect)
    run.machine.cancel_seen()
    run.machine.delivered("!cancel")
    for branch, effect in zip(branches, effects, strict=True):
        run.code.land(effect)
        run.code.ask(branch, f"{branch.name} next")
    run.machine.delivered("!cancel g")
    for branch in branches:
        run.code.withdrawn(branch, True)
        run.code.branch_ended(branch)
    assert not group.open
    run.machine.code_ended(CodeEnd.FINISHED)
