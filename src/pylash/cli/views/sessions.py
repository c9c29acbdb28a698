"""``pylash sessions``: lists sessions with their turns."""

from __future__ import annotations

from typing import Any

import click

from pylash.cli.output import (
    STATUS_COLOURS,
    Cell,
    Column,
    duration_text,
    iso,
    on_terminal,
    paint,
    print_json,
    print_line,
    print_table,
)
from pylash.cli.store_options import StoreOptions, run, with_store_options
from pylash.durable.sessions import SessionView
from pylash.values.secrets import shown_url


@click.command()
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="The maximum number of rows.",
)
@click.option("--tag", metavar="TAG", help="Only sessions with this tag.")
@click.option("--after", metavar="ID", help="Continue a list after this session.")
@with_store_options
def sessions(options: StoreOptions, limit: int, tag: str | None, after: str | None) -> None:
    """List sessions, those that were created last first.

    STATUS is that of the turn that runs, waits or is blocked, TURNS counts the turns that have ended, and LAST is how
    long ago the last one ended.

    \b
      pylash sessions -n 20
      pylash sessions -n 20 --after chat-42 --json
    """
    run(_sessions(options, limit, tag, after))


async def _sessions(options: StoreOptions, limit: int, tag: str | None, after: str | None) -> None:
    async with options.open_store() as (_, store):
        found = await store.sessions.listed(limit, after, tag)
        now = await store.inspection.now()
    if options.as_json:
        print_json([_describe(view) for view in found])
        return
    if not found:
        print_line(f"Nothing to show in {shown_url(options.url)}.")
        return
    titles = [
        Column("STATUS"),
        Column("ID", share=3),
        Column("TURNS", right=True),
        Column("LAST", right=True),
    ]
    print_table(titles, [_line(view, now) for view in found])
    if len(found) == limit and on_terminal():
        print_line(paint(f"the newest {limit}; -n and --after show more", "bright_black"))


def _describe(view: SessionView) -> dict[str, Any]:
    return {
        "id": view.id,
        "status": view.status,
        "turns": view.turns,
        "created": iso(view.created),
        "updated": iso(view.updated),
        "tags": list(view.tags),
    }


def _line(view: SessionView, now: int) -> tuple[str | Cell, ...]:
    status = Cell("idle") if view.status is None else Cell(view.status, STATUS_COLOURS[view.status])
    last = "" if view.updated is None else duration_text(now - view.updated)
    return status, view.id, str(view.turns), last
