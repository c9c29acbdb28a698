"""Parts that commands share: the store, parameter types, and loading an app."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from pylash.app import Lash, open_host, store_url
from pylash.cli.options import json_option, store_option
from pylash.durable.ports import EffectHost
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.runner_parts import Engine
from pylash.stores.store import SqlStore
from pylash.values.canonical import decode
from pylash.values.durations import micros
from pylash.values.errors import LashError, StoreMissing
from pylash.values.process_errors import AppInvalid

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class StoreOptions:
    """The arguments of every command: the store, and whether to print JSON."""

    def __init__(self, store: str | None, as_json: bool) -> None:
        self.url, app = _locate(store)
        self.secret = None if app is None else app.secret
        # The engine that executes the runs of the app whose store it is, if the app is known and has one.
        self.engine = None if app is None else engine_of(app)
        self.as_json = as_json

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[tuple[JournalHost, SqlStore]]:
        """Open the store for inspection and answers: nothing is set up, migrated or executed."""
        async with open_host(self.url, secret=self.secret, migrate=False, member=False) as host:
            assert isinstance(host.store, SqlStore)  # every store with a URL has these methods
            yield host, host.store

    def effects(self, host: JournalHost) -> EffectHost:
        """Return the host of the runs in an open store: that of the app, if it is known."""
        return host if self.engine is None else self.engine(host)


def engine_of(app: Lash) -> Engine | None:
    """Return the engine that executes the runs of an app; None if workers of its store do."""
    return app.given_host if isinstance(app.given_host, Engine) else None


def _locate(store: str | None) -> tuple[str, Lash | None]:
    """Return the URL of the store, and the app if it is that of one."""
    app = None
    # A malformed URL is not treated as an app: the error would show its password.
    if store is not None and "://" not in store and ":" in store and "@" not in store:
        app = load_app(store)
        store = app.url
    url = store_url(store)
    if url.startswith("memory:"):
        raise StoreMissing(url, "a memory:// store is visible only to the program that opened it")
    return url, app


def choose_store(app: Lash, option: str | None) -> str:
    """Let an app use the store of the option, if one is given; return the URL that it opens.

    The order is that of ``Lash``: a store that is named in code or by an option, then ``PYLASH_STORE``, then the default.
    The environment does not replace the store in the app's code, because the programs that start its work use that one.
    """
    if option is not None:
        app.url, of = _locate(option)
        app.secret = app.secret if of is None or of.secret is None else of.secret
    return store_url(app.url)


def root_options(store: str | None, as_json: bool) -> tuple[str | None, bool]:
    """Return the store and the form of the output, each given after the command or before it."""
    before = click.get_current_context().find_root().params
    return store or before.get("store"), as_json or bool(before.get("as_json"))


def with_store_options(function: F) -> F:
    """Add the options that all commands have; the function gets a ``StoreOptions`` first."""

    @store_option
    @json_option
    @functools.wraps(function)
    def call(*args: Any, store: str | None, as_json: bool, **kwargs: Any) -> Any:
        return function(StoreOptions(*root_options(store, as_json)), *args, **kwargs)

    return call  # type: ignore[return-value]  # the same, with two options more


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end."""
    return asyncio.run(work)


def confirm(yes: bool, question: str) -> None:
    """Ask before something is done, unless ``--yes`` was given; nobody can be asked without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f"{question} Nobody can be asked here: add --yes. [usage]")
    click.confirm(question, abort=True)


class Json(click.ParamType[Any]):
    """A value as JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of a JSON text."""
        try:
            return decode(value.encode())
        except ValueError:
            quoted = "'\"text\"'"
            self.fail(f"{value!r} is not JSON: write a string as {quoted}.", param, ctx)


class DurationParam(click.ParamType[int]):
    """A duration such as 30d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return a duration in microseconds."""
        try:
            return micros(value)
        except LashError as error:
            self.fail(error.message, param, ctx)


def load_app(named: str) -> Lash:
    """Return the app that ``module:app`` names; modules in the current folder are found too.

    The path of a file may be used instead of the module.
    """
    module, colon, path = named.rpartition(":")
    if not (module and colon and path):
        raise AppInvalid(named, "it is not of the form module:variable")
    found: Any = _import_module(named, module)
    for part in path.split("."):
        if not hasattr(found, part):
            raise AppInvalid(named, f"there is no {part!r} in {module!r}")
        found = getattr(found, part)
    if not isinstance(found, Lash):
        kind = f"{type(found).__module__}.{type(found).__qualname__}"
        raise AppInvalid(named, f"that is a {kind}, not a pylash.Lash")
    return found


def _import_module(named: str, module: str) -> Any:
    here = os.getcwd()
    if module.endswith(".py") or os.sep in module:
        file = Path(module if module.endswith(".py") else f"{module}.py")
        if not file.is_file():
            raise AppInvalid(named, f"there is no file {str(file)!r}")
        here, module = str(file.resolve().parent), file.stem
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise AppInvalid(
                named, f"importing it needs {error.name!r}, which is not installed"
            ) from error
        raise AppInvalid(named, f"there is no module {error.name!r}") from error
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise AppInvalid(named, f"importing it failed with {cause}") from error
