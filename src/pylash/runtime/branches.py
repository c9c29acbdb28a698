"""Branches: the tasks of one run, each with names of its own.

Rule 1. A key is taken when a method is called, in the order of the text.
Rule 2. A namespace belongs to one task: two branches never number each other's names.
Rule 3. Only who was first may depend on timing, and that is recorded.
Rule 4. A branch is cancelled where it waits: at an effect, or at the branches it waits for. Then it
        hears of it when they have ended, whatever came of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, TypeVar
from weakref import ref

from pylash.durable import replay_key
from pylash.tasks import TaskOwner
from pylash.values import EffectNested, EffectOutsideBranch

if TYPE_CHECKING:
    from collections.abc import Generator

    from pylash.runtime.runs import LiveRun

T = TypeVar("T")

CURRENT: Final[ContextVar[Branch | None]] = ContextVar("pylash_branch", default=None)
"""The branch whose context a task has. Tasks that a branch starts by itself have it too."""


LANES: Final[ContextVar[frozenset[str]]] = ContextVar("pylash_lanes", default=frozenset())
"""The sessions in whose turns a tool runs: asking one of them for a turn would wait for itself."""


class Joining(NamedTuple):
    """The branches another one waits for, all or the first; ``whole``: for the group of that key."""

    group: str
    branches: Sequence[Branch]
    until: str
    whole: bool


class Exited(Exception):
    """Carries an exception of user code out of a branch that asyncio would take for more than a failure.

    A task that raises SystemExit or KeyboardInterrupt ends the event loop; one that raises CancelledError counts
    as cancelled, though nobody cancelled it.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error


def error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """Return what the branch of a task raised, if it ended and was not cancelled."""
    error = None if task.cancelled() else task.exception()
    return error.error if isinstance(error, Exited) else error


