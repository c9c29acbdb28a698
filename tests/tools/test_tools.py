"""Tools: the schema that a model sees, the arguments it may send, and the results it gets."""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from pylash.engine.retries import Retry
from pylash.tools.arguments import fill_references, projected_refs
from pylash.tools.context import CallInfo, Deferred, Emitted, ToolContext
from pylash.tools.results import fit_text, result_text
from pylash.tools.tool import Tool, as_tool, tool
from pylash.turn.messages import Attachment
from pylash.turn.requests import ToolManifest
from pylash.values.errors import DurationInvalid, LashError
from pylash.values.process_errors import ArgumentsInvalid, ResultInvalid
from pylash.values.turn_errors import (
    AttachmentResolutionFailed,
    ToolArgumentsInvalid,
    ToolDefinitionInvalid,
    ToolError,
    ToolTimeout,
)

FRESH_LIST: Any = Field(default_factory=list)
CALL = CallInfo("chat", "turn-1", "call-1", 2, "chat/turn-1/call-1")
SHA_OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    """A line of an order."""

    title: str
    count: int = Field(1, description="How many.")


class Point(TypedDict):
    x: int
    y: int


@dataclass
class Box:
    width: int
    height: int = 2


def context(deps: Any = None, **given: Any) -> ToolContext[Any]:
    return ToolContext(CALL, deps, **given)


def properties(function: Any) -> Any:
    return as_tool(function).schema["properties"]


def trouble(function: Any, arguments: Any) -> str:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        as_tool(function).load(arguments)
    return caught.value.message


def refusal(function: Any, **options: Any) -> str:
    with pytest.raises(ToolDefinitionInvalid) as caught:
        Tool(function, **options)
    return caught.value.message


async def refund(order_id: str, cents: int = 100) -> str:
    """Give money back.

    Only once for an order.

    Args:
        order_id (str): Its number,
            as on the invoice.
        cents: How much.
    """
    return f"{order_id}: {cents}"


# --- what a model sees ---


def test_a_function_becomes_a_manifest() -> None:
    made = tool(refund)
    assert made.manifest == ToolManifest(
        "refund",
        "Give money back.\n\nOnly once for an order.",
        {
            "type": "object",
            "properties": {
                "order_id": {"type": "string", "description": "Its number, as on the invoice."},
                "cents": {"type": "integer", "default": 100, "description": "How much."},
            },
            "required": ["order_id"],
            "additionalProperties": False,
        },
        "tools.refund",
    )


def test_a_tool_without_parameters_and_docstring_has_an_empty_schema() -> None:
    def ping() -> None: ...

    assert tool(ping).manifest == ToolManifest(
        "ping",
        "",
        {"type": "object", "properties": {}, "additionalProperties": False},
        "tools.ping",
    )


