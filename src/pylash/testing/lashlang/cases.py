"""The file format of cases, `lashlang-cases/1`.

An unknown field is an error: a case with an expectation that is not checked would pass silently.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

FORMAT = "lashlang-cases/1"
HOST = "H1"

Kind = Literal[
    "cell",
    "cells",
    "process",
    "link",
    "trace",
    "bounds",
    "identity",
    "triggers",
    "model",
]
Reference = Literal["module_ref", "process_ref", "required_surface_ref"]


class BadCases(Exception):
    """A file in another format, or a case with a field or expectation that the format does not define."""


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record that may have exactly these fields."""


class Signal(Strict, frozen=True):
    """A signal to the process under test: before it starts, or at a simulated time."""

    name: str
    payload: Any
    at_ms: int | None = None


class Occurrence(Strict, frozen=True):
    """Something that happened at a trigger source."""

    id: str
    source_type: str
    source: Any
    event: Any


class Limits(Strict, frozen=True):
    """The bounds of section 16; null is unbounded."""

    steps: int | UnsetType | None = UNSET
    active_ms: int | UnsetType | None = UNSET
    memory_bytes: int | UnsetType | None = UNSET
    frames: int | UnsetType = UNSET


class Options(Strict, frozen=True):
    """How the turn of a `model` case is run."""

    schema: dict[str, Any] | None = None
    iterations: int | None = None


class WantedError(Strict, frozen=True):
    """A problem of the program."""

    stage: Literal["parse", "link", "run"]
    kind: str
    mentions: tuple[str, ...] = ()
    text: str | None = None
    line: int | None = None
    column: int | None = None


class WantedFailure(Strict, frozen=True):
    """The failure of a process."""

    code: str
    message: str | None = None
    raw: Any | UnsetType = UNSET
    kind: str | None = None
    mentions: tuple[str, ...] = ()


class WantedCall(Strict, frozen=True):
    """One operation call; equal letters in `node` mean equal sites."""

    op: str
    payload: Any | UnsetType = UNSET
    node: str | None = None
    occurrence: int | None = None


class WantedEvent(Strict, frozen=True):
    """An event in a process's log; `on` names another process than the one under test."""

    type: str
    payload: Any | UnsetType = UNSET
    on: str | None = None
    key: str | None = None


class WantedStart(Strict, frozen=True):
    """A process that an occurrence started."""

    process: str
    args: Any | UnsetType = UNSET
    finish: Any | UnsetType = UNSET


class WantedMap(Strict, frozen=True):
    """A static map: all of it, or some of it."""

    nodes: list[str] | None = None
    edges: list[tuple[str, str, str]] | None = None
    has_nodes: list[str] = []
    has_edges: list[str] = []


class WantedTurn(Strict, frozen=True):
    """How a turn ended."""

    status: str
    text: str | None = None
    value: Any | UnsetType = UNSET


class WantedRequest(Strict, frozen=True):
    """What the n-th request to the model shows."""

    n: int
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


class WantedOutcome(Strict, frozen=True):
    """How a cell or process ended: exactly one of these."""

    finish: Any | UnsetType = UNSET
    continued: Literal[True] | UnsetType = msgspec.field(name="continue", default=UNSET)
    linked: Literal[True] | UnsetType = UNSET
    waiting: Literal["signal"] | UnsetType = UNSET
    error: WantedError | UnsetType = UNSET
    fail: WantedFailure | UnsetType = UNSET


class Expectation(WantedOutcome, frozen=True):
    """All that a case may expect."""

    # Of the cells of a case the outcomes, of a turn the texts.
    cells: list[WantedOutcome | str] | UnsetType = UNSET
    prints: list[Any] | UnsetType = UNSET
    sleeps: list[int] | UnsetType = UNSET
    queued: list[str] | UnsetType = UNSET
    calls: list[Any] | UnsetType = UNSET
    events: list[WantedEvent] | UnsetType = UNSET
    keys: list[str] | UnsetType = UNSET
    trace: list[dict[str, Any]] | UnsetType = UNSET
    map: WantedMap | UnsetType = UNSET
    requires: dict[str, Any] | UnsetType = UNSET
    same: list[Reference] | UnsetType = UNSET
    different: list[Reference] | UnsetType = UNSET
    contains: list[str] | UnsetType = UNSET
    lacks: list[str] | UnsetType = UNSET
    started: list[WantedStart] | UnsetType = UNSET
    subscriptions: int | UnsetType = UNSET
    turn: WantedTurn | UnsetType = UNSET
    model_calls: int | UnsetType = UNSET
    requests: list[WantedRequest] | UnsetType = UNSET
    note: str | UnsetType = UNSET


