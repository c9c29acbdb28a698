"""Commands, outcomes and the hash over them."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from pylash.durable.commands import AppendEvent, ProcessCommand, StartProcess, SubmitTurn
from pylash.durable.effects import (
    OUTCOMES,
    AwaitEvent,
    AwaitEventOutcome,
    Command,
    DurableStep,
    DurableStepOutcome,
    EffectKind,
    Envelope,
    LlmCallOutcome,
    Outcome,
    Process,
    RuntimeScope,
    Sleep,
    SleepOutcome,
    ToolAttempt,
    ToolAttemptOutcome,
    envelope,
    expect,
)
from pylash.durable.processes import EngineInput, EventType, Registration
from pylash.durable.scopes import ProcessScope
from pylash.durable.waits import CustomWait, Ok, Signer
from pylash.values.canonical import decode, encode, write
from pylash.values.errors import RuntimeEffectWrongOutcome


def step(given: Any, **changes: Any) -> Envelope:
    options: dict[str, Any] = {
        "scope": RuntimeScope("s", "t", 7, 0),
        "effect_id": "fetch",
        "replay_key": "fetch",
    }
    return envelope(DurableStep("fetch", given), **{**options, **changes})


@pytest.mark.proves("E3")
def test_every_kind_has_a_command_and_an_outcome_of_its_own() -> None:
    assert set(OUTCOMES) == set(get_args(Command))
    assert set(OUTCOMES.values()) == set(get_args(Outcome))
    assert len(OUTCOMES) == len(EffectKind) == 11
    for command, outcome in OUTCOMES.items():
        assert command.__struct_config__.tag == outcome.__struct_config__.tag


def test_the_same_input_hashes_the_same_and_other_input_differs() -> None:
    assert step({"x": 1}).stable_hash() == step({"x": 1}).stable_hash()
    assert step({"x": 1}).stable_hash() != step({"x": 2}).stable_hash()


@pytest.mark.parametrize(
    ("name", "command", "digest"),
    [
        (
            "wake process.wake",
            AppendEvent("", "process.wake", {"text": "hi"}, "1:wake process.wake#2", "1:1"),
            "69ac81695ac9a948361aa1c8e70b09b05a6dbb0852a48b24e0a2df49626003b1",
        ),
        (
            "yield",
            AppendEvent("", "process.yield", {"value": 1, "text": "1"}, "0"),
            "6640b34afda5334be52ec9ff309f62e096f1e19ec7f42a0929275ac5a3a1d2a2",
        ),
        (
            "submit",
            SubmitTurn("s", "t", "00", {"parts": []}, {"model": "m"}, {"instructions": "Be."}),
            "a91accee29c4e0d35fb43151610fc051f4153993e56f7500aa585dfbaf751de8",
        ),
        (
            "start child",
            StartProcess(
                Registration(
                    id="c",
                    input=EngineInput("python", "child", {"n": 1}),
                    env="e" * 64,
                    timeout=5,
                    event_types=(EventType("note"),),
                    label="Ann",
                    tags=("customer:7",),
                )
            ),
            "ab2f5cd0355750034db34cc583dbe312036741ef3d557652a0140dab140b9a7b",
        ),
    ],
)
def test_what_older_versions_did_not_record_is_not_hashed(
    name: str, command: ProcessCommand, digest: str
) -> None:
    asked = Process(decode(write(command)))
    assert envelope(asked, scope=RuntimeScope(), effect_id=name).stable_hash() == digest


@pytest.mark.proves("E4")
def test_the_hash_is_pinned() -> None:
    """Stored hashes must stay comparable: a change here breaks every run in flight."""
    assert step({"x": 1}).canonical() == (
        b'{"command":{"input":{"x":1},"kind":"durable_step","step_id":"fetch"},'
        b'"kind":"durable_step","name":"fetch"}'
    )
    assert step({"x": 1}).stable_hash() == (
        "796192c3087f417a419b5be16df3fced30ccedaa04b1f8c39c3806ae6425a4db"
    )


@pytest.mark.proves("E4")
@pytest.mark.parametrize(
    "changes",
    [
        {"scope": RuntimeScope("s", "t", 9, 3)},
        {"causal_parent": "someone"},
        {"label": "Fetch the page"},
        {"replay_key": "fetch#2"},
    ],
)
def test_what_is_not_input_is_not_hashed(changes: dict[str, Any]) -> None:
    assert step(1, **changes).stable_hash() == step(1).stable_hash()


def test_the_name_is_hashed() -> None:
    assert step(1, effect_id="other").stable_hash() != step(1).stable_hash()


def test_which_attempt_it_is_is_not_hashed() -> None:
    def attempt(number: int) -> Envelope:
        command = ToolAttempt({"tool": "refund"}, attempt=number, max_attempts=3)
        return envelope(command, scope=RuntimeScope(), effect_id="refund")

    assert attempt(1).stable_hash() == attempt(2).stable_hash()


def test_a_wait_hashes_the_same_whichever_secret_signed_its_key() -> None:
    def wait(secret: bytes, key: str) -> Envelope:
        signed = Signer([secret * 16]).key(ProcessScope("p"), CustomWait(key))
        return envelope(AwaitEvent(signed), scope=RuntimeScope(), effect_id="wait")

    assert wait(b"a", "go").stable_hash() == wait(b"b", "go").stable_hash()
    assert wait(b"a", "go").stable_hash() != wait(b"a", "stop").stable_hash()


@pytest.mark.proves("E3")
@pytest.mark.parametrize(
    "outcome",
    [
        LlmCallOutcome({"text": "hi"}, text_streamed=True),
        ToolAttemptOutcome({"ok": True}, triggers=[{"type": "paid"}]),
        SleepOutcome(),
        AwaitEventOutcome(Ok([1])),
        DurableStepOutcome(None),
    ],
)
def test_an_outcome_survives_being_stored(outcome: Outcome) -> None:
    decoder: msgspec.json.Decoder[Outcome] = msgspec.json.Decoder(Outcome)
    assert decoder.decode(encode(outcome)) == outcome


def test_another_outcome_than_expected_is_refused() -> None:
    assert expect(SleepOutcome(), SleepOutcome) == SleepOutcome()
    with pytest.raises(
        RuntimeEffectWrongOutcome, match="Expected the outcome of durable_step, got"
    ):
        expect(SleepOutcome(), DurableStepOutcome)


def test_the_invocation_has_the_kind_of_the_command() -> None:
    asked = envelope(Sleep(5), scope=RuntimeScope(), effect_id="nap", replay_key="nap")
    assert (asked.invocation.kind, asked.invocation.replay_key) == (EffectKind.SLEEP, "nap")
