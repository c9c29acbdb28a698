"""SQL stores: operations written once, run by a SQLite and a PostgreSQL driver."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pylash.stores.inspection import OpenEffect, RunRow, SqlInspection, WorkerRow
from pylash.stores.schema import SCHEMA
from pylash.stores.sql import Operation
from pylash.stores.store import SqlStore, open_store, schema_of

if TYPE_CHECKING:
    from pylash.stores.health import Finding, examined

__all__ = (
    "SCHEMA",
    "Finding",
    "OpenEffect",
    "Operation",
    "RunRow",
    "SqlInspection",
    "SqlStore",
    "WorkerRow",
    "examined",
    "open_store",
    "schema_of",
)


def __getattr__(name: str) -> Any:
    if name in (
        "Finding",
        "examined",
    ):  # looking at files needs sqlite3, which not every store does
        return getattr(import_module("pylash.stores.health"), name)
    raise AttributeError(f"module 'pylash.stores' has no attribute {name!r}")
