"""One body while it is linked: what it may name, what is known of each variable, what is wrong.

1. A refusal ends the statement it stands in, not the body: later statements are still looked at.
2. Every linked node is new and has the place of what it was made from.
3. Parameters and main's variables keep their names. Others are numbered as they come, so renaming one
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
    """A problem on its way to the statement that has it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Typed(NamedTuple):
    """A linked expression and its type; of an operation also what `?` makes of it."""

    node: Expression
    type: Type
    output: Type | None = None


class Value(NamedTuple):
    """A value that a block can have, or a body finish with: what it is written as, and its type."""

    node: Node
    type: Type


class Binding(NamedTuple):
    """A variable: its name in the linked tree, and what is known of its value here."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Program:
    """What all bodies of a program share; `hidden` are surface types whose names the program declares."""

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
    places: Places = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def put(self, node: N, origin: Node) -> N:
        """Return node, placed where origin stands."""
        self.places[id(node)] = self.parsed.get(id(origin), Place(1, 1, 1))
        return node

    def refusal(
        self, at: Node | Place, kind: str, message: str, hint: str | None = None
    ) -> Refusal:
        """Return a problem at a place, or at the first character of a parsed node."""
        place = self.parsed.get(id(at), Place(1, 1, 1)) if isinstance(at, Node) else at
        return Refusal(Problem("link", kind, message, *place, hint=hint))

    def need(self, ability: Ability, at: Node) -> None:
        """Refuse what the host has not enabled; note that it is used."""
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
        """Return a type of the surface as this program sees it, where it may declare equal names."""
        return expand(type_, self.hidden) if self.hidden else type_

    def use_type(self, type_: Type) -> None:
        """Note what a type that the program writes uses of the surface; refuse unknown names."""
        for each in names_in(type_):
            if not self.knows_type(each.name):
                raise self.unknown_type(each, each.name)
            if each.name not in self.declared:
                self.requires.type_name(each.name)

    def keep(self, node: N) -> N:
        """Return a parsed node that is linked as it is."""
        for each in walk(node):
            self.put(each, each)
        return node

    def knows_type(self, name: str) -> bool:
        """Return whether a type has that name."""
        return (
            name in BUILT_IN
            or name in self.types.definitions
            or name in self.resource_types
            or name in self.host_types
        )

    def unknown_type(self, at: Node, name: str) -> Refusal:
        """Return the problem of a type that nobody declares."""
        known = {*BUILT_IN, *self.types.definitions, *self.resource_types, *self.host_types}
        hint = "write `list[any]`" if name == "list" else nearest(name, known)
        return self.refusal(at, "unknown_type", f"unknown type `{name}`", hint)

    def root_place(self, node: Assign) -> Place:
        """Return the place of the name that an assignment begins with, after a `let`."""
        line, column, _ = self.parsed[id(node)]
        text = self.source.split("\n")[line - 1][column - 1 :]
        let = re.match(rf"let\s+(?={node.name}\b)", text)
        return Place(line, column + (let.end() if let else 0), len(node.name))

    def note(self, problem: Problem) -> None:
        """Note a problem, but not what was said before, nor more than anybody reads."""
        told = problem.kind.startswith("unknown_") and any(
            (each.kind, each.message) == (problem.kind, problem.message) for each in self.problems
        )
        if not told and len(self.problems) < _MOST:
            self.problems.append(problem)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note a refusal and go on after it."""
        try:
            yield
        except Refusal as refused:
            self.note(refused.problem)


class Body:
    """The state of one body; what it can link is added by the classes that extend it."""

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
        """Return a number that no other variable of this body has."""
        self.names.append(name)
        return str(len(self.names) - 1)

    def bind(self, name: str, type_: Type) -> None:
        """Give a variable the type of what was assigned to it."""
        self.bindings[name] = Binding(self.variable(name), type_)

    def may_bind(self, name: str, at: Node) -> None:
        """Refuse names that cannot be variables here."""
        if name in self.read_only:
            message = f"`{name}` is read-only: choose another name"
            raise self.refusal(at, "read_only_name", message)
        if name in self.program.functions:
            raise self.not_a_value(name, at)

    def not_a_value(self, name: str, at: Node) -> Refusal:
        """Return the problem of a function that is not called."""
        return self.refusal(
            at,
            "function_is_not_a_value",
            f"`{name}` is a function and not a value: call it, or choose another name for a variable",
        )

    def refusal(
        self, at: Node | Place, kind: str, message: str, hint: str | None = None
    ) -> Refusal:
        """Return a problem at a place, or at a parsed node."""
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
        """Return the problem of a name that means nothing here."""
        made = [path for path in self.program.surface.constructors if path.startswith(f"{name}.")]
        modules = {path.partition(".")[0] for path in self.program.modules()}
        known = {*self.bindings, *self.program.processes, *modules}
        hint = SPELLED.get(name) or choice("constructors", made) or nearest(name, known)
        return self.refusal(at, "unknown_name", f"unknown name `{name}`", hint)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint that names what was probably meant."""
    found = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean `{found[0]}`?" if found else None


def choice(what: str, known: Iterable[str]) -> str | None:
    """Return a hint that lists what there is, if that is short."""
    names = sorted(known)
    shown = ", ".join(f"`{name}`" for name in names[:8]) + (", …" if len(names) > 8 else "")
    return f"{what}: {shown}" if names else None
