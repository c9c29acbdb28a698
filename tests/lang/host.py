"""A small host for programs that are only linked."""

from __future__ import annotations

from typing import Any

import pytest

from pylash.lang.artifacts import Artifact, artifact
from pylash.lang.linker import LinkedProgram, link
from pylash.lang.parsing.parser import parse
from pylash.lang.problems import LashlangError, Problem
from pylash.lang.surface import Surface, surface_of


def operation(name: str, takes: str = "any", gives: str = "any") -> dict[str, str]:
    return {"id": name, "input": takes, "output": gives}


DOCUMENT: dict[str, Any] = {
    "abilities": ["processes", "sleep", "process_signals", "triggers", "label_annotations"],
    "modules": {
        "tools": {
            "type": "Tools",
            "operations": {
                "echo": operation("echo"),
                "lookup": operation("lookup", "{ key: str }", "{ name: str, score: int }"),
            },
        },
        "mail": {
            "type": "Mail",
            "operations": {
                "send": operation(
                    "mail_send", '{ to: str, priority: enum["low", "high"] }', "{ id: str }"
                )
            },
        },
        "far.away": {"type": "Away", "operations": {"call": operation("far_call")}},
    },
    "types": {"timer.Tick": "{ at: str }"},
    "constructors": {"timer.schedule": {"input": "{ every: str }", "type": "timer.Schedule"}},
    "trigger_sources": {"timer.Schedule": "timer.Tick"},
}
HOST = surface_of(DOCUMENT)


def without(*abilities: str) -> Surface:
    left = [name for name in DOCUMENT["abilities"] if name not in abilities]
    return surface_of({**DOCUMENT, "abilities": left})


def linked(source: str, host: Surface = HOST, **names: Any) -> LinkedProgram:
    return link(parse(source), host, **names)


def made(source: str, host: Surface = HOST) -> Artifact:
    return artifact(linked(source, host))


def problems(source: str, host: Surface = HOST, **names: Any) -> tuple[Problem, ...]:
    with pytest.raises(LashlangError) as refused:
        linked(source, host, **names)
    return refused.value.errors
