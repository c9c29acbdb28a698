"""Execution scopes: the identity of one execution.

Rule 1. A scope is chosen before any work starts, and never changes.
Rule 2. The whole scope is the identity, never its bare id: turn ``t1`` of two sessions is two scopes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pylash.values.canonical import encode
from pylash.values.errors import InvalidExecutionScope, MissingExecutionScopeId
from pylash.values.names import MAX_NAME_BYTES, check_name


class _Scope(msgspec.Struct, frozen=True, tag_field="type"):
    """The ids that name an execution, the most specific one last."""

    @property
    def id(self) -> str:
        """The id of the execution itself, which may occur in other scopes too."""
        own: str = getattr(self, self.__struct_fields__[-1])
        return own


class TurnScope(_Scope, frozen=True, tag="turn"):
    """One turn of one session."""

    session_id: str
    turn_id: str


class ProcessScope(_Scope, frozen=True, tag="process"):
    """One process. It belongs to no session."""

    process_id: str


class QueueDrainScope(_Scope, frozen=True, tag="queue_drain"):
    """One turn that only takes queued messages of a session."""

    session_id: str
    drain_id: str


class SessionDeleteScope(_Scope, frozen=True, tag="session_delete"):
    """The deletion of one session."""

    session_id: str


class RuntimeOperationScope(_Scope, frozen=True, tag="runtime_operation"):
    """An operation of the runtime itself."""

    operation_id: str


ExecutionScope = (
    TurnScope | ProcessScope | QueueDrainScope | SessionDeleteScope | RuntimeOperationScope
)
"""The identity of one execution."""

MAX_ID_BYTES: Final = 1_200
"""The longest id of a process. Ids that users choose are shorter (``MAX_NAME_BYTES``); derived ids contain several."""

_DECODER: msgspec.json.Decoder[ExecutionScope] = msgspec.json.Decoder(ExecutionScope)


def session_of(scope: ExecutionScope) -> str | None:
    """Return the session id of a scope, if it has one."""
    return getattr(scope, "session_id", None)


def turn_of(scope: ExecutionScope) -> str | None:
    """Return the turn id of a scope, if it is a turn."""
    return getattr(scope, "turn_id", None)


def scope_type(scope: ExecutionScope) -> str:
    """Return the stored tag of a scope."""
    return str(scope.__struct_config__.tag)


def checked_scope(scope: ExecutionScope) -> ExecutionScope:
    """Return scope, or raise an error if it is not a scope or has an id that cannot be stored."""
    if not isinstance(scope, ExecutionScope):
        raise InvalidExecutionScope(scope)
    for field in scope.__struct_fields__:
        name = getattr(scope, field)
        if isinstance(name, str) and not name.strip():
            raise MissingExecutionScopeId(scope_type(scope), field)
        limit = MAX_ID_BYTES if field == "process_id" else MAX_NAME_BYTES
        check_name(field.replace("_", " "), name, limit=limit)
    return scope


def scope_text(scope: ExecutionScope) -> str:
    """Return the text under which the scope is stored."""
    return encode(scope).decode()


def scope_from_text(text: str) -> ExecutionScope:
    """Return the scope stored as text."""
    return _DECODER.decode(text)


def scope_name(scope: ExecutionScope) -> str:
    """Return the scope for display, such as ``turn s1/t1``."""
    ids = "/".join(getattr(scope, field) for field in scope.__struct_fields__)
    return f"{scope_type(scope)} {ids}"
