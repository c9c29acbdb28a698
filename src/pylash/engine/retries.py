"""Retries: how often something is attempted, and the recorded delays between attempts."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

import msgspec

from pylash.durable.effects import Sleep
from pylash.durable.seeds import chance
from pylash.engine.executors import sleep_executor
from pylash.engine.records import FinalFailure, message_of
from pylash.engine.runs.branches import Branch
from pylash.engine.runs.run import LiveRun
from pylash.turn.asks import RetryPolicy
from pylash.values.durations import Duration, seconds
from pylash.values.errors import LashError
from pylash.values.process_errors import ArgumentsInvalid

T = TypeVar("T")

LOGGED_CHARACTERS: Final = 500
"""How much of the message of a failed attempt is logged."""

_log = logging.getLogger("pylash")


class Retry(msgspec.Struct, frozen=True):
    """How often and when to try again: ``max`` counts every try, the first included.

    ``on`` is the exception after which a call is tried again, or a tuple of them as after ``except``. Each delay is ``factor`` times
    the one before, but at most ``max_delay``.

    >>> Retry(3, delay="1s", max_delay="1m")  # doctest: +ELLIPSIS
    Retry(max=3, ...)
    """

    max: int = 3
    delay: Duration = "1s"
    factor: float = 2
    jitter: bool = True
    on: type[Exception] | tuple[type[Exception], ...] = (Exception,)
    max_delay: Duration | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.max, int) or self.max < 1:
            raise ArgumentsInvalid("Retry", f"max={self.max!r} is not a number of at least 1")
        seconds(self.delay)
        if self.max_delay is not None:
            seconds(self.max_delay)
        if not isinstance(self.factor, int | float) or self.factor <= 0:
            raise ArgumentsInvalid("Retry", f"factor={self.factor!r} is not a number above 0")
        if not isinstance(self.jitter, bool):
            raise ArgumentsInvalid("Retry", f"jitter={self.jitter!r} is neither True nor False")
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not (kinds and all(map(_is_exception, kinds))):
            reason = f"on={self.on!r} is neither an exception such as OSError nor a tuple of them"
            raise ArgumentsInvalid("Retry", reason)
        # Always a tuple from here on; nothing else changes a Retry.
        msgspec.structs.force_setattr(self, "on", kinds)

    @property
    def policy(self) -> RetryPolicy:
        """The numbers, without the exceptions."""
        limit = None if self.max_delay is None else seconds(self.max_delay)
        return RetryPolicy(self.max, seconds(self.delay), self.factor, self.jitter, limit)

    @staticmethod
    def of(policy: RetryPolicy | None, current: Retry | None) -> Retry | None:
        """Return a retry with captured numbers and the exceptions of today's code."""
        if policy is None:
            return None
        on = (Exception,) if current is None else current.on
        return Retry(policy.max, policy.delay, policy.factor, policy.jitter, on, policy.max_delay)

    def pause(self, failures: int, chance: float) -> float:
        """Return the seconds to wait after so many failures."""
        # Before the jitter: delays at the limit must differ too.
        limit = math.inf if self.max_delay is None else seconds(self.max_delay)
        try:
            pause = min(limit, seconds(self.delay) * self.factor ** (failures - 1))
        except OverflowError:  # after about a thousand failures
            if self.max_delay is None:
                raise
            pause = limit
        return pause * (0.5 + chance / 2) if self.jitter else pause


# Set around the function of a step or a tool. A context variable: functions run in threads too, which copy the context.
_ATTEMPT: Final[ContextVar[int]] = ContextVar("pylash_attempt", default=1)


def current_attempt() -> int:
    """Return the number of the current attempt of a step or a tool, from 1; 1 if the function is called directly.

    >>> async def charge(order: str) -> str:
    ...     if current_attempt() > 1:
    ...         log.warning("charging %s again", order)
    """
    return _ATTEMPT.get()


@contextmanager
def attempting(number: int) -> Iterator[None]:
    """Make ``current_attempt`` return a number in the block."""
    token = _ATTEMPT.set(number)
    try:
        yield
    finally:
        _ATTEMPT.reset(token)


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


class Tries(msgspec.Struct, frozen=True):
    """Attempts at one thing and the delays between them, which are effects of a run.

    ``what`` is the kind of the thing in log lines, such as ``step``.
    """

    run: LiveRun
    branch: Branch
    what: str
    name: str
    retry: Retry | None
    delay_key: Callable[[int], str]
    failed: Callable[[int, LashError], None] | None = None
    """Called after every attempt that failed and is not the last, on a replay too."""

    async def first_success(
        self, attempt: Callable[[int], Awaitable[T]], failure: type[LashError] = LashError
    ) -> T:
        """Return the result of the first attempt that succeeds, or raise the last failure."""
        # Counts the attempts of all executions: the recorded ones are replayed first. It is part of the keys of attempts
        # and delays, so it must grow by one with each.
        number = 1
        while True:
            try:
                return await attempt(number)
            except failure as error:
                # ``final`` is recorded with the failure, so that a replay stops at the same attempt.
                if self.retry is None or error.final or number >= self.retry.max:
                    raise
                if self.failed is not None:
                    self.failed(number, error)
                # The duration is part of the recorded command, so jitter comes from the seed: a replay asks for the same.
                key = self.delay_key(number)
                pause = self.retry.pause(number, chance(self.run.seed, key))
                # Otherwise an earlier execution has logged it. Not ``is_replaying``: other branches may still replay while this
                # one is past its records.
                if not self.run.memory.begun(key):
                    self._log_retry(number, error, pause)
            # A sleep of the run and not of the task: a run that waits for its next attempt can be parked.
            command = Sleep(round(pause * 1000), retry=True)
            name = f"{self.name} again"
            await self.run.effect(self.branch, key, name, command, sleep_executor())
            number += 1

    def _log_retry(self, number: int, error: LashError, pause: float) -> None:
        """Log one line. The traceback is logged with the last failure, if that is not handled."""
        assert self.retry is not None
        cause = error.__cause__ or error
        text = message_of(cause)
        if not isinstance(cause, LashError):  # whose message is a sentence of its own
            text = f"{type(cause).__name__}: {text}"
        _log.warning(
            "%s: attempt %d of %d of %s %r failed: %s; next attempt in %g s",
            self.run.fence.name,
            number,
            self.retry.max,
            self.what,
            self.name,
            " ".join(text.split())[:LOGGED_CHARACTERS],
            round(pause, 3),
        )


def is_final(error: BaseException, retry: Retry | None) -> bool:
    """Return whether a call is not to be tried again after an error, however many attempts are left."""
    return retry is not None and not isinstance(error, retry.on)


def marked_final(
    failure: BaseException, error: BaseException, retry: Retry | None
) -> BaseException:
    """Return the failure that represents an error, marked if the call is not to be tried again after it."""
    return FinalFailure(failure) if is_final(error, retry) else failure
