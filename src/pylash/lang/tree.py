"""The trees of Lashlang: those that the parser returns, and those that the linker makes from them.

1. Nodes are frozen and do not contain source positions; these are stored separately, by identity (`Places`),
   so two spellings of one program are equal trees.
2. A linked tree has no unresolved names. Where the parser has `Name`, `Method` or `Call`, the linked tree has
   a variable, a process, a module, an operation or a function.
3. Linked trees are stored: a node is an array that begins with the name of its class. Renaming a class, or
   moving a field, changes every reference, so it needs a new version tag.
"""
# ruff: noqa: D101 (the names of nodes explain them)

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec


class Node(msgspec.Struct, frozen=True, array_like=True, tag=True, tag_field="node"):
    pass


# Types.


class TypeName(Node, frozen=True):
    """`any`, `null`, `str` …, or a type that the module or the surface declares, by its qualified name."""

    name: str


class EnumType(Node, frozen=True):
    members: tuple[str, ...]


class ListType(Node, frozen=True):
    item: Type


class TypeField(Node, frozen=True):
    key: str
    type: Type
    optional: bool


class RecordType(Node, frozen=True):
    fields: tuple[TypeField, ...]


class UnionType(Node, frozen=True):
    members: tuple[Type, ...]


Type = TypeName | EnumType | ListType | RecordType | UnionType


# Expressions.


class Null(Node, frozen=True):
    pass


class Bool(Node, frozen=True):
    value: bool


class Number(Node, frozen=True):
    value: float


class Text(Node, frozen=True):
    value: str


class ListLiteral(Node, frozen=True):
    items: tuple[Expression, ...]


class TupleLiteral(Node, frozen=True):
    items: tuple[Expression, ...]


class RecordField(Node, frozen=True):
    key: str
    value: Expression


class RecordLiteral(Node, frozen=True):
    """As in the source: a key may occur twice; the last value wins and keeps the first position."""

    fields: tuple[RecordField, ...]


class Clause(Node, frozen=True):
    name: str
    source: Expression
    conditions: tuple[Expression, ...]


class Comprehension(Node, frozen=True):
    element: Expression
    clauses: tuple[Clause, ...]


class TypeLiteral(Node, frozen=True):
    """`Type { … }`. Linked, a name inside that is a variable is a `TypeName` whose name begins with `$`."""

    type: RecordType


class Field(Node, frozen=True):
    base: Expression
    name: str


class Index(Node, frozen=True):
    base: Expression
    index: Expression


class Unwrap(Node, frozen=True):
    value: Expression


class Group(Node, frozen=True):
    """Parentheses around something that ends in `?`: in an aggregate they determine when it is unwrapped.

    A tree keeps no other parentheses. In a linked tree only leaves of aggregates have them.
    """

    value: Expression


class Negate(Node, frozen=True):
    value: Expression


class Not(Node, frozen=True):
    value: Expression


class Await(Node, frozen=True):
    value: Expression


Operator = Literal[
    "or", "and", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "+", "-", "*", "/", "%"
]


class Binary(Node, frozen=True):
    operator: Operator
    left: Expression
    right: Expression


class Conditional(Node, frozen=True):
    test: Expression
    then: Expression
    otherwise: Expression


class WaitSignal(Node, frozen=True):
    name: str
    within: Expression | None


class Argument(Node, frozen=True):
    name: str
    value: Expression


class Start(Node, frozen=True):
    process: str
    arguments: tuple[Argument, ...]


class Name(Node, frozen=True):
    """Parsed only: `x`."""

    name: str


class Call(Node, frozen=True):
    """Parsed only: `name(…)`."""

    name: str
    arguments: tuple[Expression, ...]


class Method(Node, frozen=True):
    """Parsed only: `base.name(…)`."""

    base: Expression
    name: str
    arguments: tuple[Expression, ...]


class Variable(Node, frozen=True):
    """Linked only. Parameters and variables of main have their name, other variables their number in digits."""

    name: str


class ProcessName(Node, frozen=True):
    """Linked only: a process of this module, as a value."""

    name: str


class ModuleName(Node, frozen=True):
    """Linked only: a module of the surface, as a resource value."""

    path: str


class TriggerEvent(Node, frozen=True):
    """Linked only: `trigger.event` among the inputs of a registration."""


class Operation(Node, frozen=True):
    """Linked only: an operation of a module by its path."""

    path: str
    name: str
    arguments: tuple[Expression, ...]


