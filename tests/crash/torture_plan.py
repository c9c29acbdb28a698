"""What the processes of the torture do: plans from a seed, and a model that says how each may end.

A plan is data. The workers interpret it durably, the model in memory; both must come to the same.
"""

from __future__ import annotations

import random  # noqa: TID251 - plans come from a seed
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

NEVER = 99
"""A step that fails so often never succeeds."""


Cancel = Literal["no", "ask", "force"]
"""Whether, and how, a process is cancelled."""


class Op(msgspec.Struct, kw_only=True, tag=True, frozen=True):
    """One thing a process does; ``at`` names it, once in the process."""

    at: str


class Step(Op, frozen=True):
    """A step that takes some time, and fails so many times before it succeeds."""

    ms: int = 0
    fails: int = 0
    retries: int = 0
    thread: bool = False
    hangs: bool = False


class Stamp(Op, frozen=True):
    """A step of the time, a number and a name that must be the same on every replay."""


class Sleep(Op, frozen=True):
    """A sleep."""

    ms: int


class Signal(Op, frozen=True):
    """The next signal of a name; with ``ms`` it is waited for in short waits, one after another."""

    name: str
    ms: int | None = None


class Wait(Op, frozen=True):
    """A custom wait that somebody answers, with a refusal or not; with ``ms`` it may end before."""

    answer: Literal["yes", "refused"] = "yes"
    ms: int | None = None


class Emit(Op, frozen=True):
    """An event."""


class Raise(Op, frozen=True):
    """A failure of the program."""


class Child(Op, frozen=True):
    """A process of this one; awaited, or left to itself."""

    plan: Plan
    attached: bool
    awaited: bool


class Gather(Op, frozen=True):
    """Blocks at once."""

    blocks: list[Block]


class Race(Op, frozen=True):
    """Blocks at once, until the first ends."""

    blocks: list[Block]


class Group(Op, frozen=True):
    """Blocks in a task group, whose body is a block too."""

    blocks: list[Block]
    body: Block


AnyOp = Step | Stamp | Sleep | Signal | Wait | Emit | Raise | Child | Gather | Race | Group


class Block(msgspec.Struct, frozen=True):
    """Things done in order; whatever happens, a step cleans up after them."""

    at: str
    ops: list[AnyOp]
    cleans: bool = True

    @property
    def cleanup(self) -> str:
        """The name of the step that cleans up."""
        return f"{self.at}.clean"


Kind = Literal["plain", "narrow", "brief"]


class Plan(msgspec.Struct, frozen=True):
    """A process: blocks that continue each other, and what is done to it from outside.

    ``brief`` ones wait for what never comes, and their time is over; of ``narrow`` ones only a few
    execute at once.
    """

    epochs: list[Block]
    kind: Kind = "plain"
    cancel: Cancel = "no"
    cancel_after: float = 0.0


# --- making plans ---


