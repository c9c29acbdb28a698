"""Drawings of one process, turn or session for people."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from pylash.cli.chat.text import shown_call
from pylash.cli.output import (
    STATUS_COLOURS,
    brief,
    coloured,
    columns,
    instant,
    moment,
    paint,
    print_line,
    wrapped,
)
from pylash.cli.views.dry_run import COLOURS, WORDS
from pylash.cli.views.listing import NO_WORKER, WORKER_GONE, print_runs, with_version
from pylash.cli.waits import SHORT
from pylash.engine.dry_runs import Verdict
from pylash.processes.timeline import Effect, draw_timeline, shown_duration
from pylash.values.texts import clipped, printable

LABEL: Final = 11
WIDEST: Final = 120
EFFECTS_SHOWN: Final = 200
FAILURES_SHOWN: Final = 5


def draw_run(view: dict[str, Any], effects: Sequence[Effect]) -> None:
    """Print a process or a turn: its state, the reason, and its effects over time."""
    status = paint(view["status"], STATUS_COLOURS[view["status"]], bold=True)
    kind = (
        view["kind"] if view["target"] in ("", view["kind"]) else f"{view['kind']} {view['target']}"
    )
    kind = with_version(kind, view["version"])
    print_line(
        f"{paint(printable(view['id']), None, bold=True)}  {status}  {paint(printable(kind), 'bright_black')}"
    )
    if view["label"]:
        _print_fact("label", view["label"])
    if view["tags"]:
        _print_fact("tags", ", ".join(view["tags"]))
    _print_blocked(view)
    for wait in view["waits"]:
        _print_wait(view, wait)
    for signal in view["signals"]:
        _print_fact("arrived", f"signal: {signal} (the process takes it when it continues)")
    others = [one for one in view["waits_for"] if not view["waits"] or " until " in one]
    if view["status"] in ("waiting", "running") and others:
        _print_fact("doing" if view["status"] == "running" else "waits for", ", ".join(others))
    _print_facts(view)
    if view["note"]:
        _print_fact("note", view["note"], "yellow")
    for answered in view["answers"]:
        _print_approval(answered)
    print_line()
    shown = effects[-EFFECTS_SHOWN:]
    if len(effects) > len(shown):
        print_line(
            paint(
                f"… {len(effects) - len(shown):,} effects before these: --json has them all",
                "bright_black",
            )
        )
    room = columns()
    width = None if room is None else min(room, WIDEST)
    drawn = draw_timeline(shown, width=width, colour=coloured())
    print_line(
        drawn if shown else paint("no effects are recorded, or they were pruned", "bright_black")
    )
    _print_failures(shown)
    _print_replay(view, len(shown))
    _print_values(view["effects"][-EFFECTS_SHOWN:])


def draw_session(view: dict[str, Any]) -> None:
    """Print a session: its turns, and its open waits."""
    print_line(
        f"{paint(printable(view['id']), None, bold=True)}  {paint('session', 'bright_black')}"
    )
    for wait in view["waits"]:
        _print_wait(view, wait)
    if view["tags"]:
        _print_fact("tags", ", ".join(view["tags"]))
    if view["queued"]:
        _print_fact("queued", f"{view['queued']} message{'s' if view['queued'] > 1 else ''}")
    if view["usage"]:
        _print_fact("usage", _usage(view["usage"]))
    print_line()
    print_runs(view["turns"])
    if view["messages"]:
        print_line()
    for message in view["messages"]:
        _print_message(message)


def _print_blocked(view: dict[str, Any]) -> None:
    if view["status"] != "blocked":
        if view["reason"] == WORKER_GONE:
            _print_fact("note", WORKER_GONE, "yellow")
        return
    if view["code"] == "unknown_target":
        if view["reason"] == NO_WORKER:
            _print_fact("blocked", f"{NO_WORKER}: pylash worker MODULE:APP starts one", "red")
        else:
            # Version 1 is named too: a worker may have only a later one.
            target = repr(view["target"])
            if view["target"].startswith("python:"):
                target += f" (v{view['version']})"
            _print_fact("blocked", f"no live worker has {target}: start one that does", "red")
        return
    _print_fact("blocked", str(view["code"]), "red")
    if view["difference"]:
        _print_fact("effect", view["difference"]["key"])
        _print_fact("difference", view["difference"]["difference"], "yellow")
    elif view["reason"] != view["code"]:
        _print_fact("", view["reason"])
    for line in (view["traceback"] or "").splitlines():
        print_line(paint(f"{'':{LABEL}}{printable(line)}", "bright_black"))
    name = view["session"] or view["id"]
    _print_hint("then", f"pylash retry {_argument(name)}")


def _print_wait(view: dict[str, Any], wait: dict[str, Any]) -> None:
    call = "" if wait["tool"] is None else f" {wait['tool']}({_arguments(wait['arguments'])})"
    _print_fact("waits for", f"{wait['kind']}: {wait['title']}{call}", "yellow")
    if wait["kind"] == "signal":
        _print_hint("", f"pylash signal {_argument(view['id'])} {_argument(wait['title'])} JSON")
    else:
        answer = "true" if wait["kind"] == "approval" else "JSON"
        _print_hint("", f"pylash resolve {wait['id'][:SHORT]} {answer}")


def _print_facts(view: dict[str, Any]) -> None:
    took = shown_duration(view["seconds"])
    when = moment(instant(view["created"]))
    _print_fact("started", f"{when}, took {took}" if view["settled"] else f"{when}, {took} ago")
    if view["input"]:
        _print_fact("input", _value(view["input"]))
    if view["output"]:
        _print_output(view["output"])
        if view["kind"] == "process" and view["status"] == "failed":
            _print_hint("continue", f"pylash fork {_argument(view['id'])}")
    if view.get("parent"):
        _print_fact("parent", view["parent"])
    for child in view["children"]:
        _print_fact("child", f"{child['id']}  {child['status']}")
    if view["attempts"] > 1:
        _print_fact("attempts", f"{view['attempts']} claims without progress")
    if view["worker"]:
        _print_fact("worker", view["worker"])


def _print_approval(answered: dict[str, Any]) -> None:
    """Print the answer to an approval, with corrected arguments beside the proposed ones."""
    answer = answered["answer"].get("value")
    if answered["kind"] != "approval" or answer is None:
        return
    decision = answer if isinstance(answer, dict) else {"approved": answer}
    text = shown_call(answered["tool"], answered["arguments"])
    if (corrected := decision.get("arguments")) is not None:
        text += f" as {shown_call(answered['tool'], corrected)}"
    if by := decision.get("by") or answered["by"]:
        text += f", by {by}"
    if reason := decision.get("reason"):
        text += f": {reason}"
    _print_fact("approved" if decision.get("approved") is True else "rejected", text)


def _print_output(output: dict[str, Any]) -> None:
    match output:
        case {"status": "failed", "failure_class": kind, "code": code, "message": message}:
            _print_fact("failed", f"{message} [{code}]", "red")
            _print_fact("class", kind)
            if (raw := output.get("raw")) not in (None, [message]):
                _print_fact("raw", _value(raw))
        case {"status": "cancelled", "reason": reason}:
            _print_fact("cancelled", str(reason or "no reason was given"))
        case {"error": str() as error}:
            _print_fact("error", f"{error} [{output.get('code')}]", "red")
            if output.get("text"):
                _print_fact("text", f"{output['text']} [interrupted]")
        case {"text": str() as text}:
            _print_fact("answer", text)
        case {"value": value}:
            _print_fact("result", _value(value))
        case _:
            pass
    if output.get("usage"):
        _print_fact("usage", _usage(output["usage"]))


def _print_failures(effects: Sequence[Effect]) -> None:
    failed = [effect for effect in effects if effect.error]
    if failed:
        print_line()
    for effect in failed[-FAILURES_SHOWN:]:
        text = f"{printable(effect.name)}: {printable(effect.error or '')}"
        print_line(f"{paint('▒', 'red')} {clipped(text, (columns() or 10_000) - 2)}")


def _print_replay(view: dict[str, Any], shown: int) -> None:
    """Print what the replay with the code of an app has shown, if there was one."""
    replay = view.get("replay")
    if replay is None:
        return
    verdict = Verdict(replay["verdict"])
    told = replay["reason"] or (f"goes on at {', '.join(replay['at'])}" if replay["at"] else "")
    print_line()
    _print_fact("replay", f"{WORDS[verdict][0]}{': ' if told else ''}{told}", COLOURS[verdict])
    for effect in view["effects"][-shown:] if shown else ():
        if effect["new_name"] is not None:
            _print_mark(effect["name"], f"is named {effect['new_name']} now")
        if effect["passed_over"]:
            _print_mark(effect["name"], "not asked for any more")


def _print_mark(name: str, text: str) -> None:
    print_line(f"{paint('○', 'yellow')} {printable(name)}: {printable(text)}")


def _print_values(effects: Sequence[dict[str, Any]]) -> None:
    """Print the inputs and outputs of effects, if they were read."""
    for effect in effects:
        known = [name for name in ("input", "output") if effect.get(name) is not None]
        if known:
            print_line()
            print_line(paint(printable(effect["name"]), None, bold=True))
        for name in known:
            _print_fact(f"  {name}", _value(effect[name]))


def _print_message(message: dict[str, Any]) -> None:
    """Print a message, a call or a result of a transcript."""
    match message["kind"]:
        case "tool_call":
            label, text = "call", shown_call(message["tool"], message["arguments"])
        case "tool_result":
            label, text = "result", f"{message['tool']}: {message['text']}"
        case kind:
            label, text = kind, message["text"]
    marks = [mark for mark in ("error", "interrupted") if message.get(mark)]
    attached = [one["name"] or one["media_type"] for one in message.get("attachments", ())]
    notes = "".join(f" [{note}]" for note in (*marks, *attached))
    _print_fact(label, text + notes, "red" if marks else None)


def _print_fact(label: str, text: str, colour: str | None = None) -> None:
    room = columns()
    shown = printable(text)
    if room is not None:
        shown = wrapped(clipped(shown, 3 * room), LABEL)
    painted = "\n".join(paint(line, colour) for line in shown.split("\n"))
    print_line(f"{paint(f'{label:{LABEL}}', 'bright_black')}{painted}")


def _print_hint(label: str, command: str) -> None:
    """Print a command on one line, so that it can be copied."""
    print_line(paint(f"{label:{LABEL}}{printable(command)}", "bright_black"))


def _value(value: Any) -> str:
    return value if isinstance(value, str) else brief(value)


def _arguments(arguments: Any) -> str:
    if not isinstance(arguments, dict):
        return "" if arguments is None else brief(arguments)
    return ", ".join(f"{name}={brief(value)}" for name, value in arguments.items())


def _usage(usage: dict[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value:,}" for name, value in usage.items() if value
    )


def _argument(text: str) -> str:
    """Return a text quoted for the shell."""
    return shlex.quote(text)
