"""Canonical JSON: one value, one text, one hash.

Rule 1. Keys are sorted, Unicode is kept, numbers have one form. Only this module encodes.
Rule 2. A value that would not come back unchanged is refused with its path, never changed silently.
Rule 3. Encoders are never mixed: the text is part of every stored hash.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Iterable, Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, Final

import msgspec

from pylash.values.errors import PayloadTooLarge, ValueNotJson

MAX_DEPTH: Final = 200
"""Deeper values are refused: the decoder's own limit depends on the thread's stack."""

MAX_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
"""The largest payload: applies to every stored argument, result, answer, event and question."""

RECORD_BYTES: Final = 1024
"""How many bytes each record around a payload may add, so that a payload within the limit can be wrapped in records."""

_TOO_DEEP: Final = f"it is nested more than {MAX_DEPTH} levels deep"

DIFFERENCE_BYTES: Final = 8 * 1024
"""Up to this size a command is stored whole beside its hash; above it, hashes by path are stored."""


def _plain_text(value: Any) -> str:
    """Encode an instance of a ``str`` subclass, such as a signed key, as a string."""
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=_plain_text)
_WRITER = msgspec.json.Encoder(enc_hook=_plain_text)
_DECODER = msgspec.json.Decoder()
_INSTEAD: Final[tuple[tuple[tuple[type, ...], str], ...]] = (
    ((tuple, set, frozenset), "a list"),
    ((bytes, bytearray), "text, such as base64"),
    ((date, time, timedelta, Decimal), "str()"),
)
_SCALARS = (str, int, float, bool, type(None))


def encode(value: Any) -> bytes:
    """Return the canonical JSON of value (plain JSON types and structs).

    Raises ValueNotJson, with the path of the first part that JSON cannot represent.
    """
    data = write(value, _ENCODER)
    # The encoder writes NaN and infinity as null, so a null may have been such a number.
    if b"null" in data:
        refuse(value)
    return data


def _is_deep(data: bytes) -> bool:
    """Return whether data is nested too deeply. Most data has too few brackets, so counting them decides quickly."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    try:
        level = [_DECODER.decode(data)]
    except RecursionError:
        return True
    for _ in range(MAX_DEPTH + 1):
        level = [item for part in level if isinstance(part, dict | list) for item in _items(part)]
    return bool(level)


