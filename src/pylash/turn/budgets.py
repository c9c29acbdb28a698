"""Budgets: limits for a turn and all its subagents."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from pylash.turn.messages import (
    NO_USAGE,
    AssistantMessage,
    Message,
    Summary,
    ToolMessage,
    Usage,
    UserMessage,
)
from pylash.values.process_errors import ArgumentsInvalid


class TurnBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits for a turn, including its subagents; None is no limit. Waiting is not counted.

    >>> session = app.session("chat-42", budget=TurnBudget(iterations=10, tokens=50_000))
    """

    iterations: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        for name, kinds in (
            ("iterations", int),
            ("tokens", int),
            ("seconds", int | float),
            ("cost", int | float),
        ):
            given = getattr(self, name)
            fits = isinstance(given, kinds) and not isinstance(given, bool) and given >= 0
            if given is not None and not fits:
                whole = "whole " if kinds is int else ""
                reason = f"{name}={given!r} is not a {whole}number of at least 0"
                raise ArgumentsInvalid("TurnBudget", reason)


class Spent(msgspec.Struct, frozen=True):
    """The usage of a turn so far."""

    iterations: int
    usage: Usage
    seconds: float


def spent(messages: list[Message]) -> Spent:
    """Return the usage of the messages of a turn.

    A reply is one iteration, and so is a request of a subagent or a tool; a summary is not.
    """
    replies, results, summaries = [], [], []
    reply_seconds, result_seconds, summary_seconds = [], [], []
    iterations = 0
    for message in messages:
        match message:
            case AssistantMessage(source="model", usage=usage):
                iterations += 1
                # At least one request, even if its provider does not count them.
                replies.append(replace(usage, requests=max(1, usage.requests)))
                reply_seconds.append(message.seconds)
            case ToolMessage(usage=usage):
                iterations += usage.requests
                results.append(usage)
                result_seconds.append(message.seconds)
            case UserMessage(summary=Summary(usage=usage, seconds=seconds)):
                summaries.append(usage)
                summary_seconds.append(seconds)
    # The order of the sums is recorded data: shares of budgets are part of commands, and floats depend on it.
    usage = sum([*replies, *results, *summaries], NO_USAGE)
    return Spent(iterations, usage, sum(reply_seconds) + sum([*result_seconds, *summary_seconds]))


def overrun(budget: TurnBudget | None, used: Spent) -> str | None:
    """Return why a turn must stop before the next model call, or None."""
    if budget is None:
        return None
    limits = (
        ("iterations", budget.iterations, used.iterations),
        ("tokens", budget.tokens, used.usage.tokens),
        ("seconds", budget.seconds, used.seconds),
        ("cost", budget.cost, used.usage.cost),
    )
    for name, limit, value in limits:
        if limit is not None and value >= limit:
            return f"the budget of {limit:.15g} {name} is used up"
    return None


def budget_share(budget: TurnBudget | None, number: int, count: int) -> TurnBudget | None:
    """Return the share of one of several subagents; the shares add up to the whole budget."""
    if budget is None or count == 1:
        return budget
    return TurnBudget(
        iterations=_part(budget.iterations, number, count),
        tokens=_part(budget.tokens, number, count),
        seconds=None if budget.seconds is None else budget.seconds / count,
        cost=None if budget.cost is None else budget.cost / count,
    )


def _part(whole: int | None, number: int, count: int) -> int | None:
    return None if whole is None else whole // count + (number < whole % count)


def remaining(budget: TurnBudget | None, used: Spent) -> TurnBudget | None:
    """Return the rest of a budget, for subagents."""
    if budget is None:
        return None
    return TurnBudget(
        iterations=None
        if budget.iterations is None
        else max(0, budget.iterations - used.iterations),
        tokens=None if budget.tokens is None else max(0, budget.tokens - used.usage.tokens),
        seconds=None if budget.seconds is None else max(0.0, budget.seconds - used.seconds),
        cost=None if budget.cost is None else max(0.0, budget.cost - used.usage.cost),
    )
