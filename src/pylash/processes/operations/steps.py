"""Steps of processes: attempts, delays between them, arguments and results."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType
from typing import Any, Final, Generic, NoReturn, ParamSpec, TypeVar, get_args, overload

import msgspec

from pylash.durable.effects import (
    DurableStep,
    DurableStepOutcome,
    EffectKind,
    Envelope,
    Outcome,
    expect,
)
from pylash.engine.executors import Executor
from pylash.engine.retries import Retry, Tries, attempting, marked_final
from pylash.engine.runs.branches import Branch, outside, own_branch
from pylash.engine.runs.run import LiveRun
from pylash.engine.user_code import FailsAs, call_function
from pylash.tools.signatures import ANY, Shape, reason_of, result_of
from pylash.values.durations import Duration, seconds
from pylash.values.errors import LashError, StepFailed
from pylash.values.names import check_name
from pylash.values.process_errors import ArgumentsInvalid, ProcessDataInvalid, StepTimeout

D = TypeVar("D")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_STEP: Final = frozenset({EffectKind.DURABLE_STEP})

_WRAPPER_NAMES: Final = frozenset({"wrapper", "wrapped", "wrap", "inner", "decorated", "decorator"})
"""The names that decorators give to the function that they return. They say nothing about the step."""


class StepOptions(msgspec.Struct, frozen=True):
    """The name, retries and time limit of a step."""

    key: str | None = None
    retry: Retry | None = None
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        if not (self.retry is None or isinstance(self.retry, Retry)):
            raise ArgumentsInvalid(
                "ctx.options", f"retry={self.retry!r} is not a Retry, such as Retry(3)"
            )
        if self.timeout is not None:
            seconds(self.timeout)


DEFAULT_OPTIONS: Final = StepOptions()


def check_effect_name(run: LiveRun, what: str, name: str) -> str:
    """Return the name of a new effect, or refuse an invalid one.

    While a run is replayed nothing is checked: recorded names stay valid if the rules change.
    """
    return name if run.memory.is_replaying else check_name(what, name)


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
    def step(self, function: Any, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Return the recorded result of ``function(*args, **kwargs)``, or call it and record the result.

        A plain function runs in a thread. Raises StepFailed if the function fails, or a failure is recorded.

        >>> profile = await ctx.step(load_profile, "ann")
        """
        if not callable(function):
            getattr(function, "close", str)()  # a coroutine that will never be awaited
            reason = "pass a function and its arguments, not the result of calling it"
            raise ArgumentsInvalid("ctx.step", reason)
        branch = own_branch(self._run, "step")
        name = self._options.key or _name_of(function, branch)
        call = (function, args, kwargs)
        step = _Step(self._run, branch, branch.take(name), self._options, call)
        return step.attempt(1) if self._options.retry is None else step.attempt_until_success()


def refuse_data(run: LiveRun, what: str, error: ValueError, shape: Shape | None) -> NoReturn:
    """Block a process whose code does not accept what is recorded: code with another annotation recorded it."""
    wanted: Any = None if shape is None else shape.annotation
    if isinstance(wanted, type) and not get_args(wanted):
        wanted = wanted.__name__
    run.give_up(ProcessDataInvalid(run.id, what, f"expected {wanted}: {reason_of('', error)}"))


class _Step(msgspec.Struct, frozen=True):
    """One step: its attempts and the delays between them."""

    run: LiveRun
    branch: Branch
    part: tuple[str, int]
    options: StepOptions
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

    async def attempt_until_success(self) -> Any:
        """Return the result of the first attempt that succeeds."""
        tries = Tries(
            self.run,
            self.branch,
            "step",
            self.part[0],
            self.options.retry,
            lambda number: self.branch.key(self.part, f"delay.{number}"),
        )
        return await tries.first_success(self.attempt, StepFailed)

    async def attempt(self, number: int) -> Any:
        """Return the result of one attempt: the recorded one, or that of a call of the function."""
        (function, args, kwargs), name = self.call, self.part[0]
        shape = result_of(function)
        if not shape.is_known:
            await shape.prepare(f"step {name!r}")
        # The key of the first attempt is the key of the step itself.
        key = self.branch.key(self.part, *(() if number == 1 else (f"attempt.{number}",)))
        command = _command(name, function, args, kwargs)
        retry, timeout = self.options.retry, self.options.timeout
        limit = None if timeout is None else seconds(timeout)

        async def perform(_: Envelope) -> Outcome:
            fails = FailsAs(lambda error: marked_final(error, error, retry))
            with outside(), attempting(number), fails:
                try:
                    async with asyncio.timeout(limit) as scope:
                        value = await call_function(function, args, kwargs)
                except TimeoutError:
                    if not scope.expired() or limit is None:
                        raise
                    raise StepTimeout(name, limit) from None
            return DurableStepOutcome(shape.dump_result(value, f"step {name!r}"))

        local = Executor("step", _STEP, perform)
        outcome = await self.run.effect(self.branch, key, name, command, local)
        try:
            return shape.load(expect(outcome, DurableStepOutcome).value)
        except ValueError as error:  # recorded by code with another annotation
            refuse_data(self.run, f"a result of step {name!r}", error, shape)


