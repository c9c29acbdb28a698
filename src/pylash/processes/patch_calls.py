"""The calls of ``ctx.patched`` and ``ctx.deprecate_patch`` in the source code of declared processes.

Rule 1. Only the modules that declare processes are read, and nothing is executed. An id that is not written as a string is not found.
Rule 2. A call belongs to each process whose function leads to it by names: the functions that it mentions, those that these
        mention, and so on. If none does, it belongs to every process of its module. Names of different things may be equal, so a
        call can belong to too many processes. That is safe: the old code is kept longer.
Rule 3. A process that another one mentions is started by it. Only if it is called, it is a part of the other.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from pylash.processes.declarations import AnyProcess

CALLS: Final = ("patched", "deprecate_patch")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class PatchCall(NamedTuple):
    """A call, and the id of its patch; None if that is computed."""

    name: str
    patch: str | None
    file: str
    line: int


class PatchCalls(NamedTuple):
    """The calls of each process in the order of the processes, and the processes whose source was not found."""

    of_process: list[tuple[AnyProcess, set[PatchCall]]]
    unread: list[AnyProcess]


class _Unit:
    """A function without the functions in it, a class, or another statement of a module."""

    def __init__(self, file: str, line: int, names: Iterable[str]) -> None:
        self.file = file
        self.line = line
        self.names = set(names)
        self.mentioned: set[str] = set()
        self.called: set[str] = set()
        self.calls: set[PatchCall] = set()


def find_patch_calls(definitions: Iterable[AnyProcess]) -> PatchCalls:
    """Return the calls in the modules of some processes."""
    sources: dict[str, list[_Unit]] = {}
    roots: list[tuple[AnyProcess, _Unit]] = []
    unread: list[AnyProcess] = []
    for definition in definitions:
        file, line = _place(definition.function)
        if file not in sources:
            sources[file] = _units(file)
        root = next((unit for unit in sources[file] if unit.line == line and unit.names), None)
        if root is None:
            unread.append(definition)
        else:
            roots.append((definition, root))
    units = [unit for found in sources.values() for unit in found]
    reached = _Reach(units, {root for _, root in roots})
    of_root = {root: reached.units_from(root) for _, root in roots}
    led_to = set[_Unit]().union(*of_root.values())
    loose = [unit for unit in units if unit not in led_to]
    found = [
        (
            definition,
            {
                call
                for unit in (*of_root[root], *(one for one in loose if one.file == root.file))
                for call in unit.calls
            },
        )
        for definition, root in roots
    ]
    return PatchCalls(found, unread)


class _Reach:
    """Which units lead to which others by names."""

    def __init__(self, units: Iterable[_Unit], processes: set[_Unit]) -> None:
        self._processes = processes
        self._named: dict[str, list[_Unit]] = {}
        for unit in units:
            for name in unit.names:
                self._named.setdefault(name, []).append(unit)

    def units_from(self, root: _Unit) -> set[_Unit]:
        seen, following = {root}, [root]
        while following:
            for unit in self._next(following.pop()):
                if unit not in seen:
                    seen.add(unit)
                    following.append(unit)
        return seen

    def _next(self, unit: _Unit) -> Iterator[_Unit]:
        for name in unit.mentioned:
            for other in self._named.get(name, ()):
                if other not in self._processes or name in unit.called:
                    yield other


# --- reading ---


def _place(function: Any) -> tuple[str, int]:
    """Return the file and the first line of a function, its decorators included."""
    found = inspect.unwrap(function)
    if not inspect.isroutine(found):  # an object that can be called
        found = inspect.unwrap(type(found).__call__)
    code = getattr(found, "__code__", None)
    return ("", 0) if code is None else (code.co_filename, code.co_firstlineno)


def _units(file: str) -> list[_Unit]:
    try:
        module = ast.parse(Path(file).read_bytes())
    except (OSError, ValueError, SyntaxError):  # a notebook, or a module without source
        return []
    units: list[_Unit] = []
    for statement in module.body:
        if isinstance(statement, _Function | ast.ClassDef):
            _add_definition(units, file, statement)
        else:
            unit = _Unit(file, statement.lineno, _assigned(statement))
            units.append(unit)
            _read(units, unit, statement)
    return units


def _add_definition(units: list[_Unit], file: str, node: _Function | ast.ClassDef) -> None:
    line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    unit = _Unit(file, line, [node.name])
    if isinstance(node, ast.ClassDef):
        # An instance may be called in ways that name no method.
        unit.mentioned.update(one.name for one in node.body if isinstance(one, _Function))
    units.append(unit)
    for child in ast.iter_child_nodes(node):
        _read(units, unit, child)


def _assigned(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module gives."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias) and node.asname is not None:
            yield node.asname


def _read(units: list[_Unit], unit: _Unit, node: ast.AST) -> None:
    """Add what a node mentions to its unit, and the functions in it as units."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            _add_definition(units, unit.file, node)
            return
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            unit.mentioned.add(name)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            unit.called.add(name)
            if name in CALLS:
                unit.calls.add(PatchCall(name, _literal_id(node), unit.file, node.lineno))
    for child in ast.iter_child_nodes(node):
        _read(units, unit, child)


def _literal_id(call: ast.Call) -> str | None:
    given = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "patch")]
    match given:
        case [ast.Constant(value=str(patch))]:
            return patch
    return None
