"""Module artifacts: linked modules, identified by hashes of their content.

1. A reference is a hash of canonical JSON that starts with a version tag. If semantics change, the
   tag changes; golden tests check that references do not change otherwise.
2. Source text, source positions and names of local variables are not hashed.
3. A reader of an artifact recomputes its references before it uses the artifact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from pylash.lang.flat import Scalar, flat, unflat
from pylash.lang.linker import LinkedProgram
from pylash.lang.parsing.parser import parse_type
from pylash.lang.static_types import Types, expand
from pylash.lang.surface import OperationSurface, RequiredSurface, Surface
from pylash.lang.tree import Module, Place, Places, Type, walk
from pylash.values.canonical import stable_hash
from pylash.values.errors import LashError

MODULE: Final = "lashlang:v1"
PROCESS: Final = "lashlang-process:v1"
SURFACE: Final = "lashlang-surface:v1"


class ArtifactDamaged(LashError, category=True):
    """A stored module does not match its reference; it is never run."""

    def __init__(self, module_ref: str, reason: str) -> None:
        super().__init__(
            f"The module {module_ref} cannot be used: {reason}. Link its source again.",
            code="process_module_artifact_missing",
        )


class Artifact(msgspec.Struct, frozen=True):
    """A linked module and its references, with positions, names and the source for display."""

    module_ref: str
    required_surface_ref: str
    required_surface: RequiredSurface
    processes: dict[str, str]
    canonical: Module
    places: list[tuple[int, int, int]]
    names: dict[str, tuple[str, ...]]
    source: str


class _Stored(msgspec.Struct, frozen=True):
    module_ref: str
    required_surface_ref: str
    required_surface: RequiredSurface
    processes: dict[str, str]
    canonical: list[Scalar]
    places: list[tuple[int, int, int]]
    names: dict[str, tuple[str, ...]]
    source: str
    aside: str
    """A checksum over positions, names and source, which the references do not cover."""


def artifact(linked: LinkedProgram) -> Artifact:
    """Return the artifact of a linked program."""
    surface_ref = _surface_ref(linked.required)
    return Artifact(
        module_ref=_module_ref(surface_ref, linked.module),
        required_surface_ref=surface_ref,
        required_surface=linked.required,
        processes=_process_refs(linked.module),
        canonical=linked.module,
        places=[linked.places[id(node)] for node in walk(linked.module)],
        names=linked.names,
        source=linked.source,
    )


def verified(stored: Artifact) -> Artifact:
    """Return the artifact if its references match its contents. Raises ArtifactDamaged."""
    surface_ref = _surface_ref(stored.required_surface)
    if (
        surface_ref != stored.required_surface_ref
        or _module_ref(surface_ref, stored.canonical) != stored.module_ref
        or _process_refs(stored.canonical) != stored.processes
    ):
        raise ArtifactDamaged(stored.module_ref, "its contents do not have that hash")
    return stored


def places_of(stored: Artifact) -> Places:
    """Return the source positions of the nodes of the canonical form."""
    placed = zip(walk(stored.canonical), stored.places, strict=True)
    return {id(node): Place(*place) for node, place in placed}


def definitions(stored: Artifact) -> dict[str, Type]:
    """Return the types that the module can name: declared ones, and data types of its surface."""
    required = _data_types(stored.required_surface)
    return {**required, **{each.name: each.type for each in stored.canonical.types}}


def _data_types(required: RequiredSurface) -> dict[str, Type]:
    """Return the types that have a definition, which opaque host types do not."""
    return {name: parse_type(text) for name, text in required.types.items() if text != name}


# References


def _surface_ref(required: RequiredSurface) -> str:
    return _reference(SURFACE, [msgspec.json.decode(msgspec.json.encode(required))])


def _module_ref(surface_ref: str, module: Module) -> str:
    return _reference(MODULE, [surface_ref, *flat(module)])


def _process_refs(module: Module) -> dict[str, str]:
    return {each.name: _reference(PROCESS, list(flat(each))) for each in module.processes}


def _reference(tag: str, contents: list[Any]) -> str:
    return f"{tag}:sha256:{stable_hash([tag, *contents]).hex()}"


# Storing


def encode_artifact(made: Artifact) -> bytes:
    """Return an artifact as JSON."""
    fields = {name: getattr(made, name) for name in made.__struct_fields__}
    fields |= {"canonical": list(flat(made.canonical)), "aside": _aside(made)}
    return msgspec.json.encode(_Stored(**fields))


def _aside(made: Artifact | _Stored) -> str:
    return hashlib.sha256(msgspec.json.encode([made.places, made.names, made.source])).hexdigest()


def decode_artifact(data: bytes) -> Artifact:
    """Return a stored artifact, not yet verified. Raises ArtifactDamaged."""
    try:
        stored = msgspec.json.decode(data, type=_Stored)
        canonical = unflat(stored.canonical)
    except ValueError as error:
        raise ArtifactDamaged("", f"it cannot be read ({error})") from error
    if not isinstance(canonical, Module) or _aside(stored) != stored.aside:
        raise ArtifactDamaged(stored.module_ref, "its checksum does not match")
    fields = {name: getattr(stored, name) for name in Artifact.__struct_fields__}
    return Artifact(**{**fields, "canonical": canonical})


# Compatibility of a module with another surface.


def incompatibility(required: RequiredSurface, current: Surface) -> str | None:
    """Return the first requirement of the module that the surface does not meet, or None."""
    return next(_lacking(required, current), None)


def _lacking(required: RequiredSurface, current: Surface) -> Iterator[str]:
    known = _data_types(required)
    for path, module in required.modules.items():
        offered = current.modules.get(path)
        if offered is None or offered.type != module.type:
            yield f"the module `{path}` of type `{module.type}` is missing"
            continue
        for name, (tool, given, got) in module.operations.items():
            operation = offered.operations.get(name)
            if operation is not None and operation.id != tool:
                yield f"the operation `{path}.{name}` is a different tool, `{operation.id}`"
            yield from _unlike(f"{path}.{name}", (given, got), operation, known, current)
    for type_, operations in required.resource_types.items():
        if type_ not in current.resource_types():
            yield f"the resource type `{type_}` is missing"
        for name, texts in operations.items():
            operation = current.operations_of(type_).get(name)
            yield from _unlike(f"{type_}.{name}", texts, operation, known, current)
    yield from _lacking_types(required, current, known)
    yield from _lacking_sources(required, current, known)


def _unlike(
    name: str,
    required: tuple[str, str],
    operation: OperationSurface | None,
    known: Mapping[str, Type],
    current: Surface,
) -> Iterator[str]:
    """Yield incompatible changes of an operation: of its input type or its output type."""
    given, got = (expand(parse_type(text), known) for text in required)
    if operation is None:
        yield f"the operation `{name}` is missing"
    elif not _fits(given, expand(operation.input, current.types)):
        yield f"the operation `{name}` no longer takes `{required[0]}`"
    elif not _fits(expand(operation.output, current.types), got):
        yield f"the operation `{name}` no longer returns `{required[1]}`"


def _lacking_types(
    required: RequiredSurface, current: Surface, known: Mapping[str, Type]
) -> Iterator[str]:
    for name in required.types:
        if name not in known:
            if name not in current.host_types():
                yield f"the type `{name}` is missing"
        elif name not in current.types:
            yield f"the type `{name}` is missing"
        elif not _fits(expand(current.types[name], current.types), expand(known[name], known)):
            yield f"the type `{name}` is no longer `{required.types[name]}`"


def _lacking_sources(
    required: RequiredSurface, current: Surface, known: Mapping[str, Type]
) -> Iterator[str]:
    for path, (text, type_) in required.constructors.items():
        made = current.constructors.get(path)
        given = expand(parse_type(text), known)
        if made is None or made.type != type_:
            yield f"the constructor `{path}` of `{type_}` is missing"
        elif not _fits(given, expand(made.input, current.types)):
            yield f"the constructor `{path}` no longer takes `{text}`"
    for name, text in required.trigger_sources.items():
        event = current.trigger_sources.get(name)
        if event is None:
            yield f"the trigger source `{name}` is missing"
        elif not _fits(expand(event, current.types), expand(parse_type(text), known)):
            yield f"the trigger source `{name}` no longer returns `{text}`"


def _fits(source: Type, target: Type) -> bool:
    return Types({}).assignable(source, target)
