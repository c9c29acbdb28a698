"""Restate as the engine of an app."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import restate
from restate.serde import BytesSerde

from pylash.durable.ports import Cancellation, EffectHost, ScopedController
from pylash.durable.processes import ProcessRecord
from pylash.durable.runs import MOVES, JournalEntry
from pylash.durable.scopes import ExecutionScope
from pylash.durable.stores import Store
from pylash.durable.waits import OpenWait, Resolution, ResolveOutcome, WaitIdentity, WaitName
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.runner_parts import RunnerParts
from pylash.restate.carried import ENGINE
from pylash.restate.clients import PROCESS_SERVICE, TURN_SERVICE, RestateClient
from pylash.restate.controller import whole_result
from pylash.restate.courier import process_key
from pylash.restate.endpoint import AsgiApp, EndpointServer
from pylash.restate.recorded import invocation_of, read_recorded
from pylash.restate.runner import RestateRunner
from pylash.tasks import TaskOwner
from pylash.values.durations import Duration
from pylash.values.process_errors import AppNotOpen, JournalGone

if TYPE_CHECKING:
    from pylash.durable.ports import Runner

LONG: Final = timedelta(days=365)
"""The server must not end an attempt because it is quiet: we suspend runs that wait ourselves."""


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
        return RestateEffects(self, journal)

    async def connect(self) -> RestateClient:
        """Return a client of the server."""
        # In a thread: httpx reads the certificates of the system.
        self.client = await asyncio.to_thread(RestateClient, self._ingress, self._admin)
        return self.client

    async def read_entries(self, store: Store, record: ProcessRecord) -> list[JournalEntry]:
        """Return what the server has recorded for a process; nothing if it was never sent there."""
        known = await store.journal.entry(record.run, MOVES)
        moves = 0 if known is None else int(known.outcome or b"0")
        key = process_key(record.id, record.state.epoch, moves)
        client = await asyncio.to_thread(RestateClient, self._ingress, self._admin)
        try:
            invocation = await invocation_of(client, PROCESS_SERVICE, key)
            if invocation is None:
                if record.settled is not None:
                    raise JournalGone(record.id)
                return []
            entries, cancelled = await read_recorded(
                client, invocation, partial(whole_result, store.attachments)
            )
        finally:
            await client.close()
        return [*entries, *cancelled]

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

    async def open_endpoint(self, tasks: TaskOwner) -> EndpointServer | None:
        """Listen at the endpoint and register it, if there is one."""
        if self._endpoint is None:
            return None
        server = EndpointServer(self._asgi, self._endpoint, tasks)
        await server.open()
        await self.client.register(self._endpoint)
        return server


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
