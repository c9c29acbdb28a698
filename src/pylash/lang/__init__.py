"""Lashlang: a small, safe language for durable workflows, from source to compiled artifact."""
