"""The examples in the documents and in `examples/` are run."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.forks import forked

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/guide/*.md"))]


def blocks() -> list[tuple[str, str]]:
    return [
        (f"{document.name}-{number}", code)
        for document in DOCUMENTS
        for number, code in enumerate(
            re.findall(r"^```python\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL), 1
        )
    ]


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in blocks()])
def test_an_example_in_the_documents_runs_as_written(code: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    process = forked(tmp_path / "printed", run_alone, str(script))
    assert process.ends() == 0, process.errors


def run_alone(script: str) -> None:
    """Be a program, in its folder and with every warning an error."""
    os.chdir(Path(script).parent)
    warnings.simplefilter("error")
    runpy.run_path(script, run_name="__main__")


def example(name: str) -> str:
    """Return what an example prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    return done.stdout


def test_the_demo_tells_its_story() -> None:
    printed = example("shop_agent.py")
    story = re.sub(r"\d+", "N", printed)
    assert "approval: Money leaves the shop: refund(" in story
    assert "kill -N N, in the middle of the sentence" in story
    assert (
        "“I refunded N.N for order N. I will tell you as soon as the parcel was picked up.”"
        in story
    )
    assert "the process wakes the session: The parcel of order N was picked up." in story
    ran = [line.split()[0] for line in printed.splitlines() if "(process" in line]
    assert sorted(ran) == ["lookup", "refund", "watch_pickup"]
    rows = [line.split()[0] for line in printed.splitlines() if "█" in line]
    assert rows[:4] == ["environment", "model", "lookup", "model"]


def test_an_example_process_is_killed_and_resumed() -> None:
    printed = example("killed_and_resumed.py")
    story = re.sub(r"\d+", "N", printed)
    assert "  ● charge_card: ran in process N and was recorded" in story
    assert "  ✗ pack_box: kill -N N, before its outcome was recorded" in story
    assert "  ↺ charge_card: answered from the journal, as process N recorded it" in story
    assert "the timer is over; it waits for a signal" in story
    assert "the card was charged once" in story
    rows = [line.split()[0] for line in printed.splitlines() if re.search("[█─]", line)]
    assert rows == ["charge_card", "pack_box", "sleep", "address", "send_mail"]
