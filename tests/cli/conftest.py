"""Stores for the command line, and a way to call it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pylash import Lash, LashError
from pylash.cli.main import cli
from tests.backends import Backend, PostgresBackend, SqliteBackend, eventually
from tests.cli import shop

Call = Callable[..., Result]


@pytest.fixture(params=["sqlite", "postgres"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Give the URL of an empty place for a store, on each backend, and make it the environment's."""
    backend: Backend
    if request.param == "sqlite":
        backend = SqliteBackend(tmp_path, empty=True)
    else:
        backend = PostgresBackend(request.getfixturevalue("postgres"), empty=True)
    monkeypatch.setenv("PYLASH_STORE", backend.url)
    asyncio.run(backend.__aenter__())
    yield backend.url
    asyncio.run(backend.__aexit__(None, None, None))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the URL of a SQLite file that is not there yet."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    monkeypatch.setenv("PYLASH_STORE", url)
    return url


@pytest.fixture
def pylash() -> Call:
    """Call the command line in this process."""

    def call(*args: str, **env: str) -> Result:
        done = CliRunner().invoke(cli, args, env=env)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert "\x1b" not in done.output
        assert "\x07" not in done.output
        return done

    return call


def ask(pylash: Call, *args: str) -> Any:
    """Return what a command prints for programs."""
    done = pylash(*args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def worked(url: str, work: Callable[[Lash], Awaitable[Any]]) -> Any:
    """Return what a coroutine returns while a worker of the shop runs."""

    async def run() -> Any:
        async with shop.app as app:
            return await work(app)

    shop.app.url = url
    return asyncio.run(run())


def filled(url: str) -> None:
    """Leave an order that waits for a signal, and a turn that waits for approval."""

    async def fill(app: Lash) -> None:
        await app.start(
            shop.order.options(id="order-7", label="Ann's teapot", tags=["customer:7"]),
            item=f"teapot {shop.EVIL}",
        )
        asking = app.session("chat-42", tags=["customer:7"]).turn(
            "Refund order 7, please", turn_id="refund-7", timeout=0
        )
        with suppress(TimeoutError):
            await asking

        async def both_wait() -> bool:
            return len(await app.waits()) == 2

        await eventually(both_wait)

    shop.tries.clear()
    worked(url, fill)


def ended(process_id: str) -> Callable[[Lash], Awaitable[Any]]:
    """Return what waits for the end of a process."""

    async def wait(app: Lash) -> Any:
        try:
            return await app.process_handle(process_id).result(timeout="20s")
        except LashError as error:
            return error.code

    return wait