class Maker:
    """Makes plans from dice."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self._names = 0

    def plan(self, depth: int = 0) -> Plan:
        dice = self.dice
        self._names, saved = 0, self._names
        kind: Kind = dice.choices(("plain", "narrow", "brief"), (85, 10, 5))[0]
        epochs = [self._epoch(depth) for _ in range(dice.choices((1, 2, 3), (80, 15, 5))[0])]
        last = epochs[-1].ops
        if kind == "brief":
            last.append(Signal(at=self._at("never"), name="never"))
        elif dice.random() < 0.06:
            last.append(Raise(at=self._at("raise")))
        ways: tuple[Cancel, ...] = ("no", "ask", "force")
        cancel = dice.choices(ways, (70, 25, 5))[0]
        self._names = saved
        return Plan(epochs, kind, cancel if kind != "brief" else "no", dice.uniform(0, 1.5))

    def _at(self, what: str) -> str:
        self._names += 1
        return f"{what}-{self._names}"

    def _epoch(self, depth: int) -> Block:
        ops = [self._op(depth, 0, "main") for _ in range(self.dice.randint(2, 5))]
        return Block(self._at("epoch"), ops)

    def _block(self, depth: int, nesting: int, fails: bool = False) -> Block:
        at = self._at("block")
        ops = [self._op(depth, nesting + 1, at) for _ in range(self.dice.randint(1, 3))]
        if fails:
            ops.append(Raise(at=self._at("raise")))
        return Block(at, ops, cleans=self.dice.random() < 0.6)

    def _op(self, depth: int, nesting: int, signals: str) -> AnyOp:
        dice = self.dice
        simple = ("step", "sleep", "signal", "wait", "emit", "stamp")
        weights = [30, 18, 14, 8, 10, 8]
        kinds = [*simple]
        if nesting < 2:
            kinds += ["gather", "race", "group"]
            weights += [7, 8, 6]
        if depth < 3:
            kinds.append("child")
            weights.append(12 >> 2 * depth if nesting == 0 else 3 >> depth)
        kind = dice.choices(kinds, weights)[0]
        if kind == "signal":
            return Signal(
                at=self._at("signal"), name=signals, ms=dice.choice((None, None, 40, 120))
            )
        return self._leaf(kind) if kind in simple else self._tree(kind, depth, nesting)

    def _leaf(self, kind: str) -> AnyOp:
        dice, at = self.dice, self._at(kind)
        match kind:
            case "step":
                how = dice.choices(
                    ("quick", "slow", "retried", "failing", "hanging"), (40, 30, 15, 10, 5)
                )
                return self._step(how[0], at)
            case "sleep":
                return Sleep(at=at, ms=dice.choice((1, 5, 20, 60, 150, 400)))
            case "wait":
                answer: Any = dice.choices(("yes", "refused"), (80, 20))[0]
                return Wait(at=at, answer=answer, ms=dice.choice((None, None, 150)))
            case "emit":
                return Emit(at=at)
            case _:
                return Stamp(at=at)

    def _step(self, how: str, at: str) -> Step:
        dice = self.dice
        thread, ms = dice.random() < 0.2, dice.choice((0, 1, 5))
        match how:
            case "slow":
                return Step(at=at, ms=dice.choice((20, 60, 120)), thread=thread)
            case "retried":
                fails = dice.randint(1, 2)
                return Step(at=at, ms=ms, fails=fails, retries=fails + 1, thread=thread)
            case "failing":
                return Step(at=at, ms=ms, fails=NEVER, retries=dice.choice((0, 0, 2)))
            case "hanging":
                return Step(at=at, hangs=True)
            case _:
                return Step(at=at, ms=ms, thread=thread)

    def _tree(self, kind: str, depth: int, nesting: int) -> AnyOp:
        dice, at = self.dice, self._at(kind)
        if kind == "child":
            child = self.plan(depth + 1)
            return Child(
                at=at, plan=child, attached=dice.random() < 0.5, awaited=dice.random() < 0.7
            )
        fails = kind != "race" and dice.random() < 0.25
        blocks = [self._block(depth, nesting) for _ in range(dice.randint(1, 3))]
        if fails:
            blocks.append(self._block(depth, nesting, fails=True))
        if kind == "race":
            return Race(at=at, blocks=blocks)
        if kind == "gather":
            return Gather(at=at, blocks=blocks)
        return Group(at=at, blocks=blocks, body=self._block(depth, nesting))


def plans(seed: int, count: int) -> dict[str, Plan]:
    """Return processes by their ids."""
    maker = Maker(random.Random(seed))
    return {f"p{number}": maker.plan() for number in range(count)}


# --- looking at plans ---


def child_id(process: str, at: str) -> str:
    """Return the id of the process that op ``at`` of a process starts."""
    return f"{process}.{at}"


def blocks_of(op: AnyOp) -> list[Block]:
    """Return the blocks inside an op."""
    match op:
        case Gather(blocks=blocks) | Race(blocks=blocks):
            return blocks
        case Group(blocks=blocks, body=body):
            return [*blocks, body]
        case _:
            return []


def all_blocks(plan: Plan) -> Iterator[Block]:
    """Give every block of a process, outer ones first."""
    for epoch in plan.epochs:
        yield from _nested(epoch)


def _nested(block: Block) -> Iterator[Block]:
    yield block
    for op in block.ops:
        for inner in blocks_of(op):
            yield from _nested(inner)


def names_in(block: Block) -> set[str]:
    """Return the names of everything that happens in a block."""
    names = set()
    for inner in _nested(block):
        names.add(inner.cleanup)
        names.update(op.at for op in inner.ops)
    return names


def ops_of(plan: Plan) -> Iterator[AnyOp]:
    """Give every op of a process."""
    for block in all_blocks(plan):
        yield from block.ops


def signals_of(plan: Plan) -> Counter[str]:
    """Return how many signals of each name a process receives at most."""
    found = Counter(op.name for op in ops_of(plan) if isinstance(op, Signal))
    del found["never"]
    return found


def everyone(roots: dict[str, Plan]) -> dict[str, Plan]:
    """Return every process there may be, by its id."""
    known: dict[str, Plan] = {}
    for process, plan in roots.items():
        known[process] = plan
        children = (op for op in ops_of(plan) if isinstance(op, Child))
        known |= everyone({child_id(process, op.at): op.plan for op in children})
    return known


# --- the model ---


class OneOf(msgspec.Struct, frozen=True):
    """A value that depends on which came first."""

    values: list[Any]


def fits(expected: Any, got: Any) -> bool:
    """Return whether a value is as the model says."""
    if isinstance(expected, OneOf):
        return any(fits(value, got) for value in expected.values)
    if isinstance(expected, list):
        return isinstance(got, list) and len(got) == len(expected) and all(map(fits, expected, got))
    return bool(expected == got)


class Model:
    """Says what a process returns."""

    def __init__(self) -> None:
        self._received: Counter[str] = Counter()

    def result(self, plan: Plan) -> Any:
        """Return the result of a process that nobody disturbs, or raise its failure."""
        return [self._block(epoch) for epoch in plan.epochs]

    def _block(self, block: Block) -> list[Any]:
        return [self._op(op) for op in block.ops]

    def _op(self, op: AnyOp) -> Any:
        match op:
            case Signal(name=name):
                self._received[name] += 1
                return self._received[name]
            case Wait(answer=answer, ms=ms):
                return answer if ms is None else OneOf([answer, "late"])
            case Child(plan=plan, awaited=awaited):
                return OneOf(seen(plan)) if awaited else "started"
            case Race(blocks=blocks):
                return OneOf([self._block(block) for block in blocks])
            case Raise(at=at):
                raise RuntimeError(at)
            case Gather() | Group():
                return self._together(blocks_of(op))
            case _:
                return "failed" if _fails(op) else op.at

    def _together(self, blocks: list[Block]) -> Any:
        try:
            return [self._block(block) for block in blocks]
        except RuntimeError:
            return "failed"


def _fails(op: AnyOp) -> bool:
    return isinstance(op, Step) and (op.hangs or op.fails > op.retries)


def seen(plan: Plan) -> list[Any]:
    """Return what a process may look like to the one that awaits it."""
    cancelled = [["cancelled"]] if plan.cancel != "no" else []
    return [undisturbed(plan), *cancelled]


def undisturbed(plan: Plan) -> list[Any]:
    """Return how a process ends that nobody cancels: its status, and its result."""
    if plan.kind == "brief":
        return ["failed"]
    try:
        return ["completed", Model().result(plan)]
    except RuntimeError:
        return ["failed"]


def may_be_cancelled(roots: dict[str, Plan]) -> set[str]:
    """Return the processes that may end as cancelled: asked to, or attached to one that ends first."""
    found = {process for process, plan in everyone(roots).items() if plan.cancel != "no"}
    for process, plan in everyone(roots).items():
        risky = process in found or plan.kind == "brief" or undisturbed(plan) == ["failed"]
        sure = {id(op) for epoch in plan.epochs for op in epoch.ops}
        for op in ops_of(plan):
            left = risky or (isinstance(op, Child) and not op.awaited) or id(op) not in sure
            if left and isinstance(op, Child) and op.attached:
                found.add(child_id(process, op.at))
    return found
