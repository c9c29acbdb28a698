"""What a model answered, as it is stored: text, reasoning, calls, files, usage, its provider's state.

Rule 1. What listeners heard, put together, is the stored text.
Rule 2. The provider's state says where its parts lie in the stored texts and what belongs to each; it
        holds no text itself. It only ever goes back to the model it came from.
Rule 3. A reply is one that can be stored: the vendors' clients check no types of what they read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from pydantic_ai import messages as wire
from pydantic_core import to_jsonable_python

from pylash.turn import Attachment, CallRequest, Delta, Listen, ModelReply, Usage
from pylash.values import ValueNotJson, write

BETWEEN: Final = "\n\n"
"""What stands between two texts that something else came between, and between two thoughts."""

_REPLIES: Final = msgspec.json.Decoder(ModelReply)
_NUMBERED: Final = {"tool-call": "call", "file": "file"}


class StatePart(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A part of an answer: a stretch of its text or reasoning, or one of its calls or files by number."""

    kind: str
    start: int = 0
    end: int = 0
    extras: dict[str, Any] = {}


class ProviderState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a provider wants back with an answer of its; ``origin`` is the model that gave it."""

    origin: str
    provider: str | None = None
    canonical: str | None = None
    parts: tuple[StatePart, ...] = ()


class Pieces:
    """Tells a listener the pieces of an answer, as they come."""

    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        self._spoken: set[str] = set()
        self._pause = ""

    def hear(self, event: wire.ModelResponseStreamEvent) -> None:
        """Take an event of a stream; those of a kind we do not know are no text."""
        match event:
            case wire.PartStartEvent(part=wire.TextPart(content=text), previous_part_kind=before):
                self._begin("text", text, apart=before != "text")
            case wire.PartStartEvent(part=wire.ThinkingPart(content=text)):
                self._begin("reasoning", text, apart=True)
            case wire.PartDeltaEvent(delta=wire.TextPartDelta(content_delta=text)):
                self._say("text", text)
            case wire.PartDeltaEvent(delta=wire.ThinkingPartDelta(content_delta=str(text))):
                self._say("reasoning", text)
            case _:
                pass

    def say_all(self, answer: wire.ModelResponse) -> None:
        """Tell an answer that came as a whole."""
        text, reasoning, _ = _joined(answer.parts)
        self._say("reasoning", reasoning)
        self._say("text", text)

    def _begin(self, kind: str, text: str, *, apart: bool) -> None:
        self._pause = BETWEEN if apart and kind in self._spoken else ""
        self._say(kind, text)

    def _say(self, kind: Any, text: str) -> None:
        if text:
            self._spoken.add(kind)
            self._listen(Delta(whole(self._pause + text), kind))
            self._pause = ""


class UnstorableReply(ValueError):
    """An answer cannot be stored; the text says why and quotes nothing of it."""


def reply_of(answer: wire.ModelResponse, origin: str) -> ModelReply:
    """Return an answer as a reply; raises UnstorableReply for one that cannot be stored."""
    text, reasoning, parts = _joined(answer.parts)
    reply = ModelReply(
        text=text,
        calls=tuple(map(_call, answer.tool_calls)),
        reasoning=reasoning,
        usage=_usage(answer),
        finish_reason=_reason(answer),
        model=answer.model_name,
        provider_state=_state(answer, origin, parts),
        attachments=tuple(
            Attachment(one.content.data, one.content.media_type, size=len(one.content.data))
            for one in answer.parts
            if isinstance(one, wire.FilePart)
        ),
    )
    _check_storable(reply)
    return reply


def whole(text: str) -> str:
    """Return text that can be stored: halves of characters are joined, or replaced if one is missing."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _check_storable(reply: ModelReply) -> None:
    """Refuse a reply that could not be read again: a field has a wrong type, or a text half a character."""
    without_bytes = (msgspec.structs.replace(one, data=b"") for one in reply.attachments)
    try:
        _REPLIES.decode(write(msgspec.structs.replace(reply, attachments=tuple(without_bytes))))
    except (ValueNotJson, msgspec.MsgspecError) as error:
        reason = error.__context__ or error  # of a value that is none the encoder knows more
        raise UnstorableReply(str(reason)) from error


def _joined(parts: Iterable[Any]) -> tuple[str, str, list[StatePart]]:
    """Return the text and the reasoning of parts, and where each part lies."""
    said = {"text": "", "thinking": ""}
    spans: list[StatePart] = []
    counts = dict.fromkeys(_NUMBERED, 0)
    before = ""
    for part in parts:
        kind = part.part_kind
        if kind in said:
            content = whole(part.content)
            if content and said[kind] and not (kind == before == "text"):
                said[kind] += BETWEEN
            start = len(said[kind])
            said[kind] += content
            spans.append(StatePart(kind, start, len(said[kind]), _extras(part)))
        elif kind in counts:
            spans.append(StatePart(_NUMBERED[kind], counts[kind], extras=_extras(part)))
            counts[kind] += 1
        before = kind
    return said["text"], said["thinking"], spans


def _extras(part: wire.ModelResponsePart) -> dict[str, Any]:
    """Return what belongs to a part besides its content."""
    names = ("id", "signature", "provider_name", "provider_details")
    given = {name: getattr(part, name, None) for name in names}
    plain: dict[str, Any] = to_jsonable_python({k: v for k, v in given.items() if v is not None})
    return plain


def _state(answer: wire.ModelResponse, origin: str, parts: list[StatePart]) -> Any:
    """Return the state of an answer, if its provider wants anything back."""
    wanted = ("thinking", "file")
    if not any(part.kind in wanted or "provider_details" in part.extras for part in parts):
        return None
    canonical = getattr(answer, "canonical_system", None)  # since pydantic-ai 2.63
    state = ProviderState(origin, answer.provider_name, canonical, tuple(parts))
    return msgspec.to_builtins(state)


def _call(part: wire.ToolCallPart) -> CallRequest:
    arguments = part.args
    if isinstance(arguments, str):
        arguments = _decoded(whole(arguments))
    return CallRequest(part.tool_name, {} if arguments is None else arguments, part.tool_call_id)


def _decoded(arguments: str) -> Any:
    """Return the arguments that a text is; a text that is no JSON stays what it is."""
    if not arguments.strip():
        return {}
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _reason(answer: wire.ModelResponse) -> str | None:
    # Some vendors say "stop" although they call.
    reason: str | None = answer.finish_reason
    calls = answer.tool_calls and reason in (None, "stop", "tool_call")
    return "tool_calls" if calls else reason


def _usage(answer: wire.ModelResponse) -> Usage:
    used = answer.usage
    return Usage(
        requests=1,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cost=_cost(answer),
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
        reasoning_tokens=used.output_reasoning_tokens,
    )


def _cost(answer: wire.ModelResponse) -> float:
    """Return what an answer cost in dollars; 0 where nobody knows the price."""
    if answer.provider_name is None or not answer.model_name:
        return 0.0
    try:
        return float(answer.cost().total_price)
    except Exception:  # noqa: BLE001 - a price that is not known must not cost an answer
        return 0.0
