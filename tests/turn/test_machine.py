"""The effects and messages of a turn, as transcripts."""

from __future__ import annotations

from typing import get_args

import pytest

from pylash.turn.budgets import TurnBudget
from pylash.turn.machine import (
    ANSWERS,
    MODEL_TRIES,
    OUTPUT_TRIES,
    Answer,
    Ask,
    CallModel,
    CheckpointTaken,
    EnvironmentSynced,
    ModelReplied,
    TakeCheckpoint,
    TurnMachine,
)
from pylash.turn.messages import AssistantMessage, Text, Usage, UserMessage
from tests.turn.scenario import call, calls, fails, play, says

AGE = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
    "additionalProperties": False,
}
STRUCTURED = {"output_schema": AGE}


@pytest.mark.proves("T1")
def test_every_question_has_answers_and_every_answer_a_question() -> None:
    assert set(ANSWERS) == set(get_args(Ask))
    answers = [answer for some in ANSWERS.values() for answer in some]
    assert sorted(answers, key=str) == sorted(get_args(Answer), key=str)


# --- answers and tools ---


def test_a_model_that_answers_ends_the_turn() -> None:
    assert (
        play(says("It is ten."))
        == """
user       Go.
?          environment
?          checkpoint 0
?          model 1
assistant  It is ten.
=          completed 'It is ten.'
"""
    )


@pytest.mark.proves("T1")
def test_a_tool_is_run_and_the_model_asked_again() -> None:
    script = (calls(call("lookup", order=7), text="Let me see."), says("It was sent."))
    assert (
        play(*script, results={"lookup": "sent"})
        == """
user       Go.
?          environment
?          checkpoint 0
?          model 1
assistant  Let me see., i1.c0 lookup(order=7)
?          tools i1.c0
tool       i1.c0 lookup: sent
?          checkpoint 1
?          model 2
assistant  It was sent.
=          completed 'It was sent.'
"""
    )


def test_a_turn_goes_round_as_long_as_the_model_calls_tools() -> None:
    script = (calls(call("a"), call("b")), calls(call("c")), says("Done."))
    assert (
        play(*script, results={"b": "b's"})
        == """
user       Go.
?          environment
?          checkpoint 0
?          model 1
assistant  i1.c0 a(), i1.c1 b()
?          tools i1.c0, i1.c1
tool       i1.c0 a: done
tool       i1.c1 b: b's
?          checkpoint 1
?          model 2
assistant  i2.c0 c()
?          tools i2.c0
tool       i2.c0 c: done
?          checkpoint 2
?          model 3
assistant  Done.
=          completed 'Done.'
"""
    )


@pytest.mark.proves("T7")
def test_an_environment_that_a_tool_or_a_plugin_changed_is_captured_before_the_next_model_call() -> (
    None
):
    script = (calls(call("unlock"), call("unlock")), calls(call("a")), says("Done."))
    assert (
        play(*script, syncs={"unlock", 0, 1})
        == """
user       Go.
?          environment
?          checkpoint 0
?          environment again, 0
?          model 1
assistant  i1.c0 unlock(), i1.c1 unlock()
?          tools i1.c0, i1.c1
tool       i1.c0 unlock: done
tool       i1.c1 unlock: done
?          checkpoint 1
?          environment again, 1
?          model 2
assistant  i2.c0 a()
?          tools i2.c0
tool       i2.c0 a: done
?          checkpoint 2
?          model 3
assistant  Done.
=          completed 'Done.'
"""
    )


def test_a_turn_that_ends_captures_no_environment_before() -> None:
    budget = {"budget": TurnBudget(iterations=1)}
    transcript = play(calls(call("unlock")), syncs={"unlock"}, machine=budget)
    assert "environment again" not in transcript
    assert "=          stopped" in transcript


def test_messages_sent_meanwhile_come_after_the_results() -> None:
    heard = {0: ["Hello?"], 1: ["Hurry!", "Please."]}
    assert (
        play(calls(call("a")), says("Yes."), heard=heard)
        == """
user       Go.
?          environment
?          checkpoint 0
user       Hello?
?          model 1
assistant  i1.c0 a()
?          tools i1.c0
tool       i1.c0 a: done
?          checkpoint 1
user       Hurry!
user       Please.
?          model 2
assistant  Yes.
=          completed 'Yes.'
"""
    )


# --- models that fail ---


def test_a_model_that_may_recover_is_asked_again_after_a_pause() -> None:
    assert (
        play(fails(retryable=True), fails(retryable=True), says("Here."))
        == """
user       Go.
?          environment
?          checkpoint 0
?          model 1
!          busy: Too many.
?          pause 1000 ms
?          model 1 again, try 2
!          busy: Too many.
?          pause 2000 ms
?          model 1 again, try 3
assistant  Here.
=          completed 'Here.'
"""
    )


