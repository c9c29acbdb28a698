"""What a model is asked, in pydantic-ai's words.

Rule 1. Every call has one result, under an id that every provider takes and no other call has, wherever
        the call came from: a session may change its model, and its provider, between turns.
Rule 2. Reasoning and files go back only to the model that they came from, with what its provider wants
        back; another one is told that there was a file.
Rule 3. A stored message is converted once while its conversation is in use: messages are immutable, and a
        request is mostly the one before it with a few messages more. What was handed out is never changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, Final, assert_never

import msgspec
from pydantic_ai import messages as wire
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from pylash.models.replies import ProviderState, StatePart
from pylash.turn import (
    FINAL_RESULT,
    AssistantMessage,
    Attachment,
    Message,
    ModelRequest,
    SystemMessage,
    Text,
    ToolCall,
    ToolManifest,
    ToolMessage,
    UserMessage,
    final_tool,
    is_loaded,
)

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_CONVERTED: Final = 30_000
"""How many converted messages a model keeps: each takes about a kilobyte besides its text."""
MANY: Final = 200
"""So many new messages are converted in a thread, so that nobody is held up."""
INTERRUPTED: Final = "[Your last answer was interrupted before its end.]"
"""What a model is told after an answer that somebody stopped."""
_NO_ARGUMENTS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
_HAS_CANONICAL: Final = "canonical_system" in wire.ModelResponse.__dataclass_fields__
"""Whether answers have this field: pydantic-ai has it since 2.63, and stores outlive an older one."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as pydantic-ai takes it. ``origin`` names the model, for what it gets back."""

    messages: list[wire.ModelMessage]
    parameters: ModelRequestParameters
    origin: str


async def prompt_of(request: ModelRequest, model: Model[Any], known: Conversions) -> Prompt:
    """Return what a model is asked; ``known`` are the conversations that it was asked about before."""
    origin = origin_of(model)
    key = request.session_id
    before = known.take(key)
    convert = partial(_converted, request, before, origin, getattr(model, "base_url", None))
    new = len(request.messages) - (0 if before is None else len(before))
    is_quick = new < MANY and is_loaded(request.messages)
    said = convert() if is_quick else await asyncio.to_thread(convert)
    known.put(key, said)
    messages = said.messages()
    if said.shows_pictures or _profile(model).get("tool_call_id_length") is not None:
        # It is not told of the instructions: it would add words of its own to them.
        messages = model.prepare_messages(messages)
    return Prompt(messages, _parameters(request, model), origin)


def origin_of(model: Model[Any]) -> str:
    """Return the name of a model at its address; the address itself may hold a secret."""
    address = hashlib.sha256(str(getattr(model, "base_url", "")).encode()).hexdigest()[:12]
    return f"{model.model_id}@{address}"


def _profile(model: Model[Any]) -> Mapping[str, Any]:
    try:
        profile: Mapping[str, Any] = model.profile
    except NotImplementedError:  # several models behind one have each their own
        return {}
    return profile


# --- the transcript ---


class Conversions:
    """The conversations of one model as they were last sent, by session; the last used last.

    ``most``: how many messages are kept altogether, besides those of the last conversation.
    """

    def __init__(self, most: int = MAX_CONVERTED) -> None:
        self._most = most
        self._known: OrderedDict[str, Converted] = OrderedDict()
        self._count = 0

    def take(self, session_id: str) -> Converted | None:
        """Return a conversation, which belongs to the caller until it is put back."""
        found = self._known.pop(session_id, None)
        self._count -= 0 if found is None else len(found)
        return found

    def put(self, session_id: str, said: Converted) -> None:
        """Keep a conversation; one outside of sessions, or with the bytes of files, is not worth it."""
        if not session_id or said.holds_bytes:
            return
        self.take(session_id)
        self._known[session_id] = said
        self._count += len(said)
        while self._count > self._most and len(self._known) > 1:
            self.take(next(iter(self._known)))


def _converted(
    request: ModelRequest, before: Converted | None, origin: str, url: str | None
) -> Converted:
    """Return the conversation of a request, as what came before it and the rest, or anew."""
    stored = list(request.messages)
    first = next((n for n, one in enumerate(stored) if not isinstance(one, SystemMessage)), 0)
    del stored[:first]
    if before is None or not before.begins(stored, origin):
        before = Converted(origin, url)
    before.add(stored[len(before) :])
    return before


