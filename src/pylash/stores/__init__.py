"""SQL stores: operations written once, run by a SQLite and a PostgreSQL driver."""
