"""Every exception of user code is recorded as a failure, wherever it is raised: nothing hangs, loops or ends the worker."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import pytest

from pylash import (
    Lash,
    ProcessContext,
    ProcessFailed,
    SessionPlugin,
    StepFailed,
    Summarise,
    ToolContext,
    TurnView,
    WorkerConfig,
)
from pylash.engine.hosts.inline import InlineHost
from pylash.testing import ScriptedModel, call, say
from pylash.tools.tool import Tool
from pylash.turn.requests import ModelRequest
from pylash.values.errors import (
    EffectNested,
    EffectReplayMismatch,
    LashError,
    LeaseLost,
    RunSettled,
    StoreClosed,
    StoreUnavailable,
)
from tests.backends import PostgresBackend, SqliteBackend


class Panic(BaseException):
    """What a Rust extension raises when it panics."""


class Mute(BaseException):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise Panic


class Unfinished(LashError, category=True):
    """An error of ours without what our errors have."""

    def __init__(self) -> None:
        """Forget the rest."""


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception that refuses attributes."""

    text: str


ODD: Final[dict[str, Callable[[], BaseException]]] = {
    "Panic": lambda: Panic("it panicked"),
    "Mute": Mute,
    "Frozen": lambda: Frozen("cold"),
    "Unfinished": Unfinished,
    "GeneratorExit": GeneratorExit,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("two", [Panic("one"), ValueError("two")]),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "CancelledThread": concurrent.futures.CancelledError,
    "InvalidStateError": asyncio.InvalidStateError,
    "StopIteration": lambda: StopIteration("none left"),
    "StopAsyncIteration": StopAsyncIteration,
    "StoreUnavailable": lambda: StoreUnavailable("another store is away"),
    "StoreClosed": StoreClosed,
    "LeaseLost": lambda: LeaseLost("the run of another app"),
    "RunSettled": lambda: RunSettled("the run of another app"),
    "EffectReplayMismatch": lambda: EffectReplayMismatch("a", "b"),
    "EffectNested": lambda: EffectNested("a", "b"),
    "lease_lost": lambda: LashError("it only has the code", code="lease_lost"),
    "store_unavailable": lambda: LashError("it only has the code", code="store_unavailable"),
}


class Trap:
    """User code that raises once for each place it is called from, and counts the calls."""

    def __init__(self, make: Callable[[], BaseException]) -> None:
        self._make = make
        self.calls: Counter[str] = Counter()

    def spring(self, place: str) -> NoReturn:
        self.calls[place] += 1
        raise self._make()

    def spring_for(self, place: str, wanted: str) -> None:
        if place == wanted and not self.calls[place]:
            self.spring(place)


