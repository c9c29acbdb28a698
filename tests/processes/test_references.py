"""References to attachments in tool calls of processes and Lashlang programs: read when the tool is called."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from pylash import (
    Attachment,
    InlineHost,
    Lash,
    ProcessContext,
    ProcessFailed,
    Retry,
    ToolContext,
    ToolUnknown,
)
from pylash.stores.operation import Operation, Statement, Steps
from pylash.testing import ScriptedModel, kill, say
from tests.backends import Backend
from tests.processes.test_branches import PARKING, parked
from tests.processes.test_process_tools import waiting

LETTER = b"the letter of Ann"
REF = hashlib.sha256(LETTER).hexdigest()
MISSING = hashlib.sha256(b"nothing").hexdigest()


def office(url: str, **options: Any) -> Lash:
    """Return an app whose sessions keep letters, and whose processes call tools with references to them."""
    app = Lash(url, model=ScriptedModel(lambda _: say("Kept.")), **options)

    @app.tool(retry=Retry(3, delay="1ms"))
    async def read(text: str, copies: int = 1) -> str:
        """Return a text."""
        return " ".join(["read", *[text] * copies])

    @app.tool(projection="file")
    async def forward(file: Any, note: Any = None) -> list[Any]:
        """Take a reference as it is."""
        return [file, note]

    @app.tool
    async def chart(ctx: ToolContext[None], rows: int) -> Any:
        """Draw a chart."""
        drawn = ctx.attach(f'{{"rows": {rows}}}'.encode(), "application/json")
        return {"chart": drawn} if rows else drawn

    @app.tool
    async def show(data: dict[str, Any]) -> list[str]:
        """Return the names in data."""
        return sorted(data)

    @app.process
    async def calls(ctx: ProcessContext[None], ref: str) -> list[Any]:
        here = {"$ref": ref}
        read = await ctx.call_tool("read", text=here, copies=2)
        return [read, *await ctx.call_tool("forward", file=here, note=[here])]

    @app.process
    async def draws(ctx: ProcessContext[None], rows: int) -> Any:
        drawn = await ctx.call_tool("chart", rows=rows)
        ref = (drawn["chart"] if rows else drawn)["ref"]
        await ctx.wait_signal("go")
        return await ctx.call_tool("show", data={"$ref": ref})

    return app


PROGRAM = """
process main(here: any) -> any {
  text = await tools.read({ text: here, copies: 2 })?
  both = await tools.forward({ file: here, note: [here] })?
  finish [text, both[0], both[1]]
}
process draws(rows: int) -> any {
  drawn = await tools.chart({ rows: rows })?
  finish await tools.show({ data: { "$ref": drawn.chart.ref } })
}
process missing(here: any) -> any {
  finish await tools.read({ text: here })
}
"""

EXPECTED = [f"read {LETTER.decode()} {LETTER.decode()}", {"$ref": REF}, [LETTER.decode()]]


async def keep_letter(app: Lash, session: str = "ann") -> None:
    await app.session(session).turn(["Keep this.", Attachment(LETTER, "text/plain")], timeout="10s")


def program(app: Lash, name: str) -> Any:
    return app.services.definitions[name]


@pytest.mark.proves("T4")
@pytest.mark.parametrize("wake", [None, "ann"])
async def test_a_process_calls_tools_with_what_its_arguments_refer_to(
    backend: Backend, wake: str | None
) -> None:
    async with office(backend.url) as app:
        await keep_letter(app)
        handle = await app.start(program(app, "calls").options(id="p", wake=wake), ref=REF)
        assert await handle.result(timeout="10s") == EXPECTED
        record = await app.store.processes.get("p")
        assert record is not None
        for entry in await app.store.journal.timeline(record.run):
            whole = await app.store.journal.entry(record.run, entry.key)
            assert whole is not None
            assert REF.encode() in (whole.command or b"")
            assert LETTER not in (whole.command or b"")


@pytest.mark.proves("T4")
@pytest.mark.parametrize("wake", [None, "ann"])
async def test_a_program_calls_tools_with_what_its_arguments_refer_to(
    backend: Backend, wake: str | None
) -> None:
    async with office(backend.url) as app:
        await keep_letter(app)
        module = await app.lashlang(PROGRAM)
        handle = await app.start(module["main"].options(wake=wake), here={"$ref": REF})
        assert await handle.result(timeout="10s") == EXPECTED
        drawn = await app.start(module["draws"].options(wake=wake), rows=2)
        assert await drawn.result(timeout="10s") == {"ok": True, "value": ["rows"]}


@pytest.mark.proves("T4")
async def test_a_process_of_a_session_reads_no_letter_of_another(backend: Backend) -> None:
    async with office(backend.url) as app:
        await keep_letter(app)
        module = await app.lashlang(PROGRAM)
        refusal = f"The attachment {REF} is not in the store."
        handle = await app.start(program(app, "calls").options(id="p", wake="eve"), ref=REF)
        with pytest.raises(ProcessFailed, match=refusal) as failed:
            await handle.result(timeout="10s")
        assert failed.value.code == "attachment_resolution_failed"
        assert len(await handle.timeline()) == 1  # it is not tried again
        told = await app.start(module["missing"].options(wake="eve"), here={"$ref": REF})
        assert await told.result(timeout="10s") == {"ok": False, "error": refusal}


@pytest.mark.parametrize("host", [None, InlineHost()])
async def test_a_reference_to_nothing_fails_the_call_and_is_not_tried_again(host: Any) -> None:
    async with office("memory://", host=host) as app:
        handle = await app.start(program(app, "calls"), ref=MISSING)
        with pytest.raises(ProcessFailed, match=f"The attachment {MISSING} is not") as failed:
            await handle.result(timeout="10s")
        assert failed.value.code == "attachment_resolution_failed"


@pytest.mark.proves("T4")
@pytest.mark.parametrize("rows", [0, 3])
async def test_bytes_that_a_tool_of_the_process_stored_may_be_referred_to(
    durable: Backend, rows: int
) -> None:
    app = office(durable.url, worker=PARKING)
    await app.open()
    await app.start(program(app, "draws").options(id="p", wake="eve"), rows=rows)
    await parked(app, "p")
    await kill(app)
    async with office(durable.url, worker=PARKING) as app:
        await app.process_handle("p").signal("go")
        assert await app.process_handle("p").result(timeout="10s") == ["rows"]


async def test_a_replay_does_not_need_the_attachments(durable: Backend) -> None:
    def make() -> Lash:
        app = office(durable.url, worker=PARKING)

        @app.process
        async def waits(ctx: ProcessContext[None]) -> str:
            read: str = await ctx.call_tool("read", text={"$ref": REF})
            await ctx.wait_signal("go")
            return read

        return app

    app = make()
    await app.open()
    await keep_letter(app)
    await app.start(program(app, "waits").options(id="p"))
    await parked(app, "p")

    def forget() -> Steps[None]:
        yield Statement("delete from pylash_attachments where digest = ?", (REF,))

    await app.store.driver.run(Operation("forget", forget))  # type: ignore[attr-defined]
    await kill(app)
    async with make() as app:
        await app.process_handle("p").signal("go")
        result = await app.process_handle("p").result(timeout="10s")
        assert result == f"read {LETTER.decode()}"


async def test_an_approval_shows_the_reference_and_may_correct_the_rest() -> None:
    app = office("memory://")

    @app.tool(approval=lambda text, to: f"{len(text)} letters to {to}")
    async def send(text: str, to: str) -> str:
        """Send a text."""
        return f"{text} to {to}"

    @app.process
    async def sends(ctx: ProcessContext[None]) -> str:
        sent: str = await ctx.call_tool("send", text={"$ref": REF}, to="eve")
        return sent

    async with app:
        await keep_letter(app)
        handle = await app.start(sends)
        wait = await waiting(app)
        assert (wait.title, wait.arguments) == (
            f"{len(LETTER)} letters to eve",
            {"text": {"$ref": REF}, "to": "eve"},
        )
        corrected = {"approved": True, "arguments": {**wait.arguments, "to": "bob"}}
        await app.resolve(wait.key, corrected)
        assert await handle.result(timeout="10s") == f"{LETTER.decode()} to bob"


@pytest.mark.proves("T4")
async def test_a_tool_that_nobody_has_is_refused_whatever_its_arguments_refer_to() -> None:
    app = office("memory://")

    @app.process
    async def calls_nothing(ctx: ProcessContext[None]) -> None:
        await ctx.call_tool("nobody", text={"$ref": MISSING})

    async with app:
        with pytest.raises(ProcessFailed) as failed:
            await (await app.start(calls_nothing)).result(timeout="10s")
    assert failed.value.code == ToolUnknown.default_code
