"""What a model is told of a tool's result, and the references its arguments may carry.

Rule 1. The same value gives the same text, always.
Rule 2. A text that is too long keeps its head and its tail, and says what is missing and where it is.
Rule 3. A projected reference is an object with ``$ref`` and nothing else. References are replaced by
        what they stand for, except in the one field that the tool keeps them in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from pylash.values import AttachmentResolutionFailed, write

RESULT_CHARACTERS: Final = 16_000
"""How much of a result a model is shown."""

NO_RESULT: Final = "Done."
"""What a model is told when a tool returns nothing."""

REFERENCE: Final = "$ref"


def result_text(value: Any) -> str:
    """Return a result (plain JSON or a struct) as a model is told it.

    >>> result_text({"total": 7})
    '{"total":7}'
    """
    if value is None:
        return NO_RESULT
    return value if isinstance(value, str) else write(value).decode()


def fitted(text: str, limit: int = RESULT_CHARACTERS, ref: str | None = None) -> tuple[str, bool]:
    """Return a text of at most ``limit`` characters, and whether anything was left out.

    ``ref`` names where the whole text is kept. Where not even the line that says so fits, it is all
    that remains.
    """
    if len(text) <= limit:
        return text, False
    room = max(limit - len(_gap(len(text), len(text), ref)), 0)
    head = _without_half(text[: room - room // 3])
    tail = _without_half(text[len(text) - room // 3 :])
    left_out = len(text) - len(head) - len(tail)
    return head + _gap(left_out, len(text), ref) + tail, True


def _gap(left_out: int, total: int, ref: str | None) -> str:
    where = "" if ref is None else f" as attachment {ref}"
    return f"\n[… {left_out} of {total} characters are left out; the whole is kept{where} …]\n"


def _without_half(text: str) -> str:
    """Return text without the half of a surrogate pair that a cut left at either end."""
    if text and "\ud800" <= text[-1] <= "\udbff":
        text = text[:-1]
    if text and "\udc00" <= text[0] <= "\udfff":
        text = text[1:]
    return text


# --- projected references ---


class ProjectedRef(msgspec.Struct, frozen=True):
    """A reference in arguments: the keys and indexes that lead to it, and what it refers to."""

    path: tuple[str | int, ...]
    ref: str


def projected_refs(arguments: Any, keep: str | None = None) -> list[ProjectedRef]:
    """Return the references in arguments, in order, except those in the field ``keep``.

    >>> [found.path for found in projected_refs({"files": [{"$ref": "ab12"}]})]
    [('files', 0)]
    """
    return [found for found in _found(arguments, ()) if keep is None or found.path[:1] != (keep,)]


def materialised(arguments: Any, bodies: Mapping[str, Any], keep: str | None = None) -> Any:
    """Return arguments with what references stand for, except in the field ``keep``.

    Raises AttachmentResolutionFailed for a reference that has no body.
    """
    if keep is None or not isinstance(arguments, dict) or keep not in arguments:
        return _filled(arguments, bodies)
    return {k: v if k == keep else _filled(v, bodies) for k, v in arguments.items()}


def _ref_of(value: Any) -> str | None:
    """Return what value refers to. A text that begins with ``#`` points into a JSON Schema."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    ref = value.get(REFERENCE)
    return ref if isinstance(ref, str) and ref and not ref.startswith("#") else None


def _found(value: Any, path: tuple[str | int, ...]) -> Iterator[ProjectedRef]:
    if (ref := _ref_of(value)) is not None:
        yield ProjectedRef(path, ref)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _found(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _found(item, (*path, index))


def _filled(value: Any, bodies: Mapping[str, Any]) -> Any:
    if (ref := _ref_of(value)) is not None:
        if ref not in bodies:
            raise AttachmentResolutionFailed(ref)
        return bodies[ref]
    if isinstance(value, dict):
        return {key: _filled(item, bodies) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, bodies) for item in value]
    return value
