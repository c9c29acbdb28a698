"""Output of commands.

Rule 1. A terminal gets colours, and tables that fit its width; anything else gets complete plain text.
Rule 2. Control characters in text of others are escaped.
Rule 3. JSON is ASCII. Times are UTC in ISO 8601, durations are seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import click

from pylash.processes.timeline import shown_duration
from pylash.values.texts import cells, clipped, padded, printable

SECOND: Final = 1_000_000
GAP: Final = "  "
MIN_COLUMN: Final = 8
"""The smallest width of a column that can be shortened."""

STATUS_COLOURS: Final = {
    "queued": "bright_black",
    "running": "blue",
    "waiting": "yellow",
    "blocked": "red",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "stopped": "magenta",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
}


def on_terminal() -> bool:
    """Return whether the output is a terminal."""
    return sys.stdout.isatty()


def coloured() -> bool:
    """Return whether to use colours."""
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns() -> int | None:
    """Return the width of the terminal, or None if the output is not a terminal."""
    return shutil.get_terminal_size((80, 24)).columns if on_terminal() else None


def paint(text: str, colour: str | None, *, bold: bool = False) -> str:
    """Return text in a colour, if colours are used."""
    return click.style(text, fg=colour, bold=bold or None) if coloured() else text


def print_line(text: str = "") -> None:
    """Print a line and flush it, because a pipe may be followed."""
    click.echo(text)


def print_json(value: Any, *, line: bool = False) -> None:
    """Print a value as JSON: a document, or one line of many."""
    print_line(json.dumps(value, indent=None if line else 2, default=str))


# --- tables ---


class Cell(NamedTuple):
    """A text of a table, and its colour."""

    text: str
    colour: str | None = None


class Column(NamedTuple):
    """A column: its title, its share of the width if it must be shortened, and whether it is aligned right."""

    title: str
    share: float = 0
    right: bool = False


def print_table(titles: Sequence[Column], rows: Iterable[Sequence[str | Cell]]) -> None:
    """Print rows under titles, shortened to fit a terminal."""
    lines = [[_cell(one) for one in row] for row in rows]
    widths = [
        max([cells(column.title), *(cells(line[place].text) for line in lines)])
        for place, column in enumerate(titles)
    ]
    room = columns()
    if room is not None:
        widths = _fit(titles, widths, room)
    head = [Cell(column.title, "bright_black") for column in titles]
    for line in [head, *lines]:
        print_line(GAP.join(map(_draw_cell, line, titles, widths)).rstrip())


def _cell(given: str | Cell) -> Cell:
    cell = Cell(given) if isinstance(given, str) else given
    return Cell(printable(cell.text), cell.colour)


def _draw_cell(cell: Cell, column: Column, width: int) -> str:
    text = clipped(cell.text, width)
    shown = " " * (width - cells(text)) + text if column.right else padded(text, width)
    return paint(shown, cell.colour)


def _fit(titles: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """Shorten the columns that exceed their share until all fit."""
    widths = list(widths)
    while sum(widths) + len(GAP) * (len(widths) - 1) > room:
        shrinkable = [
            n for n, column in enumerate(titles) if column.share and widths[n] > MIN_COLUMN
        ]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda n: widths[n] / titles[n].share)] -= 1
    return widths


# --- values ---


def iso(instant: int | None) -> str | None:
    """Return a moment in ISO 8601."""
    if instant is None:
        return None
    return datetime.fromtimestamp(instant / SECOND, UTC).isoformat().replace("+00:00", "Z")


def moment(instant: int) -> str:
    """Return a moment for people, in local time."""
    return datetime.fromtimestamp(instant / SECOND, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def instant(text: str) -> int:
    """Return the moment of a text that ``iso`` wrote."""
    return round(datetime.fromisoformat(text).timestamp() * SECOND)


def duration_text(micros: int) -> str:
    """Return a duration for people."""
    return shown_duration(max(0, micros) / SECOND)


def brief(value: Any) -> str:
    """Return a value as JSON on one line, for people."""
    return printable(json.dumps(value, ensure_ascii=False, default=str))


def wrapped(text: str, indent: int) -> str:
    """Return text wrapped to the terminal's width, with later lines indented."""
    room = columns()
    if room is None:
        return text
    room = max(MIN_COLUMN, room - indent)
    lines = [""]
    for word in _split(text.split(" "), room):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if cells(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return f"\n{' ' * indent}".join(lines)


def _split(words: Iterable[str], room: int) -> Iterator[str]:
    """Yield words, splitting those that are too long for a line."""
    for word in words:
        part = ""
        for character in word:
            if cells(part + character) > room:
                yield part
                part = ""
            part += character
        yield part
