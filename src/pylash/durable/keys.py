"""Replay keys: names of effects, not positions.

Rule 1. A key is a path of parts, and two different paths never make the same text.
Rule 2. Content and wall time never enter a key.

A part is a name with a count: the second ``fetch`` of a branch is ``fetch#2``. Names may contain
any character; those that have a meaning in a key are escaped.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

PATCHED: Final = "!patched "
"""The beginning of the last part of a key that records a patch which was taken."""

_SPECIAL = re.compile(r"[%/#\x00-\x1f]")
"""Characters with a meaning in a key, and control characters, which some databases refuse in a text."""

_ESCAPED = re.compile(r"%([0-9A-F]{2})")


def replay_key(*parts: str | tuple[str, int]) -> str:
    """Return the key of a path of parts.

    >>> replay_key("gather.1", ("fetch", 2))
    'gather.1/fetch#2'
    >>> replay_key("a/b")
    'a%2Fb'
    """
    return "/".join(map(_part, parts))


def key_parts(key: str) -> tuple[tuple[str, int], ...]:
    """Return the parts of key, each a name and its count."""
    return tuple(_named(text) for text in key.split("/"))


def patch_of(key: str) -> str | None:
    """Return the id of the patch that a key records, if it records one.

    >>> patch_of("gather.1/!patched fraud%2Fcheck"), patch_of("fetch")
    ('fraud/check', None)
    """
    name = key_parts(key)[-1][0]
    return name.removeprefix(PATCHED) if name.startswith(PATCHED) else None


def _part(part: str | tuple[str, int]) -> str:
    name, count = part if isinstance(part, tuple) else (part, 1)
    text = _escaped(name)
    return text if count == 1 else f"{text}#{count}"


@lru_cache(maxsize=1024)
def _escaped(name: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", name)


def _named(text: str) -> tuple[str, int]:
    name, _, count = text.partition("#")
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name), int(count or 1)
