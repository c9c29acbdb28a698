"""What a chat shows, and what it hears from a person: the port of the two ways to chat."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Literal, Protocol

from pylash.runtime import OpenWait
from pylash.turn import TurnEvent

Tone = Literal["", "dim", "good", "bad", "warn", "strong"]
"""How a sentence is meant."""


class Sign(Enum):
    """What a person says without words."""

    INTERRUPT = auto()
    LEAVE = auto()


class View(Protocol):
    """A place where a person reads and types."""

    interactive: bool
    """Whether a person may type while a turn runs; else the next line is read when it has ended."""

    async def line(self) -> str | None:
        """Return the line that the person says next; None after the last."""
        ...

    async def sign(self) -> Sign:
        """Return what the person says next without words: it is heard before lines that wait."""
        ...

    def said(self, text: str) -> None:
        """Show a person's words."""
        ...

    def event(self, event: TurnEvent, within: str = "") -> None:
        """Show what a turn says, or what a subagent does ``within`` it."""
        ...

    def note(self, text: str, tone: Tone = "dim") -> None:
        """Show a sentence of ours."""
        ...

    def text(self, text: str, tone: Tone = "") -> None:
        """Show text as it is laid out."""
        ...

    def table(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Show pairs of a name and what it means."""
        ...

    def busy(self, state: Literal["working", "cancelling"] | None) -> None:
        """Say what is going on, or that nothing is."""
        ...

    def words(self, waiting: Sequence[str]) -> None:
        """Show the person's words that have not been heard yet."""
        ...

    def ask(self, question: OpenWait | None, prompt: str) -> None:
        """Ask for an approval, or stop asking."""
        ...

    def propose(self, text: str) -> None:
        """Give the person a text to change."""
        ...

    def remember(self, texts: list[str]) -> None:
        """Have texts where the person finds what was typed before."""
        ...
