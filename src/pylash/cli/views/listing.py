"""``pylash ps``: lists processes and turns with their state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click
from msgspec.structs import replace

from pylash.cli.output import (
    SECOND,
    STATUS_COLOURS,
    Cell,
    Column,
    duration_text,
    iso,
    moment,
    on_terminal,
    paint,
    print_json,
    print_line,
    print_table,
)
from pylash.cli.store_options import StoreOptions, run, with_store_options
from pylash.durable.processes import Aborted, Failure, Output, ProcessFilter
from pylash.durable.runs import Instant, RunState
from pylash.stores.inspection import OpenEffect
from pylash.stores.run_lists import RunRow
from pylash.stores.store import SqlStore
from pylash.values.durations import micros, seconds
from pylash.values.errors import DurationInvalid
from pylash.values.process_errors import split_reason
from pylash.values.secrets import shown_url

STATUSES = (
    "queued",
    "running",
    "waiting",
    "blocked",
    "completed",
    "failed",
    "cancelled",
    "stopped",
)
NOT_COMPLETED = ("failed", "stopped", "cancelled")
UNKNOWN = "unknown_target"
NO_WORKER = "no worker is running"
WORKER_GONE = "its worker is gone, and the next one takes it over"
_ENGINE = re.compile("^(python|lashlang):")
KINDS = {
    "process": ("process",),
    "turn": ("turn", "queue_drain"),
    "other": ("session_delete", "runtime_operation"),
}


class Since(click.ParamType[Any]):
    """A time in ISO 8601, or how long ago."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | timedelta:
        """Return the time, or the duration."""
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
        try:
            return timedelta(seconds=seconds(value))
        except DurationInvalid:
            self.fail(
                f"{value!r} is neither a time such as 2026-07-01T09:00 nor a duration such as 2h.",
                param,
                ctx,
            )


@click.command()
@click.option(
    "-s",
    "--status",
    type=click.Choice(STATUSES),
    multiple=True,
    metavar="STATUS",
    help=f"Only this status; may be repeated: {', '.join(STATUSES)}.",
)
@click.option(
    "-k",
    "--kind",
    type=click.Choice(tuple(KINDS)),
    multiple=True,
    help="Only this kind; may be repeated.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="The maximum number of rows.",
)
@click.option("--name", metavar="NAME", help="Only processes of this name, in all versions.")
@click.option("--tag", metavar="TAG", help="Only processes with this tag.")
@click.option(
    "--since",
    type=Since(),
    metavar="TIME",
    help="Only those started since a time (2026-07-01T09:00), or so long ago (2h).",
)
@with_store_options
def ps(
    options: StoreOptions,
    status: Sequence[str],
    kind: Sequence[str],
    limit: int,
    name: str | None,
    tag: str | None,
    since: datetime | timedelta | None,
) -> None:
    """List processes and turns, the newest first.

    A turn is named SESSION/TURN. TIME is the age of an open run, or the duration of an ended one; the last column
    shows what it waits for, or why it is blocked or failed. With --kind turn, completed turns are searched among
    the newest 10,000 runs.

    \b
      pylash ps --status blocked --status failed
      pylash ps --name order --tag customer:7 --since 1d
      pylash ps --kind turn --json
    """
    is_filter = name is not None or tag is not None
    if is_filter and any(one != "process" for one in kind):
        raise click.UsageError("--name and --tag are for processes: leave out --kind.")
    wanted = ProcessFilter(statuses=tuple(status), name=name, tag=tag) if is_filter else None
    run(_ps(options, status, kind, limit, wanted, since))


async def _ps(
    options: StoreOptions,
    status: Sequence[str],
    kind: Sequence[str],
    limit: int,
    wanted: ProcessFilter | None,
    since: datetime | timedelta | None,
) -> None:
    kinds = [name for each in kind or KINDS for name in KINDS[each]]
    async with options.open_store() as (_, store):
        started = None if since is None else _instant(since, await store.inspection.now())
        if wanted is not None:
            rows = await store.inspection.processes(replace(wanted, since=started), limit)
        else:
            rows = await store.inspection.runs(status or STATUSES, kinds, limit, started)
        described = await describe_runs(store, rows)
    if options.as_json:
        print_json(described)
        return
    print_runs(described, options.url)
    if on_terminal() and any(row.kind == "process" and row.status == "failed" for row in rows):
        print_line(paint("pylash fork ID continues a failed process", "bright_black"))
    if len(rows) == limit and on_terminal():
        print_line(paint(f"the newest {limit}; -n shows more", "bright_black"))


def _instant(since: datetime | timedelta, now: Instant) -> Instant:
    if isinstance(since, timedelta):
        return Instant(now - micros(since))
    return Instant(round(since.timestamp() * SECOND))


