"""Models that an agent's run is given as objects, by ``override`` or by ``run``, as tests of users do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import ResolveModelId
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from pylash import Lash, ProcessBlocked, ProcessContext
from pylash.integrations.pydantic_ai import DurableAgent, durable, sessions
from pylash.testing import LashHarness
from tests.backends import eventually
from tests.integrations.agents import ran


def never_asked() -> Agent[None, str]:
    """Return an agent whose own model must not be asked."""

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise AssertionError("the agent's own model was asked")

    return Agent(FunctionModel(reply), name="a")


class Counted(TestModel):
    """A model that counts how often it is asked, and how often it is closed."""

    async def request(self, *given: Any) -> ModelResponse:
        ran["asked"] += 1
        return await super().request(*given)

    async def __aexit__(self, *error: Any) -> bool | None:  # noqa: PYI036 - passed on
        ran["closed"] += 1
        return await super().__aexit__(*error)


async def recorded_model(app: Lash, process_id: str) -> Any:
    """Return the name of the model in the record of the first request."""
    record = await app.store.processes.get(process_id)
    assert record is not None
    entry = await app.store.journal.entry(record.run, "a/model")
    assert entry is not None
    assert entry.command is not None
    return json.loads(entry.command)["command"]["request"]["model"]


async def waits_for_go(app: Lash, process_id: str) -> bool:
    return any(effect.is_wait for effect in await app.process_handle(process_id).timeline())


async def test_a_model_that_overrides_the_agents_inside_a_process_is_asked_and_recorded_by_name(
    lash: LashHarness,
) -> None:
    agent = durable(never_asked())

    @lash.app.process
    async def ask(ctx: ProcessContext[None]) -> str:
        with agent.override(model=Counted(custom_output_text="instead")):
            result = await agent.run("go")
        await ctx.wait_signal("go")
        return result.output

    await lash.app.start(ask.options(id="p"))
    await eventually(lambda: waits_for_go(lash.app, "p"))
    app = await lash.restart()
    await app.process_handle("p").signal("go")
    assert await app.process_handle("p").result(timeout="10s") == "instead"
    assert await recorded_model(app, "p") == "test:test"
    assert ran == {"asked": 1}  # and it is left open: it belongs to the caller


async def test_a_model_that_overrides_the_agents_around_the_start_is_asked(
    lash: LashHarness,
) -> None:
    agent = durable(never_asked())

    @lash.app.process
    async def ask(ctx: ProcessContext[None]) -> str:
        return (await agent.run("go")).output

    with agent.override(model=TestModel(custom_output_text="instead")):
        handle = await lash.app.start(ask.options(id="p"))
        assert await handle.result(timeout="10s") == "instead"
    assert await recorded_model(lash.app, "p") == "test:test"


async def test_each_run_asks_the_model_object_that_it_was_given(lash: LashHarness) -> None:
    agent = durable(never_asked())

    @lash.app.process
    async def ask(ctx: ProcessContext[None]) -> list[str]:
        runs = (agent.run("go", model=TestModel(custom_output_text=text)) for text in "abc")
        return [result.output for result in await ctx.gather(*runs)]

    assert await (await lash.app.start(ask)).result(timeout="10s") == ["a", "b", "c"]


async def test_an_agent_without_a_model_takes_the_one_a_run_is_given(lash: LashHarness) -> None:
    agent: DurableAgent[None, str] = durable(Agent(name="a"))

    @lash.app.process
    async def ask(ctx: ProcessContext[None]) -> str:
        with pytest.raises(UserError, match="`model` must either be set"):
            await agent.run("go")
        return (await agent.run("go", model=TestModel(custom_output_text="given"))).output

    assert await (await lash.app.start(ask)).result(timeout="10s") == "given"


async def test_a_capability_that_makes_models_of_names_is_not_asked_for_a_given_object(
    lash: LashHarness,
) -> None:
    other = ResolveModelId[None](lambda *_: TestModel(custom_output_text="made of a name"))
    agent = durable(Agent(TestModel(), name="a", capabilities=[other]))

    @lash.app.process
    async def ask(ctx: ProcessContext[None]) -> str:
        return (await agent.run("go", model=TestModel(custom_output_text="given"))).output

    assert await (await lash.app.start(ask)).result(timeout="10s") == "given"


async def test_a_model_that_was_registered_keeps_its_name_in_the_record(lash: LashHarness) -> None:
    fast = TestModel(custom_output_text="fast")
    agent = durable(never_asked(), models={"fast": fast})

    @lash.app.process
    async def ask(ctx: ProcessContext[None]) -> str:
        return (await agent.run("go", model=fast)).output

    assert await (await lash.app.start(ask.options(id="p"))).result(timeout="10s") == "fast"
    assert await recorded_model(lash.app, "p") == "fast"


async def test_a_process_that_asked_another_model_the_first_time_is_blocked(
    lash: LashHarness,
) -> None:
    agent = durable(never_asked())
    given: TestModel | None = TestModel()

    @lash.app.process
    async def ask(ctx: ProcessContext[None]) -> str:
        result = await agent.run("go", model=given)
        await ctx.wait_signal("go")
        return result.output

    await lash.app.start(ask.options(id="p"))
    await eventually(lambda: waits_for_go(lash.app, "p"))
    given = None
    app = await lash.restart()
    await app.process_handle("p").signal("go")
    with pytest.raises(ProcessBlocked, match="test:test"):
        await app.process_handle("p").result(timeout="1s")


async def test_a_conversation_asks_the_model_that_overrides_the_agents(lash: LashHarness) -> None:
    agent = durable(never_asked())
    chats = sessions(lash.app, agent)
    with agent.override(model=TestModel(custom_output_text="instead")):
        await lash.restart()
        turn = await chats("c").turn("hi", timeout="10s")
    assert turn.output == "instead"
