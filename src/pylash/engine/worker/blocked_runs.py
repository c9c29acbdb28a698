"""Blocked processes that continue by themselves: a worker that starts retries those that fit its code.

Rule 1. A process is replayed first, as a dry run: nothing executes, and only one that fits is retried. A retry without
        it would execute new effects of branches that fit, and break them off where another branch is blocked
        again, at each start of a worker.
Rule 2. Only blocks that depend on the code are tried. A process whose code cancelled a step is not: that step was begun,
        is not recorded, and would be executed again.
Rule 3. Each try is counted before it begins, and the count is cleared after it. A process whose replay kills workers is left alone
        after ``ALONE_AFTER`` tries.
Rule 4. Once for each start of a worker, and some time after it, so that a deployment or a person may act first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pylash.durable.processes import carrier_target
from pylash.durable.runs import RunState, RunView
from pylash.engine.dry_runs import AT_ONCE, DryRuns, RecordedRun, Verdict
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.runner_parts import Engine
from pylash.engine.runs.endings import Endings
from pylash.engine.runs.programs import Drives, Programs
from pylash.tasks import TaskOwner
from pylash.values.errors import StoreError

TRIED_AFTER_SECONDS: Final = 5.0
"""How long after its start a worker tries blocked processes."""

MOST: Final = 1_000
"""How many are tried, the oldest first."""

CODES: Final = (
    "effect_replay_diverged",
    "effect_replay_mismatch",
    "process_code_error",
    "process_data_invalid",
    "process_surface_incompatible",
    "replay_refused",
)
"""The blocks that other code may end."""

_log = logging.getLogger("pylash")


async def retry_fitting(
    host: JournalHost,
    programs: Programs,
    drives: Callable[[TaskOwner, Endings], Drives],
    engine: Engine | None = None,
) -> None:
    """Retry the blocked processes that fit the code of this worker, or of an engine."""
    await asyncio.sleep(TRIED_AFTER_SECONDS)
    carrier = "" if engine is None else engine.engine
    targets = [carrier_target(carrier, one) for one in programs.targets()]
    # ``last`` grows: a process that is blocked again by another worker is not tried a second time.
    runs, tried, last = host.store.runs, 0, 0
    try:
        while tried < MOST:
            views = await runs.begin_trials(targets, CODES, last, AT_ONCE)
            if not views:
                return
            # A person, or another worker that has just started, may have retried it meanwhile: then this changes nothing.
            for view in await _fitting(DryRuns(host, programs, drives, engine), views):
                if await runs.retry(view.id, host.new_token()):
                    _log.info("process %s fits this code and is retried", view.scope.id)
            # Only here: a worker that dies, or is stopped, before this leaves its tries counted.
            await runs.end_trials([view.id for view in views])
            tried, last = tried + len(views), views[-1].id
    except StoreError:  # away for the moment; the next start tries them
        pass
    except Exception:  # noqa: BLE001 - the worker continues
        _log.exception("the blocked processes could not be tried")


async def _fitting(dry_runs: DryRuns, views: list[RunView]) -> list[RunView]:
    """Return the runs that a worker with this code would continue."""
    # The journals cannot change meanwhile: no worker executes a blocked run. Only answers to its waits may come, and
    # the worker that claims it then decides again.
    try:
        reports = await dry_runs.replay(
            [
                RecordedRun(one.id, one.kind, one.scope.id, one.target, RunState.BLOCKED, one.scope)
                for one in views
            ]
        )
    finally:
        await dry_runs.close()
    fits = {one.run.run for one in reports if one.verdict is Verdict.FITS}
    return [view for view in views if view.id in fits]
