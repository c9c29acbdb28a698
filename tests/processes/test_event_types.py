"""Declared events of a process, and its label: checked where they are emitted, and where they are appended from outside."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from pylash import (
    EVENT,
    ArgumentsInvalid,
    InlineHost,
    Lash,
    NameInvalid,
    ProcessContext,
    ProcessEventInvalid,
    ProcessEventType,
)
from pylash.durable.commands import AppendEvent
from pylash.durable.processes import EventType, Semantics
from pylash.testing import ScriptedModel, kill, say
from tests.backends import Backend, eventually
from tests.processes.test_branches import PARKING, parked


class Progress(BaseModel):
    done: int
    day: date = date(2026, 11, 16)


EVENTS = {"progress": Progress, "count": int, "stuck": ProcessEventType(str, "wake")}


def importer(url: str, **options: Any) -> Lash:
    app = Lash(url, model=ScriptedModel(lambda r: say(f"Heard {r.messages[-1].text}.")), **options)

    @app.process(events=EVENTS)
    async def load(ctx: ProcessContext[None]) -> list[str]:
        await ctx.emit("progress", Progress(done=1))
        await ctx.emit("progress", {"done": "2"})
        await ctx.emit("stuck", "no disk")
        refusals = []
        for kind, payload in (("count", "many"), ("progress", {"done": "x"}), ("other", 1)):
            try:
                await ctx.emit(kind, payload)
            except ProcessEventInvalid as error:
                refusals.append(f"{error.code}: {error.message}")
        await ctx.wait_signal("go")
        await ctx.emit("count", 7)
        return refusals

    return app


def started(app: Lash, **options: Any) -> Any:
    return app.start(app.services.definitions["load"].options(id="p", **options))


async def log_of(app: Lash) -> list[tuple[str, Any]]:
    events = [event async for event in app.process_handle("p").events()]
    return [(event.type, event.payload) for event in events]


FIRST = [
    ("progress", {"done": 1, "day": "2026-11-16"}),
    ("progress", {"done": 2, "day": "2026-11-16"}),
    ("stuck", "no disk"),
]
NOT_A_NUMBER = "Input should be a valid integer, unable to parse string as an integer"
REFUSALS = [
    f"process_event_invalid: Process 'p' does not accept the event {reason}."
    for reason in (
        f"'count': payload: {NOT_A_NUMBER} (got 'many')",
        f"'progress': payload.done: {NOT_A_NUMBER} (got 'x')",
        "'other': it was not declared (declared: progress, count, stuck)",
    )
]


@pytest.mark.proves("P1", "P2")
async def test_declared_events_are_checked_where_they_are_emitted(backend: Backend) -> None:
    async with importer(backend.url) as app:
        handle = await started(app, wake="chat")
        await handle.signal("go")
        assert await handle.result(timeout="10s") == REFUSALS
        assert {effect.status for effect in await handle.timeline()} == {"done"}
        signal = ("signal.go", None)
        log = await log_of(app)
        assert [one for one in log[1:-1] if one != signal] == [*FIRST, ("count", 7)]

        async def heard() -> bool:
            texts = [message.text for message in await app.session("chat").history()]
            return texts == ["no disk", "Heard no disk."]

        await eventually(heard)


@pytest.mark.proves("P1")
async def test_declared_events_are_checked_where_they_are_appended_from_outside(
    backend: Backend,
) -> None:
    async with importer(backend.url) as app:
        handle = await started(app)
        await parked(app, "p")
        before = await log_of(app)
        for kind, payload, reason in (
            ("count", "many", r"\$ is 'many', not of type integer"),
            ("progress", {"day": "2026-11-16"}, r"\$.done is missing"),
            ("other", 1, "it was not declared"),
            ("process.completed", {"value": 1}, "this name is reserved"),
        ):
            with pytest.raises(ProcessEventInvalid, match=reason):
                await app.store.processes.perform(AppendEvent("p", kind, payload))
        assert await log_of(app) == before
        await app.store.processes.perform(AppendEvent("p", "count", 3))
        assert await log_of(app) == [*before, ("count", 3)]
        await handle.signal("go")
        await handle.result(timeout="10s")


@pytest.mark.proves("P1")
async def test_the_declaration_of_the_start_holds_after_a_deployment(durable: Backend) -> None:
    app = importer(durable.url, worker=PARKING)
    await app.open()
    await started(app)
    await parked(app, "p")
    await kill(app)
    later = Lash(durable.url)

    @later.process(events={"progress": Progress, "stuck": str, "count": int, "new": int})
    async def load(ctx: ProcessContext[None]) -> str:
        await ctx.emit("progress", Progress(done=1))
        await ctx.emit("progress", Progress(done=2))
        await ctx.emit("stuck", "no disk")
        await ctx.wait_signal("go")
        with pytest.raises(ProcessEventInvalid, match="'new': it was not declared"):
            await ctx.emit("new", 1)
        return "done"

    async with later:
        await later.process_handle("p").signal("go")
        assert await later.process_handle("p").result(timeout="10s") == "done"


async def test_a_process_that_was_started_without_declared_events_stays_free(
    durable: Backend,
) -> None:
    def app_of(**options: Any) -> Lash:
        app = Lash(durable.url, worker=PARKING)

        @app.process(**options)
        async def load(ctx: ProcessContext[None]) -> str:
            await ctx.emit("anything", {"a": [1]})
            await ctx.wait_signal("go")
            await ctx.emit("something", 2)
            return "done"

        return app

    before = app_of()
    await before.open()
    await started(before)
    await parked(before, "p")
    await kill(before)
    async with app_of(events={"count": int}) as after:
        await after.process_handle("p").signal("go")
        assert await after.process_handle("p").result(timeout="10s") == "done"


async def test_a_child_declared_otherwise_does_not_disturb_its_parent(durable: Backend) -> None:
    def app_of(label: str, **options: Any) -> Lash:
        app = Lash(durable.url, worker=PARKING)

        @app.process(**options)
        async def child(ctx: ProcessContext[None]) -> str:
            return "grown"

        @app.process
        async def load(ctx: ProcessContext[None]) -> str:
            started = await ctx.start(child.options(label=label))
            await ctx.wait_signal("go")
            return await started.result()

        return app

    before = app_of("old")
    await before.open()
    await started(before)
    await parked(before, "p")
    await kill(before)
    async with app_of("new", events={"count": int}) as after:
        await after.process_handle("p").signal("go")
        assert await after.process_handle("p").result(timeout="10s") == "grown"


async def test_a_host_without_a_journal_checks_them_too() -> None:
    async with importer("memory://", host=InlineHost()) as app:
        handle = await started(app)
        await handle.signal("go")
        assert await handle.result(timeout="10s") == REFUSALS


@pytest.mark.proves("P1")
async def test_a_subscription_starts_processes_with_their_declaration() -> None:
    async with importer("memory://") as app:
        app.trigger("tick", payload=int)

        @app.process(events=EVENTS)
        async def on_tick(ctx: ProcessContext[None], n: int) -> None: ...

        target = on_tick.options(label="ticks")
        await app.triggers.register(
            "tick", source_key="s", target=target, key="k", inputs={"n": EVENT}
        )
        [delivery] = await app.triggers.emit("tick", source_key="s", payload=1)
        record = await app.store.processes.get(delivery.process_id)
        assert record is not None
        assert record.registration.label == "ticks"
        progress, count, stuck = record.registration.event_types or ()
        assert progress.schema["required"] == ["done"]
        assert count == EventType("count", {"type": "integer"})
        assert stuck == EventType("stuck", {"type": "string"}, Semantics.WAKE)


@pytest.mark.proves("P1")
async def test_a_process_is_listed_with_its_label(backend: Backend) -> None:
    async with importer(backend.url) as app:
        await started(app, label="Orders of May")
        await app.start(app.services.definitions["load"].options(id="q"))
        labels = {view.id: view.label for view in await app.processes()}
        assert labels == {"p": "Orders of May", "q": None}


async def work(ctx: ProcessContext[None]) -> None: ...


TERMINAL: Any = "terminal"
LOUD: Any = "loud"


@pytest.mark.parametrize(
    ("reason", "declare"),
    [
        ("events=5 is not a mapping", lambda app: app.process(events=5)(work)),
        (
            "'process.x' has a reserved name",
            lambda app: app.process(events={"process.x": int})(work),
        ),
        (
            "'over' cannot end the process: let it return instead",
            lambda app: app.process(events={"over": ProcessEventType(int, TERMINAL)})(work),
        ),
        (
            "'over' has semantics='loud', not 'plain' or 'wake'",
            lambda app: app.process(events={"over": ProcessEventType(int, LOUD)})(work),
        ),
    ],
)
def test_what_cannot_be_declared_is_refused(reason: str, declare: Callable[[Lash], Any]) -> None:
    with pytest.raises(ArgumentsInvalid, match="process 'work'") as caught:
        declare(Lash("memory://"))
    assert reason in caught.value.message


async def test_a_type_that_nobody_can_check_is_refused_when_the_app_opens() -> None:
    app = Lash("memory://")
    app.process(events={"odd": object()})(work)
    with pytest.raises(ArgumentsInvalid, match="event 'odd'"):
        await app.open()


def test_a_blank_label_is_refused() -> None:
    with pytest.raises(NameInvalid, match="process label"):
        Lash("memory://").process(work).options(label=" ")
