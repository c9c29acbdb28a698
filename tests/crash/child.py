"""A program to be killed: two durable steps in one scope.

It writes what it executes to a log, and prints its progress for its parent.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from pylash import (
    CustomWait,
    DurableStep,
    JournalHost,
    LashError,
    ProcessScope,
    RuntimeScope,
    envelope,
    open_host,
    step_executor,
)
from pylash.durable.effects import AwaitEvent
from pylash.durable.runs import SECOND, LeaseTimings
from pylash.engine.executors import await_options
from pylash.values.errors import LeaseHeld

SCOPE = ProcessScope("order-7")
SHORT = LeaseTimings(ttl=SECOND // 2, renew_every=SECOND // 5)


def say(text: str) -> None:
    print(text, flush=True)


class Program:
    """The scope's program, with a log of what really ran."""

    def __init__(self, host: JournalHost, log: str) -> None:
        self.host = host
        self.log = log
        self.controller = host.scoped(SCOPE)

    async def step(self, name: str, inside: Callable[[], Awaitable[Any]] | None = None) -> Any:
        async def run(_: Any) -> Any:
            with open(self.log, "a", encoding="utf-8") as log:  # noqa: ASYNC230 - a test's child
                log.write(f"{name}\n")
            if inside is not None:
                await inside()
            return {"by": os.getpid(), "step": name}

        asked = envelope(DurableStep(name), scope=RuntimeScope(), effect_id=name, replay_key=name)
        outcome: Any = await self.controller.execute(asked, step_executor(run))
        return outcome.value

    async def killed_inside_two(self) -> None:
        """Be killed while step two is performed: nothing of it is recorded."""
        await self.step("one")

        async def hang() -> None:
            say("READY")
            await asyncio.Event().wait()

        await self.step("two", hang)

    async def killed_after_two(self) -> None:
        """Be killed after step two was recorded."""
        await self.step("one")
        await self.step("two")
        say("READY")
        await asyncio.Event().wait()

    async def finish(self) -> None:
        """Run to the end."""
        for name in ("one", "two", "three"):
            value = await self.step(name)
            say(f"{name} {value['by']}")
        say("DONE")

    async def paused(self) -> None:
        """Stop between transactions, past the lease, and try to go on."""
        await self.step("one")
        say("READY")
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            await self.step("two")
        except LashError as error:
            say(f"REFUSED {error.code}")
        else:
            say("WROTE")

    async def take_over(self) -> None:
        """Try until the paused owner's lease is over, then record step two."""
        async with asyncio.timeout(20):
            while True:
                try:
                    value = await self.step("two")
                except LeaseHeld:
                    await asyncio.sleep(0.05)
                else:
                    say(f"TOOK {value['by']}")
                    return

    async def wait(self) -> None:
        """Wait for somebody in another process."""
        key = await self.host.wait_key(SCOPE, CustomWait("go"))
        say(f"KEY {key}")
        asked = envelope(
            AwaitEvent(key, title="Go?"), scope=RuntimeScope(), effect_id="go", replay_key="go"
        )
        outcome: Any = await self.controller.execute(asked, await_options())
        say(f"RESUMED {outcome.resolution.value}")


async def main(program: str, url: str, log: str) -> None:
    timings = SHORT if program in ("paused", "take_over") else None
    async with open_host(url, timings=timings, migrate=True) as host:
        await getattr(Program(host, log), program)()
