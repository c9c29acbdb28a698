"""Results of tools as messages to a model.

Rule 1. The same value gives the same text, always.
Rule 2. A text that is too long keeps its head and its tail, with the size and the reference of the whole between them.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from pylash.turn.messages import ZERO, Attachment, ToolCall, ToolMessage
from pylash.values.canonical import check_size, write

RESULT_CHARACTERS: Final = 16_000
"""The longest result that a model is sent; of a longer one it gets the head and the tail."""

NO_RESULT: Final = "Done."
"""The text of a result that is None."""


def result_message(
    call: ToolCall, value: Any, took: float, attached: dict[str, bytes]
) -> ToolMessage:
    """Return a result as a message.

    A text that is too long for the model is added as a whole to ``attached``, the bytes by reference.
    """
    attachments: tuple[Attachment, ...] = ()
    if isinstance(value, Attachment):
        attachments = (value,)
        value = {"attachment": value.ref, "media_type": value.media_type, "name": value.name}
    stored = tuple(attached)
    text = result_text(value)
    if len(text) > RESULT_CHARACTERS:
        body = check_size(text.encode())
        ref = hashlib.sha256(body).hexdigest()
        attached[ref] = body
        media_type = "text/plain" if isinstance(value, str) else "application/json"
        attachments += (Attachment(media_type=media_type, ref=ref, size=len(body)),)
        text, _ = fit_text(text, RESULT_CHARACTERS, ref)
    return ToolMessage(
        call.id,
        call.tool,
        text,
        attachments=attachments,
        seconds=round(took, 3) or ZERO,
        provider_id=call.provider_id,
        stored=tuple(ref for ref in stored if ref not in {one.ref for one in attachments}),
    )


def result_text(value: Any) -> str:
    """Return a result (plain JSON or a struct) as text for a model.

    >>> result_text({"total": 7})
    '{"total":7}'
    """
    if value is None:
        return NO_RESULT
    return value if isinstance(value, str) else write(value).decode()


def fit_text(text: str, limit: int = RESULT_CHARACTERS, ref: str | None = None) -> tuple[str, bool]:
    """Return a text of at most ``limit`` characters, and whether anything was left out.

    The middle is replaced by a line with the size of the omitted part and ``ref``, the reference of the whole text.
    If even that line does not fit, it is returned alone.
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
