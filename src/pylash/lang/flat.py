"""Trees as flat lists: a class's name and then its fields, a length and then its items.

1. A tree may nest to any depth: neither this module nor a JSON parser recurses along it.
2. The list contains everything that the tree contains: equal lists mean equal trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

from pylash.lang.tree import Node

Scalar = str | int | float | bool | None


def flat(node: Node) -> Iterator[Scalar]:
    """Yield a tree as scalars: a class's name and then its fields, a length and then its items."""
    pending: list[Any] = [node]
    while pending:
        at = pending.pop()
        if isinstance(at, Node):
            yield type(at).__name__
            pending.extend(getattr(at, field) for field in reversed(at.__struct_fields__))
        elif isinstance(at, tuple):
            yield len(at)
            pending.extend(reversed(at))
        else:
            yield at


def unflat(items: list[Scalar]) -> Node:
    """Return the tree that `flat` wrote. Raises ValueError if the list is not a tree."""
    source = iter(items)
    frames = [_Frame(lambda values: values[0], [_NODE], [])]
    try:
        while frames:
            frame = frames[-1]
            if not frame.missing:
                made = frames.pop().make(frame.values)
                if frames:
                    frames[-1].values.append(made)
                continue
            kind, item = frame.missing.pop(), next(source)
            if kind is _SCALAR or item is None:
                frame.values.append(item)
            else:
                frames.append(_frame(kind, item, len(items)))
    except (StopIteration, KeyError, TypeError) as error:
        raise ValueError("the list is not a tree") from error
    if next(source, _SCALAR) is not _SCALAR:
        raise ValueError("the list continues after its tree")
    return cast("Node", made)


class _Kind(NamedTuple):
    """The type of a node's field; `of` is the type of the items of a tuple."""

    name: Literal["scalar", "node", "tuple"]
    of: _Kind | None = None


class _Frame(NamedTuple):
    make: Callable[[list[Any]], Any]
    missing: list[_Kind]
    values: list[Any]


_SCALAR: Final = _Kind("scalar")
_NODE: Final = _Kind("node")


def _frame(kind: _Kind, item: Scalar, most: int) -> _Frame:
    if kind is _NODE:
        cls, kinds = _CLASSES[cast("str", item)]
        return _Frame(lambda values: cls(*values), list(reversed(kinds)), [])
    if type(item) is not int or item > most:
        raise ValueError("the length of a tuple is wrong")
    return _Frame(tuple, [kind.of or _SCALAR] * item, [])


def _kind(hint: Any) -> _Kind:
    if get_origin(hint) is tuple:
        return _Kind("tuple", _kind(get_args(hint)[0]))
    parts = get_args(hint) or (hint,)
    return (
        _NODE
        if any(isinstance(part, type) and issubclass(part, Node) for part in parts)
        else _SCALAR
    )


_CLASSES: Final = {
    cls.__name__: (cls, [_kind(hint) for hint in get_type_hints(cls).values()])
    for cls in Node.__subclasses__()
}
"""Each class of nodes and the kinds of its fields."""
