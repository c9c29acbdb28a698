"""Groups of branches: gather, race and task groups of a run.

Rule 1. The machine of the run decides when a branch continues, when a join is over, and which branches a decision cancels.
Rule 2. Which branch was first is recorded before any other branch learns of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from pylash.durable.keys import replay_key
from pylash.durable.machines import run_state
from pylash.durable.machines.run_cancels import cancel_key
from pylash.durable.machines.run_state import CODE, READY
from pylash.engine.runs.branches import Branch, branch_context, current_branch
from pylash.engine.runs.driver import Call, Detached
from pylash.engine.user_code import Control, is_interrupt

if TYPE_CHECKING:
    from collections.abc import Generator

    from pylash.engine.runs.run import LiveRun

T = TypeVar("T")

PARKING_POLL_SECONDS: Final = 0.01
"""How often a task of user code checks whether its run, which is being parked, has its answer."""

NOBODY: Final = -1
"""The first branch of a group that is cancelled as a whole, in the record."""


class Exited(Exception):
    """Wraps an exception of user code that asyncio would treat as more than a failure of its task.

    A task that raises SystemExit or KeyboardInterrupt ends the event loop; one that raises CancelledError counts
    as cancelled, though its branch was not.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error


def error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """Return what the branch of a task raised, if it was not cancelled; the task must have ended."""
    error = None if task.cancelled() else task.exception()
    return error.error if isinstance(error, Exited) else error


