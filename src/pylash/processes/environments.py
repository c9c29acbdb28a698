"""Captured environments: the settings that a process keeps, even if its workers have others.

Rule 1. An environment has names and options, never objects. It is stored under the hash of its content, so it never changes.
Rule 2. It is captured when the process is started, and inherited by its children. A session turn needs none: its input has
        its settings; the worker's settings replace missing ones.
Rule 3. A worker builds the plugins of a process from the captured options, for a session that does not exist: it never
        reads the session that the process was started for.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any, Final

import msgspec

from pylash.durable.processes import Registration
from pylash.durable.stores import Envs
from pylash.tools.catalog import Catalog
from pylash.turn.asks import SessionOptions
from pylash.values.canonical import encode
from pylash.values.process_errors import ProcessRecoveryFailed
from pylash.values.turn_errors import PluginFailed

_KEPT: Final = 256
"""How many environments are cached: there is one for each set of plugin options."""


class Environment(msgspec.Struct, frozen=True, omit_defaults=True):
    """The settings that are captured with a start: names, never objects.

    ``plugins`` are the plugins of the session that it was started for, with their options; a process that the
    app starts has none.
    """

    model: str | None = None
    instructions: str = ""
    plugins: dict[str, Any] = {}

    @property
    def session_options(self) -> SessionOptions:
        """The settings as options of a session."""
        return SessionOptions(
            model=self.model,
            instructions=self.instructions,
            plugin_options=self.plugins or None,
        )

    @property
    def body(self) -> bytes:
        """The environment as it is stored."""
        return encode(self)

    @property
    def ref(self) -> str:
        """The name under which it is stored: the hash of its content."""
        return hashlib.sha256(self.body).hexdigest()


NO_ENVIRONMENT: Final = Environment()

_ENVIRONMENTS: msgspec.json.Decoder[Environment] = msgspec.json.Decoder(Environment)


def environment_of(catalog: Catalog, options: SessionOptions) -> Environment:
    """Return the environment of the processes that are started for a session."""
    return Environment(*catalog.settings(options), catalog.plugin_options(options))


class Environments:
    """The environments of processes, in the store."""

    def __init__(self, envs: Envs) -> None:
        self._envs = envs
        self._loaded: OrderedDict[str, Environment] = OrderedDict()

    async def keep(self, environment: Environment) -> str:
        """Store an environment; return its reference."""
        await self._envs.put(environment.ref, environment.body)
        return environment.ref

    async def load(self, registration: Registration) -> Environment:
        """Return the environment of a process. Raises ProcessRecoveryFailed if it is missing or damaged."""
        ref = registration.env
        if ref is None:
            raise ProcessRecoveryFailed(registration.id, "it has no captured environment")
        loaded = self._loaded.get(ref)
        if loaded is None:
            loaded = _decoded(registration.id, ref, await self._envs.get(ref))
            self._loaded[ref] = loaded
            if len(self._loaded) > _KEPT:
                self._loaded.popitem(last=False)
        return loaded


def rebuild(process_id: str, environment: Environment, catalog: Catalog) -> Catalog:
    """Return the catalog of a process: the app's, with the tools of its plugins. Raises ProcessRecoveryFailed."""
    if not environment.plugins:
        return catalog
    try:
        return catalog.with_plugins(f"process-env:{process_id}", environment.plugins)
    except PluginFailed as error:
        raise ProcessRecoveryFailed(process_id, error.message.rstrip(".")) from error


def _decoded(process_id: str, ref: str, body: bytes | None) -> Environment:
    if body is None:
        raise ProcessRecoveryFailed(process_id, "its captured environment is not in the store")
    try:
        if hashlib.sha256(body).hexdigest() == ref:
            return _ENVIRONMENTS.decode(body)
    except msgspec.DecodeError:
        """Something else is stored under the reference."""
    raise ProcessRecoveryFailed(process_id, "its captured environment is damaged")
