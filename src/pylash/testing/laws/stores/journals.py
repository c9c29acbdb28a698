"""What every journal promises: first record wins, stale owners write nothing.

The laws that race do so many times: the naive version of each rule fails within a few tries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pylash.durable.commands import AppendEvent, AwaitProcess, AwaitTurn
from pylash.durable.processes import Success
from pylash.durable.runs import SECOND, Fence, JournalEntry, WorkerId
from pylash.durable.scopes import TurnScope
from pylash.durable.stores import Answer, Store
from pylash.durable.waits import Cancelled
from pylash.testing.laws.stores.subjects import (
    OVER,
    TRIES,
    Running,
    SubjectStore,
    Turning,
    effect,
    joined,
    new_scope,
    owned,
    owner_of,
    recorded,
    running,
    turning,
    wait_name,
    waiting_effect,
)
from pylash.testing.laws.suites import Suite, equal, holds, refused, together
from pylash.values.canonical import encode
from pylash.values.errors import LeaseLost

Write = Callable[[Fence, Sequence[JournalEntry]], Awaitable[object]]
"""A write of an effect of a run, with notes."""


async def the_first_record_of_a_key_stands(store: SubjectStore) -> None:
    fence = await owned(store)
    first = await store.journal.record(fence, recorded(outcome=b"first"))
    second = await store.journal.record(fence, recorded(outcome=b"second"))
    equal((first.outcome, second.outcome), (b"first", b"first"), "what both writers got")


async def of_two_records_at_once_under_one_key_one_stands(store: SubjectStore) -> None:
    fence = await owned(store)

    async def record(n: int) -> bytes | None:
        return (await store.journal.record(fence, recorded("step", b"%d" % n))).outcome

    answers = await together(*(record(n) for n in range(10)))
    stands = await store.journal.entry(fence.run, "step")
    holds(stands is not None, "one of them must stand")
    equal(set(answers), {stands and stands.outcome}, "what everyone was told")


async def a_journal_belongs_to_the_whole_scope(store: SubjectStore) -> None:
    worker = await joined(store)
    one = await store.journal.attach(TurnScope("s1", "t1"), worker)
    two = await store.journal.attach(TurnScope("s2", "t1"), worker)
    await store.journal.record(one.fence, recorded())
    again = await store.journal.attach(TurnScope("s2", "t1"), worker)
    equal((dict(two.entries), dict(again.entries)), ({}, {}), "the journal of the other session")


async def what_was_recorded_is_loaded(store: SubjectStore) -> None:
    worker = await joined(store)
    scope = new_scope()
    fence = (await store.journal.attach(scope, worker)).fence
    for name, size in (("small", 10), ("large", 10_000), ("huge", 2_000_000)):
        await store.journal.record(fence, recorded(name, b"x" * size))
    loaded = (await store.journal.attach(scope, worker)).entries
    equal(loaded["small"].outcome, b"x" * 10, "a small outcome")
    for name, size in (("large", 10_000), ("huge", 2_000_000)):
        holds(
            loaded[name].outcome is None and loaded[name].size, f"{name} is loaded when asked for"
        )
        whole = await store.journal.entry(fence.run, name)
        holds(whole is not None and whole.outcome == b"x" * size, f"the {name} outcome, asked for")


async def an_acknowledged_record_is_there_for_others(store: SubjectStore) -> None:
    fence = await owned(store)
    other = await store.second()
    if other is None:
        return
    for n in range(20):
        await store.journal.record(fence, recorded(f"step-{n}"))
        seen = await other.journal.entry(fence.run, f"step-{n}")
        holds(seen is not None, "a record that was acknowledged must be committed")


async def a_sleep_keeps_its_end(store: SubjectStore) -> None:
    fence = await owned(store)
    entry = recorded("nap", None)
    first, now = await store.journal.begin_sleep(fence, entry, 5 * SECOND)
    second, _ = await store.journal.begin_sleep(fence, entry, 90 * SECOND)
    equal(second.due, first.due, "the end of a sleep that was begun twice")
    holds(first.due is not None and 4 * SECOND < first.due - now <= 5 * SECOND, "when it ends")


async def an_outcome_given_to_an_open_effect_stands(store: SubjectStore) -> None:
    fence = await owned(store)
    await store.journal.begin_sleep(fence, recorded("nap", None), SECOND)
    first = await store.journal.close(fence, recorded("nap", b"first"))
    second = await store.journal.close(fence, recorded("nap", b"second"))
    equal((first.outcome, second.outcome), (b"first", b"first"), "the outcome")


async def a_live_owner_keeps_its_run(store: SubjectStore) -> None:
    fence = await owned(store)
    asked = store.journal.attach(fence.scope, await joined(store))
    await refused(asked, "lease_held", "attaching a run whose owner is alive")


async def a_stale_owner_writes_nothing(store: SubjectStore) -> None:
    stale = await owned(store, ttl=OVER)
    fresh = (await store.journal.attach(stale.scope, await joined(store))).fence
    holds(fresh.token != stale.token, "a takeover must make a new fence")
    entry, opening = waiting_effect(wait_name())
    for what, work in {
        "record": store.journal.record(stale, recorded("record")),
        "begin_sleep": store.journal.begin_sleep(stale, recorded("begin_sleep", None), SECOND),
        "close": store.journal.close(stale, recorded("close")),
        "open_for": store.waits.open_for(stale, entry, opening),
        "park": store.runs.park(stale, 0),
        "settle": store.processes.settle(stale, stale.run, Success(None)),
        "block": store.runs.block(stale, "stale"),
        "resolve": store.waits.resolve(wait_name(), Cancelled(), Answer("stale", fence=stale)),
    }.items():
        await refused(work, "lease_lost", what)
    entries = (await store.journal.attach(fresh.scope, await owner_of(store, fresh))).entries
    equal(dict(entries), {}, "what the stale owner wrote")
    equal(await store.waits.listed(), [], "the waits it opened")


async def an_expired_lease_that_nobody_took_may_still_write(store: SubjectStore) -> None:
    fence = await owned(store, ttl=OVER)
    equal((await store.journal.record(fence, recorded())).outcome, b"1", "the record")


def _writes(store: Store, other: Running, turn: Turning) -> dict[str, Write]:
    """Return every kind of write that takes notes along, by the key of its effect."""
    processes, spoken = store.processes, AppendEvent("", "note", 1, "1")
    return {
        "step": lambda fence, notes: store.journal.record(fence, recorded("step"), notes),
        "huge": lambda fence, notes: store.journal.record(
            fence, recorded("huge", b"x" * 2_000_000), notes
        ),
        "nap": lambda fence, notes: store.journal.begin_sleep(
            fence, recorded("nap", None), SECOND, notes
        ),
        "cancel": lambda fence, notes: store.journal.deliver(fence, notes, [recorded("cancel")]),
        "wait": lambda fence, notes: store.waits.open_for(
            fence, *waiting_effect(wait_name()), notes
        ),
        "emit": lambda fence, notes: processes.perform_for(
            fence, effect("emit"), spoken, encode, notes
        ),
        "child": lambda fence, notes: processes.watch(
            fence, effect("child"), AwaitProcess(other.id), encode, notes
        ),
        "signal": lambda fence, notes: processes.take_signal(
            fence, effect("signal"), "go", None, encode, notes
        ),
        "turn": lambda fence, notes: store.sessions.watch(
            fence, effect("turn"), AwaitTurn(turn.session.id, turn.turn.scope.id), encode, notes
        ),
    }


async def notes_are_written_with_their_effect(store: SubjectStore) -> None:
    own, other = await running(store), await running(store)
    writes = _writes(store, other, await turning(store))
    for key, write in writes.items():
        notes = [recorded(f"{key}.{n}") for n in range(2)]
        await write(own.fence, notes)
        written = {entry.key for entry in await store.journal.timeline(own.fence.run)}
        holds({key, *(note.key for note in notes)} <= written, f"{key} and its notes: {written}")
        # As after an answer that was lost: the first note stands, and the effect.
        await write(own.fence, [recorded(f"{key}.0", b"2"), recorded(f"{key}.2")])
        known = [await store.journal.entry(own.fence.run, f"{key}.{n}") for n in (0, 2)]
        equal([one and one.outcome for one in known], [b"1", b"1"], f"{key}, written again")


async def a_stale_owner_writes_no_notes(store: SubjectStore) -> None:
    own, other = await running(store, await joined(store, OVER)), await running(store)
    writes = _writes(store, other, await turning(store))
    await store.workers.bury_the_dead(await joined(store))
    for key, write in writes.items():
        await refused(write(own.fence, [recorded("note")]), "lease_lost", key)
    equal(await store.journal.timeline(own.fence.run), [], "the journal")


async def no_stale_record_slips_past_a_takeover(store: SubjectStore) -> None:
    for n in range(TRIES):
        stale = await owned(store, ttl=OVER)
        successor = await joined(store)

        async def record(after: float, fence: Fence = stale) -> set[str]:
            key = f"stale-{after}"
            await asyncio.sleep(after)
            try:
                await store.journal.record(fence, recorded(key))
            except LeaseLost:
                return set()
            return {key}

        async def take_over(fence: Fence = stale, worker: WorkerId = successor) -> set[str]:
            return set((await store.journal.attach(fence.scope, worker)).entries)

        delays = (0.0001 * (n % 4 + 4 * late) for late in range(6))
        seen, *written = await together(take_over(), *map(record, delays))
        slipped = set().union(*written) - seen
        holds(not slipped, f"try {n}: the stale owner wrote what the new one did not see")


JOURNAL_STORE = Suite[SubjectStore](
    "journal_store",
    (
        the_first_record_of_a_key_stands,
        of_two_records_at_once_under_one_key_one_stands,
        a_journal_belongs_to_the_whole_scope,
        what_was_recorded_is_loaded,
        an_acknowledged_record_is_there_for_others,
        a_sleep_keeps_its_end,
        an_outcome_given_to_an_open_effect_stands,
        a_live_owner_keeps_its_run,
        a_stale_owner_writes_nothing,
        notes_are_written_with_their_effect,
        a_stale_owner_writes_no_notes,
        an_expired_lease_that_nobody_took_may_still_write,
        no_stale_record_slips_past_a_takeover,
    ),
)
