"""``pylash show``: one process, turn or session, with its effects over time."""

from __future__ import annotations

import re
from typing import Any, Final

import click
import msgspec

from pylash.app import Lash
from pylash.cli.options import json_option, store_option
from pylash.cli.output import iso, print_json
from pylash.cli.queued_messages import queued_text, starting_messages
from pylash.cli.store_options import StoreOptions, root_options, run
from pylash.cli.views.drawing import draw_run, draw_session
from pylash.cli.views.dry_run import described_replay, for_replay, recorded_run, replaying
from pylash.cli.views.listing import describe_runs
from pylash.cli.views.lookup import find_run
from pylash.cli.views.values import ValueView
from pylash.cli.waits import describe_wait
from pylash.durable.ports import EffectHost
from pylash.durable.runs import JournalEntry
from pylash.durable.scopes import QueueDrainScope, TurnScope, scope_from_text, scope_text
from pylash.durable.sessions import SessionRecord, TurnRecord
from pylash.durable.waits import OpenWait
from pylash.engine.dry_runs import ReplayReport
from pylash.engine.hosts.journal import JournalHost
from pylash.processes.timeline import Effect, effects_from, entries_of
from pylash.processes.waits import open_waits
from pylash.sessions.histories import Histories
from pylash.stores.run_lists import RunRow
from pylash.stores.store import SqlStore
from pylash.turn.asks import ASKS
from pylash.turn.messages import MESSAGES, Text
from pylash.turn.views import view_of
from pylash.values.canonical import decode
from pylash.values.errors import EffectReplayMismatch, LashError, StoreError
from pylash.values.process_errors import AppNeeded, split_reason

TURNS_SHOWN: Final = 50
CHILDREN_SHOWN: Final = 50
MESSAGES_SHOWN: Final = 200
_START = re.compile(r"(^|:)start:")


