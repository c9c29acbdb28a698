"""The numbers of sessions: given once, by whoever comes first.

Rule 1. A number is never given twice, whatever became of the transaction that took it.
Rule 2. Many are reserved at once: who opens a session then need not wait for everybody who opens another,
        nor write one more page.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from pylash.stores.sql import Statement, Steps

AT_ONCE: Final = 64

# The update locks the row, so that two sessions never get one number.
_RESERVE = """
insert into pylash_lanes(lane, last_seq) values ('sessions', ?)
on conflict (lane) do update set last_seq = pylash_lanes.last_seq + excluded.last_seq returning last_seq"""


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
