"""The execution of a process by a worker: from its first line to its end.

Rule 1. An exception of user code is the process's failure. An error of the runtime detaches the run where it occurs.
Rule 2. A detached execution writes nothing more, even if its code continues.
Rule 3. The settings of a process are its captured environment, never those of the app that executes it.
Rule 4. The reason of a cancel is in the recorded request: a timeout is one of the reasons.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from pylash.durable.commands import CancelProcess
from pylash.durable.machines.run_decisions import Write
from pylash.durable.machines.run_state import CancelState, CodeEnd, LastWrite, WriteAnswer
from pylash.durable.processes import (
    LASHLANG,
    SESSION_TURN,
    Aborted,
    EngineInput,
    ExternalInput,
    Failure,
    LashlangInput,
    Output,
    Registration,
    SessionTurnInput,
    Success,
    ToolCallInput,
    check_identity,
)
from pylash.durable.runs import SECOND, Instant
from pylash.durable.sessions import TURN_TARGET
from pylash.engine.records import message_of
from pylash.engine.runs.branches import CURRENT, ENCLOSING_SESSIONS
from pylash.engine.runs.driver import Detached
from pylash.engine.runs.endings import Endings
from pylash.engine.runs.programs import Programs
from pylash.engine.runs.replays import check_end, excuse, with_traceback
from pylash.engine.runs.run import ContinueAs, LiveRun
from pylash.engine.store_answers import STORE_AWAY_SECONDS, Unanswered
from pylash.engine.user_code import current_task, is_failure, without_own_frames
from pylash.processes.environments import rebuild
from pylash.processes.operations.context import ProcessContext
from pylash.processes.services import Services
from pylash.tasks import TaskOwner
from pylash.values.canonical import round_trip
from pylash.values.errors import (
    LashError,
    StepFailed,
    StoreError,
    ValueNotJson,
)
from pylash.values.names import storable
from pylash.values.process_errors import (
    ArgumentsInvalid,
    ProcessCodeError,
    ProcessDataInvalid,
    ProcessFailed,
    ProcessRecoveryFailed,
    ProcessTimeout,
    WorkflowFailed,
)
from pylash.values.turn_errors import ProcessSessionTurnFailed

TIMED_OUT: Final = "its timeout is over"
"""The reason of the cancel that a process gets when its timeout has passed."""

RunTurn = Callable[[LiveRun, SessionTurnInput], Awaitable[Any]]
"""Runs one turn of a child session in a process's run."""

_BUILT_IN: Final = ("external", LASHLANG, TURN_TARGET, SESSION_TURN)

_log = logging.getLogger("pylash")


class PythonPrograms:
    """The programs of an app: its processes, its tools, and programs that run elsewhere."""

    def __init__(self, services: Services, run_turn: RunTurn) -> None:
        self._services = services
        self._run_turn = run_turn

    def targets(self) -> list[str]:
        """Return the targets that this app can run."""
        python = self._services.definitions.targets
        tools = map("tool:{}".format, self._services.catalog.tools)
        plugins = map("plugin:{}".format, self._services.catalog.plugins)
        return sorted((*python, *tools, *plugins, *_BUILT_IN))

    def knows(self, target: str) -> bool:
        """Return whether this app can run a target."""
        engine, _, name = target.partition(":")
        if engine == "tool":
            return name in self._services.catalog.tools
        if engine == "plugin":
            return name in self._services.catalog.plugins
        return target in _BUILT_IN or target in self._services.definitions.targets

    async def check(self, registration: Registration) -> None:
        """Refuse a process with a blank id, or whose captured environment is missing or damaged, unless it needs none."""
        check_identity(registration)
        if not isinstance(registration.input, ExternalInput | SessionTurnInput):
            await self._services.environments.load(registration)

    async def run(self, run: LiveRun) -> Any:
        """Run the process's program; return its result as plain JSON."""
        match run.process.registration.input:
            case EngineInput(arguments=arguments) as given:
                definition = self._services.definitions.of(given)
                ctx = await self._context(run)
                await definition.prepare()
                try:
                    loaded = definition.signature.load(arguments)
                except ArgumentsInvalid as error:
                    run.give_up(ProcessDataInvalid(run.id, "arguments", error.message))
                run.root.recorded_names = definition.recorded_names
                value = await definition.function(ctx, **loaded)
                return definition.signature.result.dump_result(value, definition.signature.name)
            case ToolCallInput(tool=tool, arguments=arguments):
                return await (await self._context(run)).call_tool(tool, **arguments)
            case LashlangInput() as workflow:
                return await self._services.run_workflow(run, workflow)
            case SessionTurnInput() as turn:
                return await self._run_turn(run, turn)
            case ExternalInput(metadata=metadata):
                return {"metadata": metadata}

    async def _context(self, run: LiveRun) -> ProcessContext[Any]:
        """Return the context of a process, with the plugins that it was captured with."""
        services, registration = self._services, run.process.registration
        environment = await run.read(partial(services.environments.load, registration))
        catalog = rebuild(run.id, environment, services.catalog)
        return ProcessContext(run, services, catalog, environment)


