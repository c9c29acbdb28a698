"""Waits: effects that are resolved from outside the run.

Rule 1. A wait is named by its scope and identity; its key is that name, signed.
Rule 2. A key contains nothing secret and proves only that this deployment created it.
Rule 3. The first resolution is final.

A key is ``v1.<kid>.<payload>.<mac>``, safe in a URL. ``kid`` identifies the secret that signed it, so that
secrets can be changed while keys are in use: the first secret signs, all of them verify.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from pylash.durable.runs import Instant
from pylash.durable.scopes import ExecutionScope, checked_scope
from pylash.values.canonical import decode, encode, refuse, write_payload
from pylash.values.errors import (
    AnswerInvalid,
    InvalidAwaitEventWaitIdentity,
    InvalidResolution,
    SecretInvalid,
    ValueNotJson,
)
from pylash.values.names import check_name
from pylash.values.schemas import schema_trouble

VERSION: Final = "v1"
SIGNED_KEY: Final = r"v1\.[0-9a-f]{8}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"
"""The pattern of a signed key in a text."""

_KEY: Final = re.compile(SIGNED_KEY)
MIN_SECRET_BYTES: Final = 16

BRANCH_OF_SIGNAL: Final = "\x1f"
"""The separator between a signal's name and the branch that waits for it."""


class ToolCompletion(msgspec.Struct, frozen=True, tag_field="type", tag="tool_completion"):
    """The result of a deferred tool call."""

    tool_call_id: str


class ProcessSignal(msgspec.Struct, frozen=True, tag_field="type", tag="process_signal"):
    """The ``ordinal``-th wait of a process for a signal of one name."""

    process_id: str
    signal_name: str
    ordinal: int


