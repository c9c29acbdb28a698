"""How processes end in SQL.

Whoever waits for a process marks it as watched in the transaction that begins to wait: 1 says that
somebody outside is to be told, 2 that runs wait for it or children are attached to it. An end without 2
wakes nobody, and many such ends are one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylash.durable import (
    STATES,
    Aborted,
    CancelProcess,
    Fence,
    Output,
    ending,
)
from pylash.stores.logs import ADD_EVENT, WAITING_RUNS, ask_cancel, lock_runs, locked_process
from pylash.stores.queue import supersede
from pylash.stores.runs import release_slot, wake_run
from pylash.stores.sql import (
    Again,
    Notify,
    Statement,
    Steps,
)
from pylash.values import (
    LeaseLost,
    ProcessUnknown,
    write_payload,
)

WHERE = "select number, run, status from pylash_processes where id = ?"

_END = """
update pylash_processes set sequence = sequence + 1, status = ?, output = ?, settled = {now} where id = ?"""

_SETTLE_RUN = """
update pylash_runs set state = ?, settled = {now}, at = null, owner = null, fence = fence + 1, token = ?
where id = ?"""

IS_SETTLED = "select 1 from pylash_runs where id = ? and token = ?"

ATTACHED = """
select id, run from pylash_processes where parent = ? and status = 'open' order by run"""


_OPEN_WAITS = """
select w.id from pylash_waits w join pylash_effects e on e.wait = w.id
where e.run = ? and e.outcome is null and w.terminal is null order by w.id"""


def end_waits(run: int) -> Steps[None]:
    """End what a locked run waits for: nobody is left who could take an answer."""
    for (wait,) in (yield Statement(_OPEN_WAITS, (run,))).rows:
        yield from supersede(wait)


def force_end(command: CancelProcess) -> Steps[Any]:
    """End a process whoever runs it: its owner's fence is stale from then on."""
    process = command.process_id
    concerned = yield from _concerned(process)
    waiting, attached = concerned
    known = (yield Statement(WHERE, (process,))).rows
    if not known:
        raise ProcessUnknown(process)
    run = known[0][1]
    yield from lock_runs([run, *(row[0] for row in waiting), *(row[1] for row in attached)])
    yield from end_waits(run)
    locked = yield from locked_process(process)
    if locked[3] != "open":
        return {"id": process}
    if locked[1] != run or (yield from _concerned(process)) != concerned:
        raise Again
    yield from _end(process, run, "forced", Aborted(command.reason), [row[0] for row in waiting])
    for child, _ in attached:
        yield from ask_cancel(child, "its parent ended")
    yield Notify(f"wake:{run}")
    return {"id": process}


def settle(fence: Fence, output: Output, token: str) -> Steps[None]:
    """End a process and its run, unless another owns it now."""
    process = fence.scope.id
    concerned = yield from _concerned(process)
    waiting, attached = concerned
    others = [*(row[0] for row in waiting), *(row[1] for row in attached)]
    locked = yield from lock_runs([fence.run, *others])
    if locked.get(fence.run) != fence.token:
        if (yield Statement(IS_SETTLED, (fence.run, token))).rows:
            return  # done by us already; the answer was lost
        raise LeaseLost(fence.name)
    yield from locked_process(process)
    if (yield from _concerned(process)) != concerned:
        raise Again
    yield from _end(process, fence.run, token, output, [row[0] for row in waiting])
    for child, _ in attached:
        yield from ask_cancel(child, "its parent ended")


def runs_concerned(process: str) -> Steps[list[int]]:
    """Return the runs that the end of a process touches: its own, who waits, what is attached."""
    waiting, attached = yield from _concerned(process)
    own = (yield Statement(WHERE, (process,))).rows
    return [row[1] for row in own] + [row[0] for row in waiting] + [row[1] for row in attached]


def _concerned(process: str) -> Steps[tuple[list[Any], list[Any]]]:
    """Return the runs that wait for a process, and its attached children with theirs."""
    waiting = (yield Statement(WAITING_RUNS, (f"process:{process}",))).rows
    return waiting, (yield Statement(ATTACHED, (process,))).rows


def _end(process: str, run: int, token: str, output: Output, waiting: Sequence[int]) -> Steps[None]:
    """Write the end of a process whose runs are locked, and wake who waits for it."""
    number, _, sequence, status, *_ = yield from locked_process(process)
    state = STATES[type(output)].value
    yield from release_slot(run)
    yield Statement(_SETTLE_RUN, (state, token, run))
    if status == "open":
        kind, payload = ending(output)
        yield Statement(_END, (state, write_payload(output, 2), process))
        yield Statement(
            ADD_EVENT, (number, sequence + 1, kind, write_payload(payload, 2), None, None)
        )
    for waiter in waiting:
        yield from wake_run(waiter)
    yield Notify(f"process:{process}")
