"""Restate as the engine of an app."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from hypercorn.asyncio import serve
from hypercorn.config import Config
from restate.serde import BytesSerde

import restate
from pylash.durable.ports import Cancellation, EffectHost, ScopedController
from pylash.durable.scopes import ExecutionScope
from pylash.durable.waits import OpenWait, Resolution, ResolveOutcome, WaitIdentity, WaitName
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.runner_parts import RunnerParts
from pylash.restate.carried import ENGINE
from pylash.restate.clients import PROCESS_SERVICE, TURN_SERVICE, RestateClient
from pylash.restate.runner import RestateRunner
from pylash.tasks import TaskOwner
from pylash.values.durations import Duration
from pylash.values.process_errors import AppNotOpen

if TYPE_CHECKING:
    from pylash.durable.ports import Runner

LONG: Final = timedelta(days=365)
"""The server must not end an attempt because it is quiet: we suspend runs that wait ourselves."""
STREAMS: Final = 1_000
"""Attempts that one connection of the server may have under way; the server opens further connections."""
LISTEN_SECONDS: Final = 10.0

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class RestateHost:
    """Runs the turns and processes of an app on a Restate server.

    ``ingress`` and ``admin`` are the addresses of the server; ``endpoint`` is the address at which the server reaches
    this app: an app with a worker listens there and registers itself.

    >>> app = Lash("postgresql://localhost/agents",
    ...            host=RestateHost(ingress="http://localhost:8080", admin="http://localhost:9070",
    ...                             endpoint="http://localhost:9080"))
    """

    engine = ENGINE

    def __init__(self, *, ingress: str, admin: str, endpoint: str | None = None) -> None:
        self._ingress = ingress
        self._admin = admin
        self._endpoint = endpoint
        self._runner: RestateRunner | None = None
        self._asgi = self._make_asgi()

    def __call__(self, journal: EffectHost) -> RestateEffects:
        """Return the host of an app's effects over the journal of its store."""
        assert isinstance(journal, JournalHost)
        self.client = RestateClient(self._ingress, self._admin)
        return RestateEffects(self, journal)

    def asgi(self) -> AsgiApp:
        """Return the endpoint of the app as an ASGI application, to be served with HTTP/2."""
        return self._asgi

    def _make_asgi(self) -> AsgiApp:
        policy = restate.InvocationRetryPolicy(
            initial_interval=timedelta(milliseconds=50),
            max_interval=timedelta(seconds=10),
            max_attempts=2**31 - 1,
        )
        services = []
        for name in (PROCESS_SERVICE, TURN_SERVICE):
            workflow = restate.Workflow(
                name, inactivity_timeout=LONG, abort_timeout=LONG, invocation_retry_policy=policy
            )
            workflow.main("run", input_serde=BytesSerde(), output_serde=BytesSerde())(self._run)
            services.append(workflow)
        endpoint: AsgiApp = restate.app(services)
        return endpoint

    async def _run(self, ctx: restate.WorkflowContext, given: bytes) -> bytes:
        if self._runner is None:
            raise AppNotOpen
        await self._runner.execute(ctx, json.loads(given)["run"])
        return b""

    def make_runner(self, parts: RunnerParts) -> RestateRunner:
        """Return the runner of an app."""
        self._runner = RestateRunner(self, parts)
        return self._runner

    async def serve(self, tasks: TaskOwner) -> None:
        """Listen at the endpoint and register it, if there is one."""
        if self._endpoint is None:
            return
        await asyncio.to_thread(_keep_signals, self._asgi)
        address = urlsplit(self._endpoint)
        config = Config()
        config.bind = [f"{address.hostname}:{address.port or 9080}"]
        config.accesslog = config.errorlog = None
        config.h2_max_concurrent_streams = STREAMS
        config.graceful_timeout = 0.1
        closing = asyncio.Event()
        tasks.serve(serve(self._asgi, config, shutdown_trigger=closing.wait))
        async with asyncio.timeout(LISTEN_SECONDS):
            while not await _is_listening(  # noqa: ASYNC110 - the server tells nobody
                address.hostname or "127.0.0.1", address.port or 9080
            ):
                await asyncio.sleep(0.02)
        await self.client.register(self._endpoint)


class RestateEffects(EffectHost):
    """The effect host of an app on Restate."""

    supports_durable_effects = True

    def __init__(self, host: RestateHost, journal: JournalHost) -> None:
        self.durability = journal.durability
        self._host = host
        self._journal = journal

    def make_runner(self, parts: RunnerParts) -> Runner:
        """Return the runner of the app."""
        return self._host.make_runner(parts)

    def scoped(self, scope: ExecutionScope) -> ScopedController:
        """Return a controller for callers outside a run: their effects are recorded in the store."""
        return self._journal.scoped(scope)

    def sign(self, name: WaitName) -> str:
        """Return the key of a wait."""
        return self._journal.sign(name)

    def name_in(self, key: str) -> WaitName:
        """Return the wait that a key names."""
        return self._journal.name_in(key)

    async def open_waits(self, session_id: str | None = None) -> list[OpenWait]:
        """Return the open waits."""
        return await self._journal.open_waits(session_id)

    async def wait_key(self, scope: ExecutionScope, wait: WaitIdentity) -> str:
        """Return the signed key of a wait."""
        return await self._journal.wait_key(scope, wait)

    async def resolve(
        self, key: str, resolution: Resolution, *, by: str | None = None
    ) -> ResolveOutcome:
        """Resolve a wait."""
        return await self._journal.resolve(key, resolution, by=by)

    async def wait(
        self, key: str, *, cancel: Cancellation | None = None, timeout: Duration | None = None
    ) -> Resolution:
        """Return the resolution of a wait."""
        return await self._journal.wait(key, cancel=cancel, timeout=timeout)

    async def revoke_waits(self, session_id: str) -> None:
        """Revoke every wait key of a session."""
        await self._journal.revoke_waits(session_id)


def _keep_signals(asgi: AsgiApp) -> None:
    """Call the application once in a thread: at its first call it installs a handler of SIGTERM, which only the main thread can."""

    async def call() -> None:
        with suppress(ValueError):
            await asgi({"type": "lifespan"}, None, None)

    asyncio.run(call())


async def _is_listening(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True
