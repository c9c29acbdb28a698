"""What an app is made of has one name each."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from pylash import Lash, NameTaken, ProcessContext, tool

CELL = '''
async def double(n: int) -> int:
    """Double a number."""
    return {body}
'''


def named(answer: str) -> Callable[[], Any]:
    async def lookup() -> str:
        """Find an order."""
        return answer

    return lookup


async def lookup(ctx: ProcessContext[None]) -> str:
    return "a process"


def cell(body: str, file: str, line: int = 0) -> Any:
    """Return a function as a cell of a notebook defines it."""
    notebook = ModuleType("notebook")
    code = compile("\n" * line + CELL.format(body=body), file, "exec")
    exec(code, notebook.__dict__)
    return notebook.__dict__["double"]


def test_two_tools_of_one_name_are_refused() -> None:
    app = Lash(tools=[named("first")])
    with pytest.raises(NameTaken, match="another tool 'lookup'") as caught:
        app.tool(named("second"))
    assert caught.value.code == "name_taken"
    app.tool(name="lookup_again")(named("second"))
    app.process(lookup)  # processes have names of their own


async def test_a_session_cannot_take_the_name_of_another_tool() -> None:
    async with Lash("memory://", tools=[named("first")]) as app:
        with pytest.raises(NameTaken, match="'lookup'"):
            app.session("s", tools=[named("second")])


def test_two_processes_of_one_name_are_refused() -> None:
    app = Lash()

    async def other(ctx: ProcessContext[None]) -> str:
        return "another"

    app.process(lookup)
    with pytest.raises(NameTaken, match="another process 'lookup'"):
        app.process(name="lookup")(other)
    assert app.process(lookup).function is lookup


async def test_the_same_function_may_be_declared_again_and_stays_everybodys() -> None:
    given = named("first")
    async with Lash("memory://", tools=[given]) as app:
        app.session("s", tools=[given, tool(approval=True)(given)])
        assert app.catalog.private == set()
        assert app.catalog.tool("lookup").approval is True


class Shop:
    async def lookup(self) -> str:
        """Find an order."""
        return "here"


def test_a_method_is_its_objects() -> None:
    shop = Shop()
    app = Lash(tools=[shop.lookup])
    app.tool(shop.lookup)
    with pytest.raises(NameTaken):
        app.tool(Shop().lookup)


def test_a_cell_of_a_notebook_may_be_run_again() -> None:
    app = Lash(tools=[cell("n * 2", "<cell 1>")])
    app.tool(cell("n * 2", "<cell 1>"))
    assert app.tool(cell("n + n", "<cell 2>")).function.__code__.co_filename == "<cell 2>"
    with pytest.raises(NameTaken):
        app.tool(cell("n * 3", "<cell 2>", line=9))
