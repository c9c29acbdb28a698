"""What turns say while they run, for listeners in other processes: a side table, empty in the end.

Rule 1. A turn writes here only after somebody elsewhere has asked for it, and in chunks.
Rule 2. Nothing depends on these rows: they are lost with a crash, and deleted with the commit.
"""

from __future__ import annotations

from pylash.stores.runs import wake_run
from pylash.stores.sql import Notify, Port, Statement, Steps, operation

_ASK = """
insert into pylash_turn_events(run, sequence, body)
select id, 0, ? from pylash_runs where id = ? and settled is null {update} on conflict do nothing"""

_ASKED = "select 1 from pylash_turn_events where run = ? and sequence = 0"

# An open run only, and locked: what comes after the commit would stay for ever.
_ADD = """
insert into pylash_turn_events(run, sequence, body)
select id, ?, ? from pylash_runs where id = ? and fence = ? and settled is null {share}
on conflict do nothing"""

_READ = """
select sequence, body from pylash_turn_events where run = ? and sequence > ? order by sequence"""

FORGET_EVENTS = "delete from pylash_turn_events where run = ?"


class SqlTurnEvents(Port):
    """The side table of turn events."""

    @operation()
    def ask(self, run: int) -> Steps[None]:
        """Say that somebody elsewhere listens to a turn."""
        if (yield Statement(_ASK, (b"[]", run))).changed:
            yield from wake_run(run)  # so that whoever runs it looks

    @operation(read_only=True)
    def is_asked(self, run: int) -> Steps[bool]:
        """Return whether somebody elsewhere listens to a turn."""
        return bool((yield Statement(_ASKED, (run,))).rows)

    @operation()
    def add(self, run: int, fence: int, sequence: int, body: bytes) -> Steps[None]:
        """Add a chunk of events."""
        yield Statement(_ADD, (sequence, body, run, fence))
        yield Notify(f"chunk:{run}")

    @operation(read_only=True)
    def read(self, run: int, after: int) -> Steps[list[tuple[int, bytes]]]:
        """Return the chunks after a number."""
        rows = (yield Statement(_READ, (run, after))).rows
        return [(sequence, bytes(body)) for sequence, body in rows]
