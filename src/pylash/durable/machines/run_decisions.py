"""The decisions of the machine of a run, besides Perform, Share, Answer and StopWork of the effect table.

A decision tells the driver what to do; the machine has already changed its state. ``gc=False`` is safe because no
object that a decision references refers back to it.
"""

from __future__ import annotations

import msgspec

from pylash.durable.machines.effect_table import Answer, Effect, Perform, Share, StopWork
from pylash.durable.machines.run_state import Branch, Caller, DetachReason, LastWrite, SideCall


class Replay(msgspec.Struct, frozen=True, gc=False):
    """Return the recorded outcome to the caller, which waits for GoOn first."""

    caller: SideCall


class Queue(msgspec.Struct, frozen=True, gc=False):
    """Queue the effect: the host performs one effect at a time. Perform follows when its turn comes."""

    effect: Effect
    caller: Caller


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Let the caller wait: another decision about this call follows."""

    caller: Caller


class Withdraw(msgspec.Struct, frozen=True, gc=False):
    """Record the effect of key as cancelled before it starts; then report ``withdrawn``."""

    caller: Caller
    key: str


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """Raise Detached in the caller."""

    caller: Caller


class Hang(msgspec.Struct, frozen=True, gc=False):
    """Let the caller wait forever: it calls a closed run in a loop."""

    caller: Caller


class RaiseCancelled(msgspec.Struct, frozen=True, gc=False):
    """Raise a cancel in the callers. Those that waited wait for GoOn first."""

    callers: tuple[Caller, ...]


class GoOn(msgspec.Struct, frozen=True, gc=False):
    """Let callers continue, in this order. A new branch starts."""

    callers: tuple[Caller, ...]


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Record a decision under ``key`` and cancelled outcomes for ``effects``, in one transaction.

    Then report ``delivered``. ``cancelled`` and ``groups`` are part of the record: the names of the branches that
    are cancelled and the keys of the groups that are interrupted. ``leaves`` are the branches of those names.
    """

    key: str
    cancelled: tuple[str, ...]
    groups: tuple[str, ...]
    effects: tuple[Effect, ...]
    leaves: tuple[Branch, ...]


class BecomeIdle(msgspec.Struct, frozen=True, gc=False):
    """The run may be parked; ``park_now`` if it has a concurrency key: it holds the slot of the key until it is parked."""

    park_now: bool


class BecomeBusy(msgspec.Struct, frozen=True, gc=False):
    """The run must no longer be parked."""


class TakeSlot(msgspec.Struct, frozen=True, gc=False):
    """Ask the worker for a slot; then report ``slot_granted``."""


class GiveSlot(msgspec.Struct, frozen=True, gc=False):
    """Give the slot back to the worker."""


class LookAgain(msgspec.Struct, frozen=True, gc=False):
    """Let the effects that wait for other runs or for people read the store again.

    Reading everything that the run waits for is a separate step; ``looked`` reports it, with the wake_seq.
    """


class Park(msgspec.Struct, frozen=True, gc=False):
    """Park the run if its wake_seq is still this one; then report ``park_answered``."""

    until: int | None
    wake_seq: int


class AskCancel(msgspec.Struct, frozen=True, gc=False):
    """Request a durable cancel of the process, with the timeout as its reason."""


class BreakOff(msgspec.Struct, frozen=True, gc=False):
    """Raise Detached in the callers of effects and stop their work, except records that are being written."""

    effects: tuple[Effect, ...]


class Detach(msgspec.Struct, frozen=True, gc=False):
    """Close the context: this execution records nothing more."""

    reason: DetachReason


class Write(msgspec.Struct, frozen=True, gc=False):
    """Make the last write, and repeat it while the store is unreachable; then report ``written``.

    ``as_failure``: settle with the reason why the outcome of the code could not be written.
    """

    what: LastWrite
    as_failure: bool = False


class Forget(msgspec.Struct, frozen=True, gc=False):
    """Remove the run from the worker's lists, if they still contain this execution."""


Decision = (
    Perform
    | Share
    | Queue
    | Replay
    | Hold
    | Withdraw
    | Refuse
    | Hang
    | Answer
    | RaiseCancelled
    | GoOn
    | StopWork
    | Deliver
    | BecomeIdle
    | BecomeBusy
    | TakeSlot
    | GiveSlot
    | LookAgain
    | Park
    | AskCancel
    | BreakOff
    | Detach
    | Write
    | Forget
)
"""Any decision about a run."""
