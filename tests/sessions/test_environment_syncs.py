"""Syncs of the environment: a tool or a plugin changes the tools and the prompt of its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from pylash import (
    InlineHost,
    Lash,
    ModelRequest,
    SessionPlugin,
    Tool,
    ToolContext,
    TurnView,
)
from pylash.testing import ScriptedModel, call, crash_everywhere, kill, say
from tests.backends import Backend
from tests.sessions.crash_apps import Skills, make_skilled, skilled_story
from tests.sessions.scenes import LIVE, Slow, begin, open_wait, transcript


class SkillFactory:
    """Builds plugins whose tools and prompt depend on what was learned; it is kept outside of them, as in a database."""

    name = "skills"

    def __init__(self, known: set[str]) -> None:
        self.known = known

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        return Skills(self.known)


def reply(request: ModelRequest) -> Any:
    """Learn to draw, draw, and be content."""
    results = [message.text for message in request.messages if message.role == "tool"]
    return (call("learn", skill="draw"), call("draw"), say("Done."))[len(results)]


def prompt(request: ModelRequest) -> list[str]:
    return [message.text for message in request.messages if message.role == "system"]


def offered(request: ModelRequest) -> list[str]:
    return [one.name for one in request.tools]


async def syncs(app: Lash, turn_id: str = "t1") -> list[str]:
    """Return the keys of the syncs of a turn."""
    effects = await app.session("chat").timeline(turn_id)
    return [effect.key for effect in effects if effect.kind == "sync_execution_environment"]


LEARNED = """
user       go
assistant  i1.c0 learn(skill=draw)
tool       i1.c0 learn: learned draw
assistant  i2.c0 draw()
tool       i2.c0 draw: drawn
assistant  Done.
"""


@pytest.mark.proves("T7")
async def test_a_tool_changes_the_tools_and_the_prompt_of_its_turn(backend: Backend) -> None:
    model = ScriptedModel(reply)
    app = backend.app(model=model, instructions="Help.", plugins=[SkillFactory(set())])
    async with app:
        session = app.session("chat")
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert await transcript(session) == LEARNED
        assert await syncs(app) == ["env", "i1.env"]
    first, second, third = model.requests
    assert (prompt(first), offered(first)) == (["Help.", "Skills: none."], ["learn"])
    assert (prompt(second), offered(second)) == (["Help.", "Skills: draw."], ["learn", "draw"])
    assert (prompt(third), offered(third)) == (prompt(second), offered(second))


@pytest.mark.proves("T7")
async def test_a_host_without_a_journal_changes_them_too() -> None:
    model = ScriptedModel(reply)
    app = Lash("memory://", model=model, plugins=[SkillFactory(set())], host=InlineHost())
    async with app:
        assert (await app.session("chat").turn("go", timeout="10s")).text == "Done."
        assert await transcript(app.session("chat")) == LEARNED


@pytest.mark.proves("T7")
async def test_another_worker_goes_on_with_what_was_captured_last(durable: Backend) -> None:
    known, slow = set[str](), Slow()

    async def dying(request: ModelRequest) -> Any:
        return reply(request) if request.call_number < 2 else await slow(request)

    first = Lash(
        durable.url,
        model=ScriptedModel(dying),
        instructions="Old.",
        plugins=[SkillFactory(known)],
        worker=LIVE,
    )
    await first.open()
    await begin(first.session("chat"), "go", "t1")
    await slow.asked.wait()
    await kill(first)
    known.add("sing")  # nobody says so
    model = ScriptedModel(reply)
    app = Lash(durable.url, model=model, instructions="New.", plugins=[SkillFactory(known)])
    async with app:
        session = app.session("chat")
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert await transcript(session) == LEARNED
        assert await syncs(app) == ["env", "i1.env"]
    [asked] = model.requests
    assert (prompt(asked), offered(asked)) == (["Old.", "Skills: draw."], ["learn", "draw"])


class Changing(SessionPlugin):
    """Has another prompt at each read; reports it at the given checkpoints."""

    def __init__(self, announced: Sequence[int]) -> None:
        self.announced, self.looks = announced, 0

    def prompt(self) -> str:
        self.looks += 1
        return f"Look {self.looks}."

    async def checkpoint(self, turn: TurnView) -> Sequence[str]:
        if turn.iteration not in self.announced:
            return []
        turn.sync_environment()
        return [f"changed {turn.iteration}"]


class ChangingFactory:
    """Builds them."""

    name = "changing"

    def __init__(self, *announced: int) -> None:
        self.announced = announced

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        return Changing(self.announced)


@pytest.mark.proves("T7")
@pytest.mark.parametrize(
    ("announced", "keys", "seen"),
    [
        ((), ["env"], ["Look 1."] * 3),
        ((0,), ["env", "i0.env"], ["Look 2."] * 3),
        ((1, 2), ["env", "i1.env", "i2.env"], ["Look 1.", "Look 2.", "Look 3."]),
    ],
)
async def test_a_plugin_says_that_it_changed(
    memory: Backend, announced: Sequence[int], keys: list[str], seen: list[str]
) -> None:
    model = ScriptedModel([call("work"), call("work"), say("Done.")])
    async with Lash(memory.url, model=model, plugins=[ChangingFactory(*announced)]) as app:

        @app.tool
        async def work() -> str:
            return "worked"

        await app.session("chat").turn("go", turn_id="t1", timeout="10s")
        assert await syncs(app) == keys
        told = await transcript(app.session("chat"))
        assert [f"changed {n}" in told for n in range(3)] == [n in announced for n in range(3)]
    assert [prompt(request) for request in model.requests] == [[one] for one in seen]


async def test_a_deferred_result_brings_the_change_with_it(memory: Backend) -> None:
    model = ScriptedModel([call("ask"), say("Done.")])
    async with Lash(memory.url, model=model, plugins=[ChangingFactory()]) as app:

        @app.tool
        async def ask(ctx: ToolContext[None]) -> Any:
            ctx.sync_environment()
            return ctx.defer()

        session = app.session("chat")
        await begin(session, "go", "t1")
        await app.resolve((await open_wait(app)).key, "Monday")
        await session.turn("go", turn_id="t1", timeout="10s")
        assert await syncs(app) == ["env", "i1.env"]
    assert [prompt(request) for request in model.requests] == [["Look 1."], ["Look 2."]]


async def test_a_tool_that_fails_changes_nothing(memory: Backend) -> None:
    model = ScriptedModel([call("work"), say("Done.")])
    async with Lash(memory.url, model=model, plugins=[ChangingFactory()]) as app:

        @app.tool
        async def work(ctx: ToolContext[None]) -> Any:
            ctx.sync_environment()
            raise OSError("away")

        await app.session("chat").turn("go", turn_id="t1", timeout="10s")
        assert await syncs(app) == ["env"]


class Loading(Tool[..., Any]):
    """A tool whose description is loaded again after a call, and for ever."""

    app: Lash

    def __init__(self) -> None:
        self.called, self.loading = False, asyncio.Event()
        super().__init__(self.work)

    async def work(self, ctx: ToolContext[None]) -> str:
        ctx.sync_environment()
        await self.app.session("chat").enqueue("hurry", when="now")
        self.called = True
        return "worked"

    async def prepare(self) -> None:
        await super().prepare()
        if self.called:
            self.loading.set()
            await asyncio.Event().wait()


async def test_a_turn_that_is_cancelled_at_a_sync_keeps_its_messages_once(memory: Backend) -> None:
    work = Loading()
    model = ScriptedModel([call("work"), say("Done.")])
    async with Lash(memory.url, model=model, tools=[work], worker=LIVE) as app:
        work.app, session = app, app.session("chat")
        await begin(session, "go", "t1")
        await work.loading.wait()
        await session.cancel()
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.status == "cancelled"
        assert await transcript(session) == (
            "\nuser       go\nassistant  i1.c0 work()\ntool       i1.c0 work: worked\nuser       hurry\n"
        )


def test_a_change_is_made_once_wherever_it_dies() -> None:
    report = crash_everywhere(make_skilled, skilled_story)
    assert report.outcome == LEARNED


def test_a_view_of_a_turn_may_be_made_without_an_app() -> None:
    TurnView("s", "t", 1, ()).sync_environment()
