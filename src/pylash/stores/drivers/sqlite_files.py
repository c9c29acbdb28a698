"""Checks of SQLite files, which create and change nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pylash.stores.drivers.sqlite_errors import not_a_database, translate_errors
from pylash.values.errors import StoreMissing

MAGIC: Final = b"SQLite format 3\0"

_HAS_META = "select 1 from sqlite_master where name = 'pylash_meta'"


def refuse_missing(path: Path) -> None:
    """Refuse a path without a store: opening it would create one, or change a database of another program."""
    with translate_errors(path):
        if not path.is_file():
            reason = "that is a folder" if path.is_dir() else "there is no such file"
            raise StoreMissing(str(path), reason)
        with closing(open_read_only(path)) as connection:
            if not connection.execute(_HAS_META).fetchall():
                raise StoreMissing(str(path), "that database holds nothing of pylash")


def refuse_other_files(path: Path) -> None:
    """Refuse a file that is not a database: SQLite would take a very short one for empty."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
    if head not in (b"", MAGIC):
        raise not_a_database(path)


def open_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that cannot write."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)
