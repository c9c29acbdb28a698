"""Models by name and as objects: what is found, what is missing, and what is closed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from pylash import AssistantMessage, Lash, ModelInvalid, TurnBlocked
from pylash.testing import ScriptedModel, call, say
from pylash.turn.messages import MESSAGES
from tests.models.wire import Anthropic, Call, Chat, Say, WireServer, wire_server
from tests.sessions.scenes import comes_to


def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.endswith(("_API_KEY", "_BASE_URL")):
            monkeypatch.delenv(name)


# --- what is missing ---


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai:gpt-5", "OPENAI_API_KEY"),
        ("openai-chat:gpt-5", "OPENAI_API_KEY"),
        ("anthropic:claude-haiku-5-5", "ANTHROPIC_API_KEY"),
        ("google:gemini-3-pro", "GOOGLE_API_KEY"),
    ],
)
async def test_a_missing_key_fails_the_turn_and_names_its_variable(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_keys(monkeypatch)
    async with Lash("memory://", model=name) as app:
        session = app.session("chat")
        result = await session.turn("hi", timeout="30s")
        assert (result.status, result.code) == ("failed", "model_key_missing")
        assert result.error == (
            f"Model {name!r} needs a key: set the environment variable {variable}."
        )
        assert [message.text for message in await session.history()] == ["hi"]


# A name of OpenAI's with an address of one's own needs no key.
@pytest.mark.parametrize("server", [Anthropic()], indirect=True, ids=lambda one: one.name)
async def test_a_key_that_comes_later_is_found(
    server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {name: value for name, value in os.environ.items() if name.endswith("_API_KEY")}
    async with Lash("memory://", model=server.dialect.model) as app:
        session = app.session("chat")
        for name in kept:
            monkeypatch.delenv(name)
        assert (await session.turn("hi")).code == "model_key_missing"
        for name, value in kept.items():
            monkeypatch.setenv(name, value)
        server.replies = [Say(["Hello."])]
        assert (await session.turn("hi")).text == "Hello."


@pytest.mark.parametrize("name", ["nobody:gpt-5", "fast"])
async def test_a_name_that_nobody_knows_fails_the_turn(name: str) -> None:
    async with Lash("memory://", model=name) as app:
        result = await app.session("chat").turn("hi")
    assert result.code == "model_unknown"
    assert repr(name) in (result.error or "")


async def test_a_vendor_whose_package_is_missing_is_named() -> None:
    async with Lash("memory://", model="groq:llama") as app:
        result = await app.session("chat").turn("hi")
    assert result.code == "model_unusable"
    assert "pydantic-ai-slim[groq]" in (result.error or "")


@pytest.mark.parametrize(
    ("gone", "name"), [("pydantic_ai", "openai:gpt-5"), ("anthropic", "anthropic:claude-haiku-5-5")]
)
def test_without_the_extra_a_turn_names_what_to_install(gone: str, name: str) -> None:
    code = f"""
import asyncio, sys
sys.modules[{gone!r}] = None
from pylash import Lash
async def main():
    async with Lash("memory://", model={name!r}) as app:
        result = await app.session("a").turn("hi")
        print(result.code, result.error)
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout == (
        f"extra_missing Model {name!r} needs the extra 'models': install it with "
        "pip install 'pylash[models]', or from a clone of pylash with "
        "pip install '.[models]'.\n"
    )


def test_naming_a_model_loads_nothing() -> None:
    code = 'import sys; from pylash import Lash; Lash(model="openai:gpt-5"); print(*sys.modules)'
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert not {"pydantic_ai", "openai", "anthropic"} & set(done.stdout.split())


