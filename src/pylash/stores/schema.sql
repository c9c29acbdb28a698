-- The tables as they are now, in the words of SQLite. The migrations make them (migrations.py): a test compares
-- what both make. Times are microseconds since 1970, in UTC. PostgreSQL has bytea for blob, bigint for integer, and
-- besides: pylash_runs_lane, a unique index over the holder of a lane, as migration 1 makes it; pylash_lanes_name;
-- and the sequence pylash_session_numbers.

-- What this database is: schema, min_code (the oldest code that may use it) and the secret that signs keys of
-- waits.
create table pylash_meta(
  name text primary key,
  value text not null
);

-- What is executed: an epoch of a process, a turn, or the scope of an attached controller. Written by
-- tables/runs.py.
create table pylash_runs(
  -- number chosen by the client: 41 bits of milliseconds since 2024, then 22 random bits. A new epoch of a process is a
  -- new run
  id integer primary key,
  -- what is executed, as JSON; unique. Renamed (#epoch, #line) when another run takes the name
  scope text not null unique,
  -- process, turn, queue_drain, or the type of another scope
  kind text not null,
  -- which code executes it; '' if no scheduler does (a controller attached it)
  target text not null,
  -- the lane that runs of a session share; null without one, and after the session was deleted
  lane text,
  -- place in the lane, in the order of enqueueing
  lane_seq bigint,
  -- queued, running, waiting, blocked; settled: completed, failed, cancelled, stopped
  state text not null,
  -- why it is blocked; null in every other state
  reason text,
  -- when the scheduler must look: now or later if queued, the deadline if waiting; null if it waits for its lane or
  -- key, has no scheduler, or is in another state
  at bigint,
  -- how often progress became possible; parking compares it with what the worker has seen
  wake_seq bigint not null default 0,
  -- the worker that executes it; null unless running
  owner text,
  -- last transition, for its repetition after a lost answer. Workers of schema 5 read 'deleted' as forgotten
  token text,
  -- rises at claims, take-overs and ends, not at park, release, hold or block; writes under another value are
  -- refused
  fence bigint not null default 0,
  -- claims since the last progress; 3 or more make it a suspect, 10 block it. While it is blocked, tries are counted too
  attempts bigint not null default 0,
  -- turns: 32 bytes of digest, then the body of the request
  input blob,
  -- the result of a turn. Workers of schema 5 read the reason of a request to end here, until the turn ends
  result blob,
  -- when it was enqueued or started
  created bigint not null,
  -- when it ended; null while it is open
  settled bigint,
  -- how much it had recorded at its claim: more of it is progress
  seen bigint not null default 0,
  -- concurrency key, a long one as its beginning and hash; null without one
  slot text,
  -- how many runs of the key may execute at once
  slot_limit bigint,
  -- place among the runs held for the key; null unless held
  slot_seq bigint,
  -- turns only: 1 if it was asked to end. Processes have their own in pylash_processes
  cancel bigint not null default 0,
  -- turns: the options of the session when the turn was submitted, as JSON
  options blob,
  -- turns: 1 if it ended because its session was deleted, so that its id is free; else null
  forgotten bigint,
  -- turns: why it was asked to end; null if it was not
  cancel_reason text,
  -- runs of other engines than the workers of the store: what wakes a parked one there; else null
  bell text
);
create index pylash_runs_at on pylash_runs(at) where at is not null;
create index pylash_runs_queue
  on pylash_runs(lane, lane_seq)
  where lane is not null and state = 'queued' and at is null;
create index pylash_runs_held on pylash_runs(slot, slot_seq) where slot is not null and slot_seq is not null;
create index pylash_runs_open on pylash_runs(state, owner, id) where settled is null;
create index pylash_runs_failed
  on pylash_runs(state, kind, id)
  where state in ('failed', 'cancelled', 'stopped');
create index pylash_runs_target on pylash_runs(target, id) where kind = 'process';

-- The journal: the outcome of each effect of a run, recorded once under its key.
create table pylash_effects(
  run bigint not null,
  key text not null,
  kind text not null,
  hash blob not null,
  command blob,
  outcome blob,
  attachment text,
  due bigint,
  wait text,
  started bigint not null,
  ended bigint,
  label text,
  unique(run, key)
);
create index pylash_effects_wait on pylash_effects(wait) where wait is not null;
create index pylash_effects_signals
  on pylash_effects(run)
  where outcome is null and substr(wait, 1, 7) = 'signal:';

-- Answers that come from outside.
create table pylash_waits(
  id text primary key,
  name text not null,
  session text,
  generation bigint not null default 0,
  kind text not null,
  title text not null,
  tool text,
  arguments blob,
  terminal blob,
  answered_by text,
  token text,
  opened bigint,
  deadline bigint,
  resolved bigint,
  -- the JSON Schema of the answer; null accepts any
  schema blob
);
create index pylash_waits_open on pylash_waits(opened) where terminal is null and opened is not null;
create index pylash_waits_session on pylash_waits(session) where session is not null and terminal is null;

-- Sessions that have options, begin with nodes of another, or revoked waits.
create table pylash_sessions(
  id text primary key,
  generation bigint not null default 0,
  options blob,
  origin blob
);

-- Workers that are members, and until when without a heartbeat.
create table pylash_workers(
  id text primary key,
  joined bigint not null,
  expires bigint not null,
  targets text not null default '[]'
);

-- Bytes under their hash.
create table pylash_attachments(
  digest text primary key,
  body blob not null
);

-- The runs that hold a slot of a concurrency key.
create table pylash_slots(
  slot text not null,
  holder bigint primary key
);
create index pylash_slots_slot on pylash_slots(slot);

-- Processes: the fold of their events.
create table pylash_processes(
  number integer primary key,
  id text not null unique,
  run bigint not null,
  registration blob not null,
  digest blob not null,
  env text,
  parent text,
  sequence bigint not null default 1,
  status text not null default 'open',
  output blob,
  cancel bigint not null default 0,
  epoch bigint not null default 0,
  watched bigint not null default 0,
  created bigint not null,
  settled bigint
);
create index pylash_processes_continued on pylash_processes(run) where run <> number;
create index pylash_processes_attached
  on pylash_processes(parent)
  where parent is not null and status = 'open';
create index pylash_processes_failed on pylash_processes(status, number) where status in ('failed', 'cancelled');

-- The processes that have a tag, by number.
create table pylash_process_tags(
  tag text not null,
  number bigint not null,
  primary key(tag, number)
);

-- The events of processes, signals among them.
create table pylash_process_events(
  process bigint not null,
  sequence bigint not null,
  type text not null,
  payload blob,
  key text,
  at bigint not null,
  taken bigint,
  primary key(process, sequence)
);
create unique index pylash_process_events_key on pylash_process_events(process, key) where key is not null;
create index pylash_process_events_signal on pylash_process_events(process, type, sequence) where taken = 0;

-- Which sessions hold a handle of which process.
create table pylash_process_grants(
  process text not null,
  session text not null,
  frame text not null default '',
  label text not null default '',
  primary key(session, frame, process)
);
create index pylash_process_grants_process on pylash_process_grants(process);

-- Captured environments under their hash.
create table pylash_envs(
  ref text primary key,
  body blob not null
);

-- What is said to a session and not yet taken by a turn.
create table pylash_queue(
  session text not null,
  process text not null,
  sequence bigint not null,
  body blob not null,
  at bigint not null,
  policy text not null default 'wake',
  primary key(session, process, sequence)
);

-- Subscriptions.
create table pylash_triggers(
  key text primary key,
  type text not null,
  source text not null,
  target text not null,
  body blob not null,
  session text,
  enabled bigint not null default 1,
  created bigint not null
);
create index pylash_triggers_match on pylash_triggers(type, source) where enabled = 1;
create index pylash_triggers_session on pylash_triggers(session) where session is not null;

-- What happened, once for each id.
create table pylash_occurrences(
  id text primary key,
  type text not null,
  source text not null,
  digest blob not null,
  payload blob,
  at bigint not null
);

-- Which process an occurrence started for a subscription.
create table pylash_deliveries(
  occurrence text not null,
  subscription text not null,
  process text not null,
  primary key(occurrence, subscription)
);

-- Lanes, with the sessions that have one, and the counters of concurrency keys. Written by tables/lanes.py.
create table pylash_lanes(
  -- 'session:<id>'; the lane of other runs; 'slot:<key>' (lock and counter of a concurrency key); 'sessions'
  -- (counter of session numbers, SQLite and workers of schema 4)
  lane text primary key not null,
  -- the run that holds the lane: the only one of it that may be ready, running, waiting or blocked
  holder bigint,
  -- the last place given out: of runs in the lane, of runs held for the key, of session numbers
  last_seq bigint not null,
  -- the high part of the ids of the session's nodes; null if the row is no session
  number bigint,
  -- the low part of the session's last committed node
  head bigint not null default 0,
  -- how many turns were committed
  revision bigint not null default 0,
  -- how many model calls the committed turns made
  calls bigint not null default 0,
  -- how many turns began in a row without a person
  streak bigint not null default 0,
  -- tokens of the committed turns, as JSON
  usage blob
) without rowid;
create index pylash_lanes_number on pylash_lanes(number) where number is not null;

-- The sessions that have a tag, by number; their options have the same tags.
create table pylash_session_tags(
  tag text not null,
  number bigint not null,
  primary key(tag, number)
);

-- The messages of sessions: number of the session << 24 | place.
create table pylash_nodes(
  id integer primary key,
  run bigint not null,
  body blob not null,
  effects blob
);

-- Keys of what persons said, so that a repetition is found.
create table pylash_said(
  session text not null,
  key text not null,
  token text not null,
  at bigint not null,
  primary key(session, key)
);

-- Which sessions begin with nodes of which line (the number of a session).
create table pylash_forks(
  number bigint not null,
  session text not null,
  primary key(number, session)
);

-- Lines of deleted sessions whose nodes are not all deleted.
create table pylash_dead_lines(
  number integer primary key,
  session text not null,
  body blob not null
);
create index pylash_dead_lines_session on pylash_dead_lines(session);

-- Events of turns under way for listeners in other processes; empty in the end.
create table pylash_turn_events(
  run bigint not null,
  sequence bigint not null,
  body blob not null,
  primary key(run, sequence)
);
