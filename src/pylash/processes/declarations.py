"""The processes that an app declares: there may be several versions of one name.

Rule 1. A run keeps the version that it was started with: a worker that does not declare it does not claim the run.
Rule 2. A definition is one version, so a start of a definition is explicit. What knows only the name takes the newest
        version: a subscription, and a process that continues as itself.
Rule 3. A newer version is taken only if the arguments fit its parameters. The older one would run; the newer one would be blocked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pylash.durable.processes import EngineInput, Registration, engine_target
from pylash.processes.definition import ProcessDefinition
from pylash.tools.catalog import is_redefinition
from pylash.values.process_errors import ArgumentsInvalid, NameTaken

AnyProcess = ProcessDefinition[Any, Any]


class Declarations(Mapping[str, AnyProcess]):
    """The declared processes; as a mapping, the newest version of each name."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, AnyProcess]] = {}
        self.targets: set[str] = set()
        """The targets of all versions."""

    def __getitem__(self, name: str) -> AnyProcess:
        versions = self._versions[name]
        return versions[max(versions)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._versions)

    def __len__(self) -> int:
        return len(self._versions)

    def add(self, definition: AnyProcess) -> None:
        """Add a version of a process; raises NameTaken if it is declared, unless by an older definition of the same function."""
        name, version = definition.name, definition.version
        known = self._versions.get(name, {}).get(version)
        if known is not None and not is_redefinition(known.function, definition.function):
            kind = "process" if version == 1 else f"version {version} of process"
            raise NameTaken(kind, name, "name= or version=")
        self._versions.setdefault(name, {})[version] = definition
        self.targets.add(engine_target("python", name, version))

    def all_versions(self) -> list[AnyProcess]:
        """Return every version of every process."""
        return [one for versions in self._versions.values() for one in versions.values()]

    def of(self, given: EngineInput) -> AnyProcess:
        """Return the version that a process was started with; a worker claims no others."""
        return self._versions[given.program][given.version]

    def continuation(self, given: EngineInput, arguments: Mapping[str, Any]) -> EngineInput:
        """Return the input with which a process continues as itself: of the newest version that takes the arguments.

        Raises ArgumentsInvalid if not even its own version takes them.
        """
        own = self.of(given)
        for definition in self._newer(given):
            try:
                plain = definition.signature.dump((), arguments)
                definition.signature.load(plain)
            except ArgumentsInvalid:
                continue
            return msgspec.structs.replace(given, arguments=plain).of_version(definition.version)
        plain = own.signature.dump((), arguments)
        return msgspec.structs.replace(given, arguments=plain)

    def upgrade(self, registration: Registration) -> Registration:
        """Return the registration that a subscription starts, for the newest version that takes its arguments."""
        given = registration.input
        if not isinstance(given, EngineInput):
            return registration
        for definition in self._newer(given):
            try:
                # Only the names: this is called in a transaction, which does not run validators of users.
                definition.signature.check_names(given.arguments)
            except ArgumentsInvalid:
                continue
            changed = self.with_input(registration, given.of_version(definition.version))
            return msgspec.structs.replace(changed, timeout=definition.timeout)
        return registration

    def with_input(self, registration: Registration, given: EngineInput) -> Registration:
        """Return a registration with another input; if that is of another version, with the events of that version."""
        before, types = registration.input, registration.event_types
        if isinstance(before, EngineInput) and before.version != given.version:
            types = self.of(given).event_types()
        return msgspec.structs.replace(registration, input=given, event_types=types)

    def _newer(self, given: EngineInput) -> list[AnyProcess]:
        """Return the versions after that of an input, the newest first."""
        versions = self._versions.get(given.program, {})
        return [versions[one] for one in sorted(versions, reverse=True) if one > given.version]
