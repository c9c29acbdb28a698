"""The state of one body while it is linked: its names, the types of its variables, its problems.

1. A refusal ends the statement that it is in, not the body: later statements are still checked.
2. Every linked node is new and has the source position of the node that it was made from.
3. Parameters and main's variables keep their names. Other variables are numbered in order of appearance, so renaming one
   changes no reference. Numbers are never used twice in a body.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from pylash.lang.linking.required import Requirements
from pylash.lang.parsing.hints import SPELLED
from pylash.lang.problems import Problem
from pylash.lang.static_types import BUILT_IN, Types, expand, names_in
from pylash.lang.surface import Ability, ModuleSurface, Surface
from pylash.lang.tree import (
    Assign,
    Expression,
    FunctionDeclaration,
    Node,
    Parameter,
    Place,
    Places,
    ProcessDeclaration,
    Type,
    walk,
)

N = TypeVar("N", bound=Node)

_MOST = 20

FEATURES: dict[Ability, str] = {
    "processes": "processes",
    "sleep": "sleep",
    "process_signals": "process signals",
    "triggers": "triggers",
    "label_annotations": "label annotations",
}


class Refusal(Exception):
    """Raised for a problem, and caught at the statement that has the problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Typed(NamedTuple):
    """A linked expression and its type; for an operation also the type that `?` unwraps."""

    node: Expression
    type: Type
    output: Type | None = None


class Value(NamedTuple):
    """A possible value of a block, or result of a body: its node and its type."""

    node: Node
    type: Type


class Binding(NamedTuple):
    """A variable: its name in the linked tree, and its type at this point."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Program:
    """The shared state of all bodies of a program; `hidden` are surface types that the program redeclares."""

    source: str
    surface: Surface
    parsed: Places
    types: Types
    resource_types: frozenset[str]
    host_types: frozenset[str]
    declared: frozenset[str]
    processes: dict[str, ProcessDeclaration]
    functions: dict[str, FunctionDeclaration]
    requires: Requirements
    hidden: dict[str, Type]
    main_names: frozenset[str]
    places: Places = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def put(self, node: N, origin: Node) -> N:
        """Return node, with the source position of origin."""
        self.places[id(node)] = self.parsed.get(id(origin), Place(1, 1, 1))
        return node

    def refusal(
        self, at: Node | Place, kind: str, message: str, hint: str | None = None
    ) -> Refusal:
        """Return a problem at a position, or at the first character of a parsed node."""
        place = self.parsed.get(id(at), Place(1, 1, 1)) if isinstance(at, Node) else at
        return Refusal(Problem("link", kind, message, *place, hint=hint))

    def need(self, ability: Ability, at: Node) -> None:
        """Note that an ability is used; refuse it if the host has not enabled it."""
        if ability not in self.surface.abilities:
            message = f"lashlang feature `{FEATURES[ability]}` is disabled by this host"
            raise self.refusal(at, "feature_disabled", message)
        self.requires.ability(ability)

    def modules(self) -> dict[str, ModuleSurface]:
        """Return the modules that programs may use here."""
        modules = self.surface.modules
        if "triggers" in self.surface.abilities:
            return modules
        return {path: module for path, module in modules.items() if path != "triggers"}

    def seen(self, type_: Type) -> Type:
        """Return a type of the surface as this program sees it: the program may declare a type of the same name."""
        return expand(type_, self.hidden) if self.hidden else type_

    def use_type(self, type_: Type) -> None:
        """Note the surface types that a type of the program mentions; refuse unknown names."""
        for each in names_in(type_):
            if not self.knows_type(each.name):
                raise self.unknown_type(each, each.name)
            if each.name not in self.declared:
                self.requires.type_name(each.name)

    def keep(self, node: N) -> N:
        """Return a parsed node that linking leaves unchanged."""
        for each in walk(node):
            self.put(each, each)
        return node

    def knows_type(self, name: str) -> bool:
        """Return whether there is a type of that name."""
        return (
            name in BUILT_IN
            or name in self.types.definitions
            or name in self.resource_types
            or name in self.host_types
        )

    def unknown_type(self, at: Node, name: str) -> Refusal:
        """Return the problem of a type that is not declared."""
        known = {*BUILT_IN, *self.types.definitions, *self.resource_types, *self.host_types}
        hint = "write `list[any]`" if name == "list" else nearest(name, known)
        return self.refusal(at, "unknown_type", f"unknown type `{name}`", hint)

    def written(self, node: Node) -> str:
        """Return the source text of a parsed node, or its first line."""
        line, column, width = self.parsed[id(node)]
        return self.source.split("\n")[line - 1][column - 1 : column - 1 + width]

    def root_place(self, node: Assign) -> Place:
        """Return the position of the name that an assignment begins with, after a `let`."""
        line, column, _ = self.parsed[id(node)]
        text = self.source.split("\n")[line - 1][column - 1 :]
        let = re.match(rf"let\s+(?={node.name}\b)", text)
        return Place(line, column + (let.end() if let else 0), len(node.name))

    def note(self, problem: Problem) -> None:
        """Note a problem, unless it was noted before or there are too many."""
        told = problem.kind.startswith("unknown_") and any(
            (each.kind, each.message) == (problem.kind, problem.message) for each in self.problems
        )
        if not told and len(self.problems) < _MOST:
            self.problems.append(problem)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note a refusal and continue after it."""
        try:
            yield
        except Refusal as refused:
            self.note(refused.problem)


