"""Programs outlive the deployment that linked them: other versions, other tools, damaged stores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from pylash import Lash, LashlangError, ProcessBlocked, ProcessFailed, ProcessSurfaceIncompatible
from pylash.cli.main import cli
from pylash.durable.commands import StartProcess
from pylash.durable.processes import LashlangInput, Registration
from pylash.values.canonical import encode
from pylash.workflows import workflows
from pylash.workflows.surfaces import app_surface
from tests.backends import Backend, eventually
from tests.processes.test_branches import parked
from tests.workflows.scenes import PARKING, Shop, keys, waiting

OLD = """
process main() signals { go: int } {
  n = wait signal go
  h = start child(n: n)
  finish await h
}
process child(n: int) { finish "old " + n + (await tools.echo({ value: "x" })?) }
"""
NEW = OLD.replace("old ", "new ")


def app_with(url: str, echo: Any = None, **options: Any) -> Lash:
    """Return an app that may have a tool."""
    app = Lash(url, worker=PARKING, **options)
    if echo is not None:
        app.tool(name="echo")(echo)
    return app


async def plain(value: str) -> str:
    """Return the value."""
    return value


async def wider(value: str | int, times: int = 1) -> str:
    """Return the value some times."""
    return str(value) * times


async def other(number: int) -> str:
    """Take something else."""
    return str(number)


@pytest.mark.proves("L3")
async def test_a_later_version_of_the_source_changes_nothing_that_runs(durable: Backend) -> None:
    async with app_with(durable.url, plain) as app:
        old = await app.lashlang(OLD)
        await app.start(old["main"].options(id="old"))
        await parked(app, "old")
    async with app_with(durable.url, wider) as app:  # it still fits
        new = await app.lashlang(NEW)
        assert new.ref != old.ref
        await app.start(new["main"].options(id="new"))
        for name in ("old", "new"):
            handle = app.process_handle(name)
            await handle.signal("go", 7)
            result = await handle.result(timeout="10s")
            assert result == {"ok": True, "value": f"{name} 7x"}


@pytest.mark.proves("L4")
async def test_a_stored_module_runs_and_starts_others_where_it_could_not_be_linked(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app_with(durable.url, plain) as app:
        module = await app.lashlang(OLD)
        await app.start(module["main"].options(id="p"))
        await parked(app, "p")
    monkeypatch.setattr(
        workflows, "app_surface", lambda *given: replace(app_surface(*given), abilities=frozenset())
    )
    async with app_with(durable.url, plain) as app:
        with pytest.raises(LashlangError, match="is disabled by this host"):
            await app.lashlang(OLD)
        handle = app.process_handle("p")
        await handle.signal("go", 7)
        assert await handle.result(timeout="10s") == {"ok": True, "value": "old 7x"}


@pytest.mark.parametrize("tool", [None, other], ids=["gone", "changed"])
async def test_a_worker_whose_tools_do_not_fit_blocks_a_run_until_one_fits(
    durable: Backend, tool: Any
) -> None:
    async with app_with(durable.url, plain) as app:
        module = await app.lashlang(OLD)
        await app.start(module["main"].options(id="p"))
        await parked(app, "p")
        before = await keys(app, "p")
    async with app_with(durable.url, tool) as app:
        handle = app.process_handle("p")
        await handle.signal("go", 7)

        async def blocked() -> bool:
            return await handle.status() == "blocked"

        await eventually(blocked)
        with pytest.raises(ProcessBlocked, match=r"process_surface_incompatible.*(echo|tools)"):
            await handle.result(timeout="1ms")
        assert await keys(app, "p") == before
        await app.retry("p")
        await eventually(blocked)  # nothing has changed here
    async with app_with(durable.url, plain) as app:
        await app.retry("p")
        result = await app.process_handle("p").result(timeout="10s")
    assert result == {"ok": True, "value": "old 7x"}


async def test_what_does_not_fit_is_not_started() -> None:
    async with app_with("memory://", plain) as app:
        module = await app.lashlang(OLD)
        del app.catalog.tools["echo"]
        with pytest.raises(ProcessSurfaceIncompatible, match="cannot run here"):
            await app.start(module["main"])
        assert await app.processes() == []


async def test_a_rolling_deploy_hands_programs_over(durable: Backend) -> None:
    """The old and the new run side by side; then the old one goes."""
    old, new = app_with(durable.url, plain), app_with(durable.url, wider)
    await old.open()
    module = await old.lashlang(OLD)
    for number in range(6):
        await old.start(module["main"].options(id=f"p{number}"))
        await parked(old, f"p{number}")
    async with new:
        for number in range(3):
            await new.process_handle(f"p{number}").signal("go", number)
        await old.close()
        for number in range(3, 6):
            await new.process_handle(f"p{number}").signal("go", number)
        results = [await new.process_handle(f"p{n}").result(timeout="10s") for n in range(6)]
    assert [result["value"] for result in results] == [f"old {n}x" for n in range(6)]


# --- stored modules ---


async def _tampered(app: Lash, module: Any, **changed: Any) -> dict[str, Any]:
    """Start a process whose registration says something else; return how it fails."""
    given = module["main"].input({})
    registration = Registration(id="t", input=replace(given, **changed), env=app.template.env)
    await app.store.processes.start(StartProcess(registration))
    with pytest.raises(ProcessFailed) as caught:
        await app.process_handle("t").result(timeout="10s")
    return dict(caught.value.data)


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("module_ref", "process_module_artifact_missing"),
        ("process_ref", "process_module_artifact_missing"),
        ("process_name", "process_module_artifact_missing"),
        ("required_surface_ref", "process_required_surface_mismatch"),
        ("arguments", "process_arguments_invalid"),
    ],
)
async def test_references_that_lead_nowhere_fail_the_process(field: str, code: str) -> None:
    async with app_with("memory://", plain) as app:
        module = await app.lashlang(OLD)
        wrong = {"more": 1} if field == "arguments" else "lashlang:v1:sha256:" + "0" * 64
        failure = await _tampered(app, module, **{field: wrong})
    assert (failure["class"], failure["code"], failure["raw"]) == ("execution", code, None)


@pytest.mark.proves("L3")
@pytest.mark.parametrize("damage", ["gone", "broken", "altered", "another"])
async def test_a_module_that_is_missing_or_damaged_is_never_run(
    durable: Backend, damage: str
) -> None:
    async with app_with(durable.url, plain) as app:
        module = await app.lashlang(OLD)
        body = await app.store.envs.get(module.ref)
        second = await app.lashlang(NEW)
        await app.start(module["main"].options(id="p"))
        await parked(app, "p")
        assert body is not None
        bad = {
            "gone": None,
            "broken": body[:100],
            "altered": body.replace(b"old ", b"odd "),
            "another": await app.store.envs.get(second.ref),
        }[damage]
        await _overwrite(app, module.ref, bad)
    async with app_with(durable.url, plain) as app:
        await app.process_handle("p").signal("go", 1)
        with pytest.raises(ProcessFailed) as caught:
            await app.process_handle("p").result(timeout="10s")
    assert caught.value.data["code"] == "process_module_artifact_missing"


async def _overwrite(app: Lash, ref: str, body: bytes | None) -> None:
    from pylash.stores.operation import Operation, Statement  # noqa: PLC0415

    def steps() -> Any:
        yield Statement("delete from pylash_envs where ref = ?", (ref,))
        if body is not None:
            yield Statement("insert into pylash_envs(ref, body) values (?, ?)", (ref, body))

    await app.store.driver.run(Operation("damage", steps))  # type: ignore[attr-defined]


async def test_pruning_keeps_the_modules_that_processes_may_need(durable: Backend) -> None:
    async with app_with(durable.url, plain) as app:
        module = await app.lashlang(OLD)
        await app.start(module["main"].options(id="p"))
        await app.start(module["child"].options(id="c"), n=1)
        await app.process_handle("c").result(timeout="10s")
        await parked(app, "p")
    asked = ["prune", "--older-than", "0s", "--store", durable.url]
    ran = await asyncio.to_thread(CliRunner().invoke, cli, asked)
    assert "pruned" in ran.output, ran.output
    async with app_with(durable.url, plain) as app:
        handle = app.process_handle("p")
        await handle.signal("go", 7)
        assert await handle.result(timeout="10s") == {"ok": True, "value": "old 7x"}
        assert await app.store.envs.get(module.ref) is not None


async def test_a_fork_goes_on_from_what_was_recorded_before_it(durable: Backend) -> None:
    source = """
    process main() {
      a = await tools.echo({ value: "a" })?
      h = start child()
      r = await h
      b = await tools.echo({ value: "b" })?
      finish [a, r, b]
    }
    process child() { finish await tools.echo({ value: "c" })? }"""
    shop = Shop(durable.url)
    async with shop.app:
        result = await shop.run(source)
        last = (await keys(shop.app, "p"))[-1]
        fork = await shop.app.fork_process("p", from_effect=last, id="f")
        assert await fork.result(timeout="10s") == result
    assert shop.calls == ["a", "c", "b", "b"]


@pytest.mark.proves("L3")
async def test_the_registration_holds_references_and_no_code(backend: Backend) -> None:
    shop = Shop(backend.url)
    async with shop.app:
        module = await shop.app.lashlang(OLD)
        await shop.app.start(module["main"].options(id="p"))
        record = await shop.app.store.processes.get("p")
    assert record is not None
    stored = encode(record.registration).decode()
    assert all(f'"{ref}":' in stored for ref in ("module_ref", "process_ref"))
    assert '"required_surface_ref":' in stored
    assert "old " not in stored  # a text of the program
    assert "echo" not in stored  # a tool that it calls
    given = record.registration.input
    assert isinstance(given, LashlangInput)
    assert given.module_ref == module.ref
    assert record.registration.signals == {"go": {"type": "integer"}}


async def test_an_app_closes_at_once_while_its_programs_come_to_wait(tmp_path: Path) -> None:
    """A program that its child woke a moment ago is parked too, long before the grace is over."""
    source = "process main() { h = start child(); r = await h; s = wait signal }\nprocess child() { finish 1 }"
    for number in range(8):
        shop = Shop(f"sqlite:///{tmp_path / f'{number}.db'}")
        await shop.app.open()
        await shop.start(source)
        await waiting(shop.app)
        async with asyncio.timeout(8):  # the grace is 10 seconds
            await shop.app.close()
