"""The driver of a turn: it performs the effects that the turn machine requests.

Rule 1. Every request of the machine crosses the effect boundary under its own key, named by
        iteration and call. Batches and checkpoints run again on replay; only their parts are recorded.
Rule 2. The prompt, the tools and the model are captured once; a turn uses them to its end. Only a tool or a plugin
        of the turn can have the prompt and the tools captured again, before the next model call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, assert_never

import msgspec

from pylash.durable.effects import (
    Checkpoint,
    Command,
    Envelope,
    Outcome,
    RuntimeScope,
    Sleep,
    SyncExecutionEnvironment,
    SyncExecutionEnvironmentOutcome,
    ToolBatch,
    envelope,
    expect,
)
from pylash.durable.runs import RunState
from pylash.durable.sessions import SessionRecord, TurnCommit, TurnRecord
from pylash.engine.executors import sleep_executor, turn_executor
from pylash.engine.runs.run import LiveRun
from pylash.models.messages import llm_key
from pylash.sessions.checkpoints import Checkpoints
from pylash.sessions.feeds import completion_event, relayed_reply, streamed_reply
from pylash.sessions.model_calls import ModelCalls
from pylash.sessions.summaries import Summaries
from pylash.sessions.tool_calls import ToolCalls
from pylash.sessions.writer import TurnWriter
from pylash.tools.plugins import SessionPlugin
from pylash.turn.asks import ENVIRONMENTS, TurnAsk, TurnEnvironment
from pylash.turn.budgets import spent
from pylash.turn.events import TurnEvent
from pylash.turn.histories import Tail
from pylash.turn.machine import (
    Answer,
    Ask,
    CallModel,
    EnvironmentSynced,
    Pause,
    Paused,
    RunTools,
    SyncEnvironment,
    TakeCheckpoint,
    ToolsReturned,
    TurnMachine,
)
from pylash.turn.messages import AssistantMessage, ToolCall, ToolMessage, Usage, UserMessage
from pylash.values.canonical import decode, write
from pylash.values.errors import DurabilityError, LashError, StoreError, StoreRefused
from pylash.values.turn_errors import TurnEnvMissing, TurnToolMissing

if TYPE_CHECKING:
    from pylash.sessions.services import SessionServices

T = TypeVar("T")

CANCELLED: Final = "cancelled"


class TurnDriver:
    """Runs one turn inside a run: the turn's own, or that of a session-turn process.

    ``nodes`` are the nodes that earlier executions of the turn wrote, by place.
    """

    def __init__(
        self,
        run: LiveRun,
        session: SessionRecord,
        ask: TurnAsk,
        services: SessionServices,
        nodes: Mapping[int, bytes],
    ) -> None:
        self.run = run
        self.session = session
        self.ask = ask
        self.services = services
        self.turn_id = run.scope.id
        # One for the turn: tool calls that end together are recorded in one write.
        self.writer = TurnWriter(services.store, session, nodes)
        # Opened before the first effect, so that listeners in this process get every event.
        self.feed = services.feeds.open(run.id)
        # The history and the plugins are set once, before the first effect; the environment by each sync.
        self.environment = TurnEnvironment()
        self.history = Tail()
        self.plugins: Mapping[str, SessionPlugin] = {}
        self.machine = TurnMachine(
            messages=[UserMessage(ask.parts, turn_id=self.turn_id)] if ask.parts else [],
            output_schema=ask.output_schema,
            budget=ask.options.budget,
        )
        limit = ask.options.history
        self.summaries = None if limit is None else Summaries(self, limit)
        self._checkpoints = Checkpoints(self)
        self._model_calls = ModelCalls(self)
        self._tool_calls = ToolCalls(self)

    async def run_turn(self) -> None:
        """Run the turn to its end.

        Cancellation: a cancel of the run ends the turn as cancelled.
        """
        machine, catalog, options = self.machine, self.services.catalog, self.ask.options
        self.feed.add(TurnEvent("turn_started", self.turn_id))
        try:
            captured = catalog.plugin_options(options)
            self.plugins = catalog.build_plugins(self.session.id, captured)
            self._check_settings()
            self._offer_tools()
            tail = partial(self.services.histories.tail, self.session, options.history)
            self.history = await self.run.read(tail)
            while (asked := machine.poll_effect()) is not None:
                # Between two effects of the turn: parallel tool calls all read it, so it must not change during a batch.
                self.run.runtime_scope = self._runtime_scope()
                machine.handle_response(await self._answer(asked))
        except asyncio.CancelledError:
            # A cancel of the run is delivered at an effect; any other cancels the task, because the worker stops it.
            if not self.run.is_cancelled_here():
                raise
            await self._cancel()
        # Before LashError, because these are subclasses: trouble of the run is not a failure of the turn.
        except (DurabilityError, StoreError) as error:
            self.run.give_up(error)
        except LashError as error:
            # The results first: they tell the machine which calls it has to close. The events last, as they are made
            # from the messages that close them.
            self._answer_partially()
            machine.fail(error.message, error.code)
            self._complete_events()

    async def _answer(self, asked: Ask) -> Answer:
        """Perform an effect that the machine requests."""
        match asked:
            case SyncEnvironment(iteration=changed):
                await self._sync(changed)
                return EnvironmentSynced()
            case TakeCheckpoint(iteration=iteration):
                command: Command = Checkpoint({"iteration": iteration})
                work = partial(self._checkpoints.take, iteration)
                return await self._composite(f"i{iteration}.checkpoint", command, work)
            case CallModel(iteration=iteration, attempt=attempt):
                return await self._model_calls.call(iteration, attempt)
            case RunTools(iteration=iteration, calls=calls):
                return ToolsReturned(await self._run_tools(iteration, calls))
            case Pause(iteration=iteration, attempt=attempt, milliseconds=pause):
                key = f"{llm_key(iteration, attempt)}.pause"
                if self.is_new(key):
                    error = self._model_calls.last_error
                    self.feed.reset_reply(llm_key(iteration, 1), attempt + 1, error)
                sleep = Sleep(pause, retry=True)
                await self.run.effect(self.run.root, key, "model again", sleep, sleep_executor())
                return Paused()
            case _:
                assert_never(asked)

    def _runtime_scope(self) -> RuntimeScope:
        """Return where in its session the next effect is requested."""
        turn_index = self.session.revision + 1
        return RuntimeScope(self.session.id, self.turn_id, turn_index, self.machine.iteration)

    def is_new(self, key: str) -> bool:
        """Return whether an effect starts now; events of the others were emitted by an earlier execution."""
        return not self.run.memory.begun(key)

    @property
    def retry_call(self) -> str:
        """The call that continues the turn after it was blocked."""
        return "session.retry()" if self._is_turn else f"app.retry({self.run.id!r})"

    def missing_here(self, missing: str) -> TurnToolMissing:
        """Return the error for a turn that needs something that this worker lacks."""
        cancel = (
            "session.cancel()" if self._is_turn else f"app.process_handle({self.run.id!r}).cancel()"
        )
        return TurnToolMissing(self.turn_id, missing, self.retry_call, cancel)

    @property
    def _is_turn(self) -> bool:
        """Whether the run is the turn's own, and not that of a process."""
        return isinstance(self.run.record, TurnRecord)

    def _check_settings(self) -> None:
        """Leave the turn of a process to a worker that has its agent, its plugins and its tools.

        The app that started the process had them. A cancelled turn needs none.
        """
        if self._is_turn or self.run.cancelled:
            return
        # Read before the effect, as its error would be recorded as the end of the turn.
        captured = not self.is_new("env")
        missing = self.services.catalog.missing(self.ask.options, captured=captured)
        if missing is not None:
            raise self.missing_here(f"needs {missing}")

    def _offer_tools(self) -> None:
        """Ask for the tools that this worker has for the turn."""
        self._tool_calls.tools = self.services.catalog.offered_tools(
            self.ask.options, self.plugins.values()
        )

    async def _sync(self, changed: int | None) -> None:
        """Capture the environment, or load the captured one; ``changed`` is the iteration in which it changed."""
        # Filled only if the effect is performed here. A replay, or another row under the key, leads to the stored one.
        made: dict[str, TurnEnvironment] = {}
        if changed is not None:
            self._offer_tools()

        async def perform(_: Envelope) -> Outcome:
            catalog, tools = self.services.catalog, self._tool_calls.tools
            if changed is None:
                catalog.check(self.ask.options)
            for tool in tools.values():
                await tool.prepare()  # its description may have to be loaded first
            environment = msgspec.structs.replace(
                catalog.environment(self.ask.options, self.plugins, tools),
                process_env=self.services.env,
            )
            if changed is not None:  # a turn keeps its model
                environment = msgspec.structs.replace(environment, model=self.environment.model)
            ref, body = environment.stored()
            self.writer.envs[ref] = body
            made[ref] = environment
            return SyncExecutionEnvironmentOutcome({"env": ref})

        # Held back: nothing outside happens before the next effect, which is written together with this one.
        local = turn_executor(perform, record=self.writer.hold, messages=self.writer)
        command = SyncExecutionEnvironment(update_machine_config=changed is not None)
        key = "env" if changed is None else f"i{changed}.env"
        outcome = await self.run.effect(self.run.root, key, "environment", command, local)
        ref = expect(outcome, SyncExecutionEnvironmentOutcome).result["env"]
        if ref in made:
            self.environment = made[ref]
            return
        body = await self.run.read(partial(self.services.store.envs.get, ref))
        if body is None:
            raise TurnEnvMissing(self.turn_id)
        self.environment = ENVIRONMENTS.decode(body)

    async def _run_tools(
        self, iteration: int, calls: tuple[ToolCall, ...]
    ) -> tuple[ToolMessage, ...]:
        """Run the calls of one reply as one composite effect."""
        ids = [call.id for call in calls]
        work = partial(self._tool_calls.run_batch, iteration, calls)
        command = ToolBatch({"calls": ids})
        results = await self._composite(f"i{iteration}.tools", command, work)
        # Nothing is awaited from here until the machine has all results: a cancel in between would lose them.
        self._tool_calls.partial_results = ()
        return results

    async def _composite(
        self, key: str, command: Command, work: Callable[[], Awaitable[tuple[T, Outcome]]]
    ) -> T:
        """Return the result of an effect that consists of others and runs again on replay."""
        # The outcome is plain JSON, so the result takes this way.
        results: list[T] = []

        async def perform(_: Envelope) -> Outcome:
            with self.run.guarded():
                result, outcome = await work()
            results.append(result)
            return outcome

        scope = self.run.runtime_scope
        asked = envelope(command, scope=scope, effect_id=key, replay_key=key, label=key)
        await self.run.enclose(asked, turn_executor(perform))
        return results[-1]

    # --- the end ---

    def commit(self, *, settle: bool = True) -> TurnCommit:
        """Return the commit of the turn, which has ended."""
        end, session, messages = self.machine.end, self.session, self.machine.messages
        assert end is not None
        writing, is_fresh = self.writer.finish(messages)
        head = session.head + len(messages)
        before = msgspec.convert(session.usage or {}, Usage)
        calls = session.calls + self.machine.iteration
        result = {**decode(write(end)), "nodes": [session.head + 1, head], "calls": calls}
        last = messages[-1] if messages else None
        if end.text and isinstance(last, AssistantMessage) and last.text == end.text:
            del result["text"]
            result["text_at"] = head  # it is the last message, and stored once
        return TurnCommit(
            session=session,
            writing=writing,
            head=head,
            calls=calls,
            usage=msgspec.to_builtins(before + spent(messages).usage),
            state=RunState(end.status),
            result=result,
            settle=settle,
            fresh=is_fresh,
        )

    def _answer_partially(self) -> None:
        """Give the machine the known results of a batch that was interrupted."""
        known = self._tool_calls.partial_results
        if known and isinstance(self.machine.poll_effect(), RunTools):
            self.machine.handle_response(ToolsReturned(known))

    def _complete_events(self) -> None:
        """Add the events of calls that were interrupted."""
        for message in self.machine.messages:
            if isinstance(message, ToolMessage) and self.feed.has_event(
                "tool_started", message.call_id
            ):
                self.feed.add(completion_event(message))

    # --- cancellation ---

    async def _cancel(self) -> None:
        """End the turn as cancelled; it keeps everything that was recorded or streamed."""
        # No effect begins from here on: the cancel was delivered, and what follows must be the same in every execution.
        machine = self.machine
        self._answer_partially()
        if machine.poll_effect() in (SyncEnvironment(), TakeCheckpoint(machine.iteration)):
            # Messages that were taken from the queue, and that the machine has not received yet.
            taken = self._checkpoints.taken_messages(f"i{machine.iteration}.queue")
            machine.messages.extend(taken or ())
        # Before ``cancel``: which reply was cut off follows from what the machine is waiting for.
        streamed = await self._streamed_reply()
        machine.cancel(await self._cancel_reason(), streamed)
        self._complete_events()

    async def _streamed_reply(self) -> str:
        """Return the streamed part of the reply that a cancel cut off.

        The text that this execution streamed takes precedence. An execution that streamed nothing may finish the
        cancel of a worker that died: then it is the text that the dead worker relayed to listeners elsewhere.
        """
        match self.machine.poll_effect():
            case CallModel(iteration=iteration, attempt=attempt):
                relayed = attempt == 1
            case Pause(iteration=iteration):
                relayed = False  # the text of a failed attempt does not count
            case SyncEnvironment() | TakeCheckpoint():
                # The dead worker had called the model, although no record shows it.
                iteration, relayed = self.machine.iteration + 1, True
            case _:
                return ""
        written = self.writer.read(self.writer.base + len(self.machine.messages))
        if isinstance(written, AssistantMessage) and written.interrupted:
            return written.text  # an earlier execution of this process committed it
        key = llm_key(iteration, 1)
        text = streamed_reply(self.feed.events, key)
        if text is None and relayed and isinstance(self.run.record, TurnRecord):
            read = partial(relayed_reply, self.services.store, self.run.record.run, key)
            text = await self._read_for_end(read)
        return text or ""

    async def _cancel_reason(self) -> str:
        """Return the reason that the turn was cancelled with."""
        found = None
        if isinstance(self.run.record, TurnRecord):
            read = partial(self.services.store.sessions.turn, self.run.record.scope)
            found = await self._read_for_end(read)
        reason = None if found is None else found.cancel_reason
        return CANCELLED if reason is None else reason

    async def _read_for_end(self, read: Callable[[], Awaitable[T]]) -> T | None:
        """Read from the store for the end of a cancelled turn, retried while it is away; None if it refuses."""
        try:
            return await self.run.read_at_end(read)
        except StoreRefused:  # the turn must end even without this text
            return None
