"""Captured environments: a worker builds what a process needs from them, and never from the session it was started for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pylash import (
    InlineHost,
    Lash,
    ModelRequest,
    NotAProcess,
    ProcessContext,
    ProcessFailed,
    SessionPlugin,
    Tool,
    ToolContext,
    ToolUnknown,
    tool,
)
from pylash.durable.commands import StartProcess
from pylash.durable.ports import EffectHost
from pylash.durable.processes import (
    EngineInput,
    ProcessInput,
    Registration,
    SessionTurnInput,
    ToolCallInput,
)
from pylash.sync import Lash as SyncLash
from pylash.testing import ScriptedModel, SerialHost, call, kill, say
from pylash.turn.asks import SessionOptions, TurnAsk
from pylash.turn.messages import Text
from pylash.values.canonical import decode, write
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.sessions.scenes import LIVE, begin, open_wait

HOSTS: dict[str, Callable[[], EffectHost] | None] = {
    "journal": None,
    "inline": InlineHost,
    "serial": lambda: SerialHost(InlineHost()),
}

each_host = pytest.mark.parametrize("host", HOSTS)


class Greeter(SessionPlugin):
    """Has a tool that greets as its options say."""

    def __init__(self, session_id: str, options: Any) -> None:
        self.session_id = session_id
        self.greeting = options["greeting"] if options else "Hello"

    def tools(self) -> Sequence[Tool[..., Any]]:
        @tool
        async def greet(ctx: ToolContext[None], name: str) -> str:
            """Greet somebody."""
            said = f"{self.greeting} {name}"
            return f"{said}, {await ctx.complete('How are they?')}" if name == "Bob" else said

        return [greet]


class Greeters:
    """Builds greeters, and notes for which sessions."""

    name = "greeter"

    def __init__(self) -> None:
        self.built: list[str] = []

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        self.built.append(session_id)
        if options and "greeting" not in options:
            raise ValueError("no greeting")
        return Greeter(session_id, options)


class Shouter(SessionPlugin):
    """Has another tool."""

    def tools(self) -> Sequence[Tool[..., Any]]:
        @tool
        async def shout(text: str) -> str:
            """Shout."""
            return text.upper()

        return [shout]


class Shouters:
    """Builds shouters."""

    name = "shouter"

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        return Shouter()


HI = {"greeter": {"greeting": "Hi"}}


def named(name: str) -> ScriptedModel:
    """Return a model that says its name."""
    model = ScriptedModel(lambda _: say(name))
    model.name = name  # type: ignore[attr-defined]  # apps capture it
    return model


def shop(url: str, host: str = "journal", **options: Any) -> tuple[Lash, dict[str, Any]]:
    """Return an app with plugins, and its processes by name."""
    made = HOSTS[host]
    chosen: dict[str, Any] = {"model": named("new"), "plugins": [Greeters(), Shouters()]}
    chosen |= {"worker": LIVE, **options}
    app = Lash(url, host=None if made is None else made(), **chosen)
    app.model("old", named("old"))

    @app.tool
    async def lookup(order: str) -> str:
        """Find an order."""
        return f"order {order}"

    @app.process
    async def welcome(ctx: ProcessContext[None], name: str) -> list[Any]:
        said = await ctx.call_tool("greet", name=name)
        return [said, await ctx.call_tool("shout", text="hey"), await ctx.complete("Who?")]

    @app.process
    async def parent(ctx: ProcessContext[None], name: str) -> list[Any]:
        return await (await ctx.start(welcome, name=name)).result()

    return app, {"welcome": welcome, "parent": parent}


def client(url: str, **options: Any) -> tuple[Lash, dict[str, Any]]:
    """Return an app that executes nothing, as it was before the workers were deployed."""
    return shop(url, worker=None, model=named("old"), **options)


async def env_of(app: Lash, process_id: str) -> str | None:
    record = await app.store.processes.get(process_id)
    assert record is not None
    return record.registration.env


# --- plugins of processes ---


@pytest.mark.proves("P9", "T8")
@each_host
async def test_the_tool_of_a_plugin_runs_as_a_process_on_a_worker_that_builds_it_from_captured_options(
    durable: Backend, host: str
) -> None:
    asking, _ = client(durable.url)
    async with asking:
        handle = await asking.session("chat", plugin_options=HI).start("greet", name="Ann")
        record = await asking.store.processes.get(handle.id)
    assert record is not None
    assert record.registration.input == ToolCallInput("greet", {"name": "Ann"}, "greeter")
    greeters = Greeters()
    working, _ = shop(durable.url, host, plugins=[greeters])
    async with working:
        assert await working.process_handle(handle.id).result(timeout="10s") == "Hi Ann"
    assert greeters.built == [f"process-env:{handle.id}"]


@pytest.mark.proves("P9", "T8")
@each_host
@pytest.mark.parametrize("name", ["welcome", "parent"])
async def test_a_process_and_its_children_keep_the_plugins_and_the_model_they_were_captured_with(
    durable: Backend, host: str, name: str
) -> None:
    asking, known = client(durable.url)
    async with asking:
        session = asking.session("chat", plugin_options=HI)
        handle = await session.start(known[name].options(id="p"), name="Ann")
        assert handle.id == "p"
    working, _ = shop(durable.url, host)
    async with working:
        result = await working.process_handle("p").result(timeout="10s")
        assert result == ["Hi Ann", "HEY", "old"]
        refs = {await env_of(working, one.id) for one in await working.processes()}
    assert len(refs) == 1


@pytest.mark.proves("P9")
async def test_a_process_never_reads_the_session_it_was_started_for(durable: Backend) -> None:
    asking, known = client(durable.url)
    async with asking:
        await asking.session("chat", plugin_options=HI).start(
            known["welcome"].options(id="p"), "Ann"
        )
        changed = asking.session(
            "chat", plugin_options={"greeter": {"greeting": "Bye"}}, model="new"
        )
        await changed.start(known["welcome"].options(id="q"), "Bob")
        await changed.delete()
    working, _ = shop(durable.url)
    async with working:
        assert await working.process_handle("p").result(timeout="10s") == ["Hi Ann", "HEY", "old"]
        result = await working.process_handle("q").result(timeout="10s")
        assert result == ["Bye Bob, new", "HEY", "new"]
        for gone in ("chat", "process-env:p", "process-env:q"):
            assert await working.store.sessions.get(gone) is None


@pytest.mark.proves("P9")
async def test_equal_settings_are_captured_once(backend: Backend) -> None:
    app, known = shop(backend.url)
    async with app:
        session = app.session("a", plugin_options=HI)
        started = [await session.start(known["welcome"], name=name) for name in ("Ann", "Bob")]
        started.append(await app.session("b", plugin_options=HI).start("greet", name="Ann"))
        started.append(await app.session("c").start("greet", name="Ann"))
        refs = [await env_of(app, handle.id) for handle in started]
        assert refs[0] == refs[1] == refs[2] != refs[3]
        assert await started[2].result(timeout="10s") == "Hi Ann"
        assert await started[3].result(timeout="10s") == "Hello Ann"


@pytest.mark.proves("T8")
async def test_a_workflow_of_a_model_uses_the_plugins_of_its_session_on_any_worker(
    durable: Backend,
) -> None:
    source = """process main(name: str) signals { go: null } {
      g = wait signal go
      finish [await tools.greet({ name: name })?, await tools.shout({ text: "hey" })?]
    }"""

    def reply(request: ModelRequest) -> Any:
        if request.messages[-1].role == "user":
            return call("start_workflow", source=source, process="main", args={"name": "Bob"})
        return say(request.messages[-1].text)

    model = ScriptedModel(reply)
    model.name = "writer"  # type: ignore[attr-defined]
    dying, _ = shop(durable.url, model=model)
    dying.workflows()
    await dying.open()
    session = dying.session("chat", plugin_options=HI)
    answer = await session.turn("go", timeout="10s")
    [process] = await dying.processes()
    assert process.id in answer.text
    await kill(dying)
    working, _ = shop(durable.url)
    working.model("writer", named("writer"))
    async with working:
        handle = working.process_handle(process.id)
        await handle.signal("go")
        assert await handle.result(timeout="10s") == ["Hi Bob, writer", "HEY"]


@pytest.mark.proves("T8")
async def test_a_model_is_told_the_operations_that_the_workflows_of_its_session_may_call() -> None:
    model = ScriptedModel(lambda _: say("Hello."))
    app, _ = shop("memory://", model=model)
    app.workflows()
    async with app:
        await app.session("all").turn("go", timeout="10s")
        await app.session("some", tools=["start_workflow"]).turn("go", timeout="10s")
    first, second = (
        next(one.description for one in request.tools if one.name == "start_workflow")
        for request in model.requests
    )
    for operation in ("tools.greet({ name: str })", "tools.shout({ text: str })"):
        assert operation in first
        assert operation in second
    assert "tools.lookup({ order: str })" in first
    assert "tools.lookup({" not in second.partition("Operations:")[2]


@pytest.mark.proves("P9")
@each_host
async def test_a_process_whose_plugin_cannot_be_built_fails_with_its_code(
    durable: Backend, host: str
) -> None:
    asking, known = client(durable.url, plugins=[])
    async with asking:
        session = asking.session("chat", plugin_options={"greeter": {"loud": True}})
        await session.start(known["welcome"].options(id="p"), name="Ann")
    working, _ = shop(durable.url, host)
    async with working:
        with pytest.raises(ProcessFailed, match="'greeter' could not be built") as caught:
            await working.process_handle("p").result(timeout="10s")
    assert caught.value.code == "process_recovery_failed"
    assert caught.value.failure.failure_class == "execution"


async def test_a_tool_of_a_plugin_waits_for_a_worker_that_has_the_plugin(durable: Backend) -> None:
    asking, _ = client(durable.url)
    async with asking:
        handle = await asking.session("chat").start("greet", name="Ann")
        async with Lash(durable.url):
            assert await handle.status() == "blocked"
            (view,) = await asking.processes(status="blocked")
            assert (view.target, view.reason) == ("plugin:greeter", "unknown_target")
        working, _ = shop(durable.url)
        async with working:
            assert await handle.result(timeout="10s") == "Hello Ann"


async def test_what_cannot_be_started_for_a_session_is_refused() -> None:
    app, _ = shop("memory://")
    async with app:
        session = app.session("chat")
        with pytest.raises(ToolUnknown, match="nothing"):
            await session.start("nothing")
        with pytest.raises(NotAProcess):
            await session.start(7)  # type: ignore[call-overload]
        with pytest.raises(Exception, match="name"):
            await session.start("greet", nam="Ann")
        assert await app.processes() == []
        handle = await session.start("lookup", order="7")
        assert await handle.result(timeout="10s") == "order 7"
        (view,) = await app.processes()
        assert view.target == "tool:lookup"


@EVERY_ENGINE
async def test_a_process_of_a_session_wakes_it(backend: Backend) -> None:
    app = backend.app(model=ScriptedModel(lambda request: say(request.messages[-1].text)))

    @app.process
    async def remind(ctx: ProcessContext[None], text: str) -> None:
        await ctx.wake(text)

    async with app:
        session = app.session("chat")
        await (await session.start(remind, text="Tea!")).result(timeout="10s")

        async def woken() -> bool:
            return [message.text for message in await session.history()] == ["Tea!"] * 2

        await eventually(woken)


def test_a_process_is_started_for_a_session_without_await(tmp_path: Any) -> None:
    with SyncLash(f"sqlite:///{tmp_path}/a.db", plugins=[Greeters()]) as app:
        handle = app.session("chat", plugin_options=HI).start("greet", name="Ann")
        assert handle.result(timeout="10s") == "Hi Ann"


# --- what needs an environment ---


def session_turn(**options: Any) -> SessionTurnInput:
    ask = TurnAsk(parts=(Text("go"),), options=SessionOptions(**options))
    return SessionTurnInput("child", decode(write(ask)), decode(write(ask.options)))


@pytest.mark.proves("P9")
@each_host
async def test_a_session_turn_needs_no_environment_and_takes_what_it_lacks_from_the_worker(
    backend: Backend, host: str
) -> None:
    made = HOSTS[host]
    default, other = ScriptedModel([say("default")]), ScriptedModel([say("other")])
    app = Lash(
        backend.url,
        model=default,
        instructions="Be the worker's.",
        host=None if made is None else made(),
    )
    app.model("other", other)
    async with app:
        for name, given, answer, prompt in (
            ("bare", session_turn(), "default", "Be the worker's."),
            ("full", session_turn(model="other", instructions="Be mine."), "other", "Be mine."),
        ):
            turn = SessionTurnInput(name, given.ask, given.options)
            await app.store.processes.start(StartProcess(Registration(id=name, input=turn)))
            result = await app.process_handle(name).result(timeout="10s")
            assert result["text"] == answer
            [request] = (default if answer == "default" else other).requests
            assert request.messages[0].text == prompt


@pytest.mark.proves("P9")
@each_host
async def test_a_process_without_the_environment_it_needs_fails_with_its_code(
    backend: Backend, host: str
) -> None:
    app, _ = shop(backend.url, host)
    async with app:
        module = await app.lashlang("process main() { finish 1 }")
        inputs: list[ProcessInput] = [
            ToolCallInput("lookup", {"order": "7"}),
            ToolCallInput("greet", {"name": "Ann"}, "greeter"),
            EngineInput("python", "welcome", {"name": "Ann"}),
            module["main"].input({}),
        ]
        for number, given in enumerate(inputs):
            for ref, reason in (
                (None, "it has no captured environment"),
                ("0" * 64, "its captured environment is not in the store"),
                (module.ref, "its captured environment is damaged"),
            ):
                name = f"{number}-{reason}"
                registration = Registration(id=name, input=given, env=ref)
                await app.store.processes.start(StartProcess(registration))
                with pytest.raises(ProcessFailed, match=reason) as caught:
                    await app.process_handle(name).result(timeout="10s")
                assert caught.value.code == "process_recovery_failed"


# --- subagents ---


def family(url: str, instructions: str, **options: Any) -> Lash:
    """Return an app whose model asks a researcher, which greets and needs an approval."""

    def reply(request: ModelRequest) -> Any:
        who, last = request.messages[0].text, request.messages[-1]
        if last.role == "user":
            if who == "researcher":
                return call("greet", name="Ann")
            return call("spawn_agent", agent="researcher", task="go")
        if last.text.startswith("Hi") and who == "researcher" and "pay" not in last.text:
            return call("pay", said=last.text)
        return say(last.text)

    app = Lash(url, model=ScriptedModel(reply), instructions=instructions, worker=LIVE, **options)

    @app.tool(approval=True)
    async def pay(said: str) -> str:
        return f"paid for {said}"

    app.agent("researcher", instructions="researcher", tools=[pay])
    app.subagents("researcher")
    return app


@pytest.mark.proves("P9", "T8")
async def test_an_edited_prompt_does_not_block_a_turn_that_waits_for_its_subagent(
    durable: Backend,
) -> None:
    """And the subagent has the plugin options of the session that asked it, whoever executes it."""
    dying = family(durable.url, "Report.", plugins=[Greeters()])
    await dying.open()
    await begin(dying.session("chat", plugin_options=HI), "go", "t1")
    await open_wait(dying)
    await kill(dying)
    async with family(durable.url, "Report briefly.", plugins=[Greeters()]) as app:
        wait = await open_wait(app)
        assert wait.arguments == {"said": "Hi Ann"}
        await app.resolve(wait.key, True)
        result = await app.session("chat").turn("go", turn_id="t1", timeout="10s")
        assert result.text == "paid for Hi Ann"


@EVERY_ENGINE
@pytest.mark.proves("T8")
async def test_an_agent_that_code_starts_has_the_plugin_options_of_its_session(
    backend: Backend,
) -> None:
    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return call("greet", name="Ann") if last.role == "user" else say(last.text)

    app = backend.app(model=ScriptedModel(reply), plugins=[Greeters()])
    greeter = app.agent("greeter", tools=[])

    @app.process
    async def parent(ctx: ProcessContext[None]) -> str:
        return (await (await ctx.start(greeter, "go")).result()).text

    async with app:
        session = app.session("chat", plugin_options=HI)
        result = await (await session.start(greeter, "go")).result(timeout="10s")
        assert result.text == "Hi Ann"
        assert await (await session.start(parent)).result(timeout="10s") == "Hi Ann"
        result = await (await app.start(greeter, "go")).result(timeout="10s")
        assert result.text == "Hello Ann"


# --- sessions of processes ---


def writers(url: str, host: str = "journal", **options: Any) -> tuple[Lash, Any]:
    """Return an app with a process that writes in a session once it is told to."""
    app, _ = shop(url, host, **options)

    @app.process
    async def write_letter(ctx: ProcessContext[None], session: str, model: str | None) -> Any:
        await ctx.wait_signal("go")
        return (await ctx.session(session, model=model).turn("go")).text

    return app, write_letter


def revealing(name: str) -> ScriptedModel:
    """Return a model that greets, and then reveals its name and its instructions."""

    def reply(request: ModelRequest) -> Any:
        if request.messages[-1].role == "user":
            return call("greet", name="Ann")
        prompt = [message.text for message in request.messages if message.role == "system"]
        return say(f"{name}: {prompt} {request.messages[-1].text}")

    model = ScriptedModel(reply)
    model.name = name  # type: ignore[attr-defined]  # apps capture it
    return model


@pytest.mark.proves("P9", "T8")
@each_host
async def test_a_session_of_a_process_has_the_settings_that_the_process_was_captured_with(
    durable: Backend, host: str
) -> None:
    old: dict[str, Any] = {"model": revealing("first"), "instructions": "Write."}
    asking, write_letter = writers(durable.url, worker=None, **old)
    async with asking:
        await asking.start(write_letter.options(id="app"), "s1", None)
        session = asking.session("chat", plugin_options=HI, instructions="Chat.")
        await session.start(write_letter.options(id="session"), "s2", None)
        await asking.start(write_letter.options(id="given"), "s3", "second")
        await asking.start(write_letter.options(id="owned"), "chat", None)
    new: dict[str, Any] = {"model": revealing("second"), "instructions": "Write briefly."}
    working, _ = writers(durable.url, host, **new)
    working.model("first", revealing("first"))
    async with working:
        found = {}
        for name in ("app", "session", "given", "owned"):
            handle = working.process_handle(name)
            await handle.signal("go")
            found[name] = await handle.result(timeout="10s")
        assert found == {
            "app": "first: ['Write.'] Hello Ann",
            "session": "first: ['Chat.'] Hi Ann",
            "given": "second: ['Write.'] Hello Ann",
            # What the session itself has comes first.
            "owned": "first: ['Chat.'] Hi Ann",
        }
        # The sessions do not keep the settings of the process: other turns have those of the app.
        answer = await working.session("s1").turn("go", timeout="10s")
        assert answer.text == "second: ['Write briefly.'] Hello Ann"
        record = await working.store.sessions.get("s1")
        assert record is not None
        assert not record.options
