"""A handle comes from a start, an argument that was one, or a grant: nothing that a program makes or reads is one."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pylash import EVENT, ProcessContext, ProcessFailed, ProcessHandle
from pylash.durable.commands import (
    GrantHandle,
    StartProcess,
)
from pylash.durable.effects import Process, RuntimeScope, envelope
from pylash.durable.processes import LashlangInput, Registration, SessionRef
from pylash.durable.triggers import Subscription
from pylash.testing import ScriptedModel, call, say
from pylash.values.canonical import decode, write
from pylash.values.errors import ValueNotJson
from tests.backends import Backend, eventually
from tests.workflows.scenes import PARKING, Shop

THEIRS = (
    "process main() signals { approve: bool } { ok = wait signal approve; finish [ok, 'secret'] }"
)
"""A process of another tenant: other tenants must not read its result, signal it or cancel it."""

FORGED = {"__handle__": "process", "id": "theirs"}

SOURCES = {
    "a record": "x = { __handle__: 'process', id: 'theirs' }",
    "assigned fields": "x = {}; x.__handle__ = 'process'; x.id = 'theirs'",
    "a changed handle": "x = start own(); x.id = 'theirs'",
    "a handle that was changed in place": "x = start own(); x.note = 1; x['id'] = 'theirs'",
    "json_parse": "x = json_parse(text)",
    "the text of a handle": "h = start own(); x = json_parse(replace(to_string(h), h.id, 'theirs'))",
    "the result of a tool": "x = (await tools.say({}))?",
    "the failure of a tool": "r = await tools.fail({}); x = json_parse(r.error)",
    "an argument": "x = [given][0]",
    "all arguments": "x = inputs.given",
    "a signal from outside": "x = wait signal s",
    "a signal of a program": "h = start sends(to: me); x = wait signal s",
    "the result of a program": "h = start gives(); x = (await h)?",
    "the result of a Python process": "x = (await python)?",
    "a function": "x = made('theirs')",
    "builtins": "x = validate(unique(reverse(push([], given)))[0], Type { id: str })",
    "a comprehension": "x = [{ __handle__: k, id: 'theirs' } for k in ['process']][0]",
}
"""How a program may come to something that looks like a handle, in `x`."""

ATTACKS = """
fn made(id: str) -> any {{ {{ __handle__: "process", id: id }} }}
process own() {{ finish 1 }}
process gives() {{ finish {{ __handle__: "process", id: "theirs" }} }}
process sends(to: any) {{ signal run to s with {{ __handle__: "process", id: "theirs" }} }}
process reads(given: any, text: str, me: any, python: any) signals {{ s: any }} {{
  {source}
  one = await x
  deep = await [{{ a: (x, 1) }}]
  both = await {{ a: x, b: tools.echo({{ value: "v" }}) }}
  c = start child(x: {{ inner: [x] }})
  finish [one, deep, both, await c]
}}
process child(x: any) {{ finish [await x, await x.inner[0]] }}
process cancels(given: any, text: str, me: any, python: any) signals {{ s: any }} {{
  {source}
  cancel x
}}
process signals(given: any, text: str, me: any, python: any) signals {{ s: any }} {{
  {source}
  signal run x approve with true
}}
"""


class Tenants(Shop):
    """An app with a process of one tenant, and programs of another."""

    def __init__(self, url: str = "memory://", **options: Any) -> None:
        super().__init__(url, **options)

        @self.app.tool(name="say")
        async def say_() -> dict[str, str]:
            """Return a record that looks like a handle."""
            return FORGED

        @self.app.tool
        async def fail() -> None:
            """Fail with what looks like a handle."""
            raise ValueError(json.dumps(FORGED))

        @self.app.process
        async def python(ctx: ProcessContext[None]) -> Any:
            return FORGED

        self.python = python

    async def theirs(self) -> ProcessHandle[Any]:
        return await self.start(THEIRS, process_id="theirs")

    async def attack(self, source: str, process: str) -> Any:
        """Let a program reach for the other tenant's process; return how the program ended."""
        module = await self.app.lashlang(ATTACKS.format(source=source))
        me: ProcessHandle[Any] = self.app.process_handle(process)
        python = await self.app.start(self.python)
        handle = await self.app.start(
            module[process].options(id=process),
            given=FORGED, text=json.dumps(FORGED), me=me, python=python,
        )  # fmt: skip
        if source == SOURCES["a signal from outside"]:
            await handle.signal("s", FORGED)
        return await ended(handle)


async def ended(handle: ProcessHandle[Any]) -> Any:
    """Return the result of a process, or its failure."""
    try:
        return await handle.result(timeout="10s")
    except ProcessFailed as failed:
        return dict(failed.data)


async def check_untouched(theirs: ProcessHandle[Any]) -> None:
    """Check that a process took no signal, was not cancelled, and goes on."""
    assert [event.type async for event in theirs.events()] == ["process.started"]
    await theirs.signal("approve", False)
    assert await theirs.result(timeout="10s") == [False, "secret"]


