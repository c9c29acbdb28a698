"""The databases: drivers that run operations on SQLite and PostgreSQL, with their locks and connections."""
