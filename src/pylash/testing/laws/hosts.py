"""Laws of scopes and waits for every effect host."""

from __future__ import annotations

import asyncio
import string
from typing import Protocol, runtime_checkable

from pylash.durable.effects import (
    AwaitEvent,
    AwaitEventOutcome,
    Envelope,
    RuntimeScope,
    envelope,
    expect,
)
from pylash.durable.ports import DurabilityTier, EffectHost
from pylash.durable.scopes import (
    ProcessScope,
    QueueDrainScope,
    RuntimeOperationScope,
    SessionDeleteScope,
    TurnScope,
)
from pylash.durable.waits import (
    Cancelled,
    CustomWait,
    Err,
    Ok,
    ProcessSignal,
    Resolution,
    ResolveOutcome,
    Timeout,
    ToolCompletion,
)
from pylash.engine.executors import await_options
from pylash.testing.laws.suites import Broken, Suite, equal, holds, refused, together
from pylash.values.errors import LashError

PATIENCE_SECONDS = 10.0
_TURN = TurnScope("session-1", "turn-1")


@runtime_checkable
class Reopenable(Protocol):
    """A host that survives a restart."""

    async def reopen(self) -> EffectHost:
        """Return a new host on the same storage, as a new process would open it."""
        ...


# --- scopes ---


async def a_scope_keeps_its_metadata(host: EffectHost) -> None:
    drain = QueueDrainScope("session-1", "drain-1")
    scoped = host.scoped(drain)
    equal(scoped.execution_scope, drain, "the scope")
    equal((scoped.scope_id, scoped.turn_id), ("drain-1", None), "the ids of a drain")
    scoped = host.scoped(_TURN)
    equal((scoped.scope_id, scoped.turn_id), ("turn-1", "turn-1"), "the ids of a turn")


async def a_blank_scope_id_is_refused(host: EffectHost) -> None:
    for scope in (
        TurnScope("", "turn"),
        TurnScope("session", " "),
        ProcessScope(""),
        QueueDrainScope("session", "\t"),
        SessionDeleteScope(""),
        RuntimeOperationScope(""),
    ):
        try:
            host.scoped(scope)
        except LashError as error:
            equal(error.code, "missing_execution_scope_id", f"{scope!r}")
        else:
            raise Broken(f"{scope!r} was accepted")


async def a_static_scope_keeps_its_metadata(host: EffectHost) -> None:
    scoped = host.scoped_static(RuntimeOperationScope("operation"))
    equal(scoped is not None, host.gives_static_scopes, "gives_static_scopes of the host")
    if scoped is not None:
        equal(scoped.scope_id, "operation", "the scope's id")


async def a_host_and_its_controllers_agree_on_what_they_can_do(host: EffectHost) -> None:
    controller = host.scoped(_TURN).controller
    for flag in (
        "durability",
        "supports_durable_effects",
        "supports_concurrent_effects",
        "requires_durable_attachment_store",
    ):
        equal(getattr(controller, flag), getattr(host, flag), flag)
    holds(isinstance(host.durability, DurabilityTier), "the durability must be a tier")


EFFECT_HOST = Suite[EffectHost](
    "effect_host",
    (
        a_scope_keeps_its_metadata,
        a_blank_scope_id_is_refused,
        a_static_scope_keeps_its_metadata,
        a_host_and_its_controllers_agree_on_what_they_can_do,
    ),
)


# --- waits ---


def waiting(key: str, name: str) -> Envelope:
    """Return the envelope of a wait."""
    command = AwaitEvent(key, title=f"Wait {name}")
    return envelope(
        command, scope=RuntimeScope.of(_TURN), effect_id=name, replay_key=f"conformance/{name}"
    )


