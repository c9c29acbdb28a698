"""A runtime for durable LLM agents: what people import."""

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
