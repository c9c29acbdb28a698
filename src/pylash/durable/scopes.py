"""Execution scopes: the identity of one execution.

Rule 1. A scope is chosen before any work is planned, and never changes.
Rule 2. The whole scope is the identity, never its bare id: turn ``t1`` of two sessions is two scopes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pylash.values import (
    MAX_NAME_BYTES,
    InvalidExecutionScope,
    MissingExecutionScopeId,
    check_name,
    encode,
)


class TurnScope(msgspec.Struct, frozen=True, tag_field="type", tag="turn"):
    """One turn of one session."""

    session_id: str
    turn_id: str

    @property
    def id(self) -> str:
        """The turn's id."""
        return self.turn_id


class ProcessScope(msgspec.Struct, frozen=True, tag_field="type", tag="process"):
    """One process. It belongs to no session."""

    process_id: str

    @property
    def id(self) -> str:
        """The process's id."""
        return self.process_id


class QueueDrainScope(msgspec.Struct, frozen=True, tag_field="type", tag="queue_drain"):
    """One draining of a session's queue."""

    session_id: str
    drain_id: str

    @property
    def id(self) -> str:
        """The drain's id."""
        return self.drain_id


class SessionDeleteScope(msgspec.Struct, frozen=True, tag_field="type", tag="session_delete"):
    """The deletion of one session."""

    session_id: str

    @property
    def id(self) -> str:
        """The session's id."""
        return self.session_id


class RuntimeOperationScope(msgspec.Struct, frozen=True, tag_field="type", tag="runtime_operation"):
    """An operation of the runtime itself."""

    operation_id: str

    @property
    def id(self) -> str:
        """The operation's id."""
        return self.operation_id


ExecutionScope = (
    TurnScope | ProcessScope | QueueDrainScope | SessionDeleteScope | RuntimeOperationScope
)
"""The identity of one execution."""

MAX_ID_BYTES: Final = 1_200
"""The longest id of a process. What users choose is shorter (``MAX_NAME_BYTES``); other ids are made of that."""

_DECODER: msgspec.json.Decoder[ExecutionScope] = msgspec.json.Decoder(ExecutionScope)


def session_of(scope: ExecutionScope) -> str | None:
    """Return the session the scope belongs to, if it belongs to one."""
    return getattr(scope, "session_id", None)


def turn_of(scope: ExecutionScope) -> str | None:
    """Return the turn the scope is, if it is one."""
    return getattr(scope, "turn_id", None)


def scope_type(scope: ExecutionScope) -> str:
    """Return the scope's tag, as it is stored."""
    return str(scope.__struct_config__.tag)


def checked_scope(scope: ExecutionScope) -> ExecutionScope:
    """Return scope, or refuse one that is none or has an id that cannot be stored."""
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
    """Return the scope as people read it, such as ``turn s1/t1``."""
    ids = "/".join(getattr(scope, field) for field in scope.__struct_fields__)
    return f"{scope_type(scope)} {ids}"
