"""``pylash chat``: talk to an app's agent, in a terminal or through pipes.

Rule 1. Everything goes through sessions: what is asked is durable before it is shown as asked, and leaving,
        however it happens, loses nothing.
Rule 2. The model decides nothing here: a line is for it unless it begins with / or answers a question.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import click

from pylash.app import Lash
from pylash.cli.asking import loaded, run
from pylash.cli.chat_commands import COMMANDS
from pylash.cli.chat_plain import PlainView
from pylash.cli.chat_talk import Talk
from pylash.cli.chat_view import Sign, View
from pylash.cli.listing import KINDS, STATUSES
from pylash.cli.log_format import log_handler
from pylash.cli.output import length
from pylash.durable import DurabilityTier
from pylash.stores import SqlStore
from pylash.values import LashError

INTERRUPTED: Final = 130
RECENT_TURNS: Final = 200
RECENT_SESSIONS: Final = 10


@click.command("chat")
@click.argument("target", metavar="MODULE:APP")
@click.option("--session", "session_id", metavar="ID", help="The session to resume, or to begin.")
@click.option("--model", metavar="NAME", help="Another model than the app's.")
def chat(target: str, session_id: str | None, model: str | None) -> int:
    """Talk to an agent.

    MODULE:APP names a Lash, such as shop:app or ./shop.py:app in shop.py of the current folder; its own
    store is used.

    Without a terminal every line of stdin is a turn, and the answers go to stdout. /help in the chat says
    what else can be typed.
    """
    before = click.get_current_context().find_root().params
    if before.get("store") or before.get("as_json"):
        raise click.UsageError("--store and --json are not for chat: the app has its own store.")
    return run(_chat(loaded(target), target, session_id, model))


async def _chat(app: Lash, target: str, session_id: str | None, model: str | None) -> int:
    """Chat until the person leaves; return the exit code."""
    with _quiet():
        async with app:
            talking = Chat(app, target, model)
            with _view() as view:
                code = await talking.run(view, session_id or talking.new_id())
            talking.say_goodbye()
            # Whoever does not want to wait until what runs is put away may go: it is all recorded.
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, os._exit, INTERRUPTED)
    return code


def _view() -> AbstractContextManager[View]:
    """Return a terminal to chat in, or pipes where there is none."""
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    if sys.stdin.isatty() and sys.stdout.isatty() and not dumb:
        from pylash.cli.chat_terminal import TerminalView  # noqa: PLC0415 - termios is not everywhere

        return TerminalView.opened(colour=not os.environ.get("NO_COLOR"))
    return PlainView.opened()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the chat itself shows (failed tools, models, turns) out of the way, unless the app logs.

    An app that has set up logging gets everything, with tracebacks, printed above the typed line.
    """
    logger = logging.getLogger("pylash")
    if logger.hasHandlers():
        yield
        return
    handler = log_handler("%(message)s")
    handler.setLevel(logging.ERROR)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class Chat:
    """A person at an app: the session that is talked to, and how to go to another."""

    view: View
    talk: Talk

    def __init__(self, app: Lash, target: str, model: str | None) -> None:
        self.app = app
        self._left = asyncio.Event()
        self._target = target
        self._model = model
        self._busy = self._cancelled = False

    def new_id(self) -> str:
        """Return the id of a session that nobody has talked to."""
        return f"chat-{self.app.services.new_id()[-8:]}"

    async def run(self, view: View, session_id: str) -> int:
        """Talk until the person leaves; return the exit code."""
        self.view = view
        async with asyncio.TaskGroup() as self._tasks:
            self._following: asyncio.Task[None] | None = None
            await self.switch(session_id)
            hearing = [
                self._tasks.create_task(self._hear_lines()),
                self._tasks.create_task(self._hear_signs()),
            ]
            await self._left.wait()
            self._busy = self.talk.turn is not None
            self._cancelled = self.talk.cancelling
            for task in hearing:
                task.cancel()
            self._stop()
        return int(not view.interactive and (self.talk.failed or self._busy))

    async def switch(self, session_id: str) -> None:
        """Talk to a session: show what was said in it, and follow it."""
        session = self.app.session(session_id, model=self._model)
        self._stop()
        self.talk = Talk(self.app, session, self.view)
        if self.view.interactive:
            self.view.text(f"{self._target} · session {session_id} · /help", "dim")
        await self.talk.resume()
        self._following = self._tasks.create_task(self.talk.follow())

    def _stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self.view.busy(None)
            self.view.words(())
            self.view.ask(None, "")

    async def _hear_lines(self) -> None:
        while True:
            if not self.view.interactive:  # the next line is for the next turn, or for a question
                await self.talk.settled.wait()
            line = await self.view.line()
            if line is None:
                self.leave()
                return
            with self._told():
                await self._line(line)

    async def _hear_signs(self) -> None:
        while True:
            sign = await self.view.sign()
            if sign is Sign.LEAVE:
                self.leave()
                return
            with self._told():
                if not await self.talk.cancel():
                    self.view.note("Ctrl-C again leaves, and so does Ctrl-D.")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell the person of an error, and go on."""
        try:
            yield
        except LashError as error:
            self.view.note(str(error), "bad")

    def leave(self) -> None:
        """Leave: what runs is kept."""
        self._left.set()

    async def _line(self, line: str) -> None:
        if line.startswith("/") and not line.startswith("//"):
            name, _, rest = line[1:].partition(" ")
            known = COMMANDS.get(name.strip())
            if known is None:
                self.view.note(f"There is no /{name}: /help lists what there is.", "bad")
            else:
                await known[2](self, rest.strip())
        elif not await self.talk.questions.answer(line) and line.strip():
            await self.talk.say(line.removeprefix("/") if line.startswith("//") else line)

    async def earlier(self) -> list[tuple[str, str]]:
        """Return the sessions that were last talked to, each with where it stands."""
        store = self.app.store
        assert isinstance(store, SqlStore)  # every store that a URL names is one
        turns = await store.inspection.runs(STATUSES, KINDS["turn"], RECENT_TURNS)
        now = await store.inspection.now()
        found: dict[str, str] = {}
        for turn in turns:
            if turn.session and turn.session != self.talk.session.id:
                said = f"{turn.status.value}, {length(now - turn.created)} ago"
                found.setdefault(turn.session, said)
        return list(found.items())[:RECENT_SESSIONS]

    # --- leaving ---

    def how_to_resume(self) -> str:
        """Return how to come back to this session."""
        if self.app.store.durability is not DurabilityTier.DURABLE:
            return "It is gone when you leave: its store is in memory."
        return f"Resume it with: pylash chat {self._target} --session {self.talk.session.id}"

    def say_goodbye(self) -> None:
        """Say how to come back."""
        to_stderr = not self.view.interactive
        if self._busy:
            does = "is being cancelled" if self._cancelled else "goes on for a moment, and is kept"
            click.echo(f"The turn {does}; Ctrl-C leaves at once.", err=True)
        if self._busy or self.view.interactive:
            click.echo(self.how_to_resume(), err=to_stderr)
