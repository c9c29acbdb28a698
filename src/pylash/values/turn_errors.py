"""The errors of turns, sessions, tools and models.

The tree is that of ``errors``: misuse first, then outcomes that are recorded. A model reads the messages of the
outcomes of tools; they are part of the recorded requests (rule 4 of ``errors``).
"""

from __future__ import annotations

from typing import Any

from pylash.values.errors import DurabilityError, FormattedError, LashError, Misuse, NameInvalid

# --- misuse: sessions and turns ---


class SessionIdInvalid(NameInvalid):
    """A session id is blank, or cannot be stored."""


class SessionUnknown(Misuse):
    template = "There is no session {session_id!r}: its first turn creates it."


class SessionExists(Misuse):
    template = "There is already a session {session_id!r}: use a new id."


class SessionMoved(Misuse):
    template = "Session {session_id!r} was changed by another writer: run the turn again."


class SessionLaneReentrant(Misuse):
    template = "Session {session_id!r} would wait for itself: use another session, or ctx.wake."


class SessionOptionUnknown(Misuse, fields="what name known"):
    template = "There is no {what} {name!r} (known: {known})."


class CursorInvalid(Misuse):
    template = "Invalid cursor {cursor!r}: pass one that session.observe returned, or None to start at the beginning."


class InputInvalid(Misuse):
    template = "Invalid input {given!r}: pass non-blank text, or a list of texts and attachments."


class TurnUnknown(Misuse, fields="session_id turn_id"):
    template = "Session {session_id!r} has no turn {turn_id!r}."


class TurnInputConflict(Misuse, fields="session_id turn_id"):
    template = "Turn {turn_id!r} of session {session_id!r} has another input: use a new turn id."


class TurnOfProcess(Misuse, fields="session_id turn_id"):
    template = (
        "Turn {turn_id!r} of session {session_id!r} is that of process {turn_id!r}: wait for it with "
        "app.process_handle({turn_id!r}).result(), or use a new turn id."
    )


class TurnAnswerUnexpected(Misuse, fields="answer asked"):
    template = (
        "The turn machine got {answer} in answer to {asked}: answer what poll_effect returns."
    )


# --- misuse: models and tools ---


class ModelMissing(Misuse):
    template = (
        "This app has no model: pass Lash(model=…), app.session(…, model=…), or set PYLASH_MODEL."
    )


class ModelUnknown(Misuse, fields="name known"):
    template = (
        "There is no model {name!r} here (known: {known}): register it with app.model({name!r}, …), or name its "
        "provider too, as in 'openai:gpt-5'."
    )


class ModelKeyMissing(Misuse, fields="name variable"):
    template = "Model {name!r} needs a key: set the environment variable {variable}."


class ModelUnusable(Misuse, fields="name reason"):
    template = "Model {name!r} cannot be used here: {reason}"


class ModelInvalid(Misuse):
    template = (
        "Expected a model, got {model!r}: pass an object with an async method respond(request, listen), a model of "
        "pydantic-ai, or a name."
    )


class ToolDefinitionInvalid(Misuse, fields="tool reason"):
    template = "{tool!r} cannot be a tool: {reason}."


# --- durability: never recorded ---


class TurnStumbled(DurabilityError, fields="turn reason"):
    template = "{turn} could not continue ({reason}): this is a bug in pylash or a plugin."


class TurnModelMissing(DurabilityError, fields="turn_id reason retry"):
    """The worker does not have the model that the turn started with."""

    template = "Turn {turn_id!r} cannot continue here: {reason}, and continue it with {retry}."

    def __init__(self, turn_id: str, reason: str, retry: str) -> None:
        super().__init__(turn_id, reason.rstrip("."), retry)


class TurnToolMissing(DurabilityError, fields="turn_id missing retry cancel"):
    """The worker does not have a tool that the turn calls, or with which an agent begins."""

    template = (
        "Turn {turn_id!r} cannot continue here: it {missing}, which this app does not have; deploy it again and "
        "continue with {retry}, or end the turn with {cancel}."
    )


# --- outcomes of turns ---


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


class TurnBlocked(FormattedError, fields="session_id turn_id reason"):
    template = (
        "Turn {turn_id!r} of session {session_id!r} is blocked ({reason}): fix the cause and call session.retry(), or "
        "end it with session.cancel()."
    )


class TurnEnvMissing(FormattedError):
    template = "The environment that turn {turn_id!r} was captured with is gone."


class TurnOutputInvalid(FormattedError, fields="turn_id reason"):
    template = "The answer of turn {turn_id!r} does not fit ({reason})."


class ProcessSessionTurnFailed(FormattedError, fields="session_id reason"):
    template = "The turn of child session {session_id!r} failed: {reason}"

    def __init__(self, session_id: str, reason: str, used: Any = None) -> None:
        super().__init__(session_id, reason, data=used)


class PluginFailed(FormattedError, fields="name reason"):
    template = "Plugin {name!r} could not be built: {reason}"


class ProviderError(LashError):
    """The model did not answer.

    ``retryable``: a retry may help. ``retry_after``: the seconds until then, if the provider sent them.
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
        """Whether a retry may help."""
        return bool(isinstance(self.data, dict) and self.data.get("retryable"))


# --- outcomes of tools ---


class ToolError(LashError):
    """Raised by a tool: the model reads the message.

    >>> raise ToolError("Order 7 was refunded already.")
    """

    def __init__(self, message: str, *, data: Any = None) -> None:
        super().__init__(message, data=data)


class ToolFailed(LashError):
    """A tool raised an exception."""

    def __init__(self, error: BaseException, message: str | None = None) -> None:
        text = str(error) if message is None else message
        super().__init__(f"{type(error).__name__}: {text}")


class ToolTimeout(FormattedError, fields="tool limit"):
    template = "{tool} did not answer in {limit:g} s."


class ToolArgumentsInvalid(FormattedError, fields="tool reason"):
    template = "The arguments of {tool} do not fit: {reason}"


class CallRefused(LashError):
    """A tool call was not run, or has no result: it was rejected, or not answered in time."""


class AttachmentResolutionFailed(FormattedError):
    template = "The attachment {ref} is not in the store."
