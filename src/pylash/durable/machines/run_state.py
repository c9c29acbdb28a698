"""The state of a run in memory.

Rule 1. Nothing outside this package changes a field below; the driver only makes Branch, SideCall and Group objects
        and hands them to the machine.
Rule 2. ``MachineState.busy`` and ``EffectTable.working`` are updated with every state change and never recomputed: a scan
        per fact would be quadratic in a gather of thousands. The tests compare both with a scan.
Rule 3. A caller becomes READY, which counts as busy, in the same state change that gives it its result. So a run is
        never idle between a result and the moment its task continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Final

import msgspec

from pylash.durable.machines.effect_table import QUEUED, Effect, EffectTable


class Phase(StrEnum):
    """The phase of a run in memory."""

    STARTING = "starting"
    """Leased; its code has not started."""
    RUNNING = "running"
    IDLE = "idle"
    """Everything waits, and the run holds no slot."""
    PARKING = "parking"
    """The write that parks it is in progress; no caller continues meanwhile."""
    DETACHED = "detached"
    """The execution was given up and records nothing more; its code may still unwind."""
    ENDING = "ending"
    """The last write is in progress."""
    GONE = "gone"


class DetachReason(StrEnum):
    """Why a run was detached; determines its last write."""

    PARKED = "parked"
    LEASE_LOST = "lease_lost"
    CANNOT_REPLAY = "cannot_replay"
    NOT_HERE = "not_here"
    """A tool or the model of a turn is missing on this worker."""
    STORE_AWAY = "store_away"
    RELEASED = "released"
    """The worker closes, or the task was cancelled from outside."""


class LastWrite(StrEnum):
    """The write that ends an execution."""

    SETTLE = "settle"
    COMMIT = "commit"
    CONTINUE = "continue"
    BLOCK = "block"
    GIVE_UP = "give_up"
    """Settle a turn as cancelled, without the messages it wrote."""
    POSTPONE = "postpone"
    """Release it for a later attempt: an operation of the store failed."""
    RELEASE = "release"


class WriteAnswer(StrEnum):
    """The result of the last write."""

    WRITTEN = "written"
    NOT_OURS = "not_ours"
    """The lease is lost, or the worker closed before the store answered: another worker continues the run."""
    REFUSED = "refused"
    """The store refuses this write permanently."""


class ParkAnswer(StrEnum):
    """The result of the write that parks; a lost lease is reported as trouble."""

    PARKED = "parked"
    WOKEN = "woken"
    """The run was woken since it last read its wake_seq."""
    STORE_AWAY = "store_away"


class CodeEnd(StrEnum):
    """How the code of a run ended."""

    FINISHED = "finished"
    """It returned or raised, possibly because a cancel of the run reached it."""
    CONTINUED = "continued"
    """It continues as a new epoch."""
    STOPPED = "stopped"
    """Its task was cancelled from outside."""


class Slot(StrEnum):
    """The run's slot of its worker; slots of concurrency keys are another thing, in the store."""

    HELD = "held"
    NONE = "none"
    REQUESTED = "requested"


class CancelState(StrEnum):
    """How far the cancel of the whole run has come."""

    NONE = "none"
    NOTED = "noted"
    """It is raised in the root at its next new effect."""
    DELIVERED = "delivered"


class Recorded(Enum):
    """What is recorded under the key of an effect."""

    NOTHING = "nothing"
    """No outcome: it is new, or its wait is open."""
    OUTCOME = "outcome"
    """An outcome that is in memory."""
    CANCELLED = "cancelled"
    """A cancel that is in memory."""
    ELSEWHERE = "elsewhere"
    """An outcome that must be fetched, or a sleep whose end has passed."""


class At(Enum):
    """Where a caller is."""

    CODE = "code"
    READY = "ready"
    """Its result is available, and it waits at the gate."""
    EFFECT = "effect"
    JOIN = "join"
    HELD = "held"
    """It may not start an effect before a cancel is passed on to it, or recorded for it."""
    WITHDRAW = "withdraw"
    """Its cancel is being recorded at an effect that has not started."""
    DONE = "done"


