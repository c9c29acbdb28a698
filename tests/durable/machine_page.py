"""The parts of docs/internals/run-machine.md that are generated from the code.

``python -m tests.durable.machine_page`` updates them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import getdoc
from itertools import product
from pathlib import Path
from typing import Final, get_args

from pylash.durable.machines.run_decisions import Decision
from pylash.durable.machines.run_state import Phase
from pylash.durable.machines.run_table import TABLE, Cell
from pylash.durable.machines.worker_machine import WORKER_FACTS, WorkerDecision, WorkerPhase

PAGE: Final = Path(__file__).parents[2] / "docs" / "internals" / "run-machine.md"


def draw_diagram() -> str:
    """Return the phases, and the facts that lead from one to another."""
    moves: dict[tuple[Phase, Phase], list[str]] = {}
    for fact, cells in TABLE.items():
        for phase, cell in cells.items():
            for after in cell.phases - {phase}:
                moves.setdefault((phase, after), []).append(fact)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> starting"]
    for phase, after in product(Phase, Phase):
        if facts := moves.get((phase, after)):
            lines.append(f"    {phase} --> {after}: {', '.join(facts)}")
    return "\n".join([*lines, "    gone --> [*]", "```"])


def draw_phases() -> str:
    """Return which fact is possible in which phase, and which phases may come."""
    rows = [
        [f"`{fact}`", *(_next_phases(cells, phase) for phase in Phase)]
        for fact, cells in TABLE.items()
    ]
    return _table(["fact", *Phase], rows)


def _next_phases(cells: Mapping[Phase, Cell], phase: Phase) -> str:
    cell = cells.get(phase)
    if cell is None:
        return "✗"
    coming = [after.value for after in Phase if after in cell.phases and after is not phase]
    stays = ("·" if cell.decisions else "-") if phase in cell.phases else ""
    return " ".join(filter(None, [stays, "→ " + ", ".join(coming) if coming else ""]))


def draw_decisions() -> str:
    """Return what may be decided on a fact, phase by phase."""
    order = [kind.__name__ for kind in get_args(Decision)]
    rows = []
    for fact, cells in TABLE.items():
        together: dict[frozenset[str], list[str]] = {}
        for phase, cell in cells.items():
            if cell.decisions:
                together.setdefault(cell.decisions, []).append(phase.value)
        for decisions, phases in together.items():
            names = ", ".join(name for name in order if name in decisions)
            rows.append([f"`{fact}`", ", ".join(phases), names])
    return _table(["fact", "in", "may be followed by"], rows)


def draw_meanings() -> str:
    """Return what the driver does on each decision."""
    return _table(["decision", "what the driver does"], _meanings(Decision))


def draw_worker() -> str:
    """Return the facts of a worker and its decisions."""
    rows = [
        [f"`{fact}`", *("·" if phase in phases else "✗" for phase in WorkerPhase)]
        for fact, phases in WORKER_FACTS.items()
    ]
    meanings = _table(["decision", "what the driver does"], _meanings(WorkerDecision))
    return _table(["fact", *WorkerPhase], rows) + "\n\n" + meanings


def _meanings(union: object) -> list[list[str]]:
    return [[f"`{kind.__name__}`", _first_paragraph(kind)] for kind in get_args(union)]


def _first_paragraph(kind: type) -> str:
    text = (getdoc(kind) or "").partition("\n\n")[0]
    return " ".join(text.replace("``", "`").split())


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "diagram": draw_diagram,
    "phases": draw_phases,
    "decisions": draw_decisions,
    "meanings": draw_meanings,
    "worker": draw_worker,
}


def with_parts(page: str) -> str:
    """Return the page with its parts drawn again."""
    for name, draw in PARTS.items():
        before, begin, rest = page.partition(f"<!-- drawn: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert begin, name
        assert end, name
        page = f"{before}{begin}{draw()}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_parts(PAGE.read_text()))
