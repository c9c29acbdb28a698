"""Branches: the tasks of one run, each with names of its own.

Rule 1. A key is taken when a method is called, in the order of the text.
Rule 2. A namespace belongs to one task: two branches never number each other's names.
Rule 3. Where a branch stands is known to the machine of its run, as ``Branch.node``; the object here has what the
        machine does not need: its task and its names.
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
"""The branch whose context a task has. Tasks that a branch starts by itself have it too."""


LANES: Final[ContextVar[frozenset[str]]] = ContextVar("pylash_lanes", default=frozenset())
"""The sessions in whose turns a tool runs: asking one of them for a turn would wait for itself."""


class Branch:
    """One task of a run, and the names it has taken."""

    def __init__(
        self,
        run: LiveRun,
        path: tuple[str | tuple[str, int], ...] = (),
        group: run_state.Group | None = None,
    ) -> None:
        self._run = ref(run)  # a run has its branches, so that a strong reference would be a cycle
        self.path = path
        self.name = replay_key(*path)
        self.node = run_state.Branch(self.name, group)
        # Set when the code begins. LiveRun clears it for the root before the last write, which must not be cancelled.
        self.task: asyncio.Task[Any] | None = None
        # Whether a cancel of the run was raised in its code, so that a CancelledError which ends it is that cancel.
        self.was_cancelled = False
        # The recorded names of effects whose names in the code have changed, by the names they have now.
        self.recorded_names: Mapping[str, str] = {}
        # The answers to ``patched`` in this branch; it begins with those its parent had when it was opened.
        self.patches: dict[str, bool] = {}
        # How often each name was taken in this execution: a replay takes the same names in the same order.
        self._counts: dict[str, int] = {}

    @property
    def run(self) -> LiveRun | None:
        """The run this is a branch of, if it is still there."""
        return self._run()

    def take(self, name: str) -> tuple[str, int]:
        """Return the next part of a key for name, which is recorded under its old name if it was renamed."""
        name = self.recorded_name(name)
        count = self.number(name)
        run = self._run()
        if run is not None and run.memory.replay is not None:
            # Now, and not when the effect is awaited: works of a gather are all asked for before one executes.
            run.memory.replay.ask(self.key((name, count)))
        return name, count

    def number(self, name: str) -> int:
        """Return how often a name was taken in this execution, this time included."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return count

    def recorded_name(self, name: str) -> str:
        """Return the name that effects of a name are recorded under: the old one if it was renamed."""
        if self.recorded_names and name in self.recorded_names.values():
            raise NameTaken("name of an effect that was renamed,", name)
        return self.recorded_names.get(name, name)

    def key(self, *parts: str | tuple[str, int]) -> str:
        """Return the replay key of parts in this branch."""
        return replay_key(*self.path, *parts)


def current_branch(run: LiveRun) -> Branch | None:
    """Return the branch of run that this task is."""
    # Tasks that user code starts inherit the context. Only the branch's own task is the branch.
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
    # For this task and those it starts meanwhile: a variable belongs to the context, so other tasks keep the branch.
    token = CURRENT.set(None)
    try:
        yield
    finally:
        CURRENT.reset(token)


def branch_context(branch: Branch) -> Context:
    """Return a context in which branch is the current one."""
    # A copy of the caller's: context variables of user code reach its branches as they reach its tasks.
    context = copy_context()
    context.run(CURRENT.set, branch)
    return context
