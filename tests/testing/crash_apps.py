"""Apps and scenarios to be crashed: correct ones, and some that are not."""

from __future__ import annotations

from pathlib import Path

from pylash import Lash, ProcessContext, ProcessDefinition

ran: list[int] = []
"""What ``double`` was really asked in this process."""


async def double(number: int) -> int:
    ran.append(number)
    return number * 2


@ProcessDefinition
async def child(ctx: ProcessContext[None], number: int) -> int:
    return await ctx.step(double, number)


@ProcessDefinition
async def parent(ctx: ProcessContext[None], number: int) -> list[int]:
    first = await ctx.step(double, number)
    await ctx.sleep("5ms")
    answer: int = await ctx.wait_signal("answer")
    started = await ctx.start(child, number=answer)
    return [first, answer, await started.result()]


def make_app(store: str) -> Lash:
    """Make an app whose process takes steps, sleeps, waits for a signal and starts a child."""
    app = Lash(store)
    app.process(child)
    app.process(parent)
    return app


async def whole_story(app: Lash) -> list[int]:
    handle = await app.start(parent.options(id="story"), number=1)
    await handle.signal("answer", 5, id="only")
    return await handle.result(timeout="20s")


def make_small_app(store: str) -> Lash:
    """Make an app with one process of one step."""
    app = Lash(store)

    @app.process
    async def small(ctx: ProcessContext[None]) -> int:
        return await ctx.step(double, 21)

    return app


async def small_story(app: Lash) -> int:
    """Run whatever process the app calls small."""
    small = app.services.definitions["small"]
    handle = await app.start(small.options(id="small"))
    result: int = await handle.result(timeout="20s")
    return result


async def silent_story(app: Lash) -> None:
    """Have no outcome but that it ends."""
    await small_story(app)


def make_counting_app(store: str) -> Lash:
    """Make an app whose outcome depends on how often a step ran: wrong, and to be found out."""
    app = Lash(store)
    ticks = Path(store.removeprefix("sqlite:///")).with_suffix(".ticks")

    def tick() -> int:
        with ticks.open("a") as file:
            file.write("x")
        return ticks.stat().st_size

    @app.process
    async def small(ctx: ProcessContext[None]) -> int:
        return await ctx.step(tick)

    return app


def make_forgetful_app(store: str) -> Lash:
    """Make an app whose process keeps what it knows in memory only: it waits for ever after a crash."""
    app = Lash(store)
    known: list[int] = []

    async def learn() -> None:
        known.append(1)

    @app.process
    async def small(ctx: ProcessContext[None]) -> int:
        await ctx.step(learn)
        return known[0] if known else await ctx.wait_signal("never")

    return app


async def twice_started(app: Lash) -> int:
    """Give no id to what it starts: run again, it starts another one."""
    small = app.services.definitions["small"]
    await (await app.start(small)).result(timeout="20s")
    return len(await app.processes())


async def broken(app: Lash) -> None:
    raise LookupError("there is no shop")
