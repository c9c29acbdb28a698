"""The journal of an invocation, as the tables of the server show it: names for explanations, and entries for a seed.

Rule 1. An effect whose result is recorded becomes an entry; one that is in flight does not, as on a SQL store.
Rule 2. Entries whose names begin with "!" are the engine's own, except the marks of patches.
Rule 3. The order of the commands is the order of the starts: the clocks of the server and of workers may differ.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from pylash.durable.effects import EffectKind
from pylash.durable.keys import patch_of
from pylash.durable.machines.replay_order import Expected
from pylash.durable.runs import SECOND, Fence, JournalEntry
from pylash.engine.records import WITHDRAWN
from pylash.engine.runs.replays import diverged, name_and_key
from pylash.engine.runs.run import LiveRun
from pylash.restate.attempt import BEGIN, Seen
from pylash.restate.attempt_journal import EngineRefused, RecordedName, is_internal
from pylash.restate.clients import RestateClient
from pylash.restate.controller import NOTES, EffectRecord, Notes, StoredEntry
from pylash.restate.inspection import INVOCATION
from pylash.values.errors import LashError
from pylash.values.process_errors import ReplayRefused

RUN: Final = "Command: Run"
SLEEP: Final = "Command: Sleep"
MILLISECOND: Final = SECOND // 1000
HASH_CHARACTERS: Final = 64
PAGE: Final = 500
"""How many entries are read at a time: their results may be large."""

WholeResult = Callable[[bytes], Awaitable[bytes]]
"""Returns the result of an entry that may be a reference to it."""

_RESULTS: msgspec.json.Decoder[EffectRecord | StoredEntry | Notes] = msgspec.json.Decoder(
    EffectRecord | StoredEntry | Notes
)
_SEEN = msgspec.json.Decoder(Seen)


class Recorded(NamedTuple):
    """What an invocation has recorded: effects that have ended, sleeps, notes, and effects that were cancelled."""

    entries: tuple[JournalEntry, ...]
    cancelled: tuple[JournalEntry, ...]


# --- reading ---


_NAMES: Final = """
select name, appended_at from sys_journal
where id = :id and entry_type like 'Command: %' and "index" > 0 order by "index" asc"""

_PAUSED_AT: Final = """
select max(after_journal_entry_index) as at from sys_journal_events where id = :id and event_type = 'Paused'"""

_LAST_COMMAND: Final = """
select max("index") as at from sys_journal where id = :id and entry_type like 'Command: %'"""

_ENTRIES: Final = """
select entry_type, name, entry_json from sys_journal
where id = :id and "index" >= :first and "index" < :end order by "index" asc"""


async def read_names(client: RestateClient, invocation: str) -> list[RecordedName]:
    """Return the commands of an invocation after its input, in their order."""
    rows = await client.query(_NAMES, id=invocation)
    return [RecordedName(row.get("name") or "", _micros(row["appended_at"])) for row in rows]


async def was_paused(client: RestateClient, invocation: str) -> bool:
    """Return whether an invocation was paused before this attempt and has recorded no command since."""
    paused = await client.query(_PAUSED_AT, id=invocation)
    commands = await client.query(_LAST_COMMAND, id=invocation)
    at, last = (rows[0].get("at") if rows else None for rows in (paused, commands))
    return at is not None and last is not None and int(at) >= int(last)


async def invocation_of(client: RestateClient, service: str, key: str) -> str | None:
    """Return the invocation of the workflow of a key, if the server knows it."""
    rows = await client.query(INVOCATION, service=service, key=key)
    return str(rows[0]["id"]) if rows else None


async def read_recorded(client: RestateClient, invocation: str, whole: WholeResult) -> Recorded:
    """Return what an invocation has recorded."""
    reader, read = JournalReader(), 0
    while True:
        page = await client.query(_ENTRIES, id=invocation, first=read, end=read + PAGE)
        for row in page:
            reader.read(row)
        read += len(page)
        if len(page) < PAGE:
            return await reader.recorded(whole)


class JournalReader:
    """Reads the rows of ``sys_journal`` in their order: the results of commands come after them."""

    def __init__(self) -> None:
        self._commands: list[tuple[str, str, dict[str, Any]]] = []
        self._results: dict[int, bytes] = {}
        self._entries: dict[str, JournalEntry] = {}
        self._cancelled: dict[str, JournalEntry] = {}
        # When the last effect was started.
        self._started = 0

    def read(self, row: dict[str, Any]) -> None:
        """Read one row."""
        kind, entry = row["entry_type"], json.loads(row["entry_json"])
        if kind in (RUN, SLEEP):
            (command,) = entry["Command"].values()
            self._commands.append((kind, row.get("name") or "", command))
        elif kind == "Notification: Run":
            run = entry["Notification"]["Completion"]["Run"]
            if "Success" in run["result"]:
                self._results[run["completion_id"]] = bytes(run["result"]["Success"])

    async def recorded(self, whole: WholeResult) -> Recorded:
        """Return what the rows have recorded."""
        for kind, name, command in self._commands:
            if kind == SLEEP:
                if not is_internal(name):
                    self._add_sleep(name, command["wake_up_time"] * MILLISECOND)
            elif (data := self._results.get(command["completion_id"])) is not None:
                await self._add_result(name, data, whole)
        for key in self._cancelled:  # the code was told so, whether or not the effect ended later
            self._entries.pop(key, None)
        return Recorded(tuple(self._entries.values()), tuple(self._cancelled.values()))

    def _add_sleep(self, name: str, due: int) -> None:
        key, _, digest = name.rpartition(" ")
        self._add(JournalEntry(key, EffectKind.SLEEP, bytes.fromhex(digest), due=due))

    async def _add_result(self, name: str, data: bytes, whole: WholeResult) -> None:
        if name == BEGIN:  # the first one
            seen = _SEEN.decode(data)
            self._started = max(seen.now, seen.seed)
        elif patch_of(name) is not None:
            self._add(JournalEntry(name, "now", b"", None, data, len(data)))
        elif not is_internal(name) or name == NOTES:
            result = _RESULTS.decode(await whole(data))
            for note in result.notes:
                is_cancel = (note.outcome or b"").startswith(WITHDRAWN)
                (self._cancelled if is_cancel else self._entries).setdefault(note.key, note)
            entry = _entry(name, result)
            if entry is not None:
                self._add(entry)

    def _add(self, entry: JournalEntry) -> None:
        self._started = max(self._started + 1, entry.started)
        self._entries[entry.key] = replace(entry, started=self._started)


def _entry(key: str, result: EffectRecord | StoredEntry | Notes) -> JournalEntry | None:
    """Return the entry of an effect that has ended; None if it has not, or the store has its row."""
    if isinstance(result, EffectRecord):
        outcome = bytes(result.outcome)
        return JournalEntry(
            key,
            result.kind,
            bytes.fromhex(result.digest),
            result.command,
            outcome,
            len(outcome),
            started=result.started,
            ended=result.at,
            label=result.label,
        )
    entry = result.entry if isinstance(result, StoredEntry) else None
    # The store has the rows of all but those that it refused.
    return None if entry is None or not entry.size or entry.wait is not None else entry


def _micros(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * SECOND)


# --- explaining ---


def first_expected(recorded: Sequence[RecordedName], position: int) -> RecordedName | None:
    """Return the first recorded entry from a position on that is not the engine's own."""
    return next((one for one in recorded[position:] if not is_internal(one.name)), None)


def divergence(
    run: LiveRun | None, fence: Fence, refusal: EngineRefused, recorded: Sequence[RecordedName]
) -> LashError:
    """Return the error of an attempt that asks for something else than what is recorded."""
    expected, how = first_expected(recorded, refusal.position), refusal.how
    if how is None and refusal.name is not None:
        how = "waits" if is_internal(refusal.name) else f"asks for {_shown(refusal.name)}"
    if expected is None or how is None or run is None:
        return ReplayRefused(fence.name, str(refusal))
    key = _key(expected.name)
    return diverged(run, how, Expected(expected.at, key, name=_label(key)))


def _shown(name: str) -> str:
    key = _key(name)
    return name_and_key(_label(key), key)


def _key(name: str) -> str:
    """Return the key of an entry: the name of a timer has the hash of its command."""
    key, _, digest = name.rpartition(" ")
    return key if key and len(digest) == HASH_CHARACTERS else name


def _label(key: str) -> str:
    """Return the name of an effect for people: the last part of the key of a process command.

    >>> _label("root:process:wait_signal:go"), _label("charge#2")
    ('go', 'charge#2')
    """
    return key.rpartition(":")[2] if ":process:" in key else key
