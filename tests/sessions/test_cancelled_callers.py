"""A call that changes something is completed even if its caller is cancelled, at any moment and on any host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from pylash import EffectHost, Lash, ProcessContext, RunState
from pylash.durable.effects import Envelope, Outcome, Process
from pylash.durable.ports import EffectController, LocalExecutor
from pylash.testing import ScriptedModel, SerialHost, say
from tests.backends import Backend, eventually
from tests.observing_host import ObservingHost


def make_app(url: str, host: Any = None) -> Lash:
    app = Lash(url, host=host, model=ScriptedModel(lambda _: say("Hello.")))

    @app.process
    async def waits(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait_signal("go")

    return app


class Call(NamedTuple):
    """A call, and a check whether it was completed."""

    make: Callable[[Lash, str], Awaitable[Any]]
    is_done: Callable[[Lash, str], Awaitable[bool]]


def waits(app: Lash, name: str) -> Any:
    return app.services.definitions["waits"].options(id=name)


async def exists(app: Lash, name: str) -> bool:
    return await app.store.processes.get(name) is not None


async def is_held(app: Lash, session_id: str, name: str) -> bool:
    return name in [one.id for one in await app.session(session_id).processes("all")]


async def has_ended(app: Lash, name: str) -> bool:
    ended = (RunState.COMPLETED, RunState.CANCELLED)
    return await app.process_handle(f"open-{name}").status() in ended


async def not_held(app: Lash, name: str) -> bool:
    return not await is_held(app, f"own-{name}", f"open-{name}")


async def has_history(app: Lash, name: str) -> bool:
    return bool(await app.session(name).history())


async def is_deleted(app: Lash, name: str) -> bool:
    return await app.store.sessions.get(f"own-{name}") is None


CALLS = {
    "app.start": Call(lambda app, name: app.start(waits(app, name)), exists),
    "session.start": Call(
        lambda app, name: app.session("s").start(waits(app, name)),
        lambda app, name: is_held(app, "s", name),
    ),
    "grant": Call(
        lambda app, name: app.session("s").grant_process(f"open-{name}"),
        lambda app, name: is_held(app, "s", f"open-{name}"),
    ),
    "revoke": Call(
        lambda app, name: app.session(f"own-{name}").revoke_process(f"open-{name}"), not_held
    ),
    "transfer": Call(
        lambda app, name: app.session(f"own-{name}").transfer_processes([f"open-{name}"], to="s"),
        lambda app, name: is_held(app, "s", f"open-{name}"),
    ),
    "unreferenced": Call(
        lambda app, name: app.session(f"own-{name}").cancel_unreferenced_processes(), has_ended
    ),
    "signal": Call(lambda app, name: app.process_handle(f"open-{name}").signal("go", 1), has_ended),
    "cancel": Call(lambda app, name: app.process_handle(f"open-{name}").cancel(), has_ended),
    "fork": Call(lambda app, name: app.fork_process(f"open-{name}", id=name), exists),
    "delete": Call(lambda app, name: app.session(f"own-{name}").delete(), is_deleted),
}
OTHERS = {
    "turn": Call(lambda app, name: app.session(name).turn("hi"), has_history),
    "enqueue": Call(lambda app, name: app.session(name).enqueue("hi"), has_history),
}


def cases(calls: dict[str, Call]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("call", calls.values(), ids=calls)


async def begin(app: Lash, call: Call, name: str) -> asyncio.Task[Any]:
    """Start a process for a session, and the call in a task."""
    await app.session(f"own-{name}").start(waits(app, f"open-{name}"))

    async def perform() -> Any:
        return await call.make(app, name)

    return asyncio.get_running_loop().create_task(perform())


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


@cases(CALLS | OTHERS)
async def test_a_call_is_completed_whenever_its_caller_is_cancelled(
    call: Call, backend: Backend
) -> None:
    async with make_app(backend.url) as app:
        for steps in (1, 2, 3, 4, 6, 10):
            name = f"p-{steps}"
            task = await begin(app, call, name)
            for _ in range(steps):
                await asyncio.sleep(0)
            await cancel(task)

            async def is_done(name: str = name) -> bool:
                return await call.is_done(app, name)

            await eventually(is_done)


class SlowHost(ObservingHost):
    """Holds process commands back until it is released."""

    def __init__(self, inner: EffectHost) -> None:
        super().__init__(inner)
        self.began, self.released = asyncio.Event(), asyncio.Event()
        self.released.set()

    def scoped(self, scope: Any) -> Any:
        made = super().scoped(scope)
        return type(made)(_Slow(self, made.controller), scope)


class _Slow(EffectController):
    supports_durable_effects = True

    def __init__(self, host: SlowHost, inner: EffectController) -> None:
        self.durability = inner.durability
        self._host, self._inner = host, inner

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        if isinstance(envelope.command, Process):
            self._host.began.set()
            await self._host.released.wait()
        return await self._inner.execute(envelope, local)


@pytest.mark.parametrize("closes", [False, True], ids=["open", "closing"])
@cases(CALLS)
async def test_a_call_is_completed_though_a_host_delays_it(
    call: Call, closes: bool, durable: Backend
) -> None:
    hosts: list[SlowHost] = []

    def wrap(inner: EffectHost) -> EffectHost:
        hosts.append(SlowHost(inner))
        return hosts[-1]

    async with make_app(durable.url, wrap) as app:
        (host,) = hosts
        await app.session("s").start(waits(app, "other"))
        task = await begin(app, call, "p")
        host.released.clear()
        host.began.clear()
        await host.began.wait()
        await cancel(task)
        if closes:
            asyncio.get_running_loop().call_soon(host.released.set)
        else:
            host.released.set()
            await eventually(lambda: call.is_done(app, "p"))
    async with make_app(durable.url) as app:
        await eventually(lambda: call.is_done(app, "p"))


def test_the_public_host_is_the_one_that_hosts_implement() -> None:
    assert issubclass(SerialHost, EffectHost)
