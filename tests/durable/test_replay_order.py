"""The order of a replay: what may execute, by plain calls."""

from __future__ import annotations

import pytest

from pylash.durable.machines.replay_order import Expected, ReplayOrder, is_expected, line_of


def order(*keys: str) -> ReplayOrder:
    """Return the order of effects that were started one after another."""
    return ReplayOrder(Expected(number, key) for number, key in enumerate(keys, 1))


def expected(replay: ReplayOrder, key: str) -> str | None:
    """Ask for a new effect; return the recorded one that is expected instead, None if it may execute."""
    replay.ask(key)
    found = replay.expected_before(key)
    return None if found is None else found.key


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("fetch", ""),
        ("fetch#2", ""),
        ("gather.0/fetch#2", "gather.0"),
        ("fetch/attempt.2", "fetch"),
        ("gather.0/gather.1/fetch", "gather.0/gather.1"),
        ("root:process:wait_signal:go", ""),
        ("root:process:wait_signal:a/b", ""),
        ("gather.0/gather.1:process:await:child", "gather.0/gather.1"),
    ],
)
def test_the_key_of_an_effect_names_its_line(key: str, line: str) -> None:
    assert line_of(key) == line


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("env", ""),
        ("i1.llm", ""),
        ("i1.c0.approval", "i1.c0"),
        ("i1.c10.attempt.1", "i1.c10"),
        ("i2.c0:process:start:helper", "i2.c0"),
    ],
)
def test_the_calls_of_a_turn_are_lines(key: str, line: str) -> None:
    assert line_of(key) == line


@pytest.mark.parametrize(
    ("key", "kind", "is_so"),
    [
        ("charge", "durable_step", True),
        ("charge/attempt.2", "durable_step", False),
        ("charge/delay.1", "sleep", False),
        ("i1.c0.attempt.1", "tool_attempt", True),
        ("i1.c0.attempt.12", "tool_attempt", False),
        ("i1.llm", "llm_call", True),
        ("i1.llm.2", "llm_call", False),
        ("i1.llm.2.pause", "sleep", False),
        ("now", "now", False),
        ("gather", "decision", False),
        ("env", "sync_execution_environment", False),
        ("wait approval", "await_event", True),
    ],
)
def test_notes_and_repeated_attempts_are_never_expected(key: str, kind: str, is_so: bool) -> None:
    assert is_expected(key, kind) is is_so


def test_a_new_effect_executes_when_all_recorded_ones_were_asked_for() -> None:
    replay = order("a", "b")
    replay.ask("a")
    assert expected(replay, "new") == "b"
    replay.ask("b")
    assert expected(replay, "new#2") is None
    assert replay.is_over


def test_a_renamed_effect_is_refused_before_and_after_the_others_are_asked_for() -> None:
    replay = order("load", "charge")
    replay.ask("load")
    assert expected(replay, "charge_card") == "charge"


def test_a_removed_effect_is_passed_over_by_a_later_one() -> None:
    replay = order("a", "b", "c")
    replay.ask("a")
    replay.ask("c")
    assert expected(replay, "new") is None
    assert replay.passed_over() == ["b"]


def test_the_last_recorded_effect_cannot_be_passed_over() -> None:
    replay = order("a", "b")
    replay.ask("a")
    assert expected(replay, "new") == "b"
    assert replay.expected_at_end() == Expected(2, "b")
    assert replay.passed_over() == []


def test_swapped_recorded_effects_are_answered_and_what_follows_executes() -> None:
    replay = order("a", "b")
    replay.ask("b")
    replay.ask("a")
    assert expected(replay, "new") is None


def test_an_effect_that_was_called_with_others_executes_if_it_alone_is_not_recorded() -> None:
    replay = order("b")
    replay.ask("a")  # gather(step(a), step(b)): both are called before one executes
    replay.ask("b")
    assert replay.expected_before("a") is None


def test_a_renamed_effect_that_was_called_with_others_is_refused() -> None:
    replay = order("a", "b")
    replay.ask("renamed")
    replay.ask("b")
    assert replay.expected_before("renamed") == Expected(1, "a")


def test_open_branches_are_replayed_on_their_own() -> None:
    replay = order("first", "gather.0/a", "gather.1/b")
    replay.ask("first")
    replay.open("gather.0")
    replay.open("gather.1")
    replay.ask("gather.0/a")
    assert expected(replay, "gather.0/new") is None
    assert expected(replay, "gather.1/new") == "gather.1/b"


def test_a_branch_waits_for_what_its_parent_recorded_behind_it() -> None:
    replay = order("gather.0/a", "after")
    replay.open("gather.0")
    replay.ask("gather.0/a")
    assert expected(replay, "gather.0/new") == "after"


def test_a_branch_that_was_never_opened_is_expected_in_its_parent() -> None:
    replay = order("a", "gather.0/b")
    replay.ask("a")
    assert expected(replay, "b") == "gather.0/b"


def test_a_branch_that_ended_early_is_expected_in_its_parent_and_its_siblings() -> None:
    replay = order("gather.0/a", "gather.0/b", "gather.1/c")
    replay.open("gather.0")
    replay.open("gather.1")
    replay.ask("gather.0/a")
    replay.ask("gather.1/c")
    replay.close("gather.0")
    assert expected(replay, "gather.1/new") == "gather.0/b"
    replay.close("gather.1")
    assert expected(replay, "new") == "gather.0/b"


def test_a_branch_is_left_behind_by_a_later_effect_of_its_parent() -> None:
    replay = order("gather.0/a", "after")
    replay.ask("after")
    assert expected(replay, "new") is None
    assert replay.passed_over() == ["gather.0/a"]


def test_a_branch_that_passed_over_an_effect_is_not_expected_again() -> None:
    replay = order("gather.0/a", "gather.0/b")
    replay.open("gather.0")
    replay.ask("gather.0/b")
    replay.close("gather.0")
    assert expected(replay, "new") is None


def test_the_calls_of_a_turn_have_no_order_among_each_other() -> None:
    replay = order("i1.llm", "i1.c0.approval")
    replay.ask("i1.llm")
    assert expected(replay, "i1.c1.attempt.1") is None
    assert expected(replay, "i2.llm") == "i1.c0.approval"
    replay.ask("i1.c0.approval")
    assert expected(replay, "i2.llm") is None


def test_a_call_of_a_turn_waits_for_the_recorded_model_calls() -> None:
    replay = order("i1.llm", "i2.llm")
    replay.ask("i1.llm")
    assert expected(replay, "i1.c0.attempt.1") == "i2.llm"


def test_a_wide_gather_is_replayed_without_looking_at_every_branch_for_every_effect() -> None:
    width = 10_000
    replay = order(*(f"gather.{number}/a" for number in range(width)))
    for number in range(width):
        replay.open(f"gather.{number}")
    for number in range(width):
        replay.ask(f"gather.{number}/a")
        assert expected(replay, f"gather.{number}/new") is None
    assert replay.is_over


def test_lines_that_were_passed_over_matter_to_effects_that_were_asked_for_before() -> None:
    recorded = [Expected(1, "a"), Expected(2, "gather.0/b"), Expected(3, "c")]
    replay = ReplayOrder(recorded, {one.key for one in recorded})
    replay.ask("a")
    replay.ask("early")  # asked for before c: gather.0/b was not passed over then
    replay.ask("c")
    replay.ask("late")
    assert replay.may_execute("late")
    assert not replay.may_execute("early")
    assert replay.expected_before("early") == Expected(2, "gather.0/b")
    replay.open("gather.0")
    replay.ask("gather.0/b")
    replay.close("gather.0")
    assert replay.may_execute("early")
