"""``pylash migrate`` and ``pylash prune``: maintenance of a store."""

from __future__ import annotations

import asyncio

import click

from pylash.app import open_host
from pylash.cli.output import paint, print_json, print_line
from pylash.cli.store_options import DurationParam, StoreOptions, run, with_store_options
from pylash.engine.system import SystemClock, system_entropy
from pylash.engine.worker.pruning import PRUNE_AT_ONCE
from pylash.stores.migrations import SCHEMA
from pylash.stores.store import schema_of, sqlite_path
from pylash.values.secrets import shown_url


@click.command()
@with_store_options
def migrate(options: StoreOptions) -> None:
    """Migrate the store to the current schema, or set up a new SQLite file or an empty PostgreSQL database.

    No row is lost, and workers of the previous version may keep running. A SQLite file is also migrated
    whenever an app opens it. A new store can be filled with pylash import.

    \b
      pylash migrate --store sqlite:///copy.db
    """
    run(_migrate(options))


async def _migrate(options: StoreOptions) -> None:
    path = sqlite_path(options.url)
    before = 0
    # The database of another program is refused by schema_of: only a file that does not exist is created.
    if path is None or await asyncio.to_thread(path.exists):
        before, _ = await schema_of(options.url, clock=SystemClock(), entropy=system_entropy)
    async with open_host(options.url, secret=options.secret, migrate=True, member=False):
        pass
    after = max(before, SCHEMA)
    if options.as_json:
        print_json({"before": before, "after": after})
    elif before == after:
        print_line(f"{paint('up to date', 'green')}  schema {after}")
    elif before == 0:
        print_line(f"{paint('created', 'green')}  schema {after} in {shown_url(options.url)}")
    else:
        print_line(f"{paint('migrated', 'green')}  from schema {before} to {after}")


@click.command()
@click.option(
    "--older-than",
    type=DurationParam(),
    required=True,
    metavar="AGE",
    help="Delete journals of runs that ended longer ago than this, such as 30d.",
)
@with_store_options
def prune(options: StoreOptions, older_than: int) -> None:
    """Delete the journals of runs that ended long ago, in small batches.

    Results, logs, messages and answers stay. Workers do the same after the retention time of their
    app (default: 30 days).
    """
    run(_prune(options, older_than))


async def _prune(options: StoreOptions, age: int) -> None:
    runs = 0
    async with options.open_store() as (_, store):
        while pruned := await store.journal.prune(age, PRUNE_AT_ONCE):
            runs += pruned
    if options.as_json:
        print_json({"runs": runs})
    else:
        print_line(f"{paint('pruned', 'green')}  the journals of {runs:,} runs")
