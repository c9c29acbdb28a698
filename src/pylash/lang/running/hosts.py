"""The interface of a host for running programs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Refused(Exception):
    """The host refuses to start a process or to accept a signal; the text is the reason."""


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
    """Performs effects, records them under their keys, and replays recorded ones."""

    async def call(self, calls: Sequence[HostCall]) -> Sequence[Mapping[str, Any]]:
        """Perform the operations concurrently; return `{"ok": true, "value"}` or `{"ok": false, "error"}` for each."""
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

        The id is `process_id`, except in a fork: its children have other ids than those of the process it was forked from.
        `handles` are the processes whose handles are in the arguments; any other record that looks like one is data.
        """
        ...

    async def await_process(self, key: str, process_id: str) -> Mapping[str, Any]:
        """Wait for a process to end; return its result in the form of an operation's."""
        ...

    async def cancel(self, key: str, process_id: str) -> None:
        """Ask a process to stop."""
        ...

    async def sleep(self, key: str, *, ms: int | None = None, until: int | None = None) -> None:
        """Wait for `ms` milliseconds, or until a time in milliseconds since 1970."""
        ...

    async def wait_signal(self, key: str, name: str, within: int | None) -> tuple[bool, Any]:
        """Take the oldest signal of the name; return whether there was one in time, and its payload."""
        ...

    async def send_signal(self, key: str, process_id: str, name: str, payload: Any) -> None:
        """Signal a process, or raise `Refused`."""
        ...

    async def event(self, key: str, kind: str, payload: dict[str, Any]) -> None:
        """Append `process.yield` or `process.wake`."""
        ...

    def print(self, value: Any) -> None:
        """Receive a printed value of a cell, as plain JSON."""
        ...

    def trace(self, event: dict[str, Any]) -> None:
        """Receive an execution event."""
        ...


class Surroundings(NamedTuple):
    """The context of an execution: its host, the host's modules, and callbacks that let other work run."""

    host: Host
    modules: Mapping[str, str]
    """The resource type of each module path that the host has."""
    traced: bool = False
    breathe: Callable[[], Awaitable[None]] | None = None
    """Lets other tasks run; called repeatedly by a program that computes for a long time."""
    apart: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None
    """Runs a pure function that computes for a long time outside the event loop."""
