"""The machine of a run in memory: it receives facts and returns decisions, with no I/O.

Rule 1. The table in run_table defines which facts are possible in which phase; the methods below define their effects.
Rule 2. Every fact returns the decisions that follow from it, in the order in which the driver carries them out. The
        machine has already changed its state accordingly.
Rule 3. Nothing here reads a clock or awaits: ``due`` is data, and the driver reports that time has passed.
Rule 4. The facts of the run's code are methods of ``code``, those of its worker methods of the machine itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from pylash.durable.machines.effect_table import RECORD, Effect
from pylash.durable.machines.run_cancels import (
    cancel_key,
    deliver,
    end_joining,
    flag,
    force_on,
    hear_cancel,
)
from pylash.durable.machines.run_decisions import (
    AskCancel,
    BecomeBusy,
    BecomeIdle,
    Decision,
    Forget,
    GiveSlot,
    Hang,
    LookAgain,
    Park,
    RaiseCancelled,
    Refuse,
    Replay,
    Write,
)
from pylash.durable.machines.run_moves import (
    begin_effect,
    break_off,
    cancel_effect,
    detach,
    end_delivery,
    end_join,
    follow_up,
    land_effect,
    make_ready,
    move,
    move_call,
    place,
    set_phase,
    stop_awaiting,
)
from pylash.durable.machines.run_state import (
    CODE,
    DONE,
    EFFECT,
    JOIN,
    READY,
    WITHDRAW,
    Branch,
    Caller,
    CancelState,
    CodeEnd,
    DetachReason,
    Ending,
    Group,
    Join,
    LastWrite,
    MachineState,
    ParkAnswer,
    Phase,
    Recorded,
    RecordedCancel,
    RunConfig,
    SideCall,
    Slot,
    WriteAnswer,
)
from pylash.durable.machines.run_table import ImpossibleFact

MAX_REFUSALS: Final = 50
"""How often a closed run refuses the code of a branch before it lets a call hang: the code may be in a loop."""

Decisions = Sequence[Decision]

NOTHING: Final[Decisions] = ()


class CodeFacts:
    """Facts about the code of a run: its branches, its calls, and the effects they wait for."""

    __slots__ = ("_run",)

    def __init__(self, run: MachineState) -> None:
        self._run = run

    @property
    def is_gate_open(self) -> bool:
        """Whether code may continue. While the gate is shut, a branch calls ``enter`` before it acts."""
        return self._run.phase is Phase.RUNNING and self._run.slot is Slot.HELD

    # --- calls ---

    def enter(self, branch: Branch) -> Decisions:
        """Note that a branch acts while the gate may be shut: then it waits for GoOn first.

        Asides excused it when the run became idle, or its task was cancelled at the gate.
        """
        run = self._run
        self._check("enter", branch)
        # Only enter lets a branch act in an idle run, so ask, fork, join and decide are impossible there.
        if run.closed:
            return self._refused(branch)
        if not self.is_gate_open:
            self._number(branch)
            make_ready(run, branch)
        return follow_up(run, [])

    def ask(self, caller: Caller, key: str, recorded: Recorded = Recorded.NOTHING) -> Decisions:
        """Note that a caller requests the effect of key, and what is recorded under it.

        A branch that finds an outcome in memory calls ``replay`` instead.
        """
        run = self._run
        self._check("ask" if isinstance(caller, Branch) else "ask_aside", caller)
        if run.closed:
            return self._refused(caller)
        # Its last join is over, because it does something else now.
        if isinstance(caller, Branch) and caller.join is not None:
            end_joining(run, caller)
        out: list[Decision] = []
        self._number(caller)
        if isinstance(caller, SideCall) and recorded in (Recorded.OUTCOME, Recorded.CANCELLED):
            if recorded is Recorded.CANCELLED:
                hear_cancel(run, caller)
                out.append(RaiseCancelled((caller,)))
            else:
                out.append(Replay(caller))
            make_ready(run, caller)
            return follow_up(run, out, None)
        place(run, caller, key, recorded, out)
        return follow_up(run, out, (caller.owner,))

    def replay(self, branch: Branch, recorded: Recorded) -> Decisions:
        """Note that a branch takes an outcome, or a cancel, from memory. It does not wait, and keeps its place."""
        run = self._run
        self._check("replay", branch)
        if run.closed:
            return NOTHING
        if branch.join is not None:
            end_joining(run, branch)
        if recorded is Recorded.CANCELLED:
            hear_cancel(run, branch)
        return follow_up(run, []) if run.cancels.recheck else NOTHING

    def withdrawn(self, caller: Caller, yes: bool) -> Decisions:
        """Note that the cancel of a caller was recorded at its effect, or that the effect has an outcome.

        In the second case the branch keeps its flag: the cancel is raised at its next new effect.
        """
        run = self._run
        self._check("withdrawn")
        if run.closed or caller.at is not WITHDRAW:
            return NOTHING  # the caller has left since
        out: list[Decision] = []
        # Others may have the effect of the same key in flight, perhaps only since the write began.
        shared = run.effects.in_flight.get(caller.key)
        if shared is not None and shared.verdict == caller.key:
            shared.verdict = None
        if yes:
            hear_cancel(run, caller)
            out.append(RaiseCancelled((caller,)))
            make_ready(run, caller)
            if shared is not None:
                cancel_effect(run, shared, out)
        else:
            # RECORD: it has an outcome, so it cannot be cancelled for another caller either.
            begin_effect(run, caller, RECORD, out)
            if shared is not None and shared.landed:
                land_effect(run, shared, out)
        # With the end of a shared effect, all that is left in the code of its other callers may wait.
        return follow_up(run, out, (caller.owner,) if shared is None else None)

    def leave(self, caller: Caller) -> Decisions:
        """Note that the task of a caller was cancelled, not by a cancel of the run: it stops waiting.

        A task that is cancelled at the gate continues at once; any other waits for GoOn.
        """
        run = self._run
        self._check("leave")
        if run.closed or caller.at is CODE or caller.at is DONE:
            return NOTHING
        out: list[Decision] = []
        # Its withdrawal may have kept an effect of others from landing.
        touched = None if caller.at is WITHDRAW else (caller.owner,)
        if isinstance(caller, Branch):
            stop_awaiting(run, caller)
        # A task that is cancelled at the gate runs, whatever the decision; the others wait at the gate first.
        if caller.at is READY:
            run.ready.remove(caller)
            if isinstance(caller, Branch):
                move(run, caller, CODE)
            else:
                move_call(run, caller, DONE)
        else:
            self._leave_effect(caller, out)
            make_ready(run, caller)
        if isinstance(caller, Branch):
            end_joining(run, caller)
        return follow_up(run, out, touched)

    def _leave_effect(self, caller: Caller, out: list[Decision]) -> None:
        run, effect = self._run, caller.effect
        if effect is None:
            return
        if caller.at is EFFECT:
            stop = run.effects.leave(effect, caller)
            if stop is not None:
                out.append(stop)
        elif effect.verdict == effect.key:  # its own withdrawal, which has lost its caller
            effect.verdict = None
            if effect.landed:
                land_effect(run, effect, out)

    # --- effects ---

    def recording(self, effect: Effect) -> Decisions:
        """Note that the outcome of an effect is being written."""
        run = self._run
        # First whether it is still there: a task that stops late may report anything in any phase.
        if run.effects.holds(effect):
            self._check("recording")
            run.effects.recording(effect)
        return NOTHING

    def rest(self, effect: Effect, due: int | None = None) -> Decisions:
        """Note that an effect waits for others, or until due."""
        run = self._run
        if not run.effects.holds(effect):
            return NOTHING
        self._check("rest")
        run.effects.rest(effect, due)
        return follow_up(run, [])

    def stir(self, effect: Effect) -> Decisions:
        """Note that a resting effect was woken: it may have work to do."""
        run = self._run
        if not run.effects.holds(effect):
            return NOTHING
        self._check("stir")
        run.effects.stir(effect)
        return follow_up(run, [])

    def land(self, effect: Effect, result: Any = None, *, cancelled: bool = False) -> Decisions:
        """Note that an effect has ended; ``cancelled``: with a cancel that is recorded for it."""
        run = self._run
        if not run.effects.holds(effect):
            return NOTHING
        self._check("land")
        out: list[Decision] = []
        effect.result, effect.has_cancel = result, cancelled
        land_effect(run, effect, out)
        # Without the effect, all that is left in the code of an owner may wait.
        touched = [caller.owner for caller in effect.callers] if run.cancels.pressing else ()
        return follow_up(run, out, touched)

    # --- branches ---

    def open_group(
        self,
        group: Group,
        decided: RecordedCancel | None = None,
        passed_on: RecordedCancel | None = None,
    ) -> Decisions:
        """Note that a branch opens a group, with the decision about it and its parent's cancel, if they are recorded."""
        run = self._run
        self._check("open_group")
        for recorded in (decided, passed_on):
            if recorded is not None:
                run.cancels.flagged |= recorded.cancelled
                run.cancels.interrupted |= recorded.groups
        # Names are flagged before their branches are forked, so no branch misses its cancel.
        if passed_on is not None:
            run.cancels.passed_on.add(group.key)
            flag(run, group.parent, False)  # the recorded delivery has consumed it
        return NOTHING

    def fork(self, child: Branch) -> Decisions:
        """Note that a branch of a group starts. It waits for GoOn if the gate is shut."""
        run, group = self._run, child.group
        self._check("fork")
        if group is None:
            raise ImpossibleFact(run.phase, "fork", "the root")
        # The flag is consumed by the recorded cancel of one of its effects, or by its first new effect.
        group.open[child] = None
        child.cancelling = child.name in run.cancels.flagged
        run.busy += 1
        # A task group starts branches without waiting, perhaps for a branch that has only just entered.
        if self.is_gate_open or run.closed:
            return NOTHING
        self._number(child)
        make_ready(run, child)
        return follow_up(run, [])

    def join(
        self,
        branch: Branch,
        group: Group,
        *,
        first: int | None = None,
        one: Branch | None = None,
        beside: bool = False,
    ) -> Decisions:
        """Note that a branch waits for all of a group; with ``one``, for that branch.

        With ``first``, it waits until more than that many branches of the group have ended. ``beside``: a task that
        its code started waits instead of the branch.
        """
        run = self._run
        self._check("join", branch)
        if run.closed:
            return self._refused(branch)
        self._number(branch)
        # Branches that it no longer waits for are not below it, so they are not held for it.
        if one is not None or not branch.joins(group):
            end_joining(run, branch)
        branch.join = Join(group, one, first, beside)
        flag(run, branch, branch.cancelling)
        if not end_join(run, branch):
            move(run, branch, JOIN)
        return follow_up(run, [], (branch,))

    def await_branch(self, branch: Branch, other: Branch) -> Decisions:
        """Note that a branch waits for a branch that another one has forked.

        A cancel is not passed on to the awaited branch: it is raised while this branch waits, or when the awaited
        branch is cancelled.
        """
        run = self._run
        self._check("await_branch", branch)
        if run.closed:
            return self._refused(branch)
        self._number(branch)
        end_joining(run, branch)
        branch.awaits = other
        other.awaited_by[branch] = None
        run.awaiting[branch] = None
        if not end_join(run, branch):
            move(run, branch, JOIN)
        return follow_up(run, [], (branch,))

    def hear_cancel(self, branch: Branch) -> Decisions:
        """Note that a cancel is raised in the code of a branch because a branch that it waited for was cancelled."""
        run = self._run
        self._check("hear_cancel")
        flag(run, branch, False)
        return follow_up(run, []) if run.cancels.recheck else NOTHING

    def branch_ended(self, branch: Branch) -> Decisions:
        """Note that the code of a branch has ended; its parent may become ready in the same state change."""
        run, group = self._run, branch.group
        self._check("branch_ended", branch)
        if run.closed:
            return NOTHING
        if group is None:
            raise ImpossibleFact(run.phase, "branch_ended", "the root")
        end_joining(run, branch)
        move(run, branch, DONE)
        del group.open[branch]
        group.ended.append(branch)
        # The parent becomes ready, and so busy, in the same state change: the run is never idle in between.
        parent = group.parent
        if parent.at is JOIN:
            end_join(run, parent)
        for other in list(branch.awaited_by):
            end_join(run, other)
        return follow_up(run, [], (parent,))

    def decide(self, group: Group) -> Decisions:
        """Cancel the open branches of a group: a race is won, a branch has failed, or a task group is left."""
        run = self._run
        # The delivery that is being written keeps the run busy. The parent is in its code, or a task that its code
        # started waits for the group while the parent may do anything, even wait.
        self._check("decide")
        if run.closed:
            return self._refused(group.parent)
        if group.key in run.cancels.deliveries:
            raise ImpossibleFact(run.phase, "decide", f"{group.key} is being decided")
        out: list[Decision] = []
        deliver(run, group.key, group.open, out)
        return follow_up(run, out)

    # --- helpers ---

    def _check(self, fact: str, caller: Caller | None = None) -> None:
        """Refuse a fact that the phase makes impossible, or that a caller reports outside its code."""
        run = self._run
        if fact not in run.legal:
            raise ImpossibleFact(run.phase, fact)
        if caller is not None and caller.at is not CODE and not run.closed:
            raise ImpossibleFact(run.phase, fact, f"a branch at {caller.at.value}")

    def _number(self, caller: Caller) -> None:
        self._run.requests += 1
        caller.request = self._run.requests

    def _refused(self, caller: Caller) -> Decisions:
        caller.owner.refusals += 1
        return (Hang(caller) if caller.owner.refusals > MAX_REFUSALS else Refuse(caller),)


