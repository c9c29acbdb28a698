"""Running programs against a small world, to its end, without an app."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pylash.engine.system import SystemClock
from pylash.lang import (
    Bounds,
    CellOutcome,
    Surroundings,
    artifact,
    link,
    parse,
    run_cell,
    surface_of,
)
from pylash.lang.artifacts import Artifact
from pylash.lang.running.hosts import Host, HostCall
from pylash.lang.running.meter import CELL_BOUNDS
from pylash.lang.surface import Surface

ECHO = {"id": "echo", "input": "any", "output": "any"}
DOCUMENT: dict[str, Any] = {
    "abilities": ["processes", "sleep", "process_signals", "triggers", "label_annotations"],
    "modules": {
        "tools": {"type": "Tools", "operations": {"echo": ECHO, "boom": {**ECHO, "id": "boom"}}}
    },
}
OFFERED = surface_of(DOCUMENT)


class World(Host):
    """Echoes; starts and wakes nobody."""

    def __init__(self) -> None:
        self.prints: list[Any] = []
        self.traced: list[dict[str, Any]] = []

    async def call(self, calls: Sequence[HostCall]) -> Sequence[dict[str, Any]]:
        return [
            {"ok": False, "error": "boom"}
            if call.operation == "boom"
            else {"ok": True, "value": call.payload}
            for call in calls
        ]

    async def start(
        self,
        key: str,
        process_id: str,
        process: str,
        args: dict[str, Any],
        handles: tuple[str, ...],
    ) -> str:
        return process_id

    async def await_process(self, key: str, process_id: str) -> dict[str, Any]:
        return {"ok": True, "value": process_id}

    async def cancel(self, key: str, process_id: str) -> None: ...

    async def sleep(self, key: str, *, ms: int | None = None, until: int | None = None) -> None: ...

    async def wait_signal(self, key: str, name: str, within: int | None) -> tuple[bool, Any]:
        return within is None, name

    async def send_signal(self, key: str, process_id: str, name: str, payload: Any) -> None: ...

    async def event(self, key: str, kind: str, payload: dict[str, Any]) -> None: ...

    def print(self, value: Any) -> None:
        self.prints.append(value)

    def trace(self, event: dict[str, Any]) -> None:
        self.traced.append(event)


def made(source: str, surface: Surface = OFFERED, variables: Sequence[str] = ()) -> Artifact:
    return artifact(link(parse(source), surface, variables=variables))


def run(
    program: Artifact,
    variables: dict[str, Any] | None = None,
    world: World | None = None,
    *,
    bounds: Bounds = CELL_BOUNDS,
    traced: bool = False,
) -> CellOutcome:
    """Run main."""
    around = Surroundings(world or World(), {"tools": "Tools"}, traced)
    held = {} if variables is None else variables
    return asyncio.run(
        run_cell(program, held, around, SystemClock().monotonic, scope="cell:1", bounds=bounds)
    )
