"""Differences between the expectation of a case and its result, as lines of text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from pylash.lang.problems import Problem
from pylash.testing.lashlang.cases import (
    WantedCall,
    WantedError,
    WantedEvent,
    WantedFailure,
    WantedMap,
    WantedOutcome,
    WantedStart,
)
from pylash.testing.lashlang.world import Event, Outcome

_SHOWN = 300
ABSENT = object()
"""What a field of an event is that is not there."""


def shown(value: Any) -> str:
    """Return a value as short JSON."""
    if isinstance(value, Problem):
        return f"{value.stage} {value.kind} at {value.line}:{value.column}: {value.message}"
    if value is ABSENT:
        return "nothing"
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def differs(name: str, expected: Any, got: Any) -> str:
    """Return the line for one difference."""
    return f"{name}: expected {shown(expected)}, got {shown(got)}"


def same(left: Any, right: Any) -> bool:
    """Return whether two JSON values are equal: numbers by value, keys in any order, kinds exactly."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


def contained(part: Any, whole: Any) -> bool:
    """Return whether a record has at least these fields, at every depth; everything else must be equal."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and contained(part[key], whole[key]) for key in part)
    return same(part, whole)


def mentions(message: str, word: str) -> bool:
    """Return whether a message contains the word as a whole word."""
    before = r"(?<!\w)" if re.match(r"\w", word) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", word) else ""
    return re.search(before + re.escape(word) + after, message) is not None


class Sites:
    """Which letter means which site."""

    def __init__(self) -> None:
        self._site_of: dict[str, str] = {}
        self._letter_of: dict[str, str] = {}

    def fits(self, letter: str, site: Any) -> bool:
        """Return whether a letter can mean this site, given what the earlier ones meant."""
        if not isinstance(site, str):
            return False
        return (
            self._site_of.setdefault(letter, site) == site
            and self._letter_of.setdefault(site, letter) == letter
        )


# Outcomes.


def outcome_differences(wanted: WantedOutcome, got: Outcome) -> Iterator[str]:
    """Yield how an outcome differs from the expected one."""
    expected = msgspec.to_builtins(wanted)
    name = next(
        key
        for key in ("finish", "continue", "linked", "waiting", "error", "fail")
        if key in expected
    )
    if name not in got:
        yield f"expected {name} {shown(expected[name])}, got {described(got)}"
    elif isinstance(wanted.error, WantedError):
        yield from _error_differences(wanted.error, got["error"])
    elif isinstance(wanted.fail, WantedFailure):
        yield from _failure_differences(wanted.fail, got["fail"])
    elif not same(expected[name], got[name]):
        yield differs(name, expected[name], got[name])


def described(outcome: Outcome) -> str:
    """Return an outcome in a line."""
    return "; ".join(f"{name} {shown(value)}" for name, value in outcome.items()) or "nothing"


def _error_differences(wanted: WantedError, got: Problem) -> Iterator[str]:
    if (wanted.stage, wanted.kind) != (got.stage, got.kind):
        yield f"error: expected {wanted.stage} {wanted.kind}, got {shown(got)}"
        return
    if wanted.text is not None and wanted.text not in got.message:
        yield differs("error text", wanted.text, got.message)
    yield from _unmentioned("error", wanted.mentions, got.message)
    if wanted.line not in (None, got.line) or wanted.column not in (None, got.column):
        yield (
            f"error place: expected {wanted.line or '?'}:{wanted.column or '?'}, "
            f"got {got.line}:{got.column} ({got.message})"
        )


def _unmentioned(name: str, words: Sequence[str], message: str) -> Iterator[str]:
    for word in words:
        if not mentions(message, word):
            yield f"{name}: the message does not mention {word!r}: {message}"


def _failure_differences(wanted: WantedFailure, got: dict[str, Any]) -> Iterator[str]:
    if wanted.code != got["code"]:
        yield f"fail: expected {wanted.code}, got {shown(got)}"
        return
    raw = got.get("raw")
    if wanted.message is not None and wanted.message != got["message"]:
        yield differs("fail message", wanted.message, got["message"])
    if wanted.raw is not UNSET and not same(wanted.raw, raw):
        yield differs("fail raw", wanted.raw, raw)
    if wanted.kind is not None and (not isinstance(raw, dict) or raw.get("kind") != wanted.kind):
        yield f"fail kind: expected {wanted.kind}, got {shown(got)}"
    yield from _unmentioned("fail", wanted.mentions, got["message"])


# Lists of things that happened.


def list_differences(name: str, expected: Sequence[Any], got: Sequence[Any]) -> Iterator[str]:
    """Yield how two lists of JSON values differ."""
    for position, (wanted, had) in enumerate(zip(expected, got, strict=False)):
        if not same(wanted, had):
            yield differs(f"{name}[{position}]", wanted, had)
    yield from _length_differences(name, expected, got)


def _length_differences(name: str, expected: Sequence[Any], got: Sequence[Any]) -> Iterator[str]:
    if len(got) > len(expected):
        yield f"{name}: {len(got) - len(expected)} more than expected, first {shown(got[len(expected)])}"
    elif len(got) < len(expected):
        yield f"{name}: missing {shown(_plain(expected[len(got)]))}"


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def call_differences(
    expected: Sequence[WantedCall], got: Sequence[dict[str, Any]]
) -> Iterator[str]:
    """Yield how the calls differ; what was called is `{op, payload, node, occurrence}`."""
    sites = Sites()
    for position, (wanted, had) in enumerate(zip(expected, got, strict=False)):
        fits = (
            wanted.op == had["op"]
            and (wanted.payload is UNSET or same(wanted.payload, had["payload"]))
            and wanted.occurrence in (None, had["occurrence"])
            and (wanted.node is None or sites.fits(wanted.node, had["node"]))
        )
        if not fits:
            yield differs(f"calls[{position}]", _plain(wanted), had)
    yield from _length_differences("calls", expected, got)


def event_differences(
    expected: Sequence[WantedEvent], log: Sequence[Event], process_id: str | None
) -> Iterator[str]:
    """Yield how the events differ that count: of the process under test, and those `on` others."""
    others = {wanted.on for wanted in expected}
    got = [event for event in log if _counts(event, process_id, others)]
    for position, (wanted, had) in enumerate(zip(expected, got, strict=False)):
        fits = (
            wanted.type == had.type
            and (wanted.on or process_id) == had.on
            and (wanted.payload is UNSET or same(wanted.payload, had.payload))
            and (wanted.key is None or key_matches(wanted.key, had.key, process_id))
        )
        if not fits:
            yield differs(f"events[{position}]", _plain(wanted), had._asdict())
    yield from _length_differences("events", expected, [event._asdict() for event in got])


def _counts(event: Event, process_id: str | None, others: set[str | None]) -> bool:
    if event.type.startswith("signal."):
        return event.on in others
    return event.on == process_id


def key_differences(expected: Sequence[str], got: Sequence[str], process_id: str) -> Iterator[str]:
    """Yield how the keys of the effects differ from the expressions expected."""
    for position, (wanted, had) in enumerate(zip(expected, got, strict=False)):
        if not key_matches(wanted, had, process_id):
            yield differs(f"keys[{position}]", wanted, had)
    yield from _length_differences("keys", expected, got)


def key_matches(expression: str, key: str, process_id: str | None) -> bool:
    """Return whether a key matches an expression as a whole; `{pid}` in it is the process."""
    return re.fullmatch(expression.replace("{pid}", re.escape(process_id or "")), key) is not None


def trace_differences(
    expected: Sequence[dict[str, Any]], got: Sequence[dict[str, Any]]
) -> Iterator[str]:
    """Yield how the traces differ; each event has at least the fields expected."""
    sites = Sites()
    for position, (wanted, had) in enumerate(zip(expected, got, strict=False)):
        fields = {key: value for key, value in wanted.items() if key != "node"}
        node = wanted.get("node")
        if not contained(fields, had) or not (node is None or sites.fits(node, had.get("node_id"))):
            yield differs(f"trace[{position}]", wanted, _own_fields(had))
    yield from _length_differences("trace", expected, list(map(_own_fields, got)))


def _own_fields(event: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an event without those that are equal for all events of an execution."""
    common = {"subject", "module_ref", "entry", "entry_name", "map"}
    return {name: value for name, value in event.items() if name not in common}