CODE: Final = At.CODE
READY: Final = At.READY
EFFECT: Final = At.EFFECT
JOIN: Final = At.JOIN
HELD: Final = At.HELD
WITHDRAW: Final = At.WITHDRAW
DONE: Final = At.DONE

# --- branches ---


class Branch(msgspec.Struct, eq=False):
    """One task of a run, and where it is. The root's name is empty, and it is in no group."""

    name: str = ""
    group: Group | None = None
    at: At = CODE
    # The number of its last request among all requests of the run: branches continue in this order.
    request: int = 0
    key: str = ""
    # What it waits for, at EFFECT; at WITHDRAW, the effect of its key that others have in flight.
    effect: Effect | None = None
    # What it joins. A branch that polls its group counts as joining it until it does something else.
    join: Join | None = None
    # At JOIN, a branch that another branch has forked, if it waits for one of those instead.
    awaits: Branch | None = None
    # The branches that wait for this one in that way.
    awaited_by: dict[Branch, None] = {}
    # Calls of other tasks in its code that wait: at EFFECT or HELD.
    calls: dict[SideCall, None] = {}
    # How many of ``calls`` excuse it: it is taken to wait for those tasks.
    asides: int = 0
    # It has left CODE since its first aside, so its asides no longer excuse it.
    mixed: bool = False
    # How many of its calls, its own included, are at HELD.
    held: int = 0
    # A recorded cancel that has not reached its code yet.
    cancelling: bool = False
    # How often its code was refused since the run was closed.
    refusals: int = 0

    @property
    def owner(self) -> Branch:
        """The branch itself; see SideCall.owner."""
        return self

    @property
    def is_busy(self) -> bool:
        """Whether its code may be running. HELD counts as busy: the run must not be idle."""
        at = self.at
        if at is CODE:
            return not (self.asides and not self.mixed)
        if at is JOIN:
            return self.join is not None and self.join.is_beside
        return at is READY or at is HELD or at is WITHDRAW

    @property
    def is_joined(self) -> bool:
        """Whether the condition of its join is met."""
        if self.awaits is not None:
            return self.awaits.at is DONE
        join = self.join
        if join is None or not join.group.open:
            return True
        if join.one is not None:
            return join.one.at is DONE
        return join.after is not None and len(join.group.ended) > join.after

    def joins(self, group: Group) -> bool:
        """Return whether it joins a group, or one branch of it."""
        return self.join is not None and self.join.group is group

    @property
    def parent(self) -> Branch | None:
        """The branch that forked it."""
        return None if self.group is None else self.group.parent


class SideCall(msgspec.Struct, eq=False):
    """One call of a task other than a branch, in the code of its owner.

    ``excuses``: a library has declared that the owner waits for that task. Otherwise user code started the task.
    Such a call is never held or withdrawn, and keeps the run busy through its owner.
    """

    owner: Branch
    excuses: bool = True
    at: At = CODE
    request: int = 0
    key: str = ""
    effect: Effect | None = None


class Group(msgspec.Struct, eq=False):
    """Branches that one branch forked together under a key."""

    key: str
    parent: Branch
    # Its branches that have not ended, in the order of their start.
    open: dict[Branch, None] = {}
    # Those that have ended, in the order of their ends.
    ended: list[Branch] = []
    # Branches that did not wait when ``waits`` in run_cancels last checked the group.
    suspects: list[Branch] = []


class Join(msgspec.Struct, frozen=True):
    """What a branch waits for at JOIN: all of a group that it has forked, unless a field says otherwise."""

    group: Group
    # The only branch it waits for.
    one: Branch | None = None
    # It waits until more than this many branches of the group have ended.
    after: int | None = None
    # Another task of user code joins for the branch, whose own code may run meanwhile: it counts as busy at JOIN, too.
    is_beside: bool = False


Caller = Branch | SideCall

# --- the state ---


class RunConfig(msgspec.Struct, frozen=True):
    """What does not change while a run is executed."""

    # False for a host without a record: the run is never idle, and cancels go through tasks.
    is_durable: bool = True
    # The host performs one effect at a time.
    is_serial: bool = False
    is_turn: bool = False
    # It has a concurrency key.
    parks_at_once: bool = False
    deadline: int | None = None
    # The cancel was raised in an earlier epoch: it is never delivered again.
    heard_before: bool = False


