"""The execution of a turn by a worker: from its question to its commit.

Rule 1. A turn always ends with a commit: its messages, its result, and the lane for the next.
Rule 2. A detached execution writes nothing more; any worker finishes the turn.
Rule 3. A turn that cannot be replayed is blocked. If its cancel was requested, it is given up instead.
Rule 4. A turn whose tool or model this worker lacks is blocked as well. If its cancel was requested, it is
        executed again instead: a cancelled turn needs neither, and keeps its messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from pylash.durable.machines.run_state import CodeEnd, DetachReason, LastWrite, WriteAnswer
from pylash.durable.sessions import TurnRecord
from pylash.engine.records import message_of
from pylash.engine.runs.branches import CURRENT
from pylash.engine.runs.driver import Detached
from pylash.engine.runs.endings import Endings
from pylash.engine.runs.run import LiveRun
from pylash.engine.store_answers import Unanswered
from pylash.engine.user_code import current_task, is_failure
from pylash.sessions.driver import TurnDriver
from pylash.sessions.feeds import relay_events
from pylash.sessions.services import SessionServices
from pylash.turn.asks import ASKS, OPTIONS, TurnAsk
from pylash.turn.events import TurnEvent
from pylash.values.canonical import write
from pylash.values.turn_errors import TurnStumbled

_log = logging.getLogger("pylash")


class TurnExecution:
    """Drives the turns of one worker, each in its own task."""

    def __init__(self, services: SessionServices, endings: Endings) -> None:
        self._services = services
        self._endings = endings

    async def drive(self, run: LiveRun) -> Any:
        """Execute the turn until it ends or is detached; return its state and result, if it ended."""
        CURRENT.set(run.root)  # for this task; tools and plugins that it starts inherit it
        result = None
        try:
            result = await self._end(run, await self._run_turn(run))
        finally:
            CURRENT.set(None)
            self._services.feeds.leave(run.id, ended=result is not None)
        return result

    async def _run_turn(self, run: LiveRun) -> TurnDriver | None:
        """Run the turn to its end; return its driver, or None if the run was detached."""
        task = current_task()
        try:
            assert run.turn is not None
            run.begin(cancelled=isinstance(run.record, TurnRecord) and bool(run.record.cancel))
            driver = self._driver(run, run.turn.nodes)
            async with self._relay_events(run, driver):
                await driver.run_turn()
        except (Detached, asyncio.CancelledError):
            return None
        except BaseException as error:
            if not is_failure(error, task):
                raise
            _log.exception("%s failed because of a bug in pylash or a plugin", run.fence.name)
            run.close(TurnStumbled(run.fence.name, f"{type(error).__name__}: {message_of(error)}"))
            return None
        return driver

    async def _end(self, run: LiveRun, driver: TurnDriver | None) -> Any:
        """Make the last writes of the turn; return its state and result, if it ended."""
        end = CodeEnd.STOPPED if driver is None else CodeEnd.FINISHED
        result = None
        try:
            cannot_go_on = run.machine.reason in (DetachReason.CANNOT_REPLAY, DetachReason.NOT_HERE)
            asked_to_end = cannot_go_on and await self._endings.is_asked_to_end(run)
        except Unanswered:
            return None
        write = await run.end_code(end, asked_to_end=asked_to_end)
        while write is not None:
            match write.what:
                case LastWrite.COMMIT:
                    assert driver is not None
                    result, answer = await self._commit(driver)
                case LastWrite.GIVE_UP:
                    result, answer = await self._give_up(run)
                case what:
                    result, answer = None, await self._endings.leave(run, what)
            write = run.end_write(answer)
        return result

    def _driver(self, run: LiveRun, nodes: Mapping[int, bytes]) -> TurnDriver:
        """Return the driver of a turn. A question has the options that it was submitted with, a queue drain the current ones."""
        turn = run.record
        assert run.turn is not None
        assert isinstance(turn, TurnRecord)
        session = run.turn.session
        options = turn.options if turn.options is not None else session.options
        ask = msgspec.structs.replace(
            ASKS.decode(turn.body) if turn.body else TurnAsk(),
            options=OPTIONS.decode(write(options or {})),
        )
        return TurnDriver(run, session, ask, self._services, nodes)

    @asynccontextmanager
    async def _relay_events(self, run: LiveRun, driver: TurnDriver) -> AsyncIterator[None]:
        """Write events for listeners in other processes, as soon as there is one."""
        # At most one relay runs. It returns at once if no listener has requested events, so another one may start later.
        relaying: list[asyncio.Task[None]] = []

        def begin() -> None:
            if not relaying or relaying[-1].done():
                relay = relay_events(self._services.store, run, driver.feed)
                relaying.append(run.outside.start(relay))

        run.driver.on_wake.append(begin)
        if run.turn is not None and run.turn.claimed:
            begin()
        try:
            yield
        finally:
            run.driver.on_wake.remove(begin)
            for task in relaying:
                task.cancel()

    async def _commit(self, driver: TurnDriver) -> tuple[Any, WriteAnswer]:
        """Commit a turn that is over; return its state and result if that was written, and the answer."""
        run = driver.run
        commit, end = driver.commit(), driver.machine.end
        assert end is not None
        answer = await self._endings.commit(run, commit)
        if answer is not WriteAnswer.WRITTEN:
            return None, answer
        self._services.histories.commit(driver.session, driver.machine.messages)
        if end.status == "failed":
            _log.warning("%s failed: %s [%s]", run.fence.name, end.error, end.code)
        event = TurnEvent("turn_completed", driver.turn_id, status=end.status, usage=end.usage)
        driver.feed.add(event)
        return (commit.state, {**commit.result, "text": end.text}), answer

    async def _give_up(self, run: LiveRun) -> tuple[Any, WriteAnswer]:
        """End a cancelled turn that cannot be replayed: the messages it wrote are left out."""
        trouble, driver = run.driver.trouble, self._driver(run, {})
        assert trouble is not None
        driver.machine.cancel(f"cancelled ({trouble.code}: {trouble.message})")
        commit = msgspec.structs.replace(driver.commit(), fresh=True)
        answer = await self._endings.commit(run, commit)
        return (commit.state, commit.result) if answer is WriteAnswer.WRITTEN else None, answer
