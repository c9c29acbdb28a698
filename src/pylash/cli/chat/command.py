"""``pylash chat``: talks to an app's agent, in a terminal or through pipes.

Rule 1. Everything goes through sessions: a question is stored before it is shown, and leaving,
        however it happens, loses nothing.
Rule 2. A line is for the model unless it begins with / or answers a question; the model has no part in that.
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

from pylash.app import Lash, store_url
from pylash.cli.chat.commands import COMMANDS
from pylash.cli.chat.followed_session import FollowedSession
from pylash.cli.chat.plain import PlainView
from pylash.cli.chat.view import Action, View
from pylash.cli.log_format import log_handler
from pylash.cli.options import store_option
from pylash.cli.output import duration_text
from pylash.cli.store_options import choose_store, load_app, root_options, run
from pylash.cli.views.listing import KINDS, STATUSES
from pylash.durable.ports import DurabilityTier
from pylash.stores.store import SqlStore
from pylash.values.errors import LashError
from pylash.values.secrets import shown_url

INTERRUPTED: Final = 130
RECENT_TURNS: Final = 200
RECENT_SESSIONS: Final = 10


@click.command("chat")
@click.argument("target", metavar="MODULE:APP")
@click.option("--session", "session_id", metavar="ID", help="The session to resume or start.")
@click.option("--model", metavar="NAME", help="A model to use instead of the app's.")
@store_option
def chat(target: str, session_id: str | None, model: str | None, store: str | None) -> int:
    """Talk to an agent.

    MODULE:APP names a Lash, such as shop:app, or ./shop.py:app for the file shop.py. The store is that of
    --store, else the one in the app's code, else PYLASH_STORE, else sqlite:///pylash.db.

    Without a terminal, every line of stdin is a turn, and the answers go to stdout. /help in the chat lists
    its commands.
    """
    given, as_json = root_options(store, as_json=False)
    if as_json:
        raise click.UsageError("--json is not for chat.")
    app = load_app(target)
    choose_store(app, given)
    return run(_chat(app, target, session_id, model))


async def _chat(app: Lash, target: str, session_id: str | None, model: str | None) -> int:
    """Chat until the person leaves; return the exit code."""
    with _quiet():
        async with app:
            conversation = Chat(app, target, model)
            with _view() as view:
                code = await conversation.run(view, session_id or conversation.new_id())
            conversation.print_goodbye()
            # From here on Ctrl-C skips the wait for running work: everything is recorded.
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, os._exit, INTERRUPTED)
    return code


def _view() -> AbstractContextManager[View]:
    """Return a view for the terminal, or for pipes if there is none."""
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    if sys.stdin.isatty() and sys.stdout.isatty() and not dumb:
        from pylash.cli.chat.terminal import TerminalView  # noqa: PLC0415 - termios is not everywhere

        return TerminalView.opened(colour=not os.environ.get("NO_COLOR"))
    return PlainView.opened()


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop log records about failures that the chat shows itself (of tools, models, turns), unless the app configures logging.

    An app that has configured logging gets all records, with tracebacks, printed above the input line.
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
    """A chat of one person with an app: the current session, and switching to another."""

    view: View
    current: FollowedSession

    def __init__(self, app: Lash, target: str, model: str | None) -> None:
        self.app = app
        self._left = asyncio.Event()
        self._target = target
        self._model = model
        self._busy = self._cancelled = False

    def new_id(self) -> str:
        """Return an unused session id."""
        return f"chat-{self.app.services.new_id()[-8:]}"

    async def run(self, view: View, session_id: str) -> int:
        """Chat until the person leaves; return the exit code."""
        self.view = view
        async with asyncio.TaskGroup() as self._tasks:
            self._following: asyncio.Task[None] | None = None
            await self.switch(session_id)
            readers = [
                self._tasks.create_task(self._read_lines()),
                self._tasks.create_task(self._read_actions()),
            ]
            await self._left.wait()
            self._busy = self.current.turn is not None
            self._cancelled = self.current.cancelling
            for task in readers:
                task.cancel()
            self._stop()
        return int(not view.interactive and (self.current.failed or self._busy))

    async def switch(self, session_id: str) -> None:
        """Switch to a session: show its last messages, and follow it."""
        session = self.app.session(session_id, model=self._model)
        self._stop()
        self.current = FollowedSession(self.app, session, self.view)
        if self.view.interactive:
            store = shown_url(store_url(self.app.url))
            self.view.text(f"{self._target} · session {session_id} · {store} · /help", "dim")
        await self.current.resume()
        self._following = self._tasks.create_task(self.current.follow())

    def _stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self.view.busy(None)
            self.view.queued(())
            self.view.ask(None, "")

    async def _read_lines(self) -> None:
        while True:
            # Without a terminal, the next line is for the next turn, or answers a question.
            if not self.view.interactive:
                await self.current.settled.wait()
            line = await self.view.line()
            if line is None:
                self.leave()
                return
            with self._report():
                await self._line(line)

    async def _read_actions(self) -> None:
        while True:
            action = await self.view.action()
            if action is Action.LEAVE:
                self.leave()
                return
            with self._report():
                if not await self.current.cancel():
                    self.view.note("Ctrl-C again leaves, and so does Ctrl-D.")

    @contextmanager
    def _report(self) -> Iterator[None]:
        """Show an error, and continue."""
        try:
            yield
        except LashError as error:
            self.view.note(str(error), "bad")

    def leave(self) -> None:
        """Leave: running work is kept."""
        self._left.set()

    async def _line(self, line: str) -> None:
        if line.startswith("/") and not line.startswith("//"):
            name, _, rest = line[1:].partition(" ")
            known = COMMANDS.get(name.strip())
            if known is None:
                self.view.note(f"There is no /{name}: /help lists the commands.", "bad")
            else:
                await known[2](self, rest.strip())
        elif not await self.current.questions.answer(line) and line.strip():
            await self.current.send(line.removeprefix("/") if line.startswith("//") else line)

    async def earlier(self) -> list[tuple[str, str]]:
        """Return the sessions that were used last, each with its state."""
        store = self.app.store
        assert isinstance(store, SqlStore)  # every store with a URL has this method
        turns = await store.inspection.runs(STATUSES, KINDS["turn"], RECENT_TURNS)
        now = await store.inspection.now()
        found: dict[str, str] = {}
        for turn in turns:
            if turn.session and turn.session != self.current.session.id:
                state = f"{turn.status.value}, {duration_text(now - turn.created)} ago"
                found.setdefault(turn.session, state)
        return list(found.items())[:RECENT_SESSIONS]

    # --- leaving ---

    def how_to_resume(self) -> str:
        """Return the command that resumes this session."""
        if self.app.store.durability is not DurabilityTier.DURABLE:
            return "It is gone when you leave: its store is in memory."
        return f"Resume it with: pylash chat {self._target} --session {self.current.session.id}"

    def print_goodbye(self) -> None:
        """Print how to resume."""
        to_stderr = not self.view.interactive
        if self._busy:
            state = "is being cancelled" if self._cancelled else "gets a moment to end, and is kept"
            click.echo(f"The turn {state}; Ctrl-C leaves at once.", err=True)
        if self._busy or self.view.interactive:
            click.echo(self.how_to_resume(), err=to_stderr)
