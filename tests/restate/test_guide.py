"""The program of the guide runs as written on every engine; ``tests/test_docs.py`` runs it on a file."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.backends import PostgresBackend
from tests.restate.ports import LOOPBACK, free_port
from tests.restate.server import RestateServer

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "scaling.md"
PRINTED = "Order 7 ships today.\norder 7 is packed and goes with the train\n"


async def printed(folder: Path, settings: dict[str, str]) -> str:
    """Return what the program prints."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    run = partial(
        subprocess.run,
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    done = await asyncio.to_thread(run)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("engine", ["postgres", "restate"])
async def test_the_program_prints_the_same_on(
    engine: str, postgres: str, restate: RestateServer, tmp_path: Path
) -> None:
    settings = {}
    if engine == "restate":
        settings = {
            "RESTATE_INGRESS": restate.ingress,
            "RESTATE_ADMIN": restate.admin,
            "RESTATE_ENDPOINT": f"http://{LOOPBACK}:{free_port()}",
        }
    async with PostgresBackend(postgres) as backend:
        assert await printed(tmp_path, settings | {"PYLASH_STORE": backend.url}) == PRINTED