class Cancelled:
    """A program ended because its process was cancelled; the store has the reason."""


CodeResult = Output | ContinueAs | Cancelled | None
"""How the code of a process ended; None if it was detached or its task was cancelled."""


class Execution:
    """Drives the processes of one worker, each in a task of its own."""

    def __init__(
        self, services: Services, programs: Programs, tasks: TaskOwner, endings: Endings
    ) -> None:
        self._services = services
        self._programs = programs
        self._tasks = tasks
        self._endings = endings

    async def drive(self, run: LiveRun) -> Output | None:
        """Execute the run until it ends or is detached; return the output of its process, if it has ended."""
        # Both context variables belong to this task; steps and tools that it starts inherit them.
        CURRENT.set(run.root)
        if ENCLOSING_SESSIONS.get():
            # Inherited from a tool that started the process: the tool does not wait for it.
            ENCLOSING_SESSIONS.set(frozenset())
        try:
            end = await self._outcome(run)
        finally:
            CURRENT.set(None)
        return await self._end(run, end)

    async def _outcome(self, run: LiveRun) -> CodeResult:
        """Return how the program ended; None if it was detached."""
        task, timer = current_task(), None
        try:
            run.begin(cancelled=bool(run.process.state.cancel))
            await run.read(partial(self._programs.check, run.process.registration))
            if run.deadline is not None:
                timer = self._tasks.start(self._expire(run, run.deadline))
            return Success(await self._programs.run(run))
        except Detached:
            return None
        except asyncio.CancelledError as error:
            return self._cancel_outcome(run, error)
        except ContinueAs as again:
            return again
        except BaseException as error:
            if not is_failure(error, task):
                raise
            return self._failure(run, error)
        finally:
            if timer is not None:
                timer.cancel()

    def _failure(self, run: LiveRun, error: BaseException) -> Failure | ContinueAs | None:
        """Return how a program ended that raised an error; None if that blocks the process."""
        if isinstance(error, BaseExceptionGroup):
            if error.subgroup(Detached) is not None:  # of a task group of asyncio or anyio
                return None
            continued = error.subgroup(ContinueAs)
            if continued is not None:
                return _first_exception(continued)
        if isinstance(error, ProcessRecoveryFailed | WorkflowFailed):
            excuse(run)
        was_closed = run.closed
        if self._is_code_error(run, error):
            trouble = ProcessCodeError(run.id, f"{type(error).__name__}: {message_of(error)}")
            run.close(with_traceback(trouble, error))
            return None
        if not (run.closed or run.cancelled):
            check_end(run, error)
        # A run that was closed just now is logged as blocked, with the traceback.
        if was_closed or not run.closed:
            _log_failure(run, error)
        return failure_of(error)

    def _is_code_error(self, run: LiveRun, error: BaseException) -> bool:
        """Return whether a process is blocked by an error of its own code; all errors of a group must be such."""
        given = run.process.registration.input
        if not isinstance(given, EngineInput) or run.cancelled:
            return False
        block_on = self._services.definitions.of(given).block_on
        return all(isinstance(one, block_on) for one in _errors_in(error))

    def _cancel_outcome(self, run: LiveRun, error: BaseException) -> Failure | Cancelled | None:
        """Return how a program ended that raised CancelledError: by a cancel, by its own error, or detached."""
        is_cancelled = run.is_cancelled_here()
        if not is_cancelled and run.is_stopped(run.root.task):
            return None
        if not (is_cancelled and run.cancelled):
            return Failure(
                type(error).__name__, "process_failed", "it raised CancelledError itself"
            )
        return Cancelled()

    async def _end(self, run: LiveRun, end: CodeResult) -> Output | None:
        """Make the last writes of the run; return how the process ended, if it did."""
        output, write = None, await run.end_code(_code_end(end))
        while write is not None:
            output, answer = await self._write(run, write, end)
            write = run.end_write(answer)
            if answer is not WriteAnswer.WRITTEN:
                output = None
        return output

    async def _write(
        self, run: LiveRun, write: Write, end: CodeResult
    ) -> tuple[Output | None, WriteAnswer]:
        """Make one write; return the output that it settles the process with, and the answer."""
        match write.what:
            case LastWrite.SETTLE:
                try:
                    output = await self._output(run, write, end)
                except Unanswered:
                    return None, WriteAnswer.NOT_OURS
                return output, await self._endings.settle(run, output)
            case LastWrite.CONTINUE:
                assert isinstance(end, ContinueAs)
                return None, await self._continue(run, end)
            case what:
                return None, await self._endings.leave(run, what)

    async def _output(self, run: LiveRun, write: Write, end: CodeResult) -> Output:
        """Return how a process ended. Raises Unanswered."""
        if write.as_failure:
            assert run.driver.trouble is not None
            return failure_of(run.driver.trouble)
        if not isinstance(end, Cancelled):
            assert end is not None
            assert not isinstance(end, ContinueAs)
            return end
        reason = await self._endings.cancel_reason(run)
        if run.deadline is not None and reason == TIMED_OUT:
            return failure_of(ProcessTimeout(run.id))
        return Aborted(reason)

    async def _continue(self, run: LiveRun, end: ContinueAs) -> WriteAnswer:
        """Continue the process with a fresh run."""
        definitions = self._services.definitions
        registration = definitions.with_input(run.process.registration, end.input)
        cancelled = run.machine.cancel is CancelState.DELIVERED or run.record.cancel_delivered
        return await self._endings.continue_as(run, registration, cancelled=cancelled)

    async def _expire(self, run: LiveRun, deadline: Instant) -> None:
        """Cancel a process when its timeout has passed."""
        await self._services.clock.sleep(max(0, deadline - run.memory.now()) / SECOND)
        if run.driver.tell(run.machine.deadline_passed):
            await run.outside.call(partial(self._request_timeout, run))

    async def _request_timeout(self, run: LiveRun) -> None:
        """Request the cancel of a process, as a person would: repeated until it is written or the run is gone."""
        while not run.closed:
            try:
                await self._services.control.perform(CancelProcess(run.id, TIMED_OUT))
            except StoreError:  # the store cannot be reached for now
                await asyncio.sleep(STORE_AWAY_SECONDS)
            except LashError:  # the process has ended
                return
            else:
                return


