"""Every kind of change in the guide "Changing code", for runs of every kind, parked and killed: the table of outcomes.

No side effect happens twice, a run is in the state that the guide names, and the remedy finishes it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pylash import Lash
from pylash.durable.runs import RunState
from pylash.durable.scopes import ProcessScope
from pylash.stores.run_lists import RunRow
from pylash.stores.store import SqlStore
from tests.backends import Backend, eventually
from tests.forks import forked
from tests.replay.changed_apps import (
    TURN,
    Body,
    Cell,
    Change,
    Ledger,
    Shop,
    Work,
    adding,
    backwards,
    moved,
    renaming,
    with_currency,
    with_default,
    with_either,
    with_list,
    without,
)

# --- the code of processes ---


async def old(w: Work) -> Any:
    first, second = await w.step("load"), await w.step("charge", 7)
    await w.rest()
    return [first, second, await w.step("ship")]


async def renamed(w: Work) -> Any:
    first, second = await w.step("load"), await w.step("charge_card", 7)
    await w.rest()
    return [first, second, await w.step("ship")]


async def inserted(w: Work) -> Any:
    first = await w.step("load")
    await w.step("check")
    second = await w.step("charge", 7)
    await w.rest()
    return [first, second, await w.step("ship")]


async def inserted_patched(w: Work) -> Any:
    first = await w.step("load")
    if await w.ctx.patched("check"):
        await w.step("check")
    second = await w.step("charge", 7)
    await w.rest()
    return [first, second, await w.step("ship")]


async def inserted_behind(w: Work) -> Any:
    first, second = await w.step("load"), await w.step("charge", 7)
    await w.rest()
    await w.step("check")
    return [first, second, await w.step("ship")]


async def removed(w: Work) -> Any:
    second = await w.step("charge", 7)
    await w.rest()
    return [second, await w.step("ship")]


async def removed_rest(w: Work) -> Any:
    first, second = await w.step("load"), await w.step("charge", 7)
    return [first, second, await w.step("ship")]


async def removed_rest_patched(w: Work) -> Any:
    first, second = await w.step("load"), await w.step("charge", 7)
    if not await w.ctx.patched("at once"):
        await w.rest()
    return [first, second, await w.step("ship")]


async def swapped(w: Work) -> Any:
    second, first = await w.step("charge", 7), await w.step("load")
    await w.rest()
    return [first, second, await w.step("ship")]


async def swapped_new(w: Work) -> Any:
    first, third, second = await w.step("load"), await w.step("ship"), await w.step("charge", 7)
    await w.rest()
    return [first, second, third]


async def swapped_new_patched(w: Work) -> Any:
    return await (swapped_new(w) if await w.ctx.patched("ship first") else old(w))


async def other_argument(w: Work) -> Any:
    first, second = await w.step("load"), await w.step("charge", 8)
    await w.rest()
    return [first, second, await w.step("ship")]


async def other_argument_patched(w: Work) -> Any:
    first = await w.step("load")
    second = await w.step("charge", 8 if await w.ctx.patched("price") else 7)
    await w.rest()
    return [first, second, await w.step("ship")]


async def other_type(w: Work) -> Any:
    first, second = await w.step("load"), await w.step("charge", 7, returns=int)
    await w.rest()
    return [first, second, await w.step("ship")]


async def both_types(w: Work) -> Any:
    first, second = await w.step("load"), await w.step("charge", 7, returns=int | str)
    await w.rest()
    return [first, second, await w.step("ship")]


async def moved_steps(w: Work) -> Any:
    first = await w.step("load", module="shop.billing")
    second = await w.step("charge", 7, module="shop.billing")
    await w.rest()
    return [first, second, await w.step("ship", module="shop.billing")]


async def pays(w: Work) -> Any:
    first = await w.pay(cents=7)
    await w.rest()
    return [first, await w.step("ship")]


async def pays_in(w: Work) -> Any:
    first = await w.pay(cents=7, currency="EUR")
    await w.rest()
    return [first, await w.step("ship")]


async def pays_patched(w: Work) -> Any:
    return await (pays_in(w) if await w.ctx.patched("currency") else pays(w))


async def asks(w: Work) -> Any:
    first = await w.ask("Is it spam?")
    await w.rest()
    return [first, await w.ask("Sure?")]


async def asks_otherwise(w: Work) -> Any:
    first = await w.ask("Is this spam?")
    await w.rest()
    return [first, await w.ask("Sure?")]


async def asks_patched(w: Work) -> Any:
    return await (asks_otherwise(w) if await w.ctx.patched("prompt") else asks(w))


# --- the code of processes with an agent ---


async def serves(w: Any) -> Any:
    return await w.serve()


async def checks_and_serves(w: Any) -> Any:
    await w.step("check")
    return await w.serve()


async def checks_and_serves_patched(w: Any) -> Any:
    if await w.ctx.patched("check"):
        await w.step("check")
    return await w.serve()


async def serves_and_checks(w: Any) -> Any:
    served = await w.serve()
    await w.step("check")
    return served


async def serves_otherwise(w: Any) -> Any:
    return await w.serve("Go on")


async def serves_otherwise_patched(w: Any) -> Any:
    return await w.serve("Go on" if await w.ctx.patched("question") else "Go")


def change(
    new: Body = old, mended: Body = old, *, before: Body = old, agent: Any = (), **more: Any
) -> Change:
    return Change((before, new, mended), tuple(agent) or (serves, serves, serves), **more)


RENAMED = {"charge": "charge_card"}
CHANGES = {
    "rename": change(
        renamed,
        renamed,
        options={"renamed": RENAMED},
        tools=renaming("charge", "charge_card"),
    ),
    "rename_whole": change(
        renames_whole=True, options={"renamed": {"both": "all", "clerk": "waiter"}}
    ),
    "insert": change(
        inserted,
        inserted_patched,
        agent=(serves, checks_and_serves, checks_and_serves_patched),
        tools=adding,
        program=("load", "ship", "charge", "rest", "ship"),
    ),
    "insert_behind": change(
        inserted_behind,
        agent=(serves, serves_and_checks, serves),
        program=("load", "charge", "rest", "load", "ship"),
    ),
    "remove": change(
        removed,
        tools=without("load"),
    ),
    "remove_last": change(removed_rest, removed_rest_patched, tools=without("charge")),
    "swap": change(swapped, tools=backwards, program=("charge", "load", "rest", "ship")),
    "swap_new": change(
        swapped_new, swapped_new_patched, program=("load", "ship", "charge", "rest")
    ),
    "parameter": change(adds_parameter=True, tools=with_currency, mended_tools=with_default),
    "argument": change(
        other_argument,
        other_argument_patched,
        agent=(serves, serves_otherwise, serves_otherwise_patched),
    ),
    "type": change(other_type, both_types, tools=with_list, mended_tools=with_either),
    "schema": change(
        pays_in,
        pays_patched,
        before=pays,
        changes_pay=True,
        tools=with_default,
        mended_tools=with_default,
    ),
    "prompt": change(asks_otherwise, asks_patched, before=asks, prompt="Help more."),
    "model": change(asks, before=asks),
    "moved": change(moved_steps, tools=moved),
    "roll_back": change(
        old,
        inserted_patched,
        before=inserted_patched,
        agent=(checks_and_serves_patched, serves, checks_and_serves_patched),
    ),
}

# --- the table ---

RUNS = "runs"
DIVERGED = "effect_replay_diverged"
MISMATCH = "effect_replay_mismatch"
DATA = "process_data_invalid"
UNKNOWN = "unknown_target"
SURFACE = "process_surface_incompatible"
NO_TOOL = "turn_tool_missing"

DONE = ("load", "charge 7", "ship")
PAID = ("pay", "ship")
ASKED = ("one Is it spam?", "one Sure?")


class Row(NamedTuple):
    """What becomes of runs of one kind under a change: ``RUNS``, or the code of the error that blocks them.

    ``result`` is that of a run which the change does not block: None if it depends on the library of the agent. ``more``
    are side effects that the other runs do not have, ``less`` those that do not happen.
    """

    parked: str
    killed: str
    result: Sequence[str] | None = DONE
    more: Collection[str] = ()
    less: Collection[str] = ()


def row(outcome: str, killed: str = "", **more: Any) -> Row:
    return Row(outcome, killed or outcome, **more)


PYTHON = ("process", "gather", "child")


def python(one: Row) -> dict[str, Row]:
    return dict.fromkeys(PYTHON, one)


TABLE: dict[str, dict[str, Row | str]] = {
    "rename": {
        **python(row(DIVERGED)),
        "lashlang": row(SURFACE),
        # The reply that calls the tool is recorded, and so is the next request if the agent waits for an approval.
        "agent": row(RUNS, DIVERGED, result=None),
        "turn": row(NO_TOOL),
    },
    "rename_whole": {
        "process": row(UNKNOWN),
        "gather": row(DIVERGED),
        "child": row(UNKNOWN),
        "lashlang": row(RUNS),
        "agent": row(DIVERGED),
        "turn": "a turn has no name in the code: its session and its id are data",
    },
    "insert": {
        **python(row(DIVERGED)),
        "lashlang": row(RUNS),
        "agent": row(DIVERGED),
        "turn": row(RUNS),
    },
    "insert_behind": {
        **python(row(RUNS, more=["check"])),
        "lashlang": row(RUNS),
        "agent": row(RUNS, more=["check"]),
        "turn": "a turn has no code of its own behind its calls",
    },
    "remove": {
        **python(row(RUNS, result=DONE[1:])),
        "lashlang": row(SURFACE),
        "agent": row(RUNS, DIVERGED, result=None),
        "turn": row(RUNS),
    },
    "remove_last": {
        # A step in flight is not recorded, a wait is.
        **python(row(DIVERGED, RUNS)),
        "lashlang": row(SURFACE),
        "agent": row(RUNS, DIVERGED, result=None),
        "turn": row(NO_TOOL),
    },
    "swap": {
        **python(row(RUNS)),
        "lashlang": row(RUNS),
        "agent": row(RUNS),
        "turn": row(RUNS),
    },
    "swap_new": {
        **python(row(DIVERGED)),
        "lashlang": row(RUNS),
        "agent": "the model decides the order of its calls",
        "turn": "the model decides the order of its calls",
    },
    "parameter": {
        **python(row(DATA)),
        "lashlang": row(SURFACE),
        "agent": row(RUNS, DIVERGED, result=None),
        # Without an approval, the call in flight has no record: the model is told what is missing.
        "turn": row(DIVERGED, RUNS, result=None, less=["charge"]),
    },
    "argument": {
        **python(row(MISMATCH)),
        "lashlang": "the arguments of a call are part of the program: insert",
        "agent": row(MISMATCH),
        "turn": "the model decides the arguments of its calls",
    },
    "type": {
        **python(row(DATA)),
        "lashlang": row(SURFACE),
        "agent": row(RUNS, DIVERGED, result=None),
        "turn": row(DIVERGED, RUNS, result=None, less=["charge"]),
    },
    "schema": {
        **python(row(MISMATCH, result=PAID)),
        "lashlang": row(RUNS),
        "agent": row(RUNS),
        "turn": row(RUNS),
    },
    "prompt": {
        **python(row(MISMATCH, result=ASKED)),
        "lashlang": "a program asks no model",
        "agent": row(RUNS),
        "turn": row(RUNS),
    },
    "model": {
        **python(row(RUNS, result=ASKED)),
        "lashlang": "a program asks no model",
        "agent": row(RUNS),
        "turn": row(RUNS),
    },
    "moved": {
        **python(row(RUNS)),
        "lashlang": row(RUNS),
        "agent": row(RUNS),
        "turn": row(RUNS),
    },
    "roll_back": {
        **python(row(RUNS, more=["check"])),
        "lashlang": "a program has no patches: a run keeps the program that it was started with",
        # Everything recorded behind the inserted step is in the line of the agent, below that of the step.
        "agent": row(DIVERGED, more=["check"]),
        "turn": "a turn has no patches",
    },
}  # fmt: skip
"""Each change in the guide and each kind of run; a text is the reason why both together have no meaning."""

KINDS = (*PYTHON, "lashlang", "agent", "turn")
GROUPS = [
    pytest.param(("process", "gather", "child", "lashlang", "turn"), id="own"),
    pytest.param(("agent",), id="agents", marks=pytest.mark.slow),
]
REMEDIES = ("back", "mended")


def cells_of(kinds: Collection[str]) -> dict[Cell, Change]:
    """Return the cells of some kinds, each once for each remedy."""
    return {
        Cell(name, kind, remedy): CHANGES[name]
        for name, rows in TABLE.items()
        for kind, one in rows.items()
        if kind in kinds and isinstance(one, Row)
        for remedy in REMEDIES
    }


def row_of(cell: Cell) -> Row:
    """Return the row of a cell."""
    found = TABLE[cell.change][cell.kind]
    assert isinstance(found, Row)
    return found


def expected_result(cell: Cell, outcome: str) -> Any:
    """Return what the run of a cell must come to, None if it depends on a library."""
    given = row_of(cell).result
    if given is None and outcome != RUNS:
        given = DONE
    match cell.kind:
        case _ if given is None:
            return None
        case "gather":
            return [list(given), "beside"]
        case "child":
            return ["before", list(given), "after"]
        case "agent" | "turn":
            return " ".join(given)
        case _:
            return list(given)


def expected_lines(cell: Cell, outcome: str) -> set[str]:
    """Return the side effects that the run of a cell must have, calls of models aside."""
    given = row_of(cell)
    in_python = {"schema": PAID, "prompt": (), "model": ()}.get(cell.change, DONE)
    lines = {name.split()[0] for name in (in_python if cell.kind in PYTHON else DONE)}
    lines |= {"gather": {"beside"}, "child": {"before", "after"}}.get(cell.kind, set())
    return (lines | set(given.more)) - (set(given.less) if outcome == RUNS else set())


# --- deployments ---


async def record(url: str, path: str, kinds: Collection[str]) -> None:
    """Start the run of every cell, and hang: in a process that is killed."""
    ledger = Ledger(Path(path))
    shop = Shop(url, ledger, cells_of(kinds), version="old", is_killed=True, hangs=True)
    await shop.open()
    await shop.start_all()
    await asyncio.Event().wait()


async def killed(backend: Backend, folder: Path, kinds: Collection[str]) -> list[str]:
    """Run the old code in another process, and kill it in the middle of an effect of each run; return its ledger."""
    path, cells = folder / "ledger", cells_of(kinds)
    child = forked(folder / "printed", record, backend.url, str(path), kinds)
    held = {f"{cell.id} holding" for cell in cells}
    held |= {f"{cell.id} holding too" for cell in cells if cell.kind == "gather"}

    async def all_hang() -> bool:
        assert child.status is None, child.errors
        return path.exists() and held <= set(path.read_text().splitlines())

    try:
        await eventually(all_hang, 30)
    finally:
        await child.kill()
    return [line for line in path.read_text().splitlines() if line not in held]


async def parked(backend: Backend, folder: Path, kinds: Collection[str]) -> list[str]:
    """Run the old code until each run waits, and stop its worker; return its ledger."""
    cells = cells_of(kinds)
    shop = Shop(backend.url, Ledger(), cells, version="old", is_killed=False)
    await shop.open()
    await shop.start_all()

    async def all_wait() -> bool:
        return len(await shop.app.waits()) == len(cells)

    await eventually(all_wait, 30)
    await shop.app.close()
    return shop.ledger.lines


async def statuses(app: Lash) -> dict[str, RunRow]:
    """Return how each run stands, as ``pylash ps`` shows it; a turn by its session."""
    store = app.store
    assert isinstance(store, SqlStore)
    found = await store.inspection.runs(tuple(RunState), ("process", "turn"), 10_000)
    return {one.id.removesuffix(f"/{TURN}"): one for one in found}


async def answer(app: Lash) -> None:
    """Answer everything that runs wait for."""
    for wait in await app.waits():
        if wait.kind == "signal":
            assert isinstance(wait.name.scope, ProcessScope)
            await app.process_handle(wait.name.scope.id).signal("go", "go")
        else:
            await app.resolve(wait.key, True)


async def settled(app: Lash, ids: Collection[str]) -> dict[str, RunRow]:
    """Return how each run stands, once all have ended or are blocked, or if they do not in time."""

    async def stand() -> bool:
        found = await statuses(app)
        return all(found[one].status in ("completed", "failed", "blocked") for one in ids)

    with suppress(TimeoutError):
        await eventually(stand, 30)
    return await statuses(app)


async def outcomes(app: Lash, cells: Collection[Cell]) -> dict[Cell, str]:
    """Return what becomes of each run: ``RUNS`` if it completes, or why it does not."""
    found = await settled(app, [cell.changed for cell in cells])
    changed = {cell: found[cell.changed] for cell in cells}
    return {
        cell: RUNS if one.status == "completed" else (one.reason or one.status).partition(":")[0]
        for cell, one in changed.items()
    }


async def results(app: Lash, cells: Collection[Cell]) -> dict[Cell, Any]:
    """Continue what is blocked; return the result of each run, or why it has none."""
    for one in (await statuses(app)).values():
        if one.status == "blocked":
            await (app.retry(one.id) if one.session is None else app.session(one.session).retry())
    stand = await settled(app, [cell.id for cell in cells])
    return {cell: await result_of(app, cell, stand[cell.id]) for cell in cells}


async def result_of(app: Lash, cell: Cell, stands: RunRow) -> Any:
    """Return the result of a run, or why it has none."""
    if stands.status != "completed":
        return f"{stands.status}: {stands.reason}"
    if cell.kind == "turn":
        return (await app.session(cell.id).turn(cell.id, turn_id=TURN)).text
    return await app.process_handle(cell.id).result()


@pytest.fixture
def libraries(kinds: Collection[str]) -> None:
    """Import the libraries of agents: not while a loop runs, because they read files."""
    if "agent" in kinds:
        import_module("tests.replay.changed_agents")
        import_module("pydantic_ai.mcp")


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("kinds", GROUPS)
@pytest.mark.parametrize("stop", [parked, killed], ids=lambda stop: stop.__name__)
async def test_a_change_has_the_outcome_of_the_guide(
    durable: Backend, tmp_path: Path, stop: Any, kinds: Collection[str]
) -> None:
    cells, is_killed = cells_of(kinds), stop is killed
    lines = list(await stop(durable, tmp_path, kinds))

    changed = Shop(durable.url, Ledger(), cells, version="new", is_killed=is_killed)
    await changed.open()
    await answer(changed.app)
    found = await outcomes(changed.app, cells)
    await changed.app.close()
    mended = Shop(durable.url, Ledger(), cells, version="remedy", is_killed=is_killed)
    await mended.open()
    ended = await results(mended.app, cells)
    await mended.app.close()

    counts = Counter(lines + changed.ledger.lines + mended.ledger.lines)
    wrong = [f"{line} was done {count} times" for line, count in counts.items() if count > 1]
    for cell in cells:
        wanted = row_of(cell).killed if is_killed else row_of(cell).parked
        done = {line.partition(" ")[2] for line in counts if line.partition(" ")[0] == cell.id}
        done = {name for name in done if not name.startswith("model")}
        result = expected_result(cell, wanted)
        if found[cell] != wanted:
            wrong.append(f"{cell.id}: {found[cell]} instead of {wanted}")
        if result not in (None, ended[cell]):
            wrong.append(f"{cell.id}: came to {ended[cell]} instead of {result}")
        if done != (effects := expected_lines(cell, wanted)):
            wrong.append(f"{cell.id}: did {sorted(done)} instead of {sorted(effects)}")
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def test_the_table_has_every_change_of_every_kind() -> None:
    assert set(TABLE) == set(CHANGES)
    assert set(map(frozenset, TABLE.values())) == {frozenset(KINDS)}
