"""A model of pydantic-ai as a provider, built at its first call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import Any

from pylash.tasks import in_thread
from pylash.turn.requests import Listen, ModelReply, ModelRequest

Model = Any
"""A model of pydantic-ai. ``Any``, because type checkers would otherwise read the whole package."""

Ask = Callable[[ModelRequest, Listen], Awaitable[ModelReply]]


class PydanticProvider:
    """A model of pydantic-ai; ``make`` builds it, in a thread."""

    def __init__(self, name: str, make: Callable[[], Model]) -> None:
        self.name = name
        self._make = make
        # Both are set under the lock: concurrent first requests must not build two models, or open one twice. The app
        # calls ``close`` only when no request is left.
        self._model: tuple[Model, Ask] | None = None
        self._entered = False
        self._entering = asyncio.Lock()

    async def respond(self, request: ModelRequest, listen: Listen) -> ModelReply:
        """Answer request, passing the pieces to ``listen`` as they arrive.

        Cancellation closes the connection. Raises ProviderError, and the errors of ``named_model``.
        """
        _, ask = await self._ready()
        return await ask(request, listen)

    async def close(self) -> None:
        """Close the connections; the next request opens them again."""
        self._entering = asyncio.Lock()  # the next request may come from another event loop
        if self._model is not None and self._entered:
            self._entered = False
            await self._model[0].__aexit__(None, None, None)

    async def _ready(self) -> tuple[Model, Ask]:
        async with self._entering:
            if self._model is None:
                self._model = await in_thread(self._load)
            if not self._entered:
                await self._model[0].__aenter__()
                self._entered = True
            return self._model

    def _load(self) -> tuple[Model, Ask]:
        model = self._make()
        model_call = import_module("pylash.models.model_call")
        return model, partial(model_call.call_model, model, self.name, model_call.Conversions())
