"""Code that was changed under a recorded run: nothing recorded is executed again, and nothing is lost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from pylash import (
    InlineHost,
    Lash,
    LashError,
    ProcessBlocked,
    ProcessCancelled,
    ProcessContext,
    ProcessFailed,
    Retry,
)
from pylash.testing import SerialHost, kill
from pylash.values.process_errors import ArgumentsInvalid, split_reason
from tests.backends import Backend, MemoryBackend, eventually

Body = Callable[[ProcessContext[None], "Ledger"], Awaitable[Any]]


class Ledger:
    """Steps with side effects, each noted when it is executed."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, name: str) -> Callable[..., str]:
        """Return a step of a name."""

        def perform(*args: Any) -> str:
            self.lines.append(name)
            return " ".join([name, *map(str, args)])

        perform.__name__ = name
        return perform


def app_with(backend: Backend, body: Body, ledger: Ledger, **options: Any) -> Lash:
    app = Lash(backend.url)

    @app.process(name="order", **options)
    async def order(ctx: ProcessContext[None]) -> Any:
        return await body(ctx, ledger)

    return app


async def recorded(backend: Backend, body: Body, ledger: Ledger, waiting: int = 1) -> None:
    """Run a process until it has so many open waits, and kill its worker there."""
    app = app_with(backend, body, ledger)
    await app.open()
    await app.start(app.services.definitions["order"].options(id="p"))

    async def waits() -> bool:
        view = await app.process_handle("p").timeline()
        return sum(one.is_wait and one.status == "open" for one in view) >= waiting

    await eventually(waits)
    await kill(app)


async def outcome(backend: Backend, body: Body, ledger: Ledger, **options: Any) -> Any:
    """Deploy a body, send the signal, and return the result or why the process is blocked."""
    async with app_with(backend, body, ledger, **options) as app:
        handle = app.process_handle("p")
        await app.retry("p") if await handle.status() == "blocked" else None
        await handle.signal("go")

        async def stands() -> bool:
            return await handle.status() in ("completed", "failed", "blocked")

        await eventually(stands)
        try:
            return await handle.result(timeout=0)
        except ProcessBlocked as error:
            return error


