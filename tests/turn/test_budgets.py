"""What a turn used, and what is left of its budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylash.turn.budgets import Spent, TurnBudget, overrun, remaining, spent
from pylash.turn.messages import AssistantMessage, Message, ToolMessage, Usage
from tests.turn.scenario import said

NOTHING = Spent(0, Usage(), 0.0)
COUNTS = st.integers(0, 9)
USAGES = st.builds(Usage, COUNTS, COUNTS, COUNTS, COUNTS.map(float))
BUDGETS = st.builds(
    TurnBudget,
    iterations=st.none() | COUNTS,
    tokens=st.none() | COUNTS,
    seconds=st.none() | COUNTS.map(float),
    cost=st.none() | COUNTS.map(float),
)
SPENT = st.builds(Spent, COUNTS, USAGES, COUNTS.map(float))


def test_replies_and_the_subagents_of_tools_are_added_up() -> None:
    messages: list[Message] = [
        said("Go."),
        AssistantMessage("a", usage=Usage(1, 10, 5, 0.5), seconds=2.0),
        ToolMessage("i1.c0", "spawn", usage=Usage(3, 30, 15, 1.5), seconds=4.0),
        ToolMessage("i1.c1", "lookup", seconds=1.0),
        AssistantMessage("[Stopped.]", source="runtime"),
    ]
    assert spent(messages) == Spent(4, Usage(4, 40, 20, 2.0), 7.0)


def test_a_reply_is_a_request_although_its_provider_does_not_count_them() -> None:
    assert spent([AssistantMessage("a", usage=Usage(input_tokens=7))]).usage == Usage(1, 7)


def test_no_messages_cost_no_tokens() -> None:
    assert spent([]) == NOTHING


def test_without_a_budget_nothing_is_too_much() -> None:
    plenty = Spent(10**9, Usage(10**9, 10**9, 10**9, 1e9), 1e9)
    assert overrun(None, plenty) is None
    assert overrun(TurnBudget(), plenty) is None
    assert remaining(None, plenty) is None
    assert remaining(TurnBudget(), plenty) == TurnBudget()


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (TurnBudget(iterations=0), "the budget of 0 iterations is used up"),
        (TurnBudget(tokens=0), "the budget of 0 tokens is used up"),
        (TurnBudget(seconds=0), "the budget of 0 seconds is used up"),
        (TurnBudget(cost=0), "the budget of 0 cost is used up"),
    ],
)
def test_a_budget_of_nothing_is_used_up_at_once(budget: TurnBudget, reason: str) -> None:
    assert overrun(budget, NOTHING) == reason


def test_a_subagent_gets_what_is_left() -> None:
    budget = TurnBudget(iterations=10, tokens=100, seconds=5, cost=2)
    used = Spent(4, Usage(4, 30, 20, 0.5), 7.0)
    assert remaining(budget, used) == TurnBudget(iterations=6, tokens=50, seconds=0, cost=1.5)


@given(BUDGETS, SPENT)
def test_what_is_used_up_leaves_nothing_to_a_subagent(budget: TurnBudget, used: Spent) -> None:
    assert (overrun(budget, used) is None) == (overrun(remaining(budget, used), NOTHING) is None)
