"""Where the program of the Restate server comes from. The npm here is a script."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.restate import server_binary
from tests.restate.server_binary import ServerUnavailable, find_server

INSTALLS = """#!/bin/sh
echo "$@" >> "{calls}"
sleep 0.2
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/node_modules/${{3%@*}}/bin"
echo program > "$2/node_modules/${{3%@*}}/bin/restate-server"
"""
FAILS = """#!/bin/sh
echo "no network" >&2
exit 1
"""


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let find_server see an empty cache, a PATH with one folder, and no named program."""
    cache = tmp_path / "cache"
    monkeypatch.setattr(server_binary, "CACHE", cache)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.delenv("RESTATE_SERVER", raising=False)
    return cache


def write_npm(folder: Path, script: str) -> None:
    (folder / "npm").write_text(script)
    (folder / "npm").chmod(0o755)


def test_callers_at_the_same_time_install_it_once(tmp_path: Path, empty_cache: Path) -> None:
    calls = tmp_path / "calls"
    write_npm(tmp_path, INSTALLS.format(calls=calls))
    with ThreadPoolExecutor(4) as threads:
        (program,) = {one.result() for one in [threads.submit(find_server) for _ in range(4)]}
    assert program.read_text() == "program\n"
    (call,) = calls.read_text().splitlines()
    assert "--ignore-scripts" in call
    assert call.endswith(f"@{server_binary.VERSION}")
    assert {path.name for path in empty_cache.iterdir()} == {
        f"restate-{server_binary.VERSION}",
        f"restate-{server_binary.VERSION}.lock",
    }


def test_a_failed_installation_is_explained_and_leaves_nothing(
    tmp_path: Path, empty_cache: Path
) -> None:
    write_npm(tmp_path, FAILS)
    with pytest.raises(ServerUnavailable, match="no network"):
        find_server()
    assert [path.suffix for path in empty_cache.iterdir()] == [".lock"]


def test_without_npm_it_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailable, match="set RESTATE_SERVER"):
        find_server()


def test_a_named_program_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").touch()
    monkeypatch.setenv("RESTATE_SERVER", str(tmp_path / "mine"))
    assert find_server() == tmp_path / "mine"
    monkeypatch.setenv("RESTATE_SERVER", str(tmp_path / "other"))
    with pytest.raises(ServerUnavailable, match="other', which is not a file"):
        find_server()
