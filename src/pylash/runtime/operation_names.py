"""How tools and triggers are called in Lashlang, where a name is an identifier.

Rule 1. Two tools never share an operation, two modules never share a resource type, and two triggers never share
        a source type. A program calls a tool by these names alone, so a shared name would run the wrong tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Protocol

from pylash.values import NameAmbiguous

TRIGGERS_MODULE: Final = "triggers"
TRIGGERS_OPERATIONS: Final = frozenset({"register", "list", "cancel"})
"""The operations of Lashlang itself in the module ``triggers``."""


class NamedTool(Protocol):
    """The names of a tool."""

    @property
    def name(self) -> str:
        """Its name, as models call it."""
        ...

    @property
    def module(self) -> str:
        """The path of its module."""
        ...


def identifier(name: str) -> str:
    """Return a name as a program writes it: each character that an identifier cannot have is an underscore."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return plain if plain.isidentifier() else f"_{plain}"


def resource_type(module: str) -> str:
    """Return the resource type of a module.

    >>> resource_type("my.mail_box")
    'MyMailBox'
    """
    words = (word for part in module.split(".") for word in part.split("_"))
    return "".join(word[:1].upper() + word[1:] for word in words)


def trigger_path(trigger: str) -> str:
    """Return the constructor of a trigger's sources: ``github.push``, or ``events.tick`` for one without a dot."""
    parts = [identifier(part) for part in trigger.split(".")]
    return ".".join(parts if len(parts) > 1 else ("events", *parts))


def check_tool_names(new: NamedTool, others: Iterable[NamedTool]) -> None:
    """Refuse a tool whose operation or resource type is another one's."""
    operation, kind = identifier(new.name), resource_type(new.module)
    if new.module == TRIGGERS_MODULE and operation in TRIGGERS_OPERATIONS:
        raise NameAmbiguous(
            f"The tool {new.name!r} in the module 'triggers'",
            "the built-in operation",
            f"triggers.{operation}",
        )
    if new.module != TRIGGERS_MODULE and kind == resource_type(TRIGGERS_MODULE):
        raise NameAmbiguous(f"The module {new.module!r}", "the built-in module 'triggers'", kind)
    for other in others:
        if other.name == new.name:
            continue
        if other.module == new.module and identifier(other.name) == operation:
            shared = f"{new.module}.{operation}"
            raise NameAmbiguous(f"The tool {new.name!r}", f"the tool {other.name!r}", shared)
        if other.module != new.module and resource_type(other.module) == kind:
            raise NameAmbiguous(f"The module {new.module!r}", f"the module {other.module!r}", kind)


def check_trigger_name(new: str, others: Iterable[str]) -> None:
    """Refuse a trigger whose sources would be another one's."""
    path = trigger_path(new)
    for other in others:
        if other != new and trigger_path(other) == path:
            raise NameAmbiguous(f"The trigger {new!r}", f"the trigger {other!r}", path)
