"""Chatting without a terminal: a line is a turn, answers go to stdout and all else to stderr.

Rule 1. There is no control code, and nothing is drawn twice.
Rule 2. The next line is read when it is wanted: when the turn has ended, or asks for something.
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

from pylash.cli.chat_lines import Lines, told_again
from pylash.cli.chat_text import PROMPT, clean, in_columns, one_line, shown_call
from pylash.cli.chat_view import Sign, Tone
from pylash.runtime import OpenWait
from pylash.turn import TurnEvent

READ_BYTES = 65_536
WIDE = 1_000_000
"""Rows are as long as they like: whoever reads them breaks them."""


class PlainView:
    """A chat over pipes."""

    interactive = False

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines = Lines(lambda: WIDE, self._loop.time)
        self._lines_read: asyncio.Queue[str | None] = asyncio.Queue()
        self._signs: asyncio.Queue[Sign] = asyncio.Queue()
        self._again = False
        self._open = False
        """Whether the last line on stdout has no end yet."""

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Self]:
        """Begin to read lines, and stop."""
        view = cls()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, view._interrupt)
        loop.add_signal_handler(signal.SIGTERM, view._signs.put_nowait, Sign.LEAVE)
        # A thread that nobody waits for: reading cannot be broken off.
        threading.Thread(target=view._read, args=(sys.stdin.fileno(),), daemon=True).start()
        try:
            yield view
        finally:
            view._end_line()
            loop.remove_signal_handler(signal.SIGINT)
            loop.remove_signal_handler(signal.SIGTERM)

    async def line(self) -> str | None:
        """Return the line that the person says next; None after the last."""
        if self._lines_read.empty() and sys.stdin.isatty():  # a person after all
            self._print(PROMPT, sys.stderr, end="")
        line = await self._lines_read.get()
        self._again = False
        return line

    async def sign(self) -> Sign:
        """Return what the person says next without words."""
        return await self._signs.get()

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
        self._signs.put_nowait(Sign.LEAVE if self._again else Sign.INTERRUPT)
        self._again = True

    def said(self, text: str) -> None:
        """Show nothing: whoever pipes knows what was said."""

    def event(self, event: TurnEvent, within: str = "") -> None:
        """Show what a turn says."""
        match event.type:
            case "text_delta" if not within:
                self._print(clean(event.text), sys.stdout, end="")
                self._open = True
            case "text_reset" if not within:
                if told := told_again(event, spoke=self._open):
                    self._print(told, sys.stderr)
            case "usage" | "turn_completed" if not within:
                self._end_line()
            case "text_delta" | "reasoning_delta" | "text_reset":
                pass
            case _:
                self._lines.event(event, within)
                self._flush()

    def note(self, text: str, tone: Tone = "dim") -> None:  # noqa: ARG002 - there are no colours
        """Show a sentence of ours."""
        self._print(clean(text), sys.stderr)

    def text(self, text: str, tone: Tone = "") -> None:  # noqa: ARG002 - there are no colours
        """Show text as it is laid out."""
        self._print(clean(text), sys.stdout)

    def table(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Show pairs of a name and what it means."""
        self._print("\n".join(in_columns(pairs, WIDE)), sys.stderr)

    def busy(self, state: Literal["working", "cancelling"] | None) -> None:
        """Show nothing."""

    def words(self, waiting: Sequence[str]) -> None:
        """Show nothing."""

    def ask(self, question: OpenWait | None, prompt: str) -> None:
        """Ask for an approval."""
        if question is not None:
            call, title = shown_call(question.tool, question.arguments), one_line(question.title)
            self._print(f"? {call}{title and ': ' + title} [{prompt}]", sys.stderr)
        else:
            self._lines.resumed()

    def propose(self, text: str) -> None:
        """Show a text that the next line shall replace."""
        self._print(text, sys.stderr)

    def remember(self, texts: list[str]) -> None:
        """Keep nothing."""

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
