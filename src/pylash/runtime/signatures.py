"""Signatures: what goes into a function and comes out of it, as JSON and back.

Rule 1. The annotation decides the type; without one a value is plain JSON.
Rule 2. What does not fit, or would not come back, is refused where it is given, with its path.

pydantic is asked only where an annotation needs it, and imported then.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, Never, NoReturn, Protocol

import msgspec

from pylash.tasks import in_thread
from pylash.values import ArgumentsInvalid, ResultInvalid, refuse, round_trip

_PLAIN: Final = (Any, inspect.Parameter.empty, object, NoReturn, Never)
_SCALARS: Final = (str, int, bool, float, type(None))
_CONTAINERS: Final = (dict, list, dict[str, Any], list[Any])


class Shape(msgspec.Struct, frozen=True):
    """How values of one annotation are written and read."""

    annotation: Any

    @property
    def is_plain(self) -> bool:
        """Whether any JSON value will do."""
        return self.annotation in _PLAIN or self.annotation in _CONTAINERS

    @property
    def is_known(self) -> bool:
        """Whether values are read and written without pydantic."""
        return self.is_plain or self.annotation is None or self.annotation in _SCALARS

    async def prepare(self, owner: str, what: str = "its result") -> None:
        """Load pydantic in a thread, if it is needed: it takes longer than the event loop may wait.

        Refuses an annotation that pydantic does not know.
        """
        if self.is_known:
            return
        try:
            if "pydantic" in sys.modules:
                _adapter(self.annotation)
            else:
                await in_thread(_adapter, self.annotation)
        except (
            TypeError,
            RuntimeError,
        ) as error:  # what pydantic raises for a type it does not know
            first = str(error).partition(". ")[0]
            raise ArgumentsInvalid(owner, f"{what}: {first}") from None

    def dump(self, value: Any, path: str = "$") -> Any:
        """Return value as plain JSON; refuses what does not fit or would not come back."""
        if self._fits(value):
            return value
        if self.is_plain:
            refuse(value, path)
            return round_trip(value)
        adapter = _adapter(self.annotation)
        plain = adapter.dump_python(adapter.validate_python(value), mode="json")
        refuse(plain, path)
        return plain

    def dump_result(self, value: Any, name: str) -> Any:
        """Return a result as plain JSON, or refuse one that is not what was declared."""
        try:
            return self.dump(value)
        except ValueError as error:
            raise ResultInvalid(name, _reason("", error)) from None

    def load(self, value: Any) -> Any:
        """Return what plain JSON stands for."""
        if self.is_plain or self._fits(value):
            return value
        return _adapter(self.annotation).validate_python(value)

    @property
    def is_text(self) -> bool:
        """Whether it is what a model says anyway: plain text."""
        return self.annotation is str

    def answer_schema(self) -> Any:
        """Return the JSON Schema that a model's answer must fit; None for plain text."""
        return None if self.is_text else self.json_schema()

    def json_schema(self) -> Any:
        """Return the JSON Schema of the values, as they are given."""
        return _adapter(self.annotation).json_schema()

    def written_schema(self) -> Any:
        """Return the JSON Schema of the values, as they are written."""
        return _adapter(self.annotation).json_schema(mode="serialization")

    def _fits(self, value: Any) -> bool:
        """Whether value is of a type that is its own JSON."""
        kind = type(value)
        if kind is float:
            return False  # it may be no number at all
        annotation = type(None) if self.annotation is None else self.annotation
        return kind in _SCALARS and (kind is annotation or annotation in _PLAIN)


class Arguments(Protocol):
    """What a process takes, by name, and returns."""

    @property
    def result(self) -> Shape:
        """What it returns."""
        ...

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a start as plain JSON; refuse those that do not fit."""
        ...

    def dump_one(self, name: str, value: Any) -> Any:
        """Return one argument as plain JSON."""
        ...

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse names that are no parameters, and missing ones."""
        ...


