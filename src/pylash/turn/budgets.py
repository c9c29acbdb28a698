"""Budgets: what a turn and all its subagents may use."""

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
from pylash.values import ArgumentsInvalid


class TurnBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a turn may use, its subagents included; None is no limit. Waiting is not counted.

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
                reason = f"{name}={given!r} is no {whole}number of at least 0"
                raise ArgumentsInvalid("TurnBudget", reason)


class Spent(msgspec.Struct, frozen=True):
    """What a turn has used so far."""

    iterations: int
    usage: Usage
    seconds: float


def spent(messages: list[Message]) -> Spent:
    """Return what the messages of a turn used.

    A reply is one iteration, and so is a request of a subagent or a tool; a summary is none.
    """
    replies = [m for m in messages if isinstance(m, AssistantMessage) and m.source == "model"]
    results = [m for m in messages if isinstance(m, ToolMessage)]
    heard = (m for m in messages if isinstance(m, UserMessage))
    summaries = [m.summary for m in heard if m.summary is not None]
    made: list[ToolMessage | Summary] = [*results, *summaries]
    used = [*map(_reply_usage, replies), *(one.usage for one in made)]
    seconds = sum(m.seconds for m in replies) + sum(one.seconds for one in made)
    iterations = len(replies) + sum(m.usage.requests for m in results)
    return Spent(iterations, sum(used, NO_USAGE), seconds)


def _reply_usage(reply: AssistantMessage) -> Usage:
    """Return what a reply used: one request at least, also if its provider does not count them."""
    return replace(reply.usage, requests=max(1, reply.usage.requests))


def overrun(budget: TurnBudget | None, used: Spent) -> str | None:
    """Return why a turn must stop before it asks the model again, or None."""
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


def shared(budget: TurnBudget | None, number: int, count: int) -> TurnBudget | None:
    """Return what one of several subagents has of a budget: together they have all of it."""
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
    """Return what is left of a budget, for subagents."""
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