def test_a_model_that_does_not_recover_fails_the_turn() -> None:
    transcript = play(*[fails(retryable=True)] * MODEL_TRIES)
    assert transcript.count("?          model 1") == MODEL_TRIES
    assert transcript.endswith("""
?          model 1 again, try 4
!          busy: Too many.
=          failed busy: Too many.
""")


def test_the_tries_of_each_question_are_counted_anew() -> None:
    struggles = [fails(retryable=True)] * (MODEL_TRIES - 1)
    transcript = play(*struggles, calls(call("a")), *struggles, says("At last."))
    assert transcript.endswith("=          completed 'At last.'\n")


def test_a_model_that_cannot_recover_fails_the_turn_at_once() -> None:
    assert (
        play(calls(call("a")), fails("No such model.", "model_unknown"))
        == """
user       Go.
?          environment
?          checkpoint 0
?          model 1
assistant  i1.c0 a()
?          tools i1.c0
tool       i1.c0 a: done
?          checkpoint 1
?          model 2
!          model_unknown: No such model.
=          failed model_unknown: No such model.
"""
    )


# --- budgets ---


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (TurnBudget(iterations=1), "the budget of 1 iterations is used up"),
        (TurnBudget(tokens=1_000_000), "the budget of 1000000 tokens is used up"),
        (TurnBudget(seconds=2.5), "the budget of 2.5 seconds is used up"),
        (TurnBudget(cost=0.3), "the budget of 0.3 cost is used up"),
    ],
)
def test_a_budget_that_is_used_up_stops_the_turn_with_the_reason_in_the_transcript(
    budget: TurnBudget, reason: str
) -> None:
    usage = Usage(1, 400_000, 600_000, 0.3)
    reply = calls(call("a"), usage=usage, seconds=2.5)
    assert (
        play(reply, machine={"budget": budget})
        == f"""
user       Go.
?          environment
?          checkpoint 0
?          model 1
assistant  i1.c0 a()
?          tools i1.c0
tool       i1.c0 a: done
?          checkpoint 1
runtime    [Stopped: {reason}.]
=          stopped turn_stopped: {reason}
"""
    )


@pytest.mark.parametrize(
    "budget", [TurnBudget(iterations=4), TurnBudget(tokens=30), TurnBudget(cost=0.5)]
)
def test_what_subagents_use_counts(budget: TurnBudget) -> None:
    used = Usage(3, 10, 20, 0.5)
    transcript = play(calls(call("spawn")), machine={"budget": budget}, tool_usage=used)
    assert "=          stopped turn_stopped: the budget of" in transcript


def test_an_answer_within_the_budget_is_an_answer_however_much_it_used() -> None:
    reply = says("Ten.", usage=Usage(1, 9_000, 9_000), seconds=90.0)
    budget = TurnBudget(iterations=1, tokens=1, seconds=1)
    assert play(reply, machine={"budget": budget}).endswith("=          completed 'Ten.'\n")


# --- structured answers ---


