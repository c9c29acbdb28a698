"""A model of pydantic-ai as a provider, made when it is first asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import Any

from pylash.tasks import in_thread
from pylash.turn import Listen, ModelReply, ModelRequest

Model = Any
"""A model of pydantic-ai. Its type is not named here: who checks types would read its whole package."""

Ask = Callable[[ModelRequest, Listen], Awaitable[ModelReply]]


class PydanticProvider:
    """A model of pydantic-ai; ``make`` builds it, in a thread."""

    reads_lazily = True

    def __init__(self, name: str, make: Callable[[], Model]) -> None:
        self.name = name
        self._make = make
        self._made: tuple[Model, Ask] | None = None
        self._entered = False
        self._entering = asyncio.Lock()

    async def respond(self, request: ModelRequest, listen: Listen) -> ModelReply:
        """Answer request, telling ``listen`` the pieces as they come.

        Cancellation: closes the connection. Raises ProviderError, and what ``named_model`` raises.
        """
        _, ask = await self._ready()
        return await ask(request, listen)

    async def close(self) -> None:
        """Close the connections; the next request opens them again."""
        self._entering = asyncio.Lock()  # it may come in another event loop
        if self._made is not None and self._entered:
            self._entered = False
            await self._made[0].__aexit__(None, None, None)

    async def _ready(self) -> tuple[Model, Ask]:
        async with self._entering:
            if self._made is None:
                self._made = await in_thread(self._load)
            if not self._entered:
                await self._made[0].__aenter__()
                self._entered = True
            return self._made

    def _load(self) -> tuple[Model, Ask]:
        model = self._make()
        asking = import_module("pylash.models.asking")
        return model, partial(asking.ask, model, self.name, asking.Conversions())
