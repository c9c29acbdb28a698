"""Checkpoints of a turn: the messages that join it before the model is called.

Rule 1. Queued messages are taken only while the model's next reply is not recorded: a replay gets the same
        messages as the first execution. If the memory can neither tell that in advance nor repeats the wake-ups of the
        run, an empty queue is recorded, too.
Rule 2. The checkpoints of plugins are called once, as one effect.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pylash.durable.effects import (
    CheckpointOutcome,
    DurableStep,
    DurableStepOutcome,
    Outcome,
    expect,
)
from pylash.durable.sessions import Queued, Writing
from pylash.engine.executors import step_executor
from pylash.engine.records import is_outcome, message_of
from pylash.engine.runs.branches import outside
from pylash.engine.user_code import FailsAs
from pylash.models.messages import llm_key
from pylash.sessions.writer import queued_message
from pylash.tools.plugins import TurnView, has_checkpoint
from pylash.turn.machine import CheckpointTaken
from pylash.turn.messages import MESSAGES, Text, UserMessage
from pylash.values.canonical import decode, encode, write
from pylash.values.errors import PluginError

if TYPE_CHECKING:
    from pylash.sessions.driver import TurnDriver


class Checkpoints:
    """Takes the checkpoints of one turn."""

    def __init__(self, turn: TurnDriver) -> None:
        self._turn = turn
        self._places: dict[str, list[int]] = {}
        """The places of queued messages that this execution took, by effect key: the memory has only those of earlier executions."""

    async def take(self, iteration: int) -> tuple[CheckpointTaken, Outcome]:
        """Return what joins the turn after an iteration, and the outcome of the checkpoint."""
        turn, memory, key = self._turn, self._turn.run.memory, f"i{iteration}.queue"
        found = self.taken_messages(key)
        has_reply = memory.recorded(llm_key(iteration + 1, 1))
        if found is None:
            found = []
            # It is not known whether messages are queued for a process.
            woken = turn.run.turn is None or turn.run.turn.stirred
            # The flag is taken before the read: a message that is queued during the read sets it again.
            is_told = memory.looks_ahead or memory.replays_wakes
            may_have_some = turn.run.machine.take_stirred() or woken or not is_told
            if may_have_some and not has_reply:
                found = await self._take_queued(key, begins=iteration == 0)
        added, sync = await self._ask_plugins(iteration, has_reply=has_reply)
        found += added
        if turn.summaries is not None:
            found += await turn.summaries.make(iteration, found)
        return CheckpointTaken(tuple(found), sync), CheckpointOutcome({"messages": len(found)})

    # --- queued messages ---

    def taken_messages(self, key: str) -> list[UserMessage] | None:
        """Return the messages that were taken from the queue under a key; None if that has not happened."""
        places = self._places.get(key, self._turn.run.memory.decision(key))
        if places is None:
            return None
        messages = [self._turn.writer.read(place) for place in places]
        return [message for message in messages if isinstance(message, UserMessage)]

    async def _take_queued(self, key: str, *, begins: bool) -> list[UserMessage]:
        """Move messages from the queue to the turn, and record it in the same transaction."""
        turn = self._turn
        taken = await turn.run.outside.record(key, partial(self._move_queued, key, begins=begins))
        nodes = [(place, body.encode()) for place, body in decode(taken)]
        turn.writer.mark_written(nodes)
        if nodes:
            self._places[key] = [place for place, _ in nodes]
        messages = [MESSAGES.decode(body) for _, body in nodes]
        return [message for message in messages if isinstance(message, UserMessage)]

    async def _move_queued(self, key: str, *, begins: bool) -> bytes:
        """Move messages in the store; return them with their places. A repetition returns those of the first time."""
        turn, memory = self._turn, self._turn.run.memory
        nodes: tuple[tuple[int, bytes], ...] = ()
        known = None
        if not memory.looks_ahead:
            known = await turn.services.store.journal.entry(turn.run.record.run, key)
        if known is not None and known.outcome is not None:
            stored = await turn.services.store.sessions.uncommitted(turn.session)
            nodes = tuple((place, stored[place]) for place in decode(known.outcome))
            return encode([(place, body.decode()) for place, body in nodes])

        def make(queued: list[Queued]) -> Writing:
            # Called again if the transaction is repeated, maybe with other messages.
            nonlocal nodes
            messages = [queued_message(one) for one in queued]
            # A turn that the queue started has its id in the first message.
            if messages and not turn.machine.messages:
                messages[0] = replace(messages[0], turn_id=turn.turn_id)
            first = turn.writer.base + len(turn.machine.messages)
            nodes = tuple((first + n, write(message)) for n, message in enumerate(messages))
            if not nodes and memory.looks_ahead:
                return Writing()
            data = write([place for place, _ in nodes])
            return Writing(entries=memory.entries_for(key, "queue", data), nodes=nodes)

        sessions = turn.services.store.sessions
        await sessions.take(turn.run.fence, turn.session, make, begins=begins)
        return encode([(place, body.decode()) for place, body in nodes])

    # --- plugins ---

    async def _ask_plugins(
        self, iteration: int, *, has_reply: bool
    ) -> tuple[list[UserMessage], bool]:
        """Return the messages of plugins, and whether one of them changed the environment.

        ``has_reply``: the next reply is recorded, so there is nothing new.
        """
        turn, key = self._turn, f"i{iteration}.plugins"
        listeners = turn.environment.listeners
        if listeners is None:
            listeners = tuple(
                name for name, plugin in turn.plugins.items() if has_checkpoint(plugin)
            )
        if (has_reply or not listeners) and not turn.run.memory.recorded(key):
            return [], False

        async def ask_plugins(_: None) -> Any:
            plugins = [turn.plugins[name] for name in listeners if name in turn.plugins]
            changes: list[bool] = []
            messages = tuple(turn.machine.messages)
            view = TurnView(
                turn.session.id, turn.turn_id, iteration, messages, lambda: changes.append(True)
            )
            with outside(), FailsAs(_plugin_failure):
                texts = [text for plugin in plugins for text in await plugin.checkpoint(view)]
            return {"messages": texts, "sync": True} if changes else texts

        command, local = DurableStep("plugins"), step_executor(ask_plugins)
        outcome = await turn.run.effect(turn.run.root, key, "plugins", command, local)
        texts, sync = expect(outcome, DurableStepOutcome).value, False
        if isinstance(texts, dict):
            texts, sync = texts["messages"], texts["sync"]
        return [UserMessage((Text(text),), source="plugin") for text in texts], sync


def _plugin_failure(error: BaseException) -> BaseException:
    """Return the recorded failure for a plugin's exception: a LashError unchanged, any other as ``plugin``."""
    if is_outcome(error) or isinstance(error, PluginError):
        return error
    return PluginError(f"{type(error).__name__}: {message_of(error)}")
