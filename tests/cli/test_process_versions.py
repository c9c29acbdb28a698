"""Versions and patches of processes on the command line: ``ps``, ``show``, ``replay``, and ``doctor`` with an app."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pylash import EVENT, Lash
from pylash.cli.store_options import load_app
from pylash.testing import kill
from tests.backends import eventually
from tests.cli.conftest import Call, ask
from tests.cli.test_replay import contents

HEAD = """
from pydantic import TypeAdapter
from pylash import Lash, ProcessContext

TypeAdapter(int)  # loads the plugins of pydantic, which reads files
app = Lash()
app.trigger("paid", payload=int)

def charge(): return 1
"""
FIRST = """
@app.process(name="order")
async def order_v1(ctx: ProcessContext[None], cents: int = 0):
    await ctx.step(charge)
    return await ctx.wait_signal("go")
"""
SECOND = """
@app.process(name="order", version=2)
async def order_v2(ctx: ProcessContext[None], cents: int = 0):
    return await ctx.wait_signal("go")
"""
THIRD = SECOND.replace("2", "3").replace("cents: int = 0", "*, country: str")
OTHER = """
@app.process
async def refund(ctx: ProcessContext[None]):
    return await ctx.wait_signal("go")
"""
PARENT = """
@app.process
async def parent(ctx: ProcessContext[None]):
    return await (await ctx.start(order_v2)).result()
"""
ENDS = """
@app.process
async def ends(ctx: ProcessContext[None]):
    await ctx.patched("taken by a run that has ended")
    await ctx.step(charge)
"""

Deploy = Callable[[str], str]
_numbers = itertools.count(1)


@pytest.fixture
def deploy(tmp_path: Path) -> Deploy:
    """Write a program; return its name for the command line."""

    def write(body: str) -> str:
        file = tmp_path / f"versions_{next(_numbers)}.py"
        file.write_text(HEAD + body)
        return f"{file}:app"

    return write


def started(url: str, named: str, **processes: str) -> None:
    """Start processes, each by the variable of its definition, and kill their worker when all wait or have ended."""
    app = load_app(named)
    app.url = url
    module = __import__(Path(named.rpartition(":")[0]).stem)

    async def start() -> None:
        await app.open()
        for process_id, variable in processes.items():
            await app.start(getattr(module, variable).options(id=process_id))

        async def all_rest() -> bool:
            states = {one.id: one.status for one in await app.processes()}
            return all(states[one] in ("waiting", "completed") for one in processes)

        await eventually(all_rest)
        await kill(app)

    asyncio.run(start())


# --- ps, show and replay ---


def test_lists_and_views_have_the_version(place: str, pylash: Call, deploy: Deploy) -> None:
    started(place, deploy(FIRST + SECOND), old="order_v1", new="order_v2")
    listed = {one["id"]: (one["target"], one["version"]) for one in ask(pylash, "ps")}
    assert listed == {"old": ("python:order", 1), "new": ("python:order", 2)}
    (new,) = (line for line in pylash("ps").stdout.splitlines() if " new " in line)
    (old,) = (line for line in pylash("ps").stdout.splitlines() if " old " in line)
    assert "order (v2)" in new
    assert "(v" not in old
    for process_id, version in (("old", 1), ("new", 2)):
        shown = ask(pylash, "show", process_id)
        assert (shown["target"], shown["version"]) == ("python:order", version)
    assert "process python:order (v2)" in pylash("show", "new").stdout
    assert "(v" not in pylash("show", "old").stdout


def test_the_view_of_a_parent_has_the_versions_of_its_children(
    place: str, pylash: Call, deploy: Deploy
) -> None:
    started(place, deploy(FIRST + SECOND + PARENT), p="parent")
    children = ask(pylash, "show", "p")["children"]
    assert [(one["target"], one["version"]) for one in children] == [("python:order", 2)]


def test_a_replay_names_the_version_that_the_app_lacks(
    place: str, pylash: Call, deploy: Deploy
) -> None:
    started(place, deploy(FIRST + SECOND), old="order_v1", new="order_v2")
    named = deploy(FIRST + THIRD)
    done = pylash("replay", named, "--json")
    found = {one["id"]: one for one in json.loads(done.stdout)["runs"]}
    assert done.exit_code == 1
    assert (found["old"]["verdict"], found["old"]["version"]) == ("fits", 1)
    assert (found["new"]["verdict"], found["new"]["version"]) == ("not_loaded", 2)
    reason = "this app does not declare version 2 of 'python:order' (declared: 1, 3)"
    assert found["new"]["reason"] == reason
    text = pylash("replay", named).stdout
    assert "not loaded  new  order (v2)" in text
    assert reason in text


# --- doctor: versions ---


def compared(pylash: Call, url: str, named: str) -> Any:
    """Return what the doctor finds in the code of an app; it has written nothing."""
    before = contents(url)
    done = pylash("doctor", named, "--json")
    assert (done.exit_code, contents(url)) == (0, before), done.output
    return json.loads(done.stdout)


def versions(found: Any) -> dict[tuple[str, int], tuple[bool, int, bool]]:
    return {
        (one["process"], one["version"]): (one["declared"], one["live"], one["deletable"])
        for one in found["processes"]
    }


def test_versions_are_counted_and_those_without_runs_can_be_deleted(
    place: str, pylash: Call, deploy: Deploy
) -> None:
    code = deploy(FIRST + SECOND + OTHER + ENDS)
    started(place, code, a="order_v2", b="order_v2", c="refund", d="ends")
    named = deploy(FIRST + SECOND + THIRD + ENDS)
    found = compared(pylash, place, named)
    assert versions(found) == {
        ("order", 1): (True, 0, True),
        ("order", 2): (True, 2, False),
        ("order", 3): (True, 0, False),  # the newest is the one that is started
        ("refund", 1): (False, 1, False),
        ("ends", 1): (True, 0, False),
    }
    assert {one["name"] for one in found["findings"]} >= {"schema", "workers"}
    text = pylash("doctor", named).stdout
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "order 1 0 can be deleted" in lines
    assert "order 2 2" in lines
    assert "order 3 0" in lines
    assert "refund 1 1 not declared: its runs wait for a worker that has it" in lines
    assert "Before you delete a version, see that no code starts its definition." in lines


def test_a_version_that_a_subscription_starts_cannot_be_deleted(
    place: str, pylash: Call, deploy: Deploy
) -> None:
    named = deploy(FIRST)
    app = load_app(named)
    app.url = place

    async def subscribe() -> None:
        async with app:
            target = app.definitions["order"]
            given = {"cents": EVENT}
            await app.triggers.register(
                "paid", source_key="s", target=target, key="k", inputs=given
            )

    asyncio.run(subscribe())
    # The second version takes its inputs, the third needs more, and the narrow one has not even theirs.
    narrow = SECOND.replace(", cents: int = 0", "")
    assert versions(compared(pylash, place, deploy(FIRST + narrow)))["order", 1] == (True, 0, False)
    found = compared(pylash, place, named := deploy(FIRST + THIRD))
    assert versions(found)["order", 1] == (True, 0, False)
    assert [one["subscriptions"] for one in found["processes"]] == [1, 0]
    text = pylash("doctor", named).stdout
    assert "1 subscription starts it" in text
    assert "can be deleted" not in text
    found = compared(pylash, place, deploy(FIRST + SECOND + THIRD))
    assert [one["deletable"] for one in found["processes"]] == [True, False, False]


# --- doctor: patches ---


PATCHED = (
    """
