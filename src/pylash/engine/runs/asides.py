"""Asides: effects that a library asks for inside the code of a run, without a context.

Rule 1. A library starts tasks of its own. What they ask for belongs to the branch whose code it is.
Rule 2. The library names its effects; equal names in a branch are distinguished by a count.
        It takes the name before it awaits anything, so that no timing decides the count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from pylash.durable.effects import AwaitEvent, Command, Envelope, Outcome, Sleep
from pylash.durable.ports import LocalExecutor
from pylash.durable.seeds import chance, digest, uuid_text
from pylash.engine.executors import Executor, await_options, sleep_executor
from pylash.engine.runs.branches import CURRENT, Branch, outside
from pylash.engine.runs.run import LiveRun
from pylash.values.durations import Duration


class Aside:
    """The branch of a run in whose code a library is called."""

    def __init__(self, run: LiveRun, branch: Branch) -> None:
        self._run = run
        self.branch = branch

    def take(self, name: str, *, below: tuple[str, int] | None = None) -> tuple[str, int]:
        """Return the next part of a key for a name; ``below`` is the part before it."""
        # Counted below its part: how often a name was taken under another part does not change the key.
        if below is None:
            return self.branch.take(name)
        return name, self.branch.number(f"{below[0]}#{below[1]}/{name}")

    def recorded_name(self, name: str) -> str:
        """Return the name that effects of a name are recorded under: another one if it was renamed."""
        return self.branch.recorded_name(name)

    @property
    def new_names(self) -> dict[str, str]:
        """The names that renamed effects have now, by their recorded names."""
        return {old: new for new, old in self.branch.recorded_names.items()}

    def open_run(self, part: tuple[str, int]) -> None:
        """Note that a run of an agent begins, whose effects are below a part."""
        if self._run.memory.replay is not None:
            self._run.memory.replay.open(self.key(part), is_agent=True)

    def close_run(self, part: tuple[str, int]) -> None:
        """Note that a run of an agent has ended."""
        if self._run.memory.replay is not None:
            self._run.memory.replay.close(self.key(part))

    def key(self, *parts: tuple[str, int]) -> str:
        """Return the replay key of parts."""
        return self.branch.key(*parts)

    async def perform(
        self, key: str, name: str, command: Command, work: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Return what ``work`` returned the first time, or do it and record it.

        Cancellation: a cancel of the run surfaces here, recorded.
        """

        async def performed(_: Envelope) -> Outcome:
            # The work is an effect and no code of the branch: as in a step, the app may be used in it.
            with outside():
                return await work()

        return await self._effect(
            key, name, command, Executor(name, frozenset({command.kind}), performed)
        )

    async def sleep(self, key: str, name: str, seconds: float) -> None:
        """Wait; a restart waits only for the rest."""
        await self._effect(key, name, Sleep(round(seconds * 1000), retry=True), sleep_executor())

    async def wait(self, key: str, asked: AwaitEvent, timeout: Duration | None) -> Outcome:
        """Return how a wait ended."""
        return await self._effect(key, asked.title or key, asked, await_options(timeout=timeout))

    async def _effect(self, key: str, name: str, command: Command, local: LocalExecutor) -> Outcome:
        # An aside excuses its branch, which is taken to wait for the task of the library. Without that, the branch would
        # count as busy for as long as the call waits, and the run would never be parked.
        return await self._run.effect(self.branch, key, name, command, local, aside=True)

    def uuid(self, key: str) -> str:
        """Return a UUID, the same on every replay and in every fork."""
        return uuid_text(digest(self._run.seed, self._run.epoch, key)[:16])

    def chance(self, key: str) -> float:
        """Return a number from 0 to 1, the same on every replay."""
        return chance(self._run.seed, key)

    def now(self, key: str) -> datetime:
        """Return the time, recorded with the next effect and the same on every replay."""
        # A note and no effect: it is written before the next effect, which may depend on it.
        memory = self._run.memory
        at: int = memory.note(key, memory.now)
        return datetime.fromtimestamp(at / 1_000_000, UTC)


def aside() -> Aside | None:
    """Return where in a run the caller is, if it is in the code of one."""
    # By context and not by task: the tasks that a library starts have the context of the branch.
    branch = CURRENT.get()
    run = None if branch is None else branch.run
    return None if branch is None or run is None else Aside(run, branch)
