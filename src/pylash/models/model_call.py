"""Call a model of pydantic-ai: one request, one reply, streamed piece by piece.

Rule 1. Each call is one attempt: the vendors' clients do no retries, because each attempt is recorded.
Rule 2. Every silence has a timeout: connecting, pauses on the connection and pauses between pieces.
Rule 3. A stream that stops before its end is a failure, however cleanly it was closed. So is an empty
        answer, unless it follows tool results: some models end a turn that way.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.settings import ModelSettings

from pylash.models.failures import failure
from pylash.models.prompts import Conversions, Prompt, prompt_of
from pylash.models.replies import Pieces, reply_of
from pylash.turn.messages import ToolMessage
from pylash.turn.requests import Listen, ModelReply, ModelRequest
from pylash.values.errors import LashError
from pylash.values.turn_errors import ProviderError

WIRE_SECONDS: Final = 300.0
"""How long a connection may be silent, unless the model sets a ``timeout``."""
QUIET_SECONDS: Final = 600.0
"""How long a model may send no piece, even if its connection is alive."""

PROVIDERS_WITHOUT_REASON: Final = (None, "test", "xai")
"""Providers that give no reason why an answer ended."""


async def call_model(
    model: Model[Any], name: str, cache: Conversions, request: ModelRequest, listen: Listen
) -> ModelReply:
    """Return the answer of a model; ``cache`` has the converted conversations of its earlier requests.

    Raises ProviderError for every failure.
    """
    try:
        prompt = await prompt_of(request, model, cache)
        answer = await _answer(model, prompt, Pieces(listen))
        _check_complete(answer, name)
        _check_content(answer, name, request)
        return reply_of(answer, prompt.origin)
    except LashError:
        raise
    except Exception as error:
        raise failure(error, name, model) from error


async def _answer(model: Model[Any], prompt: Prompt, pieces: Pieces) -> ModelResponse:
    settings = _settings(model)
    if _cannot_stream(model):
        async with asyncio.timeout(QUIET_SECONDS):
            answer = await model.request(prompt.messages, settings, prompt.parameters)
        pieces.send_all(answer)
        return answer
    clock = asyncio.get_running_loop()
    async with (
        asyncio.timeout(QUIET_SECONDS) as quiet,
        model_request_stream(
            model,
            prompt.messages,
            model_settings=settings,
            model_request_parameters=prompt.parameters,
        ) as stream,
    ):
        async for event in stream:
            quiet.reschedule(clock.time() + QUIET_SECONDS)
            pieces.handle(event)
    return stream.get()


def _settings(model: Model[Any]) -> ModelSettings:
    settings: dict[str, Any] = {"max_retries": 0}
    if "timeout" not in (model.settings or {}):
        settings["timeout"] = WIRE_SECONDS
    supported = {k: v for k, v in settings.items() if k not in model.unsupported_settings}
    return cast("ModelSettings", supported)


def _cannot_stream(model: Model[Any]) -> bool:
    if isinstance(model, FunctionModel):
        return model.stream_function is None
    return type(model).request_stream is Model.request_stream


def _check_complete(answer: ModelResponse, name: str) -> None:
    """Refuse an incomplete answer: the clients do not report a body that was cut off as an error."""
    # Without an id there is nothing to continue: the stream ended before its first relevant event.
    if answer.state == "suspended" and answer.provider_response_id:
        raise ProviderError(f"{name} paused its answer: background answers are not supported.")
    if answer.finish_reason == "content_filter" and not (answer.text or answer.tool_calls):
        raise ProviderError(f"{name} gave no answer: its provider's content filter stopped it.")
    has_reason = "finish_reason" in (answer.provider_details or {})
    if answer.state != "complete" or not (
        has_reason or answer.provider_name in PROVIDERS_WITHOUT_REASON
    ):
        raise ProviderError(f"The answer of {name} was cut off.", retryable=True)
    if answer.finish_reason == "error":
        raise ProviderError(f"{name} ended its answer with an error.", retryable=True)


def _check_content(answer: ModelResponse, name: str, request: ModelRequest) -> None:
    """Refuse an answer without text, calls or files."""
    if (answer.text or "").strip() or answer.tool_calls or answer.files:
        return
    if answer.finish_reason == "length":
        raise ProviderError(
            f"{name} reached its limit of output tokens before it answered: raise max_tokens in the "
            "settings of the model."
        )
    if not isinstance(request.messages[-1], ToolMessage):
        raise ProviderError(f"{name} sent an empty answer.", retryable=True)
