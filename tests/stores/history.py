"""A store with many ended runs of every kind, and the statements that must not read them all."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pylash.stores
from pylash.testing.laws.stores.subjects import TARGET

_N = "with recursive x(n) as (select 1 union all select n + 1 from x where n < {count}) "

_FILLING = (
    """insert into pylash_runs(id, scope, kind, target, state, token, fence, attempts, created, settled)
    select {run}, '{"process_id":"old-' || n || '","type":"process"}', 'process', '{target}',
      case when n % 5 = 0 then 'failed' else 'completed' end, 'settled:1', 2, 1, 1, 1 from x""",
    """insert into pylash_processes(number, id, run, registration, digest, sequence, status, output, created, settled)
    select {run}, 'old-' || n, {run}, cast('{}' as {blob}), cast('d' as {blob}), 2,
      case when n % 5 = 0 then 'failed' else 'completed' end, cast('{}' as {blob}), 1, 1 from x""",
    """insert into pylash_process_events(process, sequence, type, at) select {run}, 1, 'process.started', 1 from x""",
    """insert into pylash_process_events(process, sequence, type, at, key, taken)
    select {run}, 2, 'signal.go', 1, 'process:old-' || n || ':signal.go:1', case when n % 10 = 0 then 0 else 1 end from x""",
    """insert into pylash_effects(run, key, kind, hash, outcome, started, ended)
    select {run}, 'step', 'durable_step', cast('h' as {blob}), cast('1' as {blob}), 1, 1 from x""",
    """insert into pylash_effects(run, key, kind, hash, outcome, wait, started, ended)
    select {run}, 'go', 'process', cast('h' as {blob}), cast('1' as {blob}), 'signal:' || {run} || ':go', 1, 1 from x""",
    # The effect of an approval: its end is its wait's.
    """insert into pylash_effects(run, key, kind, hash, wait, started)
    select {run}, 'ask', 'await_event', cast('h' as {blob}), 'wait-' || n, 1 from x""",
    """insert into pylash_waits(id, name, session, kind, title, terminal, opened, resolved)
    select 'wait-' || n, '{}', 'other-' || n % 100, 'approval', 'Pay?', cast('{}' as {blob}), 1, 1 from x""",
    """insert into pylash_lanes(lane, last_seq, number, head) select 'session:other-' || n, 1, n, 2 from x""",
    "insert into pylash_lanes(lane, last_seq) select 'sessions', 2 * {count} from x where n = 1",
    "insert into pylash_sessions(id) select 'other-' || n from x",
    """insert into pylash_runs(id, scope, kind, target, lane, lane_seq, state, token, fence, attempts, created, settled)
    select {turn}, '{"session_id":"other-' || n || '","turn_id":"t","type":"turn"}', 'turn', 'turn',
      'session:other-' || n, 1, case when n % 100 = 0 then 'stopped' else 'completed' end,
      'settled:1', 2, 1, 1, 1 from x""",
    """insert into pylash_nodes(id, run, body)
    select cast(n as bigint) * 16777216 + 1, {turn}, cast('{}' as {blob}) from x""",
    """insert into pylash_said(session, key, token, at) select 'other-' || n, 'k', 't', 1 from x""",
    """insert into pylash_forks(number, session) select n, 'fork-' || n from x""",
    """insert into pylash_dead_lines(number, session, body)
    select {count} + n, 'dead-' || n, cast('{}' as {blob}) from x""",
    """insert into pylash_occurrences(id, type, source, digest, at)
    select 'o' || n, 'push', 'repo', cast('d' as {blob}), 1 from x""",
    """insert into pylash_deliveries(occurrence, subscription, process)
    select 'o' || n, 'ci', 'trigger:ci:o' || n from x""",
    """insert into pylash_process_grants(process, session) select 'old-' || n, 'other-' || n % 100 from x""",
    """insert into pylash_triggers(key, type, source, target, body, session, enabled, created)
    select 'old-' || n, 'push', 'repo', 'work', cast('{}' as {blob}), 'other-' || n % 100, 0, 1 from x""",
    "insert into pylash_envs(ref, body) select 'env-' || n, cast('{}' as {blob}) from x",
    "insert into pylash_process_tags(tag, number) select 'tag-' || n % 3, {run} from x",
    "insert into pylash_session_tags(tag, number) select 'tag-' || n % 3, n from x",
    "insert into pylash_attachments(digest, body) select 'file-' || n, cast('x' as {blob}) from x",
)

ROOT = "pylash.stores."

OTHERS = (
    "pylash.stores.drivers.",
    "pylash.stores.postgres_health",
    "pylash.stores.health",
    "pylash.stores.migrations",
)
"""Modules whose texts are no statements of operations."""

SMALL = {"meta", "workers", "slots", "queue", "turn_events"}
"""Tables without a past: what is in them goes when it is over."""


def filling(count: int) -> Iterator[str]:
    """Return statements that put so many ended things of each kind into an empty store."""
    return (_with(sql, count) for sql in _FILLING)


def _with(sql: str, count: int) -> str:
    """Return an insert whose rows are counted: the counting comes before its select."""
    place = re.search(r"\bselect\b", sql)
    assert place is not None
    counted = sql[: place.start()] + _N + sql[place.start() :]
    # Every run has a millisecond of its own, as if they came one after another.
    counted = counted.replace("{run}", "cast(n as bigint) * 4194304")
    counted = counted.replace("{turn}", "cast({count} + n as bigint) * 4194304")
    return counted.replace("{count}", str(count)).replace("{target}", TARGET)


def statements() -> dict[str, str]:
    """Return every statement of the stores by its name: the constants of their modules."""
    found: dict[str, str] = {}
    for module in pkgutil.walk_packages(pylash.stores.__path__, ROOT):
        if module.name.startswith(OTHERS):
            continue
        constants = vars(importlib.import_module(module.name))
        for name, value in constants.items():
            for key, text in _texts(value):
                if re.match(r"\s*(select|insert|update|delete|with)\s", text):
                    found.setdefault(text, f"{module.name.removeprefix(ROOT)}.{name}{key}")
    whole = "\0".join(found)
    parts = {text for text in found if whole.count(text) > 1 or "{where}" in text}
    return {name: text for text, name in found.items() if text not in parts}


def _texts(value: object) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield "", value
        case dict():
            yield from ((f"[{key}]", text) for key, text in value.items() if isinstance(text, str))
        case tuple():
            for place, part in enumerate(value):
                if isinstance(part, dict | str):
                    yield from ((f"[{place}]{key}", text) for key, text in _texts(part))
                elif isinstance(sql := getattr(part, "sql", None), str):
                    yield f"[{place}]", sql
