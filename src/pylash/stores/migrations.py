"""The tables, as a list of migrations; ``schema.sql`` has the resulting schema.

Rule 1. A migration only adds. A migration on main is never edited; a change is a new entry.
Rule 2. ``schema`` in the meta table is the last migration of a database; ``min_code`` is the oldest code
        that may still use it. Old and new workers run side by side during a deploy.

The dialect fills in the braces: ``{id}`` is a 63-bit primary key that the client generates, ``{blob}`` the
type of bytes, and ``{sqlite_only}`` and ``{postgres_only}`` begin a statement that other databases skip.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Migration(NamedTuple):
    """One step of the schema. ``min_code`` is raised only if older code would corrupt data after it."""

    statements: tuple[str, ...]
    min_code: int = 1


MIGRATIONS: Final = (
    Migration(
        (
            """create table pylash_runs(
                id {id}, scope text not null unique, kind text not null, target text not null,
                lane text, lane_seq bigint, state text not null, reason text, at bigint,
                wake_seq bigint not null default 0, owner text, token text,
                fence bigint not null default 0, attempts bigint not null default 0,
                input {blob}, result {blob}, created bigint not null, settled bigint)""",
            # One index serves ready rows and timers: at is null for everything else.
            "create index pylash_runs_at on pylash_runs(at) where at is not null",
            # A second protection of lanes: two runs can never hold the same lane.
            """create unique index pylash_runs_lane on pylash_runs(lane) where lane is not null
                and (state in ('running', 'waiting', 'blocked')
                     or (state = 'queued' and at is not null))""",
            """create index pylash_runs_queue on pylash_runs(lane, lane_seq)
                where lane is not null and state = 'queued' and at is null""",
            # Not clustered by run: that would triple the writes.
            """create table pylash_effects(
                run bigint not null, key text not null, kind text not null, hash {blob} not null,
                command {blob}, outcome {blob}, attachment text, due bigint, wait text,
                started bigint not null, ended bigint, label text, unique(run, key))""",
            "create index pylash_effects_wait on pylash_effects(wait) where wait is not null",
            """create table pylash_waits(
                id text primary key, name text not null, session text,
                generation bigint not null default 0, kind text not null, title text not null,
                tool text, arguments {blob}, terminal {blob}, answered_by text, token text, opened bigint,
                deadline bigint, resolved bigint)""",
            """create index pylash_waits_open on pylash_waits(opened)
                where terminal is null and opened is not null""",
            "create table pylash_lanes(lane text primary key, holder bigint, last_seq bigint not null)",
            "create table pylash_sessions(id text primary key, generation bigint not null default 0)",
            "create table pylash_workers(id text primary key, joined bigint not null, expires bigint not null)",
            "create table pylash_attachments(digest text primary key, body {blob} not null)",
        )
    ),
    Migration(
        (
            # seen is the number of recorded effects at the claim: a greater number later is progress.
            "alter table pylash_runs add column seen bigint not null default 0",
            "alter table pylash_runs add column slot text",
            "alter table pylash_runs add column slot_limit bigint",
            "alter table pylash_runs add column slot_seq bigint",
            """create index pylash_runs_held on pylash_runs(slot, slot_seq)
                where slot is not null and slot_seq is not null""",
            "create table pylash_slots(slot text not null, holder bigint primary key)",
            "create index pylash_slots_slot on pylash_slots(slot)",
            "alter table pylash_workers add column targets text not null default '[]'",
            # number is the id of the first run; watched has a bit for each kind of listener to its end.
            """create table pylash_processes(
                number {id}, id text not null unique, run bigint not null,
                registration {blob} not null, digest {blob} not null, env text, parent text,
                sequence bigint not null default 1, status text not null default 'open',
                output {blob}, cancel bigint not null default 0, epoch bigint not null default 0,
                watched bigint not null default 0, created bigint not null, settled bigint)""",
            # Most processes have one run, whose id is their number.
            """create index pylash_processes_continued on pylash_processes(run)
                where run <> number""",
            """create index pylash_processes_attached on pylash_processes(parent)
                where parent is not null and status = 'open'""",
            # taken is 0 for a signal that was not received yet, 1 for a received one.
            """create table pylash_process_events(
                process bigint not null, sequence bigint not null, type text not null,
                payload {blob}, key text, at bigint not null, taken bigint,
                primary key(process, sequence))""",
            """create unique index pylash_process_events_key on pylash_process_events(process, key)
                where key is not null""",
            """create index pylash_process_events_signal
                on pylash_process_events(process, type, sequence) where taken = 0""",
            """create table pylash_process_grants(
                process text not null, session text not null, frame text not null default '',
                label text not null default '', primary key(session, frame, process))""",
            "create index pylash_process_grants_process on pylash_process_grants(process)",
            "create table pylash_envs(ref text primary key, body {blob} not null)",
            """create table pylash_queue(
                session text not null, process text not null, sequence bigint not null,
                body {blob} not null, at bigint not null, primary key(session, process, sequence))""",
            """create table pylash_triggers(
                key text primary key, type text not null, source text not null, target text not null,
                body {blob} not null, session text, enabled bigint not null default 1,
                created bigint not null)""",
            """create index pylash_triggers_match on pylash_triggers(type, source)
                where enabled = 1""",
            """create table pylash_occurrences(
                id text primary key, type text not null, source text not null, digest {blob} not null,
                payload {blob}, at bigint not null)""",
            """create table pylash_deliveries(
                occurrence text not null, subscription text not null, process text not null,
                primary key(occurrence, subscription))""",
        )
    ),
    Migration(
        (
            # SQLite has one writer at a time, so the lane's row is protection enough. This saves two pages per turn.
            "{sqlite_only} drop index pylash_runs_lane",
            # A turn is a run: its input, its result and the request to cancel it are in its row.
            "alter table pylash_runs add column cancel bigint not null default 0",
            # The options of its session at the time of the submission.
            "alter table pylash_runs add column options {blob}",
            # Columns that change with every turn are in the lane's row, which a turn writes anyway. number is the
            # high part of the session's node ids, null without a session; head is the last committed low part.
            "alter table pylash_lanes add column number bigint",
            "alter table pylash_lanes add column head bigint not null default 0",
            "alter table pylash_lanes add column revision bigint not null default 0",
            "alter table pylash_lanes add column calls bigint not null default 0",
            "alter table pylash_lanes add column streak bigint not null default 0",
            "alter table pylash_lanes add column usage {blob}",
            # Lanes are found by name only, so SQLite can store the rows in the index of the names.
            """{sqlite_only} create table pylash_lanes_by_name(lane text primary key, holder bigint,
                last_seq bigint not null, number bigint, head bigint not null default 0,
                revision bigint not null default 0, calls bigint not null default 0,
                streak bigint not null default 0, usage {blob}) without rowid""",
            """{sqlite_only} insert into pylash_lanes_by_name(lane, holder, last_seq)
                select lane, holder, last_seq from pylash_lanes""",
            "{sqlite_only} drop table pylash_lanes",
            "{sqlite_only} alter table pylash_lanes_by_name rename to pylash_lanes",
            # Most sessions have neither, and no row in this table.
            "alter table pylash_sessions add column options {blob}",
            "alter table pylash_sessions add column origin {blob}",
            # effects are those that the turn recorded with the node: they have no rows in the journal.
            """create table pylash_nodes(
                id {id}, run bigint not null, body {blob} not null, effects {blob})""",
            "alter table pylash_queue add column policy text not null default 'wake'",
            # The keys of a person's messages are kept longer than the messages, to detect repetitions.
            """create table pylash_said(
                session text not null, key text not null, token text not null, at bigint not null,
                primary key(session, key))""",
            # Forks: the sessions that begin with nodes of a line.
            """create table pylash_forks(
                number bigint not null, session text not null, primary key(number, session))""",
            # Lines of deleted sessions that still have nodes: forks share them, or the deletion is not complete.
            "create table pylash_dead_lines(number {id}, session text not null, body {blob} not null)",
            "create index pylash_dead_lines_session on pylash_dead_lines(session)",
            """create index pylash_waits_session on pylash_waits(session)
                where session is not null and terminal is null""",
            """create table pylash_turn_events(
                run bigint not null, sequence bigint not null, body {blob} not null,
                primary key(run, sequence))""",
        )
    ),
    # Indexes over open and failed runs, so that no statement scans completed ones.
    Migration(
        (
            # Stores of schema 2 that were created before this index was added lack it.
            """create index if not exists pylash_processes_continued on pylash_processes(run)
                where run <> number""",
            # The runs of a worker (state is 'running' and owner is its id), and the open runs by state.
            "create index pylash_runs_open on pylash_runs(state, owner, id) where settled is null",
            # Ended runs that are rare and searched for; completed ones are read backwards from the newest.
            """create index pylash_runs_failed on pylash_runs(state, kind, id)
                where state in ('failed', 'cancelled', 'stopped')""",
            # substr and not a range: a range of texts depends on the collation of the database.
            """create index pylash_effects_signals on pylash_effects(run)
                where outcome is null and substr(wait, 1, 7) = 'signal:'""",
            "create index pylash_triggers_session on pylash_triggers(session) where session is not null",
            # Lanes by prefix; the primary key of SQLite is ordered by bytes already.
            "{postgres_only} create index pylash_lanes_name on pylash_lanes(lane text_pattern_ops)",
        )
    ),
    Migration(
        (
            # The numbers of new sessions on PostgreSQL: the upper half of the 39 bits that the id of a node has for
            # them. Workers of schema 4 still count in the row 'sessions' of pylash_lanes, from 1 upwards in
            # blocks of 64, and would need 2^38 numbers to reach this half, so the numbers cannot collide.
            """{postgres_only} create sequence pylash_session_numbers
                minvalue 274877906944 maxvalue 549755813887""",
        )
    ),
    # Columns for the second meanings of two others (decision 0042). Workers of schema 5 write the old form only,
    # so both forms are written and read until a migration raises min_code.
    Migration(
        (
            "alter table pylash_runs add column forgotten bigint",
            "alter table pylash_runs add column cancel_reason text",
            # The second condition lets SQLite use the index over runs that ended badly.
            """update pylash_runs set forgotten = 1 where state = 'cancelled'
                and state in ('failed', 'cancelled', 'stopped') and token = 'deleted'""",
            # A reason with escaped characters keeps its old form: PostgreSQL refuses to decode some escapes.
            """{sqlite_only} update pylash_runs
                set cancel_reason = json_extract(cast(result as text), '$.cancelled')
                where settled is null and cancel > 0 and result is not null
                and instr(cast(result as text), '\\u') = 0""",
            """{postgres_only} update pylash_runs
                set cancel_reason = convert_from(result, 'UTF8')::jsonb ->> 'cancelled'
                where settled is null and cancel > 0 and result is not null
                and position(convert_to('\\u', 'UTF8') in result) = 0""",
        )
    ),
    # The JSON Schema of the answer to a wait (decision 0058); null accepts any answer, as workers of schema 6 do.
    Migration(("alter table pylash_waits add column schema {blob}",)),
    # Lists of processes by name, status and tag, and of sessions (decision 0062). Workers of schema 7 write no tags.
    Migration(
        (
            # A process has the number of its first run, so this index has the processes of a target in their order.
            "create index pylash_runs_target on pylash_runs(target, id) where kind = 'process'",
            """create index pylash_processes_failed on pylash_processes(status, number)
                where status in ('failed', 'cancelled')""",
            "create index pylash_lanes_number on pylash_lanes(number) where number is not null",
            """create table pylash_process_tags(
                tag text not null, number bigint not null, primary key(tag, number))""",
            """create table pylash_session_tags(
                tag text not null, number bigint not null, primary key(tag, number))""",
        )
    ),
    # The runs of other engines: what wakes a parked one there.
    Migration(("alter table pylash_runs add column bell text",)),
)


def columns(schema: int) -> set[tuple[str, str]]:
    """Return the tables and columns that the migrations up to a schema create."""
    found: set[tuple[str, str]] = (
        {("pylash_meta", "name"), ("pylash_meta", "value")} if schema else set()
    )
    for migration in MIGRATIONS[:schema]:
        for statement in migration.statements:
            if made := re.match(r"create table (\w+)\((.*)\)$", statement, re.DOTALL):
                found.update((made[1], name) for name in _NAMES.findall(made[2]))
            elif added := re.match(r"alter table (\w+) add column (\w+)", statement):
                found.add((added[1], added[2]))
    return found


_NAMES: Final = re.compile(r"(?:^|,)\s*(?!primary key|unique)(\w+) (?:text|bigint|\{\w+\})")

SCHEMA: Final = len(MIGRATIONS)
"""The schema that this code writes, and the greatest ``min_code`` that it satisfies."""

META: Final = "create table if not exists pylash_meta(name text primary key, value text not null)"
