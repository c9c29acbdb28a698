"""``pylash signal``, ``cancel`` and ``retry``: control of processes and turns."""

from __future__ import annotations

from typing import Any, Final

import click

from pylash.cli.output import paint, print_json, print_line
from pylash.cli.store_options import Json, StoreOptions, confirm, run, with_store_options
from pylash.cli.views.listing import KINDS, UNKNOWN, describe_runs, print_runs
from pylash.durable.commands import CancelProcess, SignalProcess
from pylash.durable.runs import RunState
from pylash.engine.hosts.journal import JournalHost
from pylash.processes.control import ProcessControl
from pylash.stores.run_lists import RunRow
from pylash.stores.store import SqlStore
from pylash.values.process_errors import NotBlocked, NothingToCancel, RunAmbiguous, RunUnknown
from pylash.values.texts import printable

ALL: Final = 1 << 31
_KINDS: Final = [name for names in KINDS.values() for name in names]


def _print_done(options: StoreOptions, **what: Any) -> None:
    """Print what was done."""
    if options.as_json:
        print_json(what)
    else:
        print_line(f"{paint(what['done'], 'green')}  {printable(what['id'])}")


# --- signal ---


@click.command()
@click.argument("id")
@click.argument("name")
@click.argument("payload", metavar="[JSON]", type=Json(), required=False)
@click.option(
    "--id",
    "signal_id",
    metavar="TEXT",
    help="The id of the signal: sending the same id again has no effect.",
)
@with_store_options
def signal(options: StoreOptions, id: str, name: str, payload: Any, signal_id: str | None) -> None:  # noqa: A002 - the name in the help
    """Send a signal to a process.

    It waits in the process's log until the process takes it, so it may be sent early.

    \b
      pylash signal order-7 address '"5 High Street"'
      pylash signal order-7 paid '{"cents": 500}' --id payment-81
    """
    run(_signal(options, id, name, payload, signal_id))


async def _signal(
    options: StoreOptions, process: str, name: str, payload: Any, signal_id: str | None
) -> None:
    async with options.open_store() as (host, store):
        command = SignalProcess(process, name, signal_id or host.new_token(), payload)
        await ProcessControl(host, store, host.new_token).perform(command)
    _print_done(options, done="signalled", id=process, signal=name)


# --- cancel ---


@click.command()
@click.argument("id")
@click.option("--reason", metavar="TEXT", help="The reason, for the record.")
@click.option(
    "--force", is_flag=True, help="End a process at once, without running its clean-up code."
)
@with_store_options
def cancel(options: StoreOptions, id: str, reason: str | None, force: bool) -> None:  # noqa: A002 - the name in the help
    """Ask a process, or the turn of a session, to end.

    ID is the whole id of a process, a session, or SESSION/TURN. Code that is cancelled may clean up first.

    \b
      pylash cancel order-7 --reason "the customer changed her mind"
    """
    run(_cancel(options, id, reason, force))


async def _cancel(options: StoreOptions, text: str, reason: str | None, force: bool) -> None:
    async with options.open_store() as (host, store):
        named = await _find_named(store, text)
        if named is not None and named.settled is not None:
            raise NothingToCancel(text)
        if named is not None and named.kind == "process":
            command = CancelProcess(text, reason, force)
            await ProcessControl(host, store, host.new_token).perform(command)
        else:
            if force:
                raise click.UsageError("--force is for processes; a turn always cleans up.")
            await _cancel_turn(store, text, named, reason)
    _print_done(options, done="asked to end", id=text)


async def _cancel_turn(store: SqlStore, text: str, turn: RunRow | None, reason: str | None) -> None:
    """Cancel the current turn of a session; a given turn only if it is the current one."""
    is_queued = turn is not None and turn.status == "queued"
    session = text if turn is None else turn.session or ""
    if is_queued or await store.sessions.cancel(session, reason or "cancelled") is None:
        raise NothingToCancel(text)


# --- retry ---


@click.command()
@click.argument("id", required=False)
@click.option("--blocked", is_flag=True, help="Continue all blocked processes and turns.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_store_options
def retry(options: StoreOptions, id: str | None, blocked: bool, yes: bool) -> None:  # noqa: A002 - the name in the help
    """Continue a blocked process or turn, after its cause was fixed.

    ID is the whole id of a process, a session, or SESSION/TURN. pylash fork continues a process that has failed.

    With --blocked, all runs that pylash ps --status blocked shows are listed and continue after you confirm it, or with
    --yes. Runs that only wait for a worker with their code are left out: they continue when one starts.

    \b
      pylash retry order-7
      pylash retry --blocked --yes
    """
    if (id is None) is not blocked:
        raise click.UsageError("Name one run, or all blocked ones with --blocked.")
    if id is not None:
        run(_retry(options, id))
    else:
        run(_retry_all(options, yes))


async def _retry(options: StoreOptions, text: str) -> None:
    async with options.open_store() as (host, store):
        named = await _find_named(store, text)
        waits = named is not None and named.reason == UNKNOWN
        if named is None:
            await _retry_session(host, store, text)
        elif not await store.runs.retry(named.run, host.new_token()) and named.status != "blocked":
            raise NotBlocked(text, named.status, named.kind.capitalize())
    _print_done(options, done="waits for a worker" if waits else "continues", id=text)


async def _retry_all(options: StoreOptions, yes: bool) -> None:
    async with options.open_store() as (host, store):
        found = await store.inspection.runs([RunState.BLOCKED], _KINDS, ALL)
        blocked = [row for row in found if row.reason != UNKNOWN]
        if blocked and not options.as_json:
            print_runs(await describe_runs(store, blocked))
        if blocked:
            confirm(yes, f"Retry {'it' if len(blocked) == 1 else f'these {len(blocked)} runs'}?")
        # A run that is not blocked any more was retried or cancelled by somebody else meanwhile.
        token = host.new_token
        done = [row.id for row in blocked if await store.runs.retry(row.run, token())]
    if options.as_json:
        print_json({"done": "continues", "ids": done})
    elif blocked:
        print_line(f"{paint('continues', 'green')}  {len(done):,} of {len(blocked):,} runs")
    else:
        print_line("No run is blocked.")


async def _retry_session(host: JournalHost, store: SqlStore, session: str) -> None:
    blocked = await store.sessions.blocked(session)
    if blocked is None or not await store.runs.retry(blocked, host.new_token()):
        raise NotBlocked(session, "idle or at work", "Session")


async def _find_named(store: SqlStore, text: str) -> RunRow | None:
    """Return the process or turn with this whole id, or None if it is the id of a session."""
    exact = await store.inspection.named(text)
    if len(exact) > 1:
        raise RunAmbiguous(text, [f"{one.kind} {one.id}" for one in exact])
    if not exact and await store.sessions.get(text) is None:
        raise RunUnknown(text)
    return exact[0] if exact else None