async def describe_runs(store: SqlStore, rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """Return runs as JSON values, with the waits of each."""
    live = [row.run for row in rows if row.settled is None]
    open_effects = await store.inspection.open_effects(live) if live else []
    errors = await _errors(store, [row for row in rows if row.status in NOT_COMPLETED])
    idle = any(row.reason == UNKNOWN for row in rows) and not await store.workers.has_any()
    gone = await _gone_workers(store, {row.owner for row in rows if row.owner is not None})
    now = await store.inspection.now()
    return [
        {
            **_describe(row, now),
            "reason": _reason(row, idle=idle, is_gone=row.owner in gone),
            "waits_for": [_waits_for(one) for one in open_effects if one.run == row.run],
            "error": errors.get(row.run),
        }
        for row in rows
    ]


async def _gone_workers(store: SqlStore, owners: set[str]) -> set[str]:
    """Return the workers among owners that are dead or whose lease is over."""
    workers = (
        [row for row in await store.inspection.workers() if row.id in owners] if owners else []
    )
    return {row.id for row in workers if row.expired or await store.driver.locks.is_free(row.id)}


def _reason(row: RunRow, *, idle: bool, is_gone: bool) -> str | None:
    if is_gone:
        return WORKER_GONE
    return f"{UNKNOWN}: {NO_WORKER}" if idle and row.reason == UNKNOWN else row.reason


async def _errors(store: SqlStore, rows: Sequence[RunRow]) -> dict[int, str | None]:
    """Return why runs did not complete, as a sentence with its code."""
    turns = [row.scope for row in rows if row.kind != "process"]
    results = await store.sessions.results(turns) if turns else {}
    processes = [row.id for row in rows if row.kind == "process"]
    outputs = await store.processes.outputs(processes) if processes else {}
    return {
        row.run: _process_error(outputs.get(row.id))
        if row.kind == "process"
        else _turn_error(results.get(row.scope))
        for row in rows
    }


def _process_error(output: Output | None) -> str | None:
    match output:
        case Failure(code=code, message=message):
            return f"{message} [{code}]"
        case Aborted(reason=reason):
            return reason
        case _:
            return None


def _turn_error(ended: tuple[RunState, Any] | None) -> str | None:
    result = {} if ended is None else ended[1] or {}
    code = f" [{result['code']}]" if result.get("code") else ""
    return f"{result['error']}{code}" if result.get("error") else None


def _describe(row: RunRow, now: int) -> dict[str, Any]:
    return {
        "id": row.id,
        "kind": "turn" if row.kind == "queue_drain" else row.kind,
        "session": row.session,
        "target": row.target,
        "engine": row.engine,
        "version": row.version,
        "label": row.label,
        "tags": list(row.tags),
        "status": row.status.value,
        "reason": row.reason,
        "waits_for": [],
        "error": None,
        "created": iso(row.created),
        "settled": iso(row.settled),
        "seconds": max(0, (row.settled or now) - row.created) / SECOND,
        "attempts": row.attempts,
        "worker": row.owner,
    }


def _waits_for(effect: OpenEffect) -> str:
    kind, _, rest = (effect.wait or "").partition(":")
    match kind:
        case "signal":
            return f"signal {effect.name}"
        case "process":
            return f"process {rest}"
        case "turn":
            return "turn of a session"
        case "":
            until = "" if effect.due is None else f" until {moment(effect.due)}"
            return f"{effect.name}{until}"
        case _:
            return effect.name


def print_runs(described: Sequence[dict[str, Any]], url: str | None = None) -> None:
    """Print runs as a table; an empty one with the store that was read, as it may be another than is meant."""
    if not described:
        print_line("Nothing to show." if url is None else f"Nothing to show in {shown_url(url)}.")
        return
    titles = [
        Column("STATUS"),
        Column("ID", share=3),
        Column("WHAT", share=2),
        Column("TIME", right=True),
        Column("WHY", share=3),
    ]
    lines = [
        (
            Cell(view["status"], STATUS_COLOURS[view["status"]]),
            view["id"],
            with_version(
                view["label"] or _ENGINE.sub("", view["target"]) or view["kind"], view["version"]
            ),
            duration_text(round(view["seconds"] * SECOND)),
            Cell(reason_of(view), "bright_black"),
        )
        for view in described
    ]
    print_table(titles, lines)


def with_version(name: str, version: int) -> str:
    """Return the name of a process with its version, unless that is the first."""
    return name if version == 1 else f"{name} (v{version})"


def reason_of(view: dict[str, Any]) -> str:
    """Return why a run is in its state, in a few words."""
    if view["reason"] or view["error"]:
        stated, _ = split_reason(str(view["reason"] or view["error"]))
        return stated.removeprefix(f"{UNKNOWN}: ")
    if view["waits_for"]:
        first, *others = view["waits_for"]
        return f"{first} (and {len(others)} more)" if others else str(first)
    return ""
