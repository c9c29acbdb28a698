"""Forks of processes that started children or waited for answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pylash import InlineHost, Lash, ProcessContext, ProcessFailed
from pylash.durable.ports import EffectHost
from pylash.processes.forks import fork_registration
from pylash.testing import ScriptedModel, SerialHost, say
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.processes.test_branches import PARKING, parked

WRAPS = pytest.mark.parametrize("host", [None, SerialHost], ids=["journal", "serial"])


class Family:
    """An app with a process that starts a child and takes a step, and then starts another child."""

    def __init__(self, url: str, host: Any = None) -> None:
        self.app = Lash(url, host=host, model=ScriptedModel(lambda r: say(r.messages[-1].text)))
        self.steps: list[str] = []
        agent = self.app.agent("echo")

        async def note(text: str) -> str:
            self.steps.append(text)
            return text

        @self.app.process
        async def child(ctx: ProcessContext[None], name: str) -> list[str]:
            return [name, ctx.id]

        @self.app.process
        async def parent(ctx: ProcessContext[None]) -> list[Any]:
            first = await ctx.start(child, "first")
            await ctx.options(key="one").step(note, "one")
            second = await ctx.start(child, "second")
            turn = await ctx.start(agent, "hello")
            await ctx.options(key="two").step(note, "two")
            said = await turn.result()
            return [*await first.result(), *await second.result(), said.text, said.session_id]

        self.parent = parent


@WRAPS
async def test_a_fork_keeps_the_children_whose_starts_it_took_over(
    host: EffectHost | None, backend: Backend
) -> None:
    family = Family(backend.url, host)
    async with family.app as app:
        first = await (await app.start(family.parent.options(id="p"))).result(timeout="20s")
        late = await app.fork_process("p", from_effect="two", id="late")
        assert await late.result(timeout="20s") == first
        early = await app.fork_process("p", from_effect="one", id="early")
        other = await early.result(timeout="20s")
        # The first child is the one of "p"; the others are its own, under other ids.
        assert other[:3] == [*first[:2], "second"]
        assert other[4] == "hello"
        assert {other[3], other[5]}.isdisjoint(first)
        parents = [
            (await app.store.processes.get(process)).registration.parent  # type: ignore[union-attr]
            for process in (first[1], first[3], other[3], other[5])
        ]
        assert parents == ["p", "p", "early", "early"]
        again = await app.fork_process("early", from_effect="two", id="again")
        assert await again.result(timeout="20s") == other
        assert family.steps == ["one", "two", "two", "one", "two", "two"]


def slow_parent(url: str) -> Lash:
    app = Lash(url, worker=PARKING)

    @app.process
    async def child(ctx: ProcessContext[None]) -> str:
        return ctx.id

    @app.process
    async def parent(ctx: ProcessContext[None]) -> str:
        started = await ctx.start(child)
        await ctx.wait_signal("go")
        return await started.result()

    return app


async def test_a_fork_of_an_older_version_replays_its_children(durable: Backend) -> None:
    """Older versions recorded the starts of a fork under its own id as the parent, and shared the ids of children."""
    async with slow_parent(durable.url) as app:
        handle = await app.start(app.services.definitions["parent"].options(id="p"))
        await handle.signal("go")
        child = await handle.result(timeout="20s")
        start = "root:process:start:python:child"
        registration, keys = await fork_registration(app.store, "p", start, "old")
        older = msgspec.structs.replace(registration, recorded_id=None, forked_from=())
        await app.store.processes.fork("p", older, keys)
        await parked(app, "old")
    async with slow_parent(durable.url) as app:
        old = app.process_handle("old")
        await old.signal("go")
        assert await old.result(timeout="20s") == child


@EVERY_ENGINE
async def test_a_fork_waits_again_for_answers(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def asks(ctx: ProcessContext[None]) -> list[Any]:
        signalled = await ctx.wait_signal("go")
        answered = await ctx.wait(ctx.wait_key("approval"))
        return [signalled, answered, await ctx.step(str, 5)]

    async def answer(value: str) -> None:
        async def key() -> str | None:
            waits = await app.waits()
            return next((w.key for w in waits if w.title == "approval"), None)

        assert await app.resolve(await eventually(key), value)

    async with app:
        handle = await app.start(asks.options(id="p"))
        await handle.signal("go", 1)
        await answer("yes")
        assert await handle.result(timeout="20s") == [1, "yes", "5"]
        fork = await app.fork_process("p", from_effect="str", id="fork")
        await answer("no")
        assert await fork.result(timeout="20s") == [1, "no", "5"]


async def test_a_fork_on_a_host_without_a_journal_starts_children_of_its_own() -> None:
    family = Family("memory://", InlineHost())
    async with family.app as app:
        first = await (await app.start(family.parent.options(id="p"))).result(timeout="20s")
        fork = await app.fork_process("p", id="fork")
        other = await fork.result(timeout="20s")
        assert set(first[1::2]).isdisjoint(other[1::2])


PROGRAM = """
process main() signals { go: int } {
  a = start child(name: "first")
  one = wait signal go
  b = start child(name: "second")
  two = wait signal go
  x = (await a)?
  y = (await b)?
  finish [x, a.id, y, b.id]
}
process child(name: str) { finish name }
"""


async def test_a_fork_of_a_program_keeps_the_children_whose_starts_it_took_over(
    backend: Backend,
) -> None:
    async with Lash(backend.url) as app:
        main = (await app.lashlang(PROGRAM))["main"]
        handle = await app.start(main.options(id="p"))
        for number in (1, 2):
            await handle.signal("go", number)
        first = await handle.result(timeout="20s")
        second = [one.key for one in await handle.timeline() if one.name == "start child"][1]
        late, early = await app.fork_process("p"), await app.fork_process("p", from_effect=second)
        assert await late.result(timeout="20s") == first
        await early.signal("go", 2)
        other = await early.result(timeout="20s")
        assert other[:3] == first[:3]
        assert other[3] not in first
        record = await app.store.processes.get(other[3])
        assert record is not None
        assert record.registration.parent == early.id


class Shop:
    """An app with a process whose effects have its id and a key of it, and fail at the end until they are repaired."""

    def __init__(self, url: str) -> None:
        self.app = Lash(url, model=ScriptedModel(lambda r: say(r.messages[-1].text)))
        self.broken = True
        self.calls: list[Any] = []

        def note(*given: Any) -> None:
            self.calls.append(given)

        def ship() -> str:
            if self.broken:
                raise ValueError("no")
            return "shipped"

        @self.app.process
        async def refund(ctx: ProcessContext[None], rounds: int = 0) -> list[Any]:
            if rounds:
                ctx.continue_as(rounds=rounds - 1)
            key = ctx.wait_key("approve")
            await ctx.options(key="mail").step(note, f"Approve {ctx.id}:\n{key}.", {ctx.id: [key]})
            first = await ctx.session("chat").turn("one")
            await ctx.options(key="id").step(note, ctx.id)
            await ctx.complete(f"Who is {ctx.id}?")
            approved = await ctx.wait(key, within="0s")
            second = await ctx.session("chat").turn("two")
            return [first.turn_id, second.turn_id, approved, await ctx.step(ship)]

        self.refund = refund


@pytest.mark.parametrize("rounds", [0, 2])
async def test_a_fork_takes_over_effects_that_have_the_id_and_keys_of_the_process(
    rounds: int, backend: Backend
) -> None:
    shop = Shop(backend.url)
    async with shop.app as app:
        handle = await app.start(shop.refund.options(id="order-7"), rounds=rounds)
        with pytest.raises(ProcessFailed):
            await handle.result(timeout="20s")
        made = len(shop.calls)
        with pytest.raises(ProcessFailed):
            await (await app.fork_process("order-7", id="order")).result(timeout="20s")
        shop.broken = False
        fork = await app.fork_process("order", id="7")
        result = await fork.result(timeout="20s")
        assert result[2:] == [None, "shipped"]
        assert len(shop.calls) == made
        assert len(await app.session("chat").history()) == 4


async def test_new_effects_of_a_fork_have_its_own_id(backend: Backend) -> None:
    shop = Shop(backend.url)
    shop.broken = False
    async with shop.app as app:
        handle = await app.start(shop.refund.options(id="p"))
        first = await handle.result(timeout="20s")
        fork = await app.fork_process("p", from_effect="id", id="q")
        second = await fork.result(timeout="20s")
        # The first turn is the one of "p"; the second is a turn of its own.
        assert second[0] == first[0]
        assert second[1] != first[1]
        assert [given for given in shop.calls if len(given) == 1] == [("p",), ("q",)]
        # Its records are of two processes, and a fork of it takes over both.
        again = await app.fork_process("q", from_effect="ship", id="r")
        assert await again.result(timeout="20s") == second


async def test_a_fork_whose_inputs_differ_otherwise_is_blocked(backend: Backend) -> None:
    app = Lash(backend.url)
    suffix = ""

    @app.process
    async def notes(ctx: ProcessContext[None]) -> str:
        await ctx.step(str, f"{ctx.id}{suffix}")
        return await ctx.step(str, 1)

    async with app:
        await (await app.start(notes.options(id="p"))).result(timeout="20s")
        suffix = "!"
        await app.fork_process("p", from_effect="str#2", id="q")

        async def reason() -> str | None:
            view = await app.store.processes.view("q")
            return None if view is None else view.reason

        assert "effect_replay_mismatch" in await eventually(reason)
