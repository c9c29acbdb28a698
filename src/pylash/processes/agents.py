"""Agents as processes: one turn of a child session, started from code.

Rule 1. The child session has the id of its process: the registry refuses a second one, so one turn runs in it.
Rule 2. The settings of the turn are in its input. Those that are not given are the worker's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar, overload

import msgspec

from pylash.durable.processes import ForkPoint, ProcessInput, SessionTurnInput
from pylash.durable.sessions import checked_session
from pylash.processes.definition import Definition, Prepared
from pylash.processes.operations.sessions import TurnResult, stored_parts
from pylash.tools.signatures import Shape
from pylash.turn.asks import SessionOptions, TurnAsk
from pylash.turn.messages import Input, Part
from pylash.values.canonical import decode, write
from pylash.values.durations import Duration
from pylash.values.names import check_name
from pylash.values.process_errors import ArgumentsInvalid

T = TypeVar("T")


class Agent(Definition[[Input], TurnResult[None]]):
    """A kind of agent: its prompt, its tools and its model. As a process, it plays one turn in a session of its own.

    >>> researcher = app.agent("researcher", instructions="Find sources.", tools=[search])
    >>> handle = await app.start(researcher, "Who wrote it?")
    >>> print((await handle.result()).text)
    """

    def __init__(
        self,
        name: str,
        instructions: str = "",
        tools: tuple[str, ...] | None = None,
        model: str | None = None,
        description: str = "",
    ) -> None:
        self.name = name
        self.instructions = instructions
        self.tools = tools
        self.model = model
        self.description = description
        # Of one start: the type of the answer, and the history that its session begins with.
        self._output: Shape | None = None
        self._fork: ForkPoint | msgspec.UnsetType = msgspec.UNSET

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    @property
    def arguments(self) -> AgentArguments:
        """Its task, and the result of its turn."""
        return AgentArguments(self.name, self._output)

    async def prepare(self) -> None:
        """Prepare the check of the answer."""
        if self._output is not None:
            await self._output.prepare(f"agent {self.name!r}", "output")

    def input(self, arguments: dict[str, Any]) -> ProcessInput:
        """Return the input of a subscription: each of its processes gets a session id, and its task if that is the event."""
        return self._turn_input("", arguments.get("input", ()), None)

    def input_of(
        self,
        process_id: str,
        arguments: dict[str, Any],
        plugin_options: Mapping[str, Any] | None,
    ) -> ProcessInput:
        """Return the input of one process: a turn of a session with its id."""
        return self._turn_input(checked_session(process_id), arguments["input"], plugin_options)

    def _turn_input(
        self, session_id: str, task: Any, plugin_options: Mapping[str, Any] | None
    ) -> SessionTurnInput:
        options = SessionOptions(
            model=self.model,
            instructions=self.instructions,
            tools=self.tools,
            plugin_options=plugin_options or None,
        )
        ask = TurnAsk(
            parts=msgspec.convert(task, tuple[Part, ...]),
            output_schema=None if self._output is None else self._output.answer_schema(),
            options=options,
        )
        plain = decode(write(options))
        return SessionTurnInput(session_id, decode(write(ask)), plain, fork=self._fork)

    @overload
    def options(
        self,
        *,
        id: str | None = None,
        wake: str | None = None,
        delay: Duration | None = None,
        attached: bool = False,
        label: str | None = None,
        tags: Sequence[str] = (),
        output: None = None,
        fork: str | None = None,
        at: str | None = None,
    ) -> Prepared[[Input], TurnResult[None]]: ...
    @overload
    def options(
        self,
        *,
        id: str | None = None,
        wake: str | None = None,
        delay: Duration | None = None,
        attached: bool = False,
        label: str | None = None,
        tags: Sequence[str] = (),
        output: type[T],
        fork: str | None = None,
        at: str | None = None,
    ) -> Prepared[[Input], TurnResult[T]]: ...
    def options(  # noqa: PLR0913 - each is one choice
        self,
        *,
        id: str | None = None,  # noqa: A002 - the public name
        wake: str | None = None,
        delay: Duration | None = None,
        attached: bool = False,
        label: str | None = None,
        tags: Sequence[str] = (),
        output: Any = None,
        fork: str | None = None,
        at: str | None = None,
    ) -> Prepared[[Input], TurnResult[Any]]:
        """Return the agent with options for one start.

        ``id`` is the id of the process and of its session. ``output`` is the type of ``result.value``. With ``fork``, the
        session begins with the messages of another one, up to and with its turn ``at``.

        >>> chosen = researcher.options(id="sources-7", output=Sources, fork="chat-42")
        >>> handle = await app.start(chosen, "Who wrote it?")
        """
        if fork is not None:
            checked_session(fork)
        if at is not None:
            check_name("turn id", at)
            if fork is None:
                raise ArgumentsInvalid(f"agent {self.name!r}", "at= has no effect without fork=")
        chosen = super().options(
            id=id, wake=wake, delay=delay, attached=attached, label=label, tags=tags
        )
        agent: Agent = copy(self)
        owner = f"agent {self.name!r}"
        agent._output = None if output is None else Shape.declared(output, owner, "output")
        agent._fork = msgspec.UNSET if fork is None else ForkPoint(fork, at)
        return msgspec.structs.replace(chosen, definition=agent)


class AgentArguments:
    """The task of an agent, and the result of its turn."""

    def __init__(self, name: str, output: Shape | None) -> None:
        self.result: Shape = TurnShape(output)
        self._name = f"agent {name!r}"

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the task as plain JSON."""
        if kwargs or len(args) != 1:
            raise ArgumentsInvalid(self._name, "it takes its task, and nothing else")
        return {"input": self.dump_one("input", args[0])}

    def dump_one(self, name: str, value: Any) -> Any:  # noqa: ARG002 - there is one
        """Return the task as plain JSON."""
        return msgspec.to_builtins(stored_parts(self._name, value))

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse everything but its task."""
        if list(names) != ["input"]:
            raise ArgumentsInvalid(self._name, "it takes its task as 'input', and nothing else")


class TurnShape(Shape):
    """Reads the result of a session-turn process."""

    __slots__ = ("_output",)

    def __init__(self, output: Shape | None) -> None:
        super().__init__(Any)
        self._output = output

    def load(self, value: Any) -> TurnResult[Any]:
        """Return the result of the turn."""
        return TurnResult(value["turn_id"], value, self._output, value["session_id"])
