"""What a contender has written: bytes, and commits to its SQLite file.

Rule 1. Bytes are those that the process has given to the system to write, journals and
        checkpoints included: ``wchar`` of ``/proc/self/io``, which counts all threads.
Rule 2. Commits are counted by SQLite itself: in the header of the WAL index (``iChange``), or,
        for a file with a rollback journal, in the header of the database.
Rule 3. Nothing here writes to the database, but for a checkpoint when ``settle`` asks for one. An
        open connection keeps the WAL index alive when the contender closes all of its own.
"""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from typing import Final

_IO: Final = Path("/proc/self/io")
CAN_COUNT_BYTES: Final = _IO.exists()
"""Only Linux counts them."""


class Written:
    """The counters of this process and of one SQLite file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._index = Path(f"{file}-shm")
        self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._connection.execute("select count(*) from sqlite_schema").fetchall()

    def settle(self) -> None:
        """Copy the WAL into the database, so that what it owes is counted where it was caused."""
        self._connection.execute("pragma wal_checkpoint(passive)").fetchall()

    def bytes(self) -> int:
        """Return how many bytes this process has written since it began."""
        counters = dict(line.split(": ") for line in _IO.read_text().splitlines())
        return int(counters["wchar"])

    def commits(self) -> int:
        """Return a number that grows by one with every commit."""
        (mode,) = self._connection.execute("pragma journal_mode").fetchone()
        if mode == "wal":
            return _number(self._index, 8, "=I")
        return _number(self._file, 24, ">I")

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


def _number(file: Path, offset: int, form: str) -> int:
    with file.open("rb") as opened:
        opened.seek(offset)
        (number,) = struct.unpack(form, opened.read(4))
        return int(number)
