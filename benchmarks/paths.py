"""``python -m benchmarks.paths``: how much of our code three everyday operations pass through.

Each operation runs twice and is measured the second time, when caches are warm. A profile hook in every thread sees
each call of a function in ``src/pylash``; a coroutine that is resumed counts as entered again.

functions  distinct functions that were entered
files      distinct files they are in
hops       calls from a function in one of our files to a function in another
threads    threads in which any of it happened
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pylash
from pylash import Lash, ProcessContext, WorkerConfig
from pylash.testing import ScriptedModel, call, say

SOURCE: Final = str(Path(pylash.__file__).parent)


class Recorder:
    """Records which functions of ours are called while ``recording`` is true."""

    def __init__(self) -> None:
        self.recording = False
        self.functions: dict[CodeType, None] = {}
        self.threads: set[int] = set()
        self.hops = 0

    def install(self) -> None:
        """Hook into this thread and every thread that is started from now on."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.recording or event != "call" or not _is_ours(frame):
            return
        self.functions[frame.f_code] = None
        self.threads.add(threading.get_ident())
        caller = frame.f_back
        while caller is not None and not _is_ours(caller):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != frame.f_code.co_filename:
            self.hops += 1

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Record from here to the end of the block, forgetting what was recorded before."""
        self.functions.clear()
        self.threads.clear()
        self.hops = 0
        self.recording = True
        try:
            yield
        finally:
            self.recording = False

    def summary(self) -> dict[str, Any]:
        """Return the counts, and the functions by file in the order in which each was first entered."""
        by_file: dict[str, list[str]] = {}
        for code in self.functions:
            file = str(Path(code.co_filename).relative_to(SOURCE))
            by_file.setdefault(file, []).append(code.co_qualname)
        return {
            "functions": len(self.functions),
            "files": len(by_file),
            "hops": self.hops,
            "threads": len(self.threads),
            "path": by_file,
        }


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(SOURCE)


async def step_to_commit(recorder: Recorder, store: str) -> None:
    """``ctx.step`` of a process: from the call until its outcome is committed and returned."""
    app = Lash(store)

    async def fetch(number: int) -> int:
        return number

    @app.process
    async def steps(ctx: ProcessContext[None]) -> None:
        await ctx.step(fetch, 1)
        with recorder.traced():
            await ctx.step(fetch, 2)

    async with app:
        await (await app.start(steps.options(id="steps"))).result()


async def turn_with_one_tool(recorder: Recorder, store: str) -> None:
    """A turn in which the model calls one tool: from ``session.turn`` until its result."""
    model = ScriptedModel([call("lookup", order_id="7"), say("It ships today.")] * 2)
    app = Lash(store, model=model)

    @app.tool
    async def lookup(order_id: str) -> str:
        """Find an order."""
        return order_id

    async with app:
        session = app.session("chat")
        await session.turn("Where is order 7?")
        with recorder.traced():
            await session.turn("And now?")


async def signal_to_parked(recorder: Recorder, store: str) -> None:
    """A signal to a parked process: from ``handle.signal`` until the process goes on and ends."""
    app = Lash(store, worker=WorkerConfig(park_after="0s"))

    @app.process
    async def waiter(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait_signal("go")

    async with app:
        for number in range(2):
            handle = await app.start(waiter.options(id=f"waiter-{number}"))
            while (await handle.status()) != "waiting":  # noqa: ASYNC110 - parking tells nobody
                await asyncio.sleep(0.01)
            result = handle.result()
            with recorder.traced():
                await handle.signal("go", number)
                await result


OPERATIONS: Final[dict[str, Callable[[Recorder, str], Awaitable[None]]]] = {
    "step to commit": step_to_commit,
    "turn with one tool": turn_with_one_tool,
    "signal to a parked process": signal_to_parked,
}


def main() -> None:
    """Trace each operation and print what it passed through."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paths", description=__doc__)
    parser.add_argument("--files", action="store_true", help="list the functions by file")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args()
    recorder = Recorder()
    recorder.install()
    found = {}
    for name, operation in OPERATIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(operation(recorder, f"sqlite:///{folder}/paths.db"))
        found[name] = recorder.summary()
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, summary in found.items():
        counts = "  ".join(f"{summary[one]:>4} {one}" for one in ("functions", "files", "hops"))
        print(f"{name:<28}{counts}  {summary['threads']} threads")
        if options.files:
            for file, functions in summary["path"].items():
                print(f"    {file}: {', '.join(functions)}")


if __name__ == "__main__":
    main()
