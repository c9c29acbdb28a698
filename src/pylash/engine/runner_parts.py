"""What an app gives to its runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pylash.durable.ports import EffectHost, Runner
from pylash.durable.processes import ProcessRecord
from pylash.durable.runs import EngineRun, JournalEntry
from pylash.durable.stores import Store
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.runs.endings import Endings
from pylash.engine.runs.programs import Drives, Programs
from pylash.engine.worker.config import Retention, WorkerConfig
from pylash.tasks import TaskOwner
from pylash.values.findings import Finding


class RunnerParts(NamedTuple):
    """The host of the store, the programs of the app, what creates the drives of runs, and the settings.

    ``on_end`` is called with the id and the output of each run that ends here.
    """

    journal: JournalHost
    programs: Programs
    drives: Callable[[TaskOwner, Endings], Drives]
    config: WorkerConfig
    retention: Retention
    on_end: Callable[[str, Any], None]


@runtime_checkable
class MakesRunner(Protocol):
    """An effect host that executes runs by itself, instead of the worker of the store."""

    def make_runner(self, parts: RunnerParts) -> Runner:
        """Return the runner of an app."""
        ...


@runtime_checkable
class Engine(Protocol):
    """What an app is given as ``host=`` if another engine executes its runs; called with the host of the store."""

    @property
    def engine(self) -> str:
        """The name of the engine. It is part of the targets of its runs, so that no other engine claims them."""
        ...

    def __call__(self, journal: EffectHost, /) -> EffectHost:
        """Return the host of the effects of an app, over that of its store."""
        ...

    def choose_endpoint(self, endpoint: str | None, bind: str | None) -> None:
        """Let the app listen for the engine, which reaches it at ``endpoint``. None leaves an address as it is."""
        ...

    def facts(self) -> dict[str, str]:
        """Return what a worker shows when it starts; raises an error if it would execute nothing."""
        ...

    async def examine(self, runs: Sequence[EngineRun]) -> list[Finding]:
        """Check the engine and its workers, and compare what it knows with its runs in the store. Nothing is changed."""
        ...

    async def read_entries(self, store: Store, record: ProcessRecord) -> list[JournalEntry]:
        """Return what the engine has recorded for a process, as entries of a journal by key."""
        ...


async def collect(engine: object, store: Store, record: ProcessRecord) -> None:
    """Add what an engine has recorded for a process to the store: then it can be forked, exported and replayed there."""
    if isinstance(engine, Engine) and record.registration.carrier == engine.engine:
        await store.journal.collect(record.run, await engine.read_entries(store, record))
