"""The examples in the documents and in `examples/` are run."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from pylash.lang import from_json, show, text_of
from pylash.testing.lashlang import judge
from pylash.testing.lashlang.cases import EXPECTS, TAKES, case
from pylash.testing.lashlang.execution import Session, linked
from tests.forks import forked

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/guide/*.md"))]
PAGES = [*DOCUMENTS, *sorted(ROOT.glob("docs/reference/*.md"))]
FILE = re.compile(r"# (\w+\.(?:py|lash))\n")
STORIES = [
    page for page in DOCUMENTS if re.search(r"^```\w+\n# \w+\.py$", page.read_text(), re.MULTILINE)
]
"""Pages whose examples are files of one directory."""


def fenced(page: Path) -> list[tuple[str, str, str | None]]:
    """Return the examples of a page: language, code, and what they print if the page says so."""
    found = re.findall(
        r"^```(\w+)\n(.*?)^```$(?:\n\n```(?:output|mermaid)\n(.*?)^```$)?",
        page.read_text(),
        re.MULTILINE | re.DOTALL,
    )
    return [(language, code, printed or None) for language, code, printed in found]


def blocks() -> list[tuple[str, str]]:
    return [
        (f"{page.name}-{number}", code)
        for page in DOCUMENTS
        if page not in STORIES
        for number, (_, code, _) in enumerate((b for b in fenced(page) if b[0] == "python"), 1)
    ]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in STORIES])
def test_the_files_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    for language, code, printed in fenced(page):
        name = FILE.match(code)
        assert name, f"an example of {page.name} has no name: {code}"
        (tmp_path / name[1]).write_text(code)
        if language != "python":
            continue
        done = subprocess.run(
            [sys.executable, "-W", "error", name[1]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == (-9 if "SIGKILL" in code else 0), done.stderr
        assert done.stdout == (printed or ""), name[1]


def cells() -> list[tuple[str, str, str | None]]:
    return [
        (f"{page.name}-{number}", code, printed)
        for page in PAGES
        if page not in STORIES
        for number, (_, code, printed) in enumerate(
            (b for b in fenced(page) if b[0] == "lashlang"), 1
        )
    ]


@pytest.mark.parametrize(
    ("code", "printed"), [pytest.param(code, printed, id=name) for name, code, printed in cells()]
)
def test_a_cell_in_the_documents_prints_the_text_below_it(code: str, printed: str | None) -> None:
    """On the host of the conformance cases; one without output must link."""
    about = {"id": "docs", "section": "docs", "title": "docs", "kind": "cell"}
    session = Session(case({**about, "source": code, "expect": {"continue": True}}))
    if printed is None:
        linked(code, session.offered, session)
        return
    outcome = session.run(code)
    lines = [text_of(from_json(value)) for value in session.world.prints]
    if "error" in outcome:
        lines.append(show(outcome["error"], code))
    if "finish" in outcome:
        lines.append(text_of(from_json(outcome["finish"])))
    assert "\n".join(lines) == printed.rstrip("\n")


def test_the_cases_in_the_documents_hold() -> None:
    [text] = re.findall(
        r"^```json\n(.*?)^```$",
        (ROOT / "docs/reference/lashlang-cases.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    document = json.loads(text)
    assert {one["kind"] for one in document["cases"]} >= {"cell", "process", "link", "bounds"}
    assert [problem for one in document["cases"] for problem in judge(one).problems] == []


def test_the_documents_name_all_that_a_case_may_have() -> None:
    text = (ROOT / "docs/reference/lashlang-cases.md").read_text()
    asked = set().union(TAKES, *TAKES.values(), *EXPECTS.values())
    asked -= {"turn", "model_calls", "requests"}  # code mode
    assert [name for name in sorted(asked) if f"`{name}`" not in text] == []


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


@pytest.mark.slow
def test_the_demo_prints_its_story() -> None:
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


@pytest.mark.slow
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
