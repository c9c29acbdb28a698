"""Programs whose recorded journals are kept, and what drives each of them to its end.

A driver may be run again over a store that an earlier run of it left behind at any moment: it gives ids to
everything it starts and sends, and repeating what it already did changes nothing. It returns what must be the
same whenever the earlier run stopped.

Editing a program makes its recorded journals useless: add a new program instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pylash import (
    Lash,
    ProcessCancelled,
    ProcessContext,
    ProcessFailed,
    ProcessHandle,
    StepFailed,
    ToolContext,
    WaitTimeout,
    WorkerConfig,
)
from pylash.durable.ports import Clock
from pylash.durable.scopes import TurnScope
from pylash.engine.runs.asides import aside
from pylash.testing import ScriptedModel, call, calls, say
from tests.backends import eventually

Context = ProcessContext[None]
Driver = Callable[[Lash], Awaitable[Any]]

TIMEOUT: Final = "20s"
SIGNAL: Final = "process:wait_signal:"
"""What the replay key of a wait for a signal has between its branch and its name."""


async def note(text: str) -> str:
    """Stand for any work of a step."""
    return text


async def refuse(text: str) -> str:
    """Stand for a step that fails."""
    raise ValueError(text)


# --- processes ---


async def nested_gathers(ctx: Context) -> str:
    """Wait in branches of branches; each cleans up with steps, and so does its waiter."""

    async def leaf(name: str) -> None:
        try:
            await ctx.wait_signal(f"never-{name}")
        finally:
            await ctx.step(note, f"clean {name}")

    async def fork(name: str) -> None:
        try:
            await ctx.gather(leaf(f"{name}a"), leaf(f"{name}b"))
        finally:
            await ctx.step(note, f"clean {name}")

    try:
        await ctx.gather(fork("x"), fork("y"), leaf("z"))
    finally:
        await ctx.step(note, "clean all")
    return "never"


async def caught_cancel(ctx: Context) -> str:
    """Catch the cancel in every branch of a gather and go on with further effects; the gather raises it."""

    async def stubborn(name: str) -> str:
        try:
            await ctx.wait_signal(f"never-{name}")
        except asyncio.CancelledError:
            await ctx.step(note, f"caught {name}")
            await ctx.sleep("1ms")
        return await ctx.step(note, f"went on {name}")

    try:
        await ctx.gather(stubborn("a"), stubborn("b"))
    except asyncio.CancelledError:
        await ctx.step(note, "gather ended")
    return await ctx.step(note, "returned")


async def race(ctx: Context) -> Any:
    """Let a signal win against a sleep and a wait, both of which clean up."""

    async def loser(name: str, waiting: Awaitable[Any]) -> Any:
        try:
            return await waiting
        finally:
            await ctx.step(note, f"lost {name}")

    won = await ctx.race(
        loser("sleep", ctx.sleep("1h")),
        ctx.wait_signal("win"),
        loser("wait", ctx.wait_signal("never")),
    )
    return [won, await ctx.step(note, "after")]


async def failing_branch(ctx: Context) -> str:
    """Cancel the siblings of a branch that fails."""

    async def waits(name: str) -> None:
        try:
            await ctx.wait_signal(f"never-{name}")
        finally:
            await ctx.step(note, f"clean {name}")

    async def fails() -> None:
        await ctx.wait_signal("fail")
        await ctx.step(refuse, "broken")

    try:
        await ctx.gather(waits("a"), fails(), waits("b"))
    except StepFailed as error:
        return f"{error.code}: {await ctx.step(note, 'handled')}"
    return "never"


async def left_group(ctx: Context) -> str:
    """Leave a task group by an exception while its branches wait."""

    async def waits(name: str) -> None:
        try:
            await ctx.wait_signal(f"never-{name}")
        finally:
            await ctx.step(note, f"clean {name}")

    try:
        async with ctx.task_group() as group:
            group.create_task(waits("a"))
            group.create_task(waits("b"))
            await ctx.wait_signal("leave")
            raise ValueError("left")  # noqa: TRY301 - it must be raised inside the group
    except* ValueError:
        await ctx.step(note, "left")
    return "done"


GATE: Final[list[asyncio.Event]] = []
"""What plain code of ``held_branch`` waits for; its driver sets it."""


async def held_branch(ctx: Context) -> str:
    """Be in plain code in one branch when the cancel comes, and then ask for an effect."""

    async def waits() -> None:
        await ctx.wait_signal("never-1")

    async def late() -> None:
        try:
            await ctx.step(note, "before")
            await GATE[0].wait()
            await ctx.step(note, "late")
            await ctx.wait_signal("never-2")
        finally:
            await ctx.step(note, "clean late")

    try:
        await ctx.gather(waits(), late())
    finally:
        await ctx.step(note, "clean")
    return "never"


async def beside_library(ctx: Context) -> str:
    """Let tasks of a library, which are no branches, wait for the process."""

    async def ask(name: str) -> None:
        beside = aside()
        assert beside is not None
        taken = beside.take(name)
        await beside.sleep(beside.key(taken), name, 3600)

    try:
        async with asyncio.TaskGroup() as library:
            library.create_task(ask("one"))
            library.create_task(ask("two"))
    finally:
        await ctx.step(note, "clean")
    return "never"


async def timeouts(ctx: Context) -> list[str]:
    """Run into the time limits of a signal, a wait and a step."""
    met = []
    met.append(await ctx.wait_signal("never", timeout="20ms", default="signal"))
    try:
        await ctx.wait(ctx.wait_key("nobody"), timeout="20ms")
    except WaitTimeout:
        met.append(await ctx.step(note, "wait"))

    async def slow() -> None:
        await asyncio.sleep(60)

    try:
        await ctx.options(timeout="20ms").step(slow)
    except StepFailed as error:
        met.append(error.code)
    return met


async def deadline(ctx: Context) -> str:
    """Run into the time limit of the process itself."""
    try:
        await ctx.wait_signal("never")
    finally:
        await ctx.step(note, "clean")
    return "never"


async def child(ctx: Context, name: str) -> str:
    """Wait for a signal and clean up."""
    try:
        return str(await ctx.wait_signal("go"))
    finally:
        await ctx.step(note, f"clean {name}")


CHILD: Final = Lash("memory://").process(child)
"""A process is its name and signature: any app that has it executes it."""


async def parent(ctx: Context) -> Any:
    """Wait for a child that ends and for an attached one that is cancelled with the parent."""
    first = await ctx.start(CHILD.options(id="first"), name="first")
    got = await first.result()
    await ctx.start(CHILD.options(id="second", attached=True), name="second")
    try:
        await ctx.wait_signal("never")
    finally:
        await ctx.step(note, f"clean after {got}")


async def every_wait(ctx: Context) -> list[Any]:
    """Park at a sleep, a signal, a wait key, a child and a turn, one after another."""
    got: list[Any] = [await ctx.step(note, "begun")]
    await ctx.sleep("20ms")
    got.append(await ctx.wait_signal("one"))
    got.append(await ctx.wait(ctx.wait_key("two")))
    started = await ctx.start(CHILD.options(id="third"), name="third")
    got.append(await started.result())
    turn = await ctx.session("writer").turn("Write.", turn_id="w1")
    got.append(turn.text)
    return got


async def continued(ctx: Context, epoch: int = 0) -> str:
    """Continue with a fresh journal twice, then wait to be cancelled."""
    await ctx.step(note, f"epoch {epoch}")
    if epoch < 2:
        await ctx.continue_as(epoch=epoch + 1)
    try:
        await ctx.wait_signal("never")
    finally:
        await ctx.step(note, "clean")
    return "never"


PROCESSES: Final = (
    nested_gathers,
    caught_cancel,
    race,
    failing_branch,
    left_group,
    held_branch,
    beside_library,
    timeouts,
    parent,
    child,
    every_wait,
    continued,
)


def make_app(url: str, clock: Clock) -> Lash:
    """Make the app with every program in it, not open yet."""
    app = Lash(url, model=ScriptedModel(_reply), worker=WorkerConfig(park_after="5ms"), clock=clock)
    for program in PROCESSES:
        app.process(program)
    app.process(timeout="200ms")(deadline)

    @app.tool(approval=True)
    async def refund(order: int) -> str:
        return f"refunded {order}"

    @app.tool
    async def ask(ctx: ToolContext[None], question: str) -> Any:
        return ctx.defer(deadline="1d")

    app.agent("helper", instructions="You help.", tools=["refund"])
    app.subagents("helper")
    return app


def _reply(request: Any) -> Any:
    """Answer by what was said last: a reply must not depend on how often the worker was started."""
    last = request.messages[-1]
    if last.role == "tool":
        return say(f"Told: {last.text}")
    match last.text:
        case "refund":
            return call("refund", order=7)
        case "ask":
            return call("ask", question="why")
        case "both":
            return calls(call("refund", order=1), call("ask", question="both"))
        case "delegate":
            return call("spawn_agent", agent="helper", task="refund")
        case text:
            return say(f"Heard: {text}")


LEAVES: Final = ((0, 0, "xa"), (0, 1, "xb"), (1, 0, "ya"), (1, 1, "yb"))


# --- drivers of processes ---


async def ending(handle: ProcessHandle[Any]) -> list[Any]:
    """Return how a process ended, as plain data."""
    try:
        return ["completed", await handle.result(timeout=TIMEOUT)]
    except ProcessCancelled as error:
        return ["cancelled", str(error)]
    except ProcessFailed as error:
        return ["failed", error.code, str(error)]


async def has_recorded(app: Lash, process_id: str, *keys: str) -> None:
    """Return once a process has recorded something under each key, or has ended."""

    async def look() -> bool:
        record = await app.store.processes.get(process_id)
        if record is None or record.state.status != "open":
            return record is not None
        found = {entry.key for entry in await app.store.journal.timeline(record.run)}
        return found >= set(keys)

    await eventually(look, 20)


async def begin(app: Lash, program: Any, process_id: str = "p") -> ProcessHandle[Any]:
    """Start a program under an id, or find it started."""
    return await app.start(Lash("memory://").process(program).options(id=process_id))


def cancelled_at(program: Any, *keys: str) -> Driver:
    """Return a driver that cancels a process once it has recorded the given keys."""

    async def drive(app: Lash) -> Any:
        handle = await begin(app, program)
        await has_recorded(app, "p", *keys)
        await handle.cancel("enough")
        return await ending(handle)

    return drive


def signalled(program: Any, name: str, *keys: str) -> Driver:
    """Return a driver that sends a signal once a process has recorded the given keys."""

    async def drive(app: Lash) -> Any:
        handle = await begin(app, program)
        await has_recorded(app, "p", *keys)
        await handle.signal(name, name, id=name)
        return await ending(handle)

    return drive


async def drive_timeouts(app: Lash) -> Any:
    """Wait until every time limit is over."""
    return await ending(await begin(app, timeouts))


async def drive_held_branch(app: Lash) -> Any:
    """Cancel while one branch is in plain code, and let it go on after that."""
    GATE[:] = [asyncio.Event()]
    handle = await begin(app, held_branch)
    record = await app.store.processes.get("p")
    assert record is not None
    await has_recorded(app, "p", f"gather.0:{SIGNAL}never-1", "gather.1/note")
    await handle.cancel("enough")
    if not record.state.cancel:  # one that came before this execution is delivered behind the gate
        await has_recorded(app, "p", "!cancel")
    GATE[0].set()
    return await ending(handle)


async def drive_deadline(app: Lash) -> Any:
    """Wait until the process has used its time up."""
    program = Lash("memory://").process(timeout="200ms")(deadline)
    return await ending(await app.start(program.options(id="p")))


async def drive_parent(app: Lash) -> Any:
    """Let the first child end, and cancel the parent beside the second."""
    handle = await begin(app, parent)
    first, second = app.process_handle("first"), app.process_handle("second")
    await has_recorded(app, "first")
    await first.signal("go", "gone", id="go")
    await has_recorded(app, "second", signal_key("go"))
    await has_recorded(app, "p", signal_key("never"))
    await handle.cancel("enough")
    return [await ending(one) for one in (handle, first, second)]


async def drive_every_wait(app: Lash) -> Any:
    """Answer one wait after another, each once it is waited for."""
    handle = await begin(app, every_wait)
    await has_recorded(app, "p", signal_key("one"))
    await handle.signal("one", 1, id="one")
    await has_recorded(app, "p", "wait two")
    for wait in await app.waits():
        if wait.kind == "custom":
            await app.resolve(wait.key, 2)
    await has_recorded(app, "third")
    await app.process_handle("third").signal("go", 3, id="go")
    return await ending(handle)


def signal_key(name: str) -> str:
    """Return the replay key of the first wait for a signal outside of any branch."""
    return f"root:{SIGNAL}{name}"


# --- drivers of turns ---


async def asked(app: Lash, text: str, act: Callable[[], Awaitable[Any]]) -> Any:
    """Ask a session, act while its turn is under way, and return how the turn ended and what was said."""
    session = app.session("chat")
    async with asyncio.TaskGroup() as tasks:
        turn = tasks.create_task(session.turn(text, turn_id="t1", timeout=TIMEOUT))
        await act()
    result = turn.result()
    said = [[one.role, one.text] for one in await session.history()]
    return [result.status, result.code, said]


async def first_wait(app: Lash) -> str | None:
    """Return the key of an open wait, once there is one; None once the turn has ended."""

    async def look() -> list[str | None]:
        record = await app.store.sessions.turn(TurnScope("chat", "t1"))
        if record is not None and record.result is not None:
            return [None]
        return [wait.key for wait in await app.waits()]

    return (await eventually(look, 20))[0]


def interrupted(text: str, when: str) -> Driver:
    """Return a driver that interrupts or cancels a turn at its open wait."""

    async def drive(app: Lash) -> Any:
        async def act() -> None:
            session = app.session("chat")
            if await first_wait(app) is None:
                return
            if when == "cancel":
                await session.cancel("enough")
            else:
                await session.enqueue("Never mind.", when="interrupt", key="k1")

        return await asked(app, text, act)

    return drive


def answered(text: str) -> Driver:
    """Return a driver that answers every wait of a turn with true."""

    async def drive(app: Lash) -> Any:
        async def act() -> None:
            while (key := await first_wait(app)) is not None:
                await app.resolve(key, True)

        return await asked(app, text, act)

    return drive


DRIVERS: Final[dict[str, Driver]] = {
    "nested-gathers": cancelled_at(
        nested_gathers,
        *(f"gather.{n}/gather.{m}:{SIGNAL}never-{name}" for n, m, name in LEAVES),
        f"gather.2:{SIGNAL}never-z",
    ),
    "caught-cancel": cancelled_at(
        caught_cancel, *(f"gather.{n}:{SIGNAL}never-{name}" for n, name in enumerate("ab"))
    ),
    "race": signalled(race, "win", "sleep", signal_key("win"), signal_key("never")),
    "failing-branch": signalled(
        failing_branch,
        "fail",
        *(f"gather.{n}:{SIGNAL}{name}" for n, name in enumerate(("never-a", "fail", "never-b"))),
    ),
    "left-group": signalled(
        left_group,
        "leave",
        signal_key("leave"),
        *(f"group.{n}:{SIGNAL}never-{name}" for n, name in enumerate("ab")),
    ),
    "held-branch": drive_held_branch,
    "beside-library": cancelled_at(beside_library, "one", "two"),
    "timeouts": drive_timeouts,
    "deadline": drive_deadline,
    "parent": drive_parent,
    "every-wait": drive_every_wait,
    "continued": cancelled_at(continued, signal_key("never")),
    "approval-answered": answered("refund"),
    "approval-interrupted": interrupted("refund", "interrupt"),
    "approval-cancelled": interrupted("refund", "cancel"),
    "deferral-answered": answered("ask"),
    "deferral-interrupted": interrupted("ask", "interrupt"),
    "batch-cancelled": interrupted("both", "cancel"),
    "subagent-answered": answered("delegate"),
    "subagent-cancelled": interrupted("delegate", "cancel"),
}
"""Each is recorded in ``tests/fixtures/replay/NAME.json.gz``."""
