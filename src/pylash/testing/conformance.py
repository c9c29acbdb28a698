"""Public conformance suites: check your own host or store against the laws that every implementation must keep.

A suite takes ``make``, which gives a fresh, open subject (or an awaitable of one). A subject that
survives a restart has ``async def reopen()``; a store also has ``async def second()``, which opens
the same database beside it. A subject of ``run_memory`` is a host with one of its runs
(``pylash.testing.laws.run_memories.RunSubject``). Every suite has ``.laws``, to check them one by one.

>>> await conformance.effect_host(InlineHost)
>>> await conformance.effect_host_await_events(InlineHost)
"""

from __future__ import annotations

from pylash.durable.ports import EffectHost
from pylash.durable.scopes import TurnScope
from pylash.testing.laws.apps import APP_ON_HOST
from pylash.testing.laws.controllers import (
    DURABLE_STEPS,
    OVERLAPS,
    POSITIONALS,
    REPLAYS,
    SERIALS,
    Controller,
    StartReplay,
    run_replays,
)
from pylash.testing.laws.engines.cancels import CANCELS
from pylash.testing.laws.engines.processes import PROCESSES
from pylash.testing.laws.engines.repairs import REPAIRS
from pylash.testing.laws.engines.subjects import EngineSubject
from pylash.testing.laws.engines.turns import TURNS
from pylash.testing.laws.hosts import AWAIT_EVENTS, EFFECT_HOST
from pylash.testing.laws.run_memories import RUN_MEMORY, RUN_RECORDS
from pylash.testing.laws.stores.handles import HANDLE_LAWS
from pylash.testing.laws.stores.journals import JOURNAL_STORE
from pylash.testing.laws.stores.process_ends import ENDING_LAWS
from pylash.testing.laws.stores.processes import REGISTRY_LAWS
from pylash.testing.laws.stores.queues import QUEUE_LAWS
from pylash.testing.laws.stores.runs import RUN_STORE, WORKER_STORE
from pylash.testing.laws.stores.session_ends import END_LAWS
from pylash.testing.laws.stores.sessions import ATTACHMENT_STORE, TURN_LAWS
from pylash.testing.laws.stores.slots import SLOT_LAWS
from pylash.testing.laws.stores.subjects import SubjectStore
from pylash.testing.laws.stores.triggers import PROCESS_ENV_STORE, TRIGGER_STORE
from pylash.testing.laws.stores.waits import WAIT_STORE
from pylash.testing.laws.suites import Make, Suite, holds, made

app_on_host = APP_ON_HOST
"""Turns, processes and programs of an app; ``make`` gives an app that is not open, on the host to check."""

engine = Suite[EngineSubject]("engine", (*PROCESSES, *CANCELS, *REPAIRS, *TURNS))
"""What executes runs: processes, cancels, repairs and turns, each executed again from its beginning.

Its subjects are those of ``pylash.testing.laws.engines.subjects.EngineSubject``.
"""

effect_host = EFFECT_HOST
"""Scopes and the capabilities of a host."""

effect_host_await_events = AWAIT_EVENTS
"""Waits: keys, resolutions, deadlines, revocation."""

run_memory = RUN_MEMORY
"""The controller and the memory of a claimed run, for every host; its subjects are those of ``RunSubject``."""

run_records = RUN_RECORDS
"""The same for hosts that record effects: what the next execution of a run finds."""

journal_store = JOURNAL_STORE
"""Records and fences."""

wait_store = WAIT_STORE
"""Ends of waits, and the wake-ups they cause."""

run_store = RUN_STORE
"""Claims, lanes, parking, settling."""

worker_store = WORKER_STORE
"""Liveness and takeover."""

process_registry = Suite[SubjectStore](
    "process_registry", (*REGISTRY_LAWS, *HANDLE_LAWS, *ENDING_LAWS, *SLOT_LAWS)
)
"""Processes: registrations, logs, signals, handles, ends, slots, attempts."""

trigger_store = TRIGGER_STORE
"""Subscriptions, occurrences, deliveries."""

process_env_store = PROCESS_ENV_STORE
"""Captured environments."""

session_store = Suite[SubjectStore]("session_store", (*TURN_LAWS, *QUEUE_LAWS, *END_LAWS))
"""Sessions: turns, commits, queued messages, wakes, cancels, forks, deletions."""

attachment_store = ATTACHMENT_STORE
"""Attachments under their hashes."""


async def effect_host_durable_steps(make: Make[EffectHost]) -> None:
    """Check the laws of durable steps on a controller of a host."""
    host = await made(make)
    holds(host.supports_durable_effects, "the host must say that it supports durable effects")
    await effect_controller_durable_steps(host.scoped(TurnScope("step-session", "step-turn")))


async def effect_controller_durable_steps(controller: Controller) -> None:
    """Check the laws of durable steps on a controller."""
    await DURABLE_STEPS(lambda: controller)


async def effect_controller_durable_steps_replay(
    controller: Controller, start_replay: StartReplay
) -> None:
    """Check that steps are replayed; ``start_replay`` may return the controller that replays."""
    await run_replays("effect_controller_durable_steps_replay", REPLAYS, controller, start_replay)


async def effect_controller_concurrent_replay_deterministic(
    controller: Controller, start_replay: StartReplay
) -> None:
    """Check that overlapping effects are replayed, each from its own record."""
    name = "effect_controller_concurrent_replay_deterministic"
    await run_replays(name, OVERLAPS, controller, start_replay)


async def effect_controller_positional_replay_deterministic(
    controller: Controller, start_replay: StartReplay
) -> None:
    """Check the same for a controller that replays by position: effects are asked for in their first order."""
    name = "effect_controller_positional_replay_deterministic"
    await run_replays(name, POSITIONALS, controller, start_replay)


async def effect_controller_serial_replay_deterministic(
    controller: Controller, start_replay: StartReplay
) -> None:
    """Check the same for a controller that executes one effect at a time."""
    name = "effect_controller_serial_replay_deterministic"
    await run_replays(name, SERIALS, controller, start_replay)


__all__ = (
    "app_on_host",
    "attachment_store",
    "effect_controller_concurrent_replay_deterministic",
    "effect_controller_durable_steps",
    "effect_controller_durable_steps_replay",
    "effect_controller_positional_replay_deterministic",
    "effect_controller_serial_replay_deterministic",
    "effect_host",
    "effect_host_await_events",
    "effect_host_durable_steps",
    "engine",
    "journal_store",
    "process_env_store",
    "process_registry",
    "run_memory",
    "run_records",
    "run_store",
    "session_store",
    "trigger_store",
    "wait_store",
    "worker_store",
)
