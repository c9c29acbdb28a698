"""What every trigger store promises: an occurrence and what it starts, once; and environments."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from pylash.durable.processes import EngineInput, Registration, SessionRef, engine_target
from pylash.durable.stores import Store
from pylash.durable.triggers import Delivery, EventBinding, Occurrence, Subscription, ValueBinding
from pylash.testing.laws.stores.subjects import (
    SubjectStore,
    claim_processes,
    ids,
    joined,
    log_of,
    raced,
    record_of,
    work,
)
from pylash.testing.laws.suites import Suite, equal, refused, together


def _subscription(**options: Any) -> Subscription:
    """Return a subscription nobody made before."""
    unique = next(ids)
    return Subscription(
        **{
            "key": f"key-{unique}",
            "type": "push",
            "source": f"repo-{unique}",
            "template": replace(work(), id=""),
            "inputs": {"event": EventBinding(), "branch": ValueBinding("main")},
            **options,
        }
    )


def _push(subscription: Subscription, payload: Any = 1, key: str = "k") -> Occurrence:
    source = subscription.source
    return Occurrence(type="push", source=source, payload=payload, idempotency_key=key)


async def subscriptions_are_listed_and_replaced(store: SubjectStore) -> None:
    first, second = _subscription(session_id="ann"), _subscription(session_id="bob")
    for one in (first, second):
        await store.triggers.register(one)
    listed = [view.subscription for view in await store.triggers.listed()]
    equal(listed, [first, second], "the subscriptions, the oldest first")
    listed = [view.subscription for view in await store.triggers.listed("bob")]
    equal(listed, [second], "a session's subscriptions")
    other = replace(first, source="elsewhere")
    await store.triggers.register(other)
    listed = [view.subscription for view in await store.triggers.listed("ann")]
    equal(listed, [other], "what the key stands for now")
    equal(await store.triggers.emit(_push(first)), [], "what the old one starts")


async def a_cancelled_subscription_starts_nothing(store: SubjectStore) -> None:
    one = _subscription()
    await store.triggers.register(one)
    equal(await store.triggers.cancel(one.key), True, "cancelling")
    equal(await store.triggers.cancel(one.key), False, "cancelling again")
    equal(await store.triggers.listed(), [], "the subscriptions")
    equal(await store.triggers.emit(_push(one)), [], "what it starts")
    await store.triggers.register(one)
    equal(len(await store.triggers.emit(_push(one, key="k2"))), 1, "once it is made again")


async def a_sessions_subscriptions_go_with_it(store: SubjectStore) -> None:
    gone, also, kept = (_subscription(session_id=name) for name in ("ann", "ann", "bob"))
    for one in (gone, also, kept):
        await store.triggers.register(one)
    equal((await store.sessions.delete("ann")).subscriptions, 2, "how many there were")
    equal((await store.sessions.delete("ann")).subscriptions, 0, "how many there are")
    equal([view.subscription for view in await store.triggers.listed()], [kept], "what is left")
    equal(await store.triggers.emit(_push(gone)), [], "what it starts")


async def a_subscription_belongs_to_its_session(store: SubjectStore) -> None:
    owned, free = _subscription(session_id="ann"), _subscription()
    for one in (owned, free):
        await store.triggers.register(one)
    taking = store.triggers.register(replace(owned, session_id="bob"))
    await refused(taking, "trigger_conflict", "the key of another session")
    taking = store.triggers.register(replace(owned, session_id=None))
    await refused(taking, "trigger_conflict", "the key of a session, for none")
    for session in ("bob", None):
        cancelling = store.triggers.cancel_owned(owned.key, session)
        equal(await cancelling, False, f"cancelling for {session}")
    equal(await store.triggers.cancel_owned(free.key, "ann"), False, "cancelling what is nobody's")
    equal(len(await store.triggers.emit(_push(owned))), 1, "what it still starts")
    equal(await store.triggers.cancel_owned(owned.key, "ann"), True, "cancelling one's own")
    equal(await store.triggers.cancel_owned(free.key, None), True, "cancelling for no session")
    equal(await store.triggers.listed(), [], "the subscriptions")
    await store.triggers.register(replace(owned, session_id="bob"))
    equal(len(await store.triggers.listed("bob")), 1, "a cancelled key, for another session")


async def an_occurrence_starts_what_is_subscribed(store: SubjectStore) -> None:
    session = SessionRef("ann")
    template = replace(
        work(originator=session, wake_target=session, env="e" * 64, arguments={"given": 1}), id=""
    )
    one = _subscription(template=template, session_id="ann")
    also = _subscription(source=one.source)
    for subscription in (one, also, _subscription()):
        await store.triggers.register(subscription)
    push = _push(one, {"n": 1})
    expected = [
        Delivery(push.id, subscription.key, f"trigger:{subscription.key}:{push.id}")
        for subscription in sorted((one, also), key=lambda subscription: subscription.key)
    ]
    equal(await store.triggers.emit(push), expected, "the deliveries")
    record = await record_of(store, f"trigger:{one.key}:{push.id}")
    arguments = {"given": 1, "event": {"n": 1}, "branch": "main"}
    equal(record.registration.input, EngineInput("python", "work", arguments), "its input")
    carried = record.registration
    equal(
        (carried.originator, carried.wake_target, carried.env),
        (session, session, "e" * 64),
        "what it carries",
    )


async def an_occurrence_starts_what_the_upgrade_returns(store: SubjectStore) -> None:
    one = _subscription()
    await store.triggers.register(one)
    seen: list[Registration] = []

    def upgrade(registration: Registration) -> Registration:
        seen.append(registration)
        given = registration.input
        assert isinstance(given, EngineInput)
        return replace(registration, input=given.of_version(2))

    deliveries = await store.triggers.emit(_push(one, 7), upgrade)
    (delivery,) = deliveries
    arguments = {"event": 7, "branch": "main"}
    old = EngineInput("python", "work", arguments)
    # A transaction that is repeated asks again.
    for registration in seen:
        equal((registration.id, registration.input), (delivery.process_id, old), "what is upgraded")
    record = await record_of(store, delivery.process_id)
    upgraded = old.of_version(2)
    equal(record.registration.input, upgraded, "the input of its process")
    worker = await joined(store)
    equal(await claim_processes(store, worker), [], "what a worker of the old target claims")
    claims = await store.runs.claim(worker, limit=10, targets=[engine_target("python", "work", 2)])
    equal([claim.run.scope.id for claim in claims], [delivery.process_id], "a worker of the new")
    equal(await store.triggers.emit(_push(one, 7)), deliveries, "the same report, not upgraded")
    equal((await record_of(store, delivery.process_id)).registration.input, upgraded, "its input")
    (later,) = await store.triggers.emit(_push(one, 7, key="k2"))
    equal((await record_of(store, later.process_id)).registration.input, old, "without an upgrade")


async def an_occurrence_happens_once(store: SubjectStore) -> None:
    one = _subscription()
    await store.triggers.register(one)
    first = await store.triggers.emit(_push(one, {"a": 1, "b": 2}))
    also = _subscription(source=one.source)
    await store.triggers.register(also)
    equal(await store.triggers.emit(_push(one, {"b": 2, "a": 1})), first, "the same report again")
    equal(len(await log_of(store, first[0].process_id)), 1, "the process")
    other = store.triggers.emit(_push(one, {"a": 2}))
    await refused(other, "trigger_conflict", "another payload under its key")
    equal(len(await store.triggers.emit(_push(one, key="k2"))), 2, "another occurrence")


async def emitters_at_once_start_each_process_once(store: SubjectStore) -> None:
    subscriptions = [_subscription(source="shared") for _ in range(2)]
    for subscription in subscriptions:
        await store.triggers.register(subscription)

    async def emit(client: Store, n: int) -> list[Delivery]:
        return await client.triggers.emit(_push(subscriptions[0], n, key=f"k{n}"))

    async def race(one: Store, other: Store, _worker: object, n: int) -> None:
        answers = await together(emit(one, n), emit(other, n), emit(one, n))
        equal(answers, [answers[0]] * 3, f"try {n}: what everyone was told")
        equal(len(answers[0]), len(subscriptions), f"try {n}: the deliveries")
        for delivery in answers[0]:
            equal(len(await log_of(one, delivery.process_id)), 1, f"try {n}: the process")

    await raced(store, race)


async def an_environment_is_kept_under_its_hash(store: SubjectStore) -> None:
    ref = "a" * 64
    equal(await store.envs.get(ref), None, "before it is put")
    for _ in range(2):
        await store.envs.put(ref, b'{"tools":[]}')
    equal(await store.envs.get(ref), b'{"tools":[]}', "the environment")
    equal(await store.envs.get("b" * 64), None, "another")


async def an_environment_never_changes(store: SubjectStore) -> None:
    await store.envs.put("c" * 64, b"first")
    await store.envs.put("c" * 64, b"second")
    equal(await store.envs.get("c" * 64), b"first", "the environment")


async def an_environment_is_there_for_others(store: SubjectStore) -> None:
    other = await store.second()
    if other is None:
        return
    await store.envs.put("d" * 64, bytes(range(256)))
    equal(await other.envs.get("d" * 64), bytes(range(256)), "the environment, elsewhere")


TRIGGER_STORE = Suite[SubjectStore](
    "trigger_store",
    (
        subscriptions_are_listed_and_replaced,
        a_cancelled_subscription_starts_nothing,
        a_sessions_subscriptions_go_with_it,
        a_subscription_belongs_to_its_session,
        an_occurrence_starts_what_is_subscribed,
        an_occurrence_starts_what_the_upgrade_returns,
        an_occurrence_happens_once,
        emitters_at_once_start_each_process_once,
    ),
)

PROCESS_ENV_STORE = Suite[SubjectStore](
    "process_env_store",
    (
        an_environment_is_kept_under_its_hash,
        an_environment_never_changes,
        an_environment_is_there_for_others,
    ),
)
