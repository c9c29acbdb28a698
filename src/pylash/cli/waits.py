"""``pylash waits`` and ``pylash resolve``: list open waits, and answer them."""

from __future__ import annotations

from string import hexdigits
from typing import Any

import click

from pylash.cli.output import (
    Cell,
    Column,
    brief,
    duration_text,
    iso,
    paint,
    print_json,
    print_line,
    print_table,
)
from pylash.cli.store_options import Json, StoreOptions, run, with_store_options
from pylash.durable.waits import OpenWait, ResolveOutcome, ToolCompletion
from pylash.engine.hosts.journal import JournalHost
from pylash.processes.control import ProcessControl
from pylash.processes.waits import is_approval, open_waits, resolve_wait, wait_name
from pylash.stores.store import SqlStore
from pylash.values.errors import AwaitEventUnknownOrRevoked, WaitKeyInvalid
from pylash.values.process_errors import AlreadyResolved, RunAmbiguous
from pylash.values.secrets import shown_url
from pylash.values.texts import clipped

SHORT = 12
"""How many characters of a wait's id are shown: enough to be unique."""


@click.command()
@click.option("--session", metavar="ID", help="Only waits of this session and its subagents.")
@with_store_options
def waits(options: StoreOptions, session: str | None) -> None:
    """List open waits, the oldest first.

    Approvals, deferred tools, signals, and your own waits. Answer one with pylash resolve and its ID; its
    key, which can be mailed to somebody, is in the output of --json.
    """
    run(_waits(options, session))


async def _waits(options: StoreOptions, session: str | None) -> None:
    async with options.open_store() as (host, store):
        found = await open_waits(host, host.store.processes, session)
        now = await store.inspection.now()
    if options.as_json:
        print_json([describe_wait(wait) for wait in found])
    else:
        _draw(found, now, shown_url(options.url))


def describe_wait(wait: OpenWait) -> dict[str, Any]:
    """Return a wait as a JSON value."""
    return {
        "id": wait.name.id,
        "kind": wait.kind,
        "title": wait.title,
        "tool": wait.tool,
        "arguments": wait.arguments,
        "of": _owner(wait),
        "opened": iso(wait.opened),
        "deadline": iso(wait.deadline),
        "key": wait.key,
    }


def _owner(wait: OpenWait) -> str:
    """Return the process or turn that waits."""
    session = getattr(wait.name.scope, "session_id", None)
    return wait.name.scope.id if session is None else f"{session}/{wait.name.scope.id}"


def _draw(found: list[OpenWait], now: int, url: str) -> None:
    if not found:
        print_line(f"Nothing waits for an answer in {url}.")
        return
    titles = [
        Column("ID"),
        Column("KIND"),
        Column("OF", share=1),
        Column("WHAT", share=2),
        Column("SINCE", right=True),
        Column("LEFT", right=True),
    ]
    rows = []
    for wait in found:
        call = "" if wait.tool is None else f": {wait.tool} {brief(wait.arguments)}"
        left = "" if wait.deadline is None else duration_text(wait.deadline - now)
        rows.append(
            (
                Cell(wait.name.id[:SHORT], "cyan"),
                Cell(wait.kind, "yellow"),
                _owner(wait),
                f"{wait.title}{call}",
                duration_text(now - wait.opened),
                left,
            )
        )
    print_table(titles, rows)


@click.command()
@click.argument("key")
@click.argument("answer", metavar="[JSON]", type=Json(), required=False)
@click.option("--error", metavar="TEXT", help="Answer with an error instead of a value.")
@click.option("--by", metavar="NAME", help="The name of the person who answers, for the record.")
@with_store_options
def resolve(
    options: StoreOptions, key: str, answer: Any, error: str | None, by: str | None
) -> None:
    """Answer a wait.

    KEY is a wait's key, or the ID that pylash waits shows. An approval is answered with true or false, or
    with a record that has approved and optionally reason, by and arguments; a deferred tool with its result.
    Without JSON, a signal or your own wait is answered with null. The first answer wins.

    \b
      pylash resolve 4ed6b596af9c true --by ann
      pylash resolve 4ed6b596af9c '{"approved": false, "reason": "too much"}'
    """
    source = click.get_current_context().get_parameter_source("answer")
    given = error is not None or source is click.core.ParameterSource.COMMANDLINE
    run(_resolve(options, key, answer, error, by, given=given))


async def _resolve(
    options: StoreOptions, key: str, answer: Any, error: str | None, by: str | None, *, given: bool
) -> None:
    async with options.open_store() as (host, store):
        full_key = key if key.startswith("v1.") else await _find_key(host, store, key)
        if not given:
            _require_answer(host, full_key)
        control = ProcessControl(host, store, host.new_token)
        outcome = await resolve_wait(control, full_key, answer, error, by)
    _check_outcome(outcome)
    if options.as_json:
        print_json({"status": outcome.status})
    else:
        print_line(paint("accepted", "green"))


def _require_answer(host: JournalHost, key: str) -> None:
    """Refuse an empty answer to a wait that needs a value."""
    name = wait_name(host, key)
    if name is not None and is_approval(name):
        answers = 'true, false, or {"approved": false, "reason": "…"}'
        raise click.UsageError(f"An approval needs an answer: {answers}.")
    if name is not None and isinstance(name.wait, ToolCompletion):
        raise click.UsageError("A deferred tool needs its result, as JSON; null if it has none.")


async def _find_key(host: JournalHost, store: SqlStore, short: str) -> str:
    """Return the key of the open wait whose id has this prefix."""
    if not set(short) <= set(hexdigits):
        raise WaitKeyInvalid(clipped(short, 40))
    waits = await open_waits(host, host.store.processes) if short else []
    found = [wait for wait in waits if wait.name.id.startswith(short)]
    if len(found) > 1:
        raise RunAmbiguous(short, [wait.name.id[: 2 * SHORT] for wait in found])
    if not found and short and await store.inspection.has_ended(short):
        raise AlreadyResolved("answered")
    if not found:
        raise AwaitEventUnknownOrRevoked
    return found[0].key


def _check_outcome(outcome: ResolveOutcome) -> None:
    if outcome.status == "unknown_or_revoked":
        raise AwaitEventUnknownOrRevoked
    if outcome.status == "already_resolved":
        end = outcome.terminal
        raise AlreadyResolved("answered" if end is None else str(end.__struct_config__.tag))
