"""The Restate server: where its program comes from, and how one is run.

Rule 1. ``RESTATE_SERVER`` names the program. Without it npm installs the pinned version, once,
        into a folder under the user's cache, never into the project.
Rule 2. The server opens no port: it listens on sockets in the run's folder. Nothing is tuned.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path
from typing import Any, Final

from benchmarks.contender import Unavailable
from benchmarks.http import Client, HttpError

VERSION: Final = "1.7.12"
NODE: Final = "n1"
INSTALL_SECONDS: Final = 150.0
READY_SECONDS: Final = 30.0
FSYNC: Final = "rocksdb-disable-wal-fsync"
"""The setting that says what a commit is worth."""


def program() -> Path:
    """Return the server's program; install it if it is not there."""
    named = os.environ.get("RESTATE_SERVER")
    if named:
        if not Path(named).is_file():
            raise Unavailable(f"RESTATE_SERVER is {named}, which is not a file")
        return Path(named)
    package = f"@restatedev/restate-server-{_platform()}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "pylash-benchmarks" / f"restate-{VERSION}"
    found = folder / "node_modules" / package / "bin" / "restate-server"
    if not found.is_file():
        _install(package, folder)
    return found


def _platform() -> str:
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
    return f"{platform.system().lower()}-{machine.get(platform.machine().lower(), 'unknown')}"


def _install(package: str, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("no Restate server: there is no npm, and RESTATE_SERVER is not set")
    folder.mkdir(parents=True, exist_ok=True)
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock")
    command = [npm, "install", *quiet, "--prefix", str(folder), f"{package}@{VERSION}"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"no Restate server: npm could not install {package}") from error


class Server:
    """A server with its data in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ingress = Client(folder / NODE / "ingress.sock")
        self.admin = Client(folder / NODE / "admin.sock")

    async def start(self) -> dict[str, Any]:
        """Start it, wait until it is ready, and return how it syncs."""
        command = [
            str(await asyncio.to_thread(program)),
            *("--no-logo", "--listen-mode", "unix", "--node-name", NODE),
            *("--base-dir", str(self._folder), "--log-filter", "error,octocrab=off"),
        ]
        env = {**os.environ, "RESTATE_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
        self._process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, env=env)
        async with asyncio.timeout(READY_SECONDS):
            while not await self._is_ready():  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.1)
        return await _sync_settings(command, env)

    async def stop(self) -> None:
        """Stop it at once: its data goes with the run."""
        self.ingress.close()
        self.admin.close()
        await stop(self._process)

    async def count(self, status: str, service: str) -> int:
        """Return how many invocations of a service's main handler have a status."""
        query = (
            "select count(*) n from sys_invocation "
            f"where status = '{status}' and target_service_name = '{service}' "
            "and target_handler_name = 'run'"
        )
        answer = await self.admin.post("/query", {"query": query})
        return int(answer["rows"][0]["n"])

    async def _is_ready(self) -> bool:
        try:
            await self.admin.get("/health")
            await self.ingress.get("/restate/health")
        except (OSError, HttpError, EOFError, ValueError):
            return False
        return True


async def _sync_settings(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    """Return the settings about syncing, as the server itself tells them."""
    asked = await asyncio.create_subprocess_exec(
        *command, "--dump-config", stdout=subprocess.PIPE, stderr=DEVNULL, env=env
    )
    told, _ = await asked.communicate()
    lines = [line for line in told.decode().splitlines() if line.startswith(FSYNC)]
    return {FSYNC: ", ".join(sorted({line.partition("=")[2].strip() for line in lines}))}


async def stop(process: Process) -> None:
    """Kill a process, if it still runs."""
    if process.returncode is None:
        process.kill()
    await process.wait()
