"""A program with every kind of effect, to be killed at each of them; what its tools did is in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pylash import Lash, ToolError

SOURCE = """
process main(who: str) signals { answer: int } {
  one = await tools.note({ text: who })?
  both = await [tools.note({ text: "left" })?, tools.flaky({ text: "right" })]
  t = await triggers.register({
    source: events.tick({ source_key: "s" }), target: child, inputs: { n: trigger.event }, key: "k",
  })?
  h = start child(n: 20)
  wake both
  sleep for 1
  first = wait signal answer
  late = wait signal answer within 1
  signal run h go with first
  rest = await [h]
  cancel h
  finish [one, both, t.key, first, late, rest]
}
process child(n: int) signals { go: int } { finish n + wait signal go }
"""

OUTCOME = [
    "Ann",
    ["left", {"ok": False, "error": "no"}],
    "k",
    22,
    None,
    [{"ok": True, "value": 42}],
]


def log_of(store: str) -> Path:
    """Return the file of what tools did for a store."""
    return Path(store.removeprefix("sqlite:///")).with_suffix(".log")


def make_app(store: str) -> Lash:
    app = Lash(store)
    app.trigger("tick", payload=int)

    def noted(line: str) -> None:
        with log_of(store).open("a") as file:
            file.write(f"{line}\n")

    @app.tool
    def note(text: str) -> str:
        """Note a text."""
        noted(text)
        return text

    @app.tool
    def flaky(text: str) -> str:
        """Fail."""
        noted(text)
        raise ToolError("no")

    return app


async def story(app: Lash) -> list[Any]:
    """Run the program; return its outcome, its log and the keys of what it recorded."""
    module = await app.lashlang(SOURCE)
    handle = await app.start(module["main"].options(id="p"), who="Ann")
    await handle.signal("answer", 22, id="only")
    result = await handle.result(timeout="20s")
    events = [[event.type, event.key] async for event in handle.events()]
    timeline = await handle.timeline()
    processes = [[view.target, view.status] for view in await app.processes()]
    return [
        result,
        events,
        sorted(effect.key for effect in timeline),
        sorted(processes),
        [one.subscription.key for one in await app.triggers.list()],
    ]
