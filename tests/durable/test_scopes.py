"""Execution scopes."""

from __future__ import annotations

import pytest

from pylash.durable.scopes import (
    ExecutionScope,
    ProcessScope,
    QueueDrainScope,
    RuntimeOperationScope,
    SessionDeleteScope,
    TurnScope,
    checked_scope,
    scope_from_text,
    scope_name,
    scope_text,
    session_of,
    turn_of,
)
from pylash.values.errors import MissingExecutionScopeId

SCOPES: list[tuple[ExecutionScope, str, str | None, str | None, str]] = [
    (TurnScope("s", "t"), "t", "s", "t", "turn s/t"),
    (ProcessScope("p"), "p", None, None, "process p"),
    (QueueDrainScope("s", "d"), "d", "s", None, "queue_drain s/d"),
    (SessionDeleteScope("s"), "s", "s", None, "session_delete s"),
    (RuntimeOperationScope("o"), "o", None, None, "runtime_operation o"),
]


@pytest.mark.proves("E1")
@pytest.mark.parametrize(("scope", "id_", "session", "turn", "name"), SCOPES)
def test_a_scope_knows_its_ids(
    scope: ExecutionScope, id_: str, session: str | None, turn: str | None, name: str
) -> None:
    assert (scope.id, session_of(scope), turn_of(scope)) == (id_, session, turn)
    assert scope_name(scope) == name


@pytest.mark.parametrize("scope", [scope for scope, *_ in SCOPES])
def test_a_scope_survives_being_stored(scope: ExecutionScope) -> None:
    assert scope_from_text(scope_text(scope)) == scope


def test_the_same_turn_id_in_two_sessions_is_two_scopes() -> None:
    assert scope_text(TurnScope("a", "t")) != scope_text(TurnScope("b", "t"))


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_a_blank_id_is_refused(blank: str) -> None:
    with pytest.raises(MissingExecutionScopeId, match="'turn' has a blank session_id"):
        checked_scope(TurnScope(blank, "t"))
