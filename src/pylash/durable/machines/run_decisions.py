"""What the machine of a run may decide, besides Perform, Share, Answer and StopWork of the effect table.

A decision tells the driver what to do; the machine has made the move already. ``gc=False`` is safe because nothing
that a decision points at points back at it.
"""

from __future__ import annotations

import msgspec

from pylash.durable.machines.effect_table import Answer, Effect, Perform, Share, StopWork
from pylash.durable.machines.run_state import Branch, Caller, DetachReason, LastWrite


class Replay(msgspec.Struct, frozen=True, gc=False):
    """Answer the caller from the record. A SideCall waits for GoOn first."""

    caller: Caller


class Queue(msgspec.Struct, frozen=True, gc=False):
    """Wait: the host performs one effect at a time. Perform follows when it is its turn."""

    effect: Effect
    caller: Caller


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Begin nothing: another decision about this call follows."""

    caller: Caller


class Withdraw(msgspec.Struct, frozen=True, gc=False):
    """Record the effect of key as cancelled before it begins; then report ``withdrawn``."""

    caller: Caller
    key: str


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """Raise Detached in the caller."""

    caller: Caller


class Hang(msgspec.Struct, frozen=True, gc=False):
    """Never answer the caller: it calls a closed run in a loop."""

    caller: Caller


class RaiseCancelled(msgspec.Struct, frozen=True, gc=False):
    """Answer the callers with a cancel. Those that waited wait for GoOn first."""

    callers: tuple[Caller, ...]


class GoOn(msgspec.Struct, frozen=True, gc=False):
    """Let callers continue, in this order. A fresh branch starts."""

    callers: tuple[Caller, ...]


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Record a decision under ``key`` and cancelled outcomes for ``effects``, in one transaction.

    Then report ``delivered``. ``cancelled`` and ``groups`` belong into the record: the names of the branches that
    are cancelled and the keys of the groups that are interrupted. ``leaves`` are the branches of those names.
    """

    key: str
    cancelled: tuple[str, ...]
    groups: tuple[str, ...]
    effects: tuple[Effect, ...]
    leaves: tuple[Branch, ...]


class BecomeIdle(msgspec.Struct, frozen=True, gc=False):
    """The run may be parked; ``park_now`` if it has a concurrency key, which counts it until then."""

    park_now: bool


class BecomeBusy(msgspec.Struct, frozen=True, gc=False):
    """The run must not be parked any more."""


class TakeSlot(msgspec.Struct, frozen=True, gc=False):
    """Ask the worker for a slot; then report ``slot_granted``."""


class GiveSlot(msgspec.Struct, frozen=True, gc=False):
    """Give the slot back to the worker."""


class LookAgain(msgspec.Struct, frozen=True, gc=False):
    """Let the effects that wait for others look again.

    Reading the store for everything the run waits for is a step of its own; ``looked`` reports it, with the wake_seq.
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
    """Close the context: nothing of this execution counts any more."""

    reason: DetachReason


class Write(msgspec.Struct, frozen=True, gc=False):
    """Make the last write, and repeat it while the store is away; then report ``written``.

    ``as_failure``: settle with the reason why what the code left could not be written.
    """

    what: LastWrite
    as_failure: bool = False


class Forget(msgspec.Struct, frozen=True, gc=False):
    """Drop the run from the worker's lists, if they still mean this very execution."""


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
"""Whatever a fact may be answered with."""
