"""Sites: the effects and branches of an entry (main or a process), under ids that never change.

1. An id is a hash of the module, the entry, the position in the tree and the kind; it is static and unique.
2. Functions have no sites; a site belongs to exactly one entry.
"""

from __future__ import annotations

from typing import Final, Literal

from pylash.lang.tree import (
    Await,
    Block,
    Cancel,
    Conditional,
    Fail,
    Finish,
    If,
    Labelled,
    Node,
    Operation,
    ProcessDeclaration,
    ReceiverOperation,
    SendSignal,
    Sleep,
    Start,
    WaitSignal,
    Wake,
    Yield,
    walk,
)
from pylash.values.canonical import stable_hash

EntryKind = Literal["main", "process"]

KINDS: Final[dict[type[Node], str]] = {
    Operation: "resource_operation",
    ReceiverOperation: "resource_operation",
    Start: "child_process",
    Sleep: "sleep",
    WaitSignal: "wait",
    SendSignal: "signal",
    Yield: "process_event",
    Wake: "process_event",
    Finish: "terminal",
    Fail: "terminal",
    If: "branch",
    Conditional: "branch",
    Labelled: "step",
    Await: "await",
    Cancel: "cancel",
}
"""Which nodes are sites, and of what kind."""


def sites(
    module_ref: str, entry: EntryKind, entry_name: str, body: ProcessDeclaration | Block
) -> dict[int, str]:
    """Return the node id of each site of an entry, by the `id` of its node."""
    block = body.body if isinstance(body, ProcessDeclaration) else body
    nodes = (node for statement in block for node in walk(statement))
    return {
        id(node): node_id(KINDS[type(node)], module_ref, entry, entry_name, position)
        for position, node in enumerate(nodes)
        if type(node) in KINDS
    }


def node_id(kind: str, *parts: str | int) -> str:
    """Return the id of a node of some kind, from the parts that identify it."""
    return f"{kind}:{stable_hash([kind, *parts]).hex()[:24]}"


def entry_id(module_ref: str, entry: EntryKind, entry_name: str) -> str:
    """Return the id of an entry itself."""
    return node_id(entry, module_ref, entry, entry_name)


def arms(branch_id: str) -> tuple[str, str]:
    """Return the ids of the two arms of a branch: then, else."""
    return node_id("branch_arm", branch_id, "then"), node_id("branch_arm", branch_id, "else")