async def old(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def renamed(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.step(ledger.step("charge_card"), 7)
    await ctx.wait_signal("go")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def keeps_name(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.options(key="charge").step(ledger.step("charge_card"), 7)
    await ctx.wait_signal("go")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def inserted_before(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    await ctx.step(ledger.step("check"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def inserted_behind(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    await ctx.step(ledger.step("check"))
    return [first, second, await ctx.step(ledger.step("ship"))]


async def removed(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    return [second, await ctx.step(ledger.step("ship"))]


async def removed_last(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.step(ledger.step("charge"), 7)
    return [first, second, await ctx.step(ledger.step("ship"))]


async def swapped(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    second = await ctx.step(ledger.step("charge"), 7)
    first = await ctx.step(ledger.step("load"))
    await ctx.wait_signal("go")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def swapped_with_new(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    third = await ctx.step(ledger.step("ship"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    return [first, second, third]


async def gathered(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first, second = await ctx.gather(
        branch(ctx, ledger.step("load")), branch(ctx, ledger.step("charge"), 7)
    )
    await ctx.wait_signal("go")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def branch(ctx: ProcessContext[None], step: Callable[..., str], *args: Any) -> str:
    return await ctx.step(step, *args)


async def returns_early(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    await ctx.step(ledger.step("load"))
    return "early"


async def fails_early(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    await ctx.step(ledger.step("load"))
    raise ValueError("no")


async def continues_early(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    await ctx.step(ledger.step("load"))
    ctx.continue_as()


async def notes_added(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    ctx.now(), ctx.random(), ctx.uuid()
    first = await ctx.step(ledger.step("load"))
    second = await ctx.options(retry=Retry(2)).step(ledger.step("charge"), 7)
    ctx.log.info("waiting")
    await ctx.wait_signal("go", timeout="1w")
    return [first, second, await ctx.step(ledger.step("ship"))]


async def patched(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    if await ctx.patched("check"):
        await ctx.step(ledger.step("check"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    if await ctx.patched("check"):
        await ctx.step(ledger.step("second check"))
    return [first, second, await ctx.step(ledger.step("ship"))]


async def patched_behind(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    if await ctx.patched("check"):
        await ctx.step(ledger.step("check"))
    return [first, second, await ctx.step(ledger.step("ship"))]


DONE = ["load", "charge 7", "ship"]
RUNS: list[tuple[Body, Any, list[str]]] = [
    (old, DONE, ["load", "charge", "ship"]),
    (keeps_name, DONE, ["load", "charge", "ship"]),
    (inserted_behind, DONE, ["load", "charge", "check", "ship"]),
    (removed, ["charge 7", "ship"], ["load", "charge", "ship"]),
    (swapped, DONE, ["load", "charge", "ship"]),
    (notes_added, DONE, ["load", "charge", "ship"]),
    (patched, DONE, ["load", "charge", "ship"]),
    (patched_behind, DONE, ["load", "charge", "check", "ship"]),
]
BLOCKS: list[tuple[Body, str, str]] = [
    (renamed, "charge_card", "'charge'"),
    (inserted_before, "check", "'charge'"),
    (removed_last, "ship", "wait_signal:go"),
    (swapped_with_new, "ship", "'charge'"),
    (gathered, "gather.0/load", "'load'"),
    (returns_early, "ends", "'charge'"),
    (fails_early, "ends", "'charge'"),
    (continues_early, "ends", "'charge'"),
]


@pytest.mark.parametrize(
    ("body", "result", "lines"), RUNS, ids=[body.__name__ for body, *_ in RUNS]
)
async def test_a_change_that_keeps_what_is_recorded_runs(
    durable: Backend, body: Body, result: Any, lines: list[str]
) -> None:
    ledger = Ledger()
    await recorded(durable, old, ledger)
    assert await outcome(durable, body, ledger) == result
    assert ledger.lines == lines


@pytest.mark.parametrize(
    ("body", "asked", "expected"), BLOCKS, ids=[body.__name__ for body, *_ in BLOCKS]
)
async def test_a_change_of_what_is_recorded_blocks_until_the_old_code_is_back(
    durable: Backend, body: Body, asked: str, expected: str
) -> None:
    ledger = Ledger()
    await recorded(durable, old, ledger)
    blocked = await outcome(durable, body, ledger)
    assert isinstance(blocked, ProcessBlocked), blocked
    assert "effect_replay_diverged" in blocked.message
    assert asked in blocked.message
    assert expected in blocked.message
    assert ledger.lines == ["load", "charge"]
    assert await outcome(durable, old, ledger) == DONE
    assert ledger.lines == ["load", "charge", "ship"]


async def test_a_patch_that_was_taken_is_taken_in_every_replay(durable: Backend) -> None:
    ledger = Ledger()
    await recorded(durable, patched, ledger)
    assert ledger.lines == ["load", "check", "charge"]
    assert await outcome(durable, patched, ledger) == DONE
    assert ledger.lines == ["load", "check", "charge", "second check", "ship"]


async def test_a_renamed_step_keeps_its_record(durable: Backend) -> None:
    ledger = Ledger()
    await recorded(durable, old, ledger)
    names = {"charge": "charge_card"}
    assert await outcome(durable, renamed, ledger, renamed=names) == DONE
    assert ledger.lines == ["load", "charge", "ship"]


async def test_renamed_groups_and_steps_in_them_keep_their_records(durable: Backend) -> None:
    async def before(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        works = [branch(ctx, ledger.step("load")), branch(ctx, ledger.step("charge"), 7)]
        found = await ctx.gather(*works, key="both")
        await ctx.wait_signal("go")
        return found

    async def after(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        works = [branch(ctx, ledger.step("load")), branch(ctx, ledger.step("charge_card"), 7)]
        found = await ctx.gather(*works, key="all")
        await ctx.wait_signal("go")
        return found

    ledger = Ledger()
    await recorded(durable, before, ledger)
    names = {"charge": "charge_card", "both": "all"}
    assert await outcome(durable, after, ledger, renamed=names) == ["load", "charge 7"]
    assert sorted(ledger.lines) == ["charge", "load"]


async def test_an_old_name_beside_its_new_one_is_refused(backend: Backend) -> None:
    ledger = Ledger()
    async with app_with(backend, old, ledger, renamed={"charge": "charge_card"}) as app:
        handle = await app.start(app.services.definitions["order"])
        with pytest.raises(
            ProcessBlocked, match=r"NameTaken: The code uses 'charge'.*\{old: new\}"
        ):
            await handle.result(timeout="2s")
    assert ledger.lines == ["load"]


async def test_a_misspelt_old_name_is_shown_with_the_name_in_the_code(durable: Backend) -> None:
    ledger = Ledger()
    await recorded(durable, old, ledger)
    blocked = await outcome(durable, renamed, ledger, renamed={"chrge": "charge_card"})
    stated = (
        "asks for 'charge_card', which renamed= looks up as 'chrge', where 'charge' is expected"
    )
    assert stated in blocked.message


async def another_signal(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    await ctx.step(ledger.step("load"))
    await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("approved")


async def test_a_recorded_wait_is_shown_by_its_name_and_its_key(durable: Backend) -> None:
    await recorded(durable, old, Ledger())
    blocked = await outcome(durable, another_signal, Ledger())
    assert "asks for 'approved' (root:process:wait_signal:approved)" in blocked.message
    assert "where 'go' (root:process:wait_signal:go) is expected" in blocked.message


async def misused(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    await old(ctx, ledger)
    await ctx.sleep("1 day")


async def misused_gather(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    await old(ctx, ledger)
    await ctx.gather(ctx.step(ledger.step("bill")), limit=0)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("body", "stated"), [(misused, "DurationInvalid"), (misused_gather, "ArgumentsInvalid")]
)
async def test_a_misused_call_blocks_until_other_code_is_deployed(
    durable: Backend, caplog: pytest.LogCaptureFixture, body: Body, stated: str
) -> None:
    ledger = Ledger()
    await recorded(durable, old, ledger)
    blocked = await outcome(durable, body, ledger)
    assert isinstance(blocked, ProcessBlocked), blocked
    assert f"process_code_error: The code of process 'p' cannot continue it ({stated}" in str(
        blocked
    )
    gc.collect()  # a coroutine that was not closed warns when it is collected
    logged = [one for one in caplog.records if one.levelname == "WARNING"]
    assert [one.getMessage().partition(":")[0] for one in logged] == ["process p is blocked"]
    assert "\n" not in logged[0].getMessage()
    assert logged[0].exc_info is not None
    assert await outcome(durable, old, ledger) == DONE


@pytest.mark.parametrize("names", ["charge", {"a": "b", "c": "b"}, {"a": "b", "b": "c"}, {"": "b"}])
def test_names_that_are_ambiguous_are_refused(names: Any) -> None:
    with pytest.raises(LashError):
        app_with(MemoryBackend(), old, Ledger(), renamed=names)


async def mistaken(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    await old(ctx, ledger)
    return undefined_name  # type: ignore[name-defined]  # noqa: F821


async def test_a_mistake_in_the_code_blocks_until_other_code_is_deployed(durable: Backend) -> None:
    ledger = Ledger()
    await recorded(durable, old, ledger)
    blocked = await outcome(durable, mistaken, ledger)
    assert isinstance(blocked, ProcessBlocked), blocked
    assert "process_code_error" in blocked.message
    assert "undefined_name" in blocked.message
    assert await outcome(durable, old, ledger) == DONE
    assert ledger.lines == ["load", "charge", "ship"]


async def test_a_process_that_blocks_on_nothing_fails_by_a_mistake(backend: Backend) -> None:
    ledger = Ledger()
    async with app_with(backend, mistaken, ledger, block_on=()) as app:
        handle = await app.start(app.services.definitions["order"])
        await handle.signal("go")
        with pytest.raises(ProcessFailed, match="undefined_name"):
            await handle.result(timeout="10s")


async def test_a_recorded_result_that_does_not_fit_blocks(durable: Backend) -> None:
    async def before(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        async def load() -> list[str]:
            ledger.lines.append("load")
            return ["many"]

        found = await ctx.step(load)
        await ctx.wait_signal("go")
        return found

    async def after(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        async def load() -> list[int]:
            ledger.lines.append("load")
            return [7]

        found = await ctx.step(load)
        await ctx.wait_signal("go")
        return found

    ledger = Ledger()
    await recorded(durable, before, ledger)
    blocked = await outcome(durable, after, ledger)
    assert isinstance(blocked, ProcessBlocked), blocked
    assert "process_data_invalid" in blocked.message
    assert "load" in blocked.message
    assert await outcome(durable, before, ledger) == ["many"]
    assert ledger.lines == ["load"]


async def test_a_recorded_result_of_a_child_that_does_not_fit_blocks(durable: Backend) -> None:
    def app_of(result: Any) -> Lash:
        typed = Lash(durable.url)

        async def typed_child(_: ProcessContext[None]) -> Any:
            return ["many"]

        typed_child.__annotations__["return"] = result
        child = typed.process(name="child")(typed_child)

        @typed.process(name="order")
        async def order(ctx: ProcessContext[None]) -> Any:
            found = await (await ctx.start(child)).result()
            await ctx.wait_signal("go")
            return found

        return typed

    app = app_of(list[str])
    await app.open()
    await app.start(app.services.definitions["order"].options(id="p"))
    await eventually(app.waits)
    await kill(app)
    async with app_of(list[int]) as app:
        handle = app.process_handle("p")
        await handle.signal("go")

        async def is_blocked() -> bool:
            return await handle.status() == "blocked"

        await eventually(is_blocked)
        with pytest.raises(ProcessBlocked) as blocked:
            await handle.result(timeout=0)
    for part in ("process_data_invalid", "list[int]", "'many'"):
        assert part in blocked.value.reason
    async with app_of(list[str]) as app:
        await app.retry("p")
        assert await app.process_handle("p").result(timeout="10s") == ["many"]


async def test_partials_are_recorded_under_the_names_of_their_functions(durable: Backend) -> None:
    def load(n: int, more: int = 0) -> int:
        return n + more

    app = Lash(durable.url)

    @app.process
    async def order(ctx: ProcessContext[None]) -> list[int]:
        found = [await ctx.step(partial(partial(load, 1), more=1)), await ctx.step(load, 3)]
        await ctx.options(key="partial").step(load, 5)
        return found

    async with app:
        handle = await app.start(order)
        assert await handle.result(timeout="10s") == [2, 3]
        assert [one.key for one in await handle.timeline()] == ["load", "load#2", "partial"]


async def test_partials_that_were_recorded_under_their_class_keep_that_name(
    durable: Backend,
) -> None:
    async def before(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        found = [await ctx.options(key="partial").step(ledger.step(one)) for one in "ab"]
        await ctx.wait_signal("go")
        return found

    async def after(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        found = [await ctx.step(partial(ledger.step(one))) for one in "ab"]
        await ctx.wait_signal("go")
        return [*found, await ctx.step(partial(ledger.step("c")))]

    ledger = Ledger()
    await recorded(durable, before, ledger)
    assert await outcome(durable, after, ledger) == ["a", "b", "c"]
    assert ledger.lines == ["a", "b", "c"]


def nothing() -> None: ...


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function, without functools.wraps."""

    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def checked(function: Callable[..., Any], check: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function; which of the two it is cannot be found."""

    def wrapper(*args: Any) -> Any:
        check()
        return function(*args)

    return wrapper


async def test_decorated_functions_are_recorded_under_the_names_of_their_functions(
    durable: Backend,
) -> None:
    ledger = Ledger()

    def timed(function: Callable[..., str]) -> Callable[..., str]:
        def measure(*args: Any, **kwargs: Any) -> str:
            return function(*args, **kwargs)

        return measure

    def fixed(function: Callable[..., str]) -> Callable[..., str]:
        def _wrapper(cents: int) -> str:
            return function(cents)

        return _wrapper

    def marked(function: Callable[..., str]) -> Callable[..., str]:
        wrapper = checked(function, nothing)
        wrapper.__wrapped__ = function  # type: ignore[attr-defined]
        return wrapper

    async def body(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        await ctx.step(logged(ledger.step("a")))
        await ctx.step(timed(logged(ledger.step("b"))))
        await ctx.step(fixed(ledger.step("c")), 5)
        await ctx.step(marked(ledger.step("d")))
        await ctx.step(partial(logged(ledger.step("e")), 1))
        await ctx.wait_signal("go")
        return await ctx.step(logged(ledger.step("a")))

    await recorded(durable, body, ledger)
    assert await outcome(durable, body, ledger) == "a"
    assert ledger.lines == [*"abcde", "a"]
    async with app_with(durable, body, ledger) as app:
        keys = [one.key for one in await app.process_handle("p").timeline()]
    assert keys == [*"abcde", "root:process:wait_signal:go", "a#2"]


async def test_functions_inside_others_keep_their_names(durable: Backend) -> None:
    async def body(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        a, b = ledger.step("a"), ledger.step("b")

        def both() -> str:
            return a() + b()

        def first(more: str = "") -> str:
            return a() + more

        def all_of(*more: str) -> str:
            return a() + b() + "".join(more)

        def inner() -> str:
            return a() + b()

        def wrapper(*more: str) -> str:
            return "".join(more)

        for step in (both, first, all_of, inner, wrapper, lambda: a() + b()):
            await ctx.step(step)
        await ctx.wait_signal("go")

    ledger = Ledger()
    await recorded(durable, body, ledger)
    async with app_with(durable, body, ledger) as app:
        keys = [one.key for one in await app.process_handle("p").timeline()]
    assert keys[:-1] == ["both", "first", "all_of", "inner", "wrapper", "<lambda>"]


async def test_a_decorated_function_whose_name_cannot_be_found_is_refused(
    durable: Backend,
) -> None:
    async def body(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        a, b = ledger.step("a"), ledger.step("b")
        await ctx.options(key="named").step(checked(a, b))
        with pytest.raises(ArgumentsInvalid, match=r"'wrapper' .* functools.wraps .*key="):
            await ctx.step(checked(a, b))
        await ctx.wait_signal("go")

    ledger = Ledger()
    await recorded(durable, body, ledger)
    assert ledger.lines == ["b", "a"]


async def test_decorated_functions_that_were_recorded_under_the_name_of_the_wrapper_keep_it(
    durable: Backend,
) -> None:
    async def before(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        named = ctx.options(key="wrapper")
        await named.step(ledger.step("a"))
        await ctx.gather(until_killed(ctx), named.step(ledger.step("b")))

    async def until_killed(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("go")

    async def after(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        a, b, c = (ledger.step(name) for name in "abc")
        await ctx.step(checked(a, nothing))
        await ctx.gather(until_killed(ctx), ctx.step(logged(b)))
        await ctx.step(logged(c))
        # Refused in a run that has not recorded this name.
        return await ctx.step(checked(c, nothing))

    ledger = Ledger()
    await recorded(durable, before, ledger)
    assert await outcome(durable, after, ledger) == "c"
    assert ledger.lines == [*"abcc"]
    async with app_with(durable, after, ledger) as app:
        keys = [one.key for one in await app.process_handle("p").timeline()]
    assert [key for key in keys if "signal" not in key] == [
        "wrapper",
        "wrapper#2",
        "c",
        "wrapper#3",
    ]


async def test_a_later_record_of_the_wrapper_is_found_if_an_earlier_one_is_missing(
    durable: Backend,
) -> None:
    started = asyncio.Event()

    async def stuck() -> str:
        started.set()
        await asyncio.sleep(60)
        return "never"

    def slow(ledger: Ledger) -> Callable[..., Any]:
        return stuck if not ledger.lines else ledger.step("a")

    async def before(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        named = ctx.options(key="wrapper")
        first, second = named.step(slow(ledger)), named.step(ledger.step("b"))
        await ctx.gather(first, second, ctx.wait_signal("go"))

    async def after(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        first, second = ctx.step(logged(slow(ledger))), ctx.step(logged(ledger.step("b")))
        return await ctx.gather(first, second, ctx.wait_signal("go"))

    ledger = Ledger()
    app = app_with(durable, before, ledger)
    await app.open()
    await app.start(app.services.definitions["order"].options(id="p"))
    await started.wait()

    async def second_is_recorded() -> bool:
        view = await app.process_handle("p").timeline()
        return "wrapper#2" in [one.key for one in view if one.status == "done"]

    await eventually(second_is_recorded)
    await kill(app)
    assert ledger.lines == ["b"]
    assert await outcome(durable, after, ledger) == ["a", "b", None]
    assert ledger.lines == ["b", "a"]


def add(first: int, second: int = 0, *, third: int = 0, client: object = None) -> int:
    return first + second + third


def adds(*steps: Callable[..., int], key: str | None = None) -> Body:
    """Return a process that calls functions with 2."""

    async def body(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        found = [await ctx.options(key=key).step(step, 2) for step in steps]
        await ctx.wait_signal("go")
        return found

    return body


@pytest.mark.parametrize(
    "changed", [partial(add, 100, third=3), partial(add, 1, third=100), partial(add, 1), add]
)
async def test_bound_arguments_of_a_partial_are_compared(
    durable: Backend, changed: Callable[..., int]
) -> None:
    ledger = Ledger()
    bound = partial(partial(add, 1, third=0, client=ledger), third=3)
    await recorded(durable, adds(bound), ledger)
    blocked = await outcome(durable, adds(changed), ledger)
    assert "effect_replay_mismatch" in str(blocked)
    async with app_with(durable, adds(bound), ledger) as app:
        await app.retry("p")
        await app.process_handle("p").signal("go")
        assert await app.process_handle("p").result(timeout="10s") == [6]


@pytest.mark.parametrize("key", [None, "sum"])
async def test_partials_that_were_recorded_without_bound_arguments_fit(
    durable: Backend, key: str | None
) -> None:
    ledger = Ledger()
    # As older versions recorded partials: under the name of their class or a key, and without what was bound.
    await recorded(durable, adds(add, key=key or "partial"), ledger)
    assert await outcome(durable, adds(partial(add, 1), key=key), ledger) == [2]


async def test_the_reason_of_an_early_end_has_the_traceback_of_the_code(durable: Backend) -> None:
    for body, code in ((fails_early, "effect_replay_diverged"), (mistaken, "process_code_error")):
        ledger = Ledger()
        app = app_with(durable, old, ledger)
        await app.open()
        await app.start(app.services.definitions["order"].options(id=code))
        await eventually(app.waits)
        await kill(app)
        async with app_with(durable, body, ledger) as app:
            handle = app.process_handle(code)
            await handle.signal("go")

            async def reason(app: Lash = app, name: str = code) -> str | None:
                view = await app.store.processes.view(name)
                return None if view is None or view.status != "blocked" else view.reason

            found = await eventually(reason)
            stated, trace = split_reason(str(found))
            assert stated.startswith(code)
            assert trace is not None
            assert f"in {body.__name__}" in trace
            assert "pylash/engine" not in trace
            with pytest.raises(ProcessBlocked) as blocked:
                await handle.result(timeout=0)
            assert "Traceback" not in blocked.value.reason


async def test_recorded_arguments_that_do_not_fit_block(durable: Backend) -> None:
    app = Lash(durable.url)

    @app.process(name="order")
    async def order(ctx: ProcessContext[None], user: str) -> str:
        await ctx.wait_signal("go")
        return user

    await app.open()
    await app.start(order.options(id="p"), user="ann")
    await kill(app)
    later = Lash(durable.url)

    @later.process(name="order")
    async def order_of(ctx: ProcessContext[None], user: str, cents: int) -> str:
        await ctx.wait_signal("go")
        return f"{user} {cents}"

    async with later:
        handle = later.process_handle("p")

        async def reason() -> str | None:
            view = await later.store.processes.view("p")
            return None if view is None or view.status != "blocked" else view.reason

        assert "process_data_invalid" in (await eventually(reason) or "")
        await handle.signal("go")
    async with app:
        await app.retry("p")
        assert await app.process_handle("p").result(timeout="10s") == "ann"


async def test_a_diverged_process_ends_when_it_is_cancelled(durable: Backend) -> None:
    ledger = Ledger()
    await recorded(durable, old, ledger)
    assert isinstance(await outcome(durable, renamed, ledger), ProcessBlocked)
    async with app_with(durable, renamed, ledger) as app:
        handle = app.process_handle("p")
        await handle.cancel()
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")
    assert ledger.lines == ["load", "charge"]


async def test_a_process_that_was_cancelled_before_its_code_changed_ends(durable: Backend) -> None:
    ledger = Ledger()
    await recorded(durable, old, ledger)
    async with Lash(durable.url) as app:  # it has no code for the process
        await app.process_handle("p").cancel()
    async with app_with(durable, renamed, ledger) as app:
        with pytest.raises(ProcessCancelled):
            await app.process_handle("p").result(timeout="10s")
    assert ledger.lines == ["load", "charge"]


async def test_a_diverged_process_that_is_retried_after_its_timeout_ends(durable: Backend) -> None:
    ledger = Ledger()
    app = app_with(durable, old, ledger, timeout="1s")
    await app.open()
    await app.start(app.services.definitions["order"].options(id="p"))

    async def waits() -> bool:
        return len(await app.process_handle("p").timeline()) == 3

    await eventually(waits)
    await kill(app)
    blocked = await outcome(durable, renamed, ledger, timeout="1s")
    assert isinstance(blocked, ProcessBlocked), blocked
    async with app_with(durable, renamed, ledger, timeout="1s") as later:
        handle = later.process_handle("p")

        async def has_ended() -> bool:
            if await handle.status() == "blocked":
                await later.retry("p")
            return await handle.status() == "failed"

        await eventually(has_ended)
        with pytest.raises(ProcessFailed, match="time"):
            await handle.result(timeout=0)
    assert ledger.lines == ["load", "charge"]


async def patched_twice(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    async def part(name: str) -> Any:
        before = await ctx.patched("in")
        return [before, await ctx.step(ledger.step(name))]

    found = [await ctx.patched("first"), await ctx.gather(part("a"), part("b"))]
    async with ctx.task_group() as group:
        one = group.create_task(part("c"))
        found.append(await ctx.patched("beside"))
    return [*found, one.result(), await ctx.patched("in")]


TAKEN = [True, [[True, "a"], [True, "b"]], True, [True, "c"], True]


@pytest.mark.parametrize(
    "host", [InlineHost, lambda: SerialHost(InlineHost())], ids=["inline", "serial"]
)
async def test_patches_are_taken_without_a_record(host: Any) -> None:
    app, ledger = Lash("memory://", host=host()), Ledger()

    @app.process
    async def order(ctx: ProcessContext[None]) -> Any:
        return await patched_twice(ctx, ledger)

    async with app:
        assert await (await app.start(order)).result(timeout="10s") == TAKEN


async def test_a_patch_inside_recorded_branches_is_taken_where_nothing_is_recorded(
    durable: Backend,
) -> None:
    async def unpatched(ctx: ProcessContext[None]) -> bool:
        return False

    def body(is_patched: Callable[[ProcessContext[None]], Awaitable[bool]]) -> Body:
        async def part(ctx: ProcessContext[None], ledger: Ledger, name: str, then: str) -> Any:
            first = await ctx.step(ledger.step(name))
            if await is_patched(ctx):
                await ctx.step(ledger.step(f"{name}-check"))
            await ctx.wait_signal(then)
            return first

        async def gathers(ctx: ProcessContext[None], ledger: Ledger) -> Any:
            async def late() -> Any:
                await ctx.wait_signal("go")
                return await is_patched(ctx) and await ctx.step(ledger.step("b-check"))

            return await ctx.gather(part(ctx, ledger, "a", "go"), late())

        return gathers

    ledger = Ledger()
    await recorded(durable, body(unpatched), ledger, waiting=2)
    async with app_with(durable, body(lambda ctx: ctx.patched("check")), ledger) as app:
        handle = app.process_handle("p")
        await handle.signal("go")
        await handle.signal("go")
        # Branch a has passed the place of the patch; the other has recorded nothing behind it.
        assert await handle.result(timeout="10s") == ["a", "b-check"]
    assert ledger.lines == ["a", "b-check"]


async def test_a_fork_keeps_the_patches_of_its_origin(durable: Backend) -> None:
    ledger = Ledger()
    await recorded(durable, old, ledger)
    async with app_with(durable, patched, ledger) as app:
        forks = [await app.fork_process("p", id="f1")]
        forks.append(await app.fork_process("p", from_effect="charge", id="f2"))
        for fork in forks:
            await fork.signal("go")
        assert [await fork.result(timeout="10s") for fork in forks] == [DONE, DONE]
    # The first passed the place of the patch before it was forked, the second comes to it.
    assert ledger.lines.count("check") == ledger.lines.count("second check") == 1
    assert ledger.lines.count("charge") == 2
    assert ledger.lines.count("load") == 1
