"""What commands share: which store they mean, how they read values, and how an app is found."""

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
from pylash.runtime import JournalHost
from pylash.stores import SqlStore
from pylash.values import AppInvalid, LashError, StoreMissing, decode, micros

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Asked:
    """What every command is told: which store, and whether programs read what it prints."""

    def __init__(self, store: str | None, as_json: bool) -> None:
        self.url, self.secret = _place(store)
        self.as_json = as_json

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[JournalHost, SqlStore]]:
        """Open the store to look and to answer: nothing is set up, migrated or run."""
        async with open_host(self.url, secret=self.secret, migrate=False, member=False) as host:
            assert isinstance(host.store, SqlStore)  # every store that a URL names is one
            yield host, host.store


def _place(store: str | None) -> tuple[str, Any]:
    """Return the URL of the store and the secret of its keys, if an app gives one."""
    secret = None
    # A URL with a mistake in it is not taken for an app: its password would be shown.
    if store is not None and "://" not in store and ":" in store and "@" not in store:
        app = loaded(store)
        store, secret = app.url, app.secret
    url = store_url(store)
    if url.startswith("memory:"):
        raise StoreMissing(url, "for nobody else sees what a program holds in its memory")
    return url, secret


def shared(function: F) -> F:
    """Give a command the options that all have; its function is given an ``Asked`` first."""

    @store_option
    @json_option
    @functools.wraps(function)
    def call(*args: Any, store: str | None, as_json: bool, **kwargs: Any) -> Any:
        before = click.get_current_context().find_root().params
        asked = Asked(store or before.get("store"), as_json or bool(before.get("as_json")))
        return function(asked, *args, **kwargs)

    return call  # type: ignore[return-value]  # the same, with two options more


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end."""
    return asyncio.run(work)


class Json(click.ParamType[Any]):
    """A value as JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value that a text of JSON means."""
        try:
            return decode(value.encode())
        except ValueError:
            quoted = "'\"text\"'"
            self.fail(f"{value!r} is no JSON; a text is written as {quoted}.", param, ctx)


class Length(click.ParamType[int]):
    """A duration such as 30d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return a duration in microseconds."""
        try:
            return micros(value)
        except LashError as error:
            self.fail(error.message, param, ctx)


def loaded(named: str) -> Lash:
    """Return the app that ``module:app`` names; modules of the current folder are found, too.

    A path of a file may stand for the module.
    """
    module, colon, path = named.rpartition(":")
    if not (module and colon and path):
        raise AppInvalid(named, "it is not of the form module:variable")
    found: Any = _imported(named, module)
    for part in path.split("."):
        if not hasattr(found, part):
            raise AppInvalid(named, f"there is no {part!r} in {module!r}")
        found = getattr(found, part)
    if not isinstance(found, Lash):
        kind = f"{type(found).__module__}.{type(found).__qualname__}"
        raise AppInvalid(named, f"that is a {kind} and no pylash.Lash")
    return found


def _imported(named: str, module: str) -> Any:

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
                named, f"importing it needs {error.name!r}, which is not there"
            ) from error
        raise AppInvalid(named, f"there is no module {error.name!r} here") from error
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise AppInvalid(named, f"importing it failed with {said}") from error
