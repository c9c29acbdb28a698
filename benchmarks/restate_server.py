"""A Restate server for the benchmarks.

It listens on sockets in the run's folder, and on ports of this machine if it is told to. Nothing is tuned.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path
from typing import Any, Final

from benchmarks.contender import Unavailable
from benchmarks.http import Client, HttpError
from tests.restate.server_binary import ServerUnavailable, find_server

NODE: Final = "n1"
LOOPBACK: Final = "127.0.0.1"
READY_SECONDS: Final = 30.0
FSYNC: Final = "rocksdb-disable-wal-fsync"
"""The setting that says what a commit is worth."""


class Server:
    """A server with its data in a folder; ``ports`` are those of ingress, administration and node."""

    def __init__(self, folder: Path, ports: tuple[int, int, int] | None = None) -> None:
        self._folder = folder
        self._ports = ports
        self.ingress = Client(folder / NODE / "ingress.sock")
        self.admin = Client(folder / NODE / "admin.sock")

    async def start(self) -> dict[str, Any]:
        """Start it, wait until it is ready, and return how it syncs."""
        try:
            program = await asyncio.to_thread(find_server)
        except ServerUnavailable as error:
            raise Unavailable(str(error)) from error
        command = [
            str(program),
            *("--no-logo", "--node-name", NODE),
            *("--base-dir", str(self._folder), "--log-filter", "error,octocrab=off"),
        ]
        quiet = {"RESTATE_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
        env = {**os.environ, **quiet, **_listening(self._ports)}
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


def _listening(ports: tuple[int, int, int] | None) -> dict[str, str]:
    """Return the settings of where the server listens."""
    if ports is None:
        return {"RESTATE_LISTEN_MODE": "unix"}
    ingress, admin, node = ports
    return {
        "RESTATE_LISTEN_MODE": "all",
        "RESTATE_BIND_IP": LOOPBACK,
        "RESTATE_BIND_PORT": str(node),
        "RESTATE_INGRESS__BIND_ADDRESS": f"{LOOPBACK}:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"{LOOPBACK}:{admin}",
    }


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port: int = free.getsockname()[1]
        return port


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
