"""The suites catch liars: each broken host or store is caught by a law that can be named."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pylash.durable import (
    ACCEPTED,
    Fence,
    Instant,
    NewRun,
    Resolution,
    ResolveOutcome,
    RunState,
    RunView,
    WaitName,
    new_run_id,
    scope_text,
    waits,
)
from pylash.runtime import InlineHost, SystemClock, system_entropy
from pylash.runtime.inline import MemoryWaits
from pylash.stores import journal as journal_operations
from pylash.stores import runs as run_operations
from pylash.stores import sqlite
from pylash.stores.runs import SqlRuns
from pylash.stores.sql import Operation, Statement, Steps, operation
from pylash.testing import conformance, controller_laws, host_laws, journal_laws, run_laws
from pylash.testing.suites import Law
from tests.backends import PostgresBackend, SqliteBackend
from tests.toy_controller import (
    ChangesValuesSilently,
    ForgetsFailures,
    IgnoresTheHash,
    ReturnsTheLiveObject,
    RunsTwice,
    ToyController,
)


async def broken_laws(toy: ToyController) -> set[str]:
    """Return the names of the controller laws that toy breaks."""
    names: set[str] = set()
    replay = toy.replaying
    for suite in (
        conformance.effect_controller_durable_steps(toy),
        conformance.effect_controller_durable_steps_replay(toy, replay),
        conformance.effect_controller_concurrent_replay_deterministic(toy, replay),
    ):
        try:
            await suite
        except ExceptionGroup as group:
            for error in group.exceptions:
                names.update(note.removeprefix("law: ") for note in error.__notes__)
    return names


async def breaks(law: Law[Any], subject: Any) -> bool:
    """Return whether subject breaks law."""
    try:
        await law(subject)
    except (AssertionError, ExceptionGroup):
        return True
    return False


async def test_an_honest_controller_of_someone_else_keeps_every_law() -> None:
    assert await broken_laws(ToyController()) == set()


@pytest.mark.parametrize(
    ("liar", "law"),
    [
        (ForgetsFailures, controller_laws.a_failure_is_replayed_without_running),
        (IgnoresTheHash, controller_laws.another_input_under_the_same_key_is_a_mismatch),
        (RunsTwice, controller_laws.callers_of_one_key_share_one_execution),
        (ReturnsTheLiveObject, controller_laws.a_value_is_decoded_the_first_time_too),
        (ChangesValuesSilently, controller_laws.what_would_not_come_back_is_refused_with_its_path),
    ],
    ids=lambda value: value.__name__,
)
async def test_a_lying_controller_is_caught(
    liar: type[ToyController], law: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        controller_laws, "_PATIENCE_SECONDS", 1.0
    )  # some make callers wait for ever
    assert law.__name__ in await broken_laws(liar())


async def test_a_host_that_accepts_tampered_keys_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def believing(self: MemoryWaits, key: str) -> WaitName | None:
        last = key.rpartition(".")[0]
        body = f"v1.{last.partition('.')[2]}" if last.count(".") == 2 else last
        secret = self._signer.secrets[0]
        return self._signer.name(f"{body}.{waits._mac(secret, body)}")

    monkeypatch.setattr(MemoryWaits, "_valid", believing)
    assert await breaks(host_laws.a_tampered_key_is_worth_nothing, InlineHost())


async def test_a_host_that_lets_the_second_answer_win_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = MemoryWaits.resolve

    def fickle(self: MemoryWaits, key: str, resolution: Resolution) -> ResolveOutcome:
        name = self._valid(key)
        if name is not None and self._end(name).done():
            self._ends.clear()
            self._end(name).set_result(resolution)
            return ACCEPTED
        return honest(self, key, resolution)

    monkeypatch.setattr(MemoryWaits, "resolve", fickle)
    assert await breaks(host_laws.the_first_answer_wins, InlineHost())


async def test_a_store_that_fences_with_a_plain_exists_is_caught(
    monkeypatch: pytest.MonkeyPatch, postgres: str
) -> None:
    unlocked = journal_operations.RECORD_EFFECT.replace("{share}", "")
    monkeypatch.setattr(journal_operations, "RECORD_EFFECT", unlocked)
    async with PostgresBackend(postgres) as backend:
        store = await backend.store()
        assert await breaks(journal_laws.no_stale_record_slips_past_a_takeover, store)


async def test_a_store_that_parks_without_wake_seq_is_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @operation()
    def park(_: SqlRuns, fence: Fence, wake_seq: int, until: Instant | None = None) -> Steps[bool]:
        sql = "update pylash_runs set state = 'waiting', at = ? where id = ? and fence = ?"
        return bool((yield Statement(sql, (until, fence.run, fence.token))).changed)

    monkeypatch.setattr(SqlRuns, "park", park)
    async with SqliteBackend(tmp_path) as backend:
        assert await breaks(run_laws.a_run_that_was_woken_does_not_park, await backend.store())


class NotExistsRuns(SqlRuns):
    """Looks for other runs of the lane when it claims."""

    @operation()
    def enqueue(self, run: NewRun) -> Steps[RunView]:
        text = scope_text(run.scope)
        now = (yield Statement("select {now}")).rows[0][0]
        row = (new_run_id(now, self._entropy), text, run.kind, run.target, run.lane, 1, now, None)
        yield Statement(run_operations._ADD, row)
        return run_operations._view((yield Statement(run_operations._GET, (text,))).rows[0])

    @operation()
    def settle(self, fence: Fence, state: RunState, result: bytes | None) -> Steps[None]:
        yield Statement(run_operations._SETTLE, (state, result, "done", fence.run))


async def test_a_store_that_checks_a_lane_with_not_exists_is_caught(
    monkeypatch: pytest.MonkeyPatch, postgres: str
) -> None:
    claim = run_operations._CLAIM.replace(
        "order by at",
        """and not exists (select 1 from pylash_runs other
           where other.lane = pylash_runs.lane and other.state = 'running') order by at""",
    )
    monkeypatch.setattr(run_operations, "_CLAIM", claim)
    async with PostgresBackend(postgres) as backend:
        store = await backend.store()
        store.runs = NotExistsRuns(store.driver, SystemClock(), system_entropy)
        await store.driver.run(Operation("drop", _drop_the_net))
        assert await breaks(run_laws.racing_claims_never_share_a_lane, store)


def _drop_the_net() -> Steps[None]:
    yield Statement("drop index pylash_runs_lane")


class EagerDriver(sqlite.SqliteDriver):
    """Completes futures before it commits."""

    def _committed_here(self, batch: list[Any]) -> bool:
        return False

    def _run_together(self, jobs: list[Any]) -> int:
        taken = super()._run_together(jobs)
        self._loop.call_soon_threadsafe(self._complete, jobs[:taken])
        time.sleep(0.02)
        return taken


async def test_a_store_that_completes_futures_before_commit_is_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sqlite, "SqliteDriver", EagerDriver)
    async with SqliteBackend(tmp_path) as backend:
        store = await backend.store()
        assert await breaks(journal_laws.an_acknowledged_record_is_there_for_others, store)
