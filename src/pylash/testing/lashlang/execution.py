"""Execution of each kind of case, and checks that apply to every case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from time import perf_counter
from typing import Any

import msgspec
from msgspec import UNSET

from pylash.lang import tree
from pylash.lang.artifacts import Artifact, artifact, encode_artifact
from pylash.lang.linker import link
from pylash.lang.maps import static_map
from pylash.lang.parsing.parser import parse
from pylash.lang.problems import LashlangError
from pylash.lang.running.data import from_json, handle_ids
from pylash.lang.running.execution import run_cell
from pylash.lang.running.meter import CELL_BOUNDS, PROCESS_BOUNDS, Bounds
from pylash.lang.starting import Registration, StartProblem, registration
from pylash.lang.surface import Surface, surface_of
from pylash.testing.lashlang.cases import Case, Limits, Occurrence
from pylash.testing.lashlang.journal import Replay, Suspended
from pylash.testing.lashlang.scheduler import START, finished
from pylash.testing.lashlang.surface import H1, patched
from pylash.testing.lashlang.world import Body, Outcome, Process, World, performed


@dataclass
class Observed:
    """What happened in a case, as far as it got."""

    outcome: Outcome | None = None
    cells: list[Outcome] = field(default_factory=list)
    world: World | None = None
    subject: Body | None = None
    process_id: str | None = None
    artifacts: list[Artifact] = field(default_factory=list)
    registration: Registration | None = None
    started: list[dict[str, Any]] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)


def linked(source: str, offered: Surface, session: Session | None = None) -> Artifact:
    """Return the artifact of a source.

    Raises LashlangError: it does not parse or link.
    """
    names = () if session is None else session.variables.keys()
    fixed = () if session is None else session.read_only.keys()
    return artifact(link(parse(source), offered, variables=names, read_only=fixed))


def offered_to(case: Case) -> Surface:
    """Return the surface that a case links against."""
    return surface_of(patched(H1, case.surface)) if case.surface else _unpatched()


@cache
def _unpatched() -> Surface:
    return surface_of(H1)


class Session:
    """The variables that cells share, and their world."""

    def __init__(self, case: Case) -> None:
        self.offered = offered_to(case)
        self.world = World(self.offered, bounds_of(case.bounds, PROCESS_BOUNDS))
        self.variables = {name: from_json(value) for name, value in case.globals.items()}
        self.read_only = {name: from_json(value) for name, value in case.read_only.items()}
        self.artifact: Artifact | None = None
        self.body: Body | None = None
        self._bounds = bounds_of(case.bounds, CELL_BOUNDS)
        self._cells = 0

    def run(self, source: str) -> Outcome:
        """Run one cell; return how it ended."""
        self._cells += 1
        try:
            self.artifact = linked(source, self.offered, self)
        except LashlangError as error:
            return {"error": error.errors[0]}
        if self.artifact.processes:
            self.world.store(self.artifact)
        scope = f"cell:{self._cells}"
        self.body = Body(self.world, scope, self.artifact)
        self.world.bodies.append(self.body)
        job = self.world.scheduler.spawn(
            run_cell(
                self.artifact,
                self.variables,
                self.body.around(),
                perf_counter,
                scope=scope,
                read_only=self.read_only,
                bounds=self._bounds,
            )
        )
        self.world.scheduler.run(until=job)
        if not job.ended.kept:
            return {"waiting": "process"}
        ended = job.ended.value
        if ended.error is not None:
            return {"error": ended.error}
        return {"finish": ended.value} if ended.finished else {"continue": True}


def bounds_of(limits: Limits, default: Bounds) -> Bounds:
    """Return the bounds that a case sets, and no others; or the default ones if it sets none."""
    given = {
        name: value
        for name in Limits.__struct_fields__
        if (value := getattr(limits, name)) is not UNSET
    }
    if "active_ms" in given:
        # A fast machine takes the default steps in less time than a case may bound.
        given.setdefault("steps", None)
    return msgspec.structs.replace(default, **given)


# The kinds.


def run_one_cell(case: Case) -> Observed:
    """Run the source as one cell."""
    session = Session(case)
    outcome = session.run(case.source)
    seen = _observe_session(session)
    seen.outcome = outcome
    return seen


def run_cells(case: Case) -> Observed:
    """Run the sources as cells of one session, then deliver the occurrences."""
    session = Session(case)
    outcomes = [session.run(source) for source in case.sources]
    started = [
        process for occurrence in case.deliver for process in _deliver(session.world, occurrence)
    ]
    seen = _observe_session(session)
    seen.cells = outcomes
    seen.started = [_start_record(process) for process in started]
    return seen


def _observe_session(session: Session) -> Observed:
    session.world.scheduler.run()
    return Observed(
        world=session.world,
        subject=session.body,
        artifacts=[] if session.artifact is None else [session.artifact],
        defects=list(defects(session.world)),
    )


def _deliver(world: World, occurrence: Occurrence) -> Iterator[Process]:
    for each in list(world.operations.subscriptions.values()):
        process_id = f"{each.id}:{occurrence.id}"
        if (
            each.hears(occurrence.source_type, occurrence.source)
            and process_id not in world.processes
        ):
            problem = world.start(process_id, each.registration(occurrence.event))
            if problem is None:
                yield world.processes[process_id]


def _start_record(process: Process) -> dict[str, Any]:
    return {
        "process": process.registration.process_name,
        "args": process.registration.args,
        **(process.outcome or {"waiting": True}),
    }


def run_entry(case: Case) -> Observed:
    """Start a process with its signals, and run until nothing can run."""
    assert case.entry is not None  # a process case has one
    try:
        made = linked(case.source, offered_to(case))
    except LashlangError as error:
        return Observed(outcome={"error": error.errors[0]})
    worker = surface_of(patched(patched(H1, case.surface), case.run_surface))
    world = World(worker, bounds_of(case.bounds, PROCESS_BOUNDS))
    world.store(made)
    seen = Observed(world=world, process_id=case.pid, artifacts=[made])
    if case.entry not in made.processes:
        seen.outcome = {"missing": f"the source has no process {case.entry}"}
        return seen
    _run_process(case, world, _from_outside(made, case), seen)
    return seen


def _from_outside(made: Artifact, case: Case) -> Registration:
    """Return the registration of a case's process: in H1, everything in its arguments that looks like a handle is one."""
    assert case.entry is not None
    args = from_json(case.args, handles=None)
    return registration(made, case.entry, case.args, handle_ids(args))


