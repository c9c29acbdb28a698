"""Arguments of public calls: one rule for each kind of value, with one message.

They are checked in the caller's own call, before anything is written. Names have rules of their own (``names``), as have durations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, Final

from pylash.values.names import check_name
from pylash.values.process_errors import ArgumentsInvalid

MAX_TAGS: Final = 20
MAX_TAG_BYTES: Final = 128


def check_type(method: str, name: str, given: Any, kind: type | UnionType, wanted: str) -> None:
    """Raise ArgumentsInvalid if an argument is not of a type; ``wanted`` describes the type, such as ``a string``."""
    if not isinstance(given, kind):
        raise ArgumentsInvalid(method, f"{name}={given!r} is not {wanted}")


def check_text(method: str, name: str, given: Any) -> None:
    """Raise ArgumentsInvalid for a text that is not a string."""
    check_type(method, name, given, str, "a string")


def check_flag(method: str, name: str, given: Any) -> None:
    """Raise ArgumentsInvalid for a flag that is not True or False."""
    check_type(method, name, given, bool, "True or False")


def check_list(
    method: str, name: str, given: Any, check_one: Callable[[Any], str]
) -> tuple[str, ...]:
    """Return the strings of a list, each checked; a string itself is refused, since it would count as a list of characters."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ArgumentsInvalid(method, f"{name}={given!r} is not a list of strings")
    return tuple(check_one(one) for one in given)


def checked_tag(tag: Any) -> str:
    """Return a tag of a process or a session, or raise NameInvalid."""
    return check_name("tag", tag, limit=MAX_TAG_BYTES)


def checked_tags(method: str, given: Any) -> tuple[str, ...]:
    """Return the tags of a process or a session, each once."""
    if isinstance(given, Mapping):  # its keys would be taken for tags
        raise ArgumentsInvalid(method, f"tags={given!r} is not a list of strings")
    tags = tuple(dict.fromkeys(check_list(method, "tags", given, checked_tag)))
    if len(tags) > MAX_TAGS:
        raise ArgumentsInvalid(
            method, f"there are {len(tags)} tags, and at most {MAX_TAGS} are allowed"
        )
    return tags
