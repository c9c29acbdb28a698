"""``pylash fork``: continues what has failed as a new process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pylash.cli.output import paint, print_json, print_line
from pylash.cli.store_options import StoreOptions, confirm, run, with_store_options
from pylash.durable.commands import ForkProcess
from pylash.durable.processes import checked_process
from pylash.durable.runs import JournalEntry
from pylash.engine.runner_parts import collect
from pylash.processes.control import ProcessControl
from pylash.processes.forks import fork_registration
from pylash.processes.timeline import Effect, effects_from
from pylash.stores.store import SqlStore
from pylash.values.names import MAX_NAME_BYTES, check_name
from pylash.values.process_errors import (
    AppNeeded,
    ForkInvalid,
    MissingProcessExecutionId,
    ProcessConflict,
    ProcessUnknown,
)
from pylash.values.texts import printable


@click.command()
@click.argument("id")
@click.option(
    "--from",
    "from_effect",
    metavar="EFFECT",
    help="The first effect to run again: its key, or its name in pylash show.",
)
@click.option(
    "--id", "new_id", metavar="NEW", help="The id of the new process; otherwise one is made."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_store_options
def fork(
    options: StoreOptions,
    id: str,  # noqa: A002 - the name in the help
    from_effect: str | None,
    new_id: str | None,
    yes: bool,
) -> None:
    """Continue a failed process as a new one, with what it recorded.

    The effects that succeeded are kept and not executed again; the one that failed, and everything after it, runs again with
    the code of the workers. With --from, what had ended when that effect began is kept. Waits are opened again.

    The effects are listed first, and the fork is made after you confirm it, or with --yes.

    \b
      pylash fork order-7
      pylash fork order-7 --from charge --id order-7-again --yes
    """
    run(_fork(options, id, from_effect, new_id, yes))


async def _fork(
    options: StoreOptions, process: str, from_effect: str | None, new_id: str | None, yes: bool
) -> None:
    async with options.open_store() as (host, store):
        record = await store.processes.get(checked_process(process))
        if record is None:
            raise ProcessUnknown(process)
        carrier = record.registration.carrier
        if carrier and (options.engine is None or options.engine.engine != carrier):
            raise AppNeeded(process, carrier)
        await collect(options.engine, store, record)
        if new_id is None:
            new_id = f"{process[:MAX_NAME_BYTES]}-fork-{host.new_token()}"
        check_name("process id", new_id, error=MissingProcessExecutionId)
        await _check_free(store, new_id)
        entries = await store.journal.timeline(record.run)
        if from_effect is not None:
            from_effect = _key_of(process, entries, from_effect)
        registration, keys = await fork_registration(store, process, from_effect, new_id)
        effects = effects_from(entries, record.settled)
        kept = [one for one in effects if one.key in set(keys)]
        again = [one for one in effects if one.key not in set(keys)]
        if not options.as_json:
            _print_plan(kept, again)
        confirm(yes, "Fork it?")
        command = ForkProcess(process, registration, tuple(keys))
        await ProcessControl(host, store, host.new_token).perform(command)
    if options.as_json:
        described = {"kept": [one.key for one in kept], "again": [one.key for one in again]}
        print_json({"done": "forked", "id": new_id, "of": process, **described})
    else:
        print_line(f"{paint('forked', 'green')}  {printable(new_id)}")


async def _check_free(store: SqlStore, new_id: str) -> None:
    if await store.processes.get(new_id) is not None:
        raise ProcessConflict(new_id)


def _key_of(process: str, entries: Sequence[JournalEntry], text: str) -> str:
    """Return the key of the effect that a key, or the name of one effect, means."""
    if any(entry.key == text for entry in entries):
        return text
    named = [one.key for one in effects_from(entries) if one.name == text and one.attempt == 1]
    if len(named) != 1:
        raise ForkInvalid(process, text)
    return named[0]


def _print_plan(kept: Sequence[Effect], again: Sequence[Effect]) -> None:
    for title, effects, colour in (("kept", kept, "green"), ("runs again", again, "yellow")):
        for one in effects:
            facts: list[Any] = [
                one.name,
                f"({one.attempt})" if one.attempt > 1 else "",
                one.error or "",
            ]
            text = "  ".join(str(fact) for fact in facts if fact)
            print_line(f"{paint(f'{title:12}', colour)}{printable(text)}")
    if not kept and not again:
        print_line("Nothing is recorded: everything runs for the first time.")
    elif again:
        print_line()
    else:
        print_line("Everything after these runs for the first time.")
