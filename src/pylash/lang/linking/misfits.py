"""Hints about values of a wrong type, derived from the two types."""

from __future__ import annotations

from pylash.lang.linking.body import nearest
from pylash.lang.static_types import FLOAT, INT, Types, show_type
from pylash.lang.tree import RecordType, Type, TypeField


def misfit(types: Types, given: Type, expected: Type) -> str | None:
    """Return a hint about a value of type given where expected is required, if there is one."""
    one, other = types.head(given), types.head(expected)
    if isinstance(one, RecordType) and isinstance(other, RecordType):
        return _wrong_field(types, one, other)
    wanted = types.members(expected)
    if FLOAT in types.members(given) and INT in wanted and FLOAT not in wanted:
        return "write `to_int(…)`"
    return None


def _wrong_field(types: Types, given: RecordType, expected: RecordType) -> str | None:
    """Name the first field that is missing or does not fit."""
    have = {field.key: field for field in given.fields}
    strange = have.keys() - {field.key for field in expected.fields}
    for field in expected.fields:
        found = have.get(field.key)
        if found is None and not field.optional:
            return _missing(field, strange)
        if found is None:
            continue
        if found.optional and not field.optional:
            return f"the field `{field.key}` can be missing"
        if not types.assignable(found.type, field.type):
            further = misfit(types, found.type, field.type)
            wrong = f"the field `{field.key}` must be `{show_type(field.type)}`"
            return f"{wrong}: {further}" if further else wrong
    return None


def _missing(field: TypeField, strange: set[str]) -> str:
    meant = next((name for name in sorted(strange) if nearest(name, [field.key])), None)
    instead = f": you wrote `{meant}`" if meant else ""
    return f"the field `{field.key}` is missing{instead}"
