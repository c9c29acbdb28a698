"""Subagents: turns of child sessions that run as processes.

Rule 1. A session-turn process runs its turn in its own run: every effect is an effect of the process, and is executed
        by the host's controller for the scope of the process.
Rule 2. The state of the child session is recorded first, so that a replay continues from there.
Rule 3. The process holds the lane of the child session: other turns of that session wait until it has ended.
Rule 4. The usage of subagents counts for the turn that called them, and so does their budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal

import msgspec

from pylash.durable.commands import (
    AwaitProcess,
    CancelProcess,
    ProcessCommand,
    StartProcess,
    process_key,
)
from pylash.durable.effects import (
    DurableStep,
    DurableStepOutcome,
    Process,
    ProcessOutcome,
    expect,
)
from pylash.durable.processes import (
    OUTPUTS,
    Failure,
    ProcessRecord,
    Registration,
    SessionRef,
    SessionTurnInput,
    Success,
)
from pylash.durable.seeds import digest
from pylash.durable.session_store import Sessions
from pylash.durable.sessions import SessionRecord
from pylash.engine.executors import process_executor, step_executor
from pylash.engine.records import message_of
from pylash.engine.runs.branches import ENCLOSING_SESSIONS, own_branch
from pylash.engine.runs.driver import Detached
from pylash.engine.runs.run import LiveRun
from pylash.sessions.driver import TurnDriver
from pylash.sessions.forks import find_fork_point
from pylash.sessions.services import SessionServices
from pylash.sessions.tool_calls import TurnTool
from pylash.tools.catalog import Catalog
from pylash.turn.asks import ASKS, SessionOptions, TurnAsk
from pylash.turn.budgets import budget_share, remaining, spent
from pylash.turn.events import TurnEvent
from pylash.turn.machine import RunTools, TurnEnd
from pylash.turn.messages import Text, ToolCall, ToolMessage, Usage
from pylash.values.canonical import decode, write
from pylash.values.errors import LashError
from pylash.values.turn_errors import ProcessSessionTurnFailed, SessionMoved

SPAWN: Final = "spawn_agent"


async def run_session_turn(services: SessionServices, run: LiveRun, given: SessionTurnInput) -> Any:
    """Run one turn of a child session in a process's run; return its result.

    Raises ProcessSessionTurnFailed if the turn fails, or if the host refuses an effect.
    """
    ended = True
    try:
        return await _run_turn(services, run, given)
    except ProcessSessionTurnFailed:
        raise
    except Exception as error:
        reason = message_of(error) or type(error).__name__
        raise ProcessSessionTurnFailed(given.session_id, reason) from error
    except BaseException:  # cancelled, or it goes on later
        ended = False
        raise
    finally:
        services.feeds.leave(run.id, ended=ended)


async def _run_turn(services: SessionServices, run: LiveRun, given: SessionTurnInput) -> Any:
    ENCLOSING_SESSIONS.set(frozenset(given.lanes))
    session = await _recorded_session(services, run, given)
    nodes = await run.read(partial(services.store.sessions.uncommitted, session))
    driver = TurnDriver(run, session, ASKS.decode(write(given.ask)), services, nodes)
    await driver.run_turn()
    end = await _commit(services, driver)
    if end.status == "cancelled":
        raise asyncio.CancelledError
    plain: dict[str, Any] = decode(write(end))
    if end.status == "failed":
        used = {name: plain[name] for name in ("usage", "seconds") if name in plain}
        raise ProcessSessionTurnFailed(given.session_id, end.error or "", used)
    return {"session_id": given.session_id, "turn_id": driver.turn_id, **plain}


async def _commit(services: SessionServices, driver: TurnDriver) -> TurnEnd:
    """Append the turn, which is over, to its session; return how it ended. The process ends later."""
    run, end = driver.run, driver.machine.end
    assert end is not None
    commit = partial(services.store.sessions.commit, run.fence, driver.commit(settle=False))
    try:
        await run.write(commit)
    except SessionMoved as error:  # a worker of an earlier version did not wait for the lane
        run.give_up(error)
    driver.feed.add(TurnEvent("turn_completed", driver.turn_id, status=end.status, usage=end.usage))
    return end


async def _recorded_session(
    services: SessionServices, run: LiveRun, given: SessionTurnInput
) -> SessionRecord:
    """Return the child session as it was when the process started; recorded as an effect."""

    async def open_session(_: str) -> Any:
        with run.guarded():
            session = await _opened_session(services.store.sessions, run, given)
        return decode(write(session))

    command, local = DurableStep("session", given.session_id), step_executor(open_session)
    outcome = await run.effect(run.root, "session", "session", command, local)
    return msgspec.convert(expect(outcome, DurableStepOutcome).value, SessionRecord)


async def _opened_session(
    sessions: Sessions, run: LiveRun, given: SessionTurnInput
) -> SessionRecord:
    """Return the child session, created if it is missing; refuse a session that has other turns.

    An earlier execution that died may have created it.
    """
    child, fork = given.session_id, given.fork
    if run.process.registration.plays_session:
        await sessions.hold(
            run.fence, child
        )  # versions that start it without the lane may run beside
    known = await sessions.get(child)
    if fork is not msgspec.UNSET and (known is None or not known.origin):
        source, head, counts = await find_fork_point(sessions, fork.session_id, fork.turn_id)
        unset = msgspec.structs.replace(source, options=None)  # the child has its own
        await sessions.fork(unset, child, head, counts, player=run.record.run)
    return await sessions.open(child, given.options)


class SpawnAgent(TurnTool):
    """The tool that calls a subagent; it runs as a process, and the turn waits for it."""

    def __init__(self, catalog: Catalog, names: tuple[str, ...]) -> None:
        async def spawn_agent(agent: str, task: str) -> str:
            """Let a subagent do a task by itself and return its answer."""
            raise AssertionError((agent, task))  # never called: ``call_within`` is

        spawn_agent.__annotations__["agent"] = Literal[names]
        super().__init__(spawn_agent, name=SPAWN)
        kinds = (catalog.agent(name) for name in names)
        self._kinds = [f"{one.name}: {one.description}" for one in kinds if one.description]

    @property
    def description(self) -> str:
        """The description of the tool, with the kinds of subagents."""
        return "\n".join((super().description, *self._kinds))

    async def call_within(
        self, turn: TurnDriver, call: ToolCall, arguments: Mapping[str, Any]
    ) -> ToolMessage:
        """Start the subagent's process and wait for its answer."""
        start = self._start(turn, call, arguments)
        process = start.registration.id
        try:
            await _perform(turn, call, "start", start)
            answer = await _perform(turn, call, "answer", AwaitProcess(process))
        except asyncio.CancelledError:
            with suppress(LashError, Detached):
                reason = "the turn that asked it was cancelled"
                await _perform(turn, call, "cancel", CancelProcess(process, reason))
            raise
        return _result_message(call, OUTPUTS.decode(write(answer["output"])))

    def _start(
        self, turn: TurnDriver, call: ToolCall, arguments: Mapping[str, Any]
    ) -> StartProcess:
        agent, task = arguments["agent"], arguments["task"]
        process = f"{agent}-{digest(turn.run.seed, call.id)[:8].hex()}"
        left = remaining(turn.machine.budget, spent(turn.machine.messages))
        budget = budget_share(left, *_position(turn, call))
        env, plugin_options = turn.environment.process_env, turn.ask.options.plugin_options
        if (
            env is None
        ):  # the turn started with an older version, which recorded the start like this
            env, plugin_options = turn.services.env, None
        options = SessionOptions(agent=agent, budget=budget, plugin_options=plugin_options)
        ask = decode(write(TurnAsk(parts=(Text(task),), options=options)))
        registration = Registration(
            id=process,
            input=SessionTurnInput(process, ask, decode(write(options)), _lanes(turn)),
            originator=SessionRef(turn.session.id),
            env=env,
        )
        return StartProcess(registration, grant=registration.holder)


