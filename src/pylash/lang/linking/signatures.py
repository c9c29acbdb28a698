"""The signatures of the builtins: parameter and result types."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pylash.lang.linking.operators import item_type
from pylash.lang.static_types import (
    ANY,
    ANY_LIST,
    BOOL,
    DICT,
    FLOAT,
    INT,
    NULL,
    SCALAR,
    STR,
    Types,
)
from pylash.lang.tree import ListType, Type, UnionType


class Signature(NamedTuple):
    """The parameters of a builtin, how many of them are optional, and the type of its result.

    The result has a fixed type, that of the first argument (`same`), or that of its items (`item`). With
    `more` the last parameter may be given any number of times, or not at all.
    """

    parameters: tuple[Type, ...]
    result: Type | Literal["same", "item"]
    optional: int = 0
    more: bool = False

    def takes(self, count: int) -> bool:
        """Return whether it can be called with that many arguments."""
        most = len(self.parameters)
        return most - self.optional <= count and (self.more or count <= most)

    def counts(self) -> str:
        """Return how many arguments it takes, for messages."""
        most = len(self.parameters)
        least = most - self.optional
        if self.more:
            return f"at least {least}"
        return str(most) if least == most else f"{least} to {most}"

    def parameter(self, index: int) -> Type:
        """Return the type of one of its arguments."""
        return self.parameters[min(index, len(self.parameters) - 1)]

    def given(self, types: Types, first: Type) -> Type:
        """Return the type of its result."""
        if self.result == "same":
            return first
        return item_type(types, first) if self.result == "item" else self.result


_SIZED: Final = UnionType((STR, ANY_LIST, DICT, NULL))
_RECORD: Final = UnionType((DICT, NULL))
_BOUND: Final = UnionType((FLOAT, NULL))
_SORTABLE: Final = ListType(SCALAR)
_TEXTS: Final = ListType(STR)

SIGNATURES: Final[dict[str, Signature]] = {
    "len": Signature((_SIZED,), INT),
    "empty": Signature((_SIZED,), BOOL),
    "keys": Signature((_RECORD,), _TEXTS),
    "values": Signature((_RECORD,), ANY_LIST),
    "trim": Signature((SCALAR,), STR),
    "to_string": Signature((ANY,), STR),
    "to_int": Signature((SCALAR,), INT),
    "to_float": Signature((SCALAR,), FLOAT),
    "json_parse": Signature((SCALAR,), ANY),
    "contains": Signature((_SIZED, ANY), BOOL),
    "grep_text": Signature((SCALAR, SCALAR), ANY_LIST),
    "starts_with": Signature((SCALAR, SCALAR), BOOL),
    "ends_with": Signature((SCALAR, SCALAR), BOOL),
    "split": Signature((SCALAR, SCALAR), _TEXTS),
    "join": Signature((ANY_LIST, SCALAR), STR),
    "validate": Signature((ANY, DICT), ANY),
    "ceil_div": Signature((FLOAT, FLOAT), INT),
    "floor_div": Signature((FLOAT, FLOAT), INT),
    "push": Signature((ANY_LIST, ANY), ANY_LIST),
    "slice": Signature((UnionType((STR, ANY_LIST)), _BOUND, _BOUND), "same"),
    "find": Signature((SCALAR, SCALAR, FLOAT), UnionType((INT, NULL)), optional=1),
    "format": Signature((STR, ANY), STR, optional=1, more=True),
    "range": Signature((FLOAT, FLOAT, FLOAT), ListType(INT), optional=2),
    "sort": Signature((_SORTABLE,), "same"),
    "sort_by": Signature((ListType(DICT), STR), "same"),
    "min": Signature((_SORTABLE,), "item"),
    "max": Signature((_SORTABLE,), "item"),
    "sum": Signature((ListType(FLOAT),), FLOAT),
    "replace": Signature((SCALAR, SCALAR, SCALAR), STR),
    "lower": Signature((SCALAR,), STR),
    "upper": Signature((SCALAR,), STR),
    "unique": Signature((ANY_LIST,), "same"),
    "reverse": Signature((ANY_LIST,), "same"),
}
