"""pydantic-ai agents made durable.

>>> from pylash.integrations.pydantic_ai import durable
>>> agent = durable(Agent("openai:gpt-5", name="research"))
>>> @app.process
... async def research(ctx: ProcessContext[None], topic: str) -> str:
...     return (await agent.run(topic)).output
"""

from pylash.values.errors import ExtraMissing

try:
    import pydantic_ai.durable_exec  # noqa: F401 - checks that the extra is installed
except ImportError as missing:
    raise ExtraMissing("pylash.integrations.pydantic_ai", "models") from missing

from pylash.integrations.pydantic_ai.agents import DurableAgent, durable
from pylash.integrations.pydantic_ai.deferred_tools import answered
from pylash.integrations.pydantic_ai.sessions import (
    AgentSession,
    AgentSessions,
    AgentTurn,
    sessions,
)

__all__ = (
    "AgentSession",
    "AgentSessions",
    "AgentTurn",
    "DurableAgent",
    "answered",
    "durable",
    "sessions",
)
