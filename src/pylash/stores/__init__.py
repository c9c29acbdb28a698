"""SQL stores: operations written once, run by a SQLite and a PostgreSQL driver."""

from pylash.stores.inspection import OpenEffect, RunRow, SqlInspection, WorkerRow
from pylash.stores.schema import SCHEMA
from pylash.stores.sql import Operation
from pylash.stores.store import SqlStore, open_store, schema_of

__all__ = (
    "SCHEMA",
    "OpenEffect",
    "Operation",
    "RunRow",
    "SqlInspection",
    "SqlStore",
    "WorkerRow",
    "open_store",
    "schema_of",
)
