"""The chat in a terminal: the input line stays at the bottom, and everything else is printed above it.

Rule 1. The terminal is restored, however the chat ends.
Rule 2. Meanwhile, all other output of the process is printed above the input line too: a tool's
        ``print``, a warning, a child's output. A thread reads it, so that writers are not blocked.
Rule 3. Drawing is delayed for a moment to batch changes; a pressed key is shown at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, Literal, Self

from pylash.cli.chat.keys import Editor, Key, Keys
from pylash.cli.chat.lines import INDENT, Lines
from pylash.cli.chat.screen import Row, Screen, row, typed_rows
from pylash.cli.chat.text import PROMPT, in_columns, one_line, shown_call, shown_seconds, wrapped
from pylash.cli.chat.view import Action, Tone
from pylash.durable.waits import OpenWait
from pylash.turn.events import TurnEvent

DRAW_SECONDS: Final = 0.03
TICK_SECONDS: Final = 1.0
READ_BYTES: Final = 65_536

HINTS: Final = {
    "working": " · type to steer · Ctrl-C cancels",
    "cancelling": " · Ctrl-C again leaves",
}

_PASTE_ON, _PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"


class TerminalView:
    """A chat in a terminal."""

    interactive = True

    def __init__(self, output: int, *, colour: bool) -> None:
        self._write = partial(_write, output)
        self._loop = asyncio.get_running_loop()
        self._screen = Screen(self._write, partial(_size, output), colour=colour)
        self._lines = Lines(lambda: self._screen.width, self._loop.time)
        self._keys, self._editor = Keys(), Editor()
        self._typed_lines: asyncio.Queue[str] = asyncio.Queue()
        self._actions: asyncio.Queue[Action] = asyncio.Queue()
        self._busy: str | None = None
        self._since = 0.0
        self._queued: Sequence[str] = ()
        self._label = PROMPT
        self._interrupted_before = False
        self._drawing: asyncio.TimerHandle | None = None
        self._is_soon = False

    @classmethod
    @contextmanager
    def opened(cls, *, colour: bool) -> Iterator[Self]:
        """Take over the terminal, and restore it."""
        with _raw(sys.stdin.fileno()), _captured() as (output, printed):
            view = cls(output, colour=colour)
            view._begin(printed)
            try:
                yield view
            finally:
                view._end()

    def _begin(self, printed: int) -> None:
        self._write(_PASTE_ON)
        self._loop.add_reader(sys.stdin.fileno(), self._on_readable)
        self._loop.add_signal_handler(signal.SIGWINCH, self._draw)
        self._loop.add_signal_handler(signal.SIGINT, self._interrupt)
        for ending in (signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(ending, self._actions.put_nowait, Action.LEAVE)

        def on_line(text: str) -> None:
            self._loop.call_soon_threadsafe(self._on_output, text)

        threading.Thread(target=_read_lines, args=(printed, on_line), daemon=True).start()
        self._draw()

    def _end(self) -> None:
        self._loop.remove_reader(sys.stdin.fileno())
        for taken in (signal.SIGWINCH, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.remove_signal_handler(taken)
        self._lines.forget()
        self._draw()
        if self._drawing is not None:
            self._drawing.cancel()
        self._screen.leave()
        self._write(f"\n{_PASTE_OFF}")

    # --- output ---

    def message(self, text: str) -> None:
        """Show a message of the person."""
        self._lines.message(text)
        self._draw_soon()

    def event(self, event: TurnEvent, within: str = "") -> None:
        """Show an event of a turn."""
        self._lines.event(event, within)
        self._draw_soon()

    def note(self, text: str, tone: Tone = "dim") -> None:
        """Show a note of the chat itself."""
        self._lines.text(text, "note", tone)
        self._draw_soon()

    def text(self, text: str, tone: Tone = "") -> None:
        """Show text with its line breaks."""
        self._lines.text(text, "text", tone)
        self._draw_soon()

    def table(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Show pairs of a name and its description."""
        self._lines.add("note", *map(row, in_columns(pairs, self._screen.width)))
        self._draw_soon()

    def busy(self, state: Literal["working", "cancelling"] | None) -> None:
        """Show the current activity, or none."""
        if self._busy is None:
            self._since = self._loop.time()
        if state is None:
            self._lines.forget()
        self._busy = state
        self._draw_soon()

    def queued(self, waiting: Sequence[str]) -> None:
        """Show the person's messages that the model has not received yet."""
        self._queued = waiting
        self._draw_soon()

    def ask(self, question: OpenWait | None, prompt: str) -> None:
        """Ask for an approval, or withdraw the question."""
        if question is None:
            self._label = PROMPT
            self._lines.restart_timers()
        else:
            self._label = f"{prompt} {PROMPT}"
            call = shown_call(question.tool, question.arguments)
            rows = wrapped(call, self._screen.width - 2)
            shown = [
                row(("?" if not n else " ", "warn"), (f" {each}", "strong"))
                for n, each in enumerate(rows)
            ]
            title = one_line(question.title)
            about = wrapped(title, self._screen.width - 2) if title else []
            self._lines.add("question", *shown, *(row((INDENT + each, "dim")) for each in about))
        self._draw_soon()

    def propose(self, text: str) -> None:
        """Put a text into the input line, to be edited."""
        self._editor.set(text)
        self._draw_soon()

    def remember(self, texts: list[str]) -> None:
        """Add texts to the input history."""
        self._editor.remember(texts)

    # --- input ---

    async def line(self) -> str | None:
        """Return the next line of input."""
        return await self._typed_lines.get()

    async def action(self) -> Action:
        """Return the next action."""
        return await self._actions.get()

    def _on_readable(self) -> None:
        data = b""
        with suppress(OSError):  # the terminal was closed
            data = os.read(sys.stdin.fileno(), READ_BYTES)
        if not data:
            self._loop.remove_reader(sys.stdin.fileno())
            self._actions.put_nowait(Action.LEAVE)
        for item in self._keys.feed(data):
            if item != "ctrl-c":
                self._interrupted_before = False
            if isinstance(item, Key):
                self._on_key(item)
            else:
                self._editor.insert(item)
        self._draw()

    def _on_key(self, key: Key) -> None:
        match key:
            case "enter":
                self._typed_lines.put_nowait(self._editor.take())
            case "ctrl-c":
                self._interrupt()
            case "ctrl-d" if not self._editor.text:
                self._actions.put_nowait(Action.LEAVE)
            case "ctrl-d":
                self._editor.press("delete")
            case "clear":
                self._screen.clear()
            case _:
                self._editor.press(key)

    def _interrupt(self) -> None:
        if self._interrupted_before:
            self._actions.put_nowait(Action.LEAVE)
        elif self._editor.text and self._busy is None:
            self._editor.set("")
            self._draw()
        else:
            self._interrupted_before = True
            self._actions.put_nowait(Action.INTERRUPT)

    def _on_output(self, text: str) -> None:
        self._lines.text(text, "printed", "dim")
        self._draw_soon()

    # --- drawing ---

    def _draw_soon(self) -> None:
        if not self._is_soon:
            self._draw_after(DRAW_SECONDS)
            self._is_soon = True

    def _draw_after(self, seconds: float) -> None:
        """Schedule the next drawing, in place of an earlier schedule."""
        if self._drawing is not None:
            self._drawing.cancel()
        self._drawing = self._loop.call_later(seconds, self._draw)
        self._is_soon = False

    def _draw(self) -> None:
        self._draw_after(TICK_SECONDS)  # live rows show elapsed times
        live = [*self._lines.live(), *self._waiting(), row("")]
        typed, cursor = self._typed()
        settled, self._lines.settled = self._lines.settled, []
        self._screen.draw(settled, [*live, *typed], (len(live) + cursor[0], cursor[1]))

    def _typed(self) -> tuple[list[Row], tuple[int, int]]:
        """Return the rows of the input line, at most half a screen."""
        width = self._screen.width
        rows, (line, column) = typed_rows(self._label, self._editor.text, self._editor.place, width)
        most = max(self._screen.height // 2, 1)
        first = min(max(line - most + 1, 0), max(len(rows) - most, 0))
        return rows[first : first + most], (line - first, column)

    def _waiting(self) -> list[Row]:
        """Return the rows that show what the chat waits for."""
        rows = [row(("⋯ " + one_line(message), "dim")) for message in self._queued]
        if self._busy is not None and self._label == PROMPT:
            seconds = self._loop.time() - self._since
            time = f" {shown_seconds(seconds)}" if seconds >= 1 else ""
            state = "waiting" if self._lines.waits else self._busy
            rows.append(row((f"⋯ {state}{time}{HINTS.get(self._busy, '')}", "dim")))
        return [row(""), *rows] if rows else []


def _write(output: int, text: str) -> None:
    data = text.encode("utf-8", "replace")
    with suppress(OSError):  # the terminal was closed
        while data:
            data = data[os.write(output, data) :]


def _size(output: int) -> tuple[int, int]:
    try:
        columns, lines = os.get_terminal_size(output)
    except OSError:
        return 80, 24
    return columns or 80, lines or 24


def _read_lines(pipe: int, on_line: Callable[[str], None]) -> None:
    """Call ``on_line`` with each line of the process's output; runs in a thread."""
    with open(pipe, "rb") as printed:
        for line in printed:
            with suppress(RuntimeError):  # the loop is closed
                on_line(line.decode("utf-8", "replace").rstrip("\n"))


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Switch to raw mode without echo; Ctrl-C is read as a key."""
    before = termios.tcgetattr(terminal)
    mode = termios.tcgetattr(terminal)
    mode[0] &= ~(termios.ICRNL | termios.INLCR | termios.IXON)
    mode[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN)
    termios.tcsetattr(terminal, termios.TCSADRAIN, mode)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may be closed
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextmanager
def _captured() -> Iterator[tuple[int, int]]:
    """Return the terminal to write to, and a pipe with the output of the process."""
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    printed, sink = os.pipe()
    try:
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.close(sink)
        yield kept[0], printed
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for each in kept:
            os.close(each)
