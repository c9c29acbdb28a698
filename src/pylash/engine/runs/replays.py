"""Replays: a run whose code differs from the code that recorded its journal is blocked before it repeats anything.

``ReplayOrder`` decides what may execute; this module waits for it, and detaches the run otherwise.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pylash.durable.effects import EffectKind
from pylash.durable.keys import PATCHED
from pylash.durable.machines.replay_order import ROOT, line_of
from pylash.durable.processes import EngineInput, ProcessRecord
from pylash.durable.runs import SECOND
from pylash.engine.records import message_of
from pylash.engine.runs.branches import Branch, current_branch
from pylash.engine.user_code import user_traceback
from pylash.values.errors import EffectAbandoned, EffectReplayDiverged, LashError
from pylash.values.process_errors import TRACEBACK

if TYPE_CHECKING:
    from pylash.durable.machines.replay_order import Expected, ReplayOrder
    from pylash.engine.runs.run import LiveRun

HELD_SECONDS: Final = 1.0
"""How long a new effect waits for the replay of other tasks of its run without any progress."""

POLL_SECONDS: Final = 0.005

CHANGED_CODE: Final = (
    "deploy the code that recorded it and retry, keep the recorded name with key= or renamed=, or guard the new part "
    "with ctx.patched()"
)
CHANGED_TOOLS: Final = (
    "deploy the tools, schemas and settings that it was recorded with, then retry"
)
"""The advice for turns and Lashlang programs, which have no keys of their own."""


async def until_replayed(
    run: LiveRun, key: str, name: str, kind: EffectKind, *, aside: bool = False
) -> None:
    """Wait until a new effect may execute; block the run if its code differs from the code that recorded it."""
    replay = run.memory.replay
    assert replay is not None
    replay.ask(key)
    # An environment is recorded with the effect after it. A fork asks people again: answers to waits are not copied.
    is_exempt = kind is EffectKind.SYNC_EXECUTION_ENVIRONMENT or (
        kind is EffectKind.AWAIT_EVENT and run.seed != run.id
    )
    if is_exempt:
        return
    try:
        expected = await _held(run, replay, key, is_request=kind is EffectKind.DIRECT)
    except asyncio.CancelledError:
        check_abandoned(run, name, is_aside=aside and current_branch(run) is None)
        raise
    if expected is not None and not (run.closed or run.cancelled):
        run.give_up(diverged(run, f"asks for {_request(run, name, key)}", expected))


async def _held(
    run: LiveRun, replay: ReplayOrder, key: str, *, is_request: bool = False
) -> Expected | None:
    """Return the recorded effect that must come before a new one, once that may execute or the replay makes no progress."""
    # The code of a run that is one task has reached everything before this effect in its own line. Other tasks may still
    # replay what they recorded: a branch of a task group, or a task of user code that an agent runs in.
    is_alone = current_branch(run) is run.root and len(run.driver.branches) == 1
    if replay.may_execute(key, is_request=is_request):
        return None
    time = asyncio.get_running_loop().time
    # Polled: a hold is rare and short, and what ends it may be a task of a library, which reports nothing.
    seen, since = replay.progress, time()
    while not (run.closed or run.cancelled):
        # Only after progress: thousands of branches may be held at once.
        if replay.progress != seen:
            if replay.may_execute(key, is_request=is_request):
                return None
            seen, since = replay.progress, time()
        is_over = time() - since > HELD_SECONDS
        if is_alone and not is_over:
            expected = replay.expected_before(key, is_request=is_request)
            is_over = expected is not None and line_of(expected.key) == ROOT
        # A run that is past its deadline is asked to end by another task, and ends where it is.
        if is_over and not (run.deadline is not None and run.deadline <= run.memory.now()):
            break
        await asyncio.sleep(POLL_SECONDS)
    return replay.expected_before(key, is_request=is_request)


async def is_patched(run: LiveRun, branch: Branch, patch: str) -> bool:
    """Return whether a branch takes a patch: if it did so before, or nothing behind this place is recorded."""
    known = branch.patches.get(patch)
    if known is not None:
        return known
    key, replay = branch.key(f"{PATCHED}{patch}"), run.memory.replay
    is_taken = run.memory.decision(key) is not None
    if not is_taken and (replay is None or await _held(run, replay, key) is None):
        # Recorded before anything can depend on it.
        is_taken = await run.memory.take_patch(key)
    branch.patches[patch] = is_taken
    return is_taken


def check_abandoned(run: LiveRun, name: str, *, is_aside: bool = False) -> None:
    """Block a process whose code has cancelled the current task, which waits for ``name``: no replay could repeat that.

    ``is_aside``: the task is one of a library, which may cancel the tasks that it started.
    """
    # Cancels of a run and of its branches are answers and cancel no task, except on a host without records. A run that
    # was asked to end is not replayed any further than its end, and may limit what it does there.
    if _is_code(run) and not (is_aside or run.cancelled or run.is_stopped(asyncio.current_task())):
        run.give_up(EffectAbandoned(name))


def check_end(run: LiveRun, error: BaseException | None = None) -> None:
    """Detach a run that ends, by an error or not, where its recorded execution had passed: it is blocked instead."""
    replay = run.memory.replay
    expected = None if replay is None else replay.expected_at_end()
    if expected is not None:
        how = "ends" if error is None else f"ends with {type(error).__name__}: {message_of(error)}"
        run.close(with_traceback(diverged(run, how, expected), error))


def with_traceback(trouble: LashError, error: BaseException | None) -> LashError:
    """Return trouble with the traceback of the code that caused it, which is written with its reason."""
    if error is not None and (trace := user_traceback(error)):
        trouble.add_note(f"{TRACEBACK}{trace}")
        trouble.__cause__ = error  # for the log
    return trouble


def excuse(run: LiveRun) -> None:
    """Let a run end whose code cannot run at all, because something that it needs is missing: it requested no effect."""
    replay = run.memory.replay
    if replay is not None and replay.progress == 0:
        replay.clear()


def diverged(run: LiveRun, requested: str, expected: Expected) -> EffectReplayDiverged:
    """Return the error of code that does something where a recorded effect is expected."""
    moment = datetime.fromtimestamp(expected.started / SECOND, UTC)
    return EffectReplayDiverged(
        requested,
        name_and_key(expected.name, expected.key),
        f"{moment:%Y-%m-%d %H:%M:%S} UTC",
        CHANGED_CODE if _is_code(run) else CHANGED_TOOLS,
        key=expected.key,
    )


def name_and_key(name: str | None, key: str) -> str:
    """Return an effect as messages show it: the name that ``pylash show`` prints, and the key if that differs.

    >>> name_and_key("charge", "charge"), name_and_key("approved", "root:process:wait_signal:approved")
    ("'charge'", "'approved' (root:process:wait_signal:approved)")
    """
    return repr(key) if name in (None, key) else f"{name!r} ({key})"


def _request(run: LiveRun, name: str, key: str) -> str:
    """Return the effect that code asks for, by the name in the code."""
    for new, old in run.root.recorded_names.items():
        if name == old:
            return f"{new!r}, which renamed= looks up as {name_and_key(name, key)},"
    return name_and_key(name, key)


def _is_code(run: LiveRun) -> bool:
    """Return whether the run executes a Python process, and no turn or Lashlang program."""
    record = run.record
    return isinstance(record, ProcessRecord) and isinstance(record.registration.input, EngineInput)
