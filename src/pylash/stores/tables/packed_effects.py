"""Effects that are packed into nodes: an effect that a turn records with a message needs no separate row.

Rule 1. Small outcomes of the run of a turn are packed; waits, sleeps and large outcomes have rows in the journal.
Rule 2. The input of a packed effect is not stored, only its hash: it follows from the messages of the turn.
Rule 3. Nothing is packed into a node that exists already: the effects get rows instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from pylash.durable.runs import Fence, JournalEntry
from pylash.durable.scopes import QueueDrainScope, TurnScope
from pylash.durable.sessions import Segment
from pylash.stores.operation import Statement, Steps
from pylash.values.canonical import decode

NODE_BITS: Final = 24

LOADED_BYTES: Final = 4 * 1024
"""Outcomes up to this size are loaded with the journal, larger ones on demand."""

_ENTRIES = msgspec.msgpack.Decoder(list[tuple[Any, ...]])

_RETURNED: Final = b'{"type":"returned","outcome":{"kind":"%b",'
"""The beginning of most outcomes: only the rest of such an outcome is stored, as a text."""

_COMMON: Final = (
    *("sync_execution_environment", "environment", "llm_call", "model"),
    *("tool_attempt", "durable_step", "direct", "process", "queue"),
)
"""Kinds and labels that are stored as numbers. New ones are added at the end only."""

_NUMBERS: Final = {text: number for number, text in enumerate(_COMMON)}

_TURN = """
select l.number, l.head, r.result, r.settled from pylash_runs r join pylash_lanes l on l.lane = r.lane
where r.id = ? and l.number is not null"""

_PACKED = """
select effects from pylash_nodes
where id > ? and id <= ? and run = ? and effects is not null order by id"""

RECORDED: Final = """
((select count(*) from pylash_effects e where e.run = pylash_runs.id)
 + case when pylash_runs.lane is null then 0 else
   (select count(*) from pylash_lanes l
    join pylash_nodes n on n.id > l.number * 16777216 + l.head and n.id < (l.number + 1) * 16777216
    where l.lane = pylash_runs.lane and n.run = pylash_runs.id) end)"""
"""How many effects and nodes a run has recorded: a greater number is progress."""


def split_effects(
    fence: Fence, entries: Sequence[JournalEntry], *, nodes: bool
) -> tuple[list[JournalEntry], list[JournalEntry]]:
    """Return the effects that can be packed into a node, and those that need rows."""
    if not nodes or not isinstance(fence.scope, TurnScope | QueueDrainScope):
        return [], list(entries)
    packed = [entry for entry in entries if _is_packed(entry)]
    return packed, [entry for entry in entries if not _is_packed(entry)]


def _is_packed(entry: JournalEntry) -> bool:
    small = entry.outcome is not None and len(entry.outcome) <= LOADED_BYTES
    return small and entry.due is None and entry.wait is None


def pack_effects(entries: Iterable[JournalEntry]) -> bytes | None:
    """Return effects as the bytes that a node has."""
    rows = [_row(entry) for entry in entries]
    return msgspec.msgpack.encode(rows) if rows else None


def _row(entry: JournalEntry) -> tuple[Any, ...]:
    outcome, begins = entry.outcome or b"", _RETURNED % entry.kind.encode()
    rest = outcome[len(begins) :].decode() if outcome.startswith(begins) else outcome
    took = None if entry.ended is None else entry.ended - entry.started
    kind, label = (_NUMBERS.get(text or "", text) for text in (entry.kind, entry.label))
    return (entry.key, kind, entry.hash, rest, entry.started, took, label)


def _entry(row: tuple[Any, ...]) -> JournalEntry:
    key, kind, digest, rest, started, took, label = row
    kind, label = (_COMMON[one] if isinstance(one, int) else one for one in (kind, label))
    outcome = rest if isinstance(rest, bytes) else _RETURNED % kind.encode() + rest.encode()
    ended = None if took is None else started + took
    size = len(outcome)
    return JournalEntry(key, kind, digest, None, outcome, size, None, None, started, ended, label)


def unpack_effects(body: bytes) -> list[JournalEntry]:
    """Return the effects that are packed into a node."""
    return [_entry(row) for row in _ENTRIES.decode(body)]


def effects_in(segment: Segment, after: int, run: int) -> Steps[list[JournalEntry]]:
    """Return the effects of a run that are packed into the nodes of a segment after a place."""
    base = segment.number << NODE_BITS
    rows = (yield Statement(_PACKED, (base + after, base + segment.upto, run))).rows
    return [entry for (body,) in rows for entry in unpack_effects(bytes(body))]


def effects_of_turn(run: int) -> Steps[list[JournalEntry]]:
    """Return the effects of a run that are packed into nodes; none if it is not a turn."""
    rows = (yield Statement(_TURN, (run,))).rows
    if not rows:
        return []
    number, head, result, settled = rows[0]
    after, upto = head, (1 << NODE_BITS) - 1
    if settled is not None:
        first, upto = decode(bytes(result or b"{}")).get("nodes") or (1, 0)
        after = first - 1
    return (yield from effects_in(Segment(number, upto), after, run))