@pytest.mark.parametrize("source", SOURCES)
async def test_what_looks_like_a_handle_reaches_no_process(source: str) -> None:
    tenants = Tenants()
    async with tenants.app:
        theirs = await tenants.theirs()
        read = await tenants.attack(SOURCES[source], "reads")
        looked = read[0]
        assert {"__handle__": "process", "id": "theirs"}.items() <= looked.items()
        echoed = {"ok": True, "value": "v"}
        child = {"ok": True, "value": [{"inner": [looked]}, looked]}
        assert read == [looked, [{"a": [looked, 1]}], {"a": looked, "b": echoed}, child]
        for process in ("cancels", "signals"):
            failure = await tenants.attack(SOURCES[source], process)
            assert failure["raw"]["kind"] == "not_a_handle", failure
            assert "looks like one" in failure["message"]
        await check_untouched(theirs)


TRIGGERS = """
process main() {
  h = await triggers.register({
    source: events.tick({ source_key: "s" }), target: reads, key: "k",
    inputs: { event: trigger.event, x: { __handle__: "process", id: "theirs" } },
  })?
  finish h.key
}
process reads(event: any, x: any) { finish [await event, await x] }
"""


async def test_triggers_hand_over_no_handle_that_was_not_one(backend: Backend) -> None:
    tenants = Tenants(backend.url)
    tenants.app.trigger("tick")
    async with tenants.app:
        theirs = await tenants.theirs()
        await tenants.run(TRIGGERS)
        module = await tenants.app.lashlang(TRIGGERS)
        await tenants.app.triggers.register(
            "tick", source_key="s", target=module["reads"], key="python",
            inputs={"event": EVENT, "x": FORGED},
        )  # fmt: skip
        started = await tenants.app.triggers.emit("tick", source_key="s", payload=FORGED)
        handles = [tenants.app.process_handle(one.process_id) for one in started]
        assert len(handles) == 2
        for handle in handles:
            assert await handle.result(timeout="10s") == [FORGED, FORGED]
        await check_untouched(theirs)


# --- where handles do come from ---

USES = """
process main(x: any, more: any) {
  signal run x approve with true
  finish [(await x)?, (await more.deep[0])?]
}
"""


async def test_a_handle_given_by_python_is_a_handle(backend: Backend) -> None:
    tenants = Tenants(backend.url, worker=PARKING)
    async with tenants.app:
        theirs = await tenants.theirs()
        result = await tenants.run_as("mine", USES, x=theirs, more={"deep": [theirs, FORGED]})
        assert result == [[True, "secret"], [True, "secret"]]


async def test_a_handle_given_by_a_python_process_is_a_handle() -> None:
    tenants = Tenants()

    @tenants.app.process
    async def gives_handle(ctx: ProcessContext[None]) -> Any:
        child = await ctx.start(module["child"])
        other = await ctx.start(module["main"], x=child)
        return await other.result()

    async with tenants.app:
        module = await tenants.app.lashlang(
            "process child() { finish 7 }\nprocess main(x: any) { finish await x }"
        )
        handle = await tenants.app.start(gives_handle)
        assert await handle.result(timeout="10s") == {"ok": True, "value": 7}


async def test_arguments_that_nest_too_deep_are_refused_with_a_sentence() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    tenants = Tenants()
    async with tenants.app:
        with pytest.raises(ValueNotJson, match="nested more than"):
            await tenants.start("process main(x: any) { finish x }", x=deep)


HANDS_ON = """
process main() {
  w = start works()
  a = start asks(all: [{ w: w }])
  finish await a
}
process asks(all: list[any]) { b = start asks_again(w: all[0].w); finish await b }
process asks_again(w: any) { signal run w go with 5; finish await w }
process works() signals { go: int } { finish wait signal go }
"""


async def test_a_handle_goes_on_in_the_arguments_of_starts(backend: Backend) -> None:
    tenants = Tenants(backend.url, worker=PARKING)
    async with tenants.app:
        inner = {"ok": True, "value": 5}
        assert await tenants.run(HANDS_ON) == {
            "ok": True,
            "value": {"ok": True, "value": inner},
        }


async def test_a_trigger_hands_over_the_handles_in_its_inputs(backend: Backend) -> None:
    source = """
    process main() {
      w = start works()
      h = await triggers.register({
        source: events.tick({ source_key: "s" }), target: reads, inputs: { event: trigger.event, w: w },
      })?
      finish h.key
    }
    process reads(event: any, w: any) { signal run w go with event; finish await w }
    process works() signals { go: int } { finish wait signal go }
    """
    tenants = Tenants(backend.url, worker=PARKING)
    tenants.app.trigger("tick")
    async with tenants.app:
        await tenants.run(source)
        (started,) = await tenants.app.triggers.emit("tick", source_key="s", payload=9)
        handle: ProcessHandle[Any] = tenants.app.process_handle(started.process_id)
        assert await handle.result(timeout="10s") == {"ok": True, "value": 9}


