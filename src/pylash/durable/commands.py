"""Commands to the process registry: what crosses the effect boundary, and its derived names."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pylash.durable.processes import Registration, SessionRef


class StartProcess(msgspec.Struct, frozen=True, tag_field="do", tag="start"):
    """Start a process; a grant of its handle goes to ``grant``."""

    registration: Registration
    delay: int = 0
    grant: SessionRef | None = None

    @property
    def effect_id(self) -> str:
        """The effect's id."""
        return f"start:{self.registration.target}"


class ListProcesses(msgspec.Struct, frozen=True, tag_field="do", tag="list"):
    """List the processes whose handles a session holds."""

    holder: SessionRef
    mode: Literal["live", "all"] = "live"

    @property
    def effect_id(self) -> str:
        """The effect's id."""
        return f"list:{self.holder.session_id}"


class TransferHandles(msgspec.Struct, frozen=True, tag_field="do", tag="transfer"):
    """Give one session's handles to another."""

    source: SessionRef
    target: SessionRef
    process_ids: tuple[str, ...]

    @property
    def effect_id(self) -> str:
        """The effect's id."""
        return f"transfer:{self.source.session_id}:{self.target.session_id}"


class DeleteSessionProcesses(msgspec.Struct, frozen=True, tag_field="do", tag="delete_session"):
    """Remove what a session holds of processes."""

    session_id: str

    @property
    def effect_id(self) -> str:
        """The effect's id."""
        return f"delete_session:{self.session_id}"


class AwaitProcess(msgspec.Struct, frozen=True, tag_field="do", tag="await"):
    """Wait for a process to end."""

    process_id: str

    @property
    def effect_id(self) -> str:
        """The effect's id."""
        return f"await:{self.process_id}"


class CancelProcess(msgspec.Struct, frozen=True, tag_field="do", tag="cancel"):
    """Ask a process to end; ``force`` ends it without asking."""

    process_id: str
    reason: str | None = None
    force: bool = False

    @property
    def effect_id(self) -> str:
        """The effect's id."""
        return f"cancel:{self.process_id}"


class CancelUnreferenced(msgspec.Struct, frozen=True, tag_field="do", tag="cancel_unreferenced"):
    """Let go of every handle but those kept; cancel what nobody else holds."""

    holder: SessionRef
    keep: tuple[str, ...] = ()

    @property
    def effect_id(self) -> str:
        """The effect's id."""
        return f"cancel_unreferenced:{self.holder.session_id}"


class SignalProcess(msgspec.Struct, frozen=True, tag_field="do", tag="signal"):
    """Send a process a signal; the id makes it arrive once."""

    process_id: str
    name: str
    signal_id: str
    payload: Any = None

    @property
    def effect_id(self) -> str:
        """The effect's id."""
        return f"signal:{self.process_id}:{self.name}"


class AppendEvent(msgspec.Struct, frozen=True, tag_field="do", tag="append"):
    """Append an event to a process's log; in a run's own effects a blank id is its own process."""

    process_id: str
    type: str
    payload: Any = None
    key: str | None = None

    @property
    def effect_id(self) -> str:
        """The effect's id."""
        return f"append:{self.type}"


class WaitSignal(msgspec.Struct, frozen=True, tag_field="do", tag="wait_signal"):
    """Take the oldest signal of a name that no earlier wait took."""

    name: str

    @property
    def effect_id(self) -> str:
        """The effect's id."""
        return f"wait_signal:{self.name}"


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
)
"""What can be asked of the process registry."""


def process_command(command: Any) -> ProcessCommand:
    """Return the command in an envelope."""
    converted: ProcessCommand = msgspec.convert(command, ProcessCommand)
    return converted


def process_key(parent: str, effect_id: str) -> str:
    """Return the replay key of a process command asked for under parent's key."""
    return f"{parent}:process:{effect_id}"
