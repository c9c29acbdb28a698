"""Completions of processes: asked once, recorded, and of the type that was asked for."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel

from pylash import (
    Attachment,
    Lash,
    ModelRequest,
    ProcessContext,
    ProcessDefinition,
    ProcessFailed,
    ProviderError,
    Text,
    ToolContext,
    TurnOutputInvalid,
)
from pylash.testing import ScriptedModel, SimClock, call, crash_everywhere, fail, say
from tests.backends import Backend


class Verdict(BaseModel):
    """A typed answer."""

    refund: bool
    cents: int


FITS = say('{"refund": true, "cents": 500}')


async def effects(app: Lash, process_id: str = "p") -> list[tuple[str, str]]:
    """Return what a process recorded, as kinds and keys."""
    record = await app.store.processes.get(process_id)
    assert record is not None
    return [(entry.kind, entry.key) for entry in await app.store.journal.timeline(record.run)]


async def result_of(app: Lash, body: Any, **arguments: Any) -> Any:
    handle = await app.start(app.process(body).options(id="p"), **arguments)
    return await handle.result(timeout="10s")


@pytest.mark.proves("T6")
async def test_a_completion_is_one_recorded_effect(backend: Backend) -> None:
    model = ScriptedModel([say("Spam."), say("Ham.")])

    async def sort(ctx: ProcessContext[None], mail: str) -> list[str]:
        first = await ctx.complete(f"What is {mail}?")
        return [first, await ctx.complete("And the next?")]

    async with Lash(backend.url, model=model) as app:
        assert await result_of(app, sort, mail="this") == ["Spam.", "Ham."]
        assert await effects(app) == [("direct", "complete"), ("direct", "complete#2")]
    sent = [[(m.role, m.text) for m in request.messages] for request in model.requests]
    assert sent == [[("user", "What is this?")], [("user", "And the next?")]]
    assert {request.session_id for request in model.requests} == {""}  # outside any conversation


async def test_a_recorded_completion_is_not_asked_again_after_a_restart(durable: Backend) -> None:
    model = ScriptedModel([say("Spam.")])

    async def sort(ctx: ProcessContext[None]) -> str:
        answer = await ctx.complete("What is it?")
        await ctx.wait_signal("go")
        return answer

    async with Lash(durable.url, model=model) as app:
        handle = await app.start(app.process(sort).options(id="p"))
        while len(await effects(app)) < 2:
            await handle.status()
    async with Lash(durable.url, model=model) as app:
        handle = app.process_handle("p", app.process(sort))
        await handle.signal("go")
        assert await handle.result(timeout="10s") == "Spam."
    assert len(model.requests) == 1


def make_app(store: str) -> Lash:
    """Make an app that asks by what was said, as a killed process forgets what it counted."""

    def reply(request: ModelRequest) -> Any:
        texts = [message.text for message in request.messages]
        if "fits the schema" in texts[-1]:
            return FITS
        return say(f"{texts[0]} {len(texts)}.")

    app = Lash(store, model=ScriptedModel(reply))

    @app.tool
    async def ask(ctx: ToolContext[None], text: str) -> str:
        return await ctx.complete(text)

    @app.process
    async def judge(ctx: ProcessContext[None]) -> list[Any]:
        verdict = await ctx.complete("Refund?", output=Verdict)
        both = await ctx.gather(ctx.complete("a"), ctx.complete("b"))
        return [verdict.model_dump(), *both, await ctx.call_tool("ask", text="c")]

    return app


async def judged(app: Lash) -> list[Any]:
    judge: ProcessDefinition[[], list[Any]] = app.services.definitions["judge"]
    handle = await app.start(judge.options(id="p"))
    value = await handle.result(timeout="20s")
    return [value, sorted(await effects(app))]


@pytest.mark.proves("T6")
def test_completions_end_the_same_wherever_they_die() -> None:
    report = crash_everywhere(make_app, judged)
    assert report.outcome == [
        [{"refund": True, "cents": 500}, "a 1.", "b 1.", "c 1."],
        [
            ["direct", "complete"],
            ["direct", "complete#2"],
            ["direct", "complete#3"],
            ["direct", "complete/i2.llm"],
            ["tool_attempt", "ask"],
        ],
    ]


@pytest.mark.parametrize(
    ("output", "script", "value"),
    [
        (Verdict, [say("Yes."), FITS], Verdict(refund=True, cents=500)),
        (list[int], [call("final_result", result=["a"]), say("[1]")], [1]),
        (Literal["yes", "no"], [say("yes")], "yes"),
        (str, [say("123")], "123"),
        (int, [call("look"), say("7")], 7),  # there is nothing to look at
    ],
)
async def test_what_does_not_fit_is_asked_for_again(
    output: Any, script: list[Any], value: Any
) -> None:
    model, seen = ScriptedModel(script), []

    async def judge(ctx: ProcessContext[None]) -> None:
        seen.append(await ctx.complete("Which?", output=output))

    async with Lash("memory://", model=model) as app:
        await result_of(app, judge)
    assert seen == [value]
    assert type(seen[0]) is type(value)
    assert [request.call_number for request in model.requests] == list(range(len(script)))


@pytest.mark.parametrize(
    ("reply", "error", "asked"),
    [
        (say("Perhaps."), TurnOutputInvalid, 3),
        (call("look"), ProviderError, 3),
        (fail("No such key."), ProviderError, 1),
    ],
)
async def test_a_completion_that_fails_raises_why(reply: Any, error: type, asked: int) -> None:
    model, raised = ScriptedModel(lambda _: reply), []

    async def judge(ctx: ProcessContext[None]) -> str:
        with pytest.raises(error) as caught:
            await ctx.complete("Which?", output=Verdict)
        raised.append(caught.value)
        return "went on"

    async with Lash("memory://", model=model) as app:
        assert await result_of(app, judge) == "went on"
    assert len(model.requests) == asked
    assert raised[0].code == error.default_code  # type: ignore[attr-defined]


@pytest.mark.proves("T6")
async def test_a_model_that_is_away_is_asked_again_after_recorded_pauses() -> None:
    clock = SimClock()
    replies: list[Any] = [*[fail("Overloaded.", retryable=True)] * 2, say("Back.")]
    model = ScriptedModel(lambda _: replies[len(model.requests) - 1])

    async def ask(ctx: ProcessContext[None]) -> str:
        return await ctx.complete("Who?")

    async with Lash("memory://", model=model, clock=clock) as app:
        handle = await app.start(app.process(ask).options(id="p"))
        await clock.advance("3s")
        assert await handle.result(timeout="10s") == "Back."
        assert await effects(app) == [
            ("direct", "complete"),
            ("sleep", "complete/i1.llm.pause"),
            ("direct", "complete/i1.llm.2"),
            ("sleep", "complete/i1.llm.2.pause"),
            ("direct", "complete/i1.llm.3"),
        ]
    assert [request.call_number for request in model.requests] == [0, 0, 0]


@pytest.mark.proves("T5")
async def test_attachments_cross_by_reference_and_are_sent_whole(backend: Backend) -> None:
    model = ScriptedModel([say("A cat.")])
    picture = Attachment(b"\x89PNG-cat", "image/png", "cat.png")

    async def look(ctx: ProcessContext[None]) -> str:
        return await ctx.complete([Text("What is it?"), picture])

    async with Lash(backend.url, model=model) as app:
        assert await result_of(app, look) == "A cat."
        record = await app.store.processes.get("p")
        assert record is not None
        entry = await app.store.journal.entry(record.run, "complete")
        assert entry is not None
        assert entry.command is not None
        assert b"What is it?" in entry.command
        assert b"PNG" not in entry.command
    (asked,) = model.requests[0].messages
    assert asked.role == "user"
    assert asked.parts[1].data == b"\x89PNG-cat"  # type: ignore[union-attr]


@pytest.mark.proves("T5")
async def test_an_attachment_that_is_gone_fails_the_completion_clearly() -> None:
    async def look(ctx: ProcessContext[None]) -> str:
        return await ctx.complete([Attachment(media_type="image/png", ref="ab12", size=3)])

    model = ScriptedModel([say("A cat.")])
    async with Lash("memory://", model=model) as app:
        with pytest.raises(ProcessFailed, match="ab12") as failed:
            await result_of(app, look)
        assert failed.value.code == "attachment_resolution_failed"
        assert len(await app.process_handle("p").timeline()) == 1  # it is not tried again
    assert model.requests == []


async def test_a_process_asks_the_model_it_was_started_with(durable: Backend) -> None:
    class Named(ScriptedModel):
        def __init__(self, name: str) -> None:
            super().__init__([say(name)])
            self.name = name

    old, new, fast = Named("old"), Named("new"), Named("fast")

    async def ask(ctx: ProcessContext[None]) -> list[str]:
        await ctx.wait_signal("go")
        return [await ctx.complete("Who?"), await ctx.complete("Who?", model="fast")]

    async with Lash(durable.url, model=old) as app:
        await app.start(app.process(ask).options(id="p"))
    fast_too = ScriptedModel([say("unused"), say("fast")])
    async with Lash(durable.url, model=new) as app:  # deployed meanwhile
        app.model("old", old)
        app.model("fast", fast_too)
        handle = app.process_handle("p", app.process(ask))
        await handle.signal("go")
        assert await handle.result(timeout="10s") == ["old", "fast"]
    assert fast.requests == []


async def test_an_invalid_prompt_and_an_invalid_model_are_refused() -> None:
    async def blank(ctx: ProcessContext[None]) -> str:
        return await ctx.complete(" ")

    async def unknown(ctx: ProcessContext[None]) -> str:
        return await ctx.complete("Who?", model="nobody")

    async with Lash("memory://") as app:
        for body, code in ((blank, "input_invalid"), (unknown, "model_unknown")):
            handle = await app.start(app.process(body))
            with pytest.raises(ProcessFailed) as failed:
                await handle.result(timeout="10s")
            assert failed.value.code == code
