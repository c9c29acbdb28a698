"""Hosts and controllers whose effects are those of runs on a Restate server: the suites of hosts are checked on them."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec

from pylash import Lash, ProcessContext, ProcessFailed
from pylash.durable.effects import (
    AwaitEvent,
    AwaitEventOutcome,
    Envelope,
    Outcome,
    expect,
)
from pylash.durable.ports import (
    Cancellation,
    EffectController,
    EffectHost,
    LocalExecutor,
    ScopedController,
)
from pylash.durable.scopes import ExecutionScope
from pylash.durable.waits import (
    Cancelled,
    Resolution,
    ResolveOutcome,
    WaitIdentity,
)
from pylash.engine.executors import await_options
from pylash.engine.races import cancelled_first
from pylash.testing.laws.controllers import Controller
from pylash.testing.laws.suites import Suite
from pylash.values.durations import Duration, seconds
from pylash.values.errors import AwaitEventUnknownOrRevoked
from tests.backends import eventually
from tests.restate.apps import RestateApps

LIMIT = "20s"


def controller_of(ctx: ProcessContext[Any]) -> EffectController:
    """Return the boundary of an attempt, on whose stage its code is executed."""
    return ctx._run._controller


# --- controllers ---


class InTwoParts(Protocol):
    """Laws that record in one attempt, and replay in the next one."""

    async def record(self, controller: Controller) -> None: ...

    async def replay(self, controller: Controller) -> None: ...


class OnePart:
    """Laws of controllers that need one attempt only."""

    def __init__(self, suite: Suite[Controller]) -> None:
        self._suite = suite

    async def record(self, controller: Controller) -> None:
        await self._suite(lambda: controller)

    async def replay(self, controller: Controller) -> None:
        """Nothing is left to check."""


class HandlerCode:
    """A process whose code checks laws on the controller of its run, in two attempts."""

    def __init__(self, apps: RestateApps, laws: InTwoParts) -> None:
        self._apps = apps
        self._laws = laws
        self._attempts = 0
        self._ended = asyncio.Event()
        self._failures: list[Exception] = []

    def _make(self) -> Lash:
        app = self._apps.make()

        @app.process
        async def check(ctx: ProcessContext[None]) -> int:
            self._attempts += 1
            part = self._laws.record if self._attempts == 1 else self._laws.replay
            try:
                await part(controller_of(ctx))
            except Exception as error:  # noqa: BLE001 - raised in the test
                self._failures.append(error)
            self._ended.set()
            await ctx.wait_signal("go")
            return self._attempts

        return app

    async def record(self) -> str:
        """Check the first parts, and end the attempt: the app is closed, and the server tries again."""
        async with self._make() as app:
            handle = await app.start(app.definitions["check"])
            await self._end()
            return handle.id

    async def replay(self, process: str) -> None:
        """Check the second parts in the next attempt."""
        async with self._make() as app:
            handle = app.process_handle(process)
            await handle.signal("go")  # the server may have suspended the first attempt
            await self._end()
            assert await handle.result(timeout=LIMIT) == 2

    async def _end(self) -> None:
        async with asyncio.timeout(seconds(LIMIT)):
            await self._ended.wait()
        self._ended.clear()
        for error in self._failures:
            raise error


# --- waits ---


class HandlerWaits(EffectHost):
    """A host each of whose waits is a process that waits in a handler.

    A wait is resolved and revoked only when all handlers that wait are suspended, so that the server has to be told.
    """

    supports_durable_effects = True

    def __init__(self, apps: RestateApps, app: Lash) -> None:
        self._apps = apps
        self._app = app
        self._inner = app.effect_host
        self.durability = self._inner.durability
        self._waiting: set[str] = set()
        # How many handlers were suspended when a wait was resolved or revoked.
        self.resumed = 0

    @staticmethod
    def declare(app: Lash) -> None:
        """Declare the process that waits."""

        @app.process
        async def waiter(ctx: ProcessContext[None], key: str, timeout: float | None) -> Any:
            run, local = ctx._run, await_options(timeout=timeout)
            outcome = await run.effect(run.root, "wait", "wait", AwaitEvent(key), local)
            return msgspec.to_builtins(expect(outcome, AwaitEventOutcome).resolution)

    async def wait(
        self, key: str, *, cancel: Cancellation | None = None, timeout: Duration | None = None
    ) -> Resolution:
        limit = None if timeout is None else seconds(timeout)
        handle = await self._app.start(self._app.definitions["waiter"], key, limit)
        self._waiting.add(handle.id)
        try:
            if await cancelled_first(self._until_ended(handle), cancel):
                await self.resolve(key, Cancelled())
            end: Resolution = msgspec.convert(await handle.result(timeout=LIMIT), Resolution)
        except ProcessFailed as error:
            if error.code != "await_event_unknown_or_revoked":
                raise
            raise AwaitEventUnknownOrRevoked from error
        else:
            return end
        finally:
            self._waiting.discard(handle.id)

    async def _until_ended(self, handle: Any) -> None:
        try:
            await handle.result(timeout=LIMIT)
        except ProcessFailed:
            return

    async def resolve(
        self, key: str, resolution: Resolution, *, by: str | None = None
    ) -> ResolveOutcome:
        await self._until_suspended()
        return await self._inner.resolve(key, resolution, by=by)

    async def revoke_waits(self, session_id: str) -> None:
        await self._until_suspended()
        await self._inner.revoke_waits(session_id)

    async def _until_suspended(self) -> None:
        waiting = set(self._waiting)
        if not waiting:
            return
        keys = ", ".join(f"'{one}'" for one in sorted(waiting))
        sql = (
            "select target_service_key k from sys_invocation "
            f"where target_service_key in ({keys}) and status in ('suspended', 'completed')"
        )

        async def are_suspended() -> bool:
            return {row["k"] for row in await self._apps.server.query(sql)} == waiting

        await eventually(are_suspended)
        self.resumed += len(waiting)

    # --- the rest is the host's ---

    def scoped(self, scope: ExecutionScope) -> ScopedController:
        return ScopedController(HandlerController(self, self._inner.scoped(scope)), scope)

    def scoped_static(self, scope: ExecutionScope) -> ScopedController | None:
        return self._inner.scoped_static(scope)

    async def wait_key(self, scope: ExecutionScope, wait: WaitIdentity) -> str:
        return await self._inner.wait_key(scope, wait)


class HandlerController(EffectController):
    """A controller whose waits are those of handlers."""

    supports_durable_effects = True

    def __init__(self, host: HandlerWaits, inner: ScopedController) -> None:
        self.durability = host.durability
        self._host = host
        self._inner = inner

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        if not isinstance(envelope.command, AwaitEvent):
            return await self._inner.execute(envelope, local)
        return AwaitEventOutcome(await self._host.wait(envelope.command.key))
