"""Text with possible line breaks.

1. A group is printed on one line if it fits; otherwise all of its own breaks are used. Inner groups are
   decided separately.
2. Something that must end its line (a comment, a statement) breaks every group around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WIDTH = 88
INDENT = "  "


@dataclass(frozen=True, slots=True)
class Line:
    """A possible line break; `flat` is the text used instead of it, None if the line is always broken."""

    flat: str | None = " "


@dataclass(frozen=True, slots=True)
class Nest:
    """A layout whose lines are indented by one step."""

    inside: Layout


@dataclass(frozen=True, slots=True)
class Group:
    """A layout that is printed on one line if it fits; with `alone` the text after it need not fit."""

    inside: Layout
    broken: bool
    alone: bool


@dataclass(frozen=True, slots=True)
class IfBroken:
    """Text that is printed only if the group around it is broken."""

    text: str


@dataclass(frozen=True, slots=True)
class Suffix:
    """A comment at the end of a line. It has no width: it breaks nothing before it."""

    text: str


Layout = str | list[Any] | Line | Nest | Group | IfBroken | Suffix
HARD = Line(None)


def group(inside: Layout, *, alone: bool = False) -> Group:
    """Return a group, broken from the start if something in it must end its line."""
    return Group(inside, ends_line(inside), alone)


def ends_line(layout: Layout) -> bool:
    """Whether something in the layout must end its line."""
    match layout:
        case list():
            return any(ends_line(part) for part in layout)
        case Line(flat=flat):
            return flat is None
        case Nest(inside=inside):
            return ends_line(inside)
        case Group(broken=broken):
            return broken
        case Suffix():
            return True
        case _:
            return False


Pending = list[tuple[int, bool, Layout]]


def render(layout: Layout, width: int = WIDTH) -> str:
    """Return the text, with lines no longer than `width` where breaks allow it."""
    written: list[str] = []
    column = 0
    pending: Pending = [(0, False, layout)]
    while pending:
        indent, flat, at = pending.pop()
        match at:
            case str():
                written.append(at)
                column = _column(at, column)
            case list():
                pending.extend((indent, flat, part) for part in reversed(at))
            case Nest(inside=inside):
                pending.append((indent + 1, flat, inside))
            case Group(inside=inside, broken=broken, alone=alone):
                rest: Pending = [] if alone else pending
                fits = flat or (not broken and _fits(inside, width - column, rest))
                pending.append((indent, fits, inside))
            case Line(flat=text) if flat and text is not None:
                written.append(text)
                column += len(text)
            case Line():
                _break(written, INDENT * indent)
                column = len(INDENT * indent)
            case IfBroken(text=text):
                written.extend([] if flat else [text])
            case Suffix(text=text):
                written.append("  " + text)
    return "".join(written)


def _break(written: list[str], indent: str) -> None:
    if written and not written[-1].strip(" "):
        written.pop()  # the indentation of a blank line
    written.extend(["\n", indent])


def _column(text: str, column: int) -> int:
    before, broken, after = text.rpartition("\n")
    del before
    return len(after) if broken else column + len(text)


def _fits(inside: Layout, room: int, rest: Pending) -> bool:
    """Whether the layout fits on this line, together with the text that must follow it there."""
    following = len(rest)
    pending: Pending = [(0, True, inside)]
    while pending and room >= 0:
        _, flat, at = pending.pop()
        match at:
            case str():
                first, broken, _ = at.partition("\n")
                room -= len(first)
                if broken:
                    break
            case list():
                pending.extend((0, flat, part) for part in reversed(at))
            case Nest(inside=deeper):
                pending.append((0, flat, deeper))
            case Group(inside=deeper, broken=is_broken):
                pending.append((0, flat or not is_broken, deeper))
            case Line(flat=text) if text is not None and flat:
                room -= len(text)
            case Line():
                break
            case _:
                pass
        if not pending and following:
            following -= 1
            pending.append(rest[following])
    return room >= 0
