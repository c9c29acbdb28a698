"""Errors of turns, sessions, tools and models."""

from __future__ import annotations

from typing import Any

from pylash.values.errors import LashError, Misuse


class TurnAnswerUnexpected(Misuse):
    """A turn machine was told something it did not ask for."""

    def __init__(self, answer: str, asked: str) -> None:
        super().__init__(
            f"The turn machine was told {answer} and had asked {asked}: answer what poll_effect returns."
        )


class TurnInputConflict(Misuse):
    """A turn id was used again with another input."""

    def __init__(self, session_id: str, turn_id: str) -> None:
        super().__init__(
            f"Turn {turn_id!r} of session {session_id!r} has another input: use a new turn id."
        )


class TurnFailed(LashError):
    """A turn that did not complete has no text and no value."""

    def __init__(self, turn_id: str, status: str, reason: str | None, code: str | None) -> None:
        why = f": {reason}" if reason else ""
        super().__init__(
            f"Turn {turn_id!r} {_ENDED.get(status, status)}{why}.",
            data={"status": status, "code": code, "error": reason},
        )


_ENDED = {"failed": "failed", "cancelled": "was cancelled", "stopped": "was stopped"}


class TurnUnknown(Misuse):
    """There is no such turn."""

    def __init__(self, session_id: str, turn_id: str) -> None:
        super().__init__(f"Session {session_id!r} has no turn {turn_id!r}.")


class TurnOutputInvalid(LashError):
    """What a turn answered is not what the caller asked for."""

    def __init__(self, turn_id: str, reason: str) -> None:
        super().__init__(f"The answer of turn {turn_id!r} does not fit ({reason}).")


class SessionIdInvalid(Misuse):
    """A session's id is blank, or cannot be stored."""

    def __init__(self, session_id: object) -> None:
        super().__init__(f"{session_id!r} is no session id: use a text that is not blank.")


class SessionUnknown(Misuse):
    """There is no such session."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"There is no session {session_id!r}: its first turn makes it.")


class SessionExists(Misuse):
    """A fork's id is taken."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"There is a session {session_id!r} already: fork to a new id.")


class SessionLaneReentrant(Misuse):
    """A turn was asked for on the lane of its own caller: it would wait for itself."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"Session {session_id!r} is in the turn that asks for this one, which would wait for itself: "
            "use another session, or ctx.wake."
        )


class SessionOptionUnknown(Misuse):
    """A session was opened with something that is not known by that name."""

    def __init__(self, what: str, name: object, known: str) -> None:
        super().__init__(f"There is no {what} {name!r} (known: {known}).")


class ModelMissing(Misuse):
    """A turn needs a model and there is none."""

    def __init__(self) -> None:
        super().__init__(
            "This app has no model: pass Lash(model=…), app.session(…, model=…), or set PYLASH_MODEL."
        )


class ModelUnknown(Misuse):
    """A model's name means nothing here."""

    def __init__(self, name: object, known: str) -> None:
        super().__init__(f"There is no model {name!r} here (known: {known}).")


class ToolError(LashError):
    """Raised by a tool: its message is what the model is told.

    >>> raise ToolError("Order 7 was refunded already.")
    """

    def __init__(self, message: str, *, data: Any = None) -> None:
        super().__init__(message, data=data)


class ToolArgumentsInvalid(LashError):
    """A model called a tool with arguments that do not fit."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"The arguments of {tool} do not fit: {reason}")


class ToolDefinitionInvalid(Misuse):
    """A function cannot be a tool."""

    def __init__(self, tool: object, reason: str) -> None:
        super().__init__(f"{tool!r} cannot be a tool: {reason}.")


class ToolTimeout(LashError):
    """A tool took too long."""

    def __init__(self, tool: str, limit: float) -> None:
        super().__init__(f"{tool} did not answer in {limit:g} s.")


class AttachmentResolutionFailed(LashError):
    """An attachment that is referred to is not in the store."""

    def __init__(self, ref: str) -> None:
        super().__init__(f"The attachment {ref} is not in the store.")
