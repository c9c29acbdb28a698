"""Where a cancel reaches the branches of a run.

Rule 1. A branch that waits is cancelled at its leaves: the branches at effects below its joins. The joins on the way
        that wait for a whole group are interrupted: they end with a cancel, whatever the outcomes of their branches.
Rule 2. A branch that does not wait is flagged. Its cancel is delivered at its next new effect or, at a join, when all
        branches below it wait; until then no new effect starts below it.
        An effect that is held for long is not: its cancel is passed on at once, and code that does not wait is flagged.
Rule 3. A delivery is written before it has any effect on branches. Until the write is acknowledged, its effects do not
        land, its leaves start no new effect, and the joins that it interrupts do not end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pylash.durable.machines.effect_table import Effect
from pylash.durable.machines.run_decisions import (
    Decision,
    Deliver,
)
from pylash.durable.machines.run_state import (
    CODE,
    EFFECT,
    JOIN,
    READY,
    WITHDRAW,
    Branch,
    Caller,
    Delivery,
    Group,
    MachineState,
)


def cancel_key(group: str = "") -> str:
    """Return the key under which the cancel of a run, or one that was passed on to a group, is recorded."""
    return f"!cancel {group}" if group else "!cancel"


def flag(run: MachineState, branch: Branch, cancelling: bool) -> None:
    """Set or clear the flag of a branch."""
    # ``pressing`` is exactly the branches that are cancelling and join.
    branch.cancelling = cancelling
    if branch.join is None:
        return
    if cancelling:
        run.cancels.pressing[branch] = None
    elif branch in run.cancels.pressing:
        del run.cancels.pressing[branch]
        run.cancels.recheck = True


def end_joining(run: MachineState, branch: Branch) -> None:
    """Note that a branch, which has left JOIN, no longer joins: calls held below it may repeat their requests."""
    if branch.join is not None:
        branch.join = None
        run.cancels.pressing.pop(branch, None)
        run.cancels.recheck |= bool(run.cancels.held)


def hear_cancel(run: MachineState, caller: Caller) -> None:
    """Note that a cancel is raised in the code of a branch; that of a side call is its owner's."""
    flag(run, caller.owner, False)


# --- the tree ---


def is_below_cancel(branch: Branch) -> bool:
    """Return whether a chain of joins leads from a cancelling branch down to this one."""
    # Only a chain of joins counts: a branch whose parent does something else is not waited for.
    while (group := branch.group) is not None:
        parent = group.parent
        join = parent.join
        if join is None or join.group is not group or join.one not in (None, branch):
            return False
        if parent.cancelling:
            return True
        branch = parent
    return False


def waits(branch: Branch, above: tuple[Branch, ...] = ()) -> bool:
    """Return whether a branch can be cancelled where it is.

    All its pending effects can be cancelled, or it is held, or it joins and all branches that it joins wait. A branch
    whose code runs beside its asides does not wait. ``above`` are the branches that wait for it by ``awaits``: branches
    that await each other are deadlocked, and can be cancelled.
    """
    if branch.at is JOIN and branch.awaits is not None:
        return branch in above or waits(branch.awaits, (*above, branch))
    if branch.at is JOIN:
        join = branch.join
        assert join is not None  # as it is at JOIN
        return _all_wait(join.group, above) if join.one is None else waits(join.one, above)
    if branch.mixed and branch.at in (CODE, READY, WITHDRAW):
        return False
    # A held branch starts no effect, whatever its other effects do, and it is flagged where it is held.
    if branch.held:
        return True
    pending = pending_effects(branch)
    return bool(pending) and all(effect.is_cancellable for effect in pending)


def _all_wait(group: Group, above: tuple[Branch, ...]) -> bool:
    """Return whether all open branches of a group wait.

    ``suspects`` did not wait when they were last checked. While the last of them still does not, no other is checked;
    so the total cost of the checks is linear in the state changes of the branches, not quadratic.
    """
    # A branch that waited may have continued since, so an empty list only means that all must be checked.
    suspects = group.suspects
    while suspects:
        if suspects[-1] in group.open and not waits(suspects[-1], above):
            return False
        suspects.pop()
    suspects += [branch for branch in group.open if not waits(branch, above)]
    return not suspects


def pending_effects(branch: Branch) -> list[Effect]:
    """Return the effects that a branch and the side calls in its code wait for."""
    effects = [call.effect for call in branch.calls if call.effect is not None]
    if branch.at is EFFECT and branch.effect is not None:
        effects.append(branch.effect)
    return effects


