"""Laws of the controller and the memory that a host gives for a claimed run.

Rule 1. ``RUN_MEMORY`` holds for every host. ``RUN_RECORDS`` is for hosts that record effects: their runs are executed
        again after a restart.
Rule 2. No law has two effects of a run under way at once: a host may take only one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

from pylash.durable.effects import AwaitEvent, Envelope, Outcome, RuntimeScope, envelope
from pylash.durable.machines.run_state import Recorded
from pylash.durable.ports import EffectController, EffectHost, LocalExecutor
from pylash.durable.run_memory import Progress, RunMemory
from pylash.durable.runs import SECOND, Attached, Fence, JournalEntry
from pylash.durable.waits import CustomWait, Ok
from pylash.engine.executors import await_options, sleep_executor
from pylash.engine.system import SystemClock
from pylash.tasks import TaskOwner
from pylash.testing.laws.controllers import forbidden, nap, returning, step, value_of
from pylash.testing.laws.suites import Broken, Suite, equal, holds

PATIENCE_SECONDS = 10.0
HOUR_MS = 3_600_000
DECISION = {"first": 1, "cancelled": ["g.0"], "groups": []}


class RunSubject(Protocol):
    """A host and one of its runs, which can be claimed again and again."""

    @property
    def host(self) -> EffectHost:
        """The host, open."""
        ...

    async def claim(self) -> Attached:
        """Claim the run for this host, as a worker does before the host adopts it."""
        ...

    async def write(self, fence: Fence, entries: Sequence[JournalEntry]) -> None:
        """Write entries of the run to the store, as an operation of the store does on behalf of a run."""
        ...

    async def reopen(self) -> RunSubject:
        """Close the host, and open it on the same storage as a new process would."""
        ...


class Reports:
    """The progress that a host reports of the effects of one run, in order."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str, int | None]] = []
        self.changed = asyncio.Event()
        self.is_stopped = False

    def progress_of(self, key: str) -> Progress:
        """Return where the progress of an effect is reported."""
        return _Report(self, key)

    def of(self, key: str) -> list[str]:
        """Return the names of the reports about an effect."""
        return [name for name, about, _ in self.made if about == key]

    async def rested(self, key: str) -> int | None:
        """Return until when an effect rests, once it does."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while "rest" not in self.of(key):
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise Broken(f"{key}: expected a report that it rests, got {self.of(key)}") from None
        return next(due for name, about, due in self.made if (name, about) == ("rest", key))


class _Report:
    def __init__(self, reports: Reports, key: str) -> None:
        self._reports = reports
        self._key = key

    @property
    def is_stopped(self) -> bool:
        return self._reports.is_stopped

    def rest(self, due: int | None = None) -> None:
        self._add("rest", due)

    def stir(self) -> None:
        self._add("stir")

    def recording(self) -> None:
        self._add("recording")

    def _add(self, name: str, due: int | None = None) -> None:
        self._reports.made.append((name, self._key, due))
        self._reports.changed.set()


class Execution(NamedTuple):
    """One execution of the run under test."""

    controller: EffectController
    memory: RunMemory
    fence: Fence
    reports: Reports

    @staticmethod
    async def of(subject: RunSubject) -> Execution:
        """Claim the run and have the host adopt it."""
        attached = await subject.claim()
        controller, memory = subject.host.adopt(attached, SystemClock())
        reports = Reports()
        memory.observe(reports.progress_of)
        return Execution(controller, memory, attached.fence, reports)

    @staticmethod
    async def after_restart(subject: RunSubject) -> Execution:
        """Execute the run in what would be another process."""
        return await Execution.of(await subject.reopen())


def key_of(asked: Envelope) -> str:
    """Return the key of an effect."""
    return str(asked.invocation.replay_key)


async def wait_of(subject: RunSubject, execution: Execution) -> tuple[Envelope, str]:
    """Return an effect that waits, and the key that resolves its wait."""
    key = await subject.host.wait_key(execution.fence.scope, CustomWait("approval"))
    asked = AwaitEvent(key, title="approval")
    scope = RuntimeScope()
    return envelope(asked, scope=scope, effect_id="approval", replay_key="approval"), key


@asynccontextmanager
async def under_way(
    execution: Execution, asked: Envelope, local: LocalExecutor
) -> AsyncIterator[asyncio.Task[Outcome]]:
    """Execute an effect within the block, and break it off there if it has not ended."""
    tasks = TaskOwner()
    task = tasks.start(_executed(execution, asked, local))
    try:
        await execution.reports.rested(key_of(asked))
        yield task
    finally:
        execution.reports.is_stopped = True
        await tasks.close()


async def _executed(execution: Execution, asked: Envelope, local: LocalExecutor) -> Outcome:
    return await execution.controller.execute(asked, local)


async def is_cancelled(work: Awaitable[object], because: str) -> None:
    """Raise Broken unless work ends with a cancel, although nobody cancelled this task."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            value = await work
    except TimeoutError:
        raise Broken(f"{because}: expected a cancel, and it goes on") from None
    except asyncio.CancelledError:
        return
    raise Broken(f"{because}: expected a cancel, got {value!r}")


