"""Crash tests: a scenario is killed at every effect boundary, and must end as without a crash.

A boundary is a record that the store writes: an effect's outcome, a sleep's or a wait's beginning and end,
a signal, the start or the end of a process. Heartbeats, claims and parking are none (``HOUSEKEEPING`` in
``pylash.testing.kills``). Each boundary gives two crash points: before it, when the work is done and not
recorded, and after it, when it is recorded and the caller has no answer.

Usage: python -m pylash.testing.crash MODULE:MAKE_APP MODULE:SCENARIO --store URL --report FILE [--point N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

import msgspec

from pylash.testing.kills import CrashPoint, Mortal
from pylash.values.canonical import decode, write
from pylash.values.durations import Duration, seconds

if TYPE_CHECKING:
    from pylash.app import Lash

T = TypeVar("T")

STARTING_SECONDS: Final = 60.0
"""How long a child process may take in addition to its scenario."""

MakeApp = Callable[[str], "Lash"]
"""Creates an app, not open yet, over the store at a URL."""

Scenario = Callable[["Lash"], Awaitable[Any]]
"""Uses an open app, and returns a value whose JSON must be the same after every crash; a tuple is written as a list."""

FreshStore = Callable[[], str]
"""Returns the URL of an empty store."""


class CrashReport(msgspec.Struct, frozen=True):
    """The outcome of every run, and the points at which runs were killed.

    ``missed`` are points that a run did not reach, because it ended with fewer records than the
    undisturbed one.

    >>> report = crash_everywhere("shop:make_app", order_is_paid_once)
    >>> report.outcome, len(report.points)
    ('paid', 14)
    """

    outcome: Any
    points: tuple[CrashPoint, ...]
    missed: tuple[int, ...] = ()

    def __await__(self) -> Generator[None, None, Self]:
        """Return the report, so that ``await`` in an async test does no harm."""
        yield from ()
        return self


class Ending(msgspec.Struct, omit_defaults=True):
    """How one run of a scenario ended: killed at a point, or with an outcome or a failure."""

    outcome: Any = None
    failure: str | None = None
    killed: CrashPoint | None = None
    points: tuple[CrashPoint, ...] = ()


class Runner(Protocol):
    """Runs the scenario once on a store, until a crash point if one is given."""

    def __call__(self, url: str, point: int | None = None) -> Ending:
        """Return the ending."""
        ...


def crash_everywhere(
    target: str | MakeApp,
    scenario: str | Scenario,
    *,
    store: FreshStore | None = None,
    kill: bool = False,
    only: int | None = None,
    timeout: Duration = "30s",
) -> CrashReport:
    """Run scenario once undisturbed, then once per crash point, killed there and run again to its end.

    ``target`` is a function that makes the app, not open yet, over a store's URL; ``scenario`` is an async
    function that is given the open app. Both may be ``"module:name"``. A scenario must work when it is
    run twice over one store: it gives ids to everything that it starts and sends. Every run has its own store (a SQLite file,
    or the result of ``store``) and its own event loop. ``only`` tries one point; ``timeout`` applies to
    each run.

    ``kill=True`` runs each in a child process that kills itself at the point, which takes about a second;
    target and scenario must then be importable. Otherwise the kill is simulated in this process: the
    store stops answering, and the app is torn down.

    Raises AssertionError, naming the point, when a run does not end as the undisturbed one did.

    >>> async def order_is_paid_once(app: Lash) -> str:
    ...     handle = await app.start(order.options(id="order-7"), cents=300)
    ...     return await handle.result()
    >>> crash_everywhere("shop:make_app", order_is_paid_once)
    """
    runner: Runner
    if kill:
        runner = partial(_in_a_child, _path_of(target), _path_of(scenario), seconds(timeout))
    else:
        runner = partial(_here, _resolve_name(target), _resolve_name(scenario), seconds(timeout))
    with _fresh(store) as url:
        calm = runner(url)
    if calm.failure is not None:
        raise AssertionError(f"the scenario fails without any crash: {calm.failure}")
    chosen = [point for point in calm.points if only in (None, point.number)]
    if only is not None and not chosen:
        raise ValueError(f"there is no point {only}: the scenario has {len(calm.points)}")
    missed = []
    for point in chosen:
        with _fresh(store) as url:
            killed = runner(url, point.number)
            if killed.killed is None:
                missed.append(point.number)
            _check(calm, killed.killed or point, runner(url))
    return CrashReport(calm.outcome, tuple(chosen), tuple(missed))


def _check(calm: Ending, point: CrashPoint, ending: Ending) -> None:
    """Raise unless a run that was killed at point ended as the undisturbed one did."""
    if ending.failure is None and ending.outcome == calm.outcome:
        return
    became = f"the outcome is {ending.outcome!r}" if ending.failure is None else ending.failure
    raise AssertionError(
        f"killed at {point}, the scenario ends differently:\n"
        f"  without a crash the outcome is {calm.outcome!r}\n"
        f"  after this one {became}\n"
        f"(try it alone with only={point.number})"
    )


@contextmanager
def _fresh(store: FreshStore | None) -> Iterator[str]:
    if store is not None:
        yield store()
        return
    with TemporaryDirectory(prefix="pylash-crash-") as folder:
        yield f"sqlite:///{folder}/crash.db"


# --- a run in this process ---


def _here(
    make: MakeApp, scenario: Scenario, timeout: float, url: str, point: int | None = None
) -> Ending:
    return _run_on_new_loop(lambda: run_scenario(make(url), scenario, timeout, point))


def _run_on_new_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run work on a new event loop, even if one is running here."""
    if not _a_loop_runs():
        return asyncio.run(work())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()


