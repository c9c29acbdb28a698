"""Arguments of tools: the JSON Schema of the parameters, and conversion between JSON and Python values.

Rule 1. The annotations decide; pydantic makes the schema, checks and converts. It is imported late.
Rule 2. Only given arguments are loaded and dumped: a new parameter with a default changes no digest.
Rule 3. An error names the wrong part of the data that was sent: models and people read it.
Rule 4. A projected reference is an object with ``$ref`` and nothing else. References are replaced by
        the attachments they refer to, except in the one field that the tool keeps them in.

Fields have names of our own (``p0``) and parameters' names as aliases, so any parameter may be called
``schema`` or ``_x``, which pydantic's own models may not.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec

from pylash.values.canonical import decode, refuse, write
from pylash.values.errors import ValueNotJson
from pylash.values.turn_errors import (
    AttachmentResolutionFailed,
    ToolArgumentsInvalid,
    ToolDefinitionInvalid,
)

MAX_PROBLEMS: Final = 8
"""How many wrong fields an error names; the others are only counted."""

SHOWN_CHARACTERS: Final = 60
REFERENCE: Final = "$ref"
_NAMED_SCHEMAS: Final = frozenset({"properties", "patternProperties", "$defs"})
_VALUES: Final = frozenset({"default", "const", "enum", "examples", "required"})
_KINDS: Final = {str: "a text", list: "a list", bool: "true or false", int: "a number"}


class Field(msgspec.Struct, frozen=True):
    """A parameter as its function declares it."""

    annotation: Any
    default: Any = ...
    description: str | None = None


class Parameters:
    """The parameters of a tool that a model passes."""

    def __init__(self, tool: str, fields: Mapping[str, Field]) -> None:
        self.tool = tool
        self._fields = fields
        self._inner = {name: f"p{n}" for n, name in enumerate(fields)}

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the parameters."""
        try:
            made = self._model.model_json_schema(schema_generator=_generator())
        except (TypeError, RuntimeError, NameError, ValueError) as error:
            raise self._definition_error(error) from error
        schema: dict[str, Any] = _without_titles(made)
        for name, field in self._fields.items():
            if field.description and isinstance(part := schema["properties"].get(name), dict):
                part.setdefault("description", field.description)
        return schema

    def load(self, given: Any) -> dict[str, Any]:
        """Return the Python values of plain JSON, by parameter; refuses values that do not fit."""
        arguments = read_arguments(self.tool, given, list(self._fields))
        try:
            refuse(arguments)
            loaded = self._model.model_validate_json(write(arguments))
        except ValueNotJson as error:
            raise ToolArgumentsInvalid(self.tool, error.message) from None
        except ValueError as error:
            raise ToolArgumentsInvalid(self.tool, self._problems(error, arguments)) from None
        given_fields = loaded.model_fields_set
        return {
            name: getattr(loaded, inner)
            for name, inner in self._inner.items()
            if inner in given_fields
        }

    def dump(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return loaded arguments as plain JSON."""
        values = {self._inner[name]: value for name, value in arguments.items()}
        made = self._model.model_construct(_fields_set=set(values), **values)
        plain: dict[str, Any] = made.model_dump(
            mode="json", by_alias=True, exclude_unset=True, warnings=False
        )
        refuse(plain)
        return plain

    def defaults(self) -> dict[str, Any]:
        """Return the defaults of parameters: the objects themselves, unless pydantic's ``Field`` makes them."""
        found = {}
        for name, field in self._optional.items():
            default = self._fields[name].default
            is_plain = field.default is default
            found[name] = default if is_plain else field.get_default(call_default_factory=True)
        return found

    @cached_property
    def _optional(self) -> dict[str, Any]:
        fields = {name: self._model.model_fields[inner] for name, inner in self._inner.items()}
        return {name: field for name, field in fields.items() if not field.is_required()}

    @cached_property
    def _model(self) -> Any:
        import pydantic  # noqa: PLC0415 - slow to import, and often not needed

        config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
        fields: dict[str, Any] = {
            self._inner[name]: (
                Annotated[field.annotation, pydantic.Field(alias=name)],
                field.default,
            )
            for name, field in self._fields.items()
        }
        try:
            return pydantic.create_model("Arguments", __config__=config, **fields)
        except (TypeError, RuntimeError, NameError, ValueError) as error:
            raise self._definition_error(error) from error

    def _definition_error(self, error: Exception) -> Exception:
        """Return an error that names the parameter for which pydantic cannot generate a schema."""
        cause = str(error).partition("\n")[0].rstrip(".")
        for name, field in self._fields.items():
            if not _has_schema(field.annotation):
                shown = getattr(field.annotation, "__name__", None) or str(field.annotation)
                reason = f"its parameter {name!r} ({shown}) has no JSON Schema"
                plain = getattr(error, "code", None) == "schema-for-unknown-type"
                return ToolDefinitionInvalid(self.tool, reason if plain else f"{reason}: {cause}")
        return ToolDefinitionInvalid(self.tool, cause)

    def _problems(self, error: ValueError, arguments: dict[str, Any]) -> str:
        """Return all problems as one sentence, with one part for each field."""
        errors = getattr(error, "errors", None)
        if errors is None:
            return f"{error}."
        known = list(self._fields)
        found: dict[str, list[str]] = {}
        for one in errors(include_url=False):
            path = _where(one["loc"], arguments, missing=one["type"] == "missing")
            problem = _problem(one, known)
            if problem not in (parts := found.setdefault(path, [])):
                parts.append(problem)
        texts = [_join_problems(path, parts) for path, parts in found.items()]
        more = len(texts) - MAX_PROBLEMS
        return "; ".join(texts[:MAX_PROBLEMS]) + (f"; and {more} more." if more > 0 else ".")


def read_arguments(tool: str, given: Any, known: Sequence[str] = ()) -> dict[str, Any]:
    """Return the arguments that a model sent as an object: None is an empty one, and a string is JSON."""
    value = given
    if isinstance(given, str):
        try:
            value = msgspec.json.decode(given) if given.strip() else None
        except (ValueError, RecursionError) as error:
            raise ToolArgumentsInvalid(tool, f"they are not JSON ({error}).") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        kind = _KINDS.get(type(value), f"a {type(value).__name__}")
        fields = f" with the fields {', '.join(known)}" if known else ""
        raise ToolArgumentsInvalid(tool, f"they must be an object{fields}, not {kind}.")
    return value


# --- projected references ---


class ProjectedRef(msgspec.Struct, frozen=True):
    """A reference in arguments: the keys and indexes that lead to it, and its target."""

    path: tuple[str | int, ...]
    ref: str


def projected_refs(
    arguments: Any, keep: str | None = None, path: tuple[str | int, ...] = ()
) -> list[ProjectedRef]:
    """Return the references in arguments, in order, except those in the field ``keep``.

    >>> [found.path for found in projected_refs({"files": [{"$ref": "ab12"}]})]
    [('files', 0)]
    """
    if (ref := _ref_of(arguments)) is not None:
        return [ProjectedRef(path, ref)]
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(arguments, dict):
        items = arguments.items()
    elif isinstance(arguments, list):
        items = enumerate(arguments)
    refs: list[ProjectedRef] = []
    for key, item in items:
        if path or keep is None or key != keep:
            refs += projected_refs(item, keep, (*path, key))
    return refs


def fill_references(arguments: Any, bodies: Mapping[str, Any], keep: str | None = None) -> Any:
    """Return arguments with references replaced by bodies, except in the field ``keep``.

    Raises AttachmentResolutionFailed for a reference that has no body.
    """
    if keep is None or not isinstance(arguments, dict) or keep not in arguments:
        return _fill(arguments, bodies)
    return {k: v if k == keep else _fill(v, bodies) for k, v in arguments.items()}


async def read_references(
    arguments: Any, keep: str | None, read: Callable[[str], Awaitable[bytes | None]]
) -> Any:
    """Return arguments with references replaced by what they refer to, except in the field ``keep``.

    The body of an attachment is JSON if it can be read as that, else text.
    """
    bodies: dict[str, Any] = {}
    for found in projected_refs(arguments, keep):
        body = await read(found.ref)
        if body is None:
            raise AttachmentResolutionFailed(found.ref)
        try:
            bodies[found.ref] = decode(body)
        except ValueError:
            bodies[found.ref] = body.decode("utf-8", "replace")
    return fill_references(arguments, bodies, keep)


def _ref_of(value: Any) -> str | None:
    """Return the reference in a value. A string that begins with ``#`` points into a JSON Schema."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    ref = value.get(REFERENCE)
    return ref if isinstance(ref, str) and ref and not ref.startswith("#") else None


def _fill(value: Any, bodies: Mapping[str, Any]) -> Any:
    if (ref := _ref_of(value)) is not None:
        if ref not in bodies:
            raise AttachmentResolutionFailed(ref)
        return bodies[ref]
    if isinstance(value, dict):
        return {key: _fill(item, bodies) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, bodies) for item in value]
    return value


# --- problems ---


def _where(location: Sequence[str | int], arguments: Any, *, missing: bool) -> str:
    """Return the path of an error's location in arguments, without the names that pydantic adds for unions."""
    path, value = "", arguments
    for n, step in enumerate(location):
        absent = missing and n == len(location) - 1
        if isinstance(value, list) and isinstance(step, int):
            path, value = f"{path}[{step}]", value[step] if step < len(value) else None
        elif isinstance(value, dict) and (step in value or absent):
            path, value = f"{path}.{step}" if path else str(step), value.get(step)
    return path


def _problem(error: Mapping[str, Any], known: Sequence[str]) -> str:
    """Return the problem of a field, to be put after its path."""
    if error["type"] == "missing":
        return " is missing"
    if error["type"] == "extra_forbidden":
        location = error["loc"]
        return f" is not known{_suggestion(str(location[0]), known) if len(location) == 1 else ''}"
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    should = re.sub(r"^\w+(?: \w+)? should ", " should ", message)
    return f"{should if should != message else f': {message}'} (got {_shown(error['input'])})"


def _join_problems(path: str, problems: Sequence[str]) -> str:
    first, *others = problems
    return " or ".join((f"{path}{first}".lstrip(" :"), *(one.lstrip(" :") for one in others)))


def _suggestion(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, 1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f" ({meant}known: {', '.join(known) or 'none'})"


def _shown(value: Any) -> str:
    try:
        text = write(value).decode()
    except ValueNotJson:
        text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


# --- the schema ---


def _generator() -> Any:
    from pydantic.json_schema import GenerateJsonSchema  # noqa: PLC0415 - slow to import

    class Generator(GenerateJsonSchema):
        """Leaves out defaults that have no JSON without a warning: they are of no use to a model."""

        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    return Generator


def _has_schema(annotation: Any) -> bool:
    from pydantic import TypeAdapter  # noqa: PLC0415 - slow to import

    try:
        TypeAdapter(annotation).json_schema()
    except (TypeError, RuntimeError, NameError, ValueError):
        return False
    return True


def _without_titles(schema: Any) -> Any:
    """Return a schema without titles, which only repeat names."""
    if isinstance(schema, list):
        return [_without_titles(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _part(key, value) for key, value in schema.items() if key != "title"}


def _part(key: str, value: Any) -> Any:
    if key in _NAMED_SCHEMAS and isinstance(value, dict):
        return {name: _without_titles(one) for name, one in value.items()}
    return value if key in _VALUES else _without_titles(value)
