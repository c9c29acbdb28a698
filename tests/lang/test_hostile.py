"""Hostile programs end soon, as a problem of the right kind, in the memory and time they were given."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pylash.engine.system import SystemClock
from pylash.lang import Bounds, CellOutcome, Surroundings, run_cell
from pylash.lang.linking.signatures import SIGNATURES
from pylash.lang.running.data import RunError
from pylash.lang.starting import bad_arguments, bad_signal, signal_schemas
from tests.lang.engine import World, made, run
from tests.lang.hostile import CASES, HEAVY, UNIONS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def judge(names: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.lang.hostile_child", *names],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {name: CASES[name][1] for name in names}


@pytest.mark.parametrize("part", range(2))
def test_hostile_programs_end_as_they_must(part: int) -> None:
    judge([name for name in CASES if name not in HEAVY][part::2])


@pytest.mark.torture
def test_hostile_programs_that_take_their_time_end_as_they_must() -> None:
    judge(sorted(HEAVY))


def test_arguments_of_types_that_double_are_judged_at_once() -> None:
    """Whether they fit or not: what is known of a value is not asked again."""
    program = made(UNIONS + "process p(x: T60) signals { s: T60 } { finish x }")
    right: object = {"a": 1}
    wrong: object = {"a": "x"}
    for _ in range(60):
        right, wrong = {"a": right}, {"a": wrong}
    assert bad_arguments(program, "p", {"x": right}, {}) is None
    assert "$.a.a.a" in (bad_arguments(program, "p", {"x": wrong}, {}) or "")
    assert "$.a.a.a" in (bad_signal(program, "p", "s", wrong, {}) or "")
    assert signal_schemas(program, "p") == {"s": {}}


WORDS = [
    "__class__",
    "__builtins__",
    "__import__",
    "__dict__",
    "m",
    "h",
    "r",
    "variables",
    "save",
    "locals",
    "List",
    "Record",
    "type",
    "float",
    "object",
    "result",
    "before",
    "out",
    "deep",
    "v0",
    "s0",
    "t0",
    "k0",
    "f0",
    "p0",
    "b_len",
    "NameError",
    "CONTAINERS",
    "main",
    "self",
    "import",
    "lambda",
    "def",
    "class",
    "exec",
    "eval",
    "None",
    "True",
    "await1",
]


@pytest.mark.parametrize("word", WORDS)
def test_names_of_python_are_names_like_others(word: str) -> None:
    source = f"""\
type {word}_T = {{ {word}: int }}
fn {word}_f({word}: any) -> any {{ {word} = push([], {word}); {word}[0] }}
process {word}({word}: any) signals {{ {word}: any }} {{ {word} = {word}; finish inputs.{word} }}
@label(title: "{{{word}}}", description: "{word}")
{word} = {{ {word}: 1, "{word}": 2 }}
{word}.{word} = {word}["{word}"] + 1
x = [{word} for {word} in [{word}.{word}]]
for {word} in x {{ print {word} }}
print {word}_f({word}.{word})
print format("{{0}} {word}", Type {{ {word}: {word}_T }}.{word})
h2 = start {word}({word}: {word})
finish {word}.{word}
"""
    world, variables = World(), dict[str, Any]()
    ended = run(made(source), variables, world, traced=True)
    assert (ended.error, ended.value) == (None, 3)
    assert world.prints == [3, 3, f"null {word}"]
    assert sorted(variables) == sorted({word, "x", "h2"})


HUGE = "179769313486231570" + "0" * 291
ODD = ("(0 / 0)", "(1 / 0)", "(-1 / 0)", "(-0)", HUGE, f"(-{HUGE})", "(5 / 1" + "0" * 300 + ")", "0.1", "9007199254740993", "null",
       "true", '"\u0130"', '"\U0001f600"', '"{}"', '"\\r\\n\x00\x1f\u2028"', "[]", "(1,)", "{}", '[{ k: 0 / 0 }]', "tools")  # fmt: skip


@pytest.mark.parametrize("builtin", sorted(SIGNATURES))
def test_builtins_take_odd_values_or_say_why_not(builtin: str) -> None:
    """Whatever goes in, a value comes out that can be told, or a run error."""
    signature = SIGNATURES[builtin]
    least = len(signature.parameters) - signature.optional
    calls = [
        f"{builtin}({', '.join(f'o({given})' for given in chosen)})"
        for count in range(least, len(signature.parameters) + 1)
        for chosen in product(ODD, repeat=count)
    ]
    step = max(1, len(calls) // 30)
    lines = [f"if i == {n} {{ finish {call} }}" for n, call in enumerate(calls[::step])]
    program = made("fn o(x: any) -> any { x }\n" + "\n".join(lines), variables=["i"])
    for number in range(len(lines)):
        ended = run(program, {"i": float(number)})
        if ended.error is None:
            json.dumps(ended.value, allow_nan=False).encode()
            ended.text.encode()
        else:
            assert ended.error.stage == "run"
            assert ended.error.line == number + 2
            assert len(ended.error.message) < 1000
            ended.error.message.encode()


def test_deep_recursion_on_several_threads() -> None:
    """Python has one recursion limit for all threads: nobody takes it from another."""
    program = made(
        "fn f(n: int) -> int { if n > 0 { f(n - 1) } else { 0 } }\nfor i in range(60) { x = f(1000) }\nfinish x"
    )
    before = sys.getrecursionlimit()
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(lambda _: run(program), range(8)))
    assert [each.error for each in ended] == [None] * 8
    assert sys.getrecursionlimit() == before


LONG = """\
fn f(n: int) -> any { x = [0]; while n > 0 { n = n - 1; x[0] = n }
  x }
fn deep(n: int) -> any { if n > 0 { deep(n - 1) } else { [y for y in f(60000) if y == 0] } }
"""


@pytest.mark.parametrize(
    "call",
    ["f(60000)", "deep(900)", "[f(40000), f(40000)][0]", "[x for x in range(300000) if x < 1]"],
)
async def test_who_computes_for_long_keeps_nobody_waiting(call: str) -> None:
    """Functions go on in a thread, and end as they would have ended here; comprehensions pause."""
    beats = 0

    async def breathe() -> None:
        await asyncio.sleep(0)

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    async def ended(around: Surroundings, steps: int) -> CellOutcome:
        bounds = Bounds(steps=steps, active_ms=30_000, memory_bytes=2**26)
        program = made(f"{LONG}finish {call}")
        return await run_cell(
            program, {}, around, SystemClock().monotonic, scope="cell:1", bounds=bounds
        )

    async with asyncio.TaskGroup() as group:
        heart = group.create_task(beat())
        shared = Surroundings(World(), {}, False, breathe, asyncio.to_thread)
        for steps in (10**7, 150_000):
            before, found = beats, await ended(shared, steps)
            assert beats > before
            assert found == await ended(Surroundings(World(), {}), steps)
        heart.cancel()


async def test_a_function_that_nobody_waits_for_any_more_stops() -> None:
    program = made(f"{LONG}finish f(100000000)")
    going = asyncio.Event()
    threads: list[asyncio.Future[Any]] = []

    async def apart(function: Callable[[], Any]) -> Any:
        threads.append(asyncio.get_running_loop().run_in_executor(None, function))
        going.set()
        return await asyncio.shield(threads[0])

    around = Surroundings(World(), {}, apart=apart)
    bounds = Bounds(steps=None, active_ms=None, memory_bytes=None)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(
            run_cell(program, {}, around, SystemClock().monotonic, scope="cell:1", bounds=bounds)
        )
        await going.wait()
        run.cancel()
    with pytest.raises(RunError, match="computed for more than"):
        await threads[0]
