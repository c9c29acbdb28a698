"""A model that answers from a script.

Rule 1. The model has no position: a request contains the number of committed calls before it, so a
        script continues after a restart, and a repeated call gets the same reply.
Rule 2. Usage is counted: a word is a token.
"""

from __future__ import annotations

import asyncio
import inspect
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from pylash.turn.messages import Usage
from pylash.turn.requests import CallRequest, Delta, Listen, ModelReply, ModelRequest
from pylash.values.canonical import write
from pylash.values.turn_errors import ProviderError

PIECE: Final = 8
"""How many characters a piece of streamed text has."""
BREATH: Final = 8
"""How many pieces are sent before other tasks may run."""

_UNCOUNTED: Final = Usage(requests=1)


class Failing(msgspec.Struct, frozen=True):
    """A scripted failure of the model."""

    message: str
    retryable: bool = False


Reply = ModelReply | Failing
"""An item of a script."""

Script = Sequence[Reply] | Callable[[ModelRequest], Reply | Awaitable[Reply]]
"""Replies, one per model call of a session, or a function that returns the reply to a request."""


def say(text: str, *, reasoning: str = "") -> ModelReply:
    """Return a reply that is text.

    >>> say("It ships today.").text
    'It ships today.'
    """
    return ModelReply(text=text, reasoning=reasoning)


def call(tool: str, /, **args: Any) -> ModelReply:
    """Return a reply that calls a tool.

    >>> call("lookup", order_id="7").calls
    (CallRequest(tool='lookup', arguments={'order_id': '7'}, provider_id=None),)
    """
    return ModelReply(calls=(CallRequest(tool, args),))


def calls(*replies: ModelReply) -> ModelReply:
    """Return a reply that calls several tools at once; a ``say`` among them is its text.

    >>> calls(say("I look twice."), call("lookup", order_id="7"), call("lookup", order_id="8"))
    """
    return ModelReply(
        text="\n".join(reply.text for reply in replies if reply.text),
        reasoning="\n".join(reply.reasoning for reply in replies if reply.reasoning),
        calls=tuple(asked for reply in replies for asked in reply.calls),
    )


def code(source: str, *, language: str = "lashlang") -> ModelReply:
    """Return a reply that is a program: its text is one fenced block.

    >>> print(code("finish 1").text)
    ```lashlang
    finish 1
    ```
    """
    return say(f"```{language}\n{textwrap.dedent(source).strip()}\n```")


def fail(message: str, retryable: bool = False) -> Failing:
    """Return a failure of the model; ``retryable``: a retry may help.

    >>> ScriptedModel([fail("The model is overloaded.", retryable=True)])
    """
    return Failing(message, retryable)


class ScriptedModel:
    """A model that answers from a script, in small pieces, and keeps its requests.

    The n-th model call of a session gets the n-th reply, however often the app was restarted in
    between; a call that is repeated gets the same reply again. A function decides by the request.

    >>> model = ScriptedModel([call("lookup", order_id="7"), say("It ships today.")])
    >>> app = Lash("memory://", model=model)
    >>> model.requests[0].messages[-1].text
    'Where is order 7?'
    """

    def __init__(self, script: Script) -> None:
        self.requests: list[ModelRequest] = []
        self._script = script if callable(script) else tuple(script)
        if not callable(self._script):
            for number, reply in enumerate(self._script, 1):
                _check(reply, f"Reply {number} of the script is")

    async def respond(self, request: ModelRequest, listen: Listen) -> ModelReply:
        """Return the reply to request, after its reasoning and text were passed to ``listen`` in pieces.

        Raises ProviderError if the script has a failure for this call, or no more replies.
        """
        self.requests.append(request)
        reply = await self._reply(request)
        if isinstance(reply, Failing):
            raise ProviderError(reply.message, retryable=reply.retryable)
        for number, delta in enumerate(_deltas(reply)):
            listen(delta)
            if number % BREATH == 0:
                await asyncio.sleep(0)
        return _finished(reply, request)

    async def _reply(self, request: ModelRequest) -> Reply:
        if callable(self._script):
            given = self._script(request)
            reply = await given if inspect.isawaitable(given) else given
            _check(reply, "The function of a scripted model returned")
            return reply
        if request.call_number >= len(self._script):
            raise ProviderError(_ran_out(len(self._script), request))
        return self._script[request.call_number]


def _check(reply: object, what: str) -> None:
    if not isinstance(reply, ModelReply | Failing):
        raise ProviderError(
            f"{what} {type(reply).__name__}: make replies with say, call, calls, code or fail."
        )


def _ran_out(replies: int, request: ModelRequest) -> str:
    has = {0: "no replies", 1: "one reply"}.get(replies, f"{replies} replies")
    session = f" of session {request.session_id!r}" if request.session_id else ""
    return (
        f"The script ran out: it has {has}, and this is model call number "
        f"{request.call_number + 1}{session}."
    )


def _deltas(reply: ModelReply) -> Iterator[Delta]:
    for piece in _pieces(reply.reasoning):
        yield Delta(piece, "reasoning")
    for piece in _pieces(reply.text):
        yield Delta(piece)


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def _finished(reply: ModelReply, request: ModelRequest) -> ModelReply:
    """Return a reply with the fields that a provider adds: usage, finish reason, ids of the calls."""
    numbered = tuple(
        msgspec.structs.replace(
            asked, provider_id=asked.provider_id or f"call-{request.call_number}-{index}"
        )
        for index, asked in enumerate(reply.calls)
    )
    return msgspec.structs.replace(
        reply,
        calls=numbered,
        usage=_usage(reply, request) if reply.usage == _UNCOUNTED else reply.usage,
        finish_reason=reply.finish_reason or ("tool_calls" if numbered else "stop"),
        model=reply.model or request.model or "scripted",
    )


def _usage(reply: ModelReply, request: ModelRequest) -> Usage:
    # Only the new messages of a request are counted: counting all would make tests of long sessions slow.
    given = _words(message.text for message in request.messages[-1:])
    asked = (f"{called.tool} {write(called.arguments).decode()}" for called in reply.calls)
    made = _words((reply.reasoning, reply.text, *asked))
    return Usage(requests=1, input_tokens=given, output_tokens=made)


def _words(texts: Iterable[str]) -> int:
    return sum(len(text.split()) for text in texts)
