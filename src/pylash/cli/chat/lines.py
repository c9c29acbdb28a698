"""Events of turns as rows, without a terminal. Settled rows are passed on, the others are live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from pylash.cli.chat.screen import Row, row
from pylash.cli.chat.text import PROMPT, clean, one_line, shown_call, shown_seconds, wrapped
from pylash.turn.events import TurnEvent
from pylash.values.texts import clipped

INDENT: Final = "  "
RESTARTED: Final = "↺ the answer starts again"
STREAMED: Final = {"text": "", "reasoning": "dim"}


@dataclass(slots=True)
class Running:
    """A running tool: its call, start, progress, and whether it waits."""

    call: str
    since: float
    indent: str = ""
    progress: str = ""
    waits: bool = False


@dataclass(slots=True)
class Lines:
    """The rows of a conversation. ``settled`` rows are final; ``live()`` rows may still change."""

    width: Callable[[], int]
    now: Callable[[], float]
    settled: list[Row] = field(default_factory=list)
    tools: dict[tuple[str, str], Running] = field(default_factory=dict)
    _last: str = ""
    """The kind of the last settled row: an empty row separates rows of different kinds."""
    _streams: str = ""
    _pending: str = ""
    _has_streamed: bool = False

    def add(self, kind: str, *rows: Row) -> None:
        """Settle rows of a kind."""
        self.finish()
        self._settle(kind, rows)

    def _settle(self, kind: str, rows: Sequence[Row]) -> None:
        if not rows:
            return
        if self._last and kind != self._last:
            self.settled.append(row(""))
        self._last = kind
        self.settled += rows

    def message(self, text: str) -> None:
        """Settle a message of the person."""
        self.finish()
        self._last = self._last and "before"  # each question is a separate group
        lines = clean(text).strip().split("\n")
        rows = [each for line in lines for each in wrapped(line, self.width() - len(INDENT))]
        marks = [PROMPT, *[INDENT] * (len(rows) - 1)]
        self._settle(
            "you",
            [row((mark, "you"), (each, "strong")) for mark, each in zip(marks, rows, strict=True)],
        )

    def text(self, text: str, kind: str, style: str) -> None:
        """Settle text with its line breaks."""
        rows = [each for line in clean(text).split("\n") for each in wrapped(line, self.width())]
        self.add(kind, *(row((each, style)) for each in rows))

    def stream(self, text: str, kind: str) -> None:
        """Add a piece of streamed text; its last row stays live."""
        if kind != self._streams:
            self.finish()
            self._streams = kind
        *whole, last = (self._pending + clean(text)).split("\n")
        for line in whole:
            self._settle_streamed(wrapped(line, self.width()))
        *full, self._pending = wrapped(last, self.width())
        self._settle_streamed(full)
        self._has_streamed = True

    def finish(self) -> None:
        """Settle the rest of streamed text."""
        if self._pending.strip():
            self._settle_streamed([self._pending])
        self._pending = ""

    def _settle_streamed(self, texts: list[str]) -> None:
        # An answer may begin with empty lines: there is an empty row already.
        rows = [row((each.rstrip(), STREAMED[self._streams])) for each in texts]
        while rows and self._last != self._streams and not rows[0][0][0]:
            rows.pop(0)
        self._settle(self._streams, rows)

    def event(self, event: TurnEvent, within: str = "") -> None:
        """Show an event of a turn, or of a subagent; of a subagent only its tools, not its text."""
        match event.type:
            case "text_delta" | "reasoning_delta":
                if not within:
                    self.stream(event.text, event.type.removesuffix("_delta"))
            case "text_reset":
                self._reset(event, within)
            case "tool_started" | "tool_progress" | "tool_completed" | "wait_opened":
                self._tool(event, within)
            case "code_started" | "code_completed":
                self._tool(event, within)
            case "usage" | "turn_started" | "turn_completed":
                if not within:
                    self.finish()
                    self._has_streamed = False
            case _:
                assert_never(event.type)

    def _reset(self, event: TurnEvent, within: str) -> None:
        if not within and (note := retry_note(event, streamed=self._has_streamed)):
            self._pending, self._has_streamed = "", False
            self.text(note, "note", "warn")

    def _tool(self, event: TurnEvent, within: str) -> None:
        name = (within, event.correlation_id)
        if event.type in ("tool_started", "code_started"):
            self.finish()
            self.tools[name] = Running(_call_text(event), self.now(), INDENT if within else "")
        elif event.type in ("tool_completed", "code_completed"):
            self._show_completed(name, event)
        elif event.type == "tool_progress" and event.attempt > 1:
            self._show_retry(name, event)
        elif event.type == "tool_progress" and name in self.tools:
            self.tools[name].progress, self.tools[name].waits = _progress(event), False
        elif event.type == "wait_opened":
            call = (within, event.correlation_id.rpartition(".")[0])
            if call in self.tools:
                self.tools[call].waits = True

    def _show_retry(self, name: tuple[str, str], event: TurnEvent) -> None:
        """Show that a failed tool is retried, and why."""
        if name in self.tools:
            self.tools[name].progress = ""
        indent = INDENT if name[0] else ""
        text = f"{indent}↺ {one_line(event.tool or 'tool')} again: {one_line(event.text)}"
        self.add("tool", row((clipped(text, self.width()), "dim")))

    def _show_completed(self, name: tuple[str, str], event: TurnEvent) -> None:
        tool = self.tools.pop(name, None)
        call = _call_text(event) if tool is None else tool.call
        took = "" if tool is None or tool.waits else f" {shown_seconds(self.now() - tool.since)}"
        mark = ("✗", "bad") if event.status == "failed" else ("✓", "good")
        result = one_line(event.text)
        indent = INDENT if name[0] else ""
        room = self.width() - len(indent) - 2 - len(took)
        if len(call) + len(result) + 3 <= room:  # otherwise the result has its own row
            end = row(indent, mark, " " + call, (took + (f" → {result}" if result else ""), "dim"))
            self.add("tool", end)
            return
        rows = [row(indent, mark, " " + clipped(call, room), (took, "dim"))]
        if result:
            rows.append(row((f"{indent}{INDENT}→ {result}", "dim")))
        self.add("tool", *rows)

    @property
    def waits(self) -> bool:
        """Whether everything that runs waits for answers."""
        return bool(self.tools) and all(tool.waits for tool in self.tools.values())

    def restart_timers(self) -> None:
        """Restart the timers of tools that waited for an answer."""
        for tool in self.tools.values():
            if tool.waits:
                tool.waits, tool.since = False, self.now()

    def live(self) -> list[Row]:
        """Return the rows that may still change."""
        last, rows = self._last, []
        if self._pending.strip():
            rows += [row("")] if last and last != self._streams else []
            rows.append(row((self._pending, STREAMED[self._streams])))
            last = self._streams
        if self.tools and last and last != "tool":
            rows.append(row(""))
        for tool in self.tools.values():
            seconds = self.now() - tool.since
            state = "waits for an answer" if tool.waits else tool.progress
            time = shown_seconds(seconds) if seconds >= 1 and not tool.waits else ""
            tail = "".join(f" {part}" for part in (state and "… " + state, time) if part)
            room = max(self.width() - len(tool.indent) - 2 - len(tail), self.width() // 3)
            call = clipped(tool.call, room)
            rows.append(
                row(tool.indent, ("⏸" if tool.waits else "⚙", "warn"), f" {call}", (tail, "dim"))
            )
        return rows

    def forget(self) -> None:
        """Forget running tools: they have ended, or are no longer shown."""
        self.finish()
        self.tools.clear()


def retry_note(event: TurnEvent, *, streamed: bool) -> str:
    """Return the note about a retried answer; ``streamed``: some of its text was streamed."""
    why = one_line(event.text)
    if streamed:
        return f"{RESTARTED}: {why}" if why else RESTARTED
    return f"↺ the model is asked again: {why}" if why else ""


def _call_text(event: TurnEvent) -> str:
    if event.type.startswith("code"):
        return one_line(f"code {event.text}") if event.type == "code_started" else "code"
    if event.type == "tool_completed" and event.data is None:  # the stream began after its call
        return one_line(event.tool or "tool")
    return shown_call(event.tool, event.data)


def _progress(event: TurnEvent) -> str:
    share = "" if event.fraction is None else f"{event.fraction * 100:.0f} %"
    return " ".join(part for part in (share, one_line(event.text)) if part)
