"""Programs that only compute: in Lashlang, and the same logic in plain Python.

Rule 1. Both do the same work on the same values: numbers are floats, what is built is kept.
Rule 2. Lashlang runs with the bounds of a process, all of them counted, from compiled code.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from benchmarks.contender import Contender, Facts
from benchmarks.lines import Load

LOOP: Final = """
process main() {
  total = 0
  i = 0
  while i < 100000 {
    if i % 3 == 0 or i % 5 == 0 { total = total + i }
    i = i + 1
  }
  finish total
}"""
LISTS: Final = """
process main() {
  evens = [x * x for x in range(20000) if x % 2 == 0]
  kept = []
  for x in evens { if x % 3 == 0 { kept = push(kept, x + 1) } }
  kept[0] = 7
  finish len(kept) + sum(kept)
}"""
RECORDS: Final = """
process main() {
  rows = [{ id: n, name: "row " + n, tags: ["a", "b"] } for n in range(10000)]
  total = 0
  for row in rows { if row.name != "row 7" and "a" in row.tags { total = total + row.id } }
  finish total
}"""
CALLS: Final = """
fn fib(n: int) -> int { if n < 2 { n } else { fib(n - 1) + fib(n - 2) } }
process main() { finish fib(20) }"""


def contender(store: str, url: str) -> Contender:
    """Return Lashlang, or plain Python."""
    return Lashlang(url) if store == "lashlang" else PlainPython(url)


class Computing(Contender):
    """Something that runs the programs."""

    async def open(self) -> Facts:
        return {"versions": {"Python": platform.python_version()}, "sync": {}}

    async def close(self) -> None:
        """Leave nothing behind: there is nothing."""

    async def loop(self, load: Load) -> list[float]:
        return await self._timed("loop", load)

    async def lists(self, load: Load) -> list[float]:
        return await self._timed("lists", load)

    async def records(self, load: Load) -> list[float]:
        return await self._timed("records", load)

    async def calls(self, load: Load) -> list[float]:
        return await self._timed("calls", load)

    def program(self, name: str) -> Callable[[], Awaitable[Any]]:
        """Return what runs a program once."""
        raise NotImplementedError

    async def _timed(self, name: str, load: Load) -> list[float]:
        program = self.program(name)
        expected = _PYTHON[name]()
        taken = []
        for _ in range(load.steps):
            started = time.perf_counter()
            result = await program()
            taken.append((time.perf_counter() - started) * 1000)
            if result != expected:
                raise AssertionError(f"{name} gave {result}, not {expected}")
        return taken


class Lashlang(Computing):
    """Compiled programs, run as processes without a store."""

    def program(self, name: str) -> Callable[[], Awaitable[Any]]:
        from pylash.lang import Surroundings, artifact, link, parse, run_process, surface_of

        offered = surface_of({"abilities": ["processes"], "modules": {}})
        made = artifact(link(parse(_LASHLANG[name]), offered))
        around = Surroundings(_NoHost(), {})  # type: ignore[arg-type]

        async def run() -> Any:
            ended = await run_process(made, "main", {}, around, time.monotonic, process_id="p")
            if ended.failure is not None:
                raise AssertionError(ended.failure.message)
            return ended.value

        return run


class _NoHost:
    """Is never asked: the programs have no effects."""


class PlainPython(Computing):
    """The same logic in Python."""

    def program(self, name: str) -> Callable[[], Awaitable[Any]]:
        async def run() -> Any:
            return _PYTHON[name]()

        return run


def _loop() -> float:
    total = 0.0
    i = 0.0
    while i < 100000:
        if i % 3 == 0 or i % 5 == 0:
            total = total + i
        i = i + 1
    return total


def _lists() -> float:
    evens = [x * x for x in map(float, range(20000)) if x % 2 == 0]
    kept = []
    for x in evens:
        if x % 3 == 0:
            kept.append(x + 1)  # noqa: PERF401 - as the program does
    kept[0] = 7.0
    return len(kept) + sum(kept)


def _records() -> float:
    rows = [{"id": n, "name": f"row {n:.0f}", "tags": ["a", "b"]} for n in map(float, range(10000))]
    total = 0.0
    for row in rows:
        if row["name"] != "row 7" and "a" in row["tags"]:
            total = total + row["id"]
    return total


def _fib(n: float) -> float:
    return n if n < 2 else _fib(n - 1) + _fib(n - 2)


_LASHLANG: Final = {"loop": LOOP, "lists": LISTS, "records": RECORDS, "calls": CALLS}
_PYTHON: Final[dict[str, Callable[[], Any]]] = {
    "loop": _loop,
    "lists": _lists,
    "records": _records,
    "calls": lambda: _fib(20.0),
}
