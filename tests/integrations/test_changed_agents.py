"""Durable agents whose code was changed under a recorded run: no tool is called a second time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from pylash import Lash, ProcessBlocked, ProcessContext
from pylash.engine.runs import replays
from pylash.integrations.pydantic_ai import durable
from pylash.testing import kill
from tests.backends import Backend, eventually
from tests.integrations.agents import returns

BATCHES = [["book", "pay"], ["ship"]]


class Deployment:
    """An app with an agent that calls two tools at once and then a third one."""

    def __init__(
        self,
        backend: Backend,
        lines: list[str],
        *,
        hang: str = "",
        names: dict[str, str] | None = None,
        agent: str = "clerk",
        run_id: str | None = None,
        **options: Any,
    ) -> None:
        self.lines, self.hang, self.names = lines, hang, names or {}
        self.is_hanging = asyncio.Event()
        self.app = Lash(backend.url)
        tools = [self._tool(name) for batch in BATCHES for name in batch]
        made = durable(Agent(FunctionModel(self._reply), name=agent, tools=tools))

        @self.app.process(name="order", **options)
        async def order(ctx: ProcessContext[None]) -> str:
            return (await made.run("Go", run_id=run_id)).output

    async def _reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        replies = sum(isinstance(message, ModelResponse) for message in messages)
        await self._do(f"model {replies}")
        if replies < len(BATCHES):
            calls = [self.names.get(name, name) for name in BATCHES[replies]]
            parts = [ToolCallPart(name, {}, tool_call_id=f"c{replies}.{name}") for name in calls]
            return ModelResponse(parts=parts)
        return ModelResponse(parts=[TextPart(" ".join(map(str, returns(messages))))])

    async def _do(self, name: str) -> None:
        if name == self.hang:
            self.is_hanging.set()
            await asyncio.Event().wait()
        self.lines.append(name)

    def _tool(self, name: str) -> Tool[None]:
        async def perform() -> str:
            await self._do(name)
            return f"{name} done"

        return Tool(perform, name=self.names.get(name, name))


async def recorded(deployment: Deployment, keys: set[str]) -> None:
    """Run the process until a tool or a request hangs and others are recorded, and kill its worker there."""
    app = deployment.app
    await app.open()
    await app.start(app.services.definitions["order"].options(id="p"))
    await asyncio.wait_for(deployment.is_hanging.wait(), 10)

    async def stands() -> bool:
        return keys <= {one.key for one in await app.process_handle("p").timeline()}

    await eventually(stands)
    await kill(app)


async def outcome(deployment: Deployment) -> Any:
    """Return the result of the process in a new deployment, or why it is blocked."""
    async with deployment.app as app:
        handle = app.process_handle("p")
        await app.retry("p") if await handle.status() == "blocked" else None

        async def stands() -> bool:
            return await handle.status() in ("completed", "failed", "blocked")

        await eventually(stands)
        try:
            return await handle.result(timeout=0)
        except ProcessBlocked as error:
            return error


DONE = "book done pay done ship done"
Deploy = Callable[..., Deployment]


@pytest.fixture
def deploy(durable: Backend) -> Deploy:
    lines: list[str] = []
    return lambda **options: Deployment(durable, lines, **options)


@pytest.mark.parametrize("hang", ["book", "pay"])
async def test_a_call_in_flight_executes_beside_a_recorded_one_of_its_batch(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, hang: str
) -> None:
    """At once: parallel calls have no order, so that none waits for the replay of another."""
    other = "pay" if hang == "book" else "book"
    await recorded(deploy(hang=hang), {f"clerk/{other} c0.{other}"})
    monkeypatch.setattr(replays, "HELD_SECONDS", -1)
    later = deploy()
    assert await outcome(later) == DONE
    assert sorted(later.lines) == sorted(["model 0", "book", "pay", "model 1", "ship", "model 2"])


@pytest.mark.parametrize("renamed", ["book", "pay"])
async def test_a_renamed_tool_blocks_before_the_next_request(deploy: Deploy, renamed: str) -> None:
    await recorded(deploy(hang="model 1"), {"clerk/book c0.book", "clerk/pay c0.pay"})
    names = {renamed: "renamed_tool"}
    blocked = await outcome(deploy(names=names))
    assert isinstance(blocked, ProcessBlocked), blocked
    assert "effect_replay_diverged" in blocked.message
    assert f"clerk/{renamed} c0.{renamed}" in blocked.message
    mended = deploy(names=names, renamed=names)
    assert await outcome(mended) == DONE
    assert sorted(mended.lines) == sorted(["model 0", "book", "pay", "model 1", "ship", "model 2"])


async def test_a_renamed_tool_whose_next_request_is_recorded_is_passed_over(deploy: Deploy) -> None:
    await recorded(deploy(hang="ship"), {"clerk/model#2"})
    later = deploy(names={"pay": "charge"})
    assert "ship done" in await outcome(later)
    assert later.lines.count("pay") == 1


async def test_a_fresh_run_records_a_renamed_tool_under_its_old_name(deploy: Deploy) -> None:
    names = {"pay": "charge"}
    later = deploy(names=names, renamed=names)
    async with later.app as app:
        handle = await app.start(app.services.definitions["order"].options(id="p"))
        assert await handle.result(timeout="10s") == DONE
        assert "clerk/pay c0.charge" in {one.key for one in await handle.timeline()}


@pytest.mark.parametrize("run_id", [None, "mine"])
async def test_a_renamed_agent_blocks_and_keeps_its_records(
    deploy: Deploy, run_id: str | None
) -> None:
    await recorded(deploy(hang="model 1", run_id=run_id), set())
    blocked = await outcome(deploy(agent="waiter", run_id=run_id))
    assert isinstance(blocked, ProcessBlocked), blocked
    assert "effect_replay_diverged" in blocked.message
    mended = deploy(agent="waiter", run_id=run_id, renamed={"clerk": "waiter"})
    assert await outcome(mended) == DONE
    assert mended.lines.count("model 0") == mended.lines.count("pay") == 1
