"""The child process: opens one contender and does the tasks it is sent.

Rule 1. One JSON line in, one JSON line out. Nothing else may reach the parent: whatever a
        library prints goes to standard error, which is the child's log.
Rule 2. A failure is an answer. The end of the input is the end of the child.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator
from typing import Any, Final, TextIO

from benchmarks.contender import Contender, Unavailable
from benchmarks.contenders import MODULES
from benchmarks.lines import Load

OURS: Final = frozenset({"benchmarks", "pylash"})
"""Packages whose absence is a fault, not a peer left out."""


def main() -> None:
    """Serve the contender named on the command line: name, store, url."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    name, store, url = sys.argv[1:]
    asyncio.run(_serve(name, store, url, answers))


async def _serve(name: str, store: str, url: str, answers: TextIO) -> None:
    requests = _requests()
    answer, contender = await _opened(name, store, url)
    print(json.dumps(answer), file=answers)
    if contender is None:
        return
    async for request in requests:
        print(json.dumps(await _done(contender, request)), file=answers)
    await contender.close()


async def _requests() -> AsyncIterator[dict[str, Any]]:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


async def _opened(name: str, store: str, url: str) -> tuple[dict[str, Any], Contender | None]:
    try:
        contender = importlib.import_module(MODULES[name]).contender(store, url)
        return {"facts": await contender.open()}, contender
    except Unavailable as error:
        return {"unavailable": str(error)}, None
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OURS:
            return _failure(error), None
        return {"unavailable": f"{error.name} is not installed"}, None
    except Exception as error:  # noqa: BLE001 - a failure is an answer
        return _failure(error), None


async def _done(contender: Contender, request: dict[str, Any]) -> dict[str, Any]:
    try:
        task = getattr(contender, request["task"])
        return {"values": await task(Load(*request["load"]))}
    except Exception as error:  # noqa: BLE001 - a failure is an answer
        return _failure(error)


def _failure(error: Exception) -> dict[str, Any]:
    traceback.print_exc()
    return {"failed": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
