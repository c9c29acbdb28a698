"""Turns played from a script, as transcripts.

user       Where is order 7?
?          environment              what the machine asks for
?          model 1
assistant  i1.c0 lookup(order=7)    what was said
?          tools i1.c0
tool       i1.c0 lookup: sent
!          busy: Too many.          a model that failed
=          completed 'It was sent.' how the turn ended
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec

from pylash.turn.machine import (
    Answer,
    Ask,
    CallModel,
    CheckpointTaken,
    EnvironmentSynced,
    ModelFailed,
    ModelReplied,
    Pause,
    Paused,
    RunTools,
    SyncEnvironment,
    TakeCheckpoint,
    ToolsReturned,
    TurnEnd,
    TurnMachine,
)
from pylash.turn.messages import (
    AssistantMessage,
    Message,
    Text,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)

Reply = AssistantMessage | ModelFailed
Restore = Callable[[TurnMachine], TurnMachine]

# --- what a script is made of ---


def said(text: str, source: Any = "user") -> UserMessage:
    return UserMessage((Text(text),), source=source)


def says(text: str, **used: Any) -> AssistantMessage:
    return AssistantMessage(text, **used)


def call(tool: str, /, **arguments: Any) -> ToolCall:
    return ToolCall("", tool, arguments)


def calls(*wanted: ToolCall, text: str = "", **used: Any) -> AssistantMessage:
    return AssistantMessage(text, wanted, **used)


def fails(message: str = "Too many.", code: str = "busy", retryable: bool = False) -> ModelFailed:
    return ModelFailed(message, code, retryable)


@dataclass
class Script:
    """What the world answers. The runtime names calls, so the script leaves that to the player."""

    replies: Sequence[Reply]
    results: Mapping[str, str] = field(default_factory=dict)
    heard: Mapping[int, Sequence[str]] = field(default_factory=dict)
    tool_usage: Usage = field(default_factory=Usage)
    tool_seconds: float = 0.0
    syncs: Collection[str | int] = ()
    """The tools that change the environment, and the iterations at whose checkpoints a plugin does."""

    def __post_init__(self) -> None:
        self.asked = 0

    def answer(self, ask: Ask) -> Answer:
        match ask:
            case SyncEnvironment():
                return EnvironmentSynced()
            case TakeCheckpoint(iteration=iteration):
                heard = tuple(said(text) for text in self.heard.get(iteration, ()))
                return CheckpointTaken(heard, sync=iteration in self.syncs)
            case CallModel(iteration=iteration):
                reply = self.replies[self.asked]
                self.asked += 1
                return reply if isinstance(reply, ModelFailed) else named(reply, iteration)
            case RunTools(calls=wanted):
                return ToolsReturned(tuple(self.result(one) for one in wanted))
            case Pause():
                return Paused()
            case _:
                assert_never(ask)

    def result(self, one: ToolCall) -> ToolMessage:
        text = self.results.get(one.tool, "done")
        return ToolMessage(
            one.id,
            one.tool,
            text,
            usage=self.tool_usage,
            seconds=self.tool_seconds,
            provider_id=one.provider_id,
            sync=one.tool in self.syncs,
        )


def named(reply: AssistantMessage, iteration: int) -> ModelReplied:
    """Return the reply with the ids that the runtime mints."""
    wanted = tuple(
        msgspec.structs.replace(one, id=f"i{iteration}.c{n}", provider_id=f"p{iteration}{n}")
        for n, one in enumerate(reply.calls)
    )
    return ModelReplied(msgspec.structs.replace(reply, calls=wanted))


# --- playing ---


@dataclass
class Player:
    """Plays a script to a machine and writes down what happens."""

    machine: TurnMachine
    script: Script
    lines: list[str] = field(default_factory=list)
    told: int = 0

    def __post_init__(self) -> None:
        self.tell()

    def step(self) -> bool:
        """Answer what is outstanding; return whether there was something."""
        ask = self.machine.poll_effect()
        if ask is None:
            return False
        self.lines.append(line("?", shown_ask(ask)))
        answer = self.script.answer(ask)
        if isinstance(answer, ModelFailed):
            self.lines.append(line("!", f"{answer.code}: {answer.message}"))
        self.machine.handle_response(answer)
        self.tell()
        return True

    def to_the_end(self, between: Restore = lambda machine: machine) -> Player:
        while self.step():
            self.machine = between(self.machine)
        return self

    def steps(self, count: int) -> Player:
        for _ in range(count):
            self.step()
        return self

    def tell(self) -> None:
        """Write down what is new."""
        self.lines += [shown_message(one) for one in self.machine.messages[self.told :]]
        self.told = len(self.machine.messages)
        if self.machine.end is not None:
            self.lines.append(line("=", shown_end(self.machine.end)))

    @property
    def transcript(self) -> str:
        return "\n" + "\n".join(self.lines) + "\n"


def turn(*replies: Reply, machine: Mapping[str, Any] | None = None, **script: Any) -> Player:
    """Return a turn that has not begun."""
    made = TurnMachine([said("Go.")], **(machine or {}))
    return Player(made, Script(replies, **script))


def play(*replies: Reply, machine: Mapping[str, Any] | None = None, **script: Any) -> str:
    """Play a turn to its end and return its transcript."""
    return turn(*replies, machine=machine, **script).to_the_end().transcript


# --- telling ---


def line(who: str, what: str) -> str:
    return f"{who:<10} {what}".rstrip()


def shown_call(one: ToolCall) -> str:
    arguments = one.arguments if isinstance(one.arguments, dict) else {"": one.arguments}
    return f"{one.id} {one.tool}({', '.join(f'{k}={v}' for k, v in arguments.items())})"


def shown_message(message: Message) -> str:
    source = getattr(message, "source", message.role)
    who = message.role if source in {message.role, "model"} else source
    match message:
        case UserMessage():
            return line(who, message.text)
        case AssistantMessage(text=text, calls=wanted):
            end = [] if not message.interrupted else ["interrupted"]
            return line(who, ", ".join([*([text] if text else []), *map(shown_call, wanted), *end]))
        case ToolMessage(call_id=call_id, tool=tool, text=text, error=error):
            return line(who, f"{call_id} {tool}{' error' if error else ''}: {text}")
        case _:
            assert_never(message)


def shown_ask(ask: Ask) -> str:
    match ask:
        case SyncEnvironment(iteration=iteration):
            return "environment" if iteration is None else f"environment again, {iteration}"
        case TakeCheckpoint(iteration=iteration):
            return f"checkpoint {iteration}"
        case CallModel(iteration=iteration, attempt=attempt):
            return f"model {iteration}" + (f" again, try {attempt}" if attempt > 1 else "")
        case RunTools(calls=wanted):
            return f"tools {', '.join(one.id for one in wanted)}"
        case Pause(milliseconds=milliseconds):
            return f"pause {milliseconds} ms"
        case _:
            assert_never(ask)


def shown_end(end: TurnEnd) -> str:
    if end.status == "completed":
        value = "" if end.value is None else f" {msgspec.json.encode(end.value).decode()}"
        return f"completed {end.text!r}{value}"
    return f"{end.status} {end.code}: {end.error}"