def test_a_structured_answer_may_be_text() -> None:
    assert (
        play(says('{"age": 7}'), machine=STRUCTURED)
        == """
user       Go.
?          environment
?          checkpoint 0
?          model 1
assistant  {"age": 7}
=          completed '{"age": 7}' {"age":7}
"""
    )


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"age": 7}\n```',
        '```\n{"age": 7}\n```\n',
        '```{"age": 7}```',
        '```json {"age": 7}```',
        '```JSON\n{"age": 7}\n```',
        'Here you are:\n```json\n{"age": 7}\n```\nAnything else?',
    ],
)
def test_a_structured_answer_may_be_fenced(text: str) -> None:
    assert play(says(text), machine=STRUCTURED).endswith(' {"age":7}\n')


def test_a_fence_inside_a_structured_answer_is_part_of_it() -> None:
    text = '{"code": "```py\\nx = 1\\n```"}'
    for answer in (text, f"```json\n{text}\n```"):
        transcript = play(says(answer), machine={"output_schema": {"type": "object"}})
        assert transcript.endswith(f"{text.replace(': ', ':')}\n")


@pytest.mark.parametrize("text", ["", "```", "``````", "``` ```", "[" * 100_000, "\ud800"])
def test_any_text_is_an_answer_or_a_misfit(text: str) -> None:
    transcript = play(says(text), says('{"age": 7}'), machine=STRUCTURED)
    assert "nothing else: the answer is no JSON." in transcript


def test_a_structured_answer_may_be_a_call_and_nothing_else_is_run() -> None:
    assert (
        play(calls(call("a"), call("final_result", age=7)), machine=STRUCTURED)
        == """
user       Go.
?          environment
?          checkpoint 0
?          model 1
assistant  i1.c0 a(), i1.c1 final_result(age=7)
tool       i1.c0 a error: The answer was taken; this was not run.
tool       i1.c1 final_result: Taken.
=          completed '' {"age":7}
"""
    )


def test_a_structured_answer_may_come_after_tools() -> None:
    transcript = play(calls(call("a")), says('{"age": 7}'), machine=STRUCTURED)
    assert transcript.endswith("""
?          model 2
assistant  {"age": 7}
=          completed '{"age": 7}' {"age":7}
""")


def test_a_text_that_does_not_fit_is_returned_to_the_model_and_may_be_corrected() -> None:
    script = (says("Seven."), says('{"age": "7"}'), says('{"age": 7}'))
    assert (
        play(*script, machine=STRUCTURED)
        == """
user       Go.
?          environment
?          checkpoint 0
?          model 1
assistant  Seven.
runtime    Answer again, with JSON that fits the schema and nothing else: the answer is no JSON.
?          checkpoint 1
?          model 2
assistant  {"age": "7"}
runtime    Answer again, with JSON that fits the schema and nothing else: $.age is '7', not of type integer.
?          checkpoint 2
?          model 3
assistant  {"age": 7}
=          completed '{"age": 7}' {"age":7}
"""
    )


def test_a_call_that_does_not_fit_is_returned_to_the_model_and_may_be_corrected() -> None:
    script = (calls(call("final_result"), call("a")), calls(call("final_result", age=7)))
    assert (
        play(*script, machine=STRUCTURED)
        == """
user       Go.
?          environment
?          checkpoint 0
?          model 1
assistant  i1.c0 final_result(), i1.c1 a()
tool       i1.c0 final_result error: It does not fit: $.age is missing
tool       i1.c1 a error: This was not run: the answer did not fit.
?          checkpoint 1
?          model 2
assistant  i2.c0 final_result(age=7)
tool       i2.c0 final_result: Taken.
=          completed '' {"age":7}
"""
    )


def test_texts_that_never_fit_fail_the_turn_and_the_last_is_not_asked_for_again() -> None:
    transcript = play(*[says("Seven.")] * OUTPUT_TRIES, machine=STRUCTURED)
    assert transcript.endswith("""
?          model 3
assistant  Seven.
=          failed turn_output_invalid: The model's answer did not fit 3 times: the answer is no JSON
""")


def test_calls_that_never_fit_fail_the_turn() -> None:
    transcript = play(*[calls(call("final_result"))] * OUTPUT_TRIES, machine=STRUCTURED)
    assert transcript.endswith("""
?          model 3
assistant  i3.c0 final_result()
tool       i3.c0 final_result error: It does not fit: $.age is missing
=          failed turn_output_invalid: The model's answer did not fit 3 times: $.age is missing
""")


def test_without_a_schema_final_result_is_a_tool_like_any_other() -> None:
    assert "?          tools i1.c0" in play(calls(call("final_result")), says("Done."))


def test_a_cancel_keeps_the_text_that_was_streamed_and_nothing_else() -> None:
    machine = TurnMachine([UserMessage((Text("hi"),))])
    machine.handle_response(EnvironmentSynced())
    machine.handle_response(CheckpointTaken())
    machine.cancel("enough", "It sh")
    assert machine.messages[1:] == [AssistantMessage("It sh", interrupted=True)]
    assert machine.end is not None
    assert (machine.end.status, machine.end.text, machine.end.error) == (
        "cancelled",
        "It sh",
        "enough",
    )
    assert machine.end.usage.requests == 1
    machine.cancel("again", "more")
    assert len(machine.messages) == 2


@pytest.mark.parametrize("said", ["", " \n"])
def test_a_cancel_keeps_no_blank_text(said: str) -> None:
    machine = TurnMachine([UserMessage((Text("hi"),))])
    machine.cancel("enough", said)
    assert len(machine.messages) == 1
    assert machine.end is not None
    assert machine.end.text == ""


def test_a_reply_that_was_interrupted_is_followed_by_a_checkpoint() -> None:
    machine = TurnMachine([UserMessage((Text("hi"),))], output_schema={"type": "string"})
    machine.handle_response(EnvironmentSynced())
    machine.handle_response(CheckpointTaken())
    machine.handle_response(ModelReplied(AssistantMessage("It sh", interrupted=True)))
    assert machine.poll_effect() == TakeCheckpoint(1)
    machine.handle_response(CheckpointTaken((UserMessage((Text("Never mind."),)),)))
    assert machine.poll_effect() == CallModel(2)
