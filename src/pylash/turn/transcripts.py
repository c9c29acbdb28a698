"""Long sequences of messages that nobody has to read to hand them on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from typing import Any, TypeVar, cast, overload

from pylash.turn.messages import MESSAGES, Message

T_co = TypeVar("T_co", covariant=True)


class _Comparable(Sequence[T_co]):
    """A sequence that equals every other with the same items, and shows them."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # it may grow

    def __repr__(self) -> str:
        return repr(list(self))


class Transcript(_Comparable[Message]):
    """The messages of a session. What was stored is decoded when somebody reads it, once.

    The first ``missing`` of them were not fetched yet. Who looks at one of those waits until all of them
    are, with ``fetch``; without it nobody may look. With locks several threads may; nobody else waits.
    ``trouble`` is why the last fetch failed: it is raised in user code that looks, and is not that code's.
    """

    trouble: Exception | None = None

    def __init__(
        self,
        stored: Iterable[bytes] = (),
        missing: int = 0,
        lock: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.missing = missing
        self.fetch: Callable[[], Sequence[bytes]] | None = None
        self._items: list[Message | bytes] = list(stored)
        self._decoded = 0
        """How many of the first items are known to be decoded."""
        self._lock = lock()
        self._fetching = lock()

    def add_before(self, bodies: Sequence[bytes], missing: int) -> None:
        """Take messages that come before all others, as they are stored; so many are still missing."""
        with self._lock:
            if len(bodies) == self.missing - missing:  # else another has fetched them meanwhile
                self._items[:0] = bodies
                self._decoded = 0
                self.missing = missing

    def add_stored(self, bodies: Iterable[bytes]) -> None:
        """Take messages as they are stored."""
        self._items.extend(bodies)

    def add(self, messages: Iterable[Message]) -> None:
        """Take messages."""
        self._items.extend(messages)

    def __reduce__(self) -> Any:
        """Copy it as the list that it is like."""
        return list, (list(self),)

    def __len__(self) -> int:
        if not self.missing:
            return len(self._items)
        with self._lock:
            return self.missing + len(self._items)

    def __iter__(self) -> Iterator[Message]:
        if self.missing:
            self[0]  # fetches them
        with self._lock:
            end = len(self._items)  # more may be added meanwhile, without the lock
            for place in range(self._decoded, end):
                self._at(place)
            self._decoded = end
            if (
                not self.missing
            ):  # nothing is put before them any more, and a copy would take as long as reading
                return islice(cast("list[Message]", self._items), end)
            return iter(cast("list[Message]", self._items[:end]))

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        if self._is_missing(index):
            with self._fetching:
                if self._is_missing(index):
                    assert self.fetch is not None, "it was not fetched"
                    self.add_before(self._fetched(self.fetch), 0)
        with self._lock:
            return self._at(index - self.missing if index >= 0 else index)

    def _fetched(self, fetch: Callable[[], Sequence[bytes]]) -> Sequence[bytes]:
        try:
            return fetch()
        except Exception as error:
            self.trouble = error
            raise

    def _is_missing(self, index: int) -> bool:
        if not self.missing:
            return False
        with self._lock:
            return -len(self) <= index < -len(self._items) or 0 <= index < self.missing

    def _at(self, place: int) -> Message:
        item = self._items[place]
        if isinstance(item, bytes):
            item = self._items[place] = MESSAGES.decode(item)
        return item


class Joined(_Comparable[T_co]):
    """Sequences behind each other, as long as they were when they were joined."""

    def __init__(self, *parts: Sequence[T_co]) -> None:
        self.parts: list[tuple[Sequence[T_co], int]] = []
        for part in parts:
            if isinstance(part, Joined):  # reading a joined one again would take twice as long
                self.parts += part.parts
            else:
                self.parts.append((part, len(part)))

    def __len__(self) -> int:
        return sum(length for _, length in self.parts)

    def __iter__(self) -> Iterator[T_co]:
        return chain.from_iterable(islice(part, length) for part, length in self.parts)

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[T_co]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        place = index if index >= 0 else index + len(self)
        for part, length in self.parts:
            if 0 <= place < length:
                return part[place]
            place -= length
        raise IndexError(index)


def is_loaded(messages: Sequence[Any]) -> bool:
    """Return whether reading all of a sequence fetches nothing."""
    if isinstance(messages, Joined):
        return all(is_loaded(part) for part, _ in messages.parts)
    return not (isinstance(messages, Transcript) and messages.missing)
