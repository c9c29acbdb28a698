"""Chaos: whatever people and machines do to a conversation, providers accept every committed transcript."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ModelRequest, ProcessContext, ToolContext, WorkerConfig
from pylash.durable.scopes import scope_text
from pylash.testing import ScriptedModel, call, calls, kill, say
from pylash.turn.messages import Message
from pylash.values.errors import LashError
from tests.sessions.scenes import told
from tests.turn.provider_rules import refusal

SEEDS = range(8)
ACTIONS = 25
WORKER = WorkerConfig(park_after="5ms", grace="20ms")


class Chaos:
    """One conversation, and what is done to it."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.chance = random.Random(seed)
        self.turns: list[str] = []
        self.words: list[str] = []
        self.app = self.made()

    def made(self) -> Lash:
        app = Lash(self.url, model=ScriptedModel(self.reply), worker=WORKER)

        @app.tool
        async def work(n: int) -> int:
            await asyncio.sleep(0.001 * n)
            return n

        @app.tool(approval=True, scheduling="serial")
        async def pay(n: int) -> int:
            return n

        @app.tool
        async def ask(ctx: ToolContext[None]) -> Any:
            return ctx.defer()

        @app.process
        async def report(ctx: ProcessContext[None], text: str) -> None:
            await ctx.wake(text)

        return app

    async def reply(self, request: ModelRequest) -> Any:
        """Answer a turn with a few batches of calls; the same question has the same answer."""
        chance = random.Random(f"{request.turn_id} {len(request.messages)}")
        await asyncio.sleep(chance.choice((0, 0.001, 0.003)))
        if chance.random() < 0.4:
            return say("Done.")
        asked = [
            chance.choice((call("work", n=2), call("pay", n=n), call("ask"), call("nobody")))
            for n in range(chance.randint(1, 3))
        ]
        return calls(*asked)

    async def act(self) -> None:
        """Do something to the conversation."""
        session = self.app.session("chat")
        acts = ("turn", "turn", "say", "say", "wake", "cancel", "answer", "answer", "kill", "rest")
        match self.chance.choice(acts):
            case "turn":
                self.turns.append(f"t{len(self.turns)}")
                async with session.stream("go", turn_id=self.turns[-1]):
                    """Only ask."""
            case "say":
                when: Any = self.chance.choice(("next_turn", "now", "interrupt"))
                self.words.append(f"word {len(self.words)}")
                await session.enqueue(self.words[-1], when=when, key=self.words[-1])
            case "wake":
                self.words.append(f"word {len(self.words)}")
                report = self.app.services.definitions["report"]
                await self.app.start(report.options(wake="chat"), text=self.words[-1])
            case "cancel":
                await session.cancel()
            case "answer":
                await self.answer()
            case "kill":
                await kill(self.app)
                self.app = self.made()
                await self.app.open()
            case _:
                await asyncio.sleep(0.01)
        await asyncio.sleep(self.chance.choice((0, 0.002, 0.01)))

    async def answer(self) -> None:
        waits = await self.app.waits(session_id="chat")
        if waits:
            wait = self.chance.choice(waits)
            await self.app.resolve(wait.key, self.chance.choice((True, False, {"approved": True})))

    async def settle(self) -> None:
        """Answer everything until nobody does anything any more."""
        session = self.app.session("chat")
        for process in await self.app.processes():
            await self.app.process_handle(process.id).result(timeout="10s")
        for turn in (*self.turns, "end"):  # the last one takes what is left
            while True:
                with suppress(TimeoutError):
                    await session.turn("go", turn_id=turn, timeout="30ms")
                    break
                await self.answer()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_commit_is_one_that_providers_take(tmp_path: Path, seed: int) -> None:
    chaos = Chaos(f"sqlite:///{tmp_path}/chaos.db", seed)
    await chaos.app.open()
    try:
        async with asyncio.timeout(30):
            for _ in range(ACTIONS):
                with suppress(LashError):
                    await chaos.act()
            await chaos.settle()
        await check(chaos)
    finally:
        await chaos.app.close()


async def check(chaos: Chaos) -> None:
    sessions = chaos.app.store.sessions
    messages = await chaos.app.session("chat").history()
    for turn in await sessions.turns("chat"):
        if turn.result is not None and "nodes" in turn.result:
            head = turn.result["nodes"][1]
            assert not head or refusal(messages[:head]) is None, scope_text(turn.scope)
    told(messages)
    heard = Counter(said(messages))
    assert {word: heard[word] for word in chaos.words} == dict.fromkeys(chaos.words, 1)


def said(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages if message.role == "user"]
