"""Waits in SQL.

Rule 1. The row of a wait is locked before its end is decided: the deadline, the revocation and an
        earlier answer are checked in the transaction that writes the end.
Rule 2. The waiting runs are locked before the wait, as in all operations. If another run began to wait in
        between, the operation starts over, so that no wake-up is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pylash.durable.runs import Fence, Instant, JournalEntry
from pylash.durable.scopes import ProcessScope, session_of
from pylash.durable.stores import Answer, WaitOpening, WaitStatus
from pylash.durable.waits import (
    ACCEPTED,
    RESOLUTIONS,
    STILL_OPEN,
    SUPERSEDED,
    UNKNOWN_OR_REVOKED,
    WAIT_NAMES,
    Cancelled,
    Resolution,
    ResolveOutcome,
    Timeout,
    WaitName,
    WaitView,
    check_answer,
)
from pylash.stores.operation import Again, Notify, Port, Statement, Steps, operation
from pylash.stores.tables.effects import (
    begin_effect,
    close_effect,
    read_effect,
    record_notes,
    waiting_runs,
)
from pylash.stores.tables.runs import lock_fenced, wake, wake_waiters
from pylash.stores.tables.sessions import ADD_SESSION_ROW, REVOKE_WAITS
from pylash.values.canonical import decode, encode, write, write_payload
from pylash.values.names import storable

# An early answer may have created the row before the wait is opened. The earliest deadline counts. An opening without
# a title is that of another waiter, and must not clear the title of the run.
_OPEN = """
insert into pylash_waits(id, name, session, generation, kind, title, tool, arguments, schema, opened, deadline)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, {now}, {now} + ?)
on conflict (id) do update set
  kind = case when excluded.title = '' and pylash_waits.title <> '' then pylash_waits.kind else excluded.kind end,
  tool = case when excluded.title = '' and pylash_waits.title <> '' then pylash_waits.tool else excluded.tool end,
  arguments = case when excluded.title = '' and pylash_waits.title <> ''
                   then pylash_waits.arguments else excluded.arguments end,
  schema = coalesce(excluded.schema, pylash_waits.schema),
  title = case when excluded.title = '' then pylash_waits.title else excluded.title end,
  opened = coalesce(pylash_waits.opened, excluded.opened),
  deadline = coalesce({least}(pylash_waits.deadline, excluded.deadline), pylash_waits.deadline, excluded.deadline)
where pylash_waits.terminal is null"""

_LOOK = """
select w.id, w.terminal, w.deadline - {now}, w.generation < coalesce(s.generation, 0)
from pylash_waits w left join pylash_sessions s on s.id = w.session where w.id in ({texts})"""

# In the order of their ids, as in all operations.
_LOCK_WAITERS = """
select id from pylash_runs where id in
  (select run from pylash_effects where wait = ? and outcome is null) order by id {update}"""

# An early answer inserts a row; the update of an existing row only locks it.
_LOCK_OR_ADD = """
insert into pylash_waits(id, name, session, generation, kind, title) values (?, ?, ?, ?, '', '')
on conflict (id) do update set id = excluded.id
returning terminal, token, schema, deadline <= {now},
  generation < coalesce((select s.generation from pylash_sessions s where s.id = session), 0)"""

_LOCK_WAIT = "select terminal, deadline <= {now} from pylash_waits where id = ? {update}"

_CANCEL = "update pylash_waits set terminal = ?, resolved = {now} where id = ?"

_LOCK_KIND = "select terminal, kind from pylash_waits where id = ? {update}"

_GOES_ON = "select 1 from pylash_processes where id = ? and status = 'open' and cancel = 0"

# Without a waiter it is not listed. It still takes an answer, as before it was first opened.
_UNLIST = """
update pylash_waits set opened = null where id = ? and not exists
  (select 1 from pylash_effects e
   where e.wait = pylash_waits.id and e.outcome is null and not (e.run = ? and e.key = ?))"""

_SUPERSEDE = """
update pylash_waits set terminal = ?, answered_by = ?, resolved = {now}
where id = ? and terminal is null"""

_END = """
update pylash_waits set terminal = ?, answered_by = ?, token = ?, resolved = {now} where id = ?"""

IMPORT_WAIT = """
insert into pylash_waits(id, name, session, generation, kind, title, tool, arguments, schema, terminal, answered_by,
  opened, deadline, resolved) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing"""

_LISTED = """
select w.name, w.kind, w.title, w.tool, w.arguments, w.opened, w.deadline
from pylash_waits w left join pylash_sessions s on s.id = w.session
where w.terminal is null and w.opened is not null and w.generation >= coalesce(s.generation, 0)
  and (w.deadline is null or w.deadline > {now})