def test_types_that_pydantic_knows_are_described() -> None:
    def order(
        colour: Colour,
        size: Literal["s", "l"],
        lines: list[Line],
        at: Point,
        box: Box,
        note: str | None = None,
        cents: Annotated[int, Field(gt=0, description="Never zero.")] = 5,
    ) -> None: ...

    schema = tool(order).schema
    assert schema["properties"] == {
        "colour": {"$ref": "#/$defs/Colour"},
        "size": {"type": "string", "enum": ["s", "l"]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
        "at": {"$ref": "#/$defs/Point"},
        "box": {"$ref": "#/$defs/Box"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "cents": {
            "type": "integer",
            "exclusiveMinimum": 0,
            "default": 5,
            "description": "Never zero.",
        },
    }
    assert sorted(schema["$defs"]) == ["Box", "Colour", "Line", "Point"]
    assert schema["$defs"]["Colour"] == {"type": "string", "enum": ["red", "blue"]}
    assert schema["required"] == ["colour", "size", "lines", "at", "box"]


def test_a_title_that_is_a_property_stays_and_other_titles_go() -> None:
    def order(title: str, line: Line) -> None: ...

    schema = tool(order).schema
    assert schema["properties"]["title"] == {"type": "string"}
    assert schema["$defs"]["Line"] == {
        "type": "object",
        "description": "A line of an order.",
        "properties": {
            "title": {"type": "string"},
            "count": {"type": "integer", "default": 1, "description": "How many."},
        },
        "required": ["title"],
    }


def test_a_parameter_may_have_a_name_that_pydantic_keeps_for_itself() -> None:
    def odd(schema: int, model_config: int, _x: int = 3) -> Any:
        return [schema, model_config, _x]

    made = tool(odd)
    assert list(made.schema["properties"]) == ["schema", "model_config", "_x"]
    assert made.load({"schema": 1, "model_config": 2}) == {"schema": 1, "model_config": 2}


def test_a_default_without_json_is_left_out() -> None:
    def find(limit: int = object()) -> None: ...  # type: ignore[assignment]

    assert properties(find) == {"limit": {"type": "integer"}}


def test_the_parameters_of_a_numpy_docstring_are_described() -> None:
    def move(x: int, y: int, fast: bool = False) -> None:
        """Move the robot.

        Parameters
        ----------
        x, y : int
            Where to,
            in metres.
        fast : bool
            Whether to hurry.

        Returns
        -------
        None
            Nothing.
        """

    made = tool(move)
    assert made.description == "Move the robot."
    assert [part.get("description") for part in made.schema["properties"].values()] == [
        "Where to, in metres.",
        "Where to, in metres.",
        "Whether to hurry.",
    ]


def test_the_parameters_of_a_sphinx_docstring_are_described() -> None:
    def move(x: int, y: int) -> None:
        """Move the robot.

        :param x: East,
            in metres.
        :param int y: North: in metres.
        :returns: nothing
        """

    made = tool(move)
    assert made.description == "Move the robot."
    assert made.schema["properties"]["x"]["description"] == "East, in metres."
    assert made.schema["properties"]["y"]["description"] == "North: in metres."


def test_a_description_in_the_annotation_goes_before_the_docstring() -> None:
    def find(
        a: Annotated[int, Field(description="Mine.")], b: int = Field(2, description="Too.")
    ) -> None:
        """Find.

        Args:
            a: Not this.
            b: Nor this.

        And the rest is not about parameters: it is left out.
        """

    assert [part["description"] for part in properties(find).values()] == ["Mine.", "Too."]


def test_a_line_that_is_not_indented_ends_the_parameters() -> None:
    def find(a: int, note: str) -> None:
        """Find.

        Args:
            a: The thing.

        note: the rest is about something else.
        """

    assert properties(find)["note"] == {"type": "string"}


def test_text_after_other_sections_is_not_part_of_the_description() -> None:
    def find(a: int) -> None:
        """Find it.

        Note: this is part of the text.

        Returns:
            a: What was found.

        Args:
            a: The thing.
        """

    made = tool(find)
    assert made.description == "Find it.\n\nNote: this is part of the text."
    assert made.schema["properties"]["a"]["description"] == "The thing."


def test_the_context_is_hidden_wherever_it_stands() -> None:
    def first(ctx: ToolContext[int], a: int) -> None: ...
    def last(a: int, *, context: ToolContext) -> None: ...  # type: ignore[type-arg]
    def maybe(a: int, ctx: ToolContext[int] | None = None) -> None: ...

    assert [list(properties(one)) for one in (first, last, maybe)] == [["a"]] * 3


def test_a_context_whose_type_is_not_known_at_run_time_is_a_context() -> None:
    def find(ctx: ToolContext[Unheard], a: int) -> None: ...  # type: ignore[name-defined] # noqa: F821

    assert list(properties(find)) == ["a"]


def test_a_local_type_may_be_named_in_an_annotation() -> None:
    class Order(BaseModel):
        id: int

    @tool(name="buy")
    def buy(order: Order) -> None: ...

    assert buy.load({"order": {"id": "7"}}) == {"order": Order(id=7)}


async def test_a_type_may_be_defined_after_the_tool() -> None:
    @tool
    def find(what: LaterDefined) -> None: ...  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(ToolDefinitionInvalid, match="'LaterDefined' of its parameter 'what'"):
        await find.prepare()
    globals()["LaterDefined"] = int
    try:
        await find.prepare()
        assert find.schema["properties"] == {"what": {"type": "integer"}}
    finally:
        del globals()["LaterDefined"]


# --- options ---


def test_a_tool_has_its_options() -> None:
    made = tool(name="pay-out", module="shop", scheduling="serial", retry=Retry(2))(refund)
    assert (made.id, made.scheduling, made.retry) == ("shop.pay-out", "serial", Retry(2))
    assert (made.approval, made.approval_timeout, made.timeout) == (False, "7d", None)
    assert (made.reconcile, made.projection) == (None, None)


async def test_a_decorated_tool_is_still_its_function() -> None:
    @tool()
    def double(x: int) -> int:
        """Double it."""
        return 2 * x

    assert double(4) == 8
    assert double.__doc__ == "Double it."
    assert as_tool(double) is double
    assert await tool(refund)("7") == "7: 100"


def test_methods_partials_and_objects_can_be_tools() -> None:
    class Shop:
        def find(self, order_id: str) -> str:
            """Find it."""
            return order_id

        def __call__(self, cents: int) -> int:
            return cents

    assert tool(Shop().find).manifest.name == "find"
    assert properties(Shop().find) == {"order_id": {"type": "string"}}
    part = functools.partial(refund, cents=7)
    made = Tool(part, name="refund_seven")
    assert (made.description[:5], made.load({"order_id": "x"})) == ("Give ", {"order_id": "x"})
    assert list(Tool(Shop(), name="shop").schema["properties"]) == ["cents"]


def test_what_no_model_could_call_is_refused() -> None:
    def only(a: int, /) -> None: ...
    def many(*a: int) -> None: ...
    def named(**a: int) -> None: ...
    def method(self: Any) -> None: ...
    def yields() -> Any:
        yield 1

    by_name = "and a model passes arguments by name."
    assert refusal(only) == (
        f"'only' cannot be a tool: its parameter 'a' is positional-only, {by_name}"
    )
    several = "takes any number of arguments"
    assert refusal(many) == f"'many' cannot be a tool: its parameter 'a' {several}, {by_name}"
    assert refusal(named) == f"'named' cannot be a tool: its parameter 'a' {several}, {by_name}"
    assert "it is an unbound method" in refusal(method)
    assert "it is a generator" in refusal(yields)
    assert refusal(7) == "7 cannot be a tool: it is not a function."
    assert "it is not a function" in refusal(Line)


@pytest.mark.parametrize("name", ["", " ", "7up", "-x", "a b", "é", "x" * 65])
def test_a_name_that_providers_refuse_is_refused(name: str) -> None:
    assert "its name must be up to 64 letters" in refusal(refund, name=name)


def test_a_function_without_a_name_must_be_given_one() -> None:
    assert "pass another as name=" in refusal(lambda x: x)
    assert "pass name=" in refusal(functools.partial(refund, cents=1))
    assert Tool(lambda x: x, name="x" * 64).id == "tools." + "x" * 64


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scheduling": "later"}, "its scheduling is 'later' and must be 'parallel' or 'serial'"),
        ({"retry": 3}, "its retry is 3 and must be a Retry, such as Retry(3)"),
        ({"approval": " "}, "its approval is ' ' and must be"),
        ({"approval": None}, "its approval is None and must be"),
        ({"module": "a b"}, "its module 'a b' is not a name"),
        (
            {"projection": "file"},
            "its projection 'file' is not one of its parameters (order_id, cents)",
        ),
        ({"module": 5}, "its module 5 is not a name"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], said: str) -> None:
    assert said in refusal(refund, **options)


def test_a_wrong_duration_is_refused_where_the_tool_is_defined() -> None:
    with pytest.raises(DurationInvalid):
        tool(timeout="soon")(refund)
    with pytest.raises(DurationInvalid):
        tool(approval=True, approval_timeout="soon")(refund)


def test_a_type_without_a_schema_is_refused_by_the_name_of_its_parameter() -> None:
    def wait(seconds: int, lock: asyncio.Lock) -> None: ...

    assert refusal(wait) == (
        "'wait' cannot be a tool: its parameter 'lock' (Lock) has no JSON Schema."
    )


def test_what_pydantic_advises_is_passed_on() -> None:
    class Open(BaseModel):
        call: Callable[[], None]

    def wait(how: Open) -> None: ...

    assert refusal(wait).startswith(
        "'wait' cannot be a tool: its parameter 'how' (Open) has no JSON Schema: Cannot "
    )


async def test_a_result_without_json_is_refused_before_the_first_call() -> None:
    def lock() -> asyncio.Lock:
        return asyncio.Lock()

    with pytest.raises(
        ToolDefinitionInvalid, match=r"its return type \(asyncio\.\S*Lock\) cannot be encoded"
    ):
        await tool(lock).prepare()


@pytest.mark.slow
def test_making_a_tool_does_not_load_pydantic() -> None:
    code = (
        "import sys, asyncio\n"
        "from pylash.tools.tool import tool\n"
        "@tool\n"
        "def find(a: int) -> int: return a\n"
        "assert 'pydantic' not in sys.modules\n"
        "asyncio.run(find.prepare())\n"
        "assert 'pydantic' in sys.modules\n"
        "assert find.load({'a': '7'}) == {'a': 7}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- what a model sends ---


def test_arguments_become_python_values() -> None:
    def order(
        colour: Colour,
        lines: list[Line],
        at: Point,
        box: Box,
        when: datetime,
        price: Decimal,
        days: set[date],
    ) -> None: ...

    sent = {
        "colour": "blue",
        "lines": [{"title": "tea", "count": "3"}],
        "at": {"x": 1, "y": "2"},
        "box": {"width": 4},
        "when": "2026-01-02T03:04:05Z",
        "price": "1.10",
        "days": ["2026-01-02"],
    }
    made = tool(order)
    loaded = made.load(sent)
    assert loaded == {
        "colour": Colour.BLUE,
        "lines": [Line(title="tea", count=3)],
        "at": {"x": 1, "y": 2},
        "box": Box(4, 2),
        "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "price": Decimal("1.10"),
        "days": {date(2026, 1, 2)},
    }
    assert made.dump(loaded) == {
        "colour": "blue",
        "lines": [{"title": "tea", "count": 3}],
        "at": {"x": 1, "y": 2},
        "box": {"width": 4, "height": 2},
        "when": "2026-01-02T03:04:05Z",
        "price": "1.10",
        "days": ["2026-01-02"],
    }


def test_a_strict_model_is_still_read_from_json() -> None:
    class Meeting(BaseModel):
        model_config = ConfigDict(strict=True)
        day: date

    @tool
    def meet(meeting: Meeting) -> None: ...

    assert meet.load({"meeting": {"day": "2026-01-02"}})["meeting"].day == date(2026, 1, 2)


def test_only_what_was_given_is_loaded_and_dumped() -> None:
    made = tool(refund)
    assert made.load({"order_id": "7"}) == {"order_id": "7"}
    assert made.dump({"order_id": "7"}) == {"order_id": "7"}
    assert made.dump(made.load({"order_id": "7", "cents": "100"})) == {
        "order_id": "7",
        "cents": 100,
    }


@pytest.mark.parametrize("nothing", [None, "", "  ", "null", {}, "{}"])
def test_nothing_is_no_arguments(nothing: Any) -> None:
    def ping(loud: bool = False) -> None: ...

    assert tool(ping).load(nothing) == {}


def test_a_text_is_taken_as_json() -> None:
    assert tool(refund).load('{"order_id": "7", "cents": 5}') == {"order_id": "7", "cents": 5}


def test_broken_json_is_reported_as_broken() -> None:
    assert trouble(refund, '{"order_id": "7') == (
        "The arguments of refund do not fit: they are not JSON (Input data was truncated)."
    )
    assert "they are not JSON" in trouble(refund, "[" * 100_000)


def test_arguments_that_are_no_object_are_refused() -> None:
    must = (
        "The arguments of refund do not fit: they must be an object with the fields order_id, cents"
    )
    assert trouble(refund, [1]) == f"{must}, not a list."
    assert trouble(refund, "7") == f"{must}, not a number."


def test_every_wrong_field_is_named_with_what_is_wrong() -> None:
    assert trouble(refund, {"cents": "many"}) == (
        "The arguments of refund do not fit: order_id is missing; cents should be a valid integer, "
        'unable to parse string as an integer (got "many").'
    )


def test_an_unknown_field_is_answered_with_the_known_ones() -> None:
    assert trouble(refund, {"order_id": "7", "cent": 5}) == (
        "The arguments of refund do not fit: cent is not known (did you mean cents? "
        "known: order_id, cents)."
    )
    assert trouble(refund, {"order_id": "7", "zzz": 5}) == (
        "The arguments of refund do not fit: zzz is not known (known: order_id, cents)."
    )


def test_a_wrong_part_deep_inside_is_named_by_its_path() -> None:
    def order(lines: list[Line]) -> None: ...

    sent = {"lines": [{"title": "tea"}, {"title": "milk", "count": {}}, {}]}
    assert trouble(order, sent) == (
        "The arguments of order do not fit: lines[1].count should be a valid integer (got {}); "
        "lines[2].title is missing."
    )


def test_the_alternatives_of_a_union_are_one_complaint() -> None:
    def order(amount: int | list[int]) -> None: ...

    assert trouble(order, {"amount": "x"}) == (
        "The arguments of order do not fit: amount should be a valid integer, unable to parse string "
        'as an integer (got "x") or should be a valid array (got "x").'
    )


def test_the_parts_of_an_alternative_are_named_as_they_were_sent() -> None:
    def order(amount: int | Line) -> None: ...

    assert trouble(order, {"amount": {"count": 2}}) == (
        "The arguments of order do not fit: amount should be a valid integer "
        '(got {"count":2}); amount.title is missing.'
    )


def test_a_check_of_the_users_own_is_passed_on() -> None:
    def even(value: int) -> int:
        if value % 2:
            raise ValueError("only even numbers will do")
        return value

    def order(
        pairs: Annotated[int, AfterValidator(even)], name: Annotated[str, Field(min_length=2)]
    ) -> None: ...

    assert trouble(order, {"pairs": 3, "name": "x"}) == (
        "The arguments of order do not fit: pairs: only even numbers will do (got 3); "
        'name should have at least 2 characters (got "x").'
    )


def test_a_long_value_and_many_troubles_are_cut_short() -> None:
    def order(amounts: list[int]) -> None: ...

    said = trouble(order, {"amounts": ["x" * 500] * 11})
    assert said.count("should be") == 8
    assert said.endswith("; and 3 more.")
    assert f'(got "{"x" * 59}…)' in said


def test_an_invalid_number_and_a_broken_text_are_refused() -> None:
    def order(amount: float | None = None, note: str = "") -> None: ...

    assert "amount should be a finite number" in trouble(order, {"amount": "nan"})
    assert "$.amount" in trouble(order, {"amount": float("nan")})
    assert "$.note" in trouble(order, {"note": "\ud800"})


# --- calling ---


async def test_a_call_gets_the_context_and_the_arguments() -> None:
    async def find(a: int, ctx: ToolContext[str], b: int = 2) -> list[Any]:
        return [a, b, ctx.deps, ctx.session_id, ctx.turn_id, ctx.call_id, ctx.attempt]

    made = tool(find)
    assert await made.call(context("deps"), made.load({"a": "1"})) == [
        *(1, 2, "deps", "chat", "turn-1", "call-1", 2)
    ]


async def test_a_plain_function_runs_in_a_thread() -> None:
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert await tool(where).call(context(), {}) is False


async def test_a_default_is_the_very_object_and_a_field_is_its_default() -> None:
    nothing = object()

    def find(a: Any = nothing, b: int = Field(5), c: list[int] = FRESH_LIST) -> Any:
        return [a is nothing, b, c]

    assert await tool(find).call(context(), {}) == [True, 5, []]


async def test_a_result_is_plain_json_by_its_annotation() -> None:
    async def lines() -> list[Line]:
        return [Line(title="tea", count=1)]

    async def wrong() -> int:
        return "many"  # type: ignore[return-value]

    assert await tool(lines).call(context(), {}) == [{"title": "tea", "count": 1}]
    with pytest.raises(ResultInvalid, match="result of wrong does not fit"):
        await tool(wrong).call(context(), {})


async def test_a_result_without_a_close_annotation_is_written_as_well_as_it_can_be() -> None:
    async def find() -> dict[str, Any]:
        return {
            "when": date(2026, 1, 2),
            "line": Line(title="a", count=1),
            "pair": (1, 2),
            "box": Box(1),
        }

    assert await tool(find).call(context(), {}) == {
        "when": "2026-01-02",
        "line": {"title": "a", "count": 1},
        "pair": [1, 2],
        "box": {"width": 1, "height": 2},
    }


async def test_a_result_that_has_no_json_is_refused() -> None:
    async def find() -> Any:
        return {"lock": asyncio.Lock()}

    async def most() -> Any:
        return float("inf")

    with pytest.raises(ResultInvalid, match="result of find"):
        await tool(find).call(context(), {})
    with pytest.raises(LashError, match="inf is not valid in JSON"):
        await tool(most).call(context(), {})


async def test_what_is_deferred_or_attached_comes_back_untouched() -> None:
    async def ask(ctx: ToolContext[None]) -> str | Deferred:
        return ctx.defer(deadline="2d")

    async def draw(ctx: ToolContext[None]) -> Attachment:
        return ctx.attach(b"abc", "image/png", "a.png")

    assert await tool(ask).call(context(), {}) == Deferred(172_800_000_000)
    expected = Attachment(media_type="image/png", name="a.png", ref=SHA_OF_ABC, size=3)
    assert await tool(draw).call(context(), {}) == expected


async def test_a_call_that_takes_too_long_is_a_timeout() -> None:
    @tool(timeout="10ms")
    async def slow() -> None:
        await asyncio.sleep(60)

    with pytest.raises(ToolTimeout, match=r"slow did not answer in 0\.01 s"):
        await slow.call(context(), {})


async def test_a_plain_function_that_takes_too_long_runs_on_and_is_dropped() -> None:
    go_on, done = threading.Event(), threading.Event()
    await asyncio.to_thread(int)  # there is a thread: one that has not begun would be dropped

    @tool(timeout="250ms")
    def slow() -> str:
        go_on.wait(30)
        done.set()
        return "late"

    with pytest.raises(ToolTimeout):
        await slow.call(context(), {})
    assert not done.is_set()
    go_on.set()
    assert await asyncio.to_thread(done.wait, 30)


async def test_a_tools_own_timeout_and_error_stay_what_they_are() -> None:
    @tool(timeout="1m")
    async def slow() -> None:
        raise TimeoutError("mine")

    @tool
    def wrong() -> None:
        raise ToolError("Order 7 was refunded already.")

    with pytest.raises(TimeoutError, match="mine"):
        await slow.call(context(), {})
    with pytest.raises(ToolError, match="refunded already"):
        await wrong.call(context(), {})


# --- approval ---


async def approved(approval: Any, arguments: dict[str, Any]) -> bool | str:
    return await tool(approval=approval)(refund).asks_approval(arguments)


async def test_approval_is_requested_as_the_tool_declares() -> None:
    async def reason(order_id: str) -> bool | str:
        return f"order {order_id}"

    assert await approved(False, {"order_id": "7"}) is False
    assert await approved("money leaves", {"order_id": "7"}) == "money leaves"
    assert await approved(reason, {"order_id": "7"}) == "order 7"


async def test_an_approval_function_takes_arguments_by_name_or_as_one() -> None:
    seven = {"order_id": "7"}
    assert await approved(lambda cents: cents > 99, seven) is True
    assert await approved(lambda cents: cents > 99, {**seven, "cents": 5}) is False
    assert await approved(lambda given: given["cents"] > 99, seven) is True
    assert await approved(lambda **given: given["order_id"], seven) == "7"


async def test_an_approval_function_that_forgets_to_answer_is_refused() -> None:
    with pytest.raises(ToolDefinitionInvalid, match="its approval returned None"):
        await approved(lambda **_: None, {"order_id": "7"})


# --- the context ---


def test_progress_is_reported_and_never_fails() -> None:
    heard = list[Any]()
    ctx = context(listen=lambda *told: heard.append(told))
    ctx.progress("half", 0.5)
    ctx.progress("much", 7)
    ctx.progress("some")
    ctx.progress("odd", "x")  # type: ignore[arg-type]
    assert heard == [("half", 0.5), ("much", 1.0), ("some", None)]

    def broken(*_: Any) -> None:
        raise RuntimeError

    context(listen=broken).progress("half")
    context().progress("half")


def test_what_is_attached_is_kept_under_its_hash() -> None:
    ctx = context()
    assert ctx.attach(bytearray(b"abc")) == Attachment(ref=SHA_OF_ABC, size=3)
    assert ctx.attached == {SHA_OF_ABC: b"abc"}
    with pytest.raises(ArgumentsInvalid, match="it takes bytes, not str"):
        ctx.attach("abc")  # type: ignore[arg-type]


def test_a_context_collects_events_and_knows_its_key() -> None:
    ctx = context()
    ctx.emit("order.paid", source_key="7", payload={"cents": 5})
    assert ctx.emitted == [Emitted("order.paid", "7", {"cents": 5})]
    assert ctx.idempotency_key == "chat/turn-1/call-1"
    assert ctx.defer() == Deferred(None)


def test_a_log_line_notes_session_turn_and_call(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pylash.tool"):
        context().log.info("hello")
    noted = vars(caplog.records[0])
    assert [noted["session"], noted["turn"], noted["call"]] == ["chat", "turn-1", "call-1"]


# --- results for the model ---


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, "Done."),
        (True, "true"),
        ({"b": "é", "a": [1, 2.5]}, '{"b":"é","a":[1,2.5]}'),
    ],
)
def test_a_result_is_shown_to_the_model_as_text(value: Any, text: str) -> None:
    assert result_text(value) == text


