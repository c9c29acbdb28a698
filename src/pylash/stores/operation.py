"""Operations: generators of SQL statements, written once for every database.

Rule 1. An operation is a *factory* of a generator without side effects before the commit: it may be run again
        (after a deadlock, a lost connection, or a full disk that ended a shared transaction).
Rule 2. A statement is a constant in the SQL that SQLite and PostgreSQL share. Differences are names in
        braces, which the dialect fills in: ``{now}``, ``{share}``, ``{update}``.
Rule 3. Locks are taken in one order: workers, runs, lanes, waits, processes, events, queue, sessions.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

import msgspec

from pylash.durable.ports import DurabilityTier
from pylash.durable.runs import Instant
from pylash.values.errors import StoreBusy

T = TypeVar("T")
P = ParamSpec("P")

_NOW = "select {now}"

MAX_REPEATS: Final = 100
"""How often an operation is repeated after conflicts, or a run number is drawn again, before it fails."""


class Statement(NamedTuple):
    """One SQL statement with its parameters. A list parameter fills an ``in ({texts})``."""

    sql: str
    params: tuple[Any, ...] = ()


class Notify(NamedTuple):
    """Notify listeners, here and in other processes, once the operation is committed."""

    topic: str


class Rows(NamedTuple):
    """The result of a statement: the rows it returned, and how many it changed."""

    rows: list[tuple[Any, ...]]
    changed: int


class Again(Exception):
    """Raised by an operation that must start over with a new transaction.

    Either a row that it read before it had its locks has changed, or the number that it drew for a
    new run is taken. Drivers catch it and repeat the operation at most ``MAX_REPEATS`` times.
    """


def too_many_conflicts(what: str) -> StoreBusy:
    """Return the error for an operation that had ``MAX_REPEATS`` conflicts in a row."""
    return StoreBusy(
        f"{what} had conflicts with other writers {MAX_REPEATS} times in a row, and nothing was written: try again."
    )


Steps = Generator[Statement | Notify, Rows, T]
"""The statements and notifications of an operation, which returns T."""


class Bulk(msgspec.Struct):
    """A write that drivers may run together with others of the same ``many``.

    ``many`` takes one array per column and returns the key of each row it wrote. The operation's result is
    then ``value``, or the result of ``read`` for the columns after the key, and ``topic`` is published in
    this process. If the key of a row is not returned, its operation is run alone. ``one`` is the only statement
    of an operation that inserts one row: its parameters are ``row`` and the result is ``value``.
    """

    one: str | None
    many: str
    row: tuple[Any, ...]
    key: tuple[Any, ...]
    value: Any
    topic: str | None = None
    read: Callable[[tuple[Any, ...]], Any] | None = None


class Operation(msgspec.Struct, Generic[T]):
    """A unit of work on the database.

    ``bare``: only its first statement writes, so it needs no transaction. ``urgent``: it is run before the
    operations that are queued. ``heavy``: it writes much. ``flow``: the source of new work that it starts; sources
    take turns, and operations of work in progress do not wait for them (``drivers.fair_queue``).
    """

    name: str
    steps: Callable[[], Steps[T]]
    bare: bool = False
    urgent: bool = False
    read_only: bool = False
    bulk: Bulk | None = None
    heavy: bool = False
    flow: str | None = None


def store_time() -> Steps[Instant]:
    """Return the time of the store."""
    return Instant((yield Statement(_NOW)).rows[0][0])


class Driver(Protocol):
    """Runs operations on one database."""

    def run(self, operation: Operation[T]) -> Awaitable[T]:
        """Run an operation as a whole or not at all."""
        ...


class Publisher:
    """Base of the drivers: calls the listeners of this process after commits."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str], None]] = []

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call listener with a topic after each commit that has one; return a function that stops it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self, topic: str) -> None:
        """Call every listener."""
        for listener in tuple(self._listeners):
            listener(topic)


class Port:
    """Base of the ports of a store: its operations are methods."""

    durability = DurabilityTier.DURABLE

    def __init__(self, driver: Driver) -> None:
        self.driver = driver


def reading(steps: Callable[P, Steps[T]]) -> Callable[Concatenate[Port, P], Awaitable[T]]:
    """Return a read-only operation of a port that runs the statements of a function."""

    @functools.wraps(steps)
    def call(port: Port, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        read = functools.partial(steps, *args, **kwargs)
        return port.driver.run(Operation(steps.__name__, read, read_only=True))

    return call


PortT = TypeVar("PortT", bound=Port)


def operation(
    *, bare: bool = False, urgent: bool = False, read_only: bool = False
) -> Callable[
    [Callable[Concatenate[PortT, P], Steps[T]]], Callable[Concatenate[PortT, P], Awaitable[T]]
]:
    """Make a generator method of a port an operation, which its driver runs."""

    def decorate(
        method: Callable[Concatenate[PortT, P], Steps[T]],
    ) -> Callable[Concatenate[PortT, P], Awaitable[T]]:
        @functools.wraps(method)
        def call(port: PortT, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
            steps = functools.partial(method, port, *args, **kwargs)
            return port.driver.run(Operation(method.__name__, steps, bare, urgent, read_only))

        return call

    return decorate
