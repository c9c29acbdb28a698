"""The run of a process or a turn, while it is executed here.

Rule 1. Detaching (parking, a lost lease, a shutdown) is never recorded. The context closes first;
        whatever the code does after that is ignored.
Rule 2. A cancel is delivered at the effects that are pending, and recorded there; replay delivers it
        there and nowhere else.
Rule 3. A run whose branches all wait is idle: it holds no slot, and may be parked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn, TypeVar

from pylash.durable import (
    SECOND,
    Command,
    EffectController,
    Envelope,
    Fence,
    Instant,
    LocalExecutor,
    Outcome,
    ProcessRecord,
    RuntimeScope,
    envelope,
)
from pylash.runtime.beginnings import Beginning
from pylash.runtime.branches import Branch, Exited, cancel_key, current_branch, spawned
from pylash.runtime.controller import JournalController
from pylash.runtime.slots import Slots
from pylash.runtime.standings import TurnStanding
from pylash.runtime.subjects import Subject
from pylash.runtime.user_code import Control, is_interrupt
from pylash.tasks import TaskOwner
from pylash.values import DurabilityError, LashError, StoreError

T = TypeVar("T")

MAX_REFUSALS: Final = 50
"""How often a closed context refuses before it holds the caller for ever: it may be in a loop."""

_SCOPE: Final = RuntimeScope()
_log = logging.getLogger("pylash")


class Detached(Control):
    """The run goes on elsewhere or later; this execution of it is over."""


class ContinueAs(Control):
    """The process goes on with a fresh journal."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments


def unheard() -> None:
    """Default of ``listened`` and ``on_wake``: does nothing."""


def _seen(task: asyncio.Task[Any]) -> None:
    """Take note of how a branch failed: whoever waits for it decides what that means."""
    if not task.cancelled():
        task.exception()


