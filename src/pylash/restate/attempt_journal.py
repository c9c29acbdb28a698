"""The journal of one attempt, as an engine that replays by position keeps it.

Rule 1. The journal is a list of entries in the order in which they were asked for. A later attempt of the same run must
        ask for the same entries, by kind and name, in the same order; the engine refuses any other.
Rule 2. Completions have an order too, and a later attempt gets them in the same order, one at a time.
Rule 3. Only ``Stage`` asks for entries and takes completions. Two tasks that do so would depend on their order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from pylash.durable.keys import patch_of

Action: TypeAlias = Callable[[], Awaitable[bytes]]
"""The work of an entry, performed if the journal has no result for it. It raises only if the attempt is to fail."""


class Ticket:
    """An entry of the journal whose completion is awaited; the engine's own future belongs to it."""

    __slots__ = ("engine_future", "name")

    def __init__(self, name: str, engine_future: object) -> None:
        self.name = name
        self.engine_future = engine_future


class Bell(NamedTuple):
    """An entry that is completed from outside, by its id."""

    id: str
    ticket: Ticket


class Suspended(Exception):
    """The engine has suspended the attempt: a later one continues when an entry is completed."""


class EngineRefused(Exception):
    """The engine refuses to continue the attempt, because its entries differ from the recorded ones.

    ``name`` is the entry that was asked for, or ``how`` what the code did instead, at ``position`` of the journal.
    """

    def __init__(
        self, reason: str, name: str | None = None, position: int = 0, how: str | None = None
    ) -> None:
        super().__init__(reason)
        self.name = name
        self.position = position
        self.how = how


class RecordedName(NamedTuple):
    """An entry of the journal: its name, and when it was recorded."""

    name: str
    at: int


def is_internal(name: str) -> bool:
    """Return whether an entry is the engine's own, and neither an effect nor the mark of a patch."""
    return name.startswith("!") and patch_of(name) is None


class ActionFailed(Exception):
    """An action of the attempt has failed, which ends the attempt: the engine executes the run again later."""


class AttemptJournal(Protocol):
    """The journal of one attempt."""

    @property
    def is_replaying(self) -> bool:
        """Whether there are recorded entries that the attempt has not asked for."""
        ...

    @property
    def position(self) -> int:
        """How many entries the attempt has asked for: the place of the next one in ``recorded``."""
        ...

    async def recorded(self) -> Sequence[RecordedName]:
        """Return the entries of the journal in their order. It asks the engine, so it is called only where that matters."""
        ...

    def run(self, name: str, action: Action) -> Ticket:
        """Ask for the result of an action."""
        ...

    def sleep(self, name: str, seconds: float) -> Ticket:
        """Ask for a timer. It is due so many seconds after the first attempt asked for it."""
        ...

    def bell(self) -> Bell:
        """Ask for a completion from outside."""
        ...

    async def next_completed(self, tickets: Collection[Ticket]) -> tuple[Ticket, bytes]:
        """Return the next entry that completes, and its result.

        Raises Suspended, EngineRefused and ActionFailed. Cancellation: the attempt is over.
        """
        ...

    @property
    def may_suspend(self) -> bool:
        """Whether the engine can suspend an attempt that asks for it."""
        ...

    def suspend(self, prepare: Callable[[], Awaitable[bool]]) -> None:
        """Let the engine suspend the attempt as soon as no completion is available.

        ``prepare`` is called before; it returns False if the attempt must not be suspended now.
        """
        ...

    def resume(self) -> None:
        """Take back ``suspend``."""
        ...

    def stop(self) -> None:
        """Cancel the actions that still run: the attempt is over."""
        ...