class ReceiverOperation(Node, frozen=True):
    """Linked only: an operation of the module that a resource value names; `type` is its resource type."""

    base: Expression
    type: str
    name: str
    arguments: tuple[Expression, ...]


class Construct(Node, frozen=True):
    """Linked only: a host value of type `type` from the constructor at `path`."""

    path: str
    type: str
    value: Expression


class CallFunction(Node, frozen=True):
    """Linked only: a function of this module."""

    name: str
    arguments: tuple[Expression, ...]


class CallBuiltin(Node, frozen=True):
    """Linked only."""

    name: str
    arguments: tuple[Expression, ...]


Parsed = Name | Call | Method
Linked = (
    Variable
    | ProcessName
    | ModuleName
    | TriggerEvent
    | Operation
    | ReceiverOperation
    | Construct
    | CallFunction
    | CallBuiltin
)
Expression = (
    Null
    | Bool
    | Number
    | Text
    | ListLiteral
    | TupleLiteral
    | RecordLiteral
    | Comprehension
    | TypeLiteral
    | Field
    | Index
    | Unwrap
    | Group
    | Negate
    | Not
    | Await
    | Binary
    | Conditional
    | WaitSignal
    | Start
    | Parsed
    | Linked
)


# Statements.


class FieldStep(Node, frozen=True):
    name: str


class IndexStep(Node, frozen=True):
    index: Expression


class Assign(Node, frozen=True):
    """`name` is that of the source; in a linked tree, as in `Variable`."""

    name: str
    steps: tuple[FieldStep | IndexStep, ...]
    value: Expression


class If(Node, frozen=True):
    """An `else if` is a single `If` in `otherwise`; without an `else`, `otherwise` is empty."""

    test: Expression
    then: Block
    otherwise: Block


class For(Node, frozen=True):
    name: str
    source: Expression
    body: Block


class While(Node, frozen=True):
    test: Expression
    body: Block


class Break(Node, frozen=True):
    pass


class Continue(Node, frozen=True):
    pass


class Finish(Node, frozen=True):
    value: Expression


class Fail(Node, frozen=True):
    value: Expression


class Print(Node, frozen=True):
    value: Expression


class Yield(Node, frozen=True):
    value: Expression


class Wake(Node, frozen=True):
    value: Expression


class Cancel(Node, frozen=True):
    handle: Expression


class Sleep(Node, frozen=True):
    mode: Literal["for", "until"]
    value: Expression


class SendSignal(Node, frozen=True):
    handle: Expression
    name: str
    payload: Expression


class Evaluate(Node, frozen=True):
    """An expression as a statement."""

    value: Expression


class Label(Node, frozen=True):
    title: str
    description: str | None


class Labelled(Node, frozen=True):
    label: Label
    statement: Statement


Statement = (
    Assign
    | If
    | For
    | While
    | Break
    | Continue
    | Finish
    | Fail
    | Print
    | Yield
    | Wake
    | Cancel
    | Sleep
    | SendSignal
    | Evaluate
    | Labelled
)
Block = tuple[Statement, ...]


# Declarations and programs.


class TypeDeclaration(Node, frozen=True):
    name: str
    type: Type


class Parameter(Node, frozen=True):
    name: str
    type: Type


class ProcessDeclaration(Node, frozen=True):
    name: str
    parameters: tuple[Parameter, ...]
    signals: tuple[Parameter, ...]
    result: Type | None
    label: Label | None
    body: Block


class FunctionDeclaration(Node, frozen=True):
    name: str
    parameters: tuple[Parameter, ...]
    result: Type
    body: Block


Declaration = TypeDeclaration | ProcessDeclaration | FunctionDeclaration


class Program(Node, frozen=True):
    """Parsed: declarations and statements in source order."""

    items: tuple[Declaration | Statement, ...]


class Module(Node, frozen=True):
    """Linked: the canonical form of a program."""

    types: tuple[TypeDeclaration, ...]
    functions: tuple[FunctionDeclaration, ...]
    processes: tuple[ProcessDeclaration, ...]
    main: Block


class Place(NamedTuple):
    """The source position of a node: line and column from 1, in code points, and its width on that line."""

    line: int
    column: int
    width: int


Places = dict[int, Place]
"""The position of each node by its `id`; valid only as long as the tree exists."""


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all its descendants, parents first, in source order."""
    pending: list[object] = [node]
    while pending:
        at = pending.pop()
        if isinstance(at, Node):
            yield at
            pending.extend(getattr(at, field) for field in reversed(at.__struct_fields__))
        elif isinstance(at, tuple):
            pending.extend(reversed(at))
