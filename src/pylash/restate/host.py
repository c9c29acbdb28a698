"""Restate as the engine of an app."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import restate
from restate.serde import BytesSerde

from pylash import __version__
from pylash.durable.ports import Cancellation, DurabilityTier, EffectHost, ScopedController
from pylash.durable.processes import ProcessRecord
from pylash.durable.runs import EngineRun, JournalEntry
from pylash.durable.scopes import ExecutionScope, ProcessScope
from pylash.durable.stores import Store
from pylash.durable.waits import OpenWait, Resolution, ResolveOutcome, WaitIdentity, WaitName
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.runner_parts import RunnerParts
from pylash.restate.attempt_journal import AttemptJournal
from pylash.restate.clients import (
    CODE,
    SERVICES,
    BackOff,
    RestateClient,
    Service,
    check_url,
)
from pylash.restate.controller import whole_result
from pylash.restate.courier import address_of
from pylash.restate.endpoint import (
    Address,
    AsgiApp,
    EndpointServer,
    Opens,
    ServedApp,
    address_in,
    bind_address,
    prepare,
)
from pylash.restate.engine_mark import ENGINE
from pylash.restate.inspection import examine, recorded_effects
from pylash.restate.recorded import invocation_of, read_names, read_recorded
from pylash.restate.runner import RestateRunner
from pylash.restate.sdk_journal import Disconnected, SdkJournal
from pylash.tasks import TaskOwner
from pylash.values.durations import Duration
from pylash.values.errors import StoreError
from pylash.values.findings import Finding
from pylash.values.process_errors import (
    AppNotOpen,
    ArgumentsInvalid,
    EndpointInvalid,
    EndpointMissing,
    HostInUse,
    JournalGone,
)
from pylash.values.secrets import shown_url

if TYPE_CHECKING:
    from pylash.durable.ports import Runner

LONG: Final = timedelta(days=365)
"""The server must not end an attempt because it is quiet: we suspend runs that wait ourselves."""
HANDLER: Final = "run"
OWN: Final = tuple(Service(name, (HANDLER,), __version__) for name in SERVICES)
"""The services of every app."""
REGISTER_QUIETLY: Final = 4
"""How many registrations may fail before that is logged: another server listens a moment after the app is open."""

_log = logging.getLogger("pylash")


class HostedApp(Opens, Protocol):
    """An app with a host."""

    given_host: Any


class RestateHost:
    """Runs the turns and processes of an app on a Restate server.

    ``ingress`` and ``admin`` are the addresses of the server. ``endpoint`` is the address at which the server reaches
    this app: an app with a worker listens there and registers itself. ``bind`` is where it listens if that differs, as behind
    a load balancer: ``"0.0.0.0:9080"``. An app without both submits work, and others execute it. ``identity_keys`` are public keys
    of servers (``publickeyv1_…``): calls of any other are refused.

    >>> app = Lash("postgresql://localhost/agents",
    ...            host=RestateHost(ingress="http://localhost:8080", admin="http://localhost:9070",
    ...                             endpoint="http://localhost:9080"))
    """

    engine = ENGINE

    def __init__(
        self,
        *,
        ingress: str,
        admin: str,
        endpoint: str | None = None,
        bind: str | None = None,
        identity_keys: Sequence[str] = (),
    ) -> None:
        self._ingress = check_url("ingress", ingress)
        self._admin = check_url("admin", admin)
        self._endpoint: str | None = None
        # Where the app listens; None if nothing is served here.
        self._address: Address | None = None
        # Whether another server serves the endpoint, with ``asgi``.
        self._is_mounted = False
        self.choose_endpoint(endpoint, bind)
        self._runner: RestateRunner | None = None
        self._asgi = self._make_asgi(identity_keys)

    def __call__(self, journal: EffectHost) -> RestateEffects:
        """Return the host of an app's effects over the journal of its store."""
        assert isinstance(journal, JournalHost)
        return RestateEffects(self, journal)

    def choose_endpoint(self, endpoint: str | None, bind: str | None) -> None:
        """Let the app listen itself, whether or not ``asgi`` was called. None leaves an address as it is."""
        self._is_mounted = False
        if endpoint is not None:
            self._endpoint, self._address = endpoint, address_in(endpoint)
        if bind is not None:
            self._address = bind_address(bind)
        elif endpoint is not None and endpoint.startswith("https:"):
            raise EndpointInvalid(endpoint, "a worker speaks plain HTTP, so it needs bind= as well")

    async def read_entries(self, store: Store, record: ProcessRecord) -> list[JournalEntry]:
        """Return what the server has recorded for a process; nothing if it was never sent there."""
        service, key = await address_of(store, ProcessScope(record.id))
        whole = partial(whole_result, store.attachments)
        async with self.connected() as client:
            invocation = await invocation_of(client, service, key)
            if invocation is None and record.settled is not None:
                raise JournalGone(record.id)
            if invocation is None:
                return []
            entries, cancelled = await read_recorded(client, invocation, whole)
        return [*entries, *cancelled]

    def facts(self) -> dict[str, str]:
        """Return what a worker shows when it starts; raises EndpointMissing if it would execute nothing."""
        if self._address is None:
            raise EndpointMissing
        shown = {"restate": shown_url(self._ingress)}
        if self._endpoint is not None:
            shown["endpoint"] = self._endpoint
        if self._endpoint is None or address_in(self._endpoint) != self._address:
            shown["listens"] = str(self._address)
        return shown

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[RestateClient]:
        """Connect to the server for a few calls, whether or not the app is open."""
        # In a thread: httpx reads the certificates of the system.
        client = await asyncio.to_thread(RestateClient, self._ingress, self._admin)
        try:
            yield client
        finally:
            await client.close()

    async def examine(self, runs: Sequence[EngineRun]) -> list[Finding]:
        """Check the server and its workers, and compare what it knows with its runs in the store. Nothing is changed."""
        async with self.connected() as client:
            return await examine(client, self._endpoint, runs)

    # --- the endpoint ---

    def asgi(self, app: HostedApp) -> ServedApp:
        """Return an ASGI application with the app's endpoint, to be served with HTTP/2, as by hypercorn, or mounted in another.

        Its lifespan opens and closes the app. An application in which it is mounted does that itself. With ``endpoint=``,
        the app registers itself as soon as the server reaches it there.

        >>> asgi = host.asgi(app)  # hypercorn shop:asgi --bind 0.0.0.0:9080
        """
        if app.given_host is not self:
            raise ArgumentsInvalid("RestateHost.asgi", "the app was created with another host=")
        self._is_mounted = True
        return ServedApp(app, self._asgi)

    def _make_asgi(self, identity_keys: Sequence[str]) -> AsgiApp:
        policy = restate.InvocationRetryPolicy(
            initial_interval=timedelta(milliseconds=50),
            max_interval=timedelta(seconds=10),
            max_attempts=2**31 - 1,
        )
        services = []
        for name in SERVICES:
            workflow = restate.Workflow(
                name,
                metadata={CODE: __version__},
                inactivity_timeout=LONG,
                abort_timeout=LONG,
                invocation_retry_policy=policy,
            )
            workflow.main(HANDLER, input_serde=BytesSerde(), output_serde=BytesSerde())(self._run)
            services.append(workflow)
        try:
            endpoint: AsgiApp = restate.app(services, identity_keys=list(identity_keys))
        except Exception as error:  # the class is not documented
            reason = f"identity_keys= has a key that Restate does not accept: {error}"
            raise ArgumentsInvalid("RestateHost", reason) from error
        return endpoint

    async def _run(self, ctx: restate.WorkflowContext, given: bytes) -> bytes:
        if self._runner is None:
            raise AppNotOpen
        try:
            await self._runner.execute(ctx, **json.loads(given))
        except asyncio.CancelledError:
            # The server of the endpoint ends the call. The SDK ignores that, and would wait for the other side to close.
            raise Disconnected from None
        return b""

    # --- the runner ---

    async def open(self, runner: RestateRunner) -> None:
        """Connect to the server, for the one app that uses this host."""
        if self._runner is not None:
            raise HostInUse
        async with AsyncExitStack() as stack:
            self.client = await stack.enter_async_context(self.connected())
            await self.client.check()
            self._connection = stack.pop_all()
        self._runner = runner

    async def close(self) -> None:
        """Disconnect from the server."""
        self._runner = None
        await self._connection.aclose()

    def open_journal(
        self, context: Any, tasks: TaskOwner, on_cancel: Callable[[], Awaitable[None]]
    ) -> AttemptJournal:
        """Return the journal of an attempt that the server has called."""
        reading = partial(read_names, self.client, context.request().id)
        return SdkJournal(context, tasks, on_cancel, reading)

    async def open_endpoint(self, tasks: TaskOwner) -> EndpointServer | None:
        """Listen, unless another server does, and register the endpoint, if there is one."""
        if self._is_mounted:
            await prepare(self._asgi)
            if self._endpoint is not None:
                tasks.serve(self._register_later(self._endpoint))
            return None
        if self._address is None:
            if not await self.client.deployment_ids():
                _log.warning(
                    "no worker is registered at Restate: the work of this app waits until one is started"
                )
            return None
        server = EndpointServer(self._asgi, self._address, tasks)
        await server.open()
        if self._endpoint is not None:
            try:
                await self.client.register(self._endpoint, OWN)
            except BaseException:
                await server.close()
                raise
        return server

    async def _register_later(self, endpoint: str) -> None:
        """Register an endpoint that another server serves: it listens only after the app has been opened."""
        back_off = BackOff()
        while True:
            try:
                await self.client.register(endpoint, OWN)
            except StoreError as error:
                if back_off.failures == REGISTER_QUIETLY:
                    _log.warning("this worker is not registered yet, and tries again: %s", error)
                await asyncio.sleep(back_off.seconds())
            else:
                return


class RestateEffects(EffectHost):
    """The effect host of an app on Restate."""

    supports_durable_effects = True
    durability = DurabilityTier.DURABLE

    def __init__(self, host: RestateHost, journal: JournalHost) -> None:
        self._host = host
        self._journal = journal

    def make_runner(self, parts: RunnerParts) -> Runner:
        """Return the runner of the app."""
        return RestateRunner(self._host, parts)

    async def recorded_outside(self, scope: ExecutionScope) -> list[JournalEntry]:
        """Return the effects that the server has recorded for a run."""
        service, key = await address_of(self._journal.store, scope)
        async with self._host.connected() as client:
            return await recorded_effects(client, service, key)

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