@pytest.mark.parametrize("server", [Anthropic()], indirect=True, ids=lambda one: one.name)
async def test_a_turn_that_has_begun_waits_for_a_worker_with_the_key(
    server: WireServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{tmp_path}/a.db"
    ran: list[str] = []

    def agent() -> Lash:
        app = Lash(store, model=server.dialect.model)

        @app.tool(approval=True)
        async def refund(order_id: str) -> str:
            """Give money back."""
            ran.append(order_id)
            return "refunded"

        return app

    server.replies = [Say(calls=[Call("c1", "refund", ['{"order_id": "7"}'])]), Say(["Done."])]
    async with agent() as app, asyncio.TaskGroup() as group:
        group.create_task(_begin(app))
        await comes_to(app, "chat", "t1", "waiting")
    kept = {name: value for name, value in os.environ.items() if name.endswith("_API_KEY")}
    for name in kept:
        monkeypatch.delenv(name)
    async with agent() as app:
        (wait,) = await app.waits()
        await app.resolve(wait.key, True)
        await comes_to(app, "chat", "t1", "blocked")
        with pytest.raises(TurnBlocked, match="_API_KEY"):
            await app.session("chat").turn("Refund 7", turn_id="t1", timeout="10ms")
    for name, value in kept.items():
        monkeypatch.setenv(name, value)
    async with agent() as app:
        assert await app.session("chat").retry()
        assert (await app.session("chat").turn("Refund 7", turn_id="t1")).text == "Done."
    assert ran == ["7"]


async def _begin(app: Lash) -> None:
    async with app.session("chat").stream("Refund 7", turn_id="t1"):
        """Leaving never cancels."""


# --- what is found ---


async def test_a_name_from_the_environment_is_the_apps_model(
    server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYLASH_MODEL", server.dialect.model)
    server.replies = [Say(["Hello."])]
    async with Lash("memory://") as app:
        assert (await app.session("chat").turn("hi")).text == "Hello."


async def test_models_are_registered_by_name_as_objects_names_or_providers() -> None:
    async with wire_server(Chat()) as server:
        given = OpenAIProvider(base_url=f"{server.url}/v1", api_key="dummy")
        app = Lash("memory://", model=OpenAIChatModel("gpt-main", provider=given))
        app.model("fast", OpenAIChatModel("gpt-fast", provider=given))
        app.model("script", ScriptedModel([say("From a script.")]))
        app.model("none", "nobody:x")
        server.replies = [Say(["Main."]), Say(["Fast."]), Say(["Other."])]
        async with app:
            assert (await app.session("a").turn("hi")).text == "Main."
            assert (await app.session("b", model="fast").turn("hi")).text == "Fast."
            other = OpenAIChatModel("gpt-other", provider=given)
            assert (await app.session("c", model=other).turn("hi")).text == "Other."
            assert (await app.session("d", model="script").turn("hi")).text == "From a script."
            assert (await app.session("e", model="none").turn("hi")).code == "model_unknown"
        asked = [heard.body["model"] for heard in server.heard]
        assert asked == ["gpt-main", "gpt-fast", "gpt-other"]


@pytest.mark.parametrize("wrong", [object(), 7, OpenAIChatModel, TestModel])
def test_an_object_that_is_not_a_model_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ModelInvalid):
        Lash("memory://", model=wrong)


async def test_a_model_is_made_once_and_its_connections_close_with_the_app(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with wire_server(Chat()) as server:
        given = OpenAIProvider(base_url=f"{server.url}/v1", api_key="dummy")
        model = OpenAIChatModel("gpt-4o", provider=given)
        server.replies = [Say(["One."]), Say(["Two."]), Say(["Three."])]
        app = Lash("memory://", model=model)
        for _ in range(2):  # the same app, opened again
            async with app:
                await app.session("a").turn("hi")
                assert not model.client.is_closed()
            assert model.client.is_closed()


async def test_a_model_that_cannot_stream_is_asked_as_a_whole() -> None:
    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse([TextPart(f"{len(messages)} {info.instructions}")])

    async with Lash("memory://", model=FunctionModel(reply), instructions="Count.") as app:
        async with app.session("a").stream("hi") as stream:
            said = [event.text async for event in stream if event.type == "text_delta"]
        assert stream.result.text == "1 Count."
        assert said == ["1 Count."]


async def test_what_a_function_model_raises_fails_the_turn_at_once() -> None:
    async def reply(_: list[Any], __: AgentInfo) -> ModelResponse:
        asked.append(1)
        raise KeyError("price list")

    asked: list[int] = []
    async with Lash("memory://", model=FunctionModel(reply)) as app:
        result = await app.session("a").turn("hi")
    assert (result.status, len(asked)) == ("failed", 1)
    assert result.error == "function:function:reply: failed with KeyError: 'price list'"


async def test_a_model_that_streams_in_this_process_may_call_tools() -> None:
    async def reply(messages: list[ModelMessage], info: AgentInfo) -> Any:
        if len(messages) == 1:
            yield {0: DeltaToolCall("double", '{"number": 4}', tool_call_id="c1")}
        else:
            yield "It is "
            yield "8."

    app = Lash("memory://", model=FunctionModel(stream_function=reply))

    @app.tool
    async def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    async with app:
        assert (await app.session("a").turn("4?")).text == "It is 8."


async def test_when_the_first_of_several_models_fails_the_next_answers(
    servers: dict[str, WireServer],
) -> None:
    chat, anthropic = servers["chat"], servers["anthropic"]
    model = FallbackModel(
        OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=chat.url, api_key="dummy")),
        AnthropicModel(
            "claude-haiku-5-5", provider=AnthropicProvider(base_url=anthropic.url, api_key="dummy")
        ),
    )
    chat.replies = [chat.dialect.error(500, "Broken")]
    anthropic.replies = [Say(["Hello."])]
    async with Lash("memory://", model=model) as app:
        assert (await app.session("a").turn("hi")).text == "Hello."


