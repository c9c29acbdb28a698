"""Snapshots: what a store holds each time that something was recorded, as a kill at that moment leaves it.

``python -m tests.replay.snapshots`` records the programs that have no fixture yet; with names, records those again.
Record with code whose behaviour is to be kept, and never to make a failing test pass: a fixture that does not
replay to its recorded end is a run in flight that a deploy would break.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from pylash import Lash
from pylash.durable.runs import SECOND, Instant
from pylash.engine.system import SystemClock
from pylash.testing.kills import CrashPoint, Mortal
from tests.backends import eventually
from tests.replay.programs import DRIVERS, Driver, make_app

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "replay"
DECISIONS: Final = """select run || key from pylash_effects
    where kind = 'decision' or cast(outcome as text) like '{"type":"cancelled"%'"""
UNSETTLED: Final = "select count(*) from pylash_runs where settled is null"
SUBAGENT: Final = re.compile(r"(?P<call>i\d+\.c\d+):process:(?P<word>start|await|cancel):.*")
FORMER: Final = {"start": "start", "await": "answer", "cancel": "cancel"}
START: Final = Instant(1_767_225_600 * SECOND)
QUICK: Final = ("approval-answered", "timeouts")
"""The programs whose snapshots are not too many for ``make quick``: a process and a turn."""
NAMES: Final = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in sorted(DRIVERS)
]


class ShiftedClock(SystemClock):
    """The machine's clock, set to another time: a sleep in a snapshot is as far from over as it was."""

    def __init__(self, start: int) -> None:
        self._offset = start - super().now()

    def now(self) -> Instant:
        """Return the wall time, shifted."""
        return Instant(super().now() + self._offset)


class Snapshot(msgspec.Struct):
    """A store after one record: the record, the time, and the database as SQL.

    ``decided``: everything that the program ever decides (which branch is cancelled, which one won) is recorded, so that no
    timing has a say in what it records from here on.
    """

    after: str
    now: int
    sql: str
    decided: bool = False


class Recording(msgspec.Struct):
    """What a program left behind: its outcome, its journals at the end, and the snapshots before."""

    outcome: Any
    journals: dict[str, Any]
    snapshots: list[Snapshot]


def fixture(name: str) -> Path:
    """Return the file of a recording."""
    return FOLDER / f"{name}.json.gz"


def load(name: str) -> Recording:
    """Return a recording."""
    return msgspec.json.decode(gzip.decompress(fixture(name).read_bytes()), type=Recording)


def restore(snapshot: Snapshot, path: Path) -> Lash:
    """Make the database of a snapshot, and return an app over it, not open yet."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(snapshot.sql)
    return make_app(f"sqlite:///{path}", ShiftedClock(snapshot.now))


async def drive(app: Lash, driver: Driver) -> tuple[Any, dict[str, Any]]:
    """Drive an open app until everything in it has ended; return the outcome and the journals."""
    outcome = await driver(app)

    async def has_ended() -> bool:
        return _rows(app, UNSETTLED) == [(0,)]

    await eventually(has_ended)
    return json.loads(json.dumps(outcome)), await journals(app)


def _rows(app: Lash, sql: str) -> list[Any]:
    path = str(app.url).removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def same_names(journals: dict[str, Any]) -> dict[str, Any]:
    """Return journals with the keys of subagents' commands as earlier versions wrote them: ``i1.c1.start``.

    A run finds what is recorded under such a key, and records the rest under ``i1.c1:process:start:session_turn``.
    """

    def former(key: str) -> str:
        found = SUBAGENT.fullmatch(key)
        return f"{found['call']}.{FORMER[found['word']]}" if found else key

    return {
        scope: {former(key): entry for key, entry in entries.items()}
        for scope, entries in journals.items()
    }


async def journals(app: Lash) -> dict[str, Any]:
    """Return what the runs of a store recorded, by scope and key, without what differs from run to run."""
    found = {}
    for scope, run in _rows(app, "select scope, id from pylash_runs"):
        entries = await app.store.journal.timeline(run)
        found[scope] = {
            entry.key: [entry.kind, entry.hash.hex()[:16], _ended(entry)] for entry in entries
        }
    return found


def _ended(entry: Any) -> Any:
    """Return how an effect ended: its value is compared through the outcome of the program."""
    if entry.outcome is None:
        return None
    plain = json.loads(entry.outcome)
    return plain.get("type") if isinstance(plain, dict) else type(plain).__name__


async def record(driver: Driver, path: Path) -> Recording:
    """Run a program undisturbed, taking a snapshot after everything that it records."""
    snapshots: list[Snapshot] = []
    decisions: list[set[str]] = []
    clock = ShiftedClock(START)
    app = make_app(f"sqlite:///{path}", clock)

    def take(point: CrashPoint) -> bool:
        if point.when == "after":
            decisions.append({key for (key,) in _rows(app, DECISIONS)})
            with closing(sqlite3.connect(path)) as connection:
                sql = "\n".join(connection.iterdump())
            snapshots.append(Snapshot(str(point), clock.now(), sql))
        return False

    async with app:
        Mortal(app, take)
        outcome, recorded = await drive(app, driver)
    for snapshot, decided in zip(snapshots, decisions, strict=True):
        snapshot.decided = decided == decisions[-1]
    return Recording(outcome, recorded, snapshots)


def main() -> None:
    """Record what is asked for."""
    FOLDER.mkdir(exist_ok=True)
    names = sys.argv[1:] or [name for name in DRIVERS if not fixture(name).exists()]
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            made = asyncio.run(record(DRIVERS[name], Path(folder) / "replay.db"))
        data = gzip.compress(msgspec.json.encode(made), mtime=0)
        fixture(name).write_bytes(data)
        print(f"{name:<24}{len(made.snapshots):>4} snapshots {len(data):>8,} bytes  {made.outcome}")


if __name__ == "__main__":
    main()
