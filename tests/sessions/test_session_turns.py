"""Session turns as processes, started from code: their host, their session, their answer and their history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from pylash import (
    EVENT,
    Agent,
    ArgumentsInvalid,
    InlineHost,
    Lash,
    LashError,
    ModelRequest,
    ProcessCancelled,
    ProcessConflict,
    ProcessContext,
    ProcessFailed,
    ProcessScope,
    TurnResult,
)
from pylash.durable.effects import Envelope, Outcome
from pylash.durable.ports import Clock, EffectController, EffectHost, LocalExecutor
from pylash.durable.runs import Attached
from pylash.durable.scopes import ExecutionScope
from pylash.testing import ScriptedModel, SerialHost, call, crash_everywhere, fail, kill, say
from tests.backends import Backend, eventually
from tests.sessions.crash_apps import forked_story, make_forked
from tests.sessions.scenes import LIVE, PARKING, Slow, begin, open_wait, transcript

HOSTS: dict[str, Callable[[], EffectHost] | None] = {
    "journal": None,
    "inline": InlineHost,
    "serial": lambda: SerialHost(InlineHost()),
}

each_host = pytest.mark.parametrize("host", HOSTS)


class Sources(BaseModel):
    """What a researcher answers."""

    authors: list[str]


def answer(request: ModelRequest) -> Any:
    """Read a page, then answer with it and the number of messages before the task."""
    asked = [message for message in request.messages if message.role == "user"]
    if request.messages[-1].role == "user" and request.output_schema is None:
        return call("read", page=7)
    if request.output_schema is not None:
        return say('{"authors": ["Ann"]}')
    return say(f"{request.messages[-1].text} for {asked[-1].text} after {len(asked) - 1}")


def library(
    url: str, host: EffectHost | None = None, reply: Any = answer, **options: Any
) -> tuple[Lash, Agent]:
    """Return an app, and its researcher."""
    chosen: dict[str, Any] = {"worker": LIVE, **options}
    app = Lash(url, model=ScriptedModel(reply), instructions="Help.", host=host, **chosen)

    @app.tool
    async def read(page: int) -> str:
        """Read a page."""
        return f"page {page}"

    return app, app.agent("researcher", instructions="Find sources.", tools=[read])


def made(host: str) -> EffectHost | None:
    make = HOSTS[host]
    return None if make is None else make()


# --- hosts ---


class Recording(EffectController):
    """Runs effects, and notes them."""

    supports_durable_effects = True

    def __init__(self, inner: EffectController, noted: list[Envelope]) -> None:
        self._inner = inner
        self._noted = noted

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        self._noted.append(envelope)
        return await self._inner.execute(envelope, local)


class Rejecting(EffectController):
    """Refuses every effect."""

    def __init__(self, error: Exception, noted: list[Envelope]) -> None:
        self._error = error
        self._noted = noted

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        self._noted.append(envelope)
        raise self._error


class Deployment(InlineHost):
    """A host that rejects effects, except in the scopes that it has a controller for."""

    def __init__(self, *scopes: ExecutionScope, error: Exception | None = None) -> None:
        super().__init__()
        self.supplied: dict[ExecutionScope, list[Envelope]] = {scope: [] for scope in scopes}
        self.rejected: list[Envelope] = []
        self._error = error or LashError("Not here.", code="rejecting_deployment")

    def adopt(self, attached: Attached, clock: Clock) -> tuple[Any, Any]:
        inner, memory = super().adopt(attached, clock)
        scope = attached.fence.scope
        if scope in self.supplied:
            return Recording(inner, self.supplied[scope]), memory
        return Rejecting(self._error, self.rejected), memory


@pytest.mark.proves("P15")
async def test_a_session_turn_runs_in_the_controller_that_is_supplied_for_its_scope(
    backend: Backend,
) -> None:
    host = Deployment(ProcessScope("scoped"))
    app, researcher = library(backend.url, host)
    async with app:
        handle = await app.start(researcher.options(id="scoped"), "Who?")
        result = await handle.result(timeout="10s")
        assert (result.session_id, result.turn_id) == ("scoped", "scoped")
        assert result.text == "page 7 for Who? after 0"
        raw = await app.process_handle("scoped").result(timeout="10s")
        assert (raw["session_id"], raw["turn_id"]) == ("scoped", "scoped")
    assert host.rejected == []
    kinds = [one.command.kind for one in host.supplied[ProcessScope("scoped")]]
    assert {"durable_step", "llm_call", "tool_batch", "tool_attempt", "checkpoint"} <= set(kinds)


@pytest.mark.proves("P15")
@pytest.mark.parametrize("error", [None, RuntimeError("out of order"), ValueError()])
async def test_a_session_turn_whose_host_rejects_an_effect_fails_with_a_message(
    backend: Backend, error: Exception | None
) -> None:
    host = Deployment(ProcessScope("other"), error=error)
    app, researcher = library(backend.url, host)
    async with app:
        handle = await app.start(researcher.options(id="fallback"), "Who?")
        with pytest.raises(ProcessFailed) as caught:
            await handle.result(timeout="10s")
    failure = caught.value.failure
    assert failure.code == "process_session_turn_failed"
    assert failure.failure_class == "ProcessSessionTurnFailed"
    wanted = "Not here." if error is None else str(error) or "ValueError"
    assert failure.message == f"The turn of child session 'fallback' failed: {wanted}"
    assert host.rejected
    assert host.supplied == {ProcessScope("other"): []}


@pytest.mark.proves("P15")
@each_host
async def test_without_a_supplied_controller_the_host_of_the_deployment_runs_it(
    backend: Backend, host: str
) -> None:
    app, researcher = library(backend.url, made(host))
    async with app:
        handle = await app.start(researcher.options(id="r-7"), "Who?")
        assert (await handle.result(timeout="10s")).text == "page 7 for Who? after 0"
        assert await transcript(app.session("r-7")) == (
            "\nuser       Who?"
            "\nassistant  i1.c0 read(page=7)"
            "\ntool       i1.c0 read: page 7"
            "\nassistant  page 7 for Who? after 0\n"
        )
        if host == "journal":
            keys = {effect.key for effect in await handle.timeline()}
            assert {"session", "env", "i1.llm", "i2.llm"} <= keys


@pytest.mark.proves("P15")
@each_host
async def test_a_failed_turn_fails_the_process_with_its_code(backend: Backend, host: str) -> None:
    app, researcher = library(backend.url, made(host), lambda _: fail("No books."))
    async with app:
        handle = await app.start(researcher, "Who?")
        with pytest.raises(ProcessFailed, match=r"No books\.") as caught:
            await handle.result(timeout="10s")
        assert caught.value.code == "process_session_turn_failed"


# --- its answer, its session, its history ---


@pytest.mark.proves("P15")
@each_host
async def test_the_answer_has_the_type_that_was_asked_for(backend: Backend, host: str) -> None:
    app, researcher = library(backend.url, made(host))

    @app.process
    async def review(ctx: ProcessContext[None]) -> list[Any]:
        child = await ctx.start(researcher.options(id="child", output=Sources), "Who?")
        result = await child.result()
        return [result.session_id, result.value.authors]

    async with app:
        handle = await app.start(researcher.options(output=Sources), "Who?")
        result: TurnResult[Sources] = await handle.result(timeout="10s")
        assert result.value == Sources(authors=["Ann"])
        inside = await (await app.start(review)).result(timeout="10s")
        assert inside == ["child", ["Ann"]]


async def test_an_answer_that_never_fits_fails_the_process(backend: Backend) -> None:
    app, researcher = library(backend.url, None, lambda _: say("I cannot."))
    async with app:
        handle = await app.start(researcher.options(output=Sources), "Who?")
        with pytest.raises(ProcessFailed) as caught:
            await handle.result(timeout="10s")
        assert caught.value.code == "process_session_turn_failed"


@pytest.mark.proves("P15")
@each_host
async def test_a_child_session_begins_with_the_history_of_another_one(
    backend: Backend, host: str
) -> None:
    app, researcher = library(backend.url, made(host))

    @app.process
    async def later(ctx: ProcessContext[None]) -> str:
        chosen = researcher.options(id="inside", fork="chat", at="t1")
        return (await (await ctx.start(chosen, "Who?")).result()).text

    async with app:
        chat = app.session("chat")
        for turn in ("t1", "t2"):
            await chat.turn(turn, turn_id=turn, timeout="10s")
        for chosen, before in (
            (researcher.options(id="empty"), 0),
            (researcher.options(id="all", fork="chat"), 2),
            (researcher.options(id="first", fork="chat", at="t1"), 1),
        ):
            result = await (await app.start(chosen, "Who?")).result(timeout="10s")
            assert result.text == f"page 7 for Who? after {before}"
        assert await (await app.start(later)).result(timeout="10s") == "page 7 for Who? after 1"
        assert len(await chat.history()) == 8  # it goes on by itself
        assert (await transcript(app.session("first"))).startswith("\nuser       t1\n")
        request = model_of(app).requests[-1]
        assert request.messages[0].text == "Find sources."


def model_of(app: Lash) -> ScriptedModel:
    found = app.catalog.provider(app.catalog.model)
    assert isinstance(found, ScriptedModel)
    return found


async def test_a_history_that_is_gone_when_the_process_begins_fails_it(backend: Backend) -> None:
    app, researcher = library(backend.url)
    async with app:
        await app.session("chat").turn("Hi.", turn_id="t1", timeout="10s")
        handle = await app.start(researcher.options(fork="chat", at="t1", delay="200ms"), "Who?")
        await app.session("chat").delete()
        with pytest.raises(ProcessFailed, match="chat") as caught:
            await handle.result(timeout="10s")
        assert caught.value.code == "process_session_turn_failed"


async def test_the_same_start_again_is_the_same_process(backend: Backend) -> None:
    app, researcher = library(backend.url)
    async with app:
        for _ in range(2):
            handle = await app.start(researcher.options(id="r-7"), "Who?")
            assert (await handle.result(timeout="10s")).text == "page 7 for Who? after 0"
        with pytest.raises(ProcessConflict):
            await app.start(researcher.options(id="r-7"), "What?")
        assert len(await app.session("r-7").history()) == 4


# --- who runs it, and how it ends ---


@pytest.mark.proves("P15")
@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parking"])
async def test_another_worker_goes_on_with_a_session_turn(durable: Backend, config: Any) -> None:
    """It has its settings in its input: the app that started it had other ones."""

    def reply(request: ModelRequest) -> Any:
        if request.messages[-1].role == "user":
            return call("pay", cents=5)
        return say(f"{request.messages[0].text} {request.messages[-1].text}")

    def shop(instructions: str) -> Lash:
        model = ScriptedModel(reply)
        app = Lash(durable.url, model=model, instructions=instructions, worker=config)

        @app.tool(approval=True)
        async def pay(cents: int) -> str:
            """Pay."""
            return f"paid {cents}"

        return app

    dying = shop("Help.")
    await dying.open()
    payer = dying.agent("payer", instructions="You pay.", tools=["pay"])
    handle = await dying.start(payer.options(id="p-1"), "Pay.")
    await open_wait(dying)
    await kill(dying)
    async with shop("Help more.") as app:  # it does not even have the agent
        await app.resolve((await open_wait(app)).key, True)
        result = await app.process_handle(handle.id).result(timeout="10s")
        assert result["text"] == "You pay. paid 5"


@pytest.mark.proves("P15")
def test_a_session_turn_with_a_history_ends_the_same_wherever_it_dies() -> None:
    report = crash_everywhere(make_forked, forked_story)
    assert report.outcome == FORKED
    assert {point.operation for point in report.points} >= {"_fork", "record", "commit", "settle"}


FORKED = """page 7 for ['Hi.', 'Who?']

