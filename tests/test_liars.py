"""The suites catch liars: each broken host or store is caught by a law that can be named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ProcessFailed
from pylash.durable.ports import Cancellation
from pylash.durable.runs import Fence, Instant, RunState, WorkerId, new_run_id
from pylash.durable.scopes import ExecutionScope
from pylash.durable.sessions import NewTurn, Submitted, TurnCommit, TurnRecord
from pylash.durable.waits import ACCEPTED, Resolution, ResolveOutcome, WaitIdentity
from pylash.engine.hosts.inline import InlineHost
from pylash.engine.system import SystemClock, system_entropy
from pylash.stores.drivers import sqlite
from pylash.stores.drivers.postgres import PostgresDriver
from pylash.stores.drivers.sqlite import SqliteDriver
from pylash.stores.operation import Operation, Statement, Steps, operation
from pylash.stores.ports.runs import SqlRuns
from pylash.stores.ports.sessions import SqlSessions
from pylash.stores.tables import effects
from pylash.stores.tables import runs as runs_table
from pylash.stores.tables.sessions import open_session
from pylash.testing import RecordingHost, conformance
from pylash.testing.laws import apps as app_laws
from pylash.testing.laws import controllers as controller_laws
from pylash.testing.laws import hosts as host_laws
from pylash.testing.laws import journals as journal_laws
from pylash.testing.laws import runs as run_laws
from pylash.testing.laws.suites import Law
from pylash.values.durations import Duration
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
    # Some make callers wait for ever; an honest one answers within one round of the loop.
    monkeypatch.setattr(controller_laws, "PATIENCE_SECONDS", 0.2)
    assert law.__name__ in await broken_laws(liar())


class BelievingHost(InlineHost):
    """Takes every key for the one that it handed out last."""

    async def wait_key(self, scope: ExecutionScope, wait: WaitIdentity) -> str:
        self.last = await super().wait_key(scope, wait)
        return self.last

    async def resolve(
        self, key: str, resolution: Resolution, *, by: str | None = None
    ) -> ResolveOutcome:
        return await super().resolve(self.last, resolution, by=by)


async def test_a_host_that_accepts_tampered_keys_is_caught() -> None:
    assert await breaks(host_laws.a_tampered_key_is_worth_nothing, BelievingHost())


class FickleHost(InlineHost):
    """Lets the last answer win."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, Resolution] = {}

    async def resolve(
        self, key: str, resolution: Resolution, *, by: str | None = None
    ) -> ResolveOutcome:
        self.answers[key] = resolution
        await super().resolve(key, resolution, by=by)
        return ACCEPTED

    async def wait(
        self, key: str, *, cancel: Cancellation | None = None, timeout: Duration | None = None
    ) -> Resolution:
        await super().wait(key, cancel=cancel, timeout=timeout)
        return self.answers[key]


async def test_a_host_that_answers_steps_without_running_them_is_caught() -> None:
    with pytest.raises(ProcessFailed):
        await app_laws.a_process_takes_steps_in_branches(Lash("memory://", host=RecordingHost()))


async def test_a_host_that_lets_the_second_answer_win_is_caught() -> None:
    assert await breaks(host_laws.the_first_answer_wins, FickleHost())


async def test_a_store_that_fences_with_a_plain_exists_is_caught(
    monkeypatch: pytest.MonkeyPatch, postgres: str
) -> None:
    unlocked = effects.RECORD_EFFECT.replace("{share}", "")
    monkeypatch.setattr(effects, "RECORD_EFFECT", unlocked)
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


class NotExistsSessions(SqlSessions):
    """Leaves lanes to the claim."""

    @operation()
    def submit(self, new: NewTurn, token: str, worker: WorkerId | None = None) -> Steps[Submitted]:
        session = yield from open_session(new.scope.session_id)
        now = (yield Statement("select {now}")).rows[0][0]
        run = new_run_id(now, system_entropy)
        yield from runs_table.enqueue_turn(run, new, None, 1, ready=True)
        turn = TurnRecord(new.scope, run, new.body, RunState.QUEUED, None, None, now)
        return Submitted(turn, session, now)

    @operation()
    def commit(self, fence: Fence, commit: TurnCommit) -> Steps[None]:
        yield from runs_table.settle_turn(fence.run, commit.state, b"{}", "done")


def looks_for_others_of_the_lane(steps: Callable[[], Steps[Any]]) -> Steps[Any]:
    """Claim with a look at the other runs of the lane instead of a lock."""
    claiming, answer = steps(), None
    while True:
        try:
            step = claiming.send(answer)  # type: ignore[arg-type]  # the first answer is None
        except StopIteration as end:
            return end.value
        if isinstance(step, Statement):
            looking = """and not exists (select 1 from pylash_runs other
                where other.lane = pylash_runs.lane and other.state = 'running') order by at"""
            step = Statement(step.sql.replace("order by at", looking), step.params)
        answer = yield step


async def test_a_store_that_checks_a_lane_with_not_exists_is_caught(
    monkeypatch: pytest.MonkeyPatch, postgres: str
) -> None:
    honest = PostgresDriver.run

    def run(driver: PostgresDriver, operation: Operation[Any]) -> Awaitable[Any]:
        if operation.name == "claim":
            operation.steps = partial(looks_for_others_of_the_lane, operation.steps)
        return honest(driver, operation)

    monkeypatch.setattr(PostgresDriver, "run", run)
    async with PostgresBackend(postgres) as backend:
        store = await backend.store()
        store.sessions = NotExistsSessions(store.driver, SystemClock(), system_entropy)
        await store.driver.run(Operation("drop", _drop_the_net))
        assert await breaks(run_laws.racing_claims_never_share_a_lane, store)


def _drop_the_net() -> Steps[None]:
    yield Statement("drop index pylash_runs_lane")


class EagerDriver(SqliteDriver):
    """Answers before it commits."""

    def run(self, operation: Operation[Any]) -> Awaitable[Any]:
        if operation.bulk is None:
            return super().run(operation)
        loop = asyncio.get_running_loop()
        loop.call_later(0.02, super().run, operation)
        answer = loop.create_future()
        answer.set_result(operation.bulk.value)
        return answer


async def test_a_store_that_completes_futures_before_commit_is_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sqlite, "SqliteDriver", EagerDriver)
    async with SqliteBackend(tmp_path) as backend:
        store = await backend.store()
        assert await breaks(journal_laws.an_acknowledged_record_is_there_for_others, store)
