"""Chatting in a real terminal: what is seen, what can be typed meanwhile, and how it survives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal

pytestmark = pytest.mark.slow

APP = Path(__file__).with_name("chat_app.py.txt")
WAITING = "⚙ gate() … 42 % at the gate"
LEAVING = "Resume it with: pylash chat shop:app --session one"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    shutil.copy(APP, tmp_path / "shop.py")
    return tmp_path


def chatting(shop: Path, columns: int = 80, session: str = "one", **env: str) -> Terminal:
    return Terminal(["chat", "shop:app", "--session", session], shop, columns, **env)


@pytest.fixture
def chat(shop: Path) -> Iterator[Terminal]:
    with chatting(shop) as terminal:
        terminal.expect("/help")
        yield terminal


def ends_with(text: str, *lines: str) -> bool:
    shown = [line for line in text.split("\n") if line]
    return shown[-len(lines) :] == list(lines)


def test_an_answer_is_streamed_and_a_tool_shows_its_progress_and_its_result(
    chat: Terminal, shop: Path
) -> None:
    chat.enter("wait please")
    chat.expect("› wait please", "I wait.", WAITING, "type to steer")
    (shop / "open").touch()
    text = chat.expect("It said: through")
    assert "✓ gate() " in text
    assert " → through" in text
    assert WAITING not in text


def test_what_is_typed_stays_on_the_last_line_while_the_answer_comes(
    chat: Terminal, shop: Path
) -> None:
    chat.enter("wait please")
    chat.expect(WAITING)
    chat.type("half a sentence")
    chat.expect("› half a sentence")
    (shop / "open").touch()
    chat.expect("It said: through")
    assert ends_with(chat.expect_gone("working"), "It said: through", "› half a sentence")


def test_a_line_steers_and_others_wait_for_the_next_turn(chat: Terminal, shop: Path) -> None:
    chat.enter("wait please")
    chat.expect(WAITING)
    chat.enter("hurry")
    chat.enter("/queue and then")
    chat.expect("⋯ hurry", "⋯ and then (next turn)")
    chat.enter("/queue")
    chat.expect("hurry (now)")
    (shop / "open").touch()
    text = chat.expect("I heard 'hurry'.", "I heard 'and then'.")
    order = ["✓ gate()", "› hurry", "I heard 'hurry'.", "› and then", "I heard 'and then'."]
    assert sorted(order, key=text.index) == order
    assert "It said: through" not in text


def test_an_approval_is_asked_and_a_no_has_a_reason(chat: Terminal) -> None:
    chat.enter("refund me")
    chat.expect('? refund(why="late", cents=500)', "Money leaves the shop", "approve? y/n/e ›")
    chat.enter("yes but only if it is cheap")
    chat.expect("y approves, n rejects")
    chat.enter("n too much")
    chat.expect("✗ rejected: too much", "It said: Not run: it was rejected: too much")


def test_the_arguments_of_an_approval_can_be_changed(chat: Terminal) -> None:
    chat.enter("refund me")
    chat.expect("approve? y/n/e ›")
    chat.enter("e")
    chat.expect('› {"why":"late","cents":500}')
    chat.enter("\x15[1]")
    chat.expect("Arguments must be a JSON object.", "› [1]")
    chat.enter('\x15{"cents":"x"}')
    chat.expect("cents should be a valid integer", '› {"cents":"x"}')
    chat.enter('\x15{"cents":7}')
    chat.expect('✓ approved with {"cents":7}', "It said: refunded 7")


def test_another_message_can_replace_an_approval(chat: Terminal) -> None:
    chat.enter("refund me")
    chat.expect("approve? y/n/e ›")
    chat.enter("/interrupt never mind")
    text = chat.expect("› never mind", "I heard 'never mind'.")
    chat.expect_gone("approve?")
    assert '✗ refund(why="late", cents=500)' in text


def test_a_deferred_result_is_given_by_its_number(chat: Terminal) -> None:
    chat.enter("outside")
    chat.expect("⏸ outside() waits for its result, from outside")
    chat.enter("/resolve 2 1")
    chat.expect("the numbers are those of /waits")
    chat.enter('/resolve 1 "Monday"')
    chat.expect("✓ answered", "It said: Monday")


def test_an_answer_that_was_stopped_is_shown_and_remembered(chat: Terminal) -> None:
    chat.enter("ramble")
    chat.expect("On and on")
    chat.enter("/interrupt never mind")
    chat.expect("I heard 'never mind'.")
    chat.expect_gone("working")
    chat.enter("/history")
    text = chat.expect("■ interrupted")
    assert text.count("On and on") == 2


def test_ctrl_c_cancels_the_turn_and_a_second_one_leaves(chat: Terminal) -> None:
    chat.enter("wait please")
    chat.expect(WAITING)
    chat.type("\x03")
    chat.expect("✗ gate()", "■ cancelled")
    chat.type("\x03")
    assert chat.expect_end() == 0
    assert LEAVING in chat.screen.text


def test_ctrl_c_takes_back_messages_queued_after_the_turn(chat: Terminal, shop: Path) -> None:
    chat.enter("wait please")
    chat.expect(WAITING)
    chat.enter("hurry")
    chat.enter("/queue and then")
    chat.expect("⋯ hurry", "⋯ and then (next turn)")
    chat.type("\x03")
    text = chat.expect("■ cancelled", "Taken back before the model got it", "  hurry", "  and then")
    assert "⋯ hurry" not in text
    chat.enter("look again")
    text = chat.expect("It said: order 17")
    assert "› hurry" not in text
    assert "I heard" not in text
    chat.enter("/queue")
    chat.expect("Nothing is queued.")


def test_two_ctrl_c_at_once_cancel_the_turn_without_saying_that_it_is_kept(
    chat: Terminal, shop: Path
) -> None:
    chat.enter("wait please")
    chat.expect(WAITING)
    chat.type("\x03\x03")
    assert chat.expect_end() == 0
    assert LEAVING in chat.screen.text
    assert "kept" not in chat.screen.text
    with chatting(shop) as again:
        again.expect("✗ gate()", "/help")
        again.enter("look once")
        again.expect("It said: order 17")


def test_ctrl_c_where_nothing_runs_shows_how_to_leave_and_keys_make_it_the_first_again(
    chat: Terminal,
) -> None:
    chat.type("something\x03")
    chat.expect_gone("something")
    chat.type("\x03")
    chat.expect("Ctrl-C again leaves")
    chat.type("x\x7f\x03x")
    chat.expect("› x")
    chat.type("\x7f\x03\x03")
    assert chat.expect_end() == 0


def test_the_terminal_is_given_back_as_it_was(chat: Terminal) -> None:
    assert chat.mode != chat.before
    chat.type("\x04")
    assert chat.expect_end() == 0
    assert chat.mode == chat.before
    assert chat.raw.rstrip().endswith(LEAVING)
    assert chat.raw.count("\x1b[?2004h") == chat.raw.count("\x1b[?2004l") == 1


def test_a_chat_that_is_killed_in_a_turn_goes_on_with_it(shop: Path) -> None:
    with chatting(shop) as first:
        first.expect("/help")
        first.enter("look once")
        first.expect("It said: order 17")
        first.enter("wait please")
        first.expect(WAITING)
        first.kill()
    with chatting(shop) as second:
        text = second.expect("› wait please", "I wait.", WAITING)
        assert ends_with(
            text[: text.index("› wait")],
            "I look.",
            '✓ look(order="17") → order 17',
            "It said: order 17",
        )
        (shop / "open").touch()
        text = second.expect("It said: through")
        assert text.count("I wait.") == 1


def test_an_approval_is_asked_again_by_a_resumed_chat(shop: Path) -> None:
    with chatting(shop) as first:
        first.expect("/help")
        first.enter("refund me")
        first.expect("approve? y/n/e ›")
        first.type("\x04")
        assert first.expect_end() == 0
        assert LEAVING in first.screen.text
    with chatting(shop) as second:
        second.expect("› refund me", '? refund(why="late", cents=500)', "approve? y/n/e ›")
        second.enter("y")
        second.expect("✓ approved", "It said: refunded 500")


def test_two_chats_of_one_session_see_the_same(shop: Path) -> None:
    with chatting(shop) as one, chatting(shop) as other:
        one.expect("/help")
        other.expect("/help")
        one.enter("wait please")
        one.expect(WAITING)
        other.expect("› wait please", "gate()")
        other.enter("hurry")
        other.expect("⋯ hurry")
        (shop / "open").touch()
        one.expect("I heard 'hurry'.")
        other.expect("› hurry", "I heard 'hurry'.")


def test_a_turn_that_others_began_is_shown(chat: Terminal, shop: Path) -> None:
    knock = (
        "import asyncio, shop\n"
        "async def main():\n"
        "    async with shop.app: await shop.app.session('one').enqueue('knock knock')\n"
        "asyncio.run(main())"
    )
    subprocess.run([sys.executable, "-c", knock], cwd=shop, check=True, timeout=60)
    text = chat.expect("I heard 'knock knock'.")
    assert text.count("› knock knock") == 1


def test_a_chat_that_is_terminated_leaves_running_work_behind(chat: Terminal, shop: Path) -> None:
    chat.enter("wait please")
    chat.expect(WAITING)
    os.kill(chat.process.pid, signal.SIGTERM)
    chat.expect("The turn gets a moment to end", LEAVING)
    assert chat.mode == chat.before
    (shop / "open").touch()
    assert chat.expect_end() == 0


def test_an_answer_that_starts_again_has_a_note(chat: Terminal) -> None:
    chat.enter("stutter")
    chat.expect("↺ the answer starts again: ConnectionError: cut")  # before it does
    text = chat.expect("I heard 'stutter'.")
    assert text.count("↺") == 1


def test_what_is_tried_again_is_a_quiet_line(chat: Terminal) -> None:
    chat.enter("wobble")
    text = chat.expect("It said: it stands")
    assert [line for line in text.split("\n") if line.startswith("↺")] == [
        "↺ wobble again: ValueError: it fell once",
        "↺ wobble again: ValueError: it fell twice",
    ]


def test_nothing_that_others_wrote_commands_the_terminal(chat: Terminal) -> None:
    chat.enter("evil")  # the screen refuses what is not printable
    chat.expect(r"evil \x1b[2J\x1b]0;title\x07\u202etxt\x9b31m end")
    chat.enter("print")
    text = chat.expect(r"printed \x1b[31mby a tool", "It said: done")
    assert text.count("›") == 3


def test_what_is_pasted_is_one_message_however_many_lines_it_has(chat: Terminal) -> None:
    chat.type("first \x1b[200~one\rtwo\r\x1b[201~")
    chat.expect("› first one\n  two")
    chat.enter("three")
    chat.expect(r"I heard 'first one\ntwo\nthree'.")


def test_failures_are_shown_in_one_sentence(chat: Terminal) -> None:
    chat.enter("boom")
    text = chat.expect("✗ boom()", "ValueError: it broke", "It said: ValueError")
    chat.enter("fail")
    text = chat.expect("✗ failed: The model is away.")
    assert "Traceback" not in text
    chat.enter("/nonsense")
    chat.expect("There is no /nonsense: /help lists the commands.")


def test_what_subagents_do_is_indented(chat: Terminal) -> None:
    chat.enter("agent")
    text = chat.expect("It said: A and B.")
    assert '\n  ✓ look(order="s") ' in text
    assert '\n✓ spawn_agent(agent="researcher", task="Who?") ' in text


def test_one_can_look_back_begin_anew_and_return(chat: Terminal) -> None:
    chat.enter("long story")
    chat.expect("I think.", "last")
    chat.enter("/usage")
    chat.expect("1 model call, ")
    chat.enter("/new")
    chat.expect("shop:app · session chat-")
    chat.enter("/history")
    chat.expect("There are no messages yet.")
    chat.enter("/resume")
    chat.expect("one  completed, ")
    chat.enter("/resume one")
    chat.enter("hello")
    text = chat.expect("I heard 'hello'.")
    assert text.count("› long story") == 2
    chat.enter("/session")
    chat.expect("Session one.")
    chat.enter("/quit")
    assert chat.expect_end() == 0


@pytest.mark.parametrize("columns", [40, 160])
def test_rows_fit_the_screen_and_no_colour_means_none(shop: Path, columns: int) -> None:
    with chatting(shop, columns, NO_COLOR="1") as chat:  # the screen refuses a row that is too wide
        chat.expect("/help")
        chat.enter("/help")
        chat.expect("Begin a line with //")
        chat.enter("long story")
        chat.expect("last")
        chat.enter("refund me")
        chat.expect("approve? y/n/e ›")
        chat.enter("y")
        text = chat.expect("It said: refunded 500")
        assert max(map(len, text.split("\n"))) < columns
        assert not chat.screen.styled


def test_a_terminal_that_becomes_narrower_is_drawn_anew(chat: Terminal, shop: Path) -> None:
    chat.enter("wait please")
    chat.expect(WAITING)
    chat.resize(40)
    chat.expect_gone("Ctrl-C cancels")
    (shop / "open").touch()
    chat.expect("It said: through")
    chat.enter("hello")
    chat.expect("I heard 'hello'.")


def test_colours_are_there_unless_they_are_not_wanted(chat: Terminal) -> None:
    assert chat.screen.styled