def has_record(memory: RunMemory, asked: Envelope, because: str) -> None:
    """Raise Broken unless the memory has an outcome or a cancel for an effect that is asked for now."""
    holds(memory.record_of(key_of(asked)) is not Recorded.NOTHING, because)


# --- every host ---


async def the_controller_of_a_run_can_do_what_its_host_can(subject: RunSubject) -> None:
    controller = (await Execution.of(subject)).controller
    for flag in ("durability", "supports_durable_effects", "supports_concurrent_effects"):
        equal(getattr(controller, flag), getattr(subject.host, flag), flag)


async def nothing_is_recorded_for_a_new_run(subject: RunSubject) -> None:
    memory, asked = (await Execution.of(subject)).memory, step("look")
    key = key_of(asked)
    equal((memory.begun(key), memory.recorded(key)), (False, False), "begun and recorded")
    equal(memory.record_of(key), Recorded.NOTHING, "its record")
    equal(memory.decision("gather"), None, "a decision")
    equal(memory.is_replaying, False, "whether it replays")


async def nothing_is_under_way_in_a_new_run(subject: RunSubject) -> None:
    memory = (await Execution.of(subject)).memory
    memory.wake()
    equal(memory.open_waits(), [], "open waits")
    equal(memory.is_stopping, False, "whether it stops")


async def a_claimed_run_executes_effects(subject: RunSubject) -> None:
    execution = await Execution.of(subject)
    value = await value_of(execution.controller, step("look"), returning({"n": 1}))
    equal(value, {"n": 1}, "the value of a step")
    equal(execution.memory.is_replaying, False, "whether it replays after that")


async def what_cannot_be_known_ahead_is_answered_with_no(subject: RunSubject) -> None:
    controller, memory, *_ = await Execution.of(subject)
    asked = step("look")
    await controller.execute(asked, returning(1))
    answers = (memory.begun(key_of(asked)), memory.recorded(key_of(asked)))
    equal(answers, (memory.looks_ahead, memory.looks_ahead), "whether it is known to have ended")
    other = key_of(step("other"))
    equal((memory.begun(other), memory.recorded(other)), (False, False), "another effect")


async def an_effect_that_has_not_begun_can_be_withdrawn(subject: RunSubject) -> None:
    memory = (await Execution.of(subject)).memory
    equal(await memory.withdraw(step("look")), True, "the cancel")


async def time_does_not_go_back(subject: RunSubject) -> None:
    memory = (await Execution.of(subject)).memory
    first, second = memory.now(), memory.now()
    holds(first <= second, "a second look at the time")
    later = (await Execution.after_restart(subject)).memory.now()
    holds(second <= later, "the time in the next execution")


RUN_MEMORY = Suite[RunSubject](
    "run_memory",
    (
        the_controller_of_a_run_can_do_what_its_host_can,
        nothing_is_recorded_for_a_new_run,
        nothing_is_under_way_in_a_new_run,
        a_claimed_run_executes_effects,
        what_cannot_be_known_ahead_is_answered_with_no,
        an_effect_that_has_not_begun_can_be_withdrawn,
        time_does_not_go_back,
    ),
)


# --- records ---


async def an_outcome_stands_in_the_next_execution(subject: RunSubject) -> None:
    execution, asked = await Execution.of(subject), step("look")
    await execution.controller.execute(asked, returning([1]))
    has_record(execution.memory, asked, "the record in the same execution")
    execution = await Execution.after_restart(subject)
    has_record(execution.memory, asked, "the record in the next execution")
    equal(await value_of(execution.controller, asked, forbidden()), [1], "the outcome")


