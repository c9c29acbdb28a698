"""Effects that ride on nodes: what a turn records with a message needs no row of its own.

Rule 1. Small outcomes of a turn's own run ride; waits, sleeps and everything large has a row in the journal.
Rule 2. What an effect was asked is not kept, only its hash: a turn asks for what its messages say.
Rule 3. A node that was there already carries nothing new: then the effects get rows after all.
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
"""Outcomes up to this size are loaded with the journal, larger ones when they are asked for."""

_ENTRIES = msgspec.msgpack.Decoder(list[tuple[Any, ...]])

_RETURNED: Final = b'{"type":"returned","outcome":{"kind":"%b",'
"""How most outcomes begin: of those only the rest is stored, as a text."""

_WORDS: Final = (
    *("sync_execution_environment", "environment", "llm_call", "model"),
    *("tool_attempt", "durable_step", "direct", "process", "queue"),
)
"""Kinds and labels that are stored as their numbers. Words are only added, at the end."""

_NUMBERS: Final = {word: number for number, word in enumerate(_WORDS)}

_TURN = """
select l.number, l.head, r.result, r.settled from pylash_runs r join pylash_lanes l on l.lane = r.lane
where r.id = ? and l.number is not null"""

_CARRIED = """
select effects from pylash_nodes
where id > ? and id <= ? and run = ? and effects is not null order by id"""

RECORDED: Final = """
((select count(*) from pylash_effects e where e.run = pylash_runs.id)
 + case when pylash_runs.lane is null then 0 else
   (select count(*) from pylash_lanes l
    join pylash_nodes n on n.id > l.number * 16777216 + l.head and n.id < (l.number + 1) * 16777216
    where l.lane = pylash_runs.lane and n.run = pylash_runs.id) end)"""
"""How much a run has recorded: more of it means progress."""


def split_effects(
    fence: Fence, entries: Sequence[JournalEntry], *, nodes: bool
) -> tuple[list[JournalEntry], list[JournalEntry]]:
    """Return those effects that ride on a node, and those that need rows."""
    if not nodes or not isinstance(fence.scope, TurnScope | QueueDrainScope):
        return [], list(entries)
    return [one for one in entries if _rides(one)], [one for one in entries if not _rides(one)]


def _rides(entry: JournalEntry) -> bool:
    small = entry.outcome is not None and len(entry.outcome) <= LOADED_BYTES
    return small and entry.due is None and entry.wait is None


def pack_effects(entries: Iterable[JournalEntry]) -> bytes | None:
    """Return effects as a node carries them."""
    rows = [_row(entry) for entry in entries]
    return msgspec.msgpack.encode(rows) if rows else None


def _row(entry: JournalEntry) -> tuple[Any, ...]:
    outcome, begins = entry.outcome or b"", _RETURNED % entry.kind.encode()
    rest = outcome[len(begins) :].decode() if outcome.startswith(begins) else outcome
    took = None if entry.ended is None else entry.ended - entry.started
    kind, label = (_NUMBERS.get(word or "", word) for word in (entry.kind, entry.label))
    return (entry.key, kind, entry.hash, rest, entry.started, took, label)


def _entry(row: tuple[Any, ...]) -> JournalEntry:
    key, kind, digest, rest, started, took, label = row
    kind, label = (_WORDS[word] if isinstance(word, int) else word for word in (kind, label))
    outcome = rest if isinstance(rest, bytes) else _RETURNED % kind.encode() + rest.encode()
    ended = None if took is None else started + took
    size = len(outcome)
    return JournalEntry(key, kind, digest, None, outcome, size, None, None, started, ended, label)


def unpack_effects(body: bytes) -> list[JournalEntry]:
    """Return the effects that a node carries."""
    return [_entry(row) for row in _ENTRIES.decode(body)]


def effects_in(segment: Segment, after: int, run: int) -> Steps[list[JournalEntry]]:
    """Return the effects of a run that the nodes of a segment after a place carry."""
    base = segment.number << NODE_BITS
    rows = (yield Statement(_CARRIED, (base + after, base + segment.upto, run))).rows
    return [entry for (body,) in rows for entry in unpack_effects(bytes(body))]


def effects_of_turn(run: int) -> Steps[list[JournalEntry]]:
    """Return the effects of a run that nodes carry: those of its turn, or none."""
    rows = (yield Statement(_TURN, (run,))).rows
    if not rows:
        return []
    number, head, result, settled = rows[0]
    after, upto = head, (1 << NODE_BITS) - 1
    if settled is not None:
        first, upto = decode(bytes(result or b"{}")).get("nodes") or (1, 0)
        after = first - 1
    return (yield from effects_in(Segment(number, upto), after, run))
