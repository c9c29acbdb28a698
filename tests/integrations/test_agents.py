"""pydantic-ai agents in processes: every model request and tool call an effect, recorded once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    AgentStreamEvent,
    FunctionToolset,
    RunContext,
    UsageLimitExceeded,
    UsageLimits,
)
from pydantic_ai.capabilities import AbstractCapability, LocalWorkspace, PrefixTools, Toolset
from pydantic_ai.exceptions import ModelHTTPError, ModelRateLimitError, UserError
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import (
    FunctionToolResultEvent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    PartDeltaEvent,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from pylash import (
    AgentCallFailed,
    AgentNotDurable,
    ArgumentsInvalid,
    Lash,
    LashError,
    NameInvalid,
    ProcessBlocked,
    ProcessCancelled,
    ProcessContext,
    Retry,
)
from pylash.integrations.pydantic_ai import durable as made_durable
from pylash.integrations.pydantic_ai.failures import to_recorded
from pylash.testing import LashHarness
from tests.backends import eventually
from tests.integrations.agents import Note, Report, ran, researcher, returns


async def keys(app: Lash, process_id: str) -> list[str]:
    """Return the keys of what a process did; its clock stands still, so there is no order of times."""
    return sorted(effect.key for effect in await app.process_handle(process_id).timeline())


async def waits_for_go(app: Lash, process_id: str) -> bool:
    return "root:process:wait_signal:go" in await keys(app, process_id)


async def has_effects(app: Lash, process_id: str, count: int) -> bool:
    return len(await keys(app, process_id)) >= count


async def counted(name: str) -> bool:
    return ran[name] > 0


def calls(*given: tuple[str, dict[str, Any]]) -> ModelResponse:
    """Return a reply that calls tools."""
    parts = [ToolCallPart(name, args, tool_call_id=f"c{n}") for n, (name, args) in enumerate(given)]
    return ModelResponse(parts=parts)


def once_then(first: ModelResponse) -> FunctionModel:
    """Return a model that calls tools once, and then says what they gave."""

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        ran["model"] += 1
        found = returns(messages)
        return ModelResponse(parts=[TextPart(f"{found}")]) if found else first

    return FunctionModel(reply)


# --- effects ---


async def test_each_request_and_call_is_one_effect_and_none_is_repeated(lash: LashHarness) -> None:
    agent = made_durable(researcher(Note()))

    @lash.app.process
    async def research(ctx: ProcessContext[None], topic: str) -> Report:
        result = await agent.run(topic)
        await ctx.wait_signal("go")
        return result.output

    await lash.app.start(research.options(id="r"), topic="cats")
    await eventually(lambda: waits_for_go(lash.app, "r"))
    app = await lash.restart()
    handle = app.process_handle("r", research)
    await handle.signal("go")
    report = await handle.result(timeout="10s")
    assert report == Report(topic="cats", facts=["fact 1", "fact 2", "fact 4"])
    assert set(ran.values()) == {1}
    assert await keys(app, "r") == [
        "researcher/fact c0.0",
        "researcher/fact c0.1",
        "researcher/model",
        "researcher/model#2",
        "researcher/model#3",
        "researcher/moody c0.2",
        "researcher/moody c1.0",
        "root:process:wait_signal:go",
    ]
    kinds = {effect.kind for effect in await handle.timeline()}
    assert kinds == {"direct", "tool_attempt", "process"}


@pytest.mark.parametrize("first", ["c0", "c1"])
async def test_parallel_calls_keep_their_names_in_whatever_order_they_end(
    lash: LashHarness, first: str
) -> None:
    base: Agent[None, str] = Agent(once_then(calls(("get", {"n": 0}), ("get", {"n": 1}))), name="a")
    others: dict[str, asyncio.Event] = {"c0": asyncio.Event(), "c1": asyncio.Event()}

    @base.tool
    async def get(ctx: RunContext[None], n: int) -> str:
        ran[f"get {n}"] += 1
        assert ctx.tool_call_id is not None
        if ctx.tool_call_id != first and ran[f"get {n}"] == 1:
            await others[ctx.tool_call_id].wait()
        return f"got {n}"

    agent = made_durable(base)

    @lash.app.process
    async def both(ctx: ProcessContext[None]) -> str:
        return (await agent.run("both")).output

    await lash.app.start(both.options(id="b"))
    await eventually(lambda: has_effects(lash.app, "b", 2))
    app = await lash.restart()  # one is recorded, the other hangs
    assert await app.process_handle("b").result(timeout="10s") == "['got 0', 'got 1']"
    last = "c1" if first == "c0" else "c0"
    assert await keys(app, "b") == ["a/get c0", "a/get c1", "a/model", "a/model#2"]
    assert ran == {"model": 2, f"get {first[1]}": 1, f"get {last[1]}": 2}


async def test_runs_side_by_side_do_not_take_each_others_answers(lash: LashHarness) -> None:
    gate = asyncio.Event()

    async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompt = messages[-1].parts[-1].content  # type: ignore[union-attr]  # a prompt
        ran[str(prompt)] += 1
        if prompt == "one":
            await gate.wait()
        else:
            gate.set()
        return ModelResponse(parts=[TextPart(f"about {prompt}")])

    agent = made_durable(Agent(FunctionModel(reply)), name="agent")

    @lash.app.process
    async def two(ctx: ProcessContext[None]) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(agent.run(prompt)) for prompt in ("one", "two")]
        outputs = [task.result().output for task in tasks]
        apart = await ctx.gather(agent.run("three"), agent.run("four"))
        await ctx.wait_signal("go")
        return [*outputs, *(result.output for result in apart)]

    await lash.app.start(two.options(id="t"))
    await eventually(lambda: waits_for_go(lash.app, "t"))
    app = await lash.restart()
    await app.process_handle("t").signal("go")
    said = await app.process_handle("t").result(timeout="10s")
    assert said == ["about one", "about two", "about three", "about four"]
    assert ran == {"one": 1, "two": 1, "three": 1, "four": 1}
    assert (await keys(app, "t"))[:4] == [
        "agent#2/model",
        "agent/model",
        "gather.0/agent/model",
        "gather.1/agent/model",
    ]


async def test_another_question_under_a_recorded_name_blocks_the_process(lash: LashHarness) -> None:
    agent = made_durable(Agent(TestModel(custom_output_text="yes"), name="a"))
    prompt = "Is it so?"

    @lash.app.process
    async def ask(ctx: ProcessContext[None]) -> str:
        result = await agent.run(prompt)
        await ctx.wait_signal("go")
        return result.output

    await lash.app.start(ask.options(id="a"))
    await eventually(lambda: waits_for_go(lash.app, "a"))
    prompt = "Is it not?"
    app = await lash.restart()
    await app.process_handle("a").signal("go")
    with pytest.raises(ProcessBlocked, match="Is it so"):
        await app.process_handle("a").result(timeout="1s")


async def test_outside_a_process_an_agent_is_itself() -> None:
    agent = made_durable(researcher(Note()))
    result = await agent.run("dogs")
    assert result.output.topic == "dogs"
    assert result.usage.requests == 3


# --- what crosses ---


class Deps:
    """A live object that nothing could record."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen: list[str] = []