def _run_process(case: Case, world: World, wanted: Registration, seen: Observed) -> None:
    for signal in case.signals:
        if signal.at_ms is not None:
            send = partial(world.signal_from_outside, case.pid, signal.name, signal.payload)
            world.scheduler.at(START + signal.at_ms, send)
    early = [(signal.name, signal.payload) for signal in case.signals if signal.at_ms is None]
    problem = world.start(case.pid, wanted, early)
    if problem is not None:
        seen.outcome = failure(problem)
        return
    world.scheduler.run()
    process = world.processes[case.pid]
    seen.subject = process.body
    seen.outcome = process.outcome or {"waiting": "process" if process.waits is None else "signal"}
    seen.defects = list(defects(world))


def failure(problem: StartProblem) -> Outcome:
    """Return the outcome of a process that cannot start."""
    return {
        "fail": {
            "class": "execution",
            "code": problem.code,
            "message": problem.message,
            "raw": None,
        }
    }


def run_entry_or_cell(case: Case) -> Observed:
    """Run the entry if there is one, else the source as a cell."""
    return run_one_cell(case) if case.entry is None else run_entry(case)


def run_link(case: Case) -> Observed:
    """Only link."""
    session = Session(case)
    try:
        made = linked(case.source, session.offered, session)
    except LashlangError as error:
        return Observed(outcome={"error": error.errors[0]})
    return Observed(outcome={"linked": True}, artifacts=[made])


def run_identity(case: Case) -> Observed:
    """Link twice, or play what may happen between registering a process and starting it."""
    if case.scenario is not None:
        return _run_scenario(case)
    sources = case.sources or (case.source, case.source)
    patches = case.surfaces or (case.surface, case.surface)
    pairs = zip(sources, patches, strict=True)
    try:
        made = [linked(source, surface_of(patched(H1, patch))) for source, patch in pairs]
    except LashlangError as error:
        return Observed(outcome={"error": error.errors[0]})
    return Observed(artifacts=made)


