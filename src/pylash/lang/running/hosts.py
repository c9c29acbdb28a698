"""What a host does for running programs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Refused(Exception):
    """The host refuses to start a process or to take a signal; the text is the reason."""


class HostFailed(Exception):
    """The host could not perform an effect; the text is the reason."""


class HostCall(NamedTuple):
    """One operation to perform. `payload` is plain JSON; `handles` are the processes whose handles are in it."""

    key: str
    path: str
    operation: str
    payload: Any
    node: str
    occurrence: int
    handles: tuple[str, ...] = ()


class Host(Protocol):
    """Performs effects, records them by their keys, and answers from the record."""

    async def call(self, calls: Sequence[HostCall]) -> Sequence[Mapping[str, Any]]:
        """Perform the operations at once; answer each `{"ok": true, "value"}` or `{"ok": false, "error"}`."""
        ...

    async def start(
        self,
        key: str,
        process_id: str,
        process: str,
        args: dict[str, Any],
        handles: tuple[str, ...],
    ) -> str:
        """Start a process of the same module and return its id, or raise `Refused`.

        The id is `process_id`, except in a fork: its own children have other ids than those of the process it was forked from.
        `handles` are the processes whose handles are in the arguments: what else looks like one is data.
        """
        ...

    async def await_process(self, key: str, process_id: str) -> Mapping[str, Any]:
        """Wait for a process to end; answer as for an operation."""
        ...

    async def cancel(self, key: str, process_id: str) -> None:
        """Ask a process to stop."""
        ...

    async def sleep(self, key: str, *, ms: int | None = None, until: int | None = None) -> None:
        """Wait so many milliseconds, or until a time in milliseconds since 1970."""
        ...

    async def wait_signal(self, key: str, name: str, within: int | None) -> tuple[bool, Any]:
        """Take the oldest signal of the name; answer whether there was one in time, and its payload."""
        ...

    async def send_signal(self, key: str, process_id: str, name: str, payload: Any) -> None:
        """Signal a process, or raise `Refused`."""
        ...

    async def event(self, key: str, kind: str, payload: dict[str, Any]) -> None:
        """Append `process.yield` or `process.wake`."""
        ...

    def print(self, value: Any) -> None:
        """Take an observation of a cell, as plain JSON."""
        ...

    def trace(self, event: dict[str, Any]) -> None:
        """Take an execution event."""
        ...


class Surroundings(NamedTuple):
    """The context of an execution: its host, the modules of the host, and how it gives way to other work."""

    host: Host
    modules: Mapping[str, str]
    """The resource type of each module path that the host has."""
    traced: bool = False
    breathe: Callable[[], Awaitable[None]] | None = None
    """Lets other tasks run; called now and then by a program that computes for long."""
    apart: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None
    """Runs a function that computes for long, and changes nothing, where it blocks no other work."""
