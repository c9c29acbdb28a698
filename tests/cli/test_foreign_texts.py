"""Untrusted text of programs, tools, models and people never controls the terminal, forges a line or shows a secret."""

from __future__ import annotations

import asyncio
import base64
import logging
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from pylash import Lash, LashError, ProcessContext, Retry
from pylash.cli.log_format import LogFormatter
from pylash.cli.worker import show_event, worker_facts
from pylash.testing import ScriptedModel, call, say
from tests.backends import eventually
from tests.cli.conftest import Call
from tests.cli.test_worker import started, until

FORGED = "2026-01-01 00:00:00,000 INFO    pylash  all is well"
EVIL = f"x\x1b[2J\x07\r\n{FORGED}\x85\u2028\u202e\x9b31m"
ODD = "odd\u202eid"  # a control character is refused in a name
SECRET = "correct horse/battery+staple"


def record(message: str, *args: Any, **more: Any) -> logging.LogRecord:
    return logging.getLogger("pylash").makeRecord(
        "pylash", logging.WARNING, __file__, 1, message, args, **{"exc_info": None, **more}
    )


def assert_plain(text: str, *, lines: bool = True) -> None:
    """Check that a text has no character that a terminal would obey."""
    bad = [one for one in text if not one.isprintable() and not (lines and one == "\n")]
    assert not bad, bad
    assert not any(line.startswith(FORGED) for line in text.splitlines())


def test_a_record_is_one_line_whatever_is_in_it() -> None:
    text = LogFormatter("%(levelname)s %(message)s").format(
        record("tool %s failed: %s", EVIL, EVIL)
    )
    assert_plain(text, lines=False)
    assert text.startswith("WARNING tool x\\x1b[2J\\x07\\r\\n2026")


def test_a_traceback_is_indented_and_escaped() -> None:
    def fail() -> None:
        raise ValueError(EVIL)

    try:
        fail()
    except ValueError:
        made = record("failed", exc_info=sys.exc_info(), sinfo=f"Stack:\n{EVIL}")
    made.exc_text = EVIL  # as a handler before left it
    head, *more = LogFormatter("%(message)s").format(made).split("\n")
    assert head == "failed"
    assert all(line.startswith("    ") for line in more)
    assert_plain("\n".join(more))
    assert any("ValueError: x\\x1b[2J" in line for line in more)


def test_secrets_are_hidden_in_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", SECRET)
    basic = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    made = LogFormatter("%(message)s", ["p@ssw0rd"]).format(
        record("%s with %s", f"Authorization: Basic {basic}", f"p@ssw0rd and {SECRET!r}")
    )
    assert made == "Authorization: Basic [hidden] with [hidden] and '[hidden]'"


CHAT = """
import logging
from pylash import Lash
from pylash.testing import ScriptedModel, say
EVIL = {evil!r}

def reply(request):
    logging.getLogger("pylash").error(EVIL)
    return say("Done.")

app = Lash("memory://", model=ScriptedModel(reply))
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the file of a program, in the folder in which commands are called."""
    monkeypatch.delenv("PYLASH_STORE", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2] / 'src'}")
    return tmp_path / "hostile.py"


