"""State changes of callers (at their code, effects, joins and the gate), and the decisions that follow from them.

Rule 1. ``at`` changes only here, together with the counter ``busy``.
Rule 2. After every fact ``follow_up`` examines the whole state: it passes cancels on, lets held calls repeat their
        requests, decides whether the run is idle, and opens the gate. A caller continues only in phase RUNNING with a
        slot.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pylash.durable.machines.effect_table import (
    QUEUED,
    RECORD,
    WORK,
    Effect,
    EffectState,
    Perform,
    StopWork,
)
from pylash.durable.machines.run_cancels import (
    end_joining,
    flag,
    hear_cancel,
    is_below_cancel,
    pass_on,
    waits,
)
from pylash.durable.machines.run_decisions import (
    BecomeBusy,
    BecomeIdle,
    BreakOff,
    Decision,
    Detach,
    GiveSlot,
    GoOn,
    Hold,
    Queue,
    RaiseCancelled,
    Refuse,
    TakeSlot,
    Withdraw,
)
from pylash.durable.machines.run_state import (
    CODE,
    DONE,
    EFFECT,
    HELD,
    JOIN,
    READY,
    WITHDRAW,
    At,
    Branch,
    Caller,
    Delivery,
    DetachReason,
    Group,
    MachineState,
    Phase,
    Recorded,
    SideCall,
    Slot,
)
from pylash.durable.machines.run_table import IDLE, LEGAL, RUNNING

# --- moves ---


def move(run: MachineState, branch: Branch, at: At) -> None:
    """Move a branch and count it."""
    before = branch.is_busy
    # From now on its own task may be running between its calls, so its asides no longer excuse it.
    if branch.asides and at is not CODE:
        branch.mixed = True
    branch.at = at
    run.busy += branch.is_busy - before


def attach_call(run: MachineState, call: SideCall) -> None:
    """Note that a side call waits in the code of its owner."""
    owner = call.owner
    if call in owner.calls:
        return
    owner.calls[call] = None
    if call.excuses:
        before = owner.is_busy
        # The first aside excuses its owner only if the owner has been in its code since.
        if not owner.asides:
            owner.mixed = owner.at is not CODE
        owner.asides += 1
        run.busy += owner.is_busy - before


def detach_call(run: MachineState, call: SideCall) -> None:
    """Note that a side call no longer waits: its owner may be busy from now on."""
    owner = call.owner
    # At WITHDRAW, and after a replay, it was never attached.
    if call not in owner.calls:
        return
    del owner.calls[call]
    if call.excuses:
        before = owner.is_busy
        owner.asides -= 1
        owner.mixed &= owner.asides > 0
        run.busy += owner.is_busy - before


def move_call(run: MachineState, call: SideCall, at: At) -> None:
    """Move a side call and count it: it is busy at READY, HELD and WITHDRAW."""
    # At WITHDRAW it is not an effect yet, so it does not excuse its owner; its own count keeps the run busy.
    if at is HELD or at is EFFECT:
        attach_call(run, call)
    else:
        detach_call(run, call)
    run.busy += (at is READY or at is HELD or at is WITHDRAW) - (
        call.at is READY or call.at is HELD or call.at is WITHDRAW
    )
    call.at = at


def make_ready(run: MachineState, caller: Caller) -> None:
    """Put a caller whose result is available at the gate."""
    if (
        caller.at is HELD and caller in run.cancels.held
    ):  # else it was released to repeat its request
        release(run, caller)
    caller.effect = None
    run.ready.append(caller)
    if isinstance(caller, SideCall):
        move_call(run, caller, READY)
    elif caller.asides or caller.at is not EFFECT:
        move(run, caller, READY)
    else:  # the usual case, at every result
        caller.at = READY
        run.busy += 1


def end_join(run: MachineState, branch: Branch) -> bool:
    """Put a branch at the gate if the condition of its join is met and no unwritten delivery interrupts it."""
    join = branch.join
    if not branch.is_joined or (join is not None and is_interrupting(run, join.group)):
        return False
    stop_awaiting(run, branch)
    make_ready(run, branch)
    # With ``after`` it polls the group and will join it again: branches below stay held as long as it does.
    if join is not None and join.after is None:
        end_joining(run, branch)
    return True


def is_interrupting(run: MachineState, group: Group) -> bool:
    """Return whether a delivery that is being written interrupts the join of a group."""
    return any(group in delivery.groups for delivery in run.cancels.deliveries.values())


def stop_awaiting(run: MachineState, branch: Branch) -> None:
    """Note that a branch no longer waits for a branch of another group."""
    if branch.awaits is not None:
        branch.awaits.awaited_by.pop(branch, None)
        branch.awaits = None
        del run.awaiting[branch]


def release(run: MachineState, caller: Caller) -> None:
    """Stop holding a caller; the caller of this function decides what it does next."""
    caller.owner.held -= 1
    del run.cancels.held[caller]


# --- requests ---


def place(
    run: MachineState, caller: Caller, key: str, recorded: Recorded, out: list[Decision]
) -> None:
    """Decide about a request for the effect of key: hold, withdraw, share or perform it."""
    owner = caller.owner
    caller.key = key
    # Neither a recorded effect nor a call that belongs to no branch is ever cancelled.
    if recorded is Recorded.NOTHING and (caller is owner or caller.excuses):  # type: ignore[union-attr]  # a SideCall
        if must_hold(run, owner):
            hold(run, caller, out)
            return
        if owner.cancelling and meet_cancel(run, caller, out):
            return
    begin_effect(run, caller, RECORD if recorded is Recorded.ELSEWHERE else WORK, out)


def must_hold(run: MachineState, owner: Branch) -> bool:
    """Return whether a branch may start no new effect now, because a cancel is being delivered to it."""
    if owner.cancelling and run.cancels.deliveries:
        return True
    return bool(run.cancels.pressing) and is_below_cancel(owner)


def hold(run: MachineState, caller: Caller, out: list[Decision]) -> None:
    """Let a caller wait until the cancel is delivered."""
    caller.owner.held += 1
    run.cancels.held[caller] = None
    if isinstance(caller, Branch):
        move(run, caller, HELD)
    else:
        move_call(run, caller, HELD)
    out.append(Hold(caller))


def meet_cancel(run: MachineState, caller: Caller, out: list[Decision]) -> bool:
    """Deliver the cancel of a flagged branch at its new effect; False if the effect is performed nevertheless."""
    if not run.config.is_durable:
        hear_cancel(run, caller)
        out.append(RaiseCancelled((caller,)))
        if caller.at is HELD or isinstance(caller, SideCall):
            make_ready(run, caller)
        return True
    effect = run.effects.in_flight.get(caller.key)
    if effect is not None and (effect.verdict is not None or not effect.is_cancellable):
        return False  # it has an outcome, or another delivery is deciding about it, which takes precedence
    # The withdrawal is identified by the key of the effect, which differs from the keys of all deliveries.
    if effect is not None:
        effect.verdict = caller.key
    caller.effect = effect
    if isinstance(caller, Branch):
        move(run, caller, WITHDRAW)
    else:
        move_call(run, caller, WITHDRAW)
    out.append(Withdraw(caller, caller.key))
    return True


def begin_effect(
    run: MachineState, caller: Caller, state: EffectState, out: list[Decision]
) -> None:
    """Perform the effect of the caller's key, or share the one in flight."""
    # Fetching an outcome from the record (RECORD) uses the host too, so it is queued as well.
    if run.config.is_serial and run.line:
        state = QUEUED
    decision = run.effects.ask(caller.key, caller, state)
    effect = caller.effect = decision.effect
    if isinstance(caller, SideCall):
        move_call(run, caller, EFFECT)
    elif caller.asides or caller.at is not CODE:
        move(run, caller, EFFECT)
    else:  # the usual case, at every effect
        caller.at = EFFECT
        run.busy -= 1
    if run.config.is_serial and isinstance(decision, Perform):
        run.line.append(effect)
        if state is QUEUED:
            out.append(Queue(effect, caller))
            return
    out.append(decision)


