"""Code that was changed under a recorded run: nothing recorded is executed again, and nothing is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pylash import Lash, ProcessBlocked, ProcessContext, Retry
from pylash.testing import kill
from tests.backends import Backend, eventually

Body = Callable[[ProcessContext[None], "Ledger"], Awaitable[Any]]


class Ledger:
    """Steps with side effects, each noted when it is executed."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, name: str) -> Callable[..., str]:
        """Return a step of a name."""

        def perform(*args: Any) -> str:
            self.lines.append(name)
            return " ".join([name, *map(str, args)])

        perform.__name__ = name
        return perform


def app_with(backend: Backend, body: Body, ledger: Ledger) -> Lash:
    app = Lash(backend.url)

    @app.process(name="order")
    async def order(ctx: ProcessContext[None]) -> Any:
        return await body(ctx, ledger)

    return app


async def recorded(backend: Backend, body: Body, ledger: Ledger) -> None:
    """Run a process until it waits, and kill its worker there."""
    app = app_with(backend, body, ledger)
    await app.open()
    await app.start(app.services.definitions["order"].options(id="p"))

    async def waits() -> bool:
        view = await app.process_handle("p").timeline()
        return any(one.is_wait and one.status == "open" for one in view)

    await eventually(waits)
    await kill(app)


async def outcome(backend: Backend, body: Body, ledger: Ledger) -> Any:
    """Deploy a body, send the signal, and return the result or why the process is blocked."""
    async with app_with(backend, body, ledger) as app:
        handle = app.process_handle("p")
        await app.retry("p") if await handle.status() == "blocked" else None
        await handle.signal("go")

        async def stands() -> bool:
            return await handle.status() in ("completed", "failed", "blocked")

        await eventually(stands)
        try:
            return await handle.result(timeout=0)
        except ProcessBlocked as error:
            return error


async def old(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def renamed(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.step(ledger.step("charge_card"), 7)
    await ctx.wait_signal("go")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def keeps_name(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.options(key="charge").step(ledger.step("charge_card"), 7)
    await ctx.wait_signal("go")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def inserted_before(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    await ctx.step(ledger.step("check"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def inserted_behind(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    await ctx.step(ledger.step("check"))
    return [first, second, await ctx.step(ledger.step("ship"))]


async def removed(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    return [second, await ctx.step(ledger.step("ship"))]


async def removed_last(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.step(ledger.step("charge"), 7)
    return [first, second, await ctx.step(ledger.step("ship"))]


async def swapped(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    second = await ctx.step(ledger.step("charge"), 7)
    first = await ctx.step(ledger.step("load"))
    await ctx.wait_signal("go")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def swapped_with_new(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    third = await ctx.step(ledger.step("ship"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    return [first, second, third]


async def gathered(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first, second = await ctx.gather(
        branch(ctx, ledger.step("load")), branch(ctx, ledger.step("charge"), 7)
    )
    await ctx.wait_signal("go")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def branch(ctx: ProcessContext[None], step: Callable[..., str], *args: Any) -> str:
    return await ctx.step(step, *args)


async def returns_early(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    await ctx.step(ledger.step("load"))
    return "early"


async def fails_early(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    await ctx.step(ledger.step("load"))
    raise ValueError("no")


async def continues_early(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    await ctx.step(ledger.step("load"))
    ctx.continue_as()


async def notes_added(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    ctx.now(), ctx.random(), ctx.uuid()
    first = await ctx.step(ledger.step("load"))
    second = await ctx.options(retry=Retry(2)).step(ledger.step("charge"), 7)
    ctx.log.info("waiting")
    await ctx.wait_signal("go", timeout="1w")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def patched(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    if await ctx.patched("check"):
        await ctx.step(ledger.step("check"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    if await ctx.patched("check"):
        await ctx.step(ledger.step("second check"))
    return [first, second, await ctx.step(ledger.step("ship"))]


async def patched_behind(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    if await ctx.patched("check"):
        await ctx.step(ledger.step("check"))
    return [first, second, await ctx.step(ledger.step("ship"))]


DONE = ["load", "charge 7", "ship"]
RUNS: list[tuple[Body, Any, list[str]]] = [
    (old, DONE, ["load", "charge", "ship"]),
    (keeps_name, DONE, ["load", "charge", "ship"]),
    (inserted_behind, DONE, ["load", "charge", "check", "ship"]),
    (removed, ["charge 7", "ship"], ["load", "charge", "ship"]),
    (swapped, DONE, ["load", "charge", "ship"]),
    (notes_added, DONE, ["load", "charge", "ship"]),
    (patched, DONE, ["load", "charge", "ship"]),
    (patched_behind, DONE, ["load", "charge", "check", "ship"]),
]
BLOCKS: list[tuple[Body, str, str]] = [
    (renamed, "charge_card", "'charge'"),
    (inserted_before, "check", "'charge'"),
    (removed_last, "ship", "wait_signal:go"),
    (swapped_with_new, "ship", "'charge'"),
    (gathered, "gather.0/load", "'load'"),
    (returns_early, "ends", "'charge'"),
    (fails_early, "ends", "'charge'"),
    (continues_early, "ends", "'charge'"),
]


@pytest.mark.parametrize(
    ("body", "result", "lines"), RUNS, ids=[body.__name__ for body, *_ in RUNS]
)
async def test_a_change_that_keeps_what_is_recorded_runs(
    durable: Backend, body: Body, result: Any, lines: list[str]
) -> None:
    ledger = Ledger()
    await recorded(durable, old, ledger)
    assert await outcome(durable, body, ledger) == result
    assert ledger.lines == lines


@pytest.mark.parametrize(
    ("body", "asked", "expected"), BLOCKS, ids=[body.__name__ for body, *_ in BLOCKS]
)
async def test_a_change_of_what_is_recorded_blocks_until_the_old_code_is_back(
    durable: Backend, body: Body, asked: str, expected: str
) -> None:
    ledger = Ledger()
    await recorded(durable, old, ledger)
    blocked = await outcome(durable, body, ledger)
    assert isinstance(blocked, ProcessBlocked), blocked
    assert "effect_replay_diverged" in blocked.message
    assert asked in blocked.message
    assert expected in blocked.message
    assert ledger.lines == ["load", "charge"]
    assert await outcome(durable, old, ledger) == DONE
    assert ledger.lines == ["load", "charge", "ship"]


async def test_a_patch_that_was_taken_is_taken_in_every_replay(durable: Backend) -> None:
    ledger = Ledger()
    await recorded(durable, patched, ledger)
    assert ledger.lines == ["load", "check", "charge"]
    assert await outcome(durable, patched, ledger) == DONE
    assert ledger.lines == ["load", "check", "charge", "second check", "ship"]