def _a_loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def run_scenario(
    app: Lash,
    scenario: Scenario,
    timeout: float,
    point: int | None,
    struck: Callable[[CrashPoint], None] = lambda _: None,
) -> Ending:
    """Run scenario on app until its end, or until app dies at point; ``struck`` is called first."""
    ending = Ending()
    points: list[CrashPoint] = []

    def strikes(reached: CrashPoint) -> bool:
        # Once the scenario has ended, closing the app must not be killed: no call of the store would return.
        if acting.done():
            return False
        points.append(reached)
        if reached.number != point:
            return False
        ending.killed = reached
        struck(reached)
        return True

    await app.open()
    async with asyncio.TaskGroup() as group:
        acting = group.create_task(_act(app, scenario, timeout, ending))
        mortal = Mortal(app, strikes)  # before the task begins to run
        dying = group.create_task(mortal.died.wait())
        await asyncio.wait((acting, dying), return_when=asyncio.FIRST_COMPLETED)
        ending.points = tuple(sorted(points, key=lambda reached: reached.number))
        acting.cancel()
        dying.cancel()
    if mortal.died.is_set():
        await mortal.bury()
    else:
        await app.close()
    return ending


async def _act(app: Lash, scenario: Scenario, timeout: float, ending: Ending) -> None:
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            ending.outcome = decode(write(await scenario(app)))
    except Exception as error:  # noqa: BLE001 - however it fails, the point is named
        raised = f"it raises {type(error).__name__}: {error}"
        ending.failure = f"it has not ended in {timeout:g} s" if limit.expired() else raised


def _resolve_name(given: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that is named ``module:name``."""
    if callable(given):
        return given
    module, colon, name = given.partition(":")
    if not colon:
        raise ValueError(f"{given!r} names no function: write 'module:name'")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


# --- a run in a child process ---


def _path_of(given: str | Callable[..., Any]) -> str:
    """Return the import path of a function, for another process."""
    path = given if isinstance(given, str) else f"{given.__module__}:{given.__qualname__}"
    if "<" in path or path.startswith("__main__:"):
        raise ValueError(
            f"{path} cannot be imported by a process that is killed: put it in a module"
        )
    _resolve_name(path)
    return path


def _in_a_child(
    target: str, scenario: str, timeout: float, url: str, point: int | None = None
) -> Ending:
    with TemporaryDirectory(prefix="pylash-crash-") as folder:
        report = Path(folder) / "report.json"
        options = ["--store", url, "--report", str(report), "--timeout", str(timeout)]
        if point is not None:
            options += ["--point", str(point)]
        done = subprocess.run(  # noqa: S603 - it is ourselves
            [sys.executable, "-m", "pylash.testing.crash", target, scenario, *options],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=timeout + STARTING_SECONDS,
            check=False,
        )
        ending = msgspec.json.decode(report.read_bytes(), type=Ending) if report.exists() else None
    expected = -signal.SIGKILL if ending is not None and ending.killed is not None else 0
    if ending is None or done.returncode != expected:
        raise RuntimeError(f"a process under test ended with {done.returncode}:\n{done.stderr}")
    return ending


def _main() -> None:
    """Run a scenario once; with ``--point``, kill this process there."""
    parser = argparse.ArgumentParser("pylash.testing.crash")
    parser.add_argument("target")
    parser.add_argument("scenario")
    parser.add_argument("--store", required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--point", type=int)
    given = parser.parse_args()
    make, scenario = _resolve_name(given.target), _resolve_name(given.scenario)

    def write(ending: Ending) -> None:
        given.report.write_bytes(msgspec.json.encode(ending))

    def die(point: CrashPoint) -> None:
        write(Ending(killed=point))
        os.kill(os.getpid(), signal.SIGKILL)

    write(asyncio.run(run_scenario(make(given.store), scenario, given.timeout, given.point, die)))


if __name__ == "__main__":
    _main()
