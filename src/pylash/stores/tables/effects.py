"""Effects: the rows of the journal. This module owns every write to ``pylash_effects``.

Rule 1. A record is one insert that locks the run's row and compares the fence in the same
        statement. With a plain EXISTS, a stale owner could insert after another worker's claim.
Rule 2. The first record of a key wins; later ones change nothing and read it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from pylash.durable.runs import Fence, Instant, JournalEntry
from pylash.durable.scopes import ProcessScope
from pylash.stores.operation import Again, Statement, Steps
from pylash.stores.tables.contents import PUT_ATTACHMENT

INLINE_BYTES: Final = 1024 * 1024
"""Outcomes over this size are stored by reference."""

EFFECT_COLUMNS = "run, key, kind, hash, command, outcome, attachment, due, started, ended, label"

RECORD_EFFECT = f"""
insert into pylash_effects({EFFECT_COLUMNS})
select id, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? from pylash_runs where id = ? and fence = ? {{share}}
on conflict do nothing"""

# The rows of runs are locked in the order of their ids, as in all operations.
RECORD_MANY = f"""
insert into pylash_effects({EFFECT_COLUMNS})
select x.run, x.key, x.kind, x.hash, x.command, x.outcome, x.attachment, x.due, x.started, x.ended, x.label
from unnest(?::text[], ?::text[], ?::bytea[], ?::bytea[], ?::bytea[], ?::text[], ?::bigint[], ?::bigint[],
            ?::bigint[], ?::text[], ?::bigint[], ?::bigint[])
     as x(key, kind, hash, command, outcome, attachment, due, started, ended, label, run, fence)
