"""The questions of a session to a person (approvals, deferred results), and their answers.

Rule 1. ``app.waits`` returns the open questions. Events are only hints to call it again.
Rule 2. One question is asked at a time, the oldest first.
"""

from __future__ import annotations

import asyncio
from getpass import getuser
from typing import Any, Final

import msgspec

from pylash.app import Lash
from pylash.cli.chat.text import shown_call
from pylash.cli.chat.view import View
from pylash.durable.waits import OpenWait
from pylash.values.canonical import decode, write
from pylash.values.errors import LashError
from pylash.values.turn_errors import ToolArgumentsInvalid

APPROVE: Final = "approve? y/n/e"

_WAITED_FOR: Final = {"deferred": "its result, from outside", "signal": "a signal"}


class Questions:
    """The open waits of a session. ``settled`` is set when one of them needs a person."""

    def __init__(self, app: Lash, session_id: str, view: View, settled: asyncio.Event) -> None:
        self.waits: list[OpenWait] = []
        self._app = app
        self._session = session_id
        self._view = view
        self._settled = settled
        self._asked: OpenWait | None = None
        self._answered: set[str] = set()
        self._editing = False

    async def refresh(self) -> None:
        """Ask the questions that are open now, and withdraw those that are not."""
        open_now = await self._app.waits(session_id=self._session)
        known = {wait.key for wait in self.waits}
        self.waits = [wait for wait in open_now if wait.key not in self._answered]
        for number, wait in enumerate(self.waits, 1):
            if wait.key not in known and wait.kind != "approval":
                self._show(number, wait)
        questions = [wait for wait in self.waits if wait.kind == "approval"]
        if self._asked is not None and self._asked.key in {wait.key for wait in questions}:
            return
        if self._editing:
            self._editing = False
            self._view.propose("")
        first = questions[0] if questions else None
        if first is not None or self._asked is not None:
            self._asked = first
            self._view.ask(first, APPROVE)
        if first is not None:
            self._settled.set()

    def _show(self, number: int, wait: OpenWait) -> None:
        what = shown_call(wait.tool, wait.arguments) if wait.tool else wait.title or wait.kind
        self._view.note(f"⏸ {what} waits for {_WAITED_FOR.get(wait.kind, 'an answer')}", "warn")
        if self._view.interactive:
            self._view.note(f"  /resolve {number} JSON answers it, /waits shows its key.")
        else:
            self._view.note(f"  pylash resolve {wait.key} JSON")
            self._settled.set()

    async def answer(self, line: str) -> bool:
        """Answer the current question with a line; return False if there is none."""
        if self._asked is None:
            return False
        word, _, rest = line.strip().partition(" ")
        if self._editing:
            await self._approve_corrected(line.strip())
        elif word.lower() in ("y", "yes") and not rest:  # a sentence may begin with yes
            await self.resolve(self._asked, {"approved": True}, "✓ approved")
        elif word.lower() in ("n", "no"):
            reason = rest.strip()
            answer: dict[str, Any] = {"approved": False, **({"reason": reason} if reason else {})}
            await self.resolve(self._asked, answer, f"✗ rejected{reason and ': ' + reason}")
        elif word.lower() in ("e", "edit"):
            self._edit(_to_json(self._asked.arguments))
        else:
            self._view.note(
                "y approves, n rejects (n and a reason tells the model why), e changes the "
                "arguments; /interrupt sends a message instead, /cancel ends the turn."
            )
        return True

    def _edit(self, text: str) -> None:
        self._editing = True
        self._view.note("Change the arguments and press Enter; an empty line goes back.")
        self._view.propose(text)

    async def _approve_corrected(self, line: str) -> None:
        assert self._asked is not None
        self._editing = False
        if not line:
            return
        arguments = read_json(line)
        if (problem := await self._problem(self._asked.tool, arguments)) is not None:
            self._view.note(problem, "bad")
            self._edit(line)
            return
        answer = {"approved": True, "arguments": arguments}
        await self.resolve(self._asked, answer, f"✓ approved with {line}")

    async def _problem(self, tool_name: str | None, arguments: Any) -> str | None:
        """Return why a tool refuses arguments, or None: a typo must not use up the question."""
        if not isinstance(arguments, dict):
            return "Arguments must be a JSON object."
        tool = self._app.services.catalog.tools.get(tool_name or "")
        if tool is None:  # a tool of a plugin, or of another app
            return None
        await tool.prepare()
        try:
            tool.load(arguments)
        except ToolArgumentsInvalid as error:
            return error.message
        return None

    async def resolve(self, wait: OpenWait, value: Any, done: str) -> None:
        """Answer a wait, and print the result."""
        try:
            outcome = await self._app.resolve(wait.key, value, by=_person())
        except LashError as error:
            self._view.note(error.message, "bad")
            return
        self._answered.add(wait.key)
        self._settled.clear()
        if outcome.status == "accepted":
            self._view.note(done, "good" if done.startswith("✓") else "bad")
        else:
            self._view.note("It was already answered, or it has ended.", "warn")
        await self.refresh()


def read_json(text: str) -> Any:
    """Return the value of a JSON text; a text that is not JSON is returned unchanged."""
    try:
        return decode(text.encode())
    except (msgspec.DecodeError, UnicodeError):
        return text


def _to_json(value: Any) -> str:
    return write(value).decode()


def _person() -> str | None:
    try:
        return getuser()
    except (KeyError, OSError):
        return None
