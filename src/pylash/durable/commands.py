"""Commands to the process registry, and the effect ids and replay keys derived from them."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Literal

import msgspec

from pylash.durable.processes import Registration, SessionRef, SessionTurnInput
from pylash.durable.scopes import TurnScope
from pylash.durable.sessions import NewTurn, Policy
from pylash.durable.triggers import Occurrence
from pylash.values.canonical import write, write_payload

By = SessionRef | msgspec.UnsetType
"""The session for which a command uses a process, and which must have access to it. Unset for the app itself.

It is not part of the recorded input of an effect.
"""

_getter = cache(attrgetter)


class _Command(msgspec.Struct, frozen=True, tag_field="do"):
    """A request to the process registry. ``subject`` has the fields that are a part of its effect's id."""

    subject: ClassVar[tuple[str, ...]]

    @property
    def effect_id(self) -> str:
        """The effect's id, derived from the kind of the command and its subject."""
        tag = str(self.__struct_config__.tag)
        return ":".join((tag, *[_getter(field)(self) for field in self.subject]))


class StartProcess(_Command, frozen=True, tag="start"):
    """Start a process; ``grant`` gets its handle. That is not part of the recorded input of an effect.

    ``recorded``: in a fork, the registration that the process it was forked from starts at this place. It is hashed instead, so that
    the fork finds the start if it took it over. Otherwise it starts a child of its own.
    """

    subject = ("registration.program",)
    registration: Registration
    delay: int = 0
    grant: SessionRef | None = None
    recorded: Registration | msgspec.UnsetType = msgspec.UNSET


class ForkProcess(_Command, frozen=True, tag="fork"):
    """Start a process with effects that another one recorded: those under ``keys``."""

    subject = ("process_id",)
    process_id: str
    registration: Registration
    keys: tuple[str, ...]


class EmitTrigger(_Command, frozen=True, tag="emit"):
    """Record an occurrence, and start the processes that are subscribed to it."""

    subject = ("occurrence.type",)
    occurrence: Occurrence


class ListProcesses(_Command, frozen=True, tag="list"):
    """List the processes whose handles a session holds."""

    subject = ("holder.session_id",)
    holder: SessionRef
    mode: Literal["live", "all"] = "live"


class TransferHandles(_Command, frozen=True, tag="transfer"):
    """Give one session's handles to another."""

    subject = ("source.session_id", "target.session_id")
    source: SessionRef
    target: SessionRef
    process_ids: tuple[str, ...]


class DeleteSessionProcesses(_Command, frozen=True, tag="delete_session"):
    """Remove the handles and subscriptions of a session."""

    subject = ("session_id",)
    session_id: str


class GrantHandle(_Command, frozen=True, tag="grant"):
    """Give a session the handle of a process."""

    subject = ("holder.session_id", "process_id")
    holder: SessionRef
    process_id: str
    label: str = ""


class RevokeHandle(_Command, frozen=True, tag="revoke"):
    """Take the handle of a process from a session; the answer is False if the session had none."""

    subject = ("holder.session_id", "process_id")
    holder: SessionRef
    process_id: str


class AwaitProcess(_Command, frozen=True, tag="await"):
    """Wait for a process to end."""

    subject = ("process_id",)
    process_id: str
    by: By = msgspec.UNSET


class CancelProcess(_Command, frozen=True, tag="cancel"):
    """Request the cancellation of a process; ``force`` settles it without running its code."""

    subject = ("process_id",)
    process_id: str
    reason: str | None = None
    force: bool = False
    by: By = msgspec.UNSET


class CancelUnreferenced(_Command, frozen=True, tag="cancel_unreferenced"):
    """Release every handle of a session but those to ``keep``; cancel the processes that have no other holder."""

    subject = ("holder.session_id",)
    holder: SessionRef
    keep: tuple[str, ...] = ()


class SignalProcess(_Command, frozen=True, tag="signal"):
    """Send a signal to a process. The same ``signal_id`` again is the same signal."""

    subject = ("process_id", "name")
    process_id: str
    name: str
    signal_id: str
    payload: Any = None
    by: By = msgspec.UNSET