def land_effect(run: MachineState, effect: Effect, out: list[Decision]) -> None:
    """Answer the callers of an effect, unless its verdict is open."""
    answer = run.effects.land(effect, effect.result)
    if answer is None:
        return
    if effect.has_cancel:
        _raise_cancelled(run, answer.callers, out)
        return
    out.append(answer)
    for caller in answer.callers:
        make_ready(run, caller)


def cancel_effect(run: MachineState, effect: Effect, out: list[Decision]) -> None:
    """End an effect with the cancel that is recorded for it."""
    # It leaves the table before its work is stopped: a new caller must not share an effect that ends with a cancel.
    run.effects.remove(effect)
    if effect.state is not QUEUED and effect.is_cancellable:
        out.append(StopWork(effect))
    _raise_cancelled(run, tuple(effect.callers), out)


def _raise_cancelled(run: MachineState, callers: tuple[Caller, ...], out: list[Decision]) -> None:
    if callers:
        out.append(RaiseCancelled(callers))
    for caller in callers:
        hear_cancel(run, caller)
        make_ready(run, caller)


def end_delivery(
    run: MachineState, delivery: Delivery, cancelled: Collection[str], out: list[Decision]
) -> None:
    """Complete a delivery that was written: end its effects and the joins that it interrupts."""
    for decided in delivery.effects:
        # It may have left since, and another caller may have started it again: the record counts for that one.
        effect = run.effects.in_flight.get(decided.key)
        if effect is not None and decided.key in cancelled:
            cancel_effect(run, effect, out)
        elif effect is decided:
            effect.verdict = None
            if effect.landed:
                land_effect(run, effect, out)
    if not run.config.is_durable:
        # The driver has cancelled the tasks of the leaves. A held call must not start its effect before that.
        leaves = set(delivery.leaves)
        _raise_cancelled(run, tuple(c for c in run.cancels.held if c.owner in leaves), out)
        for leaf in leaves:
            flag(run, leaf, False)
    for group in delivery.groups:
        if group.parent.at is JOIN and group.parent.joins(group):
            end_join(run, group.parent)


