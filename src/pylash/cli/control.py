"""``pylash signal``, ``cancel`` and ``retry``: what people tell processes and turns."""

from __future__ import annotations

from typing import Any

import click

from pylash.cli.asking import Asked, Json, run, shared
from pylash.cli.listing import UNKNOWN
from pylash.cli.output import paint, say, say_json
from pylash.durable import CancelProcess, SignalProcess
from pylash.runtime import JournalHost
from pylash.stores import RunRow, SqlStore
from pylash.values import NotBlocked, NothingToCancel, RunAmbiguous, RunUnknown, printable


def _done(asked: Asked, **what: Any) -> None:
    """Say what was done."""
    if asked.as_json:
        say_json(what)
    else:
        say(f"{paint(what['done'], 'green')}  {printable(what['id'])}")


# --- signal ---


@click.command()
@click.argument("id")
@click.argument("name")
@click.argument("payload", metavar="[JSON]", type=Json(), required=False)
@click.option(
    "--id",
    "signal_id",
    metavar="TEXT",
    help="Names the signal: the same one again is the same signal.",
)
@shared
def signal(asked: Asked, id: str, name: str, payload: Any, signal_id: str | None) -> None:  # noqa: A002 - the name in the help
    """Send a signal to a process.

    It waits in the process's log until the process takes it, so it may be sent early.

    \b
      pylash signal order-7 address '"5 High Street"'
      pylash signal order-7 paid '{"cents": 500}' --id payment-81
    """
    run(_signal(asked, id, name, payload, signal_id))


async def _signal(
    asked: Asked, process: str, name: str, payload: Any, signal_id: str | None
) -> None:

    async with asked.opened() as (host, store):
        command = SignalProcess(process, name, signal_id or host.new_token(), payload)
        await store.processes.perform(command)
    _done(asked, done="signalled", id=process, signal=name)


# --- cancel ---


@click.command()
@click.argument("id")
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@click.option("--force", is_flag=True, help="End a process at once, without its cleaning up.")
@shared
def cancel(asked: Asked, id: str, reason: str | None, force: bool) -> None:  # noqa: A002 - the name in the help
    """Ask a process, or the turn of a session, to end.

    ID is the whole id of a process, a session, or SESSION/TURN. Code that is cancelled may clean up first.

    \b
      pylash cancel order-7 --reason "the customer changed her mind"
    """
    run(_cancel(asked, id, reason, force))


async def _cancel(asked: Asked, text: str, reason: str | None, force: bool) -> None:

    async with asked.opened() as (_, store):
        named = await _named(store, text)
        if named is not None and named.settled is not None:
            raise NothingToCancel(text)
        if named is not None and named.kind == "process":
            await store.processes.perform(CancelProcess(text, reason, force))
        else:
            if force:
                raise click.UsageError("--force is for processes; a turn always cleans up.")
            await _cancel_turn(store, text, named, reason)
    _done(asked, done="asked to end", id=text)


async def _cancel_turn(store: SqlStore, text: str, turn: RunRow | None, reason: str | None) -> None:
    """Cancel the turn that a session is busy with; a given turn only if it is that one."""
    waits_its_turn = turn is not None and turn.status == "queued"
    session = text if turn is None else turn.session or ""
    if waits_its_turn or await store.sessions.cancel(session, reason or "cancelled") is None:
        raise NothingToCancel(text)


# --- retry ---


@click.command()
@click.argument("id")
@shared
def retry(asked: Asked, id: str) -> None:  # noqa: A002 - the name in the help
    """Let something that is blocked go on, after you have mended why it was.

    ID is the whole id of a process, a session, or SESSION/TURN.
    """
    run(_retry(asked, id))


async def _retry(asked: Asked, text: str) -> None:

    async with asked.opened() as (host, store):
        named = await _named(store, text)
        waits = named is not None and named.reason == UNKNOWN
        if named is None:
            await _retry_session(host, store, text)
        elif not await store.runs.retry(named.run, host.new_token()) and named.status != "blocked":
            raise NotBlocked(text, named.status, named.kind.capitalize())
    _done(asked, done="waits for a worker" if waits else "goes on", id=text)


async def _retry_session(host: JournalHost, store: SqlStore, session: str) -> None:

    blocked = await store.sessions.blocked(session)
    if blocked is None or not await store.runs.retry(blocked, host.new_token()):
        raise NotBlocked(session, "idle or at work", "Session")


async def _named(store: SqlStore, text: str) -> RunRow | None:
    """Return the process or turn of that whole id, or None if it is a session's."""
    exact = await store.inspection.named(text)
    if len(exact) > 1:
        raise RunAmbiguous(text, [f"{one.kind} {one.id}" for one in exact])
    if not exact and await store.sessions.get(text) is None:
        raise RunUnknown(text)
    return exact[0] if exact else None
