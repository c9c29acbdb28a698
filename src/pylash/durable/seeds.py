"""Pseudo-random values derived from names, so that a replay produces the same values."""

from __future__ import annotations

import hashlib


def digest(*parts: str) -> bytes:
    """Return 32 bytes that depend only on parts."""
    return hashlib.sha256("\x1f".join(parts).encode()).digest()


def chance(*parts: str) -> float:
    """Return a number from 0 to 1 that depends only on parts."""
    return int.from_bytes(digest(*parts)[:7], "big") / (1 << 56)


def uuid_text(data: bytes) -> str:
    """Return 16 bytes as the text of a version 4 UUID."""
    marked = bytearray(data)
    marked[6] = marked[6] & 0x0F | 0x40
    marked[8] = marked[8] & 0x3F | 0x80
    text = bytes(marked).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
