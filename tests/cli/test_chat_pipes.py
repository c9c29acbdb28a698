"""Chatting through pipes: a line is a turn, answers are on stdout, and there is no control code."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash
from pylash.cli.store_options import load_app
from tests.cli.terminal import clean_environment

pytestmark = pytest.mark.slow

APP = Path(__file__).with_name("chat_app.py.txt")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    shutil.copy(APP, tmp_path / "shop.py")
    return tmp_path


def command(*arguments: str, named: str = "shop:app") -> list[str]:
    return [sys.executable, "-m", "pylash", "chat", named, *arguments]


def chat(shop: Path, command: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=shop,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **given,
    )


def piped(
    shop: Path, text: str, *arguments: str, named: str = "shop:app"
) -> subprocess.CompletedProcess[str]:
    return chat(shop, command(*arguments, named=named), input=text)


def test_answers_are_plain_and_all_else_is_on_stderr(shop: Path) -> None:
    done = piped(shop, "look for it\nrefund me\ny\nevil\n/usage")
    assert done.stdout == (
        "I look.\nIt said: order 17\nI ask.\nIt said: refunded 500\n"
        "evil \\x1b[2J\\x1b]0;title\\x07\\u202etxt\\x9b31m end\n"
    )
    told = done.stderr.splitlines()
    assert told[0].startswith('✓ look(order="17") ')
    assert told[1:3] == [
        '? refund(why="late", cents=500): Money leaves the shop [approve? y/n/e]',
        "✓ approved",
    ]
    assert told[3].startswith('✓ refund(why="late", cents=500) ')
    assert told[4].startswith("5 model calls")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr


def test_lines_may_come_from_a_file(shop: Path) -> None:
    (shop / "lines").write_text("hello\n\nagain\n")
    with (shop / "lines").open() as lines:
        done = chat(shop, command(), stdin=lines)
    assert (done.stdout, done.returncode) == ("I heard 'hello'.\nI heard 'again'.\n", 0)


def test_a_turn_that_waits_when_the_lines_end_is_kept_and_can_be_resumed(shop: Path) -> None:
    left = piped(shop, "refund me\n", "--session", "one")
    assert (left.stdout, left.returncode) == ("I ask.\n", 1)
    assert "Resume it with: pylash chat shop:app --session one" in left.stderr
    resumed = piped(shop, "y\n", "--session", "one")
    assert resumed.stdout.endswith("It said: refunded 500\n")
    assert resumed.returncode == 0


def test_a_failed_turn_is_shown_and_is_the_exit_status(shop: Path) -> None:
    done = piped(shop, "fail\n")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.startswith("✗ failed: The model is away.")
    assert piped(shop, "fail\nhello\n").returncode == 0


def test_a_path_of_a_file_names_an_app(shop: Path) -> None:
    done = piped(shop, "look once\n", named="./shop.py:app")
    assert done.stdout == "I look.\nIt said: order 17\n"


@pytest.mark.parametrize("named", ["shop.py:app", "./shop.py:app", "./shop:app"])
def test_the_path_may_have_a_folder_and_an_ending(
    shop: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    try:
        assert isinstance(load_app(named), Lash)
    finally:
        sys.modules.pop("shop", None)


def test_a_name_that_is_not_an_app_is_refused_in_one_sentence(shop: Path) -> None:
    done = chat(shop, command(named="shop:reply"), stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "[app_invalid]" in done.stderr


def test_an_interrupt_cancels_the_turn_and_a_second_one_leaves(shop: Path) -> None:
    with subprocess.Popen(
        command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=shop,
        env=clean_environment(),
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("wait please\n")
        process.stdin.flush()
        assert process.stdout.readline() == "I wait.\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.stderr.readline().startswith("✗ gate() ")
        assert process.stderr.readline() == "■ cancelled\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 1


def test_a_file_of_a_model_is_shown_when_it_is_made_and_in_the_history(shop: Path) -> None:
    done = piped(shop, "draw a cat\n/history")
    assert done.stdout.splitlines() == ["A cat.", "A cat."]
    told = [line for line in done.stderr.splitlines() if line.startswith("image/png, 4 bytes: ")]
    assert len(told) == 2


def test_the_history_shows_how_turns_ended(shop: Path) -> None:
    done = piped(shop, "hello\nfail\nhello again\n/history", "--session", "one")
    told = done.stderr.splitlines()
    assert told.count("✗ failed: The model is away. [provider_error]") == 2