async def test_deps_stay_live_objects(lash: LashHarness) -> None:
    base = Agent(once_then(calls(("see", {"what": "it"}))), name="a", deps_type=Deps)

    @base.tool
    async def see(ctx: RunContext[Deps], what: str) -> str:
        with ctx.deps.lock:
            ctx.deps.seen.append(what)
        return what

    agent, deps = made_durable(base), Deps()

    @lash.app.process
    async def look(ctx: ProcessContext[None]) -> str:
        return (await agent.run("look", deps=deps)).output

    handle = await lash.app.start(look)
    assert await handle.result(timeout="10s") == "['it']"
    assert deps.seen == ["it"]


async def test_usage_and_its_limits_count_delegates_and_hold_after_a_restart(
    lash: LashHarness,
) -> None:
    delegate = Agent(TestModel(custom_output_text="from the delegate"))
    base: Agent[None, str] = Agent(once_then(calls(("ask", {}), ("ask", {}))), name="a")

    @base.tool
    async def ask(ctx: RunContext[None]) -> str:
        ran["ask"] += 1
        return (await delegate.run("you?", usage=ctx.usage)).output

    agent = made_durable(base)

    @lash.app.process
    async def delegating(ctx: ProcessContext[None], limit: int) -> dict[str, int]:
        first = await agent.run("go")
        await ctx.wait_signal("go")
        try:
            await agent.run(
                "again", usage=first.usage, usage_limits=UsageLimits(request_limit=limit)
            )
        except UsageLimitExceeded:
            return {"requests": first.usage.requests, "tools": first.usage.tool_calls}
        return {}

    await lash.app.start(delegating.options(id="within"), limit=8)
    await lash.app.start(delegating.options(id="beyond"), limit=4)
    await eventually(lambda: waits_for_go(lash.app, "within"))
    await eventually(lambda: waits_for_go(lash.app, "beyond"))
    app = await lash.restart()
    for name in ("within", "beyond"):
        await app.process_handle(name).signal("go")
    assert await app.process_handle("within").result(timeout="10s") == {}
    assert await app.process_handle("beyond").result(timeout="10s") == {"requests": 4, "tools": 2}
    assert ran["ask"] == 2 * 2 + 2


