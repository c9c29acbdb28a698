"""The command line and the facade with an app on Restate, whose worker is elsewhere."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

import pylash.sync
from pylash import EVENT
from pylash.cli.main import cli
from tests.restate import shop
from tests.restate.server import RestateServer

APP = "tests.restate.shop:app"


@pytest.fixture
def shop_app(shop_environment: dict[str, str], restate_server: RestateServer) -> Iterator[Any]:
    """Give an open app with a worker, on an event loop in another thread."""
    del shop_environment
    with shop.make_app(pylash.sync.Lash) as app:
        yield app
    asyncio.run(restate_server.clear())


def output(*args: str) -> Any:
    """Return what a command prints for programs."""
    done = CliRunner().invoke(cli, (*args, "--json"))
    assert done.exit_code == 0, done.output
    lines = done.stdout.strip().splitlines()
    return [json.loads(line) for line in lines] if args[0] == "events" else json.loads(done.stdout)


def until(look: Callable[[], Any]) -> Any:
    """Return what a function returns, once that is something."""
    for _ in range(500):
        if (found := look()) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def test_a_process_is_listed_shown_signalled_and_followed(
    shop_app: Any, shop_environment: dict[str, str]
) -> None:
    here = ("--store", APP)
    handle = shop_app.start(shop.PROCESSES["order"], cents=5)
    until(lambda: handle.status() == "waiting" or None)
    (row,) = output("ps", "--name", "order", *here)
    assert (row["target"], row["engine"], row["status"]) == ("python:order", "restate", "waiting")
    view = output("show", handle.id, "--values", *here)
    effects = {one["name"]: one for one in view["effects"]}
    assert {name: one["status"] for name, one in effects.items()} == {
        "charge": "done", "fail": "failed", "sleep": "done", "paid": "open",
    }  # fmt: skip
    assert effects["charge"]["output"] == 5
    assert effects["fail"]["error"] == "ValueError: broken"
    assert view["note"] is None
    # Without the app the address of the server is not known.
    partial = output("show", handle.id, "--store", shop_environment["SHOP_STORE"])
    assert [one["name"] for one in partial["effects"]] == ["paid"]
    assert "--store MODULE:APP" in partial["note"]
    exported = output("export", handle.id, *here)
    assert "charge" in [one["key"] for one in exported["processes"][0]["effects"]]
    fork = output("fork", handle.id, "--yes", *here)
    assert "charge" in fork["kept"]
    output("signal", fork["id"], "paid", '"no"', *here)
    assert shop_app.process_handle(fork["id"]).result(timeout="20s") == "no"
    (wait,) = output("waits", *here)
    assert (wait["kind"], wait["of"]) == ("signal", handle.id)
    output("signal", handle.id, "paid", '"yes"', *here)
    assert handle.result(timeout="20s") == "yes"
    assert [one["type"] for one in output("events", handle.id, *here)][-2:] == [
        "signal.paid", "process.completed",
    ]  # fmt: skip
    assert "charge" in [one.name for one in handle.timeline()]


def test_approvals_triggers_and_cancels(shop_app: Any) -> None:
    here = ("--store", APP)
    session = shop_app.session("chat")
    session.enqueue("pay")
    (wait,) = until(lambda: output("waits", "--session", "chat", *here) or None)
    assert (wait["kind"], wait["tool"], wait["arguments"]) == ("approval", "pay", {"cents": 5})
    output("resolve", wait["id"], "true", "--by", "ann", *here)
    until(lambda: [one.text for one in session.history()][-1:] == ["heard paid 5"] or None)
    target = shop.PROCESSES["on_paid"]
    shop_app.triggers.register(
        "paid", source_key="shop", target=target, key="k", inputs={"event": EVENT}
    )
    (delivery,) = shop_app.triggers.emit(
        "paid", source_key="shop", payload={"cents": 7}, idempotency_key="once"
    )
    assert shop_app.process_handle(delivery.process_id).result(timeout="20s") == 7
    waiting = shop_app.start(shop.PROCESSES["order"], cents=1)
    until(lambda: waiting.status() == "waiting" or None)
    output("cancel", waiting.id, *here)
    until(lambda: waiting.status() == "cancelled" or None)


def test_a_process_that_uses_the_network_outside_a_step_is_blocked(shop_app: Any) -> None:
    leaky = shop_app.start(shop.PROCESSES["leaky"])
    until(lambda: leaky.status() == "blocked" or None)
    view = output("show", leaky.id, "--store", APP)
    assert view["code"] == "process_code_error"
    assert "EffectOutsideStep" in view["reason"]
    # The mark of the patch is in the journal of the server.
    (patch,) = output("doctor", APP)["patches"]
    assert (patch["patch"], patch["live"], patch["recorded"], patch["lacking"]) == (
        "quick",
        1,
        1,
        0,
    )


def test_doctor_checks_both_directions(
    restate_server: RestateServer, shop_environment: dict[str, str]
) -> None:
    def findings(code: int) -> dict[str, tuple[str, str]]:
        done = CliRunner().invoke(cli, ("doctor", APP, "--json"))
        assert done.exit_code == code, done.output
        found = json.loads(done.stdout)["findings"]
        return {one["name"]: (one["status"], one["text"]) for one in found}

    with shop.make_app(pylash.sync.Lash) as app:
        handle = app.start(shop.PROCESSES["order"], cents=5)
        until(lambda: handle.status() == "waiting" or None)
        found = findings(0)
        assert found["restate"][0] == "ok"
        assert shop_environment["SHOP_ENDPOINT"] in found["registered"][1]
        assert found["worker"][1].endswith("which has 1 run that has not ended")
        assert found["invocations"] == ("ok", "1 suspended")
        assert (found["runs"][0], found["others"][0]) == ("ok", "ok")
    assert findings(1)["worker"][0] == "fail"  # nothing listens there any more
    asyncio.run(restate_server.clear())
    found = findings(1)
    assert found["registered"][0] == "fail"
    assert handle.id in found["runs"][1]  # only the store knows it


def test_worker_without_an_address_or_for_another_host_is_one_sentence(
    shop_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del shop_environment
    monkeypatch.delenv("SHOP_ENDPOINT")
    for args, code in (
        (("worker", APP), "endpoint_missing"),
        (("worker", APP, "--endpoint", "workers:9080"), "endpoint_invalid"),
        (("worker", APP, "-c", "5"), "usage"),
        (("worker", "tests.cli.shop:app", "--restate"), "app_invalid"),
    ):
        done = CliRunner().invoke(cli, args)
        assert done.exit_code in (1, 2)
        assert done.stderr.strip().endswith(f"[{code}]")
        assert len(done.stderr.strip().splitlines()) == 1