class CustomWait(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    """A wait under a key that the caller chose."""

    key: str


WaitIdentity = ToolCompletion | ProcessSignal | CustomWait
"""The identity of a wait within its scope."""


class Ok(msgspec.Struct, frozen=True, tag_field="status", tag="ok"):
    """Resolved with a value."""

    value: Any = None


class Err(msgspec.Struct, frozen=True, tag_field="status", tag="err"):
    """Resolved with an error."""

    code: str
    message: str
    raw: Any = None


class Timeout(msgspec.Struct, frozen=True, tag_field="status", tag="timeout", omit_defaults=True):
    """Not resolved in time.

    ``still_open``: only the time of one waiter is over. That is an outcome of its effect, and never the end of a wait.
    """

    still_open: bool = False


class Cancelled(msgspec.Struct, frozen=True, tag_field="status", tag="cancelled"):
    """The waiter was cancelled."""


Resolution = Ok | Err | Timeout | Cancelled
"""The result of a wait."""

RESOLUTIONS: msgspec.json.Decoder[Resolution] = msgspec.json.Decoder(Resolution)
"""Decodes a stored resolution."""

STILL_OPEN: Final = encode(Timeout(still_open=True))
"""The outcome of an effect that waited for its own time only."""

SUPERSEDED: Final = "superseded by a new message"
"""The reason of a wait that was cancelled because a new message interrupted its turn."""


class ResolveOutcome(msgspec.Struct, frozen=True):
    """The result of resolving: accepted, too late (``terminal`` is the earlier resolution), or unknown key."""

    status: Literal["accepted", "already_resolved", "unknown_or_revoked"]
    terminal: Resolution | None = None


ACCEPTED: Final = ResolveOutcome("accepted")
UNKNOWN_OR_REVOKED: Final = ResolveOutcome("unknown_or_revoked")


class WaitName(msgspec.Struct, frozen=True, omit_defaults=True):
    """The full name of a wait. ``generation`` counts how often the waits of its session were revoked."""

    scope: ExecutionScope
    wait: WaitIdentity
    generation: int = 0

    @property
    def id(self) -> str:
        """The SHA-256 of the name: the primary key of the wait."""
        return hashlib.sha256(encode(self)).hexdigest()

    @property
    def promise(self) -> str:
        """The name of the promise on an engine with native promises."""
        return f"lash-await-event:{self.id}"


class WaitView(msgspec.Struct, frozen=True):
    """A wait in a list."""

    name: WaitName
    kind: str
    title: str
    tool: str | None
    arguments: Any
    opened: Instant
    deadline: Instant | None


class OpenWait(WaitView, frozen=True):
    """An open wait; ``key`` resolves it."""

    key: str


WAIT_NAMES: msgspec.json.Decoder[WaitName] = msgspec.json.Decoder(WaitName)
"""Decodes a stored name."""


def unsigned(key: str) -> Any:
    """Return scope and wait in a key: they depend neither on the secret that signed it nor on the generation."""
    payload = key.partition(".")[2].partition(".")[2].rpartition(".")[0]
    try:
        name = decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return {"scope": name["scope"], "wait": name["wait"]}
    # An invalid key is refused elsewhere.
    except (binascii.Error, ValueError, TypeError, KeyError):
        return payload


def is_well_formed(key: object) -> bool:
    """Return whether a text has the form of a key, without checking its signature."""
    return (
        isinstance(key, str) and _KEY.fullmatch(key) is not None and isinstance(unsigned(key), dict)
    )


def checked_resolution(resolution: Resolution) -> Resolution:
    """Return resolution as it will be read back, or raise an error if it is invalid or would change."""
    if not isinstance(resolution, Resolution) or resolution == Timeout(still_open=True):
        raise InvalidResolution(resolution)
    back = RESOLUTIONS.decode(write_payload(resolution, 1))
    if back != resolution:
        for field in resolution.__struct_fields__:
            refuse(getattr(resolution, field))
        raise ValueNotJson("$", "it changes when it is encoded as JSON and decoded again")
    return back


def check_answer(resolution: Resolution, schema: Any) -> None:
    """Refuse a value that does not fit the JSON Schema of a wait: the wait stays open.

    An answer that comes before the wait is opened is not checked here, as its schema is not known.
    """
    if not isinstance(resolution, Ok):
        return
    problem = schema_trouble(resolution.value, schema)
    if problem is not None:
        raise AnswerInvalid(problem.removeprefix("$."))


def checked_identity(wait: WaitIdentity) -> WaitIdentity:
    """Return wait, or raise InvalidAwaitEventWaitIdentity."""
    if not isinstance(wait, WaitIdentity):
        raise InvalidAwaitEventWaitIdentity(wait)
    for field in wait.__struct_fields__:
        value = getattr(wait, field)
        if value < 1 if isinstance(value, int) else not value.strip():
            raise InvalidAwaitEventWaitIdentity(str(wait.__struct_config__.tag), field)
        if isinstance(value, str):  # any length is fine: the wait is stored under a hash
            check_name(field.replace("_", " "), value.partition(BRANCH_OF_SIGNAL)[0], limit=None)
    return wait


class Signer(msgspec.Struct, frozen=True):
    """Signs wait keys with its first secret and verifies them with all of them."""

    secrets: Sequence[bytes]

    def __post_init__(self) -> None:
        if not self.secrets or min(map(len, self.secrets)) < MIN_SECRET_BYTES:
            raise SecretInvalid(MIN_SECRET_BYTES)

    def key(self, scope: ExecutionScope, wait: WaitIdentity, generation: int = 0) -> str:
        """Return the signed key of a wait: always the same for the same wait."""
        return self.sign(WaitName(checked_scope(scope), checked_identity(wait), generation))

    def sign(self, name: WaitName) -> str:
        """Return the signed key of a stored wait."""
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
                return name_in_key(payload)
        return None


def name_in_key(payload: str) -> WaitName | None:
    """Return the name in the payload of a key, signed or not."""
    try:
        return WAIT_NAMES.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (binascii.Error, msgspec.DecodeError):  # signed by another version of pylash
        return None


def _kid(secret: bytes) -> str:
    return hashlib.sha256(b"kid:" + secret).hexdigest()[:8]


def _mac(secret: bytes, body: str) -> str:
    return _text(hmac.new(secret, body.encode("utf-8", "replace"), hashlib.sha256).digest())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
