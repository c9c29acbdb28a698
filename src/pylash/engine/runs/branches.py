"""Branches: the tasks that a run started, each with its own namespace of replay keys.

Rule 1. A method of a context takes its key when it is called, and not when its coroutine is awaited: the order of the
        calls in the code gives the same keys in every execution.
Rule 2. Each branch counts its own names, so that the order in which branches run does not change their keys.
Rule 3. The state of a branch (what it waits for) belongs to the machine of its run, which has it as ``Branch.node``. The
        Branch of this module has what the machine does not need: the task and the counts of names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from pylash.durable.keys import replay_key
from pylash.durable.machines import run_state
from pylash.values.errors import EffectNested
from pylash.values.process_errors import EffectOutsideBranch, NameTaken

if TYPE_CHECKING:
    from pylash.engine.runs.run import LiveRun

CURRENT: Final[ContextVar[Branch | None]] = ContextVar("pylash_branch", default=None)
"""The branch in whose context the current task runs. Tasks that user code starts in a branch inherit it; see
``current_branch``."""


ENCLOSING_SESSIONS: Final[ContextVar[frozenset[str]]] = ContextVar(
    "pylash_lanes", default=frozenset()
)
"""The sessions whose turns wait for the current tool call, directly or through subagents. A turn that the tool submits to
one of them would deadlock, because their lanes are occupied."""


class Branch:
    """One task of a run, and how often it has used each name."""

    def __init__(
        self,
        run: LiveRun,
        path: tuple[str | tuple[str, int], ...] = (),
        group: run_state.Group | None = None,
    ) -> None:
        self._run = ref(run)  # weak, because the run has strong references to its branches
        self.path = path
        self.name = replay_key(*path)
        self.node = run_state.Branch(self.name, group)
        # Set when the code of the branch begins. LiveRun clears it for the root before the last write of the run, so that
        # this write is not cancelled.
        self.task: asyncio.Task[Any] | None = None
        # Whether a cancel of the run was raised in its code. A CancelledError that ends the code is then that cancel.
        self.was_cancelled = False
        # The recorded names of effects whose names in the code have changed, by the names they have now.
        self.recorded_names: Mapping[str, str] = {}
        # The answers to ``patched`` in this branch; it begins with those its parent had when it was opened.
        self.patches: dict[str, bool] = {}
        # How often each name was used in this execution. A replay uses the same names in the same order.
        self._counts: dict[str, int] = {}

    @property
    def run(self) -> LiveRun | None:
        """The run of this branch, None after the run was deleted."""
        return self._run()

    def take(self, name: str) -> tuple[str, int]:
        """Count a use of ``name``, and return the part of the key for it: its recorded name and the count."""
        name = self.recorded_name(name)
        count = self.number(name)
        run = self._run()
        if run is not None and run.memory.replay is not None:
            # Now, and not when the effect is awaited: works of a gather are all asked for before one executes.
            run.memory.replay.ask(self.key((name, count)))
        return name, count

    def is_recorded_next(self, name: str) -> bool:
        """Return whether the next effect of a name, or a later one, is recorded: code that took this name recorded it."""
        # A later one too: the works of a gather end in any order, so that only the second may be recorded.
        run = self._run()
        replay = None if run is None else run.memory.replay
        if replay is None or name in self.recorded_names.values():
            return False
        name = self.recorded_names.get(name, name)
        return replay.recorded_count(self.key(name)) > self._counts.get(name, 0)

    def has_taken(self, name: str) -> bool:
        """Return whether a name was taken in this execution."""
        return name in self._counts

    def number(self, name: str) -> int:
        """Return how often a name was taken in this execution, this time included."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return count

    def recorded_name(self, name: str) -> str:
        """Return the name that effects of a name are recorded under: the old one if it was renamed."""
        if self.recorded_names and name in self.recorded_names.values():
            raise NameTaken.by_rename(name)
        return self.recorded_names.get(name, name)

    def key(self, *parts: str | tuple[str, int]) -> str:
        """Return the replay key that consists of the path of this branch and ``parts``."""
        return replay_key(*self.path, *parts)


def current_branch(run: LiveRun) -> Branch | None:
    """Return the branch of ``run`` whose own task is the current task, if there is one."""
    # Tasks that user code starts inherit ``CURRENT`` too, and are not the branch.
    branch = CURRENT.get()
    if branch is None or branch.run is not run or branch.task is not asyncio.current_task():
        return None
    return branch


def own_branch(run: LiveRun, name: str) -> Branch:
    """Return the branch of ``run`` whose own task is the current task.

    Raises EffectNested inside a step or a tool, and EffectOutsideBranch in a task that user code started.
    """
    branch = current_branch(run)
    if branch is None:
        if CURRENT.get() is None:
            raise EffectNested(f"ctx.{name}", "a step")
        raise EffectOutsideBranch(f"ctx.{name}")
    return branch


@contextmanager
def outside() -> Iterator[None]:
    """Clear the current branch within the block, for the code of a step or a tool: it may use the app, but not its run."""
    # Only for this task and the tasks that it starts in the block: other tasks have their own contexts.
    token = CURRENT.set(None)
    try:
        yield
    finally:
        CURRENT.reset(token)


def branch_context(branch: Branch) -> Context:
    """Return a copy of the current context in which ``branch`` is the current branch."""
    # A copy, so that context variables that user code has set are inherited by branches as they are by tasks.
    context = copy_context()
    context.run(CURRENT.set, branch)
    return context
