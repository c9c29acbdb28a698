"""Commands to the process registry: what crosses the effect boundary, and its derived names."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pylash.durable.processes import Registration, SessionRef, SessionTurnInput


class _Command(msgspec.Struct, frozen=True, tag_field="do"):
    """What the process registry is asked."""

    @property
    def effect_id(self) -> str:
        """The effect's id, derived from what is asked and about whom."""
        return ":".join((str(self.__struct_config__.tag), *_about(self)))


class StartProcess(_Command, frozen=True, tag="start"):
    """Start a process; a grant of its handle goes to ``grant``."""

    registration: Registration
    delay: int = 0
    grant: SessionRef | None = None


class ListProcesses(_Command, frozen=True, tag="list"):
    """List the processes whose handles a session holds."""

    holder: SessionRef
    mode: Literal["live", "all"] = "live"


class TransferHandles(_Command, frozen=True, tag="transfer"):
    """Give one session's handles to another."""

    source: SessionRef
    target: SessionRef
    process_ids: tuple[str, ...]


class DeleteSessionProcesses(_Command, frozen=True, tag="delete_session"):
    """Remove what a session holds of processes."""

    session_id: str


class AwaitProcess(_Command, frozen=True, tag="await"):
    """Wait for a process to end."""

    process_id: str


class CancelProcess(_Command, frozen=True, tag="cancel"):
    """Ask a process to end; ``force`` ends it without asking."""

    process_id: str
    reason: str | None = None
    force: bool = False


class CancelUnreferenced(_Command, frozen=True, tag="cancel_unreferenced"):
    """Let go of every handle but those kept; cancel what nobody else holds."""

    holder: SessionRef
    keep: tuple[str, ...] = ()


class SignalProcess(_Command, frozen=True, tag="signal"):
    """Send a process a signal; the id makes it arrive once."""

    process_id: str
    name: str
    signal_id: str
    payload: Any = None


class AppendEvent(_Command, frozen=True, tag="append"):
    """Append an event to a process's log; in a run's own effects a blank id is its own process."""

    process_id: str
    type: str
    payload: Any = None
    key: str | None = None


class WaitSignal(_Command, frozen=True, tag="wait_signal"):
    """Take the oldest signal of a name that no earlier wait took."""

    name: str


class SubmitTurn(_Command, frozen=True, tag="submit_turn"):
    """Submit a turn of a session; ``digest`` (in hex) tells two questions apart."""

    session_id: str
    turn_id: str
    digest: str
    ask: Any
    options: Any = None


class AwaitTurn(_Command, frozen=True, tag="await_turn"):
    """Wait for a turn to end."""

    session_id: str
    turn_id: str


ProcessCommand = (
    StartProcess
    | ListProcesses
    | TransferHandles
    | DeleteSessionProcesses
    | AwaitProcess
    | CancelProcess
    | CancelUnreferenced
    | SignalProcess
    | AppendEvent
    | WaitSignal
    | SubmitTurn
    | AwaitTurn
)
"""What can be asked of the process registry."""


def _about(command: _Command) -> tuple[str, ...]:
    """Return whom a command is about."""
    match command:
        case StartProcess(registration=registration):
            return (registration.target,)
        case ListProcesses(holder=holder) | CancelUnreferenced(holder=holder):
            return (holder.session_id,)
        case TransferHandles(source=source, target=target):
            return source.session_id, target.session_id
        case (
            DeleteSessionProcesses(session_id=subject)
            | AwaitProcess(process_id=subject)
            | CancelProcess(process_id=subject)
            | AppendEvent(type=subject)
            | WaitSignal(name=subject)
        ):
            return (subject,)
        case SignalProcess(process_id=process, name=name):
            return process, name
        case (
            SubmitTurn(session_id=session, turn_id=turn)
            | AwaitTurn(session_id=session, turn_id=turn)
        ):
            return session, turn
        case _:
            return ()


def process_command(command: Any) -> ProcessCommand:
    """Return the command in an envelope."""
    converted: ProcessCommand = msgspec.convert(command, ProcessCommand)
    return converted


def command_of(process_id: str, command: ProcessCommand) -> ProcessCommand:
    """Return what a run asks, with its own id where the command leaves that open as an empty text.

    The id is that of its process, or the text of a turn's scope. Subagents are attached to the run that asks them:
    they end with it. It is no part of what the run records, so that a fork may ask the same.
    """
    match command:
        case AppendEvent(process_id="", key=key):
            whole = f"process:{process_id}:event:{key}"
            return msgspec.structs.replace(command, process_id=process_id, key=whole)
        case StartProcess(registration=Registration(input=SessionTurnInput()) as child):
            child = msgspec.structs.replace(child, parent=process_id, attached=True)
            return msgspec.structs.replace(command, registration=child)
        case StartProcess(registration=Registration(parent="") as child):
            child = msgspec.structs.replace(child, parent=process_id)
            return msgspec.structs.replace(command, registration=child)
        case _:
            return command


def process_key(parent: str, effect_id: str) -> str:
    """Return the replay key of a process command asked for under parent's key."""
    return f"{parent}:process:{effect_id}"
