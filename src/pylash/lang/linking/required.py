"""Collects the parts of the surface that a module uses, while the linker links it.

1. Only used parts are required: an unused part of a surface may change freely.
2. A used type also requires the surface types that its text mentions.
"""

from __future__ import annotations

from pylash.lang.static_types import BUILT_IN, names_in, show_type
from pylash.lang.surface import Ability, RequiredModule, RequiredSurface, Surface
from pylash.lang.tree import Type


class Requirements:
    """The required surface of one module, while it is collected."""

    def __init__(self, surface: Surface) -> None:
        self._surface = surface
        self._resource_types = surface.resource_types()
        self._host_types = surface.host_types()
        self._abilities: set[str] = set()
        self._modules: dict[str, RequiredModule] = {}
        self._receivers: dict[str, dict[str, tuple[str, str]]] = {}
        self._types: dict[str, str] = {}
        self._constructors: dict[str, tuple[str, str]] = {}
        self._trigger_sources: dict[str, str] = {}

    def ability(self, name: Ability) -> None:
        """Note that the module needs an ability."""
        self._abilities.add(name)

    def module(self, path: str) -> RequiredModule:
        """Note the mention of a module."""
        return self._modules.setdefault(path, RequiredModule(self._surface.modules[path].type, {}))

    def operation(self, path: str, name: str) -> None:
        """Note a call of an operation by its path."""
        used = self._surface.modules[path].operations[name]
        self.type(used.input)
        self.type(used.output)
        self.module(path).operations[name] = (
            used.id,
            show_type(used.input),
            show_type(used.output),
        )

    def receiver(self, resource_type: str, name: str) -> None:
        """Note a call of an operation on a resource value."""
        used = self._surface.operations_of(resource_type)[name]
        self.type(used.input)
        self.type(used.output)
        operations = self._receivers.setdefault(resource_type, {})
        operations[name] = (show_type(used.input), show_type(used.output))

    def constructor(self, path: str) -> None:
        """Note the call of a constructor of a host value."""
        used = self._surface.constructors[path]
        self.type(used.input)
        self._constructors[path] = (show_type(used.input), used.type)

    def trigger_source(self, name: str) -> None:
        """Note the trigger source of a registration."""
        event = self._surface.trigger_sources[name]
        self.type(event)
        self._trigger_sources[name] = show_type(event)

    def type(self, type_: Type) -> None:
        """Note the surface types that type_ mentions."""
        for each in names_in(type_):
            self.type_name(each.name)

    def type_name(self, name: str) -> None:
        """Note the mention of a type; opaque host types have no definition to follow."""
        if name in BUILT_IN or name in self._types:
            return
        if name in self._surface.types:
            definition = self._surface.types[name]
            self._types[name] = show_type(definition)
            self.type(definition)
        elif name in self._resource_types:
            self._receivers.setdefault(name, {})
        elif name in self._host_types:
            self._types[name] = name

    def surface(self) -> RequiredSurface:
        """Return the required surface."""
        return RequiredSurface(
            abilities=tuple(sorted(self._abilities)),
            modules=self._modules,
            resource_types=self._receivers,
            types=self._types,
            constructors=self._constructors,
            trigger_sources=self._trigger_sources,
        )
