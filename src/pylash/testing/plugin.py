"""A pytest plugin with a ``lash`` fixture; pytest finds it where pylash is installed.

Rule 1. The plugin costs nothing if it is not used: pylash is imported inside the fixtures.

pytest-asyncio (in either mode) runs the async fixture, or else anyio.
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
    """Return the function that creates the app of ``lash``, not open yet: override it to test your own app.

    The default is one empty app, opened again at each restart: its declarations stay.

    >>> @pytest.fixture
    ... def lash_app():
    ...     return lambda store, clock: make_app(store, clock=clock, model=ScriptedModel(script))
    """
    made: list[Lash] = []

    def make(store: str, clock: SimClock) -> Lash:
        from pylash import Lash  # noqa: PLC0415 - loaded when used

        if not made:
            made.append(Lash(store, clock=clock))
        return made[0]

    return make


async def _lash(
    lash_app: Callable[[str, SimClock], Lash], tmp_path: Path
) -> AsyncIterator[LashHarness]:
    """Yield an open app with ``advance`` and ``restart``: see ``pylash.testing.LashHarness``."""
    from pylash.testing.harness import LashHarness  # noqa: PLC0415 - loaded when used

    harness = LashHarness(lash_app, f"sqlite:///{tmp_path}/lash.db")
    await harness.app.open()
    try:
        yield harness
    finally:
        await harness.app.close()


def _lash_without_a_runner() -> None:
    """Fail with the name of the missing package."""
    pytest.fail(NEEDS_A_RUNNER, pytrace=False)


def _declared() -> Any:
    """Return the fixture, declared for the installed runner of async tests."""
    if _is_installed("pytest_asyncio"):
        import pytest_asyncio  # noqa: PLC0415 - only if it is installed

        return pytest_asyncio.fixture(_lash, name="lash")
    if _is_installed("anyio"):
        return pytest.fixture(_lash, name="lash")
    return pytest.fixture(_lash_without_a_runner, name="lash")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # it was taken out of sys.modules
        return False


lash = _declared()
