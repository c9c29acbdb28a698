"""What holds for every turn, whatever the model says and whenever it is stopped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylash.turn.budgets import TurnBudget
from pylash.turn.machine import OUTPUT_TRIES, Ask, TurnEnd, TurnMachine
from pylash.turn.messages import AssistantMessage, Message, ToolCall, ToolMessage, Usage
from pylash.turn.outputs import FINAL_RESULT
from tests.turn.provider_rules import refusal
from tests.turn.scenario import Player, Script, call, calls, fails, said, says

SCHEMAS = st.sampled_from([None, {}, {"type": "object", "required": ["age"]}])
BUDGETS = st.none() | st.builds(
    TurnBudget, iterations=st.none() | st.integers(0, 4), tokens=st.none() | st.integers(0, 40)
)
TEXTS = st.sampled_from(["", "Hi.", '{"age": 7}', '```json\n{"age": 7}\n```', "{}", "[1]"])
CALLS = st.sampled_from(
    [call("a", x=1.5), call("b"), call(FINAL_RESULT), call(FINAL_RESULT, age=[None, {"b": 7}])]
)
USAGES = st.builds(Usage, st.integers(0, 2), st.integers(0, 9), st.integers(0, 9))
REPLIES = st.one_of(
    st.builds(says, TEXTS, usage=USAGES),
    st.builds(
        lambda some, text, usage: calls(*some, text=text, usage=usage),
        st.lists(CALLS, min_size=1, max_size=3),
        TEXTS,
        USAGES,
    ),
    st.builds(fails, retryable=st.booleans()),
)
HEARD = st.dictionaries(st.integers(0, 3), st.lists(st.sampled_from(["Hey.", ""]), max_size=2))
SYNCS = st.sets(st.sampled_from(["a", "b", 0, 1, 2]))
ENOUGH = [says("Enough.")] * OUTPUT_TRIES


@st.composite
def turns(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a turn; the model has had enough when its script is over."""
    return {
        "replies": [*draw(st.lists(REPLIES, max_size=6)), *ENOUGH],
        "heard": draw(HEARD),
        "tool_usage": draw(USAGES),
        "syncs": draw(SYNCS),
        "output_schema": draw(SCHEMAS),
        "budget": draw(BUDGETS),
    }


def player_of(drawn: dict[str, Any]) -> Player:
    drawn = dict(drawn)
    options = {name: drawn.pop(name) for name in ("output_schema", "budget")}
    return Player(TurnMachine([said("Go.")], **options), Script(**drawn))


def restored(machine: TurnMachine) -> TurnMachine:
    return msgspec.json.decode(msgspec.json.encode(machine), type=TurnMachine)


@given(turns())
def test_a_turn_restored_at_every_step_continues_unchanged(drawn: Any) -> None:
    undisturbed = player_of(drawn).to_the_end()
    disturbed = player_of(drawn)
    disturbed.machine = restored(disturbed.machine)
    disturbed.to_the_end(between=restored)
    assert disturbed.lines == undisturbed.lines
    assert disturbed.machine == undisturbed.machine
    assert disturbed.machine.end == undisturbed.machine.end


@given(turns())
def test_a_machine_is_restored_with_its_exact_types(drawn: Any) -> None:
    player = player_of(drawn)
    while True:
        copy = restored(player.machine)
        assert copy == player.machine
        assert types_in(copy) == types_in(player.machine)
        if not player.step():
            break
    assert isinstance(restored(player.machine).end, TurnEnd)


def types_in(machine: TurnMachine) -> list[type]:
    ask: Ask | None = machine.poll_effect()
    inside = getattr(ask, "calls", ())
    kept = [c for m in machine.messages if isinstance(m, AssistantMessage) for c in m.calls]
    assert all(isinstance(one, ToolCall) for one in [*inside, *kept])
    return [type(ask), type(inside), *map(type, machine.messages), type(machine.budget)]


@given(turns(), st.integers(0, 30), st.sampled_from(["cancel", "fail"]))
def test_however_a_turn_ends_any_provider_takes_what_it_leaves(
    drawn: Any, steps: int, ending: str
) -> None:
    player = player_of(drawn).steps(steps)
    if ending == "cancel":
        player.machine.cancel()
    else:
        player.machine.fail("It broke.", "broken")
    assert player.machine.poll_effect() is None
    assert player.machine.end is not None
    assert refusal(player.machine.messages) is None


@given(turns())
def test_whatever_the_model_is_asked_with_any_provider_takes(drawn: Any) -> None:
    player = player_of(drawn)
    while (ask := player.machine.poll_effect()) is not None:
        if not hasattr(ask, "calls"):
            assert refusal(player.machine.messages) is None
        player.step()
    assert refusal(player.machine.messages) is None


@given(turns())
def test_no_question_is_asked_twice_so_that_each_has_a_key_of_its_own(drawn: Any) -> None:
    player = player_of(drawn)
    asked: list[bytes] = []
    while (ask := player.machine.poll_effect()) is not None:
        asked.append(msgspec.json.encode(ask))
        player.step()
    assert len(asked) == len(set(asked))


@given(turns())
def test_messages_are_only_ever_added(drawn: Any) -> None:
    player = player_of(drawn)
    before: list[Message] = []
    going = True
    while going:
        assert player.machine.messages[: len(before)] == before
        before = list(player.machine.messages)
        going = player.step()


# --- the checker itself ---

ASKED = AssistantMessage(calls=(ToolCall("i1.c0", "a"), ToolCall("i1.c1", "b")))
FIRST, SECOND = ToolMessage("i1.c0", "a"), ToolMessage("i1.c1", "b")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [AssistantMessage("Hi.")],
        [FIRST],
        [said("Go."), ASKED],
        [said("Go."), ASKED, FIRST],
        [said("Go."), ASKED, SECOND, FIRST],
        [said("Go."), ASKED, FIRST, FIRST, SECOND],
        [said("Go."), ASKED, FIRST, said("Hey."), SECOND],
        [said("Go."), ASKED, FIRST, SECOND, SECOND],
    ],
)
def test_the_checker_refuses_what_providers_refuse(messages: list[Message]) -> None:
    assert refusal(messages) is not None


def test_the_checker_takes_what_providers_take() -> None:
    assert refusal([said("Go."), ASKED, FIRST, SECOND, said("Hey."), says("Hi.")]) is None
