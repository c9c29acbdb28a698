"""Runs the hostile programs, each in a child process with little memory and little time."""

from __future__ import annotations

import json
import os
import resource
import sys

from pylash.lang import Bounds
from pylash.lang.problems import LashlangError
from tests.lang.engine import made, run
from tests.lang.hostile import CASES, QUICK

MEMORY = 2**30
SECONDS = 30


def outcome(name: str) -> str:
    """How a program ends: the kind of its error, or how it finished."""
    active = 300 if name in QUICK else 30_000
    bounds = Bounds(steps=1_000_000, active_ms=active, memory_bytes=64 * 2**20)
    try:
        ended = run(made(CASES[name][0]), bounds=bounds)
    except LashlangError as refused:
        return refused.errors[0].kind
    if ended.error is not None:
        lines = CASES[name][0].split("\n")
        assert 1 <= ended.error.line <= len(lines)
        return ended.error.kind
    return "finish" if ended.finished else "continue"


def judged(name: str) -> str:
    """The same, in a child with bounds of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        try:
            said = outcome(name)
        except BaseException as error:  # noqa: BLE001 - what must never happen is told
            said = f"{type(error).__name__}: {error}"[:200]
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return said if status == 0 else f"died of {os.WTERMSIG(status)}"


if __name__ == "__main__":
    json.dump({name: judged(name) for name in sys.argv[1:]}, sys.stdout)
