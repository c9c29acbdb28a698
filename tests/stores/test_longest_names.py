"""Names of the maximum length fit every index of every database, whatever characters they contain."""

from __future__ import annotations

import base64
import hashlib
import itertools
from contextlib import suppress
from typing import Any

import pytest

from pylash import Lash, LashError, ProcessContext
from pylash.testing import ScriptedModel, say
from pylash.values.names import MAX_NAME_BYTES
from tests.backends import Backend, eventually

_seeds = itertools.count()


def longest(alphabet: str) -> str:
    """Return another name of the greatest length, of letters in no order: nothing in it can be compressed."""
    noise = hashlib.shake_256(f"{next(_seeds)}".encode()).digest(MAX_NAME_BYTES)
    text = base64.b64encode(noise, b"-_").decode()
    if (
        alphabet == "escaped"
    ):  # every second letter is written as two in JSON, or as three in a replay key
        text = "".join(letter + '"\\%/'[ord(letter) % 4] for letter in text)
    elif alphabet == "wide":
        text = "".join(chr(0x4E00 + 64 * byte) for byte in noise)
    return text.encode()[:MAX_NAME_BYTES].decode(errors="ignore")


@pytest.mark.parametrize("alphabet", ["plain", "escaped", "wide"])
async def test_the_longest_names_can_be_used_everywhere(durable: Backend, alphabet: str) -> None:
    def name() -> str:
        return longest(alphabet)

    app = Lash(durable.url, model=ScriptedModel(lambda _: say("hello")))
    app.trigger(kind := name())
    signal, event, step_key, branch = name(), name(), name(), name()
    child_id, session_id, turn_id, wait = name(), name(), name(), name()

    async def one(n: int) -> int:
        return n

    @app.process(name=name())
    async def child(ctx: ProcessContext[None], n: int) -> int:
        return await ctx.options(key=step_key).step(one, n)

    @app.process(name=name(), concurrency=1, key="{text}")
    async def parent(ctx: ProcessContext[None], text: str) -> int:
        handle = await ctx.start(child.options(id=child_id), 1)
        await ctx.emit(event, 1)
        first, second = await ctx.gather(handle.result(), ctx.step(one, 2), key=branch)
        taken = await ctx.wait_signal(signal)
        with suppress(LashError):  # nobody answers
            await ctx.wait(ctx.wait_key(wait), timeout="1ms")
        said = await ctx.session(session_id).turn("hi", turn_id=turn_id)
        assert said.text == "hello"
        return int(first + second + taken)

    async with app:
        handle = await app.start(parent.options(id=name(), wake=name()), name() * 20)
        other = await app.start(parent.options(id=name()), name())
        await other.cancel()
        await handle.signal(signal, 3, id=name())
        assert await handle.result(timeout="20s") == 6
        words = app.session(session := name())
        await words.enqueue("hello", key=name())
        await words.turn("hi", turn_id=name(), timeout="20s")
        await words.fork(name())
        source = name()
        await app.triggers.register(
            kind, source_key=source, target=child, key=name(), inputs={"n": 1}, session_id=session
        )
        delivered: Any = await app.triggers.emit(kind, source_key=source, idempotency_key=name())
        assert len(delivered) == 1
        await eventually(lambda: _ended(app, delivered[0]))
        await words.delete()


async def _ended(app: Lash, delivery: Any) -> bool:
    return await app.process_handle(delivery.process_id).status() == "completed"
