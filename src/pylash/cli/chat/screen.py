"""The last rows of a terminal, which are redrawn; the rows above them are never changed.

Rule 1. Settled rows are written once and scroll away. Live rows are erased and drawn again.
Rule 2. No row is as wide as the screen, so that no terminal wraps one by itself. After the screen became
        narrower, earlier rows are counted as the terminal wraps them.
Rule 3. Text in a row is clean already: the only control codes are those written here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pylash.cli.chat.text import fitting
from pylash.values.texts import cells, clipped

Row = tuple[tuple[str, str], ...]
"""One row: pieces of text, each with the name of its style."""

STYLES: Final = {
    "": "",
    "dim": "2",
    "strong": "1",
    "you": "1;36",
    "good": "32",
    "bad": "31",
    "warn": "33",
}

SMALLEST: Final = 10


def row(*pieces: str | tuple[str, str]) -> Row:
    """Return a row of pieces; a bare text has no style."""
    return tuple((piece, "") if isinstance(piece, str) else piece for piece in pieces)


class Screen:
    """Writes rows to a terminal. ``colour=False`` omits every style."""

    def __init__(
        self, write: Callable[[str], None], size: Callable[[], tuple[int, int]], *, colour: bool
    ) -> None:
        self._write = write
        self._size = size
        self._colour = colour
        self._widths: list[int] = []
        self._cursor = (0, 0)

    @property
    def width(self) -> int:
        """How many cells a row may have."""
        return max(self._size()[0] - 1, SMALLEST)

    @property
    def height(self) -> int:
        """How many rows may be live."""
        return max(self._size()[1] - 1, 3)

    def draw(self, settled: Sequence[Row], live: Sequence[Row], cursor: tuple[int, int]) -> None:
        """Write settled rows, then live ones; the cursor is given as a row and a column of the live ones."""
        first = max(len(live) - self.height, 0)
        shown = [self._cut(each) for each in live[first:]]
        line, column = max(cursor[0] - first, 0), cursor[1]
        text = [
            self._erase_codes(),
            *(self._paint(each) + "\n" for each in map(self._cut, settled)),
        ]
        text.append("\n".join(map(self._paint, shown)))
        text.append(_move_codes(len(shown) - 1 - line, "A") + "\r" + _move_codes(column, "C"))
        self._widths = [sum(cells(piece) for piece, _ in each) for each in shown]
        self._cursor = (line, column)
        self._write("".join(text))

    def clear(self) -> None:
        """Clear the screen; live rows are drawn at its top."""
        self._write("\x1b[H\x1b[2J")
        self._widths, self._cursor = [], (0, 0)

    def leave(self) -> None:
        """Erase the live rows."""
        self._write(self._erase_codes())
        self._widths, self._cursor = [], (0, 0)

    def _erase_codes(self) -> str:
        """Return the codes that erase the live rows, wrapped as a screen of this width wraps them."""
        if not self._widths:
            return ""
        width = max(self._size()[0], 1)
        line, column = self._cursor
        above = sum(max(-(-wide // width), 1) for wide in self._widths[:line]) + column // width
        return "\r" + _move_codes(above, "A") + "\x1b[J"

    def _cut(self, given: Row) -> Row:
        """Return the part of a row that fits."""
        left, fits = self.width, []
        for text, style in given:
            shown = clipped(text, left)
            fits.append((shown, style))
            left -= cells(shown)
            if shown != text:
                break
        return tuple(fits)

    def _paint(self, given: Row) -> str:
        if not self._colour:
            return "".join(text for text, _ in given)
        return "".join(
            f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style and text else text
            for text, style in given
        )


def _move_codes(count: int, way: str) -> str:
    return f"\x1b[{count}{way}" if count > 0 else ""


def typed_rows(label: str, text: str, place: int, width: int) -> tuple[list[Row], tuple[int, int]]:
    """Return the rows of the input line, and the position of the cursor in them."""
    indent, room = cells(label), max(width - cells(label), 1)
    rows: list[str] = []
    cursor, begin = (0, 0), 0
    for line in text.split("\n"):
        left, start = line, begin
        while True:
            taken = fitting(left, room) or left[:1]
            end = start + len(taken)
            last = len(taken) == len(left)
            if start <= place < end or (last and place == end):
                cursor = (len(rows), cells(text[start:place]))
            rows.append(taken)
            if last:
                break
            left, start = left[len(taken) :], end
        begin += len(line) + 1
    shown = [row((label, "you"), rows[0])] + [row(" " * indent, each) for each in rows[1:]]
    return shown, (cursor[0], cursor[1] + indent)
