"""Timelines: the effects of a process or a turn with their times, from the journal.

Rule 1. The axis is time. Long waits are folded, or a week of waiting would leave no room for a second of work.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Final

import msgspec

from pylash.durable.ports import EffectHost
from pylash.durable.runs import SECOND, JournalEntry
from pylash.durable.scopes import ExecutionScope, ProcessScope
from pylash.durable.stores import Store
from pylash.engine.records import WITHDRAWN, Failed
from pylash.values.process_errors import ProcessUnknown
from pylash.values.texts import cells, clipped, padded, printable

_COLOURS: Final[Mapping[str, int]] = {
    "done": 32,
    "failed": 31,
    "cancelled": 33,
    "open": 34,
    "waited": 36,
    "mark": 31,
    "grey": 90,
}
_BAR: Final = {"done": "█", "failed": "▒", "cancelled": "░", "open": "─", "waited": "─"}
_WAITING: Final = frozenset({"sleep", "await_event"})
_NAME: Final = 12
_BARS: Final = 60
_TIME: Final = 9
_LONG: Final = 2
"""A wait is folded if it takes more than this many times as long as all work together."""
_FOLDED: Final = 0.5
"""A folded wait is drawn as if it took this fraction of all work."""

_ATTEMPT: Final = re.compile(r"(?:[/.]attempt|\.llm)\.(\d+)$")


class Effect(msgspec.Struct, frozen=True):
    """One effect of a process or a turn: its key and name, when it began and ended, and how.

    ``attempt`` counts repetitions, ``waits_for`` is what it waits or waited for, ``error`` why it failed.
    """

    key: str
    name: str
    kind: str
    started: int
    ended: int | None
    status: str
    attempt: int = 1
    waits_for: str | None = None
    error: str | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took, if it has ended."""
        return None if self.ended is None else max(0, self.ended - self.started) / SECOND

    @property
    def is_wait(self) -> bool:
        """Whether it waits for an answer or a time."""
        return self.waits_for is not None or self.kind in _WAITING


async def effects_of(host: EffectHost, store: Store, process_id: str) -> list[Effect]:
    """Return the effects of a process, in the order in which they started."""
    record = await store.processes.get(process_id)
    if record is None:
        raise ProcessUnknown(process_id)
    entries = await entries_of(host, store, ProcessScope(process_id), record.run)
    return effects_from(entries, record.settled)


async def entries_of(
    host: EffectHost, store: Store, scope: ExecutionScope, run: int
) -> list[JournalEntry]:
    """Return what is recorded for a run, in the store and by the engine that executes it."""
    stored = await store.journal.timeline(run)
    known = {entry.key for entry in stored}
    others = [one for one in await host.recorded_outside(scope) if one.key not in known]
    return sorted([*stored, *others], key=attrgetter("started")) if others else stored


def effects_from(entries: Sequence[JournalEntry], until: int | None = None) -> list[Effect]:
    """Return the effects in a journal; ``until`` is when the run ended, or now."""
    return [_effect(entry, until) for entry in entries if entry.kind not in ("now", "decision")]


def _effect(entry: JournalEntry, until: int | None) -> Effect:
    ended = entry.ended
    if ended is None and entry.due is not None and entry.kind == "sleep":
        passed = until is not None and entry.due <= until
        ended = entry.due if passed else None
    status = _status(entry, ended)
    attempt = _ATTEMPT.search(entry.key)
    return Effect(
        entry.key,
        entry.label or ("messages" if entry.kind == "queue" else entry.key),
        entry.kind,
        entry.started,
        ended,
        status,
        int(attempt[1]) if attempt else 1,
        _waits_for(entry),
        _error(entry) if status == "failed" else None,
    )


def _waits_for(entry: JournalEntry) -> str | None:
    if entry.wait is None:
        return None
    kind, _, rest = entry.wait.partition(":")
    match kind:
        case "signal":
            return f"signal {entry.label or rest}"
        case "process":
            return f"process {rest}"
        case "turn":
            return "turn"
        case _:
            return entry.label or "an answer"


def _status(entry: JournalEntry, ended: int | None) -> str:
    if ended is None:
        return "open"
    outcome = entry.outcome or b""
    if outcome.startswith(WITHDRAWN):
        return "cancelled"
    return "failed" if b'"type":"failed"' in outcome[:200] or b'"type_name"' in outcome else "done"


def _error(entry: JournalEntry) -> str:
    try:
        failed = msgspec.json.decode(entry.outcome or b"", type=Failed)
    except msgspec.DecodeError:  # too long to be loaded as a whole
        return ""
    return f"{failed.type_name}: {failed.message}"


# --- drawing ---