class Case(Strict, frozen=True):
    """One case. `TAKES` has the fields of each kind."""

    id: str
    section: str
    title: str
    kind: Kind
    expect: Expectation
    source: str = ""
    sources: tuple[str, ...] = ()
    entry: str | None = None
    args: dict[str, Any] = {}
    pid: str = "P"
    globals: dict[str, Any] = {}
    read_only: dict[str, Any] = {}
    surface: dict[str, Any] = {}
    surfaces: tuple[dict[str, Any], ...] = ()
    run_surface: dict[str, Any] = {}
    signals: tuple[Signal, ...] = ()
    bounds: Limits = Limits()
    scenario: str | None = None
    deliver: tuple[Occurrence, ...] = ()
    replies: tuple[str, ...] = ()
    options: Options = Options()
    note: str = ""


PARTS: dict[str, type[Strict]] = {
    "signals": Signal,
    "deliver": Occurrence,
    "bounds": Limits,
    "options": Options,
    "error": WantedError,
    "fail": WantedFailure,
    "cells": WantedOutcome,
    "events": WantedEvent,
    "started": WantedStart,
    "map": WantedMap,
    "turn": WantedTurn,
    "requests": WantedRequest,
}
"""What has fields of its own, by the name of where it stands."""

OUTCOMES = ("finish", "continue", "linked", "waiting", "error", "fail")
SCENARIOS = (
    "artifact_missing",
    "artifact_damaged",
    "surface_ref_mismatch",
    "process_ref_mismatch",
    "registration_json",
)

_EVERY = {"id", "section", "title", "kind", "expect", "surface", "bounds", "note"}
_SESSION = {"globals", "read_only"}
_ENTRY = {"source", "entry", "args", "pid", "signals", "run_surface"}
TAKES: dict[str, set[str]] = {
    "cell": {"source"} | _SESSION,
    "cells": {"sources"} | _SESSION,
    "process": _ENTRY,
    "link": {"source", "entry"} | _SESSION,
    "trace": _ENTRY | _SESSION,
    "bounds": _ENTRY | _SESSION,
    "identity": {"source", "sources", "surfaces", "entry", "args", "scenario"},
    "triggers": {"sources", "deliver"} | _SESSION,
    "model": {"replies", "options"},
}
_NEEDS: dict[str, set[str]] = {
    "cell": {"source"},
    "cells": {"sources"},
    "process": {"source", "entry"},
    "link": {"source"},
    "trace": {"source"},
    "bounds": {"source"},
    "identity": {"entry"},
    "triggers": {"sources"},
    "model": {"replies"},
}

_SEEN = {"prints", "sleeps", "queued", "calls", "events", "keys", "trace", "map", "requires"}
_KEPT = {"started", "subscriptions"}
_RUN = _SEEN | _KEPT | set(OUTCOMES)
EXPECTS: dict[str, set[str]] = {
    "cell": _RUN,
    "process": _RUN,
    "trace": _RUN,
    "bounds": _RUN,
    "cells": {"cells", "prints", "sleeps", "queued", "calls", "events"} | _KEPT,
    "triggers": {"cells", "prints", "sleeps", "queued", "calls", "events"} | _KEPT,
    "link": {"linked", "error", "map", "requires"},
    "identity": {"same", "different", "fail", "contains", "lacks"},
    "model": {"turn", "model_calls", "cells", "requests", "prints", "calls", "queued", "sleeps"},
}


def read(path: Path) -> list[dict[str, Any]]:
    """Return the cases of a file undecoded; `case` decodes and checks each one.

    Raises BadCases if it is not a file of cases.
    """
    try:
        document = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as problem:
        raise BadCases(f"cannot read {path}: {problem}") from problem
    head = {"format": FORMAT, "host": HOST}
    if not isinstance(document, dict) or not isinstance(document.get("cases"), list):
        raise BadCases(f"{path} is not a file of cases")
    if {key: value for key, value in document.items() if key != "cases"} != head:
        raise BadCases(f"{path} must have {head} and cases, and no other fields")
    ids = [str(case.get("id")) if isinstance(case, dict) else "?" for case in document["cases"]]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise BadCases(f"{path} has two cases with the id {twice[0]!r}")
    return list(document["cases"])