def started_differences(
    expected: Sequence[WantedStart], got: Sequence[dict[str, Any]]
) -> Iterator[str]:
    """Yield how the processes differ that the occurrences started."""
    for position, (wanted, had) in enumerate(zip(expected, got, strict=False)):
        fits = wanted.process == had["process"] and all(
            value is UNSET or same(value, had.get(name, ABSENT))
            for name, value in (("args", wanted.args), ("finish", wanted.finish))
        )
        if not fits:
            yield differs(f"started[{position}]", _plain(wanted), had)
    yield from _length_differences("started", expected, got)


# Maps and required surfaces.


def map_differences(wanted: WantedMap, got: dict[str, Any]) -> Iterator[str]:
    """Yield how a static map differs."""
    names = {node["id"]: f"{node['kind']} {node['label']}" for node in got["nodes"]}
    nodes = [names[node["id"]] for node in got["nodes"]]
    edges = [(names.get(e["from"], "?"), e["label"], names.get(e["to"], "?")) for e in got["edges"]]
    if wanted.nodes is not None:
        yield from _bag_differences("map nodes", wanted.nodes, nodes)
    if wanted.edges is not None:
        yield from _bag_differences("map edges", wanted.edges, edges)
    yield from _missing("map nodes", wanted.has_nodes, nodes)
    yield from _missing("map edges", wanted.has_edges, [label for _, label, _ in edges])


def _bag_differences(name: str, expected: Sequence[Any], got: Sequence[Any]) -> Iterator[str]:
    yield from _missing(name, expected, got)
    for extra in (Counter(got) - Counter(expected)).elements():
        yield f"{name}: not expected: {shown(extra)}"


def _missing(name: str, expected: Sequence[Any], got: Sequence[Any]) -> Iterator[str]:
    for missing in (Counter(expected) - Counter(got)).elements():
        yield f"{name}: missing {shown(missing)}"


def requirement_differences(wanted: dict[str, Any], got: dict[str, Any]) -> Iterator[str]:
    """Yield what the required surface lacks of what is expected in it."""
    for part, expected in wanted.items():
        had = got.get(part)
        if part == "abilities" and isinstance(had, list):
            yield from _missing("requires abilities", expected, had)
        elif not contained(expected, had):
            yield differs(f"requires {part}", expected, had)
