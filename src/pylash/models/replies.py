"""The answer of a model as it is stored: text, reasoning, calls, files, usage, its provider's state.

Rule 1. The pieces sent to listeners, joined, are the stored text.
Rule 2. The provider's state has the position of each part in the stored texts and its extra data; it
        contains no text itself. It is sent back only to the model that it came from.
Rule 3. A reply is checked before it is stored: the vendors' clients do not check the types of what they read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from pydantic_ai import messages as wire
from pydantic_core import to_jsonable_python

from pylash.turn.messages import Attachment, Usage
from pylash.turn.requests import CallRequest, Delta, Listen, ModelReply
from pylash.values.canonical import write
from pylash.values.errors import ValueNotJson

SEPARATOR: Final = "\n\n"
"""The separator between two texts with another part between them, and between two pieces of reasoning."""

_REPLIES: Final = msgspec.json.Decoder(ModelReply)
_NUMBERED: Final = {"tool-call": "call", "file": "file"}


class StatePart(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A part of an answer: a range of its text or reasoning, or one of its calls or files by number."""

    kind: str
    start: int = 0
    end: int = 0
    extras: dict[str, Any] = {}


class ProviderState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data that a provider needs with its answer in later requests; ``origin`` is the model that gave the answer."""

    origin: str
    provider: str | None = None
    canonical: str | None = None
    parts: tuple[StatePart, ...] = ()


class Pieces:
    """Passes the pieces of an answer to a listener as they arrive."""

    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        self._sent: set[str] = set()
        self._separator = ""

    def handle(self, event: wire.ModelResponseStreamEvent) -> None:
        """Handle an event of a stream; unknown kinds of event have no text."""
        match event:
            case wire.PartStartEvent(part=wire.TextPart(content=text), previous_part_kind=before):
                self._begin("text", text, separate=before != "text")
            case wire.PartStartEvent(part=wire.ThinkingPart(content=text)):
                self._begin("reasoning", text, separate=True)
            case wire.PartDeltaEvent(delta=wire.TextPartDelta(content_delta=text)):
                self._send("text", text)
            case wire.PartDeltaEvent(delta=wire.ThinkingPartDelta(content_delta=str(text))):
                self._send("reasoning", text)
            case _:
                pass

    def send_all(self, answer: wire.ModelResponse) -> None:
        """Send an answer that was not streamed."""
        text, reasoning, _ = _join(answer.parts)
        self._send("reasoning", reasoning)
        self._send("text", text)

    def _begin(self, kind: str, text: str, *, separate: bool) -> None:
        self._separator = SEPARATOR if separate and kind in self._sent else ""
        self._send(kind, text)

    def _send(self, kind: Any, text: str) -> None:
        if text:
            self._sent.add(kind)
            self._listen(Delta(without_surrogates(self._separator + text), kind))
            self._separator = ""


class UnstorableReply(ValueError):
    """An answer cannot be stored; the message has the reason and does not quote the answer."""


def reply_of(answer: wire.ModelResponse, origin: str) -> ModelReply:
    """Return an answer as a reply; raises UnstorableReply if it cannot be stored."""
    text, reasoning, parts = _join(answer.parts)
    reply = ModelReply(
        text=text,
        calls=tuple(map(_call, answer.tool_calls)),
        reasoning=reasoning,
        usage=_usage(answer),
        finish_reason=_finish_reason(answer),
        model=answer.model_name,
        provider_state=_provider_state(answer, origin, parts),
        attachments=tuple(
            Attachment(one.content.data, one.content.media_type, size=len(one.content.data))
            for one in answer.parts
            if isinstance(one, wire.FilePart)
        ),
    )
    _check_storable(reply)
    return reply


def without_surrogates(text: str) -> str:
    """Return text that can be stored: surrogate pairs are joined, lone surrogates replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _check_storable(reply: ModelReply) -> None:
    """Refuse a reply that could not be read back: a field has a wrong type, or a text has a lone surrogate."""
    without_bytes = (msgspec.structs.replace(one, data=b"") for one in reply.attachments)
    try:
        _REPLIES.decode(write(msgspec.structs.replace(reply, attachments=tuple(without_bytes))))
    except (ValueNotJson, msgspec.MsgspecError) as error:
        reason = error.__context__ or error  # the error in the context is more precise
        raise UnstorableReply(str(reason)) from error


def _join(parts: Iterable[Any]) -> tuple[str, str, list[StatePart]]:
    """Return the text and the reasoning of parts, and the range of each part."""
    joined = {"text": "", "thinking": ""}
    spans: list[StatePart] = []
    counts = dict.fromkeys(_NUMBERED, 0)
    before = ""
    for part in parts:
        kind = part.part_kind
        if kind in joined:
            content = without_surrogates(part.content)
            if content and joined[kind] and not (kind == before == "text"):
                joined[kind] += SEPARATOR
            start = len(joined[kind])
            joined[kind] += content
            spans.append(StatePart(kind, start, len(joined[kind]), _extras(part)))
        elif kind in counts:
            spans.append(StatePart(_NUMBERED[kind], counts[kind], extras=_extras(part)))
            counts[kind] += 1
        before = kind
    return joined["text"], joined["thinking"], spans


def _extras(part: wire.ModelResponsePart) -> dict[str, Any]:
    """Return the data of a part besides its content."""
    names = ("id", "signature", "provider_name", "provider_details")
    given = {name: getattr(part, name, None) for name in names}
    plain: dict[str, Any] = to_jsonable_python({k: v for k, v in given.items() if v is not None})
    return plain


def _provider_state(answer: wire.ModelResponse, origin: str, parts: list[StatePart]) -> Any:
    """Return the state that the provider needs with its answer in later requests, or None."""
    stateful = ("thinking", "file")
    if not any(part.kind in stateful or "provider_details" in part.extras for part in parts):
        return None
    canonical = getattr(answer, "canonical_system", None)  # since pydantic-ai 2.63
    state = ProviderState(origin, answer.provider_name, canonical, tuple(parts))
    return msgspec.to_builtins(state)


def _call(part: wire.ToolCallPart) -> CallRequest:
    arguments = part.args
    if isinstance(arguments, str):
        arguments = _parse_arguments(without_surrogates(arguments))
    return CallRequest(part.tool_name, {} if arguments is None else arguments, part.tool_call_id)


def _parse_arguments(arguments: str) -> Any:
    """Return the arguments in a JSON text; a text that is not JSON is returned unchanged."""
    if not arguments.strip():
        return {}
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _finish_reason(answer: wire.ModelResponse) -> str | None:
    # Some vendors report "stop" although the answer has calls.
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
    """Return the cost of an answer in dollars; 0 if the price is unknown."""
    if answer.provider_name is None or not answer.model_name:
        return 0.0
    try:
        return float(answer.cost().total_price)
    except Exception:  # noqa: BLE001 - an unknown price must not fail the call
        return 0.0