def _run_scenario(case: Case) -> Observed:
    assert case.entry is not None  # an identity case has one
    offered = offered_to(case)
    try:
        made = linked(case.source, offered)
    except LashlangError as error:
        return Observed(outcome={"error": error.errors[0]})
    world = World(offered, bounds_of(case.bounds, PROCESS_BOUNDS))
    world.store(made)
    wanted = _from_outside(made, case)
    seen = Observed(world=world, process_id=case.pid, artifacts=[made], registration=wanted)
    match case.scenario:
        case "artifact_missing":
            world.artifacts.clear()
        case "artifact_damaged":
            world.artifacts[made.module_ref] = encode_artifact(_damaged(made))
        case "surface_ref_mismatch":
            wanted = msgspec.structs.replace(
                wanted, required_surface_ref=_other(wanted.required_surface_ref)
            )
        case "process_ref_mismatch":
            wanted = msgspec.structs.replace(wanted, process_ref=_other(wanted.process_ref))
    if case.scenario != "registration_json":
        _run_process(case, world, wanted, seen)
    return seen


def _damaged(made: Artifact) -> Artifact:
    main = (*made.canonical.main, tree.Print(tree.Text("altered")))
    return msgspec.structs.replace(
        made, canonical=msgspec.structs.replace(made.canonical, main=main)
    )


def _other(reference: str) -> str:
    prefix, _, _ = reference.rpartition(":")
    return f"{prefix}:{'0' * 64}"


KINDS: dict[str, Callable[[Case], Observed]] = {
    "cell": run_one_cell,
    "cells": run_cells,
    "triggers": run_cells,
    "process": run_entry,
    "trace": run_entry_or_cell,
    "bounds": run_entry_or_cell,
    "link": run_link,
    "identity": run_identity,
}


# Checks of every execution, independent of what a case expects.


def defects(world: World) -> Iterator[str]:
    """Yield what is wrong with what the bodies of a world left behind."""
    for body in world.bodies:
        yield from trace_defects(body)
    yield from replay_defects(world)


def trace_defects(body: Body) -> Iterator[str]:
    """Yield what is wrong with a trace: an id that is not in the map, an event that occurs twice."""
    known = {
        node["id"]
        for event in body.traced
        if event["event"] == "execution_started"
        for node in event["map"]["nodes"]
    }
    seen = set()
    for event in body.traced:
        for name in ("node_id", "arm_id"):
            if name in event and event[name] not in known:
                yield f"{body.scope} traced {event[name]}, which is not in the map"
        key = (event["event"], event.get("node_id"), event.get("occurrence"))
        if key in seen:
            yield f"{body.scope} traced {key} twice"
        seen.add(key)


def replay_defects(world: World) -> Iterator[str]:
    """Yield the differences when each process runs again from its start with its recorded effects."""
    for process in list(world.processes.values()):
        if process.body.journal.open is None and "cancelled" in (process.outcome or {}):
            continue  # it was cancelled before it began
        replay = Replay(process.body.journal)
        name = process.registration.process_name
        body = Body(world, process.body.scope, process.artifact, name, replay)
        outcome: Outcome | None
        try:
            outcome = finished(performed(process, body, world.process_bounds))
        except Suspended:
            outcome = None
        yield from _replay_differences(process, outcome, body)
        for key in replay.left():
            yield f"in the replay, {process.id} never requested {key}"


def _replay_differences(process: Process, outcome: Outcome | None, again: Body) -> Iterator[str]:
    first = process.outcome
    if first is None or "cancelled" in first:
        if outcome is not None:
            yield f"in the replay, {process.id} did not reach its wait, but ended with {outcome}"
        return
    if _slow(first) and outcome is not None and _slow(outcome):
        return  # the position at which computing time runs out cannot be repeated
    if outcome != first:
        yield f"in the replay, {process.id} ended with {outcome}, not {first}"
    elif again.traced != process.body.traced:
        yield f"in the replay, {process.id} left another trace"


def _slow(outcome: Outcome) -> bool:
    match outcome:
        case {"fail": {"raw": {"kind": "deadline_exceeded"}}}:
            return True
    return False


def map_of(seen: Observed, entry: str | None) -> dict[str, Any]:
    """Return the static map of a process, or of main."""
    made: dict[str, Any] = static_map(seen.artifacts[0], entry).to_dict()
    return made
