"""A turn machine accepts only the responses to its requests."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from pylash.turn.machine import (
    ANSWERS,
    Answer,
    CheckpointTaken,
    EnvironmentSynced,
    ModelFailed,
    ModelReplied,
    Paused,
    RunTools,
    ToolsReturned,
    TurnMachine,
)
from pylash.turn.messages import AssistantMessage, ToolMessage
from pylash.values.turn_errors import TurnAnswerUnexpected
from tests.turn.scenario import Player, call, calls, fails, said, says, turn

EVERY_ANSWER: tuple[Answer, ...] = (
    EnvironmentSynced(),
    CheckpointTaken((said("Hello?"),)),
    ModelReplied(AssistantMessage("Hi.")),
    ModelFailed("Too many.", "busy"),
    ToolsReturned(()),
    Paused(),
)
Spoil = Callable[[tuple[ToolMessage, ...]], tuple[ToolMessage, ...]]


def every_question() -> Player:
    return turn(fails(retryable=True), calls(call("a"), call("b")), says("Done."))


def with_tools_outstanding() -> Player:
    player = every_question()
    while not isinstance(player.machine.poll_effect(), RunTools):
        player.step()
    return player


def refuses(machine: TurnMachine, answer: Answer) -> str:
    """Check that answer is refused and changes nothing; return what was said."""
    before = msgspec.json.encode(machine)
    with pytest.raises(TurnAnswerUnexpected) as refused:
        machine.handle_response(answer)
    assert msgspec.json.encode(machine) == before
    return str(refused.value)


def test_an_answer_that_nobody_asked_for_is_refused_and_changes_nothing() -> None:
    player = every_question()
    asked = set()
    while (ask := player.machine.poll_effect()) is not None:
        asked.add(type(ask))
        for answer in EVERY_ANSWER:
            if not isinstance(answer, ANSWERS[type(ask)]):
                assert type(ask).__name__ in refuses(player.machine, answer)
        player.step()
    assert asked == set(ANSWERS)


@pytest.mark.parametrize("answer", EVERY_ANSWER, ids=lambda answer: type(answer).__name__)
def test_a_turn_that_is_over_takes_no_answer(answer: Answer) -> None:
    player = every_question().to_the_end()
    assert "in answer to nothing" in refuses(player.machine, answer)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda results: results[:1], id="one is missing"),
        pytest.param(lambda results: results[:0], id="all are missing"),
        pytest.param(lambda results: results[::-1], id="in another order"),
        pytest.param(lambda results: (results[0], results[0]), id="one twice"),
        pytest.param(lambda results: (*results, ToolMessage("i9.c9", "x")), id="one too many"),
    ],
)
def test_results_that_do_not_answer_the_calls_in_order_are_refused(spoil: Spoil) -> None:
    player = with_tools_outstanding()
    ask = player.machine.poll_effect()
    assert ask is not None
    answer = player.script.answer(ask)
    assert isinstance(answer, ToolsReturned)
    message = refuses(player.machine, ToolsReturned(spoil(answer.messages)))
    assert "in answer to the calls ['i1.c0', 'i1.c1']" in message
    player.to_the_end()


def test_polling_changes_nothing_and_answers_the_same() -> None:
    player = every_question()
    while player.machine.poll_effect() is not None:
        before = msgspec.json.encode(player.machine)
        assert player.machine.poll_effect() is player.machine.poll_effect()
        assert msgspec.json.encode(player.machine) == before
        player.step()
    assert player.machine.poll_effect() is None
