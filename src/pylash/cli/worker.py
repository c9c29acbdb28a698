"""``pylash worker``: runs an app's worker until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any, Final

import click
import msgspec

from pylash.app import Lash, store_url
from pylash.cli.log_format import LogFormatter, log_handler
from pylash.cli.options import json_option, store_option
from pylash.cli.output import print_json
from pylash.cli.store_options import load_app, run
from pylash.values.process_errors import AppInvalid
from pylash.values.secrets import shown_url, url_secrets
from pylash.values.texts import printable

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
    """Run a worker until it is stopped.

    MODULE:APP names a Lash, such as shop:app, or ./shop.py:app for the file shop.py. Its own store
    is used unless another is given.

    Ctrl-C or SIGTERM drains: nothing new is claimed, and waiting runs are parked. A second signal ends at once;
    nothing is lost then either. Logs go to stderr.
    """
    before = click.get_current_context().find_root().params
    handler = log_handler(FORMAT)
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    chosen = _configure(load_app(app), app, concurrency)
    chosen.url = store or before.get("store") or chosen.url
    handler.setFormatter(LogFormatter(FORMAT, url_secrets(store_url(chosen.url))))
    run(_work(chosen, as_json or bool(before.get("as_json"))))


def _configure(app: Lash, named: str, concurrency: int | None) -> Lash:
    if app.worker_config is None:
        raise AppInvalid(named, "it was created with worker=None, which runs nothing")
    if concurrency is not None:
        app.worker_config = msgspec.structs.replace(app.worker_config, concurrency=concurrency)
    return app


async def _work(app: Lash, as_json: bool) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stop.is_set():
            _exit_now(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    async with app:
        show_event(as_json, "started", **worker_facts(app))
        await stop.wait()
        show_event(as_json, "draining", hint="once more ends it at once")
    show_event(as_json, "stopped")


def _exit_now(status: int) -> None:
    """Exit at once: everything that was recorded is in the store."""
    os._exit(status)


def worker_facts(app: Lash) -> dict[str, Any]:
    """Return what identifies a worker; passwords in the store's URL are hidden."""
    return {"pid": os.getpid(), "store": shown_url(store_url(app.url))}


def show_event(as_json: bool, event: str, **more: Any) -> None:
    """Print the state of the worker: as JSON on stdout, or as text on stderr with the logs."""
    if as_json:
        print_json({"event": event, **more}, line=True)
    else:
        facts = "  ".join(
            f"{name} {value}" if name != "hint" else f"({value})" for name, value in more.items()
        )
        click.echo(f"{click.style(event, fg='green')}  {printable(facts)}".rstrip(), err=True)