async def test_messages_are_the_same_after_a_restart(lash: LashHarness) -> None:
    agent = made_durable(researcher(Note()))
    saved: list[Any] = []

    async def save(messages: list[Any]) -> None:
        ran["save"] += 1
        saved.append(messages)

    @lash.app.process
    async def research(ctx: ProcessContext[None], topic: str) -> list[Any]:
        first = await agent.run(topic)
        second = await agent.run("More.", message_history=first.all_messages())
        messages: list[Any] = ModelMessagesTypeAdapter.dump_python(
            second.all_messages(), mode="json"
        )
        await ctx.step(save, messages)  # its argument is compared on replay
        await ctx.wait_signal("go")
        return messages

    await lash.app.start(research.options(id="r"), topic="cats")
    await eventually(lambda: counted("save"))
    app = await lash.restart()
    await app.process_handle("r").signal("go")
    assert await app.process_handle("r").result(timeout="10s") == saved[0]
    assert len(saved) == 1


# --- failures ---


class NoSuchOrder(ValueError):
    """A tool's own exception."""

    def __init__(self, order: int) -> None:
        super().__init__(f"there is no order {order}")
        self.order = order


class Unkept(Exception):
    """An exception that holds a live object."""

    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()


FAILURES: dict[str, Exception] = {
    "rejected": ModelHTTPError(400, "m", body={"reason": "too long"}, headers={"x-key": "secret"}),
    "order": NoSuchOrder(7),
    "unkept": Unkept(),
    "lash": LashError("The card was declined.", code="card_declined"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failure_is_raised_as_what_it_was_also_after_a_restart(
    lash: LashHarness, name: str
) -> None:
    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        ran["model"] += 1
        if name == "rejected":
            raise FAILURES[name]
        return calls(("fail", {}))

    base: Agent[None, str] = Agent(FunctionModel(reply), name="a")

    @base.tool_plain
    async def fail() -> str:
        raise FAILURES[name]

    agent = made_durable(base)
    caught: list[Exception] = []

    @lash.app.process
    async def failing(ctx: ProcessContext[None]) -> None:
        try:
            await agent.run("go")
        except Exception as error:  # noqa: BLE001 - it is looked at below
            caught.append(error)
        await ctx.wait_signal("go")

    await lash.app.start(failing.options(id="f"))
    await eventually(lambda: waits_for_go(lash.app, "f"))
    app = await lash.restart()
    await app.process_handle("f").signal("go")
    await app.process_handle("f").result(timeout="10s")
    assert ran["model"] == 1
    live, replayed = caught
    assert type(live) is type(replayed)
    assert str(live) == str(replayed)
    assert vars(live) == vars(replayed)
    match live:
        case ModelHTTPError():
            assert (live.status_code, live.headers, live.body) == (400, None, None)
            assert "too long" in str(live)
        case NoSuchOrder():
            assert (live.order, live.args) == (7, ("there is no order 7",))
        case AgentCallFailed():
            assert name == "unkept"
            assert live.data == {"type": f"{__name__}:Unkept"}
        case _:
            assert isinstance(live, LashError)
            assert live.code == "card_declined"


def test_a_failure_is_recorded_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "correct horse battery staple"
    monkeypatch.setenv("SHOP_API_KEY", secret)
    error = ValueError(f"{'.' * 1_980} with {secret}", {"key": [secret]})
    error.add_note("kept")
    kept = to_recorded(error)
    assert "correct" not in f"{kept.message} {kept.data}"
    assert kept.data["state"]["args"][1] == {"key": ["[hidden]"]}


async def test_a_model_that_is_busy_is_asked_again_and_each_attempt_is_recorded(
    lash: LashHarness,
) -> None:
    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        ran["model"] += 1
        if ran["model"] < 3:
            raise ModelHTTPError.for_category(
                ModelRateLimitError, status_code=429, model_name="m", retry_after=60
            )
        return ModelResponse(parts=[TextPart("at last")])

    agent = made_durable(Agent(FunctionModel(reply), name="a"), retry=Retry(3, delay="1s"))

    @lash.app.process
    async def patient(ctx: ProcessContext[None]) -> str:
        return (await agent.run("go")).output

    await lash.app.start(patient.options(id="p"))
    await eventually(lambda: has_effects(lash.app, "p", 2))
    app = await lash.restart()
    await lash.advance("59s")
    assert ran["model"] == 1
    await lash.advance("61s")
    assert await app.process_handle("p").result(timeout="10s") == "at last"
    assert await keys(app, "p") == [
        "a/model",
        "a/model/attempt.2",
        "a/model/attempt.3",
        "a/model/delay.1",
        "a/model/delay.2",
    ]


async def test_a_retry_that_names_its_errors_is_for_those_only(lash: LashHarness) -> None:
    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        ran["model"] += 1
        if ran["model"] == 1:
            raise NoSuchOrder(7)
        raise ModelHTTPError.for_category(ModelRateLimitError, status_code=429, model_name="m")

    retry = Retry(3, delay=0, on=(NoSuchOrder,))
    agent = made_durable(Agent(FunctionModel(reply), name="a"), retry=retry)

    @lash.app.process
    async def picky(ctx: ProcessContext[None]) -> str:
        with pytest.raises(ModelRateLimitError):
            await agent.run("go")
        return "refused"

    assert await (await lash.app.start(picky)).result(timeout="10s") == "refused"
    assert ran["model"] == 2


async def test_without_patience_the_last_failure_is_its_own_class(lash: LashHarness) -> None:
    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError.for_category(ModelRateLimitError, status_code=429, model_name="m")

    agent = made_durable(Agent(FunctionModel(reply), name="a"), retry=None)

    @lash.app.process
    async def hasty(ctx: ProcessContext[None]) -> str:
        try:
            return (await agent.run("go")).output
        except ModelRateLimitError as error:
            return f"rate limit {error.status_code}" if isinstance(error, ModelHTTPError) else "?"

    assert await (await lash.app.start(hasty)).result(timeout="10s") == "rate limit 429"


async def test_a_cancel_reaches_an_agent_that_waits_for_its_model(lash: LashHarness) -> None:
    async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        ran["model"] += 1
        await asyncio.Event().wait()
        raise AssertionError

    async def tidy() -> None:
        ran["tidy"] += 1

    agent = made_durable(Agent(FunctionModel(reply), name="a"))

    @lash.app.process
    async def hanging(ctx: ProcessContext[None]) -> str:
        try:
            return (await agent.run("go")).output
        finally:
            await ctx.step(tidy)

    handle = await lash.app.start(hanging.options(id="h"))
    await eventually(lambda: counted("model"))
    await handle.cancel("enough")
    with pytest.raises(ProcessCancelled):
        await handle.result(timeout="10s")
    assert ran == {"model": 1, "tidy": 1}
    assert [effect.status for effect in await handle.timeline()] == ["cancelled", "done"]


async def test_a_cancel_between_two_effects_comes_at_the_next(lash: LashHarness) -> None:
    base: Agent[None, str] = Agent(once_then(calls(("get", {}))), name="a")
    reached, cancelled = asyncio.Event(), asyncio.Event()

    @base.instructions
    async def dawdle(ctx: RunContext[None]) -> str:
        if ctx.run_step == 2:
            reached.set()
            await cancelled.wait()
        return "Be quick."

    @base.tool_plain
    async def get() -> str:
        return "got"

    agent = made_durable(base)

    @lash.app.process
    async def slow(ctx: ProcessContext[None]) -> str:
        return (await agent.run("go")).output

    handle = await lash.app.start(slow.options(id="s"))
    await reached.wait()
    await handle.cancel()
    await eventually(lambda: cancel_is_noted(lash.app, "s"))
    cancelled.set()
    with pytest.raises(ProcessCancelled):
        await handle.result(timeout="10s")
    assert ran["model"] == 1


async def cancel_is_noted(app: Lash, process_id: str) -> bool:
    record = await app.store.processes.get(process_id)
    assert record is not None
    entries = await app.store.journal.timeline(record.run)
    return any(entry.key == "!cancel" for entry in entries)


# --- streams ---


def streaming() -> Agent[None, str]:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        ran["model"] += 1
        found = returns(messages)
        if not found:
            yield {0: DeltaToolCall("get", "{}", tool_call_id="c0")}
            return
        for word in ("It ", "is ", found[0]):
            yield word

    agent = Agent(FunctionModel(stream_function=stream), name="a")

    @agent.tool_plain
    async def get() -> str:
        ran["get"] += 1
        return "so."

    return agent


async def test_a_streamed_run_gives_whole_replies_and_is_not_repeated(lash: LashHarness) -> None:
    agent = made_durable(streaming())

    @lash.app.process
    async def told(ctx: ProcessContext[None]) -> list[str]:
        async with agent.run_stream("go") as stream:
            texts = [text async for text in stream.stream_text()]
        await ctx.wait_signal("go")
        return texts

    await lash.app.start(told.options(id="t"))
    await eventually(lambda: waits_for_go(lash.app, "t"))
    app = await lash.restart()
    await app.process_handle("t").signal("go")
    texts = await app.process_handle("t").result(timeout="10s")
    assert texts[-1] == "It is so."
    assert ran == {"model": 2, "get": 1}


async def test_a_handler_gets_events_live_and_once(lash: LashHarness) -> None:
    heard: list[str] = []

    async def hear(ctx: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            if isinstance(event, PartDeltaEvent):
                heard.append("delta")
            elif isinstance(event, FunctionToolResultEvent):
                heard.append("result")

    agent = made_durable(streaming(), event_stream_handler=hear)

    @lash.app.process
    async def told(ctx: ProcessContext[None]) -> str:
        result = await agent.run("go")
        await ctx.wait_signal("go")
        return result.output

    await lash.app.start(told.options(id="t"))
    await eventually(lambda: waits_for_go(lash.app, "t"))
    before = list(heard)
    app = await lash.restart()
    await app.process_handle("t").signal("go")
    assert await app.process_handle("t").result(timeout="10s") == "It is so."
    assert "result" in before
    assert before.count("delta") >= 2
    assert heard == before


# --- what cannot be durable ---


class Odd(AbstractToolset[None]):
    """A toolset of a kind that no durable engine is asked about."""

    @property
    def id(self) -> str | None:
        return "odd"

    async def get_tools(self, ctx: RunContext[None]) -> dict[str, ToolsetTool[None]]:
        definition = ToolDefinition(name="odd", parameters_json_schema={"type": "object"})
        validator = SchemaValidator(core_schema.any_schema())
        return {
            "odd": ToolsetTool(
                toolset=self, tool_def=definition, max_retries=1, args_validator=validator
            )
        }

    async def call_tool(self, name: str, args: Any, ctx: RunContext[None], tool: Any) -> Any:
        ran[name] += 1
        return "odd"


def test_a_toolset_whose_calls_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(AgentNotDurable, match="of a kind whose calls cannot be recorded"):
        made_durable(Agent(TestModel(), name="a", toolsets=[Odd()]))


async def test_a_toolset_of_any_kind_is_recorded_when_it_is_wrapped(lash: LashHarness) -> None:
    odd = DynamicToolset[None](lambda _: Odd(), per_run_step=False, id="odd")
    base: Agent[None, str] = Agent(once_then(calls(("odd", {}))), name="a", toolsets=[odd])
    agent = made_durable(base)

    @lash.app.process
    async def oddly(ctx: ProcessContext[None]) -> str:
        result = await agent.run("go")
        await ctx.wait_signal("go")
        return result.output

    await lash.app.start(oddly.options(id="o"))
    await eventually(lambda: waits_for_go(lash.app, "o"))
    app = await lash.restart()
    await app.process_handle("o").signal("go")
    assert await app.process_handle("o").result(timeout="10s") == "['odd']"
    assert ran["odd"] == 1
    assert {"a/odd c0", "a/odd tools", "a/odd tools#2"} <= set(await keys(app, "o"))


# --- capabilities that bring tools ---


@dataclass(kw_only=True)
class Greeting(AbstractCapability[None]):
    """A capability that makes a new toolset each time it is asked, and gives it no id."""

    id: str | None = "greeting"

    def get_toolset(self) -> FunctionToolset[None]:
        return FunctionToolset([self.greet])

    async def greet(self, name: str) -> str:
        ran["greet"] += 1
        return f"Hello {name}"


async def greet(name: str) -> str:
    ran["greet"] += 1
    return f"Hello {name}"


@pytest.mark.parametrize(
    "capability",
    [
        Toolset(FunctionToolset[None]([greet], id="greetings")),
        PrefixTools(Toolset(FunctionToolset[None]([greet], id="greetings")), prefix="x"),
        Greeting(),
    ],
    ids=["a toolset", "a wrapper of one", "a new one each time"],
)
async def test_calls_of_tools_that_a_capability_brings_are_recorded(
    lash: LashHarness, capability: AbstractCapability[None]
) -> None:
    tool = "x_greet" if isinstance(capability, PrefixTools) else "greet"
    model = once_then(calls((tool, {"name": "Ann"})))
    agent = made_durable(Agent(model, name="a", capabilities=[capability]))

    @lash.app.process
    async def welcome(ctx: ProcessContext[None]) -> str:
        result = await agent.run("go")
        await ctx.wait_signal("go")
        return result.output

    await lash.app.start(welcome.options(id="w"))
    await eventually(lambda: waits_for_go(lash.app, "w"))
    app = await lash.restart()
    await app.process_handle("w").signal("go")
    assert await app.process_handle("w").result(timeout="10s") == "['Hello Ann']"
    assert ran == {"model": 2, "greet": 1}
    assert "a/greet c0" in await keys(app, "w")


def test_a_capability_is_refused_for_a_toolset_whose_calls_cannot_be_recorded() -> None:
    with pytest.raises(AgentNotDurable, match="toolset Odd 'odd' is of a kind whose calls"):
        made_durable(Agent(TestModel(), name="a", capabilities=[Toolset(Odd())]))


async def test_an_agent_with_a_workspace_can_be_made_durable(
    lash: LashHarness, tmp_path: Path
) -> None:
    place = LocalWorkspace[None](tmp_path)
    agent = made_durable(Agent(TestModel(), name="a", capabilities=[place]))

    @lash.app.process
    async def work(ctx: ProcessContext[None]) -> str:
        return (await agent.run("go")).output

    handle = await lash.app.start(work)
    assert await handle.result(timeout="10s") == "success (no tool calls)"


def test_an_agent_without_a_name_is_refused() -> None:
    with pytest.raises(
        AgentNotDurable, match=r"An agent without a name .*name='research'"
    ) as caught:
        made_durable(Agent(TestModel()))
    assert caught.value.code == "agent_not_durable"


def test_options_that_do_not_fit_an_agent_are_refused() -> None:
    agent = Agent(TestModel(), name="a")
    with pytest.raises(ArgumentsInvalid, match="retry=3 is not a Retry, such as Retry"):
        made_durable(agent, retry=3)  # type: ignore[arg-type]
    for name in (5, "", " "):
        with pytest.raises(NameInvalid, match="Invalid agent name"):
            made_durable(agent, name=name)  # type: ignore[arg-type]
    with pytest.raises(NameInvalid, match="Invalid agent name ' '"):
        made_durable(Agent(TestModel(), name=" "))
    with pytest.raises(AgentNotDurable, match=r"Agent 'a' cannot be .* it is already durable"):
        made_durable(made_durable(agent))


# --- servers ---


async def test_a_server_that_does_not_answer_is_asked_again_for_its_tools(
    lash: LashHarness,
) -> None:
    def appear(ctx: RunContext[None]) -> FunctionToolset[None]:
        ran["list"] += 1
        if ran["list"] < 3:
            raise ConnectionError("away")
        return FunctionToolset()

    late = DynamicToolset[None](appear, id="late")
    agent = made_durable(Agent(TestModel(), name="a", toolsets=[late]))

    @lash.app.process
    async def patient(ctx: ProcessContext[None]) -> str:
        return (await agent.run("go")).output

    handle = await lash.app.start(patient.options(id="p"))
    await eventually(lambda: has_effects(lash.app, "p", 2))
    await lash.advance("10s")
    assert await handle.result(timeout="10s") == "success (no tool calls)"
    assert ran["list"] == 3


@pytest.mark.parametrize(
    "toolset", [MCPToolset("http://localhost:1/mcp"), FunctionToolset([len])], ids=["mcp", "plain"]
)
def test_a_toolset_without_an_id_is_refused(toolset: AbstractToolset[None]) -> None:
    with pytest.raises(AgentNotDurable, match="need to have a unique `id`") as caught:
        made_durable(Agent(TestModel(), name="a", toolsets=[toolset]))
    assert caught.value.code == "agent_not_durable"


async def test_a_toolset_that_comes_with_a_run_is_refused_in_a_process(lash: LashHarness) -> None:
    agent = made_durable(Agent(TestModel(), name="a"))

    @lash.app.process
    async def late(ctx: ProcessContext[None]) -> str:
        with pytest.raises(UserError, match="cannot be added at runtime"):
            await agent.run("go", toolsets=[FunctionToolset([len], id="late")])
        return "refused"

    assert await (await lash.app.start(late)).result(timeout="10s") == "refused"


def test_a_missing_extra_is_one_sentence() -> None:
    code = (
        "import sys; sys.modules['pydantic_ai'] = None\n"
        "try:\n    import pylash.integrations.pydantic_ai\n"
        "except Exception as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == (
        "pylash.integrations.pydantic_ai needs the extra 'models': "
        "install it with pip install 'pylash[models]', or from a clone of pylash with "
        "pip install '.[models]'. [extra_missing]\n"
    )