# --- what was stored before ---


def test_messages_of_before_are_read_and_say_the_same() -> None:
    old = b'{"role":"assistant","text":"Hi","usage":{"requests":1,"input_tokens":3,"cost":0.5}}'
    message = MESSAGES.decode(old)
    assert isinstance(message, AssistantMessage)
    assert message.provider_state is None
    assert msgspec.json.encode(message) == old


@pytest.mark.parametrize(
    "state",
    [
        7,
        {"origin": "?"},
        {"parts": [["thinking", 0, 900]]},
        {"parts": [["call", 5]]},
        {"parts": "none"},
    ],
)
async def test_a_state_that_does_not_fit_is_left_out(server: WireServer, state: Any) -> None:
    """It may be of another version, or its message may have been changed since."""

    class Recorder(ScriptedModel):
        async def respond(self, request: Any, listen: Any) -> Any:
            reply = await super().respond(request, listen)
            return msgspec.structs.replace(reply, reasoning="Hm.", provider_state=kept)

    server.replies = [Say(["Look."], thinking="Hm.", signature="c2ln"), Say(["Well."])]
    async with Lash("memory://", model=server.dialect.model) as app:
        await app.session("first").turn("hi")
        (_, first) = await app.session("first").history()
        assert isinstance(first, AssistantMessage)
        known = first.provider_state or {"origin": "here"}
        kept = {**known, **state} if isinstance(state, dict) else state
        app.model("recorder", Recorder([say("Look.")]))
        await app.session("a", model="recorder").turn("hi")
        result = await app.session("a", model=server.dialect.model).turn("and?")
    assert result.text == "Well."
    assert server.transcript() == [("user", "hi"), ("assistant", "Look."), ("user", "and?")]


async def test_calls_of_models_that_give_no_ids_go_to_any_provider(server: WireServer) -> None:
    class Nameless(ScriptedModel):
        async def respond(self, request: Any, listen: Any) -> Any:
            reply = await super().respond(request, listen)
            calls = [msgspec.structs.replace(one, provider_id=None) for one in reply.calls]
            return msgspec.structs.replace(reply, calls=tuple(calls))

    app = Lash("memory://", model=server.dialect.model)

    @app.tool
    async def ping() -> str:
        """Say pong."""
        return "pong"

    app.model("nameless", Nameless([call("ping"), say("One."), call("ping"), say("Two.")]))
    async with app:
        for _ in range(2):
            await app.session("a", model="nameless").turn("ping")
        server.replies = [Say(["Well."])]
        await app.session("a", model=server.dialect.model).turn("and?")
    parts = server.transcript()
    asked = [part[1] for part in parts if part[0] == "call"]
    assert asked == [part[1] for part in parts if part[0] == "result"]
    assert len(set(asked)) == 2
    assert json.dumps(parts).count("pong") == 2
