"""Effects that a fork took over: their recorded commands have the id and the wait keys of the process that was forked.

Rule 1. The command of a fork is compared as it is first. Only if its hash differs, it is compared as each process that was forked
        would have asked for it. Nothing else about a command may differ.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from pylash.durable.processes import ForkOrigin, Registration
from pylash.durable.scopes import ProcessScope
from pylash.durable.waits import SIGNED_KEY, Signer
from pylash.values.canonical import decode, encode_to_compare


def is_taken_over(fork: Registration, canonical: bytes, recorded: bytes, signer: Signer) -> bool:
    """Return whether a process that was forked recorded a command of the fork: ``recorded`` is the hash in the journal."""
    return any(
        hashlib.sha256(_as_asked_by(origin, fork.id, canonical, signer)).digest() == recorded
        for origin in fork.origins
    )


def _as_asked_by(origin: ForkOrigin, fork: str, canonical: bytes, signer: Signer) -> bytes:
    """Return the canonical text of a command with the id and the wait keys of ``origin`` instead of the fork's."""
    # An id within a longer word is another word: "7" in "17".
    own = re.compile(rf"{SIGNED_KEY}|(?<![^\W_]){re.escape(fork)}(?![^\W_])")

    def original(found: re.Match[str]) -> str:
        if found[0] == fork:
            return origin.process_id
        # Keys first in the pattern: an id within the text of a key is never replaced. Keys of others stay.
        name = signer.name(found[0])
        if name is None or name.scope != ProcessScope(fork):
            return found[0]
        scope = ProcessScope(origin.process_id)
        return signer.sign(replace(name, scope=scope, generation=origin.epoch))

    # Encoded again, because keys of records are sorted. The name of the effect is not changed: its key has it too.
    whole = decode(canonical)
    command = _mapped(whole["command"], lambda text: own.sub(original, text))
    return encode_to_compare({**whole, "command": command})


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case list():
            return [_mapped(one, change) for one in value]
        case dict():
            return {change(key): _mapped(one, change) for key, one in value.items()}
        case _:
            return value
