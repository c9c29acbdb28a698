"""Serving an app on Restate: the worker command, an ASGI application, and what can be wrong with the addresses."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config

import pylash.sync
from pylash import (
    AppNotOpen,
    ArgumentsInvalid,
    DurableStoreRequired,
    EndpointInvalid,
    EndpointTaken,
    EndpointUnreachable,
    HostInUse,
    Lash,
    LashError,
    ProcessContext,
    RestateUnavailable,
    RestateUrlInvalid,
    WorkerConfig,
)
from pylash.restate import RestateHost
from pylash.restate.clients import RestateClient, Service
from pylash.restate.host import OWN
from pylash.tasks import TaskOwner
from pylash.testing.laws.suites import together
from tests.backends import eventually
from tests.restate import shop
from tests.restate.apps import RestateApps, sqlite_url
from tests.restate.ports import LOOPBACK, free_port, listen
from tests.restate.server import RestateServer


@pytest.fixture
def apps(restate: RestateServer, tmp_path: Path) -> RestateApps:
    return RestateApps(restate, sqlite_url(tmp_path))


async def double(number: int) -> int:
    return number * 2


# --- the worker command ---


async def start_worker() -> Process:
    """Run ``pylash worker``, until it has started."""
    command = ["-m", "pylash", "worker", "tests.restate.shop:app", "--restate", "--json"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE)
    assert process.stdout is not None
    started = json.loads(await process.stdout.readline())
    assert started["event"] == "started"
    assert started["endpoint"] == os.environ["SHOP_ENDPOINT"]
    return process


async def test_workers_behind_one_url_drain_and_another_one_continues(
    restate: RestateServer, shop_environment: dict[str, str]
) -> None:
    naps = Path(shop_environment["SHOP_FILE"])
    app = shop.make_app(worker=None)

    async def has_begun() -> bool | None:
        return naps.exists() or None

    workers = await together(start_worker(), start_worker())
    try:
        async with app:
            waiting = await app.start(shop.PROCESSES["order"], cents=5)
            busy = await app.start(shop.PROCESSES["nightly"], seconds=1.0)
            await eventually(has_begun)
            for one in workers:
                one.send_signal(signal.SIGTERM)
            assert [await one.wait() for one in workers] == [0, 0]
            # The step had the grace period to end, and is not executed again.
            assert naps.read_text().split() == ["begins", "ends"]
            assert await busy.result(timeout="20s") == "rested"
            workers.append(await start_worker())
            await waiting.signal("paid", "yes")
            assert await waiting.result(timeout="20s") == "yes"
    finally:
        for one in workers:
            if one.returncode is None:
                one.kill()
                await one.wait()


# --- ASGI ---


async def test_an_asgi_application_opens_and_registers_the_app_when_it_is_served(
    restate: RestateServer, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://{LOOPBACK}:{port}"
    host = RestateHost(ingress=restate.ingress, admin=restate.admin, endpoint=url)
    app = Lash(sqlite_url(tmp_path), host=host)

    @app.process
    async def work(ctx: ProcessContext[None]) -> int:
        return await ctx.step(double, 21)

    async def is_open() -> bool | None:
        try:
            return app.runner is not None
        except AppNotOpen:
            return None

    config, end, tasks = Config(), asyncio.Event(), TaskOwner()
    config.bind, config.errorlog = [f"{LOOPBACK}:{port}"], None
    serving = tasks.start(serve(host.asgi(app), config, shutdown_trigger=end.wait, mode="asgi"))
    await eventually(is_open)
    assert await (await app.start(work)).result(timeout="20s") == 42
    end.set()
    await serving
    assert await is_open() is None
    async with app:  # a host can be used again
        pass


async def test_a_url_is_registered_again_only_if_other_code_is_there(apps: RestateApps) -> None:
    async def revisions() -> list[int]:
        rows = await apps.server.query("select revision from sys_service order by name")
        return [row["revision"] for row in rows]

    async with apps.make():
        client = RestateClient(apps.server.ingress, apps.server.admin)
        before = await revisions()
        await client.register(apps.endpoint, OWN)
        assert await revisions() == before
        await client.register(apps.endpoint, [Service(*one[:2], "other") for one in OWN])
        assert await revisions() == [one + 1 for one in before]
        await client.close()


# --- what can be wrong ---


def changed(server: RestateServer, **options: str) -> RestateHost:
    given = {"ingress": server.ingress, "admin": server.admin} | options
    return RestateHost(**given)


WRONG: list[tuple[type[LashError], Callable[[RestateServer], RestateHost]]] = [
    (RestateUrlInvalid, lambda server: changed(server, ingress="localhost:8080")),
    (RestateUrlInvalid, lambda server: changed(server, ingress=server.admin, admin=server.ingress)),
    (RestateUnavailable, lambda server: changed(server, admin=f"http://{LOOPBACK}:1")),
    (RestateUnavailable, lambda server: changed(server, ingress=f"http://{LOOPBACK}:1")),
    (EndpointInvalid, lambda server: changed(server, endpoint="localhost:9080")),
    (EndpointInvalid, lambda server: changed(server, endpoint="https://workers:9080")),
    (EndpointInvalid, lambda server: changed(server, bind="9080")),
    (EndpointTaken, lambda server: changed(server, endpoint="http://192.0.2.1:9080")),
    (
        EndpointUnreachable,
        lambda server: changed(
            server, endpoint=f"http://{LOOPBACK}:1", bind=f"{LOOPBACK}:{free_port()}"
        ),
    ),
]


@pytest.mark.parametrize(("error", "make"), WRONG)
async def test_a_wrong_address_is_an_error_when_the_app_opens(
    restate: RestateServer,
    tmp_path: Path,
    error: type[LashError],
    make: Callable[[RestateServer], RestateHost],
) -> None:
    async def open_app() -> None:
        async with Lash(sqlite_url(tmp_path), host=make(restate)):
            pass

    with pytest.raises(error):
        await open_app()


async def test_an_address_that_another_program_has_is_an_error(
    restate: RestateServer, tmp_path: Path
) -> None:
    port = free_port()
    with listen(port), pytest.raises(EndpointTaken, match="another program"):
        await Lash(
            sqlite_url(tmp_path), host=changed(restate, endpoint=f"http://{LOOPBACK}:{port}")
        ).open()


async def test_a_host_belongs_to_one_open_app_over_a_durable_store(apps: RestateApps) -> None:
    host = apps.host()
    first, second = Lash(apps.url, host=host), Lash(apps.url, host=host)
    async with first:
        with pytest.raises(HostInUse):
            await second.open()
        with pytest.raises(ArgumentsInvalid):
            apps.host().asgi(first)
    await first.close()  # a second time
    async with second:
        pass
    with pytest.raises(DurableStoreRequired):
        await Lash("memory://", host=apps.host()).open()


async def test_the_run_of_another_store_is_refused_and_continues_where_it_belongs(
    apps: RestateApps, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Lash(sqlite_url(tmp_path / "other"), host=apps.host())
    (tmp_path / "other").mkdir()

    def make(host: RestateHost) -> Lash:
        app = Lash(apps.url, host=host, worker=WorkerConfig(park_after="100ms"))

        @app.process
        async def work(ctx: ProcessContext[None]) -> int:
            return await ctx.step(double, 21)

        return app

    submitting = make(changed(apps.server))
    async with other, submitting:
        handle = await submitting.start(submitting.definitions["work"])

        async def is_refused() -> bool | None:
            return "store_of_others" in caplog.text or None

        await eventually(is_refused)
    async with make(apps.host()) as app:
        assert await app.process_handle(handle.id).result(timeout="20s") == 42
    assert caplog.text.count("store_of_others") == 1


async def test_work_is_sent_when_the_server_is_back_and_the_trouble_is_logged_once(
    apps: RestateApps, caplog: pytest.LogCaptureFixture
) -> None:
    app = apps.make()

    @app.process
    async def work(ctx: ProcessContext[None]) -> int:
        return await ctx.step(double, 21)

    caplog.set_level(logging.INFO, "pylash")

    async def is_logged() -> bool | None:
        return "runs are not sent to Restate" in caplog.text or None

    async with app:
        await apps.server.kill()
        handle = await app.start(work)
        await eventually(is_logged)
        await asyncio.sleep(1)  # the courier asks the server several times
        await apps.server.restart()
        assert await handle.result(timeout="30s") == 42
    assert caplog.text.count("runs are not sent to Restate") == 1
    assert "runs are sent to Restate again" in caplog.text


def test_the_synchronous_app_and_a_client_use_a_worker_elsewhere(
    restate_server: RestateServer, tmp_path: Path
) -> None:
    apps = RestateApps(restate_server, sqlite_url(tmp_path))

    def declare(app: Any) -> Any:
        async def work(ctx: ProcessContext[None], number: int) -> int:
            return await ctx.step(double, number)

        return app.process(work)

    with pylash.sync.Lash(apps.url, host=apps.host()) as serving:
        declare(serving)
    serving = pylash.sync.Lash(apps.url, host=apps.host())
    definition = declare(serving)
    client = pylash.sync.Lash(apps.url, host=changed(restate_server), worker=None)
    with serving, client:
        handle = client.start(definition, number=4)
        assert handle.result(timeout="20s") == 8
        assert [(one.name, one.status) for one in handle.timeline()] == [("double", "done")]


def test_without_the_extra_it_names_what_to_install() -> None:
    code = "import sys; sys.modules['hypercorn'] = None; from pylash.restate import RestateHost"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert "pip install 'pylash[restate]'" in done.stderr
    assert "[extra_missing]" in done.stderr
