"""Feeds: every listener receives every event once, and a feed is kept while it has a turn or a listener."""

from __future__ import annotations

import asyncio
from typing import Any

from pylash.sessions.feeds import Feed, FeedListener, Feeds
from pylash.tasks import TaskOwner
from pylash.turn.events import TurnEvent


def delta(text: str) -> TurnEvent:
    return TurnEvent("text_delta", "i1.llm", text=text)


async def texts(feed: Feed) -> list[str]:
    return [event.text async for event in feed.follow()]


async def test_listeners_of_different_speed_all_receive_every_event() -> None:
    feed, owner = Feed(), TaskOwner()
    received: list[str] = []

    async def slow() -> None:
        async for event in feed.follow():
            received.append(event.text)
            await asyncio.sleep(0.001)

    feed.add(delta("a"))
    works: tuple[Any, ...] = (texts(feed), slow(), texts(feed))
    tasks = [owner.start(one) for one in works]
    for text in ("b", "c", "d"):
        await asyncio.sleep(0)
        feed.add(delta(text))
    late = owner.start(texts(feed))
    await asyncio.sleep(0)
    feed.add(delta("e"))
    feed.close(ended=True)
    first, _, third = [await task for task in tasks]
    assert [first, received, third, await late] == [["a", "b", "c", "d", "e"]] * 4


def test_an_event_that_can_happen_only_once_is_added_once() -> None:
    feed = Feed()
    for _ in range(2):
        feed.add(TurnEvent("tool_started", "i1.c0"))
        feed.add(delta("again"))
    assert [event.type for event in feed.events] == ["tool_started", "text_delta", "text_delta"]


def test_a_recorded_reply_is_added_unless_it_was_streamed() -> None:
    streamed, replayed = Feed(), Feed()
    streamed.begin_reply("i1.llm", 1)
    streamed.add(delta("It "))
    streamed.add(delta("ships."))
    for feed in (streamed, replayed):
        feed.replay_reply("i1.llm", "It ships.")
    assert [event.text for event in streamed.events] == ["It ", "ships."]
    assert [event.text for event in replayed.events] == ["It ships."]


async def test_a_listener_keeps_its_place_while_the_turn_is_parked() -> None:
    feeds = Feeds()
    listener = FeedListener(feeds)
    feeds.open("turn").add(delta("a"))
    assert listener.listen_to("turn")
    feeds.leave("turn", ended=False)
    assert [event.text async for event in listener.follow()] == ["a"]
    feeds.open("turn").add(delta("b"))  # it runs here again
    assert not listener.listen_to("turn")
    feeds.leave("turn", ended=True)
    assert [event.text async for event in listener.follow()] == ["b"]
    assert listener.has_ended


def test_a_feed_is_dropped_when_it_has_neither_a_turn_nor_a_listener() -> None:
    feeds = Feeds()
    feeds.open("turn")
    listener = FeedListener(feeds)
    listener.listen_to("turn")
    feeds.leave("turn", ended=False)
    assert feeds.find("turn") is not None
    listener.stop()
    assert feeds.find("turn") is None
