"""Executing a turn here: from its first question to what is committed in the end.

Rule 1. A turn always ends with a commit: its messages, its result, and the lane for the next.
Rule 2. Who was detached writes nothing more; any worker finishes the turn.
Rule 3. A turn that cannot be replayed is blocked. If it was asked to end, it is given up instead.
Rule 4. A turn whose tool or model is not here is blocked as well. If it was asked to end, it is executed
        again instead: a cancelled turn needs neither, and keeps what it did.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from pylash.durable import (
    RunState,
    SessionRecord,
    TurnCommit,
    TurnRecord,
)
from pylash.runtime.branches import CURRENT
from pylash.runtime.endings import Unanswered, answer_of, block, let_go, persist
from pylash.runtime.programs import Services
from pylash.runtime.records import message_of
from pylash.runtime.relays import relay
from pylash.runtime.runs import Detached, LiveRun, unheard
from pylash.runtime.turn_writer import TurnWriter
from pylash.runtime.turns import TurnDriver
from pylash.runtime.user_code import current_task, is_failure
from pylash.turn import (
    ASKS,
    OPTIONS,
    AssistantMessage,
    TurnAsk,
    TurnEnd,
    TurnEvent,
    TurnMachine,
    Usage,
    spent,
)
from pylash.values import (
    DurabilityError,
    LeaseLost,
    Misuse,
    StoreRefused,
    TurnModelMissing,
    TurnStumbled,
    TurnToolMissing,
    decode,
    write,
)

_log = logging.getLogger("pylash")


class TurnExecution:
    """Drives the turns of one worker, each in a task of its own."""

    def __init__(self, services: Services, is_open: Callable[[], bool]) -> None:
        self._services = services
        self._is_open = is_open

    async def drive(self, run: LiveRun) -> Any:
        """Execute the turn until it ends or is detached; return its result, if it has one."""
        run.root.task = asyncio.current_task()
        CURRENT.set(run.root)
        ended = False
        try:
            result = await self._played(run)
            ended = result is not None
        finally:
            CURRENT.set(None)
            self._services.feeds.leave(run.id, ended=ended)
        return result

    async def _played(self, run: LiveRun) -> Any:
        task = current_task()
        try:
            driver = self._driver(run)
            if isinstance(run.record, TurnRecord) and run.record.cancel and not run.cancelled:
                run.root.cancelling = run.cancelled = True
            async with self._relayed(run, driver):
                machine = await driver.play()
        except Detached:
            return await self._detached(run)
        except asyncio.CancelledError:
            run.close()
            return await self._detached(run)
        except BaseException as error:
            if not is_failure(error, task):
                raise
            _log.exception("%s stumbled", run.fence.name)
            run.close(TurnStumbled(run.fence.name, f"{type(error).__name__}: {message_of(error)}"))
            return await self._detached(run)
        if run.closed:
            return await self._detached(run)
        if run.journal is not None:
            run.closed = True
            run.journal.break_off(Detached())
        return await self._committed(run, driver, machine)

    @asynccontextmanager
    async def _relayed(self, run: LiveRun, driver: TurnDriver) -> AsyncIterator[None]:
        """Write for listeners elsewhere, from when there is one."""
        relaying: list[asyncio.Task[None]] = []

        def begin() -> None:
            if not relaying or relaying[-1].done():
                relaying.append(run.tasks.start(relay(self._services.store, run, driver.feed)))

        run.listened = begin
        if run.turn is not None and run.turn.claimed:
            begin()
        try:
            yield
        finally:
            run.listened = unheard
            for task in relaying:
                task.cancel()

    def _driver(self, run: LiveRun) -> TurnDriver:
        assert run.turn is not None
        assert isinstance(run.record, TurnRecord)
        session = run.turn.session
        writer = TurnWriter(self._services.store.sessions, session, run.turn.nodes)
        ask = asked(run.record, session)
        return TurnDriver(run, session, ask, self._services, writer)

    async def _committed(self, run: LiveRun, driver: TurnDriver, machine: TurnMachine) -> Any:
        commit = commit_of(driver, machine)
        if not await self._commit(run, commit):
            return None
        self._services.histories.commit(driver.session, machine.messages)
        end = machine.end
        assert end is not None
        if end.status == "failed":
            _log.warning("%s failed: %s [%s]", run.fence.name, end.error, end.code)
        event = TurnEvent("turn_completed", driver.turn_id, status=end.status, usage=end.usage)
        driver.feed.say(event)
        return commit.state, {**commit.result, "text": end.text}

    async def _detached(self, run: LiveRun) -> Any:
        """Deal with the run of an execution that was closed."""
        store, trouble = self._services.store, run.trouble
        if isinstance(trouble, DurabilityError) and not isinstance(trouble, LeaseLost):
            ask = partial(store.sessions.asked_to_end, run.record.run)
            try:
                is_asked_to_end = await answer_of(run, ask, self._is_open)
            except Unanswered:
                return None
            if is_asked_to_end and isinstance(trouble, TurnModelMissing | TurnToolMissing):
                await persist(run, lambda: store.journal.release(run.fence), self._is_open)
                return None
            if is_asked_to_end:
                return await self._given_up(run, f"{trouble.code}: {trouble.message}")
        await let_go(store, run, self._is_open)
        return None

    async def _given_up(self, run: LiveRun, reason: str) -> Any:
        """End a turn that cannot be replayed and was asked to end: what it wrote is left out."""
        assert run.turn is not None
        assert isinstance(run.record, TurnRecord)
        session = run.turn.session
        ask = asked(run.record, session)
        driver = TurnDriver(
            run,
            session,
            ask,
            self._services,
            TurnWriter(self._services.store.sessions, session, {}),
        )
        driver.machine.cancel(f"cancelled ({reason})")
        commit = msgspec.structs.replace(commit_of(driver, driver.machine), fresh=True)
        if await self._commit(run, commit):
            return commit.state, commit.result
        return None

    async def _commit(self, run: LiveRun, commit: TurnCommit) -> bool:
        store = self._services.store
        try:
            return await persist(
                run, lambda: store.sessions.commit(run.fence, commit), self._is_open
            )
        except (
            Misuse,
            StoreRefused,
        ) as error:  # it can never be written as it is: somebody must look
            await block(store, run, error, self._is_open)
            return False


def asked(turn: TurnRecord, session: SessionRecord) -> TurnAsk:
    """Return what a turn was asked, with the options of then; one that empties a queue has those of now."""
    ask = ASKS.decode(turn.body) if turn.body else TurnAsk()
    options = turn.options if turn.options is not None else session.options
    return msgspec.structs.replace(ask, options=OPTIONS.decode(write(options or {})))


def commit_of(driver: TurnDriver, machine: TurnMachine, *, settle: bool = True) -> TurnCommit:
    """Return what a turn that is over leaves behind."""
    end, session = machine.end, driver.session
    assert end is not None
    # A turn that was cancelled between an effect and what follows from it leaves it out.
    fresh = driver.writer.has_strays(len(machine.messages))
    if fresh:
        driver.writer.rewrite(machine.messages)
    driver.writer.note(enumerate(machine.messages))
    head = session.head + len(machine.messages)
    before = msgspec.convert(session.usage or {}, Usage)
    usage = msgspec.to_builtins(before + spent(machine.messages).usage)
    attached = driver.services.histories.attachments_after(session, machine.messages)
    calls = session.calls + machine.iteration
    result = {**result_of_end(end), "nodes": [session.head + 1, head], "calls": calls}
    last = machine.messages[-1] if machine.messages else None
    if end.text and isinstance(last, AssistantMessage) and last.text == end.text:
        del result["text"]
        result["text_at"] = head  # it is the last message, and stored once
    return TurnCommit(
        session=session,
        writing=driver.writer.writing(),
        head=head,
        calls=calls,
        usage=usage if attached is None else {**usage, "attachments": attached},
        state=RunState(end.status),
        result=result,
        settle=settle,
        fresh=fresh,
    )


def result_of_end(end: TurnEnd) -> dict[str, Any]:
    """Return how a turn ended as plain JSON."""
    plain: dict[str, Any] = decode(write(end))
    return plain
