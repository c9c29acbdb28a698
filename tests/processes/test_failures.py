"""Failures of processes: each keeps its class, code, message and raw value, wherever it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pylash import (
    Failure,
    InlineHost,
    Lash,
    LashError,
    ProcessContext,
    ProcessFailed,
    StepFailed,
)
from pylash.durable.commands import StartProcess
from pylash.durable.ports import EffectHost
from pylash.durable.processes import Registration, ToolCallInput
from pylash.testing import SerialHost
from tests.backends import Backend

FAIL = 'process main() { fail { reason: "bad" } }'

HOSTS: dict[str, Callable[[], EffectHost] | None] = {
    "journal": None,
    "inline": InlineHost,
    "serial": lambda: SerialHost(InlineHost()),
}


class Declined(Exception):
    """A payment was declined."""


class Refused(LashError, category=True):
    """An error with a code of its own."""


async def charge() -> None:
    raise Declined("no money")


async def value(n: int) -> int:
    """Return a number."""
    return n


EXPECTED = {
    "own": Failure(
        "Declined",
        "process_failed",
        "('no money', {'cents': 5})",
        ["no money", {"cents": 5}],
    ),
    "coded": Failure("Refused", "card_expired", "It has expired.", {"year": 2020}),
    "stepped": Failure("Declined", StepFailed.default_code, "no money", None),
    "program": Failure("execution", "process_failed", '{"reason":"bad"}', {"reason": "bad"}),
    "bare": Failure(
        "execution",
        "process_recovery_failed",
        "Process 'bare' cannot run: it has no captured environment.",
        None,
    ),
}


def shop(url: str, host: EffectHost | None = None) -> tuple[Lash, dict[str, Any]]:
    """Return an app, and its processes by name."""
    app = Lash(url, host=host, tools=[value])

    @app.process
    async def own(ctx: ProcessContext[None]) -> None:
        raise Declined("no money", {"cents": 5})

    @app.process
    async def coded(ctx: ProcessContext[None]) -> None:
        raise Refused("It has expired.", code="card_expired", data={"year": 2020})

    @app.process
    async def stepped(ctx: ProcessContext[None]) -> None:
        await ctx.step(charge)

    @app.process
    async def parent(ctx: ProcessContext[None], name: str) -> Any:
        try:
            await (await ctx.start(known[name])).result()
        except ProcessFailed as error:
            return [error.code, error.data]

    known: dict[str, Any] = {one.name: one for one in (own, coded, stepped, parent)}
    return app, known


async def fail(app: Lash, known: dict[str, Any], name: str) -> None:
    """Start a failing process under its name as its id."""
    if name == "bare":
        given = Registration(id=name, input=ToolCallInput("value", {"n": 1}))
        await app.store.processes.start(StartProcess(given))
    elif name == "program":
        module = await app.lashlang(FAIL)
        await app.start(module["main"].options(id=name))
    else:
        await app.start(known[name].options(id=name))


@pytest.mark.proves("P16")
@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("host", HOSTS)
async def test_a_failure_keeps_its_class_code_message_and_raw_value(
    backend: Backend, host: str, name: str
) -> None:
    made = HOSTS[host]
    expected = EXPECTED[name]
    app, known = shop(backend.url, None if made is None else made())
    async with app:
        await fail(app, known, name)
        handle = app.process_handle(name)
        with pytest.raises(ProcessFailed) as caught:
            await handle.result(timeout="10s")
        assert caught.value.failure == expected
        assert (caught.value.code, caught.value.data) == (expected.code, expected.payload)
        [*_, last] = [event async for event in handle.events()]
        assert (last.type, last.payload) == ("process.failed", expected.payload)
        if backend.shared:
            async with Lash(backend.url, worker=None) as client:  # it has only the store
                with pytest.raises(ProcessFailed) as read:
                    await client.process_handle(name).result(timeout="10s")
            assert read.value.failure == expected


@pytest.mark.proves("P16")
@pytest.mark.parametrize("name", ["own", "coded", "stepped"])
async def test_a_parent_gets_all_of_the_failure_of_its_child(backend: Backend, name: str) -> None:
    app, known = shop(backend.url)
    async with app:
        handle = await app.start(known["parent"], name=name)
        code, data = await handle.result(timeout="10s")
    assert (code, data) == (EXPECTED[name].code, EXPECTED[name].payload)