@app.process
async def order(ctx: ProcessContext[None], cents: int = 0):
    async def part(n):
        await ctx.patched("in/branch")
        await ctx.step(charge)
    if await ctx.patched("fraud-check"):
        await ctx.gather(part(1), part(2))
    ctx.deprecate_patch("old")
    await ctx.step(charge)
    await ctx.wait_signal("go")
    await finish(ctx)

async def finish(ctx):
    await ctx.patched(patch="late")
    await ctx.patched("round " + str(1))
"""
    + OTHER
    + ENDS
)
BEFORE = (
    """
@app.process
async def order(ctx: ProcessContext[None], cents: int = 0):
    await ctx.patched("old")
    await ctx.step(charge)
    await ctx.wait_signal("go")
"""
    + OTHER
)


def test_patches_are_counted(place: str, pylash: Call, deploy: Deploy) -> None:
    started(place, deploy(BEFORE), first="order", second="order", r="refund")
    named = deploy(PATCHED)
    started(place, named, third="order", e="ends")
    found = compared(pylash, place, named)
    patches = {(one["patch"], one["process"]): one for one in found["patches"]}
    counts = {
        of: (one["call"], one["live"], one["recorded"], one["lacking"], one["oldest"])
        for of, one in patches.items()
    }
    assert counts == {
        ("fraud-check", "order"): ("patched", 3, 1, 2, "first"),
        ("in/branch", "order"): ("patched", 3, 1, 2, "first"),
        ("late", "order"): ("patched", 3, 0, 3, "first"),
        ("old", "order"): ("deprecate_patch", 3, 2, 1, "third"),
        ("taken by a run that has ended", "ends"): ("patched", 0, 0, 0, None),
    }
    listed = {one["id"]: one["created"] for one in ask(pylash, "ps")}
    assert patches["late", "order"]["oldest_started"] == listed["first"]
    file = named.rpartition(":")[0]
    line = 1 + Path(file).read_text().splitlines().index('    await ctx.patched("round " + str(1))')
    assert (found["computed"], found["unread"]) == ([f"{file}:{line}"], [])
    text = pylash("doctor", named).stdout
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert any(
        line.startswith("fraud-check order 1 patched 2 of 3 the oldest is first, started ")
        for line in lines
    )
    assert "old order 1 deprecate_patch 1 of 3 2 runs have recorded it: keep the call" in lines
    done = "taken by a run that has ended ends 1 patched 0 of 0"
    assert f"{done} delete the old code, and deprecate the patch" in lines
    for note in (
        "Ids of patches that are computed, and calls in modules that declare no process, are not seen.",
        "A run that has not come to the call lacks the patch too. It takes the patch there, as does a run with nothing recorded.",
        f"Calls with a computed id: {file}:{line}.",
    ):
        assert note in text


def test_a_patch_that_only_the_journal_has_is_listed(
    place: str, pylash: Call, deploy: Deploy
) -> None:
    started(place, deploy(BEFORE), a="order")
    (patch,) = compared(pylash, place, named := deploy(FIRST))["patches"]
    assert (patch["patch"], patch["call"], patch["recorded"]) == ("old", None, 1)
    lines = [" ".join(line.split()) for line in pylash("doctor", named).stdout.splitlines()]
    assert "old order 1 none 0 of 1 recorded, and no call was found" in lines
    done = BEFORE.replace('await ctx.patched("old")', 'ctx.deprecate_patch("older")')
    text = pylash("doctor", deploy(done)).stdout
    assert "no run has recorded it: delete the call" in text


# --- doctor: the app and its store ---


def test_the_store_of_the_app_is_used_unless_another_is_given(
    tmp_path: Path, file: str, pylash: Call, deploy: Deploy
) -> None:
    own = f"sqlite:///{tmp_path / 'own.db'}"
    started(own, deploy(FIRST), a="order_v1")
    started(file, deploy(FIRST), b="order_v1", c="order_v1")
    named = deploy(FIRST + f"\napp.url = {own!r}\n")
    for options, count in (((), 1), (("--store", file), 2)):
        found = json.loads(pylash("doctor", named, "--json", *options).stdout)
        assert [one["live"] for one in found["processes"]] == [count]
    assert isinstance(ask(pylash, "doctor"), list)  # without an app, only the findings


def test_code_is_not_compared_with_a_store_that_fails_a_check(
    file: str, pylash: Call, deploy: Deploy
) -> None:
    named = deploy(FIRST)
    done = pylash("doctor", named, "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["processes"], found["patches"]) == (1, None, None)
    text = pylash("doctor", named).stdout
    assert "The code was not compared with the live runs, because a check failed." in text


def test_an_app_without_processes_and_a_store_without_runs(
    file: str, pylash: Call, deploy: Deploy
) -> None:
    named = deploy("")
    started(file, named)
    found = json.loads(pylash("doctor", named, "--json").stdout)
    assert (found["processes"], found["patches"]) == ([], [])
    text = pylash("doctor", named).stdout
    assert "The app declares no process, and no process is live." in text


def test_processes_without_source_are_named(file: str, pylash: Call, deploy: Deploy) -> None:
    made = "\nexec(compile(" + repr(OTHER) + ", '<made>', 'exec'))\n"
    named = deploy(FIRST + made)
    started(file, named, a="refund")
    assert json.loads(pylash("doctor", named, "--json").stdout)["unread"] == ["refund"]
    assert "No source code was found for refund." in pylash("doctor", named).stdout


def test_many_live_runs_are_read_in_batches(
    place: str, pylash: Call, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylash.stores.inspection.RUNS_AT_ONCE", 2)
    started(place, named := deploy(BEFORE), **{f"p{n}": "order" for n in range(5)})
    (patch,) = compared(pylash, place, named)["patches"]
    assert (patch["live"], patch["recorded"], patch["lacking"]) == (5, 5, 0)


def test_an_app_of_the_store_option_is_not_compared(
    file: str, pylash: Call, deploy: Deploy
) -> None:
    started(file, named := deploy(FIRST), a="order_v1")
    assert isinstance(load_app(named), Lash)
    assert isinstance(ask(pylash, "doctor", "--store", named), list)
