"""Errors of models: one sentence each, and whether a retry may help.

Rule 1. Errors are classified by their types and codes, never by their texts.
Rule 2. Of a provider's response only its short message is kept, with keys hidden; its headers and body
        are not.
Rule 3. An answer that cannot be read or stored is a transient error: a proxy, a restart or a cut connection causes
        it, and the same request usually succeeds the next time. Only an error that names a cause in the
        request, the key or the account is permanent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import inf
from typing import Any, Final

from pydantic_ai import exceptions
from pydantic_ai.models import Model

from pylash.models.replies import UnstorableReply, without_surrogates
from pylash.values.secrets import environment_secrets, hide_and_cut, url_secrets
from pylash.values.turn_errors import ProviderError

MESSAGE_CHARACTERS: Final = 300
RETRYABLE_STATUSES: Final = (408, 409, 425)
"""HTTP statuses after which a retry may help, besides those that have their own exception class."""

_PHRASES: Final[tuple[tuple[type[Exception], str, bool], ...]] = (
    (exceptions.ModelAuthenticationError, "refused the key", False),
    (exceptions.ModelNotFoundError, "is not known to its provider", False),
    (
        exceptions.ModelContextWindowExceededError,
        "cannot take a conversation of this length",
        False,
    ),
    (exceptions.ModelRequestRejectedError, "refused the request", False),
    (exceptions.ModelQuotaExceededError, "has no quota left", False),
    (exceptions.ModelRateLimitError, "is rate limited", True),
    (exceptions.ModelUnavailableError, "is overloaded", True),
    (exceptions.ModelServerError, "failed with a server error", True),
    (exceptions.ModelTimeoutError, "did not answer in time", True),
    (exceptions.ModelRequestTimeout, "did not answer in time", True),
    (exceptions.ModelConnectionError, "could not be reached, or the connection broke", True),
    (exceptions.ModelAPIError, "failed", False),
    (exceptions.ContentFilterError, "was stopped by its content filter", False),
    (exceptions.UnexpectedModelBehavior, "sent an answer that cannot be read", True),
    (exceptions.UserError, "cannot handle this request", False),
)
"""The meaning of pydantic-ai's errors, subclasses first, and whether a retry may help."""

IN_PROCESS: Final = ("function", "test")
"""The systems of models that are Python functions: their exceptions are not a provider's response."""

_REFUSALS: Final = ("invalid_request_error",)
"""Types of errors in a stream that blame the request but have no class in pydantic-ai."""


def failure(error: Exception, name: str, model: Model[Any]) -> ProviderError:
    """Return the ProviderError for an error of a model."""
    if isinstance(error, ExceptionGroup):
        # A fallback model raises it after each of its models failed.
        each = [failure(one, name, model) for one in error.exceptions if isinstance(one, Exception)]
        return next((one for one in each if one.retryable), each[-1])
    if isinstance(error, TimeoutError):
        return ProviderError(f"{name} did not answer in time.", retryable=True)
    if isinstance(error, UnstorableReply):
        text = f"{name} sent an answer that cannot be stored: {error}"
        return ProviderError(text, retryable=model.system not in IN_PROCESS)
    phrase, retryable = _classify(error, model)
    status = getattr(error, "status_code", None)
    hint = getattr(error, "provider_retry_hint", None)
    if isinstance(error, OSError) or status in RETRYABLE_STATUSES:
        retryable = True
    if hint is not None:
        retryable = hint
    where = "" if status is None else f" ({status})"
    message = hide_and_cut(_provider_message(error, model), MESSAGE_CHARACTERS, _secrets(model))
    return ProviderError(
        f"{name} {phrase}{where}{': ' if message else '.'}{message}",
        retryable=retryable,
        retry_after=_retry_after(error),
    )


def _classify(error: Exception, model: Model[Any]) -> tuple[str, bool]:
    """Return the description of an error, to be put after the model's name, and whether a retry may help."""
    if _is_unreadable(error, model):
        return f"sent an answer that cannot be read ({type(error).__name__})", True
    if type(error) is exceptions.ModelAPIError:  # an error in a stream without its own class
        return "failed", getattr(error, "provider_error_type", None) not in _REFUSALS
    for kind, phrase, retryable in _PHRASES:
        if isinstance(error, kind):
            return phrase, retryable
    return f"failed with {type(error).__name__}", False


def _is_unreadable(error: Exception, model: Model[Any]) -> bool:
    """Return whether the vendor's client could not read a response; such an error quotes the response or source code."""
    if isinstance(error, exceptions.AgentRunError | exceptions.UserError | OSError):
        plain = type(error) is exceptions.ModelAPIError
        return plain and isinstance(error.__cause__, ValueError)
    return model.system not in IN_PROCESS and not isinstance(error, NotImplementedError)


def _provider_message(error: Exception, model: Model[Any]) -> str:
    """Return the message of the provider, or of the library."""
    body = getattr(error, "body", None)
    if isinstance(body, dict):
        inner = body.get("error")
        body = inner.get("message") if isinstance(inner, dict) else inner or body.get("message")
    elif body is not None or getattr(error, "status_code", None) is not None:
        body = None  # the response is not the provider's, but the error page of a proxy
    elif not _is_unreadable(error, model):
        body = _text_of(error)
    return " ".join(without_surrogates(body).split()) if isinstance(body, str) else ""


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except TypeError:  # pydantic-ai's message is None if the provider sent none
        return ""


def _secrets(model: Model[Any]) -> Iterator[str]:
    client = getattr(model, "client", None)
    given = [getattr(client, name, None) for name in ("api_key", "auth_token")]
    yield from (value for value in given if isinstance(value, str) and len(value) >= 8)
    yield from url_secrets(str(getattr(model, "base_url", "")))
    yield from environment_secrets(os.environ)


def _retry_after(error: Exception) -> float | None:
    """Return the seconds after which the provider allows a retry, or None if its response does not contain them."""
    known = getattr(error, "retry_after", None)
    if known is not None:
        return float(known)
    try:
        seconds = float((getattr(error, "headers", None) or {})["retry-after"])
    except (KeyError, ValueError):
        return None
    return seconds if 0 <= seconds < inf else None
