"""Lashlang modules as processes of an app.

Rule 1. A process is stored with references; its module is stored under its hash, which is checked when it is read.
Rule 2. Every effect of a program crosses the run's boundary under the key that the language gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pylash.durable.processes import LashlangInput
from pylash.lang import (
    Artifact,
    ExecutionMap,
    Resource,
    Surface,
    TypeName,
    artifact,
    bad_arguments,
    declaration,
    encode_artifact,
    incompatibility,
    link,
    parse,
    signal_schemas,
    static_map,
    to_json,
)
from pylash.processes.definition import Definition
from pylash.processes.handles import ChildHandle, ProcessHandle
from pylash.tools.signatures import ANY
from pylash.values.process_errors import (
    ProcessArgumentsInvalid,
    ProcessNotInModule,
    ProcessSurfaceIncompatible,
)

if TYPE_CHECKING:
    from pylash.durable.stores import Envs


MAX_NESTING: Final = 64
"""How deeply the arguments of a program may nest."""


class LashlangModule:
    """A linked program: its processes by name, and its graph.

    >>> module = await app.lashlang("process greet(who: str) { finish 'Hello ' + who }")
    >>> handle = await app.start(module["greet"], who="Ann")
    """

    def __init__(self, made: Artifact, offered: Callable[[], Surface]) -> None:
        self.artifact = made
        self._offered = offered

    def __repr__(self) -> str:
        return f"LashlangModule({', '.join(self.processes)})"

    @property
    def ref(self) -> str:
        """The reference of this version of the program."""
        return self.artifact.module_ref

    @property
    def processes(self) -> tuple[str, ...]:
        """The names of its processes."""
        return tuple(self.artifact.processes)

    def __getitem__(self, name: str) -> LashlangProcess:
        """Return a process of the module, to be started."""
        if name not in self.artifact.processes:
            raise ProcessNotInModule(name, ", ".join(self.processes) or "none")
        return LashlangProcess(self.artifact, name, self._offered)

    def graph(self, process: str | None = None) -> ExecutionMap:
        """Return the map of a process; without a name, the map of main or of the first process."""
        if process is None and not self.artifact.canonical.main and self.processes:
            process = self.processes[0]
        if process is not None:
            self[process]
        return static_map(self.artifact, process)


async def linked_module(source: str, offered: Callable[[], Surface], envs: Envs) -> LashlangModule:
    """Link a program against a surface and store it; raises LashlangError."""
    made = artifact(link(parse(source), offered()))
    await envs.put(made.module_ref, encode_artifact(made))
    return LashlangModule(made, offered)


class LashlangProcess(Definition[..., Any]):
    """A process of a Lashlang module."""

    def __init__(self, made: Artifact, name: str, offered: Callable[[], Surface]) -> None:
        self.artifact = made
        self.name = name
        self._offered = offered

    def __repr__(self) -> str:
        return f"LashlangProcess({self.name!r})"

    @property
    def arguments(self) -> WorkflowArguments:
        """Its parameters."""
        return WorkflowArguments(self.artifact, self.name, self._offered())

    def input(self, arguments: dict[str, Any]) -> LashlangInput:
        """Return the input with which a process of this definition is registered."""
        return process_input(self.artifact, self.name, arguments, given_handles(arguments))

    def signals(self) -> dict[str, Any]:
        """Return the JSON Schemas of the accepted signals, by name."""
        return signal_schemas(self.artifact, self.name)


def process_input(
    made: Artifact, name: str, arguments: dict[str, Any], handles: Iterable[str]
) -> LashlangInput:
    """Return the input of a process of a module; ``handles`` are those in its arguments."""
    refs = (made.module_ref, made.processes[name], made.required_surface_ref)
    return LashlangInput(*refs, name, arguments, tuple(handles))


class GivenHandle(dict[str, str]):
    """The JSON of a handle that was passed as a handle. Equal JSON that was passed as data is not a handle."""

    def __init__(self, process_id: str) -> None:
        super().__init__(__handle__="process", id=process_id)


def with_handles(
    value: Any, process_of: Callable[[Any], str | None], levels: int = MAX_NESTING
) -> Any:
    """Return value with a ``GivenHandle`` in place of each part for which ``process_of`` returns a process id.

    Parts that are nested more deeply than arguments may be are left unchanged; they are refused later.
    """
    process_id = process_of(value)
    if process_id is not None:
        return GivenHandle(process_id)
    if levels and isinstance(value, dict):
        return {key: with_handles(item, process_of, levels - 1) for key, item in value.items()}
    if levels and isinstance(value, list):
        return [with_handles(item, process_of, levels - 1) for item in value]
    return value


def given_handles(value: Any) -> list[str]:
    """Return the ids of the processes whose handles were given, at any depth of a value."""
    if isinstance(value, GivenHandle):
        return [value["id"]]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sorted({process_id for item in items for process_id in given_handles(item)})


def _process_of_handle(value: Any) -> str | None:
    if isinstance(value, ProcessHandle | ChildHandle | GivenHandle):
        return value["id"] if isinstance(value, GivenHandle) else value.id
    return None


def _with_given_handles(plain: Any, given: Any) -> Any:
    """Return plain JSON with the ``GivenHandle`` objects of the value that it was made from."""
    if isinstance(given, GivenHandle):
        return given
    if isinstance(given, dict):
        return {key: _with_given_handles(item, given[key]) for key, item in plain.items()}
    if isinstance(given, list):
        return [_with_given_handles(*both) for both in zip(plain, given, strict=True)]
    return plain


class WorkflowArguments:
    """The parameters of a process of a module; arguments are checked against their types."""

    result: Final = ANY

    def __init__(self, made: Artifact, name: str, offered: Surface) -> None:
        self._artifact = made
        self._name = name
        self._offered = offered

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a start as plain JSON; refuse those that do not fit."""
        missing = incompatibility(self._artifact.required_surface, self._offered)
        if missing is not None:
            raise ProcessSurfaceIncompatible(self._name, missing)
        given = {**self._modules(), **dict(zip(self._names, args, strict=False)), **kwargs}
        plain = {name: self.dump_one(name, value) for name, value in given.items()}
        reason = (
            f"it takes at most {len(self._names)} arguments"
            if len(args) > len(self._names)
            else None
        )
        self._refuse(
            reason or bad_arguments(self._artifact, self._name, plain, modules_of(self._offered))
        )
        return plain

    def dump_one(self, name: str, value: Any) -> Any:
        """Return one argument as plain JSON; a ``ProcessHandle`` in it becomes a handle of the program."""
        given = with_handles(value, _process_of_handle)
        plain = ANY.dump(given, f"$.{name}")
        return _with_given_handles(plain, given) if given_handles(given) else plain

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse unknown and missing names."""
        given = set(names)
        for name in self._names:
            if name not in given:
                self._refuse(f"it needs the argument `{name}`")
        for name in given - set(self._names):
            self._refuse(f"it has no parameter `{name}`")

    def _modules(self) -> dict[str, Any]:
        """Return values for the parameters that fit exactly one module of the surface: they need not be given."""
        found = {}
        for each in declaration(self._artifact, self._name).parameters:
            if not isinstance(each.type, TypeName):
                continue
            paths = [
                path
                for path, kind in modules_of(self._offered).items()
                if each.type == TypeName(kind)
            ]
            if len(paths) == 1:
                found[each.name] = to_json(Resource(each.type.name, paths[0]))
        return found

    @property
    def _names(self) -> Sequence[str]:
        return [each.name for each in declaration(self._artifact, self._name).parameters]

    def _refuse(self, reason: str | None) -> None:
        if reason is not None:
            raise ProcessArgumentsInvalid(self._name, reason)


def modules_of(offered: Surface) -> dict[str, str]:
    """Return the resource type of each module."""
    return {path: module.type for path, module in offered.modules.items()}
