"""Random programs, killed at a random place and changed by one random edit: nothing recorded is executed again.

A dry run of the changed program foretells whether it is blocked. ``SEED=n`` repeats one.
"""

from __future__ import annotations

import asyncio
import os
import random  # noqa: TID251 - seeded
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pylash import Lash, ProcessBlocked, ProcessContext, ProcessEnded, WorkerConfig
from pylash.cli.replay import recorded_runs
from pylash.engine.dry_runs import Verdict
from pylash.engine.runs import replays
from pylash.testing import kill
from tests.backends import eventually

SIGNALS = 4


class Step(msgspec.Struct, frozen=True):
    """A step; ``number`` stays the same if it is renamed."""

    number: int
    name: str
    argument: int = 0


class Wait(msgspec.Struct, frozen=True):
    """A wait for a signal."""

    name: str


class Gather(msgspec.Struct, frozen=True):
    """Branches that run at once."""

    key: str
    branches: tuple[tuple[Any, ...], ...]


Program = tuple[Any, ...]


class World:
    """Executes programs, and keeps what each step did."""

    def __init__(self, stop_at: int) -> None:
        self.executed: list[int] = []
        self.stop_at: int | None = stop_at
        self.is_stopped = asyncio.Event()

    async def run(self, ctx: ProcessContext[None], program: Program) -> list[Any]:
        """Execute a program; return the results of its operations."""
        results: list[Any] = []
        for operation in program:
            match operation:
                case Step(name=name, argument=argument):
                    results.append(await ctx.step(self._function(operation), argument))
                case Wait(name=name):
                    results.append(await ctx.wait_signal(name))
                case Gather(key=key, branches=branches):
                    works = [self.run(ctx, branch) for branch in branches]
                    results.append(await ctx.gather(*works, key=key))
        return results

    def _function(self, step: Step) -> Any:
        async def perform(argument: int) -> str:
            if step.number == self.stop_at:
                self.is_stopped.set()
                await asyncio.Event().wait()
            self.executed.append(step.number)
            return f"{step.name} {argument}"

        perform.__name__ = step.name
        return perform


def expected(program: Program) -> list[Any]:
    """Return the result of a program."""
    results: list[Any] = []
    for operation in program:
        match operation:
            case Step(name=name, argument=argument):
                results.append(f"{name} {argument}")
            case Wait(name=name):
                results.append(name)
            case Gather(branches=branches):
                results.append([expected(branch) for branch in branches])
    return results


def made(
    chance: random.Random, numbers: Iterator[int], signals: list[str], depth: int = 0
) -> Program:
    """Return a random program."""
    program: list[Any] = []
    for _ in range(chance.randint(1, 4)):
        kind = chance.choice(("step", "step", "step", "wait", "gather"))
        if kind == "wait" and signals:
            program.append(Wait(signals.pop()))
        elif kind == "gather" and depth < 2:
            branches = (
                made(chance, numbers, signals, depth + 1) for _ in range(chance.randint(1, 3))
            )
            program.append(Gather(f"group{next(numbers)}", tuple(branches)))
        else:
            number = next(numbers)
            program.append(Step(number, f"s{number}"))
    return tuple(program)


