"""SQL stores: operations written once, run by a SQLite and a PostgreSQL driver."""

from pylash.stores.sql import Operation
from pylash.stores.store import SqlStore, open_store

__all__ = ("Operation", "SqlStore", "open_store")
