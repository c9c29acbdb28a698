"""``pylash migrate`` and ``pylash prune``: keeping a store in order."""

from __future__ import annotations

import click

from pylash.app import open_host
from pylash.cli.asking import Asked, Length, run, shared
from pylash.cli.output import paint, say, say_json
from pylash.runtime import PRUNE_AT_ONCE, SystemClock, system_entropy
from pylash.stores import SCHEMA, schema_of


@click.command()
@shared
def migrate(asked: Asked) -> None:
    """Bring the store up to date, or set up an empty PostgreSQL database.

    No row is lost, and workers of the version before may go on meanwhile. An SQLite file is also brought up
    to date whenever an app opens it.
    """
    run(_migrate(asked))


async def _migrate(asked: Asked) -> None:

    before, _ = await schema_of(asked.url, clock=SystemClock(), entropy=system_entropy)
    async with open_host(asked.url, secret=asked.secret, migrate=True, member=False):
        pass
    after = max(before, SCHEMA)
    if asked.as_json:
        say_json({"before": before, "after": after})
    elif before == after:
        say(f"{paint('up to date', 'green')}  schema {after}")
    else:
        say(f"{paint('migrated', 'green')}  from schema {before} to {after}")


@click.command()
@click.option(
    "--older-than",
    type=Length(),
    required=True,
    metavar="AGE",
    help="What ended longer ago than this, such as 30d.",
)
@shared
def prune(asked: Asked, older_than: int) -> None:
    """Forget the journals of what ended long ago, a little at a time.

    Results, logs, messages and answers stay. Workers do the same by themselves after the retention of their
    app, which is 30 days.
    """
    run(_prune(asked, older_than))


async def _prune(asked: Asked, age: int) -> None:

    runs = 0
    async with asked.opened() as (_, store):
        while pruned := await store.journal.prune(age, PRUNE_AT_ONCE):
            runs += pruned
    if asked.as_json:
        say_json({"runs": runs})
    else:
        say(f"{paint('pruned', 'green')}  the journals of {runs:,} runs")
