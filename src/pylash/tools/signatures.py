"""Signatures: arguments and results of functions as JSON, and back.

Rule 1. The annotation decides the type; without one a value is plain JSON.
Rule 2. A value that does not fit, or would change in a round trip, is refused at the call, with its path.

pydantic is used only for annotations that need it, and imported then.
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
from pylash.values.canonical import refuse, round_trip
from pylash.values.process_errors import ArgumentsInvalid, ResultInvalid

_PLAIN: Final = (Any, inspect.Parameter.empty, object, NoReturn, Never)
_EXACT: Final = (str, int, bool, type(None))
_SCALARS: Final = (*_EXACT, float)
_CONTAINERS: Final = (dict, list, dict[str, Any], list[Any])


class Shape:
    """Converts values of one annotation to plain JSON and back."""

    __slots__ = ("_own_json", "annotation", "is_known", "is_plain", "is_text")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.is_plain = annotation in _PLAIN or annotation in _CONTAINERS
        """Whether any JSON value fits."""
        self.is_known = self.is_plain or annotation is None or annotation in _SCALARS
        """Whether values are read and written without pydantic."""
        self.is_text = annotation is str
        """Whether a model's answer is used as plain text."""
        # The types of values that fit and are their own JSON. A float is checked: it may be NaN.
        exact = type(None) if annotation is None else annotation
        self._own_json = [one for one in _EXACT if one is exact or annotation in _PLAIN]

    @staticmethod
    def declared(annotation: Any, owner: str, what: str) -> Shape:
        """Return the shape of a type that a caller gave; refuse the name of a type, which nothing could look up."""
        if isinstance(annotation, str):
            raise ArgumentsInvalid(owner, f"{what}: {annotation!r} is a string, not a type")
        return Shape(annotation)

    async def prepare(self, owner: str, what: str = "its result") -> None:
        """Load pydantic in a thread, if it is needed: it takes longer than the event loop may wait.

        Refuses an annotation that pydantic does not know.
        """
        if self.is_known:
            return
        Shape.declared(self.annotation, owner, what)
        try:
            if "pydantic" in sys.modules:
                _adapter(self.annotation)
            else:
                await in_thread(_adapter, self.annotation)
        except (TypeError, RuntimeError, NameError) as error:  # pydantic raises all of them
            first = str(error).partition(". ")[0]
            raise ArgumentsInvalid(owner, f"{what}: {first}") from None

    def dump(self, value: Any, path: str = "$") -> Any:
        """Return value as plain JSON; refuses one that does not fit or would change in a round trip."""
        if type(value) in self._own_json:
            return value
        if self.is_plain:
            refuse(value, path)
            return round_trip(value)
        adapter = _adapter(self.annotation)
        plain = adapter.dump_python(adapter.validate_python(value), mode="json")
        refuse(plain, path)
        return plain

    def dump_result(self, value: Any, name: str) -> Any:
        """Return a result as plain JSON; raises ResultInvalid if it does not fit the annotation."""
        try:
            return self.dump(value)
        except ValueError as error:
            raise ResultInvalid(name, reason_of("", error)) from None

    def load(self, value: Any) -> Any:
        """Return the Python value of plain JSON."""
        if self.is_plain or type(value) in self._own_json:
            return value
        return _adapter(self.annotation).validate_python(value)

    def answer_schema(self) -> Any:
        """Return the JSON Schema that a model's answer must fit; None for plain text."""
        return None if self.is_text else self.json_schema()

    def json_schema(self) -> Any:
        """Return the JSON Schema of the values as input."""
        return _adapter(self.annotation).json_schema()

    def serialized_schema(self) -> Any:
        """Return the JSON Schema of the values as output."""
        return _adapter(self.annotation).json_schema(mode="serialization")


ANY: Final = Shape(Any)
"""Plain JSON of any kind."""


class Arguments(Protocol):
    """The parameters and the result of a process."""

    @property
    def result(self) -> Shape:
        """Its result."""
        ...

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a start as plain JSON; refuse those that do not fit."""
        ...

    def dump_one(self, name: str, value: Any) -> Any:
        """Return one argument as plain JSON."""
        ...

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse unknown names, and missing ones."""
        ...


class Signature(msgspec.Struct, frozen=True):
    """The parameters of a function, without its context, and its result."""

    name: str
    parameters: Mapping[str, Shape]
    result: Shape
    bound: inspect.Signature
    """The signature without the first parameter."""
    rest: str | None = None
    """The name of the ``**kwargs`` parameter, if there is one."""

    async def prepare(self) -> None:
        """Prepare the checks of arguments and result."""
        for name, shape in (*self.parameters.items(), ("its result", self.result)):
            await shape.prepare(self.name, name)

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as plain JSON by name, or refuse those that do not fit."""
        if not (args or kwargs or self.parameters or self.rest):
            return {}
        try:
            given = self.bound.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ArgumentsInvalid(self.name, str(error)) from None
        if self.rest is not None:
            given = {**given, **given.pop(self.rest, {})}
        return {name: self.dump_one(name, value) for name, value in given.items()}

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
        try:
            return self.parameters.get(name, ANY).dump(value, f"$.{name}")
        except ValueError as error:
            raise ArgumentsInvalid(self.name, reason_of(name, error)) from None

    def load(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the Python values of arguments."""
        if not (arguments or self.parameters):
            return {}
        try:
            self.bound.bind(**arguments)
        except TypeError as error:
            raise ArgumentsInvalid(self.name, str(error)) from None
        loaded = {}
        for name, value in arguments.items():
            try:
                loaded[name] = self.parameters.get(name, ANY).load(value)
            except ValueError as error:
                raise ArgumentsInvalid(self.name, reason_of(name, error)) from None
        return loaded


def signature_of(function: Callable[..., Any], name: str | None = None) -> Signature:
    """Return the signature of a function without its first parameter."""
    whole = inspect.signature(function)
    parameters = list(whole.parameters.values())[1:]
    hints = _hints(function)
    variadic = [one for one in parameters if one.kind is inspect.Parameter.VAR_KEYWORD]
    shapes = {
        one.name: Shape(hints.get(one.name, Any)) for one in parameters if one not in variadic
    }
    bound = whole.replace(parameters=parameters)
    rest = variadic[0].name if variadic else None
    called = name or str(getattr(function, "__name__", "the process"))
    return Signature(called, shapes, Shape(hints.get("return", Any)), bound, rest)


@lru_cache(maxsize=1024)
def result_of(function: Callable[..., Any]) -> Shape:
    """Return the shape of a function's result."""
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
    from pydantic import TypeAdapter  # noqa: PLC0415 - slow to import, and often not needed

    adapter = TypeAdapter(annotation)
    # A type that names an unknown one, as in list["Missing"], is built when it is first used: do it now.
    adapter.rebuild(raise_errors=True)
    return adapter


def reason_of(name: str, error: ValueError) -> str:
    """Return why a value does not fit, in one line: the first reason that pydantic gives."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return f"{name}: {error}" if name else str(error)
    first = errors(include_url=False)[0]
    where = ".".join(map(str, filter(None, (name, *first["loc"]))))
    problem = f"{first['msg']} (got {first['input']!r})"
    return f"{where}: {problem}" if where else problem
