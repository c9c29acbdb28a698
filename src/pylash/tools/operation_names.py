"""The names of tools and triggers in Lashlang, where a name is an identifier.

Rule 1. Two tools never share an operation of a resource type, and two triggers never share a source type. A
        program identifies a tool by these names only, so a shared name would run the wrong tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from pylash.values.process_errors import NameAmbiguous

if TYPE_CHECKING:
    from pylash.tools.tool import Tool

TRIGGERS_MODULE: Final = "triggers"
TRIGGERS_OPERATIONS: Final = frozenset({"register", "list", "cancel"})
"""The operations of Lashlang itself in the module ``triggers``."""


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


def check_tool_names(new: Tool[..., Any], others: Iterable[Tool[..., Any]]) -> None:
    """Refuse a tool that has the operation of another one, in the same module or in one of the same resource type."""
    operation, kind = identifier(new.name), resource_type(new.module)
    if kind == resource_type(TRIGGERS_MODULE) and operation in TRIGGERS_OPERATIONS:
        named = f"The tool {new.name!r} of the module {new.module!r}"
        raise NameAmbiguous(named, "the built-in operation", f"triggers.{operation}")
    for other in others:
        if other.name == new.name:
            continue
        if identifier(other.name) == operation and resource_type(other.module) == kind:
            shared = (
                f"{new.module}.{operation}" if other.module == new.module else f"{kind}.{operation}"
            )
            raise NameAmbiguous(f"The tool {new.id!r}", f"the tool {other.id!r}", shared)


def check_trigger_name(new: str, others: Iterable[str]) -> None:
    """Refuse a trigger whose sources would have the constructor of another trigger."""
    path = trigger_path(new)
    for other in others:
        if other != new and trigger_path(other) == path:
            raise NameAmbiguous(f"The trigger {new!r}", f"the trigger {other!r}", path)
