"""What a run executes: a process, or a turn."""

from __future__ import annotations

from typing import Protocol

from pylash.durable.processes import Slot
from pylash.durable.runs import Instant


class Subject(Protocol):
    """What a run executes: a process, or a turn."""

    @property
    def id(self) -> str:
        """Its name."""
        ...

    @property
    def run(self) -> int:
        """Its run."""
        ...

    @property
    def seed(self) -> str:
        """What its random names are derived from."""
        ...

    @property
    def timeout(self) -> int | None:
        """How long it may take."""
        ...

    @property
    def slot(self) -> Slot | None:
        """The concurrency key it counts for."""
        ...

    @property
    def created(self) -> Instant:
        """When it was started."""
        ...

    @property
    def cancel_delivered(self) -> bool:
        """Whether an earlier run of it was told to end."""
        ...