async def ended(host: EffectHost, key: str) -> Resolution:
    """Return the resolution of a wait, or fail after PATIENCE_SECONDS."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await host.wait(key)


async def the_key_of_a_wait_never_changes(host: EffectHost) -> None:
    wait = ToolCompletion("call-1")
    first, second = await host.wait_key(_TURN, wait), await host.wait_key(_TURN, wait)
    equal(second, first, "the key, asked for again")
    other = await host.wait_key(TurnScope("session-2", "turn-1"), wait)
    holds(other != first, "the same turn id in another session is another wait")
    if isinstance(host, Reopenable):
        again = await host.reopen()
        equal(await again.wait_key(_TURN, wait), first, "the key after a restart")
        equal(
            (await again.resolve(first, Ok(1))).status, "accepted", "the old key, after a restart"
        )


async def a_key_is_safe_in_a_url(host: EffectHost) -> None:
    key = await host.wait_key(TurnScope("sé/ss?", "t#1"), CustomWait("a b&c"))
    holds(set(key) <= set(string.ascii_letters + string.digits + "-_."), f"{key!r}")
    equal(key.partition(".")[0], "v1", "the version")


async def a_blank_identity_is_refused_after_a_blank_scope(host: EffectHost) -> None:
    for wait in (
        ToolCompletion(" "),
        ProcessSignal("", "go", 1),
        ProcessSignal("p", "", 1),
        ProcessSignal("p", "go", 0),
        CustomWait(""),
    ):
        asked = host.wait_key(_TURN, wait)
        await refused(asked, "invalid_await_event_wait_identity", f"{wait!r}")
    both = host.wait_key(ProcessScope(""), CustomWait(""))
    await refused(both, "missing_execution_scope_id", "a blank scope and a blank identity")


async def an_answer_that_comes_early_is_kept(host: EffectHost) -> None:
    key = await host.wait_key(_TURN, ToolCompletion("early"))
    equal(await host.resolve(key, Ok({"ready": True})), ResolveOutcome("accepted"), "the answer")
    equal(await ended(host, key), Ok({"ready": True}), "what the waiter got later")


async def the_first_answer_wins(host: EffectHost) -> None:
    key = await host.wait_key(_TURN, CustomWait("twice"))
    error = Err("card_declined", "The card was declined.", {"raw": [1]})
    equal((await host.resolve(key, error)).status, "accepted", "the first answer")
    second = await host.resolve(key, Ok("second"))
    equal(second, ResolveOutcome("already_resolved", error), "the second answer")
    equal(await ended(host, key), error, "what the waiter got")


async def what_is_no_answer_is_refused_and_the_wait_stays_open(host: EffectHost) -> None:
    key = await host.wait_key(_TURN, CustomWait("refused"))
    for bare in (True, None, "yes", {"status": "ok"}, Timeout(still_open=True)):
        work = host.resolve(key, bare)  # type: ignore[arg-type]  # the mistake under test
        await refused(work, "invalid_resolution", f"{bare!r}")
    for unfit in (Ok({1}), Ok((1, 2)), Ok(float("nan")), Err("code", "message", {1})):
        await refused(host.resolve(key, unfit), "value_not_json", f"{unfit!r}")
    equal((await host.resolve(key, Ok("yes"))).status, "accepted", "the right answer afterwards")


async def of_many_answers_at_once_one_is_accepted(host: EffectHost) -> None:
    key = await host.wait_key(_TURN, CustomWait("race"))
    outcomes = await together(*(host.resolve(key, Ok(n)) for n in range(20)))
    accepted = [n for n, outcome in enumerate(outcomes) if outcome.status == "accepted"]
    equal(len(accepted), 1, "accepted answers")
    equal(await ended(host, key), Ok(accepted[0]), "the answer that stands")


async def every_waiter_gets_the_same_end(host: EffectHost) -> None:
    key = await host.wait_key(_TURN, CustomWait("shared"))
    controller = host.scoped(_TURN)

    async def as_an_effect() -> Resolution:
        outcome = await controller.execute(waiting(key, "shared"), await_options())
        return expect(outcome, AwaitEventOutcome).resolution

    async def answer() -> Resolution:
        await asyncio.sleep(0.05)
        await host.resolve(key, Ok("go"))
        return Ok("go")

    async with asyncio.timeout(PATIENCE_SECONDS):
        ends = await together(as_an_effect(), host.wait(key), host.wait(key), answer())
    equal(ends, [Ok("go")] * 4, "the result of every waiter")


async def cancelling_the_waiter_ends_the_wait(host: EffectHost) -> None:
    key = await host.wait_key(_TURN, CustomWait("cancelled"))
    cancel = asyncio.Event()
    cancel.set()
    equal(await host.wait(key, cancel=cancel), Cancelled(), "the end")
    late = await host.resolve(key, Ok("late"))
    equal(late, ResolveOutcome("already_resolved", Cancelled()), "an answer after the cancel")


async def a_deadline_ends_the_wait(host: EffectHost) -> None:
    key = await host.wait_key(_TURN, CustomWait("late"))
    equal(await host.wait(key, timeout=0), Timeout(), "a deadline that has passed")
    late = await host.resolve(key, Ok("late"))
    equal(late, ResolveOutcome("already_resolved", Timeout()), "an answer after the deadline")
    other = await host.wait_key(_TURN, CustomWait("soon"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        equal(await host.wait(other, timeout="20ms"), Timeout(), "a deadline that comes")


async def an_end_that_is_there_beats_cancel_and_deadline(host: EffectHost) -> None:
    key = await host.wait_key(_TURN, CustomWait("decided"))
    await host.resolve(key, Ok("decided"))
    cancel = asyncio.Event()
    cancel.set()
    equal(await host.wait(key, cancel=cancel), Ok("decided"), "with a cancel")
    equal(await host.wait(key, timeout=0), Ok("decided"), "with a deadline")


async def revoking_a_session_makes_its_keys_unknown(host: EffectHost) -> None:
    key = await host.wait_key(_TURN, CustomWait("revoked"))
    process = await host.wait_key(ProcessScope("session-1"), CustomWait("kept"))
    other = await host.wait_key(TurnScope("session-2", "turn-1"), CustomWait("kept"))
    await host.revoke_waits("session-1")
    equal((await host.resolve(key, Ok(1))).status, "unknown_or_revoked", "a revoked key")
    await refused(ended(host, key), "await_event_unknown_or_revoked", "waiting for a revoked key")
    for kept in (process, other):
        equal((await host.resolve(kept, Ok(1))).status, "accepted", "a key of another scope")


async def revoking_a_session_wakes_who_waits(host: EffectHost) -> None:
    key = await host.wait_key(_TURN, CustomWait("parked"))

    async def revoke() -> None:
        await asyncio.sleep(0.05)
        await host.revoke_waits("session-1")

    async def wait() -> None:
        await refused(ended(host, key), "await_event_unknown_or_revoked", "the parked waiter")

    await together(wait(), revoke())


async def a_session_that_is_made_again_has_live_waits(host: EffectHost) -> None:
    old = await host.wait_key(_TURN, CustomWait("again"))
    await host.resolve(old, Ok("old"))
    await host.revoke_waits("session-1")
    new = await host.wait_key(_TURN, CustomWait("again"))
    holds(new != old, "a revoked key must not come back")
    equal((await host.resolve(new, Ok("new"))).status, "accepted", "the new key")
    equal(await ended(host, new), Ok("new"), "the new wait's end")


async def a_tampered_key_is_worth_nothing(host: EffectHost) -> None:
    key = await host.wait_key(_TURN, CustomWait("tampered"))
    version, kid, payload, mac = key.split(".")
    for forged in (
        f"{key}x",
        f"{version}.{kid}.{payload}.{mac[:-1]}{'A' if mac[-1] != 'A' else 'B'}",
        f"{version}.{kid}.{payload[:-2]}{'AA' if payload[-2:] != 'AA' else 'BB'}.{mac}",
        f"{version}.00000000.{payload}.{mac}",
        f"v2.{kid}.{payload}.{mac}",
        "",
        "nonsense",
        "....",
        "é.ü.ö.ä",
    ):
        outcome = await host.resolve(forged, Ok("forged"))
        equal(outcome.status, "unknown_or_revoked", f"resolving {forged!r}")
        await refused(
            ended(host, forged), "await_event_unknown_or_revoked", f"waiting for {forged!r}"
        )
    equal((await host.resolve(key, Ok("real"))).status, "accepted", "the real key afterwards")


AWAIT_EVENTS = Suite[EffectHost](
    "effect_host_await_events",
    (
        the_key_of_a_wait_never_changes,
        a_key_is_safe_in_a_url,
        a_blank_identity_is_refused_after_a_blank_scope,
        an_answer_that_comes_early_is_kept,
        the_first_answer_wins,
        what_is_no_answer_is_refused_and_the_wait_stays_open,
        of_many_answers_at_once_one_is_accepted,
        every_waiter_gets_the_same_end,
        cancelling_the_waiter_ends_the_wait,
        a_deadline_ends_the_wait,
        an_end_that_is_there_beats_cancel_and_deadline,
        revoking_a_session_makes_its_keys_unknown,
        revoking_a_session_wakes_who_waits,
        a_session_that_is_made_again_has_live_waits,
        a_tampered_key_is_worth_nothing,
    ),
)
