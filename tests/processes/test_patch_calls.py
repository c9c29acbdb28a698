"""The calls of ``patched`` and ``deprecate_patch`` that are found in source code, and the processes that they belong to."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from pylash.processes.patch_calls import PatchCalls, find_patch_calls

HEAD = "from pylash import Lash\napp = Lash('memory://')\n"

_numbers = itertools.count(1)


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], ModuleType]:
    def load_module(body: str) -> ModuleType:
        file = tmp_path / f"patch_calls_{next(_numbers)}.py"
        file.write_text(HEAD + body)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load_module


def found(*modules: ModuleType) -> PatchCalls:
    return find_patch_calls(
        one for module in modules for one in module.app.definitions.all_versions()
    )


def ids(calls: PatchCalls) -> dict[tuple[str, int], set[str | None]]:
    return {
        (process.name, process.version): {call.patch for call in given}
        for process, given in calls.of_process
    }


CASES: dict[str, tuple[str, dict[tuple[str, int], set[str | None]]]] = {
    "its own body": (
        """
@app.process
async def a(ctx):
    if await ctx.patched("one"): pass
    ctx.deprecate_patch("two")
@app.process
async def b(ctx):
    await ctx.patched(patch="three")
""",
        {("a", 1): {"one", "two"}, ("b", 1): {"three"}},
    ),
    "versions of one function name": (
        """
def declare(version, patch):
    if version == 1:
        @app.process(name="a")
        async def order(ctx):
            await ctx.patched("one")
    else:
        @app.process(name="a", version=2)
        async def order(ctx):
            await ctx.patched("two")
declare(1, ""); declare(2, "")
""",
        {("a", 1): {"one"}, ("a", 2): {"two"}},
    ),
    "functions that lead to it": (
        """
async def far(ctx): await ctx.patched("far")
async def near(ctx): await far(ctx)
async def passed(ctx): await ctx.patched("passed")
TABLE = {"x": passed}
@app.process
async def a(ctx):
    async def inner(): await ctx.patched("inner")
    await near(ctx)
    await ctx.gather(inner())
@app.process
async def b(ctx):
    await TABLE["x"](ctx)
""",
        {("a", 1): {"far", "inner"}, ("b", 1): {"passed"}},
    ),
    "methods": (
        """
class Flow:
    async def __call__(self, ctx): await ctx.patched("called")
    async def run(self, ctx): await ctx.patched("run")
class Other:
    async def other(self, ctx): await ctx.patched("other")
@app.process
async def a(ctx): await Flow()(ctx)
@app.process
async def b(ctx): await Other().other(ctx)
""",
        {("a", 1): {"called", "run"}, ("b", 1): {"other"}},
    ),
    "reached by no name": (
        """
async def hidden(ctx): await ctx.patched("hidden")
@app.process
async def a(ctx): await globals()["hid" + "den"](ctx)
@app.process
async def b(ctx): await ctx.patched("own")
""",
        {("a", 1): {"hidden"}, ("b", 1): {"own", "hidden"}},
    ),
    "a started process is not a part": (
        """
@app.process
async def child(ctx): await ctx.patched("child")
@app.process
async def starts(ctx): await ctx.start(child)
@app.process
async def calls(ctx): await child(ctx)
""",
        {("child", 1): {"child"}, ("starts", 1): set(), ("calls", 1): {"child"}},
    ),
    "computed": (
        """
NAME = "x"
@app.process
async def a(ctx):
    await ctx.patched(NAME)
    await ctx.patched("lit" "eral")
""",
        {("a", 1): {None, "literal"}},
    ),
    "an object": (
        """
class Flow:
    __name__ = "flow"
    async def __call__(self, ctx): await ctx.patched("called")
app.process(name="a")(Flow())
@app.process
async def b(ctx): pass
""",
        {("a", 1): {"called"}, ("b", 1): set()},
    ),
    "wrapped": (
        """
import functools
def logged(function):
    @functools.wraps(function)
    async def call(ctx): return await function(ctx)
    return call
@app.process
@logged
async def a(ctx): await ctx.patched("one")
@app.process
@logged
async def b(ctx): await ctx.patched("two")
""",
        {("a", 1): {"one"}, ("b", 1): {"two"}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_calls_belong_to_processes(load: Callable[[str], ModuleType], case: str) -> None:
    body, expected = CASES[case]
    calls = found(load(body))
    assert ids(calls) == expected
    assert calls.unread == []


def test_functions_of_other_modules_that_declare_processes_count(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = load(
        """
async def check(ctx): await ctx.patched("check")
@app.process
async def a(ctx): pass
"""
    )
    monkeypatch.setitem(sys.modules, one.__name__, one)
    other = load(
        f"""
from {one.__name__} import check as verify
@app.process
async def b(ctx): await verify(ctx)
"""
    )
    assert ids(found(one, other)) == {("a", 1): set(), ("b", 1): {"check"}}


def test_a_call_has_its_name_and_place(load: Callable[[str], ModuleType]) -> None:
    module = load("@app.process\nasync def a(ctx):\n    ctx.deprecate_patch('x')\n")
    ((_, (call,)),) = found(module).of_process
    assert (call.name, call.patch, call.file, call.line) == (
        *("deprecate_patch", "x"),
        *(module.__file__, 5),
    )


def test_processes_without_source_are_returned(load: Callable[[str], ModuleType]) -> None:
    module = load("exec('@app.process\\nasync def a(ctx):\\n    pass\\n')\n")
    calls = found(module)
    assert ([one.name for one in calls.unread], calls.of_process) == (["a"], [])
