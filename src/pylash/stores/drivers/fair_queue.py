"""Fair order between the sources of new work.

A burst of starts, or of turns for one session, may be thousands of operations at once. In plain order of arrival,
every other operation would wait for all of them: a turn of another session, and also the operations that make room
for new work (claims, records and ends of runs). So operations that start new work are queued here, and only a few
of them run at a time. Sources take turns: an operation of a new source waits for one operation of each other
source, however many those have queued. (Starts for which there is a slot do not wait: they are few, and written in
batches.)
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items of many flows: first in, first out within a flow, and flows take turns.

    At most ``size`` items are out at once: an item is out from ``take`` until ``done`` is called for it.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._out = 0
        # The flow whose turn is next comes first.
        self._flows: OrderedDict[str, deque[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._flows)

    def add(self, flow: str, item: T) -> None:
        """Queue an item."""
        if flow not in self._flows:
            self._flows[flow] = deque()
        self._flows[flow].append(item)

    def take(self) -> list[T]:
        """Take as many items as there is room for, and return them."""
        taken: list[T] = []
        while self._flows and self._out < self._size:
            flow, items = self._flows.popitem(last=False)
            taken.append(items.popleft())
            self._out += 1
            if items:
                self._flows[flow] = items  # its next turn is after all others
        return taken

    def done(self) -> None:
        """Note that an item that was taken has ended."""
        self._out -= 1
