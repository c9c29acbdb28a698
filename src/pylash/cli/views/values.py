"""Recorded values for display.

Rule 1. Each value has a limit, and secrets are hidden before it is cut. In JSON, a value that was cut is the beginning of
        its text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from pylash.durable.runs import JournalEntry
from pylash.processes.timeline import Effect
from pylash.stores.store import SqlStore
from pylash.values.canonical import decode, write
from pylash.values.secrets import environment_secrets, hide_and_cut

LONGEST: Final = 4_000
"""How many characters of a value are shown."""

_NO_INPUT: Final = frozenset({"kind", "step_id", "do", "retry"})
"""The fields of a command that say what it is, and not what it was given."""


class ValueView:
    """Prepares values for display."""

    def __init__(self) -> None:
        self._secrets = tuple(environment_secrets(os.environ))

    def text(self, text: str) -> str:
        """Return a text without secrets, and cut if it is long."""
        return hide_and_cut(text, LONGEST, self._secrets)

    def value(self, value: Any) -> Any:
        """Return a value without secrets; of a long one, the beginning of its JSON as a text."""
        shown = self.text(write(value).decode())
        try:
            return decode(shown.encode())
        except ValueError:
            return shown

    async def of_effects(
        self,
        store: SqlStore,
        run: int,
        effects: Sequence[Effect],
        entries: Sequence[JournalEntry],
    ) -> list[dict[str, Any]]:
        """Return the inputs and outputs of effects; ``entries`` has those that are not in the store."""
        found: list[dict[str, Any]] = []
        elsewhere = {entry.key: entry for entry in entries}
        for effect in effects:
            # One by one: each may be large, and only its beginning is kept.
            entry = await store.journal.entry(run, effect.key) or elsewhere.get(effect.key)
            input_, output = (None, None) if entry is None else _values(entry)
            found.append({"input": self.value(input_), "output": self.value(output)})
        return found

    def of_message(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return a record of a transcript with its text or arguments prepared."""
        shown = dict(record)
        if "text" in record:
            shown["text"] = self.text(record["text"])
        if "arguments" in record:
            shown["arguments"] = self.value(record["arguments"])
        return shown


def _values(entry: JournalEntry) -> tuple[Any, Any]:
    """Return what an effect was given and what it returned. A failure has no output, and turns keep no inputs of theirs."""
    given = None if entry.command is None else decode(entry.command).get("command")
    if isinstance(given, dict) and isinstance(given.get("command"), dict):
        given = given["command"]  # of the registry of processes
    returned = None if entry.outcome is None else decode(entry.outcome)
    if isinstance(returned, dict) and "type" in returned:
        returned = returned.get("outcome")
    return _only(given), _only(returned)


def _only(fields: Any) -> Any:
    """Return the only value of a record, or all of them if they are several."""
    if not isinstance(fields, dict):
        return fields
    rest = {name: value for name, value in fields.items() if name not in _NO_INPUT}
    return next(iter(rest.values())) if len(rest) == 1 else rest or None
