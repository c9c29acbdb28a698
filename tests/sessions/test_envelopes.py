"""What a turn passes to its host: runtime scopes, executors, and outcomes with triggers and streamed text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pylash import (
    EVENT,
    InlineHost,
    Lash,
    PluginError,
    ProcessContext,
    Retry,
    SessionPlugin,
    StepFailed,
    ToolContext,
)
from pylash.durable.effects import (
    Envelope,
    LlmCallOutcome,
    Outcome,
    RuntimeScope,
    ToolBatchOutcome,
)
from pylash.durable.ports import EffectController, LocalExecutor
from pylash.durable.run_memory import RunMemory
from pylash.testing import ScriptedModel, call, calls, say
from pylash.tools.plugins import TurnView
from pylash.values.errors import StoreError
from tests.backends import Backend, eventually


class Watched(EffectController):
    """Passes every effect on to another controller, and keeps it with its executor and outcome."""

    def __init__(self, controller: EffectController, seen: list[Any]) -> None:
        self.supports_concurrent_effects = controller.supports_concurrent_effects
        self._controller = controller
        self._seen = seen

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        outcome: Outcome | None = None  # if it fails
        try:
            outcome = await self._controller.execute(envelope, local)
            return outcome
        finally:
            self._seen.append((envelope, local, outcome))


class Seen(list[tuple[Envelope, Any, Outcome | None]]):
    """The effects that the runs of an app asked its host for."""

    def watch(self, app: Lash) -> None:
        host = app.effect_host
        adopt = host.adopt

        def watched(*given: Any) -> tuple[EffectController, RunMemory]:
            controller, memory = adopt(*given)
            return Watched(controller, self), memory

        host.adopt = watched  # type: ignore[assignment,method-assign]

    def scopes(self, *, of_children: bool = False) -> dict[str, RuntimeScope]:
        """Return the runtime scopes by key: those of the session called chat, or of the subagents."""
        invocations = [envelope.invocation for envelope, _, _ in self]
        return {
            str(one.replay_key): one.scope
            for one in invocations
            if (one.scope.session_id != "chat") == of_children
        }

    def executors(self) -> dict[str, str]:
        return {str(one.invocation.replay_key): local.name for one, local, _ in self}


@pytest.fixture(params=["journal", "inline"])
def host(request: pytest.FixtureRequest) -> Any:
    return None if request.param == "journal" else InlineHost()


@pytest.mark.proves("E4", "E5")
async def test_every_effect_of_a_turn_says_where_it_was_asked_for(
    backend: Backend, host: Any
) -> None:
    model = ScriptedModel([say("First."), call("look"), call("spawn_agent", **TASK), say("Done.")])
    app, seen = Lash(backend.url, model=model, host=host), Seen()
    app.agent("reader", instructions="Read.", model=app_model(app))
    app.subagents("reader")

    @app.tool(retry=Retry(2, delay="1ms"))
    async def look(ctx: ToolContext[None]) -> str:
        if ctx.attempt == 1:
            raise OSError("away")
        return "seen"

    async with app:
        seen.watch(app)
        session = app.session("chat")
        await session.turn("hello", turn_id="t1", timeout="10s")
        assert {scope.turn_index for scope in seen.scopes().values()} == {1}
        seen.clear()
        await session.turn("go", turn_id="t2", timeout="20s")
    found, names = seen.scopes(), seen.executors()

    def at(iteration: int) -> RuntimeScope:
        return RuntimeScope("chat", "t2", 2, iteration)

    assert found["env"] == found["i0.checkpoint"] == at(0)
    assert found["i1.llm"] == found["i1.c0.attempt.1"] == found["i1.c0.delay.1"] == at(1)
    assert found["i1.tools"] == at(1)
    commands = [key for key in found if key.startswith("i2.c0") and "start" in key]
    assert [found[key] for key in commands] == [at(2)]
    child = seen.scopes(of_children=True)["i1.llm"]
    assert (child.session_id, child.turn_index, child.iteration) == (child.turn_id, 1, 1)
    assert names["env"] == names["i1.llm"] == names["i0.checkpoint"] == "turn"
    assert (names["i1.c0.attempt.1"], names["i1.c0.delay.1"]) == ("tool", "sleep")


TASK = {"agent": "reader", "task": "read it"}


def app_model(app: Lash) -> str:
    """Give an app a model of its own for subagents."""
    app.model("reading", ScriptedModel([say("It is read.")]))
    return "reading"


@pytest.mark.proves("E3")
async def test_a_model_outcome_says_whether_its_text_was_streamed(
    backend: Backend, host: Any
) -> None:
    app, seen = (
        Lash(backend.url, model=ScriptedModel([call("look"), say("Done.")]), host=host),
        Seen(),
    )

    @app.tool
    async def look() -> str:
        return "seen"

    async with app:
        seen.watch(app)
        await app.session("chat").turn("go", timeout="10s")
    streamed = [one.text_streamed for _, _, one in seen if isinstance(one, LlmCallOutcome)]
    assert streamed == [False, True]


@pytest.mark.proves("E3")
async def test_a_batch_carries_the_triggers_of_its_tools(backend: Backend, host: Any) -> None:
    model = ScriptedModel([calls(call("sell", n=1), call("sell", n=2)), say("Done.")])
    app, seen = Lash(backend.url, model=model, host=host), Seen()
    app.trigger("order.paid")
    started: list[int] = []

    @app.process
    async def on_paid(ctx: ProcessContext[None], event: Any) -> None:
        started.append(event)

    @app.tool
    async def sell(ctx: ToolContext[None], n: int) -> str:
        ctx.emit("order.paid", source_key="shop", payload=n)
        return "sold"

    async with app:
        seen.watch(app)
        await app.triggers.register(
            "order.paid", source_key="shop", target=on_paid, key="k", inputs={"event": EVENT}
        )
        await app.session("chat").turn("go", timeout="10s")
        await eventually(lambda: _both(started))
    (batch,) = (one for _, _, one in seen if isinstance(one, ToolBatchOutcome))
    assert [(one["trigger"], one["payload"]) for one in batch.triggers] == [
        ("order.paid", 1),
        ("order.paid", 2),
    ]


async def _both(started: Sequence[int]) -> bool:
    return len(started) == 2


class Rude(SessionPlugin):
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def checkpoint(self, turn: TurnView) -> Sequence[str]:
        raise self._error


class Rudes:
    name = "rude"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        return Rude(self._error)


@pytest.mark.proves("E5")
@pytest.mark.parametrize("error", [PluginError("no words"), ValueError("no words")])
async def test_a_plugin_that_fails_in_an_effect_fails_with_its_code(
    backend: Backend, host: Any, error: Exception
) -> None:
    app = Lash(backend.url, model=ScriptedModel([say("Hm.")]), plugins=[Rudes(error)], host=host)
    async with app:
        result = await app.session("chat").turn("go", timeout="10s")
        assert (result.status, result.code) == ("failed", "plugin")
        assert "no words" in (result.error or "")


@pytest.mark.proves("E5")
async def test_a_store_that_fails_in_an_effect_fails_with_its_code(
    backend: Backend, host: Any
) -> None:
    app = Lash(backend.url, host=host)

    async def read_elsewhere() -> None:
        raise StoreError("another database is away")

    @app.process
    async def read(ctx: ProcessContext[None]) -> str:
        try:
            await ctx.step(read_elsewhere)
        except StepFailed as error:
            return error.code
        return ""

    async with app:
        assert await (await app.start(read)).result(timeout="10s") == "runtime_store"
