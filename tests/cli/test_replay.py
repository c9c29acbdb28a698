"""``pylash replay``: recorded runs against changed code; nothing executes, and nothing is written."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pty
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pylash import Lash
from pylash.cli.store_options import load_app
from pylash.durable.scopes import ProcessScope
from pylash.durable.waits import CustomWait, WaitName
from pylash.testing import kill
from tests.backends import eventually
from tests.cli.conftest import Call, filled

HEAD = """
import asyncio, os
from pathlib import Path
from pydantic import TypeAdapter
from pylash import Lash, ProcessContext
from pylash.testing import ScriptedModel, call, say

TypeAdapter(int)  # loads the plugins of pydantic, which reads files
ledger = Path(__file__).with_name("ledger")
app = Lash(model=ScriptedModel([call("refund", cents=5), say("ok")]))

def note(name):
    with ledger.open("a") as file:
        file.write(name + "\\n")
    return name

def load(): return note("load")
def charge(cents: int): return note(f"charge {cents}")
def charge_card(cents: int): return note(f"charge {cents}")
def check(): return note("check")
"""
ORDER = """
@app.process
async def order(ctx: ProcessContext[None], cents: int):
    await ctx.step(load)
    await ctx.step(charge, cents)
    await ctx.wait_signal("go")
    return await ctx.step(check)
"""
AGENT = """
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from pylash.integrations.pydantic_ai import durable

agent = durable(Agent(TestModel(), name="research"))

@app.process
async def order(ctx: ProcessContext[None], cents: int):
    found = await agent.run("hello")
    await ctx.wait_signal("go")
    return found.output
"""
ASIDE = """
@app.process
async def order(ctx: ProcessContext[None], cents: int):
    await ctx.step(load)
    print("between two effects")
    return await asyncio.create_task(ctx.wait_signal("go"))
"""
BRANCHES = """
@app.process
async def order(ctx: ProcessContext[None], cents: int):
    async def left():
        await ctx.step(load)
        return await ctx.wait_signal("left")
    async def right():
        await ctx.step(charge, cents)
        return await ctx.wait_signal("right")
    return await ctx.gather(left(), right())
"""
GREET_SOURCE = """
process greet(who: str) signals { go: str } {
    found = await tools.lookup({ name: who })?
    word = wait signal go
    finish found
}
"""
GREET = """
@app.tool
def lookup(name: str) -> str:
    return note(name)
