"""What people see of programs: ps, show, events and signal, by the names that programs give."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from pylash.cli.main import cli
from tests.workflows.scenes import Shop, waiting

SOURCE = """
process refund(order: str) signals { answer: bool } {
  h = start look(order: order)
  found = await h
  wake "Refund " + order + "?"
  if not (wait signal answer) { fail "not approved" }
}
process look(order: str) { finish await tools.echo({ value: order })? }
"""


def said(*args: str) -> str:
    """Return what a command prints."""
    done = CliRunner().invoke(cli, args)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


async def left(url: str) -> str:
    """Leave a program that waits; return the id of its child."""
    shop = Shop(url)
    async with shop.app:
        await shop.start(SOURCE, "refund", "r-7", order="A-7")

        await waiting(shop.app)
        (child,) = [view.id for view in await shop.app.processes() if view.id != "r-7"]
    return child


def test_programs_are_shown_by_the_names_of_their_processes(
    tmp_path: Path, monkeypatch: Any
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    monkeypatch.setenv("PYLASH_STORE", url)
    child = asyncio.run(left(url))
    listed = said("ps")
    assert [line.split()[2] for line in listed.splitlines()[1:]] == ["look", "refund"]
    assert "signal answer" in listed
    assert {row["target"] for row in json.loads(said("ps", "--json"))} == {
        "lashlang:look",
        "lashlang:refund",
    }
    shown = said("show", "r-7")
    for words in (
        "process lashlang:refund",
        "pylash signal r-7 answer JSON",
        'input      {"order": "A-7"}',
        f"child      {child}  completed",
        "start look",
        "await look",
        "wake ",
    ):
        assert words in shown, shown
    assert json.loads(said("show", "r-7", "--json"))["input"] == {"order": "A-7"}
    assert "parent     r-7" in said("show", child)
    log = said("events", "r-7").splitlines()
    assert [line.split()[3] for line in log] == ["process.started", "process.wake"]
    assert "Refund A-7?" in log[1]
    wrong = said("signal", "r-7", "answer", '"yes"')
    assert "not of type boolean" in wrong
    assert "declares no such signal (declared: answer)" in said("signal", "r-7", "other")
    assert "signalled" in said("signal", "r-7", "answer", "false")
