"""Agents to be crashed: turns with tools, an approval, a deferral, retries, a trigger and a wake."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, ClassVar

from pylash import (
    EVENT,
    Agent,
    Lash,
    ModelRequest,
    ProcessContext,
    Retry,
    Session,
    SessionPlugin,
    Tool,
    ToolContext,
    TurnView,
    tool,
)
from pylash.testing import ScriptedModel, call, calls, say
from tests.backends import eventually
from tests.sessions.scenes import transcript

runs: Counter[str] = Counter()
"""How often each tool really ran in this process."""


def reply(request: ModelRequest) -> Any:
    """Answer by what was said: no counting, so that the same question has the same answer."""
    last = request.messages[-1]
    match last.role, last.text:
        case "user", "Where is 7?":
            return calls(call("look", n=7), call("look", n=8), call("nobody"))
        case "user", "Refund it.":
            return calls(call("refund", cents=5), call("ask"), call("flaky"))
        case _:
            return say(f"Heard {len(request.messages)}.")


def make_app(store: str) -> Lash:
    app = Lash(store, model=ScriptedModel(reply), instructions="Help.")
    app.trigger("refunded")

    @app.tool
    async def look(n: int) -> str:
        runs[f"look {n}"] += 1
        return f"order {n}"

    @app.tool(approval=lambda cents: cents > 3)
    async def refund(ctx: ToolContext[None], cents: int) -> str:
        runs["refund"] += 1
        ctx.emit("refunded", source_key="shop", payload=cents)
        return f"{cents} cents"

    @app.tool
    async def ask(ctx: ToolContext[None]) -> Any:
        runs["ask"] += 1
        return ctx.defer()

    @app.tool(retry=Retry(2, delay="1ms"), scheduling="serial")
    async def flaky(ctx: ToolContext[None]) -> str:
        runs[f"flaky {ctx.attempt}"] += 1
        if ctx.attempt == 1:
            raise OSError("away")
        return "back"

    @app.process
    async def thank(ctx: ProcessContext[None], cents: int) -> None:
        await ctx.wake(f"{cents} cents were refunded")

    return app


async def story(app: Lash) -> str:
    """Play three turns and a wake; return the transcript."""
    session = app.session("chat")
    thank = app.services.definitions["thank"]
    await app.triggers.register(
        "refunded",
        source_key="shop",
        target=thank.options(wake="thanks"),
        key="k",
        inputs={"cents": EVENT},
    )
    await session.turn("Where is 7?", turn_id="t1")
    async with asyncio.TaskGroup() as group:
        turn = group.create_task(session.turn("Refund it.", turn_id="t2"))
        while not turn.done():
            for wait in await app.waits(session_id="chat"):
                await app.resolve(wait.key, True if wait.kind == "approval" else "Monday")
            await asyncio.sleep(0.002)
    await session.turn("Thanks.", turn_id="t3")
    other = app.session("thanks")
    await eventually(lambda: answered(other, 1))
    return await transcript(session) + await transcript(other)


async def answered(session: Session, times: int) -> bool:
    return (await transcript(session)).count("assistant") >= times


def make_busy_app(store: str) -> Lash:
    """Make an app in which people speak while a turn runs."""

    def answer(request: ModelRequest) -> Any:
        spoken = [message.text for message in request.messages]
        if "go" in spoken and not any(text == "worked" for text in spoken):
            return call("work")
        return say(f"Heard {spoken[-1]}.")

    app = Lash(store, model=ScriptedModel(answer))

    @app.tool
    async def work() -> str:
        runs["work"] += 1
        await app.session("chat").enqueue("hurry", when="now", key="k1")
        await app.session("chat").enqueue("and then", key="k2")
        return "worked"

    return app


async def busy_story(app: Lash) -> str:
    session = app.session("chat")
    await session.turn("go", turn_id="t1")
    await eventually(lambda: answered(session, 3))
    return await transcript(session)


def make_family(store: str) -> Lash:
    """Make an app whose model asks two researchers at once."""

    def reply(request: ModelRequest) -> Any:
        texts = [message.text for message in request.messages]
        last = request.messages[-1]
        if texts[0] == "Research.":
            return call("read", page=7) if last.role == "user" else say(f"{texts[1]}: {last.text}")
        if last.role == "user":
            return calls(*(call("spawn_agent", agent="researcher", task=task) for task in "ab"))
        return say(f"So: {' '.join(texts[-2:])}")

    app = Lash(store, model=ScriptedModel(reply))

    async def read(ctx: ToolContext[None], page: int) -> str:
        """Read a page."""
        runs[f"read {ctx.session_id}"] += 1
        return f"page {page}"

    app.agent("researcher", instructions="Research.", tools=[read])
    app.subagents("researcher")
    return app


async def family_story(app: Lash) -> str:
    """Play a turn with its subagents; return every transcript."""
    session = app.session("chat")
    result = await session.turn("go", turn_id="t1")
    assert result.usage.requests == 6
    told = [await transcript(app.session(one.id)) for one in await app.processes()]
    return await transcript(session) + "".join(sorted(told))


def make_writers(store: str) -> Lash:
    """Make an app with a process that asks a session twice."""
    app = Lash(
        store, model=ScriptedModel(lambda request: say(f"Heard {request.messages[-1].text}."))
    )

    @app.process
    async def write(ctx: ProcessContext[None]) -> list[str]:
        session = ctx.session("chat")
        first = await session.turn("one")
        second = await session.turn("two")
        return [first.text, second.text]

    return app


async def writers_story(app: Lash) -> str:
    write = app.services.definitions["write"]
    handle = await app.start(write.options(id="p"))
    texts = await handle.result()
    return f"{await transcript(app.session('chat'))}{texts}\n"


class Advice(SessionPlugin):
    """Says something at every checkpoint."""

    async def checkpoint(self, turn: TurnView) -> list[str]:
        return [f"advice {turn.iteration}"]


class Advisor:
    """Builds advice."""

    name = "advisor"

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        return Advice()


def make_advised(store: str) -> Lash:
    """Make an app with a plugin."""
    app = Lash(store, model=ScriptedModel([call("work"), say("Done.")]), plugins=[Advisor()])

    @app.tool
    async def work() -> str:
        return "worked"

    return app


async def advised_story(app: Lash) -> str:
    session = app.session("chat")
    await session.turn("go", turn_id="t1")
    return await transcript(session)


class Skills(SessionPlugin):
    """Has a tool to learn others; what is known is kept elsewhere, where every worker finds it."""

    def __init__(self, known: set[str]) -> None:
        self.known = known

    def tools(self) -> list[Tool[..., Any]]:
        @tool
        async def learn(ctx: ToolContext[None], skill: str) -> str:
            self.known.add(skill)
            ctx.sync_environment()
            return f"learned {skill}"

        @tool
        async def draw() -> str:
            return "drawn"

        return [learn, *([draw] if "draw" in self.known else [])]

    def prompt(self) -> str:
        return f"Skills: {', '.join(sorted(self.known)) or 'none'}."


class SkillsOfStore:
    """Builds skills that are kept for a store."""

    name = "skills"
    known: ClassVar[dict[str, set[str]]] = {}

    def __init__(self, store: str) -> None:
        self.store = store

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        return Skills(self.known.setdefault(self.store, set()))


def make_skilled(store: str) -> Lash:
    """Make an app whose model learns a tool and calls it."""

    def reply(request: ModelRequest) -> Any:
        results = [message for message in request.messages if message.role == "tool"]
        replies = (call("learn", skill="draw"), call("draw"), say("Done."))
        prompt = "Skills: draw." if results else "Skills: none."
        if request.messages[0].text != prompt:
            return say(f"The prompt is {request.messages[0].text}")
        return replies[len(results)]

    return Lash(store, model=ScriptedModel(reply), plugins=[SkillsOfStore(store)])


async def skilled_story(app: Lash) -> str:
    session = app.session("chat")
    await session.turn("go", turn_id="t1")
    return await transcript(session)


def make_forked(store: str) -> Lash:
    """Make an app with an agent that reads, and knows what was said before."""

    def reply(request: ModelRequest) -> Any:
        if request.messages[0].text != "Find sources.":
            return say("Hello.")
        if request.messages[-1].role == "user":
            return call("read", page=7)
        asked = [message.text for message in request.messages if message.role == "user"]
        return say(f"{request.messages[-1].text} for {asked}")

    app = Lash(store, model=ScriptedModel(reply))

    @app.tool
    async def read(page: int) -> str:
        """Read a page."""
        return f"page {page}"

    app.agent("researcher", instructions="Find sources.", tools=[read])
    return app


async def forked_story(app: Lash) -> str:
    """Let an agent go on from the history of a chat, which goes on meanwhile; return both transcripts."""
    researcher = app.catalog.agents["researcher"]
    assert isinstance(researcher, Agent)
    chat = app.session("chat")
    await chat.turn("Hi.", turn_id="t1")
    handle = await app.start(researcher.options(id="r", fork="chat", at="t1"), "Who?")
    await chat.turn("And?", turn_id="t2")
    await app.session("r").turn("Thanks.", turn_id="t3")  # it waits for the agent
    result = await handle.result()
    return f"{result.text}\n{await transcript(app.session('r'))}{await transcript(chat)}"
