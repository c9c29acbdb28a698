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
from pylash.cli.output import SECOND, duration_text, print_json
from pylash.cli.store_options import choose_store, engine_of, load_app, root_options, run
from pylash.engine.worker.config import WorkerConfig
from pylash.values.durations import micros
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
    "--restate", is_flag=True, help="Execute runs of Restate: the app's host is a RestateHost."
)
@click.option(
    "--endpoint", metavar="URL", help="Where Restate reaches this worker: http://10.0.0.7:9080."
)
@click.option(
    "--bind", metavar="HOST:PORT", help="Where it listens, if that differs: 0.0.0.0:9080."
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
def worker(  # noqa: PLR0913, PLR0917 - its options
    app: str,
    concurrency: int | None,
    restate: bool,
    endpoint: str | None,
    bind: str | None,
    log_level: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Run a worker until it is stopped.

    MODULE:APP names a Lash, such as shop:app, or ./shop.py:app for the file shop.py. The store is that of
    --store, else the one in the app's code, else PYLASH_STORE, else sqlite:///pylash.db.

    Ctrl-C or SIGTERM drains: nothing new is claimed, waiting runs are parked, and others have the grace period of the
    app to stop. A second signal ends at once; nothing is lost then either. Logs go to stderr.

    An app with a RestateHost listens at its endpoint, or at --bind, and registers the endpoint at the Restate server, which
    sends runs there. Several workers may listen at the same address. --restate is for scripts: it refuses any other app.

    \b
      pylash worker shop:app -c 50
      pylash worker shop:app --restate --endpoint http://workers.internal:9080 --bind 0.0.0.0:9080
    """
    chosen_store, as_json = root_options(store, as_json)
    handler = log_handler(FORMAT)
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    if log_level != "debug":  # a line for each call of a model, or of Restate
        logging.getLogger("httpx").setLevel(logging.WARNING)
    chosen = _configure(load_app(app), app, concurrency)
    engine = engine_of(chosen)
    if engine is not None:
        engine.choose_endpoint(endpoint, bind)
    elif restate or endpoint is not None or bind is not None:
        reason = (
            "its host is not a RestateHost: --restate, --endpoint and --bind are for one that is"
        )
        raise AppInvalid(app, reason)
    handler.setFormatter(LogFormatter(FORMAT, url_secrets(choose_store(chosen, chosen_store))))
    run(_work(chosen, as_json))


def _configure(app: Lash, named: str, concurrency: int | None) -> Lash:
    if app.worker_config is None:
        raise AppInvalid(named, "it was created with worker=None, which runs nothing")
    if concurrency is not None and engine_of(app) is not None:
        raise click.UsageError(
            "--concurrency is for workers of a store: Restate limits its runs itself."
        )
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
    facts = worker_facts(app)
    async with app:
        show_event(as_json, "started", **facts)
        await stop.wait()
        show_event(as_json, "draining", **drain_facts(app))
    show_event(as_json, "stopped")


def drain_facts(app: Lash) -> dict[str, Any]:
    """Return how many runs must stop before the worker ends, and how long it waits for them."""
    runs, config = app.runner.busy, app.worker_config or WorkerConfig()
    if not runs:
        return {"runs": 0}
    noun, grace = "run" if runs == 1 else "runs", duration_text(micros(config.grace))
    hint = f"waiting up to {grace} for {runs} {noun} to stop; press Ctrl-C again to leave at once"
    return {"runs": runs, "grace": micros(config.grace) / SECOND, "hint": hint}


def _exit_now(status: int) -> None:
    """Exit at once: everything that was recorded is in the store."""
    os._exit(status)


def worker_facts(app: Lash) -> dict[str, Any]:
    """Return what identifies a worker; passwords in the store's URL are hidden."""
    engine = engine_of(app)
    facts = {} if engine is None else engine.facts()
    return {"pid": os.getpid(), "store": shown_url(store_url(app.url)), **facts}


def show_event(as_json: bool, event: str, **more: Any) -> None:
    """Print the state of the worker: as JSON on stdout, or as text on stderr with the logs."""
    if as_json:
        print_json({"event": event, **more}, line=True)
    else:
        facts = more.get("hint") or "  ".join(f"{name} {value}" for name, value in more.items())
        click.echo(f"{click.style(event, fg='green')}  {printable(facts)}".rstrip(), err=True)
