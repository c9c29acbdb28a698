"""A runtime for durable LLM agents: the public names.

A name is imported when it is first used, so that ``import pylash`` is quick. ``__init__.pyi`` shows the
same names to type checkers and editors; a test compares the two.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "pylash.app": "Lash open_host",
    "pylash.durable.effects": (
        "AwaitEvent AwaitEventOutcome DurableStep DurableStepOutcome RuntimeScope Sleep "
        "envelope expect"
    ),
    "pylash.durable.keys": "replay_key",
    "pylash.durable.ports": "DurabilityTier EffectHost",
    "pylash.durable.processes": "Failure HeldProcess ProcessEvent ProcessView",
    "pylash.durable.runs": "RunState",
    "pylash.durable.scopes": (
        "ProcessScope QueueDrainScope RuntimeOperationScope SessionDeleteScope TurnScope"
    ),
    "pylash.durable.sessions": "DeleteReport SessionView",
    "pylash.durable.triggers": "Delivery Subscription SubscriptionView",
    "pylash.durable.waits": (
        "Cancelled CustomWait Err Ok OpenWait Resolution ResolveOutcome Timeout ToolCompletion"
    ),
    "pylash.lang": "LashlangError Problem",
    "pylash.engine.runs.branch_groups": "BranchTask",
    "pylash.engine.worker.config": "Retention WorkerConfig",
    "pylash.processes.agents": "Agent",
    "pylash.processes.operations.context": "ProcessContext TaskGroup WaitKey",
    "pylash.engine.executors": "await_options sleep_executor step_executor",
    "pylash.processes.handles": "ChildHandle ProcessHandle",
    "pylash.engine.hosts.inline": "InlineHost",
    "pylash.engine.hosts.journal": "JournalHost",
    "pylash.sessions.observation": "Observed",
    "pylash.tools.plugins": "PluginFactory SessionPlugin ToolProvider TurnView",
    "pylash.processes.operations.sessions": "ProcessSession TurnResult",
    "pylash.engine.retries": "Retry current_attempt",
    "pylash.processes.operations.steps": "StepContext",
    "pylash.processes.definition": "Prepared ProcessDefinition",
    "pylash.processes.event_types": "ProcessEventType",
    "pylash.sessions.session": "Session TurnStream",
    "pylash.engine.steps": "durable_step",
    "pylash.processes.timeline": "Effect draw_timeline",
    "pylash.tools.context": "Deferred ToolContext",
    "pylash.tools.tool": "Tool tool",
    "pylash.processes.triggers": "EVENT TriggerType Triggers",
    "pylash.turn.budgets": "TurnBudget",
    "pylash.turn.events": "TurnEvent",
    "pylash.turn.histories": "Summarise Window",
    "pylash.turn.messages": (
        "AssistantMessage Attachment Message Summary Text ToolCall ToolMessage Usage UserMessage"
    ),
    "pylash.turn.requests": "CallRequest Delta ModelReply ModelRequest Provider ToolManifest",
    "pylash.values.errors": (
        "AgentCallFailed AgentNotDurable AnswerInvalid AwaitEventUnknownOrRevoked "
        "AwaitEventUnsupported "
        "DurabilityError DurationInvalid EffectFailed EffectNested EffectReplayMismatch "
        "ExtraMissing InvalidAwaitEventWaitIdentity InvalidExecutionScope InvalidResolution "
        "JournalFull LashError LeaseHeld LeaseLost MissingExecutionScopeId MissingReplayKey "
        "Misuse NameInvalid PayloadTooLarge Plugin PluginError "
        "RecordingEffectHostUnsupportedCommand ReplayKeyInvalid RunSettled "
        "RuntimeEffectLocalExecutorMismatch RuntimeEffectLocalExecutorUnavailable "
        "RuntimeEffectSleepCancelled RuntimeEffectWrongOutcome RuntimeStore SecretInvalid "
        "StepFailed StoreBusy StoreClosed StoreError StoreFull StoreMissing StoreNotADatabase "
        "StorePathUnwritable StoreRefused StoreSchemaOutdated StoreSchemaTooNew "
        "StoreSchemaUnknown StoreUnavailable StoreUrlInvalid ValueNotJson WaitError WaitKeyInvalid"
    ),
    "pylash.values.process_errors": (
        "AlreadyResolved AppInsideProcess AppInvalid AppNeeded AppNotOpen ArgumentsInvalid "
        "DurableStoreRequired EffectOutsideBranch EffectOutsideStep EndpointInvalid "
        "EndpointMissing EndpointTaken EndpointUnreachable ExportInvalid ForkInvalid HostInUse "
        "ImportConflict ImportIncomplete ImportWithoutSecrets MissingProcessExecutionId "
        "NameAmbiguous NameTaken NotAProcess NotBlocked NotSupported NothingToCancel "
        "ProcessArgumentsInvalid ProcessBlocked ProcessCancelled ProcessConflict "
        "ProcessContextMissing ProcessEnded ProcessEventConflict ProcessEventInvalid "
        "ProcessFailed ProcessNotInModule ProcessNotVisible ProcessOriginatorInvalid "
        "ProcessRecoveryFailed ProcessRegistryUnavailable ProcessSignalWaitCancelled "
        "ProcessSignalWaitTimeout ProcessStumbled ProcessSurfaceIncompatible ProcessTimeout "
        "ProcessUnknown ReplayRefused RestateRefused RestateUnavailable RestateUrlInvalid "
        "ResultInvalid RunAmbiguous RunUnknown RuntimeEffectProcessTaskJoin SignalNameInvalid "
        "StaticScopesRequired StepTimeout StoreOfOthers SurfaceInvalid ToolUnknown "
        "TriggerConflict TriggerSourceNotGranted TriggerUnknown WaitFailed WaitTimeout "
        "WorkflowFailed"
    ),
    "pylash.values.turn_errors": (
        "AttachmentResolutionFailed CallRefused CursorInvalid InputInvalid ModelInvalid "
        "ModelKeyMissing ModelMissing ModelUnknown ModelUnusable PluginFailed "
        "ProcessSessionTurnFailed ProviderError SessionExists SessionIdInvalid "
        "SessionLaneReentrant SessionMoved SessionOptionUnknown SessionUnknown "
        "ToolArgumentsInvalid ToolDefinitionInvalid ToolError ToolFailed ToolTimeout "
        "TurnAnswerUnexpected TurnBlocked TurnEnvMissing TurnFailed TurnInputConflict "
        "TurnModelMissing TurnOfProcess TurnOutputInvalid TurnStumbled TurnToolMissing TurnUnknown"
    ),
    "pylash.workflows.modules": "LashlangModule LashlangProcess",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = tuple(sorted(_MODULES))


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'pylash' has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(module), name))


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