class Converted:
    """Stored messages as those of pydantic-ai, the oldest first; it grows at its end only."""

    def __init__(self, origin: str, url: str | None) -> None:
        self.shows_pictures = self.holds_bytes = False
        self._stored: list[SystemMessage | Message] = []
        self._messages: list[wire.ModelMessage] = []
        self._origin = origin
        self._url = url
        self._used: set[str] = set()
        self._open: dict[str, tuple[ToolCall, str]] = {}
        self._parts: list[wire.ModelRequestPart] = []

    def __len__(self) -> int:
        return len(self._stored)

    def begins(self, stored: Sequence[SystemMessage | Message], origin: str) -> bool:
        """Return whether a conversation for a model begins with this one."""
        # Comparing lists is quick where both hold the same objects.
        return origin == self._origin and self._stored == stored[: len(self._stored)]

    def add(self, stored: Sequence[SystemMessage | Message]) -> None:
        """Take the next messages."""
        for message in stored:
            self._convert(message)
        self._stored += stored

    def messages(self) -> list[wire.ModelMessage]:
        """Return all messages; what comes later is told apart from what is returned here."""
        parts = [*self._parts, *self._missing_results()]
        return [*self._messages, wire.ModelRequest(parts)] if parts else [*self._messages]

    def _convert(self, message: SystemMessage | Message) -> None:
        match message:
            case SystemMessage():
                pass  # it is an instruction, beside the transcript
            case UserMessage():
                self._close_calls()
                self._parts.append(_user_part(message))
                self.holds_bytes |= any(isinstance(part, Attachment) for part in message.parts)
            case ToolMessage():
                self._result(message)
            case AssistantMessage():
                self._close_calls()
                self._answer(message)
                self.holds_bytes |= bool(message.attachments)
            case _:
                assert_never(message)

    def _flush(self) -> None:
        if self._parts:
            self._messages.append(wire.ModelRequest(self._parts))
            self._parts = []

    def _missing_results(self) -> list[wire.ToolReturnPart]:
        """Return results for calls that have none in this transcript: every provider wants them."""
        return [
            wire.ToolReturnPart(call.tool, "No result.", wire_id)
            for call, wire_id in self._open.values()
        ]

    def _close_calls(self) -> None:
        self._parts += self._missing_results()
        self._open = {}

    def _result(self, message: ToolMessage) -> None:
        _, wire_id = self._open.pop(message.call_id, (None, None))
        if wire_id is None:
            return  # its call is not in this transcript
        pictures = [_binary(one) for one in message.attachments if one.data]
        self.shows_pictures |= bool(pictures)
        self.holds_bytes |= bool(pictures)
        part = wire.ToolReturnPart(
            message.tool,
            [message.text, *pictures] if pictures else message.text,
            wire_id,
            outcome="failed" if message.error else "success",
        )
        self._parts.append(part)

    def _answer(self, message: AssistantMessage) -> None:
        self._flush()
        self._open = {call.id: (call, self._wire_id(call)) for call in message.calls}
        state = _own_state(message, self._origin)
        if state is None:
            calls = [_call_part(call, wire_id) for call, wire_id in self._open.values()]
            text = _told(message)
            # Anthropic refuses a text of nothing but blanks.
            self._say([wire.TextPart(text), *calls] if text.strip() else calls)
        else:
            ids = [wire_id for _, wire_id in self._open.values()]
            self._say(
                [_stated_part(part, message, ids) for part in state.parts],
                provider_name=state.provider,
                provider_url=self._url,
                **({"canonical_system": state.canonical} if _HAS_CANONICAL else {}),
            )
        if message.interrupted:  # told as a user's words: a model would imitate its own
            self._parts.append(wire.UserPromptPart(INTERRUPTED))

    def _say(self, parts: Sequence[wire.ModelResponsePart], **provider: Any) -> None:
        last = self._messages[-1] if self._messages else None
        if isinstance(last, wire.ModelResponse):  # no provider takes two answers in a row
            self._messages[-1] = replace(last, parts=[*last.parts, *parts])
        elif parts:  # nor one that is nothing
            self._messages.append(wire.ModelResponse(parts, **provider))

    def _wire_id(self, call: ToolCall) -> str:
        wire_id = call.provider_id or ""
        if not _ID.fullmatch(wire_id) or wire_id in self._used:
            wire_id = f"call_{len(self._used)}"
            while wire_id in self._used:
                wire_id += "_"
        self._used.add(wire_id)
        return wire_id


