"""The mark of processes that Restate executes, and of the store that they are in."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, TypeVar

from msgspec.structs import replace

from pylash.durable.commands import StartProcess
from pylash.values.process_errors import NotSupported

CommandT = TypeVar("CommandT")

ENGINE: Final = "restate"
"""The name of the engine in the targets of its runs."""


NOT_SUPPORTED: Final = (
    "Concurrency keys of processes.",
    "A blocked turn continues only with code that asks for what is recorded, in the same order; a process does by key.",
    "A session is exported, and imported for Restate, only between its turns.",
    "Forks and exports of a process that ended longer ago than Restate keeps its journal, which is a day.",
    "Simulated clocks: the server has a time of its own.",
)
"""What Restate cannot do. Each of the calls raises an error with one sentence, except that a simulated clock does not advance."""


def store_id(secret: bytes) -> str:
    """Return what tells a store from others: workers of a server refuse the runs of another store."""
    return blake2b(secret, digest_size=8, person=b"pylash-store").hexdigest()


def mark_for_restate(command: CommandT) -> CommandT:
    """Return a command so that the process it starts, if it starts one, is executed by Restate."""
    if not isinstance(command, StartProcess):
        return command
    if command.registration.slot is not None:
        raise NotSupported("A concurrency key on Restate", "start the process without concurrency=")
    return replace(command, registration=replace(command.registration, carrier=ENGINE))
