"""Timelines: what a process did and when, as the journal's own times tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pylash.durable import SECOND, JournalEntry, Store
from pylash.runtime.records import WITHDRAWN
from pylash.values import ProcessUnknown

_COLOURS: Final[Mapping[str, int]] = {
    "done": 32,
    "failed": 31,
    "cancelled": 33,
    "open": 34,
    "mark": 31,
    "grey": 90,
}
_BAR: Final = {"done": "█", "failed": "▒", "cancelled": "░", "open": "─"}
_NAME: Final = 24
_TIME: Final = 9


class Effect(msgspec.Struct, frozen=True):
    """One effect of a process: its key and name, when it began and ended, and how."""

    key: str
    name: str
    kind: str
    started: int
    ended: int | None
    status: str

    @property
    def seconds(self) -> float | None:
        """How long it took, if it has ended."""
        return None if self.ended is None else max(0, self.ended - self.started) / SECOND


async def effects_of(store: Store, process_id: str) -> list[Effect]:
    """Return what a process did, in the order of the beginnings."""
    record = await store.processes.get(process_id)
    if record is None:
        raise ProcessUnknown(process_id)
    return effects_from(await store.journal.timeline(record.run), record.settled)


def effects_from(entries: Sequence[JournalEntry], settled: int | None = None) -> list[Effect]:
    """Return what a journal says was done, of a run that ended at a time."""
    return [_effect(entry, settled) for entry in entries if entry.kind not in ("now", "decision")]


def _effect(entry: JournalEntry, settled: int | None) -> Effect:
    ended = entry.ended
    if ended is None and entry.due is not None and entry.kind == "sleep":
        passed = settled is not None and entry.due <= settled
        ended = entry.due if passed else None
    name = entry.label or entry.key
    return Effect(entry.key, name, entry.kind, entry.started, ended, _status(entry, ended))


def _status(entry: JournalEntry, ended: int | None) -> str:
    if ended is None:
        return "open"
    outcome = entry.outcome or b""
    if outcome.startswith(WITHDRAWN):
        return "cancelled"
    return "failed" if b'"type":"failed"' in outcome[:200] or b'"type_name"' in outcome else "done"


def draw_timeline(
    effects: Sequence[Effect],
    *,
    width: int = 80,
    colour: bool = False,
    marks: Mapping[int, str] | None = None,
) -> str:
    """Return effects as bars on one time axis; ``marks`` are moments (microseconds) to point at.

    >>> print(draw_timeline(await handle.timeline(), width=100))  # doctest: +SKIP
    """
    moments = [at for one in effects for at in (one.started, one.ended) if at is not None]
    moments += list(marks or ())
    if not moments:
        return "nothing was recorded yet"
    first, last = min(moments), max(moments)
    room = max(10, width - _NAME - _TIME - 2)
    scale = room / max(1, last - first)
    lines = [_row(one, first, last, room, scale, colour) for one in effects]
    lines += [_mark(at, text, first, room, scale, colour) for at, text in (marks or {}).items()]
    ticks = f"{'':{_NAME}} 0 s{(last - first) / SECOND:>{room - 5}.1f} s"
    return "\n".join([*lines, _painted(ticks, "grey", colour)])


def _row(effect: Effect, first: int, last: int, room: int, scale: float, colour: bool) -> str:
    begin = min(room - 1, int((effect.started - first) * scale))
    end = last if effect.ended is None else effect.ended
    size = max(1, min(room - begin, round((end - effect.started) * scale)))
    bar = _painted(_BAR[effect.status] * size, effect.status, colour)
    took = "open" if effect.seconds is None else _duration(effect.seconds)
    name = effect.name if len(effect.name) <= _NAME else f"{effect.name[: _NAME - 1]}…"
    return f"{name:{_NAME}} {' ' * begin}{bar}{' ' * (room - begin - size)} {took:>{_TIME - 1}}"


def _mark(at: int, text: str, first: int, room: int, scale: float, colour: bool) -> str:
    begin = min(room - 1, int((at - first) * scale))
    label = f"✗ {text}"
    if begin + len(label) > room:
        begin = max(0, room - len(label))
    return f"{'':{_NAME}} {' ' * begin}{_painted(label, 'mark', colour)}"


def _painted(text: str, what: str, colour: bool) -> str:
    return f"\x1b[{_COLOURS[what]}m{text}\x1b[0m" if colour else text


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
