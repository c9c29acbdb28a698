"""Structured answers: the answer has the requested type, or the turn fails."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel

from pylash import Lash, TurnFailed, TurnInputConflict
from pylash.testing import ScriptedModel, call, calls, say
from tests.backends import EVERY_ENGINE, Backend
from tests.sessions.scenes import transcript


class Line(BaseModel):
    product: str
    cents: int


class Order(BaseModel):
    id: str
    lines: list[Line] = []


FITS = {"id": "7", "lines": [{"product": "tea", "cents": 300}]}


@EVERY_ENGINE
async def test_an_answer_may_be_a_call(backend: Backend) -> None:
    model = ScriptedModel([call("final_result", **FITS)])
    async with backend.app(model=model) as app:
        session = app.session("chat")
        result = await session.turn("Which?", output=Order, turn_id="t1", timeout="10s")
        assert result.value == Order(id="7", lines=[Line(product="tea", cents=300)])
        again = await session.turn("Which?", output=Order, turn_id="t1", timeout="10s")
        assert again.value == result.value
        assert [tool.name for tool in model.requests[0].tools] == ["final_result"]
        assert await transcript(session) == (
            "\nuser       Which?"
            "\nassistant  i1.c0 final_result(id=7, lines=[{'product': 'tea', 'cents': 300}])"
            "\ntool       i1.c0 final_result: Taken.\n"
        )


@pytest.mark.parametrize(
    ("output", "text", "value"),
    [
        (list[int], "[1, 2]", [1, 2]),
        (list[Line], '```json\n[{"product":"tea","cents":1}]\n```', [Line(product="tea", cents=1)]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Order, '{"id": "7"}', Order(id="7")),
        (bool, "true", True),
        (int | None, "null", None),
    ],
)
async def test_an_answer_may_be_a_text(output: Any, text: str, value: Any) -> None:
    async with Lash("memory://", model=ScriptedModel([say(text)])) as app:
        result: Any = await app.session("chat").turn("Which?", output=output, timeout="10s")
        assert result.status == "completed"
        assert result.value == value
        assert type(result.value) is type(value)


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


@pytest.mark.parametrize(
    ("output", "given", "value"),
    [
        (list[int], [1, 2], [1, 2]),
        (list[Line], [{"product": "tea", "cents": 1}], [Line(product="tea", cents=1)]),
        (int, 7, 7),
        (Literal["yes", "no"], "yes", "yes"),
        (Line | None, None, None),
        (Line | int, {"product": "tea", "cents": 1}, Line(product="tea", cents=1)),
        (
            Tree,
            {"name": "a", "children": [{"name": "b"}]},
            Tree(name="a", children=[Tree(name="b")]),
        ),
    ],
)
async def test_an_answer_that_is_no_object_is_the_result_of_a_call(
    output: Any, given: Any, value: Any
) -> None:
    model = ScriptedModel([call("final_result", result=given)])
    async with Lash("memory://", model=model) as app:
        result: Any = await app.session("chat").turn("Which?", output=output, timeout="10s")
        assert result.value == value
        assert type(result.value) is type(value)
    schema = model.requests[0].tools[0].schema
    assert schema["type"] == "object"  # which is all that providers take
    assert schema["required"] == ["result"]


async def test_a_call_without_the_result_is_asked_for_again() -> None:
    script = [call("final_result", items=[1]), call("final_result", result=["a"]), say("[1]")]
    async with Lash("memory://", model=ScriptedModel(script)) as app:
        session = app.session("chat")
        result = await session.turn("Which?", output=list[int], timeout="10s")
        assert result.value == [1]
        told = await transcript(session)
        assert "$.result is missing" in told
        assert "$.result[0] is 'a'" in told


@pytest.mark.parametrize("text", ["Hello.", '"quoted"', "123", '{"a": 1}', ""])
async def test_a_text_output_is_the_text_of_the_model(text: str) -> None:
    model = ScriptedModel([say(text)])
    async with Lash("memory://", model=model) as app:
        session = app.session("chat")
        for _ in range(2):
            result = await session.turn("Which?", output=str, turn_id="t1", timeout="10s")
            assert result.value == result.text == text
    assert model.requests[0].tools == ()
    assert model.requests[0].output_schema is None


@pytest.mark.parametrize("text", ["yes", '"yes"', " yes\n", '```json\n"yes"\n```'])
async def test_a_word_needs_no_quotes(text: str) -> None:
    output: Any = Literal["yes", "no"]
    async with Lash("memory://", model=ScriptedModel([say(text)])) as app:
        result: Any = await app.session("chat").turn("Which?", output=output, timeout="10s")
        assert result.value == "yes"


async def test_an_answer_that_does_not_fit_is_asked_for_again(memory: Backend) -> None:
    script = [call("final_result", id=7.5), say("not JSON"), call("final_result", **FITS)]
    async with Lash(memory.url, model=ScriptedModel(script)) as app:
        session = app.session("chat")
        result = await session.turn("Which?", output=Order, timeout="10s")
        assert result.value.id == "7"
        assert [line[:59].rstrip() for line in (await transcript(session)).splitlines()[2:7]] == [
            "assistant  i1.c0 final_result(id=7.5)",
            "tool       i1.c0 final_result error: It does not fit: $.id",
            "assistant  not JSON",
            "runtime    Answer again, with JSON that fits the schema and",
            "assistant  i3.c0 final_result(id=7, lines=[{'product': 'tea",
        ]


async def test_answers_that_never_fit_fail_the_turn() -> None:
    model = ScriptedModel(lambda _: call("final_result", id=7.5))
    async with Lash("memory://", model=model) as app:
        session = app.session("chat")
        result = await session.turn("Which?", output=Order, timeout="10s")
        assert (result.status, result.code) == ("failed", "turn_output_invalid")
        with pytest.raises(TurnFailed, match="did not fit 3 times"):
            _ = result.value
        await transcript(session)
    assert len(model.requests) == 3


async def test_tools_may_be_used_before_the_answer() -> None:
    script = [call("look"), calls(call("final_result", **FITS), call("look"))]
    app = Lash("memory://", model=ScriptedModel(script))
    looked = []

    @app.tool
    async def look() -> str:
        looked.append(1)
        return "seen"

    async with app:
        session = app.session("chat")
        result = await session.turn("Which?", output=Order, timeout="10s")
        assert result.value.id == "7"
        assert (await transcript(session)).splitlines()[-2:] == [
            "tool       i2.c0 final_result: Taken.",
            "tool       i2.c1 look error: The answer was taken; this was not run.",
        ]
    assert looked == [1]


async def test_another_output_is_another_question() -> None:
    async with Lash("memory://", model=ScriptedModel([say("[1]")])) as app:
        session = app.session("chat")
        await session.turn("Which?", output=list[int], turn_id="t1")
        with pytest.raises(TurnInputConflict):
            await session.turn("Which?", turn_id="t1")
