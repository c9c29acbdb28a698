"""How a worker works, and how long records are kept."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from pylash.values.durations import Duration, seconds
from pylash.values.process_errors import ArgumentsInvalid

Residency = Literal["keep_all", "active_path_only"]


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works.

    ``residency``: whether the messages of sessions stay in memory between turns, or only while one runs.

    >>> WorkerConfig(concurrency=10, park_after="5s")  # doctest: +ELLIPSIS
    WorkerConfig(concurrency=10, ...)
    """

    concurrency: int = 100
    lease: Duration = "15s"
    renew: Duration | None = None
    park_after: Duration = "1s"
    grace: Duration = "10s"
    residency: Residency = "keep_all"

    def __post_init__(self) -> None:
        lease = seconds(self.lease)
        renew = lease / 3 if self.renew is None else seconds(self.renew)
        seconds(self.park_after)
        seconds(self.grace)
        numbered = isinstance(self.concurrency, int) and not isinstance(self.concurrency, bool)
        for name, fits, wanted in (
            ("concurrency", numbered and self.concurrency >= 1, "a number of at least 1"),
            ("lease", lease > 0, "longer than 0"),
            ("renew", 0 < renew < lease or lease == 0, f"between 0 and the lease, {self.lease!r}"),
            ("residency", self.residency in get_args(Residency), f"one of {get_args(Residency)}"),
        ):
            if not fits:
                reason = f"{name}={getattr(self, name)!r} is not {wanted}"
                raise ArgumentsInvalid("WorkerConfig", reason)


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long data is kept that is no longer needed.

    ``journal``: the effects of runs that have ended; results, logs and waits do not depend on them.

    >>> Retention(journal="90d")
    Retention(journal='90d')
    """

    journal: Duration = "30d"

    def __post_init__(self) -> None:
        seconds(self.journal)