order by w.opened, w.id"""

_LISTED_OF_SESSION = _LISTED.replace("where ", "where w.session = ? and ")

_INTERRUPTED = "select 1 from pylash_queue where session = ? and policy = 'interrupt' limit 1"

_GENERATION = "select generation from pylash_sessions where id = ?"

_SHARE_SESSION = "select generation from pylash_sessions where id = ? {share}"

_LOCK_SESSION = "select generation from pylash_sessions where id = ? {update}"

_WAITERS_OF_SESSION = """
select distinct e.run from pylash_waits w join pylash_effects e on e.wait = w.id
where w.session = ? and w.terminal is null order by 1"""


class SqlWaits(Port):
    """The waits in SQL."""

    @operation()
    def open(self, opening: WaitOpening) -> Steps[WaitStatus]:
        """Open a wait that people can see and answer."""
        yield from _open(opening)
        return (yield from _status(opening.name))

    @operation()
    def open_for(
        self,
        fence: Fence,
        entry: JournalEntry,
        opening: WaitOpening,
        notes: Sequence[JournalEntry] = (),
    ) -> Steps[tuple[JournalEntry, WaitStatus]]:
        """Open a wait as an effect of a run."""
        now = yield from lock_fenced(fence)
        yield from record_notes(fence, notes)
        due = None if opening.within is None else Instant(now + opening.within)
        waiting = replace(entry, wait=opening.name.id, due=due)
        is_new = yield from begin_effect(fence, waiting)
        stands = waiting if is_new else (yield from read_effect(fence.run, entry.key))
        # The effect may have been cancelled meanwhile. Then it does not list its wait, which may be open.
        if not stands.size:
            yield from _open(opening)
        session = session_of(opening.name.scope)
        if session is not None and (yield Statement(_INTERRUPTED, (session,))).rows:
            # An interrupting message was queued before this wait.
            yield from supersede(opening.name.id)
        status = yield from _status(opening.name)
        stands = yield from read_effect(fence.run, entry.key)
        return stands, _within(status, stands, now)

    @operation()
    def leave(self, fence: Fence, key: str, name: WaitName) -> Steps[WaitStatus]:
        """Stop waiting for a wait, which stays open, when the time of the effect is over."""
        now = yield from lock_fenced(fence)
        # Locked, so that an answer comes before the end of the effect or is for the next one that waits.
        yield Statement(_LOCK_WAIT, (name.id,))
        status = yield from _status(name)
        entry = yield from read_effect(fence.run, key)
        if status.terminal is None and not status.revoked and not entry.size:
            if entry.due is None or entry.due > now:
                return _within(status, entry, now)
            entry = yield from close_effect(fence, entry, STILL_OPEN, now)
            yield Statement(_UNLIST, (name.id, fence.run, key))
        # By the effect and not by the wait: an earlier attempt may have ended the effect, and an answer came since.
        end = None if entry.outcome is None else RESOLUTIONS.decode(entry.outcome)
        return WaitStatus(end, status.revoked)

    @operation()
    def resolve(
        self, name: WaitName, resolution: Resolution, answer: Answer
    ) -> Steps[ResolveOutcome]:
        """End a wait, once."""
        if answer.fence is not None:
            yield from lock_fenced(answer.fence, alone=True)
        runs = yield from _lock_waiting(name.id)
        row = (name.id, encode(name).decode(), session_of(name.scope), name.generation)
        terminal, token, schema, late, revoked = (yield Statement(_LOCK_OR_ADD, row)).rows[0]
        if terminal is not None and token == answer.token:
            return ACCEPTED  # an earlier attempt was committed and its answer lost
        if revoked:
            return UNKNOWN_OR_REVOKED
        if terminal is not None:
            return ResolveOutcome("already_resolved", RESOLUTIONS.decode(terminal))
        if schema is not None and not late:
            check_answer(resolution, decode(bytes(schema)))
        # The wait is locked now: a run that begins to wait from here on finds its end. A run that began after the
        # runs were locked is not locked, and waking it could cause a deadlock.
        if (yield from waiting_runs(name.id)) != runs:
            raise Again
        if late:
            yield from _end(name, Timeout(), Answer(""))
            return ResolveOutcome("already_resolved", Timeout())
        yield from _end(name, resolution, answer)
        return ACCEPTED

    @operation()
    def expire(self, name: WaitName) -> Steps[WaitStatus]:
        """End a wait whose deadline has passed."""
        runs = yield from _lock_waiting(name.id)
        rows = (yield Statement(_LOCK_WAIT, (name.id,))).rows
        if (yield from waiting_runs(name.id)) != runs:
            raise Again
        if rows and rows[0][0] is None and rows[0][1]:
            yield from _end(name, Timeout(), Answer(""))
        return (yield from _status(name))

    @operation(read_only=True)
    def look(self, waits: Sequence[str]) -> Steps[dict[str, WaitStatus]]:
        """Return the status of waits, by their ids."""
        rows = (yield Statement(_LOOK, (list(waits),))).rows
        return {row[0]: _seen(row[1], row[2], row[3]) for row in rows}

    @operation(read_only=True)
    def listed(self, session_id: str | None = None) -> Steps[list[WaitView]]:
        """Return the open waits."""
        if session_id is None:
            rows = (yield Statement(_LISTED)).rows
        else:
            rows = (yield Statement(_LISTED_OF_SESSION, (session_id,))).rows
        return [
            WaitView(
                WAIT_NAMES.decode(name),
                kind,
                title,
                tool,
                None if arguments is None else decode(arguments),
                Instant(opened),
                None if deadline is None else Instant(deadline),
            )
            for name, kind, title, tool, arguments, opened, deadline in rows
        ]

    @operation(read_only=True)
    def generation(self, session_id: str) -> Steps[int]:
        """Return how often the session's waits were revoked."""
        rows = (yield Statement(_GENERATION, (session_id,))).rows
        return int(rows[0][0]) if rows else 0

    @operation()
    def revoke(self, session_id: str, generation: int) -> Steps[None]:
        """Revoke every key of the session up to generation."""
        known = (yield Statement(_GENERATION, (session_id,))).rows
        if known and known[0][0] > generation:
            return  # an earlier attempt was committed and its answer lost
        # Runs are locked before the session's row. _open locks that row shared, so the second read is final.
        runs = (yield Statement(_WAITERS_OF_SESSION, (session_id,))).rows
        for (run,) in runs:
            yield from wake(run)
        yield Statement(ADD_SESSION_ROW, (session_id,))
        yield Statement(_LOCK_SESSION, (session_id,))
        if (yield Statement(_WAITERS_OF_SESSION, (session_id,))).rows != runs:
            raise Again
        yield Statement(REVOKE_WAITS, (generation + 1, session_id, generation + 1))
        yield Notify("")