class Branch:
    """One task of a run.

    ``asides`` counts the effects that tasks of libraries wait for in its code. They excuse the branch: it is
    taken to wait for those tasks. ``mixed``: its own task has waited or acted since the first of them, so that
    what it does is not known, and they excuse it no longer.
    """

    joining: Joining | None = None
    held = False
    task: asyncio.Task[Any] | None = None
    asides = 0
    mixed = False
    waiting = False
    ended = False
    cancelling = False
    was_cancelled = False

    def __init__(
        self,
        run: LiveRun,
        path: tuple[str | tuple[str, int], ...] = (),
        parent: Branch | None = None,
    ) -> None:
        self._run = ref(run)  # which has us
        self.parent = parent
        self.path = path
        self.name = replay_key(*path)
        self.pending: set[str] = set()
        self.children: set[Branch] = set()
        self._counts: dict[str, int] = {}

    @property
    def run(self) -> LiveRun | None:
        """The run this is a branch of, if it is still there."""
        return self._run()

    @property
    def is_busy(self) -> bool:
        """Whether its code runs, as far as is known."""
        return not (self.ended or self.waiting or (self.asides and not self.mixed))

    def count(self, **changes: Any) -> int:
        """Change what decides whether the branch is busy; return by how much that changes the busy branches."""
        before = self.is_busy
        self.__dict__.update(changes)
        return self.is_busy - before

    def hear_cancel(self) -> None:
        """Note that a cancel is raised in the code of the branch."""
        self.cancelling = False
        self.was_cancelled = True

    def take(self, name: str) -> tuple[str, int]:
        """Return the next part of a key for name."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return name, count

    def key(self, *parts: str | tuple[str, int]) -> str:
        """Return the replay key of parts in this branch."""
        return replay_key(*self.path, *parts)

    def stops(self) -> tuple[list[Branch], list[str]]:
        """Return where a cancel finds this branch: branches at effects, and groups waited for."""
        if self.joining is None:
            return [self], []
        leaves: list[Branch] = []
        groups = [self.joining.group] if self.joining.whole else []
        for branch in self.joining.branches:
            if branch in self.children:
                found, inner = branch.stops()
                leaves += found
                groups += inner
        return leaves, groups

    def waits(self, is_pending: Callable[[str], bool]) -> bool:
        """Return whether this branch, and whatever it waits for, goes on only if others do something."""
        if self.joining is None:
            if self.mixed and not self.waiting:
                return False
            return self.held or (bool(self.pending) and all(map(is_pending, self.pending)))
        left = [branch for branch in self.joining.branches if branch in self.children]
        whole = len(left) == len(self.joining.branches)
        joined = not left if self.joining.until == asyncio.ALL_COMPLETED else not whole
        return not joined and all(branch.waits(is_pending) for branch in left)

    def is_joined_by(self, branch: Branch) -> bool:
        """Return whether this branch goes on now that branch, which it may wait for, has ended."""
        if self.joining is None or branch not in self.joining.branches:
            return False
        if self.joining.until == asyncio.FIRST_COMPLETED:
            return True
        return not any(other in self.children for other in self.joining.branches)

    def waiting_above(self) -> Branch | None:
        """Return the branch that waits for this one and is to be cancelled."""
        branch = self
        while (above := branch.parent) is not None and above.joining is not None:
            if branch not in above.joining.branches:
                return None
            if above.cancelling:
                return above
            branch = above
        return None

    def below(self) -> list[Branch]:
        """Return every branch below this one."""
        return [found for child in self.children for found in (child, *child.below())]


def current_branch(run: LiveRun) -> Branch | None:
    """Return the branch of run that this task is."""
    branch = CURRENT.get()
    if branch is None or branch.run is not run or branch.task is not asyncio.current_task():
        return None
    return branch


def own_branch(run: LiveRun, name: str) -> Branch:
    """Return the branch of run that this task is, or refuse a task the run did not start."""
    branch = current_branch(run)
    if branch is None:
        if CURRENT.get() is None:
            raise EffectNested(f"ctx.{name}", "a step")
        raise EffectOutsideBranch(f"ctx.{name}")
    return branch


@contextmanager
def outside() -> Iterator[None]:
    """Leave the branch for a while: inside a step or a tool the app may be used."""
    token = CURRENT.set(None)
    try:
        yield
    finally:
        CURRENT.reset(token)


def branch_context(branch: Branch) -> Context:
    """Return a context in which branch is the current one."""
    context = copy_context()
    context.run(CURRENT.set, branch)
    return context


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
        """Return whether the branch has ended."""
        return self._task.done()

    def result(self) -> T:
        """Return the result of a branch that has ended."""
        return self._group.result(self._task)

    async def _joined(self) -> T:
        await self._group.joined([self._task], whole=False)
        return self._group.result(self._task)


class BranchGroup:
    """Branches that were started together and end together."""

    def __init__(self, run: LiveRun, parent: Branch, part: tuple[str, int]) -> None:
        self._run = run
        self._parent = parent
        self._part = part
        self._key = parent.key(part)
        self.branches: list[Branch] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._decision = run.decided(self._key)
        if run.decided(cancel_key(self._key)) is not None:
            parent.cancelling = False  # it was passed on to us

    def start(self, work: Awaitable[T]) -> asyncio.Task[T]:
        """Start work in a branch of its own."""
        name, count = self._part
        numbered = f"{name}#{count}" if count > 1 else name
        path = (*self._parent.path, f"{numbered}.{len(self.tasks)}")
        branch = Branch(self._run, path, self._parent)
        task = self._run.start_branch(branch, self._parent, _awaited(work))
        self.branches.append(branch)
        self.tasks.append(task)
        return task

    async def all(self) -> list[Any]:
        """Wait for every branch; the first failure cancels the others and is raised."""
        failed = await self._settled()
        self._raise_if_cancelled(failed)
        if failed is not None:
            error = error_of(self.tasks[failed])
            assert error is not None
            raise error
        return [task.result() for task in self.tasks]

    async def settled(self) -> list[BaseException]:
        """Wait for every branch; return how they failed, the first failure cancelling the others."""
        failed = await self._settled()
        self._raise_if_cancelled(failed)
        return [error for task in self.tasks if (error := error_of(task)) is not None]

    async def first(self) -> Any:
        """Wait for the first branch to end; cancel the others and return its result."""
        winner = None if self._decision is None else int(self._decision["first"])
        if winner is None:
            done, _ = await self.joined(self.tasks, asyncio.FIRST_COMPLETED)
            winner = next(n for n, task in enumerate(self.tasks) if task in done)
            interrupted = self._key in self._run.interrupted
            if not (interrupted or self.tasks[winner].cancelled()):
                await self._decide(winner)
        await self.joined(self.tasks)
        if self._key in self._run.interrupted:
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
            await self._decide(-1)
        await self.joined(self.tasks)

    async def joined(
        self,
        tasks: Sequence[asyncio.Task[Any]],
        until: str = asyncio.ALL_COMPLETED,
        *,
        whole: bool = True,
    ) -> tuple[set[asyncio.Task[Any]], set[asyncio.Task[Any]]]:
        """Wait for tasks as one of the run's waits; ``whole``: for the group, and not for one of it."""
        known = zip(self.branches, self.tasks, strict=True)
        branches = [branch for branch, task in known if task in tasks]
        self._parent.joining = Joining(self._key, branches, until, whole)
        self._run.rest(self._parent)
        try:
            done, pending = await asyncio.wait(tasks, return_when=until)
        finally:
            if self._parent.joining is not None:  # else the branch that ended last said so for us
                self._parent.joining = None
                self._run.work(self._parent)
        await self._run.gate()
        return done, pending

    async def _settled(self) -> int | None:
        """Wait for every branch; return which failed first."""
        failed = None if self._decision is None else int(self._decision["first"])
        pending: set[asyncio.Task[Any]] = set(self.tasks)
        while pending:
            done, pending = await self.joined(list(pending), asyncio.FIRST_COMPLETED)
            if failed is None:
                failed = self._failure(done)
                if failed is not None:
                    await self._decide(failed)
        return failed

    def _failure(self, done: set[asyncio.Task[Any]]) -> int | None:
        for number, task in enumerate(self.tasks):
            if task in done and not task.cancelled() and task.exception() is not None:
                return number
        return None

    async def _decide(self, first: int) -> None:
        """Record who was first, and cancel the rest at what they wait for."""
        others = [
            branch
            for branch, task in zip(self.branches, self.tasks, strict=True)
            if not task.done()
        ]
        self._decision = await self._run.cancel_branches(others, self._key, {"first": first})

    def _raise_if_cancelled(self, failed: int | None) -> None:
        cancelled = failed is None and any(task.cancelled() for task in self.tasks)
        if cancelled or self._key in self._run.interrupted:
            self._raise_cancelled()

    def _raise_cancelled(self) -> NoReturn:
        self._parent.was_cancelled = True
        raise asyncio.CancelledError


def cancel_key(group: str = "") -> str:
    """Return the key under which it is recorded that a run was cancelled, or that a group was told."""
    return f"!cancel {group}" if group else "!cancel"


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def spawned(work: Coroutine[Any, Any, T], branch: Branch, tasks: TaskOwner) -> asyncio.Task[T]:
    """Start the task of a branch."""
    task = tasks.start(work, branch_context(branch))
    branch.task = task
    return task