class RunMachine:
    """A run while it is executed here: what its worker and the store report."""

    __slots__ = ("code", "state", "stirred", "wake_seq")

    def __init__(
        self,
        config: RunConfig,
        root: Branch,
        *,
        wake_seq: int = 0,
        cancelled: RecordedCancel | None = None,
    ) -> None:
        # For this package and for tests.
        run = self.state = MachineState(config, root)
        self.code = CodeFacts(run)
        # The wake_seq that was read before everything the run waits for was last read.
        self.wake_seq = wake_seq
        # Whether a wake-up came since the driver last cleared this: for turns, messages may be queued.
        self.stirred = False
        set_phase(run, Phase.STARTING)
        if cancelled is not None:
            run.cancels.is_asked = True
            run.cancels.flagged |= cancelled.cancelled
            run.cancels.interrupted |= cancelled.groups
            root.cancelling = root.name in cancelled.cancelled

    @property
    def phase(self) -> Phase:
        """The phase of the run."""
        return self.state.phase

    @property
    def reason(self) -> DetachReason | None:
        """Why it was detached."""
        return self.state.ending.reason

    @property
    def slot(self) -> Slot:
        """Its slot."""
        return self.state.slot

    @property
    def cancel(self) -> CancelState:
        """The progress of the run's cancel in this epoch; a cancel that is only requested moves to the next epoch."""
        run = self.state
        if not run.cancels.is_asked:
            return CancelState.NONE
        return CancelState.NOTED if run.root.cancelling else CancelState.DELIVERED

    def is_interrupted(self, group: Group) -> bool:
        """Return whether the join of a group ends with a cancel."""
        return group.key in self.state.cancels.interrupted

    # --- beginning, slots and wake-ups ---

    def begin(self) -> Decisions:
        """Note that the code starts."""
        self._check("begin")
        set_phase(self.state, Phase.RUNNING)
        return NOTHING

    def slot_granted(self) -> Decisions:
        """Note that the requested slot is granted."""
        run = self.state
        self._check("slot_granted")
        if run.slot is not Slot.REQUESTED:
            raise ImpossibleFact(run.phase, "slot_granted", f"slot {run.slot}")
        # It was requested before the run was detached; no caller needs it now.
        if run.closed:
            run.slot = Slot.NONE
            return (GiveSlot(),)
        run.slot = Slot.HELD
        return follow_up(run, [])

    def woken(self) -> Decisions:
        """Note a hint that something happened to the run. It does not count as a read of the store."""
        self._check("woken")
        if self.state.closed:
            return NOTHING
        self.stirred = True
        return (LookAgain(),)

    def take_stirred(self) -> bool:
        """Return whether a wake-up came since the last call."""
        stirred, self.stirred = self.stirred, False
        return stirred

    def looked(self, wake_seq: int) -> Decisions:
        """Note that everything the run waits for was read after this wake_seq was read."""
        self._check("looked")
        self.wake_seq = max(self.wake_seq, wake_seq)
        return NOTHING

    # --- parking ---

    def park_due(self) -> Decisions:
        """Park the run if it is idle."""
        run = self.state
        self._check("park_due")
        if run.phase is not Phase.IDLE:
            return NOTHING
        set_phase(run, Phase.PARKING)
        # The deadline only requests a cancel: a run that is already cancelled need not be woken for it.
        has_asked = run.cancels.is_asked or run.config.heard_before
        times = (run.effects.next_due(), None if has_asked else run.config.deadline)
        until = min((time for time in times if time is not None), default=None)
        return (Park(until, self.wake_seq),)

    def park_answered(self, answer: ParkAnswer) -> Decisions:
        """Note that the run is parked, or was woken since it read its wake_seq, or that the store is unreachable."""
        run = self.state
        self._check("park_answered")
        if run.closed:
            return NOTHING
        out: list[Decision] = []
        if answer is ParkAnswer.PARKED:
            detach(run, DetachReason.PARKED, out)
            return out
        if answer is ParkAnswer.WOKEN:
            self.stirred = True
            out.append(LookAgain())
        # Callers may have come to the gate meanwhile, so whether the run is idle is decided again.
        set_phase(run, Phase.RUNNING)
        if run.cancels.is_remembered:
            run.cancels.is_remembered = False
            run.cancels.is_asked = True
            deliver(run, cancel_key(), (run.root,), out)
        if run.is_quiet:
            # Not at once, even with a concurrency key: the store is unreachable, or something has happened to the run.
            set_phase(run, Phase.IDLE)
            out.append(BecomeIdle(False))
        else:
            out.append(BecomeBusy())
        return follow_up(run, out, None)

    # --- cancel ---

    def cancel_seen(self) -> Decisions:
        """Note that a cancel of the run was requested. It is delivered once, in one of its epochs."""
        run = self.state
        cancels = run.cancels
        self._check("cancel_seen")
        if run.closed or run.config.heard_before or cancels.is_asked:
            return NOTHING
        if run.phase is Phase.PARKING:
            cancels.is_remembered = True
            return NOTHING
        cancels.is_asked = True
        # Before the code starts: the root replays recorded effects and is cancelled at its first new one.
        if run.phase is Phase.STARTING:
            run.root.cancelling = True
            return NOTHING
        out: list[Decision] = []
        deliver(run, cancel_key(), (run.root,), out)
        return follow_up(run, out)

    def hold_over(self) -> Decisions:
        """Note that calls have been held for long. They are not held any more, whatever other code does."""
        run = self.state
        self._check("hold_over")
        out: list[Decision] = []
        if run.cancels.held and not run.closed:
            force_on(run, out)
        return follow_up(run, out, None) if out or run.cancels.recheck else NOTHING

    def delivered(self, key: str, cancelled: Collection[str] = ()) -> Decisions:
        """Note that a delivery is written; ``cancelled`` of its effects were cancelled, the others have an outcome.

        Without a record, the tasks of its leaves were cancelled instead.
        """
        run = self.state
        self._check("delivered")
        if run.closed:
            return NOTHING
        # First, because a join that it interrupts may end only when the delivery is no longer being written.
        delivery = run.cancels.deliveries.pop(key, None)
        if delivery is None:
            raise ImpossibleFact(run.phase, "delivered", f"{key} is not on its way")
        out: list[Decision] = []
        end_delivery(run, delivery, frozenset(cancelled), out)
        # Calls that were held for it repeat their requests, and a cancel that waited for it may be passed on.
        run.cancels.recheck = True
        return follow_up(run, out, None)

    def deadline_passed(self) -> Decisions:
        """Note that the deadline of the process has passed."""
        self._check("deadline_passed")
        is_begun = not self.state.closed and self.state.phase is not Phase.STARTING
        return (AskCancel(),) if is_begun else NOTHING

    # --- the end ---

    def trouble(self, reason: DetachReason) -> Decisions:
        """Detach the run: it cannot continue here, or the worker closes."""
        self._check("trouble")
        if self.state.closed:
            return NOTHING
        out: list[Decision] = []
        detach(self.state, reason, out)
        return out

    def code_ended(self, end: CodeEnd, *, asked_to_end: bool = False) -> Decisions:
        """Note that the code has ended; ``asked_to_end``: a cancel of the turn is requested, as the driver has just read."""
        run = self.state
        self._check("code_ended")
        out: list[Decision] = []
        if run.phase is Phase.RUNNING:
            if run.root.at is not CODE:
                raise ImpossibleFact(run.phase, "code_ended", f"the root at {run.root.at.value}")
            # A task that was cancelled from outside does not end its process, which continues elsewhere.
            if end is CodeEnd.STOPPED:
                detach(run, DetachReason.RELEASED, out)
        if run.phase is Phase.RUNNING:
            finished = LastWrite.COMMIT if run.config.is_turn else LastWrite.SETTLE
            what = LastWrite.CONTINUE if end is CodeEnd.CONTINUED else finished
            break_off(run, out)
            return self._write(what, out)
        what_follows = last_write(run.ending.reason, asked_to_end=asked_to_end)
        return self._gone(out) if what_follows is None else self._write(what_follows, out)

    def written(self, answer: WriteAnswer) -> Decisions:
        """Note the result of the last write."""
        run = self.state
        self._check("written")
        if answer is WriteAnswer.REFUSED:
            instead = write_instead(run.ending, is_turn=run.config.is_turn)
            if instead is not None:
                run.ending.is_refused = True
                return self._write(instead, [])
        return self._gone([])

    # --- helpers ---

    def _check(self, fact: str) -> None:
        if fact not in self.state.legal:
            raise ImpossibleFact(self.state.phase, fact)

    def _write(self, what: LastWrite, out: list[Decision]) -> Decisions:
        run = self.state
        set_phase(run, Phase.ENDING)
        run.ending.last_write = what
        out.append(Write(what, as_failure=run.ending.is_refused and what is LastWrite.SETTLE))
        return out

    def _gone(self, out: list[Decision]) -> Decisions:
        run = self.state
        # A slot that is still requested is given back when it is granted.
        set_phase(run, Phase.GONE)
        out.append(Forget())
        if run.slot is Slot.HELD:
            run.slot = Slot.NONE
            out.append(GiveSlot())
        return out


