"""The harness itself: a Restate server that is killed, and endpoints that come and go."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import restate as sdk
from restate import Workflow, WorkflowContext, WorkflowSharedContext

from tests.backends import eventually
from tests.restate.endpoints import Endpoint
from tests.restate.server import RestateServer, loopback_client

OWNER = """
import sys, time
from pathlib import Path
from tests.restate.server import RestateServer
server = RestateServer(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
time.sleep(60)
"""
"""A process that starts a server and does not stop it."""


class Greeting:
    """A workflow that takes one step, waits for a promise and returns both values."""

    def __init__(self, name: str, suspend_after: float = 60) -> None:
        self.steps = 0
        workflow = Workflow(name, inactivity_timeout=timedelta(seconds=suspend_after))
        workflow.main("run")(self._run)
        workflow.handler("answer")(_answer)
        self.app = sdk.app([workflow])

    async def _run(self, ctx: WorkflowContext, name: str) -> list[Any]:
        greeting = await ctx.run_typed("greet", self._greet, name=name)
        return [greeting, await ctx.promise("answer", type_hint=str).value()]

    async def _greet(self, name: str) -> str:
        self.steps += 1
        return f"hello {name}"


async def _answer(ctx: WorkflowSharedContext, value: str) -> None:
    await ctx.promise("answer", type_hint=str).resolve(value)


async def post(server: RestateServer, path: str, value: Any) -> Any:
    async with loopback_client(server.ingress) as ingress:
        answer = await ingress.post(path, json=value)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


async def result(server: RestateServer, workflow: str) -> Any:
    async with loopback_client(server.ingress) as ingress:
        return (await ingress.get(f"/restate/workflow/{workflow}/attach")).json()


async def reaches(server: RestateServer, service: str, status: str) -> None:
    """Wait until the workflow of a service has a status."""
    sql = (
        "select status from sys_invocation where target_handler_name = 'run' "
        f"and target_service_name = '{service}' and status = '{status}'"
    )
    await eventually(lambda: server.query(sql))


async def test_a_workflow_is_called_through_the_ingress(restate: RestateServer) -> None:
    greeting = Greeting("Called")
    async with Endpoint(greeting.app) as url:
        await restate.register(url)
        await post(restate, "/Called/a/answer", "fine")
        assert await post(restate, "/Called/a/run", "you") == ["hello you", "fine"]
    assert greeting.steps == 1


async def test_a_suspended_workflow_continues_after_the_server_was_killed(
    restate: RestateServer,
) -> None:
    greeting, urls = Greeting("Suspended", suspend_after=0.05), (restate.ingress, restate.admin)
    async with Endpoint(greeting.app) as url:
        await restate.register(url)
        await post(restate, "/Suspended/a/run/send", "you")
        await reaches(restate, "Suspended", "suspended")
        await restate.kill()
        assert restate.pid is None
        await restate.restart()
        assert (restate.ingress, restate.admin) == urls
        await post(restate, "/Suspended/a/answer", "fine")
        assert await result(restate, "Suspended/a") == ["hello you", "fine"]
    assert greeting.steps == 1


async def test_an_endpoint_ends_with_live_calls_and_another_continues_them(
    restate: RestateServer,
) -> None:
    greeting = Greeting("Live")
    first = Endpoint(greeting.app)
    async with asyncio.timeout(5), first as url:
        await restate.register(url)
        await post(restate, "/Live/a/run/send", "you")
        await eventually(lambda: _is(greeting.steps == 1))
    await reaches(restate, "Live", "backing-off")
    async with Endpoint(greeting.app, first.port) as url:
        assert url == first.url
        await post(restate, "/Live/a/answer", "fine")
        assert await result(restate, "Live/a") == ["hello you", "fine"]


async def _is(value: bool) -> bool:
    return value


async def test_nothing_runs_after_the_server_was_cleared(restate: RestateServer) -> None:
    async with Endpoint(Greeting("Cleared").app) as url:
        await restate.register(url)
        await post(restate, "/Cleared/a/run/send", "you")
    await restate.kill()
    await restate.clear()
    open_runs = "select id from sys_invocation where status <> 'completed'"
    await eventually(lambda: _none(restate.query(open_runs)))
    async with loopback_client(restate.admin) as admin:
        assert (await admin.get("/services")).json() == {"services": []}


async def _none(rows: Any) -> bool:
    return not await rows


async def test_an_endpoint_leaves_sigterm_to_its_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with Endpoint(Greeting("Unsignalled").app) as url, loopback_client(url) as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("restate_server")  # it skips the test if there is no program
async def test_a_server_dies_with_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    owner = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    server = int(await owner.stdout.readline())
    assert not await _is_gone(server)
    owner.kill()
    await owner.wait()
    await eventually(lambda: _is_gone(server))


async def _is_gone(pid: int) -> bool:
    """Return whether a process has ended; without a parent that waits for it, it stays a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
