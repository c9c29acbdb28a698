"""Starts and ends for many processes at once: docs/decisions/0008.

The same as the plain statements of ``processes`` and ``ends``, for rows that are in no way special: a row
that is (a taken id or number, a stale fence, a slot, a run that waits) is not written, and done again alone.
Runs are inserted before processes, as everywhere: a run's row is unique by scope and by number.
"""

from __future__ import annotations

from pylash.stores.sql import Part

# The same as the statements of register_process for a leased start: one after the other on SQLite, where each
# must write as many rows as it is given, and in one on PostgreSQL. The columns are those of START_MANY.
START_PARTS = (
    Part(
        """
insert into pylash_runs(id, scope, kind, target, state, owner, token, fence, attempts, created)
select x.number, x.scope, 'process', x.target, 'running', x.owner, x.token, 1, 1, {now}
from (with x(number, scope, target, owner, token) as ({rows}) select * from x) x
cross join pylash_workers w on w.id = x.owner where true on conflict do nothing""",
        (0, 2, 3, 7, 8),
    ),
    Part(
        """
insert into pylash_processes(number, id, run, registration, digest, env, created)
select x.number, x.id, x.number, x.registration, x.digest, x.env, {now}
from (with x(number, id, registration, digest, env) as ({rows}) select * from x) x""",
        (0, 1, 4, 5, 6),
    ),
    Part(
        """
insert into pylash_process_events(process, sequence, type, at)
select x.number, 1, 'process.started', {now} from (with x(number) as ({rows}) select * from x) x""",
        (0,),
    ),
)

START_MANY = """
with x as (select * from unnest(?::bigint[], ?::text[], ?::text[], ?::text[], ?::bytea[], ?::bytea[], ?::text[],
             ?::text[], ?::text[])
           as x(number, id, scope, target, registration, digest, env, owner, token)),
m as (select id from pylash_workers where id in (select owner from x) for share),
r as (insert into pylash_runs(id, scope, kind, target, state, owner, token, fence, attempts, created)
      select x.number, x.scope, 'process', x.target, 'running', x.owner, x.token, 1, 1, {now}
      from x join m on m.id = x.owner
      on conflict do nothing returning id),
p as (insert into pylash_processes(id, number, run, registration, digest, env, created)
      select x.id, x.number, x.number, x.registration, x.digest, x.env, {now} from x join r on r.id = x.number),
e as (insert into pylash_process_events(process, sequence, type, at)
      select r.id, 1, 'process.started', {now} from r)
select id, {now} from r"""

# The same for one start: a third less work for the server than an array of one.
START_ONE = """
with m as (select id from pylash_workers where id = $8::text for share),
r as (insert into pylash_runs(id, scope, kind, target, state, owner, token, fence, attempts, created)
      select $1::bigint, $3::text, 'process', $4::text, 'running', $8, $9::text, 1, 1, {now} from m
      on conflict do nothing returning id, created),
p as (insert into pylash_processes(id, number, run, registration, digest, env, created)
      select $2::text, id, id, $5::bytea, $6::bytea, $7::text, created from r),
e as (insert into pylash_process_events(process, sequence, type, at)
      select id, 1, 'process.started', created from r)
select id, created from r"""

# The same as a leased start and its end, one after the other, of a process that nobody could watch in between.
LIFE_PARTS = (
    Part(
        """
insert into pylash_runs(id, scope, kind, target, state, token, fence, attempts, created, settled)
select x.number, x.scope, 'process', x.target, x.status, x.token, 2, 1, {now}, {now}
from (with x(number, scope, target, owner, token, status) as ({rows}) select * from x) x
cross join pylash_workers w on w.id = x.owner where true on conflict do nothing""",
        (0, 2, 3, 7, 8, 9),
    ),
    Part(
        """
insert into pylash_processes(number, id, run, registration, digest, env, sequence, status, output, created,
  settled)
select x.number, x.id, x.number, x.registration, x.digest, x.env, 2, x.status, x.output, {now}, {now}
from (with x(number, id, registration, digest, env, status, output) as ({rows}) select * from x) x""",
        (0, 1, 4, 5, 6, 9, 10),
    ),
    START_PARTS[2],
    Part(
        """
insert into pylash_process_events(process, sequence, type, payload, at)
select x.number, 2, x.type, x.payload, {now}
from (with x(number, type, payload) as ({rows}) select * from x) x""",
        (0, 11, 12),
    ),
)