def find_leaves(branch: Branch, leaves: list[Branch], groups: list[Group]) -> None:
    """Add the places where a cancel reaches a branch: the branches at effects, and the groups that are interrupted."""
    if branch.at is not JOIN or branch.join is None:
        leaves.append(branch)
    elif branch.join.one is not None:
        find_leaves(branch.join.one, leaves, groups)
    else:
        groups.append(branch.join.group)
        for child in branch.join.group.open:
            find_leaves(child, leaves, groups)


# --- deliveries ---


def deliver(
    run: MachineState,
    key: str,
    branches: Iterable[Branch],
    out: list[Decision],
    *,
    is_forced: bool = False,
) -> None:
    """Cancel branches where they wait, flag the others, and have both recorded under key.

    ``is_forced``: of a branch that joins, those below it are, although some of them do not wait.
    """
    leaves: list[Branch] = []
    groups: list[Group] = []
    for branch in branches:
        # Without a record every branch is cancelled at once, through its task.
        if waits(branch) or is_forced or not run.config.is_durable:
            find_leaves(branch, leaves, groups)
        else:
            leaves.append(branch)
    # Also of a branch that is only flagged, because another of its effects cannot be cancelled.
    effects: dict[Effect, None] = {}
    for leaf in leaves:
        flag(run, leaf, True)
        for effect in sorted(pending_effects(leaf), key=lambda effect: effect.key):
            # If another delivery is deciding about it, that decision counts for both.
            if effect.is_cancellable and effect.verdict is None:
                effects[effect] = None
    for effect in effects:
        effect.verdict = key
    names = tuple(sorted(leaf.name for leaf in leaves))
    group_keys = tuple(sorted(group.key for group in groups))
    run.cancels.interrupted.update(group_keys)
    run.cancels.deliveries[key] = Delivery(tuple(effects), tuple(leaves), frozenset(groups))
    out.append(Deliver(key, names, group_keys, tuple(effects), tuple(leaves)))


def pass_on(run: MachineState, touched: Sequence[Branch] | None, out: list[Decision]) -> None:
    """Pass the cancel of a join on to its branches once all of them wait, the outermost join first.

    ``touched``: the branches that may have started to wait, None for any. A cancel is not passed on while another
    delivery is being written, so that a branch gets one cancel at a time.
    """
    cancels = run.cancels
    while cancels.pressing and not cancels.deliveries:
        branch = _outermost_that_waits(run, touched)
        if branch is None:
            return
        assert branch.join is not None  # it is pressing
        group = branch.join.group.key
        # The delivery consumes the flag. A delivery that is already recorded consumed an earlier flag.
        flag(run, branch, False)
        if group not in cancels.passed_on:
            cancels.passed_on.add(group)
            deliver(run, cancel_key(group), (branch,), out)


def force_on(run: MachineState, out: list[Decision]) -> None:
    """Pass the cancel of the outermost join on, although code below it does not wait.

    That code may wait for a call that is held, at a lock or a queue that the machine does not know.
    """
    joining = [branch for branch in run.cancels.pressing if branch.at is JOIN]
    if joining and not run.cancels.deliveries:
        branch = min(joining, key=_depth)
        assert branch.join is not None  # it is pressing
        group = branch.join.group.key
        flag(run, branch, False)
        if group not in run.cancels.passed_on:
            run.cancels.passed_on.add(group)
            deliver(run, cancel_key(group), (branch,), out, is_forced=True)


def _outermost_that_waits(run: MachineState, touched: Sequence[Branch] | None) -> Branch | None:
    """Return the outermost pressing join below which all wait; only those above ``touched`` can have changed."""
    pressing = run.cancels.pressing
    if touched is None:
        inner_first = sorted(pressing, key=_depth, reverse=True)
    else:
        inner_first = [above for branch in touched for above in _path_up(branch)]
    # An inner join must not be cancelled before an outer one: the outer delivery includes its branches.
    found = None
    for branch in inner_first:
        if branch in pressing and branch.at is JOIN and waits(branch):
            found = branch
    return found


def _path_up(branch: Branch) -> list[Branch]:
    path = [branch]
    while (parent := path[-1].parent) is not None:
        path.append(parent)
    return path


def _depth(branch: Branch) -> int:
    return len(_path_up(branch))
