"""A pytest plugin with a ``lash`` fixture; pytest finds it where pylash is installed.

Rule 1. Whoever does not use it pays nothing: pylash is imported inside the fixtures.

Async fixtures are the business of pytest-asyncio (in either mode), or else of anyio.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pylash.app import Lash
    from pylash.testing.clocks import SimClock
    from pylash.testing.harness import LashHarness

NEEDS_A_RUNNER: Final = "The lash fixture is async: pip install pytest-asyncio (or anyio)."


@pytest.fixture
def lash_app() -> Callable[[str, SimClock], Lash]:
    """Return how ``lash`` makes its app, not open yet: override it to test an app of your own.

    By default it is one empty app, opened again at each restart: what a test declares on it stays.

    >>> @pytest.fixture
    ... def lash_app():
    ...     return lambda store, clock: make_app(store, clock=clock, model=ScriptedModel(script))
    """
    made: list[Lash] = []

    def make(store: str, clock: SimClock) -> Lash:
        from pylash import Lash  # noqa: PLC0415 - for those who use it

        if not made:
            made.append(Lash(store, clock=clock))
        return made[0]

    return make


async def _lash(
    lash_app: Callable[[str, SimClock], Lash], tmp_path: Path
) -> AsyncIterator[LashHarness]:
    """Give an open app with ``advance`` and ``restart``: see ``pylash.testing.LashHarness``."""
    from pylash.testing.harness import LashHarness  # noqa: PLC0415 - for those who use it

    harness = LashHarness(lash_app, f"sqlite:///{tmp_path}/lash.db")
    await harness.app.open()
    try:
        yield harness
    finally:
        await harness.app.close()


def _lash_without_a_runner() -> None:
    """Say what is missing."""
    pytest.fail(NEEDS_A_RUNNER, pytrace=False)


def _declared() -> Any:
    """Return the fixture as the one who runs async tests here wants it declared."""
    if _is_there("pytest_asyncio"):
        import pytest_asyncio  # noqa: PLC0415 - if it is there

        return pytest_asyncio.fixture(_lash, name="lash")
    if _is_there("anyio"):
        return pytest.fixture(_lash, name="lash")
    return pytest.fixture(_lash_without_a_runner, name="lash")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # it was taken out of sys.modules
        return False


lash = _declared()
