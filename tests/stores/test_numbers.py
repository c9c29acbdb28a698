"""The numbers of sessions: no two sessions ever have the same, whoever makes them and whatever fails."""

from __future__ import annotations

import asyncio
from collections import deque

from pylash.stores.numbers import AT_ONCE, Numbers
from pylash.stores.sql import Rows, Steps
from pylash.testing.subjects import new_turn, submitted
from pylash.testing.suites import together
from tests.backends import Backend


async def test_sessions_that_several_processes_make_at_once_have_numbers_of_their_own(
    durable: Backend,
) -> None:
    stores = [await durable.store() for _ in range(2)]
    numbers = []
    for _ in range(AT_ONCE // 4):
        made = await together(*(submitted(store, new_turn()) for store in stores * 3))
        numbers += [one.session.number for one in made]
        numbers += [(await store.sessions.open(f"s{len(numbers)}")).number for store in stores[:1]]
    assert len(set(numbers)) == len(numbers)


def taken(steps: Steps[int], last: int | None = None) -> int:
    """Return what steps take, if the counter is at last after them."""
    try:
        next(steps)
        steps.send(Rows([(last,)], 1))
    except StopIteration as end:
        return int(end.value)
    raise AssertionError("it asks again")


async def test_what_was_reserved_is_free_once_it_is_committed_and_not_before() -> None:
    free: deque[int] = deque()
    loop = asyncio.get_running_loop()
    undone, done = Numbers(free), Numbers(free)
    assert taken(undone.take(), AT_ONCE) == 1
    failed: asyncio.Future[None] = loop.create_future()
    failed.set_exception(OSError("the disk is full"))
    undone.keep(failed)
    assert not free
    assert taken(done.take(), AT_ONCE) == 1
    assert not free
    committed: asyncio.Future[None] = loop.create_future()
    committed.set_result(None)
    done.keep(committed)
    assert list(free) == list(range(2, AT_ONCE + 1))
    assert taken(Numbers(free).take()) == 2  # nothing is written for it
