"""The driver of a run: it tells the run's machine what happens, and carries out what the machine decides.

Rule 1. Every fact about a run reaches its machine through ``tell``. Nothing else changes the state of the machine.
Rule 2. Decisions are carried out in the order in which they were made. The decisions of a fact that is reported while
        others are carried out come after those.
Rule 3. A caller that waits has a Call until its task continues; an effect that is executed has a task until that ends.

The machine calls a branch of the run a Branch too. Here that one is a ``Node``: ``Branch.node``.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, assert_never
from weakref import ref

from pylash.durable.effects import Envelope, Outcome
from pylash.durable.machines.effect_table import (
    REST,
    Answer,
    Effect,
    Perform,
    Share,
    StopWork,
)
from pylash.durable.machines.run_decisions import (
    AskCancel,
    BecomeBusy,
    BecomeIdle,
    BreakOff,
    Decision,
    Deliver,
    Detach,
    Forget,
    GiveSlot,
    GoOn,
    Hang,
    Hold,
    LookAgain,
    Park,
    Queue,
    RaiseCancelled,
    Refuse,
    Replay,
    TakeSlot,
    Withdraw,
    Write,
)
from pylash.durable.machines.run_machine import Decisions, RunMachine
from pylash.durable.machines.run_state import CODE, READY, Caller, DetachReason, Group, SideCall
from pylash.durable.machines.run_state import Branch as Node
from pylash.durable.ports import EffectController, LocalExecutor
from pylash.durable.run_memory import Progress, RunMemory, Unobserved
from pylash.engine.records import check_same, failed, message_of
from pylash.engine.runs.branches import Branch
from pylash.engine.runs.replays import check_abandoned
from pylash.engine.runs.slots import Slots
from pylash.engine.user_code import Control
from pylash.tasks import TaskOwner
from pylash.values.errors import DurabilityError, LashError, LeaseLost, StoreClosed, StoreError
from pylash.values.process_errors import ProcessStumbled
from pylash.values.turn_errors import SessionMoved, TurnModelMissing, TurnStumbled, TurnToolMissing

if TYPE_CHECKING:
    from pylash.engine.runs.run import LiveRun

HOLD_SECONDS: Final = 0.5
"""How long new effects are held for a cancel, while code that does not wait may still come to its next effect."""

DETACH_GRACE: Final = 1.0
"""How long the code of a detached run may take to end before it is cancelled, and again before it is abandoned."""

_log = logging.getLogger("pylash")


class Detached(Control):
    """Raised in code whose execution is over: the run has ended, is blocked, or goes on elsewhere or later."""


class Call:
    """A caller that waits: for an effect, for branches, or at the gate.

    ``answer`` is what the caller gets when it continues: an outcome, or an exception to raise.
    """

    __slots__ = ("answer", "branch", "context", "envelope", "local", "waiter")

    def __init__(
        self,
        branch: Branch,
        envelope: Envelope | None = None,
        local: LocalExecutor | None = None,
    ) -> None:
        self.branch = branch
        self.envelope = envelope
        self.local = local
        # The work may begin later, in another task: it still gets the context of its caller.
        self.context: Context | None = None if envelope is None else copy_context()
        self.answer: Any = None
        self.waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def go_on(self) -> None:
        """Let the caller continue with its answer."""
        if not self.waiter.done():  # else its task was cancelled this moment
            self.waiter.set_result(None)

    def refuse(self) -> None:
        """Raise Detached in the caller."""
        self.answer = Detached()
        self.go_on()


class RunProgress:
    """Reports the progress of an effect to the machine of its run."""

    __slots__ = ("_driver", "_effect")

    def __init__(self, driver: RunDriver, effect: Effect) -> None:
        self._driver = driver
        self._effect = effect

    @property
    def is_stopped(self) -> bool:
        """Whether the effect was cancelled, or its last caller has left."""
        return not self._driver.machine.state.effects.holds(self._effect)

    def rest(self, due: int | None = None) -> None:
        """Report that there is nothing to do until due, or until others did something."""
        self._driver.tell(self._driver.machine.code.rest, self._effect, due)

    def stir(self) -> None:
        """Report that there may be something to do again."""
        if self._effect.state is REST:
            self._driver.tell(self._driver.machine.code.stir, self._effect)

    def recording(self) -> None:
        """Report that the outcome is being written or read."""
        self._driver.tell(self._driver.machine.code.recording, self._effect)


def ignore() -> None:
    """Default of ``on_listener`` and ``on_wake``: does nothing."""


class RunDriver:
    """Tells the machine of one run what happens, and carries out its decisions."""

    def __init__(
        self,
        run: LiveRun,
        machine: RunMachine,
        controller: EffectController,
        memory: RunMemory,
        slots: Slots,
        tasks: TaskOwner,
        work_tasks: TaskOwner,
    ) -> None:
        self.machine = machine
        # Why the run was detached, or its last write refused, if that was trouble.
        self.trouble: LashError | None = None
        # Called at every wake-up of a turn: to relay its events to other processes, and to read queued messages.
        self.on_listener: Callable[[], None] = ignore
        self.on_wake: Callable[[], None] = ignore
        # The branches whose tasks have not ended, and the callers that wait.
        self.branches: dict[Node, Branch] = {run.root.node: run.root}
        self.calls: dict[Caller, Call] = {}
        self._run = ref(run)  # it has us
        self._controller = controller
        self._memory = memory
        self._slots = slots
        self._tasks = tasks
        # Owned by the host, whose tasks outlive the worker's: a record that is being written is not cancelled with the run.
        self._work_tasks = work_tasks
        # The tasks that execute effects, also those that were stopped and have not ended. An effect that waits for its turn
        # on a serial host has none.
        self._work: dict[Effect, asyncio.Task[None]] = {}
        # The decisions that are being carried out.
        self._queue: list[Decision] | None = None
        # By the key of a group that is being decided: what will be recorded, and a future that ends when it is.
        self._deciding: dict[str, tuple[dict[str, Any], asyncio.Future[None]]] = {}
        # Whether a task waits until calls have been held for long.
        self._is_hold_limited = False
        memory.observe(self._progress_of)

    def tell(self, fact: Callable[..., Decisions], *facts: Any, **more: Any) -> Decisions:
        """Tell the machine a fact and carry out its decisions; return them.

        A fact that is impossible is a bug of ours: it blocks this run and no other.
        """
        try:
            decisions = fact(*facts, **more)
            if not decisions:
                return decisions
            # A ``tell`` further up the stack carries out decisions, and will carry out these too. So the caller of this
            # one must not rely on what they do when it returns.
            if self._queue is not None:
                self._queue.extend(decisions)
                return decisions
            self._queue = list(decisions)
            try:
                for decision in self._queue:  # which may grow meanwhile
                    self._carry_out(decision)
            finally:
                self._queue = None
        except Exception as error:  # noqa: BLE001 - ImpossibleFact, or another bug of ours
            self.stumble(error)
            return ()
        return decisions

    def _carry_out(self, decision: Decision) -> None:  # noqa: C901, PLR0912, PLR0915 - one case per decision
        match decision:
            case Perform(effect=effect, caller=caller):
                self._begin(effect, self.calls[caller])
            case Answer(effect=effect, callers=callers):
                self._answer(effect, callers)
            case GoOn(callers=callers):
                for caller in callers:
                    self.calls[caller].go_on()
            case RaiseCancelled(callers=callers):
                for caller in callers:
                    call = self.calls[caller]
                    call.answer = asyncio.CancelledError()
                    # A branch that has not begun to wait does not wait at the gate either.
                    if caller.at is CODE:
                        call.go_on()
            case Share(effect=effect, caller=caller):
                self._share(effect, self.calls[caller])
            case Queue(effect=effect, caller=caller):
                effect.envelope = self.calls[caller].envelope
            case BecomeIdle(park_now=park_now):
                self._slots.become_idle(self.run, park_now=park_now)
            case BecomeBusy():
                self._slots.become_busy(self.run)
            case TakeSlot():
                self._slots.take_slot(self.run)
            case GiveSlot():
                self._slots.give_slot()
            case Withdraw(caller=caller):
                self.serve(self._withdraw(caller, self.calls[caller]))
            case Deliver():
                self._deliver(decision)
            case StopWork(effect=effect):
                self._stop(effect)
            case LookAgain():
                self.on_listener()
                self.on_wake()
                self._memory.wake()
            case Refuse(caller=caller):
                self.calls[caller].refuse()
            case Detach(reason=reason):
                self._refuse_all()
                # A worker that closes, or parks a run, ends its code itself.
                if reason not in (DetachReason.RELEASED, DetachReason.PARKED):
                    self._tasks.serve(end_detached_code(self.run))
            case Write():
                # The caller of ``tell`` makes the write. Branches that the code has left behind may still wait.
                self._refuse_all()
            case BreakOff(effects=effects):
                self._break_off(effects)
            case Hold():
                self._limit_hold()
            case Hang():
                pass  # the caller waits
            case Replay() | Park() | AskCancel() | Forget():
                pass  # the caller of ``tell`` carries it out; the worker forgets a run when its drive ends
            case _:
                assert_never(decision)

    @property
    def run(self) -> LiveRun:
        """The run, which is there as long as it is executed."""
        run = self._run()
        assert run is not None
        return run

    # --- trouble ---

    def close(self, trouble: LashError | None = None) -> None:
        """Detach: from now on nothing of this execution counts."""
        if not self.machine.state.closed:
            self.trouble = trouble
            self.tell(self.machine.trouble, _detach_reason(trouble))

    def stumble(self, error: BaseException) -> None:
        """Detach the run for a bug in pylash: it is blocked, unless it is detached already."""
        name = self.run.fence.name
        _log.error("%s failed because of a bug in pylash", name, exc_info=error)
        kind = ProcessStumbled if self.run.turn is None else TurnStumbled
        self.trouble = kind(name, f"{type(error).__name__}: {message_of(error)}")
        self.tell(self.machine.trouble, DetachReason.CANNOT_REPLAY)

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work in a background task; trouble closes the run."""
        self._tasks.serve(self._guard(work))

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (DurabilityError, StoreError) as error:
            self.close(error)
        except Exception as error:  # noqa: BLE001 - a bug of ours; other runs go on
            self.stumble(error)

    # --- callers that wait ---

    async def enter(self, branch: Branch) -> None:
        """Wait until a branch may act that was taken to wait, or refuse it because the run is closed."""
        self.calls[branch.node] = Call(branch)
        self.tell(self.machine.code.enter, branch.node)
        await self.answer_of(branch.node)

    async def answer_of(self, caller: Caller) -> Any:
        """Wait until a caller may continue; return its answer, or raise it."""
        call = self.calls[caller]
        try:
            await call.waiter
        except asyncio.CancelledError:
            # The task was cancelled: a cancel of the run is an answer.
            try:
                await self._leave(caller, call)
            finally:
                # A cancel scope of anyio cancels the task again at each await, also that of ``_leave``.
                check_abandoned(self.run, _name_of(call), is_aside=_is_aside(caller))
            raise
        finally:
            if self.calls.get(caller) is call:  # else the branch was taken back
                del self.calls[caller]
        answer, branch = call.answer, call.branch
        del call
        if not isinstance(answer, BaseException):
            return answer
        if isinstance(answer, asyncio.CancelledError):
            branch.was_cancelled = True
        try:
            raise answer
        finally:
            del answer  # its traceback holds this frame

    def take_back(self, branch: Branch) -> None:
        """Free the place of a branch whose code has ended from a task that still waits in it.

        ``asyncio.create_task(ctx.gather(…))`` waits in the place of its branch, in a task that user code started.
        """
        node = branch.node
        if node in self.calls:
            self.calls.pop(node).refuse()
        while not (self.machine.state.closed or node.at is CODE):
            # From its join to the gate, and from there to its code. Decisions may name the node, so it has a call.
            self.calls[node] = Call(branch)
            self.tell(self.machine.code.leave, node)
            del self.calls[node]

    async def _leave(self, caller: Caller, call: Call) -> None:
        """Let a caller go whose task was cancelled; work that only it waited for ends first."""
        call.waiter = asyncio.get_running_loop().create_future()
        # Taken before ``leave``, after which the caller has no effect.
        work = None if caller.effect is None else self._work.get(caller.effect)
        decisions = self.tell(self.machine.code.leave, caller)
        is_stopped = any(isinstance(decision, StopWork) for decision in decisions)
        try:
            if is_stopped and work is not None:
                await asyncio.wait((work,))
            if caller.at is READY:
                await call.waiter
        except asyncio.CancelledError:
            self.tell(self.machine.code.leave, caller)
            raise

    # --- the work of effects ---

    def _begin(self, effect: Effect, call: Call) -> None:
        assert call.envelope is not None
        assert call.local is not None
        effect.envelope = call.envelope
        # On a serial host, an effect that was cancelled has to end before the next one begins.
        stopped = () if self._controller.supports_concurrent_effects else (*self._work.values(),)
        work = self._perform(effect, call.envelope, call.local, stopped)
        self._work[effect] = self._work_tasks.start(work, call.context)

    def _share(self, effect: Effect, call: Call) -> None:
        """Let a caller wait for the effect of another one, if both ask for the same."""
        assert call.envelope is not None
        try:
            check_same(effect.envelope, call.envelope)
        except DurabilityError as error:
            self.close(error)

    async def _perform(
        self,
        effect: Effect,
        envelope: Envelope,
        local: LocalExecutor,
        stopped: tuple[asyncio.Task[None], ...],
    ) -> None:
        """Execute an effect after the stopped ones have ended, and tell the machine how it ended."""
        result: Outcome | BaseException | None = None
        is_cancel = False
        try:
            execute = self._controller.execute(envelope, local)
            result = await (self._execute_after(stopped, execute) if stopped else execute)
        except (DurabilityError, StoreError) as error:
            if self.machine.state.effects.holds(effect):  # else it was stopped
                self.close(error)
        except asyncio.CancelledError as error:
            task, is_needed = asyncio.current_task(), self.machine.state.effects.holds(effect)
            if not is_needed:  # it was stopped
                raise
            if self._work_tasks.is_stopping:
                self.close()
                raise
            # The cancel is in the record, unless user code has cancelled the task that it runs in.
            if task is not None and task.cancelling():
                result = _failure(error, envelope)
            else:
                is_cancel = True
        except BaseException as error:  # noqa: BLE001 - it is the callers' to handle
            result = error
        finally:
            self._work.pop(effect, None)
        try:
            # The effect may have left the table meanwhile: then the machine ignores this.
            self.tell(self.machine.code.land, effect, result, cancelled=is_cancel)
        finally:
            del result, effect  # an exception holds this frame

    async def _execute_after(
        self, stopped: tuple[asyncio.Task[None], ...], execute: Coroutine[Any, Any, Outcome]
    ) -> Outcome:
        try:
            await asyncio.wait(stopped)
        except asyncio.CancelledError:
            execute.close()
            raise
        return await execute

    def _answer(self, effect: Effect, callers: tuple[Caller, ...]) -> None:
        result = effect.result
        if isinstance(result, BaseException) and not callers:
            _log.warning("an effect failed after its callers had left: %s", result)
        for number, caller in enumerate(callers):
            # Each caller after the first gets a copy: a caller may change its value.
            is_shared = number > 0 and not isinstance(result, BaseException)
            self.calls[caller].answer = copy.deepcopy(result) if is_shared else result

    def _stop(self, effect: Effect) -> None:
        task = self._work.get(effect)
        if task is not None and not task.cancelling():
            task.cancel()

    def _break_off(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            for caller in effect.callers:
                if caller in self.calls:
                    self.calls[caller].refuse()
            if effect.is_cancellable:
                self._stop(effect)

    def _refuse_all(self) -> None:
        for call in self.calls.values():
            call.refuse()

    def _progress_of(self, key: str) -> Progress:
        effect = self.machine.state.effects.in_flight.get(key)
        return Unobserved() if effect is None else RunProgress(self, effect)

    # --- cancels ---

    async def decide(self, group: Group, recorded: dict[str, Any]) -> dict[str, Any]:
        """Record which branch of a group was first, and cancel the others; return what is recorded."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._deciding[group.key] = recorded, written
        self.tell(self.machine.code.decide, group)
        if self.machine.state.closed:
            raise Detached
        await asyncio.wait((written,))  # the delivery is not cancelled with this task
        if self.machine.state.closed:
            raise Detached
        return recorded

    def _limit_hold(self) -> None:
        if not self._is_hold_limited:
            self._is_hold_limited = True
            self.serve(self._end_hold())

    async def _end_hold(self) -> None:
        """Tell the machine that calls are held for long: other code may wait for them, where the machine cannot see it."""
        state = self.machine.state
        try:
            while state.cancels.held and not state.closed:
                await asyncio.sleep(HOLD_SECONDS)
                if state.cancels.held and not state.closed:
                    self.tell(self.machine.hold_over)
        finally:
            self._is_hold_limited = False

    def _deliver(self, delivery: Deliver) -> None:
        """Cancel branches where they wait."""
        decided = self._deciding.pop(delivery.key, None)
        recorded, written = decided or ({}, asyncio.get_running_loop().create_future())
        recorded |= {"cancelled": list(delivery.cancelled), "groups": list(delivery.groups)}
        if self._memory.cancels_tasks:
            for leaf in delivery.leaves:
                task = self.branches[leaf].task
                if task is not None:
                    task.cancel()
            written.set_result(None)
            self.tell(self.machine.delivered, delivery.key)
        else:
            self.serve(self._record_delivery(delivery, recorded, written))

    async def _record_delivery(
        self, delivery: Deliver, recorded: dict[str, Any], written: asyncio.Future[None]
    ) -> None:
        # An effect whose record is being written by now is left to the answer of that write.
        effects = [effect.envelope for effect in delivery.effects if effect.is_cancellable]
        try:
            cancelled = await self._memory.deliver(delivery.key, recorded, effects)
            self.tell(self.machine.delivered, delivery.key, cancelled)
        finally:
            # Also if the write failed: the trouble closes the run in the same step, before ``decide`` continues.
            written.set_result(None)

    async def _withdraw(self, caller: Caller, call: Call) -> None:
        """Record a cancel at an effect that has not begun."""
        assert call.envelope is not None
        is_cancelled = await self._memory.withdraw(call.envelope)
        # Otherwise the caller has left, and may be withdrawing another effect by now.
        if self.calls.get(caller) is call:
            self.tell(self.machine.code.withdrawn, caller, is_cancelled)


async def end_detached_code(run: LiveRun) -> None:
    """Wait until the code of a detached run has ended, then cancel it, then leave it to itself."""
    # The first round waits for code that unwinds, the second for code that was cancelled.
    for _ in range(2):
        if not (tasks := _code_tasks(run)):
            return
        await asyncio.wait(tasks, timeout=DETACH_GRACE)
        # Read again: the code may have forked branches, or ended some, while we waited.
        for task in _code_tasks(run):
            task.cancel()
    if _code_tasks(run):
        _log.warning("%s ignores that it was detached and is abandoned", run.fence.name)


def _code_tasks(run: LiveRun) -> list[asyncio.Task[Any]]:
    tasks = (branch.task for branch in run.driver.branches.values())
    return [task for task in tasks if task is not None and not task.done()]


def _name_of(call: Call) -> str:
    """Return the name of what a caller waits for."""
    return "branches" if call.envelope is None else call.envelope.invocation.effect_id


def _is_aside(caller: Caller) -> bool:
    """Return whether a caller is a task of a library, which may cancel the tasks that it started."""
    return isinstance(caller, SideCall) and caller.excuses


def _failure(error: BaseException, envelope: Envelope) -> BaseException:
    """Return the failure of an effect as its callers get it."""
    kind = envelope.command.kind
    try:
        failed(error, kind).answer(kind)
    except LashError as failure:
        return failure
    return error


def _detach_reason(trouble: LashError | None) -> DetachReason:
    match trouble:
        case LeaseLost():
            return DetachReason.LEASE_LOST
        case TurnModelMissing() | TurnToolMissing():
            return DetachReason.NOT_HERE
        case DurabilityError() | SessionMoved():
            return DetachReason.CANNOT_REPLAY
        case None | StoreClosed():
            return DetachReason.RELEASED
        case _:
            return DetachReason.STORE_AWAY
