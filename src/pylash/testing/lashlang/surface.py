"""What the test host H1 offers, besides the module `triggers` that every surface has."""

from __future__ import annotations

from typing import Any

from pylash.lang import ABILITIES

ANY = "any"
PRIORITIES = 'enum["low", "high"]'


def _operation(name: str, takes: str = ANY, gives: str = ANY) -> dict[str, str]:
    return {"id": name, "input": takes, "output": gives}


H1: dict[str, Any] = {
    "abilities": list(ABILITIES),
    "modules": {
        "tools": {
            "type": "Tools",
            "operations": {
                "echo": _operation("echo"),
                "add": _operation("add", "{ a: float, b: float }", "{ sum: float }"),
                "boom": _operation("boom"),
                "crash": _operation("crash"),
                "lookup": _operation("lookup", "{ key: str }", "{ name: str, score: int }"),
                "meet": _operation("meet", "{ n: int }", "{ met: int }"),
                "process_echo": _operation("process_echo"),
            },
        },
        "mail": {
            "type": "Mail",
            "operations": {
                "send": _operation(
                    "mail_send", f"{{ to: str, priority: {PRIORITIES} }}", "{ id: str }"
                )
            },
        },
    },
    "types": {"timer.Tick": "{ at: str }"},
    "constructors": {"timer.schedule": {"input": "{ every: str }", "type": "timer.Schedule"}},
    "trigger_sources": {"timer.Schedule": "timer.Tick"},
}


def patched(document: Any, patch: Any) -> Any:
    """Return document under a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = patched(merged.get(key), value)
    return merged
