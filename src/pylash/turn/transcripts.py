"""Transcripts: the messages of a session or of a request, without copying a long history.

Rule 1. A shared list only grows at its end, and only ``Transcript.plus`` changes it. So its first ``count``
        messages never change, and two transcripts of one list share those of the shorter one.
Rule 2. A transcript is a value: it has a fixed number of messages of its list, and never changes.
Rule 3. A transcript continues another if it begins with equal messages. Messages in a list that both share need
        no comparison; all others are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeVar, overload

from pylash.turn.messages import Message, SystemMessage

M = TypeVar("M", bound=SystemMessage | Message)


class Transcript(Sequence[M]):
    """A read-only sequence: ``system``, then the first ``count`` messages of a shared list, then ``after``.

    The list belongs to this transcript and those that ``plus`` and ``sent`` make of it.
    """

    __slots__ = ("_count", "_shared", "after", "system")

    def __init__(
        self,
        shared: list[M] | None = None,
        count: int | None = None,
        *,
        system: Sequence[M] = (),
        after: Sequence[M] = (),
    ) -> None:
        self._shared: list[M] = [] if shared is None else shared
        self._count = len(self._shared) if count is None else count
        self.system = (*system,)
        self.after = (*after,)

    def plus(self, added: list[M]) -> Transcript[M]:
        """Return a history with further messages."""
        shared, count = self._shared, self._count
        # Another reader of the same session may have added them already, or the beginning of them.
        known = shared[count : count + len(added)]
        if known != added[: len(known)]:
            shared, known = shared[:count], []
        shared += added[len(known) :]
        return Transcript(shared, count + len(added))

    def sent(
        self, system: Sequence[SystemMessage], after: Sequence[Message]
    ) -> Transcript[SystemMessage | Message]:
        """Return the messages of a request that sends this history."""
        shared: Any = self._shared
        return Transcript(shared, self._count, system=system, after=after)

    def first(self, count: int) -> Transcript[M]:
        """Return the first messages of a history."""
        return Transcript(self._shared, min(count, self._count))

    def continues(self, earlier: Transcript[M]) -> bool:
        """Return whether this begins with the messages of another one; system messages do not count."""
        shared = min(self._count, earlier._count) if self._shared is earlier._shared else 0
        rest = earlier[len(earlier.system) + shared :]
        start = len(self.system) + shared
        return rest == self[start : start + len(rest)]

    def __len__(self) -> int:
        return len(self.system) + self._count + len(self.after)

    def __iter__(self) -> Iterator[M]:
        return chain(self.system, islice(self._shared, self._count), self.after)

    @overload
    def __getitem__(self, index: int) -> M: ...

    @overload
    def __getitem__(self, index: slice) -> list[M]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._slice(range(len(self))[index])
        place = range(len(self))[index] - len(self.system)
        if place < 0:
            return self.system[place]
        return self._shared[place] if place < self._count else self.after[place - self._count]

    def _slice(self, places: range) -> list[M]:
        if places.step != 1:
            return [self[place] for place in places]
        start, stop = places.start - len(self.system), places.stop - len(self.system)
        return [
            *self.system[places.start : places.stop],
            *self._shared[max(0, start) : max(0, min(stop, self._count))],
            *self.after[max(0, start - self._count) : max(0, stop - self._count)],
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr([*self])
