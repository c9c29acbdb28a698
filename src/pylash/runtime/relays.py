"""Relays: a turn's events on their way to listeners in other processes, in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

import msgspec

from pylash.durable import Store
from pylash.runtime.feeds import Feed, streamed_reply
from pylash.runtime.runs import LiveRun
from pylash.turn import TurnEvent
from pylash.values import StoreError, write

CHUNK_SECONDS: Final = 0.1
FENCE_BITS: Final = 32

_CHUNKS: msgspec.json.Decoder[list[TurnEvent]] = msgspec.json.Decoder(list[TurnEvent])


async def relay(store: Store, run: LiveRun, feed: Feed) -> None:
    """Write what a turn says here for those who listen elsewhere, if there are any."""
    with suppress(StoreError):
        if not await store.turn_events.is_asked(run.record.run):
            return
    sent, sequence = 0, run.fence.token << FENCE_BITS
    while True:
        events = feed.events[sent:]
        if events:
            sent += len(events)
            sequence += 1
            with suppress(StoreError):  # best effort: a turn never fails because of a listener
                await store.turn_events.add(
                    run.record.run, run.fence.token, sequence, write(joined(events))
                )
        await asyncio.sleep(CHUNK_SECONDS)


async def relayed_reply(store: Store, run: int, correlation_id: str) -> str:
    """Return the text of a reply as far as it was relayed, by the last execution that streamed it."""
    executions: dict[int, list[TurnEvent]] = {}
    for sequence, body in await store.turn_events.read(run, 0):
        executions.setdefault(sequence >> FENCE_BITS, []).extend(_CHUNKS.decode(body))
    texts = [streamed_reply(events, correlation_id) for events in executions.values()]
    return next((text for text in reversed(texts) if text is not None), "")


def joined(events: list[TurnEvent]) -> list[TurnEvent]:
    """Return events with neighbouring pieces of one text made one."""
    result: list[TurnEvent] = []
    for event in events:
        last = result[-1] if result else None
        same = last is not None and event.type in ("text_delta", "reasoning_delta")
        if (
            same
            and last is not None
            and (last.type, last.correlation_id) == (event.type, event.correlation_id)
        ):
            result[-1] = msgspec.structs.replace(last, text=last.text + event.text)
        else:
            result.append(event)
    return result


async def received(store: Store, run: int, ended: Callable[[], bool]) -> AsyncIterator[TurnEvent]:
    """Yield what a turn says in another process, as far as it comes, until it has ended."""
    rung = asyncio.Event()
    topics = (f"chunk:{run}", "")
    stop = store.subscribe(lambda topic: rung.set() if topic in topics else None)
    try:
        await store.turn_events.ask(run)
        after, speaking = 0, ""
        while True:
            over = ended()
            rung.clear()
            for sequence, body in await store.turn_events.read(run, after):
                if speaking and sequence >> FENCE_BITS != after >> FENCE_BITS:
                    yield TurnEvent("text_reset", speaking)  # who said it died in the middle
                after = sequence
                for event in _CHUNKS.decode(body):
                    speaking = _speaking(event, speaking)
                    yield event
            if over:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(CHUNK_SECONDS * 2):
                    await rung.wait()
    finally:
        stop()


def _speaking(event: TurnEvent, before: str) -> str:
    """Return which reply is being made after an event: its end is told by its usage."""
    if event.type == "text_delta":
        return event.correlation_id
    return "" if event.type == "usage" else before
