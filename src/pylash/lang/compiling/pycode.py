"""Small pieces of Python's own syntax tree. Code is built node by node, never from text."""

from __future__ import annotations

import ast
from typing import Any

load = ast.Load()
store = ast.Store()


def name(identifier: str) -> ast.Name:
    """Read a local or global of the compiled code."""
    return ast.Name(identifier, load)


def constant(value: Any) -> ast.Constant:
    """Return a constant."""
    return ast.Constant(value)


def call(function: str, *arguments: ast.expr) -> ast.Call:
    """Call a global of the compiled code."""
    return ast.Call(name(function), list(arguments), [])


def method(owner: str, attribute: str, *arguments: ast.expr) -> ast.Call:
    """Call a method of a local of the compiled code."""
    return ast.Call(ast.Attribute(name(owner), attribute, load), list(arguments), [])


def awaited(value: ast.expr) -> ast.Await:
    """Await."""
    return ast.Await(value)


def assign(target: str, value: ast.expr) -> ast.Assign:
    """Bind a local."""
    return ast.Assign([ast.Name(target, store)], value)


def compare(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> ast.Compare:
    """Compare two expressions."""
    return ast.Compare(left, [operator], [right])


def branch(test: ast.expr, then: list[ast.stmt], otherwise: list[ast.stmt] | None = None) -> ast.If:
    """`if`."""
    return ast.If(test, then or [ast.Pass()], otherwise or [])


def tuple_of(items: list[ast.expr]) -> ast.Tuple:
    """Build a tuple."""
    return ast.Tuple(items, load)


def function(
    identifier: str, parameters: list[str], body: list[ast.stmt], *, asynchronous: bool
) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """Define a function."""
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(p) for p in parameters],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    kind = ast.AsyncFunctionDef if asynchronous else ast.FunctionDef
    return kind(name=identifier, args=arguments, body=body or [ast.Pass()], decorator_list=[])


def at(node: ast.expr | ast.stmt, line: int) -> Any:
    """Set the line of a Python node to the number of its tree node, at which errors are reported."""
    node.lineno = node.end_lineno = line
    node.col_offset = node.end_col_offset = 0
    return node
