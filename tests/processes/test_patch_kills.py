"""Old and new code by turns, and a worker killed at each write: a patch is recorded only together with what it guards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from pylash import Lash, ProcessContext
from pylash.testing.crash import Ending, run_scenario
from pylash.values.process_errors import ProcessConflict
from tests.backends import Backend, eventually

SECONDS = 5.0
POINTS = {"refusal": (6, 8)}
"""The last point without the effect and the first one with it, if they are not 4 and 6: after the first step and the next write."""

Effect = Callable[[ProcessContext[None], Any], Awaitable[Any]]


def load() -> None:
    """Be the first step."""


def check() -> None:
    """Be the step that is inserted."""


def charge() -> None:
    """Be the step behind it."""


async def start_itself(ctx: ProcessContext[None], child: Any) -> None:
    """Start a child under an id that is taken: the registry refuses, and the refusal is recorded."""
    with pytest.raises(ProcessConflict):
        await ctx.start(child.options(id=ctx.id))


EFFECTS: dict[str, Effect] = {
    "step": lambda ctx, _: ctx.step(check),
    "sleep": lambda ctx, _: ctx.sleep("1ms"),
    "wait": lambda ctx, _: ctx.wait(ctx.wait_key("approval"), within="1ms"),
    "signal": lambda ctx, _: ctx.wait_signal("approval", timeout="1ms", default=None),
    "start": lambda ctx, child: ctx.start(child),
    "emit": lambda ctx, _: ctx.emit("progress", 1),
    "race": lambda ctx, _: ctx.race(ctx.sleep("1ms"), ctx.sleep("1h")),
    "refusal": start_itself,
}


def app_with(backend: Backend, effect: Effect | None, *, guarded: bool = True) -> Lash:
    """Return an app with the old code, or with the new one, which has an effect behind a patch or without one."""
    app = Lash(backend.url)

    @app.process
    async def child(_: ProcessContext[None]) -> None:
        """Do nothing."""

    @app.process
    async def order(ctx: ProcessContext[None]) -> str:
        await ctx.step(load)
        if effect is not None and (not guarded or await ctx.patched("check")):
            await effect(ctx, child)
        await ctx.step(charge)
        await ctx.wait_signal("go")
        return "shipped"

    return app


async def start(name: str, app: Lash) -> str:
    """Start an order, once, and return its status when it waits to go on or is blocked."""
    await app.start(app.services.definitions["order"].options(id=name))
    handle = app.process_handle(name)

    async def stands() -> str | None:
        if (status := str(await handle.status())) == "blocked":
            return status
        waits = [one.key for one in await handle.timeline() if one.status == "open"]
        return "waiting" if any(key.endswith("wait_signal:go") for key in waits) else None

    return await eventually(stands)


async def finish(name: str, app: Lash) -> Any:
    """Retry an order if it is blocked, and return its result."""
    handle = app.process_handle(name)
    if await handle.status() == "blocked":
        await app.retry(name)
    await handle.signal("go")
    return await handle.result(timeout=SECONDS)


@pytest.mark.parametrize("kind", EFFECTS)
async def test_new_code_finishes_what_the_old_code_continued_after_a_kill(
    durable: Backend, kind: str
) -> None:
    old: set[Any] = set()
    for point in POINTS.get(kind, (4, 6)):
        name = f"order-{point}"

        async def deploy(
            effect: Effect | None, what: Any, point: int | None = None, name: str = name
        ) -> Ending:
            ending = await run_scenario(
                app_with(durable, effect), partial(what, name), SECONDS, point
            )
            assert ending.failure is None
            return ending

        killed = (await deploy(EFFECTS[kind], start, point)).killed
        assert killed is not None
        old.add((await deploy(None, start)).outcome)
        assert (await deploy(EFFECTS[kind], finish)).outcome == "shipped", killed
    # It went on after the kill without the effect, and does not fit a run that has it.
    assert old == {"waiting", "blocked"}


@pytest.mark.parametrize("kind", [kind for kind in EFFECTS if kind != "race"])
async def test_a_patch_costs_no_write(durable: Backend, kind: str) -> None:
    written: list[list[str]] = []
    for guarded in (True, False):
        app = app_with(durable, EFFECTS[kind], guarded=guarded)
        ending = await run_scenario(app, partial(start, f"order-{guarded}"), SECONDS, None)
        # The child of the order is another run, which writes at its own pace.
        of_order = [point for point in ending.points if point.scope == f"process order-{guarded}"]
        written.append([point.operation for point in of_order if point.when == "before"])
    assert written[0] == written[1]
