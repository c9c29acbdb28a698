"""Which facts are possible in which phase of a run, and what may follow: the table that the machine follows.

A fact without a cell in a phase is impossible there: the machine raises ImpossibleFact, a defect of the driver that
blocks only its run. The tests compare random walks with the cells, and docs/internals/run-machine.md is generated from
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from pylash.durable.machines.run_state import Phase

STARTING, RUNNING, IDLE, PARKING = Phase.STARTING, Phase.RUNNING, Phase.IDLE, Phase.PARKING
DETACHED, ENDING, GONE = Phase.DETACHED, Phase.ENDING, Phase.GONE


class Cell(msgspec.Struct, frozen=True):
    """What may follow from a fact: names of decisions, and phases."""

    decisions: frozenset[str]
    phases: frozenset[Phase]


def cell(decisions: str = "", *phases: Phase) -> Cell:
    """Return a cell for decisions in one string, and the phases that may follow."""
    return Cell(frozenset(decisions.split()), frozenset(phases))


def ignored(*phases: Phase) -> dict[Phase, Cell]:
    """Return cells for phases in which a fact leads to no decision and no other phase."""
    return {phase: cell("", phase) for phase in phases}


def refused(*phases: Phase) -> dict[Phase, Cell]:
    """Return cells for phases in which code is refused."""
    return {phase: cell("Refuse Hang", phase) for phase in phases}


OUT: Final = (DETACHED, ENDING, GONE)
"""The phases in which the execution records nothing more."""
IDLENESS: Final = " BecomeIdle GiveSlot"
GATE: Final = " GoOn TakeSlot" + IDLENESS
"""What follows when a caller gets its result: it continues, or a slot is requested. Others may excuse it."""
CANCELS: Final = " Deliver Perform Queue Share Withdraw RaiseCancelled"
"""What follows when a branch starts to wait below a cancel: the cancel is passed on, held calls repeat their requests,
or a branch that awaits this one is cancelled itself."""
CLOSE: Final = "Detach BreakOff Refuse"

TABLE: Final[Mapping[str, Mapping[Phase, Cell]]] = {
    "begin": {STARTING: cell("", RUNNING)},
    "enter": {
        RUNNING: cell("TakeSlot", RUNNING),
        IDLE: cell("BecomeBusy TakeSlot", RUNNING),
        PARKING: cell("", PARKING),
        **refused(*OUT),
    },
    "ask": {
        RUNNING: cell("Hold" + CANCELS + GATE, RUNNING, IDLE),
        **refused(*OUT),
    },
    "ask_aside": {
        RUNNING: cell("Replay RaiseCancelled Hold" + CANCELS + GATE, RUNNING, IDLE),
        IDLE: cell(
            "Replay RaiseCancelled Perform Queue Share Withdraw BecomeBusy TakeSlot", RUNNING, IDLE
        ),
        PARKING: cell("Replay RaiseCancelled Perform Queue Share Withdraw", PARKING),
        **refused(*OUT),
    },
    "replay": {RUNNING: cell(CANCELS + GATE, RUNNING, IDLE), **ignored(*OUT)},
    "withdrawn": {
        RUNNING: cell("RaiseCancelled StopWork Answer" + CANCELS + GATE, RUNNING, IDLE),
        PARKING: cell("RaiseCancelled StopWork Answer Perform Queue Share", PARKING),
        **ignored(*OUT),
    },
    "recording": {RUNNING: cell("", RUNNING), **ignored(PARKING, *OUT)},
    "rest": {RUNNING: cell(CANCELS + GATE, RUNNING, IDLE), **ignored(PARKING, *OUT)},
    "stir": {
        RUNNING: cell("", RUNNING),
        IDLE: cell("BecomeBusy", RUNNING),
        **ignored(PARKING, *OUT),
    },
    "land": {
        RUNNING: cell("Answer RaiseCancelled" + CANCELS + GATE, RUNNING, IDLE),
        IDLE: cell("Answer RaiseCancelled BecomeBusy TakeSlot", RUNNING),
        PARKING: cell("Answer RaiseCancelled", PARKING),
        **ignored(*OUT),
    },
    "leave": {
        RUNNING: cell("StopWork Answer RaiseCancelled" + CANCELS + GATE, RUNNING, IDLE),
        IDLE: cell("StopWork BecomeBusy TakeSlot", RUNNING),
        PARKING: cell("StopWork Answer RaiseCancelled", PARKING),
        **ignored(*OUT),
    },
    "open_group": {RUNNING: cell("", RUNNING), **ignored(IDLE, PARKING, *OUT)},
    "fork": {
        RUNNING: cell("TakeSlot", RUNNING),
        IDLE: cell("BecomeBusy TakeSlot", RUNNING),
        **ignored(PARKING, *OUT),
    },
    "join": {
        RUNNING: cell(CANCELS + GATE, RUNNING, IDLE),
        **refused(*OUT),
    },
    "await_branch": {
        RUNNING: cell(CANCELS + GATE, RUNNING, IDLE),
        **refused(*OUT),
    },
    "hear_cancel": {
        RUNNING: cell(CANCELS + GATE, RUNNING, IDLE),
        **ignored(IDLE, PARKING, *OUT),
    },
    "branch_ended": {
        RUNNING: cell(CANCELS + GATE, RUNNING, IDLE),
        IDLE: cell("BecomeBusy TakeSlot", RUNNING, IDLE),
        **ignored(PARKING, *OUT),
    },
    "decide": {
        RUNNING: cell("Deliver", RUNNING),
        IDLE: cell("Deliver BecomeBusy", RUNNING),
        **refused(*OUT),
    },
    "cancel_seen": {
        RUNNING: cell("Deliver", RUNNING),
        IDLE: cell("Deliver BecomeBusy", RUNNING, IDLE),
        **ignored(STARTING, PARKING, *OUT),
    },
    "hold_over": {
        RUNNING: cell(CANCELS + GATE, RUNNING, IDLE),
        **ignored(STARTING, IDLE, PARKING, *OUT),
    },
    "delivered": {
        RUNNING: cell("RaiseCancelled StopWork Answer" + CANCELS + GATE, RUNNING, IDLE),
        **ignored(*OUT),
    },
    "slot_granted": {
        RUNNING: cell("Perform GoOn" + IDLENESS, RUNNING, IDLE),
        **{phase: cell("GiveSlot", phase) for phase in OUT},
    },
    "woken": {
        **{phase: cell("LookAgain", phase) for phase in (STARTING, RUNNING, IDLE, PARKING)},
        **ignored(*OUT),
    },
    "looked": ignored(*Phase),
    "park_due": {IDLE: cell("Park", PARKING), **ignored(STARTING, RUNNING, PARKING, *OUT)},
    "park_answered": {
        PARKING: cell(
            f"LookAgain BecomeIdle BecomeBusy TakeSlot Deliver Perform {CLOSE}",
            IDLE,
            RUNNING,
            DETACHED,
        ),
        **ignored(*OUT),
    },
    "trouble": {
        STARTING: cell("Detach", DETACHED),
        RUNNING: cell(CLOSE, DETACHED),
        IDLE: cell("Detach BreakOff", DETACHED),
        PARKING: cell(CLOSE, DETACHED),
        **ignored(*OUT),
    },
    "deadline_passed": {
        **{phase: cell("AskCancel", phase) for phase in (RUNNING, IDLE, PARKING)},
        **ignored(STARTING, *OUT),
    },
    "code_ended": {
        RUNNING: cell(f"{CLOSE} Write", ENDING),
        DETACHED: cell("Write Forget GiveSlot", ENDING, GONE),
    },
    "written": {ENDING: cell("Write Forget GiveSlot", ENDING, GONE)},
}
"""By fact, then by phase. A phase that is not there makes the fact impossible."""

LEGAL: Final[Mapping[Phase, frozenset[str]]] = {
    phase: frozenset(fact for fact, cells in TABLE.items() if phase in cells) for phase in Phase
}
"""The facts that are possible in a phase."""


class ImpossibleFact(RuntimeError):
    """The driver reported a fact to the machine that cannot have happened."""

    def __init__(self, phase: Phase, fact: str, detail: str = "") -> None:
        self.phase = phase
        self.fact = fact
        where = f"{phase} ({detail})" if detail else str(phase)
        super().__init__(f"Impossible fact {fact!r} of a run that is {where}: the driver is wrong.")
