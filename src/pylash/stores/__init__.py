"""SQL stores: operations written once, run by a SQLite and a PostgreSQL driver."""

from pylash.stores.store import SqlStore, open_store

__all__ = ("SqlStore", "open_store")
