"""The tables, as a list of migrations; ``schema.sql`` shows their result.

Rule 1. A migration only adds. What is on main is never edited; a change is a new entry.
Rule 2. ``schema`` in the meta table is how far a database has come; ``min_code`` is the oldest code
        that may still use it. Old and new workers run side by side during a deploy.

The braces are filled in by the dialect: ``{id}`` is a 63-bit primary key made by the client, ``{blob}`` the
type of bytes, and ``{sqlite_only}`` and ``{postgres_only}`` begin a statement that says nothing elsewhere.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Migration(NamedTuple):
    """One step of the schema. ``min_code`` rises only if older code would do harm after it."""

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
            # A second protection of lanes: two runs can never hold one at once.
            """create unique index pylash_runs_lane on pylash_runs(lane) where lane is not null
                and (state in ('running', 'waiting', 'blocked')
                     or (state = 'queued' and at is not null))""",
            """create index pylash_runs_queue on pylash_runs(lane, lane_seq)
                where lane is not null and state = 'queued' and at is null""",
            # An ordinary table, appended to: clustering it by run costs three times the writes.
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
            # seen is how many effects were recorded at the claim: more of them mean progress.
            "alter table pylash_runs add column seen bigint not null default 0",
            "alter table pylash_runs add column slot text",
            "alter table pylash_runs add column slot_limit bigint",
            "alter table pylash_runs add column slot_seq bigint",
            """create index pylash_runs_held on pylash_runs(slot, slot_seq)
                where slot is not null and slot_seq is not null""",
            "create table pylash_slots(slot text not null, holder bigint primary key)",
            "create index pylash_slots_slot on pylash_slots(slot)",
            "alter table pylash_workers add column targets text not null default '[]'",
            # number is the first run's; watched says who is notified of its end.
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
            # taken is 0 for a signal that waits to be received, 1 for one that was.
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
            # SQLite has one writer at a time, so the lane's row is protection enough: two pages less a turn.
            "{sqlite_only} drop index pylash_runs_lane",
            # A turn is a run: its input and result are in its row, and so is that it was asked to end.
            "alter table pylash_runs add column cancel bigint not null default 0",
            # What its session was opened with when the turn was asked.
            "alter table pylash_runs add column options {blob}",
            # What changes with every turn is where the turn is written anyway: in the lane's row. number is
            # the high part of the session's node ids, null if there is none; head the last committed of
            # the low parts.
            "alter table pylash_lanes add column number bigint",
            "alter table pylash_lanes add column head bigint not null default 0",
            "alter table pylash_lanes add column revision bigint not null default 0",
            "alter table pylash_lanes add column calls bigint not null default 0",
            "alter table pylash_lanes add column streak bigint not null default 0",
            "alter table pylash_lanes add column usage {blob}",
            # Lanes are found by name only, and SQLite can keep rows where their names are: in one place, not two.
            """{sqlite_only} create table pylash_lanes_by_name(lane text primary key, holder bigint,
                last_seq bigint not null, number bigint, head bigint not null default 0,
                revision bigint not null default 0, calls bigint not null default 0,
                streak bigint not null default 0, usage {blob}) without rowid""",
            """{sqlite_only} insert into pylash_lanes_by_name(lane, holder, last_seq)
                select lane, holder, last_seq from pylash_lanes""",
            "{sqlite_only} drop table pylash_lanes",
            "{sqlite_only} alter table pylash_lanes_by_name rename to pylash_lanes",
            # Most sessions have neither, and no row here.
            "alter table pylash_sessions add column options {blob}",
            "alter table pylash_sessions add column origin {blob}",
            # effects are what the turn recorded with the node: they have no rows in the journal.
            """create table pylash_nodes(
                id {id}, run bigint not null, body {blob} not null, effects {blob})""",
            "alter table pylash_queue add column policy text not null default 'wake'",
            # The keys of a person's words outlive them, so that a repetition is found.
            """create table pylash_said(
                session text not null, key text not null, token text not null, at bigint not null,
                primary key(session, key))""",
            # Which sessions begin with the nodes of which line.
            """create table pylash_forks(
                number bigint not null, session text not null, primary key(number, session))""",
            # Lines of deleted sessions whose nodes are not all gone, because forks share them or not yet.
            "create table pylash_dead_lines(number {id}, session text not null, body {blob} not null)",
            "create index pylash_dead_lines_session on pylash_dead_lines(session)",
            """create index pylash_waits_session on pylash_waits(session)
                where session is not null and terminal is null""",
            """create table pylash_turn_events(
                run bigint not null, sequence bigint not null, body {blob} not null,
                primary key(run, sequence))""",
        )
    ),
    # Indexes over what is open or went wrong, so that no statement scans what has ended well.
    Migration(
        (
            # Stores of schema 2 that were made before this index was are complete with it.
            """create index if not exists pylash_processes_continued on pylash_processes(run)
                where run <> number""",
            # The runs of a worker (state is 'running' and owner is its id), and the open runs by state.
            "create index pylash_runs_open on pylash_runs(state, owner, id) where settled is null",
            # The ended runs that are rare and looked for; 'completed' is found by walking back from the newest.
            """create index pylash_runs_failed on pylash_runs(state, kind, id)
                where state in ('failed', 'cancelled', 'stopped')""",
            # substr and not a range: a range of texts depends on the collation of the database.
            """create index pylash_effects_signals on pylash_effects(run)
                where outcome is null and substr(wait, 1, 7) = 'signal:'""",
            "create index pylash_triggers_session on pylash_triggers(session) where session is not null",
            # Lanes by the beginning of their names; SQLite's primary key is ordered by bytes already.
            "{postgres_only} create index pylash_lanes_name on pylash_lanes(lane text_pattern_ops)",
        )
    ),
    Migration(
        (
            # The numbers of new sessions on PostgreSQL: the upper half of the 39 bits that the id of a node has for
            # them. Workers of schema 4 go on counting in the row 'sessions' of pylash_lanes, from 1 upwards in
            # blocks of 64, and would need 2^38 numbers to reach this half: no session of theirs has one of ours.
            """{postgres_only} create sequence pylash_session_numbers
                minvalue 274877906944 maxvalue 549755813887""",
        )
    ),
    # What two columns meant besides gets columns of its own (decision 0042). Workers of schema 5 go on writing the
    # old form only: it is written and read beside the new one until a migration raises min_code.
    Migration(
        (
            "alter table pylash_runs add column forgotten bigint",
            "alter table pylash_runs add column cancel_reason text",
            # The second condition lets SQLite use the index over runs that ended badly.
            """update pylash_runs set forgotten = 1 where state = 'cancelled'
                and state in ('failed', 'cancelled', 'stopped') and token = 'deleted'""",
            # A reason with escaped characters keeps its old form: PostgreSQL refuses to decode some of them.
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
)


def columns(schema: int) -> set[tuple[str, str]]:
    """Return the tables of a schema with their columns, as the migrations up to it make them."""
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
"""The schema this code writes, and the newest ``min_code`` it satisfies."""

META: Final = "create table if not exists pylash_meta(name text primary key, value text not null)"
