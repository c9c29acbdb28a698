"""A terminal for tests: a real pty with a program in it, and a screen that shows what it drew."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Self

PATIENCE = 30.0
GLANCE = 0.05

_CODES = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|\x1b.?|[^\x1b]", re.DOTALL)


class Screen:
    """What a terminal shows, as far as a chat draws it; a code it does not know is an error."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.rows: list[list[str]] = [[]]
        self.line = self.column = 0
        self.styled = False
        self._left = ""

    def feed(self, text: str) -> None:
        """Draw text."""
        text = self._left + text
        cut = re.search(r"\x1b(\[[?0-9;]*)?\Z", text)
        self._left = "" if cut is None else text[cut.start() :]
        for found in _CODES.finditer(text if cut is None else text[: cut.start()]):
            if found[2]:
                self._command(found[1], found[2])
            else:
                self._put(found[0])

    def _put(self, char: str) -> None:
        assert char in "\r\n" or (char.isprintable()), f"a raw {char!r} reached the terminal"
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.line += 1
            if self.line == len(self.rows):
                self.rows.append([])
        else:
            assert self.column < self.columns, "a row is wider than the screen"
            row = self.rows[self.line]
            row += " " * (self.column - len(row))
            row[self.column : self.column + 1] = [char]
            self.column += 1

    def _command(self, given: str, code: str) -> None:
        count = int(given) if given.isdecimal() else 1
        match code:
            case "A":
                assert count <= self.line, "above the top"
                self.line -= count
            case "C":
                self.column += count
            case "J":
                del self.rows[self.line + 1 :]
                del self.rows[self.line][self.column :]
            case "m":
                self.styled = True
            case "h" | "l":
                assert given == "?2004"
            case _:
                raise AssertionError(f"an unknown code: {given}{code}")

    @property
    def text(self) -> str:
        """Everything there is, also what scrolled away."""
        return "\n".join("".join(row).rstrip() for row in self.rows)


class Terminal:
    """A program in a terminal. ``expect`` reads until something is seen, ``type`` types."""

    def __init__(self, arguments: list[str], cwd: Path, columns: int = 80, **env: str) -> None:
        self.screen = Screen(columns, 24)
        self.raw = ""
        ours, theirs = pty.openpty()
        self._ours, self._theirs = ours, theirs
        self.resize(columns)
        self.before = termios.tcgetattr(theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pylash", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env={**clean_environment(), "TERM": "xterm-256color", **env},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def resize(self, columns: int) -> None:
        """Make the terminal wider or narrower."""
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.screen.columns = columns

    def type(self, text: str) -> None:
        """Type text as keys."""
        os.write(self._ours, text.encode())

    def enter(self, text: str) -> None:
        """Type a line."""
        self.type(text + "\r")

    def expect(self, *wanted: str) -> str:
        """Return the screen once all that is wanted is on it."""
        self._until(lambda: all(each in self.screen.text for each in wanted), wanted)
        return self.screen.text

    def expect_gone(self, unwanted: str) -> str:
        """Return the screen once something is not on it any more."""
        self._until(lambda: unwanted not in self.screen.text, f"not {unwanted!r}")
        return self.screen.text

    def expect_end(self) -> int:
        """Return the exit status, once the program has ended."""
        self._until(lambda: self.process.poll() is not None, "the end")
        self._read(0.0)
        return self.process.returncode

    @property
    def mode(self) -> list[object]:
        """How the terminal is set."""
        return termios.tcgetattr(self._theirs)

    def _until(self, holds: Callable[[], bool], wanted: object) -> None:
        patience = round(PATIENCE / GLANCE)
        while not holds():
            ended = self.process.poll() is not None
            if not self._read(GLANCE):
                patience -= 1
                if holds():
                    return
                over = not patience or ended
                assert not over, f"{wanted} never came:\n{self.screen.text}"

    def _read(self, wait: float) -> bool:
        readable, _, _ = select.select([self._ours], [], [], wait)
        if not readable:
            return False
        text = os.read(self._ours, 65_536).decode("utf-8", "replace")
        self.raw += text
        self.screen.feed(text)
        return True

    def kill(self) -> None:
        """Kill the program as nothing else does."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


def clean_environment() -> dict[str, str]:
    """Return the environment without what changes how things look."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "PYLASH_STORE")
    }
