"""Linking a parsed program against a surface: every name is resolved, every type is checked.

1. Problems are searched in this order: labels, declarations, declared types, signatures, bodies in the
   order of the source, main. A problem in one stage ends the search after that stage.
2. Linking runs nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pylash.lang.linking.body import Program, Value
from pylash.lang.linking.required import Requirements
from pylash.lang.linking.signatures import SIGNATURES
from pylash.lang.linking.statements import Statements
from pylash.lang.parsing.parser import Parsed
from pylash.lang.problems import LashlangError
from pylash.lang.static_types import ANY, BUILT_IN, NULL, SPELLINGS, Types, names_in, reached
from pylash.lang.surface import RequiredSurface, Surface
from pylash.lang.tree import (
    Assign,
    Block,
    Declaration,
    Fail,
    Finish,
    For,
    FunctionDeclaration,
    If,
    Label,
    Labelled,
    Module,
    Node,
    Parameter,
    Places,
    ProcessDeclaration,
    RecordType,
    Statement,
    Type,
    TypeDeclaration,
    TypeField,
    walk,
)

_TYPE_WORDS = BUILT_IN | SPELLINGS.keys() | {"list", "enum"}


class LinkedProgram(NamedTuple):
    """A linked module, the positions of its nodes, and the names of its numbered variables.

    `names` has an entry for "main" and for each "process NAME" and "function NAME": the names of its
    variables, by number.
    """

    module: Module
    places: Places
    names: dict[str, tuple[str, ...]]
    required: RequiredSurface
    source: str


def link(
    parsed: Parsed,
    surface: Surface,
    *,
    variables: Iterable[str] = (),
    read_only: Iterable[str] = (),
) -> LinkedProgram:
    """Link a program against a surface. Raises LashlangError, also for problems that the parser found."""
    if parsed.problems:
        raise LashlangError(parsed.problems, parsed.source)
    variables, read_only = tuple(variables), frozenset(read_only)
    linker = _Linker(parsed, surface, {*variables, *read_only})
    for check in (linker.check_declarations, linker.check_types, linker.check_signatures):
        check()
        linker.raise_problems()
    module = linker.bodies(variables, read_only)
    linker.raise_problems()
    program = linker.program
    return LinkedProgram(
        module,
        {id(node): program.places[id(node)] for node in walk(module)},
        linker.names,
        program.requires.surface(),
        parsed.source,
    )


class _Linker:
    """The stages of linking; `Statements` links one body."""

    def __init__(self, parsed: Parsed, surface: Surface, given: set[str]) -> None:
        items = parsed.program.items
        self.tree = parsed.program
        self.types = [item for item in items if isinstance(item, TypeDeclaration)]
        self.callables = [
            item for item in items if isinstance(item, ProcessDeclaration | FunctionDeclaration)
        ]
        self.main = tuple(item for item in items if not isinstance(item, Declaration))
        self.names: dict[str, tuple[str, ...]] = {}
        declared = {each.name: each.type for each in self.types}
        self.program = Program(
            source=parsed.source,
            surface=surface,
            parsed=parsed.places,
            types=Types({**surface.types, **declared}),
            resource_types=frozenset(surface.resource_types()),
            host_types=frozenset(surface.host_types()),
            declared=frozenset(declared),
            processes={e.name: e for e in self.callables if isinstance(e, ProcessDeclaration)},
            functions={e.name: e for e in self.callables if isinstance(e, FunctionDeclaration)},
            requires=Requirements(surface),
            hidden={name: surface.types[name] for name in declared if name in surface.types},
            main_names=frozenset(given | _assigned(self.main)),
        )

    def raise_problems(self) -> None:
        """Raise the problems found so far, if there are any."""
        if self.program.problems:
            raise LashlangError(tuple(self.program.problems), self.program.source)

    # Declarations

    def check_declarations(self) -> None:
        """Check that labels and processes are enabled, and that names are declared once."""
        labels = (node for node in walk(self.tree) if isinstance(node, Label))
        for label in labels:
            with self.program.noting():
                self.program.need("label_annotations", label)
            break
        of_types = dict[str, Declaration | None].fromkeys(_TYPE_WORDS | self.program.resource_types)
        taken = (of_types, dict[str, Declaration | None]())
        for item in (each for each in self.tree.items if isinstance(each, Declaration)):
            with self.program.noting():
                self._check_declaration(item, *taken)

    def _check_declaration(
        self,
        item: Declaration,
        types: dict[str, Declaration | None],
        others: dict[str, Declaration | None],
    ) -> None:
        if isinstance(item, ProcessDeclaration):
            self.program.need("processes", item)
        namespace = types if isinstance(item, TypeDeclaration) else others
        if item.name in namespace:
            message = f"`{item.name}` is already taken: choose another name"
            first = namespace[item.name]
            hint = "it is a type of the language or of the host"
            if first is not None:
                hint = f"the first `{item.name}` is in line {self.program.parsed[id(first)].line}"
            raise self.program.refusal(item, "duplicate_declaration", message, hint)
        namespace[item.name] = item
        if isinstance(item, FunctionDeclaration) and item.name in SIGNATURES:
            message = f"`{item.name}` is a builtin: choose another name for the function"
            raise self.program.refusal(item, "function_shadows_builtin", message)

    def check_types(self) -> None:
        """Check that declared types consist of known types, and do not contain themselves."""
        for item in self.types:
            self._check_type(item.type)
        declared = {each.name: each.type for each in self.types}
        for item in self.types:
            if item.name in reached(item.name, declared):
                message = f"type `{item.name}` is defined in terms of itself"
                hint = "use `any` or `dict` for the inner one"
                refused = self.program.refusal(item, "recursive_type", message, hint)
                self.program.note(refused.problem)

    def _check_type(self, type_: Type) -> None:
        for name in names_in(type_):
            with self.program.noting():
                self.program.use_type(name)

    def check_signatures(self) -> None:
        """Check parameters, signals and results of processes and functions."""
        for item in self.callables:
            self._check_once(item.parameters, "duplicate_parameter", "parameter")
            if isinstance(item, ProcessDeclaration):
                self._check_once(item.signals, "duplicate_signal", "signal")
            for type_ in _signature(item):
                self._check_type(type_)

    def _check_once(self, parameters: Iterable[Parameter], kind: str, what: str) -> None:
        seen: set[str] = set()
        for each in parameters:
            if each.name in seen:
                message = f"{what} `{each.name}` is declared twice"
                self.program.note(self.program.refusal(each, kind, message).problem)
            seen.add(each.name)

    # Bodies

    def bodies(self, variables: tuple[str, ...], read_only: frozenset[str]) -> Module:
        """Link the bodies in the order of the source, then main."""
        linked = [
            self._process(item) if isinstance(item, ProcessDeclaration) else self._function(item)
            for item in self.callables
        ]
        known = ((name, ANY) for name in (*variables, *sorted(read_only)))
        main = Statements(self.program, "main", "main", known, read_only)
        block = main.block(self.main, self.tree).block
        self.names["main"] = tuple(main.names)
        module = Module(
            tuple(self.program.keep(item) for item in self.types),
            tuple(item for item in linked if isinstance(item, FunctionDeclaration)),
            tuple(item for item in linked if isinstance(item, ProcessDeclaration)),
            block,
        )
        return self.program.put(module, self.tree)

    def _function(self, item: FunctionDeclaration) -> FunctionDeclaration:
        body = Statements(self.program, "function", item.name, _parameters(item).items())
        linked = body.block(item.body, item)
        self._check_values(
            body,
            linked.values,
            item.result,
            "incompatible_function_return",
            f"the value of function `{item.name}`",
            _valueless,
        )
        self.names[f"function {item.name}"] = tuple(body.names)
        keep = self.program.keep
        parameters = tuple(map(keep, item.parameters))
        made = FunctionDeclaration(item.name, parameters, keep(item.result), linked.block)
        return self.program.put(made, item)

    def _process(self, item: ProcessDeclaration) -> ProcessDeclaration:
        body = Statements(self.program, "process", item.name, _process_names(item).items())
        body.signals = {each.name: self.program.keep(each) for each in item.signals}
        linked = body.block(item.body, item)
        if item.result is not None:
            ends = [Value(item, NULL)] if _reaches_end(item.body) else []
            self._check_values(
                body,
                (*body.finishes, *ends),
                item.result,
                "incompatible_process_return",
                f"the result of process `{item.name}`",
                lambda node: (
                    "its end can be reached without a `finish`, and the result is then null"
                    if node is item
                    else None
                ),
            )
        self.names[f"process {item.name}"] = tuple(body.names)
        keep = self.program.keep
        made = ProcessDeclaration(
            item.name,
            tuple(map(keep, item.parameters)),
            tuple(body.signals.values()),
            None if item.result is None else keep(item.result),
            None if item.label is None else keep(item.label),
            linked.block,
        )
        return self.program.put(made, item)

    def _check_values(
        self,
        body: Statements,
        values: Iterable[Value],
        expected: Type,
        kind: str,
        what: str,
        hint: Callable[[Node], str | None],
    ) -> None:
        for value in values:
            with self.program.noting():
                body.check_fits(value.node, value.type, expected, kind, what, hint(value.node))


def _assigned(main: Block) -> set[str]:
    return {node.name for item in main for node in walk(item) if isinstance(node, Assign | For)}


def _valueless(node: Node) -> str | None:
    """Return a hint about a last statement that gives the function no value."""
    if isinstance(node, If) and not node.otherwise:
        return "without an `else` its value can be null"
    if isinstance(node, Statement | FunctionDeclaration):
        return "a function returns the value of its last expression"
    return None


def _signature(item: ProcessDeclaration | FunctionDeclaration) -> Iterator[Type]:
    yield from (each.type for each in item.parameters)
    if isinstance(item, ProcessDeclaration):
        yield from (each.type for each in item.signals)
    if item.result is not None:
        yield item.result


def _parameters(item: ProcessDeclaration | FunctionDeclaration) -> dict[str, Type]:
    return {each.name: each.type for each in item.parameters}


def _process_names(item: ProcessDeclaration) -> dict[str, Type]:
    """Return the names that a process can use: its parameters, and all of them as `inputs` and `input`."""
    given = _parameters(item)
    fields = (TypeField(name, type_, optional=False) for name, type_ in given.items())
    inputs = RecordType(tuple(fields))
    match list(given.values()):
        case []:
            only: Type = NULL
        case [one]:
            only = one
        case _:
            only = inputs
    return {"inputs": inputs, "input": only, **given}


def _reaches_end(block: Block) -> bool:
    """Return whether control can reach the end of a block."""
    return not any(map(_never_passed, block))


def _never_passed(node: Statement) -> bool:
    while True:
        match node:
            case Finish() | Fail():
                return True
            case Labelled(_, inside):
                node = inside
            case If(_, then, (If() as further,)) if not _reaches_end(then):
                node = further
            case If(_, then, otherwise):
                return not _reaches_end(then) and not _reaches_end(otherwise)
            case _:
                return False
