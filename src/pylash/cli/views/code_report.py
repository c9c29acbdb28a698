"""The part of ``pylash doctor`` that compares the code of an app with the live runs of a store.

Rule 1. A version is reported as deletable only if no live run has it, no subscription starts it, and a newer one is declared.
Rule 2. The source code does not tell everything: what was not seen is printed with the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from pylash.app import Lash
from pylash.cli.output import (
    Cell,
    Column,
    duration_text,
    iso,
    print_line,
    print_table,
    wrapped,
)
from pylash.durable.processes import EngineInput, engine_target, split_carrier, split_target
from pylash.durable.runs import Instant
from pylash.durable.triggers import Subscription, SubscriptionView
from pylash.engine.runner_parts import Engine
from pylash.processes.declarations import Declarations
from pylash.processes.patch_calls import PatchCall, find_patch_calls
from pylash.stores.inspection import LiveProcess
from pylash.stores.store import SqlStore
from pylash.values.texts import printable

ENGINE: Final = "python:"

NOTES: Final = (
    "Ids of patches that are computed, and calls in modules that declare no process, are not seen.",
    "A run that has not come to the call lacks the patch too. It takes the patch there, as does a run with nothing recorded.",
    "A run has a patch if one of its branches recorded it; other branches may have passed the call with the old code.",
)


class VersionReport(msgspec.Struct, frozen=True):
    """A version of a process: its live runs, and how many subscriptions start it."""

    process: str
    version: int
    declared: bool
    live: int
    subscriptions: int
    deletable: bool


class PatchReport(msgspec.Struct, frozen=True):
    """A patch of a version of a process: the call in the code, if one was found, and the live runs that recorded it or lack it.

    ``oldest`` is the id of the process that lacks it and whose run is the oldest, ``oldest_started`` the start of that run.
    """

    patch: str
    process: str
    version: int
    call: str | None
    live: int
    recorded: int
    lacking: int
    oldest: str | None = None
    oldest_started: Instant | None = None


class CodeReport(msgspec.Struct, frozen=True):
    """The code of an app and the live runs of a store.

    ``computed`` has the places of calls whose ids are computed, ``unread`` the names of processes without source code.
    """

    processes: list[VersionReport]
    patches: list[PatchReport]
    computed: list[str]
    unread: list[str]
    now: Instant


class StoredWork(NamedTuple):
    """What a store has for the code of an app."""

    processes: list[LiveProcess]
    subscriptions: list[SubscriptionView]
    now: Instant


async def read_work(store: SqlStore, engine: Engine | None = None) -> StoredWork:
    """Read the live processes and the subscriptions of a store; the engine has the patches of its own processes."""
    patches = {} if engine is None else await engine.recorded_patches()
    live = await store.inspection.live_processes()
    return StoredWork(
        [
            msgspec.structs.replace(one, patches=one.patches | patches.get(one.id, set()))
            for one in live
        ],
        await store.triggers.listed(),
        await store.inspection.now(),
    )


def report_code(app: Lash, work: StoredWork) -> CodeReport:
    """Compare the declared processes of an app with what a store has. Source files are read."""
    live: dict[tuple[str, int], list[LiveProcess]] = {}
    for one in work.processes:
        target, version = split_target(split_carrier(one.target)[1])
        if target.startswith(ENGINE):
            live.setdefault((target.removeprefix(ENGINE), version), []).append(one)
    subscribed = [view.subscription for view in work.subscriptions]
    found = find_patch_calls(app.definitions.all_versions())
    calls = {(one.name, one.version): given for one, given in found.of_process}
    computed = {call for given in calls.values() for call in given if call.patch is None}
    return CodeReport(
        _versions(app.definitions, live, subscribed),
        [
            report
            for of, runs in sorted({**dict.fromkeys(calls, ()), **live}.items())
            for report in _patches(of, calls.get(of, set()), runs)
        ],
        sorted(map(_place, computed)),
        sorted({one.name for one in found.unread}),
        work.now,
    )


def _versions(
    definitions: Declarations,
    live: dict[tuple[str, int], list[LiveProcess]],
    subscriptions: Iterable[Subscription],
) -> list[VersionReport]:
    declared = {(one.name, one.version) for one in definitions.all_versions()}
    starts = Counter(_started_target(definitions, one) for one in subscriptions)
    reports = []
    for name, version in sorted(declared | live.keys()):
        of, runs = (name, version), len(live.get((name, version), ()))
        subscribed = starts[engine_target("python", name, version)]
        is_old = of in declared and version < definitions[name].version
        deletable = is_old and not runs and not subscribed
        reports.append(VersionReport(*of, of in declared, runs, subscribed, deletable))
    return reports


def _started_target(definitions: Declarations, subscription: Subscription) -> str:
    """Return the target of the processes that a subscription starts with these declarations."""
    template = subscription.template
    if isinstance(given := template.input, EngineInput):
        # Only the names of the arguments count.
        arguments = {**given.arguments, **dict.fromkeys(subscription.inputs)}
        given = msgspec.structs.replace(given, arguments=arguments)
        template = definitions.upgrade(msgspec.structs.replace(template, input=given))
    return split_carrier(template.target)[1]


def _patches(
    of: tuple[str, int], calls: Iterable[PatchCall], runs: Iterable[LiveProcess]
) -> list[PatchReport]:
    """Return the patches that the code of a version asks for or that its live runs recorded."""
    runs = list(runs)
    # A patch that is asked for anywhere is not deprecated yet.
    named = {call.patch: call.name for call in sorted(calls, key=lambda call: call.name)}
    recorded = Counter(patch for run in runs for patch in run.patches)
    reports = []
    for patch in sorted({*filter(None, named), *recorded}):
        # The runs are sorted by age.
        oldest = next((run for run in runs if patch not in run.patches), None)
        counts = (len(runs), recorded[patch], len(runs) - recorded[patch])
        report = PatchReport(patch, *of, named.get(patch), *counts)
        if oldest is not None:
            report = msgspec.structs.replace(
                report, oldest=oldest.id, oldest_started=oldest.created
            )
        reports.append(report)
    return reports


def _place(call: PatchCall) -> str:
    file, here = Path(call.file), Path.cwd()
    return f"{file.relative_to(here) if file.is_relative_to(here) else file}:{call.line}"


# --- output ---


def describe_code(report: CodeReport) -> dict[str, Any]:
    """Return a report for programs."""
    described: dict[str, Any] = msgspec.to_builtins(report)
    del described["now"]
    for one in described["patches"]:
        one["oldest_started"] = iso(one["oldest_started"])
    return described


def print_code(report: CodeReport) -> None:
    """Print a report for people."""
    print_line()
    if not report.processes:
        print_line("The app declares no process, and no process is live.")
        return
    print_table(
        [
            Column("PROCESS", 1),
            Column("VERSION", right=True),
            Column("LIVE RUNS", right=True),
            Column("", 1),
        ],
        [
            (one.process, str(one.version), f"{one.live:,}", _version_advice(one))
            for one in report.processes
        ],
    )
    if report.patches:
        print_line()
        print_table(
            [
                Column("PATCH", 1),
                Column("PROCESS", 1),
                Column("VERSION", right=True),
                Column("CALL"),
                Column("LACK IT", right=True),
                Column("", 1),
            ],
            [
                (
                    one.patch,
                    one.process,
                    str(one.version),
                    one.call or "none",
                    f"{one.lacking:,} of {one.live:,}",
                    _patch_advice(one, report.now),
                )
                for one in report.patches
            ],
        )
    _print_notes(report)


def _version_advice(one: VersionReport) -> Cell:
    if not one.declared:
        return Cell("not declared: its runs wait for a worker that has it", "yellow")
    if one.deletable:
        return Cell("can be deleted", "green")
    if one.subscriptions and not one.live:
        noun = "subscription starts" if one.subscriptions == 1 else "subscriptions start"
        return Cell(f"{one.subscriptions:,} {noun} it")
    return Cell("")


def _patch_advice(one: PatchReport, now: Instant) -> Cell:
    if one.call is None:
        return Cell("recorded, and no call was found")
    if one.call == "deprecate_patch":
        # Runs that come to this call record nothing, so it does not matter how many lack the patch.
        if one.recorded:
            noun = "run has" if one.recorded == 1 else "runs have"
            return Cell(f"{one.recorded:,} {noun} recorded it: keep the call")
        return Cell("no run has recorded it: delete the call", "green")
    if one.oldest is None or one.oldest_started is None:
        return Cell("delete the old code, and deprecate the patch", "green")
    age = duration_text(now - one.oldest_started)
    return Cell(f"the oldest is {one.oldest}, started {age} ago")


def _print_notes(report: CodeReport) -> None:
    notes = list(NOTES) if report.patches or report.computed else []
    if report.computed:
        notes.append(f"Calls with a computed id: {', '.join(report.computed)}.")
    if report.unread:
        notes.append(f"No source code was found for {', '.join(report.unread)}.")
    if any(one.deletable for one in report.processes):
        notes.append("Before you delete a version, see that no code starts its definition.")
    if notes:
        print_line()
    for note in notes:
        print_line(wrapped(printable(note), 0))
