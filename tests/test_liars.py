"""The suites catch liars: each broken host or store is caught by a law that can be named."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ProcessBlocked
from pylash.durable.effects import DurableStep, DurableStepOutcome, Envelope, Outcome
from pylash.durable.machines.run_state import Recorded
from pylash.durable.ports import (
    Cancellation,
    Clock,
    EffectController,
    EffectHost,
    LocalExecutor,
)
from pylash.durable.run_memory import Progress, ProgressOf, RunMemory
from pylash.durable.runs import Attached, Fence, Instant, RunState, WorkerId, new_run_id
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
from pylash.testing import SerialHost, conformance
from pylash.testing.laws import apps as app_laws
from pylash.testing.laws import controllers as controller_laws
from pylash.testing.laws import hosts as host_laws
from pylash.testing.laws import run_memories as memory_laws
from pylash.testing.laws.engines import cancels as cancel_laws
from pylash.testing.laws.engines import processes as process_laws
from pylash.testing.laws.engines import subjects
from pylash.testing.laws.engines import turns as turn_laws
from pylash.testing.laws.stores import journals as journal_laws
from pylash.testing.laws.stores import runs as run_laws
from pylash.testing.laws.suites import Law
from pylash.values.durations import Duration
from tests.backends import JournalRun, PostgresBackend, SqliteBackend
from tests.test_engines import StoreEngine
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
    except (AssertionError, ExceptionGroup, TimeoutError):
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


class EchoingController(EffectController):
    """Answers steps with their input."""

    def __init__(self, controller: EffectController) -> None:
        self._controller = controller

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        if isinstance(envelope.command, DurableStep):
            return DurableStepOutcome(envelope.command.input)
        return await self._controller.execute(envelope, local)


class EchoingHost(InlineHost):
    """Gives runs a controller that echoes."""

    def adopt(self, attached: Attached, clock: Clock) -> tuple[Any, Any]:
        controller, memory = super().adopt(attached, clock)
        return EchoingController(controller), memory


@pytest.mark.slow  # its law waits for a process that is blocked
async def test_a_host_that_answers_steps_without_running_them_is_caught() -> None:
    with pytest.raises(ProcessBlocked, match="a result of step"):
        await app_laws.a_process_takes_steps_in_branches(Lash("memory://", host=EchoingHost()))


async def test_a_host_that_lets_the_second_answer_win_is_caught() -> None:
    assert await breaks(host_laws.the_first_answer_wins, FickleHost())


# --- memories of runs ---


class LyingMemory:
    """The memory of a journal, except for what a subclass overrides."""

    def __init__(self, memory: RunMemory) -> None:
        self.memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)


class SeesNothingAhead(LyingMemory):
    """Declares look-ahead, and does not provide it."""

    def recorded(self, key: str) -> bool:
        return False


class TakesEverythingForBegun(LyingMemory):
    """Reports every effect as started."""

    def begun(self, key: str) -> bool:
        return True


class ForgetsOutcomes(LyingMemory):
    """Takes every effect for a new one."""

    def record_of(self, key: str) -> Recorded:
        return Recorded.NOTHING


class NeverReplays(LyingMemory):
    """Is never replaying."""

    is_replaying = False


class MakesNotesAgain(LyingMemory):
    """Gives every execution its own notes."""

    def note(self, key: str, make: Callable[[], Any]) -> Any:
        return make()


class WritesNotesTooLate(LyingMemory):
    """Decides without writing the notes before."""

    async def deliver(self, key: str, decision: Any, effects: Sequence[Envelope]) -> set[str]:
        self.memory._notes.clear()  # type: ignore[attr-defined]
        return await self.memory.deliver(key, decision, effects)


class KeepsDecisionsToItself(LyingMemory):
    """Decides in memory only."""

    def __init__(self, memory: RunMemory) -> None:
        super().__init__(memory)
        self.decided: dict[str, Any] = {}

    def decision(self, key: str) -> Any:
        return self.decided.get(key)

    async def deliver(self, key: str, decision: Any, effects: Sequence[Envelope]) -> set[str]:
        self.decided[key] = decision
        return set()


class CancelsWithoutARecord(LyingMemory):
    """Says that effects are cancelled, and writes nothing."""

    async def deliver(self, key: str, decision: Any, effects: Sequence[Envelope]) -> set[str]:
        return {str(effect.invocation.replay_key) for effect in effects}


class CancelsOutcomes(LyingMemory):
    """Says that every effect was cancelled in time."""

    async def withdraw(self, envelope: Envelope) -> bool:
        await self.memory.withdraw(envelope)
        return True


class HidesWaits(LyingMemory):
    """Has no open waits."""

    def open_waits(self) -> list[str]:
        return []


class RestsWithoutEnd(LyingMemory):
    """Reports that effects rest, and not until when."""

    def observe(self, progress_of: ProgressOf) -> None:
        self.memory.observe(lambda key: Endless(progress_of(key)))


class Endless:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self._progress, name)

    def rest(self, due: int | None = None) -> None:
        self._progress.rest(None)


class LetsTimeGoBack(LyingMemory):
    """Has a clock that runs backwards."""

    def now(self) -> Instant:
        return Instant(-self.memory.now())


class LyingHost(SerialHost):
    """A host over a journal that gives a memory which lies."""

    supports_concurrent_effects = True
    liar: type[LyingMemory]

    def __init__(self, inner: EffectHost) -> None:
        super().__init__(inner)
        self.inner = inner

    def adopt(self, attached: Attached, clock: Clock) -> tuple[EffectController, RunMemory]:
        controller, memory = self.inner.adopt(attached, clock)
        return controller, self.liar(memory)


@pytest.mark.parametrize(
    ("liar", "law"),
    [
        (SeesNothingAhead, memory_laws.what_cannot_be_known_ahead_is_answered_with_no),
        (TakesEverythingForBegun, memory_laws.nothing_is_recorded_for_a_new_run),
        (ForgetsOutcomes, memory_laws.an_outcome_stands_in_the_next_execution),
        (NeverReplays, memory_laws.a_run_replays_until_its_code_has_come_to_every_record),
        (MakesNotesAgain, memory_laws.a_note_stays_as_it_is_once_an_effect_is_recorded_after_it),
        (WritesNotesTooLate, memory_laws.a_note_stands_before_a_decision_that_may_depend_on_it),
        (KeepsDecisionsToItself, memory_laws.a_decision_stands),
        (KeepsDecisionsToItself, memory_laws.entries_that_the_store_wrote_are_a_decision),
        (
            CancelsWithoutARecord,
            memory_laws.a_delivered_cancel_is_the_outcome_of_an_effect_under_way,
        ),
        (CancelsOutcomes, memory_laws.an_effect_with_an_outcome_is_not_cancelled),
        (CancelsOutcomes, memory_laws.an_outcome_that_is_written_with_a_message_is_not_cancelled),
        (HidesWaits, memory_laws.a_wait_is_open_while_an_effect_rests_in_it),
        (RestsWithoutEnd, memory_laws.an_effect_reports_until_when_it_rests),
        (RestsWithoutEnd, memory_laws.a_sleep_has_begun_when_it_rests_and_ended_when_it_is_due),
        (LetsTimeGoBack, memory_laws.time_does_not_go_back),
    ],
    ids=lambda value: value.__name__,
)
async def test_a_memory_that_lies_is_caught(
    liar: type[LyingMemory], law: Law[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_laws, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(LyingHost, "liar", liar, raising=False)
    async with SqliteBackend(tmp_path) as backend:
        assert await breaks(law, JournalRun(await backend.host(), LyingHost))


class ForgetfulHost(SerialHost):
    """Gives a claimed run the controller of a caller outside, and no memory."""

    adopt = EffectHost.adopt


async def test_a_durable_host_that_adopts_without_a_memory_is_caught(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path) as backend:
        subject = JournalRun(await backend.host(), ForgetfulHost)
        assert await breaks(memory_laws.an_outcome_stands_in_the_next_execution, subject)


class BraggingHost(SerialHost):
    """Executes one effect at a time, and its controllers declare otherwise."""

    def adopt(self, attached: Attached, clock: Clock) -> tuple[EffectController, RunMemory]:
        return self._inner.adopt(attached, clock)


async def test_a_host_whose_controllers_promise_more_is_caught(tmp_path: Path) -> None:
    law = memory_laws.the_controller_of_a_run_can_do_what_its_host_can
    async with SqliteBackend(tmp_path) as backend:
        assert await breaks(law, JournalRun(await backend.host(), BraggingHost))


# --- stores ---


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


class ForgettingEngine(StoreEngine):
    """Loses data whenever it is restarted."""

    def __init__(self, backend: SqliteBackend, loss: str) -> None:
        super().__init__(backend.url)
        self._path = backend.path
        self._loss = loss

    async def restart(self, app: Lash) -> None:
        await super().restart(app)
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(self._loss)


EFFECTS, MESSAGES = "delete from pylash_effects", "delete from pylash_nodes"
SIGNALS = "update pylash_process_events set taken = 1 where type like 'signal.%'"
WAITS = "delete from pylash_waits"


@pytest.mark.stumbles
@pytest.mark.parametrize(
    ("loss", "law"),
    [
        (EFFECTS, process_laws.a_step_is_executed_once),
        (EFFECTS, process_laws.a_child_is_started_once),
        (EFFECTS, cancel_laws.what_follows_a_cancel_is_recorded),
        (SIGNALS, process_laws.signals_are_received_in_order_and_none_is_lost),
        (WAITS, process_laws.a_wait_is_answered_from_outside),
        (MESSAGES, turn_laws.a_turn_is_answered_once),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_an_engine_that_forgets_is_caught(
    loss: str, law: Law[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "LIMIT", "2s")
    monkeypatch.setattr(subjects, "PATIENCE_SECONDS", 2.0)
    async with SqliteBackend(tmp_path) as backend:
        assert await breaks(law, ForgettingEngine(backend, loss))
