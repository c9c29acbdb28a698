"""The smallest honest durable controller: a dictionary. Liars are made from it, one lie each."""

from __future__ import annotations

import asyncio
from typing import Any

from pylash.durable.effects import (
    DurableStepOutcome,
    Envelope,
    Outcome,
    Sleep,
    SleepOutcome,
    expect,
)
from pylash.durable.ports import EffectController, LocalExecutor
from pylash.values.canonical import decode, encode, first_difference, round_trip
from pylash.values.errors import (
    EffectReplayMismatch,
    LashError,
    RuntimeEffectSleepCancelled,
    StepFailed,
    ValueNotJson,
)


class ToyController(EffectController):
    """Records steps and sleeps in a dictionary that outlives it."""

    supports_durable_effects = True

    def __init__(self, journal: dict[str, tuple[bytes, bytes]] | None = None) -> None:
        self.journal = {} if journal is None else journal
        self.flights: dict[str, tuple[bytes, asyncio.Task[bytes]]] = {}

    def replaying(self) -> ToyController:
        return type(self)(self.journal)

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        key, asked = str(envelope.invocation.replay_key), envelope.canonical()
        local.check(envelope.command)
        if key in self.journal:
            self.compare(key, self.journal[key][0], asked)
            return self.answer(self.journal[key][1])
        return self.answer(await self.shared(key, asked, envelope, local))

    async def shared(
        self, key: str, asked: bytes, envelope: Envelope, local: LocalExecutor
    ) -> bytes:
        if key not in self.flights:
            task = asyncio.get_running_loop().create_task(self.perform(envelope, local))
            self.flights[key] = (asked, task)
            task.add_done_callback(lambda _: self.flights.pop(key))
        self.compare(key, self.flights[key][0], asked)
        record = await asyncio.shield(self.flights[key][1])
        self.journal[key] = (asked, record)
        return record

    async def perform(self, envelope: Envelope, local: LocalExecutor) -> bytes:
        try:
            if isinstance(envelope.command, Sleep):
                return self.slept(local)
            outcome = expect(await local.execute(envelope), DurableStepOutcome)
            return encode({"value": self.fit(outcome.value)})
        except LashError as error:
            return self.failure(error.code, error.message, type(error).__name__, error.data)
        except Exception as error:  # noqa: BLE001 - every failure is an outcome
            return self.failure("step_failed", str(error), type(error).__name__, None)

    def slept(self, local: LocalExecutor) -> bytes:
        if local.cancel is not None and local.cancel.is_set():
            raise RuntimeEffectSleepCancelled
        return encode({"sleep": True})

    def fit(self, value: Any) -> Any:
        return round_trip(value)

    def failure(self, code: str, message: str, type_name: str, data: Any) -> bytes:
        return encode({"failed": [code, message, type_name, data]})

    def compare(self, key: str, recorded: bytes, asked: bytes) -> None:
        if recorded != asked:
            raise EffectReplayMismatch(key, first_difference(recorded, asked))

    def answer(self, record: bytes) -> Outcome:
        content = decode(record)
        if "failed" in content:
            code, message, type_name, data = content["failed"]
            if code == "runtime_effect_sleep_cancelled":
                raise RuntimeEffectSleepCancelled
            raise StepFailed(code, message, type_name, data)
        return SleepOutcome() if "sleep" in content else DurableStepOutcome(content["value"])


class ForgetsFailures(ToyController):
    """Raises a failure without recording it."""

    async def shared(
        self, key: str, asked: bytes, envelope: Envelope, local: LocalExecutor
    ) -> bytes:
        record = await super().shared(key, asked, envelope, local)
        if "failed" in decode(record):
            del self.journal[key]
        return record


class IgnoresTheHash(ToyController):
    """Answers whatever is recorded under the key."""

    def compare(self, key: str, recorded: bytes, asked: bytes) -> None:
        return


class RunsTwice(ToyController):
    """Starts the effect again for a second caller."""

    async def shared(
        self, key: str, asked: bytes, envelope: Envelope, local: LocalExecutor
    ) -> bytes:
        if key in self.flights:
            self.compare(key, self.flights[key][0], asked)
        record = await self.perform(envelope, local)
        self.journal[key] = (asked, record)
        return record


class ReturnsTheLiveObject(ToyController):
    """Records a copy and hands out the original."""

    def __init__(self, journal: dict[str, tuple[bytes, bytes]] | None = None) -> None:
        super().__init__(journal)
        self.live: list[Any] = []

    def fit(self, value: Any) -> Any:
        self.live.append(value)
        return super().fit(value)

    def answer(self, record: bytes) -> Outcome:
        outcome = super().answer(record)
        return DurableStepOutcome(self.live.pop()) if self.live else outcome


class ChangesValuesSilently(ToyController):
    """Records what JSON makes of a value."""

    def fit(self, value: Any) -> Any:
        try:
            return super().fit(value)
        except ValueNotJson:
            return str(value)