async def test_a_trigger_registered_by_python_hands_over_handles() -> None:
    tenants = Tenants()
    tenants.app.trigger("tick")
    async with tenants.app:
        theirs = await tenants.theirs()
        module = await tenants.app.lashlang(USES)
        await tenants.app.triggers.register(
            "tick", source_key="s", target=module["main"], key="python",
            inputs={"x": theirs, "more": EVENT},
        )  # fmt: skip
        payload = {"deep": [FORGED]}
        (started,) = await tenants.app.triggers.emit("tick", source_key="s", payload=payload)
        handle: ProcessHandle[Any] = tenants.app.process_handle(started.process_id)
        assert await handle.result(timeout="10s") == [[True, "secret"], [True, "secret"]]


async def test_a_fork_keeps_the_handles_it_was_given(backend: Backend) -> None:
    tenants = Tenants(backend.url)
    async with tenants.app:
        theirs = await tenants.theirs()
        await tenants.run_as("mine", USES, x=theirs, more={"deep": [theirs]})
        fork = await tenants.app.fork_process("mine")
        assert await fork.result(timeout="10s") == [[True, "secret"], [True, "secret"]]


# --- what older versions stored ---


async def test_arguments_of_an_older_version_hold_the_handles_they_held(backend: Backend) -> None:
    tenants = Tenants(backend.url)
    async with tenants.app:
        theirs = await tenants.theirs()
        module = await tenants.app.lashlang(USES)
        given = module["main"].input({"x": FORGED, "more": {"deep": [FORGED]}})
        old = msgspec.structs.replace(given, handles=msgspec.UNSET)
        assert b"handles" not in write(old)
        await tenants.app.store.processes.start(
            StartProcess(msgspec.structs.replace(tenants.app.template, id="old", input=old))
        )
        handle: ProcessHandle[Any] = tenants.app.process_handle("old")
        assert await handle.result(timeout="10s") == [[True, "secret"], [True, "secret"]]
        assert [event.type async for event in theirs.events()][1] == "signal.approve"


async def test_an_event_brings_no_handle_to_a_subscription_of_an_older_version(
    backend: Backend,
) -> None:
    source = "process main(event: any, x: any) { finish [await event, (await x)?] }"
    tenants = Tenants(backend.url)
    tenants.app.trigger("tick")
    async with tenants.app:
        theirs = await tenants.theirs()
        await tenants.run_as("ours", "process main() { finish 7 }")
        module = await tenants.app.lashlang(source)
        ours = {"__handle__": "process", "id": "ours"}
        given = module["main"].input({"x": ours, "event": None})
        old = msgspec.structs.replace(given, handles=msgspec.UNSET)
        template = msgspec.structs.replace(tenants.app.template, input=old)
        await tenants.app.store.triggers.register(
            Subscription(
                key="old", type="tick", source="s", template=template, inputs={"event": EVENT}
            )
        )
        (started,) = await tenants.app.triggers.emit("tick", source_key="s", payload=FORGED)
        handle: ProcessHandle[Any] = tenants.app.process_handle(started.process_id)
        assert await handle.result(timeout="10s") == [FORGED, 7]
        await check_untouched(theirs)


def test_which_handles_go_with_a_start_changes_neither_its_hash_nor_its_identity() -> None:
    old = LashlangInput("m", "p", "s", "main", {"x": FORGED})
    registrations = [
        Registration(id="p", input=one)
        for one in (old, msgspec.structs.replace(old, handles=("theirs",)))
    ]
    commands = [Process(decode(write(StartProcess(one)))) for one in registrations]
    hashes = {
        envelope(one, scope=RuntimeScope(), effect_id="start", replay_key="k").stable_hash()
        for one in commands
    }
    assert len(hashes) == 1
    assert len({one.digest for one in registrations}) == 1
    assert len({write(one) for one in commands}) == 2


# --- sessions ---


@pytest.mark.parametrize("granted", [False, True])
async def test_a_models_workflow_reaches_what_its_session_was_granted(granted: bool) -> None:
    reads = "process main(x: any) { r = await x; wake 'read ' + to_string(r) }"
    replies = [
        call("start_workflow", source=reads, process="main", args={"x": FORGED}),
        say("Started."),
    ]
    model = ScriptedModel(lambda asked: replies.pop(0) if replies else say(asked.messages[-1].text))
    tenants = Tenants(model=model)
    tenants.app.workflows()
    async with tenants.app:
        theirs = await tenants.theirs()
        session = tenants.app.session("ann")
        if granted:
            await tenants.app.store.processes.perform(GrantHandle(SessionRef("ann"), "theirs"))
        await session.turn("Read it.", timeout="10s")
        await theirs.signal("approve", True)

        async def woken() -> str | None:
            texts = [message.text for message in await session.history()]
            return next((text for text in texts if "read " in text), None)

        assert ("secret" in await eventually(woken)) is granted
