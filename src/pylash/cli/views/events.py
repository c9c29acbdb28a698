"""``pylash events``: the log of a process."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import click

from pylash.cli.output import (
    brief,
    columns,
    iso,
    moment,
    paint,
    print_json,
    print_line,
)
from pylash.cli.store_options import StoreOptions, run, with_store_options
from pylash.cli.views.lookup import find_run
from pylash.durable.processes import ProcessEvent
from pylash.processes.handles import process_log
from pylash.stores.store import SqlStore
from pylash.values.durations import micros
from pylash.values.errors import LashError
from pylash.values.texts import cells, clipped, padded, printable

WIDE: Final = 100
KIND: Final = 20
NET_SECONDS: Final = 0.5
"""How often a log is read without a notification: following a process does not ask for its end to be notified."""


class Start(NamedTuple):
    """Where to begin: after an event's number, and at most this many microseconds ago."""

    after: int = 0
    within: int | None = None


class Since(click.ParamType[Start]):
    """An event's number, or a duration before now."""

    name = "since"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Start:
        """Return where to begin."""
        if isinstance(value, Start):
            return value
        if value.isdigit():
            return Start(after=int(value))
        try:
            return Start(within=micros(value))
        except LashError:
            self.fail(
                f"{value!r} is neither the number of an event nor a duration such as 10m.",
                param,
                ctx,
            )


@click.command()
@click.argument("id")
@click.option("-f", "--follow", is_flag=True, help="Wait for more, until the process ends.")
@click.option(
    "--since",
    type=Since(),
    default=Start(),
    metavar="WHEN",
    help="Only events after this number, such as 12, or within this time, such as 10m.",
)
@with_store_options
def events(options: StoreOptions, id: str, follow: bool, since: Start) -> None:  # noqa: A002 - the name in the help
    """Print the log of a process, and follow it with -f.

    Following ends when the process does. With --json every event is one line.

    \b
      pylash events order-7 -f
      pylash events order-7 --since 10m --json
    """
    run(_events(options, id, follow, since))


async def _events(options: StoreOptions, text: str, follow: bool, since: Start) -> None:
    async with options.open_store() as (host, store):
        process = await _process(store, text)
        now = await store.inspection.now()
        earliest = 0 if since.within is None else now - since.within
        log = process_log(host.hub, store, process, since.after, follow, NET_SECONDS)
        async for event in log:
            if event.at >= earliest:
                _print_event(options, event)


async def _process(store: SqlStore, text: str) -> str:
    found = await find_run(store, text)
    if isinstance(found, str) or found.kind != "process":
        kind = "session" if isinstance(found, str) else "turn"
        raise click.UsageError(
            f"{text!r} is a {kind}, and only processes have a log: use pylash show."
        )
    return found.id


def _print_event(options: StoreOptions, event: ProcessEvent) -> None:
    if options.as_json:
        line = {
            "sequence": event.sequence,
            "type": event.type,
            "payload": event.payload,
            "key": event.key,
            "at": iso(event.at),
        }
        print_json(line, line=True)
        return
    room = columns()
    when = moment(event.at) if room is None or room >= WIDE else moment(event.at)[11:]
    head = f"{event.sequence:>4}  {when}  "
    kind = padded(printable(event.type), KIND)
    payload = "" if event.payload is None else brief(event.payload)
    if room is not None:
        payload = clipped(payload, max(0, room - len(head) - cells(kind) - 2))
    print_line(f"{paint(head, 'bright_black')}{paint(kind, 'cyan')}  {payload}".rstrip())
