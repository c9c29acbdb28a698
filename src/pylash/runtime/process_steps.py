"""Steps of processes: attempts, delays between them, and what they take and return."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

import msgspec

from pylash.durable import (
    DurableStep,
    DurableStepOutcome,
    EffectKind,
    Envelope,
    Outcome,
    Sleep,
    expect,
)
from pylash.runtime.branches import Branch, outside, own_branch
from pylash.runtime.executors import Executor, sleep_executor
from pylash.runtime.records import FinalFailure
from pylash.runtime.runs import LiveRun
from pylash.runtime.signatures import Shape, result_of
from pylash.runtime.user_code import FailsAs, called
from pylash.values import (
    ArgumentsInvalid,
    Duration,
    LashError,
    StepFailed,
    StepTimeout,
    check_name,
    seconds,
)

D = TypeVar("D")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_STEP: Final = frozenset({EffectKind.DURABLE_STEP})
_ANY: Final = Shape(Any)


class Retry(msgspec.Struct, frozen=True):
    """How often and when to try again: ``max`` counts every try, the first included.

    ``on`` is what is tried again, an exception or a tuple of them as after ``except``.

    >>> Retry(3, delay="1s")  # doctest: +ELLIPSIS
    Retry(max=3, ...)
    """

    max: int = 3
    delay: Duration = "1s"
    factor: float = 2
    jitter: bool = True
    on: type[Exception] | tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if not isinstance(self.max, int) or self.max < 1:
            raise ArgumentsInvalid("Retry", f"max={self.max!r} is no number of at least 1")
        seconds(self.delay)
        if not isinstance(self.factor, int | float) or self.factor <= 0:
            raise ArgumentsInvalid("Retry", f"factor={self.factor!r} is no number above 0")
        if not isinstance(self.jitter, bool):
            raise ArgumentsInvalid("Retry", f"jitter={self.jitter!r} is neither True nor False")
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not (kinds and all(map(_is_exception, kinds))):
            reason = f"on={self.on!r} is neither an exception such as OSError nor a tuple of them"
            raise ArgumentsInvalid("Retry", reason)
        msgspec.structs.force_setattr(self, "on", kinds)

    def pause(self, failures: int, chance: float) -> float:
        """Return the seconds to wait after so many failures."""
        pause = seconds(self.delay) * self.factor ** (failures - 1)
        return pause * (0.5 + chance / 2) if self.jitter else pause


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


class StepOptions(msgspec.Struct, frozen=True):
    """How a step is named, repeated and limited."""

    key: str | None = None
    retry: Retry | None = None
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        if not (self.retry is None or isinstance(self.retry, Retry)):
            raise ArgumentsInvalid("ctx.options", f"retry={self.retry!r} is not such as Retry(3)")
        if self.timeout is not None:
            seconds(self.timeout)


def checked_name(run: LiveRun, what: str, name: str) -> str:
    """Return a name that a process gives to something new, or refuse it.

    While a run is replayed nothing is checked: what was recorded keeps its name, whatever the rule was then.
    """
    return name if run.replaying else check_name(what, name)


class StepContext(Generic[D]):
    """A context with options for the steps it takes."""

    def __init__(self, run: LiveRun, options: StepOptions) -> None:
        self._run = run
        self._options = options

    @overload
    def step(
        self, function: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    def step(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Return what ``function(*args, **kwargs)`` returned the first time, or call and record it.

        A plain function runs in a thread. Raises StepFailed if it fails, or failed.

        >>> profile = await ctx.step(load_profile, "ann")
        """
        _refuse_result(function)
        name = self._options.key or str(getattr(function, "__name__", type(function).__name__))
        branch = own_branch(self._run, "step")
        step = _Step(self._run, branch, branch.take(name), self._options, function)
        return step.tried(args, kwargs)


