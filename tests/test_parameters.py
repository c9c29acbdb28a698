"""Every public parameter does something, or is refused where it is given."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pylash
from pylash import (
    Agent,
    ArgumentsInvalid,
    DurationInvalid,
    Lash,
    LashError,
    NameInvalid,
    NotSupported,
    ProcessContext,
    Retention,
    Retry,
    SessionOptionUnknown,
    Summarise,
    Tool,
    ToolDefinitionInvalid,
    TurnBudget,
    Window,
    WorkerConfig,
    tool,
)
from pylash.processes.definition import ProcessDefinition
from pylash.processes.triggers import Triggers
from pylash.sync import Lash as SyncLash
from pylash.testing import LashHarness, ScriptedModel, say
from pylash.testing.plugin import lash
from pylash.turn.asks import SessionOptions

__all__ = ("lash",)

SRC = Path(pylash.__file__).parent

NOT_YET = {"mode", "language", "once", "reconcile"}
"""Parameters that are promised, and refused until they do something."""

CHECKS = ("_refuse", "__post_init__", "checked_", "_troubles")
"""Functions that only look at parameters: what they read is not used by that."""


async def work(ctx: ProcessContext[None], user: str = "") -> None: ...


async def send(text: str) -> None: ...


def given(**options: Any) -> Callable[[Lash], Any]:
    return lambda app: app.session("s", **options)


REFUSALS: list[tuple[str, type[LashError], Callable[[Lash], Any]]] = [
    (
        "app.session(mode='code') is not supported yet",
        NotSupported,
        given(mode="code"),
    ),
    ("mode='fast' is not 'standard'", ArgumentsInvalid, given(mode="fast")),
    (
        "(language='python') is not supported yet",
        NotSupported,
        given(language="python"),
    ),
    ("language='c' is not 'lashlang'", ArgumentsInvalid, given(language="c")),
    ("budget=5 is not a TurnBudget", ArgumentsInvalid, given(budget=5)),
    ("instructions=5 is not a string", ArgumentsInvalid, given(instructions=5)),
    ("history=5 is neither", ArgumentsInvalid, given(history=5)),
    ("tools='send' is not a list", ArgumentsInvalid, given(tools="send")),
    ("tools=5 is not a list", ArgumentsInvalid, lambda app: app.agent("a", tools=5)),  # type: ignore[arg-type]
    ("plugin_options=5 is not a mapping", ArgumentsInvalid, given(plugin_options=5)),
    ("There is no plugin 'x'", SessionOptionUnknown, given(plugin_options={"x": 1})),
    (
        "once= of tool 'send' is not supported yet",
        NotSupported,
        lambda _: tool(once=True)(send),
    ),
    ("reconcile= of tool 'send'", NotSupported, lambda _: tool(reconcile=print)(send)),
    ("key='{user}' has no effect", ArgumentsInvalid, lambda app: app.process(key="{user}")(work)),
    ("concurrency=0 is no", ArgumentsInvalid, lambda app: app.process(concurrency=0)(work)),
    (
        "key=5 is neither",
        ArgumentsInvalid,
        lambda app: app.process(concurrency=1, key=5)(work),  # type: ignore[call-overload]
    ),
    (
        "key='{zz}' names 'zz', which is not one of its parameters (user)",
        ArgumentsInvalid,
        lambda app: app.process(concurrency=1, key="{zz}")(work),
    ),
    (
        "key='{' is not a template such as '{user}'",
        ArgumentsInvalid,
        lambda app: app.process(concurrency=1, key="{")(work),
    ),
    (
        "key='{}' names ''",
        ArgumentsInvalid,
        lambda app: app.process(concurrency=1, key="{}")(work),
    ),
    (
        "approval_timeout='1d' has no effect without approval=",
        ToolDefinitionInvalid,
        lambda app: app.tool(approval_timeout="1d")(send),
    ),
    (
        "approval_timeout='7d' has no effect without approval=",
        ToolDefinitionInvalid,
        lambda app: app.tool(approval=False, approval_timeout="7d")(send),
    ),
    (
        "with a value or an error, not both",
        ArgumentsInvalid,
        lambda app: app.resolve("k", False, error="no"),
    ),
    ("name at least one agent", ArgumentsInvalid, lambda app: app.subagents()),
    (
        "attached=True is for a process that another one starts",
        ArgumentsInvalid,
        lambda app: app.start(ProcessDefinition(work).options(attached=True)),
    ),
    ("limit=0 is not a number", ArgumentsInvalid, lambda app: app.processes(limit=0)),
    (
        "so the option id= has no effect",
        ArgumentsInvalid,
        lambda app: subscribe(app, id="one"),
    ),
    (
        "so the option attached= has no effect",
        ArgumentsInvalid,
        lambda app: subscribe(app, attached=True),
    ),
    ("worker=5 is not", ArgumentsInvalid, lambda _: Lash(worker=5)),  # type: ignore[arg-type]
    ("retention='1d' is not", ArgumentsInvalid, lambda _: Lash(retention="1d")),  # type: ignore[arg-type]
    ("instructions=5 is not", ArgumentsInvalid, lambda _: Lash(instructions=5)),  # type: ignore[arg-type]
    ("plugins=5 is not a plugin factory", ArgumentsInvalid, lambda _: Lash(plugins=[5])),  # type: ignore[list-item]
    ("plugins=5 is not a list", ArgumentsInvalid, lambda _: Lash(plugins=5)),  # type: ignore[arg-type]
    ("host=5 is not an EffectHost", ArgumentsInvalid, lambda _: Lash(host=5)),  # type: ignore[arg-type]
    ("clock=5 is not a Clock", ArgumentsInvalid, lambda _: Lash(clock=5)),  # type: ignore[arg-type]
    ("migrate='x' is not True", ArgumentsInvalid, lambda _: Lash(migrate="x")),  # type: ignore[arg-type]
    ("residency='all' is not", ArgumentsInvalid, lambda _: WorkerConfig(residency="all")),  # type: ignore[arg-type]
    ("concurrency=0 is not", ArgumentsInvalid, lambda _: WorkerConfig(concurrency=0)),
    ("concurrency='5' is not", ArgumentsInvalid, lambda _: WorkerConfig(concurrency="5")),  # type: ignore[arg-type]
    ("lease=0 is not longer", ArgumentsInvalid, lambda _: WorkerConfig(lease=0)),
    ("renew='1m' is not between", ArgumentsInvalid, lambda _: WorkerConfig(renew="1m")),
    ("Invalid duration 'soon'", DurationInvalid, lambda _: WorkerConfig(park_after="soon")),
    ("Invalid duration 'soon'", DurationInvalid, lambda _: WorkerConfig(grace="soon")),
    ("Invalid duration 'old'", DurationInvalid, lambda _: Retention(journal="old")),
    ("max=0 is not a number", ArgumentsInvalid, lambda _: Retry(0)),
    ("factor=0 is not a number", ArgumentsInvalid, lambda _: Retry(factor=0)),
    ("jitter='no' is neither", ArgumentsInvalid, lambda _: Retry(jitter="no")),  # type: ignore[arg-type]
    ("on=5 is neither an exception", ArgumentsInvalid, lambda _: Retry(on=5)),  # type: ignore[arg-type]
    ("on=() is neither an exception", ArgumentsInvalid, lambda _: Retry(on=())),
    ("on=(5,) is neither", ArgumentsInvalid, lambda _: Retry(on=(5,))),  # type: ignore[arg-type]
    ("iterations=-1 is not a whole", ArgumentsInvalid, lambda _: TurnBudget(iterations=-1)),
    ("tokens=1.5 is not a whole", ArgumentsInvalid, lambda _: TurnBudget(tokens=1.5)),  # type: ignore[arg-type]
    ("seconds='5s' is not a number", ArgumentsInvalid, lambda _: TurnBudget(seconds="5s")),  # type: ignore[arg-type]
    ("cost=True is not a number", ArgumentsInvalid, lambda _: TurnBudget(cost=True)),
    ("tokens=0 is not a number", ArgumentsInvalid, lambda _: Window(tokens=0)),
    ("keep=90 is not from 0 to 50", ArgumentsInvalid, lambda _: Summarise(tokens=100, keep=90)),
]


async def subscribe(app: Lash, **options: Any) -> None:
    app.trigger("push")
    target = ProcessDefinition(work).options(**options)
    await app.triggers.register("push", source_key="org/repo", target=target, key="ci")


@pytest.mark.parametrize(("said", "kind", "call"), REFUSALS, ids=[one[0] for one in REFUSALS])
async def test_what_would_do_nothing_is_refused_where_it_is_given(
    lash: LashHarness, said: str, kind: type[LashError], call: Callable[[Lash], Any]
) -> None:
    async def called() -> None:
        if inspect.isawaitable(made := call(lash.app)):
            await made

    with pytest.raises(kind) as caught:
        await called()
    assert said in caught.value.message


def test_what_is_tried_again_may_be_one_exception() -> None:
    assert Retry(on=ConnectionError) == Retry(on=(ConnectionError,))


def test_a_concurrency_key_may_name_any_part_of_an_argument() -> None:
    async def rest(ctx: ProcessContext[None], /, **rest: str) -> None: ...

    ProcessDefinition(work, concurrency=1, key="{user.id}-{user[0]}-{{x}}")
    ProcessDefinition(rest, concurrency=1, key="{user}")


async def test_options_inside_a_process_are_refused_as_those_of_the_app(
    lash: LashHarness,
) -> None:
    @lash.app.process
    async def ask(ctx: ProcessContext[None]) -> None:
        with pytest.raises(ArgumentsInvalid, match=r"ctx\.session do not fit: budget=5"):
            ctx.session("s", budget=5)  # type: ignore[arg-type]
        with pytest.raises(NameInvalid, match="Invalid model name 5"):
            ctx.session("s", model=5)  # type: ignore[arg-type]
        with pytest.raises(ArgumentsInvalid, match="tools='send' is not a list"):
            ctx.session("s", tools="send")
        with pytest.raises(ArgumentsInvalid, match="retry=3 is not a Retry, such as"):
            ctx.options(retry=3)  # type: ignore[arg-type]
        with pytest.raises(DurationInvalid):
            ctx.options(timeout="soon")
        with pytest.raises(ArgumentsInvalid, match="text=5 is not a string"):
            await ctx.wake(5)  # type: ignore[arg-type]

    await (await lash.app.start(ask)).result(timeout="5s")


async def test_an_answer_to_a_signal_cannot_have_a_by(lash: LashHarness) -> None:
    @lash.app.process
    async def ask(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait_signal("go")

    handle = await lash.app.start(ask)
    while not (waits := await lash.app.waits()):
        await lash.advance("1s")
    with pytest.raises(ArgumentsInvalid, match="a signal does not record its sender"):
        await lash.app.resolve(waits[0].key, 1, by="ann")
    await lash.app.resolve(waits[0].key, 1)
    assert await handle.result(timeout="5s") == 1


def test_options_that_are_stored_are_read_whatever_they_are() -> None:
    """A store may have been written by a version that took them."""
    assert SessionOptions(mode="code").mode == "code"


# --- the parameters there are ---


def functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what may read parameters: everything but the functions that only check them."""
    parents = [tree]
    while parents:
        for node in ast.iter_child_nodes(parents.pop()):
            if not (isinstance(node, ast.FunctionDef) and node.name.startswith(CHECKS)):
                yield node
                parents.append(node)


