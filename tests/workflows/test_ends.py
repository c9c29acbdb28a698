"""How processes of programs end: once, with a code, and at once when they are cancelled."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from pylash import (
    InlineHost,
    Lash,
    LashlangError,
    ProcessArgumentsInvalid,
    ProcessCancelled,
    ProcessNotInModule,
)
from tests.backends import Backend, eventually
from tests.processes.test_branches import parked
from tests.workflows.scenes import LIVE, PARKING, Shop, log, waiting

FAILURES = [
    ("fail { a: [1] }", "process_failed", '{"a":[1]}', {"a": [1]}),
    ("x = null; fail x", "process_failed", "null", None),
    ('n = null; finish n.x.y + to_int("no")', "process_runtime_error", None, "expected_number"),
    ("finish await tools.flaky({ good: 9 })?", "process_runtime_error", None, "unwrap_failed"),
    ("while true { n = 1 }", "process_bounds_exceeded", None, "step_budget_exceeded"),
    ("finish endless(1)", "process_bounds_exceeded", None, "frame_depth_exceeded"),
    ('s = "xx"; while true { s = s + s }', "process_bounds_exceeded", None, "memory_exceeded"),
    ("cancel 7", "process_runtime_error", None, "not_a_handle"),
    ('sleep for "soon"', "process_runtime_error", None, "invalid_duration"),
    ('sleep until "soon"', "process_runtime_error", None, "invalid_time"),
]


@pytest.mark.parametrize(("body", "code", "message", "raw"), FAILURES)
async def test_a_failure_has_a_class_a_code_a_message_and_what_is_behind_it(
    body: str, code: str, message: str | None, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pylash.lang.running import execution, meter  # noqa: PLC0415

    few = meter.Bounds(steps=200_000, active_ms=30_000, memory_bytes=2**20)
    monkeypatch.setitem(execution.run_process.__kwdefaults__ or {}, "bounds", few)
    shop = Shop()
    source = f"fn endless(n: int) -> int {{ endless(n + 1) }}\nprocess main() {{\n  {body}\n}}"
    async with shop.app:
        handle = await shop.start(source)
        failure = await shop.fails(source)
        kinds = [kind for kind, _ in await log(handle)]
    assert (failure["class"], failure["code"]) == ("execution", code)
    if code == "process_failed":
        assert (failure["message"], failure["raw"]) == (message, raw)
    else:
        assert failure["raw"]["kind"] == raw
        assert failure["raw"]["line"] in (1, 3)
        assert failure["raw"]["column"] >= 1
    assert kinds == ["process.started", "process.failed"]


async def test_what_cannot_be_written_fails_the_program_and_no_one_else() -> None:
    shop = Shop()
    lone = r'"\"\\ud800\""'
    async with shop.app:
        failure = await shop.fails(f"process main() {{ yield json_parse({lone}) }}")
        assert failure["class"] == "execution"
        assert await shop.run("process main() { finish 1 }", process_id="q") == 1


async def test_reaching_the_end_finishes_with_null_and_a_finish_ends_at_once() -> None:
    shop = Shop()
    async with shop.app:
        assert await shop.run("process main() { x = 1 }") is None
        source = "process main() { for i in [1, 2] { finish i }; fail 3 }"
        assert await shop.run(source, process_id="q") == 1


# --- processes that cannot start ---


@pytest.mark.proves("L2")
async def test_a_program_with_a_mistake_is_refused_with_its_place() -> None:
    shop = Shop()
    async with shop.app:
        with pytest.raises(LashlangError) as caught:
            await shop.app.lashlang("process main() {\n  finish await tools.nothing({})?\n}")
        (error,) = caught.value.errors[:1]
        module = await shop.app.lashlang("process main() { finish 1 }")
        with pytest.raises(ProcessNotInModule, match="it has: main"):
            module["other"]
    assert (error.stage, error.kind, error.line) == ("link", "unknown_operation", 2)


@pytest.mark.proves("L2")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("parent = 1\nprocess main() { finish parent }", "unknown name `parent`"),
        (
            'process main() { finish await echo({ value: "x" })? }',
            "tools must be called through module paths, e.g. `tools.echo`",
        ),
    ],
)
async def test_a_process_sees_no_names_of_its_parent_and_no_bare_tools(
    source: str, said: str
) -> None:
    shop = Shop()
    async with shop.app:
        with pytest.raises(LashlangError, match=re.escape(said)):
            await shop.app.lashlang(source)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "`n`"),
        ({"n": "x"}, "`n`"),
        ({"n": 1, "more": 2}, "`more`"),
        ({"n": 1, "m": {"__resource__": True, "type": "Mail", "alias": "nowhere"}}, "`m`"),
    ],
)
async def test_wrong_arguments_are_refused_and_nothing_is_registered(
    args: dict[str, Any], said: str
) -> None:
    shop = Shop()
    async with shop.app:
        module = await shop.app.lashlang("process main(n: int, m: Mail) { finish n }")
        with pytest.raises(ProcessArgumentsInvalid, match=said):
            await shop.app.start(module["main"], **args)
        assert await shop.app.processes() == []
        handle = await shop.app.start(module["main"], 7)
        assert await handle.result(timeout="10s") == 7


# --- cancelling ---

WAITS = {
    "sleep": 'sleep for "1d"',
    "signal": "x = wait signal",
    "late signal": 'x = wait signal within "1d"',
    "child": "h = start other(); x = await h",
    "approval": "x = await tools.pay({ cents: 1 })",
    "batch": 'x = await [tools.pay({ cents: 1 }), tools.ask({ question: "?" })]',
}


@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parked"])
@pytest.mark.parametrize("wait", WAITS)
async def test_a_waiting_process_ends_at_once(wait: str, config: Any) -> None:
    shop = Shop(worker=config)
    source = f"""
    process main() {{ {WAITS[wait]}; finish await tools.echo({{ value: "after" }}) }}
    process other() {{ x = wait signal }}"""
    async with shop.app:
        handle = await shop.start(source)
        if config is PARKING:
            await parked(shop.app, "p")
        elif wait != "sleep":
            await waiting(shop.app)
        await handle.cancel("enough")
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="10s")
        events = await log(handle)
        others = [view for view in await shop.app.processes() if view.id != "p"]
    assert [kind for kind, _ in events][-2:] == ["process.cancel_requested", "process.cancelled"]
    assert shop.calls == []
    assert [view.status for view in others] in ([], ["waiting"], ["running"])


@pytest.mark.parametrize("host", [None, InlineHost])
async def test_a_computing_process_ends_at_its_next_look_at_the_bounds(host: Any) -> None:
    shop = Shop(host=None if host is None else host())
    source = (
        'process main() { x = await tools.echo({ value: "on" }); n = 0; while true { n = n + 1 } }'
    )
    async with shop.app:
        handle = await shop.start(source)

        async def computes() -> bool:
            return shop.calls == ["on"]

        await eventually(computes)
        await handle.cancel()
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")


async def test_a_process_that_is_cancelled_before_it_runs_does_nothing(backend: Backend) -> None:
    shop = Shop(backend.url)
    async with shop.app:
        module = await shop.app.lashlang('process main() { x = await tools.echo({ value: "x" }) }')
        handle = await shop.app.start(module["main"].options(id="p", delay="1h"))
        await handle.cancel()
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")
    assert shop.calls == []


async def test_others_run_while_a_program_computes() -> None:
    shop = Shop()
    async with shop.app:
        handle = await shop.start(
            "process main() { n = 0; while n < 3000000 { n = n + 1 }; finish n }"
        )
        ticks = 0
        while await handle.status() != "completed":
            ticks += 1
            await asyncio.sleep(0.001)
    assert ticks > 5


@pytest.mark.proves("L5")
async def test_ordinary_logs_say_nothing_of_what_a_program_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "pylash")
    shop = Shop()
    shop.app.trace_lashlang(lambda _: None)
    async with shop.app:
        await shop.run('process main() { x = await tools.echo({ value: "secret" }); finish x }')
    assert not [r for r in caplog.records if "secret" in r.getMessage() or "node" in r.getMessage()]


async def test_a_program_runs_without_a_journal_too() -> None:
    app = Lash("memory://", host=InlineHost())

    @app.tool
    async def double(n: int) -> int:
        """Double."""
        return n * 2

    source = """
    process main(n: int) signals { go: int } {
      h = start child(n: n)
      sleep for 1
      wake "x"
      got = await [tools.double({ n: n })?, h]
      x = wait signal go
      y = wait signal go within 1
      finish [got, x, y]
    }
    process child(n: int) { finish await tools.double({ n: n + 1 })? }"""
    async with app:
        module = await app.lashlang(source)
        handle = await app.start(module["main"].options(id="p"), n=1)
        await handle.signal("go", 5)
        assert await handle.result(timeout="10s") == [[2, {"ok": True, "value": 4}], 5, None]