"""

Deploy = Callable[[str], str]
_numbers = itertools.count(1)


@pytest.fixture
def deploy(tmp_path: Path) -> Deploy:
    """Write a program; return its name for the command line."""

    def write(body: str) -> str:
        file = tmp_path / f"replayed_{next(_numbers)}.py"
        file.write_text(HEAD + body)
        return f"{file}:app"

    return write


def started(url: str, named: str, *ids: str, waits: int = 1, target: Any = None) -> None:
    """Start processes, and kill their worker when they wait."""

    app = load_app(named)
    app.url = url

    async def start() -> None:
        await app.open()
        for process_id in ids:
            if target is None:
                await app.start(app.services.definitions["order"].options(id=process_id), cents=7)
            else:
                await target(app, process_id)

        async def all_wait() -> bool:
            return len(await app.waits()) == waits * len(ids)

        await eventually(all_wait)
        await kill(app)

    asyncio.run(start())


def contents(url: str) -> dict[str, list[str]]:
    """Return every row of a store."""

    async def read() -> dict[str, list[str]]:
        connection = await asyncpg.connect(url)
        try:
            names = await connection.fetch(
                "select tablename from pg_tables where tablename like 'pylash%'"
            )
            return {
                name: sorted(repr(tuple(row)) for row in await connection.fetch(f"table {name}"))
                for (name,) in names
            }
        finally:
            await connection.close()

    if url.startswith("postgres"):
        return asyncio.run(read())
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return {"all": list(connection.iterdump())}


def replayed(pylash: Call, url: str, named: str, *more: str) -> tuple[int, Any]:
    """Return the status and the JSON of a replay, which has written and executed nothing."""
    ledger = Path(named.rpartition(":")[0]).with_name("ledger")
    before = contents(url), ledger.read_text() if ledger.exists() else ""
    done = pylash("replay", named, "--json", *more)
    assert (contents(url), ledger.read_text() if ledger.exists() else "") == before
    return done.exit_code, json.loads(done.stdout)


def test_runs_fit_the_code_that_recorded_them(place: str, pylash: Call, deploy: Deploy) -> None:
    named = deploy(ORDER)
    started(place, named, "a", "b")
    status, found = replayed(pylash, place, named)
    assert status == 0
    assert found["summary"] == {"runs": 2, "fits": 2, "diverges": 0, "fails": 0, "not_loaded": 0}
    assert found["runs"][0] == {
        "id": "b",
        "kind": "process",
        "target": "python:order",
        "version": 1,
        "status": found["runs"][0]["status"],
        "verdict": "fits",
        "effects": 3,
        "at": ["go"],
        "code": None,
        "reason": None,
    }
    shown = pylash("replay", named)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "fits        b  order  goes on at go",
        "fits        a  order  goes on at go",
        "2 runs: 2 fit",
    ]


CHANGES: dict[str, tuple[str, str, str, list[str]]] = {
    "renamed": (
        ORDER.replace("charge, cents", "charge_card, cents"),
        "diverges", "effect_replay_diverged", ["'charge_card'", "'charge'"],
    ),
    "inserted": (
        ORDER.replace("await ctx.step(load)", "await ctx.step(load); await ctx.step(check)"),
        "diverges", "effect_replay_diverged", ["'check'", "'charge'"],
    ),
    "argument": (
        ORDER.replace("charge, cents", "charge, cents + 1"),
        "diverges", "effect_replay_mismatch", ["'charge'", "recorded 7, now 8"],
    ),
    "ends": (
        ORDER.replace("await ctx.step(charge, cents)", "return 1"),
        "diverges", "effect_replay_diverged", ["ends", "'charge'"],
    ),
    "mistake": (
        ORDER.replace("await ctx.wait_signal", "undefined_name; await ctx.wait_signal"),
        "diverges", "process_code_error", ["NameError", "undefined_name"],
    ),
    "parameter": (
        ORDER.replace("cents: int", "cents: int, currency: str"),
        "diverges", "process_data_invalid", ["arguments", "currency"],
    ),
    "result": (
        "def load() -> int: return 1\n" + ORDER,
        "diverges", "process_data_invalid", ["load"],
    ),
    "unknown": (
        ORDER.replace("def order", "def purchase"), "not_loaded", "None", ["python:order"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found_before_it_is_deployed(
    place: str, pylash: Call, deploy: Deploy, change: str
) -> None:
    body, verdict, code, said = CHANGES[change]
    started(place, deploy(ORDER), "a")
    named = deploy(body)
    status, found = replayed(pylash, place, named)
    (report,) = found["runs"]
    assert (report["verdict"], str(report["code"])) == (verdict, code), str(report)
    assert [one for one in said if one not in report["reason"]] == []
    assert status == int(verdict != "fits")
    shown = pylash("replay", named)
    assert shown.exit_code == status
    assert shown.stdout.startswith(verdict.replace("_", " "))
    assert [one for one in said if one not in shown.stdout] == []


def test_a_branch_that_was_dropped_would_block_the_next_new_effect(
    place: str, pylash: Call, deploy: Deploy
) -> None:
    started(place, deploy(BRANCHES), "a", waits=2)
    status, found = replayed(pylash, place, deploy(BRANCHES))
    assert (status, found["runs"][0]["at"]) == (0, ["left", "right"])
    status, found = replayed(pylash, place, deploy(BRANCHES.replace("left(), right()", "left()")))
    assert (status, found["runs"][0]["code"]) == (1, "effect_replay_diverged")
    assert (
        "waits at 'left' where 'charge' (gather.1/charge) is expected" in found["runs"][0]["reason"]
    )


def test_code_that_waits_in_a_task_of_its_own_fits_and_may_print(
    place: str, pylash: Call, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylash.engine.dry_runs.SETTLED_SECONDS", 0.1)
    named = deploy(ASIDE)
    started(place, named, "a")
    status, found = replayed(pylash, place, named)
    assert (status, found["runs"][0]["verdict"], found["runs"][0]["at"]) == (0, "fits", ["go"])


def test_code_that_comes_to_no_effect_is_given_up(
    file: str, pylash: Call, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylash.engine.dry_runs.STUCK_SECONDS", 0.1)
    started(file, deploy(ORDER), "a")
    stuck = ORDER.replace("await ctx.step(load)", "await asyncio.sleep(3600)")
    status, found = replayed(pylash, file, deploy(stuck))
    assert (status, found["runs"][0]["verdict"]) == (1, "not_loaded")
    assert "did not come to an effect" in found["runs"][0]["reason"]


ANSWERED = """
@app.process
async def child(ctx: ProcessContext[None]):
    return await ctx.wait_signal("end")

@app.process
async def order(ctx: ProcessContext[None], cents: int):
    started = await ctx.start(child.options(id="the-child"))
    first = await ctx.wait_signal("go")
    second = await ctx.wait_signal("go")
    answer = await ctx.wait(ctx.wait_key("approval"))
    result = await started.result()
    return await ctx.options(key=f"check {first}{second}{answer}{result}").step(check)
