"""Crashes at every effect boundary."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pylash import AppNotOpen, Lash, ProcessContext
from pylash.stores.ports.journal import SqlJournal
from pylash.stores.ports.processes import SqlProcesses
from pylash.stores.ports.runs import SqlRuns
from pylash.stores.tables.contents import SqlContents
from pylash.stores.tables.workers import SqlWorkers
from pylash.testing import CrashPoint, CrashReport, crash_everywhere, kill
from pylash.testing.crash import run_scenario
from pylash.testing.kills import HOUSEKEEPING, LEAVING, Mortal
from tests.backends import PostgresBackend
from tests.testing.crash_apps import (
    broken,
    make_app,
    make_counting_app,
    make_forgetful_app,
    make_small_app,
    parent,
    ran,
    silent_story,
    small_story,
    twice_started,
    whole_story,
)

pytestmark = pytest.mark.slow

APPS = "tests.testing.crash_apps"
SMALL = (
    CrashPoint(1, "before", "start", "", "small"),
    CrashPoint(2, "after", "start", "", "small"),
    CrashPoint(3, "before", "record", "process small", "double", "durable_step"),
    CrashPoint(4, "after", "record", "process small", "double", "durable_step"),
    CrashPoint(5, "before", "settle", "process small"),
    CrashPoint(6, "after", "settle", "process small"),
)


def test_every_record_is_a_boundary_with_two_points() -> None:
    assert crash_everywhere(make_small_app, small_story) == CrashReport(42, SMALL)


def test_steps_sleeps_signals_and_children_end_the_same_wherever_it_dies() -> None:
    report = crash_everywhere(make_app, whole_story)
    assert report.outcome == [2, 5, 10]
    written = {(point.operation, point.kind) for point in report.points}
    assert written >= {
        ("start", ""),
        ("perform", ""),
        ("record", "durable_step"),
        ("begin_sleep", "sleep"),
        ("take_signal", "process"),
        ("perform_for", "process"),
        ("watch", "process"),
        ("settle", ""),
    }
    assert {point.when for point in report.points} == {"before", "after"}


@pytest.mark.parametrize(("point", "times"), [(1, 2), (2, 2), (3, 3), (4, 2), (5, 2), (6, 2)])
def test_only_what_was_not_recorded_runs_again(point: int, times: int) -> None:
    ran.clear()
    crash_everywhere(make_small_app, small_story, only=point)
    calm_and_crashed = [21] * times
    assert ran == calm_and_crashed


def test_an_outcome_that_depends_on_repeats_is_found_out() -> None:
    with pytest.raises(AssertionError) as caught:
        crash_everywhere(make_counting_app, small_story)
    assert str(caught.value) == (
        "killed at point 3, before record of durable_step 'tick' in process small, "
        "the scenario ends differently:\n"
        "  without a crash the outcome is 1\n"
        "  after this one the outcome is 2\n"
        "(try it alone with only=3)"
    )


def test_a_scenario_that_gives_no_ids_is_found_out() -> None:
    with pytest.raises(AssertionError, match=r"(?s)point 2, after start.*one the outcome is 2"):
        crash_everywhere(make_small_app, twice_started)


def test_a_process_that_does_not_end_any_more_is_found_out() -> None:
    with pytest.raises(
        AssertionError, match=r"(?s)point 4, after record .*it has not ended in 2 s"
    ):
        crash_everywhere(make_forgetful_app, silent_story, only=4, timeout="2s")


def test_a_scenario_that_fails_by_itself_is_no_crash() -> None:
    with pytest.raises(
        AssertionError, match="without any crash: it raises LookupError: there is no"
    ):
        crash_everywhere(make_small_app, broken)


@pytest.mark.parametrize("value", [(1, 2), (1, None), ("a", [("b", None)])])
def test_a_tuple_is_an_outcome_whatever_it_contains(value: tuple[Any, ...]) -> None:
    async def story(app: Lash) -> tuple[Any, ...]:
        await small_story(app)
        return value

    outcome = crash_everywhere(make_small_app, story, only=1).outcome
    assert outcome == msgspec.json.decode(msgspec.json.encode(value))


def test_a_point_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no point 7: the scenario has 6"):
        crash_everywhere(make_small_app, small_story, only=7)


async def test_an_app_that_closes_after_its_scenario_is_not_killed(tmp_path: Path) -> None:
    app, leaving = Lash(f"sqlite:///{tmp_path}/crash.db"), asyncio.Event()

    @app.process
    async def small(ctx: ProcessContext[None]) -> None:
        await ctx.step(leaving.wait)

    async def start_and_leave(app: Lash) -> None:
        await app.start(small.options(id="small"))
        leaving.set()  # the step goes on, and is recorded, after the end of this task

    async with asyncio.timeout(5):
        ending = await run_scenario(app, start_and_leave, 5, SMALL[2].number)
    assert (ending.killed, ending.points) == (None, SMALL[:2])
    async with app:
        assert await app.process_handle("small").status() == "completed"


def test_functions_may_be_named() -> None:
    report = crash_everywhere(f"{APPS}:make_small_app", f"{APPS}:small_story", only=4)
    assert report == CrashReport(42, SMALL[3:4])
    with pytest.raises(ValueError, match="'nonsense' names no function: write 'module:name'"):
        crash_everywhere("nonsense", small_story)


async def test_it_may_be_called_and_awaited_in_an_async_test() -> None:
    report = await crash_everywhere(make_small_app, small_story, only=1)
    assert report.points == SMALL[:1]


def test_every_run_and_its_repetition_have_a_store_of_their_own(tmp_path: Path) -> None:
    names = iter(("calm", "crashed"))
    crash_everywhere(
        make_small_app,
        small_story,
        store=lambda: f"sqlite:///{tmp_path}/{next(names)}.db",
        only=6,
    )
    assert (tmp_path / "calm.db").exists()
    assert (tmp_path / "crashed.db").exists()


def test_it_crashes_on_postgres_too(postgres: str) -> None:
    backends = [PostgresBackend(postgres), PostgresBackend(postgres)]
    for backend in backends:
        asyncio.run(backend.__aenter__())
    urls = iter(backends)
    report = crash_everywhere(make_app, whole_story, store=lambda: next(urls).url, only=6)
    assert report.outcome == [2, 5, 10]
    assert not report.missed
    for backend in backends:
        asyncio.run(backend.__aexit__(None, None, None))


# --- real kills ---


def test_a_process_that_was_really_killed_goes_on() -> None:
    report = crash_everywhere(make_small_app, small_story, kill=True, only=4)
    assert report == CrashReport(42, SMALL[3:4])


def test_a_real_kill_finds_an_outcome_that_depends_on_repeats() -> None:
    with pytest.raises(AssertionError, match="point 3, before record of durable_step 'tick'"):
        crash_everywhere(make_counting_app, small_story, kill=True, only=3)


@pytest.mark.torture
@pytest.mark.timeout(300)
def test_the_whole_story_bears_real_kills_everywhere() -> None:
    report = crash_everywhere(make_app, whole_story, kill=True)
    assert report.outcome == [2, 5, 10]
    assert not report.missed


def test_what_another_process_cannot_import_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be imported by a process that is killed"):
        crash_everywhere(lambda store: Lash(store), small_story, kill=True)  # noqa: PLW0108


def test_a_child_that_breaks_shows_why() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ended with 1:.*StoreUrlInvalid"):
        crash_everywhere(make_small_app, small_story, kill=True, store=lambda: "nonsense")


# --- dying alone ---


def test_housekeeping_names_operations_that_there_are() -> None:
    ports = (SqlJournal, SqlRuns, SqlWorkers, SqlProcesses, SqlContents)
    there = {
        name for port in ports for name, what in vars(port).items() if hasattr(what, "__wrapped__")
    }
    there.add(SqlRuns.claim.__name__)  # written by hand: it knows when it is repeated
    assert {*HOUSEKEEPING, LEAVING} - {"migrate"} <= there


async def test_a_killed_app_writes_nothing_more_and_gives_nothing_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/dead.db"
    app, begun = Lash(url), asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.process
    async def busy(ctx: ProcessContext[None]) -> None:
        await ctx.step(hang)

    await app.open()
    await app.start(busy.options(id="b"))
    await begun.wait()
    await kill(app)
    rows = sqlite3.connect(tmp_path / "dead.db")
    owned = "select r.state, r.owner = w.id from pylash_runs r, pylash_workers w"
    assert rows.execute(owned).fetchall() == [("running", 1)]
    rows.close()
    assert not list((tmp_path / "dead.db-workers").iterdir())  # its lock died with it


async def test_the_dead_are_not_answered_and_change_nothing(tmp_path: Path) -> None:
    app = make_app(f"sqlite:///{tmp_path}/dead.db")
    await app.open()
    mortal = Mortal(app)
    mortal.die()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(app.start(parent.options(id="late"), number=1))
        looking = group.create_task(app.processes())
        await asyncio.wait((asking, looking), timeout=0.1)
        assert not asking.done()
        assert not looking.done()
        asking.cancel()
        looking.cancel()
    await mortal.bury()
    rows = sqlite3.connect(tmp_path / "dead.db")
    assert rows.execute("select count(*) from pylash_processes").fetchall() == [(0,)]
    rows.close()


async def test_the_next_app_takes_over_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/dead.db"
    app = make_app(url)
    await app.open()
    handle = await app.start(parent.options(id="p"), number=1)
    await kill(app)
    with pytest.raises(AppNotOpen):
        await handle.signal("answer", 5)
    async with asyncio.timeout(5), make_app(url) as heir:
        again = heir.process_handle("p")
        await again.signal("answer", 5)
        assert await again.result() == [2, 5, 10]
