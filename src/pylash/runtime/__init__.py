"""The running half: effect hosts, executors and membership."""

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
from pylash.runtime.inline import InlineHost
from pylash.runtime.journal import JournalHost, OpenWait
from pylash.runtime.steps import durable_step
from pylash.runtime.system import SystemClock, system_entropy

__all__ = (
    "Executor",
    "InlineHost",
    "JournalHost",
    "OpenWait",
    "SystemClock",
    "UnavailableExecutor",
    "any_executor",
    "await_options",
    "direct_executor",
    "durable_step",
    "process_executor",
    "sleep_executor",
    "step_executor",
    "system_entropy",
    "tool_executor",
    "turn_executor",
)
