"""Steps: the effects that programs write most, in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pylash.durable.effects import DurableStep, DurableStepOutcome, RuntimeScope, envelope, expect
from pylash.durable.keys import replay_key
from pylash.durable.ports import ScopedController
from pylash.engine.executors import step_executor


async def durable_step(
    boundary: ScopedController,
    name: str,
    run: Callable[[Any], Any],
    given: Any = None,
    *,
    count: int = 1,
) -> Any:
    """Return what ``run(given)`` returned the first time, or run it and record it.

    It is recorded under its name in the boundary's scope; steps of the same name, as in a loop, are
    distinguished by ``count``. Raises StepFailed if it fails, or failed.

    Cancellation: safe before ``run`` returns; after it, the record is written all the same.

    >>> async with open_host("sqlite:///orders.db") as host:
    ...     receipt = await durable_step(host.scoped(ProcessScope("order-7")), "charge", charge, 500)
    """
    asked = envelope(
        DurableStep(name, given),
        scope=RuntimeScope.of(boundary.execution_scope),
        effect_id=name,
        replay_key=replay_key((name, count)),
    )
    return expect(await boundary.execute(asked, step_executor(run)), DurableStepOutcome).value
