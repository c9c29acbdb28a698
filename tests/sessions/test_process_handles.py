"""Handles of processes that a session holds: granted, listed, transferred and released."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from pylash import (
    AppNotOpen,
    ArgumentsInvalid,
    HeldProcess,
    Lash,
    MissingProcessExecutionId,
    NameInvalid,
    NotAProcess,
    ProcessContext,
    ProcessHandle,
    ProcessNotVisible,
    ProcessUnknown,
    RunState,
    Session,
    ValueNotJson,
    WorkerConfig,
)
from pylash.durable.ports import EffectHost
from pylash.durable.scopes import RuntimeOperationScope
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import SqlStore
from pylash.testing import ScriptedModel, SerialHost, call, say
from pylash.testing.laws.suites import together
from tests.backends import Backend, eventually
from tests.hosts import HOSTS, observed
from tests.stores.lost_answers import answer_lost

PARKING = WorkerConfig(park_after="1ms")


def make_app(url: str, host: EffectHost | None = None, **options: Any) -> Lash:
    # Runs of the inline host cannot be parked, so closing the app waits for them as long as the grace period.
    options.setdefault("worker", WorkerConfig(grace="100ms"))
    app = Lash(url, host=host, **options)

    @app.process
    async def waits(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait_signal("go")

    @app.process
    async def parent(ctx: ProcessContext[None], child: str) -> None:
        await ctx.start(waits.options(id=child))

    return app


async def start(app: Lash, process_id: str, *holders: Session) -> ProcessHandle[Any]:
    """Start a process that waits for a signal, and give sessions its handle."""
    handle = await app.start(app.services.definitions["waits"].options(id=process_id))
    for holder in holders:
        await holder.grant_process(process_id)
    return handle


async def held(session: Session, **options: Any) -> list[str]:
    return [one.id for one in await session.processes("all", **options)]


async def log(handle: ProcessHandle[Any]) -> list[tuple[str, Any]]:
    return [(event.type, event.payload) async for event in handle.events()]


# --- who holds what ---

PROGRAM = """
process main() { c = start child(); wake "started " + c.id; finish (await c)? }
process child() signals { go: int } { finish wait signal go }
"""


@pytest.mark.proves("P4")
@HOSTS
async def test_a_session_holds_what_is_started_for_it(kind: str, durable: Backend) -> None:
    def model(request: Any) -> Any:
        text = request.messages[-1].text
        if text == "help":
            return say("helped")
        if text == "go":
            return call("spawn_agent", agent="helper", task="help")
        if text == "helped":
            return call("start_workflow", source=PROGRAM, process="main")
        return say("Done.")

    async with observed(kind, durable.url) as host:
        app = make_app(durable.url, host, model=ScriptedModel(model))
        app.agent("helper")
        app.subagents("helper")
        app.workflows()
        app.trigger("tick", sessions=True)
        async with app:
            waits, parent = (app.services.definitions[name] for name in ("waits", "parent"))
            # Started by the app, and by a process of the app: no session has these handles.
            await start(app, "apps")
            await (await app.start(parent.options(id="p"), child="apps-child")).result(
                timeout="10s"
            )
            chat = app.session("chat")
            await app.start(waits.options(id="woken", wake="chat"))
            python = await app.start(parent.options(id="python", wake="chat"), child="python-child")
            await python.result(timeout="10s")
            await app.triggers.register(
                "tick", source_key="s", target=waits, key="k", session_id="chat"
            )
            (ticked,) = await app.triggers.emit("tick", source_key="s")
            assert (await chat.turn("go", timeout="20s")).text == "Done."

            async def child_started() -> bool:
                return len(await chat.processes("all")) == 7

            await eventually(child_started)
            names = set(await held(chat))
            assert {"woken", "python", "python-child", ticked.process_id} < names
            # The subagent, the workflow and the child of the workflow.
            assert {name[:5] for name in names} > {"helpe", "main-", "lash-"}
            live = {one.id for one in await chat.processes()}
            assert names - live == {"python", *(name for name in names if name[:5] == "helpe")}
            assert await held(app.session("other")) == []
            everything = {view.id for view in await app.processes()}
            assert everything - set(await held(chat)) == {"apps", "p", "apps-child"}


# --- transfer, revoke ---

USES: dict[str, Callable[[ProcessHandle[Any]], Awaitable[Any]]] = {
    "status": lambda handle: handle.status(),
    "result": lambda handle: handle.result(timeout="5s"),
    "signal": lambda handle: handle.signal("go", 1),
    "cancel": lambda handle: handle.cancel(),
    "cancel by force": lambda handle: handle.cancel(force=True),
    "events": log,
    "timeline": lambda handle: handle.timeline(),
}


async def result_of(handle: ProcessHandle[Any]) -> Any:
    return await handle.result(timeout="10s")


def answers(app: Lash) -> list[str]:
    """Return the names of the operations that the store has answered from now on."""
    assert isinstance(app.store, SqlStore)
    answered, honest = list[str](), app.store.driver.run

    async def run(operation: Operation[Any]) -> Any:
        answer = await honest(operation)
        answered.append(operation.name)
        return answer

    app.store.driver.run = run  # type: ignore[method-assign]
    return answered


async def refused(session: Session, process_id: str, **options: Any) -> None:
    """Check that a session cannot use a process in any way."""
    for name, use in USES.items():
        with pytest.raises(ProcessNotVisible, match=process_id):
            print(name, await use(session.process_handle(process_id, **options)))


@pytest.mark.proves("P3", "P4")
@HOSTS
async def test_a_transfer_moves_the_access(kind: str, durable: Backend) -> None:
    async with observed(kind, durable.url) as host, make_app(durable.url, host) as app:
        ann, bob = app.session("ann"), app.session("bob")
        theirs = await start(app, "p", ann)
        await refused(bob, "p")
        handle = ann.process_handle("p", app.services.definitions["waits"])
        assert await handle.status() in ("running", "waiting")
        answered = answers(app)
        waiting = asyncio.get_running_loop().create_task(result_of(handle))

        async def may_wait() -> bool:
            return "check_visible" in answered

        await eventually(may_wait)
        host.clear()
        await ann.transfer_processes(["p"], to="bob")
        (transfer,) = host.commands
        before = await log(theirs)
        await refused(ann, "p")
        assert await log(theirs) == before
        assert (await held(ann), await held(bob)) == ([], ["p"])
        await bob.process_handle("p").signal("go", 7)
        assert await bob.process_handle("p").result(timeout="10s") == 7
        with pytest.raises(ProcessNotVisible):  # it began to wait when it had access
            await waiting
        assert await theirs.result(timeout="10s") == 7  # the app itself may use everything
        with pytest.raises(ProcessNotVisible):
            await ann.transfer_processes(["p"], to="ann")
        await ann.transfer_processes([], to="bob")
    assert transfer.effect_id == "transfer:ann:bob"
    assert isinstance(transfer.execution_scope, RuntimeOperationScope)
    assert transfer.replay_key == f"{transfer.execution_scope.id}:process:transfer:ann:bob"


@pytest.mark.proves("P4")
@HOSTS
async def test_handles_are_listed_granted_and_revoked(kind: str, durable: Backend) -> None:
    async with observed(kind, durable.url) as host, make_app(durable.url, host) as app:
        ann = app.session("ann")
        first, second = await start(app, "first"), await start(app, "second")
        await second.cancel(force=True)
        await ann.grant_process("first", "the first one")
        await ann.grant_process("second")
        await ann.grant_process("second", frame="planner")
        host.clear()
        (live,) = await ann.processes()
        assert (live.id, live.label) == ("first", "the first one")
        assert await held(ann) == ["first", "second"]
        ended = [HeldProcess("second", RunState.CANCELLED)]
        assert await ann.processes("all", frame="planner") == ended
        assert await ann.processes(frame="planner") == []
        await refused(ann, "first", frame="planner")
        assert await ann.revoke_process("first") is True
        assert await ann.revoke_process("first") is False
        await refused(ann, "first")
        assert await first.status() in ("running", "waiting")  # it goes on
        with pytest.raises(ProcessUnknown):
            await ann.grant_process("nobody")
        with pytest.raises(ArgumentsInvalid, match="mode"):
            await ann.processes("dead")  # type: ignore[arg-type]
        ids = [one.effect_id for one in host.commands]
    assert ids.count("list:ann") >= 4  # beside the commands of the processes
    assert {"revoke:ann:first", "grant:ann:nobody"} <= set(ids)


# --- clean-up ---


@pytest.mark.proves("P3", "P5")
@HOSTS
async def test_only_processes_that_nobody_else_holds_are_cancelled(
    kind: str, durable: Backend
) -> None:
    async with observed(kind, durable.url) as host, make_app(durable.url, host, worker=None) as app:
        ann, bob = app.session("ann"), app.session("bob")
        sole, kept = await start(app, "sole", ann), await start(app, "kept", ann)
        shared, other = await start(app, "shared", ann, bob), await start(app, "other", bob)
        planned = await start(app, "planned", ann)
        await ann.grant_process("planned", frame="planner")
        untouched = (kept, shared, other, planned)
        before = [await log(one) for one in untouched]
        host.clear()
        assert await ann.cancel_unreferenced_processes(keep=["kept"]) == ["sole"]
        (cleanup,) = host.commands
        assert (await log(sole))[1:] == [
            ("process.cancel_requested", {"reason": "requested by host"})
        ]
        assert [await log(one) for one in untouched] == before
        assert (await held(ann), await held(bob)) == (["kept"], ["other", "shared"])
        assert await held(ann, frame="planner") == ["planned"]
        assert await ann.cancel_unreferenced_processes(keep=["kept"]) == []
    assert cleanup.effect_id == "cancel_unreferenced:ann"
    assert str(cleanup.replay_key).endswith(":process:cancel_unreferenced:ann")


@pytest.mark.proves("P14")
@HOSTS
async def test_deleting_a_session_removes_its_process_state(kind: str, durable: Backend) -> None:
    async with observed(kind, durable.url) as host, make_app(durable.url, host) as app:
        app.trigger("tick", sessions=True)
        ann, bob = app.session("ann"), app.session("bob")
        handle = await start(app, "p", ann, bob)
        await ann.grant_process("p", frame="planner")
        waits = app.services.definitions["waits"]
        await app.triggers.register("tick", source_key="s", target=waits, key="k", session_id="ann")
        report = await ann.delete()
        assert (report.handles, report.subscriptions) == (2, 1)
        assert (await held(ann), await held(ann, frame="planner"), await held(bob)) == (
            [],
            [],
            ["p"],
        )
        assert await app.triggers.list() == []
        assert (await ann.delete()).handles == 0
        await handle.signal("go", 3)  # the process goes on
        assert await bob.process_handle("p").result(timeout="10s") == 3


# --- models and programs ---

ARGUMENTS: dict[str, dict[str, Any]] = {
    "signal_workflow": {"process_id": "p", "name": "go", "payload": 5},
    "cancel_workflow": {"process_id": "p"},
    "list_workflows": {},
}


@pytest.mark.proves("P4")
@HOSTS
async def test_a_model_uses_what_its_session_holds(kind: str, durable: Backend) -> None:
    def model(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "user":
            return call(last.text, **ARGUMENTS[last.text])
        return say(last.text)

    async with observed(kind, durable.url) as host:
        app = make_app(durable.url, host, model=ScriptedModel(model))
        app.workflows()
        async with app:
            ann, bob = app.session("ann"), app.session("bob")
            handle = await start(app, "p", ann)
            for name in ("signal_workflow", "cancel_workflow"):
                text = (await bob.turn(name, timeout="10s")).text
                assert "no process 'p'" in text
            assert (await bob.turn("list_workflows", timeout="10s")).text == "[]"
            assert [one for one, _ in await log(handle)] == ["process.started"]
            await ann.transfer_processes(["p"], to="bob")
            assert "no process 'p'" in (await ann.turn("signal_workflow", timeout="10s")).text
            (listed,) = json.loads((await bob.turn("list_workflows", timeout="10s")).text)
            assert (listed["process_id"], listed["process"]) == ("p", "python:waits")
            assert (await bob.turn("signal_workflow", timeout="10s")).text == "sent"
            assert await handle.result(timeout="10s") == 5


REACHES = """
process main(x: any) signals { next: null } {
  first = await x
  a = wait signal next
  signal run x go with 1
  finish first
}
"""


@pytest.mark.proves("P4")
async def test_a_program_of_a_session_reaches_what_the_session_holds(durable: Backend) -> None:
    """A refusal is recorded: a grant that comes later does not change what the program was told."""
    app = make_app(durable.url, worker=PARKING)
    async with app:
        theirs = await start(app, "p")
        module = await app.lashlang(REACHES)
        main = module["main"].options(id="reaches", wake="ann")
        reaches = await app.start(main, x=theirs)

        async def is_waiting() -> bool:
            return await reaches.status() == RunState.WAITING

        await eventually(is_waiting)
        await app.session("ann").grant_process("p")
    async with make_app(durable.url, worker=PARKING) as app:
        reaches = app.process_handle("reaches")
        await reaches.signal("next")
        told = {"ok": False, "error": "there is no process p"}
        assert await reaches.result(timeout="10s") == told
        assert await app.process_handle("p").result(timeout="10s") == 1


SIBLINGS = """
process main() signals { begin: null } {
  w = start works()
  b = wait signal begin
  a = start asks(w: w)
  finish await a
}
process asks(w: any) { signal run w go with 5; finish await w }
process works() signals { go: int } { finish wait signal go }
"""


@pytest.mark.proves("P4")
@HOSTS
@pytest.mark.parametrize("moved", [False, True], ids=["held", "transferred"])
async def test_programs_of_a_session_share_what_it_holds(
    kind: str, moved: bool, durable: Backend
) -> None:
    """``asks`` did not start ``works``: it reaches it through the session, while that holds the handle."""
    async with observed(kind, durable.url) as host, make_app(durable.url, host) as app:
        ann = app.session("ann")
        module = await app.lashlang(SIBLINGS)
        main = await app.start(module["main"].options(id="main", wake="ann"))

        async def works() -> str | None:
            return next((one for one in await held(ann) if one.startswith("lash-")), None)

        process = await eventually(works)
        if moved:
            await ann.transfer_processes([process], to="bob")
        await main.signal("begin")
        result = await main.result(timeout="10s")
    if moved:
        assert (result["ok"], "there is no process" in result["error"]) == (False, True)
    else:
        assert result == {"ok": True, "value": {"ok": True, "value": 5}}


# --- the end of handles ---


async def grants(app: Lash) -> list[Any]:
    """Return every grant in the store."""
    assert isinstance(app.store, SqlStore)

    def steps() -> Steps[list[Any]]:
        return (yield Statement("select session, process from pylash_process_grants")).rows

    return await app.store.driver.run(Operation("grants", steps, read_only=True))


def make_families(url: str, host: EffectHost | None = None) -> Lash:
    """Return an app with a process that starts children when it is told to."""
    app = make_app(url, host)

    @app.process
    async def family(ctx: ProcessContext[None], children: int) -> None:
        await ctx.wait_signal("go")
        waits = app.services.definitions["waits"]
        for number in range(children):
            await ctx.start(waits.options(id=f"{ctx.id}-{number}", attached=True))

    return app


@pytest.mark.proves("P4", "P14")
@HOSTS
async def test_no_handle_is_left_of_a_session_that_was_deleted(kind: str, durable: Backend) -> None:
    """Also none of a child that a process of the session starts later: the session may be created again."""
    async with observed(kind, durable.url) as host, make_families(durable.url, host) as app:
        chat, other = app.session("chat"), app.session("other")
        family = app.services.definitions["family"].options(id="family")
        handle = await chat.start(family, children=1)
        await start(app, "p", chat, other)
        await other.grant_process("p", frame="helper")
        assert (await chat.delete()).handles == 2
        await handle.signal("go")
        await handle.result(timeout="10s")
        assert "family-0" in {one.id for one in await app.processes()}
        await chat.enqueue("Hello again.")
        assert await held(chat) == []
        assert sorted(await grants(app)) == [("other", "p"), ("other", "p")]
        assert (await other.delete()).handles == 2
        assert await grants(app) == []


@pytest.mark.proves("P4")
@HOSTS
async def test_children_are_held_by_the_session_that_holds_their_parent(
    kind: str, durable: Backend
) -> None:
    async with observed(kind, durable.url) as host, make_families(durable.url, host) as app:
        family = app.services.definitions["family"]
        chat = app.session("chat")
        kept = await chat.start(family.options(id="kept"), children=1)
        await kept.signal("go")
        await kept.result(timeout="10s")
        assert await held(chat) == ["kept", "kept-0"]
        await app.session("chat").start(family.options(id="given-up"), children=2)
        await chat.revoke_process("given-up")
        handle = app.process_handle("given-up")
        await handle.signal("go")
        await handle.result(timeout="10s")
        assert await held(chat) == ["kept", "kept-0"]


@pytest.mark.slow
@pytest.mark.proves("P14")
async def test_a_deletion_while_children_are_started_leaves_no_handle(durable: Backend) -> None:
    async with make_families(durable.url) as app:
        for round_number in range(5):
            chat = app.session(f"chat-{round_number}")
            family = app.services.definitions["family"].options(id=f"parent-{round_number}")
            handle = await chat.start(family, children=5 * round_number + 5)
            await handle.signal("go")
            await chat.delete()
            await handle.result(timeout="20s")
            assert await grants(app) == []


# --- results, races and lists ---


@pytest.mark.parametrize("timeout", [0, 1e-6, "1ms", "10s"])
async def test_a_timeout_tells_a_session_without_the_handle_nothing(
    timeout: Any, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_app(backend.url) as app:
        ended, _ = await start(app, "ended"), await start(app, "open")
        await ended.signal("go", "secret")
        assert await ended.result(timeout="10s") == "secret"
        for process in ("ended", "open", "nobody"):
            with pytest.raises(ProcessNotVisible, match=process):
                await app.session("thief").process_handle(process).result(timeout=timeout)
        assert await ended.result(timeout=0) == "secret"
        with pytest.raises(ProcessUnknown):
            await app.process_handle("nobody").result(timeout=timeout)
    gc.collect()  # a failure that nothing retrieved is reported when its task is collected
    assert caplog.messages == []


async def is_refused(work: Awaitable[bool | None]) -> bool:
    try:
        return await work is False
    except ProcessNotVisible:
        return True


async def test_a_transfer_that_moves_nothing_is_refused(backend: Backend) -> None:
    async with make_app(backend.url) as app:
        ann = app.session("ann")
        for number in range(20):
            process = f"p-{number}"
            await start(app, process, ann)
            refusals = await together(
                is_refused(ann.transfer_processes([process], to="bob")),
                is_refused(ann.transfer_processes([process], to="carol")),
                is_refused(ann.revoke_process(process)),
            )
            assert sorted(refusals) == [False, True, True]
            holders = [process in await held(app.session(one)) for one in ("ann", "bob", "carol")]
            assert holders == [False, not refusals[0], not refusals[1]]


async def test_a_transfer_whose_answer_is_lost_has_happened(durable: Backend) -> None:
    async with make_app(durable.url) as app:
        ann, bob = app.session("ann"), app.session("bob")
        await start(app, "p", ann)
        assert isinstance(app.store, SqlStore)
        answer_lost(app.store, "perform")
        await ann.transfer_processes(["p", "p"], to="bob")
        assert (await held(ann), await held(bob)) == ([], ["p"])


async def test_only_processes_that_it_cancelled_are_returned(backend: Backend) -> None:
    async with make_app(backend.url, worker=None) as app:
        ann = app.session("ann")
        ended, asked = await start(app, "ended", ann), await start(app, "asked", ann)
        await ended.cancel(force=True)
        await asked.cancel()
        await start(app, "open", ann)
        assert await ann.cancel_unreferenced_processes() == ["open"]


async def test_a_list_shows_the_label_of_the_handle_or_of_the_process(backend: Backend) -> None:
    async with make_app(backend.url) as app:
        ann, waits = app.session("ann"), app.services.definitions["waits"]
        await ann.start(waits.options(id="p", label="Orders of May"))
        assert [one.label for one in await ann.processes()] == ["Orders of May"]
        await ann.grant_process("p", "mine")
        assert [one.label for one in await ann.processes()] == ["mine"]


async def test_a_session_cannot_start_the_process_of_another(backend: Backend) -> None:
    async with make_app(backend.url) as app:
        ann, bob, waits = app.session("ann"), app.session("bob"), app.services.definitions["waits"]
        await ann.start(waits.options(id="p"))
        await ann.start(waits.options(id="p"))
        with pytest.raises(ProcessNotVisible, match="'bob' has no handle of process 'p'"):
            await bob.start(waits.options(id="p"))
        await bob.start(waits.options(id="for-ann", wake="ann"))
        assert (await held(ann), await held(bob)) == (["for-ann", "p"], [])


async def test_a_session_of_a_closed_app_is_refused(backend: Backend) -> None:
    async with make_app(backend.url) as app:
        ann, waits = app.session("ann"), app.services.definitions["waits"]
        handle = await start(app, "p", ann)
    for use in (
        lambda: ann.start(waits),
        lambda: ann.turn("hi"),
        ann.processes,
        lambda: ann.grant_process("p"),
        lambda: ann.transfer_processes(["p"], to="bob"),
        ann.delete,
        ann.view,
        handle.status,
        handle.cancel,
    ):
        with pytest.raises(AppNotOpen):
            await use()


# --- arguments ---

STRINGS: list[Any] = ["p", b"p", None, 5]


@pytest.mark.parametrize("given", STRINGS)
async def test_lists_of_ids_are_lists(given: Any, memory: Backend) -> None:
    async with make_app(memory.url) as app:
        ann = app.session("ann")
        await start(app, "p", ann)
        with pytest.raises(ArgumentsInvalid, match="keep="):
            await ann.cancel_unreferenced_processes(keep=given)
        with pytest.raises(ArgumentsInvalid, match="process_ids="):
            await ann.transfer_processes(given, to="bob")
        for name in ("", "a\0b", 5):
            with pytest.raises(MissingProcessExecutionId):
                await ann.cancel_unreferenced_processes(keep=["p", name])  # type: ignore[list-item]
        assert await held(ann) == ["p"]


async def test_texts_flags_and_types_are_checked_in_the_call(memory: Backend) -> None:
    async with make_app(memory.url) as app:
        ann, waits = app.session("ann"), app.services.definitions["waits"]
        agent, handle = app.agent("helper"), await start(app, "p", ann)
        given: Any
        for given in (5, b"b", ["x"]):
            with pytest.raises(ArgumentsInvalid, match="label="):
                await ann.grant_process("p", given)
            with pytest.raises(ArgumentsInvalid, match="reason="):
                await handle.cancel(given)
            with pytest.raises(ArgumentsInvalid, match="reason="):
                await ann.cancel(given)
            with pytest.raises(ArgumentsInvalid, match="force="):
                await handle.cancel(force=given)
            with pytest.raises(NotAProcess):
                ann.process_handle("p", given)
            with pytest.raises(NotAProcess):
                app.process_handle("p", given)
            with pytest.raises(ArgumentsInvalid, match="instructions="):
                app.agent("other", instructions=given)
            with pytest.raises(ArgumentsInvalid, match="description="):
                app.agent("other", description=given)
            with pytest.raises(ArgumentsInvalid, match="inner="):
                SerialHost(given)
        for given in (None, "", 1):
            with pytest.raises(ArgumentsInvalid, match="attached="):
                waits.options(attached=given)
            with pytest.raises(ArgumentsInvalid, match="attached="):
                agent.options(attached=given)
        for given in ("S", "", "a b", "\ud800"):
            with pytest.raises(ArgumentsInvalid, match="is a string, not a type"):
                agent.options(output=given)
            with pytest.raises(ArgumentsInvalid, match="is a string, not a type"):
                await ann.turn("hi", output=given)
            with pytest.raises(ArgumentsInvalid, match="is a string, not a type"):
                app.process(events={"a": given})(waits.function)
            with pytest.raises(ArgumentsInvalid, match="is a string, not a type"):
                app.trigger("tick", payload=given)
        with pytest.raises(ArgumentsInvalid, match="output"):
            await app.start(agent.options(output=list["Missing"]), "hi")  # type: ignore[name-defined]  # noqa: F821
        for given in ("", "a\0b", "\ud800"):
            with pytest.raises(NameInvalid, match="model name"):
                app.agent("other", model=given)
        with pytest.raises(ValueNotJson):
            app.agent("other", instructions="\ud800")
        with pytest.raises(TypeError, match=r"process\(\) got an unexpected keyword argument"):
            app.process(label="x")  # type: ignore[call-overload]


class Answer(BaseModel):
    n: int


async def test_a_handle_is_typed_by_the_options_of_a_start(memory: Backend) -> None:
    async with make_app(memory.url, model=ScriptedModel(lambda _: say('{"n": 1}'))) as app:
        chosen = app.agent("helper").options(id="a", output=Answer)
        await (await app.start(chosen, "hi")).result(timeout="10s")
        assert (await app.process_handle("a", chosen).result(timeout="10s")).value == Answer(n=1)
