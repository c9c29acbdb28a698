"""The pytest plugin, in pytest sessions of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = ("pytester",)

PLUGIN = "pylash.testing.plugin"

TRIAL = """
    import pytest
    from pylash import ProcessContext

    ran = []

    async def work():
        ran.append("work")

    def declare(app):
        @app.process
        async def trial(ctx: ProcessContext[None]) -> str:
            await ctx.step(work)
            await ctx.sleep("2w")
            return "over"
        return trial
"""

DEFAULT = """
    {mark}
    async def test_the_trial_survives(lash):
        handle = await lash.app.start(declare(lash.app).options(id="ann"))
        await lash.advance("1w")
        assert await handle.status() != "completed"
        await lash.restart()
        await lash.advance("6d")
        assert await lash.app.process_handle("ann").status() != "completed"
        await lash.advance("1d")
        assert await lash.app.process_handle("ann").result(timeout="5s") == "over"
        assert ran == ["work"]
        assert lash.store.startswith("sqlite:///")
        assert lash.clock.monotonic() == 14 * 86400
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Give a session that loads the plugins it names, installed or not."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return pytester


def run(session: pytest.Pytester, *plugins: str, mode: str = "") -> pytest.RunResult:
    if mode:
        session.makeini(f"""
            [pytest]
            asyncio_mode = {mode}
            asyncio_default_fixture_loop_scope = function
        """)
        plugins = (*plugins, "pytest_asyncio.plugin")
    named = (f"-p{name}" for name in (*plugins, PLUGIN))
    return session.runpytest_subprocess("-Werror", *named, timeout=60)


def write(session: pytest.Pytester, *parts: str, mark: str = "") -> None:
    texts = (part.replace("{mark}", mark) for part in parts)
    session.makepyfile("\n".join(dedent(text) for text in texts))


@pytest.mark.parametrize(("mode", "mark"), [("auto", ""), ("strict", "@pytest.mark.asyncio")])
def test_weeks_pass_and_processes_die_in_either_mode(
    session: pytest.Pytester, mode: str, mark: str
) -> None:
    write(session, TRIAL, DEFAULT, mark=mark)
    run(session, mode=mode).assert_outcomes(passed=1)


def test_anyio_runs_it_where_pytest_asyncio_is_missing(session: pytest.Pytester) -> None:
    session.makepyfile(away="import sys; sys.modules['pytest_asyncio'] = None")
    backend = "@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    write(session, TRIAL, backend, DEFAULT, mark="@pytest.mark.anyio")
    run(session, "away", "anyio.pytest_plugin").assert_outcomes(passed=1)


def test_without_a_runner_it_names_what_to_install(session: pytest.Pytester) -> None:
    session.makepyfile(
        away="import sys; sys.modules['pytest_asyncio'] = sys.modules['anyio'] = None"
    )
    session.makepyfile("def test_it(lash): pass")
    result = run(session, "away")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*The lash fixture is async: pip install pytest-asyncio*"])


def test_an_app_of_one_s_own_is_made_anew_at_each_restart(session: pytest.Pytester) -> None:
    own = """
    from pylash import Lash

    made = []

    @pytest.fixture
    def lash_app():
        def make(store, clock):
            app = Lash(store, clock=clock)
            declare(app)
            made.append(app)
            return app
        return make

    async def test_it(lash):
        first = lash.app
        trial = first.services.definitions["trial"]
        await first.start(trial.options(id="ann"))
        assert await lash.restart() is lash.app
        assert made == [first, lash.app] and lash.app is not first
        await lash.advance("2w")
        assert await lash.app.process_handle("ann").result(timeout="5s") == "over"
    """
    write(session, TRIAL, own)
    run(session, mode="auto").assert_outcomes(passed=1)


def test_a_restart_is_a_death_nothing_is_given_back(session: pytest.Pytester) -> None:
    busy = """
    import asyncio
    from pylash import ProcessScope

    async def test_it(lash):
        begun = []

        async def hang():
            begun.append(1)
            if len(begun) == 1:
                await asyncio.Event().wait()

        @lash.app.process
        async def busy(ctx: ProcessContext[None]) -> int:
            await ctx.step(hang)
            return len(begun)

        await lash.app.start(busy.options(id="b"))
        while not begun:
            await asyncio.sleep(0.001)
        started = asyncio.get_running_loop().time()
        await lash.restart()
        assert await lash.app.process_handle("b").result(timeout="5s") == 2
        assert asyncio.get_running_loop().time() - started < 5  # neither the grace nor the lease
    """
    write(session, TRIAL, busy)
    run(session, mode="auto").assert_outcomes(passed=1)


def test_each_test_has_a_store_of_its_own(session: pytest.Pytester) -> None:
    twice = """
    @pytest.mark.parametrize("n", [1, 2])
    async def test_it(lash, n):
        await lash.app.start(declare(lash.app).options(id="ann"))
        assert len(await lash.app.processes()) == 1
    """
    write(session, TRIAL, twice)
    run(session, mode="auto").assert_outcomes(passed=2)


def test_it_costs_nothing_if_it_is_not_used() -> None:
    code = f"import sys, {PLUGIN}; print(*(m for m in sys.modules if m.startswith('pylash')))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert sorted(loaded) == ["pylash", "pylash.testing", PLUGIN]


def test_pytest_finds_it_where_pylash_is_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"pylash": PLUGIN}
