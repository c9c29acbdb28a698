"""The effects in flight of one scope, each shared by all its callers.

Rule 1. There is one effect per key. A second caller shares it; the driver has compared the hashes before.
Rule 2. An effect belongs to the table and not to its first caller. When the last caller has left, the work is
        stopped, but a record that is being written is written.
Rule 3. An effect leaves the table before its work is stopped, so that a new caller starts it again. Facts about
        an effect that has left the table are ignored.

A caller is any hashable object of the driver. Controllers outside a run use the table alone; for a run, every fact
goes through its machine.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from enum import Enum
from typing import Any, Final

import msgspec


class EffectState(Enum):
    """What an effect in flight is doing."""

    QUEUED = "queued"
    """It is queued on a host that performs one effect at a time."""
    WORK = "work"
    """It is performed, or its wait is being opened."""
    RECORD = "record"
    """Its outcome is being written, or fetched from the record: it can be neither stopped nor cancelled."""
    REST = "rest"
    """It waits for a timer or for others. Only in this state does it allow its run to be parked."""


QUEUED: Final = EffectState.QUEUED
WORK: Final = EffectState.WORK
RECORD: Final = EffectState.RECORD
REST: Final = EffectState.REST


class Effect(msgspec.Struct, eq=False):
    """One effect in flight. Only the table and the machine of its run change it."""

    key: str
    state: EffectState = WORK
    # Until when it rests at most; None unless it rests.
    due: int | None = None
    # The callers that wait for the outcome, in the order of their calls.
    callers: dict[Any, None] = {}
    # The key of the delivery that decides whether it is cancelled. It does not land before that is decided.
    verdict: str | None = None
    # Whether it ended while its verdict was open.
    landed: bool = False
    # Whether it ended with a cancel that is recorded for it.
    has_cancel: bool = False
    # Values of the driver: the envelope of the request, and the result that Answer passes to the callers.
    envelope: Any = None
    result: Any = None

    @property
    def is_cancellable(self) -> bool:
        """Whether a cancel may be recorded as its outcome. An open verdict does not matter here."""
        return self.state is not RECORD and not self.landed


class Perform(msgspec.Struct, frozen=True, gc=False):
    """Start the work of an effect for its first caller."""

    effect: Effect
    caller: Any


class Share(msgspec.Struct, frozen=True, gc=False):
    """Wait for an effect that is already in flight."""

    effect: Effect
    caller: Any


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Hand the result of an effect to its callers, a copy to each after the first."""

    effect: Effect
    callers: tuple[Any, ...]


class StopWork(msgspec.Struct, frozen=True, gc=False):
    """Stop the work of an effect whose outcome is not needed. A caller that left waits until it has stopped."""

    effect: Effect


class EffectTable:
    """The effects in flight by key; ``working`` counts those that neither rest nor are queued."""

    __slots__ = ("in_flight", "working")

    def __init__(self) -> None:
        self.in_flight: dict[str, Effect] = {}
        self.working = 0

    def ask(self, key: str, caller: Hashable, state: EffectState = WORK) -> Perform | Share:
        """Add a caller to the effect of key; add the effect in the given state if it is not in flight."""
        effect = self.in_flight.get(key)
        if effect is not None:
            effect.callers[caller] = None
            return Share(effect, caller)
        effect = self.in_flight[key] = Effect(key, state)
        effect.callers[caller] = None
        self.working += state is not QUEUED
        return Perform(effect, caller)

    def start(self, effect: Effect) -> None:
        """Note that the turn of a queued effect has come."""
        effect.state = WORK
        self.working += 1

    def holds(self, effect: Effect) -> bool:
        """Return whether an effect is still in flight; another effect may have taken its key since."""
        return self.in_flight.get(effect.key) is effect

    def recording(self, effect: Effect) -> None:
        """Note that the outcome is being written."""
        if self.holds(effect):
            self.working += effect.state is REST
            effect.state, effect.due = RECORD, None

    def rest(self, effect: Effect, due: int | None = None) -> None:
        """Note that the effect has nothing to do until due, or until others act."""
        if effect.state is not REST and not effect.landed and self.holds(effect):
            self.working -= 1
            effect.state = REST
        if effect.state is REST:
            effect.due = due

    def stir(self, effect: Effect) -> None:
        """Note that the effect may have work to do again."""
        if effect.state is REST and self.holds(effect):
            self.working += 1
            effect.state, effect.due = WORK, None

    def land(self, effect: Effect, result: Any = None) -> Answer | None:
        """End an effect; None if it has left the table, or its verdict is open."""
        if not self.holds(effect):
            return None
        effect.result = result
        # A resting effect that has ended counts as working until its verdict lets it land.
        if effect.verdict is not None:
            self.stir(effect)
            effect.landed = True
            return None
        self.remove(effect)
        return Answer(effect, tuple(effect.callers))

    def leave(self, effect: Effect, caller: Hashable) -> StopWork | None:
        """Let a caller go; stop the work if it was the last one and nothing is being recorded."""
        # An effect whose record is being written stays, and others may still share it.
        effect.callers.pop(caller, None)
        if effect.callers or effect.state is RECORD or not self.holds(effect):
            return None
        self.remove(effect)
        # Queued work was never started; work that has landed is over.
        is_begun = effect.state is not QUEUED and not effect.landed
        return StopWork(effect) if is_begun else None

    def remove(self, effect: Effect) -> None:
        """Take an effect out of the table."""
        del self.in_flight[effect.key]
        self.working -= effect.state is not REST and effect.state is not QUEUED

    def clear(self) -> Collection[Effect]:
        """Take all effects out of the table and return them; records that are being written finish."""
        effects, self.in_flight, self.working = self.in_flight, {}, 0
        return tuple(effects.values())

    def next_due(self) -> int | None:
        """Return when the first of the resting effects is due. It iterates over all of them."""
        dues = (effect.due for effect in self.in_flight.values())
        return min((due for due in dues if due is not None), default=None)
