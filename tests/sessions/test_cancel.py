"""Cancelling a turn: whatever it does, it ends with a transcript that any provider accepts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pylash import (
    AssistantMessage,
    Delta,
    Lash,
    ModelRequest,
    ProcessCancelled,
    ProviderError,
    TurnBlocked,
    TurnFailed,
    WorkerConfig,
)
from pylash.stores.operation import Port, Statement, Steps, operation
from pylash.stores.store import SqlStore
from pylash.stores.tables.packed_effects import pack_effects, unpack_effects
from pylash.testing import ScriptedModel, call, calls, fail, kill, say
from tests.backends import EVERY_ENGINE, Backend
from tests.forks import forked
from tests.sessions.scenes import (
    LIVE,
    PARKING,
    Slow,
    Telling,
    begin,
    comes_to,
    open_wait,
    state_of,
    transcript,
)


class Stage:
    """An app that stops in its first model call, or in a tool, until it is let go."""

    def __init__(self, url: str, where: str, config: WorkerConfig = LIVE) -> None:
        self.where = where
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self.ended: list[str] = []
        self.app = Lash(url, model=ScriptedModel(self._reply), worker=config)

        @self.app.tool
        async def work() -> str:
            await self._stop("tool")
            return "worked"

        @self.app.tool
        async def quick() -> str:
            return "quick"

    async def _reply(self, request: ModelRequest) -> Any:
        if request.call_number == 0:
            await self._stop("model")
            return calls(say("I try."), call("quick"), call("work"))
        return say("Done.")

    async def _stop(self, here: str) -> None:
        if here == self.where:
            self.reached.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.ended.append(here)
                raise


async def test_a_turn_is_cancelled_in_its_model_call(backend: Backend) -> None:
    stage = Stage(backend.url, "model")
    async with stage.app:
        session = stage.app.session("chat")
        await begin(session, "go", "t1")
        await stage.reached.wait()
        await session.cancel()
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert (result.status, result.error, result.code) == (
            "cancelled",
            "cancelled",
            "turn_cancelled",
        )
        with pytest.raises(TurnFailed, match="'t1' was cancelled"):
            _ = result.text
        assert await transcript(session) == "\nuser       go\n"
        assert stage.ended == ["model"]
        stage.where = "nowhere"
        assert (await session.turn("more", timeout="10s")).text == "Done."


@EVERY_ENGINE
async def test_a_cancelled_turn_keeps_the_text_of_the_model(backend: Backend) -> None:
    model = Telling("It ships ", "to", more="Done.")
    async with backend.app(model=model, worker=LIVE) as app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await model.said.wait()
        await session.cancel()
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert (result.status, result.usage.requests) == ("cancelled", 1)
        with pytest.raises(TurnFailed, match="'t1' was cancelled"):
            _ = result.text
        assert (await session.history())[-1] == AssistantMessage("It ships to", interrupted=True)
        assert (await session.turn("more", timeout="10s")).text == "Done."
        assert await transcript(session) == (
            "\nuser       go"
            "\nassistant  It ships to, interrupted"
            "\nuser       more"
            "\nassistant  Done.\n"
        )
    heard = model.requests[-1].messages[1]
    assert isinstance(heard, AssistantMessage)
    assert (heard.text, heard.interrupted) == ("It ships to", True)


@pytest.mark.parametrize("pieces", [(), (" ", "\n")], ids=["nothing", "blanks"])
async def test_an_answer_without_text_is_not_kept(memory: Backend, pieces: tuple[str, ...]) -> None:
    model = Telling(*pieces)
    async with Lash(memory.url, model=model, worker=LIVE) as app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await model.said.wait()
        await session.cancel()
        assert (await session.turn("go", turn_id="t1", timeout="10s")).status == "cancelled"
        assert await transcript(session) == "\nuser       go\n"


async def test_the_text_of_an_attempt_that_failed_is_not_kept(memory: Backend) -> None:
    """Listeners were told to discard it."""

    class Failing:
        async def respond(self, _: ModelRequest, listen: Any) -> Any:
            listen(Delta("It sh"))
            raise ProviderError("Busy.", retryable=True)

    async with Lash(memory.url, model=Failing(), worker=PARKING) as app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await comes_to(app, "chat", "t1", "waiting")
        await session.cancel()
        assert (await session.turn("go", turn_id="t1", timeout="10s")).status == "cancelled"
        assert await transcript(session) == "\nuser       go\n"


async def test_the_text_of_an_attempt_that_failed_is_not_kept_from_a_relay_either(
    durable: Backend,
) -> None:
    fails = asyncio.Event()

    class Failing:
        async def respond(self, _: ModelRequest, listen: Any) -> Any:
            listen(Delta("It sh"))
            await fails.wait()
            raise ProviderError("Busy.", retryable=True)

    async with (
        Lash(durable.url, model=Failing(), worker=PARKING) as app,
        Lash(durable.url, worker=None) as client,
        client.session("chat").stream("go", turn_id="t1") as stream,
    ):
        async for event in stream:
            if event.type == "text_delta":
                break
        fails.set()
        await comes_to(app, "chat", "t1", "waiting")  # and its feed is gone
        await client.session("chat").cancel()
        session = app.session("chat")
        assert (await session.turn("go", turn_id="t1", timeout="10s")).status == "cancelled"
        assert await transcript(session) == "\nuser       go\n"


@EVERY_ENGINE
async def test_a_later_answer_is_kept_after_the_results_of_tools(backend: Backend) -> None:
    said = asyncio.Event()

    class Model:
        async def respond(self, request: ModelRequest, listen: Any) -> Any:
            if request.call_number == 0:
                return calls(say("I look."), call("look"))
            listen(Delta("It is pa"))
            said.set()
            return await asyncio.Event().wait()

    app = backend.app(model=Model(), worker=LIVE)

    @app.tool
    async def look() -> str:
        return "packed"

    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await said.wait()
        await session.cancel()
        assert (await session.turn("go", turn_id="t1", timeout="10s")).status == "cancelled"
        assert await transcript(session) == (
            "\nuser       go"
            "\nassistant  I look., i1.c0 look()"
            "\ntool       i1.c0 look: packed"
            "\nassistant  It is pa, interrupted\n"
        )


async def test_a_cancelled_subagent_keeps_its_text(sqlite: Backend) -> None:
    said = asyncio.Event()

    class Model:
        async def respond(self, request: ModelRequest, listen: Any) -> Any:
            if request.messages[-1].text == "go":
                return call("spawn_agent", agent="clerk", task="Look")
            listen(Delta("I loo"))
            said.set()
            return await asyncio.Event().wait()

    app = Lash(sqlite.url, model=Model(), worker=LIVE)
    app.agent("clerk")
    app.subagents("clerk")
    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await said.wait()
        await session.cancel()
        assert (await session.turn("go", turn_id="t1", timeout="10s")).status == "cancelled"
        [process] = await app.processes()
        with pytest.raises(ProcessCancelled):
            await app.process_handle(process.id).result(timeout="10s")
        assert await transcript(app.session(process.id)) == (
            "\nuser       Look\nassistant  I loo, interrupted\n"
        )


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["meanwhile", "after"])
async def test_another_worker_keeps_what_a_killed_one_had_relayed(
    durable: Backend, tmp_path: Path, asked: str
) -> None:
    child = forked(tmp_path / "printed", work, durable.url)
    try:
        async with (
            Lash(durable.url, worker=None) as client,
            client.session("chat").stream("go", turn_id="t1") as stream,
        ):
            async for event in stream:
                if event.type == "text_delta" and event.correlation_id == "i2.llm":
                    break
            if asked == "meanwhile":  # the text is the same for every deliverer
                async with asyncio.TaskGroup() as group:
                    group.create_task(client.session("chat").cancel())
                    group.create_task(child.kill())
            else:
                await child.kill()
                await client.session("chat").cancel()
            async with telling_app(durable.url, Telling(more="Done.")) as app:
                session = app.session("chat")
                result = await session.turn("go", turn_id="t1", timeout="10s")
                assert result.status == "cancelled"
                assert (await session.turn("more", timeout="10s")).text == "Done."
                assert await transcript(session) == (
                    "\nuser       go"
                    "\nassistant  I look., i1.c0 look()"
                    "\ntool       i1.c0 look: packed"
                    "\nassistant  It ships to, interrupted"
                    "\nuser       more"
                    "\nassistant  Done.\n"
                )
    finally:
        await child.kill()


@pytest.mark.slow
async def test_the_first_answer_of_a_killed_worker_is_kept_too(
    durable: Backend, tmp_path: Path
) -> None:
    """Nothing of the turn was recorded yet."""
    child = forked(tmp_path / "printed", work, durable.url)
    try:
        async with (
            Lash(durable.url, worker=None) as client,
            client.session("chat").stream("hurry", turn_id="t1") as stream,
        ):
            async for event in stream:
                if event.type == "text_delta":
                    break
            await child.kill()
            await client.session("chat").cancel()
            async with telling_app(durable.url, Telling()) as app:
                session = app.session("chat")
                result = await session.turn("hurry", turn_id="t1", timeout="10s")
                assert result.status == "cancelled"
                assert await transcript(session) == (
                    "\nuser       hurry\nassistant  It ships to, interrupted\n"
                )
    finally:
        await child.kill()


def telling_app(store: str, model: Telling) -> Lash:
    app = Lash(store, model=model, worker=LIVE)

    @app.tool
    async def look() -> str:
        return "packed"

    return app


async def work(store: str) -> None:
    """Work until it is killed: run in a child."""
    model = Telling("It ships ", "to", go=calls(say("I look."), call("look")))
    async with telling_app(store, model):
        await asyncio.Event().wait()


async def test_a_turn_is_cancelled_in_a_tool_and_keeps_what_is_known(memory: Backend) -> None:
    stage = Stage(memory.url, "tool")
    async with stage.app:
        session = stage.app.session("chat")
        async with session.stream("go", turn_id="t1") as stream:
            async for event in stream:
                if event.type == "tool_completed":
                    break
            await stage.reached.wait()
        await session.cancel()
        assert (await session.turn("go", turn_id="t1", timeout="10s")).status == "cancelled"
        assert await transcript(session) == (
            "\nuser       go"
            "\nassistant  I try., i1.c0 quick(), i1.c1 work()"
            "\ntool       i1.c0 quick: quick"
            "\ntool       i1.c1 work error: No result: the turn was cancelled. It may have run.\n"
        )
        assert stage.ended == ["tool"]
        assert (await session.turn("more", timeout="10s")).text == "Done."


async def test_a_reason_is_the_error(memory: Backend) -> None:
    stage = Stage(memory.url, "model")
    async with stage.app:
        session = stage.app.session("chat")
        await begin(session, "go", "t1")
        await stage.reached.wait()
        await session.cancel("the shop is closed")
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert (result.status, result.error) == ("cancelled", "the shop is closed")


async def test_a_turn_is_cancelled_before_it_begins(durable: Backend) -> None:
    """Nobody works yet: a client asks, and takes it back."""
    async with Lash(durable.url, worker=None) as client:
        session = client.session("chat")
        await begin(session, "go", "t1")
        await session.cancel()
        assert await state_of(client, "chat", "t1") == "queued"
    model = ScriptedModel([])
    async with Lash(durable.url, model=model) as app:
        session = app.session("chat")
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.status == "cancelled"
        assert await transcript(session) == "\nuser       go\n"
    assert model.requests == []


async def test_a_cancel_ends_the_turn_that_runs_and_not_the_next(backend: Backend) -> None:
    stage = Stage(backend.url, "model")
    async with stage.app:
        session = stage.app.session("chat")
        await begin(session, "go", "t1")
        await stage.reached.wait()
        await begin(session, "then", "t2")
        stage.where = "nowhere"
        await session.cancel()
        assert (await session.turn("go", turn_id="t1", timeout="10s")).status == "cancelled"
        assert (await session.turn("then", turn_id="t2", timeout="10s")).status == "completed"


async def test_cancelling_again_or_nothing_changes_nothing(memory: Backend) -> None:
    stage = Stage(memory.url, "model")
    async with stage.app:
        session = stage.app.session("chat")
        await session.cancel()
        await begin(session, "go", "t1")
        await stage.reached.wait()
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(session.cancel(f"reason {n}"))
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.status == "cancelled"
        await session.cancel()
        again = await session.turn("go", turn_id="t1", timeout="10s")
        assert (again.status, again.error) == (result.status, result.error)
        stage.where = "nowhere"
        assert (await session.turn("more", timeout="10s")).text == "Done."


async def test_a_cancel_survives_a_death(durable: Backend) -> None:
    first = Stage(durable.url, "tool")
    await first.app.open()
    await begin(first.app.session("chat"), "go", "t1")
    await first.reached.wait()
    async with Lash(durable.url, worker=None) as client:
        dying = asyncio.ensure_future(kill(first.app))  # noqa: TID251 - it dies while we ask
        await client.session("chat").cancel()
        await dying
    second = Stage(durable.url, "nowhere")
    async with second.app:
        session = second.app.session("chat")
        assert (await session.turn("go", turn_id="t1", timeout="10s")).status == "cancelled"
        await transcript(session)


async def test_streamed_text_survives_a_death_and_a_cancel(durable: Backend) -> None:
    """They had left the queue, and no answer to them was recorded."""
    slow = Slow()
    first = Lash(durable.url, model=ScriptedModel(slow), worker=LIVE)
    await first.open()
    await first.session("chat").enqueue("hello")
    await slow.asked.wait()
    await kill(first)
    async with Lash(durable.url, worker=None) as client:
        await client.session("chat").cancel()
    async with Lash(durable.url, model=ScriptedModel(lambda _: say("Done."))) as app:
        session = app.session("chat")
        assert (await session.turn("more", timeout="10s")).text == "Done."
        assert await transcript(session) == (
            "\nuser       hello\nuser       more\nassistant  Done.\n"
        )


async def test_a_turn_that_pauses_before_it_asks_again_can_be_cancelled(memory: Backend) -> None:
    app = Lash(memory.url, model=ScriptedModel([fail("Busy.", retryable=True)]), worker=PARKING)
    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await comes_to(app, "chat", "t1", "waiting")
        await session.cancel()
        assert (await session.turn("go", turn_id="t1", timeout="10s")).status == "cancelled"


async def test_a_turn_that_cannot_be_replayed_is_blocked_until_it_is_cancelled(
    durable: Backend,
) -> None:
    """Somebody changed what a call was recorded with."""
    first = approving(durable.url)
    async with first:
        await begin(first.session("chat"), "go", "t1")
        await comes_to(first, "chat", "t1", "waiting")
        await tamper(first, "i1.llm")
    async with approving(durable.url) as app:
        session = app.session("chat")
        await app.resolve((await open_wait(app)).key, True)
        await comes_to(app, "chat", "t1", "blocked")
        with pytest.raises(TurnBlocked, match="effect_replay_mismatch"):
            await session.turn("go", turn_id="t1", timeout="50ms")
        await begin(session, "more", "t2")
        await session.cancel()
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.status == "cancelled"
        assert (await session.turn("more", turn_id="t2", timeout="10s")).status == "completed"
        assert await app.waits() == []
        assert (await transcript(session)).startswith("\nuser       go\nuser       more\n")


def approving(url: str) -> Lash:
    def reply(request: ModelRequest) -> Any:
        return call("pay") if request.messages[-1].text == "go" else say("Done.")

    app = Lash(url, model=ScriptedModel(reply), worker=PARKING)

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    return app


async def tamper(app: Lash, key: str) -> None:
    """Change what an effect was recorded with."""

    class Vandal(Port):
        @operation()
        def change(self, key: str) -> Steps[None]:
            nodes = yield Statement(
                "select id, effects from pylash_nodes where effects is not null"
            )
            for node, body in nodes.rows:
                effects = [
                    replace(one, hash=b"x" * 32) if one.key == key else one
                    for one in unpack_effects(bytes(body))
                ]
                change = "update pylash_nodes set effects = ? where id = ?"
                yield Statement(change, (pack_effects(effects), node))

    assert isinstance(app.store, SqlStore)
    await Vandal(app.store.driver).change(key)


async def test_a_call_whose_turn_it_was_not_has_not_run(memory: Backend) -> None:
    begun = asyncio.Event()
    app = Lash(memory.url, model=ScriptedModel([calls(call("hang"), call("hang"))]))

    @app.tool(scheduling="serial")
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await begun.wait()
        await session.cancel()
        await session.turn("go", turn_id="t1", timeout="10s")
        assert (await transcript(session)).splitlines()[3:] == [
            "tool       i1.c0 hang error: No result: the turn was cancelled. It may have run.",
            "tool       i1.c1 hang error: Not run: the turn was cancelled.",
        ]
