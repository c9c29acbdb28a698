"""The programs in `examples/lashlang` do what their first lines say, on a clock that jumps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, LashlangModule, ProcessFailed, ProcessHandle
from pylash.lang import Surroundings, artifact, format_source, link, parse, run_cell, surface_of
from pylash.testing import SimClock

GALLERY = Path(__file__).parents[2] / "examples" / "lashlang"
NAMES = sorted(path.stem for path in GALLERY.glob("*.lash"))


def source(name: str) -> str:
    return (GALLERY / f"{name}.lash").read_text()


class Gallery:
    """An app with the tools of one program."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.app = Lash("memory://", clock=self.clock)
        self.calls: list[tuple[Any, ...]] = []

    def tool(self, module: str, function: Callable[..., Any]) -> None:
        self.app.tool(module=module)(function)

    async def load(self, name: str) -> LashlangModule:
        return await self.app.lashlang(source(name))

    async def failure(self, handle: ProcessHandle[Any]) -> Any:
        with pytest.raises(ProcessFailed) as caught:
            await handle.result()
        return caught.value.failure

    def with_mail(self) -> Gallery:
        async def send(to: str, text: str) -> None:
            self.calls.append((to, text))

        self.tool("mail", send)
        return self


@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_written_as_the_formatter_writes_it(name: str) -> None:
    assert format_source(source(name)) == source(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_has_a_comment_about_its_purpose_and_needs(name: str) -> None:
    first, *others = source(name).splitlines()
    assert first.startswith("# ")
    assert any(line.startswith("# Needs: ") for line in others)


def test_every_program_is_run_here() -> None:
    assert {f"test_{name}" for name in NAMES} <= {
        name.split("__")[0] for name in globals() if name.startswith("test_")
    }


# --- approval ---


async def test_approval() -> None:
    gallery = Gallery().with_mail()
    async with gallery.app as app:
        approve = (await gallery.load("approval"))["approve"]
        quick = await app.start(approve, what="a lamp", asker="ann", boss="bob")
        await quick.signal("decision", {"by": "ann", "yes": False})
        assert await quick.result() == "a lamp refused by ann"
        gallery.calls.clear()

        slow = await app.start(approve, what="a laptop", asker="ann", boss="bob")
        await gallery.clock.advance("23h")
        assert [to for to, _ in gallery.calls] == ["ann"]
        await gallery.clock.advance("2h")
        assert [to for to, _ in gallery.calls] == ["ann", "bob"]
        await slow.signal("decision", {"by": "bob", "yes": True})
        assert await slow.result() == "a laptop approved by bob"


async def test_approval__nobody_decides() -> None:
    gallery = Gallery().with_mail()
    async with gallery.app as app:
        approve = (await gallery.load("approval"))["approve"]
        handle = await app.start(approve, what="a yacht", asker="ann", boss="bob")
        await gallery.clock.advance("3d")
        found = await gallery.failure(handle)
        assert (found.code, found.message) == ("process_failed", "nobody decided about a yacht")


# --- polling ---


@pytest.mark.parametrize(
    ("states", "ends"),
    [
        (["running", "away", "running", "ready"], "https://example.org/j-1"),
        (["running", "failed"], "job j-1 failed"),
        (["running"] * 9, "job j-1 was not ready after 6 looks"),
    ],
)
async def test_polling(states: list[str], ends: str) -> None:
    gallery = Gallery()
    looked: list[int] = []

    async def submit(name: str) -> dict[str, str]:
        return {"id": "j-1"}

    async def status(id: str) -> dict[str, str]:  # noqa: A002 - the word of the program
        looked.append(round(gallery.clock.monotonic()))
        if states[len(looked) - 1] == "away":
            raise ConnectionError("the line is down")
        return {"state": states[len(looked) - 1], "url": "https://example.org/j-1"}

    gallery.tool("jobs", submit)
    gallery.tool("jobs", status)
    async with gallery.app as app:
        wait_for = (await gallery.load("polling"))["wait_for"]
        handle = await app.start(wait_for, name="render", tries=6)
        await gallery.clock.advance("1d")
        if ends.startswith("job"):
            assert (await gallery.failure(handle)).message == ends
        else:
            assert await handle.result() == ends
    assert looked == [1, 3, 7, 15, 31, 63][: len(looked)]


# --- fan-out ---


async def test_fan_out() -> None:
    gallery = Gallery()

    async def fetch(url: str) -> dict[str, int]:
        gallery.calls.append((url,))
        if "gone" in url:
            raise LookupError("404")
        return {"words": len(url)}

    gallery.tool("web", fetch)
    async with gallery.app as app:
        crawl = (await gallery.load("fan_out"))["crawl"]
        handle = await app.start(crawl, urls=["abc", "gone", "abcdef", "abc"])
        found = await handle.result()
    assert (found["pages"], found["words"], len(found["failed"])) == (2, 9, 1)
    assert "404" in found["failed"][0]
    assert len(gallery.calls) == 3


# --- saga ---


@pytest.mark.parametrize("full", ["", "car"])
async def test_saga(full: str) -> None:
    gallery = Gallery()

    async def book(what: str, trip: str) -> dict[str, str]:
        if what == full:
            raise LookupError("no car is left")
        gallery.calls.append(("book", what))
        return {"ref": f"{trip}/{what}"}

    async def cancel(ref: str) -> None:
        gallery.calls.append(("cancel", ref))
        if "hotel" in ref:
            raise ConnectionError("the hotel does not answer")

    gallery.tool("travel", book)
    gallery.tool("travel", cancel)
    async with gallery.app as app:
        handle = await app.start((await gallery.load("saga"))["journey"], trip="T-1")
        if not full:
            assert await handle.result() == ["T-1/flight", "T-1/hotel", "T-1/car"]
            return
        found = await gallery.failure(handle)
        assert found.raw["what"] == "car"
        assert found.raw["undone"] == 2
        undone = [name for done, name in gallery.calls if done == "cancel"]
        assert undone == ["T-1/hotel", "T-1/flight"]
        wakes = [e.payload["text"] async for e in handle.events() if e.type == "process.wake"]
        assert len(wakes) == 1
        assert wakes[0].startswith("Please cancel T-1/hotel by hand: ")


# --- refund ---


@pytest.mark.parametrize(
    ("cents", "answer", "meanwhile", "ends"),
    [
        (900, None, False, "refunded 900 cents for order A-7"),
        (9000, True, False, "refunded 9000 cents for order A-7"),
        (9000, True, True, "order A-7 was refunded meanwhile"),
        (9000, False, False, "nobody agreed to refund order A-7"),
        (9000, None, False, "nobody agreed to refund order A-7"),
    ],
)
async def test_refund(cents: int, answer: bool | None, meanwhile: bool, ends: str) -> None:
    gallery = Gallery()
    seen = 0

    async def order(id: str) -> dict[str, int | bool]:  # noqa: A002 - the word of the program
        nonlocal seen
        seen += 1
        return {"cents": cents, "refunded": meanwhile and seen > 1}

    async def refund(id: str, cents: int) -> None:  # noqa: A002 - the word of the program
        gallery.calls.append((id, cents))

    gallery.tool("shop", order)
    gallery.tool("shop", refund)
    async with gallery.app as app:
        handle = await app.start((await gallery.load("refund"))["refund"], order="A-7", limit=5000)
        if answer is not None:
            await handle.signal("answer", answer)
        await gallery.clock.advance("3d")
        if "agreed" in ends:
            assert (await gallery.failure(handle)).message == ends
        else:
            assert await handle.result() == ends
    assert gallery.calls == ([("A-7", cents)] if ends.startswith("refunded") else [])


# --- nightly report ---


async def test_nightly_report() -> None:
    gallery = Gallery().with_mail()
    gallery.app.trigger("clock.nightly", payload=dict[str, str])

    async def of(shop: str, day: str) -> dict[str, int]:
        return {"cents": 1250}

    gallery.tool("sales", of)
    async with gallery.app as app:
        module = await gallery.load("nightly_report")
        for _ in range(2):  # the second time replaces the first
            installed = await app.start(module["install"], shop="Berlin", to="ann")
            assert await installed.result() == "report/Berlin"
        for _ in range(2):  # delivered twice, reported once
            started = await app.triggers.emit(
                "clock.nightly",
                source_key="europe",
                payload={"day": "2026-01-01"},
                idempotency_key="2026-01-01",
            )
        assert await app.process_handle(started[0].process_id).result() == 1250
        assert gallery.calls == [("ann", "Berlin sold for 12.5 on 2026-01-01")]
        for gone in (True, False):
            handle = await app.start(module["uninstall"], shop="Berlin")
            assert await handle.result() is gone
        again = await app.triggers.emit(
            "clock.nightly", source_key="europe", payload={"day": "x"}, idempotency_key="x"
        )
        assert again == []


# --- retry ---


@pytest.mark.parametrize(
    ("answers", "ends", "when"),
    [
        (["the bank is away", "the bank is away", ""], "r-1", [0, 1, 4]),
        (["the card was declined"], {"tried": 1}, [0]),
        (["the bank is away"] * 4, {"tried": 4}, [0, 1, 4, 13]),
    ],
)
async def test_retry(answers: list[str], ends: str | dict[str, Any], when: list[int]) -> None:
    gallery = Gallery()

    async def charge(card: str, cents: int, key: str) -> dict[str, str]:
        gallery.calls.append((key, round(gallery.clock.monotonic())))
        if problem := answers[len(gallery.calls) - 1]:
            raise ConnectionError(problem)
        return {"receipt": "r-1"}

    gallery.tool("payment", charge)
    async with gallery.app as app:
        process = (await gallery.load("retry"))["charge"]
        handle = await app.start(process, card="c-1", cents=1200, tries=4)
        await gallery.clock.advance("1h")
        if isinstance(ends, str):
            assert await handle.result() == ends
        else:
            failure = await gallery.failure(handle)
            assert failure.raw["tried"] == ends["tried"]
            assert len(failure.raw["problems"]) == 1
    assert gallery.calls == [("c-1/1200", at) for at in when]


# --- batch import ---


async def test_batch_import() -> None:
    gallery = Gallery()

    async def insert(rows: list[dict[str, Any]]) -> dict[str, int]:
        gallery.calls.append(tuple(row["name"] for row in rows))
        return {"inserted": len(rows)}

    gallery.tool("db", insert)
    rows = [{"id": n, "name": "  " if n == 3 else f" Row{n} "} for n in range(5)]
    async with gallery.app as app:
        module = await gallery.load("batch_import")
        handle = await app.start(module["import_rows"], rows=rows, size=2)
        assert await handle.result() == {"imported": 4, "rejected": [3]}
        progress = [e.payload["value"] async for e in handle.events() if e.type == "process.yield"]
    assert [(one["done"], one["total"]) for one in progress] == [(2, 5), (3, 5), (4, 5)]
    assert gallery.calls == [("row0", "row1"), ("row2",), ("row4",)]


# --- transform ---


class Printer:
    """A host that takes what cells print, and performs nothing."""

    def __init__(self) -> None:
        self.printed: list[Any] = []

    def print(self, value: Any) -> None:
        self.printed.append(value)

    def __getattr__(self, effect: str) -> Any:
        raise AssertionError(effect)


async def test_transform() -> None:
    host = Printer()
    made = artifact(link(parse(source("transform")), surface_of({})))
    around = Surroundings(host, {}, traced=False)
    variables: dict[str, Any] = {}
    outcome = await run_cell(made, variables, around, SimClock().monotonic, scope="cell:1")
    assert outcome.error is None
    assert host.printed == [{"berlin": ["AL", "C"], "paris": ["BR"]}]
    assert outcome.value == {"cities": ["berlin", "paris"], "oldest": 44, "mean": 100 / 3}
    assert variables["oldest"] == 44


# --- supervisor ---


async def test_supervisor() -> None:
    gallery = Gallery()

    async def step(shard: str, attempt: int) -> dict[str, Any]:
        gallery.calls.append((shard, attempt))
        if shard == "bad" or (shard == "shaky" and attempt == 0):
            raise RuntimeError(f"{shard} broke")
        return {"done": shard != "slow" or attempt > 0, "value": shard.upper()}

    gallery.tool("work", step)
    async with gallery.app as app:
        supervise = (await gallery.load("supervisor"))["supervise"]
        shards = ["good", "slow", "shaky", "bad"]
        handle = await app.start(supervise, shards=shards, restarts=2)
        await gallery.clock.advance("2h")
        found = await handle.result()
    assert found["given_up"] == ["bad"]
    values = {shard: result.get("value") for shard, result in found["results"].items()}
    assert values == {"good": "GOOD", "slow": "SLOW", "shaky": "SHAKY", "bad": None}
    assert sorted(gallery.calls) == [
        *[("bad", attempt) for attempt in range(3)],
        ("good", 0),
        *[("shaky", attempt) for attempt in range(2)],
        *[("slow", 0)] * 10,  # for ten minutes
        ("slow", 1),
    ]