def _code_end(end: CodeResult) -> CodeEnd:
    if end is None:
        return CodeEnd.STOPPED
    return CodeEnd.CONTINUED if isinstance(end, ContinueAs) else CodeEnd.FINISHED


def _log_failure(run: LiveRun, error: BaseException) -> None:
    # Python's traceback does not show the Lashlang program, and that of a turn shows only our code.
    is_turn = isinstance(error, ProcessSessionTurnFailed)
    if isinstance(error, WorkflowFailed) or (is_turn and _is_known(error.__cause__)):
        _log.warning("%s failed: %s", run.fence.name, error)
    else:
        _log.warning("%s failed", run.fence.name, exc_info=without_own_frames(error))


def _errors_in(error: BaseException) -> list[BaseException]:
    """Return the errors in a group, however deep, or the error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [inner for one in error.exceptions for inner in _errors_in(one)]


def _is_known(cause: BaseException | None) -> bool:
    return cause is None or isinstance(cause, LashError)


def _first_exception(group: BaseExceptionGroup[ContinueAs]) -> ContinueAs:
    """Return the first of the exceptions in a group, however deep."""
    first = group.exceptions[0]
    return _first_exception(first) if isinstance(first, BaseExceptionGroup) else first


def failure_of(error: BaseException) -> Failure:
    """Return the output of a process that raised an error."""
    if isinstance(error, ProcessRecoveryFailed | WorkflowFailed):  # not of a Python exception
        return Failure("execution", error.code, error.message, error.data)
    name = error.type_name if isinstance(error, StepFailed) else type(error).__name__
    if isinstance(error, LashError):
        code, data = getattr(error, "code", error.default_code), getattr(error, "data", None)
        return Failure(storable(name), storable(str(code)), message_of(error), _raw(data))
    return Failure(storable(name), ProcessFailed.default_code, message_of(error), _raw(error.args))


def _raw(value: Any) -> Any:
    try:
        return round_trip(list(value) if isinstance(value, tuple) else value)
    except ValueNotJson:
        return None