def _position(turn: TurnDriver, call: ToolCall) -> tuple[int, int]:
    """Return the position of a subagent among those of one reply, and their number."""
    asked = turn.machine.poll_effect()
    calls = asked.calls if isinstance(asked, RunTools) else (call,)
    ids = [one.id for one in calls if one.tool == SPAWN]
    return ids.index(call.id), len(ids)


def _lanes(turn: TurnDriver) -> tuple[str, ...]:
    """Return the sessions that wait for a subagent of a turn; the same on every replay."""
    record = turn.run.record
    given = record.registration.input if isinstance(record, ProcessRecord) else None
    above = given.lanes if isinstance(given, SessionTurnInput) else ()
    return (*above, turn.session.id)


async def _perform(turn: TurnDriver, call: ToolCall, word: str, command: ProcessCommand) -> Any:
    """Perform a process command as an effect of a turn."""
    run, former = turn.run, f"{call.id}.{word}"
    # Records of an earlier version are found under the key that it used.
    is_former = run.memory.begun(former)
    key = former if is_former else process_key(call.id, command.effect_id)
    local = process_executor(turn.services.registry_work(run, key))
    work = Process(decode(write(command)))
    outcome = await run.effect(own_branch(run, SPAWN), key, command.effect_id, work, local)
    return expect(outcome, ProcessOutcome).result


def _result_message(call: ToolCall, output: Any) -> ToolMessage:
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
