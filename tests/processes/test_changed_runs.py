"""Runs of every shape that are executed again by the code that recorded them: a replay is never refused or slow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import Lash, ProcessContext, Retry
from pylash.engine.runs import replays
from pylash.testing import crash_everywhere

Context = ProcessContext[None]


def add(*numbers: int) -> int:
    return sum(numbers)


async def slow(n: int) -> int:
    await asyncio.sleep(0.001 * n)
    return n


async def chain(ctx: Context, n: int) -> int:
    """Run steps one after another, as many as n."""
    total = 0
    for k in range(n):
        total += await ctx.step(slow, k)
    return total


async def group(ctx: Context) -> Any:
    """Run steps beside the branches of a group, and open branches between them."""
    async with ctx.task_group() as tasks:
        first = tasks.create_task(chain(ctx, 3))
        own = await ctx.step(add, 1)
        second = tasks.create_task(chain(ctx, 1))
        own += await ctx.step(add, 2)
        await ctx.sleep(0.001)
        third = tasks.create_task(chain(ctx, 2))
    return [own, first.result(), second.result(), third.result(), await ctx.step(add, 9)]


async def awaited_branch(ctx: Context) -> Any:
    """Wait for one branch of a group while another runs."""
    async with ctx.task_group() as tasks:
        first = tasks.create_task(chain(ctx, 1))
        second = tasks.create_task(chain(ctx, 4))
        total = await first
        both = await ctx.gather(ctx.step(add, total), ctx.step(slow, 2))
        total += sum(both) + await ctx.step(add, 5)
        total += await second
    return total


async def nested(ctx: Context) -> Any:
    """Open groups in branches of groups."""

    async def inner(n: int) -> int:
        async with ctx.task_group() as tasks:
            one = tasks.create_task(chain(ctx, n))
            two = await ctx.step(add, n)
            three = tasks.create_task(chain(ctx, 1))
        return one.result() + two + three.result() + await ctx.step(add, 1)

    async with ctx.task_group() as tasks:
        parts = [tasks.create_task(inner(n)) for n in range(3)]
        await ctx.step(add, 1)
    return [part.result() for part in parts]


async def own_tasks(ctx: Context) -> Any:
    """Await effects in tasks of their own."""
    one = asyncio.ensure_future(ctx.step(slow, 3))  # noqa: TID251 - as users do
    two = asyncio.ensure_future(ctx.step(slow, 1))  # noqa: TID251 - as users do
    three = await ctx.step(add, 3)
    found = [await two, three, await one]
    both = asyncio.gather(  # noqa: TID251 - as users do
        ctx.step(slow, 2), ctx.step(add, 1), ctx.sleep(0.002)
    )
    return [*found, await both, await ctx.step(add, 7)]


async def kept_awaitables(ctx: Context) -> Any:
    """Ask for effects early and await them late, in another order."""
    one, two = ctx.step(slow, 2), ctx.step(add, 2)
    three = await ctx.step(add, 3)
    return [three, await two, await ctx.step(add, 4), await one]


async def races(ctx: Context) -> Any:
    """Decide races whose losers have recorded effects."""
    found = []
    for n in range(2):
        found.append(await ctx.race(chain(ctx, 1), lost(ctx)))
        found.append(await ctx.step(add, n))
    return found


async def lost(ctx: Context) -> int:
    try:
        await ctx.step(add, 1)
        await ctx.sleep("1h")
    finally:
        await ctx.step(add, 2)
    return 0


async def failing_group(ctx: Context) -> Any:
    """Cancel the branches of a group by a failure."""

    async def fail() -> None:
        await ctx.step(add, 1)
        raise ValueError("no")

    try:
        async with ctx.task_group() as tasks:
            tasks.create_task(lost(ctx))
            tasks.create_task(fail())
            await ctx.step(add, 3)
    except* ValueError:
        await ctx.step(add, 4)
    return await ctx.step(add, 5)


attempts: list[int] = []


async def retries(ctx: Context) -> Any:
    """Retry steps in branches, some for good."""

    async def flaky(n: int) -> int:
        attempts.append(n)
        if n == 2 or len(attempts) % 2:
            raise OSError("away")
        return n

    async def tried(n: int) -> Any:
        step = ctx.options(retry=Retry(4 if n < 2 else 2, delay="1ms"))
        try:
            return await step.step(flaky, n)
        except Exception:  # noqa: BLE001 - of the step
            return await ctx.step(add, n)

    return await ctx.gather(*(tried(n) for n in range(3)))


async def patches(ctx: Context) -> Any:
    """Ask for patches in branches, loops and beside groups."""
    found: list[Any] = []

    async def branch(n: int) -> Any:
        before = await ctx.patched("in")
        value = await ctx.step(add, n)
        return [before, value, await ctx.patched("late"), await chain(ctx, n)]

    async with ctx.task_group() as tasks:
        parts = [tasks.create_task(branch(n)) for n in range(3)]
        found.append(await ctx.patched("beside"))
        await ctx.step(add, 1)
        found.append(await ctx.patched("in"))
    for n in range(2):
        found.append(await ctx.patched(f"round {n}"))
        await ctx.step(add, n)
        found.append(await ctx.patched("loop"))
    return [found, [part.result() for part in parts], await ctx.patched("end")]


async def continued(ctx: Context, rounds: int = 2) -> Any:
    """Go on with a fresh journal, with patches in each."""
    await ctx.patched("new")
    await ctx.gather(chain(ctx, 2), ctx.step(add, 1))
    if rounds:
        ctx.continue_as(rounds=rounds - 1)
    return await ctx.patched("new")


BODIES = [
    group,
    awaited_branch,
    nested,
    own_tasks,
    kept_awaitables,
    races,
    failing_group,
    retries,
    patches,
    continued,
]


def make_app(store: str) -> Lash:
    app = Lash(store)
    for body in BODIES:
        app.process(name=body.__name__)(body)

    @app.process
    async def child(ctx: Context, n: int) -> int:
        return n + int(await ctx.wait_signal("go"))

    @app.process
    async def add_up(ctx: Context, n: int) -> int:
        return await chain(ctx, n)

    @app.process
    async def children(ctx: Context) -> Any:
        """Start children, signal them and wait for them, in branches and beside them."""
        started = [await ctx.start(child, n=n) for n in range(2)]

        async def ask(n: int) -> Any:
            await started[n].signal("go", n)
            return await started[n].result()

        async with ctx.task_group() as tasks:
            asked = [tasks.create_task(ask(n)) for n in range(2)]
            called = await (await ctx.start(add_up, n=4)).result()
        return [called, [one.result() for one in asked], await ctx.step(add, 1)]

    return app


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # calls never awaited
@pytest.mark.parametrize("name", [*(body.__name__ for body in BODIES), "children"])
def test_an_unchanged_process_ends_the_same_wherever_it_dies(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(app: Lash) -> Any:
        handle = await app.start(app.services.definitions[name].options(id="p"))
        return await handle.result(timeout="8s")

    # A replay that only goes on because a hold ends would not be done in time.
    monkeypatch.setattr(replays, "HELD_SECONDS", 20.0)
    report = crash_everywhere(make_app, story)
    assert report.points