class BranchTask(Generic[T]):
    """A branch that was started in a task group: await it for its result."""

    def __init__(self, group: BranchGroup, branch: Branch, task: asyncio.Task[T]) -> None:
        self._group = group
        self._branch = branch
        self._task = task

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the result."""
        return self._joined().__await__()

    def done(self) -> bool:
        """Return whether the branch has ended. A replay may find another answer: do not choose effects by it."""
        return self._task.done()

    def result(self) -> T:
        """Return the result of a branch that has ended."""
        return self._group.result(self._task)

    async def _joined(self) -> T:
        await self._group.join_one(self._branch, self._task)
        return self._group.result(self._task)


class BranchGroup:
    """Branches that were started together and end together."""

    def __init__(self, run: LiveRun, parent: Branch, part: tuple[str, int]) -> None:
        self._run = run
        self._parent = parent
        name, count = part
        self._name = f"{name}#{count}" if count > 1 else name
        self.key = parent.key(part)
        self.node = run_state.Group(self.key, parent.node)
        # By number, in the order of their start. The number is part of a branch's name and of recorded decisions, so
        # it must not depend on timing.
        self.branches: list[Branch] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._numbers: dict[run_state.Branch, int] = {}
        decided, passed_on = (run.memory.decision(key) for key in (self.key, cancel_key(self.key)))
        recorded = run_state.RecordedCancel.of(decided), run_state.RecordedCancel.of(passed_on)
        run.driver.tell(run.machine.code.open_group, self.node, *recorded)
        # The works that have no branch yet, and how many branches may run at once.
        self._pending: deque[Awaitable[Any]] = deque()
        self._limit: int | None = None
        # What is recorded about the first branch, by this execution or an earlier one; None until it is decided.
        self._decision = decided

    def start_all(self, works: Iterable[Awaitable[Any]], limit: int | None = None) -> None:
        """Start works in their order, at most ``limit`` at once: the others follow while the group is waited for."""
        self._pending.extend(works)
        self._limit = limit
        replay = self._run.memory.replay
        if replay is not None:
            # All of them: a branch that runs must not wait for what is recorded in one that comes after it.
            for number in range(len(self._pending)):
                replay.open(replay_key(*_path(self._parent, self._name, number)))
        if limit is None:
            self._start_pending()

    def _start_pending(self, until: int | None = None) -> None:
        """Start works while fewer than the limit run; the branch of number ``until`` is not started."""
        while self._pending and (self._limit is None or len(self.node.open) < self._limit):
            if until is not None and len(self.tasks) >= until:
                return
            self.start(self._pending.popleft())

    def _last_begun(self) -> int:
        """Return the number after the last branch that an earlier execution has begun, as far as it recorded anything."""
        begun, works = len(self.tasks), len(self.tasks) + len(self._pending)
        if self._decision is not None:
            # Without a limit all works are begun, and the decision has no number of them.
            return int(self._decision.get("started", works))
        replay = self._run.memory.replay
        if replay is None:
            return begun
        # Works are started in their order, so all before the last one with a record were started too.
        while works > begun and not replay.has_recorded(
            replay_key(*_path(self._parent, self._name, works - 1))
        ):
            works -= 1
        return works

    def start(self, work: Awaitable[T]) -> asyncio.Task[T]:
        """Start work in a branch of its own."""
        number = len(self.tasks)
        branch = Branch(self._run, _path(self._parent, self._name, number), self.node)
        branch.patches.update(self._parent.patches)
        branch.recorded_names = self._parent.recorded_names
        if self._run.memory.replay is not None:
            self._run.memory.replay.open(branch.name)
        task = self._start(branch, work)
        self._numbers[branch.node] = number
        self.branches.append(branch)
        self.tasks.append(task)
        return task

    def _start(self, branch: Branch, work: Awaitable[T]) -> asyncio.Task[T]:
        run, node, driver = self._run, branch.node, self._run.driver
        # Its call is registered before the fork: with the gate shut, the branch waits in it for GoOn.
        driver.calls[node] = Call(branch)
        driver.tell(run.machine.code.fork, node)
        if node.at is not READY:  # the gate is open
            del driver.calls[node]
        task = branch.task = run.tasks.start(self._code(branch, work), branch_context(branch))
        # Nothing is awaited since the fork, so the task finds its branch registered when it begins.
        driver.branches[node] = branch
        task.add_done_callback(partial(self._see, branch))
        return task

    async def _code(self, branch: Branch, work: Awaitable[T]) -> T:
        """Execute the code of a branch."""
        driver = self._run.driver
        try:
            if branch.node in driver.calls:  # the gate was shut when it was forked
                await driver.answer_of(branch.node)
            return await work
        except asyncio.CancelledError as error:
            if branch.was_cancelled or self._run.is_stopped(branch.task):
                raise
            raise Exited(error) from None
        except (SystemExit, KeyboardInterrupt) as error:
            if is_interrupt(error):
                raise
            raise Exited(error) from None
        finally:
            # Here, and not in a callback of the task: the machine knows of the end before any other task runs.
            self._end(branch)

    def _end(self, branch: Branch) -> None:
        driver = self._run.driver
        if self._run.memory.replay is not None:
            self._run.memory.replay.close(branch.name)
        driver.take_back(branch)
        driver.branches.pop(branch.node, None)  # a run that is gone has dropped all of them
        driver.tell(self._run.machine.code.branch_ended, branch.node)

    def _see(self, branch: Branch, task: asyncio.Task[Any]) -> None:
        """Retrieve the exception of a branch that is done; end a branch that never began."""
        if not task.cancelled():
            task.exception()  # marks it as seen: the branch that joins the group decides what it means
        driver = self._run.driver
        if branch.node in driver.branches:  # it was cancelled before its first step
            if driver.calls.pop(branch.node, None) is not None:
                driver.tell(self._run.machine.code.leave, branch.node)
            self._end(branch)

    async def all(self) -> list[Any]:
        """Wait for every branch; the first failure cancels the others and is raised."""
        try:
            failed = await self._first_failure()
        finally:
            _close(self._pending)
        self._raise_if_cancelled(failed)
        if failed is not None:
            error = error_of(self.tasks[failed])
            assert error is not None
            raise error
        return [task.result() for task in self.tasks]

    async def outcomes(self) -> list[Any]:
        """Wait for every branch; return their results and exceptions. A cancel of the run is raised."""
        try:
            while await self._next_ends(len(self.node.ended), None):
                pass
        finally:
            _close(self._pending)
        self._raise_if_cancelled(None)
        return [_outcome_of(task) for task in self.tasks]

    async def failures(self) -> list[BaseException]:
        """Wait for every branch; return how they failed, the first failure cancelling the others."""
        failed = await self._first_failure()
        self._raise_if_cancelled(failed)
        return [error for task in self.tasks if (error := error_of(task)) is not None]

    async def first(self) -> Any:
        """Wait for the first branch to end; cancel the others and return its result."""
        winner = None if self._decision is None else int(self._decision["first"])
        if winner is None:
            await self.join(after=0)
            # Several may have ended before this task ran. Any of them may win: a replay takes the recorded one.
            winner = min(self._ended())
            # A cancel that reached the group first has been decided already: it is raised when all have ended.
            if not (self._is_interrupted or self.tasks[winner].cancelled()):
                await self._decide(winner)
        await self.join()
        if self._is_interrupted:
            self._raise_cancelled()
        return self.result(self.tasks[winner])

    def result(self, task: asyncio.Task[T]) -> T:
        """Return the result of a branch, or raise what it raised; a cancel is its parent's too."""
        if task.cancelled():
            self._raise_cancelled()
        error = error_of(task)
        if error is not None:
            raise error
        return task.result()

    async def cancel(self) -> None:
        """Cancel every branch that has not ended, and wait for them."""
        if self._decision is None:
            await self._decide(NOBODY)
        await self.join()
        # The wait may have been where a cancel of the run was delivered: it is raised, whatever the group was left with.
        if self._is_interrupted:
            self._raise_cancelled()

    async def join(self, *, after: int | None = None) -> None:
        """Wait for the branches of the group; with ``after``, until more than that many have ended.

        If the run is detached meanwhile, the code of the branches ends before that of its parent continues.
        """
        try:
            await self._join(self.tasks, after=after)
        except Control:
            # The machine has refused its callers, so the end of the branches is known from their tasks only.
            if tasks := [task for task in self.tasks if not task.done()]:
                await asyncio.wait(tasks)
            raise

    async def join_one(self, branch: Branch, task: asyncio.Task[Any]) -> None:
        """Wait for one branch, in any task."""
        await self._join([task], one=branch)

    async def _join(
        self,
        tasks: list[asyncio.Task[Any]],
        *,
        after: int | None = None,
        one: Branch | None = None,
    ) -> None:
        driver, code = self._run.driver, self._run.machine.code
        current = current_branch(self._run)
        # A task that user code started waits in the place of the parent, if the parent is in its code.
        waiter = current or self._parent
        if waiter.node.at is CODE and (waiter is self._parent or one is not None):
            if not code.is_gate_open:
                await driver.enter(waiter)
            node = None if one is None else one.node
            driver.calls[waiter.node] = Call(waiter)
            if waiter is self._parent:
                how = {"first": after, "one": node, "beside": current is None}
                driver.tell(code.join, waiter.node, self.node, **how)
            else:
                driver.tell(code.await_branch, waiter.node, node)
            await driver.answer_of(waiter.node)
            return
        # The place of the parent is taken, so the machine does not know of this wait, and asyncio does the waiting.
        while any(not task.done() for task in tasks):
            if after is not None and len(self.node.ended) > after:
                return
            until = asyncio.ALL_COMPLETED if after is None else asyncio.FIRST_COMPLETED
            await asyncio.wait([task for task in tasks if not task.done()], return_when=until)
        if self._run.closed:
            raise Detached

    async def _first_failure(self) -> int | None:
        """Wait for every branch; return which failed first."""
        failed = None if self._decision is None else int(self._decision["first"])
        seen = 0
        while ended := await self._next_ends(seen, failed):
            # ``seen`` counts ends in the order in which the machine saw them. Several may have come at once: then the
            # branch with the lowest number is the first failure.
            seen += len(ended)
            failures = [number for number in ended if _has_failed(self.tasks[number])]
            if failed is None and failures:
                failed = min(failures)
                # What an earlier execution has begun gets its cancel too, and cleans up.
                begun = self._last_begun()
                while self._pending and len(self.tasks) < begun:
                    self.start(self._pending.popleft())
                await self._decide(failed)
        return failed

    async def _next_ends(self, seen: int, failed: int | None) -> list[int]:
        """Start pending works, and wait for further ends after ``seen``; return the numbers, none if all have ended."""
        is_over = failed is not None or self._is_interrupted
        self._start_pending(self._last_begun() if self._pending and is_over else None)
        if seen >= len(self.tasks):
            return []
        await self.join(after=seen)
        return self._ended(seen)

    def _ended(self, seen: int = 0) -> list[int]:
        """Return the numbers of the branches that have ended, except the first ``seen`` of them."""
        return [self._numbers[node] for node in self.node.ended[seen:]]

    async def _decide(self, first: int) -> None:
        """Record which branch was first, and cancel the others where they wait."""
        driver, code = self._run.driver, self._run.machine.code
        if not code.is_gate_open and self._parent.node.at is CODE:
            await driver.enter(self._parent)
        # Only a task of user code comes here while the run is being parked: the machine does not know of such tasks.
        while self._run.machine.phase is run_state.Phase.PARKING:  # noqa: ASYNC110 - too rare for an event
            await asyncio.sleep(PARKING_POLL_SECONDS)
        if self._run.closed:
            raise Detached
        # Set only when it is written: code that finds a decision here may act on it.
        recorded = {"first": first}
        if self._limit is not None:
            recorded["started"] = len(self.tasks)
        self._decision = await driver.decide(self.node, recorded)

    @property
    def _is_interrupted(self) -> bool:
        return self._run.machine.is_interrupted(self.node)

    def _raise_if_cancelled(self, failed: int | None) -> None:
        cancelled = failed is None and any(task.cancelled() for task in self.tasks)
        if cancelled or self._is_interrupted:
            self._raise_cancelled()

    def _raise_cancelled(self) -> NoReturn:
        branch = current_branch(self._run) or self._parent
        # Tells ``_code`` that the CancelledError is a cancel of the run, and not one that user code raised by itself.
        branch.was_cancelled = True
        if branch is not self._parent:  # it was flagged, and its cancel is raised here
            self._run.driver.tell(self._run.machine.code.hear_cancel, branch.node)
        raise asyncio.CancelledError


def _path(parent: Branch, name: str, number: int) -> tuple[str | tuple[str, int], ...]:
    return (*parent.path, f"{name}.{number}")


def _close(works: deque[Awaitable[Any]]) -> None:
    """Close the coroutines among works that will not be started."""
    while works:
        getattr(works.popleft(), "close", str)()


def _outcome_of(task: asyncio.Task[Any]) -> Any:
    """Return the result of a branch that has ended, or its exception; raise one that ends a program."""
    error = error_of(task)
    if error is None:
        return task.result()
    if isinstance(error, Exception | asyncio.CancelledError):
        return error
    raise error


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and task.exception() is not None
