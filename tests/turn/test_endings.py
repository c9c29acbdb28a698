"""However a turn ends, it ends once and leaves a transcript that any provider accepts."""

from __future__ import annotations

import msgspec
import pytest

from pylash.turn.machine import RunTools, TurnMachine
from pylash.turn.messages import ToolMessage
from tests.turn.scenario import Player, call, calls, fails, says, turn

STEPS = 11
"""How many answers the turn below takes to its end."""


def long_turn() -> Player:
    return turn(fails(retryable=True), calls(call("a"), call("b")), calls(call("c")), says("Done."))


def test_the_long_turn_has_as_many_steps_as_the_tests_below_believe() -> None:
    assert long_turn().steps(STEPS - 1).machine.end is None
    assert long_turn().steps(STEPS).machine.end is not None


def ended_by_cancel(player: Player) -> str:
    player.machine.cancel("Ann asked for it")
    player.tell()
    return player.transcript


def ended_by_failure(player: Player) -> str:
    player.machine.fail("The disk is full.", "store_full")
    player.tell()
    return player.transcript


def test_a_turn_cancelled_before_it_began_has_that_reason() -> None:
    assert (
        ended_by_cancel(long_turn())
        == """
user       Go.
=          cancelled turn_cancelled: Ann asked for it
"""
    )


def test_a_turn_cancelled_while_tools_run_does_not_claim_that_they_did_not() -> None:
    assert (
        ended_by_cancel(long_turn().steps(5))
        == """
user       Go.
?          environment
?          checkpoint 0
?          model 1
!          busy: Too many.
?          pause 1000 ms
?          model 1 again, try 2
assistant  i1.c0 a(), i1.c1 b()
tool       i1.c0 a error: No result: Ann asked for it. It may have run.
tool       i1.c1 b error: No result: Ann asked for it. It may have run.
=          cancelled turn_cancelled: Ann asked for it
"""
    )


def test_a_turn_that_fails_while_tools_run_has_the_reason_as_their_results() -> None:
    assert ended_by_failure(long_turn().steps(5)).endswith("""
assistant  i1.c0 a(), i1.c1 b()
tool       i1.c0 a error: No result: The disk is full. It may have run.
tool       i1.c1 b error: No result: The disk is full. It may have run.
=          failed store_full: The disk is full.
""")


@pytest.mark.parametrize("steps", range(STEPS))
def test_a_turn_may_be_cancelled_and_may_fail_at_every_point(steps: int) -> None:
    cancelled, failed = long_turn().steps(steps), long_turn().steps(steps)
    so_far = list(cancelled.machine.messages)
    waiting = cancelled.machine.poll_effect()
    unanswered = len(waiting.calls) if isinstance(waiting, RunTools) else 0
    assert ended_by_cancel(cancelled).endswith("cancelled turn_cancelled: Ann asked for it\n")
    assert ended_by_failure(failed).endswith("failed store_full: The disk is full.\n")
    for machine in (cancelled.machine, failed.machine):
        assert machine.poll_effect() is None
        assert machine.messages[: len(so_far)] == so_far
        assert len(machine.messages) == len(so_far) + unanswered


def test_the_result_of_a_call_that_was_closed_is_known_to_the_provider() -> None:
    machine = long_turn().steps(5).machine
    machine.cancel()
    results = [m for m in machine.messages if isinstance(m, ToolMessage)]
    assert [m.provider_id for m in results] == ["p10", "p11"]


@pytest.mark.parametrize("steps", [2, 5, STEPS])
def test_a_turn_that_is_over_stays_as_it_ended(steps: int) -> None:
    machine = long_turn().steps(steps).machine
    machine.cancel("first")
    ended = msgspec.json.encode(machine)
    machine.cancel("too late")
    machine.fail("Too late.", "late")
    assert msgspec.json.encode(machine) == ended


def test_the_stop_of_a_turn_is_reported_once() -> None:
    player = long_turn()
    player.machine = msgspec.convert(
        {**msgspec.to_builtins(player.machine), "budget": {"iterations": 0}}, TurnMachine
    )
    player.to_the_end()
    player.machine.cancel()
    player.tell()
    assert player.transcript.count("[Stopped: the budget of 0 iterations is used up.]") == 1
