"""Names: the rule for every text that identifies something in a store.

Ids, keys, and the names of steps, waits, signals, events, tools and sources all follow it, on every
database. They are checked in the caller's own call, before anything is written. Stored or recorded names are
never checked again: they must be found even if the rule was different when they were written. Only a process whose id
is blank is refused where it is executed. A text that is only shown to people is never refused: ``storable`` escapes what
a database cannot hold.
"""

from __future__ import annotations

from typing import Final

from pylash.values.errors import NameInvalid

MAX_NAME_BYTES: Final = 512
"""The longest name. Indexes hold up to three of them, and an index entry of PostgreSQL has 2,704 bytes."""


def name_problem(name: object, limit: int | None = MAX_NAME_BYTES) -> str | None:
    r"""Return why a text cannot be a name, as the end of a sentence; None if it can.

    >>> name_problem("a\x00b")
    'it must not contain a NUL character'
    """
    if not isinstance(name, str):
        return f"it must be a string, not {type(name).__name__}"
    if not name.strip():
        return "it must not be blank"
    if "\0" in name:
        return "it must not contain a NUL character"
    try:
        size = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError:
        return "it must not contain a lone surrogate"
    if limit is not None and size > limit:
        return f"it has {size:,} bytes and must have at most {limit:,}"
    return None


def check_name(
    what: str,
    name: object,
    *,
    limit: int | None = MAX_NAME_BYTES,
    error: type[NameInvalid] = NameInvalid,
) -> str:
    """Return name, or raise an error. ``what`` is the kind of name for its message, such as ``"signal id"``."""
    problem = name_problem(name, limit)
    if problem is not None:
        raise error(what, name, problem)
    assert isinstance(name, str)
    return name


def storable(text: str) -> str:
    r"""Return a text for people with the characters escaped that no database stores.

    >>> storable("a\x00b")
    'a\\u0000b'
    """
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\u0000").encode("utf-8", "backslashreplace").decode()
