"""The journal of a run in memory, and what the run does to its own effects.

Rule 1. Decisions and cancellations are written before anyone hears of them.
Rule 2. While it is decided whether an effect is cancelled, it does not end.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from pylash.durable import (
    SECOND,
    Attached,
    Clock,
    EffectKind,
    Envelope,
    Fence,
    Instant,
    Journal,
    JournalEntry,
)
from pylash.runtime.flights import Board, Flight
from pylash.runtime.records import withdrawn
from pylash.values import (
    ProcessSignalWaitCancelled,
    check_size,
    decode,
    digest_for_difference,
    encode,
    storable,
)


class Asked(msgspec.Struct):
    """An effect that was asked for: its envelope, its key, and what its hash covers."""

    envelope: Envelope
    key: str
    canonical: bytes
    digest: bytes

    def entry(
        self, started: int, outcome: bytes | None = None, ended: int | None = None
    ) -> JournalEntry:
        """Return the entry of this effect, open unless it has an outcome."""
        return JournalEntry(
            self.key,
            self.envelope.command.kind,
            self.digest,
            digest_for_difference(self.canonical),
            outcome,
            0 if outcome is None else len(outcome),
            None,
            None,
            started,
            ended,
            None if (label := self.envelope.invocation.label) is None else storable(label),
        )


def asked_of(envelope: Envelope, key: str) -> Asked:
    """Return what an envelope asks for under key."""
    canonical = check_size(envelope.canonical(), 1)
    return Asked(envelope, key, canonical, hashlib.sha256(canonical).digest())


class JournalState:
    """What is recorded for an attached run, and its flights."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self.board = Board()
        self.unread: set[str] = set()
        self._journal = journal
        self._clock = clock
        self._attached: Attached | None = None
        self._attached_at = 0.0
        self._entries: dict[str, JournalEntry] = {}
        self._flights = self.board.flights
        self._riders: list[JournalEntry] = []
        self._riding = asyncio.Lock()
        self._bells: dict[asyncio.Future[None], Flight] = {}

    def adopt(self, attached: Attached) -> None:
        """Take a run that is ours already, with its journal; what was noted before stays."""
        self._attached_at = self._clock.monotonic()
        self._entries |= attached.entries
        self.unread |= attached.entries.keys()
        self._attached = attached

    def woken(self) -> None:
        """Look again: somebody made progress possible."""
        bells, self._bells = self._bells, {}
        for bell, flight in bells.items():
            if not bell.done():
                flight.wake()  # at once: a run that has something to do is not parked
                bell.set_result(None)

    def recorded(self, key: str) -> bool:
        """Return whether the effect of key has ended; the end of a sleep is when it is due."""
        entry = self._entries.get(key)
        if entry is None or entry.size:
            return entry is not None
        return entry.kind == EffectKind.SLEEP and entry.due is not None and entry.due <= self.now()

    def remembers(self, key: str) -> bool:
        """Return whether the outcome of key is here, and need not be fetched."""
        entry = self._entries.get(key)
        return entry is not None and entry.outcome is not None

    def begun(self, key: str) -> bool:
        """Return whether the effect of key has begun, in whichever execution of the run."""
        return key in self._entries

    def is_pending(self, key: str) -> bool:
        """Return whether the effect of key is under way, and can be cancelled."""
        flight = self._flights.get(key)
        if flight is None or flight.recording:
            return False
        return flight.resting or not self.recorded(key)

    def ride(self, key: str, make: Callable[[], Any]) -> Any:
        """Return the value recorded under key, or make one that is recorded with the next effect."""
        entry = self._entries.get(key)
        if entry is not None and entry.outcome is not None:
            self.unread.discard(key)
            return decode(entry.outcome)
        value = make()
        data = encode(value)
        now = self._clock.now()
        entry = JournalEntry(key, "now", b"", None, data, len(data), started=now, ended=now)
        self._riders.append(entry)
        self._entries[key] = entry
        return value

    async def _record_riders(self, fence: Fence) -> None:
        """Record what rides with the next effect, before that: it may depend on it.

        Another effect may be recording it this moment, so that we wait for that too.
        """
        if not (self._riders or self._riding.locked()):
            return
        async with self._riding:
            riders, self._riders = self._riders, []
            if riders:
                await self._journal.record_all(fence, riders)

    def decision(self, key: str) -> Any:
        """Return what was decided under key, or None."""
        entry = self._entries.get(key)
        if entry is None or entry.outcome is None:
            return None
        self.unread.discard(key)
        return decode(entry.outcome)

    async def deliver(self, decisions: dict[str, Any], keys: Sequence[str]) -> set[str]:
        """Record decisions, and cancel the pending effects of keys; return those that were.

        An effect that is being recorded, or has ended meanwhile, is not cancelled.
        """
        assert self._attached is not None
        fence, now = self._attached.fence, self._clock.now()
        flights = [self._flights[key] for key in keys if key in self._flights]
        flights = [flight for flight in flights if not flight.recording]
        verdict: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        cancelled = []
        for flight in flights:
            flight.verdict = verdict
            known = self._entries.get(flight.opening.key, flight.opening)
            data = withdrawn(_cancel_code(known))
            cancelled.append(replace(known, outcome=data, size=len(data), ended=now))
        made = [_decided(key, value, now) for key, value in decisions.items()]
        try:
            await self._record_riders(fence)
            delivered = await self._journal.deliver(fence, made, cancelled)
            for entry in (*made, *(one for one in cancelled if one.key in delivered)):
                self._entries[entry.key] = entry
            for flight in flights:
                if flight.opening.key in delivered:
                    flight.break_off(asyncio.CancelledError())
        finally:
            verdict.set_result(None)
            for flight in flights:
                flight.verdict = None
        return delivered

    async def withdraw(self, envelope: Envelope) -> bool:
        """Record an effect as cancelled before it began; False if it has an outcome."""
        assert self._attached is not None
        key = envelope.invocation.replay_key
        assert key is not None
        self.unread.discard(key)
        now = self._clock.now()
        opening = self._entries.get(key) or asked_of(envelope, key).entry(now)
        data = withdrawn(_cancel_code(opening))
        entry = replace(opening, outcome=data, size=len(data), ended=now)
        await self._record_riders(self._attached.fence)
        delivered = await self._journal.deliver(self._attached.fence, [], [entry])
        if key in delivered:
            self._entries[key] = entry
        return key in delivered

    def next_due(self) -> int | None:
        """Return when the first of the resting effects is due."""
        dues = [flight.due for flight in self._flights.values() if flight.due is not None]
        return min(dues, default=None)

    def open_wait_names(self) -> list[str]:
        """Return the ids of the waits that effects rest in."""
        known = (self._entries.get(key) for key in self._flights)
        return [entry.wait for entry in known if entry is not None and entry.wait is not None]

    def break_off(self, error: BaseException) -> None:
        """Raise error in every effect that is awaited; nothing more is recorded."""
        for flight in tuple(self._flights.values()):
            flight.break_off(error)

    @property
    def fence(self) -> Fence:
        """The right to write for the run."""
        assert self._attached is not None
        return self._attached.fence

    def now(self) -> Instant:
        """Return the store's time, as far as we can tell without asking it."""
        if self._attached is None:  # its start is not written yet
            return self._clock.now()
        passed = self._clock.monotonic() - self._attached_at
        return Instant(self._attached.now + int(passed * SECOND))


def _cancel_code(entry: JournalEntry) -> str:
    waits_for_signal = entry.wait is not None and entry.wait.startswith("signal:")
    return ProcessSignalWaitCancelled.default_code if waits_for_signal else "cancelled"


def _decided(key: str, value: Any, now: int) -> JournalEntry:
    data = encode(value)
    return JournalEntry(key, "decision", b"", None, data, len(data), started=now, ended=now)