class Body:
    """The state of one body; subclasses add the linking of each kind of node."""

    def __init__(
        self,
        program: Program,
        kind: Literal["main", "process", "function"],
        name: str,
        bindings: Iterable[tuple[str, Type]],
        read_only: frozenset[str] = frozenset(),
    ) -> None:
        self.program = program
        self.types = program.types
        self.kind = kind
        self.name = name
        self.read_only = read_only
        self.bindings = {each: Binding(each, type_) for each, type_ in bindings}
        self.finishes: list[Value] = []
        self.signals: dict[str, Parameter] = {}
        self._kept = frozenset(self.bindings)
        self._numbers: dict[str, str] = {}
        self.names: list[str] = []

    def expression(self, node: Expression) -> Typed:
        """Return a linked expression and its type."""
        raise NotImplementedError

    def variable(self, name: str) -> str:
        """Return the linked name of a variable of this body."""
        if self.kind == "main" or name in self._kept:
            return name
        if name not in self._numbers:
            self._numbers[name] = self.fresh(name)
        return self._numbers[name]

    def fresh(self, name: str) -> str:
        """Return an unused number for a variable of this body."""
        self.names.append(name)
        return str(len(self.names) - 1)

    def bind(self, name: str, type_: Type) -> None:
        """Give a variable the type of the value assigned to it."""
        self.bindings[name] = Binding(self.variable(name), type_)

    def may_bind(self, name: str, at: Node) -> None:
        """Refuse names that cannot be variables here."""
        if name in self.read_only:
            message = f"`{name}` is read-only: choose another name"
            raise self.refusal(at, "read_only_name", message)
        if name in self.program.functions:
            raise self.not_a_value(name, at)

    def not_a_value(self, name: str, at: Node) -> Refusal:
        """Return the problem of a function name that is used as a value."""
        return self.refusal(
            at,
            "function_is_not_a_value",
            f"`{name}` is a function, not a value: call it, or choose another name for the variable",
        )

    def refusal(
        self, at: Node | Place, kind: str, message: str, hint: str | None = None
    ) -> Refusal:
        """Return a problem at a position, or at a parsed node."""
        return self.program.refusal(at, kind, message, hint)

    def pure(self, construct: str, at: Node) -> None:
        """Refuse an effect in a function."""
        if self.kind == "function":
            raise self.refusal(
                at,
                "forbidden_in_function",
                f"`{construct}` is forbidden in function `{self.name}`: functions only compute, "
                "so do it where the function is called",
            )

    def unknown_name(self, name: str, at: Node | Place) -> Refusal:
        """Return the problem of an unknown name."""
        made = [path for path in self.program.surface.constructors if path.startswith(f"{name}.")]
        modules = {path.partition(".")[0] for path in self.program.modules()}
        known = {*self.bindings, *self.program.processes, *modules}
        hint = SPELLED.get(name) or choice("constructors", made) or nearest(name, known)
        if self.kind != "main" and name in self.program.main_names:
            hint = f"a {self.kind} can use only its parameters: pass `{name}` as a parameter"
        return self.refusal(at, "unknown_name", f"unknown name `{name}`", hint)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the most similar known name."""
    found = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean `{found[0]}`?" if found else None


def choice(what: str, known: Iterable[str]) -> str | None:
    """Return a hint that lists up to 8 known names."""
    names = sorted(known)
    shown = ", ".join(f"`{name}`" for name in names[:8]) + (", …" if len(names) > 8 else "")
    return f"{what}: {shown}" if names else None
