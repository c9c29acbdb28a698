"""check, graph and fmt: mistakes in programs, what they do, and the one way to write them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pylash.cli.main import cli
from tests.cli.conftest import Call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_check_shows_every_mistake_with_its_place_and_what_to_write(
    folder: Path, pylash: Call
) -> None:
    (folder / "shop.lash").write_text("x = 1 y\n\ttotal += 2\n")
    (folder / "fine.lash").write_text("finish 1\n")
    done = pylash("check", "shop.lash", "fine.lash")
    assert done.exit_code == 1
    assert done.stdout == (
        "expected the end of the statement, found `y`\n"
        "  --> line 1, column 7 of shop.lash\n"
        " 1 | x = 1 y\n"
        "   |       ^ write `;` or a new line between statements\n"
        "\n"
        "expected a value, found `=`\n"
        "  --> line 2, column 9 of shop.lash\n"
        " 2 |     total += 2\n"
        "   |            ^ there is no `+=`: write `total = total + …`\n"
        "\n"
    )


def test_check_prints_ok(folder: Path, pylash: Call) -> None:
    (folder / "fine.lash").write_text("finish 1\n")
    done = pylash("check", "fine.lash")
    assert (done.exit_code, done.stdout) == (0, "ok\n")


def test_check_prints_json(folder: Path, pylash: Call) -> None:
    (folder / "shop.lash").write_text("x = \n")
    done = pylash("check", "--json", "shop.lash")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == [
        {
            "file": "shop.lash",
            "stage": "parse",
            "kind": "unexpected_token",
            "message": "expected a value, found end of input",
            "line": 2,
            "column": 1,
            "width": 1,
            "hint": None,
        }
    ]


REFUND = """\
process refund(order: str, tool: Tools) -> any {
  found = await tool.lookup({ key: order })?
  finish found
}
h = start refund(order: "A-7", tool: tools)
"""
APP = """\
import pylash

app = pylash.Lash("memory://")

@app.tool
async def lookup(key: str) -> dict[str, str]:
    return {"name": key}
