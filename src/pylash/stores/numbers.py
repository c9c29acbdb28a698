"""The numbers of runs and sessions.

Rule 1. The number of a run is drawn at random, so that workers need not agree on it. It may be taken: the
        insert finds out, and another one is drawn. That never means that the *id* of a process or turn is taken.
Rule 2. The number of a session is counted, and never given twice, whatever became of the transaction that
        took it.
Rule 3. Many session numbers are reserved at once: who opens a session then need not wait for everybody who
        opens another, nor write one more page.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from pylash.durable import Clock, Entropy, new_run_id
from pylash.stores.sql import MAX_REPEATS, Statement, Steps, gave_up

AT_ONCE: Final = 64

# The update locks the row, so that two sessions never get one number.
_RESERVE = """
insert into pylash_lanes(lane, last_seq) values ('sessions', ?)
on conflict (lane) do update set last_seq = pylash_lanes.last_seq + excluded.last_seq returning last_seq"""


class DrawsNumbers:
    """Draws numbers for new runs: a mixin for the ports that make runs."""

    _clock: Clock
    _entropy: Entropy

    def _draw(self) -> int:
        """Return a number that is probably free; whoever inserts it must expect that it is not."""
        return new_run_id(self._clock.now(), self._entropy)

    def _draws(self, first: int | None = None) -> Iterator[int]:
        """Yield numbers to try one after another, beginning with ``first``; raise StoreBusy after many."""
        if first is not None:
            yield first
        for _ in range(MAX_REPEATS):
            yield self._draw()
        raise gave_up("Drawing the number of a run")


class Numbers:
    """What one transaction takes numbers from: those that are ``free`` in this process, or else new ones.

    What it reserves beyond its own is ``reserved``: free once that is committed, and not before.
    """

    def __init__(self, free: deque[int] | None = None) -> None:
        self.reserved: list[int] = []
        self._free = free

    def take(self) -> Steps[int]:
        """Return a number that nobody has; a transaction that is undone does not give it back."""
        if self._free:
            return self._free.popleft()
        count = 1 if self._free is None else AT_ONCE
        last = int((yield Statement(_RESERVE, (count,))).rows[0][0])
        first = last - count + 1
        self.reserved[:] = range(first + 1, last + 1)
        return first

    def keep(self, ended: asyncio.Future[Any]) -> None:
        """Hear that the transaction has ended: if it is committed, what it reserved is free."""
        if self._free is not None and not ended.cancelled() and ended.exception() is None:
            self._free.extend(self.reserved)