class _Axis:
    """Maps times to columns; long waits are folded."""

    def __init__(self, effects: Sequence[Effect], marks: Sequence[int], room: int) -> None:
        ends = [one.ended for one in effects if one.ended is not None]
        self.moments = sorted({*(one.started for one in effects), *ends, *marks})
        self.room = room
        working = Counter[int]()
        for one in effects:
            if one.ended is not None and not one.is_wait:
                working[one.started] += 1
                working[max(one.started, one.ended)] -= 1
        at_work = accumulate(working[moment] for moment in self.moments)
        spans = [(a, b, n > 0) for (a, b), n in zip(pairwise(self.moments), at_work, strict=False)]
        busy = sum(b - a for a, b, works in spans if works)
        threshold = max(busy * _LONG, SECOND) if busy else float("inf")
        self.folded = {(a, b) for a, b, works in spans if not works and b - a > threshold}
        weights = [busy * _FOLDED if (a, b) in self.folded else b - a for a, b, _ in spans]
        self._places = list(accumulate(weights, initial=0.0))
        self._scale = room / max(1.0, self._places[-1])

    def column(self, moment: int) -> float:
        """Return the column of a moment."""
        at = max(0, bisect_right(self.moments, moment) - 1)
        if at + 1 >= len(self.moments):
            return self._places[-1] * self._scale
        first, last = self.moments[at], self.moments[at + 1]
        part = (moment - first) / (last - first)
        place = self._places[at] + part * (self._places[at + 1] - self._places[at])
        return place * self._scale


def draw_timeline(
    effects: Sequence[Effect],
    *,
    width: int | None = 80,
    colour: bool = False,
    marks: Mapping[int, str] | None = None,
) -> str:
    """Return effects as bars on one time axis; ``marks`` are moments (microseconds) to point at.

    Long waits are folded: ``≈`` under the bars shows where. ``width=None`` leaves no name out.

    >>> print(draw_timeline(await handle.timeline(), width=100))  # doctest: +SKIP
    """
    if not effects and not marks:
        return "nothing was recorded yet"
    names = [_label(one) for one in effects]
    size = max((cells(name) for name in names), default=0)
    room = _BARS
    if width is not None:
        size = min(size, max(_NAME, width // 3))
        room = max(_NAME, width - size - _TIME - 1)
    axis = _Axis(effects, list(marks or ()), room)
    lines = [_row(one, name, size, axis, colour) for one, name in zip(effects, names, strict=True)]
    lines += [_mark(at, text, size, axis, colour) for at, text in (marks or {}).items()]
    return "\n".join([*lines, _paint(_ticks(size, axis), "grey", colour)])


def _label(effect: Effect) -> str:
    name = printable(effect.name)
    return name if effect.attempt == 1 else f"{name} ({effect.attempt})"


def _row(effect: Effect, name: str, size: int, axis: _Axis, colour: bool) -> str:
    begin = min(axis.room - 1, int(axis.column(effect.started)))
    end = axis.room if effect.ended is None else round(axis.column(effect.ended))
    length = max(1, min(axis.room - begin, end - begin))
    style = "waited" if effect.is_wait and effect.status == "done" else effect.status
    drawn = _BAR[style] * length
    if effect.ended is None:
        drawn = f"{drawn[1:]}▸"
    bar = _paint(drawn, style, colour)
    took = "open" if effect.seconds is None else shown_duration(effect.seconds)
    shown = padded(clipped(name, size), size)
    return f"{shown} {' ' * begin}{bar}{' ' * (axis.room - begin - length)} {took:>{_TIME - 1}}"


def _mark(at: int, text: str, size: int, axis: _Axis, colour: bool) -> str:
    begin = min(axis.room - 1, int(axis.column(at)))
    label = clipped(f"✗ {printable(text)}", axis.room)
    if begin + cells(label) > axis.room:
        begin = axis.room - cells(label)
    return f"{'':{size}} {' ' * begin}{_paint(label, 'mark', colour)}"


def _ticks(size: int, axis: _Axis) -> str:
    total = shown_duration((axis.moments[-1] - axis.moments[0]) / SECOND)
    line = ["0", *" " * (axis.room - len(total) - 2)]
    for first, last in axis.folded:
        middle = int((axis.column(first) + axis.column(last)) / 2)
        line[max(1, min(len(line) - 1, middle))] = "≈"
    return f"{'':{size}} {''.join(line)} {total}"


def _paint(text: str, what: str, colour: bool) -> str:
    return f"\x1b[{_COLOURS[what]}m{text}\x1b[0m" if colour else text


def shown_duration(seconds: float) -> str:
    """Return a duration for people: about two significant digits, and a unit.

    >>> shown_duration(0.0123), shown_duration(200000)
    ('12 ms', '2.3 d')
    """
    if seconds < 0.001:
        return "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for size, unit, next_size in _UNITS:
        if seconds < next_size:
            value = seconds / size
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{seconds / 86400:.0f} d"


_UNITS: Final = ((1, "s", 120), (60, "min", 7200), (3600, "h", 172_800), (86400, "d", 864_000_000))
