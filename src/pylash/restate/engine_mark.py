"""The mark of processes that Restate executes."""

from __future__ import annotations

from typing import Final, TypeVar

from msgspec.structs import replace

from pylash.durable.commands import StartProcess
from pylash.values.process_errors import NotSupported

CommandT = TypeVar("CommandT")

ENGINE: Final = "restate"
"""The name of the engine in the targets of its runs."""


def mark_for_restate(command: CommandT) -> CommandT:
    """Return a command so that the process it starts, if it starts one, is executed by Restate."""
    if not isinstance(command, StartProcess):
        return command
    if command.registration.slot is not None:
        raise NotSupported("A concurrency key on Restate", "start the process without concurrency=")
    return replace(command, registration=replace(command.registration, carrier=ENGINE))
