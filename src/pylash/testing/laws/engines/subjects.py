"""What the laws of engines are checked on: apps that are restarted, and code that counts its executions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from pylash.app import Lash
from pylash.processes.handles import ProcessHandle
from pylash.testing.laws.suites import Broken, equal
from pylash.values.errors import LashError

T = TypeVar("T")

LIMIT = "20s"
PATIENCE_SECONDS = 20.0
POLL_SECONDS = 0.01
MODEL = "scripted"

Declare = Callable[[Lash], None]
"""Declares processes, tools and models of an app."""


class EngineSubject(Protocol):
    """An engine over a store with nothing in it.

    Its apps should park idle runs soon (``WorkerConfig(park_after="100ms")``): the laws wait until a run is parked.
    """

    def make(self) -> Lash:
        """Return an app on the engine and the store, which is not open."""
        ...

    async def restart(self, app: Lash) -> None:
        """End an open app without waiting for its runs.

        The next app that is opened continues them: it executes the code of each from its beginning.
        """
        ...


class Deployment:
    """An open app with its declarations, which can be restarted with the same or with other ones."""

    def __init__(self, subject: EngineSubject, declare: Declare) -> None:
        self._subject = subject
        self._declare = declare
        self.app = self._make()

    def _make(self) -> Lash:
        app = self._subject.make()
        self._declare(app)
        return app

    async def __aenter__(self) -> Self:
        await self.app.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.app.close()

    async def restart(self, declare: Declare | None = None) -> None:
        """Restart the app; ``declare``: what it declares from now on."""
        await self._subject.restart(self.app)
        self._declare = declare or self._declare
        self.app = self._make()
        await self.app.open()

    async def start(self, name: str, *args: Any) -> str:
        """Start a process; return its id."""
        return (await self.app.start(self.app.definitions[name], *args)).id

    def handle(self, process_id: str) -> ProcessHandle[Any]:
        """Return the handle of a process in the app that is open now."""
        return self.app.process_handle(process_id)

    async def result(self, process_id: str) -> Any:
        """Return the result of a process."""
        return await self.handle(process_id).result(timeout=LIMIT)

    async def comes_to(self, process_id: str, status: str) -> None:
        """Return once a process has a status."""

        async def is_there() -> bool:
            return str(await self.handle(process_id).status()) == status

        await until(is_there, f"the process is {status}")

    async def emits(self, process_id: str, event_type: str) -> Any:
        """Return the payload of the first event of a type, once there is one."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in self.handle(process_id).events(follow=True):
                if event.type == event_type:
                    return event.payload
        raise Broken(f"the process ended without an event {event_type!r}")

    async def retry(self, process_id: str) -> None:
        """Retry a process, unless the engine has noticed by itself that its code fits again."""
        try:
            await self.app.retry(process_id)
        except LashError as error:
            equal(error.code, "not_blocked", "the retry of a blocked process")


class Ledger:
    """Counts the executions of steps and tools. It outlives the apps, as the world outside does."""

    def __init__(self) -> None:
        self.executed: list[Any] = []

    async def note(self, value: Any) -> Any:
        """Note an execution, and return the value."""
        self.executed.append(value)
        return value


class Gate:
    """A step that is executed until it is opened."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self.was_cancelled = False

    async def enter(self) -> str:
        """Wait until the gate is opened."""
        self.entered.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return "through"

    async def until_entered(self) -> None:
        """Return once the step is executed."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.entered.wait()


async def until(look: Callable[[], Awaitable[T | None]], because: str) -> T:
    """Return what ``look`` returns, once it is true."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                if found := await look():
                    return found
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise Broken(f"{because}: not within {PATIENCE_SECONDS:g} s") from None
