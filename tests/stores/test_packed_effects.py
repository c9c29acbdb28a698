"""Effects that are packed into nodes are read back unchanged, except for their commands."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pylash.durable.runs import JournalEntry
from pylash.stores.tables.packed_effects import pack_effects, unpack_effects

RETURNED = b'{"type":"returned","outcome":{"kind":"llm_call","result":{"place":7}}}'


@pytest.mark.parametrize(
    ("kind", "outcome", "label"),
    [
        ("llm_call", RETURNED, "model"),
        ("llm_call", RETURNED.replace(b"7", '"é"'.encode()), "the label of a person"),
        ("tool_attempt", RETURNED, None),
        ("durable_step", b'{"type":"failed","code":"a","message":"b","type_name":"c"}', "env"),
        ("decision", b"[1,2]", ""),
    ],
)
def test_effects_come_back_from_a_node(kind: str, outcome: bytes, label: str | None) -> None:
    size = len(outcome)
    entry = JournalEntry("k", kind, b"h" * 32, b"{}", outcome, size, None, None, 5, 9, label)
    endless = replace(entry, key="other", ended=None, hash=b"")
    body = pack_effects([entry, endless])
    assert body is not None
    assert unpack_effects(body) == [replace(one, command=None) for one in (entry, endless)]


def test_nothing_is_nothing() -> None:
    assert pack_effects([]) is None