class AppendEvent(_Command, frozen=True, tag="append"):
    """Append an event to the log of a process. A blank id in an effect of a run means its own process.

    ``number`` is the number of the event among those that the run appends, from 0. It is not hashed: older
    versions did not record it, and named the event after ``key``.
    """

    subject = ("type",)
    process_id: str
    type: str
    payload: Any = None
    key: str | None = None
    number: str | None = None


class WaitSignal(_Command, frozen=True, tag="wait_signal"):
    """Take the oldest signal of a name that no earlier wait took."""

    subject = ("name",)
    name: str


class SubmitTurn(_Command, frozen=True, tag="submit_turn"):
    """Submit a turn of a session; ``digest`` (in hex) identifies its input.

    ``defaults`` are options for what neither the command nor the session sets. They are not hashed: older versions did
    not record them.
    """

    subject = ("session_id", "turn_id")
    session_id: str
    turn_id: str
    digest: str
    ask: Any
    options: Any = None
    defaults: Any = None

    def new_turn(self) -> NewTurn:
        """Return the turn as the store takes it."""
        return NewTurn(
            scope=TurnScope(self.session_id, self.turn_id),
            digest=bytes.fromhex(self.digest),
            body=write_payload(self.ask, 2),
            options=self.options,
            defaults=self.defaults,
        )


class EnqueueMessage(_Command, frozen=True, tag="enqueue"):
    """Queue a message for a session, which is created with ``options`` if it does not exist."""

    subject = ("session_id",)
    session_id: str
    key: str
    body: Any
    policy: Policy
    options: Any = None


class CancelTurn(_Command, frozen=True, tag="cancel_turn"):
    """Request the cancellation of the turn that holds the lane of a session."""

    subject = ("session_id",)
    session_id: str
    reason: str


class AwaitTurn(_Command, frozen=True, tag="await_turn"):
    """Wait for a turn to end."""

    subject = ("session_id", "turn_id")
    session_id: str
    turn_id: str


ProcessCommand = (
    StartProcess
    | ForkProcess
    | EmitTrigger
    | ListProcesses
    | TransferHandles
    | DeleteSessionProcesses
    | GrantHandle
    | RevokeHandle
    | AwaitProcess
    | CancelProcess
    | CancelUnreferenced
    | SignalProcess
    | AppendEvent
    | WaitSignal
    | SubmitTurn
    | EnqueueMessage
    | CancelTurn
    | AwaitTurn
)
"""Every command of the process registry."""


Awaited = WaitSignal | AwaitProcess | AwaitTurn
"""The commands that wait for something that may not have happened yet."""

_COMMANDS: msgspec.json.Decoder[ProcessCommand] = msgspec.json.Decoder(ProcessCommand)


def process_command(command: Any) -> ProcessCommand:
    """Return the command in an envelope."""
    # Not msgspec.convert: it builds the union of types again in each call, which takes ten times as long.
    return _COMMANDS.decode(write(command))


def command_of(process_id: str, command: ProcessCommand) -> ProcessCommand:
    """Return the command of a run with the run's id filled in where the command has an empty one.

    The id is that of its process, or the text of a turn's scope. Subagents that a turn starts are attached to it: they end with
    it. The id is not part of the recorded command, so that a fork can replay it.
    """
    match command:
        case AppendEvent(process_id="", key=key, number=number):
            whole = f"process:{process_id}:event:{key if number is None else number}"
            return msgspec.structs.replace(command, process_id=process_id, key=whole)
        case StartProcess(
            registration=Registration(input=SessionTurnInput(), parent=None) as child
        ):
            child = msgspec.structs.replace(child, parent=process_id, attached=True)
            return msgspec.structs.replace(command, registration=child)
        case StartProcess(registration=Registration(parent="") as child):
            child = msgspec.structs.replace(child, parent=process_id)
            return msgspec.structs.replace(command, registration=child)
        case _:
            return command


def process_key(parent: str, effect_id: str) -> str:
    """Return the replay key of a process command that belongs to the effect under a parent key."""
    return f"{parent}:process:{effect_id}"
