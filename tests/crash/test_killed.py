"""Real processes, really killed: recorded effects are kept, all others run again."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pylash import Ok, ProcessScope
from tests.backends import Backend, eventually
from tests.crash.child import main
from tests.forks import Fork, forked

FINISHED = ["one", "two", "three"]

_children = itertools.count(1)


class Child:
    """A running child program."""

    def __init__(self, process: Fork) -> None:
        self.process = process
        self._said = 0

    async def says(self) -> str:
        """Return the next line that it prints."""

        async def look() -> str | None:
            status = self.process.status
            lines = self.process.printed.read_text().splitlines(keepends=True)
            if len(lines) > self._said and lines[self._said].endswith("\n"):
                return lines[self._said]
            assert status is None, f"the child ended with {status}: {self.process.errors}"
            return None

        line = await eventually(look, 30)
        self._said += 1
        return line.strip()


@asynccontextmanager
async def child(program: str, url: str, log: Path) -> AsyncIterator[Child]:
    printed = log.with_name(f"printed-{next(_children)}")
    printed.touch()
    process = forked(printed, main, program, url, str(log))
    try:
        yield Child(process)
    finally:
        await process.kill()


async def finish(url: str, log: Path) -> list[str]:
    """Run the program to its end in a fresh process; return what it said."""
    said = []
    async with child("finish", url, log) as last:
        while (line := await last.says()) != "DONE":
            said.append(line.split()[0])
        await last.process.wait()
    return said


def ran(log: Path) -> list[str]:
    return log.read_text().split()


async def test_a_kill_before_the_record_repeats_only_that_step(
    durable: Backend, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with child("killed_inside_two", durable.url, log) as first:
        assert await first.says() == "READY"
        await first.process.kill()
    assert await finish(durable.url, log) == FINISHED
    assert ran(log) == ["one", "two", "two", "three"]


@pytest.mark.proves("E7")
async def test_a_kill_after_the_record_repeats_nothing(durable: Backend, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with child("killed_after_two", durable.url, log) as first:
        assert await first.says() == "READY"
        await first.process.kill()
    assert await finish(durable.url, log) == FINISHED
    assert ran(log) == FINISHED


async def test_the_work_of_the_dead_is_taken_over_long_before_their_lease_ends(
    durable: Backend, tmp_path: Path
) -> None:
    host = await durable.host()
    async with child("killed_after_two", durable.url, tmp_path / "log") as first:
        assert await first.says() == "READY"
        run = await host.store.runs.get(ProcessScope("order-7"))
        assert run is not None
        assert run.owner is not None
        await first.process.kill()
        async with asyncio.timeout(5):  # the lease would take fifteen
            while run is not None and run.owner is not None:
                await asyncio.sleep(0.01)
                run = await host.store.runs.get(ProcessScope("order-7"))


async def test_a_paused_owner_cannot_write_for_its_successor(
    durable: Backend, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with child("paused", durable.url, log) as paused:
        assert await paused.says() == "READY"
        async with child("take_over", durable.url, log) as successor:
            took, pid = (await successor.says()).split()
            assert (took, int(pid)) == ("TOOK", successor.process.pid)
            await successor.process.wait()
        os.kill(paused.process.pid, signal.SIGCONT)
        assert await paused.says() == "REFUSED lease_lost"
    async with child("finish", durable.url, log) as last:
        by = dict([(await last.says()).split() for _ in range(3)])
    assert by["one"] == str(paused.process.pid)
    assert by["two"] == pid


async def test_an_answer_in_one_process_resumes_a_wait_in_another(
    durable: Backend, tmp_path: Path
) -> None:
    host = await durable.host()
    async with child("wait", durable.url, tmp_path / "log") as waiter:
        key = (await waiter.says()).split()[1]
        waits = await eventually(host.open_waits)
        assert [(wait.key, wait.title) for wait in waits] == [(key, "Go?")]
        assert (await host.resolve(key, Ok("yes"))).status == "accepted"
        assert await waiter.says() == "RESUMED yes"


@pytest.mark.proves("D2")
async def test_a_wait_survives_the_death_of_its_waiter(durable: Backend, tmp_path: Path) -> None:
    host = await durable.host()
    async with child("wait", durable.url, tmp_path / "log") as waiter:
        key = (await waiter.says()).split()[1]
        await eventually(host.open_waits)
        await waiter.process.kill()
    assert (await host.resolve(key, Ok("late but welcome"))).status == "accepted"
    async with child("wait", durable.url, tmp_path / "log") as again:
        assert (await again.says()).split()[1] == key
        assert await again.says() == "RESUMED late but welcome"


async def test_a_scope_runs_in_one_process_at_a_time(durable: Backend, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with child("killed_after_two", durable.url, log) as first:
        assert await first.says() == "READY"
        async with child("take_over", durable.url, log) as second:
            await first.process.kill()
            assert await second.says() == f"TOOK {first.process.pid}"
