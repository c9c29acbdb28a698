"""The record of one body's effects, and their replay.

1. One entry per key: the request and what came of it, both as JSON text, so nothing is shared with the
   program and nothing that is not JSON gets by.
2. A run that uses a key twice is a defect: the second effect would be taken for the first.
3. A replay performs nothing. It ends where the record ends: at the effect that was still open.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pylash.lang.running.hosts import Refused


class Defect(Exception):
    """The implementation breaks a rule that holds for every case."""


class Suspended(BaseException):
    """A replay has come to the effect that the run was waiting for. Not an error, so not an Exception."""


class Entry(NamedTuple):
    """A request and its result."""

    request: str
    refused: bool
    result: str


def plain(value: Any) -> str:
    """Return value as JSON text."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Defect(f"{value!r} left the program and is not JSON: {error}") from error


class Journal:
    """Effects by key, in the order of recording."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.open: tuple[str, str] | None = None

    async def effect(self, key: str, request: Any, perform: Callable[[], Awaitable[Any]]) -> Any:
        """Perform an effect and record its result."""
        self.begin(key, request)
        try:
            result = await perform()
        except Refused as refused:
            self.record(key, request, str(refused), refused=True)
            raise
        return self.record(key, request, result)

    async def batch(
        self, requests: dict[str, Any], perform: Callable[[], Awaitable[list[Any]]]
    ) -> list[Any]:
        """Perform the effects of a batch at once, and record the result of each."""
        for key, request in reversed(requests.items()):
            self.begin(key, request)
        results = await perform()
        return [
            self.record(key, request, result)
            for (key, request), result in zip(requests.items(), results, strict=True)
        ]

    def begin(self, key: str, request: Any) -> None:
        """Note that the effect has started."""
        if key in self.entries:
            raise Defect(f"the key {key} was used twice")
        self.open = key, plain(request)

    def record(self, key: str, request: Any, result: Any, *, refused: bool = False) -> Any:
        """Keep the result of an effect; return it as it will be read back."""
        entry = Entry(plain(request), refused, plain(result))
        self.entries[key] = entry
        self.open = None
        return json.loads(entry.result)


class Replay(Journal):
    """A journal that performs nothing."""

    def __init__(self, recorded: Journal) -> None:
        super().__init__()
        self._recorded = recorded

    async def effect(self, key: str, request: Any, perform: Callable[[], Awaitable[Any]]) -> Any:
        """Return the recorded value, or end where the record ends."""
        del perform
        return self.answer(key, request)

    async def batch(
        self, requests: dict[str, Any], perform: Callable[[], Awaitable[list[Any]]]
    ) -> list[Any]:
        """Return the recorded values, or end where the record ends."""
        del perform
        return [self.answer(key, request) for key, request in requests.items()]

    def answer(self, key: str, request: Any) -> Any:
        """Return the recorded value of an effect."""
        self.begin(key, request)
        entry = self._recorded.entries.get(key)
        if entry is None:
            if self.open == self._recorded.open:
                raise Suspended
            raise Defect(f"in the replay, it called the host: {key}")
        if entry.request != plain(request):
            raise Defect(f"in the replay, {key} requested {plain(request)}, not {entry.request}")
        result = json.loads(entry.result)
        self.record(key, request, result, refused=entry.refused)
        if entry.refused:
            raise Refused(result)
        return result

    def left(self) -> list[str]:
        """Return the keys that were recorded and never requested."""
        return [key for key in self._recorded.entries if key not in self.entries]