async def cancel_itself() -> None:
    """Cancel the task that user code runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


IN_PROCESSES: Final = (
    "async step",
    "plain step",
    "awaited step",
    "body",
    "gather",
    "race",
    "task group",
    "async tool",
    "plain tool",
    "completion",
)

IN_TURNS: Final = {
    "async_tool": "completed",
    "plain_tool": "completed",
    "approved_tool": "completed",
    "read_tool": "completed",
    "completing_tool": "completed",
    "provider": "failed",
    "plugin.build": "failed",
    "plugin.tools": "failed",
    "plugin.prompt": "failed",
    "plugin.checkpoint": "failed",
}


class TrapPlugin(SessionPlugin):
    def __init__(self, trap: Trap, session_id: str) -> None:
        self._trap = trap
        self._session = session_id

    def tools(self) -> Sequence[Tool[..., Any]]:
        self._trap.spring_for("plugin.tools", self._session)
        return ()

    def prompt(self) -> str | None:
        self._trap.spring_for("plugin.prompt", self._session)
        return None

    async def checkpoint(self, turn: TurnView) -> Sequence[str]:
        self._trap.spring_for("plugin.checkpoint", turn.session_id)
        return ()


class TrapPlugins:
    name = "traps"

    def __init__(self, trap: Trap) -> None:
        self._trap = trap

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        self._trap.spring_for("plugin.build", session_id)
        return TrapPlugin(self._trap, session_id)


class Read:
    """A value whose reading is user code; pydantic asks it for a validator."""

    trap: Trap

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 - only this test needs it

        def read(value: Any) -> Any:
            if value == "trap":
                cls.trap.spring("read_tool")
            return value

        return core_schema.no_info_plain_validator_function(read)

    @classmethod
    def __get_pydantic_json_schema__(cls, source: Any, handler: Any) -> Any:
        return {"type": "string"}


def trapped_app(url: str, trap: Trap, **options: Any) -> Lash:
    """Return an app whose code springs the trap wherever user code can run."""
    Read.trap = trap
    model, worker = ScriptedModel(partial(reply, trap)), WorkerConfig(grace="1s")
    app = Lash(url, model=model, plugins=[TrapPlugins(trap)], worker=worker, **options)
    add_tools(app, trap)

    @app.process
    async def run(ctx: ProcessContext[None], place: str) -> str:
        await act(ctx, trap, place)
        return await ctx.step(str.upper, place)

    return app


def reply(trap: Trap, request: ModelRequest) -> Any:
    """Spring the trap, call the tool that the text names, or say something."""
    asked = request.messages[-1].text
    if asked in ("provider", "completion", "completing_tool: complete"):
        trap.spring("completing_tool" if asked.endswith("complete") else asked)
    if asked in IN_TURNS and not asked.startswith("plugin"):
        return call(asked, value="trap") if asked == "read_tool" else call(asked)
    return say("Done.")


def add_tools(app: Lash, trap: Trap) -> None:
    @app.tool
    async def async_tool() -> None:
        trap.spring("async_tool")

    @app.tool
    def plain_tool() -> None:
        trap.spring("plain_tool")

    @app.tool(approval=lambda: trap.spring("approved_tool"))
    def approved_tool() -> None:
        """Never runs."""

    @app.tool
    async def read_tool(value: Read) -> None:
        """Never runs."""

    @app.tool
    async def completing_tool(ctx: ToolContext[None]) -> str:
        return await ctx.complete("completing_tool: complete")


async def act(ctx: ProcessContext[None], trap: Trap, place: str) -> None:
    """Spring the trap at a place of a process."""

    async def work() -> None:
        trap.spring(place)

    async def branch() -> None:
        await ctx.step(len, place)
        trap.spring(place)

    async def group() -> None:
        async with ctx.task_group() as tasks:
            tasks.create_task(ctx.wait_signal("never"))
            tasks.create_task(branch())

    works: dict[str, Callable[[], Awaitable[Any]]] = {
        "async step": lambda: ctx.step(work),
        "plain step": lambda: ctx.step(partial(trap.spring, place)),
        "awaited step": lambda: ctx.step(lambda: work()),  # noqa: PLW0108 - no coroutine function
        "body": work,
        "gather": lambda: ctx.gather(ctx.wait_signal("never"), branch()),
        "race": lambda: ctx.race(ctx.wait_signal("never"), branch()),
        "task group": group,
        "async tool": lambda: ctx.call_tool("async_tool"),
        "plain tool": lambda: ctx.call_tool("plain_tool"),
        "completion": lambda: ctx.complete(place),
    }
    if place in works:
        await works[place]()


async def check_processes(app: Lash, trap: Trap) -> None:
    run = app.services.definitions["run"]
    for place in IN_PROCESSES:
        before = trap.calls.total()
        handle = await app.start(run, place=place)
        with pytest.raises(ProcessFailed):
            await handle.result(timeout="3s")
        assert trap.calls.total() - before == 1, place
    assert await (await app.start(run, place="none")).result(timeout="3s") == "NONE"


async def check_turns(app: Lash, trap: Trap) -> None:
    for place, status in IN_TURNS.items():
        before = trap.calls.total()
        session = app.session(place)
        text = place if status == "completed" or place == "provider" else "hello"
        result = await session.turn(text, timeout="3s")
        assert (place, result.status) == (place, status)
        assert trap.calls.total() - before == 1, place
        assert (await session.turn("again", timeout="3s")).text == "Done."


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD)
async def test_whatever_user_code_raises_is_its_failure(odd: str, tmp_path: Path) -> None:
    trap = Trap(ODD[odd])
    async with SqliteBackend(tmp_path) as backend, trapped_app(backend.url, trap) as app:
        await check_processes(app, trap)
        await check_turns(app, trap)


@pytest.mark.parametrize("odd", ["Panic", "SystemExit", "LeaseLost", "StoreUnavailable"])
async def test_it_is_on_postgresql_as_well(odd: str, postgres: str) -> None:
    trap = Trap(ODD[odd])
    async with PostgresBackend(postgres) as backend, trapped_app(backend.url, trap) as app:
        await check_processes(app, trap)
        await check_turns(app, trap)


@pytest.mark.parametrize("odd", ODD)
async def test_a_lashlang_program_gets_what_a_tool_raises_as_data_and_sinks_break_nothing(
    odd: str,
) -> None:
    trap = Trap(ODD[odd])
    async with trapped_app("memory://", trap) as app:
        app.trace_lashlang(lambda _: trap.spring("sink"))
        module = await app.lashlang(
            """process main() {
              first = await tools.async_tool()
              both = await [tools.plain_tool(), tools.async_tool()]
              finish [first.ok, both[0].ok, both[1].ok]
            }"""
        )
        handle = await app.start(module["main"])
        assert await handle.result(timeout="3s") == [False] * 3
    assert (trap.calls["async_tool"], trap.calls["plain_tool"]) == (2, 1)
    assert trap.calls["sink"] > 1


@pytest.mark.parametrize("odd", ["Panic", "SystemExit", "StopIteration", "LeaseLost"])
async def test_an_app_without_a_journal_treats_them_alike(odd: str) -> None:
    trap = Trap(ODD[odd])
    async with trapped_app("memory://", trap, host=InlineHost()) as app:
        await check_processes(app, trap)
        await check_turns(app, trap)


@pytest.mark.parametrize("odd", ["Panic", "SystemExit", "CancelledError", "StoreUnavailable"])
async def test_a_model_that_cannot_summarise_or_answer_a_subagent_fails_that_alone(
    odd: str,
) -> None:
    trap = Trap(ODD[odd])

    def answer(request: ModelRequest) -> Any:
        text = request.messages[-1].text
        if text == "delegate":
            return call("spawn_agent", agent="helper", task="fail")
        if text == "fail" or text.startswith("Summarise"):
            trap.spring(text.partition(" ")[0])
        return say("Done. " * 40)

    app = Lash("memory://", model=ScriptedModel(answer), worker=WorkerConfig(grace="1s"))
    app.agent("helper", instructions="Help.")
    app.subagents("helper")
    async with app:
        session = app.session("chat", history=Summarise(100))
        assert (await session.turn("delegate", timeout="3s")).status == "completed"
        for _ in range(3):
            assert (await session.turn("Tell me more.", timeout="3s")).status == "completed"
    assert trap.calls["fail"] == 1
    assert 0 < trap.calls["Summarise"] <= 3


async def test_code_that_cancels_the_task_it_runs_in_has_failed(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()

    async def cancelled(place: str) -> None:
        calls[place] += 1
        await cancel_itself()

    def reply(request: ModelRequest) -> Any:
        return call("stop") if request.messages[-1].text == "go" else say("Done.")

    async with SqliteBackend(tmp_path) as backend:
        app = Lash(backend.url, model=ScriptedModel(reply), worker=WorkerConfig(grace="1s"))

        @app.tool
        async def stop() -> None:
            await cancelled("tool")

        @app.process
        async def run(ctx: ProcessContext[None], place: str) -> None:
            if place == "step":
                await ctx.step(cancelled, place)
            elif place == "branch":
                await ctx.gather(ctx.wait_signal("never"), cancelled(place))
            await cancelled(place)

        async with app:
            for place in ("step", "branch", "body"):
                with pytest.raises(ProcessFailed, match="CancelledError"):
                    await (await app.start(run, place=place)).result(timeout="3s")
            session = app.session("chat")
            assert (await session.turn("go", timeout="3s")).text == "Done."
    assert calls == {"step": 1, "branch": 1, "body": 1, "tool": 1}


async def test_a_timeout_of_a_step_is_its_failure_though_timers_of_ours_expire_with_it() -> None:
    """A background task counts as cancelled from when its ``asyncio.timeout`` expires until it runs."""
    app = Lash("memory://")

    async def expire_again_and_again() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await asyncio.Event().wait()

    @app.process
    async def patient(ctx: ProcessContext[None]) -> int:
        failed = 0
        for _ in range(15):
            try:
                await ctx.options(key="hang", timeout="20ms").step(asyncio.Event().wait)
            except StepFailed:
                failed += 1
        return failed

    async with app:
        for _ in range(20):
            app.services.tasks.serve(expire_again_and_again())
        handles = [await app.start(patient) for _ in range(10)]
        assert [await handle.result(timeout="10s") for handle in handles] == [15] * 10


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let Ctrl-C raise where the code is, as it does where asyncio has no handler of its own."""

    def on_signal(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    yield
    signal.signal(signal.SIGINT, before)


def app_that_calls(act: Callable[[str], None], url: str) -> Lash:
    """Return an app whose code calls ``act`` with the name of its place."""

    def reply(request: ModelRequest) -> Any:
        act("model")
        return call("use") if request.messages[-1].text == "go" else say("Done.")

    app = Lash(url, model=ScriptedModel(reply))

    @app.tool
    async def use() -> None:
        act("tool")

    async def work(ctx: ProcessContext[None]) -> None:
        await ctx.sleep("1ms")
        act("branch")

    async def step() -> None:
        act("step")

    @app.process
    async def run(ctx: ProcessContext[None]) -> str:
        await ctx.step(step)
        await ctx.gather(work(ctx), ctx.sleep("1ms"))
        act("body")
        return "Done."

    return app


@pytest.mark.parametrize("place", ["step", "branch", "body", "tool", "model"])
@pytest.mark.usefixtures("interrupts")
def test_a_ctrl_c_stops_the_program_and_fails_no_code(place: str, tmp_path: Path) -> None:
    calls: Counter[str] = Counter()

    def press(where: str) -> None:
        calls[where] += 1
        if where == place and calls[where] == 1:
            signal.raise_signal(signal.SIGINT)

    async def result() -> Any:
        async with app_that_calls(press, f"sqlite:///{tmp_path}/store.db") as app:
            if place in ("tool", "model"):
                return (await app.session("s").turn("go", turn_id="t", timeout="20s")).text
            run = app.services.definitions["run"].options(id="p")
            return await (await app.start(run)).result(timeout="20s")

    async def stopped() -> None:
        with suppress(KeyboardInterrupt):  # it left the loop; closing the app raises it again
            await result()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(stopped())
    assert calls[place] == 1
    assert asyncio.run(result()) == "Done."
