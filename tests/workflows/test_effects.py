"""Every effect of a program, performed by an app and recorded once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pylash import Lash, ProcessContext, ProcessEventInvalid, ProcessHandle, WorkerConfig
from pylash.testing import ScriptedModel, SimClock, say
from tests.backends import Backend, eventually
from tests.processes.test_branches import parked
from tests.workflows.scenes import LIVE, PARKING, Shop, keys, log, waiting

EVERYTHING = """
process main(who: str, mail: Mail) signals { answer: int } -> any {
  one = await tools.echo({ value: who })?
  all = await [tools.meet({ n: 1 })?, { x: tools.meet({ n: 2 })? }, (tools.meet({ n: 3 })?,), who]
  tries = await tools.flaky({ good: 2 })?
  failed = await tools.flaky({ good: 9 })
  broken = await tools.broken({ code: "E1" })
  letter = await mail.send({ to: who })?
  h = start child(n: 20)
  k = start child(n: 1)
  wake "hello " + who
  yield { at: 1 }
  sleep for 2
  sleep until "2020-01-01T00:00:00Z"
  first = wait signal answer
  late = wait signal answer within 3
  signal run h go with first
  both = await [h, k]
  cancel k
  finish [one, all, tries, failed, broken, letter, first, late, both, await h]
}
process child(n: int) signals { go: int } {
  if n > 1 { finish n + wait signal go }
  fail { n: n }
}
"""

OUTCOME = [
    "Ann",
    [1, {"x": 2}, [3], "Ann"],
    2,
    {"ok": False, "error": "attempt 3"},
    {"ok": False, "error": '{"code":"E1","n":2}'},
    "sent to Ann",
    22,
    None,
    [{"ok": True, "value": 42}, {"ok": False, "error": '{"n":1}'}],
    {"ok": True, "value": 42},
]

KEYS = [
    r"op:tools\.echo:resource_operation:\w{24}:1",
    r"batch\.0/op:tools\.meet:resource_operation:\w{24}:1",
    r"batch\.1/op:tools\.meet:resource_operation:\w{24}:1",
    r"batch\.2/op:tools\.meet:resource_operation:\w{24}:1",
    r"op:tools\.flaky:resource_operation:\w{24}:1",
    r"op:tools\.flaky:resource_operation:\w{24}:1/delay\.1",
    r"op:tools\.flaky:resource_operation:\w{24}:1/attempt\.2",
    r"op:tools\.flaky:resource_operation:\w{24}:1",
    r"op:tools\.flaky:resource_operation:\w{24}:1/delay\.1",
    r"op:tools\.flaky:resource_operation:\w{24}:1/attempt\.2",
    r"op:tools\.flaky:resource_operation:\w{24}:1/delay\.2",
    r"op:tools\.flaky:resource_operation:\w{24}:1/attempt\.3",
    r"op:tools\.broken:resource_operation:\w{24}:1",
    r"op:mail\.send:resource_operation:\w{24}:1",
    r"start:child_process:\w{24}:1",
    r"start:child_process:\w{24}:1",
    r"event:0",
    r"event:1",
    r"sleep:0",
    r"sleep:1",
    r"wait:signal\.answer:1",
    r"wait:signal\.answer:2",
    r"signal:0",
    r"await:await:\w{24}:1:0",
    r"await:await:\w{24}:1:1",
    r"cancel:cancel:\w{24}:1",
    r"await:await:\w{24}:1:0",
]


@pytest.mark.proves("L1")
@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parked"])
async def test_a_program_does_everything_once(backend: Backend, config: WorkerConfig) -> None:
    shop = Shop(backend.url, config)
    async with shop.app:
        handle = await shop.start(EVERYTHING, who="Ann")
        await handle.signal("answer", 22)
        assert await handle.result(timeout="10s") == OUTCOME
        recorded = await keys(shop.app, "p")
        told = await log(handle)
        told.remove(("signal.answer", 22))  # it came when it came
        assert told == [
            ("process.started", None),
            ("process.wake", {"value": "hello Ann", "text": "hello Ann"}),
            ("process.yield", {"value": {"at": 1}, "text": '{"at":1}'}),
            ("process.completed", {"value": OUTCOME}),
        ]
        of_event = {event.type: event.key async for event in handle.events()}
    assert of_event["process.wake"] == "process:p:event:0"
    assert of_event["process.yield"] == "process:p:event:1"
    assert len(recorded) == len(KEYS)
    assert [
        key for key, wanted in zip(recorded, KEYS, strict=True) if not re.fullmatch(wanted, key)
    ] == []
    assert shop.calls == ["Ann", 1, 2, 1, 2, 3, "Ann"]


# --- operations ---


async def test_a_person_agrees_to_a_call_of_a_program_that_was_parked(durable: Backend) -> None:
    source = (
        "process main() { finish [await tools.pay({ cents: 5 }), await tools.pay({ cents: 7 })] }"
    )
    shop = Shop(durable.url, PARKING)
    async with shop.app:
        await shop.start(source)
        wait = await waiting(shop.app)
        await parked(shop.app, "p")
        assert (wait.kind, wait.tool, wait.arguments) == ("approval", "pay", {"cents": 5})
    again = Shop(durable.url, PARKING)
    async with again.app:
        await again.app.resolve(wait.key, {"approved": True, "arguments": {"cents": 4}})
        other = await eventually(lambda: _another(again.app, wait.key))
        await again.app.resolve(other.key, {"approved": False, "reason": "too much"})
        result = await again.app.process_handle("p").result(timeout="10s")
    refused = "Not run: it was rejected: too much"
    assert result == [{"ok": True, "value": "paid 4"}, {"ok": False, "error": refused}]
    assert (shop.calls, again.calls) == ([], [4])


async def _another(app: Lash, key: str) -> Any:
    return next((wait for wait in await app.waits() if wait.key != key), None)


async def test_an_outsider_answers_a_deferred_call() -> None:
    shop = Shop()
    source = 'process main() { finish await [tools.ask({ question: "a" }), tools.ask({ question: "b" })] }'
    async with shop.app:
        handle = await shop.start(source)

        async def both() -> list[Any]:
            waits = await shop.app.waits()
            return waits if len(waits) == 2 else []

        first, second = await eventually(both)
        await shop.app.resolve(second.key, error="nobody knows")
        await shop.app.resolve(first.key, {"yes": True})
        assert await handle.result(timeout="10s") == [
            {"ok": True, "value": {"yes": True}},
            {"ok": False, "error": "nobody knows"},
        ]


async def test_arguments_that_do_not_fit_are_an_answer_and_the_tool_is_not_called() -> None:
    shop = Shop()
    source = "process main(x: any) { finish (await tools.echo({ value: x })).error }"
    async with shop.app:
        error = await shop.run(source, x=7)
    assert "value" in error
    assert shop.calls == []


async def test_a_tool_may_have_a_parameter_that_is_called_args() -> None:
    shop = Shop()

    @shop.app.tool
    async def count(args: list[str]) -> int:
        """Count."""
        return len(args)

    @shop.app.tool
    async def nothing() -> str:
        """Take nothing."""
        return "taken"

    source = "process main() { finish await [tools.count({ args: [] })?, tools.nothing()?, tools.nothing({})?] }"
    async with shop.app:
        assert await shop.run(source) == [0, "taken", "taken"]


async def test_a_call_on_a_module_that_lacks_the_operation_fails_the_program() -> None:
    """Two modules of one type: what one of them has, the type has."""
    shop = Shop()

    @shop.app.tool(module="a.b")
    async def read() -> str:
        """Read."""
        return "read"

    @shop.app.tool(module="a_b", name="write")
    async def written() -> str:
        """Write."""
        return "written"

    source = "process main(m: AB) { finish await m.read()? }"
    async with shop.app:
        assert (
            await shop.run(source, m={"__resource__": True, "type": "AB", "alias": "a.b"}) == "read"
        )
        other = {"__resource__": True, "type": "AB", "alias": "a_b"}
        failure = await shop.fails(source, process_id="q", m=other)
    assert failure["raw"]["kind"] == "host_failed"
    assert "`a_b` has no operation `read`" in failure["message"]


# --- time ---


async def test_weeks_pass_in_a_moment_and_a_restart_waits_only_for_the_rest(
    durable: Backend,
) -> None:
    source = """
    process main() {
      sleep for "2w"
      sleep until "2026-02-01T00:00:00Z"
      sleep until 0
      sleep for 0
      finish "rested"
    }"""
    clock = SimClock()
    shop = Shop(durable.url, PARKING, clock=clock)
    async with shop.app:
        handle = await shop.start(source)
        await clock.advance("10d")
        await rests(handle)
    again = Shop(durable.url, PARKING, clock=clock)
    async with again.app:
        handle = again.app.process_handle("p")
        await clock.advance("20d")
        await rests(handle)
        await clock.advance("1d")  # it is the first of February
        assert await handle.result(timeout="10s") == "rested"
        record = await again.app.store.processes.get("p")
    assert record is not None
    assert record.settled == 1_769_904_000_000_000


async def test_the_longest_waits_there_are() -> None:
    shop = Shop(worker=PARKING)
    source = "process main() signals { s: int } { x = wait signal s within 9007199254740991; sleep for 9007199254740991 }"
    async with shop.app:
        handle = await shop.start(source)
        await parked(shop.app, "p")
        await handle.signal("s", 1)
        await eventually(lambda: _is_recorded(shop.app, "sleep:0"))
        await handle.cancel()


async def _is_recorded(app: Lash, key: str) -> bool:
    return key in await keys(app, "p")


# --- signals ---

COLLECT = """
process main() signals { n: int, go: { ok: bool, why: str? } } {
  a = wait signal n
  b = wait signal n within 0
  c = wait signal n within "1h"
  d = wait signal n within "1h"
  e = wait signal go
  finish [a, b, c, d, e]
}"""


async def rests(handle: ProcessHandle[Any]) -> None:
    """Wait until the process waits."""

    async def look() -> bool:
        return await handle.status() == "waiting"

    await eventually(look)


async def test_signals_come_early_late_and_not_at_all(backend: Backend) -> None:
    clock = SimClock()
    shop = Shop(backend.url, PARKING, clock=clock)
    async with shop.app:
        module = await shop.app.lashlang(COLLECT)
        handle = await shop.app.start(module["main"].options(id="p", delay="1m"))
        await handle.signal("n", 1)  # before it runs
        await handle.signal("n", 2, id="same")
        await handle.signal("n", 2, id="same")
        await clock.advance("1m")
        await clock.advance("30m")
        await rests(handle)
        await clock.advance("31m")  # the third wait is over: what comes now is for the fourth
        await handle.signal("n", 4)
        await clock.advance("1s")
        await handle.signal("n", 5)  # nobody waits for it any more
        await handle.signal("go", {"ok": True, "more": 1})
        await clock.advance("1s")
        assert await handle.result(timeout="10s") == [1, 2, None, 4, {"ok": True, "more": 1}]


@pytest.mark.parametrize(
    ("name", "payload", "said"),
    [
        ("other", 1, "declares no such signal (declared: n, go)"),
        ("n", "one", "$ is 'one', not of type integer"),
        ("n", 1.5, "not of type integer"),
        ("go", {"why": "so"}, "ok"),
        ("go", {"ok": True, "why": 7}, "$.why is 7, not of type string"),
        ("go", None, "not of type object"),
    ],
)
async def test_a_signal_that_was_not_declared_is_refused_where_it_is_sent(
    name: str, payload: Any, said: str
) -> None:
    shop = Shop()
    async with shop.app:
        handle = await shop.start(COLLECT)
        with pytest.raises(ProcessEventInvalid, match=re.escape(said)):
            await handle.signal(name, payload)
        assert [kind for kind, _ in await log(handle)] == ["process.started"]


async def test_an_answer_to_a_wait_for_a_signal_must_fit_too() -> None:
    shop = Shop()
    async with shop.app:
        handle = await shop.start("process main() signals { n: int } { finish wait signal n }")
        wait = await waiting(shop.app)
        with pytest.raises(ProcessEventInvalid, match="not of type integer"):
            await shop.app.resolve(wait.key, "seven")
        assert (await shop.app.resolve(wait.key, 7)).status == "accepted"
        assert await handle.result(timeout="10s") == 7


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("signal run h other with 1", "other"),
        ('signal run h n with "x"', "n"),
        ("signal run nobody n with 1", "n"),
        ("r = await g; signal run g n with 1", "n"),
        ("signal run g with 1", "signal"),
    ],
)
async def test_a_signal_that_cannot_be_sent_fails_its_sender(statement: str, said: str) -> None:
    shop = Shop()
    source = f"""
    process main(nobody: any) {{
      h = start waits()
      g = start ends()
      {statement}
    }}
    process waits() signals {{ n: int }} {{ finish wait signal n }}
    process ends() signals {{ n: int }} {{ finish 1 }}"""
    async with shop.app:
        failure = await shop.fails(source, nobody=shop.app.process_handle("nobody"))
    assert (failure["code"], failure["raw"]["kind"]) == ("process_runtime_error", "signal_failed")
    assert f"`{said}`" in failure["message"]


async def test_a_program_sleeps_and_signals_another_that_waits(backend: Backend) -> None:
    target = "process main() { value = wait signal; finish value }"
    sender = """
    process main(target: any) {
      sleep for "0ms"
      signal run target with { ok: true }
      finish "sent"
    }"""
    shop = Shop(backend.url)
    async with shop.app:
        waits = await shop.start(target, process_id="target")
        assert await shop.run_as("sender", sender, target=waits) == "sent"
        assert await waits.result(timeout="10s") == {"ok": True}
        assert ("signal.signal", {"ok": True}) in await log(waits)
        assert await keys(shop.app, "sender") == ["sleep:0", "signal:0"]


async def test_programs_and_python_processes_signal_and_await_each_other(backend: Backend) -> None:
    shop = Shop(backend.url)
    started: list[str] = []

    @shop.app.process
    async def asks(ctx: ProcessContext[None]) -> Any:
        child = await ctx.start(module["main"].options(id="asked"), asker=handle)
        await child.signal("n", 3)
        started.append(child.id)
        return [await child.result(), await ctx.wait_signal("back")]

    source = """
    process main(asker: any) signals { n: int } {
      got = wait signal n
      signal run asker back with { got: got }
      finish got + 1
    }"""
    async with shop.app:
        module = await shop.app.lashlang(source)
        handle: ProcessHandle[Any] = shop.app.process_handle("asker")
        await shop.app.start(asks.options(id="asker"))
        assert await handle.result(timeout="10s") == [4, {"got": 3}]


# --- children ---


async def test_children_outlive_their_parent_and_are_cancelled_only_by_name(
    backend: Backend,
) -> None:
    source = """
    process main(nobody: any) {
      a = start sleeper(n: 1)
      b = start sleeper(n: 2)
      cancel a
      cancel a
      cancel nobody
      finish { a: await a, b: b, none: await nobody }
    }
    process sleeper(n: int) { x = wait signal; finish n }"""
    shop = Shop(backend.url, PARKING)
    async with shop.app:
        result = await shop.run(source, nobody=shop.app.process_handle("nobody"))
        assert result["a"]["ok"] is False
        assert result["none"]["ok"] is False
        other: ProcessHandle[Any] = shop.app.process_handle(result["b"]["id"])
        assert re.fullmatch(r"lash-\w{32}", other.id)
        await other.signal("signal", None)
        assert await other.result(timeout="10s") == 2


async def test_a_start_that_the_host_refuses_is_a_run_error() -> None:
    shop = Shop()
    source = """
    process main(x: any) { h = start child(n: x); finish h }
    process child(n: int) { finish n }"""
    async with shop.app:
        failure = await shop.fails(source, x="seven")
        assert len(await shop.app.processes()) == 1
    assert failure["raw"]["kind"] == "start_failed"
    assert "`n`" in failure["message"]


# --- wakes ---


async def test_a_wake_reaches_the_session_that_owns_the_process_once(backend: Backend) -> None:
    model = ScriptedModel(lambda request: say(f"heard {request.messages[-1].text}"))
    shop = Shop(backend.url, PARKING, model=model)
    source = """
    process main() {
      h = start child()
      wake { done: [1, "x"] }
      x = wait signal
      finish await h
    }
    process child() { wake "from the child" }"""
    async with shop.app:
        module = await shop.app.lashlang(source)
        handle = await shop.app.start(module["main"].options(id="p", wake="chat"))
        session = shop.app.session("chat")

        async def turns() -> Any:
            said = [m.text for m in await session.history() if m.role == "user"]
            return (
                said
                if sum(text.count("child") + text.count("done") for text in said) == 2
                else None
            )

        said = "\n".join(await eventually(turns))
        await parked(shop.app, "p")
        await handle.signal("signal")
        assert await handle.result(timeout="10s") == {"ok": True, "value": None}
        assert said.count('{"done":[1,"x"]}') == 1
        assert said.count("from the child") == 1
        again = "\n".join([m.text for m in await session.history() if m.role == "user"])
    assert again == said


async def test_arguments_may_be_null(backend: Backend) -> None:
    shop = Shop(backend.url)
    async with shop.app:
        assert await shop.run("process main(x: any) { finish [x] }", x=None) == [None]