async def a_run_replays_until_its_code_has_come_to_every_record(subject: RunSubject) -> None:
    execution, asked = await Execution.of(subject), [step("one"), step("two")]
    for one in asked:
        await execution.controller.execute(one, returning(1))
    equal(execution.memory.is_replaying, False, "the first execution")
    execution = await Execution.after_restart(subject)
    for one in asked:
        equal(execution.memory.is_replaying, True, f"before {one.invocation.effect_id}")
        await execution.controller.execute(one, forbidden())
    equal(execution.memory.is_replaying, False, "after the last of them")


async def a_sleep_has_begun_when_it_rests_and_ended_when_it_is_due(subject: RunSubject) -> None:
    execution, long, short = await Execution.of(subject), nap("long", HOUR_MS), nap("short", 1)
    now = execution.memory.now()
    await execution.controller.execute(short, sleep_executor())
    async with under_way(execution, long, sleep_executor()):
        due = await execution.reports.rested(key_of(long))
    hour = HOUR_MS * 1000
    holds(due is not None and 0 <= due - now - hour < hour, f"it rests until {due}, from {now} on")
    memory = (await Execution.after_restart(subject)).memory
    has_record(memory, short, "the one that is over")
    equal(memory.record_of(key_of(long)), Recorded.NOTHING, "the outcome of the other")
    if memory.looks_ahead:
        known = [(memory.begun(key_of(one)), memory.recorded(key_of(one))) for one in (short, long)]
        equal(known, [(True, True), (True, False)], "begun and recorded")


async def a_note_stays_as_it_is_once_an_effect_is_recorded_after_it(subject: RunSubject) -> None:
    execution, numbers = await Execution.of(subject), iter(range(9))
    noted = [execution.memory.note("now", lambda: next(numbers)) for _ in range(2)]
    equal(noted, [0, 0], "asked twice")
    await execution.controller.execute(step("look"), returning(1))
    memory = (await Execution.after_restart(subject)).memory
    equal(memory.note("now", lambda: next(numbers)), 0, "in the next execution")
    equal(memory.note("other", lambda: next(numbers)), 1, "another one")


async def a_note_stands_before_a_decision_that_may_depend_on_it(subject: RunSubject) -> None:
    memory = (await Execution.of(subject)).memory
    memory.note("now", lambda: 7)
    await memory.deliver("gather", DECISION, [])
    memory = (await Execution.after_restart(subject)).memory
    equal(memory.note("now", lambda: 8), 7, "in the next execution")


async def a_decision_stands(subject: RunSubject) -> None:
    memory = (await Execution.of(subject)).memory
    equal(await memory.deliver("gather", DECISION, []), set(), "cancelled effects")
    equal(memory.decision("gather"), DECISION, "in the same execution")
    memory = (await Execution.after_restart(subject)).memory
    equal(memory.decision("gather"), DECISION, "in the next execution")
    equal(memory.decision("gather#2"), None, "another one")


async def entries_that_the_store_wrote_are_a_decision(subject: RunSubject) -> None:
    execution = await Execution.of(subject)
    entries = execution.memory.entries_for("i0.queue", "queue", b"[1]")
    await subject.write(execution.fence, entries)
    equal(
        (await Execution.after_restart(subject)).memory.decision("i0.queue"),
        [1],
        "in the next execution",
    )


async def a_delivered_cancel_is_the_outcome_of_an_effect_under_way(subject: RunSubject) -> None:
    for make in (_sleep_under_way, _wait_under_way):
        execution = await Execution.of(subject)
        asked, local = await make(subject, execution)
        async with under_way(execution, asked, local):
            cancelled = await execution.memory.deliver(
                f"!cancel {key_of(asked)}", DECISION, [asked]
            )
            equal(cancelled, {key_of(asked)}, "what was cancelled")
        for name in ("the same", "the next"):
            has_record(execution.memory, asked, f"the cancel in {name} execution")
            await is_cancelled(execution.controller.execute(asked, local), f"{name} execution")
            subject = await subject.reopen()
            execution = await Execution.of(subject)


async def _sleep_under_way(_: RunSubject, __: Execution) -> tuple[Envelope, LocalExecutor]:
    return nap("long", HOUR_MS), sleep_executor()


async def _wait_under_way(
    subject: RunSubject, execution: Execution
) -> tuple[Envelope, LocalExecutor]:
    return (await wait_of(subject, execution))[0], await_options()