# --- after every fact ---


def set_phase(run: MachineState, phase: Phase) -> None:
    """Enter a phase."""
    run.phase = phase
    run.legal = LEGAL[phase]
    run.closed = phase in (Phase.DETACHED, Phase.ENDING, Phase.GONE)


def follow_up(
    run: MachineState, out: list[Decision], touched: Sequence[Branch] | None = ()
) -> Sequence[Decision]:
    """Decide what follows from a fact; ``touched``: the branches that may have started to wait, None for any."""
    # While the run is being parked, callers only move to the gate; ``park_answered`` decides everything else.
    if run.phase is not RUNNING and run.phase is not IDLE:
        return out
    # Cancels first: what they change decides whether the run is idle.
    if run.cancels.pressing or run.cancels.recheck or run.awaiting:
        # A branch that waits for one of another group waits with it, wherever it is.
        _advance_cancels(run, None if run.awaiting else touched, out)
    if run.line:
        _shorten_line(run)
    # It repeats because a side call that continues is no longer counted, so the run may become idle at once.
    while not run.is_quiet:
        if run.phase is IDLE:
            set_phase(run, RUNNING)
            out.append(BecomeBusy())
        if not (run.ready or run.has_turn):
            return out
        if run.slot is not Slot.HELD:
            _take_slot(run, out)
            return out
        if run.line:
            _perform_next(run, out)
        _open_gate(run, out)
    if run.phase is RUNNING:
        _become_idle(run, out)
    return out


def _take_slot(run: MachineState, out: list[Decision]) -> None:
    """Request a slot, unless one is already requested."""
    if run.slot is Slot.NONE:
        run.slot = Slot.REQUESTED
        out.append(TakeSlot())


def _advance_cancels(
    run: MachineState, touched: Sequence[Branch] | None, out: list[Decision]
) -> None:
    """Pass cancels on and let held calls repeat their requests, until nothing changes."""
    cancels = run.cancels
    pass_on(run, touched, out)
    # A held call waits for all deliveries being written: its next decision may depend on what they record.
    while cancels.recheck and not cancels.deliveries:
        cancels.recheck = False
        for caller in [held for held in cancels.held if not is_below_cancel(held.owner)]:
            release(run, caller)
            place(run, caller, caller.key, Recorded.NOTHING, out)
        pass_on(run, None, out)
    # A cancel is not passed on to a branch of another group. A branch that awaits one is cancelled itself, once the
    # awaited branch waits. A replay cancels it at the same place, because recorded effects do not wait.
    for branch in list(run.awaiting) if not cancels.deliveries else ():
        if branch.cancelling and branch.awaits is not None and waits(branch.awaits):
            stop_awaiting(run, branch)
            _raise_cancelled(run, (branch,), out)


def _shorten_line(run: MachineState) -> None:
    """Remove effects that have ended, or that all callers have left, from the front of the queue."""
    while run.line and not run.effects.holds(run.line[0]):
        run.line.popleft()


def _perform_next(run: MachineState, out: list[Decision]) -> None:
    """Perform the next effect of a serial host, if it may start."""
    if run.has_turn:
        effect = run.line[0]
        run.effects.start(effect)
        out.append(Perform(effect, next(iter(effect.callers))))


def _become_idle(run: MachineState, out: list[Decision]) -> None:
    # It has none if it became busy without a request since it was idle before.
    if run.slot is Slot.HELD:
        run.slot = Slot.NONE
        out.append(GiveSlot())
    set_phase(run, IDLE)
    out.append(BecomeIdle(run.config.parks_at_once))


def _open_gate(run: MachineState, out: list[Decision]) -> None:
    # Effects land in any order; callers must continue in the order of their requests.
    callers, run.ready = run.ready, []
    if not callers:
        return
    if len(callers) > 1:
        callers.sort(key=lambda caller: caller.request)
    for caller in callers:
        if isinstance(caller, SideCall):
            move_call(run, caller, DONE)
        else:
            # Without ``move``: it is as busy as before, because asides do not excuse a branch that has waited.
            caller.at = CODE
    out.append(GoOn(tuple(callers)))


def detach(run: MachineState, reason: DetachReason, out: list[Decision]) -> None:
    """Close the context; the code is refused from now on."""
    run.ending.reason = reason
    set_phase(run, Phase.DETACHED)
    out.append(Detach(reason))
    break_off(run, out)


def break_off(run: MachineState, out: list[Decision]) -> None:
    """Refuse all callers that wait for an effect, at the gate, or below a cancel."""
    # Late facts of these effects are ignored from now on, as they have left the table.
    effects = run.effects.clear()
    if effects:
        out.append(BreakOff(tuple(effects)))
    out.extend(Refuse(caller) for caller in (*run.ready, *run.cancels.held))
    run.ready.clear()
    run.cancels.held.clear()
    run.line.clear()
