"""Random processes whose attempts are suspended at every wait and killed at any moment, without a server and with one.

A cancel is accepted when ``cancel()`` has returned and its request is in the log of the process before its end. The run
learns of it when its watch has read the request, which is an entry of its journal: a hint makes the watch read at once,
and without a hint it reads every few seconds. The law: from that entry on no effect begins that is not in the journal
already, except in cleanup, and the process ends as cancelled. It ends otherwise only if its code has no effect left.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random, SystemRandom  # noqa: TID251 - seeded
from typing import Any

import msgspec
import pytest
import restate

from pylash import Lash, ProcessCancelled, WorkerConfig
from pylash.restate import RestateHost
from pylash.restate.attempt import BEGIN, WATCH
from pylash.restate.runner import AttemptFailed
from pylash.stores.operation import Operation, Statement, Steps
from pylash.tasks import TaskOwner
from tests.restate.apps import sqlite_url
from tests.restate.fake_server import FakeHost, FakeServer, Invocation
from tests.restate.ports import LOOPBACK, free_port
from tests.restate.random_processes import World, add_processes
from tests.restate.server import RestateServer

AT_ONCE = 20
PATIENCE = "50s"
IN_STORE = {"process", "await_event"}
"""The kinds of effects that the store has rows of: commands of the registry, and waits."""
MAX_KILLS = 3
UNSEEN_EFFECTS = 20
"""How many effects may begin after a cancel was requested, until the watch has read the request."""


def length_of(invocation: Invocation) -> int:
    return max(2, invocation.ticks)


class Fuzz:
    """Random processes on one app and a server in memory."""

    def __init__(self, app: Lash, world: World, server: FakeServer) -> None:
        self.app, self.world, self.server = app, world, server
        self.counts: Counter[str] = Counter()
        self._large = app.definitions["large"]

    async def check_many(self, seeds: range) -> None:
        for start in range(0, len(seeds), AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for seed in seeds[start : start + AT_ONCE]:
                    group.create_task(self.check(seed))

    async def check(self, seed: int) -> None:
        """Execute a program undisturbed, killed, and killed and cancelled."""
        random = Random(seed)
        expected = await self.result(f"calm-{seed}", seed)
        length = length_of(self.invocations(f"calm-{seed}")[0])
        await self.check_killed(f"killed-{seed}", seed, _kills(random, length), expected)
        await self._cancel(f"cancelled-{seed}", seed, random, length)
        for name in ("calm", "killed", "cancelled"):
            await self._check_record(f"{name}-{seed}")

    async def check_killed(self, name: str, seed: int, kills: list[int], expected: Any) -> None:
        """Execute a program whose attempts are killed: it ends as an undisturbed one."""
        result = await self.result(name, seed, kills)
        assert result == expected, f"SEED={seed}: {result} instead of {expected}"

    async def _start(self, name: str, seed: int) -> Any:
        return await self.app.start(self._large.options(id=name), seed=str(seed))

    async def result(self, name: str, seed: int, kills: list[int] | None = None) -> Any:
        self.server.kills[name] = kills or []
        handle = await self._start(name, seed)
        return await handle.result(timeout=PATIENCE)

    def invocations(self, name: str) -> list[Invocation]:
        """Return the invocations of a process, one for each of its epochs."""
        first, known = f"LashProcessWorkflow/{name}", self.server.invocations
        return [known[one] for one in (first, f"{first}~1") if one in known]

    # --- laws ---

    async def _check_record(self, name: str) -> None:
        """Check what every execution must leave behind."""
        invocations = self.invocations(name)
        again = sum(one.killed + len(one.failures) for one in invocations)
        self.counts["attempts"] += sum(one.attempts for one in invocations)
        self.counts["kills"] += sum(one.killed for one in invocations)
        for step, count in self.world.executions.items():
            if step.startswith(f"{name} "):
                assert count <= 1 + again, f"{step} was executed {count} times"
        said = [
            event.payload
            async for event in self.app.process_handle(name).events()
            if event.type == "said"
        ]
        assert len(said) == len(set(said)), f"{name} said {said}"
        for program, traces in self.world.traces.items():
            if program.startswith(f"{name} "):
                longest = max(traces, key=len)
                assert all(trace == longest[: len(trace)] for trace in traces), program
                told = {line.split()[0] for line in longest if "_emit" in line}
                assert told <= set(said), program

    async def _cancel(self, name: str, seed: int, random: Random, length: int) -> None:
        """Cancel a process at a random moment."""
        self.server.kills[name] = _kills(random, length) if random.random() < 0.7 else []
        moment, known = asyncio.Event(), list[int]()
        self.server.calls[name] = {random.randrange(1, length): moment.set}
        handle = await self._start(name, seed)

        async def cancel() -> None:
            await moment.wait()
            await handle.cancel("enough")
            known.append(len(self.invocations(name)[-1].entries))

        tasks = TaskOwner()
        tasks.serve(cancel())
        try:
            await handle.result(timeout=PATIENCE)
        except ProcessCancelled:
            self.counts["cancelled"] += 1
        else:
            events = [event.type async for event in handle.events()]
            if "process.cancel_requested" in events:
                self._check_passed(self.invocations(name)[-1], known, seed)
        finally:
            await tasks.close()

    def _check_passed(self, last: Invocation, known: list[int], seed: int) -> None:
        """Check that a process which was asked to end, and was not cancelled, had no effect left."""
        seen = _saw_cancel(last)
        if seen is None:
            self.counts["ended before it was seen"] += 1
            begun = [entry for entry in last.entries[sum(known) :] if _is_effect(entry)]
            assert not known or len(begun) <= UNSEEN_EFFECTS, (seed, begun)
            return
        self.counts["had no effect left"] += 1
        before = set[str]()
        for entry, after in zip(last.entries, last.asked_after, strict=True):
            assert after <= seen or entry.name in before or not _is_effect(entry), (seed, entry)
            before.add(entry.name)

    async def check_store(self) -> None:
        """Check that the store has no rows of local effects."""

        def steps() -> Steps[list[tuple[Any, ...]]]:
            return (yield Statement("select distinct kind from pylash_effects")).rows

        store: Any = self.app.store
        rows = await store.driver.run(Operation("look", steps, read_only=True))
        assert {row[0] for row in rows} <= IN_STORE


def _is_effect(entry: Any) -> bool:
    return entry.kind != "bell" and not entry.name.startswith("!")


def _saw_cancel(invocation: Invocation) -> int | None:
    """Return after how many completions the run had learned of its cancel."""
    for number, (index, result) in enumerate(invocation.completions):
        is_look = invocation.entries[index].name in (BEGIN, WATCH)
        if is_look and msgspec.json.decode(result).get("cancel"):
            return number
    return None


def _kills(random: Random, length: int) -> list[int]:
    """Return the events at which the attempts of an invocation are killed; a program has about ``length`` of them."""
    count = random.choice((1, 1, 2, 4))
    return sorted(random.randrange(1, length * (1 + n // 2)) for n in range(count))


@asynccontextmanager
async def fuzzing(seed: int) -> AsyncIterator[Fuzz]:
    server, world = FakeServer(seed), World(seed)
    worker = WorkerConfig(park_after="0ms")
    app = Lash("memory://", host=FakeHost(server), deps=world, worker=worker)
    add_processes(app)
    async with app:
        await world.open(app)
        fuzz = Fuzz(app, world, server)
        try:
            yield fuzz
            await fuzz.check_store()
        finally:
            await world.close()


async def check_every_moment(fuzz: Fuzz, seed: int) -> None:
    """Kill a program at every one of its events."""
    expected = await fuzz.result(f"calm-{seed}", seed)
    length = length_of(fuzz.invocations(f"calm-{seed}")[0])
    for start in range(1, length + 1, AT_ONCE):
        async with asyncio.TaskGroup() as group:
            for moment in range(start, min(start + AT_ONCE, length + 1)):
                name = f"killed-{seed}-{moment}"
                group.create_task(fuzz.check_killed(name, seed, [moment], expected))


@pytest.mark.parametrize("start", range(0, 60, 15))
async def test_processes_that_are_killed_anywhere_end_as_undisturbed_ones(start: int) -> None:
    async with fuzzing(start) as fuzz:
        await fuzz.check_many(range(start, start + 15))
    assert fuzz.counts["kills"]
    assert fuzz.counts["cancelled"]


async def test_a_process_that_is_killed_at_every_moment_ends_as_an_undisturbed_one() -> None:
    async with fuzzing(0) as fuzz:
        await check_every_moment(fuzz, 9)


class KillingHost(RestateHost):
    """A host that ends attempts of each run after a while, a few times: the server begins others."""

    def __init__(self, random: Random, **given: Any) -> None:
        self.kills: Counter[str] = Counter()
        self._random = random
        super().__init__(**given)

    async def _run(self, ctx: restate.WorkflowContext, given: bytes) -> bytes:
        # In a task of its own: the stream of a call that is cancelled itself stays open, and the server waits.
        tasks = TaskOwner()
        call = tasks.start(super()._run(ctx, given))
        if self.kills[ctx.key()] < MAX_KILLS:
            asyncio.get_running_loop().call_later(self._random.random() / 10, call.cancel)
        try:
            await asyncio.wait((call,))
            if call.cancelled():
                self.kills[ctx.key()] += 1
                raise AttemptFailed("killed")
            return await call
        finally:
            await tasks.close()


async def check_on_server(server: RestateServer, folder: Path, seeds: range) -> Counter[str]:
    """Execute programs on a server, with attempts that are killed, and cancel some of them."""
    world, counts = World(seeds.start), Counter[str]()
    endpoint = f"http://{LOOPBACK}:{free_port()}"
    random = Random(seeds.start)
    host = KillingHost(random, ingress=server.ingress, admin=server.admin, endpoint=endpoint)
    worker = WorkerConfig(park_after="5ms")
    app = Lash(sqlite_url(folder), host=host, deps=world, worker=worker)
    large, _ = add_processes(app)
    prefix = f"{folder.name}-{seeds.start}"

    async def check(seed: int, expected: Any) -> None:
        name, is_cancelled = f"{prefix}-{seed}", seed % 4 == 0
        handle = await app.start(large.options(id=name), seed=str(seed))
        if is_cancelled:
            await asyncio.sleep(Random(seed).random() * 0.2)
            await handle.cancel("enough")
            counts["cancels"] += 1
        try:
            result = await handle.result(timeout="120s")
        except ProcessCancelled:
            counts["cancelled"] += 1
            assert is_cancelled
            return
        counts["completed"] += 1
        assert result == expected or is_cancelled, f"SEED={seed}: {result} instead of {expected}"
        for program, traces in world.traces.items():
            if program.startswith(f"{name} "):
                counts["attempts"] += len(traces)
                longest = max(traces, key=len)
                assert all(trace == longest[: len(trace)] for trace in traces), program

    async with app:
        await world.open(app)
        try:
            for start in range(0, len(seeds), AT_ONCE):
                some = seeds[start : start + AT_ONCE]
                async with fuzzing(0) as calm:
                    expected = {seed: await calm.result(f"calm-{seed}", seed) for seed in some}
                async with asyncio.TaskGroup() as group:
                    for seed in some:
                        group.create_task(check(seed, expected[seed]))
        finally:
            await world.close()
    counts["kills"] = host.kills.total()
    return counts


@pytest.mark.torture
@pytest.mark.timeout(1200)
async def test_a_server_executes_a_thousand_random_processes(
    restate: RestateServer, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SEED") or SystemRandom().randrange(10**6))
    print(f"SEED={seed}")
    print(dict(await check_on_server(restate, tmp_path, range(seed, seed + 1_000))))


@pytest.mark.torture
@pytest.mark.timeout(1200)
async def test_thousands_of_processes_that_are_killed_anywhere() -> None:
    seed = int(os.environ.get("SEED") or SystemRandom().randrange(10**6))
    print(f"SEED={seed}")
    for start in range(seed, seed + 2_000, 200):
        async with fuzzing(start) as fuzz:
            await fuzz.check_many(range(start, start + 200))
            await check_every_moment(fuzz, start + 200)
        print(start, dict(fuzz.counts))
