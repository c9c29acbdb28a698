"""A text through everything: read, formatted, linked, stored, compiled and run. Nothing but problems comes out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pylash.lang import Bounds, Surroundings, run_process
from pylash.lang.artifacts import Artifact, artifact, decode_artifact, encode_artifact, verified
from pylash.lang.linker import link
from pylash.lang.maps import static_map
from pylash.lang.parsing.parser import parse
from pylash.lang.problems import LashlangError, Problem, show
from pylash.lang.starting import bad_arguments
from pylash.lang.tree import TypeName
from tests.lang.engine import OFFERED, World, run
from tests.lang.written import NAMES

SMALL = Bounds(steps=3_000, active_ms=5_000, memory_bytes=2**20, frames=40)
MODULES = {"tools": "Tools"}
RESOURCE = {"__resource__": True, "type": "Tools", "alias": "tools"}
RUN_KINDS = frozenset(
    [
        "unknown_name",
        "expected_number",
        "cannot_concatenate",
        "invalid_membership",
        "cannot_read_field",
        "cannot_index",
        "index_not_integer",
        "index_out_of_bounds",
        "not_iterable",
        "missing_assignment_path",
        "immutable_value",
        "cannot_assign",
        "unwrap_failed",
        "not_a_result",
        "not_a_handle",
        "not_a_type",
        "invalid_argument",
        "invalid_json",
        "invalid_format",
        "validation_failed",
        "not_comparable",
        "empty_sequence",
        "division_by_zero",
        "range_too_large",
        "invalid_duration",
        "invalid_time",
        "value_too_deep",
        "start_failed",
        "signal_failed",
        "unknown_resource",
        "host_failed",
        "step_budget_exceeded",
        "deadline_exceeded",
        "memory_exceeded",
        "frame_depth_exceeded",
    ]
)


def placed(problem: Problem, source: str, stage: str) -> None:
    """A problem is a sentence with a place inside the text."""
    lines = source.split("\n")
    assert problem.stage == stage
    assert problem.message
    assert 1 <= problem.line <= len(lines), problem
    assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1, problem
    assert problem.message.replace("\n", "\\n") in show(problem, source)  # in one line


def through(source: str) -> str:
    """Take a text as far as it goes; return where it ended."""
    parsed = parse(source)
    try:
        program = artifact(link(parsed, OFFERED, variables=NAMES))
    except LashlangError as refused:
        stage = "parse" if parsed.problems else "link"
        for problem in refused.errors:
            placed(problem, source, stage)
        return refused.errors[0].kind
    again = verified(decode_artifact(encode_artifact(program)))
    assert again.canonical == program.canonical
    kinds = [ran(again, source, traced=traced) for traced in (False, True)]
    assert kinds[0] == kinds[1]
    for process in program.processes:
        started(again, process, source)
    return kinds[0]


def ran(program: Artifact, source: str, *, traced: bool) -> str:
    world, variables = World(), dict[str, Any](dict.fromkeys(NAMES))
    ended = run(program, variables, world, bounds=SMALL, traced=traced)
    json.dumps([ended.value, world.prints], allow_nan=False)
    nodes = {node.id for node in static_map(program, None).nodes}
    assert all(event["node_id"] in nodes for event in world.traced if "node_id" in event)
    if ended.error is None:
        return "finish" if ended.finished else "continue"
    placed(ended.error, source, "run")
    assert ended.error.kind in RUN_KINDS
    return ended.error.kind


def started(program: Artifact, process: str, source: str) -> None:
    """Run a process with arguments of all kinds, if they fit."""
    declared = next(each for each in program.canonical.processes if each.name == process)
    for value in (None, 1, "a", [1], {"id": 1}):
        args = {
            each.name: RESOURCE if each.type == TypeName("Tools") else value
            for each in declared.parameters
        }
        if bad_arguments(program, process, args, MODULES) is not None:
            continue
        around = Surroundings(World(), MODULES)
        ended = asyncio.run(
            run_process(
                program,
                process,
                args,
                around,
                lambda: 0.0,
                process_id="P",
                handles=(),
                bounds=SMALL,
            )
        )
        json.dumps(ended.value, allow_nan=False)
        if ended.failure is not None and ended.failure.code != "process_failed":
            assert ended.failure.raw["kind"] in RUN_KINDS
            assert 1 <= ended.failure.raw["line"] <= source.count("\n") + 1
