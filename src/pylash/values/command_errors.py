"""The errors of the command line: what was named is not there, or is not what it must be."""

from __future__ import annotations

from collections.abc import Sequence

from pylash.values.errors import Misuse, WaitError


class RunUnknown(Misuse):
    """There is no process, turn or session of that name."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"There is no process, turn or session {text!r} in this store: list them with pylash ps."
        )


class RunAmbiguous(Misuse):
    """Several processes, turns or sessions begin with that text."""

    def __init__(self, text: str, found: Sequence[str]) -> None:
        shown = ", ".join(map(repr, found[:5])) + (", …" if len(found) > 5 else "")
        super().__init__(
            f"Several things are called {text!r} ({shown}): write one of them in full."
        )


class NothingToCancel(Misuse):
    """The session or turn has nothing that could be cancelled."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} has no turn that runs, waits or is blocked: nothing was cancelled."
        )


class AlreadyResolved(WaitError):
    """The wait was answered before, or its time was over."""

    def __init__(self, how: str) -> None:
        super().__init__(f"The wait has ended already ({how}): nothing was changed.")


class AppInvalid(Misuse):
    """``module:app`` names nothing that can be run."""

    def __init__(self, named: str, reason: str) -> None:
        super().__init__(
            f"The app {named!r} cannot be used: {reason}. Name a Lash as module:variable, such as shop:app."
        )