@pytest.fixture(scope="module")
def read() -> set[str]:
    """Return the names of all attributes that are read somewhere in the package."""
    found: set[str] = set()
    for path in SRC.rglob("*.py"):
        if "testing" not in path.parts:
            for node in functions(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found.add(node.attr)
    return found


RECORDS = [WorkerConfig, Retention, Retry, TurnBudget, Window, Summarise, SessionOptions]
KEPT = [Tool.__init__, ProcessDefinition.__init__, Agent.__init__]


@pytest.mark.slow
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_of_options_is_read_or_refused(record: Any, read: set[str]) -> None:
    assert set(record.__struct_fields__) - NOT_YET <= read


@pytest.mark.parametrize("made", KEPT, ids=lambda made: made.__qualname__)
def test_every_option_that_is_kept_is_read_or_refused(made: Any, read: set[str]) -> None:
    kept = inspect.signature(made).parameters.keys() - {"self"} - NOT_YET
    assert {name for name in kept if not {name, f"_{name}"} & read} == set()


@pytest.mark.parametrize("owner", [Lash, Triggers], ids=lambda owner: owner.__name__)
def test_every_parameter_of_a_public_method_is_read(owner: type) -> None:
    for name, method in inspect.getmembers(owner, inspect.isfunction):
        if name.startswith("_") and name != "__init__":
            continue
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(method)))
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for parameter in inspect.signature(method).parameters:
            assert parameter == "self" or parameter in used, f"{owner.__name__}.{name}({parameter})"


def test_an_app_without_await_takes_the_same_options() -> None:
    with SyncLash("memory://", model=ScriptedModel([say("ok")])) as app:
        with pytest.raises(NotSupported):
            app.session("s", mode="code")
        assert app.session("s", mode="standard", language="lashlang").turn("hi").text == "ok"