@pytest.mark.slow
def test_the_chats_own_log_is_written_the_same_way(hostile: Path) -> None:
    hostile.write_text(CHAT.format(evil=EVIL))
    command = [sys.executable, "-m", "pylash", "chat", "hostile:app"]
    done = subprocess.run(
        command,
        cwd=hostile.parent,
        input="go",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "Done.\n"
    assert_plain(done.stderr)
    assert "x\\x1b[2J" in done.stderr


APP = """
import base64
from pylash import Lash, ProcessContext
app = Lash("sqlite:///shop.db")
EVIL = {evil!r}

@app.process
async def broken(ctx: ProcessContext[None], text: str) -> None:
    raise ValueError(EVIL + text)
"""


def start_broken(url: str, text: str) -> None:
    """Start a process of the program above that fails with a text."""

    async def start() -> None:
        async with Lash(url, worker=None, migrate=True) as client:

            async def broken(ctx: ProcessContext[None], text: str) -> None: ...

            definition = client.process(name="broken")(broken)
            await client.start(definition.options(id="broken-1"), text=text)

    asyncio.run(start())


def log_of_worker(*args: str, cwd: Path) -> str:
    """Return what a worker logs from the failure of the process on."""
    with started("worker", "hostile:app", *args, cwd=cwd) as worker:
        line = until(worker.stderr, lambda line: "broken-1" in line)
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        return line + worker.stderr.read()


@pytest.mark.slow
def test_a_worker_logs_nothing_raw(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile.write_text(APP.format(evil=EVIL))
    monkeypatch.setenv("SHOP_API_KEY", SECRET)
    start_broken(f"sqlite:///{hostile.parent}/shop.db", SECRET)
    text = log_of_worker(cwd=hostile.parent)
    assert_plain(text)
    assert "x\\x1b[2J" in text
    assert SECRET not in text


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_a_worker_logs_no_password_of_its_store(place: str, hostile: Path) -> None:
    hostile.write_text(APP.format(evil=""))
    start_broken(place, f"told {SECRET}")
    url = f"{place}&password={quote_plus(SECRET)}"  # a server that trusts us ignores it
    assert "told [hidden]" in (text := log_of_worker("--store", url, cwd=hostile.parent))
    assert SECRET not in text


def test_the_banner_of_a_worker_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://ann:p@ss:w/rd@db:5432/shop?sslmode=require&password=hunter22&sslpassword=x"
    facts = worker_facts(Lash(url))
    show_event(False, "started", **facts)
    shown = "postgresql://ann:***@db:5432/shop?sslmode=require&password=***&sslpassword=***"
    assert facts["store"] == shown
    assert shown in capsys.readouterr().err


@pytest.mark.parametrize(
    "store",
    [
        "postgresql://ann:hunter22/x@localhost/db",
        "postgresql://ann:hunter22?x@localhost/db",
        "postgresql://ann:hunter22@localhost:port/db",
        "postgres:/ann:hunter22@localhost/db",
        "ann:hunter22@localhost/db",
        "mysql://ann:x@hunter22@localhost/db",
        "postgresql://ann:hunter22@[::1]:1/db?password=hunter22",
    ],
)
def test_no_command_shows_the_password_of_a_store(pylash: Call, store: str) -> None:
    for command in (("ps",), ("doctor",), ("doctor", "--json")):
        done = pylash(*command, "--store", store)
        assert done.exit_code in (1, 2)
        assert "hunter22" not in done.output
        assert done.exception is None or isinstance(done.exception, SystemExit)


# --- commands that look ---


def hostile_store(url: str) -> None:
    """Fill a store with texts that would command a terminal, wherever texts can be."""
    app = Lash(url, model=ScriptedModel([call("refund", why=EVIL), say(EVIL)]))

    @app.tool(approval=EVIL)
    async def refund(why: str) -> str:
        """Give money back."""
        raise ValueError(why)

    async def step(text: str) -> str:
        return text

    @app.process
    async def order(ctx: ProcessContext[None], text: str) -> str:
        await ctx.step(step, text)
        await ctx.emit("progress", {text: text})
        await ctx.wait_signal("address")
        raise LashError(EVIL, code="evil")

    @app.process
    async def flaky(ctx: ProcessContext[None]) -> None:
        await ctx.options(retry=Retry(2, delay="1ms")).step(failing)

    async def failing() -> None:
        raise ValueError(EVIL)

    async def fill() -> None:
        async with app:
            for name in ("plain", ODD):
                await app.start(order.options(id=f"order-{name}"), text=EVIL)
                with suppress(TimeoutError):
                    asking = app.session(f"chat-{name}").turn(
                        EVIL, turn_id=f"turn-{name}", timeout=0
                    )
                    await asking
            await app.session("chat-plain").enqueue(EVIL)
            with suppress(LashError):
                await (await app.start(flaky.options(id="flaky"))).result(timeout="10s")
            failed = await app.start(order.options(id="failed"), text=EVIL)
            await failed.signal("address", EVIL)
            with suppress(LashError):
                await failed.result(timeout="10s")
            cancelled = await app.start(order.options(id="cancelled"), text=EVIL)
            await cancelled.cancel(EVIL)
            with suppress(LashError):
                await cancelled.result(timeout="10s")

            async def all_wait() -> bool:
                return len(await app.waits()) >= 4

            await eventually(all_wait)

    asyncio.run(fill())


def test_no_command_prints_raw_what_others_wrote(file: str, pylash: Call) -> None:
    hostile_store(file)
    commands = [
        *(
            ("show", f"{kind}-{name}")
            for kind in ("order", "chat", "turn")
            for name in ("plain", ODD)
        ),
        ("show", "failed"),
        ("show", "flaky"),
        ("events", "failed"),
        ("events", f"order-{ODD}"),
        ("ps",),
        ("waits",),
        ("doctor",),
        ("signal", f"order-{ODD}", "address", '"x"'),
        ("cancel", f"order-{ODD}"),
        ("resolve", f"{EVIL}", "true"),
        ("show", f"nothing{EVIL}"),
        ("ps", f"--{EVIL}"),
        (f"command{EVIL}",),
        ("check", f"missing{EVIL}.lash"),
        ("worker", f"missing{EVIL}:app"),
        ("signal", "failed", "address", f"not json {EVIL}"),
        ("--store", f"sqlite:///{EVIL}", "ps"),
    ]
    for command in commands:
        done = pylash(*command)
        assert done.output, command
        bad = [one for one in done.output if not one.isprintable() and one != "\n"]
        assert not bad, (command, bad, done.output)
        assert_plain(done.output)
