"""Who is alive: a lock that dies with the process, and a lease for pauses and partitions.

Rule 1. The lock is taken before the row is written: a row whose lock is free belongs to the dead.
Rule 2. Taking over makes a new fence, so that the old owner writes no more, even if it was only
        paused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from pylash.durable import WorkerId, scope_from_text
from pylash.stores.carried import RECORDED
from pylash.stores.runs import release_slot
from pylash.stores.sql import Driver, Notify, Port, Statement, Steps, operation
from pylash.values import encode

BLOCKED_AFTER: Final = 10
"""Claims without progress after which a run is blocked."""

_JOIN = """
insert into pylash_workers(id, joined, expires, targets) values (?, {now}, {now} + ?, ?)
on conflict (id) do update set expires = excluded.expires, targets = excluded.targets"""

_BEAT = "update pylash_workers set expires = {now} + ? where id = ?"

_OTHERS = "select id, expires <= {now} from pylash_workers where id <> ?"

_LOCK_WORKER = "select expires <= {now} from pylash_workers where id = ? {update}"

# In the order of their ids, as everywhere.
_LOCK_RUNS = """
select id from pylash_runs where owner = ? and state = 'running' and settled is null
order by id {update}"""

# What was given up in order counts as no attempt.
_GIVE_UP = """
update pylash_runs set state = 'queued', owner = null, token = null, fence = fence + 1,
  attempts = attempts - 1, at = case when target = '' then null else {now} end
where id in ({bigints})"""

# A run that has recorded something since its claim is not to blame.
_TAKE_OVER = f"""
update pylash_runs set owner = null, token = null, fence = fence + 1,
  state = case when attempts >= {BLOCKED_AFTER} and {{stuck}} then 'blocked' else 'queued' end,
  reason = case when attempts >= {BLOCKED_AFTER} and {{stuck}} then 'crash_loop' end,
  attempts = case when {{stuck}} then attempts else 0 end,
  at = case when target = '' or (attempts >= {BLOCKED_AFTER} and {{stuck}}) then null else {{now}} end
where id in ({{bigints}})""".replace("{stuck}", f"({RECORDED} <= seen)")

# A run that is blocked does not execute: its slot goes to the next.
_BLOCKED = """
select id, scope from pylash_runs where id in ({bigints}) and state = 'blocked' order by id"""

_FORGET = "delete from pylash_workers where id = ?"


class Locks(Protocol):
    """Locks that die with the process that holds them."""

    async def acquire(self, worker: WorkerId) -> None:
        """Take worker's lock for as long as this process lives."""
        ...

    async def is_free(self, worker: WorkerId) -> bool:
        """Return whether nobody holds worker's lock."""
        ...

    async def release(self, worker: WorkerId) -> None:
        """Give worker's lock up and leave nothing behind."""
        ...


class LockingDriver(Driver, Protocol):
    """A driver whose database has locks that die with their process."""

    @property
    def locks(self) -> Locks:
        """The locks."""
        ...


class SqlWorkers(Port):
    """The workers in SQL."""

    def __init__(self, driver: LockingDriver) -> None:
        super().__init__(driver)
        self._locks = driver.locks

    async def join(self, worker: WorkerId, ttl: int, targets: Sequence[str] = ()) -> None:
        """Take the lock, then the lease."""
        await self._locks.acquire(worker)
        await self._join(worker, ttl, targets)

    async def leave(self, worker: WorkerId) -> None:
        """Give up runs, lease and lock; what was given up in order counts as no attempt."""
        await self._take_over(worker, dead=True, sql=_GIVE_UP)
        await self._locks.release(worker)

    async def bury_the_dead(self, me: WorkerId) -> list[WorkerId]:
        """Make the runs of dead and expired workers ready again."""
        buried = []
        for worker, expired in await self._others(me):
            dead = not expired and await self._locks.is_free(worker)
            if (expired or dead) and await self._take_over(worker, dead=dead, sql=_TAKE_OVER):
                buried.append(worker)
        return buried

    @operation(urgent=True)
    def beat(self, worker: WorkerId, ttl: int) -> Steps[bool]:
        """Renew the lease."""
        return bool((yield Statement(_BEAT, (ttl, worker))).changed)

    @operation()
    def _join(self, worker: WorkerId, ttl: int, targets: Sequence[str] = ()) -> Steps[None]:
        yield Statement(_JOIN, (worker, ttl, encode(list(targets)).decode()))

    @operation(read_only=True)
    def _others(self, me: WorkerId) -> Steps[list[tuple[WorkerId, bool]]]:
        rows = (yield Statement(_OTHERS, (me,))).rows
        return [(WorkerId(worker), bool(expired)) for worker, expired in rows]

    @operation()
    def _take_over(self, worker: WorkerId, *, dead: bool, sql: str) -> Steps[bool]:
        """Make worker's runs ready again, if it is dead or its lease is really over."""
        row = (yield Statement(_LOCK_WORKER, (worker,))).rows
        if not row or not (dead or row[0][0]):
            return False
        runs = [run for (run,) in (yield Statement(_LOCK_RUNS, (worker,))).rows]
        if runs:
            yield Statement(sql, (runs,))
            yield Notify("runs")
            for run, scope in (yield Statement(_BLOCKED, (runs,))).rows:
                yield from release_slot(run)
                yield Notify(f"process:{scope_from_text(scope).id}")
        yield Statement(_FORGET, (worker,))
        return True
