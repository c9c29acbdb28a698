"""The request to a model as pydantic-ai's messages.

Rule 1. Every call has one result, under an id that every provider accepts and no other call has, wherever
        the call came from: a session may change its model, and its provider, between turns.
Rule 2. Reasoning and files are sent back only to the model that they came from, with its provider's state; to
        another model, files are only mentioned.
Rule 3. A stored message is converted once while its conversation is in use. A conversation is extended only by a
        request that continues it (``Transcript.continues``); any other request is converted from scratch.
Rule 4. A model gets its own list, which it may change and keep.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final, assert_never

import msgspec
from pydantic_ai import messages as wire
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from pylash.models.replies import ProviderState, StatePart
from pylash.turn.messages import (
    AssistantMessage,
    Attachment,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from pylash.turn.outputs import FINAL_RESULT, final_tool
from pylash.turn.requests import ModelRequest, ToolManifest
from pylash.turn.transcripts import Transcript

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_CONVERTED: Final = 30_000
"""How many converted messages a model keeps: each takes about a kilobyte besides its text."""
THREAD_THRESHOLD: Final = 200
"""From this number on, new messages are converted in a thread, so that the event loop is not blocked."""
INTERRUPTED: Final = "[Your last answer was interrupted before its end.]"
"""The note to a model after an interrupted answer."""
_NO_ARGUMENTS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
_HAS_CANONICAL: Final = "canonical_system" in wire.ModelResponse.__dataclass_fields__
"""Whether answers have this field: pydantic-ai has it since 2.63, and stored answers may be older."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request in pydantic-ai's form. ``origin`` names the model, to select the state that it gets back."""

    messages: list[wire.ModelMessage]
    parameters: ModelRequestParameters
    origin: str


async def prompt_of(request: ModelRequest, model: Model[Any], cache: Conversions) -> Prompt:
    """Return the request to a model; ``cache`` has the converted conversations of its earlier requests."""
    origin, stored = origin_of(model), _transcript(request)
    converted = cache.take(request.session_id)
    if converted is None or not converted.is_for(origin, stored):
        converted = Converted(origin, getattr(model, "base_url", None))
    if len(stored) - len(converted) < THREAD_THRESHOLD:
        converted.extend(stored)
    else:
        await asyncio.to_thread(converted.extend, stored)
    cache.put(request.session_id, converted)
    messages = converted.messages()
    if converted.shows_pictures or _profile(model).get("tool_call_id_length") is not None:
        # Instructions are not passed to this call: it would add its own text to them.
        messages = model.prepare_messages(messages)
    return Prompt(messages, _parameters(request, stored.system, model), origin)


def origin_of(model: Model[Any]) -> str:
    """Return a name for the model at its address; the address itself may contain a secret."""
    address = hashlib.sha256(str(getattr(model, "base_url", "")).encode()).hexdigest()[:12]
    return f"{model.model_id}@{address}"


def _profile(model: Model[Any]) -> Mapping[str, Any]:
    try:
        profile: Mapping[str, Any] = model.profile
    except NotImplementedError:  # a fallback over several models has no profile
        return {}
    return profile


# --- the transcript ---


class Conversions:
    """An LRU cache of the converted conversations of one model, by session.

    ``most``: how many messages are kept in total. The last conversation is kept even if it is longer.
    """

    def __init__(self, most: int = MAX_CONVERTED) -> None:
        self._most = most
        # The least recently used is first.
        self._conversations: OrderedDict[str, Converted] = OrderedDict()
        self._count = 0

    def take(self, session_id: str) -> Converted | None:
        """Take a conversation; it belongs to the caller until it is put back."""
        found = self._conversations.pop(session_id, None)
        self._count -= 0 if found is None else len(found)
        return found

    def put(self, session_id: str, converted: Converted) -> None:
        """Keep a conversation, unless it is outside a session or contains the bytes of files."""
        if not session_id or converted.holds_bytes:
            return
        self.take(session_id)
        self._conversations[session_id] = converted
        self._count += len(converted)
        while self._count > self._most and len(self._conversations) > 1:
            self.take(next(iter(self._conversations)))


def _transcript(request: ModelRequest) -> Transcript[SystemMessage | Message]:
    """Return the messages of a request, the system messages at its beginning separated from the others."""
    if isinstance(request.messages, Transcript):
        return request.messages
    system = [*takewhile(lambda message: isinstance(message, SystemMessage), request.messages)]
    return Transcript(system=system, after=request.messages[len(system) :])


