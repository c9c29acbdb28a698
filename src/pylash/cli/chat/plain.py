"""The chat without a terminal: a line is a turn, answers go to stdout and everything else to stderr.

Rule 1. There are no control codes, and nothing is drawn twice.
Rule 2. The next line is read when the turn has ended or waits for an answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal, Self, TextIO

from pylash.cli.chat.lines import Lines, retry_note
from pylash.cli.chat.text import PROMPT, clean, in_columns, one_line, shown_call
from pylash.cli.chat.view import Action, Tone
from pylash.durable.waits import OpenWait
from pylash.turn.events import TurnEvent

READ_BYTES = 65_536
WIDE = 1_000_000
"""A width at which no row is wrapped."""


class PlainView:
    """A chat through pipes."""

    interactive = False

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines = Lines(lambda: WIDE, self._loop.time)
        self._lines_read: asyncio.Queue[str | None] = asyncio.Queue()
        self._actions: asyncio.Queue[Action] = asyncio.Queue()
        self._interrupted_before = False
        self._open = False
        """Whether the last line on stdout is not ended yet."""

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Self]:
        """Start reading lines, and stop at the end."""
        view = cls()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, view._interrupt)
        loop.add_signal_handler(signal.SIGTERM, view._actions.put_nowait, Action.LEAVE)
        # A daemon thread: a blocking read cannot be interrupted.
        threading.Thread(target=view._read, args=(sys.stdin.fileno(),), daemon=True).start()
        try:
            yield view
        finally:
            view._end_line()
            loop.remove_signal_handler(signal.SIGINT)
            loop.remove_signal_handler(signal.SIGTERM)

    async def line(self) -> str | None:
        """Return the next line of input; None after the last."""
        if self._lines_read.empty() and sys.stdin.isatty():  # stdin is a terminal after all
            self._print(PROMPT, sys.stderr, end="")
        line = await self._lines_read.get()
        self._interrupted_before = False
        return line

    async def action(self) -> Action:
        """Return the next action."""
        return await self._actions.get()

    def _read(self, source: int) -> None:
        left = b""
        with suppress(OSError, RuntimeError):  # RuntimeError: the loop is closed
            while data := os.read(source, READ_BYTES):
                *whole, left = (left + data).split(b"\n")
                for line in whole:
                    self._put(line)
            if left:
                self._put(left)
            self._loop.call_soon_threadsafe(self._lines_read.put_nowait, None)

    def _put(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").removesuffix("\r")
        self._loop.call_soon_threadsafe(self._lines_read.put_nowait, text)

    def _interrupt(self) -> None:
        self._actions.put_nowait(Action.LEAVE if self._interrupted_before else Action.INTERRUPT)
        self._interrupted_before = True

    def message(self, text: str) -> None:
        """Show nothing: the caller wrote the input itself."""

    def event(self, event: TurnEvent, within: str = "") -> None:
        """Show an event of a turn."""
        match event.type:
            case "text_delta" if not within:
                self._print(clean(event.text), sys.stdout, end="")
                self._open = True
            case "text_reset" if not within:
                if note := retry_note(event, streamed=self._open):
                    self._print(note, sys.stderr)
            case "usage" | "turn_completed" if not within:
                self._end_line()
            case "text_delta" | "reasoning_delta" | "text_reset":
                pass
            case _:
                self._lines.event(event, within)
                self._flush()

    def note(self, text: str, tone: Tone = "dim") -> None:  # noqa: ARG002 - there are no colours
        """Show a note of the chat itself."""
        self._print(clean(text), sys.stderr)

    def text(self, text: str, tone: Tone = "") -> None:  # noqa: ARG002 - there are no colours
        """Show text with its line breaks."""
        self._print(clean(text), sys.stdout)

    def table(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Show pairs of a name and its description."""
        self._print("\n".join(in_columns(pairs, WIDE)), sys.stderr)

    def busy(self, state: Literal["working", "cancelling"] | None) -> None:
        """Show nothing."""

    def queued(self, waiting: Sequence[str]) -> None:
        """Show nothing."""

    def ask(self, question: OpenWait | None, prompt: str) -> None:
        """Ask for an approval."""
        if question is not None:
            call, title = shown_call(question.tool, question.arguments), one_line(question.title)
            self._print(f"? {call}{title and ': ' + title} [{prompt}]", sys.stderr)
        else:
            self._lines.restart_timers()

    def propose(self, text: str) -> None:
        """Show a text that the next line replaces."""
        self._print(text, sys.stderr)

    def remember(self, texts: list[str]) -> None:
        """Do nothing: there is no input history."""

    def _flush(self) -> None:
        settled, self._lines.settled = self._lines.settled, []
        for each in settled:
            text = "".join(piece for piece, _ in each)
            if text:
                self._print(text, sys.stderr)

    def _end_line(self) -> None:
        if self._open:
            self._open = False
            self._print("", sys.stdout)

    def _print(self, text: str, where: TextIO, end: str = "\n") -> None:
        if where is sys.stderr or end:
            self._end_line()
        safe = (text + end).encode("utf-8", "replace").decode()
        with suppress(BrokenPipeError):
            where.write(safe)
            where.flush()
