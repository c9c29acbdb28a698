"""Payloads that are larger than the messages of a Restate server may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pylash import ProcessContext, StepFailed
from pylash.testing import ScriptedModel, call, calls, say
from tests.restate.apps import RestateApps, sqlite_url
from tests.restate.server import RestateServer
from tests.restate.stories import Story

MIB = 1024 * 1024


@pytest.fixture
def story(restate: RestateServer, tmp_path: Path) -> Story:
    return Story(RestateApps(restate, sqlite_url(tmp_path)))


async def test_large_results_inputs_and_signals_go_by_reference(story: Story) -> None:
    async def make(size: int) -> str:
        story.executed.append(f"make {size // MIB}")
        return "x" * size

    app = story.apps.make()

    @app.process
    async def child(ctx: ProcessContext[None], given: str) -> str:
        return given * 3

    @app.process
    async def large(ctx: ProcessContext[None], given: str) -> list[Any]:
        three, forty = await ctx.gather(ctx.step(make, 3 * MIB), ctx.step(make, 40 * MIB))
        try:
            await ctx.step(make, 65 * MIB)
        except StepFailed as error:
            refused = error.code
        tripled = await (await ctx.start(child, given=given)).result()
        signal = await ctx.wait_signal("go")
        sizes = [len(one) for one in (three, forty, tripled, signal)]
        return [*sizes, refused]

    async with app:
        handle = await app.start(large, given="y" * MIB)
        story.id = handle.id
        await story.until_server_says("suspended")
        await handle.signal("go", "z" * 2 * MIB)
        assert await handle.result(timeout="40s") == [
            3 * MIB, 40 * MIB, 3 * MIB, 2 * MIB, "payload_too_large",
        ]  # fmt: skip
    (row,) = await story.apps.server.query(
        "select max(raw_length) as size from sys_journal j join sys_invocation i on i.id = j.id "
        f"where i.target_service_key = '{story.id}'"
    )
    assert row["size"] < 1.5 * MIB
    assert sorted(story.executed) == ["make 3", "make 40", "make 65"]


async def test_the_large_answer_of_a_model_goes_by_reference(story: Story) -> None:
    text = "x" * 3 * MIB
    app = story.apps.make(model=ScriptedModel([calls(say(text), call("read")), say(text)]))

    @app.tool
    async def read() -> str:
        """Read."""
        return "read"

    async with app:
        session = app.session(f"chat-{abs(hash(story.apps.url))}")
        assert (await session.turn("Read", timeout="30s")).text == text
        assert [len(one.text) for one in await session.history()][1::2] == [3 * MIB, 3 * MIB]
