"""Subagents: turns of child sessions that run as processes.

Rule 1. A session-turn process plays its turn in its own run: every effect is the process's.
Rule 2. Where the child session stood is recorded first, so that a replay goes on from there.
Rule 3. What subagents use counts for the turn that asked them, and so does their budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec

from pylash.durable import (
    OUTPUTS,
    AwaitProcess,
    CancelProcess,
    DurableStep,
    DurableStepOutcome,
    EffectKind,
    Envelope,
    Failure,
    Outcome,
    Process,
    ProcessCommand,
    ProcessOutcome,
    ProcessRecord,
    Registration,
    SessionRecord,
    SessionRef,
    SessionTurnInput,
    StartProcess,
    Success,
    expect,
)
from pylash.runtime.branches import LANES, own_branch
from pylash.runtime.catalog import Catalog
from pylash.runtime.executors import Executor, process_executor
from pylash.runtime.process_steps import digest
from pylash.runtime.programs import Services
from pylash.runtime.runs import Detached, LiveRun
from pylash.runtime.tools import Tool
from pylash.runtime.turn_execution import commit_of, result_of_end
from pylash.runtime.turn_writer import TurnWriter
from pylash.runtime.turns import TurnDriver
from pylash.turn import (
    ASKS,
    RunTools,
    SessionOptions,
    Text,
    ToolCall,
    ToolMessage,
    TurnAsk,
    Usage,
    remaining,
    shared,
    spent,
)
from pylash.values import LashError, ProcessSessionTurnFailed, decode, write

_STEP: Final = frozenset({EffectKind.DURABLE_STEP})

SPAWN: Final = "spawn_agent"


async def play_session_turn(services: Services, run: LiveRun, given: SessionTurnInput) -> Any:
    """Play one turn of a child session in a process's run; return what came of it."""
    LANES.set(frozenset(given.lanes))
    session = await _standing(services, run, given)
    with run.guarded():
        nodes = await services.store.sessions.uncommitted(session)
    writer = TurnWriter(services.store.sessions, session, nodes)
    driver = TurnDriver(run, session, ASKS.decode(write(given.ask)), services, writer)
    machine = await driver.play()
    with run.guarded():
        await services.store.sessions.commit(run.fence, commit_of(driver, machine, settle=False))
    services.feeds.leave(run.id, ended=True)
    end = machine.end
    assert end is not None
    if end.status == "cancelled":
        raise asyncio.CancelledError
    if end.status == "failed":
        raise ProcessSessionTurnFailed(given.session_id, end.error or "", _used(result_of_end(end)))
    return {"session_id": given.session_id, "turn_id": driver.turn_id, **result_of_end(end)}


def _used(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a turn used, of how it ended."""
    return {name: result[name] for name in ("usage", "seconds") if name in result}


async def _standing(services: Services, run: LiveRun, given: SessionTurnInput) -> SessionRecord:
    """Return the child session as it was when the process began, recorded."""

    async def perform(_: Envelope) -> Outcome:
        with run.guarded():
            session = await services.store.sessions.open(given.session_id, given.options)
        return DurableStepOutcome(decode(write(session)))

    command = DurableStep("session", given.session_id)
    local = Executor("step", _STEP, perform)
    outcome = await run.effect(run.root, "session", "session", command, local)
    return msgspec.convert(expect(outcome, DurableStepOutcome).value, SessionRecord)


class SpawnAgent(Tool[..., Any]):
    """The tool by which a model asks a subagent; it runs as a process, and the turn waits for it."""

    def __init__(self, catalog: Catalog, names: tuple[str, ...]) -> None:
        async def spawn_agent(agent: str, task: str) -> str:
            """Let a subagent do a task by itself and return its answer."""
            raise AssertionError((agent, task))  # it runs within the turn

        spawn_agent.__annotations__["agent"] = Literal[names]
        super().__init__(spawn_agent, name=SPAWN)
        kinds = (catalog.agent(name) for name in names)
        self._kinds = [f"{one.name}: {one.description}" for one in kinds if one.description]

    @property
    def description(self) -> str:
        """What the model is told of the tool and of the kinds of subagents."""
        return "\n".join((super().description, *self._kinds))

    async def within(
        self, turn: TurnDriver, call: ToolCall, arguments: Mapping[str, Any]
    ) -> ToolMessage:
        """Start the subagent's process and wait for its answer."""
        start = self._start(turn, call, arguments)
        process = start.registration.id
        try:
            await _asked(turn, f"{call.id}.start", start)
            answer = await _asked(turn, f"{call.id}.answer", AwaitProcess(process))
        except asyncio.CancelledError:
            with suppress(LashError, Detached):
                reason = "the turn that asked it was cancelled"
                await _asked(turn, f"{call.id}.cancel", CancelProcess(process, reason))
            raise
        return _answered(call, OUTPUTS.decode(write(answer["output"])))

    def _start(
        self, turn: TurnDriver, call: ToolCall, arguments: Mapping[str, Any]
    ) -> StartProcess:
        agent, task = arguments["agent"], arguments["task"]
        process = f"{agent}-{digest(turn.run.seed, call.id)[:8].hex()}"
        left = remaining(turn.machine.budget, spent(turn.machine.messages))
        budget = shared(left, *_among(turn, call))
        options = SessionOptions(agent=agent, budget=budget)
        ask = decode(write(TurnAsk(parts=(Text(task),), options=options)))
        registration = Registration(
            id=process,
            input=SessionTurnInput(process, ask, decode(write(options)), _lanes(turn)),
            originator=SessionRef(turn.session.id),
            env=turn.services.env,
        )
        return StartProcess(registration)


def _among(turn: TurnDriver, call: ToolCall) -> tuple[int, int]:
    """Return which of how many subagents of one reply this is."""
    asked = turn.machine.poll_effect()
    calls = asked.calls if isinstance(asked, RunTools) else (call,)
    ids = [one.id for one in calls if one.tool == SPAWN]
    return ids.index(call.id), len(ids)


def _lanes(turn: TurnDriver) -> tuple[str, ...]:
    """Return the sessions that wait for a subagent of a turn: the same whenever it is replayed."""
    record = turn.run.record
    given = record.registration.input if isinstance(record, ProcessRecord) else None
    above = given.lanes if isinstance(given, SessionTurnInput) else ()
    return (*above, turn.session.id)


async def _asked(turn: TurnDriver, key: str, command: ProcessCommand) -> Any:
    """Ask the process registry as an effect of a turn."""
    run = turn.run
    local = process_executor(turn.services.registry_work(run, key))
    work = Process(decode(write(command)))
    outcome = await run.effect(own_branch(run, SPAWN), key, command.effect_id, work, local)
    return expect(outcome, ProcessOutcome).result


def _answered(call: ToolCall, output: Any) -> ToolMessage:
    match output:
        case Success(value=used):
            stopped = f"The subagent was stopped: {used.get('error')}."
            text = stopped if used.get("status") == "stopped" else used.get("text", "")
        case Failure(message=text, raw=used):
            pass
        case _:
            text, used = "The subagent was cancelled.", None
    used = used if isinstance(used, dict) else {}
    return ToolMessage(
        call.id,
        call.tool,
        text,
        error=not isinstance(output, Success),
        usage=msgspec.convert(used.get("usage") or {}, Usage),
        seconds=used.get("seconds", 0.0),
        provider_id=call.provider_id,
    )
