"""The commands of a chat: input that is not for the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from pylash.cli.chat.questions import read_json
from pylash.cli.chat.text import shown_call
from pylash.turn.messages import Usage

if TYPE_CHECKING:
    from pylash.cli.chat.command import Chat

Command = Callable[["Chat", str], Awaitable[None]]

INTRODUCTION: Final = (
    "Type and press Enter to ask. While a turn runs you can keep typing: a line steers it, "
    "and reaches the model after the tools that run now.\n"
)
KEYS: Final = """
Ctrl-C cancels the turn, a second one leaves; Ctrl-D leaves.
Alt-Enter makes a new line. Up and Down find what was typed before.
Begin a line with // to send text that begins with /."""


async def _help(chat: Chat, _: str) -> None:
    chat.view.note(INTRODUCTION, "")
    chat.view.table([(usage, about) for usage, about, _ in COMMANDS.values()])
    chat.view.note(KEYS, "")


async def _interrupt(chat: Chat, text: str) -> None:
    if text:
        await chat.current.send(text, "interrupt")
    else:
        chat.view.note("Give a text: /interrupt TEXT. To only end the turn: /cancel", "bad")


async def _queue(chat: Chat, text: str) -> None:
    if text:
        await chat.current.send(text, "next_turn")
    elif waiting := await chat.current.queued():
        chat.view.note("\n".join(f"⋯ {message}" for message in waiting))
    else:
        chat.view.note("Nothing is queued.")


async def _cancel(chat: Chat, _: str) -> None:
    if not await chat.current.cancel():
        chat.view.note("No turn is running.")


async def _retry(chat: Chat, _: str) -> None:
    if await chat.current.session.retry():
        chat.view.note("The turn continues.")
    else:
        chat.view.note("No turn is blocked.")


async def _waits(chat: Chat, _: str) -> None:
    rows = []
    for number, wait in enumerate(chat.current.questions.waits, 1):
        call = shown_call(wait.tool, wait.arguments) if wait.tool else wait.title
        rows += [f"{number}  {wait.kind}  {call}", f"   {wait.key}"]
    chat.view.note("\n".join(rows) if rows else "Nothing waits for an answer.", "")


async def _resolve(chat: Chat, given: str) -> None:
    number, _, value = given.partition(" ")
    waits = chat.current.questions.waits
    if not number.isdecimal() or not 0 < int(number) <= len(waits) or not value.strip():
        chat.view.note(
            "Give a number and a value: /resolve 1 JSON (the numbers are those of /waits)", "bad"
        )
        return
    wait = waits[int(number) - 1]
    await chat.current.questions.resolve(wait, read_json(value.strip()), "✓ answered")


async def _usage(chat: Chat, _: str) -> None:
    chat.view.note(shown_usage(await chat.current.session.usage()), "")


async def _history(chat: Chat, _: str) -> None:
    messages, ends = await chat.current.past()
    if messages:
        chat.current.show(messages, ends)
    else:
        chat.view.note("There are no messages yet.")


async def _session(chat: Chat, _: str) -> None:
    chat.view.note(f"Session {chat.current.session.id}. {chat.how_to_resume()}", "")


async def _new(chat: Chat, _: str) -> None:
    await chat.switch(chat.new_id())


async def _resume(chat: Chat, given: str) -> None:
    if given:
        await chat.switch(given)
    elif earlier := await chat.earlier():
        chat.view.note("Which one? /resume ID", "")
        chat.view.table(earlier)
    else:
        chat.view.note("There is no other session yet.")


async def _quit(chat: Chat, _: str) -> None:
    chat.leave()


COMMANDS: Final[dict[str, tuple[str, str, Command]]] = {
    "help": ("/help", "show this list", _help),
    "interrupt": ("/interrupt TEXT", "send it now, instead of what the turn waits for", _interrupt),
    "queue": ("/queue [TEXT]", "send it with the next turn; or show what is queued", _queue),
    "cancel": ("/cancel", "end the turn, and take back messages queued after it", _cancel),
    "retry": ("/retry", "continue a blocked turn", _retry),
    "waits": ("/waits", "what waits for an answer", _waits),
    "resolve": ("/resolve N JSON", "answer one of them", _resolve),
    "history": ("/history", "all messages", _history),
    "usage": ("/usage", "what this session used", _usage),
    "session": ("/session", "which session this is, and how to resume it", _session),
    "new": ("/new", "begin a new session", _new),
    "resume": ("/resume [ID]", "go to another session", _resume),
    "quit": ("/quit", "leave; a turn that runs is kept", _quit),
}


def shown_usage(usage: Usage) -> str:
    """Return usage as text."""
    cost = f", {usage.cost:.4f} $" if usage.cost else ""
    calls = "1 model call" if usage.requests == 1 else f"{usage.requests} model calls"
    return f"{calls}, {usage.input_tokens} tokens in, {usage.output_tokens} out{cost}"
