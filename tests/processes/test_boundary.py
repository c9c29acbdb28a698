"""Commands to the process registry cross the effect boundary, from outside a run and from inside one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pylash import (
    Lash,
    LashError,
    ProcessContext,
    ProcessFailed,
    ProcessHandle,
    RuntimeEffectProcessTaskJoin,
    ToolContext,
    WorkerConfig,
)
from pylash.durable.ports import EffectHost
from pylash.durable.scopes import (
    ExecutionScope,
    ProcessScope,
    RuntimeOperationScope,
    SessionDeleteScope,
    TurnScope,
)
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import SqlStore
from pylash.testing import RecordedEffect, RecordingHost, ScriptedModel, call, say
from tests.backends import Backend, eventually
from tests.hosts import HOSTS, observed
from tests.observing_host import ObservingHost

pytestmark = pytest.mark.proves("P3")

LIVE = WorkerConfig(park_after="1h", grace="100ms")


def make_app(url: str, host: EffectHost | None = None, **options: Any) -> Lash:
    # Runs of the inline host cannot be parked, so closing the app waits for them as long as the grace period.
    options.setdefault("worker", WorkerConfig(grace="100ms"))
    app = Lash(url, host=host, **options)

    @app.process
    async def waits(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait_signal("go")

    app.trigger("push")
    return app


def start(app: Lash, process_id: str = "p") -> Awaitable[ProcessHandle[Any]]:
    return app.start(app.services.definitions["waits"].options(id=process_id))


async def rows(app: Lash, sql: str) -> list[Any]:
    """Return the rows of a query."""
    assert isinstance(app.store, SqlStore)

    def steps() -> Steps[list[Any]]:
        return (yield Statement(sql)).rows

    return await app.store.driver.run(Operation("rows", steps, read_only=True))


async def log(handle: ProcessHandle[Any]) -> list[str]:
    return [event.type async for event in handle.events()]


# --- from outside a run ---


@HOSTS
async def test_the_commands_of_an_app_are_effects_of_operations(
    kind: str, durable: Backend
) -> None:
    model = ScriptedModel(lambda _: say("Hello."))
    async with (
        observed(kind, durable.url) as host,
        make_app(durable.url, host, model=model) as app,
    ):
        handle = await start(app)
        await handle.signal("go", 7, id="s1")
        assert await handle.result(timeout="10s") == 7
        other = await start(app, "q")
        await other.cancel("enough")
        await app.fork_process("p", id="fork")
        await app.triggers.emit("push", source_key="repo")
        session = app.session("chat")
        assert (await session.turn("Hi.", turn_id="t1", timeout="10s")).text == "Hello."
        await session.enqueue("And you?")
        await session.cancel()
        await session.delete()
        outside = [
            one
            for one in host.commands
            if isinstance(one.execution_scope, RuntimeOperationScope | SessionDeleteScope)
        ]
    assert [one.effect_id for one in outside] == [
        "start:python:waits",
        "signal:p:go",
        "await:p",
        "start:python:waits",
        "cancel:q",
        "fork:p",
        "emit:push",
        "submit_turn:chat:t1",
        "enqueue:chat",
        "cancel_turn:chat",
        "delete_session:chat",
    ]
    scopes = [one.execution_scope for one in outside]
    *operations, deletion = scopes
    assert all(isinstance(scope, RuntimeOperationScope) for scope in operations)
    assert len({scope.id for scope in operations}) == len(operations)
    assert deletion == SessionDeleteScope("chat")
    assert all(scope in host.scopes for scope in scopes)
    for effect in outside[:-1]:
        assert effect.replay_key == f"{effect.execution_scope.id}:process:{effect.effect_id}"
    assert str(outside[-1].replay_key).endswith(":process:delete_session:chat")
    assert outside[-1].runtime_scope.session_id == "chat"


@HOSTS
async def test_answering_a_wait_for_a_signal_is_a_signal_at_the_boundary(
    kind: str, durable: Backend
) -> None:
    async with observed(kind, durable.url) as host, make_app(durable.url, host) as app:
        handle = await start(app)
        (wait,) = await eventually(app.waits)
        host.clear()
        await app.resolve(wait.key, 3)
        assert await handle.result(timeout="10s") == 3
        (signal, *_) = host.commands
    assert (signal.effect_id, type(signal.execution_scope)) == (
        "signal:p:go",
        RuntimeOperationScope,
    )


@HOSTS
async def test_a_timeout_is_a_cancel_at_the_boundary(kind: str, durable: Backend) -> None:
    async with observed(kind, durable.url) as host:
        app = make_app(durable.url, host)

        @app.process(timeout="50ms")
        async def slow(ctx: ProcessContext[None]) -> None:
            await ctx.wait_signal("never")

        async with app:
            handle = await app.start(slow.options(id="s"))
            with pytest.raises(ProcessFailed, match="timeout"):
                await handle.result(timeout="10s")
        (cancel,) = [one for one in host.commands if one.effect_id == "cancel:s"]
    assert isinstance(cancel.execution_scope, RuntimeOperationScope)


async def test_a_host_that_refuses_a_command_sees_it_and_nothing_is_done() -> None:
    host = RecordingHost()
    async with make_app("memory://", host, worker=None) as app:
        session = app.session("chat")
        for asked in (
            start(app),
            app.process_handle("p").cancel(),
            app.triggers.emit("push", source_key="repo", idempotency_key="k"),
            session.turn("Hi.", turn_id="t1"),
            session.enqueue("And you?"),
            session.cancel(),
            session.delete(),
        ):
            with pytest.raises(LashError) as caught:
                await asked
            assert caught.value.code == "recording_effect_host_unsupported_command"
        assert await app.processes() == []
        for table in ("runs", "occurrences", "queue", "lanes"):
            assert await rows(app, f"select count(*) from pylash_{table}") == [(0,)], table
    assert [one.effect_id for one in host.effects] == [
        "start:python:waits",
        "cancel:p",
        "emit:push",
        "submit_turn:chat:t1",
        "enqueue:chat",
        "cancel_turn:chat",
        "delete_session:chat",
    ]


async def test_a_host_that_refuses_a_fork_sees_it_and_nothing_is_done(durable: Backend) -> None:
    async with make_app(durable.url, worker=None) as app:
        await start(app)
    host = RecordingHost()
    async with make_app(durable.url, host, worker=None) as app:
        with pytest.raises(LashError) as caught:
            await app.fork_process("p", id="fork")
        assert caught.value.code == "recording_effect_host_unsupported_command"
        assert [one.id for one in await app.processes()] == ["p"]
    assert [one.effect_id for one in host.effects] == ["fork:p"]


async def test_the_registry_is_the_record_of_an_operation(durable: Backend) -> None:
    """A journal host writes one row set for a start, and neither a run nor an entry for the command."""
    async with make_app(durable.url, worker=None) as app:
        assert isinstance(app.store, SqlStore)
        operations, honest = list[str](), app.store.driver.run

        def noted(operation: Operation[Any]) -> Awaitable[Any]:
            operations.append(operation.name)
            return honest(operation)

        app.store.driver.run = noted  # type: ignore[method-assign]
        handle = await start(app)
        await handle.signal("go", 1, id="s1")
        await handle.cancel("enough")
        assert operations == ["start", "perform", "perform"]
        await handle.signal("go", 1, id="s1")  # the same signal
        await start(app)  # the same process
        assert await log(handle) == ["process.started", "signal.go", "process.cancel_requested"]
        assert await rows(app, "select count(*) from pylash_runs") == [(1,)]
        assert await rows(app, "select count(*) from pylash_effects") == [(0,)]


async def test_the_store_is_the_record_of_forks_triggers_and_turns(durable: Backend) -> None:
    """Each is one operation of the store (a message also opens its session), and repeating it changes nothing."""
    async with make_app(durable.url, worker=None) as app:
        assert isinstance(app.store, SqlStore)
        await start(app)
        session = app.session("chat")
        operations, honest = list[str](), app.store.driver.run

        def noted(operation: Operation[Any]) -> Awaitable[Any]:
            if not operation.read_only:
                operations.append(operation.name)
            return honest(operation)

        app.store.driver.run = noted  # type: ignore[method-assign]
        for _ in range(2):
            await app.fork_process("p", id="fork")
            await app.triggers.emit("push", source_key="repo", idempotency_key="k")
            await session.submit("Hi.", "t1", None)
            await session.enqueue("And you?", key="m1")
        assert operations == 2 * ["fork", "emit", "submit", "open", "_enqueue"]
        assert await rows(app, "select count(*) from pylash_runs") == [(3,)]
        assert await rows(app, "select count(*) from pylash_occurrences") == [(1,)]
        assert await rows(app, "select count(*) from pylash_queue") == [(1,)]
        assert await rows(app, "select count(*) from pylash_effects") == [(0,)]


@HOSTS
async def test_a_trigger_of_a_tool_is_emitted_at_the_boundary(kind: str, durable: Backend) -> None:
    model = ScriptedModel([call("report"), say("Reported.")])
    async with observed(kind, durable.url) as host:
        app = make_app(durable.url, host, model=model)

        @app.tool
        async def report(ctx: ToolContext[None]) -> str:
            ctx.emit("push", source_key="repo", payload={"n": 1})
            return "done"

        async with app:
            waits = app.services.definitions["waits"]
            await app.triggers.register("push", source_key="repo", target=waits, key="ci")
            session = app.session("chat")
            assert (await session.turn("go", turn_id="t1", timeout="20s")).text == "Reported."
            assert len(await app.processes()) == 1
        (emitted,) = [one for one in host.commands if one.effect_id == "emit:push"]
    assert isinstance(emitted.execution_scope, RuntimeOperationScope)
    assert emitted.replay_key == f"{emitted.execution_scope.id}:process:emit:push"


@HOSTS
async def test_a_tool_may_use_the_app_within_its_attempt(kind: str, durable: Backend) -> None:
    model = ScriptedModel([call("begin"), say("Begun.")])
    async with observed(kind, durable.url) as host:
        app = make_app(durable.url, host, model=model)

        @app.tool
        async def begin() -> str:
            handle = await start(app)
            await handle.signal("go", 5)
            return str(await handle.result(timeout="10s"))

        async with app:
            assert (await app.session("chat").turn("go", timeout="20s")).text == "Begun."
        assert model.requests[-1].messages[-1].text == "5"


# --- a caller that is cancelled ---


class SlowStore:
    """Holds operations of some names back, until they may go on."""

    def __init__(self, app: Lash, *names: str) -> None:
        assert isinstance(app.store, SqlStore)
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self.count = 0
        self._names = names
        self._honest = app.store.driver.run
        app.store.driver.run = self.run  # type: ignore[method-assign]

    def run(self, operation: Operation[Any]) -> Awaitable[Any]:
        return self._held(operation) if operation.name in self._names else self._honest(operation)

    async def _held(self, operation: Operation[Any]) -> Any:
        self.count += 1
        self.reached.set()
        await self.go.wait()
        return await self._honest(operation)


async def leave(slow: SlowStore, asked: Awaitable[Any]) -> None:
    """Cancel the caller of work that the store has been asked for, and let the store go on."""

    async def caller() -> None:
        await asked

    task = asyncio.get_running_loop().create_task(caller())
    await asyncio.wait_for(slow.reached.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    slow.go.set()


@HOSTS
@pytest.mark.parametrize("config", [None, LIVE], ids=["queued", "here"])
async def test_a_start_outlives_its_caller(
    kind: str, config: WorkerConfig | None, durable: Backend
) -> None:
    async with observed(kind, durable.url) as host:
        async with make_app(durable.url, host, worker=config) as app:
            slow = SlowStore(app, "start", "perform")
            await leave(slow, start(app))
            handle = app.process_handle("p")

            async def is_started() -> bool:
                return bool(await app.processes())

            await eventually(is_started)
            await start(app)
            assert await log(handle) == ["process.started"]
            assert len(await app.processes()) == 1
        async with make_app(durable.url, host) as app:
            handle = app.process_handle("p")
            await handle.signal("go", 1)
            assert await handle.result(timeout="10s") == 1


SIGNALLED = ["process.started", "signal.go"]
ASKED_TO_END = ["process.started", "process.cancel_requested"]
TURNS = "pylash_runs where target = 'turn'"


@HOSTS
@pytest.mark.parametrize(
    ("ask", "found"),
    [
        (lambda handle: handle.signal("go", 1, id="s"), SIGNALLED),
        (lambda handle: handle.cancel("enough"), ASKED_TO_END),
    ],
    ids=["signal", "cancel"],
)
async def test_a_signal_and_a_cancel_outlive_their_caller(
    kind: str,
    ask: Callable[[ProcessHandle[Any]], Awaitable[None]],
    found: list[str],
    durable: Backend,
) -> None:
    async with observed(kind, durable.url) as host, make_app(durable.url, host, worker=None) as app:
        handle = await start(app)
        slow = SlowStore(app, "perform")
        await leave(slow, ask(handle))

        async def is_done() -> bool:
            return await log(handle) == found

        await eventually(is_done)
        assert slow.count == 1
        await ask(handle)
        assert await log(handle) == found


@HOSTS
@pytest.mark.parametrize(
    ("ask", "operation", "sql"),
    [
        (lambda app: app.fork_process("p", id="f"), "fork", "pylash_processes where id = 'f'"),
        (
            lambda app: app.triggers.emit("push", source_key="repo", idempotency_key="k"),
            "emit",
            "pylash_occurrences",
        ),
        (lambda app: app.session("chat").submit("Hi.", "t1", None), "submit", TURNS),
        (lambda app: app.session("chat").enqueue("Hi.", key="m1"), "_enqueue", "pylash_queue"),
    ],
    ids=["fork", "emit", "submit", "enqueue"],
)
async def test_a_fork_a_trigger_and_a_turn_outlive_their_caller(
    kind: str, ask: Callable[[Lash], Awaitable[Any]], operation: str, sql: str, durable: Backend
) -> None:
    async with observed(kind, durable.url) as host, make_app(durable.url, host, worker=None) as app:
        await start(app)
        slow = SlowStore(app, operation)
        await leave(slow, ask(app))

        async def is_done() -> bool:
            return await rows(app, f"select count(*) from {sql}") == [(1,)]

        await eventually(is_done)
        assert slow.count == 1
        await ask(app)
        assert await is_done()


@HOSTS
async def test_a_deletion_outlives_its_caller(kind: str, durable: Backend) -> None:
    async with observed(kind, durable.url) as host:
        model = ScriptedModel(lambda _: say("Hello."))
        async with make_app(durable.url, host, model=model) as app:
            session = app.session("chat")
            await session.turn("Hi.", timeout="10s")
            slow = SlowStore(app, "_fence_off")
            await leave(slow, session.delete())

            async def is_gone() -> bool:
                return await rows(app, "select count(*) from pylash_nodes") == [(0,)]

            await eventually(is_gone)
            assert slow.count == 1
            assert (await session.delete()).messages == 0


@HOSTS
async def test_waiting_for_a_result_ends_with_its_caller(kind: str, durable: Backend) -> None:
    async with observed(kind, durable.url) as host, make_app(durable.url, host) as app:
        handle = await start(app)
        with pytest.raises(TimeoutError):
            await handle.result(timeout="10ms")
        await handle.signal("go", 2)
        assert await handle.result(timeout="10s") == 2


# --- work that breaks ---


@HOSTS
@pytest.mark.parametrize("config", [None, LIVE], ids=["queued", "here"])
async def test_work_that_breaks_is_reported_with_its_code(
    kind: str, config: WorkerConfig | None, durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise RuntimeError("a bug")

    async with (
        observed(kind, durable.url) as host,
        make_app(durable.url, host, worker=config) as app,
    ):
        handle = await start(app)
        assert isinstance(app.store, SqlStore)
        honest = app.store.driver.run

        def run(operation: Operation[Any]) -> Awaitable[Any]:
            works = operation.name not in ("start", "perform", "_fence_off")
            return honest(operation) if works else broken()

        with monkeypatch.context() as patch:
            patch.setattr(app.store.driver, "run", run)
            for asked in (start(app, "q"), handle.cancel(), app.session("chat").delete()):
                with pytest.raises(RuntimeEffectProcessTaskJoin, match="a bug") as caught:
                    await asked
                assert caught.value.code == "runtime_effect_process_task_join"
        assert await log(handle) == ["process.started"]


# --- from inside a run ---

PROGRAM = """
process main() {
  w = start works()
  signal run w go with 5
  r = (await w)?
  cancel w
  finish r
}
process works() signals { go: int } { finish wait signal go }
"""


def commands_of(host: ObservingHost, scope: ExecutionScope) -> list[RecordedEffect]:
    return [one for one in host.commands if one.execution_scope == scope]


@HOSTS
async def test_the_commands_of_processes_and_programs_name_their_effects(
    kind: str, durable: Backend
) -> None:
    async with observed(kind, durable.url) as host:
        app = make_app(durable.url, host)

        @app.process
        async def parent(ctx: ProcessContext[None]) -> Any:
            child = await ctx.start(app.services.definitions["waits"].options(id="child"))
            await child.signal("go", 1, id="s")
            return await child.result()

        async with app:
            python = await app.start(parent.options(id="python"))
            assert await python.result(timeout="10s") == 1
            module = await app.lashlang(PROGRAM)
            lashlang = await app.start(module["main"].options(id="lashlang"))
            assert await lashlang.result(timeout="10s") == 5
        ctx = commands_of(host, ProcessScope("python"))
        program = commands_of(host, ProcessScope("lashlang"))
    assert [str(one.replay_key) for one in ctx] == [
        "root:process:start:python:waits",
        "root:process:signal:child:go",
        "root:process:await:child",
    ]
    # The language says what the keys of a program are: process:{id}: (which the scope has), the command, its site.
    words = [str(one.replay_key).partition(":")[0] for one in program]
    assert words == ["start", "signal", "await", "cancel"]
    assert len({one.replay_key for one in program}) == 4


@HOSTS
async def test_the_commands_of_turns_and_their_tools_name_their_effects(
    kind: str, durable: Backend
) -> None:
    def model(request: Any) -> Any:
        text = request.messages[-1].text
        if text == "help":
            return say("helped")
        if text == "go":
            return call("spawn_agent", agent="helper", task="help")
        if text == "helped":
            return call("start_workflow", source=PROGRAM, process="works")
        return say("Done.")

    async with observed(kind, durable.url) as host:
        app = make_app(durable.url, host, model=ScriptedModel(model))
        app.agent("helper")
        app.subagents("helper")
        app.workflows()
        async with app:
            session = app.session("chat")
            assert (await session.turn("go", turn_id="t1", timeout="20s")).text == "Done."
        begin, answer = commands_of(host, TurnScope("chat", "t1"))
        submit, workflow = [
            one for one in host.commands if isinstance(one.execution_scope, RuntimeOperationScope)
        ]
    assert submit.effect_id == "submit_turn:chat:t1"
    call_id, _, started = str(begin.replay_key).partition(":process:")
    assert started == "start:session_turn"
    assert str(answer.replay_key).startswith(f"{call_id}:process:await:helper-")
    assert workflow.effect_id == "start:lashlang"
    assert (workflow.runtime_scope.session_id, workflow.runtime_scope.turn_id) == ("chat", "t1")
    assert workflow.replay_key == f"{workflow.execution_scope.id}:process:start:lashlang"
