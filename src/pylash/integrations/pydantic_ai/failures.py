"""Exceptions in effects of agents: recorded without secrets, and raised again with their original class.

Rule 1. A raised exception is built from the record, also the first time: a replay raises the same class.
Rule 2. Of a provider's response only the message is recorded, up to a length and with secrets hidden.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, Final

from pydantic_ai.exceptions import (
    ModelConnectionError,
    ModelHTTPError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
)

from pylash.engine.records import message_of
from pylash.values.canonical import round_trip
from pylash.values.errors import AgentCallFailed, LashError, ValueNotJson
from pylash.values.secrets import environment_secrets, hide_and_cut, hide_secrets

MAX_MESSAGE: Final = 2_000

_TRANSIENT: Final = (
    ModelConnectionError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
)
_TRANSIENT_STATUSES: Final = (408, 409, 425)
_ENDS_LOOPS: Final = (StopIteration, StopAsyncIteration)
"""These are not raised again: inside a library they would end one of its loops silently."""
_DROPPED_FIELDS: Final = ("body", "headers")


def is_transient(error: BaseException) -> bool:
    """Return whether a retry of a model request may help after this error."""
    return isinstance(error, _TRANSIENT) or getattr(error, "status_code", 0) in _TRANSIENT_STATUSES


def is_transient_server_error(error: BaseException) -> bool:
    """Return whether a retry of a request to an MCP server may help after this error."""
    kind = type(error)
    is_connection_error = kind.__module__.partition(".")[0] in (
        "anyio",
        "fastmcp",
        "httpx",
        "httpx2",
        "mcp",
    )
    # fastmcp raises a RuntimeError if it is not connected.
    return is_connection_error or isinstance(error, OSError) or kind is RuntimeError


def to_recorded(error: BaseException) -> LashError:
    """Return the error that is recorded for an exception."""
    if isinstance(error, LashError):
        return error
    kind = type(error)
    message = _shorten(message_of(error))
    data: dict[str, Any] = {"type": f"{kind.__module__}:{kind.__qualname__}"}
    if isinstance(error, ModelHTTPError):
        data["http"] = True  # its class and its category have the same name
    # Of an exception with live objects only the class and the message are recorded.
    with suppress(ValueNotJson):
        data["state"] = _hide(round_trip({**_state(error), "args": _arguments(error, message)}))
    return AgentCallFailed(message, data=data)


def _state(error: BaseException) -> dict[str, Any]:
    attached = ("_pydantic_ai_", "__")
    state = {name: value for name, value in vars(error).items() if not name.startswith(attached)}
    state |= {name: None for name in _DROPPED_FIELDS if name in state}
    if isinstance(state.get("message"), str):
        state["message"] = _shorten(state["message"])
    return state


def _shorten(text: str) -> str:
    return hide_and_cut(text, MAX_MESSAGE, environment_secrets(os.environ))


def _hide(value: Any) -> Any:
    """Return plain JSON without the secrets in its texts."""
    if isinstance(value, str):
        return hide_secrets(value, environment_secrets(os.environ))
    if isinstance(value, list):
        return [_hide(each) for each in value]
    if isinstance(value, dict):
        return {name: _hide(each) for name, each in value.items()}
    return value


def _arguments(error: BaseException, message: str) -> list[Any]:
    """Return the arguments of an exception; a single text is its message."""
    return [
        message if isinstance(one, str) and len(one) > MAX_MESSAGE else one for one in error.args
    ]


def restore(error: LashError) -> Exception:
    """Return the exception that a record describes, or AgentCallFailed if it cannot be built."""
    if error.code != AgentCallFailed.default_code or not isinstance(error.data, dict):
        return error
    state = error.data.get("state")
    kind = _class(str(error.data.get("type")), bool(error.data.get("http")))
    if kind is None or issubclass(kind, _ENDS_LOOPS) or not isinstance(state, dict):
        return AgentCallFailed(error.message, data=error.data)
    try:
        rebuilt = kind.__new__(kind, *state["args"])
        rebuilt.args = tuple(state["args"])
        vars(rebuilt).update({name: value for name, value in state.items() if name != "args"})
    except (AttributeError, TypeError):  # a class with another constructor
        return AgentCallFailed(error.message, data=error.data)
    return rebuilt


def _class(path: str, http: bool) -> type[Exception] | None:
    """Return a class of exceptions by its path; nothing is imported for it."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    return _http_class(found) if http else found


def _http_class(category: Any) -> type[ModelHTTPError]:
    if issubclass(category, ModelHTTPError):
        return ModelHTTPError
    try:
        return type(ModelHTTPError.for_category(category, status_code=0, model_name=""))
    except TypeError:  # not a category in this version
        return ModelHTTPError
