"""Operations on sessions whose COMMIT succeeded, but whose answer was lost.

The driver runs such an operation again. In between, others have seen its changes and continued from there: the
repetition must change nothing, and return the first answer.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from pylash.durable.runs import RunState
from pylash.durable.sessions import Policy
from pylash.durable.stores import WaitOpening
from pylash.durable.waits import Ok
from pylash.stores.operation import Operation
from pylash.stores.store import SqlStore
from pylash.testing.laws.stores.queues import said
from pylash.testing.laws.stores.subjects import (
    Turning,
    claim_turns,
    ended,
    fresh_answer,
    history_of,
    joined,
    new_turn,
    session_of_id,
    submitted,
    taken,
    turning,
    wait_of,
)
from tests.backends import Backend
from tests.crash.statements import dump
from tests.stores.lost_answers import answer_lost


async def test_a_message_after_a_lost_answer_is_left_for_the_next_take(durable: Backend) -> None:
    store = await durable.store()
    mine = await turning(store)
    await said(store, mine.session.id, "first")
    answer_lost(store, "_take", lambda: said(store, mine.session.id, "second"))
    assert await taken(store, mine) == ["first"]
    assert [one.body for one in await store.sessions.queued(mine.session.id)] == ["second"]
    resumed = (await store.sessions.resume([mine.fence.run]))[mine.fence.run]
    assert list(resumed.nodes.values()) == [b'"first"']


async def test_a_message_is_not_delivered_again_if_it_was_taken_meanwhile(durable: Backend) -> None:
    store = await durable.store()
    mine = await turning(store)

    async def take_and_end() -> None:
        assert await taken(store, mine) == ["hello"]
        await ended(store, mine, b'"hello"')

    answer_lost(store, "_enqueue", take_and_end)
    assert await said(store, mine.session.id, "hello", Policy.INTERRUPT) is True
    assert await store.sessions.queued(mine.session.id) == []
    assert await claim_turns(store, await joined(store)) == []


@pytest.mark.parametrize("taken_over", [False, True])
async def test_a_cancel_is_not_for_the_turn_that_came_meanwhile(
    durable: Backend, taken_over: bool
) -> None:
    store = await durable.store()
    worker = await joined(store)
    mine = await turning(store, worker=worker)
    following = await submitted(store, new_turn(mine.session.id), worker)

    async def end() -> None:
        await ended(store, mine, state=RunState.CANCELLED)
        if taken_over:
            assert await claim_turns(store, worker)

    answer_lost(store, "_cancel", end)
    asked = await store.sessions.cancel(mine.session.id, "why")
    assert asked is not None
    assert asked.run == mine.turn.run
    assert not await store.sessions.asked_to_end(following.turn.run)


async def test_a_deletion_leaves_the_session_that_was_made_meanwhile(durable: Backend) -> None:
    store = await durable.store()
    first = await turning(store)
    await ended(store, first, b"old")
    session_id = first.session.id
    await store.waits.open(WaitOpening(name=wait_of(session_id), title="Old"))
    name = wait_of(session_id, generation=1)

    async def live_again() -> None:
        await ended(store, await turning(store, session_id), b"new")
        await store.waits.open(WaitOpening(name=name, title="New"))

    answer_lost(store, "_fence_off", live_again)
    report = await store.sessions.delete(session_id)
    assert (report.turns, report.messages, report.waits) == (1, 1, 1)
    assert await history_of(store, session_id) == [b"new"]
    assert (await store.waits.resolve(name, Ok(1), fresh_answer())).status == "accepted"


async def test_a_fork_that_was_used_meanwhile_is_still_ours(durable: Backend) -> None:
    store = await durable.store()
    first = await turning(store)
    await ended(store, first, b"a")
    source = await session_of_id(store, first.session.id)

    async def use() -> None:
        await ended(store, await turning(store, "the fork"), b"b")

    answer_lost(store, "_fork", use)
    await store.sessions.fork(source, "the fork", 1, (1, 1))
    assert await history_of(store, "the fork") == [b"a", b"b"]


async def test_a_commit_is_done_once(durable: Backend) -> None:
    store = await durable.store()
    worker = await joined(store)
    mine = await turning(store, worker=worker)
    await submitted(store, new_turn(mine.session.id), worker)

    async def go_on() -> None:
        (following,) = await claim_turns(store, worker)
        await ended(store, following, b"b")

    answer_lost(store, "commit", go_on)
    await ended(store, mine, b"a")
    assert await history_of(store, mine.session.id) == [b"a", b"b"]
    assert (await session_of_id(store, mine.session.id)).revision == 2


async def test_a_submission_is_ours_although_others_queued_meanwhile(durable: Backend) -> None:
    store = await durable.store()
    worker = await joined(store)
    new = new_turn()
    answer_lost(store, "submit", lambda: submitted(store, new_turn(new.scope.session_id), worker))
    got = await store.sessions.submit(new, "token", worker)
    assert got.fence is not None
    await ended(store, Turning(got.turn, got.session, got.fence))


# --- deletions that are broken off ---


class BrokenOffError(Exception):
    """The process died."""


async def a_life(store: SqlStore) -> str:
    """Return a session that is a fork, has a fork, and a turn that runs."""
    origin = await turning(store)
    await ended(store, origin, b"origin")
    source = await session_of_id(store, origin.session.id)
    await store.sessions.fork(source, "middle", 1, (1, 1))
    await store.sessions.delete(source.id)
    await ended(store, await turning(store, "middle"), *(b"%d" % n for n in range(1100)))
    await turning(store, "middle")
    return "middle"


@pytest.mark.parametrize("after", range(1, 10))
async def test_a_deletion_that_was_broken_off_is_finished_by_the_next(
    durable: Backend, after: int
) -> None:
    store = await durable.store()
    session_id = await a_life(store)
    honest, count = store.driver.run, 0

    def run(operation: Operation[Any]) -> Awaitable[Any]:
        nonlocal count
        count += 1
        if count > after:
            raise BrokenOffError
        return honest(operation)

    store.driver.run = run  # type: ignore[method-assign]
    try:
        await store.sessions.delete(session_id)
    except BrokenOffError:
        store.driver.run = honest  # type: ignore[method-assign]
        await store.sessions.delete(session_id)
    store.driver.run = honest  # type: ignore[method-assign]
    left = await dump(store)
    left["pylash_runs"] = [
        row for row in left["pylash_runs"] if "its session was deleted" not in row
    ]
    tables = ("nodes", "runs", "effects", "dead_lines", "forks", "queue", "said")
    assert {name: left[f"pylash_{name}"] for name in tables} == {name: [] for name in tables}
