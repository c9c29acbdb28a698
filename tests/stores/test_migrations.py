"""Migrations: nothing is lost, newer databases are refused, older ones are migrated only on request."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pylash.durable.commands import SignalProcess
from pylash.durable.processes import ProcessFilter, SessionRef, Slot, fold
from pylash.durable.runs import SECOND, RunState, WorkerId
from pylash.durable.scopes import ProcessScope, QueueDrainScope, TurnScope, scope_text
from pylash.durable.sessions import NewTurn, Policy
from pylash.durable.stores import Answer
from pylash.durable.triggers import Occurrence
from pylash.durable.waits import Ok
from pylash.engine.system import SystemClock, system_entropy
from pylash.stores import store
from pylash.stores.migrations import MIGRATIONS, SCHEMA, Migration
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import SqlStore, open_store
from pylash.testing.laws.suites import together
from pylash.turn.asks import ASKS
from pylash.turn.messages import MESSAGES, AssistantMessage, Text, UserMessage
from pylash.values.errors import AnswerInvalid, LashError
from tests.backends import Backend, PostgresBackend, SqliteBackend, attached, lockless

FIXTURES = Path(__file__).parents[1] / "fixtures"
NEXT = Migration(("alter table pylash_runs add column priority bigint not null default 7",))


@pytest.fixture(params=["sqlite", "postgres"])
async def durable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """Give each backend that survives its process, not even set up."""
    backend: Backend = SqliteBackend(tmp_path, empty=True)
    if request.param == "postgres":
        backend = PostgresBackend(request.getfixturevalue("postgres"), empty=True)
    async with backend:
        yield backend


def next_schema(monkeypatch: pytest.MonkeyPatch, migration: Migration = NEXT) -> None:
    """Pretend that this code is one schema ahead."""
    monkeypatch.setattr(store, "MIGRATIONS", (*MIGRATIONS, migration))
    monkeypatch.setattr(store, "SCHEMA", SCHEMA + 1)


async def opened(url: str, migrate: bool | None = None) -> SqlStore:
    return await open_store(url, clock=SystemClock(), entropy=system_entropy, migrate=migrate)


async def ask(subject: SqlStore, sql: str) -> list[Any]:
    def steps() -> Steps[list[Any]]:
        return (yield Statement(sql)).rows

    return await subject.driver.run(Operation("ask", steps))


async def refusal(url: str, migrate: bool | None = None) -> str:
    with pytest.raises(LashError) as caught:
        await opened(url, migrate)
    return caught.value.code


async def test_an_older_database_is_migrated_without_losing_a_row(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await durable.store()
    await attached(old, "p")
    secret = old.secret
    next_schema(monkeypatch)
    new = await opened(durable.url, migrate=True)
    assert await ask(new, "select scope, priority from pylash_runs") == [
        ('{"process_id":"p","type":"process"}', 7)
    ]
    assert new.secret == secret
    await new.close()


async def test_postgresql_waits_to_be_asked(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await durable.store()
    next_schema(monkeypatch)
    if durable.url.startswith("postgresql"):
        assert await refusal(durable.url) == "store_schema_outdated"
    assert await refusal(durable.url, migrate=False) == "store_schema_outdated"
    await (await opened(durable.url, migrate=True)).close()
    await (await opened(durable.url, migrate=False)).close()


async def test_old_code_goes_on_beside_a_newer_schema(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        next_schema(patch)
        await (await opened(durable.url, migrate=True)).close()
    old = await opened(durable.url)
    await attached(old, "p")
    assert await ask(old, "select value from pylash_meta where name = 'schema'") == [
        (str(SCHEMA + 1),)
    ]
    await old.close()


async def test_a_database_that_needs_newer_code_is_refused(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        next_schema(patch, Migration(NEXT.statements, min_code=SCHEMA + 1))
        await (await opened(durable.url, migrate=True)).close()
    assert await refusal(durable.url) == "store_schema_too_new"
    assert await refusal(durable.url, migrate=True) == "store_schema_too_new"


async def test_a_migration_that_fails_leaves_the_database_as_it_was(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await durable.store()).close()
    with monkeypatch.context() as patch:
        next_schema(patch, Migration((*NEXT.statements, "no such statement")))
        assert await refusal(durable.url, migrate=True) == "store_refused"
    again = await opened(durable.url)
    assert await ask(again, "select value from pylash_meta where name = 'schema'") == [
        (str(SCHEMA),)
    ]
    await again.close()


@pytest.mark.parametrize("version", range(1, SCHEMA + 1))
async def test_a_database_of_every_schema_can_still_be_opened(version: int, tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.executescript((FIXTURES / f"schema-{version}.sql").read_text())
    connection.close()
    old = await opened(f"sqlite:///{path}")
    entry = await old.journal.entry(1, "fetch")
    assert entry is not None
    assert entry.outcome == b'{"type":"returned","outcome":{"kind":"durable_step","value":1}}'
    (wait,) = await old.waits.listed()
    assert wait.title == "Refund?"
    if version >= 7:
        answer = Ok({"approved": True, "arguments": {"cents": "lots"}})
        with pytest.raises(AnswerInvalid, match=r"arguments\.cents is 'lots'"):
            await old.waits.resolve(wait.name, answer, Answer("token"))
        assert await old.waits.listed() == [wait]
    run = await old.runs.get(ProcessScope("order-7"))
    assert run is not None
    assert run.state == "waiting"
    if version >= 2:
        await _has_its_processes(old)
    if version >= 8:
        tagged = await old.processes.listed(ProcessFilter(tag="customer:7"), 10)
        assert [(one.id, one.tags) for one in tagged] == [("order-7", ("customer:7",))]
        chats = await old.sessions.listed(10, tag="customer:7")
        assert [(one.id, one.tags) for one in chats] == [("chat-43", ("customer:7",))]
    await (_has_its_sessions(old) if version >= 3 else _can_have_sessions(old))
    if version >= 6:
        await _knows_why_turns_ended(old)
    if version >= 9:
        await _rings_the_bells_of_other_engines(old)
    await old.close()


async def _rings_the_bells_of_other_engines(old: SqlStore) -> None:
    sent, _ = await old.runs.dispatch("restate", ["restate/python:order"], 10)
    assert {one.kind for one in sent} <= {
        "turn",
        "queue_drain",
    }  # they belong to whichever comes first
    await old.processes.perform(SignalProcess("far-1", "go", "s1", 1), None)
    (woken,), _ = await old.runs.dispatch("restate", ["restate/python:order"], 10)
    assert (woken.scope, woken.bell) == (ProcessScope("far-1"), "sign_1abc")


async def _has_its_processes(old: SqlStore) -> None:
    record = await old.processes.get("order-7")
    assert record is not None
    assert record.state == fold(await old.processes.events("order-7"))
    assert (record.registration.slot, record.run_state) == (Slot("mail", 2), RunState.WAITING)
    assert await old.processes.look("order-7") == (False, {"paid"})
    assert await old.envs.get(record.registration.env or "") == b'{"tools":[]}'
    (wake,) = await old.sessions.queued("chat-42")
    assert wake.body == "paid"
    (grant,) = await old.processes.grants(SessionRef("chat-42"))
    assert (grant.process_id, grant.label) == ("order-7", "the order")
    (view,) = await old.triggers.listed("chat-42")
    assert view.subscription.template.target == "python:build"
    push = Occurrence(type="push", source="repo", payload={"n": 1}, idempotency_key="k")
    (delivery,) = await old.triggers.emit(push)
    assert await old.processes.get(delivery.process_id) is None  # delivered long ago


async def _can_have_sessions(old: SqlStore) -> None:
    """Use sessions in a database that is older than they are."""
    words = await old.sessions.queued("chat-42")
    assert [(one.body, one.policy) for one in words] in ([], [("paid", Policy.WAKE)])
    worker = WorkerId("w")
    await lockless(old).join(worker, 3_600 * SECOND)
    new = NewTurn(scope=TurnScope("chat-42", "t2"), digest=b"d" * 32, body=b"hello")
    got = await old.sessions.submit(new, "token", worker)
    assert got.fence is not None
    assert got.stirred == bool(words)
    assert len(await old.waits.listed("chat-42")) == 1  # opened before the session had a number
    assert (await old.sessions.delete("chat-42")).waits == 1
    assert await old.waits.listed("chat-42") == []


async def _has_its_sessions(old: SqlStore) -> None:
    session = await old.sessions.get("chat-42")
    assert session is not None
    assert (session.head, session.revision, session.calls) == (2, 1, 1)
    said = [MESSAGES.decode(body) for body in await old.sessions.nodes(session.path[-1])]
    assert [type(one) for one in said] == [UserMessage, AssistantMessage]
    first = TurnScope("chat-42", "t0")
    turn = await old.sessions.turn(first)
    assert turn is not None
    assert turn.result["text"] == "It ships today."
    assert ASKS.decode(turn.body).parts == (Text("Where is my order?"),)
    assert (await old.journal.timeline(turn.run))[0].key == "i1.llm"
    assert await old.attachments.get("a" * 64) == b"a picture"
    # A turn for the wake of order-7 waits; the next one is behind it in the lane.
    waiting = await old.sessions.cancel("chat-42", "why")
    assert waiting is not None
    assert isinstance(waiting.scope, QueueDrainScope)
    resumed = (await old.sessions.resume([waiting.run]))[waiting.run]
    assert list(resumed.nodes) == [3]
    following = scope_text(TurnScope("chat-42", "t2"))
    blocked = scope_text(TurnScope("chat-43", "t1"))
    states = await old.sessions.states([following, blocked])
    assert states[following] == (RunState.QUEUED, None)
    assert states[blocked] == (RunState.BLOCKED, "it does not fit")
    (words,) = await old.sessions.queued("chat-43")
    assert words.policy is Policy.NOW
    assert not await old.sessions.enqueue("chat-43", "k1", words.body, Policy.NOW)
    for fork, length in (("what-if", 2), ("kept", 1)):  # the origin of the second is deleted
        record = await old.sessions.get(fork)
        assert record is not None
        assert len(await old.sessions.nodes(record.path[0])) == length
    assert await old.sessions.get("gone") is None
    assert await old.sessions.turn(TurnScope("gone", "t1")) is None
    opened_now = await old.sessions.open("new")
    assert opened_now.number > session.number
    report = await old.sessions.delete("chat-42")
    assert (report.turns, report.kept, report.waits) == (2, 2, 1)  # what a fork begins with


async def _knows_why_turns_ended(old: SqlStore) -> None:
    asked = await old.sessions.turn(TurnScope("asked", "t1"))
    assert asked is not None
    assert (asked.cancel, asked.cancel_reason) == (True, "it takes too long")
    again = NewTurn(scope=TurnScope("left", "t1"), digest=b"d" * 32, body=b"another question")
    assert (await old.sessions.submit(again, "token")).turn.body == b"another question"


async def test_openings_at_the_same_time_migrate_once(durable: Backend) -> None:
    stores = await together(*(durable.store() for _ in range(5)))
    assert len({one.secret for one in stores}) == 1
