"""Commands that inspect a store without changing it: ps, show, events and waits."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pylash import Lash, TurnBudget
from pylash.cli import output
from pylash.cli.main import cli
from pylash.stores.migrations import SCHEMA
from pylash.stores.operation import Operation, Statement, Steps
from pylash.testing import kill
from pylash.values.texts import cells
from tests.backends import eventually
from tests.cli import shop
from tests.cli.conftest import Call, ask, ended, filled, worked
from tests.sessions.scenes import Telling
from tests.stores.test_migrations import next_schema, opened

TABLES = ("runs", "effects", "waits", "workers", "processes", "process_events", "sessions", "envs")


def everything(url: str) -> Any:
    """Return every row of a store."""

    def rows() -> Steps[Any]:
        found = {}
        for table in TABLES:
            found[table] = (yield Statement(f"select * from pylash_{table} order by 1, 2")).rows
        return found

    async def read() -> Any:
        store = await opened(url, migrate=False)
        try:
            return await store.driver.run(Operation("read", rows, read_only=True))
        finally:
            await store.close()

    return asyncio.run(read())


def test_everything_is_listed_and_shown_and_nothing_is_changed(place: str, pylash: Call) -> None:
    filled(place)
    before = everything(place)

    listed = {one["id"]: one for one in ask(pylash, "ps")}
    order, turn = listed["order-7"], listed["chat-42/refund-7"]
    assert (order["kind"], order["status"], order["target"]) == (
        "process",
        "waiting",
        "python:order",
    )
    assert order["waits_for"] == ["signal address"]
    assert (order["label"], turn["label"]) == ("Ann's teapot", None)
    assert (turn["kind"], turn["status"], turn["session"]) == ("turn", "waiting", "chat-42")
    assert turn["waits_for"] == ["approval"]
    assert [one["id"] for one in ask(pylash, "ps", "--kind", "turn")] == ["chat-42/refund-7"]
    assert [one["target"] for one in ask(pylash, "ps", "-s", "completed")] == ["python:child"]
    assert len(ask(pylash, "ps", "-n", "1")) == 1

    shown = ask(pylash, "show", "order-7")
    done = [(one["name"], one["attempt"], one["status"]) for one in shown["effects"]]
    assert done[:4] == [
        ("charge", 1, "done"),
        ("wobble", 1, "failed"),
        ("wobble again", 1, "done"),
        ("wobble", 2, "done"),
    ]
    assert shown["effects"][1]["error"] == f"ValueError: wobble {shop.EVIL}"
    assert shown["effects"][-1]["waits_for"] == "signal address"
    assert shown["input"] == {"item": f"teapot {shop.EVIL}"}
    assert [child["status"] for child in shown["children"]] == ["completed"]
    assert [wait["title"] for wait in shown["waits"]] == ["address"]

    asked = ask(pylash, "show", "refund-7")
    assert asked["input"] == "Refund order 7, please"
    assert asked["waits"][0]["arguments"] == {"order_id": "7", "cents": 500}
    session = ask(pylash, "show", "chat-42")
    assert session["kind"] == "session"
    assert [one["id"] for one in session["turns"]] == ["chat-42/refund-7"]

    waits = ask(pylash, "waits")
    assert sorted(wait["kind"] for wait in waits) == ["approval", "signal"]
    assert sorted(wait["of"] for wait in waits) == ["chat-42/refund-7", "order-7"]
    assert len(ask(pylash, "waits", "--session", "chat-42")) == 1

    lines = pylash("events", "order-7", "--json").stdout.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["process.started", "progress"]
    assert everything(place) == before


def test_a_list_is_limited_by_name_and_time(place: str, pylash: Call) -> None:
    filled(place)
    assert [one["id"] for one in ask(pylash, "ps", "--name", "order")] == ["order-7"]
    assert ask(pylash, "ps", "--name", "order", "-s", "failed") == []
    assert ask(pylash, "ps", "--name", "nobody") == []
    [tagged] = ask(pylash, "ps", "--tag", "customer:7")
    assert (tagged["id"], tagged["tags"]) == ("order-7", ["customer:7"])
    assert ask(pylash, "ps", "--tag", "customer:7", "--name", "child") == []
    assert "tags       customer:7" in pylash("show", "order-7").stdout
    assert ask(pylash, "show", "order-7")["tags"] == ["customer:7"]
    assert "tags       customer:7" in pylash("show", "chat-42").stdout
    [session] = ask(pylash, "sessions", "--tag", "customer:7")
    assert (session["id"], session["tags"]) == ("chat-42", ["customer:7"])
    everything = ask(pylash, "ps")
    assert len(ask(pylash, "ps", "--since", "1h")) == len(everything)
    assert len(ask(pylash, "ps", "--since", "2026-01-01")) == len(everything)
    assert ask(pylash, "ps", "--since", "2124-01-01T10:00") == []
    assert ask(pylash, "ps", "--since", "0s", "--name", "order") == []
    assert "leave out --kind" in pylash("ps", "--name", "order", "--kind", "turn").stderr
    assert "neither a time" in pylash("ps", "--since", "yesterday").stderr


def test_sessions_are_listed_in_pages(place: str, pylash: Call) -> None:
    filled(place)

    async def others(app: Any) -> None:
        for name in ("a", "b"):
            await app.session(name).enqueue("hello")

    worked(place, others)
    [newest, *rest] = ask(pylash, "sessions")
    assert newest["id"] == "b"
    assert [one["id"] for one in rest] == ["a", "chat-42"]
    assert (rest[-1]["status"], rest[-1]["turns"], rest[-1]["updated"]) == ("waiting", 0, None)
    assert ask(pylash, "sessions", "-n", "1", "--after", "b") == rest[:1]
    assert "chat-42" in pylash("sessions").stdout
    assert "There is no session 'c'" in pylash("sessions", "--after", "c").stderr


def test_what_people_read_commands_no_terminal(file: str, pylash: Call) -> None:
    filled(file)
    worked(file, _evil)
    for command in (("ps",), ("show", "order-7"), ("events", "order-7"), ("waits",)):
        done = pylash(*command)  # the fixture looks for raw escapes
        assert done.exit_code == 0
        assert "\u202e" not in done.output
    assert r"evil\x1b]0;pwned\x07\u202e" in pylash("show", "order-7").stdout


def test_an_end_is_shown_with_its_result(file: str, pylash: Call) -> None:
    filled(file)
    assert pylash("signal", "order-7", "address", '"5 High St"').exit_code == 0

    async def both(app: Any) -> None:
        broken = await app.start(shop.broken.options(id="broken-1"))
        await ended("order-7")(app)
        await ended(broken.id)(app)

    worked(file, both)
    assert "to 5 High St, grown" in ask(pylash, "show", "order-7")["output"]["value"]
    assert "to 5 High St, grown" in pylash("show", "order-7").stdout
    assert "failed     it is broken [process_failed]" in pylash("show", "broken-1").stdout


@pytest.mark.proves("P16")
@pytest.mark.slow
def test_a_failure_is_shown_with_its_class_code_message_and_raw_value(
    place: str, pylash: Call
) -> None:
    async def declined(app: Any) -> None:
        await app.start(shop.declined.options(id="declined-1"))
        await ended("declined-1")(app)

    worked(place, declined)
    failure = ask(pylash, "show", "declined-1")["output"]
    assert failure == {
        "status": "failed",
        "failure_class": "ToolError",
        "code": "tool_error",
        "message": "No money.",
        "raw": {"cents": 500},
    }
    shown = pylash("show", "declined-1").stdout
    assert "failed     No money. [tool_error]" in shown
    assert "class      ToolError" in shown
    assert 'raw        {"cents": 500}' in shown


@pytest.mark.slow
def test_a_run_that_did_not_complete_is_shown_with_its_reason(place: str, pylash: Call) -> None:
    worked(place, _undone)
    errors = {one["id"]: one["error"] for one in ask(pylash, "ps")}
    assert errors["broken-1"] == "it is broken [process_failed]"
    assert errors["gone-1"] == "no longer wanted"
    assert errors["chat-1/lost"] == "the budget of 0 iterations is used up [turn_stopped]"
    assert "  it is broken [process_failed]" in pylash("ps").stdout


def test_the_text_of_a_cancelled_turn_is_shown(file: str, pylash: Call) -> None:
    async def stopped(app: Lash) -> None:
        app.model("telling", Telling("It ships ", "to"))
        session = app.session("chat-1", model="telling")
        async with session.stream("Where?", turn_id="t1") as stream:
            async for event in stream:
                if event.type == "text_delta" and event.text == "to":
                    await session.cancel("enough")

    worked(file, stopped)
    assert ask(pylash, "show", "chat-1/t1")["output"]["text"] == "It ships to"
    shown = pylash("show", "chat-1/t1").stdout
    assert "error      enough [turn_cancelled]" in shown
    assert "text       It ships to [interrupted]" in shown


async def _undone(app: Lash) -> None:
    await app.start(shop.broken.options(id="broken-1"))
    await ended("broken-1")(app)
    await app.start(shop.busy.options(id="gone-1"))
    await app.process_handle("gone-1").cancel("no longer wanted", force=True)
    await ended("gone-1")(app)
    budget = TurnBudget(iterations=0)
    await app.session("chat-1", budget=budget).turn("hello", turn_id="lost")


def test_work_without_a_worker_is_marked(place: str, pylash: Call) -> None:
    filled(place)
    pylash("signal", "order-7", "address")  # it is ready now, and nobody is there
    (row,) = ask(pylash, "ps", "--status", "blocked")
    assert row["reason"] == "unknown_target: no worker is running"
    assert pylash("ps", "-s", "blocked").stdout.rstrip().endswith("  no worker is running")
    assert "no worker is running: pylash worker" in pylash("show", "order-7").stdout
    assert pylash("retry", "order-7").stdout == "waits for a worker  order-7\n"


def test_work_that_no_worker_knows_is_marked(file: str, pylash: Call) -> None:
    filled(file)
    pylash("signal", "order-7", "address")

    async def beside_another() -> Any:
        async with Lash(file):
            return await asyncio.to_thread(pylash, "show", "order-7")

    assert "no live worker has 'python:order' (v1)" in asyncio.run(beside_another()).stdout


def test_a_turn_that_queued_messages_started_shows_them(file: str, pylash: Call) -> None:
    asyncio.run(_enqueued(file))
    (waiting,) = ask(pylash, "ps", "--kind", "turn")
    assert ask(pylash, "show", waiting["id"])["input"] == "refund it"
    worked(file, _until_it_asks)
    shown = ask(pylash, "show", waiting["id"])
    assert shown["input"] == "refund it"
    assert [one["name"] for one in shown["effects"]] == [
        "environment",
        "messages",
        "model",
        "approval",
    ]


async def _enqueued(url: str) -> None:
    async with Lash(url, worker=None) as client:
        await client.session("chat-1").enqueue("refund it")


async def _until_it_asks(app: Lash) -> None:
    async def asks() -> bool:
        return bool(await app.waits())

    await eventually(asks)


def test_a_blocked_run_shows_where_the_replay_differed(
    place: str, pylash: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(place)
    monkeypatch.setenv("CENTS", "600")
    pylash("signal", "order-7", "address", '"x"')

    async def until_blocked(app: Any) -> None:
        async def is_blocked() -> bool:
            return str(await app.process_handle("order-7").status()) == "blocked"

        await eventually(is_blocked)

    worked(place, until_blocked)
    shown = ask(pylash, "show", "order-7")
    assert shown["status"] == "blocked"
    assert shown["code"] == "effect_replay_mismatch"
    assert shown["difference"] == {
        "key": "charge",
        "difference": "$.command.input.args[0]: recorded 500, now 600",
    }
    assert shown["waits"] == []  # a second signal is not invited
    assert shown["signals"] == ["address"]
    text = pylash("show", "order-7").stdout
    assert "arrived    signal: address" in text
    assert "pylash signal" not in text
    assert "difference $.command.input.args[0]: recorded 500, now 600" in text
    assert "pylash retry order-7" in text
    monkeypatch.delenv("CENTS")
    refused = pylash("retry", "--blocked")
    assert "order-7" in refused.stdout
    assert "add --yes" in refused.stderr
    assert pylash("retry").exit_code == pylash("retry", "order-7", "--blocked").exit_code == 2
    assert ask(pylash, "retry", "--blocked", "--yes") == {"done": "continues", "ids": ["order-7"]}
    assert pylash("retry", "--blocked").stdout == "No run is blocked.\n"
    assert "to x, grown" in worked(place, ended("order-7"))


# --- ids ---


def test_a_beginning_is_enough_if_only_one_thing_begins_so(place: str, pylash: Call) -> None:
    filled(place)
    for text, meant in (
        ("ord", "order-7"),
        ("refund", "chat-42/refund-7"),
        ("chat-42/refund-7", "chat-42/refund-7"),
        ("chat-42/ref", "chat-42/refund-7"),
        ("chat", "chat-42"),
    ):
        assert ask(pylash, "show", text)["id"] == meant
    ambiguous = pylash("show", "c")
    assert ambiguous.exit_code == 1
    assert "[run_ambiguous]" in ambiguous.stderr
    assert "'chat-42'" in ambiguous.stderr
    for unknown in ("nobody", "ORDER-7", "", "chat-42/nothing", "%", "order-7'--"):
        refused = pylash("show", unknown)
        assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
        assert "[run_unknown]" in refused.stderr


# --- events ---


def test_events_begin_where_since_points(file: str, pylash: Call) -> None:
    filled(file)
    assert [line.split()[3] for line in pylash("events", "order-7").stdout.splitlines()] == [
        "process.started",
        "progress",
    ]
    assert "started" not in pylash("events", "order-7", "--since", "1").stdout
    assert "started" in pylash("events", "order-7", "--since", "1h").stdout
    assert pylash("events", "order-7", "--since", "soon").exit_code == 2
    assert "only processes have a log" in pylash("events", "chat-42").stderr


# --- stores that are not there ---


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path, pylash: Call) -> None:
    url = f"sqlite:///{tmp_path / 'nothing.db'}"
    for command in (
        ("ps",),
        ("show", "x"),
        ("events", "x"),
        ("waits",),
        ("signal", "x", "y"),
        ("cancel", "x"),
        ("resolve", "x", "1"),
        ("retry", "x"),
        ("prune", "--older-than", "1d"),
    ):
        refused = pylash(*command, "--store", url)
        assert refused.exit_code == 1, command
        assert "[store_missing]" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_migrate_creates_a_file(tmp_path: Path, pylash: Call) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    assert pylash("migrate", "--store", url).stdout == f"created  schema {SCHEMA} in {url}\n"
    assert pylash("ps", "--store", url).stdout == f"Nothing to show in {url}.\n"
    folder = pylash("migrate", "--store", f"sqlite:///{tmp_path}")
    assert "[store_missing]" in folder.stderr


def test_the_database_of_another_program_is_left_alone(tmp_path: Path, pylash: Call) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table theirs(x)")
    before = path.read_bytes()
    refused = pylash("ps", "--store", f"sqlite:///{path}")
    assert "holds nothing of pylash" in refused.stderr
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["other.db"]


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_an_empty_database_is_not_set_up_by_looking(place: str, pylash: Call) -> None:
    for _ in range(2):
        refused = pylash("ps")
        assert refused.exit_code == 1
        assert "[store_schema_outdated]" in refused.stderr
    assert ask(pylash, "migrate") == {"before": 0, "after": SCHEMA}
    assert ask(pylash, "migrate") == {"before": SCHEMA, "after": SCHEMA}
    assert ask(pylash, "ps") == []


def test_an_older_store_is_migrated_only_when_asked(
    place: str, pylash: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(place)
    next_schema(monkeypatch)
    monkeypatch.setattr("pylash.cli.maintenance.SCHEMA", SCHEMA + 1)
    refused = pylash("ps")
    assert "run pylash migrate" in refused.stderr
    assert ask(pylash, "migrate") == {"before": SCHEMA, "after": SCHEMA + 1}
    assert len(ask(pylash, "ps")) == 3


def test_the_store_of_an_app_is_named_by_the_app(file: str, pylash: Call) -> None:
    filled(file)
    shop.app.url = file
    assert len(ask(pylash, "ps", "--store", "tests.cli.shop:app")) == 3
    before = pylash("--store", file, "--json", "ps", PYLASH_STORE="sqlite:///nothing.db")
    assert len(json.loads(before.stdout)) == 3
    assert "[store_missing]" in pylash("ps", "--store", "memory://").stderr


# --- terminals ---


def test_what_a_terminal_gets_fits_it(
    file: str, pylash: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(file)
    worked(file, _wide)
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    looks = ("ps", "show order-7", "show 注文", "show chat-42", "waits", "events 注文", "doctor")
    for width in (60, 80, 200):
        for look in looks:
            shown = pylash(*look.split(), COLUMNS=str(width)).stdout
            assert [line for line in shown.splitlines() if cells(line) > width] == []


def test_colours_are_for_terminals_that_want_them(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked(file, _one_long)

    def listed() -> str:
        return CliRunner().invoke(cli, ["ps"], color=True).stdout

    assert "\x1b" not in listed()
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    assert "\x1b[32mcompleted" in listed()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in listed()


async def _wide(app: Any) -> None:
    await app.start(shop.order.options(id="注文-七番"), item="急須" * 100)
    await app.start(shop.order.options(id="長" * 50), item="急須")

    async def all_wait() -> bool:
        return len(await app.waits()) == 4

    await eventually(all_wait)


def test_without_a_terminal_nothing_is_left_out(file: str, pylash: Call) -> None:
    worked(file, _one_long)
    assert "x" * 300 in pylash("ps", COLUMNS="60").stdout
    assert "…" not in pylash("ps", COLUMNS="60").stdout


async def _evil(app: Any) -> None:
    """Start a process whose id turns the direction of a line; control characters are refused in ids."""
    await (await app.start(shop.child.options(id="evil\u202e"))).result()


async def _one_long(app: Any) -> None:
    await (await app.start(shop.child.options(id="x" * 300))).result()


# --- values and transcripts ---


def test_values_are_shown_on_request_without_secrets_and_up_to_a_length(
    place: str, pylash: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "correct-horse-battery")

    async def fill(app: Lash) -> None:
        for process_id in ("order-0", "order-1"):
            await app.start(shop.order.options(id=process_id), item="correct-horse-battery")
        handle = app.process_handle("order-1")
        await handle.signal("address", "x" * 10_000)
        await handle.result(timeout="20s")
        await eventually(lambda: waits(app))

    async def waits(app: Lash) -> bool:
        return len(await app.waits()) == 1

    worked(place, fill)
    assert "input" not in ask(pylash, "show", "order-0")["effects"][0]
    effects = {one["name"]: one for one in ask(pylash, "show", "order-0", "--values")["effects"]}
    charge, emit = effects["charge"], effects["emit progress"]
    assert (charge["input"], charge["output"]) == ({"args": [500], "kwargs": {}}, 500)
    assert emit["input"]["payload"] == {"item": "[hidden]"}
    assert effects["start child"]["output"].keys() == {"id"}
    assert effects["address"]["output"] is None

    text = pylash("show", "order-0", "--values").stdout
    assert '\ncharge\n  input    {"args": [500], "kwargs": {}}\n  output   500\n' in text
    after = text.partition("\ncharge\n")[2]
    assert "correct-horse" not in after
    assert "[hidden]" in after

    effects = {one["name"]: one for one in ask(pylash, "show", "order-1", "--values")["effects"]}
    cut = effects["address"]["output"]
    assert cut.endswith("xxx…")
    assert len(cut) == 4_001
    after = pylash("show", "order-1", "--values").stdout.partition("\naddress\n")[2]
    assert cut in after
    assert "x" * 4_001 not in after


def test_a_session_is_shown_with_its_transcript(
    place: str, pylash: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "order 7")
    filled(place)
    shown = ask(pylash, "show", "chat-42")
    assert [(one["turn_id"], one["kind"]) for one in shown["messages"]] == [
        ("refund-7", "user"),
        ("refund-7", "tool_call"),
    ]
    (wait,) = shown["waits"]
    assert pylash("resolve", wait["id"], "true").exit_code == 0
    worked(place, _refunded)

    user, call, result, answer = ask(pylash, "show", "chat-42")["messages"]
    assert (user["kind"], user["text"]) == (
        "user",
        "Refund order 7, please",
    )  # 7 characters: no secret
    assert (call["tool"], call["arguments"]) == ("refund", {"order_id": "7", "cents": 500})
    assert (result["kind"], result["text"]) == ("tool_result", "refunded 500 for 7")
    assert (answer["kind"], answer["text"]) == ("assistant", "Refunded.")
    lines = pylash("show", "chat-42").stdout.splitlines()
    assert lines[-4:] == [
        "user       Refund order 7, please",
        'call       refund(order_id="7", cents=500)',
        "result     refund: refunded 500 for 7",
        "assistant  Refunded.",
    ]
    monkeypatch.setenv("SHOP_TOKEN", "Refund order 7")
    assert ask(pylash, "show", "chat-42")["messages"][0]["text"] == "[hidden], please"
    assert "Refund order" not in pylash("show", "chat-42").stdout


async def _refunded(app: Lash) -> None:
    async def is_answered() -> bool:
        return len(await app.session("chat-42").history()) == 4

    await eventually(is_answered)


def test_a_run_whose_worker_is_gone_is_marked(place: str, pylash: Call) -> None:
    async def leave() -> None:
        shop.app.url = place
        await shop.app.open()
        await shop.app.start(shop.busy.options(id="busy-1"))

        async def runs() -> bool:
            return await shop.app.process_handle("busy-1").status() == "running"

        await eventually(runs)
        await kill(shop.app)

    asyncio.run(leave())
    (row,) = ask(pylash, "ps")
    assert (row["status"], row["reason"]) == (
        "running",
        "its worker is gone, and the next one takes it over",
    )
    assert "its worker is gone" in pylash("show", "busy-1").stdout