async def an_effect_with_an_outcome_is_not_cancelled(subject: RunSubject) -> None:
    execution, asked = await Execution.of(subject), step("look")
    await execution.controller.execute(asked, returning(1))
    for name in ("the same", "the next"):
        controller, memory, *_ = execution
        equal(await memory.withdraw(asked), False, f"a withdrawal in {name} execution")
        cancelled = await memory.deliver(f"!cancel {name}", DECISION, [asked])
        equal(cancelled, set(), f"a delivery in {name} execution")
        equal(await value_of(controller, asked, forbidden()), 1, f"its outcome in {name} execution")
        subject = await subject.reopen()
        execution = await Execution.of(subject)


async def an_outcome_that_is_written_with_a_message_is_not_cancelled(subject: RunSubject) -> None:
    execution, asked, local = await Execution.of(subject), step("look"), returning(1)

    async def hold(_: Fence, entry: JournalEntry, __: Sequence[JournalEntry]) -> JournalEntry:
        return entry  # a turn writes it later, with its message

    local.record = hold
    await execution.controller.execute(asked, local)
    equal(await execution.memory.withdraw(asked), False, "a withdrawal")
    equal(await execution.memory.deliver("!cancel", DECISION, [asked]), set(), "a delivery")


async def a_withdrawn_effect_is_never_performed(subject: RunSubject) -> None:
    execution, asked = await Execution.of(subject), step("look")
    equal(await execution.memory.withdraw(asked), True, "the cancel")
    for name in ("the same", "the next"):
        has_record(execution.memory, asked, f"the cancel in {name} execution")
        work = execution.controller.execute(asked, forbidden())
        await is_cancelled(work, f"{name} execution")
        subject = await subject.reopen()
        execution = await Execution.of(subject)


async def a_wait_is_open_while_an_effect_rests_in_it(subject: RunSubject) -> None:
    execution = await Execution.of(subject)
    asked, key = await wait_of(subject, execution)
    async with under_way(execution, asked, await_options()):
        equal(len(execution.memory.open_waits()), 1, "open waits")
    equal(execution.memory.open_waits(), [], "open waits after it was broken off")
    subject = await subject.reopen()
    execution = await Execution.of(subject)
    equal(execution.memory.open_waits(), [], "open waits before the code comes to it")
    async with under_way(execution, asked, await_options()) as waiting:
        equal(len(execution.memory.open_waits()), 1, "open waits in the next execution")
        await subject.host.resolve(key, Ok("yes"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await waiting
    equal(execution.memory.open_waits(), [], "open waits after the answer")
    has_record(execution.memory, asked, "the answer")


async def an_effect_reports_until_when_it_rests(subject: RunSubject) -> None:
    execution = await Execution.of(subject)
    asked, _ = await wait_of(subject, execution)
    now = execution.memory.now()
    async with under_way(execution, asked, await_options(timeout="1h")):
        due = await execution.reports.rested(key_of(asked))
    holds(due is not None and due >= now + 3_599 * SECOND, f"it rests until {due}, from {now} on")


async def an_effect_reports_that_its_outcome_is_being_recorded(subject: RunSubject) -> None:
    execution, asked = await Execution.of(subject), step("look")
    await execution.controller.execute(asked, returning(1))
    equal(execution.reports.of(key_of(asked)), ["recording"], "its reports")


RUN_RECORDS = Suite[RunSubject](
    "run_records",
    (
        an_outcome_stands_in_the_next_execution,
        a_run_replays_until_its_code_has_come_to_every_record,
        a_sleep_has_begun_when_it_rests_and_ended_when_it_is_due,
        a_note_stays_as_it_is_once_an_effect_is_recorded_after_it,
        a_note_stands_before_a_decision_that_may_depend_on_it,
        a_decision_stands,
        entries_that_the_store_wrote_are_a_decision,
        a_delivered_cancel_is_the_outcome_of_an_effect_under_way,
        an_effect_with_an_outcome_is_not_cancelled,
        an_outcome_that_is_written_with_a_message_is_not_cancelled,
        a_withdrawn_effect_is_never_performed,
        a_wait_is_open_while_an_effect_rests_in_it,
        an_effect_reports_until_when_it_rests,
        an_effect_reports_that_its_outcome_is_being_recorded,
    ),
)
