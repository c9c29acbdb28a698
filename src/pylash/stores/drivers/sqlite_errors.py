"""Translation of SQLite's errors, by their codes and never by their texts."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from pylash.values.errors import (
    StoreBusy,
    StoreError,
    StoreFull,
    StoreNotADatabase,
    StorePathUnwritable,
    StoreRefused,
    StoreUnavailable,
)


@contextlib.contextmanager
def translate_errors(path: Path | None) -> Iterator[None]:
    """Raise SQLite's errors, and missing permissions, as errors of the store."""
    try:
        yield
    except (UnicodeError, OverflowError) as error:  # SQLite has no type for a value
        raise StoreRefused(
            f"The store {str(path or ':memory:')!r} refused a value ({error})."
        ) from error
    except (sqlite3.Error, PermissionError) as error:
        refused = isinstance(error, PermissionError)
        code = sqlite3.SQLITE_PERM if refused else getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind, sentence = _ERRORS.get(code, (StoreRefused, "refused an operation"))
        raise kind(f"The store {str(path or ':memory:')!r} {sentence} ({error}).") from error


def not_a_database(path: Path) -> StoreError:
    """Return the error for a file that is not a database."""
    kind, sentence = _ERRORS[sqlite3.SQLITE_NOTADB]
    return kind(f"The store {str(path)!r} {sentence}.")


_ERRORS: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_FULL: (
        StoreFull,
        "is full and nothing of the operation was written: free some disk space",
    ),
    sqlite3.SQLITE_NOTADB: (
        StoreNotADatabase,
        "is a file of another kind: choose another path, or move the file away",
    ),
    sqlite3.SQLITE_CORRUPT: (StoreNotADatabase, "is damaged: restore it from a backup"),
    sqlite3.SQLITE_CANTOPEN: (
        StorePathUnwritable,
        "cannot be opened: check that it is a file in a folder you may write to",
    ),
    sqlite3.SQLITE_READONLY: (
        StorePathUnwritable,
        "cannot be written: check the permissions of the file and its folder",
    ),
    sqlite3.SQLITE_PERM: (
        StorePathUnwritable,
        "may not be accessed: check its permissions and its folder's",
    ),
    sqlite3.SQLITE_BUSY: (
        StoreBusy,
        "is held by another process for too long: end the program that keeps it locked",
    ),
    sqlite3.SQLITE_LOCKED: (StoreBusy, "is held by another connection for too long"),
    sqlite3.SQLITE_IOERR: (StoreUnavailable, "could not be read or written"),
}
