"""Local servers that speak the vendors' protocols, as far as their clients need."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

KEY = "pylash-test-9f8e7d6c5b4a"
"""It does not look like the keys of any vendor."""


@dataclass(frozen=True)
class Call:
    """A tool call; its arguments come in pieces, and may be broken."""

    id: str
    tool: str
    arguments: Sequence[str]


@dataclass(frozen=True)
class Say:
    """What a model answers: its thoughts, its text in pieces, its pictures (Google's only), its calls."""

    text: Sequence[str] = ()
    calls: Sequence[Call] = ()
    thinking: str = ""
    signature: str = ""
    pictures: Sequence[bytes] = ()
    finish: Literal["stop", "length", "filter"] = "stop"


@dataclass(frozen=True)
class Send:
    """What goes over the wire: a status, a body in chunks, and how it ends."""

    chunks: Sequence[bytes] = ()
    status: int = 200
    kind: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)
    end: Literal["whole", "cut", "hang", "drop"] = "whole"
    """``cut`` closes the connection in the middle of the body, ``drop`` before any answer."""


@dataclass(frozen=True)
class Heard:
    """A request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: int


class Dialect(Protocol):
    """The wire format of a vendor."""

    name: str
    model: str
    broken: bytes
    """An event that says that the server is overloaded."""
    alive: bytes
    """What a server sends to show that it is there, and that says nothing."""

    def stream(self, say: Say) -> list[bytes]:
        """Return an answer as events."""
        ...

    def error(self, status: int, message: str, **headers: str) -> Send:
        """Return a refusal."""
        ...

    def transcript(self, body: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Return the messages of a request, in words that all dialects share."""
        ...