def _command(
    name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> DurableStep:
    """Return the command of a step: its name and its arguments, also those that a partial has bound."""
    given = [_plain(arg, f"$[{n}]") for n, arg in enumerate(args)]
    named = {key: _plain(arg, f"$.{key}") for key, arg in kwargs.items()}
    bound_args: list[Any] = []
    bound: dict[str, Any] = {}
    # A partial of a partial has the arguments of both, unless it is an object of a subclass.
    while isinstance(function, functools.partial):
        bound_args = [*map(_plain_bound, function.args), *bound_args]
        bound = {key: _plain_bound(one) for key, one in function.keywords.items()} | bound
        function = function.func
    if not (bound_args or bound):
        return DurableStep(name, _input(given, named))
    return DurableStep(name, _input([*bound_args, *given], bound | named), _input(given, named))


def _input(args: list[Any], kwargs: dict[str, Any]) -> Any:
    return {"args": args, "kwargs": kwargs} if args or kwargs else None


def _plain_bound(value: Any) -> Any:
    """Return a bound argument as plain JSON; None for a client, a function or another object, which is not compared."""
    try:
        return _plain(value, "$")
    except (LashError, ValueError):
        return None


def _name_of(function: Any, branch: Branch) -> str:
    """Return the name that a step is recorded under: that of its function, also within a partial or a decorator.

    A callable object without a name has that of its class.
    """
    while True:
        own = str(getattr(function, "__name__", type(function).__name__))
        inside = _inside(function)
        # Older code recorded partials under the name of their class, and decorated functions under that of the wrapper.
        # Those records keep it.
        if not inside or branch.is_recorded_next(own):
            return own
        if len(inside) > 1:
            if not (_is_generic(own) and _passes_arguments_on(function)) or branch.has_taken(own):
                return own
            raise ArgumentsInvalid(
                "ctx.step",
                f"the function {own!r} was returned by a decorator, and which function it decorates cannot be found: use "
                "functools.wraps in the decorator, or name the step with ctx.options(key=...)",
            )
        function = inside[0]


def _inside(function: Any) -> list[Any]:
    """Return the function that a partial or a decorated function calls; several if it may be any of them."""
    if isinstance(function, functools.partial):
        return [function.func]
    # The wrapper of a decorator without ``functools.wraps``: defined in another function, and with the name that it has there.
    is_nested = (
        isinstance(function, FunctionType)
        and function.__name__ == function.__code__.co_name != "<lambda>"
        and "<locals>" in function.__qualname__
    )
    if not is_nested or not (_is_generic(function.__name__) or _passes_arguments_on(function)):
        return []
    wrapped = getattr(function, "__wrapped__", None)
    return (
        [one for one in _enclosed(function) if one is not function]
        if wrapped is None
        else [wrapped]
    )


def _is_generic(name: str) -> bool:
    return name.strip("_") in _WRAPPER_NAMES


def _passes_arguments_on(function: Any) -> bool:
    return bool(function.__code__.co_flags & (CO_VARARGS | CO_VARKEYWORDS))


def _enclosed(function: FunctionType) -> Iterator[Any]:
    """Yield the functions and other callables, except classes, that a function uses from the function around it."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not assigned yet
            if callable(cell.cell_contents) and not isinstance(cell.cell_contents, type):
                yield cell.cell_contents


def _plain(value: Any, path: str) -> Any:
    """Return an argument as plain JSON, for the hash: pydantic models, dataclasses and similar values are converted."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        value = dump(mode="json")
    elif not isinstance(value, str | int | float | bool | dict | list | type(None)):
        with suppress(TypeError, LashError):
            value = msgspec.to_builtins(value)
    return ANY.dump(value, path)