class Converted:
    """Stored messages converted to pydantic-ai's, the oldest first; it only grows at its end."""

    def __init__(self, origin: str, url: str | None) -> None:
        self.shows_pictures = self.holds_bytes = False
        self._stored = Transcript[SystemMessage | Message]()
        self._messages: list[wire.ModelMessage] = []
        self._origin = origin
        self._url = url
        self._used: set[str] = set()
        """The wire ids of all calls so far."""
        self._open: dict[str, tuple[ToolCall, str]] = {}
        """The calls of the last answer that have no result yet, with their wire ids, by call id."""
        self._parts: list[wire.ModelRequestPart] = []
        """The parts since the last answer."""

    def __len__(self) -> int:
        return len(self._stored) - len(self._stored.system)

    def is_for(self, origin: str, stored: Transcript[SystemMessage | Message]) -> bool:
        """Return whether this is the conversion of the beginning of a transcript for a model."""
        return origin == self._origin and stored.continues(self._stored)

    def extend(self, stored: Transcript[SystemMessage | Message]) -> None:
        """Convert and append the messages of a transcript that are not in this conversation yet."""
        self.add(stored[len(stored.system) + len(self) :])
        self._stored = stored

    def add(self, messages: Iterable[SystemMessage | Message]) -> None:
        """Convert and append messages."""
        for message in messages:
            self._convert(message)

    def messages(self) -> list[wire.ModelMessage]:
        """Return all messages as a new list."""
        parts = [*self._parts, *self._missing_results()]
        return [*self._messages, wire.ModelRequest(parts)] if parts else [*self._messages]

    def _convert(self, message: SystemMessage | Message) -> None:
        match message:
            case SystemMessage():
                pass  # instructions are passed separately
            case UserMessage():
                self._close_calls()
                self._parts.append(_user_part(message))
                self.holds_bytes |= any(isinstance(part, Attachment) for part in message.parts)
            case ToolMessage():
                self._add_result(message)
            case AssistantMessage():
                self._close_calls()
                self._add_answer(message)
                self.holds_bytes |= bool(message.attachments)
            case _:
                assert_never(message)

    def _flush(self) -> None:
        if self._parts:
            self._messages.append(wire.ModelRequest(self._parts))
            self._parts = []

    def _missing_results(self) -> list[wire.ToolReturnPart]:
        """Return results for calls that have none in this transcript: every provider requires them."""
        return [
            wire.ToolReturnPart(call.tool, "No result.", wire_id)
            for call, wire_id in self._open.values()
        ]

    def _close_calls(self) -> None:
        self._parts += self._missing_results()
        self._open = {}

    def _add_result(self, message: ToolMessage) -> None:
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

    def _add_answer(self, message: AssistantMessage) -> None:
        self._flush()
        self._open = {call.id: (call, self._wire_id(call)) for call in message.calls}
        state = _own_state(message, self._origin)
        if state is None:
            calls = [_call_part(call, wire_id) for call, wire_id in self._open.values()]
            text = _text_with_files(message)
            # Anthropic refuses a text of only blanks.
            self._append([wire.TextPart(text), *calls] if text.strip() else calls)
        else:
            ids = [wire_id for _, wire_id in self._open.values()]
            self._append(
                [_part_from_state(part, message, ids) for part in state.parts],
                provider_name=state.provider,
                provider_url=self._url,
                **({"canonical_system": state.canonical} if _HAS_CANONICAL else {}),
            )
        if message.interrupted:  # as a user message: a model would imitate a note in its own answer
            self._parts.append(wire.UserPromptPart(INTERRUPTED))

    def _append(self, parts: Sequence[wire.ModelResponsePart], **provider: Any) -> None:
        last = self._messages[-1] if self._messages else None
        if isinstance(last, wire.ModelResponse):  # no provider accepts two answers in a row
            self._messages[-1] = replace(last, parts=[*last.parts, *parts])
        elif parts:  # nor an empty one
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
    if not isinstance(arguments, dict):  # providers accept only objects
        arguments = {"INVALID_JSON": arguments}
    return wire.ToolCallPart(call.tool, arguments, wire_id, **extras)


# --- provider state ---


def _own_state(message: AssistantMessage, origin: str) -> ProviderState | None:
    """Return the state of an answer if it belongs to this model and matches the stored message."""
    if not isinstance(message.provider_state, dict):
        return None
    if message.provider_state.get("origin") != origin:
        return None
    try:
        state = msgspec.convert(message.provider_state, ProviderState)
    except msgspec.ValidationError:
        return None  # written by another version or another provider
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


def _text_with_files(message: AssistantMessage) -> str:
    """Return the text of an answer for another model: files are only mentioned."""
    files = [f"[A file was made here: {one.media_type}.]" for one in message.attachments]
    return "\n".join([message.text, *files] if message.text else files)


def _part_from_state(
    part: StatePart, message: AssistantMessage, ids: Sequence[str]
) -> wire.ModelResponsePart:
    if part.kind == "call":
        return _call_part(message.calls[part.start], ids[part.start], **part.extras)
    if part.kind == "file":
        return wire.FilePart(_binary(message.attachments[part.start]), **part.extras)
    if part.kind == "thinking":
        return wire.ThinkingPart(message.reasoning[part.start : part.end], **part.extras)
    return wire.TextPart(message.text[part.start : part.end], **part.extras)


# --- tools, instructions, and the format of the answer ---


def _parameters(
    request: ModelRequest, system: Sequence[SystemMessage | Message], model: Model[Any]
) -> ModelRequestParameters:
    has_schema = request.output_schema is not None
    tools = [one for one in request.tools if not (has_schema and one.name == FINAL_RESULT)]
    return ModelRequestParameters(
        function_tools=[_tool(one) for one in tools],
        instruction_parts=[wire.InstructionPart(content=one.text) for one in system],
        **(_output_parameters(request, model, alone=not tools) if has_schema else {}),
    )


def _output_parameters(request: ModelRequest, model: Model[Any], *, alone: bool) -> dict[str, Any]:
    """Return how an answer with a schema is requested: by the provider's own support if it has any.

    If the request has other tools (not ``alone``), it is a tool call: not every provider combines its schema support
    with tools.
    """
    final = final_tool(request.output_schema)
    parameters: dict[str, Any] = {
        "output_object": OutputObjectDefinition(json_schema=final.schema, name=FINAL_RESULT)
    }
    if alone and _profile(model).get("supports_json_schema_output", False):
        return {**parameters, "output_mode": "native"}
    if any(one.name == FINAL_RESULT for one in request.tools):
        tool = _tool(final, kind="output")
        return {
            **parameters,
            "output_mode": "auto",
            "output_tools": [tool],
            "allow_text_output": False,
        }
    return {**parameters, "output_mode": "prompted"}


def _tool(manifest: ToolManifest, kind: Any = "function") -> ToolDefinition:
    return ToolDefinition(
        name=manifest.name,
        description=manifest.description or None,
        parameters_json_schema=manifest.schema or _NO_ARGUMENTS,
        kind=kind,
    )
