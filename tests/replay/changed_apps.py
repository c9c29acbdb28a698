"""Deployments of one app, before and after a change of its code: the old code, the changed one, and the mended one.

Each cell of the table in ``test_changes`` has processes, tools and a session of its own in the same app, so that one
worker of each deployment handles all of them. Side effects are noted in a ledger.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pylash import Lash, ModelRequest, ProcessContext, WorkerConfig
from pylash.testing import ScriptedModel, call, say

Context = ProcessContext[Any]
Body = Callable[["Work"], Awaitable[Any]]
Tools = dict[str, Callable[..., Awaitable[str]]]

WORKER = WorkerConfig(concurrency=1_000, park_after="1ms")
TURN = "t"
VERSIONS = ("old", "new", "mended")
PROGRAM = ("load", "charge", "rest", "ship")


class Cell(msgspec.Struct, frozen=True):
    """A run of one kind under one change; ``remedy`` says how it continues if the change blocks it: ``back`` or ``mended``."""

    change: str
    kind: str
    remedy: str

    @property
    def id(self) -> str:
        """The id of its process or session, and the end of the names of its tools."""
        return f"{self.change}_{self.kind}_{self.remedy}"

    @property
    def changed(self) -> str:
        """The id of the run whose code is changed."""
        return f"{self.id}_child" if self.kind == "child" else self.id


class Ledger:
    """What was done for each cell; also in a file if this process is to be killed."""

    def __init__(self, path: Path | None = None) -> None:
        self.lines: list[str] = []
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, cell: str, name: str) -> str:
        """Write a line; return the name."""
        self.lines.append(f"{cell} {name}")
        if self._file is not None:
            os.write(self._file, f"{cell} {name}\n".encode())
        return name


class Work:
    """What the body of a process uses."""

    def __init__(self, shop: Shop, cell: Cell, ctx: Context) -> None:
        self.ctx, self._shop, self._cell = ctx, shop, cell

    async def step(self, name: str, *args: Any, returns: Any = str, module: str = __name__) -> Any:
        """Execute a step of a name."""

        def perform(*args: Any) -> Any:
            # Under another name it does the same.
            done = self._shop.ledger.note(self._cell.id, name.removesuffix("_card"))
            return " ".join([done, *map(str, args)])

        perform.__name__, perform.__module__ = name, module
        perform.__annotations__ = {"return": returns}
        return await self.ctx.step(perform, *args)

    async def rest(self) -> None:
        """Come to the place where the process is parked or killed: a wait, or a step that hangs."""
        if self._shop.is_killed:
            await self.hold("holding")
        else:
            await self.ctx.wait_signal("go")

    async def hold(self, name: str) -> None:
        """Execute a step that hangs until its process is killed."""

        async def hang() -> None:
            await self._shop.hold(self._cell.id, name)

        await self.ctx.step(hang)

    async def pay(self, **arguments: Any) -> Any:
        """Call the tool of the cell."""
        return await self.ctx.call_tool(f"pay_{self._cell.id}", **arguments)

    async def ask(self, prompt: str) -> str:
        """Ask the model that the process was started with."""
        return await self.ctx.complete(f"{prompt} {self._cell.id}")


class Change(msgspec.Struct, frozen=True):
    """A change of code: what is other in the changed and in the mended version than in the old one.

    ``bodies`` are the code of a process in the three versions, ``agent`` that of a process with an agent, and ``options``
    those of its declaration. ``tools`` are those of a program, an agent or a session; ``program`` is the source of a program.
    """

    bodies: tuple[Body, Body, Body]
    agent: tuple[Body, Body, Body]
    options: Mapping[str, Any] = {}
    tools: Callable[[Tools], Tools] = dict
    mended_tools: Callable[[Tools], Tools] = dict
    program: Sequence[str] = PROGRAM
    # Whether a process has another parameter: a required one when changed, and one with a default when mended.
    adds_parameter: bool = False
    # Whether the process, group, child, program or agent has another name.
    renames_whole: bool = False
    # Whether the tool that the body calls has another schema.
    changes_pay: bool = False
    # Whether the instructions of an agent and of a session are edited.
    prompt: str = "Help."

    def body(self, version: str) -> Body:
        """Return the code in a version."""
        return self.bodies[VERSIONS.index(version)]

    def edited(self, tools: Tools, version: str) -> Tools:
        """Return tools in a version."""
        return (dict, self.tools, self.mended_tools)[VERSIONS.index(version)](tools)


class Shop:
    """An app with the code of every cell in a version: ``old``, ``new``, or the remedy of each cell.

    Runs come to rest in a wait, or if they are to be killed in an effect, which hangs if ``hangs``.
    """

    def __init__(
        self,
        url: str,
        ledger: Ledger,
        cells: Mapping[Cell, Change],
        *,
        version: str,
        is_killed: bool,
        hangs: bool = False,
    ) -> None:
        self.ledger, self.is_killed, self._hangs = ledger, is_killed, hangs
        self.app = Lash(url, worker=WORKER, model="one" if version == "old" else "two")
        for name in ("one", "two"):
            self.app.model(name, ScriptedModel(Replies(self, name)))
        self._programs: list[str] = []
        self._starts: list[Callable[[], Awaitable[Any]]] = []
        for cell, change in cells.items():
            mine = version
            if version == "remedy":
                mine = "old" if cell.remedy == "back" else "mended"
            add = getattr(self, f"_add_{cell.kind}")
            self._starts.append(add(cell, change, mine))

    async def open(self) -> None:
        """Open the app, and link the changed programs."""
        await self.app.open()
        for source in self._programs:
            await self.app.lashlang(source)

    async def start_all(self) -> None:
        """Start the run of every cell."""
        for start in self._starts:
            await start()

    async def hold(self, cell: str, name: str = "holding") -> None:
        """Do not return, if runs are to be killed here."""
        if self._hangs:
            self.ledger.note(cell, name)
            await asyncio.Event().wait()

    # --- Python ---

    def _add_process(self, cell: Cell, change: Change, version: str) -> Any:
        body = change.body(version)

        async def run(ctx: Context) -> Any:
            return await body(Work(self, cell, ctx))

        is_renamed = change.renames_whole and version == "new"
        name = f"{cell.id}_renamed" if is_renamed else cell.id
        return self._started(self._declared(cell, change, version, name, run), cell.id)

    def _add_gather(self, cell: Cell, change: Change, version: str) -> Any:
        body = change.body(version)
        is_renamed = change.renames_whole and version != "old"

        async def run(ctx: Context) -> Any:
            work = Work(self, cell, ctx)
            works = [body(work), beside(work)]
            return await ctx.gather(*works, key="all" if is_renamed else "both")

        async def beside(work: Work) -> Any:
            done = await work.step("beside")
            if self.is_killed:  # so that it is recorded
                await work.hold("holding too")
            return done

        return self._started(self._declared(cell, change, version, cell.id, run), cell.id)

    def _add_child(self, cell: Cell, change: Change, version: str) -> Any:
        body = change.body(version)

        async def run(ctx: Context) -> Any:
            return await body(Work(self, cell, ctx))

        is_renamed = change.renames_whole and version == "new"
        name = f"{cell.id}_kid" if is_renamed else f"{cell.id}_child"
        child = self._declared(cell, change, version, name, run)

        async def parent(ctx: Context) -> Any:
            work = Work(self, cell, ctx)
            first = await work.step("before")
            handle = await ctx.start(child.options(id=f"{cell.id}_child"), cents=7)
            return [first, await handle.result(), await work.step("after")]

        target = self.app.process(name=cell.id)(parent)
        return lambda: self.app.start(target.options(id=cell.id))

    def _declared(self, cell: Cell, change: Change, version: str, name: str, run: Any) -> Any:
        async def plain(ctx: Context, cents: int) -> Any:
            return await run(ctx)

        async def with_currency(ctx: Context, cents: int, currency: str) -> Any:
            return await run(ctx)

        async def with_default(ctx: Context, cents: int, currency: str = "EUR") -> Any:
            return await run(ctx)

        async def pay(cents: int) -> str:
            return self.ledger.note(cell.id, "pay")

        async def pay_in(cents: int, currency: str) -> str:
            return self.ledger.note(cell.id, "pay")

        async def pay_default(cents: int, currency: str = "EUR") -> str:
            return self.ledger.note(cell.id, "pay")

        at = VERSIONS.index(version)
        tool = (pay, pay_in, pay_default)[at] if change.changes_pay else pay
        self.app.tool(name=f"pay_{cell.id}")(tool)
        function = (plain, with_currency, with_default)[at] if change.adds_parameter else plain
        options = change.options if version == "mended" else {}
        return self.app.process(name=name, **options)(function)

    def _started(self, target: Any, process_id: str) -> Any:
        return lambda: self.app.start(target.options(id=process_id), cents=7)

    # --- Lashlang, agents, turns ---

    def _add_lashlang(self, cell: Cell, change: Change, version: str) -> Any:
        for name, function in change.edited(self.tools(cell), version).items():
            self.app.tool(name=f"{name}_{cell.id}")(function)
        program = change.program if version == "new" else PROGRAM
        name = "other" if change.renames_whole and version == "new" else "main"
        rest = f"await tools.hold_{cell.id}({{}})?" if self.is_killed else "wait signal go"
        lines = [
            f"{part} = {rest}"
            if part == "rest"
            else f"{part} = await tools.{part}_{cell.id}({{ {'cents: 7' * (part == 'charge')} }})?"
            for part in program
        ]
        source = "\n".join(lines)
        source = (
            f"process {name}() signals {{ go: any }} {{\n{source}\nfinish [load, charge, ship]\n}}"
        )
        if program is not PROGRAM:
            self._programs.append(source)

        async def start() -> Any:
            module = await self.app.lashlang(source)
            return await self.app.start(module[name].options(id=cell.id))

        return start

    def _add_turn(self, cell: Cell, change: Change, version: str) -> Any:
        tools = change.edited(self.tools(cell), version)
        for name, function in tools.items():
            needs_approval = name == "charge" and not self.is_killed
            self.app.tool(name=f"{name}_{cell.id}", approval=needs_approval)(function)
        names = [f"{name}_{cell.id}" for name in tools]
        # A deployment edits the instructions of the session when it opens it for its next turn.
        prompt = "Help." if version == "old" else change.prompt

        async def start() -> Any:
            session = self.app.session(cell.id, tools=names, instructions=prompt)
            async with session.stream(cell.id, turn_id=TURN):
                """Leaving never cancels."""

        return start

    def _add_agent(self, cell: Cell, change: Change, version: str) -> Any:
        from tests.replay.changed_agents import agent_run  # noqa: PLC0415 - takes seconds to import

        options = change.options if version == "mended" else {}
        run = agent_run(self, cell, change, version)
        target = self.app.process(name=cell.id, **options)(run)
        return lambda: self.app.start(target.options(id=cell.id))

    def tools(self, cell: Cell) -> Tools:
        """Return the tools of a cell, as in the old code."""

        async def load() -> str:
            return self.ledger.note(cell.id, "load")

        async def charge(cents: int) -> str:
            if cell.kind == "turn":
                await self.hold(cell.id)
            return f"{self.ledger.note(cell.id, 'charge')} {cents}"

        async def hold() -> str:
            await self.hold(cell.id)
            return "held"

        async def ship() -> str:
            return self.ledger.note(cell.id, "ship")

        return {"load": load, "charge": charge, "hold": hold, "ship": ship}


class Replies:
    """The replies of a model: the tool calls of a turn, and answers to prompts of processes."""

    def __init__(self, shop: Shop, name: str) -> None:
        self._shop, self._name = shop, name

    def __call__(self, request: ModelRequest) -> Any:
        *_, asked = [message.text for message in request.messages if message.role == "user"]
        prompt, _, cell = asked.rpartition(" ")
        replies = sum(message.role == "assistant" for message in request.messages)
        self._shop.ledger.note(cell, f"model {prompt}{replies}")
        if prompt:
            return say(f"{self._name} {prompt}")
        calls = [f"load_{cell}", f"charge_{cell}", f"ship_{cell}"]
        if replies < len(calls):
            return call(calls[replies], **({"cents": 7} if replies == 1 else {}))
        results = [message.text for message in request.messages if message.role == "tool"]
        return say(" ".join(results))


# --- edits of tools ---


def renaming(before: str, after: str) -> Callable[[Tools], Tools]:
    """Return an edit that renames a tool."""
    return lambda tools: {after if name == before else name: one for name, one in tools.items()}


def without(gone: str) -> Callable[[Tools], Tools]:
    """Return an edit that removes a tool."""
    return lambda tools: {name: one for name, one in tools.items() if name != gone}


def adding(tools: Tools) -> Tools:
    """Add a tool."""

    async def check() -> str:
        raise AssertionError("nobody calls it")

    return {"check": check, **tools}


def backwards(tools: Tools) -> Tools:
    """List tools in another order."""
    return dict(reversed(tools.items()))


def with_currency(tools: Tools) -> Tools:
    """Add a required parameter to ``charge``."""

    async def charge(cents: int, currency: str) -> str:
        return await tools["charge"](cents)

    return {**tools, "charge": charge}


def with_default(tools: Tools) -> Tools:
    """Add a parameter with a default to ``charge``."""

    async def charge(cents: int, currency: str = "EUR") -> str:
        return await tools["charge"](cents)

    return {**tools, "charge": charge}


def with_list(tools: Tools) -> Tools:
    """Change the type of a parameter of ``charge``."""

    async def charge(cents: list[int]) -> str:
        return await tools["charge"](cents[0])

    return {**tools, "charge": charge}


def with_either(tools: Tools) -> Tools:
    """Let ``charge`` accept the old type and the new one."""

    async def charge(cents: int | list[int]) -> str:
        return await tools["charge"](cents if isinstance(cents, int) else cents[0])

    return {**tools, "charge": charge}


def moved(tools: Tools) -> Tools:
    """Move the functions to another module."""
    for function in tools.values():
        function.__module__ = "shop.billing"
    return tools
