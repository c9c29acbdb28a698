"""The real world: the only module that reads the clock or asks for randomness."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time

from pylash.durable.runs import Instant


class SystemClock:
    """The machine's clock."""

    def now(self) -> Instant:
        """Return the wall time."""
        return Instant(time.time_ns() // 1000)  # noqa: TID251 - here and nowhere else

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()  # noqa: TID251 - here and nowhere else

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


def process_name() -> str:
    """Return the name of the machine and the id of the process, to find them by."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", f"{socket.gethostname()}-{os.getpid()}")


def system_entropy(size: int) -> bytes:
    """Return size random bytes, fit for secrets."""
    return os.urandom(size)  # noqa: TID251 - here and nowhere else