def _lock_waiting(wait: str) -> Steps[list[int]]:
    """Lock the runs that wait for a wait, and return them."""
    return [run for (run,) in (yield Statement(_LOCK_WAITERS, (wait,))).rows]


def _open(opening: WaitOpening) -> Steps[None]:
    name = opening.name
    row = (name.id, encode(name).decode(), session_of(name.scope), name.generation)
    shown = (opening.kind, opening.title, opening.tool, opening.arguments, opening.schema)
    yield Statement(_OPEN, (*row, *shown, opening.timeout))
    if (session := session_of(name.scope)) is not None:
        # Held until the commit, so that a revocation sees this waiter, or this waiter sees the revocation.
        yield Statement(ADD_SESSION_ROW, (session,))
        yield Statement(_SHARE_SESSION, (session,))


def _status(name: WaitName) -> Steps[WaitStatus]:
    rows = (yield Statement(_LOOK, ([name.id],))).rows
    return _seen(*rows[0][1:]) if rows else WaitStatus()


def _seen(terminal: bytes | None, remaining: int | None, revoked: bool) -> WaitStatus:
    end = None if terminal is None else RESOLUTIONS.decode(terminal)
    return WaitStatus(end, bool(revoked), remaining)


def _within(status: WaitStatus, entry: JournalEntry, now: Instant) -> WaitStatus:
    """Return the status of a wait for an effect that may wait for a shorter time."""
    if entry.due is None:
        return status
    rest = entry.due - now
    return replace(
        status, remaining=rest if status.remaining is None else min(rest, status.remaining)
    )


def _end(name: WaitName, end: Resolution, answer: Answer) -> Steps[None]:
    """Write the end of a wait that is locked, and wake every run that waits for it."""
    by = None if answer.by is None else storable(answer.by)
    yield Statement(_END, (write_payload(end, 2), by, answer.token, name.id))
    yield from wake_waiters(name.id)
    yield Notify(f"wait:{name.id}")


def supersede(wait: str) -> Steps[None]:
    """End an open wait without an answer."""
    yield Statement(_SUPERSEDE, (write(Cancelled()), SUPERSEDED, wait))
    yield Notify(f"wait:{wait}")


def cancel_wait(fence: Fence, wait: str, key: str) -> Steps[bool]:
    """Cancel an effect that waits; False if its wait has ended. Waits for signals and children have no row.

    The wait ends with it, but not one that a process opened by itself: if only a branch of the process was cancelled, such
    as the loser of a race, another branch may wait again.
    """
    # Locked, so that of an answer and a cancel only one wins.
    rows = (yield Statement(_LOCK_KIND, (wait,))).rows
    if not rows or rows[0][0] is not None:
        return not rows
    is_own = rows[0][1] == "custom" and isinstance(fence.scope, ProcessScope)
    if is_own and (yield Statement(_GOES_ON, (fence.scope.id,))).rows:
        yield Statement(_UNLIST, (wait, fence.run, key))
    else:
        yield Statement(_CANCEL, (write(Cancelled()), wait))
        yield Notify(f"wait:{wait}")
    return True
