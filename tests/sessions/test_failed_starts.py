"""If a process that a model requested cannot be started, the model gets the error and the turn continues."""

from __future__ import annotations

from typing import Any

import pytest

from pylash import Lash
from pylash.durable.commands import StartProcess
from pylash.durable.ports import EffectHost
from pylash.durable.processes import ExternalInput, Registration
from pylash.testing import ScriptedModel, call, calls, say
from pylash.turn.messages import ToolMessage
from tests.backends import Backend
from tests.hosts import HOSTS, observed

pytestmark = pytest.mark.proves("P11")

SOURCE = "process main(n: int) { finish n }"
TAKEN = "was started before with other input"


def make_app(url: str, *replies: Any, host: EffectHost | None = None) -> tuple[Lash, ScriptedModel]:
    """Return an app whose model gives replies, and to its subagents the answer ``helped``."""
    script = list(replies)

    def reply(request: Any) -> Any:
        if request.messages[-1].text == "help":
            return say("helped")
        return script[request.call_number]

    model = ScriptedModel(reply)
    app = Lash(url, model=model, host=host)
    app.agent("helper")
    app.subagents("helper")
    app.workflows()
    return app, model


async def ids_of(*replies: Any) -> list[str]:
    """Return the ids of the processes that a turn starts: they follow from the turn and its calls."""
    app, _ = make_app("memory://", *replies)
    async with app:
        await app.session("chat").turn("go", turn_id="t1", timeout="10s")
        return [view.id for view in await app.processes()]


async def take(app: Lash, process_id: str) -> None:
    """Start another process under an id."""
    taken = Registration(id=process_id, input=ExternalInput("taken"))
    await app.store.processes.start(StartProcess(taken))


@HOSTS
@pytest.mark.parametrize(
    "asked",
    [
        call("spawn_agent", agent="helper", task="help"),
        call("start_workflow", source=SOURCE, process="main", args={"n": 1}),
    ],
    ids=["subagent", "workflow"],
)
async def test_a_start_that_fails_is_a_reply_and_the_turn_goes_on(
    kind: str, asked: Any, durable: Backend
) -> None:
    (process_id,) = await ids_of(asked, say("Begun."))
    async with observed(kind, durable.url) as host:
        app, model = make_app(durable.url, asked, say("I could not."), host=host)
        async with app:
            await take(app, process_id)
            result = await app.session("chat").turn("go", turn_id="t1", timeout="20s")
            assert (result.status, result.text) == ("completed", "I could not.")
            history = await app.session("chat").history()
    (reply,) = [one for one in history if isinstance(one, ToolMessage)]
    assert reply.error
    assert process_id in reply.text
    assert TAKEN in reply.text
    assert model.requests[-1].messages[-1].text == reply.text


async def test_the_other_calls_of_the_reply_are_not_harmed(durable: Backend) -> None:
    one = call("spawn_agent", agent="helper", task="help")
    program = call("start_workflow", source=SOURCE, process="main", args={"n": 1})
    wrong = call("start_workflow", source=SOURCE, process="main", args={"n": "x"})
    unknown = call("start_workflow", source=SOURCE, process="other")
    (helper,) = await ids_of(one, say("Begun."))
    app, model = make_app(durable.url, calls(one, program, wrong, unknown), say("Some."))
    async with app:
        await take(app, helper)
        result = await app.session("chat").turn("go", turn_id="t1", timeout="20s")
        assert result.text == "Some."
    taken, started, misfit, missing = [one.text for one in model.requests[-1].messages[-4:]]
    assert TAKEN in taken
    assert "process_id" in started
    assert "`n`" in misfit
    assert "no process 'other'" in missing
