"""The result types of operators and steps; None if no values could be valid operands."""

from __future__ import annotations

from typing import Final

from pylash.lang.static_types import (
    ANY,
    ANY_LIST,
    BOOL,
    DICT,
    FLOAT,
    INT,
    NULL,
    PROCESS,
    SCALAR,
    STR,
    Types,
    is_record,
    is_text,
)
from pylash.lang.tree import ListType, Operator, RecordType, Type, TypeField

_ORDERS: Final = ("<", "<=", ">", ">=")


def binary_type(types: Types, operator: Operator, left: Type, right: Type) -> Type | None:
    """Return the type of a binary operation, or None if the operands are incompatible."""
    match operator:
        case "and" | "or":
            return BOOL
        case "==" | "!=":
            return BOOL if types.kin(left, right) else None
        case "in" | "not in":
            return BOOL if _can_hold(types, right, left) else None
        case "+":
            return _sum(types, left, right)
        case _:
            if not (types.overlap(left, SCALAR) and types.overlap(right, SCALAR)):
                return None
            return BOOL if operator in _ORDERS else _number(types, operator, left, right)


def negated(types: Types, operand: Type) -> Type | None:
    """Return the type of unary minus."""
    if not types.overlap(operand, SCALAR):
        return None
    return INT if types.members(operand) == (INT,) else FLOAT


def _sum(types: Types, left: Type, right: Type) -> Type | None:
    if any(all(map(is_text, types.members(side))) for side in (left, right)):
        return STR
    if types.overlap(left, STR) or types.overlap(right, STR):
        return ANY
    match types.head(left), types.head(right):
        case ListType(one), ListType(other):
            return ListType(types.union((one, other)))
    if types.overlap(left, ANY_LIST) and types.overlap(right, ANY_LIST):
        return ANY
    if types.overlap(left, SCALAR) and types.overlap(right, SCALAR):
        return _number(types, "+", left, right)
    return None


def _number(types: Types, operator: Operator, left: Type, right: Type) -> Type:
    whole = types.members(left) == types.members(right) == (INT,)
    return INT if whole and operator != "/" else FLOAT


def _can_hold(types: Types, container: Type, value: Type) -> bool:
    for member in types.members(container):
        if member in (ANY, NULL):
            return True
        if (is_text(member) or is_record(member)) and types.overlap(value, STR):
            return True
        if isinstance(member, ListType) and types.kin(member.item, value):
            return True
    return False


def field_type(types: Types, base: Type, name: str) -> Type | None:
    """Return the type of `base.name`, or None if no value of base can have such a field."""
    members = types.members(base)
    if not any(isinstance(member, RecordType) for member in members):
        return ANY
    found = [_own_field(types, member, name) for member in members]
    if all(each is None for each in found):
        return None
    return ANY if None in found else types.union(each for each in found if each is not None)


def _own_field(types: Types, member: Type, name: str) -> Type | None:
    """Return the type of a field of a union's member, or None if the member has no such field."""
    if isinstance(member, RecordType):
        field = next((field for field in member.fields if field.key == name), None)
        if field is None:
            return None
        return types.union((field.type, NULL)) if field.optional else field.type
    return ANY if member in (ANY, DICT, PROCESS) else None


def item_type(types: Types, base: Type) -> Type:
    """Return the type of the items of a list."""
    head = types.head(base)
    return head.item if isinstance(head, ListType) else ANY


def indexed_type(types: Types, base: Type) -> Type:
    """Return the type of `base[i]`."""
    return STR if types.head(base) == STR else item_type(types, base)


def with_field(types: Types, base: Type, name: str, value: Type) -> Type:
    """Return the type of a record after `base.name = value`."""
    head = types.head(base)
    if not isinstance(head, RecordType):
        return ANY
    fields = {field.key: field for field in head.fields}
    fields[name] = TypeField(name, value, optional=False)
    return RecordType(tuple(fields.values()))
