"""The run of a process or a turn, while it is executed here.

Its code asks for effects through ``effect`` and reads the store through ``read``; its worker begins, wakes, parks and
ends it. Its machine decides what follows, and its driver carries that out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from pylash.durable.effects import Command, Envelope, Outcome, RuntimeScope, envelope
from pylash.durable.machines.run_cancels import cancel_key
from pylash.durable.machines.run_decisions import Write
from pylash.durable.machines.run_machine import Decisions, RunMachine
from pylash.durable.machines.run_state import (
    CODE,
    CancelState,
    CodeEnd,
    Recorded,
    RecordedCancel,
    RunConfig,
    SideCall,
    WriteAnswer,
)
from pylash.durable.ports import EffectController, LocalExecutor
from pylash.durable.processes import EngineInput, ProcessRecord
from pylash.durable.run_memory import RunMemory
from pylash.durable.runs import Fence, Instant
from pylash.durable.scopes import ExecutionScope
from pylash.engine.records import check_nesting, perform
from pylash.engine.runs.branches import Branch, current_branch
from pylash.engine.runs.driver import Call, Detached, RunDriver
from pylash.engine.runs.loaded_runs import LoadedRun
from pylash.engine.runs.outside import DirectCalls, Outside
from pylash.engine.runs.replays import check_end, until_replayed
from pylash.engine.runs.slots import Slots
from pylash.engine.store_answers import Unanswered, answer_of
from pylash.engine.user_code import Control
from pylash.tasks import TaskOwner
from pylash.values.errors import DurabilityError, LashError, StoreError

T = TypeVar("T")

UNPARKABLE: Final = "%s awaits %s in a task of its own, so the run cannot park: use ctx.gather, or timeout= of the call"
_log = logging.getLogger("pylash")


class ContinueAs(Control):
    """The process continues with a fresh journal and this input."""

    def __init__(self, given: EngineInput) -> None:
        self.input = given


class LiveRun:
    """A process, or a turn, being executed here under a fence."""

    def __init__(
        self,
        loaded: LoadedRun,
        wake_seq: int,
        controller: EffectController,
        memory: RunMemory,
        slots: Slots,
        tasks: TaskOwner,
        work_tasks: TaskOwner,
    ) -> None:
        self.record = record = loaded.subject
        self.fence: Fence = loaded.attached.fence
        self.turn = loaded.turn
        self.memory = memory
        # The tasks of the worker, for the code of branches. Effects run in ``work_tasks`` of the host, which are
        # cancelled later, so that a record that is being written outlives the code that asked for it.
        self.tasks = tasks
        self.root = Branch(self)
        # Where the next effects are requested; the driver of a turn sets it with every iteration.
        self.runtime_scope = RuntimeScope.of(self.fence.scope)
        config = RunConfig(
            is_durable=not memory.cancels_tasks,
            is_serial=not controller.supports_concurrent_effects,
            is_turn=loaded.turn is not None,
            parks_at_once=record.slot is not None,
            deadline=self.deadline,
            heard_before=bool(record.cancel_delivered),
        )
        # Known to the machine before any code begins: a branch takes its recorded cancel when it is forked.
        cancelled = RecordedCancel.of(memory.decision(cancel_key()))
        self.machine = RunMachine(config, self.root.node, wake_seq=wake_seq, cancelled=cancelled)
        self.driver = RunDriver(self, self.machine, controller, memory, slots, tasks, work_tasks)
        self._controller = controller
        # Whether UNPARKABLE was logged, which is done once for each execution.
        self._warned = False

    # --- what it is ---

    @property
    def id(self) -> str:
        """The id of the process or turn."""
        return self.record.id

    @property
    def scope(self) -> ExecutionScope:
        """The scope of its effects."""
        return self.fence.scope

    @property
    def session_id(self) -> str | None:
        """The session of which this is a turn; None for any other process."""
        if isinstance(self.record, ProcessRecord):
            return self.id if self.record.registration.plays_session else None
        return None if self.turn is None else self.turn.session.id

    @property
    def seed(self) -> str:
        """What its random names are derived from."""
        return self.record.seed

    @property
    def process(self) -> ProcessRecord:
        """The process that is executed."""
        assert isinstance(self.record, ProcessRecord)
        return self.record

    @property
    def epoch(self) -> str:
        """Which of its journals the process is at: one after another, if it continued as itself."""
        return str(self.process.registration.seed_epoch + self.process.state.epoch)

    @property
    def deadline(self) -> Instant | None:
        """When the process must have ended."""
        timeout = self.record.timeout
        return None if timeout is None else Instant(self.record.created + timeout)

    @property
    def closed(self) -> bool:
        """Whether nothing of this execution counts any more."""
        return self.machine.state.closed

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to end, as far as is known here; its code may not know yet."""
        return self.machine.cancel is not CancelState.NONE

    # --- effects ---

    async def effect(
        self,
        owner: Branch,
        key: str,
        name: str,
        command: Command,
        local: LocalExecutor,
        *,
        aside: bool = False,
    ) -> Outcome:
        """Execute a command under key as an effect of this run.

        ``aside``: it may come from a task of a library that the owner's code waits for.

        Cancellation: a cancel of the run surfaces here, recorded.
        """
        replay = self.memory.replay
        if replay is not None and not (replay.is_recorded(key) or self.cancelled):
            await until_replayed(self, key, name, command.kind, aside=aside)
        branch, code = current_branch(self), self.machine.code
        if branch is not None and branch.node.at is not CODE and not self.closed:
            branch = None  # another task waits in its place
        if branch is not None and not code.is_gate_open:
            await self.driver.enter(branch)
        asked = envelope(
            command,
            scope=self.runtime_scope,
            effect_id=name,
            replay_key=key,
            causal_parent=owner.name or None,
            label=name,
        )
        check_nesting(name)
        if branch is None and not (aside or self._warned):
            self._warned = True
            _log.warning(UNPARKABLE, self.fence.name, name)
        caller = SideCall(owner.node, aside) if branch is None else branch.node
        # Nothing is awaited between this read and ``ask``: the machine must get what is recorded at that moment.
        recorded = self.memory.record_of(key)
        is_replay = recorded is Recorded.OUTCOME or recorded is Recorded.CANCELLED
        if is_replay and not self._controller.supports_concurrent_effects:
            # It is replayed in its turn, and not beside the effect that is executed now.
            recorded, is_replay = Recorded.ELSEWHERE, False
        if is_replay and branch is not None:
            self.driver.tell(code.replay, branch.node, recorded)
        else:
            # The call is registered before the machine gets the request: the answer may come within ``tell``.
            self.driver.calls[caller] = Call(branch or owner, asked, local)
            self.driver.tell(code.ask, caller, key, recorded)
            outcome: Outcome = await self.driver.answer_of(caller)
            if not is_replay:
                return outcome
        try:
            return await self._controller.execute(asked, local)
        except asyncio.CancelledError:
            (branch or owner).was_cancelled = True
            raise
        except (DurabilityError, StoreError) as error:
            self.give_up(error)

    async def enclose(self, asked: Envelope, local: LocalExecutor) -> Outcome:
        """Execute a composite effect, which consists of others and is never recorded.

        A host that takes one effect at a time is left out: the effects inside would wait for it.
        """
        if self._controller.supports_concurrent_effects:
            return await self._controller.execute(asked, local)
        return (await perform(asked, local)).answer(asked.command.kind)

    async def read(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the store's answer to a read between two effects; trouble with the store detaches the run.

        The code of a run reads the store nowhere else. An engine that executes that code on a deterministic loop
        performs the read outside of it (``Outside``).
        """
        with self.guarded():
            answer: T = await self.outside.call(ask)
            return answer

    async def write(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the store's answer to a write between two effects; trouble with the store detaches the run.

        The write is safe to repeat: a replay makes it again.
        """
        with self.guarded():
            answer: T = await self.outside.call(ask)
            return answer

    @property
    def outside(self) -> Outside:
        """How its code reaches the store between two effects."""
        return DirectCalls(self)

    async def read_at_end(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the store's answer to a read that the end of the run depends on, however long the store is away.

        Raises Detached if the run is detached meanwhile, and StoreRefused if it can never be answered.
        """
        repeat = partial(answer_of, self.fence.name, ask, lambda: not self.closed)
        try:
            answer: T = await self.outside.call(repeat)
        except Unanswered:
            raise Detached from None
        return answer

    # --- cancels ---

    def is_cancelled_here(self) -> bool:
        """Return whether the current CancelledError is a cancel of the run, and not of its task."""
        # A cancel of the run is raised as an answer and cancels no task, except without a record.
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            return True
        if self.memory.cancels_tasks and self.cancelled and not self.closed:
            task.uncancel()
            return True
        return False

    def was_cancelled_at(self, key: str) -> bool:
        """Return whether a cancel was delivered at an effect, rather than its task cancelled by the code itself."""
        if self.closed:
            return False
        if self.memory.cancels_tasks:
            return self.cancelled
        return self.memory.record_of(key) is Recorded.CANCELLED

    def is_stopped(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a task of the run was cancelled by the runtime, and not by the code it runs."""
        if task is None or not task.cancelling():
            return False
        return self.closed or self.memory.cancels_tasks or self.memory.is_stopping

    # --- the worker ---

    def begin(self, *, cancelled: bool) -> None:
        """Note that the code begins in this task; ``cancelled``: the run was asked to end before."""
        if self.closed:
            raise Detached
        self.root.task = asyncio.current_task()
        # Before ``begin``: the root is only flagged, and meets the cancel at its first new effect. After it, the cancel
        # would be a delivery, and hold every new effect until it is written.
        if cancelled:
            self.driver.tell(self.machine.cancel_seen)
        self.driver.tell(self.machine.begin)

    # --- the end of this execution ---

    async def end_code(self, end: CodeEnd, *, asked_to_end: bool = False) -> Write | None:
        """Note that the code has ended; return the last write of this execution, if there is one."""
        self.root.task = None  # from now on it writes, and must not be cancelled
        if end is not CodeEnd.STOPPED and not (self.closed or self.cancelled or asked_to_end):
            check_end(self)
        self.driver.take_back(self.root)
        if not (self.closed or self.machine.code.is_gate_open):
            # Calls of libraries that the code left behind excused it, so that the run is idle or being parked.
            with suppress(Detached):
                await self.driver.enter(self.root)
        return _last_write(
            self.driver.tell(self.machine.code_ended, end, asked_to_end=asked_to_end)
        )

    def end_write(self, answer: WriteAnswer) -> Write | None:
        """Note how the last write was answered; return what is written instead, if it was refused."""
        return _last_write(self.driver.tell(self.machine.written, answer))

    def close(self, trouble: LashError | None = None) -> None:
        """Detach: from now on nothing of this execution counts."""
        self.driver.close(trouble)

    def give_up(self, trouble: LashError) -> NoReturn:
        """Detach because of trouble that is not the code's: the run goes on later, or elsewhere."""
        self.close(trouble)
        raise Detached from trouble

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Detach if a block of ours has trouble with the store or the record.

        No user code may run inside: what that raises is its own failure, whatever the class.
        """
        try:
            yield
        except (DurabilityError, StoreError) as trouble:
            self.give_up(trouble)

    def dispose(self) -> None:
        """Let go of everything, so that nothing waits for the garbage collector."""
        self.root.task = None
        self.driver.branches.clear()


def _last_write(decisions: Decisions) -> Write | None:
    return next((decision for decision in decisions if isinstance(decision, Write)), None)