def test_a_text_that_fits_stays() -> None:
    assert fit_text("x" * 16_000) == ("x" * 16_000, False)


def test_a_long_text_keeps_its_head_and_tail() -> None:
    text, cut = fit_text("a" * 500 + "b" * 500, limit=160, ref="f00d")
    gap = "\n[… 922 of 1000 characters are left out; the whole is kept as attachment f00d …]\n"
    assert cut
    assert text == "a" * 52 + gap + "b" * 26
    assert len(text) <= 160


def test_a_limit_below_the_gap_leaves_the_gap() -> None:
    gap = "\n[… 100 of 100 characters are left out; the whole is kept …]\n"
    assert fit_text("a" * 100, limit=5) == (gap, True)


@pytest.mark.parametrize("limit", range(100, 112))
def test_a_text_is_never_cut_inside_a_pair(limit: int) -> None:
    text, _ = fit_text("\ud83d\ude00" * 100, limit=limit)
    assert "\ufffd" not in text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# --- projected references ---

ARGUMENTS = {
    "a": {"$ref": "r1"},
    "b": [1, {"c": {"$ref": "r2"}}],
    "schema": {"$ref": "#/$defs/Line"},
    "both": {"$ref": "r1", "x": 1},
}


def test_references_are_found_by_their_path() -> None:
    found = [(one.path, one.ref) for one in projected_refs(ARGUMENTS)]
    assert found == [(("a",), "r1"), (("b", 1, "c"), "r2")]
    assert [one.ref for one in projected_refs(ARGUMENTS, keep="a")] == ["r2"]
    assert projected_refs(None) == []


def test_references_are_replaced_by_what_they_stand_for() -> None:
    bodies = {"r1": "one", "r2": {"two": 2}}
    rest = {"schema": {"$ref": "#/$defs/Line"}, "both": {"$ref": "r1", "x": 1}}
    assert fill_references(ARGUMENTS, bodies) == {"a": "one", "b": [1, {"c": {"two": 2}}], **rest}


def test_references_are_kept_in_the_field_that_keeps_them() -> None:
    assert fill_references(ARGUMENTS, {"r1": "one"}, keep="b") == {**ARGUMENTS, "a": "one"}
    assert fill_references(ARGUMENTS, {"r1": 1, "r2": 2}, keep="none")["b"] == [1, {"c": 2}]


def test_a_reference_to_nothing_is_refused() -> None:
    with pytest.raises(AttachmentResolutionFailed, match="r2"):
        fill_references(ARGUMENTS, {"r1": "one"})