def _items(part: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return part.values() if isinstance(part, dict) else part


def write(value: Any, encoder: msgspec.json.Encoder = _WRITER) -> bytes:
    """Return JSON that keeps the order of keys: for data that is read back, not hashed.

    Changes that JSON makes silently, such as NaN to null, are not detected: the caller compares the decoded value.
    """
    try:
        data = encoder.encode(value)
    except (TypeError, ValueError, RecursionError, UnicodeError) as error:
        refuse(value)
        raise ValueNotJson("$", str(error)) from error
    # Each level has an opening and a closing bracket, so short data cannot be too deep.
    if len(data) > 2 * MAX_DEPTH and _is_deep(data):
        refuse(value)
        raise ValueNotJson("$", _TOO_DEEP)
    return data


encode_to_compare = partial(write, encoder=_ENCODER)
"""Return the canonical JSON of value, like ``write``, for callers that compare it with what is decoded."""


def check_size(data: bytes, records: int = 0) -> bytes:
    """Return data if it may be stored, or refuse it because it is too large.

    ``records`` is the number of records, one inside another, around the payload.
    """
    if len(data) > MAX_PAYLOAD_BYTES + records * RECORD_BYTES:
        raise PayloadTooLarge(len(data), MAX_PAYLOAD_BYTES)
    return data


def write_payload(value: Any, records: int = 0) -> bytes:
    """Return the JSON of a stored value, like ``write``, or refuse it because it is too large."""
    return check_size(write(value), records)


def decode(data: bytes) -> Any:
    """Return the plain JSON value of data."""
    return _DECODER.decode(data)


def stable_hash(value: Any) -> bytes:
    """Return the SHA-256 of value's canonical JSON."""
    return hashlib.sha256(encode(value)).digest()


def round_trip(value: Any) -> Any:
    """Return value as it will be read back, or refuse it with the path of the part that would change."""
    back = decode(write(value))
    if back != value:
        refuse(value)
        raise ValueNotJson("$", "it changes when it is encoded as JSON and decoded again")
    return back


def refuse(value: Any, path: str = "$", depth: int = 0) -> None:
    """Raise ValueNotJson for the first part of value that would not survive as plain JSON."""
    if depth > MAX_DEPTH:
        raise ValueNotJson(path, _TOO_DEEP)
    match value:
        case str():
            _refuse_surrogates(value, path)
        case float() if not math.isfinite(value):
            raise ValueNotJson(path, f"{value} is not valid in JSON")
        case None | bool() | int() | float():
            return
        case dict() | list() | msgspec.Struct():
            for step, item in _parts(value, path):
                refuse(item, f"{path}{step}", depth + 1)
        case _:
            raise ValueNotJson(path, _type_problem(value))


def _type_problem(value: Any) -> str:
    kind = type(value).__name__
    instead = next((text for types, text in _INSTEAD if isinstance(value, types)), "plain JSON")
    return f"JSON has no type {kind}: use {instead}"


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a container, each with the step of the path that leads to it."""
    match value:
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ValueNotJson(path, f"the key {key!r} is not a string")
                _refuse_surrogates(key, path)
                yield f".{key}", item
        case list():
            for index, item in enumerate(value):
                yield f"[{index}]", item
        case _:
            kind: type[msgspec.Struct] = type(value)
            for field in kind.__struct_fields__:
                item = getattr(value, field)
                if item is msgspec.UNSET:  # the field is not encoded
                    continue
                typed = isinstance(item, tuple) and field in _tuple_fields(kind)
                yield f".{field}", list(item) if typed else item


@lru_cache
def _tuple_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields that the struct declares as tuples: they are decoded as tuples again."""
    annotations = [inspect.get_annotations(base) for base in kind.__mro__]
    return frozenset(
        name for hints in annotations for name, hint in hints.items() if "tuple" in str(hint)
    )


def _refuse_surrogates(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueNotJson(path, "the text contains a lone surrogate") from None


# --- differences: shown when a replay requests another command ---


def digest_for_difference(command: bytes) -> bytes:
    """Return what is stored of a canonical command so that a later command can be compared with it."""
    if len(command) <= DIFFERENCE_BYTES:
        return command
    return encode({"$hashes": _hashes(decode(command))})


def first_difference(kept: bytes | None, command: bytes) -> str:
    """Describe where command first differs from the stored one."""
    if kept is None:
        return "the recorded input was not kept"
    old, new = decode(kept), decode(command)
    if isinstance(old, dict) and "$hashes" in old:
        old, new = old["$hashes"], _hashes(new)
    return _difference(old, new, "$") or "the stored digest does not show where"


def _difference(old: Any, new: Any, path: str) -> str | None:
    if isinstance(old, dict) and isinstance(new, dict):
        steps = [(f"{path}.{key}", key) for key in sorted(old.keys() | new.keys())]
        return _part_difference(old, new, steps)
    if isinstance(old, list) and isinstance(new, list):
        length = max(len(old), len(new))
        return _part_difference(
            dict(enumerate(old)), dict(enumerate(new)), [(f"{path}[{i}]", i) for i in range(length)]
        )
    if old == new and type(old) is type(new):
        return None
    return f"{path}: recorded {_shown(old)}, now {_shown(new)}"


def _part_difference(
    old: dict[Any, Any], new: dict[Any, Any], steps: list[tuple[str, Any]]
) -> str | None:
    """Describe the first difference between two containers; ``steps`` are their keys with the path of each."""
    for path, key in steps:
        if key not in old:
            return f"{path}: not recorded, now {_shown(new[key])}"
        if key not in new:
            return f"{path}: recorded {_shown(old[key])}, now missing"
        if found := _difference(old[key], new[key], path):
            return found
    return None


def _shown(value: Any) -> str:
    text = encode(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def _hashes(value: Any, depth: int = 0) -> Any:
    """Return the shape of value with a short hash for each part, up to a fixed number of parts."""
    if depth < 3 and isinstance(value, dict) and len(value) <= 32:
        return {key: _hashes(item, depth + 1) for key, item in value.items()}
    if isinstance(value, _SCALARS) and len(str(value)) <= 64:
        return value
    return f"sha256:{stable_hash(value).hex()[:16]}"
