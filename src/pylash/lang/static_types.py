"""Static types.

1. Types are gradual: `any` is compatible with everything. They catch mistakes and never change what runs.
2. Declared and surface types stay names and are expanded only when needed. So messages use the author's
   names, and a type is as small as its text.
3. No type is defined in terms of itself: the code that creates definitions has checked that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, assert_never

from pylash.lang.tree import EnumType, ListType, RecordType, Type, TypeField, TypeName, UnionType

ANY: Final = TypeName("any")
NULL: Final = TypeName("null")
BOOL: Final = TypeName("bool")
INT: Final = TypeName("int")
FLOAT: Final = TypeName("float")
STR: Final = TypeName("str")
DICT: Final = TypeName("dict")
PROCESS: Final = TypeName("Process")
SCALAR: Final = UnionType((NULL, BOOL, FLOAT, STR))
ANY_LIST: Final = ListType(ANY)

SPELLINGS: Final = {
    "boolean": "bool",
    "integer": "int",
    "number": "float",
    "string": "str",
    "object": "dict",
}
"""Alternative spellings of built-in names; trees contain the standard one."""

BUILT_IN: Final = frozenset({"any", "null", "bool", "int", "float", "str", "dict", "Process"})

_LARGEST: Final = 1000
_DEEPEST: Final = 64
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})
_SCHEMAS = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "null": "null",
}


class Types:
    """The meaning of types under some definitions. Results are cached, so a name is expanded only once."""

    def __init__(self, definitions: Mapping[str, Type]) -> None:
        self.definitions = definitions
        self._flat: dict[Type, tuple[Type, ...]] = {}
        self._members: dict[Type, tuple[Type, ...]] = {}
        self._fits: dict[tuple[Type, Type], bool] = {}
        self._overlaps: dict[tuple[Type, Type], bool] = {}

    def head(self, type_: Type) -> Type:
        """Return the definition of type_; its parts may still be names."""
        while isinstance(type_, TypeName) and type_.name in self.definitions:
            type_ = self.definitions[type_.name]
        return type_

    def members(self, type_: Type) -> tuple[Type, ...]:
        """Return the heads of a union's members, or the single head; with `any` as a member, only `any`."""
        known = self._members.get(type_)
        if known is None:
            heads = dict.fromkeys(map(self.head, self._written(type_)))
            known = self._members[type_] = (ANY,) if ANY in heads else tuple(heads)
        return known

    def _written(self, type_: Type) -> tuple[Type, ...]:
        """Return the members of a union as written, with nested unions flattened."""
        known = self._flat.get(type_)
        if known is None:
            head = self.head(type_)
            parts = head.members if isinstance(head, UnionType) else ()
            flat = dict.fromkeys(each for part in parts for each in self._written(part))
            known = self._flat[type_] = tuple(flat) if parts else (type_,)
        return known

    def union(self, types: Iterable[Type]) -> Type:
        """Return the union of types."""
        flat: dict[Type, None] = {}
        for type_ in types:
            if ANY in self.members(type_):
                return ANY
            flat.update(dict.fromkeys(self._written(type_)))
        return next(iter(flat)) if len(flat) == 1 else UnionType(tuple(flat))

    def assignable(self, source: Type, target: Type) -> bool:
        """Return whether a value of type source is allowed where target is expected."""
        key = (source, target)
        known = self._fits.get(key)
        if known is None:
            targets = self.members(target)
            known = all(any(self._fit(a, b) for b in targets) for a in self.members(source))
            self._fits[key] = known
        return known

    def overlap(self, left: Type, right: Type) -> bool:
        """Return whether some value could be of both types."""
        key = (left, right)
        known = self._overlaps.get(key)
        if known is None:
            rights = self.members(right)
            known = any(self._meet(a, b) for a in self.members(left) for b in rights)
            self._overlaps[key] = known
        return known

    def kin(self, left: Type, right: Type) -> bool:
        """Return whether the two can be compared: they have a common family, or one can be null or any."""
        lefts, rights = (
            set(map(_family, self.members(left))),
            set(map(_family, self.members(right))),
        )
        return bool(lefts & rights or (lefts | rights) & {"any", "null"})

    def _fit(self, a: Type, b: Type) -> bool:
        if ANY in (a, b) or a == b:
            return True
        match a, b:
            case (
                (TypeName("int"), TypeName("float"))
                | (TypeName("str"), EnumType())
                | (EnumType(), TypeName("str"))
                | (TypeName("dict"), RecordType())
                | (RecordType(), TypeName("dict"))
            ):
                return True
            case EnumType(some), EnumType(others):
                return set(some) <= set(others)
            case ListType(item), ListType(other):
                return self.assignable(item, other)
            case RecordType(), RecordType():
                return self._record_fits(a, b)
        return False

    def _record_fits(self, a: RecordType, b: RecordType) -> bool:
        given = {field.key: field for field in a.fields}
        for field in b.fields:
            have = given.get(field.key)
            if have is None:
                if not field.optional:
                    return False
            elif (have.optional and not field.optional) or not self.assignable(
                have.type, field.type
            ):
                return False
        return True

    def _meet(self, a: Type, b: Type) -> bool:
        if ANY in (a, b) or a == b:
            return True
        if is_record(a) and is_record(b):
            return True
        match a, b:
            case (TypeName("int" | "float"), TypeName("int" | "float")):
                return True
            case (TypeName("str"), EnumType()) | (EnumType(), TypeName("str")):
                return True
            case EnumType(some), EnumType(others):
                return bool(set(some) & set(others))
            case ListType(item), ListType(other):
                return self.overlap(item, other)
        return False