@click.command()
@click.argument("id")
@click.option("--values", is_flag=True, help="Add the input and the output of each effect.")
@click.option(
    "--app",
    metavar="MODULE:APP",
    help="Replay the run with the code of this app; nothing is executed.",
)
@store_option
@json_option
def show(
    id: str,  # noqa: A002 - the name in the help
    values: bool,
    app: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Show what one process, turn or session did, and what it waits for.

    ID is the id of a process, a session or a turn (SESSION/TURN). Among the newest 10,000 processes and turns it
    may also be TURN alone, or a unique prefix of an id. Of a session the last 200 messages and calls are shown.

    Every effect is a bar on a time axis: done (█), failed (▒), cancelled (░), or waiting (─). Long waits are
    folded (≈). For a blocked run, the reason and the difference from the record are shown.

    Values are shown up to 4,000 characters, without what looks like a secret.

    --app needs the code of the app, which the other options do not: it replays the run as pylash replay does. Recorded
    effects that the code has passed over are marked "not asked for any more", and those that it has renamed have their new name.

    \b
      pylash show order-7 --values
      pylash show order-7 --app shop:app
      pylash show chat-42 --json
    """
    chosen, options = (
        for_replay(app, store, as_json)
        if app
        else (None, StoreOptions(*root_options(store, as_json)))
    )
    run(_show(options, id, values, chosen))


async def _show(options: StoreOptions, text: str, values: bool, app: Lash | None) -> None:
    effects: list[Effect] = []
    async with options.open_store() as (host, store):
        found = await find_run(store, text)
        if isinstance(found, str):
            view = await _session(host, store, found)
        else:
            view, effects = await _run(options, host, store, found, values)
    if app is not None and not isinstance(found, str):
        with replaying():
            async with app.open_for_replay() as dry_runs:
                for report in await dry_runs.replay([recorded_run(found)]):
                    _add_replay(view, report)
    if options.as_json:
        print_json(view)
    elif isinstance(found, str):
        draw_session(view)
    else:
        draw_run(view, effects)


# --- a process or a turn ---


async def _run(
    options: StoreOptions, host: JournalHost, store: SqlStore, row: RunRow, values: bool
) -> tuple[dict[str, Any], list[Effect]]:
    """Return the description of a run, and its effects."""
    entries, note = await _entries(options.effects(host), store, row)
    effects = effects_from(entries, row.settled or await store.inspection.now())
    described = (await describe_runs(store, [row]))[0]
    waits = [] if row.settled is not None else await _waits(host, row)
    described_effects = [_describe_effect(effect) for effect in effects]
    if values:
        recorded = await ValueView().of_effects(store, row.run, effects, entries)
        described_effects = [
            one | more for one, more in zip(described_effects, recorded, strict=True)
        ]
    arrived = await _arrived(store, row, waits)
    view = {
        **described,
        **_blocked_reason(described["reason"] if row.status == "blocked" else None),
        **({} if row.status == "blocked" else {"reason": described["reason"]}),
        **(await _process(store, row) if row.kind == "process" else await _turn(store, row)),
        "waits": [describe_wait(wait) for wait in waits if wait not in arrived],
        "signals": [wait.title for wait in arrived],
        "answers": msgspec.to_builtins(await store.inspection.answered(row.run)),
        "children": await _children(store, entries),
        "effects": described_effects,
        "note": note,
    }
    return view, effects


async def _entries(
    effects: EffectHost, store: SqlStore, row: RunRow
) -> tuple[list[JournalEntry], str | None]:
    """Return what is recorded for a run, and why that may not be all."""
    if row.engine is None:
        return await store.journal.timeline(row.run), None
    note: LashError = AppNeeded(row.id, row.engine)
    if not isinstance(effects, JournalHost):
        try:
            return await entries_of(effects, store, scope_from_text(row.scope), row.run), None
        except StoreError as error:
            note = error
    return await store.journal.timeline(row.run), note.message


def _add_replay(view: dict[str, Any], report: ReplayReport) -> None:
    """Add what a replay has shown to the description of a run."""
    view["replay"] = described_replay(report)
    for effect in view["effects"]:
        effect["new_name"] = report.new_names.get(effect["name"])
        effect["passed_over"] = effect["key"] in report.passed_over


def _blocked_reason(reason: str | None) -> dict[str, Any]:
    """Return why a run is blocked: the code, the sentence, and the difference from the record."""
    stated, trace = split_reason(reason or "")
    code, _, sentence = stated.partition(": ")
    mismatch = EffectReplayMismatch.read(sentence) if code else None
    return {
        "reason": sentence or stated or None,
        "code": code or None,
        "difference": mismatch,
        "traceback": trace,
    }


async def _waits(host: JournalHost, row: RunRow) -> list[OpenWait]:
    waits = await open_waits(host, host.store.processes, row.session)
    return [wait for wait in waits if scope_text(wait.name.scope) == row.scope]


async def _arrived(store: SqlStore, row: RunRow, waits: list[OpenWait]) -> list[OpenWait]:
    """Return the waits whose signals are in the log already: the process takes them when it continues."""
    named: dict[str, OpenWait] = {}
    for wait in waits:
        if wait.kind == "signal":
            named.setdefault(wait.title, wait)  # one signal ends one wait
    _, names = await store.processes.look(row.id) if named else (False, set())
    return [wait for name, wait in named.items() if name in names]


async def _process(store: SqlStore, row: RunRow) -> dict[str, Any]:
    record = await store.processes.get(row.id)
    if record is None:  # a scope of a host without a registered process
        return {"parent": None, "input": None, "output": None}
    engine = record.registration.input
    given = getattr(engine, "arguments", msgspec.to_builtins(engine))
    output = record.state.output
    return {
        "parent": record.registration.parent,
        "input": given,
        "output": None if output is None else msgspec.to_builtins(output),
    }


async def _turn(store: SqlStore, row: RunRow) -> dict[str, Any]:
    scope = scope_from_text(row.scope)
    if not isinstance(scope, TurnScope | QueueDrainScope):
        return {"input": None, "output": None}
    turn = await store.sessions.turn(scope)
    results = await store.sessions.results([row.scope])
    return {
        "input": None if turn is None else await _question(store, turn) or None,
        "output": results[row.scope][1] if row.scope in results else None,
    }


async def _question(store: SqlStore, turn: TurnRecord) -> str:
    """Return the question of a turn; a turn without one was started by queued messages."""
    if turn.body:
        parts = ASKS.decode(turn.body).parts
        return " ".join(part.text for part in parts if isinstance(part, Text))
    texts = [message.text for message in await starting_messages(store.sessions, turn)]
    if not texts and not turn.settled:
        texts = list(map(queued_text, await store.sessions.queued(turn.scope.session_id)))
    return " ".join(texts)


async def _children(store: SqlStore, entries: list[JournalEntry]) -> list[dict[str, Any]]:
    """Return the processes that a run started."""
    started = [_started_process(entry) for entry in entries if entry.kind == "process"]
    views = [await store.processes.view(one) for one in started[:CHILDREN_SHOWN] if one]
    return [
        {
            "id": view.id,
            "target": view.target,
            "version": view.version,
            "status": view.status.value,
        }
        for view in views
        if view is not None
    ]


def _started_process(entry: JournalEntry) -> str | None:
    """Return the process that an effect started, if any."""
    if not _START.search(entry.key) or entry.outcome is None or len(entry.outcome) < entry.size:
        return None
    result = decode(entry.outcome).get("outcome", {}).get("result")
    return result.get("id") if isinstance(result, dict) else None


def _describe_effect(effect: Effect) -> dict[str, Any]:
    return {
        "key": effect.key,
        "name": effect.name,
        "kind": effect.kind,
        "status": effect.status,
        "attempt": effect.attempt,
        "started": iso(effect.started),
        "ended": iso(effect.ended),
        "seconds": effect.seconds,
        "waits_for": effect.waits_for,
        "error": effect.error,
    }


# --- a session ---


async def _session(host: JournalHost, store: SqlStore, session_id: str) -> dict[str, Any]:
    record = await store.sessions.get(session_id)
    rows = await store.inspection.turns(session_id, TURNS_SHOWN)
    return {
        "kind": "session",
        "id": session_id,
        "usage": None if record is None else record.usage,
        "tags": [] if record is None else list((record.options or {}).get("tags") or ()),
        "queued": len(await store.sessions.queued(session_id)),
        "messages": [] if record is None else await _transcript(store, record),
        "turns": await describe_runs(store, rows),
        "waits": [
            describe_wait(wait) for wait in await open_waits(host, host.store.processes, session_id)
        ],
    }


async def _transcript(store: SqlStore, record: SessionRecord) -> list[dict[str, Any]]:
    """Return the newest messages and calls of a session, those of a running turn included."""
    uncommitted = (await store.sessions.uncommitted(record)).values()
    messages = [
        *await Histories(store.sessions, keep=0).messages(record),
        *map(MESSAGES.decode, uncommitted),
    ]
    values = ValueView()
    return [values.of_message(one) for one in view_of(messages, MESSAGES_SHOWN)]
