"""The running half: effect hosts, executors and membership."""

from pylash.runtime.branches import (
    BranchTask,
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
from pylash.runtime.forks import (
    fork_registration,
)
from pylash.runtime.handles import (
    ChildHandle,
    ProcessHandle,
)
from pylash.runtime.inline import (
    InlineHost,
)
from pylash.runtime.journal import (
    JournalHost,
    OpenWait,
)
from pylash.runtime.observers import (
    Observers,
)
from pylash.runtime.process_control import (
    ProcessControl,
)
from pylash.runtime.process_steps import (
    Retry,
    StepContext,
)
from pylash.runtime.programs import (
    Environment,
    Prepared,
    ProcessDefinition,
    PythonPrograms,
    Services,
    prepared,
    tools_by_name,
)
from pylash.runtime.steps import (
    durable_step,
)
from pylash.runtime.system import (
    SystemClock,
    system_entropy,
)
from pylash.runtime.timeline import (
    Effect,
    draw_timeline,
)
from pylash.runtime.triggers import (
    EVENT,
    Triggers,
    TriggerType,
)
from pylash.runtime.waits import (
    open_waits,
    resolve_wait,
)
from pylash.runtime.worker import (
    Worker,
)

__all__ = (
    "EVENT",
    "BranchTask",
    "ChildHandle",
    "Effect",
    "Environment",
    "Executor",
    "InlineHost",
    "JournalHost",
    "Observers",
    "OpenWait",
    "Prepared",
    "ProcessContext",
    "ProcessControl",
    "ProcessDefinition",
    "ProcessHandle",
    "PythonPrograms",
    "Retention",
    "Retry",
    "Services",
    "StepContext",
    "SystemClock",
    "TaskGroup",
    "TriggerType",
    "Triggers",
    "UnavailableExecutor",
    "WaitKey",
    "Worker",
    "WorkerConfig",
    "any_executor",
    "await_options",
    "direct_executor",
    "draw_timeline",
    "durable_step",
    "fork_registration",
    "open_waits",
    "prepared",
    "process_executor",
    "require_durable_stores",
    "resolve_wait",
    "sleep_executor",
    "step_executor",
    "system_entropy",
    "tool_executor",
    "tools_by_name",
    "turn_executor",
)
