"""The running half: effect hosts, executors and membership."""

from pylash.runtime.asides import (
    Aside,
    aside,
)
from pylash.runtime.branches import (
    Branch,
    BranchGroup,
    BranchTask,
    own_branch,
)
from pylash.runtime.catalog import (
    Agent,
    Catalog,
    is_again,
)
from pylash.runtime.config import (
    Retention,
    WorkerConfig,
)
from pylash.runtime.context import (
    ProcessContext,
    TaskGroup,
    WaitKey,
)
from pylash.runtime.durability import (
    require_durable_stores,
)
from pylash.runtime.executors import (
    Executor,
    UnavailableExecutor,
    any_executor,
    await_options,
    direct_executor,
    process_executor,
    sleep_executor,
    step_executor,
    tool_executor,
    turn_executor,
)
from pylash.runtime.feeds import (
    Feed,
    Feeds,
)
from pylash.runtime.forks import (
    fork_registration,
)
from pylash.runtime.handles import (
    ChildHandle,
    ProcessHandle,
)
from pylash.runtime.histories import (
    Histories,
)
from pylash.runtime.inline import (
    InlineHost,
)
from pylash.runtime.journal import (
    JournalHost,
    OpenWait,
)
from pylash.runtime.observation import (
    Observed,
)
from pylash.runtime.observers import (
    Observers,
    TurnEnds,
)
from pylash.runtime.operation_names import (
    check_trigger_name,
    identifier,
    resource_type,
    trigger_path,
)
from pylash.runtime.plugins import (
    PluginFactory,
    SessionPlugin,
    ToolProvider,
    TurnView,
)
from pylash.runtime.process_control import (
    ProcessControl,
)
from pylash.runtime.process_sessions import (
    ProcessSession,
)
from pylash.runtime.process_steps import (
    Retry,
    StepContext,
)
from pylash.runtime.process_tools import (
    ProcessToolCall,
)
from pylash.runtime.programs import (
    Definition,
    Environment,
    Prepared,
    ProcessDefinition,
    PythonPrograms,
    Services,
    prepared,
)
from pylash.runtime.pruning import (
    PRUNE_AT_ONCE,
)
from pylash.runtime.records import (
    message_of,
)
from pylash.runtime.runs import (
    Detached,
    LiveRun,
)
from pylash.runtime.sessions import (
    Session,
    TurnResult,
    TurnStream,
)
from pylash.runtime.signatures import (
    Shape,
)
from pylash.runtime.steps import (
    durable_step,
)
from pylash.runtime.subagents import (
    SpawnAgent,
    play_session_turn,
)
from pylash.runtime.system import (
    SystemClock,
    system_entropy,
)
from pylash.runtime.timeline import (
    Effect,
    draw_timeline,
    effects_from,
    shown_duration,
)
from pylash.runtime.tool_arguments import (
    read_arguments,
)
from pylash.runtime.tool_context import (
    CallInfo,
    Deferred,
    Emitted,
    Progress,
    ToolContext,
)
from pylash.runtime.tool_results import (
    ProjectedRef,
    fitted,
    materialised,
    projected_refs,
    result_text,
)
from pylash.runtime.tools import (
    Approval,
    Tool,
    ToolOptions,
    as_tool,
    tool,
)
from pylash.runtime.triggers import (
    EVENT,
    SourceGrant,
    Triggers,
    TriggerType,
)
from pylash.runtime.turn_execution import (
    TurnExecution,
)
from pylash.runtime.turn_messages import (
    attachment_bytes,
    queued_message,
)
from pylash.runtime.user_code import (
    current_task,
    is_failure,
)
from pylash.runtime.waits import (
    is_approval,
    open_waits,
    resolve_wait,
)
from pylash.runtime.worker import (
    Worker,
)

__all__ = (
    "EVENT",
    "PRUNE_AT_ONCE",
    "Agent",
    "Approval",
    "Aside",
    "Branch",
    "BranchGroup",
    "BranchTask",
    "CallInfo",
    "Catalog",
    "ChildHandle",
    "Deferred",
    "Definition",
    "Detached",
    "Effect",
    "Emitted",
    "Environment",
    "Executor",
    "Feed",
    "Feeds",
    "Histories",
    "InlineHost",
    "JournalHost",
    "LiveRun",
    "Observed",
    "Observers",
    "OpenWait",
    "PluginFactory",
    "Prepared",
    "ProcessContext",
    "ProcessControl",
    "ProcessDefinition",
    "ProcessHandle",
    "ProcessSession",
    "ProcessToolCall",
    "Progress",
    "ProjectedRef",
    "PythonPrograms",
    "Retention",
    "Retry",
    "Services",
    "Session",
    "SessionPlugin",
    "Shape",
    "SourceGrant",
    "SpawnAgent",
    "StepContext",
    "SystemClock",
    "TaskGroup",
    "Tool",
    "ToolContext",
    "ToolOptions",
    "ToolProvider",
    "TriggerType",
    "Triggers",
    "TurnEnds",
    "TurnExecution",
    "TurnResult",
    "TurnStream",
    "TurnView",
    "UnavailableExecutor",
    "WaitKey",
    "Worker",
    "WorkerConfig",
    "any_executor",
    "as_tool",
    "aside",
    "attachment_bytes",
    "await_options",
    "check_trigger_name",
    "current_task",
    "direct_executor",
    "draw_timeline",
    "durable_step",
    "effects_from",
    "fitted",
    "fork_registration",
    "identifier",
    "is_again",
    "is_approval",
    "is_failure",
    "materialised",
    "message_of",
    "open_waits",
    "own_branch",
    "play_session_turn",
    "prepared",
    "process_executor",
    "projected_refs",
    "queued_message",
    "read_arguments",
    "require_durable_stores",
    "resolve_wait",
    "resource_type",
    "result_text",
    "shown_duration",
    "sleep_executor",
    "step_executor",
    "system_entropy",
    "tool",
    "tool_executor",
    "trigger_path",
    "turn_executor",
)
