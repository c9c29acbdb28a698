"""Generated programs, for laws that hold for all programs."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import strategies as st

from pylash.lang import tree
from pylash.lang.parsing.tokens import RESERVED

CONTEXTUAL = [
    "start",
    "wait",
    "signal",
    "run",
    "with",
    "within",
    "sleep",
    "until",
    "for_",
    "let",
    "type",
    "process",
    "fn",
    "finish",
    "fail",
    "yield",
    "wake",
    "while",
    "break",
    "continue",
    "Type",
    "label",
    "title",
    "list",
    "enum",
    "signals",
    "r",
    "R",
]
WORDS = st.text(string.ascii_letters + "_", min_size=1, max_size=3).filter(
    lambda word: word not in RESERVED
)
NAMES = WORDS | st.sampled_from(CONTEXTUAL)
SIGNALS = NAMES.filter(lambda name: name not in ("with", "within"))
FIELDS = NAMES | st.sampled_from(sorted(RESERVED))
TEXTS = st.text(max_size=6) | st.sampled_from(
    ["", "\n", '"', "'", '\\"', "a\tb", "\r\n", "{}", "#", "//"]
)
KEYS = FIELDS | TEXTS
NUMBERS = st.floats(0, allow_nan=False, allow_infinity=False) | st.integers(0, 9).map(float)

OTHER_SPELLINGS = ("string", "integer", "number", "boolean", "object")
TYPE_NAMES = st.builds(
    tree.TypeName,
    st.lists(NAMES, min_size=1, max_size=2)
    .map(".".join)
    .filter(lambda name: name not in OTHER_SPELLINGS)
    | st.just("null"),
)
ENUMS = st.builds(tree.EnumType, st.lists(TEXTS, min_size=1, max_size=3).map(tuple))


def some(strategy: st.SearchStrategy[Any], least: int = 0, most: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(strategy, min_size=least, max_size=most).map(tuple)


def record_types(types: st.SearchStrategy[Any]) -> st.SearchStrategy[tree.RecordType]:
    fields = st.builds(tree.TypeField, KEYS, types, st.booleans())
    unique = st.lists(fields, max_size=3, unique_by=lambda field: field.key).map(tuple)
    return st.builds(tree.RecordType, unique)


def composed_types(types: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = some(types.filter(lambda one: not isinstance(one, tree.UnionType)), 2)
    return (
        st.builds(tree.ListType, types) | record_types(types) | st.builds(tree.UnionType, members)
    )


TYPES = st.recursive(TYPE_NAMES | ENUMS, composed_types, max_leaves=3)

ATOMS = (
    st.builds(tree.Name, NAMES)
    | st.builds(tree.Number, NUMBERS)
    | st.builds(tree.Text, TEXTS)
    | st.builds(tree.Null)
    | st.builds(tree.Bool, st.booleans())
)
OPERATORS = st.sampled_from(
    ["or", "and", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "+", "-", "*", "/", "%"]
)


def awaited(value: tree.Expression) -> tree.Await:
    """What is awaited and ends in `?` was written in parentheses."""
    return tree.Await(tree.Group(value) if isinstance(value, tree.Unwrap) else value)


def composed(inner: st.SearchStrategy[Any], *, waits: bool) -> st.SearchStrategy[Any]:
    several = some(inner)
    clauses = st.builds(tree.Clause, NAMES, inner, some(inner, 0, 2))
    kinds = [
        st.builds(tree.ListLiteral, several),
        st.builds(tree.TupleLiteral, several),
        st.builds(tree.RecordLiteral, some(st.builds(tree.RecordField, KEYS, inner))),
        st.builds(tree.Comprehension, inner, some(clauses, 1, 2)),
        st.builds(tree.TypeLiteral, record_types(TYPES)),
        st.builds(tree.Field, inner, FIELDS),
        st.builds(tree.Index, inner, inner),
        st.builds(tree.Unwrap, inner),
        st.builds(tree.Group, st.builds(tree.Unwrap, inner)),
        st.builds(tree.Negate, inner),
        st.builds(tree.Not, inner),
        st.builds(awaited, inner),
        st.builds(tree.Binary, OPERATORS, inner, inner),
        st.builds(tree.Conditional, inner, inner, inner),
        st.builds(tree.Start, NAMES, some(st.builds(tree.Argument, FIELDS, inner))),
        st.builds(tree.Call, NAMES, several),
        st.builds(tree.Method, inner, FIELDS, several),
    ]
    if waits:
        kinds.append(st.builds(tree.WaitSignal, SIGNALS, st.none() | inner))
    return st.one_of(kinds)


def expressions(*, waits: bool) -> st.SearchStrategy[Any]:
    return st.recursive(ATOMS, lambda inner: composed(inner, waits=waits), max_leaves=6)


def simple_statements(values: st.SearchStrategy[Any], body: str) -> st.SearchStrategy[Any]:
    steps = st.builds(tree.FieldStep, FIELDS) | st.builds(tree.IndexStep, values)
    kinds = [
        st.builds(tree.Assign, NAMES, some(steps, 0, 2), values),
        st.builds(tree.Evaluate, values),
        st.builds(tree.Finish, values),
        st.builds(tree.Cancel, values),
        st.builds(tree.Sleep, st.sampled_from(["for", "until"]), values),
        st.builds(tree.SendSignal, values, SIGNALS, values),
    ]
    if body != "process":
        kinds.append(st.builds(tree.Print, values))
    if body != "main":
        kinds.extend(st.builds(node, values) for node in (tree.Yield, tree.Wake, tree.Fail))
    return st.one_of(kinds)


LABELS = st.builds(tree.Label, TEXTS, st.none() | TEXTS)


def labelled(statements: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return statements | st.builds(tree.Labelled, LABELS, statements)


def statements(body: str) -> st.SearchStrategy[Any]:
    values = expressions(waits=body != "main")
    simple = simple_statements(values, body)
    leaps = st.builds(tree.Break) | st.builds(tree.Continue)

    def blocked(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        block = some(labelled(inner), 0, 2)
        in_loop = some(labelled(inner | leaps), 0, 2)
        return (
            st.builds(tree.If, values, block, block)
            | st.builds(tree.For, NAMES, values, in_loop)
            | st.builds(tree.While, values, in_loop)
        )

    return labelled(st.recursive(simple, blocked, max_leaves=3))


PARAMETERS = some(st.builds(tree.Parameter, NAMES, TYPES))
DECLARED_SIGNALS = some(st.builds(tree.Parameter, SIGNALS, TYPES))
DECLARATIONS = (
    st.builds(tree.TypeDeclaration, NAMES, TYPES)
    | st.builds(
        tree.ProcessDeclaration,
        NAMES,
        PARAMETERS,
        DECLARED_SIGNALS,
        st.none() | TYPES,
        st.none() | LABELS,
        some(statements("process")),
    )
    | st.builds(tree.FunctionDeclaration, NAMES, PARAMETERS, TYPES, some(statements("function")))
)
PROGRAMS = st.builds(tree.Program, some(statements("main") | DECLARATIONS, 0, 2))
