"""Checks before a process starts or continues.

1. A registration has references and arguments, never code. Before a host runs it, it checks it against the
   stored artifact and its own surface, in the order of `startable`.
2. Abilities are not checked: they limit what may be linked here, not what may run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from pylash.lang import tree
from pylash.lang.artifacts import (
    Artifact,
    ArtifactDamaged,
    decode_artifact,
    definitions,
    incompatibility,
    verified,
)
from pylash.lang.running.conforming import nonconforming
from pylash.lang.running.data import RunError, from_json, shared_json, size_of
from pylash.lang.stack import deep
from pylash.lang.static_types import schema_of
from pylash.lang.surface import Surface

Code = Literal[
    "process_module_artifact_missing",
    "process_required_surface_mismatch",
    "process_surface_incompatible",
    "process_arguments_invalid",
]

_LARGEST_SCHEMA: Final = 2**18


class Registration(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="engine", tag="lashlang"
):
    """A process to run: its reference, its arguments, and the handles in them."""

    module_ref: str
    process_ref: str
    required_surface_ref: str
    process_name: str
    args: dict[str, Any]
    handles: tuple[str, ...] = ()


class StartProblem(NamedTuple):
    """Why a process cannot start. Another deployment may resolve `process_surface_incompatible`."""

    code: Code
    message: str


def registration(
    artifact: Artifact, process: str, args: dict[str, Any], handles: tuple[str, ...] = ()
) -> Registration:
    """Return the registration of a process of the artifact."""
    return Registration(
        module_ref=artifact.module_ref,
        process_ref=artifact.processes[process],
        required_surface_ref=artifact.required_surface_ref,
        process_name=process,
        args=args,
        handles=handles,
    )


def stored(data: bytes | None, module_ref: str) -> Artifact | StartProblem:
    """Return the artifact that was stored under a reference, if it is intact."""
    if data is None:
        return _missing(f"the module {module_ref} is not stored here")
    try:
        artifact = verified(decode_artifact(data))
    except (ArtifactDamaged, msgspec.DecodeError):
        return _missing(f"the stored module {module_ref} is damaged")
    if artifact.module_ref != module_ref:
        return _missing(f"the module stored as {module_ref} is a different module")
    return artifact


def startable(
    wanted: Registration, artifact: Artifact, surface: Surface, modules: Mapping[str, str]
) -> StartProblem | None:
    """Return the first problem that prevents a registered process from running here.

    `modules` are the modules of the surface with their resource types.
    """
    name = wanted.process_name
    if artifact.processes.get(name) != wanted.process_ref:
        return _missing(f"the module {wanted.module_ref} has no process `{name}`")
    if artifact.required_surface_ref != wanted.required_surface_ref:
        return StartProblem(
            "process_required_surface_mismatch",
            f"process `{name}` was registered for a different surface than its module requires",
        )
    missing = incompatibility(artifact.required_surface, surface)
    if missing is not None:
        return StartProblem("process_surface_incompatible", missing)
    problem = bad_arguments(artifact, name, wanted.args, modules)
    return None if problem is None else StartProblem("process_arguments_invalid", problem)


def bad_arguments(
    artifact: Artifact, process: str, args: Mapping[str, Any], modules: Mapping[str, str]
) -> str | None:
    """Return why the arguments of a process do not match its parameters and their types, or None."""
    parameters = {each.name: each.type for each in declaration(artifact, process).parameters}
    types = definitions(artifact)
    for name, type_ in parameters.items():
        if name not in args:
            return f"process `{process}` needs the argument `{name}`"
        reason = _unfit(args[name], type_, types, modules)
        if reason is not None:
            return f"argument `{name}` of process `{process}` does not fit: {reason}"
    for name in args:
        if name not in parameters:
            return f"process `{process}` has no parameter `{name}`"
    return None


def bad_signal(
    artifact: Artifact, process: str, name: str, payload: Any, modules: Mapping[str, str]
) -> str | None:
    """Return why a process does not accept a signal, or None: it must declare the name, and the payload must conform."""
    accepted = signals(declaration(artifact, process))
    if name not in accepted:
        return f"process `{process}` does not accept the signal `{name}`"
    reason = _unfit(payload, accepted[name], definitions(artifact), modules)
    return None if reason is None else f"the payload of signal `{name}` does not fit: {reason}"


def signal_schemas(artifact: Artifact, process: str) -> dict[str, Any]:
    """Return the JSON Schemas of the signals that a process accepts, by name.

    They check a payload as `bad_signal` does, except that resources and host values need only be objects.
    """
    return deep(_signal_schemas, artifact, process)


def _signal_schemas(artifact: Artifact, process: str) -> dict[str, Any]:
    types = definitions(artifact)
    accepted = signals(declaration(artifact, process))
    schemas = {name: schema_of(type_, types) for name, type_ in accepted.items()}
    return {name: _open(schema) if _storable(schema) else {} for name, schema in schemas.items()}


def _storable(schema: Any) -> bool:
    """Return whether a schema is small enough: each declaration can double the size of a type."""
    try:
        return size_of(shared_json(schema)) <= _LARGEST_SCHEMA
    except RunError:
        return False


def _open(schema: Any) -> Any:
    """Return a schema that allows unknown fields."""
    if isinstance(schema, list):
        return [_open(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        word: {name: _open(one) for name, one in inner.items()}
        if word == "properties"
        else _open(inner)
        for word, inner in schema.items()
        if word != "additionalProperties"
    }


def _unfit(
    data: Any, wanted: tree.Type, types: Mapping[str, tree.Type], modules: Mapping[str, str]
) -> str | None:
    try:
        return nonconforming(from_json(data), wanted, types, modules)
    except RunError as problem:
        return problem.message


def signals(process: tree.ProcessDeclaration) -> dict[str, tree.Type]:
    """Return the signals that a process accepts: declared ones, and the default one if it waits for it."""
    accepted = {each.name: each.type for each in process.signals}
    if any(
        isinstance(node, tree.WaitSignal) and node.name == "signal" for node in tree.walk(process)
    ):
        accepted.setdefault("signal", tree.TypeName("any"))
    return accepted


def declaration(artifact: Artifact, process: str) -> tree.ProcessDeclaration:
    """Return the declaration of a process that the artifact exports."""
    return next(each for each in artifact.canonical.processes if each.name == process)


def _missing(message: str) -> StartProblem:
    return StartProblem("process_module_artifact_missing", message)