def _user_part(message: UserMessage) -> wire.UserPromptPart:
    match message.parts:
        case (Text(text=text),):
            return wire.UserPromptPart(text)
        case parts:
            return wire.UserPromptPart(
                [part.text if isinstance(part, Text) else _binary(part) for part in parts]
            )


def _binary(attachment: Attachment) -> wire.BinaryContent:
    return wire.BinaryContent(attachment.data, media_type=attachment.media_type)


def _call_part(call: ToolCall, wire_id: str, **extras: Any) -> wire.ToolCallPart:
    arguments = call.arguments
    if not isinstance(arguments, dict):  # providers take objects only
        arguments = {"INVALID_JSON": arguments}
    return wire.ToolCallPart(call.tool, arguments, wire_id, **extras)


# --- what a provider wants back ---


def _own_state(message: AssistantMessage, origin: str) -> ProviderState | None:
    """Return the state of an answer if it is for this model, and if it fits what is stored."""
    if not isinstance(message.provider_state, dict):
        return None
    if message.provider_state.get("origin") != origin:
        return None
    try:
        state = msgspec.convert(message.provider_state, ProviderState)
    except msgspec.ValidationError:
        return None  # of another version, or of another provider altogether
    fits = (
        _end(state.parts, "text") == len(message.text)
        and _end(state.parts, "thinking") == len(message.reasoning)
        and _count(state.parts, "call") == len(message.calls)
        and _count(state.parts, "file") == len(message.attachments)
    )
    return state if fits else None


def _end(parts: Iterable[StatePart], kind: str) -> int:
    return max((part.end for part in parts if part.kind == kind), default=0)


def _count(parts: Iterable[StatePart], kind: str) -> int:
    return sum(part.kind == kind for part in parts)


def _told(message: AssistantMessage) -> str:
    """Return the text of an answer for a model that did not give it: of its files it hears only."""
    files = [f"[A file was made here: {one.media_type}.]" for one in message.attachments]
    return "\n".join([message.text, *files] if message.text else files)


def _stated_part(
    part: StatePart, message: AssistantMessage, ids: Sequence[str]
) -> wire.ModelResponsePart:
    if part.kind == "call":
        return _call_part(message.calls[part.start], ids[part.start], **part.extras)
    if part.kind == "file":
        return wire.FilePart(_binary(message.attachments[part.start]), **part.extras)
    if part.kind == "thinking":
        return wire.ThinkingPart(message.reasoning[part.start : part.end], **part.extras)
    return wire.TextPart(message.text[part.start : part.end], **part.extras)


# --- tools, instructions, and the shape of the answer ---


def _parameters(request: ModelRequest, model: Model[Any]) -> ModelRequestParameters:
    first = takewhile(lambda one: isinstance(one, SystemMessage), request.messages)
    system = [one.text for one in first]  # the rest may not be decoded yet
    shaped = request.output_schema is not None
    tools = [one for one in request.tools if not (shaped and one.name == FINAL_RESULT)]
    return ModelRequestParameters(
        function_tools=[_tool(one) for one in tools],
        instruction_parts=[wire.InstructionPart(content=text) for text in system],
        **(_shape(request, model, alone=not tools) if shaped else {}),
    )


def _shape(request: ModelRequest, model: Model[Any], *, alone: bool) -> dict[str, Any]:
    """Return how an answer of a schema is asked for: by the provider's own means where it has them.

    Beside other tools it is a call: not every provider combines its own means with tools.
    """
    final = final_tool(request.output_schema)
    found: dict[str, Any] = {
        "output_object": OutputObjectDefinition(json_schema=final.schema, name=FINAL_RESULT)
    }
    if alone and _profile(model).get("supports_json_schema_output", False):
        return {**found, "output_mode": "native"}
    if any(one.name == FINAL_RESULT for one in request.tools):
        tool = _tool(final, kind="output")
        return {**found, "output_mode": "auto", "output_tools": [tool], "allow_text_output": False}
    return {**found, "output_mode": "prompted"}


def _tool(manifest: ToolManifest, kind: Any = "function") -> ToolDefinition:
    return ToolDefinition(
        name=manifest.name,
        description=manifest.description or None,
        parameters_json_schema=manifest.schema or _NO_ARGUMENTS,
        kind=kind,
    )
