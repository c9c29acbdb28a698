"""Events of running turns for listeners in other processes, in a table of temporary rows.

Rule 1. A turn writes its events, in chunks, only after a listener in another process has requested them.
Rule 2. Nothing depends on these rows: a crash may lose them, and the commit of the turn deletes them.
"""

from __future__ import annotations

from pylash.stores.operation import Notify, Port, Statement, Steps, operation
from pylash.stores.tables.runs import wake

_ASK = """
insert into pylash_turn_events(run, sequence, body)
select id, 0, ? from pylash_runs where id = ? and settled is null {update} on conflict do nothing"""

_ASKED = "select 1 from pylash_turn_events where run = ? and sequence = 0"

# Only for an open run, which is locked: a row after the commit would never be deleted.
_ADD = """
insert into pylash_turn_events(run, sequence, body)
select id, ?, ? from pylash_runs where id = ? and fence = ? and settled is null {share}
on conflict do nothing"""

_READ = """
select sequence, body from pylash_turn_events where run = ? and sequence > ? order by sequence"""

FORGET_EVENTS = "delete from pylash_turn_events where run = ?"


class SqlTurnEvents(Port):
    """Turn events in SQL."""

    @operation()
    def ask(self, run: int) -> Steps[None]:
        """Request the events of a turn for a listener in another process."""
        if (yield Statement(_ASK, (b"[]", run))).changed:
            yield from wake(run)  # so that its worker reads the request

    @operation(read_only=True)
    def is_asked(self, run: int) -> Steps[bool]:
        """Return whether a listener requested the events of a turn."""
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
