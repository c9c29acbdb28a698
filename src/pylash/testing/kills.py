"""Simulated kills: end an open app as a kill would, in the same process.

Rule 1. After the kill, nothing is written and no operation returns: calls of the store wait forever.
Rule 2. Then the app is closed without draining or releasing anything. Locks that die with a process
        are freed, so that the next app takes over at once.
Rule 3. A boundary is an operation that changes the outcome of a scenario: it records an effect, opens or ends
        a wait, starts, signals or settles a process. Operations that only decide which worker executes a
        run are housekeeping.

Differences from a real kill: plain code in ``finally`` runs, dependencies are closed, and a plain function in
a thread continues. Use a real kill where that matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from pylash.durable.commands import ProcessCommand, StartProcess
from pylash.durable.runs import Fence, JournalEntry
from pylash.durable.scopes import scope_name
from pylash.durable.stores import WaitOpening
from pylash.durable.waits import WaitIdentity, WaitName
from pylash.stores.operation import Operation
from pylash.stores.store import SqlStore
from pylash.values.errors import StoreClosed

if TYPE_CHECKING:
    from pylash.app import Lash

HOUSEKEEPING: Final = frozenset(
    {
        *("migrate", "put", "_forget"),  # the database itself
        *("_join", "beat", "_take_over"),  # membership of workers
        *("_start", "_resume", "claim", "park", "release"),  # ownership of runs
        "observe",  # subscriptions to ends
    }
)
"""Operations that write but are not crash points: a crash there is the same as at a neighbouring point."""

LEAVING: Final = "_take_over"
"""The operation by which a worker leaves, before it frees its lock."""

When = Literal["before", "after"]


class CrashPoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A moment at which a run is killed: before a record is written, or after.

    >>> str(CrashPoint(4, "after", "record", "process order-7", "charge", "durable_step"))
    "point 4, after record of durable_step 'charge' in process order-7"
    """

    number: int
    when: When
    operation: str
    scope: str = ""
    key: str = ""
    kind: str = ""

    def __str__(self) -> str:
        what = " ".join(filter(None, (self.kind, repr(self.key) if self.key else "")))
        of = f" of {what}" if what else ""
        scope = f" in {self.scope}" if self.scope else ""
        return f"point {self.number}, {self.when} {self.operation}{of}{scope}"


class Mortal:
    """A layer between an open app and its database that can kill the app at any moment.

    ``strikes`` is called at every crash point, and kills the app by returning True.
    """

    def __init__(self, app: Lash, strikes: Callable[[CrashPoint], bool] = lambda _: False) -> None:
        store = app.store
        if not isinstance(store, SqlStore):
            raise TypeError(f"expected an app on an SQL store, got {type(store).__name__}")
        self.died = asyncio.Event()
        self.boundaries = 0
        self._app = app
        self._strikes = strikes
        self._leaving = False
        self._honest = store.driver.run
        store.driver.run = self._run  # type: ignore[method-assign]

    def die(self) -> None:
        """Write nothing from now on, and let no operation return."""
        self.died.set()

    async def bury(self) -> None:
        """Close the dead app: end its tasks, close its files, free its locks."""
        self._leaving = True
        with suppress(TimeoutError, StoreClosed):
            async with asyncio.timeout(0):  # a cancelled close waits for nothing
                await self._app.close()

    def _run(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._leaving:
            if operation.name != LEAVING:
                raise StoreClosed
            answer.set_result(False)
            return answer
        if self.died.is_set():
            return answer
        boundary = None
        if not (operation.read_only or operation.name in HOUSEKEEPING):
            self.boundaries += 1
            boundary = self.boundaries
            if self._strikes(described(operation, 2 * boundary - 1, "before")):
                self.die()
                return answer
        done: Any = self._honest(operation)
        done.add_done_callback(partial(self._answer, operation, boundary, answer))
        return answer

    def _answer(
        self,
        operation: Operation[Any],
        boundary: int | None,
        answer: asyncio.Future[Any],
        done: asyncio.Future[Any],
    ) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if self.died.is_set():
            return
        if boundary is not None and self._strikes(described(operation, 2 * boundary, "after")):
            self.die()
        elif answer.done():
            return
        elif error is None:
            answer.set_result(done.result())
        else:
            answer.set_exception(error)


async def kill(app: Lash) -> None:
    """End an open app as if its process had died: nothing is drained, written or released.

    Another app over the same store takes its work over at once; this one may be opened again.

    >>> await kill(app)
    >>> await app.open()
    """
    mortal = Mortal(app)
    mortal.die()
    await mortal.bury()


def described(operation: Operation[Any], number: int, when: When) -> CrashPoint:
    """Return operation as a crash point, described by its arguments."""
    scope = key = kind = ""
    for argument in getattr(operation.steps, "args", ()):
        match argument:
            case Fence():
                scope = argument.name
            case JournalEntry():
                key, kind = argument.key, argument.kind
            case WaitOpening(name=name) | (WaitName() as name) if not key:
                scope, key = scope_name(name.scope), _joined(name.wait)
            case StartProcess() if not key:
                key = argument.registration.id
            case _ if not key and isinstance(argument, ProcessCommand):
                key = argument.effect_id
    return CrashPoint(number, when, operation.name, scope, key, kind)


def _joined(wait: WaitIdentity) -> str:
    return "/".join(str(getattr(wait, field)) for field in wait.__struct_fields__)
