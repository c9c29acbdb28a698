"""Each table has one module that writes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pylash.stores
from pylash.stores.migrations import SCHEMA, columns

STORES = Path(pylash.stores.__path__[0])

OWNERS = {
    "pylash_attachments": "tables/contents.py",
    "pylash_dead_lines": "tables/sessions.py",
    "pylash_deliveries": "tables/triggers.py",
    "pylash_effects": "tables/effects.py",
    "pylash_envs": "tables/contents.py",
    "pylash_forks": "tables/sessions.py",
    "pylash_lanes": "tables/lanes.py",
    "pylash_meta": "store.py",
    "pylash_nodes": "tables/sessions.py",
    "pylash_occurrences": "tables/triggers.py",
    "pylash_process_events": "tables/processes.py",
    "pylash_process_grants": "ports/process_handles.py",
    "pylash_process_tags": "tables/processes.py",
    "pylash_processes": "tables/processes.py",
    "pylash_queue": "tables/queue.py",
    "pylash_runs": "tables/runs.py",
    "pylash_said": "tables/sessions.py",
    "pylash_session_tags": "tables/sessions.py",
    "pylash_sessions": "tables/sessions.py",
    "pylash_slots": "tables/runs.py",
    "pylash_triggers": "tables/triggers.py",
    "pylash_turn_events": "tables/turn_events.py",
    "pylash_waits": "tables/waits.py",
    "pylash_workers": "tables/workers.py",
}

EXCEPTIONS = {
    # Starts and ends of many processes are one statement each over three tables, for PostgreSQL.
    ("tables/bulk.py", "pylash_runs"),
    ("tables/bulk.py", "pylash_processes"),
    ("tables/bulk.py", "pylash_process_events"),
    # What the dialect puts in the place of {next_session_number}.
    ("drivers/sqlite_dialect.py", "pylash_lanes"),
}

WRITE = r"(?:insert(?: or \w+)? into|update|delete from)\s+{}\b"


def writers(table: str) -> set[str]:
    """Return the modules of the stores that have a statement which writes a table."""
    pattern = re.compile(WRITE.format(table), re.IGNORECASE)
    paths = (path for path in STORES.rglob("*.py") if path.name != "migrations.py")
    return {str(path.relative_to(STORES)) for path in paths if pattern.search(path.read_text())}


@pytest.mark.parametrize("table", OWNERS)
def test_one_module_writes_a_table(table: str) -> None:
    others = {module for module, written in EXCEPTIONS if written == table}
    assert writers(table) - others == {OWNERS[table]}


def test_every_table_has_an_owner() -> None:
    assert {table for table, _ in columns(SCHEMA)} == set(OWNERS)