class Tries(msgspec.Struct, frozen=True):
    """Attempts at one thing and the delays between them, which are effects of a run."""

    run: LiveRun
    branch: Branch
    name: str
    retry: Retry | None
    delay_key: Callable[[int], str]
    failed: Callable[[int, LashError], None] | None = None
    """Hears of every attempt that failed and is not the last."""

    async def first_success(
        self, attempt: Callable[[int], Awaitable[T]], failure: type[LashError] = LashError
    ) -> T:
        """Return the result of the first attempt that succeeds, or raise the last failure."""
        number = 1
        while True:
            try:
                return await attempt(number)
            except failure as error:
                if self.retry is None or error.final or number >= self.retry.max:
                    raise
                if self.failed is not None:
                    self.failed(number, error)
            key = self.delay_key(number)
            pause = self.retry.pause(number, chance(self.run.seed, key))
            command = Sleep(round(pause * 1000), retry=True)
            name = f"{self.name} again"
            await self.run.effect(self.branch, key, name, command, sleep_executor())
            number += 1


class _Step(msgspec.Struct):
    """One step: its attempts and the delays between them."""

    run: LiveRun
    branch: Branch
    part: tuple[str, int]
    options: StepOptions
    function: Callable[..., Any]

    async def tried(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of the first attempt that succeeds."""
        if self.options.retry is None:
            return await self._attempt(1, args, kwargs)
        tries = Tries(
            self.run,
            self.branch,
            self.part[0],
            self.options.retry,
            lambda number: self.branch.key(self.part, f"delay.{number}"),
        )
        return await tries.first_success(
            lambda number: self._attempt(number, args, kwargs), StepFailed
        )

    async def _attempt(self, attempt: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, shape = self.part[0], result_of(self.function)
        if not shape.is_known:
            await shape.prepare(f"step {name!r}")
        key = attempt_key(self.branch, self.part, attempt)
        given = [_ANY.dump(_plain(arg), f"$[{n}]") for n, arg in enumerate(args)]
        named = {name: _ANY.dump(_plain(arg), f"$.{name}") for name, arg in kwargs.items()}
        command = DurableStep(name, {"args": given, "kwargs": named} if given or named else None)

        async def perform(_: Envelope) -> Outcome:
            with outside():
                value = await self._called(args, kwargs)
            return DurableStepOutcome(shape.dump_result(value, f"step {name!r}"))

        local = Executor("step", _STEP, perform)
        outcome = await self.run.effect(self.branch, key, name, command, local)
        return shape.load(expect(outcome, DurableStepOutcome).value)

    async def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        timeout, retry = self.options.timeout, self.options.retry
        limit = None if timeout is None else seconds(timeout)
        with FailsAs(lambda error: marked_final(error, error, retry)):
            try:
                async with asyncio.timeout(limit) as scope:
                    return await called(self.function, args, kwargs)
            except TimeoutError:
                if not scope.expired() or limit is None:
                    raise
                raise StepTimeout(self.part[0], limit) from None


def marked_final(told: BaseException, error: BaseException, retry: Retry | None) -> BaseException:
    """Return what is told of an error, marked if the call is not to be tried again after it."""
    if retry is None or isinstance(error, retry.on):
        return told
    return FinalFailure(told)


def attempt_key(branch: Branch, part: tuple[str, int], attempt: int) -> str:
    """Return the key of an attempt at something in a process; the first is the thing itself."""
    return branch.key(part) if attempt == 1 else branch.key(part, f"attempt.{attempt}")


def _refuse_result(function: Any) -> None:
    """Refuse what calling a step gives, where the step itself is needed."""
    if not callable(function):
        getattr(function, "close", str)()  # a coroutine that will never be awaited
        reason = "it takes a function and its arguments, not what calling it gives"
        raise ArgumentsInvalid("ctx.step", reason)


def _plain(value: Any) -> Any:
    """Return an argument as it is hashed: what has a JSON form of its own is taken as that."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if isinstance(value, str | int | float | bool | dict | list | type(None)):
        return value
    try:
        return msgspec.to_builtins(value)
    except (TypeError, LashError):
        return value


def digest(*parts: str) -> bytes:
    """Return bytes that depend on nothing but parts."""
    return hashlib.sha256("\x1f".join(parts).encode()).digest()


def chance(*parts: str) -> float:
    """Return a number from 0 to 1 that depends on nothing but parts."""
    return int.from_bytes(digest(*parts)[:7], "big") / (1 << 56)


def uuid_text(data: bytes) -> str:
    """Return 16 bytes as the text of a version 4 UUID."""
    marked = bytearray(data)
    marked[6] = marked[6] & 0x0F | 0x40
    marked[8] = marked[8] & 0x3F | 0x80
    text = bytes(marked).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
