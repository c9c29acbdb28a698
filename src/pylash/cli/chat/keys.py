"""Keys and the input line that they edit, without a terminal.

Rule 1. Bytes may arrive in any pieces: an incomplete sequence waits for the rest.
Rule 2. Pasted text is only text: a line is sent by pressing Enter.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import Final

from pylash.cli.chat.text import clean

PASTE_BEGINS: Final = "\x1b[200~"
PASTE_ENDS: Final = "\x1b[201~"

_NAMES: Final = {
    "\r": "enter",
    "\n": "enter",
    "\x1b\r": "newline",
    "\x1b\n": "newline",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x01": "home",
    "\x02": "left",
    "\x03": "ctrl-c",
    "\x04": "ctrl-d",
    "\x05": "end",
    "\x06": "right",
    "\x0b": "kill-rest",
    "\x0c": "clear",
    "\x0e": "down",
    "\x10": "up",
    "\x15": "kill-line",
    "\x17": "kill-word",
    "\x19": "yank",
    "\x1b\x7f": "kill-word",
    "\x1bb": "word-left",
    "\x1bf": "word-right",
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[3~": "delete",
    "\x1b[4~": "end",
    "\x1b[7~": "home",
    "\x1b[8~": "end",
    "\x1b[1;5C": "word-right",
    "\x1b[1;3C": "word-right",
    "\x1b[1;5D": "word-left",
    "\x1b[1;3D": "word-left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1bOH": "home",
    "\x1bOF": "end",
}

# A CSI or SS3 sequence, or an escape and a key, which Alt sends.
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~]|[\r\n\x7fbf])")
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")


class Key(str):
    """A pressed key, by name."""

    __slots__ = ()


class Typed(str):
    """Text that was typed or pasted."""

    __slots__ = ()


class Keys:
    """Decodes the bytes of a terminal to keys and text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._left = ""

    def feed(self, data: bytes) -> list[Key | Typed]:
        """Add bytes; return the keys and text that they complete."""
        self._left += self._decoder.decode(data)
        found: list[Key | Typed] = []
        while self._left:
            taken = self._take_paste() or self._take_key()
            if taken is None:
                break
            item, self._left = taken
            if item:
                found.append(item)
        return found

    def _take_paste(self) -> tuple[Typed, str] | None:
        if not self._left.startswith(PASTE_BEGINS):
            return None
        text, end, rest = self._left.removeprefix(PASTE_BEGINS).partition(PASTE_ENDS)
        if not end:
            return None
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        return Typed(clean(text)), rest

    def _take_key(self) -> tuple[Key | Typed, str] | None:
        text = self._left
        if text.startswith(PASTE_BEGINS) or _UNFINISHED.match(text):
            return None
        if (sequence := _SEQUENCE.match(text)) is not None:
            return Key(_NAMES.get(sequence[0], "")), text[sequence.end() :]
        if text[0] == "\x1b":  # Escape itself, and then something else
            return Key(""), text[1:]
        if text[0] < " " or text[0] == "\x7f":
            return Key(_NAMES.get(text[0], "")), text[1:]
        return Typed(clean(text[0])), text[1:]


class Editor:
    """The input line, the input history, and the last cut text."""

    def __init__(self) -> None:
        self.text = ""
        self.place = 0
        self.history: list[str] = []
        self._at = 0
        self._draft = ""
        self._killed = ""

    def set(self, text: str) -> None:
        """Replace the line; the cursor is at its end."""
        self.text, self.place = text, len(text)

    def take(self) -> str:
        """Return the line, and begin a new one."""
        text = self.text
        if text.strip() and self.history[-1:] != [text]:
            self.history.append(text)
        self.set("")
        self._at, self._draft = len(self.history), ""
        return text

    def remember(self, texts: list[str]) -> None:
        """Add texts to the history, as if they had been typed."""
        self.history += texts
        self._at = len(self.history)

    def insert(self, text: str) -> None:
        """Insert text at the cursor."""
        self.text = self.text[: self.place] + text + self.text[self.place :]
        self.place += len(text)

    def press(self, key: str) -> None:
        """Handle a key; a key without a meaning does nothing."""
        action = getattr(self, "_" + key.replace("-", "_"), None)
        if action is not None:
            action()

    def _left(self) -> None:
        self.place = max(self.place - 1, 0)

    def _right(self) -> None:
        self.place = min(self.place + 1, len(self.text))

    def _home(self) -> None:
        self.place = self.text.rfind("\n", 0, self.place) + 1

    def _end(self) -> None:
        end = self.text.find("\n", self.place)
        self.place = len(self.text) if end < 0 else end

    def _word_left(self) -> None:
        end = _skip_back(self.text, self.place, lambda char: not _is_in_word(char))
        self.place = _skip_back(self.text, end, _is_in_word)

    def _word_right(self) -> None:
        found = re.compile(r"\W*\w+|\W+").match(self.text, self.place)
        self.place = found.end() if found else self.place

    def _newline(self) -> None:
        self.insert("\n")

    def _backspace(self) -> None:
        if self.place:
            self._cut(self.place - 1, self.place)

    def _delete(self) -> None:
        self._cut(self.place, self.place + 1)

    def _kill_rest(self) -> None:
        end = self.text.find("\n", self.place)
        self._killed = self._cut(self.place, len(self.text) if end < 0 else end)

    def _kill_line(self) -> None:
        self._killed = self._cut(self.text.rfind("\n", 0, self.place) + 1, self.place)

    def _kill_word(self) -> None:
        end = _skip_back(self.text, self.place, str.isspace)
        start = _skip_back(self.text, end, lambda char: not char.isspace())
        self._killed = self._cut(start, self.place)

    def _yank(self) -> None:
        self.insert(self._killed)

    def _cut(self, start: int, end: int) -> str:
        gone = self.text[start:end]
        self.text, self.place = self.text[:start] + self.text[end:], start
        return gone

    def _up(self) -> None:
        before = self.text.rfind("\n", 0, self.place)
        if before >= 0:
            self._to_line(before, -1)
        elif self._at > 0:
            self._recall(self._at - 1)

    def _down(self) -> None:
        after = self.text.find("\n", self.place)
        if after >= 0:
            self._to_line(after, 1)
        elif self._at < len(self.history):
            self._recall(self._at + 1)

    def _to_line(self, newline: int, step: int) -> None:
        """Move to the line before or after a newline, keeping the column."""
        column = self.place - (self.text.rfind("\n", 0, self.place) + 1)
        if step < 0:
            start = self.text.rfind("\n", 0, newline) + 1
            self.place = min(start + column, newline)
        else:
            end = self.text.find("\n", newline + 1)
            self.place = min(newline + 1 + column, len(self.text) if end < 0 else end)

    def _recall(self, at: int) -> None:
        if self._at == len(self.history):
            self._draft = self.text
        self._at = at
        self.set(self.history[at] if at < len(self.history) else self._draft)


def _skip_back(text: str, place: int, skip: Callable[[str], bool]) -> int:
    """Return the position before the characters left of `place` that are to be skipped."""
    while place and skip(text[place - 1]):
        place -= 1
    return place


def _is_in_word(char: str) -> bool:
    return char.isalnum() or char == "_"
