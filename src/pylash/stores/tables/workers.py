"""Workers: each has a lock that is released with its process, and a lease for pauses and partitions.

Rule 1. The lock is taken before the row is written: if the lock of a row is free, its worker is dead.
Rule 2. A takeover raises the fences of the runs, so that the old owner cannot write, even if it was only paused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pylash.durable.runs import WorkerId
from pylash.stores.operation import Driver, Port, Statement, Steps, operation
from pylash.stores.tables import runs as table
from pylash.values.canonical import decode, encode

_JOIN = """
insert into pylash_workers(id, joined, expires, targets) values (?, {now}, {now} + ?, ?)
on conflict (id) do update set expires = excluded.expires, targets = excluded.targets"""

_BEAT = "update pylash_workers set expires = {now} + ? where id = ?"

_OTHERS = "select id, expires <= {now} from pylash_workers where id <> ?"

_LOCK_WORKER = "select expires <= {now} from pylash_workers where id = ? {update}"

# Shared: transactions of one worker run in parallel, and no other worker can take it over meanwhile.
_MEMBER = "select 1 from pylash_workers where id = ? {share}"

_TARGETS = "select targets from pylash_workers where expires > {now}"

_FORGET = "delete from pylash_workers where id = ?"


class Locks(Protocol):
    """Locks that are released when their process ends."""

    async def acquire(self, worker: WorkerId) -> None:
        """Take worker's lock for as long as this process lives."""
        ...

    async def is_free(self, worker: WorkerId) -> bool:
        """Return whether worker's lock is free."""
        ...

    async def release(self, worker: WorkerId) -> None:
        """Release worker's lock and remove its file, if it has one."""
        ...


class LockingDriver(Driver, Protocol):
    """A driver of a database with locks that are released when their process ends."""

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
        # In this order: a row without a lock would be taken for that of a dead worker.
        await self._locks.acquire(worker)
        await self._join(worker, ttl, targets)

    async def leave(self, worker: WorkerId) -> None:
        """Give up runs, lease and lock; this does not count as an attempt of the runs."""
        # The lock is released last: until then no other process can take this worker for dead.
        await self._take_over(worker, dead=True, in_order=True)
        await self._locks.release(worker)

    async def bury_the_dead(self, me: WorkerId) -> list[WorkerId]:
        """Make the runs of dead and expired workers ready again."""
        buried = []
        # These reads may be outdated at once; _take_over compares again under the lock of the worker's row.
        for worker, expired in await self._others(me):
            dead = not expired and await self._locks.is_free(worker)
            if (expired or dead) and await self._take_over(worker, dead=dead):
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
    def has_any(self) -> Steps[bool]:
        """Return whether a live worker can execute anything; a client registers no targets."""
        return bool((yield from known_targets()))

    @operation(read_only=True)
    def _others(self, me: WorkerId) -> Steps[list[tuple[WorkerId, bool]]]:
        rows = (yield Statement(_OTHERS, (me,))).rows
        return [(WorkerId(worker), bool(expired)) for worker, expired in rows]

    @operation()
    def _take_over(self, worker: WorkerId, *, dead: bool, in_order: bool = False) -> Steps[bool]:
        """Make worker's runs ready again, if it is dead or its lease has expired by now."""
        # Locked before its runs: from here on the worker can neither claim nor renew its lease.
        row = (yield Statement(_LOCK_WORKER, (worker,))).rows
        if not row or not (dead or row[0][0]):
            return False
        yield from table.give_up(worker) if in_order else table.take_over(worker)
        yield Statement(_FORGET, (worker,))
        return True


def is_member(worker: WorkerId) -> Steps[bool]:
    """Return whether a worker may own runs, and lock its row against a takeover."""
    return bool((yield Statement(_MEMBER, (worker,))).rows)


def known_targets() -> Steps[list[str]]:
    """Return what the workers that are alive can run."""
    rows = (yield Statement(_TARGETS)).rows
    return sorted({target for (targets,) in rows for target in decode(targets.encode())})
