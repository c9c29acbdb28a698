"""A runtime for durable LLM agents: what people import.

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pylash.app import open_host
    from pylash.durable import (
        Cancelled,
        CustomWait,
        DurabilityTier,
        DurableStep,
        Err,
        Ok,
        ProcessScope,
        Resolution,
        ResolveOutcome,
        RuntimeScope,
        Timeout,
        TurnScope,
        envelope,
    )
    from pylash.runtime import InlineHost, JournalHost, OpenWait, step_executor
    from pylash.values import LashError, StepFailed

__version__ = "0.1.0"

__all__ = (
    "Cancelled",
    "CustomWait",
    "DurabilityTier",
    "DurableStep",
    "Err",
    "InlineHost",
    "JournalHost",
    "LashError",
    "Ok",
    "OpenWait",
    "ProcessScope",
    "Resolution",
    "ResolveOutcome",
    "RuntimeScope",
    "StepFailed",
    "Timeout",
    "TurnScope",
    "envelope",
    "open_host",
    "step_executor",
)

_PACKAGES = ("pylash.values", "pylash.durable", "pylash.runtime", "pylash.app")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for package in map(import_module, _PACKAGES):
            if hasattr(package, name):
                return globals().setdefault(name, getattr(package, name))
    raise AttributeError(f"module 'pylash' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