user       Hi.
assistant  Hello.
user       Who?
assistant  i1.c0 read(page=7)
tool       i1.c0 read: page 7
assistant  page 7 for ['Hi.', 'Who?']
user       Thanks.
assistant  i1.c0 read(page=7)
tool       i1.c0 read: page 7
assistant  page 7 for ['Hi.', 'Who?', 'Thanks.']

user       Hi.
assistant  Hello.
user       And?
assistant  Hello.
"""


async def test_a_child_that_a_process_started_outlives_it_unless_it_is_attached(
    backend: Backend,
) -> None:
    slow = Slow(answer)
    app, researcher = library(backend.url, None, slow)

    @app.process
    async def parent(ctx: ProcessContext[None], attached: bool) -> str:
        name = "attached" if attached else "free"
        child = await ctx.start(researcher.options(id=name, attached=attached), "Who?")
        await ctx.wait_signal("go")
        return child.id

    async with app:
        for attached in (False, True):
            handle = await app.start(parent, attached=attached)
            await handle.signal("go")
            child = await handle.result(timeout="10s")
            if attached:
                with pytest.raises(ProcessCancelled):
                    await app.process_handle(child).result(timeout="10s")
        slow.go.set()
        result = await app.process_handle("free").result(timeout="10s")
        assert result["text"] == "page 7 for Who? after 0"


async def test_a_cancelled_session_turn_keeps_its_messages(backend: Backend) -> None:
    slow = Slow()
    app, researcher = library(backend.url, None, slow)
    async with app:
        handle = await app.start(researcher.options(id="r-7"), "Who?")
        await slow.asked.wait()
        await handle.cancel("enough")
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")

        async def told() -> bool:
            return (await transcript(app.session("r-7"))).startswith("\nuser       Who?\n")

        await eventually(told)


async def test_what_an_agent_cannot_be_started_with_is_refused(memory: Backend) -> None:
    app, researcher = library(memory.url)
    app.trigger("tick")
    async with app:
        start: Any = app.start
        for args, kwargs in (((), {}), (("Who?", "What?"), {}), ((), {"task": "Who?"})):
            with pytest.raises(ArgumentsInvalid, match="its task"):
                await start(researcher, *args, **kwargs)
        with pytest.raises(LashError, match="input"):
            await start(researcher, 7)
        with pytest.raises(ArgumentsInvalid, match="fork="):
            researcher.options(at="t1")
        for inputs, key, reason in (
            ({}, "k", "its task as 'input'"),
            ({"input": EVENT, "page": 7}, "k", "its task as 'input'"),
            ({"input": EVENT}, "k" * 500, "trigger key"),
        ):
            with pytest.raises(LashError, match=reason):
                await app.triggers.register(
                    "tick", source_key="s", target=researcher, key=key, inputs=inputs
                )
        assert await app.triggers.list() == []
        assert await app.processes() == []


async def test_a_subagent_that_the_model_asks_still_ends_with_its_turn(memory: Backend) -> None:
    slow = Slow()

    def reply(request: ModelRequest) -> Any:
        if request.messages[0].text == "Find sources.":
            return slow(request)
        return call("spawn_agent", agent="researcher", task="go")

    async def replying(request: ModelRequest) -> Any:
        found = reply(request)
        return await found if hasattr(found, "__await__") else found

    app, _ = library(memory.url, None, replying)
    app.subagents("researcher")
    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await slow.asked.wait()
        await session.delete()

        async def ended() -> bool:
            return {one.status for one in await app.processes()} == {"cancelled"}

        await eventually(ended)


@pytest.mark.proves("G1", "P15")
@each_host
async def test_a_trigger_starts_an_agent_for_each_event(backend: Backend, host: str) -> None:
    app, researcher = library(backend.url, made(host))
    app.trigger("letter")
    async with app:
        chat = app.session("chat")
        await chat.enqueue("Hello.")
        for key, chosen, task in (
            ("event", researcher, EVENT),
            ("fixed", researcher.options(label="Weekly"), "Read the letters."),
        ):
            await app.triggers.register(
                "letter",
                source_key="post",
                target=chosen,
                key=key,
                inputs={"input": task},
                session_id="chat",
            )
        found = []
        for payload, key in (("From Ann.", "k1"), ({"from": "Bob"}, "k2"), ("From Ann.", "k1")):
            started = await app.triggers.emit(
                "letter", source_key="post", payload=payload, idempotency_key=key
            )
            for delivery in started:
                handle = app.process_handle(delivery.process_id)
                result = await handle.result(timeout="10s")
                assert result["session_id"] == delivery.process_id
                found.append(result["text"])
        event = "page 7 for From Ann. after 0"
        fixed = "page 7 for Read the letters. after 0"
        assert found == [event, fixed, 'page 7 for {"from":"Bob"} after 0', fixed, event, fixed]
        held = {one.id for one in await chat.processes("all")}
        assert len(held) == 4
        assert {one.id for one in await app.processes()} == held