LIFE_MANY = """
with x as (select * from unnest(?::bigint[], ?::text[], ?::text[], ?::text[], ?::bytea[], ?::bytea[], ?::text[],
             ?::text[], ?::text[], ?::text[], ?::bytea[], ?::text[], ?::bytea[])
           as x(number, id, scope, target, registration, digest, env, owner, token, status, output, type, payload)),
m as (select id from pylash_workers where id in (select owner from x) for share),
r as (insert into pylash_runs(id, scope, kind, target, state, token, fence, attempts, created, settled)
      select x.number, x.scope, 'process', x.target, x.status, x.token, 2, 1, {now}, {now}
      from x join m on m.id = x.owner
      on conflict do nothing returning id, created),
p as (insert into pylash_processes(id, number, run, registration, digest, env, sequence, status, output, created,
        settled)
      select x.id, x.number, x.number, x.registration, x.digest, x.env, 2, x.status, x.output, r.created, r.created
      from x join r on r.id = x.number),
e as (insert into pylash_process_events(process, sequence, type, payload, at)
      select r.id, 1, 'process.started', null, r.created from r
      union all
      select r.id, 2, x.type, x.payload, r.created from x join r on r.id = x.number)
select id, created from r"""

LIFE_ONE = """
with m as (select id from pylash_workers where id = $8::text for share),
r as (insert into pylash_runs(id, scope, kind, target, state, token, fence, attempts, created, settled)
      select $1::bigint, $3::text, 'process', $4::text, $10::text, $9::text, 2, 1, {now}, {now} from m
      on conflict do nothing returning id, created),
p as (insert into pylash_processes(id, number, run, registration, digest, env, sequence, status, output, created,
        settled)
      select $2::text, id, id, $5::bytea, $6::bytea, $7::text, 2, $10, $11::bytea, created, created from r),
e as (insert into pylash_process_events(process, sequence, type, payload, at)
      select id, 1, 'process.started', null::bytea, created from r
      union all
      select id, 2, $12::text, $13::bytea, created from r)
select id, created from r"""

# The same as the statements of settle, for an end that wakes nobody. The columns are those of SETTLE_MANY.
SETTLE_PARTS = (
    Part(
        """
update pylash_runs as r set state = x.status, settled = {now}, at = null, owner = null, fence = r.fence + 1,
  token = x.token from (with x(run, fence, status, token) as ({rows}) select * from x) x
where r.id = x.run and r.fence = x.fence and r.state = 'running' and r.slot is null""",
        (0, 1, 3, 7),
    ),
    Part(
        """
update pylash_processes as p set sequence = p.sequence + 1, status = x.status, output = x.output,
  settled = {now} from (with x(number, run, status, output) as ({rows}) select * from x) x
where p.number = x.number and p.run = x.run and p.watched < 2 and p.status = 'open'""",
        (2, 0, 3, 4),
    ),
    Part(
        """
insert into pylash_process_events(process, sequence, type, payload, at)
select p.number, p.sequence, x.type, x.payload, {now}
from (with x(number, type, payload) as ({rows}) select * from x) x
cross join pylash_processes p on p.number = x.number""",
        (2, 5, 6),
    ),
)

SETTLE_MANY = """
with x as (select * from unnest(?::bigint[], ?::bigint[], ?::bigint[], ?::text[], ?::bytea[], ?::text[],
             ?::bytea[], ?::text[], ?::text[])
           as x(run, fence, number, status, output, type, payload, token, news)),
r as (select r.id from pylash_runs r join x on x.run = r.id and x.fence = r.fence
      where r.state = 'running' and r.slot is null order by r.id for update of r),
p as (update pylash_processes p set sequence = p.sequence + 1, status = x.status, output = x.output,
        settled = {now} from x join r on r.id = x.run
      where p.number = x.number and p.run = x.run and p.watched < 2 and p.status = 'open'
      returning p.number, p.sequence, p.watched),
u as (update pylash_runs r set state = x.status, settled = {now}, at = null, owner = null,
        fence = r.fence + 1, token = x.token from x join p on p.number = x.number where r.id = x.run
      returning x.number),
e as (insert into pylash_process_events(process, sequence, type, payload, at)
      select p.number, p.sequence, x.type, x.payload, {now} from p join x on x.number = p.number)
select u.number, (select count(pg_notify('pylash', x.news)) from x join p on p.number = x.number
                  where p.watched = 1) from u"""

SETTLE_ONE = """
with r as (select id from pylash_runs where id = $1::bigint and fence = $2::bigint and state = 'running'
           and slot is null for update),
p as (update pylash_processes set sequence = sequence + 1, status = $4::text, output = $5::bytea,
        settled = {now} from r
      where number = $3::bigint and run = r.id and watched < 2 and status = 'open'
      returning number, sequence, watched, settled),
u as (update pylash_runs r set state = $4, settled = p.settled, at = null, owner = null,
        fence = r.fence + 1, token = $8::text from p where r.id = $1),
e as (insert into pylash_process_events(process, sequence, type, payload, at)
      select number, sequence, $6::text, $7::bytea, settled from p)
select number, case when watched = 1 then pg_notify('pylash', $9::text) end from p"""
