"""The verdict on one case: the differences from its expectations."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from pylash.testing.lashlang.cases import (
    BadCases,
    Case,
    Expectation,
    WantedOutcome,
    case,
    wanted_call,
)
from pylash.testing.lashlang.differences import (
    call_differences,
    differs,
    event_differences,
    key_differences,
    list_differences,
    map_differences,
    outcome_differences,
    requirement_differences,
    same,
    shown,
    started_differences,
    trace_differences,
)
from pylash.testing.lashlang.execution import KINDS, Observed, map_of
from pylash.testing.lashlang.journal import Defect
from pylash.testing.lashlang.turns import TurnSeen, run_turn
from pylash.testing.lashlang.world import World


class Verdict(NamedTuple):
    """A case and what is wrong with it, if anything."""

    id: str
    section: str
    problems: tuple[str, ...]


def judge(document: dict[str, Any]) -> Verdict:
    """Carry out one case of a file and compare."""
    name, section = str(document.get("id", "?")), str(document.get("section", "?"))
    try:
        asked = case(document)
    except BadCases as problem:
        return Verdict(name, section, (f"bad case: {problem}",))
    try:
        return Verdict(name, section, tuple(_differences(asked)))
    except Defect as defect:
        return Verdict(name, section, (str(defect),))
    except Exception as error:  # noqa: BLE001 (what the implementation raises is a failed case)
        return Verdict(name, section, (_crash(error),))


def _crash(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"crashed: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"


def _differences(asked: Case) -> Iterator[str]:
    if asked.kind == "model":
        yield from _turn_differences(asked.expect, run_turn(asked))
        return
    seen = KINDS[asked.kind](asked)
    yield from _ending_differences(asked.expect, seen)
    yield from _seen_differences(asked, seen)
    yield from seen.defects


def _ending_differences(expect: Expectation, seen: Observed) -> Iterator[str]:
    if isinstance(expect.cells, list):
        for position, (wanted, got) in enumerate(zip(expect.cells, seen.cells, strict=True)):
            assert isinstance(wanted, WantedOutcome)  # checked when the case was read
            yield from (f"cells[{position}] {line}" for line in outcome_differences(wanted, got))
        return
    if expect.same is not UNSET or expect.different is not UNSET:
        if seen.outcome is not None:
            yield f"did not link: {shown(seen.outcome['error'])}"
        return
    if expect.contains is UNSET and expect.lacks is UNSET:
        assert seen.outcome is not None  # only comparisons have none
        yield from outcome_differences(expect, seen.outcome)


def _seen_differences(asked: Case, seen: Observed) -> Iterator[str]:
    for name in msgspec.to_builtins(asked.expect):
        compare = _COMPARED.get(name)
        if compare is not None:
            yield from compare(asked, seen)


def _of_world(
    name: str, get: Callable[[World], list[Any]]
) -> Callable[[Case, Observed], Iterator[str]]:
    def compare(asked: Case, seen: Observed) -> Iterator[str]:
        got = [] if seen.world is None else get(seen.world)
        yield from list_differences(name, getattr(asked.expect, name), got)

    return compare


def _calls(asked: Case, seen: Observed) -> Iterator[str]:
    assert isinstance(asked.expect.calls, list)  # it is expected
    got = [] if seen.world is None else seen.world.operations.calls
    yield from call_differences(
        [wanted_call(call) for call in asked.expect.calls],
        [
            {
                "op": f"{call.path}.{call.operation}",
                "payload": call.payload,
                "node": call.node,
                "occurrence": call.occurrence,
            }
            for call in got
        ],
    )


def _events(asked: Case, seen: Observed) -> Iterator[str]:
    assert isinstance(asked.expect.events, list)  # it is expected
    log = [] if seen.world is None else seen.world.log
    yield from event_differences(asked.expect.events, log, seen.process_id)


def _keys(asked: Case, seen: Observed) -> Iterator[str]:
    assert isinstance(asked.expect.keys, list)  # it is expected
    got = [] if seen.subject is None else list(seen.subject.journal.entries)
    yield from key_differences(asked.expect.keys, got, asked.pid)


def _trace(asked: Case, seen: Observed) -> Iterator[str]:
    assert isinstance(asked.expect.trace, list)  # it is expected
    got = [] if seen.subject is None else seen.subject.traced
    yield from trace_differences(asked.expect.trace, got)


def _map(asked: Case, seen: Observed) -> Iterator[str]:
    assert asked.expect.map is not UNSET  # it is expected
    if seen.artifacts:
        yield from map_differences(asked.expect.map, map_of(seen, asked.entry))
    else:
        yield "map: there is none, for nothing was linked"


def _requires(asked: Case, seen: Observed) -> Iterator[str]:
    assert isinstance(asked.expect.requires, dict)  # it is expected
    if seen.artifacts:
        got = msgspec.json.decode(msgspec.json.encode(seen.artifacts[0].required_surface))
        yield from requirement_differences(asked.expect.requires, got)
    else:
        yield "requires: nothing was linked"


def _references(asked: Case, seen: Observed, name: str) -> list[str]:
    if name == "process_ref":
        return [made.processes.get(asked.entry or "", "none") for made in seen.artifacts]
    return [getattr(made, name) for made in seen.artifacts]


def _same(asked: Case, seen: Observed) -> Iterator[str]:
    for name in asked.expect.same or () if seen.artifacts else ():
        left, right = _references(asked, seen, name)
        if left != right or left == "none":
            yield f"{name} should be the same: {left}, {right}"


def _different(asked: Case, seen: Observed) -> Iterator[str]:
    for name in asked.expect.different or () if seen.artifacts else ():
        left, right = _references(asked, seen, name)
        if left == right:
            yield f"{name} should differ: both are {left}"


def _registration_text(seen: Observed) -> str:
    return "" if seen.registration is None else msgspec.json.encode(seen.registration).decode()


def _contains(asked: Case, seen: Observed) -> Iterator[str]:
    text = _registration_text(seen)
    for part in asked.expect.contains or ():
        if part not in text:
            yield f"the registration should contain {part!r}: {text}"


def _lacks(asked: Case, seen: Observed) -> Iterator[str]:
    text = _registration_text(seen)
    for part in asked.expect.lacks or ():
        if part in text or not text:
            yield f"the registration should lack {part!r}: {text}"


def _started(asked: Case, seen: Observed) -> Iterator[str]:
    assert isinstance(asked.expect.started, list)  # it is expected
    yield from started_differences(asked.expect.started, seen.started)


def _subscriptions(asked: Case, seen: Observed) -> Iterator[str]:
    got = 0 if seen.world is None else len(seen.world.operations.subscriptions)
    if got != asked.expect.subscriptions:
        yield differs("subscriptions", asked.expect.subscriptions, got)


_COMPARED: dict[str, Callable[[Case, Observed], Iterator[str]]] = {
    "prints": _of_world("prints", lambda world: world.prints),
    "sleeps": _of_world("sleeps", lambda world: world.sleeps),
    "queued": _of_world("queued", lambda world: world.queued),
    "calls": _calls,
    "events": _events,
    "keys": _keys,
    "trace": _trace,
    "map": _map,
    "requires": _requires,
    "same": _same,
    "different": _different,
    "contains": _contains,
    "lacks": _lacks,
    "started": _started,
    "subscriptions": _subscriptions,
}


# Turns.


def _turn_differences(expect: Expectation, seen: TurnSeen) -> Iterator[str]:
    turn = expect.turn
    assert turn is not UNSET  # checked when the case was read
    if turn.status != seen.status:
        yield differs("turn status", turn.status, seen.status)
    if turn.text is not None and turn.text != seen.text:
        yield differs("turn text", turn.text, seen.text)
    if turn.value is not UNSET and not same(turn.value, seen.value):
        yield differs("turn value", turn.value, seen.value)
    if expect.model_calls is not UNSET and expect.model_calls != len(seen.requests):
        yield differs("model_calls", expect.model_calls, len(seen.requests))
    for name in ("cells", "prints", "sleeps", "queued"):
        expected = getattr(expect, name)
        if expected is not UNSET:
            yield from list_differences(name, expected, getattr(seen, name))
    yield from _request_differences(expect, seen)


def _request_differences(expect: Expectation, seen: TurnSeen) -> Iterator[str]:
    for wanted in expect.requests or ():
        if wanted.n > len(seen.requests):
            yield f"requests: there is no request {wanted.n}"
            continue
        text = seen.requests[wanted.n - 1]
        for part in wanted.contains:
            if part not in text:
                yield f"request {wanted.n} should show {part!r}"
        for part in wanted.lacks:
            if part in text:
                yield f"request {wanted.n} should not show {part!r}"
