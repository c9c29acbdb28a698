"""The sink of execution events: complete, in order, each once, and only in its own app."""

from __future__ import annotations

from typing import Any

import pytest

from pylash import ProcessCancelled, WorkerConfig
from pylash.testing import kill
from tests.backends import Backend, eventually
from tests.processes.test_branches import parked
from tests.workflows.scenes import LIVE, PARKING, Shop

SOURCE = """
process main(n: int) {
  @label(title: "Looks")
  r = await tools.echo({ value: "a" })
  if r.ok {
    h = start child(n: n)
    s = wait signal
    got = await [tools.echo({ value: "b" }), tools.flaky({ good: 9 }), h]
  }
  sleep for 1
  wake "up"
  for i in [1, 2] { sleep for 1 }
  finish got
}
process child(n: int) { fail "no " + n }
"""

TOLD = [
    ("execution_started", None, 0),
    ("node_started", "Looks", 1),
    ("node_started", "echo", 1),
    ("node_completed", "echo", 1),
    ("node_completed", "Looks", 1),
    ("branch_selected", None, 1),
    ("node_started", "start child", 1),
    ("child_started", None, 1),
    ("node_completed", "start child", 1),
    ("node_started", "wait signal signal", 1),
    ("node_completed", "wait signal signal", 1),
    ("node_started", "echo", 1),
    ("node_started", "flaky", 1),
    ("node_completed", "echo", 1),
    ("node_failed", "flaky", 1),
    ("node_started", "sleep for", 1),
    ("node_completed", "sleep for", 1),
    ("node_started", "wake", 1),
    ("node_completed", "wake", 1),
    ("node_started", "sleep for", 1),
    ("node_completed", "sleep for", 1),
    ("node_started", "sleep for", 2),
    ("node_completed", "sleep for", 2),
    ("node_started", "result", 1),
    ("node_completed", "result", 1),
    ("execution_finished", None, 0),
]


def short(event: dict[str, Any]) -> tuple[str, str | None, int]:
    return event["event"], event.get("label"), event.get("occurrence", 0)


def of(told: list[dict[str, Any]], subject: str) -> list[dict[str, Any]]:
    return [event for event in told if event["subject"] == subject]


@pytest.mark.proves("L5")
@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parked"])
async def test_a_sink_gets_every_event_in_order_and_once(config: WorkerConfig) -> None:
    shop = Shop(worker=config)
    told: list[dict[str, Any]] = []
    shop.app.trace_lashlang(told.append)
    async with shop.app:
        handle = await shop.start(SOURCE, n=1)
        if config is PARKING:
            await parked(shop.app, "p")
        await handle.signal("signal")
        await handle.result(timeout="10s")
    events = of(told, "p")
    assert [short(event) for event in events] == TOLD
    started, finished = events[0], events[-1]
    ids = {node["id"] for node in started["map"]["nodes"]}
    assert "branch" in {node["kind"] for node in started["map"]["nodes"]}
    assert "then" in {edge["label"] for edge in started["map"]["edges"]}
    assert {event["node_id"] for event in events if "node_id" in event} <= ids
    assert {event["arm_id"] for event in events if "arm_id" in event} <= ids
    assert len({event["key"] for event in events}) == len(events)
    assert finished["status"] == "completed"
    assert events[14]["error"] == "attempt 3"
    assert [event["selected"] for event in events if "selected" in event] == ["then"]
    (child,) = [event["child"] for event in events if "child" in event]
    assert child["entry_name"] == "child"
    heard = of(told, child["process_id"])
    assert [event["event"] for event in heard][-1] == "execution_finished"
    assert (heard[-1]["status"], heard[-1]["error"]) == ("failed", "no 1")
    about = {(e["module_ref"], e["entry"], e["entry_name"]) for e in events}
    assert about == {(child["module_ref"], "process", "main")}


async def test_after_a_crash_the_same_events_have_the_same_keys(durable: Backend) -> None:
    told: list[list[dict[str, Any]]] = [[], []]
    shop = Shop(durable.url)
    shop.app.trace_lashlang(told[0].append)
    await shop.app.open()
    await shop.start(SOURCE, n=1)

    async def waits() -> bool:
        return any(event.get("label") == "wait signal signal" for event in told[0])

    await eventually(waits)
    await kill(shop.app)
    again = Shop(durable.url)
    again.app.trace_lashlang(told[1].append)
    async with again.app:
        handle = again.app.process_handle("p")
        await handle.signal("signal")
        await handle.result(timeout="10s")
    first, second = (of(events, "p") for events in told)
    assert [short(event) for event in second] == TOLD
    assert first == second[: len(first)]
    assert again.calls == ["b", 1, 2, 3]


@pytest.mark.proves("P12")
async def test_a_cancelled_process_is_cancelled_where_it_waited(backend: Backend) -> None:
    shop = Shop(backend.url, worker=PARKING)
    told: list[dict[str, Any]] = []
    shop.app.trace_lashlang(told.append)
    async with shop.app:
        handle = await shop.start(SOURCE, n=1)
        await parked(shop.app, "p")
        await handle.cancel()
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")
    events = of(told, "p")
    assert [short(event) for event in events] == [*TOLD[:10], TOLD[-1]]
    assert events[-1]["status"] == "cancelled"
    assert events[-1]["error"] == "The wait for the signal 'signal' was cancelled."


async def test_a_failing_sink_does_no_harm() -> None:
    shop = Shop()
    told: list[str] = []

    def broken(_: dict[str, Any]) -> None:
        raise OSError("the disk is full")

    shop.app.trace_lashlang(broken)
    shop.app.trace_lashlang(lambda event: told.append(event["event"]))
    async with shop.app:
        assert await shop.run("process main() { finish 7 }") == 7
    assert told == ["execution_started", "node_started", "node_completed", "execution_finished"]


async def test_an_app_without_a_sink_traces_nothing_and_a_late_one_gets_everything() -> None:
    shop = Shop(worker=PARKING)
    told: list[dict[str, Any]] = []
    async with shop.app:
        handle = await shop.start(SOURCE, n=1)
        await parked(shop.app, "p")
        shop.app.trace_lashlang(told.append)
        await handle.signal("signal")
        await handle.result(timeout="10s")
    assert [short(event) for event in of(told, "p")] == TOLD
