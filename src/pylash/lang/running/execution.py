"""Running a cell, or a process from its start to its end.

Every error of a program becomes a problem with a position here. Exceptions with which the host stops or parks
an execution are not caught.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Final

import msgspec

from pylash.lang.artifacts import Artifact
from pylash.lang.compiling.modules import FILENAME, Compiled, compiled
from pylash.lang.maps import static_map
from pylash.lang.problems import Problem
from pylash.lang.running.data import Record, RunError, Value, from_json, size_of, to_json
from pylash.lang.running.frame import Failed, Frame
from pylash.lang.running.hosts import Surroundings
from pylash.lang.running.meter import CELL_BOUNDS, PROCESS_BOUNDS, Bounds, Meter
from pylash.lang.tree import Assign, Place, TypeName, Variable, walk

_BOUNDS: Final = frozenset(
    {"step_budget_exceeded", "deadline_exceeded", "memory_exceeded", "frame_depth_exceeded"}
)


class CellOutcome(msgspec.Struct, frozen=True):
    """The outcome of a cell: finished with a value, an error, or neither."""

    finished: bool = False
    value: Any = None
    text: str = ""
    error: Problem | None = None


class Failure(msgspec.Struct, frozen=True):
    """Why a process failed. `raw` is the value given to `fail`, or kind and position of a run error."""

    code: str
    message: str
    raw: Any = None


class ProcessOutcome(msgspec.Struct, frozen=True):
    """The outcome of a process."""

    value: Any = None
    failure: Failure | None = None


async def run_cell(
    artifact: Artifact,
    variables: dict[str, Value],
    around: Surroundings,
    now: Callable[[], float],
    *,
    scope: str,
    read_only: Mapping[str, Value] | None = None,
    bounds: Bounds = CELL_BOUNDS,
) -> CellOutcome:
    """Run main with a session's variables, which its statements change."""
    code = compiled(artifact, traced=around.traced)
    meter = Meter(bounds, now)
    meter.used = sum(map(size_of, variables.values()))
    frame = Frame(around, meter, scope, code.sites, code.children)

    def save(final: dict[str, Value], _: object) -> None:
        for local, name in code.variables.items():
            if local in final and name not in fixed:
                variables[name] = final[local]

    fixed = read_only or {}
    _tell_start(around, artifact, None)
    try:
        finished, value, text = await code.main(meter, frame, {**variables, **fixed}, save)
    except (RunError, NameError, RecursionError) as error:
        problem = _problem(error, artifact, "main")
        frame.leave(problem.message)
        _tell_end(around, "failed", problem.message)
        return CellOutcome(error=problem)
    _tell_end(around, "completed")
    if not finished:
        return CellOutcome()
    return CellOutcome(finished=True, value=to_json(value), text=text)


async def run_process(  # noqa: PLR0913 - the process and its context
    artifact: Artifact,
    name: str,
    args: Mapping[str, Any],
    around: Surroundings,
    now: Callable[[], float],
    *,
    process_id: str,
    handles: Collection[str] | None,
    bounds: Bounds = PROCESS_BOUNDS,
) -> ProcessOutcome:
    """Run a process whose arguments were checked.

    `handles` are the processes whose handles are in the arguments. None means that an older version, which did not
    record them, started the process: then every record that looks like a handle is one, as in that version.
    """
    code = compiled(artifact, traced=around.traced)
    frame_meter = Meter(bounds, now)
    frame = Frame(
        around,
        frame_meter,
        f"process:{process_id}",
        code.sites,
        code.children,
        shapes_are_handles=handles is None,
    )
    _tell_start(around, artifact, name)
    try:
        values = {each: from_json(value, handles=handles) for each, value in args.items()}
        value = to_json(await _called(code, artifact, name, values, frame_meter, frame))
    except Failed as failed:
        message = str(failed)
        frame.leave(None)
        _tell_end(around, "failed", message)
        return ProcessOutcome(failure=Failure("process_failed", message, to_json(failed.value)))
    except (RunError, NameError, RecursionError) as error:
        problem = _problem(error, artifact, f"process {name}")
        frame.leave(problem.message)
        _tell_end(around, "failed", problem.message)
        kind = "process_bounds_exceeded" if problem.kind in _BOUNDS else "process_runtime_error"
        raw = {"kind": problem.kind, "line": problem.line, "column": problem.column}
        return ProcessOutcome(failure=Failure(kind, problem.message, raw))
    _tell_end(around, "completed")
    return ProcessOutcome(value=value)


async def _called(
    code: Compiled,
    artifact: Artifact,
    name: str,
    args: Mapping[str, Any],
    meter: Meter,
    frame: Frame,
) -> Value:
    declaration = next(p for p in artifact.canonical.processes if p.name == name)
    names = [parameter.name for parameter in declaration.parameters]
    values = [args[parameter] for parameter in names]
    inputs = Record(zip(names, values, strict=True))
    single = inputs if len(names) > 1 else (values[0] if values else None)
    extra = [value for key, value in (("inputs", inputs), ("input", single)) if key not in names]
    return await code.processes[name](meter, frame, *values, *extra)


def _tell_start(around: Surroundings, artifact: Artifact, process: str | None) -> None:
    if around.traced:
        around.host.trace(
            {"event": "execution_started", "map": static_map(artifact, process).to_dict()}
        )


def _tell_end(around: Surroundings, status: str, error: str | None = None) -> None:
    if around.traced:
        told = {"event": "execution_finished", "status": status}
        around.host.trace(told if error is None else {**told, "error": error})


def _problem(error: BaseException, artifact: Artifact, body: str) -> Problem:
    number = (
        error.at
        if isinstance(error, RunError) and error.at is not None
        else _deepest(error.__traceback__)
    )
    line, column, width = Place(1, 1, 1) if number is None else artifact.places[number]
    if isinstance(error, RunError):
        kind, message = error.kind, error.message
    elif isinstance(error, RecursionError):
        kind, message = (
            "frame_depth_exceeded",
            "function calls are nested too deeply for Python's stack; recurse less deeply",
        )
    else:
        name = _variable(artifact, number, body)
        kind, message = (
            "unknown_name",
            f"unknown name `{name}`: nothing has been assigned to it yet",
        )
    hint = error.hint if isinstance(error, RunError) else None
    return Problem("run", kind, message, line, column, width, hint)


def _deepest(traceback: TracebackType | None) -> int | None:
    found = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == FILENAME:
            found = traceback.tb_lineno - 1
        traceback = traceback.tb_next
    return found


def _variable(artifact: Artifact, number: int | None, body: str) -> str:
    """Return the source name of the variable that a node reads."""
    nodes = list(walk(artifact.canonical))
    node = nodes[number] if number is not None else None
    if not isinstance(node, Variable | Assign | TypeName):
        return "?"
    name = node.name.removeprefix("$")
    if not name.isdigit():
        return name
    function = next(
        (f for f in artifact.canonical.functions if any(inner is node for inner in walk(f))), None
    )
    return artifact.names[body if function is None else f"function {function.name}"][int(name)]
