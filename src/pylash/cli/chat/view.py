"""The port of the two chat views (terminal and pipes): what a chat shows, and the input of a person."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Literal, Protocol

from pylash.durable.waits import OpenWait
from pylash.turn.events import TurnEvent

Tone = Literal["", "dim", "good", "bad", "warn", "strong"]
"""The style of a note."""


class Action(Enum):
    """Input of a person other than a line of text: Ctrl-C interrupts, a second Ctrl-C or Ctrl-D leaves."""

    INTERRUPT = auto()
    LEAVE = auto()


class View(Protocol):
    """A view: shows the chat and reads the input."""

    interactive: bool
    """Whether a person may type while a turn runs; otherwise the next line is read when the turn has ended."""

    async def line(self) -> str | None:
        """Return the next line of input; None after the last."""
        ...

    async def action(self) -> Action:
        """Return the next action. Actions are handled before lines that wait."""
        ...

    def message(self, text: str) -> None:
        """Show a message of the person."""
        ...

    def event(self, event: TurnEvent, within: str = "") -> None:
        """Show an event of a turn, or of a subagent ``within`` it."""
        ...

    def note(self, text: str, tone: Tone = "dim") -> None:
        """Show a note of the chat itself."""
        ...

    def text(self, text: str, tone: Tone = "") -> None:
        """Show text with its line breaks."""
        ...

    def table(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Show pairs of a name and its description."""
        ...

    def busy(self, state: Literal["working", "cancelling"] | None) -> None:
        """Show the current activity, or none."""
        ...

    def queued(self, waiting: Sequence[str]) -> None:
        """Show the person's messages that the model has not received yet."""
        ...

    def ask(self, question: OpenWait | None, prompt: str) -> None:
        """Ask for an approval, or withdraw the question."""
        ...

    def propose(self, text: str) -> None:
        """Put a text into the input line, to be edited."""
        ...

    def remember(self, texts: list[str]) -> None:
        """Add texts to the input history."""
        ...
