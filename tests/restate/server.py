"""A Restate server for tests, on loopback ports."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from tests.restate.ports import LOOPBACK, free_port
from tests.restate.server_binary import find_server

NODE = "n1"
LAUNCHER = Path(__file__).with_name("launch.py")
START_ATTEMPTS = 3
READY_POLLS, POLL_SECONDS = 1_000, 0.02
QUERY_DELAY = 0.3
"""For about 0.2 s after it is ready, the server answers SQL with an error, or without the rows of some partitions."""
QUERY_ATTEMPTS = 20

SETTINGS = {
    "NODE_NAME": NODE,
    "LISTEN_MODE": "tcp",
    "BIND_IP": LOOPBACK,
    "ROCKSDB_TOTAL_MEMORY_SIZE": "128 MiB",
    "DISABLE_TELEMETRY": "true",
    "ADMIN__DISABLE_WEB_UI": "true",
    "LOG_FILTER": "warn,octocrab=off",  # it asks GitHub for the newest version, and no setting stops it
    # A worker that stopped without closing its connections is noticed after 2 s, not after a minute.
    "WORKER__INVOKER__HTTP2_KEEP_ALIVE_INTERVAL": "1s",
    "WORKER__INVOKER__HTTP2_KEEP_ALIVE_TIMEOUT": "1s",
    # Failed connections count as attempts: an endpoint that is down must not pause its invocations.
    "DEFAULT_RETRY_POLICY__MAX_ATTEMPTS": "unlimited",
    "DEFAULT_RETRY_POLICY__INITIAL_INTERVAL": "50ms",
    "DEFAULT_RETRY_POLICY__MAX_INTERVAL": "1s",
}
NOT_INHERITED = ("RESTATE_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
"""Variables of the environment that would change how the server behaves."""


class ServerFailed(Exception):
    """The server ended, or is not ready in time. The message has the end of its log."""


def loopback_client(url: str) -> httpx.AsyncClient:
    """Return a client of a server on this machine, past any proxy. A call may take as long as the test."""
    return httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=60)


class RestateServer:
    """A server that this process starts, with its data in a folder.

    ``start`` and ``stop`` block, for fixtures; the coroutines do not. The kernel kills the server when the thread that
    started it ends, so ``start`` and ``restart`` are called in the main thread.
    """

    def __init__(self, folder: Path, *, partitions: int = 2) -> None:
        self.folder = folder
        self.partitions = partitions
        self.log = folder / "server.log"
        self._ports = (0, 0, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_at = 0.0

    @property
    def ingress(self) -> str:
        """The URL that handlers are called through."""
        return f"http://{LOOPBACK}:{self._ports[0]}"

    @property
    def admin(self) -> str:
        """The URL for deployments, invocations and SQL."""
        return f"http://{LOOPBACK}:{self._ports[1]}"

    @property
    def pid(self) -> int | None:
        """The process id, None while the server does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the server on free ports, and wait until it is ready."""
        for attempt in range(START_ATTEMPTS):
            self._ports = free_port(), free_port(), free_port()
            self._spawn()
            try:
                return self._wait_until_ready()
            except ServerFailed:  # another process may have taken a port meanwhile
                self.stop()
                if attempt == START_ATTEMPTS - 1:
                    raise
        return None

    def stop(self) -> None:
        """End the server with SIGTERM, or with SIGKILL if it takes long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def kill(self) -> None:
        """End the server with SIGKILL."""
        assert self._process is not None, "it was started"
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    async def restart(self) -> None:
        """Start the server again on the same data and ports; kill it first if it runs."""
        await self.kill()
        self._spawn()
        await asyncio.to_thread(self._wait_until_ready)

    async def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query, such as ``select id, status from sys_invocation``."""
        await asyncio.sleep(self._ready_at + QUERY_DELAY - time.perf_counter())
        async with loopback_client(self.admin) as admin:
            for _ in range(QUERY_ATTEMPTS):
                answer = await admin.post(
                    "/query", json={"query": sql}, headers={"accept": "application/json"}
                )
                if answer.is_success:
                    rows: list[dict[str, Any]] = answer.json()["rows"]
                    return rows
                await asyncio.sleep(POLL_SECONDS)
        raise AssertionError(f"The query {sql!r} failed: {answer.text}")

    async def register(self, uri: str) -> str:
        """Register an endpoint, and return the id of its deployment.

        With ``force``, because otherwise the services of a URI that was registered before are not read again.
        """
        async with loopback_client(self.admin) as admin:
            answer = await admin.post("/deployments", json={"uri": uri, "force": True})
            assert answer.is_success, answer.text
            return str(answer.json()["id"])

    async def clear(self) -> None:
        """Remove all invocations and all deployments; start the server first if it does not run.

        The keys of workflows are free afterwards: the next test may use the same ones.
        """
        if self.pid is None:
            await self.restart()
        async with loopback_client(self.admin) as admin:
            deployments = (await admin.get("/deployments")).json()["deployments"]
            for deployment in deployments:
                await admin.delete(f"/deployments/{deployment['id']}", params={"force": True})
            while rows := await self.query("select id, status from sys_invocation"):
                async with asyncio.TaskGroup() as group:
                    for row in rows:
                        end = "purge" if row["status"] == "completed" else "kill"
                        group.create_task(admin.patch(f"/invocations/{row['id']}/{end}"))

    def _spawn(self) -> None:
        ingress, admin, node = self._ports
        settings = SETTINGS | {
            "BASE_DIR": str(self.folder),
            "BIND_PORT": str(node),
            "INGRESS__BIND_ADDRESS": f"{LOOPBACK}:{ingress}",
            "ADMIN__BIND_ADDRESS": f"{LOOPBACK}:{admin}",
            "DEFAULT_NUM_PARTITIONS": str(self.partitions),
        }
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith(NOT_INHERITED)
        }
        launch = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*launch, str(find_server()), "--no-logo"],
                env=inherited | {f"RESTATE_{name}": value for name, value in settings.items()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait_until_ready(self) -> None:
        health = (f"{self.admin}/health", f"{self.ingress}/restate/health")
        with httpx.Client(trust_env=False, verify=False, timeout=1) as client:
            for _ in range(READY_POLLS):
                if self.pid is None:
                    break
                if all(_answers(client, url) for url in health):
                    self._ready_at = time.perf_counter()
                    return
                time.sleep(POLL_SECONDS)
        raise ServerFailed(self.log.read_text(errors="replace")[-4_000:])


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).is_success
    except httpx.HTTPError:
        return False