def is_record(head: Type) -> bool:
    """Return whether a value of this head is a record of any sort."""
    return isinstance(head, RecordType) or head in (DICT, PROCESS)


def is_text(head: Type) -> bool:
    """Return whether a value of this head is always text."""
    return isinstance(head, EnumType) or head == STR


def _family(head: Type) -> str:
    """Return the family of a head; the families null and any are comparable with all others."""
    match head:
        case TypeName("any" | "null" as name):
            return name
        case TypeName("bool" | "int" | "float" | "str") | EnumType():
            return "scalar"
        case ListType():
            return "list"
        case TypeName("dict" | "Process") | RecordType():
            return "record"
        case TypeName(name):
            return f"type {name}"
        case UnionType():
            raise AssertionError("a union has members, not a family")
        case _:
            assert_never(head)


def bounded(type_: Type) -> Type:
    """Return type_, or `any` if it has become too large (each `x = [x, x]` doubles it)."""
    pending, count = [(type_, 1)], 0
    while pending:
        at, depth = pending.pop()
        count += 1
        if count > _LARGEST or depth > _DEEPEST:
            return ANY
        pending.extend((part, depth + 1) for part in _parts(at))
    return type_


def _parts(type_: Type) -> Iterator[Type]:
    match type_:
        case TypeName() | EnumType():
            return
        case ListType(item):
            yield item
        case RecordType(fields):
            for field in fields:
                yield field.type
        case UnionType(members):
            yield from members
        case _:
            assert_never(type_)


def names_in(type_: Type) -> Iterator[TypeName]:
    """Yield the names in type_, in source order."""
    if isinstance(type_, TypeName):
        yield type_
    for part in _parts(type_):
        yield from names_in(part)


def reached(name: str, definitions: Mapping[str, Type]) -> set[str]:
    """Return the defined names that a definition refers to, directly or not: with its own if it is recursive."""
    found: set[str] = set()
    pending = [name]
    while pending:
        for each in names_in(definitions[pending.pop()]):
            if each.name in definitions and each.name not in found:
                found.add(each.name)
                pending.append(each.name)
    return found


def expand(type_: Type, definitions: Mapping[str, Type]) -> Type:
    """Return type_ with every defined name, at any depth, replaced with its definition."""
    known: dict[str, Type] = {}

    def whole(at: Type) -> Type:
        match at:
            case TypeName(name):
                if name in definitions and name not in known:
                    known[name] = whole(definitions[name])
                return known.get(name, at)
            case EnumType():
                return at
            case ListType(item):
                return ListType(whole(item))
            case RecordType(fields):
                return RecordType(
                    tuple(TypeField(f.key, whole(f.type), f.optional) for f in fields)
                )
            case UnionType(members):
                return UnionType(tuple(map(whole, members)))
            case _:
                assert_never(at)

    return whole(type_)


def show_type(type_: Type) -> str:
    """Return type_ in the notation of the language."""
    match type_:
        case TypeName(name):
            return name
        case EnumType(members):
            return f"enum[{', '.join(map(_quoted, members))}]"
        case ListType(item):
            return f"list[{show_type(item)}]"
        case RecordType(()):
            return "{}"
        case RecordType(fields):
            return f"{{ {', '.join(map(_show_field, fields))} }}"
        case UnionType(members):
            return " | ".join(map(show_type, members))
        case _:
            assert_never(type_)


def _show_field(field: TypeField) -> str:
    key = field.key if _WORD.fullmatch(field.key) else _quoted(field.key)
    return f"{key}: {show_type(field.type)}{'?' if field.optional else ''}"


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def schema_of(
    type_: Type,
    definitions: Mapping[str, Type],
    variables: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the JSON schema of type_; `variables` has the schemas of names that begin with `$`.

    A defined type is one shared object in the schema, so declarations that double a type stay small.
    """
    known: dict[str, dict[str, Any]] = {f"${name}": one for name, one in (variables or {}).items()}

    def schema(at: Type) -> dict[str, Any]:
        match at:
            case TypeName("any"):
                return {}
            case TypeName(name):
                if name in definitions and name not in known:
                    known[name] = schema(definitions[name])
                return known[name] if name in known else {"type": _SCHEMAS.get(name, "object")}
            case EnumType(members):
                return {"type": "string", "enum": list(members)}
            case ListType(item):
                return {"type": "array", "items": schema(item)}
            case RecordType(fields):
                return {
                    "type": "object",
                    "properties": {field.key: schema(field.type) for field in fields},
                    "required": [field.key for field in fields if not field.optional],
                    "additionalProperties": False,
                }
            case UnionType(types):
                return {"anyOf": [schema(each) for each in types]}
            case _:
                assert_never(at)

    return schema(type_)
