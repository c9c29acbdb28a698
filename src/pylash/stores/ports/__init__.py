"""The ports of ``durable.stores`` in SQL: each operation is one transaction over the tables."""