"""


def test_a_replay_takes_what_has_come_since_the_run_was_stopped(
    place: str, pylash: Call, deploy: Deploy
) -> None:
    named = deploy(ANSWERED)
    started(place, named, "a", waits=2)

    def at() -> list[str]:
        status, found = replayed(pylash, place, named)
        assert status == 0
        return next(one["at"] for one in found["runs"] if one["id"] == "a")

    async def send(name: str, number: int) -> None:
        async with Lash(place, worker=None) as client:
            await client.process_handle("a").signal(name, number)

    assert at() == ["go"]
    asyncio.run(send("go", 1))
    assert at() == ["go"]  # the second one
    asyncio.run(send("other", 2))
    assert at() == ["go"]
    asyncio.run(send("go", 2))
    assert at() == ["approval"]

    async def approve_and_end_child() -> None:
        async with Lash(place, worker=None) as client:
            name = WaitName(ProcessScope("a"), CustomWait("approval"))
            await client.resolve(client.services.control.effects.sign(name), 3)
            await client.process_handle("the-child").signal("end", 4)

    asyncio.run(approve_and_end_child())
    assert at() == ["await:the-child"]
    only_child = load_app(deploy(ANSWERED.replace("def order", "def purchase")))
    only_child.url = place

    async def end_child() -> None:
        async with only_child as app:
            await app.process_handle("the-child").result(timeout="20s")

    asyncio.run(end_child())
    assert at() == ["check 1234"]
    status, found = replayed(pylash, place, deploy(ANSWERED.replace("return await ctx.opt", "x.y")))
    assert (status, found["runs"][0]["code"]) == (1, "process_code_error")


def test_a_run_that_no_worker_can_claim_is_listed_once(
    place: str, pylash: Call, deploy: Deploy
) -> None:
    named = deploy(ORDER)
    app = load_app(named)
    app.url, app.worker_config = place, None

    async def start() -> None:
        async with app:
            await app.start(app.services.definitions["order"].options(id="a"), cents=7)

    asyncio.run(start())
    assert pylash("replay", named).stdout.splitlines()[-1] == "1 run: 1 fit"


def test_processes_that_have_ended_are_replayed_on_request(
    place: str, pylash: Call, deploy: Deploy
) -> None:
    named = deploy(ORDER)
    started(place, named, "a")

    app = load_app(named)
    app.url = place

    async def end() -> None:
        async with app:
            handle = app.process_handle("a")
            await handle.signal("go")
            await handle.result(timeout="20s")

    asyncio.run(end())
    assert replayed(pylash, place, named) == (0, {"runs": [], "summary": {
        "runs": 0, "fits": 0, "diverges": 0, "fails": 0, "not_loaded": 0}})  # fmt: skip
    assert pylash("replay", named).stdout == "No runs to replay.\n"
    status, found = replayed(pylash, place, named, "--ended")
    assert (status, found["runs"][0]["verdict"], found["runs"][0]["effects"]) == (0, "fits", 4)
    changed = ORDER.replace(
        "return await ctx.step(check)", "await ctx.step(check); raise OSError(7)"
    )
    status, found = replayed(pylash, place, deploy(changed), "--ended")
    assert (status, found["runs"][0]["verdict"]) == (1, "fails")
    assert found["runs"][0]["reason"] == "OSError: 7"


def test_processes_are_chosen_by_name_and_number(place: str, pylash: Call, deploy: Deploy) -> None:
    named = deploy(ORDER)
    started(place, named, "a", "b", "c")
    _, found = replayed(pylash, place, named, "--process", "order", "--limit", "2")
    assert [one["id"] for one in found["runs"]] == ["c", "b"]
    assert replayed(pylash, place, named, "--process", "rder")[1]["runs"] == []


def test_lashlang_is_replayed(place: str, pylash: Call, deploy: Deploy) -> None:
    async def start(app: Lash, process_id: str) -> None:
        module = await app.lashlang(GREET_SOURCE)
        await app.start(module["greet"].options(id=process_id), who="Ann")

    named = deploy(GREET)
    started(place, named, "a", target=start)
    status, found = replayed(pylash, place, named, "--process", "greet")
    assert (status, found["runs"][0]["at"]) == (0, ["go"])
    status, found = replayed(pylash, place, deploy(GREET.replace("def lookup", "def search")))
    (report,) = found["runs"]
    assert (status, report["verdict"]) == (1, "not_loaded")
    assert report["code"] == "process_surface_incompatible"


@pytest.mark.slow
def test_durable_agents_are_replayed(place: str, pylash: Call, deploy: Deploy) -> None:
    started(place, deploy(AGENT), "a")
    status, found = replayed(pylash, place, deploy(AGENT))
    assert (status, found["runs"][0]["at"]) == (0, ["go"])
    status, found = replayed(pylash, place, deploy(AGENT.replace("research", "researcher")))
    assert (status, found["runs"][0]["code"]) == (1, "effect_replay_diverged")
    assert "'model' (research/model)" in found["runs"][0]["reason"]


def test_turns_are_replayed(place: str, pylash: Call, deploy: Deploy) -> None:
    filled(place)
    before = contents(place)
    done = pylash("replay", "tests.cli.shop:app", "--json")
    runs = {one["id"]: one for one in json.loads(done.stdout)["runs"]}
    assert (done.exit_code, runs["chat-42/refund-7"]["kind"]) == (0, "turn")
    assert (runs["chat-42/refund-7"]["verdict"], runs["order-7"]["verdict"]) == ("fits", "fits")
    assert contents(place) == before
    status, found = replayed(pylash, place, deploy(ORDER))
    runs = {one["id"]: one for one in found["runs"]}
    assert status == 1
    assert runs["chat-42/refund-7"]["code"] == "turn_tool_missing"


@pytest.mark.parametrize("url", ["memory://", "sqlite:////nowhere/at/all.db"])
def test_a_store_that_is_not_there_is_refused(url: str, pylash: Call, deploy: Deploy) -> None:
    refused = pylash("replay", deploy(ORDER), "--store", url)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.endswith("[store_missing]\n")


@pytest.mark.slow
def test_many_runs_have_a_progress_bar_on_a_terminal(file: str, deploy: Deploy) -> None:
    named = deploy(ORDER)
    started(file, named, *(f"p{number}" for number in range(101)))
    terminal, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "pylash", "replay", named],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(theirs)
    drawn = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert done.stdout == "101 runs: 101 fit\n"
    assert "100 of 101" in drawn
    assert "\x1b" not in drawn
    assert drawn.endswith(" \r")


# --- show --app ---

RENAMED = ORDER.replace("@app.process", '@app.process(renamed={"charge": "charge_card"})').replace(
    "charge, cents", "charge_card, cents"
)


def shown_with(pylash: Call, url: str, named: str, process_id: str = "a") -> tuple[Any, str]:
    """Return the JSON and the text of ``show --app``, which has written and executed nothing."""
    ledger = Path(named.rpartition(":")[0]).with_name("ledger")
    before = contents(url), ledger.read_text()
    done = pylash("show", process_id, "--app", named, "--json")
    assert done.exit_code == 0, done.output
    text = pylash("show", process_id, "--app", named).stdout
    assert (contents(url), ledger.read_text()) == before
    return json.loads(done.stdout), text


def test_effects_that_the_code_has_passed_over_are_marked(
    place: str, pylash: Call, deploy: Deploy
) -> None:
    started(place, deploy(ORDER), "a")
    shown, text = shown_with(pylash, place, deploy(ORDER.replace("await ctx.step(load)", "")))
    assert shown["replay"] == {"verdict": "fits", "at": ["go"], "code": None, "reason": None}
    assert [(one["name"], one["passed_over"]) for one in shown["effects"]] == [
        ("load", True),
        ("charge", False),
        ("go", False),
    ]
    assert "replay     fits: goes on at go\n○ load: not asked for any more\n" in text
    assert text.count("not asked for any more") == 1


def test_new_names_are_shown_beside_the_recorded_ones(
    place: str, pylash: Call, deploy: Deploy
) -> None:
    started(place, deploy(ORDER), "a")
    shown, text = shown_with(pylash, place, deploy(RENAMED))
    assert [(one["name"], one["new_name"]) for one in shown["effects"]] == [
        ("load", None),
        ("charge", "charge_card"),
        ("go", None),
    ]
    assert shown["replay"]["verdict"] == "fits"
    assert "○ charge: is named charge_card now\n" in text
    assert "not asked for" not in text


def test_code_that_diverges_has_not_passed_over_what_it_did_not_come_to(
    place: str, pylash: Call, deploy: Deploy
) -> None:
    started(place, deploy(ORDER), "a")
    shown, text = shown_with(pylash, place, deploy(CHANGES["renamed"][0]))
    assert shown["replay"]["verdict"] == "diverges"
    assert shown["replay"]["code"] == "effect_replay_diverged"
    assert not any(one["passed_over"] for one in shown["effects"])
    assert "replay     diverges: The code asks for 'charge_card'" in text


def test_without_an_app_nothing_is_replayed(file: str, pylash: Call, deploy: Deploy) -> None:
    started(file, deploy(ORDER), "a")
    shown = json.loads(pylash("show", "a", "--json").stdout)
    assert "replay" not in shown
    assert "passed_over" not in shown["effects"][0]
