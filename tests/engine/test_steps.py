"""Steps in one call, and calls that can never work."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pylash import InlineHost, LashError, ProcessScope, durable_step
from pylash.durable.ports import EffectHost, ScopedController
from pylash.testing.laws.controllers import returning, step
from tests.backends import Backend

SCOPE = ProcessScope("p")


async def code_of(work: Any) -> str:
    with pytest.raises(LashError) as caught:
        await work
    return caught.value.code


@pytest.fixture(params=["inline", "journal"])
async def host(request: pytest.FixtureRequest, backend: Backend) -> EffectHost:
    return InlineHost() if request.param == "inline" else await backend.host()


async def test_steps_are_distinguished_by_name_and_count(backend: Backend) -> None:
    host, ran = await backend.host(), list[Any]()

    async def note(given: Any) -> Any:
        ran.append(given)
        return given

    for _ in range(2):
        boundary = host.scoped(SCOPE)
        values = [
            await durable_step(boundary, "note", note, "a"),
            await durable_step(boundary, "note", note, "b", count=2),
            await durable_step(boundary, "no/te#2", note, "c"),
        ]
        assert values == ["a", "b", "c"]
        host = await backend.reopened(host)
    assert ran == ["a", "b", "c"]


async def test_a_plain_function_runs_in_a_thread(host: EffectHost) -> None:
    def name(_: Any) -> str:
        return threading.current_thread().name

    assert await durable_step(host.scoped(SCOPE), "name", name) != "MainThread"


async def test_an_answer_keeps_the_order_of_its_keys(backend: Backend) -> None:
    host = await backend.host()
    for _ in range(2):
        value = await durable_step(host.scoped(SCOPE), "order", lambda _: {"url": 1, "by": 2})
        assert list(value) == ["url", "by"]
        host = await backend.reopened(host)


async def test_a_function_is_no_executor_and_nothing_is_recorded(host: EffectHost) -> None:
    boundary: ScopedController = host.scoped(SCOPE)

    async def forgot(_: Any) -> None:
        return

    work = boundary.execute(step("one"), forgot)  # type: ignore[arg-type]  # the mistake under test
    assert await code_of(work) == "runtime_effect_local_executor_mismatch"
    assert await durable_step(boundary, "one", lambda _: "mended") == "mended"


async def test_an_effect_inside_a_step_is_refused_at_once(host: EffectHost) -> None:
    boundary = host.scoped(SCOPE)

    async def outer(_: Any) -> Any:
        return await durable_step(boundary, "outer", outer)

    assert await code_of(durable_step(boundary, "outer", outer)) == "effect_nested"
    assert await durable_step(boundary, "outer", lambda _: "mended") == "mended"


async def test_a_value_that_is_not_a_scope_is_refused(host: EffectHost) -> None:
    with pytest.raises(LashError) as caught:
        host.scoped("order-7")  # type: ignore[arg-type]  # the mistake under test
    assert caught.value.code == "invalid_execution_scope"
    assert "ProcessScope" in caught.value.message
    work = host.wait_key(SCOPE, "go")  # type: ignore[arg-type]
    assert await code_of(work) == "invalid_await_event_wait_identity"
    assert await code_of(host.wait(None)) == "await_event_unknown_or_revoked"  # type: ignore[arg-type]
    assert returning(1)
