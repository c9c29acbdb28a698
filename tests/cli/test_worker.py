"""Real processes: workers that drain or are killed, logs that are followed, pipes that break."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from pylash import Lash
from tests.cli import shop
from tests.cli.conftest import Call, ask, filled

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
APP = "tests.cli.shop:app"


@contextmanager
def started(*args: str, cwd: Path = ROOT) -> Iterator[subprocess.Popen[str]]:
    """Run the command line; it is killed in the end, if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pylash", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(stream: IO[str] | None, wanted: Callable[[str], bool]) -> str:
    """Return the first line of a stream that is wanted."""
    assert stream is not None
    for line in stream:
        if wanted(line):
            return line
    raise AssertionError("it ended before")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_works_until_it_is_stopped(
    file: str, pylash: Call, number: signal.Signals
) -> None:
    filled(file)
    with (
        started("worker", APP, "--json") as worker,
        started("events", "order-7", "-f", "--json") as log,
    ):
        assert json.loads(until(worker.stdout, lambda line: "started" in line))["store"] == file
        assert "1 alive" in pylash("doctor").stdout
        pylash("signal", "order-7", "address", '"x"')
        types = [json.loads(line)["type"] for line in log.stdout or ()]  # it ends with the process
        assert types == ["process.started", "progress", "signal.address", "process.completed"]
        assert log.wait(20) == 0
        worker.send_signal(number)
        rest = worker.communicate(timeout=20)[0]
    assert [json.loads(line)["event"] for line in rest.splitlines()] == ["draining", "stopped"]
    assert worker.returncode == 0


def test_a_worker_uses_the_store_of_the_option_then_of_the_code_then_of_the_environment(
    file: str, tmp_path: Path
) -> None:
    """``file`` is the store of the environment."""
    coded, other = f"sqlite:///{tmp_path / 'coded.db'}", f"sqlite:///{tmp_path / 'other.db'}"
    lines = ("from pylash import Lash", f"app = Lash({coded!r})", f"other = Lash({other!r})")
    (tmp_path / "coded.py").write_text("\n".join((*lines, "bare = Lash()")))
    for args, expected in (
        ("worker coded:bare", file),
        ("worker coded:app", coded),
        (f"worker coded:app --store {other}", other),
        ("worker coded:app --store coded:other", other),
        ("--store ./coded.py:other worker coded:bare", other),
    ):
        with started(*args.split(), cwd=tmp_path) as worker:
            line = until(worker.stderr, lambda line: "started" in line)
            assert line.rstrip().endswith(f"store {expected}")


def test_a_worker_that_drains_prints_what_it_waits_for(file: str) -> None:
    asyncio.run(_start_busy(file))
    with started("worker", APP) as worker:
        until(worker.stdout, lambda line: line == "busy\n")
        worker.send_signal(signal.SIGINT)
        line = until(worker.stderr, lambda line: "draining" in line)
        assert "waiting up to 10 s for 1 run to stop; press Ctrl-C again to leave at once" in line
        worker.send_signal(signal.SIGINT)
        assert worker.wait(20) == 128 + signal.SIGINT


def test_a_second_signal_ends_a_worker_at_once_and_loses_nothing(file: str, pylash: Call) -> None:
    asyncio.run(_start_busy(file))
    with started("worker", APP) as worker:
        until(worker.stdout, lambda line: line == "busy\n")
        worker.send_signal(signal.SIGTERM)
        until(worker.stderr, lambda line: "draining" in line)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 128 + signal.SIGTERM
    assert ask(pylash, "show", "busy-1")["status"] in ("running", "blocked")
    found = {one["name"]: one for one in ask(pylash, "doctor")}["workers"]
    assert found["status"] == "warn"
    assert "1 dead" in found["text"]


async def _start_busy(url: str) -> None:
    async with Lash(url, worker=None) as client:
        await client.start(client.process(shop.busy.function).options(id="busy-1"))


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("nowhere:app", "there is no module 'nowhere'"),
        ("tests.cli.shop:nobody", "there is no 'nobody' in 'tests.cli.shop'"),
        ("tests.cli.shop:nothing", "that is a builtins.int, not a pylash.Lash"),
        ("tests.cli.shop:client", "it was created with worker=None, which runs nothing"),
        ("nowhere/shop.py:app", "there is no file 'nowhere/shop.py'"),
        ("tests.cli.shop", "it is not of the form module:variable"),
    ],
)
def test_an_app_that_cannot_be_run_is_refused(pylash: Call, named: str, said: str) -> None:
    refused = pylash("worker", named)
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert said in refused.stderr
    assert "[app_invalid]" in refused.stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import not_there", "importing it needs 'not_there', which is not installed"),
        ("1 / 0", "importing it failed with ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_of_the_current_folder_is_found_and_its_errors_are_shown(
    tmp_path: Path, source: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(source)
    with started("worker", "mine:app", cwd=tmp_path) as refused:
        error = refused.communicate(timeout=20)[1]
    assert (refused.returncode, error.count("\n")) == (1, 1)
    assert said in error


def test_a_pipe_that_breaks_is_no_error(file: str) -> None:
    filled(file)
    command = f"{sys.executable} -m pylash show order-7 --json | head -c 1"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("{", "")


def test_an_interrupt_ends_following_without_output(file: str) -> None:
    filled(file)
    with started("events", "order-7", "-f") as log:
        until(log.stdout, lambda line: "progress" in line)
        log.send_signal(signal.SIGINT)
        error = log.communicate(timeout=20)[1]
    assert error.strip() == ""
    assert log.returncode == 130
