"""``pylash events``: the log of a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import click

from pylash.cli.asking import Asked, run, shared
from pylash.cli.finding import found
from pylash.cli.output import (
    brief,
    columns,
    iso,
    moment,
    paint,
    say,
    say_json,
)
from pylash.durable import ProcessEvent
from pylash.stores import SqlStore
from pylash.values import LashError, cells, clipped, micros, padded, printable

WIDE: Final = 100
KIND: Final = 20
NET_SECONDS: Final = 0.5
"""How often a log is looked at, hint or no hint."""


class Start(NamedTuple):
    """Where to begin: after a number of an event, and not longer ago than microseconds."""

    after: int = 0
    within: int | None = None


class Since(click.ParamType[Start]):
    """A number of an event, or a duration before now."""

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
                f"{value!r} is no number of an event and no duration such as 10m.", param, ctx
            )


@click.command()
@click.argument("id")
@click.option("-f", "--follow", is_flag=True, help="Wait for more, until the process ends.")
@click.option(
    "--since",
    type=Since(),
    default=Start(),
    metavar="WHEN",
    help="Only events after a number, such as 12, or in the last while, such as 10m.",
)
@shared
def events(asked: Asked, id: str, follow: bool, since: Start) -> None:  # noqa: A002 - the name in the help
    """Print the log of a process, and follow it with -f.

    Following ends when the process does. With --json every event is one line.

    \b
      pylash events order-7 -f
      pylash events order-7 --since 10m --json
    """
    run(_events(asked, id, follow, since))


async def _events(asked: Asked, text: str, follow: bool, since: Start) -> None:
    async with asked.opened() as (_, store):
        process = await _process(store, text)
        now = await store.inspection.now()
        earliest = 0 if since.within is None else now - since.within
        async for event in _logged(store, process, since.after, follow):
            if event.at >= earliest:
                _say(asked, event)


async def _process(store: SqlStore, text: str) -> str:

    meant = await found(store, text)
    if isinstance(meant, str) or meant.kind != "process":
        kind = "session" if isinstance(meant, str) else "turn"
        raise click.UsageError(f"{text!r} is a {kind}, and only processes have a log: use show.")
    return meant.id


async def _logged(
    store: SqlStore, process: str, after: int, follow: bool
) -> AsyncIterator[ProcessEvent]:
    """Yield the log of a process after a sequence; following waits for more until it has ended."""
    news = asyncio.Event()

    def hear(topic: str) -> None:
        if topic in ("", f"events:{process}", f"process:{process}"):
            news.set()

    stop = store.subscribe(hear)
    try:
        while True:
            news.clear()
            # Before the log is read: what was logged until it ended is then in it.
            record = await store.processes.get(process)
            while found := await store.processes.events(process, after):
                for event in found:
                    after = event.sequence
                    yield event
            if not follow or record is None or record.state.status != "open":
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(NET_SECONDS):
                    await news.wait()
    finally:
        stop()


def _say(asked: Asked, event: ProcessEvent) -> None:

    if asked.as_json:
        line = {
            "sequence": event.sequence,
            "type": event.type,
            "payload": event.payload,
            "key": event.key,
            "at": iso(event.at),
        }
        say_json(line, line=True)
        return
    room = columns()
    when = moment(event.at) if room is None or room >= WIDE else moment(event.at)[11:]
    head = f"{event.sequence:>4}  {when}  "
    kind = padded(printable(event.type), KIND)
    payload = "" if event.payload is None else brief(event.payload)
    if room is not None:
        payload = clipped(payload, max(0, room - len(head) - cells(kind) - 2))
    say(f"{paint(head, 'bright_black')}{paint(kind, 'cyan')}  {payload}".rstrip())
