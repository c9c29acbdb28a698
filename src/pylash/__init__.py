"""A runtime for durable LLM agents: what people import.

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pylash.app import open_host
    from pylash.durable import (
        AwaitEvent,
        AwaitEventOutcome,
        Cancelled,
        CustomWait,
        DurabilityTier,
        DurableStep,
        DurableStepOutcome,
        Err,
        Ok,
        ProcessScope,
        QueueDrainScope,
        Resolution,
        ResolveOutcome,
        RuntimeOperationScope,
        RuntimeScope,
        SessionDeleteScope,
        Sleep,
        Timeout,
        ToolCompletion,
        TurnScope,
        envelope,
        expect,
        replay_key,
    )
    from pylash.runtime import (
        InlineHost,
        JournalHost,
        OpenWait,
        await_options,
        durable_step,
        sleep_executor,
        step_executor,
    )
    from pylash.values import (
        AwaitEventUnknownOrRevoked,
        AwaitEventUnsupported,
        DurabilityError,
        DurationInvalid,
        EffectFailed,
        EffectNested,
        EffectReplayMismatch,
        ExtraMissing,
        InvalidAwaitEventWaitIdentity,
        InvalidExecutionScope,
        InvalidResolution,
        JournalFull,
        LashError,
        LeaseHeld,
        LeaseLost,
        MissingExecutionScopeId,
        MissingReplayKey,
        Misuse,
        PayloadTooLarge,
        Plugin,
        PluginError,
        RecordingEffectHostUnsupportedCommand,
        RuntimeEffectLocalExecutorMismatch,
        RuntimeEffectLocalExecutorUnavailable,
        RuntimeEffectSleepCancelled,
        RuntimeEffectWrongOutcome,
        RuntimeStore,
        SecretInvalid,
        StepFailed,
        StoreBusy,
        StoreClosed,
        StoreError,
        StoreFull,
        StoreNotADatabase,
        StorePathUnwritable,
        StoreSchemaOutdated,
        StoreSchemaTooNew,
        StoreUnavailable,
        StoreUrlInvalid,
        ValueNotJson,
        WaitError,
    )

__version__ = "0.1.0"

__all__ = (
    "AwaitEvent",
    "AwaitEventOutcome",
    "AwaitEventUnknownOrRevoked",
    "AwaitEventUnsupported",
    "Cancelled",
    "CustomWait",
    "DurabilityError",
    "DurabilityTier",
    "DurableStep",
    "DurableStepOutcome",
    "DurationInvalid",
    "EffectFailed",
    "EffectNested",
    "EffectReplayMismatch",
    "Err",
    "ExtraMissing",
    "InlineHost",
    "InvalidAwaitEventWaitIdentity",
    "InvalidExecutionScope",
    "InvalidResolution",
    "JournalFull",
    "JournalHost",
    "LashError",
    "LeaseHeld",
    "LeaseLost",
    "MissingExecutionScopeId",
    "MissingReplayKey",
    "Misuse",
    "Ok",
    "OpenWait",
    "PayloadTooLarge",
    "Plugin",
    "PluginError",
    "ProcessScope",
    "QueueDrainScope",
    "RecordingEffectHostUnsupportedCommand",
    "Resolution",
    "ResolveOutcome",
    "RuntimeEffectLocalExecutorMismatch",
    "RuntimeEffectLocalExecutorUnavailable",
    "RuntimeEffectSleepCancelled",
    "RuntimeEffectWrongOutcome",
    "RuntimeOperationScope",
    "RuntimeScope",
    "RuntimeStore",
    "SecretInvalid",
    "SessionDeleteScope",
    "Sleep",
    "StepFailed",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreNotADatabase",
    "StorePathUnwritable",
    "StoreSchemaOutdated",
    "StoreSchemaTooNew",
    "StoreUnavailable",
    "StoreUrlInvalid",
    "Timeout",
    "ToolCompletion",
    "TurnScope",
    "ValueNotJson",
    "WaitError",
    "await_options",
    "durable_step",
    "envelope",
    "expect",
    "open_host",
    "replay_key",
    "sleep_executor",
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