class Signature(msgspec.Struct, frozen=True):
    """What a function takes (without its context, if it has one) and returns."""

    name: str
    parameters: Mapping[str, Shape]
    result: Shape
    bound: inspect.Signature
    rest: str | None = None

    async def prepare(self) -> None:
        """Load what is needed to check arguments and result."""
        for name, shape in (*self.parameters.items(), ("its result", self.result)):
            await shape.prepare(self.name, name)

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as plain JSON by name, or refuse what does not fit."""
        if not (args or kwargs or self.parameters or self.rest):
            return {}
        try:
            given = self.bound.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ArgumentsInvalid(self.name, str(error)) from None
        if self.rest is not None:
            given = {**given, **given.pop(self.rest, {})}
        return {name: self._dumped(name, value) for name, value in given.items()}

    def defaults(self) -> dict[str, Any]:
        """Return the arguments that need not be given."""
        parameters = self.bound.parameters.values()
        return {one.name: one.default for one in parameters if one.default is not one.empty}

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse arguments that are missing or too many."""
        try:
            self.bound.bind(**dict.fromkeys(names))
        except TypeError as error:
            raise ArgumentsInvalid(self.name, str(error)) from None

    def dump_one(self, name: str, value: Any) -> Any:
        """Return one argument as plain JSON, or refuse it."""
        return self._dumped(name, value)

    def load(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that plain JSON stands for."""
        if not (arguments or self.parameters):
            return {}
        try:
            self.bound.bind(**arguments)
        except TypeError as error:
            raise ArgumentsInvalid(self.name, str(error)) from None
        loaded = {}
        for name, value in arguments.items():
            try:
                loaded[name] = self._shape(name).load(value)
            except ValueError as error:
                raise ArgumentsInvalid(self.name, _reason(name, error)) from None
        return loaded

    def dump_result(self, value: Any) -> Any:
        """Return a result as plain JSON, or refuse one that is not what was declared."""
        return self.result.dump_result(value, self.name)

    def _shape(self, name: str) -> Shape:
        return self.parameters.get(name, Shape(Any))

    def _dumped(self, name: str, value: Any) -> Any:
        try:
            return self._shape(name).dump(value, f"$.{name}")
        except ValueError as error:
            raise ArgumentsInvalid(self.name, _reason(name, error)) from None


def signature_of(function: Callable[..., Any], name: str | None = None) -> Signature:
    """Return the signature of a function without its first parameter."""
    whole = inspect.signature(function)
    parameters = list(whole.parameters.values())[1:]
    hints = _hints(function)
    varied = [one for one in parameters if one.kind is inspect.Parameter.VAR_KEYWORD]
    shapes = {one.name: Shape(hints.get(one.name, Any)) for one in parameters if one not in varied}
    bound = whole.replace(parameters=parameters)
    rest = varied[0].name if varied else None
    called = name or str(getattr(function, "__name__", "the process"))
    return Signature(called, shapes, Shape(hints.get("return", Any)), bound, rest)


@lru_cache(maxsize=1024)
def result_of(function: Callable[..., Any]) -> Shape:
    """Return how the result of a function is written and read."""
    return Shape(_hints(function).get("return", Any))


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    while hasattr(function, "func"):  # a partial
        function = function.func
    if not inspect.isroutine(function):
        function = getattr(function, "__call__", function)  # noqa: B004 - an object with a signature
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # names that exist only inside a function, or no annotations
        found = getattr(function, "__annotations__", {})
        return {name: hint for name, hint in found.items() if not isinstance(hint, str)}


@lru_cache(maxsize=1024)
def _adapter(annotation: Any) -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 - costly, and not everyone needs it

    return TypeAdapter(annotation)


def _reason(name: str, error: ValueError) -> str:
    """Return the first thing pydantic has to say, in one line."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return f"{name}: {error}" if name else str(error)
    first = errors(include_url=False)[0]
    where = ".".join(map(str, filter(None, (name, *first["loc"]))))
    said = f"{first['msg']} (got {first['input']!r})"
    return f"{where}: {said}" if where else said


def reason_of(name: str, error: ValueError) -> str:
    """Return why a value does not fit, in one line."""
    return _reason(name, error)
