"""Tools for tests: a scripted model, clocks, crashes, replays, a recording and a serial host, and the conformance suites.

Needs no test runner. Names are loaded when they are first used: the pytest plugin lives here too, and
must cost nothing if it is not used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pylash.testing import conformance
    from pylash.testing.clocks import SimClock
    from pylash.testing.crash import CrashReport, crash_everywhere
    from pylash.testing.harness import LashHarness
    from pylash.testing.kills import CrashPoint, kill
    from pylash.testing.recording import RecordedEffect, RecordingHost
    from pylash.testing.replays import ReplayFailed, replay
    from pylash.testing.scripted import ScriptedModel, call, calls, code, fail, say
    from pylash.testing.serial import SerialHost

__all__ = (
    "CrashPoint",
    "CrashReport",
    "LashHarness",
    "RecordedEffect",
    "RecordingHost",
    "ReplayFailed",
    "ScriptedModel",
    "SerialHost",
    "SimClock",
    "call",
    "calls",
    "code",
    "conformance",
    "crash_everywhere",
    "fail",
    "kill",
    "replay",
    "say",
)

_MODULES = {
    "clocks": ("SimClock",),
    "crash": ("CrashReport", "crash_everywhere"),
    "kills": ("CrashPoint", "kill"),
    "harness": ("LashHarness",),
    "recording": ("RecordedEffect", "RecordingHost"),
    "replays": ("ReplayFailed", "replay"),
    "scripted": ("ScriptedModel", "call", "calls", "code", "fail", "say"),
    "serial": ("SerialHost",),
}


def __getattr__(name: str) -> Any:
    if name == "conformance":
        return import_module("pylash.testing.conformance")
    for module, names in _MODULES.items():
        if name in names:
            return globals().setdefault(
                name, getattr(import_module(f"pylash.testing.{module}"), name)
            )
    raise AttributeError(f"module 'pylash.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
