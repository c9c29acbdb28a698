"""What a program that acts for a session may reach: its own triggers, granted sources, its own tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pylash import (
    ArgumentsInvalid,
    Lash,
    NameAmbiguous,
    ProcessBlocked,
    SessionPlugin,
    Tool,
    tool,
)
from pylash.durable.triggers import Subscription
from pylash.testing import ScriptedModel, call, say
from tests.backends import Backend, eventually
from tests.workflows.scenes import Shop

SUBSCRIBE = """
process main(key: str, source: str) {
  h = await triggers.register({
    source: github.push({ source_key: source }), target: on_push, inputs: { event: trigger.event }, key: key,
  })
  finish h
}
process forged(source: any) {
  h = await triggers.register({ source: source, target: on_push, inputs: { event: trigger.event } })
  finish h
}
process on_push(event: github.push.Event) { finish event }
process stop(key: str) { finish (await triggers.cancel({ key: key })?).cancelled }
process names() { finish [h.key for h in await triggers.list({})?] }
process ids() { finish [h.id for h in await triggers.list({})?] }
"""


class Sessions:
    """Runs the program above for sessions, or for none."""

    def __init__(self, app: Lash) -> None:
        self.app = app

    async def run(self, session: str | None, process: str, **args: Any) -> Any:
        """Return what a process of the program finishes with, for a session."""
        module = await self.app.lashlang(SUBSCRIBE)
        started = await self.app.start(module[process].options(wake=session), **args)
        return await started.result(timeout="10s")

    async def register(self, session: str | None, key: str, source: str = "org/a") -> Any:
        """Register a trigger; return the result of the operation."""
        return await self.run(session, "main", key=key, source=source)

    async def started(self, source: str = "org/a") -> int:
        """Return how many processes an event starts."""
        return len(await self.app.triggers.emit("github.push", source_key=source))


def sessions(url: str, granted: Any = True) -> Sessions:
    shop = Shop(url)
    shop.app.trigger("github.push", sessions=granted)
    return Sessions(shop.app)


# --- keys ---


async def test_sessions_whose_names_nest_do_not_reach_each_others_triggers(
    backend: Backend,
) -> None:
    programs = sessions(backend.url)
    async with programs.app:
        assert (await programs.register("a/b", "x"))["ok"]
        assert await programs.run("a", "stop", key="b/x") is False
        assert (await programs.register("a", "b/x"))["ok"]
        assert (await programs.register("a%2Fb", "x"))["ok"]
        assert await programs.started() == 3
        for session, key in (("a/b", "x"), ("a", "b/x"), ("a%2Fb", "x")):
            assert await programs.run(session, "names") == [key]
            assert await programs.run(session, "stop", key=key) is True
            assert await programs.run(session, "names") == []


async def test_a_program_of_no_session_does_not_reach_a_sessions_triggers() -> None:
    programs = sessions("memory://")
    async with programs.app:
        await programs.register("a", "x")
        (view,) = await programs.app.triggers.list()
        key = view.subscription.key
        assert await programs.run(None, "stop", key=key) is False
        for wanted in (key, "session:b/x"):
            refused = await programs.register(None, wanted)
            assert (refused["ok"], "reserved for sessions" in refused["error"]) == (False, True)
        target = (await programs.app.lashlang(SUBSCRIBE))["names"]
        with pytest.raises(ArgumentsInvalid, match="'session:"):
            await programs.app.triggers.register(
                "github.push", source_key="org/a", target=target, key=key
            )
        assert await programs.started() == 1
        assert await programs.app.triggers.cancel(key)  # the app itself may end any of them


async def test_a_trigger_stored_under_the_former_key_of_its_session_is_found(
    backend: Backend,
) -> None:
    programs = sessions(backend.url)
    async with programs.app as app:
        await programs.register("a/b", "x")
        (view,) = await app.triggers.list()
        former = Subscription(
            **{
                **{
                    name: getattr(view.subscription, name)
                    for name in Subscription.__struct_fields__
                },
                "key": "session:a/b/x",
            }
        )
        await app.triggers.cancel(view.subscription.key)
        await app.store.triggers.register(former)
        (identity,) = await programs.run("a/b", "ids")
        assert await programs.run("a/b", "names") == ["x"]
        assert await programs.run("a", "stop", key="b/x") is False
        taken = await programs.register("a", "b/x")
        assert (taken["ok"], "another subscription" in taken["error"]) == (False, True)
        again = await programs.register("a/b", "x", "org/b")
        assert again["value"]["id"] == identity
        assert (await programs.started("org/a"), await programs.started("org/b")) == (0, 1)
        assert await programs.run("a/b", "stop", key="x") is True
        assert (await programs.register("a", "b/x"))["ok"]


# --- sources ---


@pytest.mark.proves("G1")
async def test_a_session_subscribes_only_to_sources_that_the_app_grants() -> None:
    def granted(session_id: str, source_key: str) -> bool:
        return source_key.startswith(f"{session_id}/")

    programs = sessions("memory://", granted)
    async with programs.app:
        assert (await programs.register("org", "mine", "org/a"))["ok"]
        refused = await programs.register("eve", "theirs", "org/a")
        assert refused == {
            "ok": False,
            "error": "The session 'eve' may not subscribe to github.push from 'org/a': the app has "
            "not granted it this source (app.trigger('github.push', sessions=...)).",
        }
        assert (await programs.register(None, "apps", "org/a"))["ok"]
        forged = {
            "$lash_host_type": "github.push.Source",
            "$lash_host_value": {"source_key": "org/a"},
        }
        assert (await programs.run("eve", "forged", source=forged))["ok"] is False
        for value in (5, {}, {"source_key": 5}, None):
            broken = {**forged, "$lash_host_value": value}
            answer = await programs.run("org", "forged", source=broken)
            assert (answer["ok"], "source_key" in answer["error"]) == (False, True)
        assert await programs.started("org/a") == 2


async def test_a_grant_that_is_not_true_grants_nothing() -> None:
    async def asked(session_id: str, source_key: str) -> Any:
        if session_id == "broken":
            raise RuntimeError("no answer")
        return "yes" if session_id == "vague" else session_id == "ann"

    programs = sessions("memory://", asked)
    async with programs.app:
        for session in ("ann", "ben", "vague", "broken"):
            answer = await programs.register(session, "k")
            assert answer["ok"] is (session == "ann"), answer
    with pytest.raises(ArgumentsInvalid, match="sessions"):
        Lash("memory://").trigger("tick", sessions="ann")  # type: ignore[arg-type]


async def test_a_trigger_is_offered_to_models_only_if_it_is_granted_to_sessions() -> None:
    source = """
    process main() { finish await triggers.register({
      source: events.NAME({ source_key: "s" }), target: on, inputs: { e: trigger.event } })? }
    process on(e: any) { finish e }"""
    told: list[str] = []

    def model(request: Any) -> Any:
        names = ("closed", "open")
        if request.call_number:
            told.append(request.messages[-1].text)
        if request.call_number < len(names):
            return call("check_workflow", source=source.replace("NAME", names[request.call_number]))
        return say("Done.")

    app = Lash("memory://", model=ScriptedModel(model))
    app.trigger("closed")
    app.trigger("open", sessions=True)
    app.workflows()
    async with app:
        await app.session("chat").turn("go", timeout="10s")
        await app.lashlang(source.replace("NAME", "closed"))  # programs of the app have all
    assert ['"ok":true' in text for text in told] == [False, True]


# --- names ---


async def send(to: str) -> str:
    """Send a letter."""
    return to


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ({"name": "send-mail"}, {"name": "send_mail"}, "tools.send_mail"),
        ({"name": "s-x", "module": "my.mail"}, {"name": "s_x", "module": "my_mail"}, "MyMail.s_x"),
        ({"name": "s-x", "module": "mail"}, {"name": "s_x", "module": "Mail"}, "Mail.s_x"),
        ({"name": "a"}, {"name": "register", "module": "triggers"}, "triggers.register"),
        ({"name": "a"}, {"name": "list", "module": "Triggers"}, "triggers.list"),
    ],
)
def test_tools_that_are_one_operation_in_programs_are_refused(
    first: Any, second: Any, shared: str
) -> None:
    async def other(to: str) -> str:
        """Send another letter."""
        return to

    app = Lash("memory://")
    app.tool(**first)(send)
    with pytest.raises(NameAmbiguous, match=shared):
        app.tool(**second)(other)
    assert second["name"] not in app.catalog.tools


class Mail(SessionPlugin):
    """Brings a tool whose operation is that of a tool of the app."""

    def __init__(self, sent: list[str]) -> None:
        self._sent = sent

    def tools(self) -> Sequence[Tool[..., Any]]:
        @tool(name="send-mail")
        async def forbidden(to: str) -> str:
            """Send a letter to any address."""
            self._sent.append(to)
            return to

        return [forbidden]


class Mails:
    """Builds the plugin above."""

    name = "mail"

    def __init__(self) -> None:
        self.sent: list[str] = []

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        return Mail(self.sent)


async def test_a_tool_of_a_plugin_does_not_run_as_the_operation_of_another_one() -> None:
    source = """process main() { finish await tools.send_mail({ to: "ann" })? }"""
    told: list[str] = []

    def model(request: Any) -> Any:
        if request.call_number == 0:
            return call("start_workflow", source=source, process="main")
        told.append(request.messages[-1].text)
        return say("Done.")

    mails = Mails()
    app = Lash("memory://", model=ScriptedModel(model), plugins=[mails])
    app.tool(name="send_mail")(send)
    app.workflows()
    async with app:
        session = app.session("chat")
        await session.turn("go", timeout="10s")
        assert "are both tools.send_mail in Lashlang" in told[0]
        assert await app.processes() == []
        # A program of the app was linked with the app's own tool, and runs no other one.
        module = await app.lashlang(source)
        handle = await session.start(module["main"])

        async def is_blocked() -> bool:
            return await handle.status() == "blocked"

        await eventually(is_blocked)
        with pytest.raises(ProcessBlocked, match=r"`tools\.send_mail` is a different tool"):
            await handle.result(timeout=0)
    assert mails.sent == []


@pytest.mark.parametrize(
    ("first", "second"),
    [("order-paid", "order_paid"), ("tick", "events.tick"), ("2024.x", "_2024.x")],
)
def test_triggers_that_are_one_source_in_programs_are_refused(first: str, second: str) -> None:
    app = Lash("memory://")
    app.trigger(first)
    app.trigger(first, payload=int)  # declared again
    with pytest.raises(NameAmbiguous):
        app.trigger(second)
    assert second not in app.trigger_types


async def test_a_receiver_call_runs_the_tool_of_its_exact_name() -> None:
    """Names that differ only in case stay apart."""
    shop = Shop("memory://")

    @shop.app.tool(name="Echo")
    async def loud(value: str) -> str:
        """Return it loudly."""
        return value.upper()

    source = """process main(t: Tools) { finish [await t.echo({ value: "a" })?, await t.Echo({ value: "a" })?] }"""
    async with shop.app:
        assert await shop.run(source) == ["a", "A"]
