"""Plugins: parts of an agent, built for each session from captured options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pylash import (
    InlineHost,
    Lash,
    ModelRequest,
    SessionOptionUnknown,
    SessionPlugin,
    Tool,
    TurnView,
    tool,
)
from pylash.durable.ports import EffectHost
from pylash.testing import ScriptedModel, SerialHost, call, crash_everywhere, kill, say
from tests.backends import Backend
from tests.sessions.crash_apps import advised_story, make_advised
from tests.sessions.scenes import LIVE, Slow, begin, open_wait, transcript


class Greeter(SessionPlugin):
    """Gives a session a tool, a part of the prompt and a word at each checkpoint."""

    def __init__(self, session_id: str, options: Any, log: list[str]) -> None:
        self.session_id = session_id
        self.greeting = (options or {}).get("greeting", "Hello")
        self.log = log

    def tools(self) -> Sequence[Tool[..., Any]]:
        @tool
        async def greet(name: str) -> str:
            """Greet somebody."""
            return f"{self.greeting} {name} in {self.session_id}"

        return [greet]

    def prompt(self) -> str:
        return f"Say {self.greeting}."

    async def checkpoint(self, turn: TurnView) -> Sequence[str]:
        self.log.append(f"{turn.session_id} {turn.turn_id} {turn.iteration} {len(turn.messages)}")
        return [f"iteration {turn.iteration}"]


class Greeters:
    """Builds greeters."""

    name = "greeter"

    def __init__(self) -> None:
        self.log: list[str] = []

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        return Greeter(session_id, options, self.log)


class Plain:
    """Builds what gives nothing."""

    name = "plain"

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        return SessionPlugin()


def reply(request: ModelRequest) -> Any:
    last = request.messages[-1]
    if any(message.role == "tool" for message in request.messages):
        return say(next(m.text for m in reversed(request.messages) if m.role == "tool"))
    assert last.role == "user"
    return call("greet", name="Ann")


@pytest.mark.proves("T8")
@pytest.mark.parametrize("host", [None, InlineHost(), SerialHost(InlineHost())])
async def test_a_plugin_gives_tools_a_prompt_and_a_word(
    backend: Backend, host: EffectHost | None
) -> None:
    greeters, model = Greeters(), ScriptedModel(reply)
    plugins: list[Any] = [Plain(), greeters]
    app = Lash(backend.url, model=model, instructions="Help.", plugins=plugins, host=host)
    async with app:
        session = app.session("chat", plugin_options={"greeter": {"greeting": "Hi"}})
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.text == "Hi Ann in chat"
        assert await transcript(session) == (
            "\nuser       go"
            "\nplugin     iteration 0"
            "\nassistant  i1.c0 greet(name=Ann)"
            "\ntool       i1.c0 greet: Hi Ann in chat"
            "\nplugin     iteration 1"
            "\nassistant  Hi Ann in chat\n"
        )
    assert greeters.log == ["chat t1 0 1", "chat t1 1 4"]
    request = model.requests[0]
    assert [m.text for m in request.messages if m.role == "system"] == ["Help.", "Say Hi."]
    assert [one.name for one in request.tools] == ["greet"]


async def test_sessions_have_options_of_their_own(memory: Backend) -> None:
    app = Lash(memory.url, model=ScriptedModel(reply), plugins=[Greeters()])
    async with app:
        hi = app.session("a", plugin_options={"greeter": {"greeting": "Hi"}})
        assert (await hi.turn("go", timeout="10s")).text == "Hi Ann in a"
        assert (await app.session("b").turn("go", timeout="10s")).text == "Hello Ann in b"


@pytest.mark.proves("T8")
async def test_another_app_builds_it_from_what_was_captured(durable: Backend) -> None:
    slow = Slow()
    first = Greeters()
    dying = Lash(durable.url, model=ScriptedModel(slow), plugins=[first], worker=LIVE)
    await dying.open()
    options = {"greeter": {"greeting": "Hi"}}
    await begin(dying.session("chat", plugin_options=options), "go", "t1")
    await slow.asked.wait()
    await kill(dying)
    second = Greeters()
    async with Lash(durable.url, model=ScriptedModel(reply), plugins=[second]) as app:
        session = app.session("chat")
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.text == "Hi Ann in chat"
        told = await transcript(session)
    assert first.log == ["chat t1 0 1"]
    assert second.log == ["chat t1 1 4"]  # what was said before the death was recorded
    assert told.count("iteration 0") == told.count("iteration 1") == 1


async def test_an_option_for_a_plugin_that_is_not_there_is_a_clear_error(memory: Backend) -> None:
    app = Lash(memory.url, model=ScriptedModel(reply), plugins=[Greeters()])
    async with app:
        with pytest.raises(SessionOptionUnknown, match="greeter"):
            await app.session("chat", plugin_options={"greter": {}}).turn("go", timeout="10s")
        assert (await app.session("chat").turn("go", timeout="10s")).status == "completed"


@pytest.mark.parametrize("before", [True, False])
async def test_a_deployment_that_changes_the_plugins_does_not_disturb_a_turn_in_flight(
    durable: Backend, before: bool
) -> None:
    def working(request: ModelRequest) -> Any:
        return say("Done.") if request.messages[-1].text == "paid" else call("pay")

    def shop(plugins: list[Any]) -> Lash:
        app = Lash(durable.url, model=ScriptedModel(working), plugins=plugins, worker=LIVE)

        @app.tool(approval=True)
        async def pay() -> str:
            return "paid"

        return app

    dying = shop([Quiet()] if before else [])
    await dying.open()
    options: Any = {"quiet": {}} if before else None
    await begin(dying.session("chat", plugin_options=options), "go", "t1")
    wait = await open_wait(dying)
    await kill(dying)
    async with shop([] if before else [Quiet()]) as app:
        await app.resolve(wait.key, True)
        session = app.session("chat")
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.text == "Done."
        assert (await transcript(session)).count("plugin     once") == before


async def test_an_option_that_no_worker_knows_fails_the_turn_and_not_the_session(
    durable: Backend,
) -> None:
    async with (
        Lash(durable.url, model=ScriptedModel([say("Hm.")])),
        Lash(durable.url, worker=None) as client,
    ):
        odd = client.session("chat", plugin_options={"greeter": {}})
        result = await odd.turn("go", timeout="10s")
        assert (result.status, result.code) == ("failed", "session_option_unknown")
        assert "greeter" in (result.error or "")
        mended = client.session("chat", plugin_options={})
        assert (await mended.turn("go", timeout="10s")).text == "Hm."


class Once(SessionPlugin):
    """Speaks at the first checkpoint."""

    async def checkpoint(self, turn: TurnView) -> Sequence[str]:
        return [] if turn.iteration else ["once"]


class Quiet:
    """Builds what speaks once."""

    name = "quiet"

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        return Once()


class Broken(SessionPlugin):
    """Raises at checkpoints."""

    async def checkpoint(self, turn: TurnView) -> Sequence[str]:
        raise ValueError("no words")


class Brokens:
    """Builds what raises."""

    name = "broken"

    def __init__(self, *, building: bool = False) -> None:
        self.building = building

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        if self.building:
            raise ValueError("no plugin")
        return Broken()


@pytest.mark.parametrize("building", [False, True])
async def test_a_plugin_that_raises_fails_the_turn(memory: Backend, building: bool) -> None:
    app = Lash(memory.url, model=ScriptedModel([say("Hm.")]), plugins=[Brokens(building=building)])
    async with app:
        result = await app.session("chat").turn("go", timeout="10s")
        assert result.status == "failed"
        assert ("no plugin" if building else "no words") in (result.error or "")


@pytest.mark.proves("T8")
def test_words_of_plugins_are_asked_for_once_wherever_it_dies() -> None:
    report = crash_everywhere(make_advised, advised_story)
    assert report.outcome == ADVISED


ADVISED = """
user       go
plugin     advice 0
assistant  i1.c0 work()
tool       i1.c0 work: worked
plugin     advice 1
assistant  Done.
"""