def last_write(reason: DetachReason | None, *, asked_to_end: bool) -> LastWrite | None:
    """Return the last write of a detached run; None if it has none.

    A turn with a requested cancel is given up if it cannot be replayed. If only a tool or its model is missing
    here, it is executed again: a cancelled turn needs neither.
    """
    match reason:
        case DetachReason.CANNOT_REPLAY:
            return LastWrite.GIVE_UP if asked_to_end else LastWrite.BLOCK
        case DetachReason.NOT_HERE:
            return LastWrite.RELEASE if asked_to_end else LastWrite.BLOCK
        case DetachReason.STORE_AWAY:
            return LastWrite.POSTPONE
        case DetachReason.RELEASED:
            return LastWrite.RELEASE
        case DetachReason.PARKED | DetachReason.LEASE_LOST | None:
            return None


def write_instead(ending: Ending, *, is_turn: bool) -> LastWrite | None:
    """Return the write that replaces a permanently refused one; None if nothing is left to try.

    A process settles with that failure. A turn, and a process whose failure cannot be written either, is blocked.
    """
    if ending.last_write in (LastWrite.BLOCK, LastWrite.POSTPONE, LastWrite.RELEASE):
        return None
    return LastWrite.BLOCK if is_turn or ending.is_refused else LastWrite.SETTLE