def case(document: dict[str, Any]) -> Case:
    """Return a decoded case of which every field and expectation is checked.

    Raises BadCases if it has any other field or expectation.
    """
    kind = document.get("kind")
    if isinstance(kind, str) and kind in TAKES:
        _check_known("field", document.keys(), TAKES[kind] | _EVERY, kind)
        if isinstance(document.get("expect"), dict):
            _check_known("expectation", document["expect"].keys(), EXPECTS[kind] | {"note"}, kind)
    try:
        found = msgspec.convert(document, Case)
    except msgspec.ValidationError as problem:
        raise BadCases(_with_fields(str(problem))) from problem
    _check_present("field", _NEEDS[found.kind] - document.keys(), found.kind)
    _check_outcomes(found, document["expect"].keys() - {"note"})
    _check_calls(found)
    return found


def _check_known(what: str, names: Collection[str], known: set[str], kind: str) -> None:
    strange = set(names) - known
    if strange:
        listed = ", ".join(sorted(known))
        raise BadCases(f"a {kind} case has no {what} {min(strange)!r} (known: {listed})")


def _with_fields(problem: str) -> str:
    """Return a message of msgspec; for an unknown field, with the known ones."""
    if problem.endswith("at `$.kind`"):
        return f"{problem}; kinds are {', '.join(TAKES)}"
    path = problem.removesuffix("`").rpartition("`")[2]  # such as $.expect.events[0]
    part = path.rpartition(".")[2].partition("[")[0]
    if "unknown field" not in problem or part not in PARTS:
        return problem
    fields = msgspec.structs.fields(PARTS[part])
    return f"{problem}; known are {', '.join(sorted(field.encode_name for field in fields))}"


def _check_present(what: str, names: set[str], kind: str) -> None:
    if names:
        raise BadCases(f"a {kind} case needs the {what} {min(names)!r}")


def _check_outcomes(found: Case, expected: set[str]) -> None:
    outcomes = expected & set(OUTCOMES)
    match found.kind:
        case "cells" | "triggers":
            _check_cells(found)
        case "model":
            _check_present("expectation", {"turn"} - expected, found.kind)
        case "identity":
            _check_identity(found, expected)
        case _ if len(outcomes) != 1:
            raise BadCases(f"a case expects one outcome, not {len(outcomes)}")


def _check_cells(found: Case) -> None:
    cells = found.expect.cells
    if not isinstance(cells, list) or len(cells) != len(found.sources):
        raise BadCases("expect.cells must have one outcome for each of sources")
    for cell in cells:
        if isinstance(cell, str) or len(msgspec.to_builtins(cell)) != 1:
            raise BadCases("each of expect.cells must have one outcome")


def _check_identity(found: Case, expected: set[str]) -> None:
    match found.scenario:
        case None:
            needed, allowed = {"same", "different"}, {"same", "different"}
            if len(found.sources) != 2 and not (found.source and len(found.surfaces) == 2):
                raise BadCases("an identity case compares two sources, or one under two surfaces")
        case "registration_json":
            needed = allowed = {"contains", "lacks"}
        case scenario if scenario in SCENARIOS:
            needed = allowed = {"fail"}
        case scenario:
            raise BadCases(f"there is no scenario {scenario!r}")
    if not expected & needed:
        raise BadCases(f"the case needs one of the expectations {sorted(needed)}")
    _check_known("expectation", expected, allowed, f"{found.scenario or 'comparing'} identity")


def _check_calls(found: Case) -> None:
    if found.expect.calls is UNSET:
        return
    for call in found.expect.calls:
        wanted_call(call)


def wanted_call(call: Any) -> WantedCall:
    """Return an expected call from either of its forms."""
    if isinstance(call, list) and len(call) == 2:
        call = {"op": call[0], "payload": call[1]}
    try:
        return msgspec.convert(call, WantedCall)
    except msgspec.ValidationError as problem:
        known = ", ".join(WantedCall.__struct_fields__)
        raise BadCases(
            f"expect.calls: {problem}; a call is [path, payload], or has {known}"
        ) from problem
