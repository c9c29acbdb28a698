"""Work of the process registry: a host performs it in a task of its own, which outlives the caller.

The effect of a registry command is in the store. A caller that is cancelled must not leave it half done or undone without
knowing which, so the work goes on. Waiting is not work: it ends with its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from pylash.durable.commands import Awaited, process_command
from pylash.durable.effects import Outcome, Process, ProcessOutcome
from pylash.durable.ports import LocalExecutor
from pylash.tasks import TaskOwner
from pylash.values.errors import LashError, Misuse, RuntimeEffectLocalExecutorUnavailable
from pylash.values.process_errors import RuntimeEffectProcessTaskJoin


async def perform_registry_work(
    tasks: TaskOwner, process: Process, local: LocalExecutor
) -> Outcome:
    """Perform a process command with the registry work of the executor.

    Raises RuntimeEffectProcessTaskJoin if the work breaks, that is, ends with an error that is not one of ours.
    """
    work = local.processes
    if work is None:
        raise RuntimeEffectLocalExecutorUnavailable(process.kind)
    command = process_command(process.command)
    asking = work(command, local.timeout)
    # A future is the answer of a task that exists already; cancelling it does not stop the work.
    if not (isinstance(command, Awaited) or asyncio.isfuture(asking)):
        # The host owns the task: a cancel of the caller cancels ``asking`` and nothing else.
        asking = tasks.complete(_joined(asking), quiet=Misuse)
    try:
        return ProcessOutcome(await asking)
    except LashError:
        raise
    except Exception as error:
        raise RuntimeEffectProcessTaskJoin(str(error) or type(error).__name__) from error
    finally:
        del asking  # its exception holds this frame


async def _joined(asking: Awaitable[Any]) -> Any:
    """Await the work; raise RuntimeEffectProcessTaskJoin if it is cancelled."""
    try:
        return await asking
    except asyncio.CancelledError as error:  # the host closes
        # A CancelledError would look to the caller like a cancel of its own task.
        raise RuntimeEffectProcessTaskJoin(type(error).__name__) from None