class RecordedCancel(msgspec.Struct, frozen=True):
    """The content of a recorded delivery."""

    cancelled: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    @staticmethod
    def of(decision: Mapping[str, Any] | None) -> RecordedCancel | None:
        """Return the cancels in a recorded decision."""
        if decision is None:
            return None
        return RecordedCancel(frozenset(decision["cancelled"]), frozenset(decision["groups"]))


class Delivery(msgspec.Struct):
    """A delivery that is being written."""

    effects: tuple[Effect, ...]
    leaves: tuple[Branch, ...]
    groups: frozenset[Group]


class Ending(msgspec.Struct):
    """The progress of the end of an execution."""

    reason: DetachReason | None = None
    last_write: LastWrite | None = None
    # The outcome of the code could not be written, so a failure is written instead.
    is_refused: bool = False


class Cancels:
    """The cancels of a run that are requested, being written, or recorded."""

    __slots__ = (
        "deliveries",
        "flagged",
        "held",
        "interrupted",
        "is_asked",
        "is_remembered",
        "passed_on",
        "pressing",
        "recheck",
    )

    def __init__(self) -> None:
        # The cancel of the whole run was noted or delivered.
        self.is_asked = False
        # It came while the run was being parked.
        self.is_remembered = False
        self.deliveries: dict[str, Delivery] = {}
        # Names of branches that are cancelled according to the record; a branch takes its flag when it is forked.
        self.flagged: set[str] = set()
        # Keys of groups whose join ends with a cancel, whatever the outcomes of their branches.
        self.interrupted: set[str] = set()
        # Keys of groups to which the cancel of their parent was passed on, now or before.
        self.passed_on: set[str] = set()
        # Cancelling branches that join: their cancel is passed on when they are at JOIN and all below wait.
        self.pressing: dict[Branch, None] = {}
        self.held: dict[Caller, None] = {}
        # Some of ``held`` may repeat their requests: a cancel above them is gone, or a delivery was acknowledged.
        self.recheck = False


class MachineState:
    """The state of a run in memory: what its machine knows. ``durable.runs.RunState`` is the state of its row."""

    __slots__ = (
        "awaiting",
        "busy",
        "cancels",
        "closed",
        "config",
        "effects",
        "ending",
        "legal",
        "line",
        "phase",
        "ready",
        "requests",
        "root",
        "slot",
    )

    def __init__(self, config: RunConfig, root: Branch) -> None:
        self.config = config
        self.phase = Phase.STARTING
        # The facts that are possible in this phase.
        self.legal: frozenset[str] = frozenset()
        # Whether it is detached, ending or gone: the code gets no more results.
        self.closed = False
        self.ending = Ending()
        self.slot = Slot.HELD
        self.root = root
        # How many branches are busy, and side calls at READY, HELD or WITHDRAW. At first it is the root alone.
        self.busy = 1
        self.effects = EffectTable()
        # Callers at the gate.
        self.ready: list[Caller] = []
        # On a serial host: the effect that is performed, then those that wait for it. Some may have left the table.
        self.line: deque[Effect] = deque()
        self.cancels = Cancels()
        # The number of requests so far; see Branch.request.
        self.requests = 0
        # The branches that wait for one of another group.
        self.awaiting: dict[Branch, None] = {}

    @property
    def has_turn(self) -> bool:
        """Whether the first effect in the queue may start: no other is performed, and no cancel of it is being decided."""
        return bool(self.line) and self.line[0].state is QUEUED and self.line[0].verdict is None

    @property
    def is_waiting(self) -> bool:
        """Whether the run only waits.

        A requested slot counts as work, so that it is never granted to an idle run.
        """
        if (
            self.busy
            or self.effects.working
            or self.slot is Slot.REQUESTED
            or (self.line and self.has_turn)
        ):
            return False
        return bool(self.effects.in_flight) and not self.cancels.deliveries

    @property
    def is_quiet(self) -> bool:
        """Whether the run is idle, apart from its phase."""
        return self.is_waiting and self.config.is_durable
