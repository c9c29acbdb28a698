"""Starts and ends of many processes in one statement each, for PostgreSQL: docs/decisions/0008.

They write the same rows as ``ports.processes`` and ``ports.process_log``, for the plain case. A row that needs more
(its id or number is taken, its fence is stale, it has a slot, or runs wait for it) is not written, and its operation
runs alone.
Runs are inserted before processes, as in all operations: the row of a run is unique by scope and by number.
"""

from __future__ import annotations

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

# The statement is planned once, perhaps while the tables are empty and a full scan looks cheapest. The lateral join
# looks the runs up and locks them one by one, in the order of their ids.
SETTLE_MANY = """
with x as (select * from unnest(?::bigint[], ?::bigint[], ?::bigint[], ?::text[], ?::bytea[], ?::text[],
             ?::bytea[], ?::text[], ?::text[])
           as x(run, fence, number, status, output, type, payload, token, news)),
r as (select r.* from (select run, fence from x order by run) x,
      lateral (select id, fence from pylash_runs where id = x.run and fence = x.fence and state = 'running'
               and slot is null for update) r),
p as (update pylash_processes p set sequence = p.sequence + 1, status = x.status, output = x.output,
        settled = {now} from x join r on r.id = x.run and r.fence = x.fence
      where p.number = x.number and p.run = x.run and p.watched < 2 and p.status = 'open'
      returning p.number, p.sequence, p.watched),
u as (update pylash_runs r set state = x.status, settled = {now}, at = null, owner = null,
        fence = r.fence + 1, token = x.token from x join p on p.number = x.number where r.id = x.run
      returning x.number),
e as (insert into pylash_process_events(process, sequence, type, payload, at)
      select p.number, p.sequence, x.type, x.payload, {now} from p join x on x.number = p.number)
select u.number, (select count(pg_notify('pylash', x.news)) from x join p on p.number = x.number
                  where p.watched = 1) from u"""
