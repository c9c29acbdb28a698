"""The help: light, complete, and in the documents as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pylash.cli.main import COMMANDS, SECTIONS, cli
from tests.cli.conftest import Call

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "command-line.md"


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def help_of(name: str | None) -> str:
    """Return the help of a command, or of all, as wide as in the documents."""
    args = ["--help"] if name is None else [name, "--help"]
    return CliRunner().invoke(cli, args, env={"COLUMNS": "94"}).stdout


@pytest.mark.slow
def test_the_help_imports_only_what_it_needs() -> None:
    code = (
        "import sys; from pylash.cli.main import cli\n"
        "try: cli(['--help'])\n"
        "except SystemExit: pass\n"
        "print('loaded', *sys.modules)"
    )
    loaded = python(code).stdout.partition("loaded")[2].split()
    assert "click" in loaded
    assert not {"rich", "pydantic", "sqlite3", "asyncpg", "asyncio", "msgspec"} & set(loaded)


@pytest.mark.slow
def test_without_the_extra_it_names_what_to_install() -> None:
    done = python(
        "import sys; sys.modules['click'] = None; from pylash.cli import command_line; command_line()"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "pylash: The command line needs the extra 'cli': "
        "install it with pip install 'pylash[cli]', or from a clone of pylash with "
        "pip install '.[cli]'. [extra_missing]\n"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_in_the_list_is_how_the_help_begins(name: str, pylash: Call) -> None:
    lines = {one: text for section in SECTIONS.values() for one, (_, text) in section.items()}
    shown = pylash(name, "--help")
    assert shown.exit_code == 0
    said = " ".join(shown.stdout.split())
    assert lines[name].rstrip(".") in said
    assert ("--json" in said) is (name != "chat")  # which is for people, or for pipes of text
    assert lines[name] in " ".join(pylash("--help", COLUMNS="100").stdout.split())


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_the_documents_show_the_help_as_it_is(name: str | None) -> None:
    title = "pylash" if name is None else f"pylash {name}"
    found = re.search(
        rf"^```text\n(Usage: {title} \[.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None, f"write the help of {title} into {PAGE.name}"
    assert found[1] == help_of(name)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["pss"], "No such command 'pss'"),
        (["ps", "--nope"], "No such option"),
        (["ps", "-n", "0"], "Invalid value for '-n'"),
        (["show"], "Missing argument 'ID'"),
        (["ps", "--status", "happy"], "Invalid value for '-s' / '--status': 'happy' is not"),
    ],
)
def test_wrong_usage_is_one_sentence_and_status_2(pylash: Call, args: list[str], said: str) -> None:
    refused = pylash(*args)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert refused.stderr.startswith(f"pylash: {said}")
    assert refused.stderr.endswith("[usage]\n")


def test_an_error_is_one_sentence_and_the_traceback_is_optional(
    pylash: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a \x1b[31mbug")

    monkeypatch.setattr("pylash.cli.store_options.open_host", broken)
    refused = pylash("ps", "--store", f"sqlite:///{tmp_path / 'x.db'}")
    assert refused.exit_code == 1
    assert refused.stderr.count("\n") == 1
    assert r"RuntimeError: a \x1b[31mbug" in refused.stderr
    monkeypatch.setenv("PYLASH_DEBUG", "1")
    with pytest.raises(AssertionError, match="bug"):
        pylash("ps", "--store", f"sqlite:///{tmp_path / 'x.db'}")


def test_alone_it_shows_the_help_and_knows_its_version(pylash: Call) -> None:
    assert pylash().stdout == pylash("--help").stdout
    assert re.fullmatch(r"pylash \d+\.\d+\.\d+\n", pylash("--version").stdout)
