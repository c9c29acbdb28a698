"""The recording host."""

from __future__ import annotations

import pytest

from pylash.durable.effects import (
    DurableStep,
    DurableStepOutcome,
    EffectKind,
    LlmCall,
    RuntimeScope,
    Sleep,
    SleepOutcome,
    envelope,
)
from pylash.durable.scopes import ProcessScope, TurnScope
from pylash.engine.executors import UnavailableExecutor
from pylash.testing import RecordedEffect, RecordingHost, conformance
from pylash.values.errors import LashError

LOCAL = UnavailableExecutor()


@pytest.mark.proves("E11")
async def test_it_keeps_what_it_was_asked() -> None:
    host, scope = RecordingHost(), TurnScope("s", "t")
    asked = envelope(
        DurableStep("fetch", {"x": 1}),
        scope=RuntimeScope.of(scope, 7),
        effect_id="fetch",
        replay_key="fetch#2",
    )
    assert await host.scoped(scope).execute(asked, LOCAL) == DurableStepOutcome({"x": 1})
    assert host.scopes == [scope]
    assert host.effects == [
        RecordedEffect(
            RuntimeScope("s", "t", 7),
            scope,
            "fetch",
            EffectKind.DURABLE_STEP,
            "fetch#2",
            asked.stable_hash(),
        )
    ]


@pytest.mark.proves("E11")
async def test_it_answers_sleeps_and_refuses_what_it_cannot_make_up() -> None:
    controller = RecordingHost().scoped(ProcessScope("p"))
    nap = envelope(Sleep(3_600_000), scope=RuntimeScope(), effect_id="nap")
    assert await controller.execute(nap, LOCAL) == SleepOutcome()
    call = envelope(LlmCall({}), scope=RuntimeScope(), effect_id="call")
    with pytest.raises(LashError) as caught:
        await controller.execute(call, LOCAL)
    assert caught.value.code == "recording_effect_host_unsupported_command"


async def test_it_keeps_the_laws_of_a_host() -> None:
    await conformance.effect_host(RecordingHost)