"""


@pytest.fixture
def refund(folder: Path) -> str:
    """Write a program, and the app whose tool it uses; return how the app is named."""
    (folder / "refund.lash").write_text(REFUND)
    (folder / "shop_of_refunds.py").write_text(APP)
    return "./shop_of_refunds.py:app"


def test_check_knows_the_tools_of_an_app(refund: str, folder: Path, pylash: Call) -> None:
    done = pylash("check", "refund.lash", "--app", refund)
    assert (done.exit_code, done.stdout) == (0, "ok\n")
    (folder / "refund.lash").write_text(REFUND.replace("lookup", "look_up"))
    done = pylash("check", "refund.lash", "--app", refund)
    assert done.exit_code == 1
    assert "  --> line 2, column 17 of refund.lash\n" in done.stdout
    assert "did you mean `lookup`?" in done.stdout


def test_check_without_an_app_takes_the_tools_to_be_there(
    refund: str, folder: Path, pylash: Call
) -> None:
    done = pylash("check", "refund.lash")
    assert (done.exit_code, done.stdout) == (0, "ok\n")
    (folder / "refund.lash").write_text(REFUND.replace("finish found", "finish fund"))
    done = pylash("check", "--json", "refund.lash")
    assert done.exit_code == 1
    [first, *_] = json.loads(done.stdout)
    assert (first["stage"], first["kind"], first["line"]) == ("link", "unknown_name", 3)


def test_a_graph_shows_what_a_program_can_do(refund: str, pylash: Call) -> None:
    done = pylash("graph", "refund.lash", "--app", refund)
    assert done.exit_code == 0
    assert done.stdout.startswith("flowchart")
    assert "start refund" in done.stdout
    nodes = json.loads(
        pylash("graph", "refund.lash", "--app", refund, "--process", "refund", "--json").stdout
    )["nodes"]
    assert [(node["kind"], node["label"]) for node in nodes] == [
        ("process", "refund"),
        ("resource_operation", "lookup"),
        ("resource", "Tools"),
        ("terminal", "result"),
    ]
    assert "</svg>" in pylash("graph", "--svg", "refund.lash", "--app", refund).stdout


def test_a_graph_is_written_where_it_is_wanted(refund: str, folder: Path, pylash: Call) -> None:
    done = pylash("graph", "refund.lash", "-o", "refund.svg")
    assert (done.exit_code, done.stdout) == (0, "")
    assert (folder / "refund.svg").read_text().rstrip().endswith("</svg>")
    pylash("graph", "refund.lash", "-o", "refund.mmd")
    assert (folder / "refund.mmd").read_text().startswith("flowchart")


def test_a_graph_of_nothing_is_an_error(refund: str, folder: Path, pylash: Call) -> None:
    done = pylash("graph", "refund.lash", "--app", refund, "--process", "nobody")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "nobody" in done.stderr
    (folder / "refund.lash").write_text("x = ")
    done = pylash("graph", "refund.lash")
    assert done.exit_code == 1
    assert "expected a value" in done.stdout


def test_what_a_program_holds_cannot_command_the_terminal(folder: Path, pylash: Call) -> None:
    (folder / "bad.lash").write_text("x = '\x1b[31m' y\n")
    assert "\\x1b[31m" in pylash("check", "bad.lash").stdout


@pytest.mark.parametrize(
    ("content", "said"), [(None, "does not exist"), (b"x = '\xff'", "not UTF-8 text (byte 5)")]
)
def test_a_file_that_cannot_be_read_is_wrong_usage(
    folder: Path, pylash: Call, content: bytes | None, said: str
) -> None:
    if content is not None:
        (folder / "a.lash").write_bytes(content)
    for command in ("check", "fmt"):
        done = pylash(command, "a.lash")
        assert done.exit_code == 2
        assert said in done.stderr


def test_fmt_rewrites_files_and_prints_which(folder: Path, pylash: Call) -> None:
    untidy, tidy = folder / "untidy.lash", folder / "tidy.lash"
    untidy.write_bytes(b"x=1 # one\r\ny=2\r\n")
    tidy.write_text("x = 1\n")
    before = tidy.stat().st_mtime_ns
    done = pylash("fmt", "untidy.lash", "tidy.lash")
    assert (done.exit_code, done.stdout) == (0, "changed untidy.lash\n")
    assert untidy.read_bytes() == b"x = 1  # one\ny = 2\n"
    assert tidy.stat().st_mtime_ns == before


def test_fmt_check_changes_nothing_and_fails_if_it_would(folder: Path, pylash: Call) -> None:
    (folder / "a.lash").write_text("x=1")
    done = pylash("fmt", "--check", "a.lash")
    assert (done.exit_code, done.stdout) == (1, "would change a.lash\n")
    assert (folder / "a.lash").read_text() == "x=1"
    (folder / "a.lash").write_text("x = 1\n")
    assert pylash("fmt", "--check", "a.lash").exit_code == 0


def test_what_is_piped_in_is_called_the_input() -> None:
    done = CliRunner().invoke(cli, ["check", "-"], input="x = y")
    assert "line 1, column 5 of the input" in done.stdout
    done = CliRunner().invoke(cli, ["check", "-"], input=b"\xff")
    assert "The input is not UTF-8 text" in done.output


def test_fmt_prints_what_is_piped_in_and_what_it_is_asked_to(folder: Path, pylash: Call) -> None:
    done = CliRunner().invoke(cli, ["fmt", "-"], input="x=1")
    assert (done.exit_code, done.stdout) == (0, "x = 1\n")
    (folder / "a.lash").write_text("y=1")
    assert pylash("fmt", "--stdout", "a.lash").stdout == "y = 1\n"
    assert (folder / "a.lash").read_text() == "y=1"
    done = pylash("fmt", "--json", "a.lash")
    assert json.loads(done.stdout) == [{"file": "a.lash", "changed": True}]


def test_fmt_leaves_a_program_with_mistakes_alone(folder: Path, pylash: Call) -> None:
    (folder / "a.lash").write_text("x=\n")
    done = pylash("fmt", "a.lash")
    assert done.exit_code == 1
    assert "expected a value" in done.stdout
    assert (folder / "a.lash").read_text() == "x=\n"


@pytest.mark.slow
@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_unless_it_wants_none(
    folder: Path, env: dict[str, str], coloured: bool
) -> None:
    (folder / "a.lash").write_text("x=")
    ours, theirs = pty.openpty()
    unset = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    subprocess.run(
        [sys.executable, "-m", "pylash", "check", "a.lash"],
        stdout=theirs,
        env=unset | {"TERM": "xterm"} | env,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "expected a value" in shown
    assert ("\x1b[31m" in shown) is coloured


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--store", "memory://", "check", "a.lash"), "--store has no effect on Lashlang programs"),
        (("--store", "memory://", "fmt", "a.lash"), "--store has no effect on Lashlang programs"),
        (("graph", "--json", "--svg", "a.lash"), "leave --svg and --output out"),
        (("graph", "--json", "-o", "a.svg", "a.lash"), "leave --svg and --output out"),
        (("fmt", "--check", "--stdout", "a.lash"), "leave --check and --json out"),
        (("fmt", "--json", "--stdout", "a.lash"), "leave --check and --json out"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    folder: Path, pylash: Call, given: tuple[str, ...], said: str
) -> None:
    (folder / "a.lash").write_text("x=1")
    done = pylash(*given)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert (folder / "a.lash").read_text() == "x=1"
