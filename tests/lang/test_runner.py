"""The runner of cases: it must see every difference, and pass nothing that it does not know."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from pylash.lang.running import frame
from pylash.lang.running.frame import Frame
from pylash.testing.lashlang import BadCases, judge, read
from pylash.testing.lashlang.__main__ import main

TICK = (
    "process p(ev: timer.Tick) { finish ev.at }\n"
    'src = timer.schedule({ every: "5m" })\n'
    "h = await triggers.register({ source: src, target: p, inputs: { ev: trigger.event } })?"
)
NOON = {
    "id": "o-1",
    "source_type": "timer.Schedule",
    "source": {"every": "5m"},
    "event": {"at": "noon"},
}


def case(kind: str, expect: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "a/b",
        "section": "a",
        "title": "b",
        "kind": kind,
        "expect": expect,
        **fields,
    }


def cell(source: str, **expect: Any) -> dict[str, Any]:
    return case("cell", expect, source=source)


def process(source: str, **expect: Any) -> dict[str, Any]:
    return case("process", expect, source=source, entry="main", args={})


def problems(document: dict[str, Any]) -> str:
    return "\n".join(judge(document).problems)


ECHO = "finish await tools.echo(1)?"
NO_NAME = {"stage": "link", "kind": "unknown_name"}
FAILS = 'process main() { fail "no" }'
HOLDS = [
    cell("finish 1", finish=1.0),
    cell("finish { a: 1, b: [true] }", finish={"b": [True], "a": 1}),
    cell("x = 1", **{"continue": True}),
    cell("x = nope", error={**NO_NAME, "mentions": ["nope"], "line": 1, "column": 5}),
    cell(ECHO, finish=1, calls=[["tools.echo", {"args": [1]}]], prints=[], sleeps=[], queued=[]),
    process("process main() { x = wait signal }", waiting="signal"),
    process(FAILS, fail={"code": "process_failed", "message": "no", "raw": "no"}),
    process(
        "process main() { yield 1 }",
        finish=None,
        keys=["process:{pid}:event:0"],
        events=[{"type": "process.yield"}, {"type": "process.completed"}],
    ),
    case("link", {"linked": True, "map": {"nodes": ["main main"], "edges": []}}, source="x = 1"),
    case(
        "triggers",
        {
            "cells": [{"continue": True}],
            "subscriptions": 1,
            "started": [{"process": "p", "args": {"ev": {"at": "noon"}}, "finish": "noon"}],
        },
        sources=[TICK],
        deliver=[NOON],
    ),
]


@pytest.mark.parametrize("document", HOLDS)
def test_a_right_expectation_holds(document: dict[str, Any]) -> None:
    assert problems(document) == ""


WRONG = [
    (cell("finish 1", finish=2), "finish: expected 2, got 1"),
    (cell("finish 1", finish=True), "finish: expected true, got 1"),
    (cell("finish 1", finish=None), "finish: expected null, got 1"),
    (cell("finish [1]", finish=[1, 2]), "finish: expected [1, 2], got [1]"),
    (cell("finish { a: 1 }", finish={}), "finish: expected {}"),
    (cell("finish 1", **{"continue": True}), "expected continue true, got finish 1"),
    (cell("x = 1", finish=None), "expected finish null, got continue true"),
    (cell("x = 1", error=NO_NAME), "got continue true"),
    (cell("x = nope", **{"continue": True}), "got error"),
    (cell("x = nope", error={**NO_NAME, "kind": "unknown_type"}), "expected link unknown_type"),
    (cell("x = nope", error={**NO_NAME, "stage": "run"}), "expected run unknown_name"),
    (cell("x = nope", error={**NO_NAME, "mentions": ["nop"]}), "does not mention 'nop'"),
    (cell("x = nope", error={**NO_NAME, "text": "unknown name nope"}), "error text"),
    (cell("x = nope", error={**NO_NAME, "line": 2}), "expected 2:?, got 1:5"),
    (cell("x = nope", error={**NO_NAME, "column": 4}), "expected ?:4, got 1:5"),
    (cell("print 1", **{"continue": True}, prints=[]), "prints: 1 more than expected, first 1"),
    (cell("print 1", **{"continue": True}, prints=[2]), "prints[0]: expected 2, got 1"),
    (cell("x = 1", **{"continue": True}, prints=[2]), "prints: missing 2"),
    (cell("sleep for 5", **{"continue": True}, sleeps=[6]), "sleeps[0]: expected 6, got 5"),
    (cell(ECHO, finish=1, calls=[]), "calls: 1 more"),
    (cell(ECHO, finish=1, calls=[["tools.add", {"args": [1]}]]), "calls[0]"),
    (cell(ECHO, finish=1, calls=[["tools.echo", {"args": [2]}]]), "calls[0]"),
    (cell(ECHO, finish=1, calls=[{"op": "tools.echo", "occurrence": 2}]), "calls[0]"),
    (
        cell(
            "finish [tools.echo(1)?, tools.echo(2)?]",
            finish=[1, 2],
            calls=[{"op": "tools.echo", "node": "A"}, {"op": "tools.echo", "node": "A"}],
        ),
        "calls[1]",
    ),
    (cell(ECHO, finish=1, trace=[{"event": "execution_started"}]), "trace: 5 more"),
    (cell("x = 1", **{"continue": True}, map={"nodes": []}), 'not expected: "main main"'),
    (cell("x = 1", **{"continue": True}, map={"has_nodes": ["branch if"]}), "missing"),
    (cell("x = 1", **{"continue": True}, map={"edges": [["a", "b", "c"]]}), "map edges: missing"),
    (cell("x = 1", **{"continue": True}, requires={"abilities": ["sleep"]}), "requires"),
    (cell("x = 1", **{"continue": True}, subscriptions=1), "subscriptions: expected 1, got 0"),
    (process("process main() { x = wait signal }", finish=None), 'got waiting "signal"'),
    (process("process main() { finish 1 }", waiting="signal"), "got finish 1"),
    (process("process other() { finish 1 }", finish=1), "has no process main"),
    (process(FAILS, finish=1), "expected finish 1, got fail"),
    (process(FAILS, fail={"code": "process_runtime_error"}), "expected process_runtime_error"),
    (process(FAILS, fail={"code": "process_failed", "message": "x"}), "fail message"),
    (process(FAILS, fail={"code": "process_failed", "raw": "x"}), "fail raw"),
    (process(FAILS, fail={"code": "process_failed", "kind": "x"}), "fail kind"),
    (process(FAILS, fail={"code": "process_failed", "mentions": ["n"]}), "does not mention 'n'"),
    (process("process main() { wake 1 }", finish=None, queued=[]), "queued: 1 more"),
    (process("process main() { wake 1 }", finish=None, keys=["event"]), "keys[0]"),
    (
        process("process main() { wake 1 }", finish=None, events=[{"type": "process.completed"}]),
        "events[0]",
    ),
    (
        process(
            "process main() { }", finish=None, events=[{"type": "process.completed", "key": "x"}]
        ),
        "events[0]",
    ),
    (case("link", {"error": NO_NAME}, source="x = 1"), "got linked true"),
    (case("link", {"linked": True}, source="x = nope"), "got error"),
    (
        case("cells", {"cells": [{"finish": 1}, {"finish": 2}]}, sources=["finish 1", "finish 1"]),
        "cells[1] finish: expected 2, got 1",
    ),
    (
        case(
            "triggers",
            {"cells": [{"continue": True}], "started": []},
            sources=[TICK],
            deliver=[NOON],
        ),
        "started: 1 more",
    ),
    (
        case(
            "triggers",
            {"cells": [{"continue": True}], "started": [{"process": "p", "finish": "one"}]},
            sources=[TICK],
            deliver=[NOON],
        ),
        "started[0]",
    ),
    (
        case(
            "identity",
            {"same": ["process_ref"]},
            sources=["process main() { finish 1 }", "process main() { finish 2 }"],
            entry="main",
        ),
        "process_ref should be the same",
    ),
    (
        case(
            "identity",
            {"different": ["module_ref"]},
            sources=["process main() { }", "process main() { }"],
            entry="main",
        ),
        "module_ref should differ",
    ),
    (
        case(
            "identity",
            {"fail": {"code": "process_surface_incompatible"}},
            source="process main() { }",
            entry="main",
            scenario="artifact_missing",
        ),
        "process_module_artifact_missing",
    ),
    (
        case(
            "identity",
            {"contains": ["code"], "lacks": ["module_ref"]},
            source="process main() { }",
            entry="main",
            scenario="registration_json",
        ),
        "should contain 'code'",
    ),
    (
        case(
            "bounds",
            {"finish": 1},
            source="while true { x = 1 }",
            bounds={"steps": 10},
        ),
        "step_budget_exceeded",
    ),
    (case("model", {"turn": {"status": "completed"}}, replies=["x"]), "code mode"),
]


@pytest.mark.parametrize(("document", "said"), WRONG)
def test_a_wrong_expectation_fails_and_shows_the_difference(
    document: dict[str, Any], said: str
) -> None:
    assert said in problems(document)


UNKNOWN = [
    case("novel", {"finish": 1}, source="finish 1"),
    case("cell", {"finish": 1}, source="finish 1", sauce="x"),
    case("cell", {"finish": 1}, source="finish 1", deliver=[NOON]),
    case("cell", {"finish": 1, "smells": []}, source="finish 1"),
    case("cell", {"finish": 1, "turn": {"status": "completed"}}, source="finish 1"),
    case("cell", {"finish": 1}),
    case("cell", {"prints": []}, source="x = 1"),
    case("cell", {"finish": 1, "continue": True}, source="finish 1"),
    case("cell", {"error": {**NO_NAME, "colour": 1}}, source="x = nope"),
    case("cell", {"error": {"kind": "unknown_name"}}, source="x = nope"),
    case("cell", {"finish": 1, "calls": [["tools.echo"]]}, source="finish 1"),
    case("cell", {"finish": 1}, source="finish 1", bounds={"stepz": 1}),
    case("process", {"finish": 1}, source="process main() { finish 1 }"),
    case("process", {"waiting": "time"}, source="process main() { }", entry="main"),
    case("cells", {"cells": []}, sources=["x = 1"]),
    case("cells", {"cells": [{}]}, sources=["x = 1"]),
    case("identity", {"fail": {"code": "x"}}, source="", entry="main", scenario="novel"),
    case("identity", {"same": ["colour"]}, sources=["", ""], entry="main"),
    case("identity", {"same": ["module_ref"]}, sources=[""], entry="main"),
    case("identity", {"note": "x"}, sources=["", ""], entry="main"),
    case("model", {"model_calls": 1}, replies=["x"]),
    case("model", {"turn": {"status": "completed"}}, replies=["x"], options={"speed": 1}),
]


@pytest.mark.parametrize("document", UNKNOWN)
def test_what_the_format_does_not_know_is_an_error(document: dict[str, Any]) -> None:
    assert problems(document).startswith("bad case: ")


@pytest.mark.parametrize(
    ("document", "listed"),
    [
        (case("cell", {"finish": 1}, source="finish 1", sauce="x"), "globals, id, kind"),
        (case("cell", {"finsh": 1}, source="finish 1"), "fail, finish, keys"),
        (case("cell", {"error": {**NO_NAME, "col": 1}}, source="x"), "column, kind, line"),
        (case("process", {"finish": 1}, source="x", entry="p", signals=[{"at": 1}]), "at_ms, name"),
        (case("cell", {"finish": 1, "calls": [{"operation": 1}]}, source="x"), "op, payload"),
        (case("novel", {"finish": 1}), "cell, cells, process"),
    ],
)
def test_an_unknown_field_is_answered_with_the_known_ones(
    document: dict[str, Any], listed: str
) -> None:
    assert listed in problems(document)


def _file(path: Path, cases: list[dict[str, Any]], **head: Any) -> Path:
    document = {"format": "lashlang-cases/1", "host": "H1", **head, "cases": cases}
    path.write_text(json.dumps(document))
    return path


def _run(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    return main(arguments, out), out.getvalue()


def test_all_cases_hold(tmp_path: Path) -> None:
    path = _file(tmp_path / "cases.json", [cell("finish 1", finish=1)])
    assert _run(str(path)) == (0, "a       1 of    1\nall     1 of    1\n")


def test_failing_cases_are_named_with_what_differs(tmp_path: Path) -> None:
    right = {**cell("finish 1", finish=1), "id": "a/right"}
    wrong = {**cell("finish 1", finish=2), "id": "b/wrong", "section": "b"}
    path = _file(tmp_path / "cases.json", [wrong, right])
    code, out = _run(str(path))
    assert code == 1
    assert out == (
        "FAIL b/wrong\n  finish: expected 2, got 1\n"
        "b       0 of    1  FAILED\na       1 of    1\nall     1 of    2  FAILED\n"
    )
    assert _run(str(path), "--only", "a/right")[0] == 0
    assert _run(str(path), "--only", "nobody") == (2, f"{path} has no case 'nobody'\n")


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"format": "lashlang-cases/2", "host": "H1", "cases": []}',
        '{"format": "lashlang-cases/1", "host": "H2", "cases": []}',
        '{"format": "lashlang-cases/1", "host": "H1", "more": 1, "cases": []}',
        '{"format": "lashlang-cases/1", "host": "H1", "cases": [{"id": "a"}, {"id": "a"}]}',
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cases.json"
    path.write_text(text)
    with pytest.raises(BadCases):
        read(path)
    assert _run(str(path))[0] == 2


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    code, out = _run(str(tmp_path / "none.json"))
    assert code == 2
    assert "cannot read" in out


# Replay: every process runs a second time over what was recorded.

SLEEPS = "process main() { sleep for 5; yield 1; finish 2 }"


def test_keys_that_change_from_run_to_run_are_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(Frame, "_sleep_key", lambda _: f"process:P:sleep:{next(numbers)}")
    said = problems(process(SLEEPS, finish=2))
    assert said == "in the replay, it called the host: process:P:sleep:1"


def test_a_key_used_twice_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Frame, "_sleep_key", lambda _: "process:P:sleep:0")
    said = problems(process("process main() { sleep for 5; sleep for 5 }", finish=None))
    assert said == "the key process:P:sleep:0 was used twice"


def test_a_request_that_changes_from_run_to_run_is_a_defect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(frame, "milliseconds", lambda _: next(numbers))
    said = problems(process(SLEEPS, finish=2))
    assert said.startswith("in the replay, process:P:sleep:0 requested")


def test_an_effect_that_is_not_asked_for_again_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    once = iter([True])

    async def emit(self: Frame, site: int, word: str, value: Any) -> None:
        if next(once, False):
            await self._host.event("process:P:event:0", "process.yield", {"value": 1, "text": "1"})

    monkeypatch.setattr(Frame, "emit", emit)
    assert "in the replay, P never requested process:P:event:0" in problems(
        process(SLEEPS, finish=2)
    )


def test_what_is_no_json_does_not_leave_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "to_json", lambda value: value)
    assert "is not JSON" in problems(cell("print 0 / 0", **{"continue": True}, prints=[None]))
