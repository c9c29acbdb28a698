"""The errors of hosts of programs: what they describe or ask for is not there."""

from __future__ import annotations

from collections.abc import Sequence

from pylash.values.errors import Misuse


class SurfaceInvalid(Misuse):
    """The description of what a host offers to programs cannot be used."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"The surface cannot be used: {where}: {reason}.")


class ProcessNotExported(Misuse):
    """A module has no process of that name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        shown = ", ".join(map(repr, known)) or "none at all"
        super().__init__(f"The module has no process {name!r}: it has {shown}.")
