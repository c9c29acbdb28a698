"""``pylash worker``: an app's worker, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any, Final

import click
import msgspec

from pylash.app import Lash, store_url
from pylash.cli.asking import loaded, run
from pylash.cli.log_format import LogFormatter, log_handler
from pylash.cli.options import json_option, store_option
from pylash.cli.output import say_json
from pylash.values import AppInvalid, printable, shown_url, url_secrets

FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"
LEVELS: Final = ("debug", "info", "warning", "error")


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "-c", "--concurrency", type=click.IntRange(min=1), help="How many runs execute at once."
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="How much to log.",
)
@store_option
@json_option
def worker(
    app: str, concurrency: int | None, log_level: str, store: str | None, as_json: bool
) -> None:
    """Run a worker until it is told to stop.

    MODULE:APP names a Lash, such as shop:app or ./shop.py:app in shop.py of the current folder. Its own store
    is used unless another is named.

    Ctrl-C or SIGTERM drains: nothing new is claimed, and what waits is parked. A second signal ends at once;
    nothing is lost then either. Logs go to stderr.
    """
    before = click.get_current_context().find_root().params
    handler = log_handler(FORMAT)
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    chosen = _configured(loaded(app), app, concurrency)
    chosen.url = store or before.get("store") or chosen.url
    handler.setFormatter(LogFormatter(FORMAT, url_secrets(store_url(chosen.url))))
    run(_work(chosen, as_json or bool(before.get("as_json"))))


def _configured(app: Lash, named: str, concurrency: int | None) -> Lash:

    if app.worker_config is None:
        raise AppInvalid(named, "it was made with worker=None, which runs nothing")
    if concurrency is not None:
        app.worker_config = msgspec.structs.replace(app.worker_config, concurrency=concurrency)
    return app


async def _work(app: Lash, as_json: bool) -> None:

    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def told(number: int) -> None:
        if stop.is_set():
            _leave(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told, number)
    async with app:
        _say(as_json, "started", **_about(app))
        await stop.wait()
        _say(as_json, "draining", hint="once more ends it at once")
    _say(as_json, "stopped")


def _leave(status: int) -> None:
    """End at once: whoever takes over finds everything that was recorded."""
    os._exit(status)


def _about(app: Lash) -> dict[str, Any]:

    return {"pid": os.getpid(), "store": shown_url(store_url(app.url))}


def _say(as_json: bool, event: str, **more: Any) -> None:
    """Say where the worker stands: to programs on stdout, to people on stderr with the logs."""
    if as_json:
        say_json({"event": event, **more}, line=True)
    else:
        facts = "  ".join(
            f"{name} {value}" if name != "hint" else f"({value})" for name, value in more.items()
        )
        click.echo(f"{click.style(event, fg='green')}  {printable(facts)}".rstrip(), err=True)