join pylash_runs r on r.id = x.run and r.fence = x.fence order by r.id for share of r
on conflict do nothing returning run, key"""

_SLEEP = """
insert into pylash_effects(run, key, kind, hash, command, due, started, label)
select id, ?, ?, ?, ?, {now} + ?, ?, ? from pylash_runs where id = ? and fence = ? {share}
on conflict do nothing"""

_OPEN = """
insert into pylash_effects(run, key, kind, hash, command, wait, due, started, label)
values (?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing"""

_END = """
update pylash_effects set outcome = ?, ended = ? where run = ? and key = ? and outcome is null"""

_WAITING_RUNS = (
    "select distinct run from pylash_effects where wait = ? and outcome is null order by 1"
)

FORGET_EFFECTS = "delete from pylash_effects where run in ({bigints})"

_READ = """
select e.key, e.kind, e.hash, e.command, coalesce(e.outcome, w.terminal, a.body),
       coalesce(length(coalesce(e.outcome, w.terminal, a.body)), 0), e.due, e.wait, e.started, e.ended, e.label
from pylash_effects e left join pylash_waits w on w.id = e.wait
left join pylash_attachments a on a.digest = e.attachment where e.run = ? and e.key = ?"""

COPY_EFFECTS = f"""
insert into pylash_effects(run, wait, {EFFECT_COLUMNS.removeprefix("run, ")})
select cast(? as bigint), null, {EFFECT_COLUMNS.removeprefix("run, ")} from pylash_effects
where run = ? and key in ({{texts}})
on conflict do nothing"""

IMPORT_EFFECT = f"""
insert into pylash_effects(wait, {EFFECT_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_SET_MOVES = """
insert into pylash_effects(run, key, kind, hash, outcome, started) values (?, '!moves', 'now', ?, ?, 0)
on conflict (run, key) do update set outcome = excluded.outcome"""

FORGET_EFFECTS_OF_TURNS = """
delete from pylash_effects where run in ({bigints})
  and run in (select id from pylash_runs where id in ({bigints}) and kind <> 'process')"""


def waiting_runs(wait: str) -> Steps[list[int]]:
    """Return the runs that wait for a wait, a process or a turn, without locks."""
    return [run for (run,) in (yield Statement(_WAITING_RUNS, (wait,))).rows]


def effect_row(fence: Fence, entry: JournalEntry) -> tuple[Any, ...]:
    """Return the parameters of ``RECORD_EFFECT`` for an entry; a large outcome becomes a reference."""
    outcome = entry.outcome
    attachment: str | None = None
    if outcome is not None and len(outcome) > INLINE_BYTES:
        attachment = hashlib.sha256(outcome).hexdigest()
        outcome = None
    return (
        entry.key,
        entry.kind,
        entry.hash,
        entry.command,
        outcome,
        attachment,
        entry.due,
        entry.started,
        entry.ended,
        entry.label,
        fence.run,
        fence.token,
    )


def open_effect(
    fence: Fence, entry: JournalEntry, wait: str, due: Instant | None = None
) -> Steps[JournalEntry]:
    """Record that an effect of a locked run began to wait; its key was free."""
    waiting = replace(entry, wait=wait, due=due)
    if not (yield from begin_effect(fence, waiting)):
        raise Again  # another transaction took the key meanwhile
    return waiting


def begin_effect(fence: Fence, entry: JournalEntry) -> Steps[bool]:
    """Record that an effect of a locked run began to wait; False if its key is taken."""
    row = (fence.run, entry.key, entry.kind, entry.hash, entry.command, entry.wait, entry.due)
    return bool((yield Statement(_OPEN, (*row, entry.started, entry.label))).changed)


def close_effect(
    fence: Fence, entry: JournalEntry, outcome: bytes, ended: Instant
) -> Steps[JournalEntry]:
    """Give an open effect of a locked run its outcome."""
    if not (yield from end_effect(fence, replace(entry, outcome=outcome, ended=ended))):
        raise Again  # another transaction gave it one meanwhile
    return replace(entry, outcome=outcome, size=len(outcome), ended=ended)


def end_effect(fence: Fence, entry: JournalEntry) -> Steps[bool]:
    """Give an open effect of a locked run its outcome and end time; False if it has an outcome."""
    row = (entry.outcome, entry.ended, fence.run, entry.key)
    return bool((yield Statement(_END, row)).changed)


def read_effect(run: int, key: str) -> Steps[JournalEntry]:
    """Return the entry of a key of a locked run."""
    known = yield from find_effect(run, key)
    if known is None:
        raise Again
    return known


def find_effect(run: int, key: str) -> Steps[JournalEntry | None]:
    """Return the entry of a key, if there is one."""
    rows = (yield Statement(_READ, (run, key))).rows
    return JournalEntry(*rows[0]) if rows else None


def record_effect(fence: Fence, entry: JournalEntry) -> Steps[bool]:
    """Record an effect and store a large outcome; False if its key is taken or the fence is stale."""
    row = effect_row(fence, entry)
    if row[5] is not None:
        yield Statement(PUT_ATTACHMENT, (row[5], entry.outcome))
    return bool((yield Statement(RECORD_EFFECT, row)).changed)


def record_notes(fence: Fence, notes: Sequence[JournalEntry]) -> Steps[None]:
    """Record the notes of a run, in the transaction of an effect that may depend on them."""
    for note in notes:
        yield from record_effect(fence, note)


def import_effect(run: int, entry: JournalEntry) -> Steps[None]:
    """Add an effect of another store to a run that was added in this transaction."""
    *row, _, _ = effect_row(Fence(run, 0, ProcessScope("")), entry)
    if row[5] is not None:
        yield Statement(PUT_ATTACHMENT, (row[5], entry.outcome))
    yield Statement(IMPORT_EFFECT, (entry.wait, run, *row))


def record_sleep(fence: Fence, entry: JournalEntry, duration: int) -> Steps[None]:
    """Record the end of a sleep, after a duration, unless its key is taken or the fence is stale."""
    what = (entry.key, entry.kind, entry.hash, entry.command)
    row = (*what, duration, entry.started, entry.label, fence.run, fence.token)
    yield Statement(_SLEEP, row)


def set_moves(run: int, moves: int) -> Steps[None]:
    """Write how often the records of a locked run were moved to a new journal of its engine."""
    yield Statement(_SET_MOVES, (run, b"", str(moves).encode()))
