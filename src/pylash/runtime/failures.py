"""How processes fail: the class, the code, the message and the raw value are kept."""

from __future__ import annotations

from typing import Any

from pylash.durable import Failure
from pylash.runtime.records import message_of
from pylash.values import (
    LashError,
    ProcessFailed,
    ProcessRecoveryFailed,
    StepFailed,
    ValueNotJson,
    WorkflowFailed,
    round_trip,
    storable,
)


def failure_of(error: BaseException) -> Failure:
    """Return how a process failed."""
    if isinstance(error, ProcessRecoveryFailed):
        return Failure("recovery", error.code, error.message)
    if isinstance(error, WorkflowFailed):
        return Failure("execution", error.code, error.message, error.data)
    name = error.type_name if isinstance(error, StepFailed) else type(error).__name__
    if isinstance(error, LashError):
        code, data = getattr(error, "code", error.default_code), getattr(error, "data", None)
        return Failure(storable(name), storable(str(code)), message_of(error), _raw(data))
    return Failure(storable(name), ProcessFailed.default_code, message_of(error), _raw(error.args))


def _raw(value: Any) -> Any:
    try:
        return round_trip(list(value) if isinstance(value, tuple) else value)
    except ValueNotJson:
        return None