def places(program: Program, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Return the path of every operation."""
    found: list[tuple[int, ...]] = []
    for index, operation in enumerate(program):
        found.append((*path, index))
        if isinstance(operation, Gather):
            for number, branch in enumerate(operation.branches):
                found += places(branch, (*path, index, number))
    return found


def replaced(
    program: Program, path: tuple[int, ...], operations: Program, width: int = 1
) -> Program:
    """Return a program with other operations at a place."""
    index = path[0]
    if len(path) == 1:
        return (*program[:index], *operations, *program[index + width :])
    gather = program[index]
    branches = list(gather.branches)
    branches[path[1]] = replaced(branches[path[1]], path[2:], operations, width)
    return (*program[:index], Gather(gather.key, tuple(branches)), *program[index + 1 :])


def at(program: Program, path: tuple[int, ...]) -> Program:
    """Return the operations from a place to the end of its line."""
    for index, branch in zip(path[:-1:2], path[1::2], strict=True):
        program = program[index].branches[branch]
    return program[path[-1] :]


def edited(chance: random.Random, program: Program) -> tuple[str, Program]:
    """Return a random edit, and the program after it."""
    path = chance.choice(places(program))
    one, *rest = at(program, path)
    edits: dict[str, Program] = {
        "insert": (Step(1000, "new"), one),
        "delete": (),
        "wrap": (Gather("wrapped", ((one,),)),),
        "nothing": (one,),
    }
    if isinstance(one, Step):
        edits["rename"] = (msgspec.structs.replace(one, name="other"),)
        edits["argument"] = (msgspec.structs.replace(one, argument=1),)
    if isinstance(one, Gather):
        edits["rename group"] = (Gather("other", one.branches),)
    if rest:
        edits["swap"] = (rest[0], one)
    edit = chance.choice(sorted(edits))
    return edit, replaced(program, path, edits[edit], 2 if edit == "swap" else 1)


def app_of(path: Path, program: Program, world: World) -> Lash:
    """Return an app with a program."""
    app = Lash(f"sqlite:///{path}", worker=WorkerConfig(park_after="1ms"))

    @app.process(name="program")
    async def body(ctx: ProcessContext[None]) -> list[Any]:
        return await world.run(ctx, program)

    return app


async def foretold(path: Path, program: Program, world: World) -> Verdict:
    """Return what a dry run of a program shows; it executes nothing."""
    before = list(world.executed)
    async with app_of(path, program, world).open_for_replay() as dry_runs:
        runs = await recorded_runs(dry_runs, None, None, ended=False)
        (report,) = await dry_runs.replay(runs)
    assert world.executed == before
    return report.verdict


async def execute(path: Path, program: Program, world: World, *, until_stopped: bool) -> Any:
    """Execute a program in an app; return its result or how it is blocked, or whether it had ended when it was killed."""
    app = app_of(path, program, world)
    await app.open()
    handle = app.process_handle("p")
    try:
        if until_stopped:
            await app.start(app.services.definitions["program"].options(id="p"))

            async def rests() -> bool:
                return world.is_stopped.is_set() or await handle.status() in (
                    "waiting",
                    "completed",
                )

            await eventually(rests)
            has_ended = await handle.status() == "completed"
            await kill(app)
            return has_ended
        if await handle.status() == "blocked":
            await app.retry("p")
        for number in range(SIGNALS):
            with suppress(ProcessEnded):
                await handle.signal(f"signal{number}", f"signal{number}", id=f"{number}")

        async def stands() -> bool:
            return await handle.status() in ("completed", "failed", "blocked")

        await eventually(stands)
        return await handle.result(timeout=0)
    except ProcessBlocked as error:
        return error
    finally:
        await app.close()


async def check(seed: int, folder: Path) -> str:
    """Check one program, kill and edit; return which edit, and how it ended."""
    chance = random.Random(seed)
    counter, signals = iter(range(1, 1000)), [f"signal{number}" for number in range(SIGNALS)]
    program = made(chance, counter, signals)
    edit, changed = edited(chance, program)
    world, path = World(stop_at=chance.randint(1, 8)), folder / f"{seed}.db"
    if await execute(path, program, world, until_stopped=True):
        return "ended before"
    before, world.stop_at = list(world.executed), None
    assert len(set(before)) == len(before)
    verdict = await foretold(path, changed, world)
    found = await execute(path, changed, world, until_stopped=False)
    again = [number for number in before if world.executed.count(number) > 1]
    note = f"SEED={seed}: {edit} of {program}, after {before}"
    assert again == [], f"{note}: executed again"
    blocked = isinstance(found, ProcessBlocked)
    assert verdict is (Verdict.DIVERGES if blocked else Verdict.FITS), f"{note}: {found}"
    if isinstance(found, ProcessBlocked):
        assert "effect_replay_" in found.message, f"{note}: {found}"
        assert edit != "nothing", f"{note}: {found}"
        found = await execute(path, program, world, until_stopped=False)
        assert found == expected(program), f"{note}: the old code came to {found}"
        assert all(world.executed.count(number) == 1 for number in before), note
        return f"{edit}: blocked"
    assert found == expected(changed), f"{note}: {found}"
    return f"{edit}: completed"


async def check_all(seeds: range, folder: Path) -> None:
    """Check programs, and that each edit was seen to be harmless and to block."""
    ends = {await check(seed, folder) for seed in seeds}
    edits = ("rename", "rename group", "insert", "delete", "swap", "wrap", "argument")
    assert ends >= {f"{edit}: {end}" for edit in edits for end in ("blocked", "completed")}
    assert "nothing: completed" in ends


@pytest.fixture(autouse=True)
def _short_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "HELD_SECONDS", 0.05)


@pytest.mark.slow
async def test_no_edit_of_a_program_executes_anything_again(tmp_path: Path) -> None:
    await check_all(range(200), tmp_path)


@pytest.mark.torture
async def test_no_edit_of_many_programs_executes_anything_again(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", random.randrange(1_000_000)))
    print(f"SEED={seed}")
    await check_all(range(seed, seed + 2_000), tmp_path)
