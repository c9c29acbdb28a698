"""Deaths: ending an open app as a kill would, without leaving the process.

Rule 1. From the moment of death nothing more is written and nobody is answered: what was asked of the
        store waits for ever, as it does in a process that is gone.
Rule 2. Only then is the app torn down: it drains nothing and gives nothing back. The locks that die
        with a process are freed, so that the next app takes over at once.
Rule 3. What counts as a boundary is what changes the story: effects recorded, waits opened and ended,
        processes started, signalled and settled. Who executes what is housekeeping.

What a kill would not do happens nevertheless: plain code in ``finally`` runs, dependencies are left, and
a plain function that runs in a thread runs on. Use a real kill where that matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from pylash.durable import (
    Fence,
    JournalEntry,
    ProcessCommand,
    StartProcess,
    WaitIdentity,
    WaitName,
    WaitOpening,
    scope_name,
)
from pylash.stores import Operation, SqlStore
from pylash.values import StoreClosed

if TYPE_CHECKING:
    from pylash.app import Lash

HOUSEKEEPING: Final = frozenset(
    {
        *("migrate", "put", "_forget"),  # the database itself
        *("_join", "beat", "_take_over"),  # who is alive
        *("_start", "_resume", "claim", "park", "release", "wake"),  # who executes what
        "observe",  # who wants to hear
    }
)
"""Operations that write and change no story: a crash beside one is a crash beside its neighbours."""

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
    """Stands between an open app and its database, and lets the app die at any moment.

    ``strikes`` is asked at every crash point whether this is the one. A ``Mortal`` that was not killed
    does nothing but count.
    """

    def __init__(self, app: Lash, strikes: Callable[[CrashPoint], bool] = lambda _: False) -> None:
        store = app.store
        if not isinstance(store, SqlStore):
            raise TypeError(f"an app dies by its store, and {type(store).__name__} is no SQL store")
        self.died = asyncio.Event()
        self.boundaries = 0
        self._app = app
        self._strikes = strikes
        self._leaving = False
        self._honest = store.driver.run
        store.driver.run = self._run  # type: ignore[method-assign]

    def die(self) -> None:
        """Write nothing from now on, and answer nobody."""
        self.died.set()

    async def bury(self) -> None:
        """Tear the dead app down: its tasks end, its files are closed, its locks are free."""
        self._leaving = True
        with suppress(TimeoutError, StoreClosed):
            async with asyncio.timeout(0):  # closing that is cancelled waits for nobody
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
    """End an open app as if its process had died: nothing is drained, written or given back.

    Another app over the same store takes its work over at once; this one may be opened again.

    >>> await kill(app)
    >>> await app.open()
    """
    mortal = Mortal(app)
    mortal.die()
    await mortal.bury()


def described(operation: Operation[Any], number: int, when: When) -> CrashPoint:
    """Return operation as a crash point: what it writes is read from its arguments."""
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
