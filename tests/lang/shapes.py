"""Trees as short texts: every node in parentheses that has parts, so that nothing is left to guess."""

from __future__ import annotations

from pylash.lang import tree


def shape(node: object) -> str:
    match node:
        case (
            tree.Name() | tree.TypeName() | tree.Number() | tree.Text() | tree.Null() | tree.Bool()
        ):
            return leaf(node)
        case tree.Binary(operator=operator, left=left, right=right):
            return f"({shape(left)} {operator} {shape(right)})"
        case tree.Evaluate(value=value):
            return shape(value)
        case tree.Program(items=items):
            return "; ".join(map(shape, items))
        case tree.Node():
            parts = [getattr(node, field) for field in node.__struct_fields__]
            return f"{type(node).__name__}({', '.join(map(shape, parts))})"
        case tuple():
            return f"[{', '.join(map(shape, node))}]"
        case _:
            return str(node)


def leaf(
    node: tree.Name | tree.TypeName | tree.Number | tree.Text | tree.Null | tree.Bool,
) -> str:
    match node:
        case tree.Name(name=name) | tree.TypeName(name=name):
            return name
        case tree.Number(value=value):
            return f"{value:g}"
        case tree.Text(value=text):
            return repr(text)
        case tree.Null():
            return "null"
        case tree.Bool(value=truth):
            return str(truth).lower()
