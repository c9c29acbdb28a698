"""pylash with a model of pydantic-ai: the same app, through the adapter that real models use.

Rule 1. The model reads every message of every request, as a real one does to send it, and nothing
        more. It is not a ``FunctionModel``, which searches the whole conversation for changed
        instructions itself. The time of the model's own loop is not counted: what a vendor's client
        does with a message is not ours to measure.
Rule 2. Sessions with thousands of turns before them are forks of one that took those turns: it is
        taken once, and every round has a session of its own.
"""

from __future__ import annotations

import time
from typing import Any, Final

from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from benchmarks.agents import PROMPT, Script
from benchmarks.contender import Contender, timed
from benchmarks.contenders.pydantic_agent import USAGE
from benchmarks.contenders.pylash_agent import PylashAgentContender
from benchmarks.lines import Load

FORKED: Final = 1_000


def contender(store: str, url: str) -> Contender:
    """Return pylash's agents, with models of pydantic-ai, on a store."""
    return PylashPydanticContender(store, url)


class Reader(Model[Any]):
    """The script as a model of pydantic-ai that reads every message."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.seconds = 0.0
        self._script = script

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return "reader"

    @property
    def system(self) -> str:
        """The name of its provider."""
        return "bench"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,  # noqa: ARG002 - it has none
        model_request_parameters: ModelRequestParameters,  # noqa: ARG002 - the script knows them
    ) -> ModelResponse:
        """Read the conversation, and answer its last message."""
        parts: Any = ()
        began = time.perf_counter()
        for message in messages:
            parts = message.parts
        self.seconds += time.perf_counter() - began
        last = parts[-1]
        said = self._script.reply(last.content if isinstance(last, UserPromptPart) else None)
        if isinstance(said, str):
            return ModelResponse([TextPart(said)], usage=USAGE)
        calls = [ToolCallPart(one.tool, one.arguments, one.id) for one in said]
        return ModelResponse(calls, usage=USAGE)


class PylashPydanticContender(PylashAgentContender):
    """The same apps, with another model."""

    def __init__(self, store: str, url: str) -> None:
        self._readers: list[Reader] = []
        super().__init__(store, url)
        self._long: dict[int, str] = {}

    def model(self) -> Any:
        self._readers.append(Reader(self.script))
        return self._readers[-1]

    async def turns(self, load: Load) -> list[float]:
        found = []
        for session in await self._sessions(load):
            before = self._read_seconds()
            took = await timed(self._checked(self.turn(session, PROMPT)))
            found.append(took - (self._read_seconds() - before) * 1_000)
        return found

    def _read_seconds(self) -> float:
        """Return how long the models have read, the whole run through."""
        return sum(reader.seconds for reader in self._readers)

    async def begin(self, before: int) -> str:
        if before < FORKED:
            return await super().begin(before)
        if before not in self._long:
            self._long[before] = await super().begin(before)
        return (await self._app.session(self._long[before]).fork(next(self._ids))).id  # type: ignore[no-any-return]  # the app is Any
