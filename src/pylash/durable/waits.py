"""Waits: effects that an outsider resolves.

Rule 1. A wait is named by its scope and identity; its key is that name, signed.
Rule 2. A key says nothing secret and proves only that this deployment made it.
Rule 3. The first resolution is the last: it never changes.

A key is ``v1.<kid>.<payload>.<mac>``, safe in a URL. ``kid`` says which secret signed it, so that
secrets can be changed while keys are out: the first secret signs, all of them verify.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from pylash.durable.scopes import ExecutionScope, checked_scope
from pylash.values import (
    InvalidAwaitEventWaitIdentity,
    InvalidResolution,
    SecretInvalid,
    ValueNotJson,
    check_name,
    decode,
    encode,
    refuse,
    write_payload,
)

VERSION: Final = "v1"
MIN_SECRET_BYTES: Final = 16

BRANCH_OF_SIGNAL: Final = "\x1f"
"""What stands between a signal's name and the branch that waits for it."""


class ToolCompletion(msgspec.Struct, frozen=True, tag_field="type", tag="tool_completion"):
    """The result of a deferred tool call."""

    tool_call_id: str


class ProcessSignal(msgspec.Struct, frozen=True, tag_field="type", tag="process_signal"):
    """The ``ordinal``-th wait of a process for a signal of one name."""

    process_id: str
    signal_name: str
    ordinal: int


class CustomWait(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    """A wait under a name of the caller's own."""

    key: str


WaitIdentity = ToolCompletion | ProcessSignal | CustomWait
"""What is waited for, within a scope."""


class Ok(msgspec.Struct, frozen=True, tag_field="status", tag="ok"):
    """Answered with a value."""

    value: Any = None


class Err(msgspec.Struct, frozen=True, tag_field="status", tag="err"):
    """Answered with an error."""

    code: str
    message: str
    raw: Any = None


class Timeout(msgspec.Struct, frozen=True, tag_field="status", tag="timeout"):
    """Nobody answered in time."""


class Cancelled(msgspec.Struct, frozen=True, tag_field="status", tag="cancelled"):
    """The waiter was cancelled."""


Resolution = Ok | Err | Timeout | Cancelled
"""How a wait ended."""

RESOLUTIONS: msgspec.json.Decoder[Resolution] = msgspec.json.Decoder(Resolution)
"""Reads a stored resolution."""

SUPERSEDED: Final = "superseded by a new message"
"""What is said of a wait that was cancelled because somebody said something else instead of answering."""


class ResolveOutcome(msgspec.Struct, frozen=True):
    """What became of an answer: taken, too late (``terminal`` is what won), or not ours."""

    status: Literal["accepted", "already_resolved", "unknown_or_revoked"]
    terminal: Resolution | None = None


ACCEPTED: Final = ResolveOutcome("accepted")
UNKNOWN_OR_REVOKED: Final = ResolveOutcome("unknown_or_revoked")


class WaitName(msgspec.Struct, frozen=True, omit_defaults=True):
    """A wait's whole name. ``generation`` counts how often its session's waits were revoked."""

    scope: ExecutionScope
    wait: WaitIdentity
    generation: int = 0

    @property
    def id(self) -> str:
        """The SHA-256 of the name: the wait's primary key."""
        return hashlib.sha256(encode(self)).hexdigest()

    @property
    def promise(self) -> str:
        """The name of the promise on an engine that has promises of its own."""
        return f"lash-await-event:{self.id}"


WAIT_NAMES: msgspec.json.Decoder[WaitName] = msgspec.json.Decoder(WaitName)
"""Reads a stored name."""


def unsigned(key: str) -> Any:
    """Return what key names: the same whichever secret signed it, and after a revocation."""
    payload = key.partition(".")[2].partition(".")[2].rpartition(".")[0]
    try:
        name = decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return {"scope": name["scope"], "wait": name["wait"]}
    except (binascii.Error, ValueError, TypeError, KeyError):  # no key of ours: refused elsewhere
        return payload


def checked_resolution(resolution: Resolution) -> Resolution:
    """Return resolution as it will be read back, or refuse one that is none or would change."""
    if not isinstance(resolution, Resolution):
        raise InvalidResolution(resolution)
    back = RESOLUTIONS.decode(write_payload(resolution, 1))
    if back != resolution:
        for field in resolution.__struct_fields__:
            refuse(getattr(resolution, field))
        raise ValueNotJson("$", "it would not come back as it was")
    return back


def checked_identity(wait: WaitIdentity) -> WaitIdentity:
    """Return wait, or refuse it with ``invalid_await_event_wait_identity``."""
    if not isinstance(wait, WaitIdentity):
        raise InvalidAwaitEventWaitIdentity(wait)
    for field in wait.__struct_fields__:
        value = getattr(wait, field)
        if value < 1 if isinstance(value, int) else not value.strip():
            raise InvalidAwaitEventWaitIdentity(str(wait.__struct_config__.tag), field)
        if isinstance(value, str):  # of any length: the wait is stored under a hash of it
            check_name(field.replace("_", " "), value.partition(BRANCH_OF_SIGNAL)[0], limit=None)
    return wait


class Signer(msgspec.Struct, frozen=True):
    """Signs wait keys with its first secret and verifies them with all of them."""

    secrets: Sequence[bytes]

    def __post_init__(self) -> None:
        if not self.secrets or min(map(len, self.secrets)) < MIN_SECRET_BYTES:
            raise SecretInvalid(MIN_SECRET_BYTES)

    def key(self, scope: ExecutionScope, wait: WaitIdentity, generation: int = 0) -> str:
        """Return the signed key of a wait: the same for the same wait, always."""
        return self.sign(WaitName(checked_scope(scope), checked_identity(wait), generation))

    def sign(self, name: WaitName) -> str:
        """Return the signed key of a wait that is stored."""
        body = f"{VERSION}.{_kid(self.secrets[0])}.{_text(encode(name))}"
        return f"{body}.{_mac(self.secrets[0], body)}"

    def name(self, key: object) -> WaitName | None:
        """Return the name in key, or None if none of our secrets signed it."""
        if not isinstance(key, str):
            return None
        body, _, mac = key.rpartition(".")
        version, _, rest = body.partition(".")
        kid, _, payload = rest.partition(".")
        if version != VERSION:
            return None
        for secret in self.secrets:
            if _kid(secret) == kid and hmac.compare_digest(
                _mac(secret, body).encode(), mac.encode("utf-8", "replace")
            ):
                return _read(payload)
        return None


def _read(payload: str) -> WaitName | None:
    try:
        return WAIT_NAMES.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (binascii.Error, msgspec.DecodeError):  # signed by us, but by code of another version
        return None


def _kid(secret: bytes) -> str:
    return hashlib.sha256(b"kid:" + secret).hexdigest()[:8]


def _mac(secret: bytes, body: str) -> str:
    return _text(hmac.new(secret, body.encode("utf-8", "replace"), hashlib.sha256).digest())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
