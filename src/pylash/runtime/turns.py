"""A turn, while it is executed here: the machine asks, and this does it.

Rule 1. Everything the machine asks for crosses the effect boundary under a key of its own, named by
        iteration and call. Batches and checkpoints run again on replay; only their parts are recorded.
Rule 2. The prompt, the tools and the model are captured once; a turn goes on with them to its end.
Rule 3. What was queued for the session is taken at checkpoints, as long as the model's next answer is
        not recorded: a replay hears exactly what the first run heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from pylash.durable import (
    Checkpoint,
    CheckpointOutcome,
    DurableStep,
    DurableStepOutcome,
    EffectKind,
    Envelope,
    JournalEntry,
    Outcome,
    Queued,
    RuntimeScope,
    SessionRecord,
    Sleep,
    SyncExecutionEnvironment,
    SyncExecutionEnvironmentOutcome,
    ToolBatch,
    ToolBatchOutcome,
    TurnRecord,
    WaitIdentity,
    Writing,
    envelope,
    expect,
)
from pylash.runtime.branches import Branch, BranchGroup, outside
from pylash.runtime.completions import Completions
from pylash.runtime.endings import Unanswered, answer_of
from pylash.runtime.executors import Executor, sleep_executor
from pylash.runtime.feeds import completed, streamed_reply
from pylash.runtime.histories import attachment_refs
from pylash.runtime.model_calls import ModelCalls
from pylash.runtime.plugins import SessionPlugin, TurnView, listens
from pylash.runtime.relays import relayed_reply
from pylash.runtime.runs import Detached, LiveRun
from pylash.runtime.summaries import Summaries
from pylash.runtime.tool_calls import ToolCalls
from pylash.runtime.tools import Tool
from pylash.runtime.turn_messages import (
    llm_key,
    queued_message,
)
from pylash.runtime.turn_writer import TurnWriter
from pylash.turn import (
    ENVIRONMENTS,
    AssistantMessage,
    CallModel,
    CheckpointTaken,
    EnvironmentSynced,
    Message,
    Pause,
    Paused,
    RunTools,
    SessionOptions,
    SyncEnvironment,
    TakeCheckpoint,
    Text,
    ToolCall,
    ToolMessage,
    ToolsReturned,
    TurnAsk,
    TurnEnvironment,
    TurnEvent,
    TurnMachine,
    UserMessage,
    remaining,
    spent,
)
from pylash.values import (
    DurabilityError,
    LashError,
    StoreError,
    StoreRefused,
    TurnEnvMissing,
    TurnToolMissing,
    write,
)

if TYPE_CHECKING:
    from pylash.runtime.programs import Services

T = TypeVar("T")

CANCELLED: Final = "cancelled"

_LLM: Final = frozenset({EffectKind.LLM_CALL})
_SYNC: Final = frozenset({EffectKind.SYNC_EXECUTION_ENVIRONMENT})
_BATCH: Final = frozenset({EffectKind.TOOL_BATCH})
_CHECKPOINT: Final = frozenset({EffectKind.CHECKPOINT})
_STEP: Final = frozenset({EffectKind.DURABLE_STEP})


class TurnDriver:
    """Plays one turn in a run: the turn's own, or that of a session-turn process."""

    def __init__(
        self,
        run: LiveRun,
        session: SessionRecord,
        ask: TurnAsk,
        services: Services,
        writer: TurnWriter,
    ) -> None:
        self.run = run
        self.session = session
        self.ask = ask
        self.services = services
        self.writer = writer
        self.feed = services.feeds.open(run.id)
        self.turn_id = run.scope.id
        self.environment = TurnEnvironment()
        self.branch: Branch = run.root
        self.history: Sequence[Message] = ()
        self._partial: tuple[ToolMessage, ...] = ()
        self._places: dict[str, list[int]] = {}
        self._built: Sequence[SessionPlugin] = ()
        self._models = ModelCalls(self)
        self.summaries = Summaries(self)
        self.tools: dict[str, Tool[..., Any]] = {}
        opening = [UserMessage(ask.parts, turn_id=self.turn_id)] if ask.parts else []
        self.machine = TurnMachine(
            messages=list(opening), output_schema=ask.output_schema, budget=ask.options.budget
        )

    def _assemble(self) -> None:
        """Build the plugins and the tools of the session; those that are gone are left out."""
        catalog = self.services.catalog
        self._built = catalog.built(self.session.id, self.ask.options)
        self.tools = catalog.offered(self._known_options(), self._built)

    def _known_options(self) -> SessionOptions:
        """Return the options without tools that are gone: a turn in flight may not need them."""
        options, catalog = self.ask.options, self.services.catalog
        if options.tools is None:
            return options
        known = {*catalog.tools, *catalog.by_id()}
        return msgspec.structs.replace(
            options, tools=tuple(name for name in options.tools if name in known)
        )

    async def play(self) -> TurnMachine:
        """Play the turn to its end, and return the machine.

        Cancellation: a cancel of the run ends the turn as cancelled.
        """
        self.feed.say(TurnEvent("turn_started", self.turn_id))
        try:
            self._assemble()
            self.history = await self.services.histories.messages(
                self.session, self.ask.options.history, lazily=True
            )
            while self.machine.poll_effect() is not None:
                await self._step()
        except asyncio.CancelledError:
            if not self.run.is_cancelled_here():
                raise
            self._answer_partially()
            self._hear_what_was_taken()
            said = await self._streamed_reply()
            self.machine.cancel(await self._why_cancelled(), said)
        except (DurabilityError, StoreError) as error:
            self.run.give_up(error)
        except LashError as error:
            self._answer_partially()
            self.machine.fail(error.message, error.code)
        self.note()
        self._tell_results()
        return self.machine

    def _tell_results(self) -> None:
        """Say what became of calls that were broken off."""
        for message in self.machine.messages:
            if isinstance(message, ToolMessage) and self.feed.has_said(
                "tool_started", message.call_id
            ):
                self.feed.say(completed(message))

    def _hear_what_was_taken(self) -> None:
        """Keep words that were taken from the queue, and that the turn has not come to."""
        match self.machine.poll_effect():
            case SyncEnvironment() | TakeCheckpoint():
                heard = self._recorded_words(f"i{self.machine.iteration}.queue")
                self.machine.messages.extend(heard or ())

    async def _streamed_reply(self) -> str:
        """Return what the model had said of the answer that a cancel cut off.

        What this execution streamed counts first. One that streamed nothing may finish the cancel of a
        worker that died: then it is what that worker relayed to listeners elsewhere.
        """
        match self.machine.poll_effect():
            case CallModel(iteration=iteration, attempt=attempt):
                relayed = attempt == 1
            case Pause(iteration=iteration):
                relayed = False  # the text of a failed attempt does not count
            case SyncEnvironment() | TakeCheckpoint():
                # The dead worker was further than what it recorded: it asked the model.
                iteration, relayed = self.machine.iteration + 1, True
            case _:
                return ""
        written = self.writer.find(len(self.machine.messages))
        if isinstance(written, AssistantMessage) and written.interrupted:
            return written.text  # an earlier execution of this process committed it
        key = llm_key(iteration, 1)
        text = streamed_reply(self.feed.events, key)
        if text is None and relayed and isinstance(self.run.record, TurnRecord):
            ask = partial(relayed_reply, self.services.store, self.run.record.run, key)
            text = await self._last_answer(ask)
        return text or ""

    async def _why_cancelled(self) -> str:
        """Return what whoever cancelled the turn said."""
        found = None
        if isinstance(self.run.record, TurnRecord):
            ask = partial(self.services.store.sessions.turn, self.run.record.scope)
            found = await self._last_answer(ask)
        said = None if found is None else found.result
        return (
            str(said["cancelled"]) if isinstance(said, dict) and "cancelled" in said else CANCELLED
        )

    async def _last_answer(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Return what the store says about a turn that was cancelled, once it answers; None if it refuses to."""
        try:
            return await answer_of(self.run, ask, lambda: not self.run.closed)
        except StoreRefused:  # a word is not worth a turn
            return None
        except Unanswered:
            raise Detached from None

    async def _step(self) -> None:
        match self.machine.poll_effect():
            case SyncEnvironment():
                await self._sync()
                answer: Any = EnvironmentSynced()
            case TakeCheckpoint(iteration=iteration):
                answer = CheckpointTaken(await self._checkpoint(iteration))
            case CallModel(iteration=iteration, attempt=attempt):
                answer = await self._models.call(iteration, attempt)
            case RunTools(iteration=iteration, calls=calls):
                answer = ToolsReturned(await self._run_tools(iteration, calls))
            case Pause(iteration=iteration, attempt=attempt, milliseconds=pause):
                key = f"{llm_key(iteration, attempt)}.pause"
                if self.is_new(key):
                    self.feed.reset_reply(llm_key(iteration, 1), attempt + 1, self._models.trouble)
                command = Sleep(pause, retry=True)
                await self.run.effect(self.branch, key, "model again", command, sleep_executor())
                answer = Paused()
            case None:
                return
        self.machine.handle_response(answer)

    def is_new(self, key: str) -> bool:
        """Return whether an effect begins now: who listens has heard of the others."""
        return self.run.journal is None or not self.run.journal.begun(key)

    def note(self) -> None:
        """Have what the machine said by itself written with whatever is written next."""
        self.writer.note(enumerate(self.machine.messages))

    def _answer_partially(self) -> None:
        """Tell the machine what is known of a batch that was broken off."""
        if self._partial and isinstance(self.machine.poll_effect(), RunTools):
            self.machine.handle_response(ToolsReturned(self._partial))

    # --- the environment ---

    async def _sync(self) -> None:
        async def perform(_: Envelope) -> Outcome:
            self.services.catalog.check(self.ask.options)
            for tool in self.tools.values():
                await tool.prepare()  # what describes it may have to be loaded first
            made = self.services.catalog.environment(self.ask.options, self._built)
            self.writer.capture(made.ref, made.body)
            self.environment = made
            return SyncExecutionEnvironmentOutcome({"env": made.ref})

        local = Executor("turn", _SYNC, perform, record=self.writer.hold)
        command = SyncExecutionEnvironment()
        outcome = await self.run.effect(self.branch, "env", "environment", command, local)
        ref = expect(outcome, SyncExecutionEnvironmentOutcome).result["env"]
        if self.environment.ref != ref:
            body = await self.services.store.envs.get(ref)
            if body is None:
                raise TurnEnvMissing(self.turn_id)
            self.environment = ENVIRONMENTS.decode(body)

    # --- checkpoints ---

    async def _checkpoint(self, iteration: int) -> tuple[UserMessage, ...]:
        found: tuple[UserMessage, ...] = ()

        async def perform(_: Envelope) -> Outcome:
            nonlocal found
            words = await self._words(iteration)
            found = (*words, *await self._asides(iteration))
            found = (*found, *await self.summaries.made(iteration, found))
            return CheckpointOutcome({"messages": len(found)})

        await self._composite(
            f"i{iteration}.checkpoint", Checkpoint({"iteration": iteration}), _CHECKPOINT, perform
        )
        return found

    async def _words(self, iteration: int) -> list[UserMessage]:
        """Return what people and processes said to the session meanwhile."""
        key, journal = f"i{iteration}.queue", self.run.journal
        recorded = self._recorded_words(key)
        if recorded is not None:
            return recorded
        later = journal is not None and journal.recorded(llm_key(iteration + 1, 1))
        if later or not (self.run.stirred or (self.run.turn is not None and self.run.turn.stirred)):
            return []
        self.run.stirred = False
        return await self._taken(key, begins=iteration == 0)

    def _recorded_words(self, key: str) -> list[UserMessage] | None:
        """Return what was taken from the queue before, if anything."""
        places = None if self.run.journal is None else self.run.journal.decision(key)
        places = self._places.get(key, places)
        if places is None:
            return None
        messages = [self.writer.read(place) for place in places]
        return [message for message in messages if isinstance(message, UserMessage)]

    async def _taken(self, key: str, *, begins: bool) -> list[UserMessage]:
        messages: list[UserMessage] = []
        nodes: tuple[tuple[int, bytes], ...] = ()

        def make(words: list[Queued]) -> Writing:
            nonlocal messages, nodes
            messages = [queued_message(one) for one in words]
            first = self.writer.base + len(self.machine.messages)
            nodes = tuple((first + n, write(message)) for n, message in enumerate(messages))
            data = write([place for place, _ in nodes])
            now = self.services.now()
            entry = JournalEntry(key, "queue", b"", None, data, len(data), started=now, ended=now)
            return Writing(entries=() if self.run.journal is None else (entry,), nodes=nodes)

        sessions = self.services.store.sessions
        await sessions.take(self.run.fence, self.session, make, begins=begins)
        self.writer.wrote(nodes)
        if nodes:
            self._places[key] = [place for place, _ in nodes]
        return messages

    async def _asides(self, iteration: int) -> list[UserMessage]:
        """Return what plugins say, asked once; which there are may have changed since."""
        plugins = [plugin for plugin in self._built if listens(plugin)]
        key, journal = f"i{iteration}.plugins", self.run.journal
        if journal is None or not journal.recorded(key):
            later = journal is not None and journal.recorded(llm_key(iteration + 1, 1))
            if later or not plugins:
                return []
        view = TurnView(self.session.id, self.turn_id, iteration, tuple(self.machine.messages))

        async def perform(_: Envelope) -> Outcome:
            with outside():
                said = [text for plugin in plugins for text in await plugin.checkpoint(view)]
            return DurableStepOutcome(said)

        local = Executor("step", _STEP, perform)
        outcome = await self.run.effect(self.branch, key, "plugins", DurableStep("plugins"), local)
        said = expect(outcome, DurableStepOutcome).value
        return [UserMessage((Text(text),), source="plugin") for text in said]

    async def _composite(self, key: str, command: Any, kinds: Any, perform: Any) -> Outcome:
        """Cross the boundary with what runs again on replay."""

        async def guarded(asked: Envelope) -> Outcome:
            with self.run.guarded():
                outcome: Outcome = await perform(asked)
            return outcome

        scope = RuntimeScope.of(self.run.scope, iteration=self.machine.iteration)
        asked = envelope(command, scope=scope, effect_id=key, replay_key=key, label=key)
        return await self.run.controller.execute(asked, Executor("turn", kinds, guarded))

    # --- tools ---

    async def _run_tools(
        self, iteration: int, calls: tuple[ToolCall, ...]
    ) -> tuple[ToolMessage, ...]:
        results: tuple[ToolMessage, ...] = ()

        async def perform(_: Envelope) -> Outcome:
            nonlocal results
            results = await self._batch(iteration, calls)
            return ToolBatchOutcome([message.call_id for message in results])

        batch = {"calls": [call.id for call in calls]}
        await self._composite(f"i{iteration}.tools", ToolBatch(batch), _BATCH, perform)
        self._partial = ()
        return results

    async def _batch(self, iteration: int, calls: tuple[ToolCall, ...]) -> tuple[ToolMessage, ...]:
        """Run calls at once, those whose tool is serial one after another; in the model's order."""
        first, runner = len(self.machine.messages), ToolCalls(self)
        await self._require_tools(calls, first)
        done: dict[str, ToolMessage] = {}

        async def several(numbers: Sequence[int]) -> None:
            for number in numbers:
                call = calls[number]
                done[call.id] = await runner.run(call, first + number)

        serial = [number for number, call in enumerate(calls) if self._is_serial(call)]
        alone = [[number] for number in range(len(calls)) if number not in serial]
        group = BranchGroup(self.run, self.branch, (f"i{iteration}", 1))
        for numbers in (*alone, serial):
            if numbers:
                group.start(several(numbers))
        try:
            await group.all()
        finally:
            behind = [calls[n].id for n in serial if calls[n].id not in done][1:]
            self._partial = runner.known(calls, done, behind)
        return self._partial

    async def _require_tools(self, calls: Sequence[ToolCall], first: int) -> None:
        """Refuse to begin a batch of which this worker lacks a tool: one with it can run all of it.

        The model may only be told that there is no such tool if it was not offered one. A turn that was asked
        to end calls no tool any more, so it needs none.
        """
        for number, call in enumerate(calls):
            if self.run.cancelled:
                return
            if self.lacks(call) and not await self.recorded_result(call, first + number):
                raise TurnToolMissing(self.turn_id, call.tool)

    def lacks(self, call: ToolCall) -> bool:
        """Return whether a call is of a tool that the model was offered and this worker does not have."""
        offered = any(manifest.name == call.tool for manifest in self.environment.tools)
        return offered and call.tool not in self.tools

    def _is_serial(self, call: ToolCall) -> bool:
        tool = self.tools.get(call.tool)
        return tool is not None and tool.scheduling == "serial"

    # --- what calls need ---

    def completions(self) -> Completions:
        """Return what a tool asks models with, under what is left of the budget."""
        budget = self.machine.budget
        left = None if budget is None else remaining(budget, spent(self.machine.messages))
        return Completions(self.services, self._default_model, self.turn_id, left)

    async def _default_model(self) -> str | None:
        return self.environment.model

    def wait_key(self, wait: WaitIdentity) -> str:
        """Return the signed key of a wait of this turn."""
        return self.services.turn_wait_key(self.run, wait, self.session.generation)

    async def recorded_result(self, call: ToolCall, index: int) -> ToolMessage | None:
        """Return the result of a call that has one, whatever became of its tool since."""
        message, journal = self.writer.find(index), self.run.journal
        if journal is None or not isinstance(message, ToolMessage) or message.call_id != call.id:
            return None
        if journal.recorded(llm_key(self.machine.iteration + 1, 1)):
            return message  # and everything that follows from it has happened
        attempt = 1
        while journal.recorded(key := f"{call.id}.attempt.{attempt}"):
            record = journal.decision(key)
            if record is None:
                return None  # too long to be at hand: replay it
            await self.emit_triggers(key, (record.get("outcome") or {}).get("triggers") or ())
            attempt += 1
        return message

    async def own_attachments(self, refs: Collection[str]) -> set[str]:
        """Return those of some references that a message of this session has, also in this turn."""
        found = {ref for message in self.machine.messages for ref in attachment_refs(message)}
        if not found.issuperset(refs):
            history = await self.services.histories.read(self.session)
            found |= {ref for message in history for ref in attachment_refs(message)}
        return found.intersection(refs)

    async def emit_triggers(self, key: str, triggers: Sequence[Any]) -> None:
        """Emit what a tool emitted; the same again changes nothing."""
        for number, one in enumerate(triggers):
            await self.services.emit_trigger(one, f"{self.run.id}:{key}:{number}")