class LiveRun:
    """A process, or a turn, being executed here under a fence."""

    wake_seq = 0
    stirred = False
    turn: TurnStanding | None = None
    beginning: Beginning | None = None
    has_slot = True
    is_idle = False
    cancelled = False
    trouble: LashError | None = None
    closed = parked = False
    expiring: asyncio.Task[None] | None = None
    parking: asyncio.Future[None] | None = None
    interrupted: frozenset[str] = frozenset()
    _flagged: frozenset[str] = frozenset()
    _busy = 1  # how many branches are busy; the root is at first
    _refusals = 0
    _taking: asyncio.Task[None] | None = None
    _warned = False
    _delivering = 0
    _held: asyncio.Future[None] | None = None
    _telling: asyncio.Task[None] | None = None

    def __init__(
        self,
        record: Subject,
        fence: Fence,
        controller: EffectController,
        slots: Slots,
        tasks: TaskOwner,
    ) -> None:
        self.record = record
        self.fence = fence
        self.id = record.id
        self.scope = fence.scope
        self.seed = record.seed
        self.controller = controller
        self.journal = controller if isinstance(controller, JournalController) else None
        self.tasks = tasks
        self.root = Branch(self)
        self.listened: Callable[[], None] = unheard
        self.on_wake: Callable[[], None] = unheard
        self._slots = slots
        self._turnstile = None if controller.supports_concurrent_effects else asyncio.Lock()
        if self.journal is not None:
            self.journal.board.changed = self._changed
            self.cancelled = self.decided(cancel_key()) is not None
            self.root.cancelling = "" in self._flagged

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
    def replaying(self) -> bool:
        """Whether there are recorded effects that the code has not come to yet."""
        return self.journal is not None and bool(self.journal.unread)

    @property
    def was_told(self) -> bool:
        """Whether a cancel has reached the code: one that was only noted has not."""
        return self.cancelled and not self.root.cancelling

    @property
    def deadline(self) -> Instant | None:
        """When the process must have ended."""
        timeout = self.record.timeout
        return None if timeout is None else Instant(self.record.created + timeout)

    def woken(self) -> None:
        """Look again: somebody made progress possible, said something, or listens."""
        self.stirred = True
        self.listened()
        self.on_wake()
        if self.journal is not None:
            self.journal.woken()

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
        branch = current_branch(self)
        told = owner if aside else branch
        if self.closed or self.beginning is not None or self.is_idle:
            await self._enter(branch)
        asked = envelope(
            command,
            scope=_SCOPE,
            effect_id=name,
            replay_key=key,
            causal_parent=owner.name or None,
            label=name,
        )
        if branch is not None and self.journal is not None and self.journal.remembers(key):
            return await self._replayed(branch, asked, local)
        if told is None:
            self._warn(name)
        elif self.journal is None and told.cancelling:
            told.hear_cancel()
            raise asyncio.CancelledError
        elif self.journal is not None and not self.journal.recorded(key):
            await self._hold(told, branch)
            if told.cancelling:
                await self._withdraw(told, asked)
        pending = (branch or owner).pending
        pending.add(key)
        if branch is None and aside:
            self._set_aside(owner, 1)
        self.rest(branch)
        try:
            return await self._executed(asked, local)
        except asyncio.CancelledError:
            (branch or owner).hear_cancel()
            raise
        finally:
            pending.discard(key)
            if branch is None and aside:
                self._set_aside(owner, -1)
            self.work(branch)
            await self.gate()

    async def _replayed(self, branch: Branch, asked: Envelope, local: LocalExecutor) -> Outcome:
        """Return what is in memory: nobody has to hear that the branch waits, for it does not."""
        try:
            return await self._executed(asked, local)
        except asyncio.CancelledError:
            branch.hear_cancel()
            raise

    def _set_aside(self, owner: Branch, change: int) -> None:
        """Count the effects that tasks of libraries wait for in the code of a branch."""
        asides = owner.asides + change
        mixed = asides > 0 and (owner.mixed if owner.asides else owner.waiting)
        self._recount(owner, asides=asides, mixed=mixed)

    async def _executed(self, asked: Any, local: LocalExecutor) -> Outcome:
        try:
            if self._turnstile is None:
                return await self.controller.execute(asked, local)
            async with self._turnstile:
                await self._enter()
                return await self.controller.execute(asked, local)
        except (DurabilityError, StoreError) as error:
            self.give_up(error)

    async def _hold(self, branch: Branch, resting: Branch | None) -> None:
        """Begin nothing new while a branch above is to be cancelled: it is, once all below it wait."""
        while branch.waiting_above() is not None:
            branch.held = True
            self._held = self._held or asyncio.get_running_loop().create_future()
            if resting is None:
                self._set_aside(branch, 1)
            self.rest(resting)
            try:
                await asyncio.wait((self._held,))
            finally:
                branch.held = False
                if resting is None:
                    self._set_aside(branch, -1)
                self.work(resting)
            await self.gate()

    def _tell_soon(self) -> None:
        """Pass a cancel on from a branch that waits for others to those, once they all wait."""
        assert self.journal is not None
        for branch in (self.root, *self.root.below()):
            told = branch.cancelling and branch.joining is not None
            if told and branch.waits(self.journal.is_pending):
                self._telling = self.tasks.start(self._tell(branch))
                return

    async def _tell(self, branch: Branch) -> None:
        joining = branch.joining
        assert self.journal is not None
        try:
            if joining is not None and branch.waits(self.journal.is_pending):
                branch.cancelling = False
                if self.journal.decision(cancel_key(joining.group)) is None:
                    with suppress(Detached):
                        await self.cancel_branches([branch], cancel_key(joining.group), {})
        finally:
            self._telling = None
            self._release()
            self._changed()

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.set_result(None)

    async def _withdraw(self, branch: Branch, asked: Any) -> None:
        """Deliver a cancel at an effect that has not begun."""
        assert self.journal is not None
        try:
            delivered = await self.journal.withdraw(asked)
        except (DurabilityError, StoreError) as error:
            self.give_up(error)
        branch.cancelling = False
        if delivered:
            branch.hear_cancel()
            raise asyncio.CancelledError

    async def _enter(self, branch: Branch | None = None) -> None:
        """Begin; refuse a call on a closed context, and hold whoever calls again and again.

        A branch that calls while the run is idle was excused by asides: it takes a slot first, and waits if
        the run is being parked.
        """
        if self.beginning is not None:
            await self.beginning.stands()
        if self.is_idle and branch is not None:
            self._recount(branch, mixed=True)
            await self.gate()
        if not self.closed:
            return
        self._refusals += 1
        if self._refusals > MAX_REFUSALS:
            await asyncio.get_running_loop().create_future()
        raise Detached

    def _warn(self, name: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s awaits %s in a task of its own, so it is not parked meanwhile: use ctx.gather, "
                "or timeout= of the call",
                self.fence.name,
                name,
            )

    # --- branches ---

    def start_branch(
        self, branch: Branch, parent: Branch, work: Coroutine[Any, Any, T]
    ) -> asyncio.Task[T]:
        """Start a branch of the run."""
        parent.children.add(branch)
        branch.cancelling = branch.name in self._flagged
        self._busy += 1
        return spawned(self._branch(branch, parent, work), branch, self.tasks)

    async def _branch(self, branch: Branch, parent: Branch, work: Coroutine[Any, Any, T]) -> T:
        assert branch.task is not None
        branch.task.add_done_callback(_seen)
        try:
            return await work
        except asyncio.CancelledError as error:
            if branch.was_cancelled or self.is_stopped(branch.task):
                raise
            raise Exited(error) from None
        except (SystemExit, KeyboardInterrupt) as error:
            if is_interrupt(error):
                raise
            raise Exited(error) from None
        finally:
            parent.children.discard(branch)
            if parent.is_joined_by(branch):
                # It goes on as of now, so that the run is not parked before its task runs.
                parent.joining = None
                self._busy += parent.count(waiting=False)
            self._recount(branch, ended=True)

    def decided(self, key: str) -> Any:
        """Return what was decided under key, and remember whom it cancels."""
        decision = None if self.journal is None else self.journal.decision(key)
        if decision is not None:
            self._flagged |= set(decision["cancelled"])
            self.interrupted |= set(decision["groups"])
        return decision

    # --- idle ---

    def rest(self, branch: Branch | None) -> None:
        """Note that the task of a branch waits."""
        if branch is None:
            return
        if branch.asides or branch.waiting:
            self._recount(branch, waiting=True, mixed=branch.asides > 0)
        else:  # the usual case, at every effect
            branch.waiting = True
            self._busy -= 1
            self._changed()

    def work(self, branch: Branch | None) -> None:
        """Note that the task of a branch goes on."""
        if branch is None:
            return
        if branch.asides or not branch.waiting:
            self._recount(branch, waiting=False)
        else:
            branch.waiting = False
            self._busy += 1
            self._changed()

    def _recount(self, branch: Branch, **changes: Any) -> None:
        self._busy += branch.count(**changes)
        self._changed()

    def _changed(self) -> None:
        board = None if self.journal is None else self.journal.board
        told = (self._flagged or self.cancelled) and board is not None
        if told and self._telling is None and not self.closed:
            self._tell_soon()
        busy = self._busy or self._delivering or self._held or self._telling
        idle = board is not None and not (busy or board.flying) and bool(board.flights)
        if idle and not self.is_idle and not self.closed:
            self.is_idle = True
            self._slots.idle(self)
        elif self.is_idle and not idle:
            self.is_idle = False
            self._slots.busy(self)

    async def gate(self) -> None:
        """Let a branch go on once the run is not being parked and has a slot."""
        while self.parking is not None:
            await self.parking
        if self.closed:
            raise Detached
        if not self.has_slot:
            if self._taking is None or self._taking.done():
                self._taking = self.tasks.start(self._slots.take_slot(self))
            await asyncio.shield(self._taking)
            await self.gate()

    # --- cancel ---

    def is_cancelled_here(self) -> bool:
        """Return whether the CancelledError at hand is a cancel of the run, and not of its task."""
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            return True
        if self.journal is None and self.cancelled and not self.closed:
            task.uncancel()  # without a journal it is told through the task
            return True
        return False

    def is_stopped(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a task of the run was cancelled by the runtime, and not by the code it runs."""
        if task is None or not task.cancelling():
            return False
        return self.closed or self.journal is None or self.journal.is_stopping

    async def cancel(self) -> None:
        """Deliver a cancel at whatever the run waits for, once."""
        while self.parking is not None:
            await asyncio.wait((self.parking,))
        if self.record.cancel_delivered or self.cancelled or self.closed:
            return
        self.cancelled = True
        try:
            await self.cancel_branches([self.root], cancel_key(), {})
        except (DurabilityError, StoreError) as error:
            self.close(error)

    async def cancel_branches(
        self, branches: Sequence[Branch], key: str, decision: dict[str, Any]
    ) -> dict[str, Any]:
        """Record a decision, and cancel branches where they wait; the others at their next effect."""
        await self._enter()
        leaves: list[Branch] = []
        groups: list[str] = []
        for branch in branches:
            if self.journal is None or branch.waits(self.journal.is_pending):
                found, inner = branch.stops()
                leaves += found
                groups += inner
            else:
                leaves.append(branch)  # it goes on by itself: told when it comes to wait
        names = sorted(leaf.name for leaf in leaves)
        decided = {**decision, "cancelled": names, "groups": sorted(groups)}
        self._flagged |= set(names)
        self.interrupted |= set(groups)
        for leaf in leaves:
            leaf.cancelling = True
        if self.journal is None:
            for leaf in leaves:
                if leaf.task is not None:
                    leaf.cancelling = False  # it is told here and now
                    leaf.task.cancel()
            return decided
        pending = (key for leaf in leaves for key in sorted(leaf.pending))
        keys = [key for key in pending if self.journal.is_pending(key)]
        self._delivering += 1
        self._changed()  # it is not parked before they have heard of it
        try:
            await self.journal.deliver({key: decided}, keys)
        except (DurabilityError, StoreError) as error:
            self.give_up(error)
        finally:
            self._delivering -= 1
            self._changed()
        return decided

    # --- the end of this execution ---

    def close(self, trouble: LashError | None = None) -> None:
        """Detach: from now on nothing of this execution counts."""
        if self.closed:
            return
        self.closed = True
        self.trouble = trouble
        self._release()
        if self.journal is not None:
            self.journal.break_off(Detached())

    def give_up(self, trouble: LashError) -> NoReturn:
        """Detach because of a trouble that is not the code's: it goes on later, or elsewhere."""
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
        if self.expiring is not None:
            self.expiring.cancel()
        if self.journal is not None:
            self.journal.board.changed = None

    async def finish(self, grace: float) -> None:
        """Wait until the code has ended, then cancel it, then leave it to itself."""
        tasks = self._tasks()
        for patience in (grace, grace):
            if not tasks:
                return
            _, tasks = await asyncio.wait(tasks, timeout=patience)
            for task in tasks:
                task.cancel()
        if tasks:
            _log.warning("%s ignores that it is detached: left to itself", self.fence.name)

    def _tasks(self) -> set[asyncio.Task[Any]]:
        tasks = (branch.task for branch in (self.root, *self.root.below()))
        return {task for task in tasks if task is not None and not task.done()}

    def until(self) -> Instant | None:
        """Return when a parked run must be looked at again."""
        assert self.journal is not None
        asked = self.cancelled or self.record.cancel_delivered
        deadline = None if asked else self.deadline
        times = [at for at in (self.journal.next_due(), deadline) if at is not None]
        return Instant(min(times)) if times else None

    def remaining(self) -> float | None:
        """Return the seconds until the process must have ended."""
        if self.deadline is None or self.journal is None:
            return None
        return max(0, self.deadline - self.journal.now()) / SECOND
