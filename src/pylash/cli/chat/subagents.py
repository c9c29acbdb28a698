"""Events of subagents that run in this process, shown below their session."""

from __future__ import annotations

from pylash.app import Lash
from pylash.cli.chat.questions import Questions
from pylash.cli.chat.view import View
from pylash.durable.processes import SessionTurnInput
from pylash.sessions.feeds import Feed
from pylash.values.errors import StoreError


class Subagents:
    """The subagents of one session."""

    def __init__(self, app: Lash, session_id: str, questions: Questions, view: View) -> None:
        self._app = app
        self._session_id = session_id
        self._questions = questions
        self._view = view
        self._followed: set[str] = set()
        self._done: set[tuple[str, str, str]] = set()

    def is_new(self, run: str) -> bool:
        """Return whether a run may be a subagent that is not followed yet; from now on it is."""
        is_new = not run.startswith("{") and run not in self._followed  # turns have JSON ids
        if is_new:
            self._followed.add(run)
        return is_new

    async def follow(self, process_id: str, feed: Feed) -> None:
        """Show the events of a process while it runs here, if it is a subagent of the session."""
        try:
            record = await self._app.store.processes.get(process_id)
            given = None if record is None else record.registration.input
            if not isinstance(given, SessionTurnInput) or self._session_id not in given.lanes:
                return
            async for event in feed.follow():
                shown = (process_id, event.type, event.correlation_id)
                if event.type in ("tool_started", "tool_completed") and shown in self._done:
                    continue  # it was parked meanwhile, and repeats its events
                self._done.add(shown)
                self._view.event(event, process_id)
                if event.type == "wait_opened":
                    await self._questions.refresh()
        except StoreError:
            """Events of subagents may be incomplete."""
        finally:
            self._followed.discard(process_id)
