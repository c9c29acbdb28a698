"""What commands print.

Rule 1. A terminal gets colours, and tables that fit it; anything else gets plain text with nothing left out.
Rule 2. What others wrote is printed so that it cannot command the terminal.
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

from pylash.runtime import shown_duration
from pylash.values import cells, clipped, padded, printable

SECOND: Final = 1_000_000
GAP: Final = "  "
LEAST: Final = 8
"""How narrow a column that can be shortened may become."""

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
    """Return whether a person looks at what is printed."""
    return sys.stdout.isatty()


def coloured() -> bool:
    """Return whether to use colours."""
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns() -> int | None:
    """Return how wide the terminal is, or None if nothing need fit."""
    return shutil.get_terminal_size((80, 24)).columns if on_terminal() else None


def paint(text: str, colour: str | None, *, bold: bool = False) -> str:
    """Return text in a colour, where there are any."""
    return click.style(text, fg=colour, bold=bold or None) if coloured() else text


def say(text: str = "") -> None:
    """Print a line at once: somebody may follow it through a pipe."""
    click.echo(text)


def say_json(value: Any, *, line: bool = False) -> None:
    """Print a value as JSON: a document, or one line of many."""
    say(json.dumps(value, indent=None if line else 2, default=str))


# --- tables ---


class Cell(NamedTuple):
    """A text of a table, and its colour."""

    text: str
    colour: str | None = None


class Column(NamedTuple):
    """A column: its title, what it gets of the room if it must be shortened, and whether it stands right."""

    title: str
    share: float = 0
    right: bool = False


def say_table(titles: Sequence[Column], rows: Iterable[Sequence[str | Cell]]) -> None:
    """Print rows under titles, shortened to fit a terminal."""
    lines = [[_cell(one) for one in row] for row in rows]
    widths = [
        max([cells(column.title), *(cells(line[place].text) for line in lines)])
        for place, column in enumerate(titles)
    ]
    room = columns()
    if room is not None:
        widths = _fitted(titles, widths, room)
    head = [Cell(column.title, "bright_black") for column in titles]
    for line in [head, *lines]:
        say(GAP.join(map(_drawn, line, titles, widths)).rstrip())


def _cell(given: str | Cell) -> Cell:
    cell = Cell(given) if isinstance(given, str) else given
    return Cell(printable(cell.text), cell.colour)


def _drawn(cell: Cell, column: Column, width: int) -> str:
    text = clipped(cell.text, width)
    shown = " " * (width - cells(text)) + text if column.right else padded(text, width)
    return paint(shown, cell.colour)


def _fitted(titles: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """Take from the columns that have more than their share until all fit."""
    widths = list(widths)
    while sum(widths) + len(GAP) * (len(widths) - 1) > room:
        able = [n for n, column in enumerate(titles) if column.share and widths[n] > LEAST]
        if not able:
            break
        widths[max(able, key=lambda n: widths[n] / titles[n].share)] -= 1
    return widths


# --- values ---


def iso(instant: int | None) -> str | None:
    """Return a moment for programs."""
    if instant is None:
        return None
    return datetime.fromtimestamp(instant / SECOND, UTC).isoformat().replace("+00:00", "Z")


def moment(instant: int) -> str:
    """Return a moment for people, on their own clock."""
    return datetime.fromtimestamp(instant / SECOND, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def instant(text: str) -> int:
    """Return the moment that ``iso`` wrote."""
    return round(datetime.fromisoformat(text).timestamp() * SECOND)


def length(micros: int) -> str:
    """Return a duration for people."""
    return shown_duration(max(0, micros) / SECOND)


def brief(value: Any) -> str:
    """Return a value as JSON on one line, for people."""
    return printable(json.dumps(value, ensure_ascii=False, default=str))


def wrapped(text: str, indent: int) -> str:
    """Return text broken to the terminal's width, its further lines indented."""
    room = columns()
    if room is None:
        return text
    room = max(LEAST, room - indent)
    lines = [""]
    for word in _broken(text.split(" "), room):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if cells(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return f"\n{' ' * indent}".join(lines)


def _broken(words: Iterable[str], room: int) -> Iterator[str]:
    """Yield words, those too long for a line in parts."""
    for word in words:
        part = ""
        for character in word:
            if cells(part + character) > room:
                yield part
                part = ""
            part += character
        yield part