class WireServer:
    """Answers requests one after another from ``replies``, and keeps them."""

    def __init__(self, dialect: Dialect, url: str) -> None:
        self.dialect = dialect
        self.url = url
        self.heard: list[Heard] = []
        self.now: Callable[[], int] = lambda: 0
        self.replies: list[Send | Say] = []
        self.open = 0
        self.closed = asyncio.Event()
        self.hanging = asyncio.Event()

    def transcript(self, number: int = -1) -> list[tuple[Any, ...]]:
        """Return the messages of a request."""
        return self.dialect.transcript(self.heard[number].body)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            await self._one(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            self.closed.set()
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path, said = head[0].split()[1], json.loads(body or b"{}")
        self.heard.append(Heard(path, headers, said, self.now()))
        reply = self.replies.pop(0)
        send = Send(self.dialect.stream(reply)) if isinstance(reply, Say) else reply
        if send.end == "drop":
            return
        lines = {"content-type": send.kind, "transfer-encoding": "chunked", **send.headers}
        writer.write(f"HTTP/1.1 {send.status} OK\r\nconnection: close\r\n".encode())
        writer.write("".join(f"{k}: {v}\r\n" for k, v in lines.items()).encode() + b"\r\n")
        for chunk in send.chunks:
            writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            await writer.drain()
        if send.end == "hang":
            self.hanging.set()
            await reader.read()  # until the client has had enough
        elif send.end == "whole":
            writer.write(b"0\r\n\r\n")
            await writer.drain()


@asynccontextmanager
async def wire_server(dialect: Dialect) -> AsyncIterator[WireServer]:
    """Run a server of a dialect."""
    # Without the protocol asyncio leaves Nagle's algorithm on, and each request takes 45 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    made = WireServer(dialect, f"http://127.0.0.1:{listening.getsockname()[1]}")
    server = await asyncio.start_server(made.serve, sock=listening)
    try:
        yield made
    finally:
        server.close()


def sse(data: Any, event: str | None = None) -> bytes:
    """Return one event of a stream."""
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


PING = b": ping\n\n"
"""A comment in a stream of events."""


def _error(body: dict[str, Any], status: int, headers: dict[str, str]) -> Send:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Send([json.dumps(body).encode()], status, "application/json", named)


class Chat:
    """OpenAI's chat completions."""

    name = "chat"
    model = "openai-chat:gpt-4o"
    alive = PING
    broken = sse(
        {"error": {"message": "Overloaded", "type": "server_error", "code": "server_error"}}
    )

    def stream(self, say: Say) -> list[bytes]:
        def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return sse(
                {
                    "id": "chatcmpl-1",
                    "object": "chat.completion.chunk",
                    "created": 1,
                    "model": "gpt-4o-2024-08-06",
                    "choices": [choice],
                    **more,
                }
            )

        events = [chunk({"role": "assistant", "content": ""})]
        events += [chunk({"content": piece}) for piece in say.text]
        for index, call in enumerate(say.calls):
            function = {"name": call.tool, "arguments": ""}
            first = {"index": index, "id": call.id, "type": "function", "function": function}
            events.append(chunk({"tool_calls": [first]}))
            for piece in call.arguments:
                more = {"index": index, "function": {"arguments": piece}}
                events.append(chunk({"tool_calls": [more]}))
        finish = {"stop": "tool_calls" if say.calls else "stop", "filter": "content_filter"}
        usage = {
            "prompt_tokens": 20,
            "completion_tokens": 7,
            "total_tokens": 27,
            "prompt_tokens_details": {"cached_tokens": 5},
        }
        events.append(chunk({}, finish.get(say.finish, say.finish)))
        events.append(
            chunk({}, None, usage=usage).replace(b'"choices": [{', b'"choices": [], "x": [{')
        )
        return [*events, sse("[DONE]")]

    def error(self, status: int, message: str, **headers: str) -> Send:
        return _error({"error": {"message": message, "type": "some_error"}}, status, headers)

    def transcript(self, body: dict[str, Any]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for message in body["messages"]:
            match message:
                case {"role": "tool", "tool_call_id": call_id, "content": text}:
                    found.append(("result", call_id, text))
                case {"role": "assistant"}:
                    if message.get("content"):
                        found.append(("assistant", message["content"]))
                    for call in message.get("tool_calls") or ():
                        function = call["function"]
                        arguments = json.loads(function["arguments"])
                        found.append(("call", call["id"], function["name"], arguments))
                case {"role": role, "content": content}:
                    found.append((role, _content(content)))
        return found


class Responses:
    """OpenAI's responses."""

    name = "responses"
    model = "openai:gpt-5"
    alive = PING
    broken = sse(
        {"type": "error", "code": "server_error", "message": "Overloaded", "sequence_number": 9},
        "error",
    )

    def stream(self, say: Say) -> list[bytes]:
        output: list[dict[str, Any]] = []
        events: list[bytes] = []

        def event(kind: str, **data: Any) -> None:
            events.append(sse({"type": kind, "sequence_number": len(events), **data}, kind))

        def response(status: str, **more: Any) -> dict[str, Any]:
            return {
                "id": "resp_1",
                "object": "response",
                "created_at": 1,
                "model": "gpt-5-2025-08-07",
                "status": status,
                "output": output,
                "parallel_tool_calls": True,
                "tool_choice": "auto",
                "tools": [],
                **more,
            }

        event("response.created", response=response("in_progress"))
        if say.thinking:
            item: dict[str, Any] = {"id": "rs_1", "type": "reasoning", "summary": []}
            event("response.output_item.added", output_index=0, item=item)
            where: dict[str, Any] = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
            part: dict[str, Any] = {"type": "summary_text", "text": ""}
            event("response.reasoning_summary_part.added", **where, part=part)
            event("response.reasoning_summary_text.delta", **where, delta=say.thinking)
            summary = [{"type": "summary_text", "text": say.thinking}]
            item = {**item, "summary": summary, "encrypted_content": say.signature}
            event("response.output_item.done", output_index=0, item=item)
            output.append(item)
        if say.text:
            index = len(output)
            message: dict[str, Any] = {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "content": [],
            }
            event("response.output_item.added", output_index=index, item=message)
            where = {"item_id": "msg_1", "output_index": index, "content_index": 0}
            part = {"type": "output_text", "text": "", "annotations": []}
            event("response.content_part.added", **where, part=part)
            for piece in say.text:
                event("response.output_text.delta", **where, delta=piece, logprobs=[])
            whole = {"type": "output_text", "text": "".join(say.text), "annotations": []}
            message = {**message, "content": [whole], "status": "completed"}
            event("response.output_item.done", output_index=index, item=message)
            output.append(message)
        for call in say.calls:
            index = len(output)
            item = {
                "id": f"fc_{call.id}",
                "type": "function_call",
                "call_id": call.id,
                "name": call.tool,
                "arguments": "",
            }
            event("response.output_item.added", output_index=index, item=item)
            for piece in call.arguments:
                where = {"item_id": item["id"], "output_index": index}
                event("response.function_call_arguments.delta", **where, delta=piece)
            item = {**item, "arguments": "".join(call.arguments), "status": "completed"}
            event("response.output_item.done", output_index=index, item=item)
            output.append(item)
        usage = {
            "input_tokens": 20,
            "input_tokens_details": {"cached_tokens": 5},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 27,
        }
        if say.finish == "stop":
            event("response.completed", response=response("completed", usage=usage))
        else:
            reason = {"length": "max_output_tokens", "filter": "content_filter"}[say.finish]
            cut = response("incomplete", usage=usage, incomplete_details={"reason": reason})
            event("response.incomplete", response=cut)
        return events

    def error(self, status: int, message: str, **headers: str) -> Send:
        return _error({"error": {"message": message, "type": "some_error"}}, status, headers)

    def transcript(self, body: dict[str, Any]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        if body.get("instructions"):
            found.append(("system", body["instructions"]))
        for item in body["input"]:
            match item:
                case {"type": "function_call"}:
                    arguments = json.loads(item["arguments"])
                    found.append(("call", item["call_id"], item["name"], arguments))
                case {"type": "function_call_output"}:
                    found.append(("result", item["call_id"], item["output"]))
                case {"type": "reasoning"}:
                    text = "".join(part["text"] for part in item["summary"])
                    found.append(("thinking", text, item.get("encrypted_content")))
                case {"role": role, "content": content}:
                    found.append((role, _content(content)))
        return found


class Anthropic:
    """Anthropic's messages."""

    name = "anthropic"
    model = "anthropic:claude-haiku-5-5"
    alive = PING
    broken = sse(
        {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}, "error"
    )

    def stream(self, say: Say) -> list[bytes]:
        events: list[bytes] = []
        blocks = 0

        def event(kind: str, **data: Any) -> None:
            events.append(sse({"type": kind, **data}, kind))

        def block(start: dict[str, Any], *deltas: dict[str, Any]) -> None:
            nonlocal blocks
            event("content_block_start", index=blocks, content_block=start)
            for delta in deltas:
                event("content_block_delta", index=blocks, delta=delta)
            event("content_block_stop", index=blocks)
            blocks += 1

        usage = {"input_tokens": 15, "cache_read_input_tokens": 5, "output_tokens": 1}
        message: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-haiku-5-5",
            "content": [],
            "stop_reason": None,
            "usage": usage,
        }
        event("message_start", message=message)
        event("ping")
        if say.thinking:
            block(
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": say.thinking},
                {"type": "signature_delta", "signature": say.signature},
            )
        if say.text:
            pieces = [{"type": "text_delta", "text": piece} for piece in say.text]
            block({"type": "text", "text": ""}, *pieces)
        for call in say.calls:
            start = {"type": "tool_use", "id": call.id, "name": call.tool, "input": {}}
            pieces = [{"type": "input_json_delta", "partial_json": one} for one in call.arguments]
            block(start, *pieces)
        stop = {"stop": "tool_use" if say.calls else "end_turn", "length": "max_tokens"}
        reason = stop.get(say.finish, "refusal")
        event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 7})
        event("message_stop")
        return events

    def error(self, status: int, message: str, **headers: str) -> Send:
        body = {"type": "error", "error": {"type": "some_error", "message": message}}
        return _error(body, status, headers)

    def transcript(self, body: dict[str, Any]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        if body.get("system"):
            found.append(("system", _content(body["system"])))
        for message in body["messages"]:
            content = message["content"]
            items: list[Any] = [content] if isinstance(content, str) else content
            for item in items:
                match item:
                    case {"type": "tool_use"}:
                        found.append(("call", item["id"], item["name"], item["input"]))
                    case {"type": "tool_result"}:
                        found.append(("result", item["tool_use_id"], _content(item["content"])))
                    case {"type": "thinking"}:
                        found.append(("thinking", item["thinking"], item["signature"]))
                    case _:
                        found.append((message["role"], _content([item])))
        return found


class Google:
    """Google's contents."""

    name = "google"
    model = "google:gemini-3.5-flash"
    alive = sse({"candidates": []})
    broken = sse({"error": {"code": 503, "message": "Busy", "status": "UNAVAILABLE"}})

    def stream(self, say: Say) -> list[bytes]:
        def chunk(*parts: dict[str, Any], finish: str | None = None) -> bytes:
            content = {"role": "model", "parts": list(parts)}
            used = {"promptTokenCount": 20, "cachedContentTokenCount": 5, "candidatesTokenCount": 7}
            body: dict[str, Any] = {
                "candidates": [{"index": 0, "content": content}],
                "usageMetadata": {**used, "totalTokenCount": 27},
                "modelVersion": "gemini-3.5-flash",
                "responseId": "response_1",
            }
            if finish is not None:
                body["candidates"][0]["finishReason"] = finish
            return sse(body)

        parts: list[dict[str, Any]] = []
        if say.thinking:
            parts.append({"text": say.thinking, "thought": True})
        parts += [{"text": piece} for piece in say.text]
        for picture in say.pictures:
            data = base64.b64encode(picture).decode()
            parts.append({"inlineData": {"mimeType": "image/png", "data": data}})
        for call in say.calls:
            arguments = json.loads("".join(call.arguments))
            parts.append({"functionCall": {"id": call.id, "name": call.tool, "args": arguments}})
        if say.signature and len(parts) > 1:  # it comes with what follows the thought
            parts[1]["thoughtSignature"] = say.signature
        reason = {"stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}[say.finish]
        return [*(chunk(part) for part in parts), chunk(finish=reason)]

    def error(self, status: int, message: str, **headers: str) -> Send:
        body = {"error": {"code": status, "message": message, "status": "SOME_ERROR"}}
        return _error(body, status, headers)

    def transcript(self, body: dict[str, Any]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        if system := body.get("systemInstruction"):
            found.append(("system", _content(system["parts"])))
        for message in body["contents"]:
            role = "assistant" if message["role"] == "model" else "user"
            for part in message["parts"]:
                match part:
                    case {"functionCall": call}:
                        found.append(("call", call["id"], call["name"], call["args"]))
                    case {"functionResponse": result}:
                        said = result["response"]
                        found.append(("result", result["id"], said.get("return_value", said)))
                    case {"thought": True}:
                        found.append(("thinking", part["text"]))
                    case _:
                        found.append((role, _content([part])))
        return found


def _content(content: Any) -> Any:
    """Return the text of content; what else is in it stays as it came."""
    if isinstance(content, str):
        return content
    texts = [part if isinstance(part, str) else part.get("text", part) for part in content]
    return texts[0] if len(texts) == 1 else texts


DIALECTS: tuple[Dialect, ...] = (Chat(), Responses(), Anthropic(), Google())
