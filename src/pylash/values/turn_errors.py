"""Errors of turns, sessions, tools and models."""

from __future__ import annotations

from typing import Any

from pylash.values.errors import DurabilityError, LashError, Misuse, NameInvalid


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
        why = f": {reason.rstrip('.')}" if reason and reason != status else ""
        kind = f" [{code}]" if why and code else ""
        super().__init__(
            f"Turn {turn_id!r} {_ENDED.get(status, status)}{why}.{kind}",
            data={"status": status, "code": code, "error": reason},
        )


_ENDED = {"failed": "failed", "cancelled": "was cancelled", "stopped": "was stopped"}


class TurnBlocked(LashError):
    """A turn that is waited for is blocked."""

    def __init__(self, session_id: str, turn_id: str, reason: str) -> None:
        super().__init__(
            f"Turn {turn_id!r} of session {session_id!r} is blocked ({reason}): mend what is wrong and call "
            "session.retry(), or end it with session.cancel()."
        )


class TurnStumbled(DurabilityError):
    """Something went wrong in a turn that is neither the model's nor a tool's fault."""

    def __init__(self, turn: str, reason: str) -> None:
        super().__init__(
            f"{turn} could not go on ({reason}): this is a fault of pylash or a plugin."
        )


class ProcessSessionTurnFailed(LashError):
    """The turn of a session-turn process failed."""

    def __init__(self, session_id: str, reason: str, used: Any = None) -> None:
        super().__init__(f"The turn of child session {session_id!r} failed: {reason}", data=used)


class PluginFailed(LashError):
    """A plugin could not be built for a session."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"Plugin {name!r} could not be built: {reason}")


class TurnUnknown(Misuse):
    """There is no such turn."""

    def __init__(self, session_id: str, turn_id: str) -> None:
        super().__init__(f"Session {session_id!r} has no turn {turn_id!r}.")


class TurnEnvMissing(LashError):
    """What a turn was captured with is not in the store."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"The environment that turn {turn_id!r} was captured with is gone.")


class TurnOutputInvalid(LashError):
    """What a turn answered is not what the caller asked for."""

    def __init__(self, turn_id: str, reason: str) -> None:
        super().__init__(f"The answer of turn {turn_id!r} does not fit ({reason}).")


class SessionIdInvalid(NameInvalid):
    """A session's id is blank, or cannot be stored."""


class SessionUnknown(Misuse):
    """There is no such session."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"There is no session {session_id!r}: its first turn makes it.")


class SessionExists(Misuse):
    """A fork's id is taken."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"There is a session {session_id!r} already: fork to a new id.")


class CursorInvalid(Misuse):
    """A text is no cursor of a session."""

    def __init__(self, cursor: object) -> None:
        super().__init__(
            f"{cursor!r} is no cursor: pass one that session.observe gave, or None for the beginning."
        )


class SessionMoved(Misuse):
    """A session's head is not where a turn began."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"Session {session_id!r} was written by another meanwhile: run the turn again."
        )


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
        super().__init__(
            f"There is no model {name!r} here (known: {known}): register it with app.model({name!r}, …), or "
            "name its provider too, as in 'openai:gpt-5'."
        )


class ModelKeyMissing(Misuse):
    """A model cannot be asked here without a key."""

    def __init__(self, name: str, variable: str) -> None:
        super().__init__(f"Model {name!r} needs a key: set the environment variable {variable}.")


class ModelUnusable(Misuse):
    """A model is known, and cannot be used here as it is set up."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"Model {name!r} cannot be used here: {reason}")


class TurnModelMissing(DurabilityError):
    """The worker has not got the model that a turn began with."""

    def __init__(self, turn_id: str, reason: str) -> None:
        super().__init__(
            f"Turn {turn_id!r} cannot go on here: {reason.rstrip('.')}, and continue it with session.retry()."
        )


class TurnToolMissing(DurabilityError):
    """The worker has not got a tool that a turn was offered, and is to call."""

    def __init__(self, turn_id: str, tool: str) -> None:
        super().__init__(
            f"Turn {turn_id!r} cannot go on here: it is to call tool {tool!r}, which this app does not have; "
            "deploy the tool again and continue with session.retry(), or end the turn with session.cancel()."
        )


class ModelInvalid(Misuse):
    """An object cannot be a model."""

    def __init__(self, model: object) -> None:
        super().__init__(
            f"{model!r} is no model: pass an object with an async method respond(request, listen), a model of "
            "pydantic-ai, or a name."
        )


class ProviderError(LashError):
    """The model did not answer.

    ``retryable`` says whether asking again may help, ``retry_after`` not before how many seconds.
    """

    def __init__(
        self, message: str, *, retryable: bool = False, retry_after: float | None = None
    ) -> None:
        data = {"retryable": retryable}
        super().__init__(
            message, data=data if retry_after is None else {**data, "retry_after": retry_after}
        )

    @property
    def retryable(self) -> bool:
        """Whether asking again may help."""
        return bool(isinstance(self.data, dict) and self.data.get("retryable"))


class InputInvalid(Misuse):
    """What a session is asked is nothing that can be asked."""

    def __init__(self, given: object) -> None:
        super().__init__(
            f"{given!r} cannot be asked: pass a text that is not blank, or a list of texts and attachments."
        )


class ToolFailed(LashError):
    """A tool raised an exception."""

    def __init__(self, error: BaseException, message: str | None = None) -> None:
        said = str(error) if message is None else message
        super().__init__(f"{type(error).__name__}: {said}")


class CallRefused(LashError):
    """A tool call is not run, or gets no result: a person or an outsider said so, or nobody did."""


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
