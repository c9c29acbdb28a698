"""The linker: refused programs with position and order of problems, and the linked trees of valid ones."""

from __future__ import annotations

import re

import msgspec
import pytest

from pylash.lang.linker import link
from pylash.lang.parsing.parser import parse
from pylash.lang.problems import LashlangError, show
from pylash.lang.surface import surface_of
from pylash.lang.tree import (
    Assign,
    Await,
    CallFunction,
    Clause,
    Comprehension,
    Construct,
    Evaluate,
    Field,
    Finish,
    For,
    Group,
    ListLiteral,
    ModuleName,
    Number,
    Operation,
    Parameter,
    ProcessName,
    ReceiverOperation,
    RecordType,
    TriggerEvent,
    TypeField,
    TypeLiteral,
    TypeName,
    Unwrap,
    Variable,
    walk,
)
from tests.lang.host import DOCUMENT, HOST, linked, problems, without

TICK = (
    "process on(ev: timer.Tick, tag: str) { finish ev.at }\nsrc = timer.schedule({ every: '5m' })\n"
)


def register(fields: str) -> str:
    return f"{TICK}h = triggers.register({{ {fields} }})"


# A program, its first problem, where it is (line and column), and what the message must name.
REFUSED: dict[str, tuple[str, str, tuple[int, int] | None, str]] = {
    # names
    "name": ("finish totl", "unknown_name", (1, 8), "totl"),
    "name not yet bound": ("finish x\nx = 1", "unknown_name", (1, 8), "x"),
    "loop variable after its loop": ("for i in [1] { }\nfinish i", "unknown_name", (2, 8), "i"),
    "loop variable assigned in its loop": (
        "for i in [1] { i = 2 }\nfinish i",
        "unknown_name",
        (2, 8),
        "i",
    ),
    "comprehension variable outside": ("x = [i for i in [1]]\nx = i", "unknown_name", (2, 5), "i"),
    "root of a path": ("b.c = 2", "unknown_name", (1, 1), "b"),
    "root of a path after let": ("let b.c = 2", "unknown_name", (1, 5), "b"),
    "root of a path in a loop": ("while true { b.c = 2 }", "unknown_name", (1, 14), "b"),
    "beginning of a module": ("x = far", "unknown_name", (1, 5), "far"),
    "name of main in a process": ("a = 1\nprocess p() { finish a }", "unknown_name", (2, 22), "a"),
    "type": ("fn f(x: Nope) -> any { x }", "unknown_type", (1, 9), "Nope"),
    "qualified type": ("fn f(x: timer.Tack) -> any { x }", "unknown_type", (1, 9), "timer.Tack"),
    "type in a type value": ("x = Type { a: list[Nope] }", "unknown_type", (1, 20), "Nope"),
    "function": ("f = 1\nfinish f(2)", "unknown_function", (2, 8), "f"),
    "field": (
        "x = await tools.lookup({ key: 'k' })?\nfinish x.nam",
        "unknown_field",
        (2, 8),
        "nam",
    ),
    "field of inputs": ("process p(a: int) { finish inputs.b }", "unknown_field", (1, 28), "b"),
    "field that no member has": (
        "process p() signals { s: { a: int } } { x = wait signal s within 1; finish x.b }",
        "unknown_field",
        (1, 76),
        "b",
    ),
    "read-only name": ("history = 1", "read_only_name", (1, 1), "history"),
    "into a read-only name": ("history.x = 1", "read_only_name", (1, 1), "history"),
    "loop over a read-only name": (
        "for history in [1] { }",
        "read_only_name",
        (1, 1),
        "history",
    ),
    "function as a value": (
        "fn f() -> int { 1 }\nx = [f]",
        "function_is_not_a_value",
        (2, 6),
        "f",
    ),
    "function assigned": ("fn f() -> int { 1 }\nf = 1", "function_is_not_a_value", (2, 1), "f"),
    # calls
    "bare tool": ("x = lookup({})", "bare_tool_call", (1, 5), "tools.lookup"),
    "bare tool by its id": ("x = mail_send({})", "bare_tool_call", (1, 5), "mail.send"),
    "operation of a module": ("x = tools.nope({})", "unknown_operation", (1, 5), "Tools nope"),
    "operation of a receiver": (
        "process p(t: Mail) { x = t.echo({}) }",
        "unknown_operation",
        (1, 26),
        "Mail echo",
    ),
    "operation of the beginning of a path": (
        "x = far.call({})",
        "unknown_operation",
        (1, 5),
        "far call",
    ),
    "operation of nothing": ("x = ghost.echo({})", "unknown_name", (1, 5), "ghost"),
    "operation of a value": ("x = [1]\ny = x.echo({})", "unresolved_receiver", (2, 5), "echo"),
    "operation of a field of a module": (
        "y = tools.inner.echo({})",
        "unresolved_receiver",
        (1, 5),
        "echo",
    ),
    "callee before operands": ("x = frob(nope)", "unknown_function", (1, 5), "frob"),
    "operands before the count": ("x = len(nope, 1)", "unknown_name", (1, 9), "nope"),
    "count for a builtin": ("x = find('a')", "argument_count", (1, 5), "find"),
    "count for a function": ("fn f() -> int { 1 }\nx = f(1)", "argument_count", (2, 5), "f"),
    "builtin argument": ("x = sum(['a'])", "incompatible_builtin_argument", (1, 9), "sum"),
    "function argument": (
        "fn f(x: int) -> int { x }\nx = f(7 / 2)",
        "incompatible_function_argument",
        (2, 7),
        "f x",
    ),
    "input of an operation": (
        "x = tools.lookup({ key: 5 })",
        "incompatible_operation_input",
        (1, 18),
        "lookup",
    ),
    "no input": ("x = tools.lookup()", "incompatible_operation_input", (1, 5), "lookup"),
    "two inputs": (
        "x = tools.lookup({ key: 'a' }, 1)",
        "incompatible_operation_input",
        (1, 5),
        "lookup",
    ),
    "input of a constructor": (
        "x = timer.schedule({ every: 5 })",
        "incompatible_operation_input",
        (1, 20),
        "timer.schedule",
    ),
    "literal of an enum": (
        "x = mail.send({ to: 1, priority: 'urgent' })",
        "incompatible_literal",
        (1, 34),
        "urgent",
    ),
    "literal deep in a literal": (
        "fn f(x: list[{ k: enum['a'] }]) -> int { 1 }\nx = f(({ k: 'a' }, { k: 'b' }))",
        "incompatible_literal",
        (2, 25),
        "b",
    ),
    "literal as a value of a function": (
        "fn f(x: bool) -> enum['a'] { if x { 'a' } else { 'b' } }",
        "incompatible_literal",
        (1, 50),
        "b",
    ),
    # operators
    "minus": ("x = [1] - 2", "incompatible_operands", (1, 5), "-"),
    "unary minus": ("x = -{}", "incompatible_operands", (1, 5), "-"),
    "plus of a list and a number": ("x = [1] + 2", "incompatible_operands", (1, 5), "+"),
    "equality of families": ("x = [1] == 1", "incompatible_operands", (1, 5), "=="),
    "equality of resources": ("x = tools == mail", "incompatible_operands", (1, 5), "=="),
    "number in text": ("x = 1 in 'a1'", "incompatible_operands", (1, 5), "in"),
    "number in a record": ("x = 1 not in { a: 1 }", "incompatible_operands", (1, 5), "not in"),
    "iteration of text": ("for c in 'abc' { }", "incompatible_iteration", (1, 10), ""),
    "iteration in a comprehension": ("x = [c for c in 5]", "incompatible_iteration", (1, 17), ""),
    # flow
    "union over arms": (
        "if true { x = [1] } else { x = {} }\ny = x - 1",
        "incompatible_operands",
        (2, 5),
        "-",
    ),
    "field assigned": ("x = {}\nx.a = [1]\ny = x.a - 1", "incompatible_operands", (3, 5), "-"),
    "type of a loop variable": (
        "for x in [[1], [2]] { y = x - 1 }",
        "incompatible_operands",
        (1, 27),
        "-",
    ),
    "aggregate": (
        "x = await { a: tools.lookup({ key: 'k' })? }\ny = x.a.nam",
        "unknown_field",
        (2, 5),
        "nam",
    ),
    # declarations
    "type twice": ("type A = int\ntype A = str", "duplicate_declaration", (2, 1), "A"),
    "built-in type": ("type string = int", "duplicate_declaration", (1, 1), "string"),
    "resource type": ("type Tools = int", "duplicate_declaration", (1, 1), "Tools"),
    "process and function": (
        "process f() { }\nfn f() -> int { 1 }",
        "duplicate_declaration",
        (2, 1),
        "f",
    ),
    "builtin": ("fn len(x: str) -> int { 1 }", "function_shadows_builtin", (1, 1), "len"),
    "recursive type": ("type A = { b: B? }\ntype B = list[A]", "recursive_type", (1, 1), "A"),
    "unknown before recursive": (
        "type A = list[A]\ntype B = Nope",
        "unknown_type",
        (2, 10),
        "Nope",
    ),
    "parameter twice": ("fn f(a: int, a: Nope) -> int { 1 }", "duplicate_parameter", (1, 14), "a"),
    "signal twice": (
        "process p(a: Nope) signals { s: int, s: int } { }",
        "duplicate_signal",
        (1, 38),
        "s",
    ),
    "declarations before signatures": (
        "fn f(a: Nope) -> int { 1 }\ntype A = int\ntype A = str",
        "duplicate_declaration",
        (3, 1),
        "A",
    ),
    "signatures before bodies": (
        "fn f() -> any { nope }\nfn g(a: Nope) -> int { 1 }",
        "unknown_type",
        (2, 9),
        "Nope",
    ),
    "bodies before main": (
        "x = nope\nfn f() -> any { never }",
        "unknown_name",
        (2, 17),
        "never",
    ),
    # functions
    "value of a function": (
        "fn f(x: int) -> str { x }",
        "incompatible_function_return",
        (1, 23),
        "f",
    ),
    "function without a value": (
        "fn f(x: int) -> int { y = x }",
        "incompatible_function_return",
        (1, 23),
        "f",
    ),
    "value of a missing arm": (
        "fn f(x: int) -> int { if x { 1 } }",
        "incompatible_function_return",
        (1, 23),
        "f",
    ),
    "optional field": (
        "fn f(a: { x: int? }) -> int { a.x }",
        "incompatible_function_return",
        (1, 31),
        "f",
    ),
    # processes
    "process": ("x = start ghost()", "unknown_process", (1, 5), "ghost"),
    "argument given twice": (
        "process p(a: int) { }\nx = start p(a: 1, a: 2)",
        "duplicate_process_argument",
        (2, 19),
        "a",
    ),
    "argument that is no parameter": (
        "process p(a: int) { }\nx = start p(b: 1)",
        "unexpected_process_argument",
        (2, 13),
        "p b",
    ),
    "argument of another type": (
        "process p(a: int) { }\nx = start p(a: 'x')",
        "incompatible_process_argument",
        (2, 16),
        "p a",
    ),
    "argument missing": (
        "process p(a: int, b: int) { }\nx = start p(a: 1)",
        "missing_process_argument",
        (2, 5),
        "p b",
    ),
    "finish value": (
        "process p(n: int) -> str { finish n }",
        "incompatible_process_return",
        (1, 35),
        "p",
    ),
    "end of a process": (
        "process p(b: bool) -> int { if b { finish 1 } else { while b { finish 2 } } }",
        "incompatible_process_return",
        (1, 1),
        "p",
    ),
    "return after the body": (
        "process p() -> str { finish 1; finish nope }",
        "unknown_name",
        (1, 39),
        "nope",
    ),
    "signal": (
        "process p() signals { go: any } { x = wait signal stop }",
        "undeclared_signal",
        (1, 39),
        "p stop",
    ),
    "timeout adds null": (
        "process p() signals { go: int } -> int { finish wait signal go within 1 }",
        "incompatible_process_return",
        (1, 49),
        "p",
    ),
    # host values and triggers
    "field of a host value": (
        "x = timer.schedule({ every: '1' })\ny = x.every",
        "opaque_access",
        (2, 5),
        "timer.Schedule",
    ),
    "index of a host value": (
        "x = timer.schedule({ every: '1' })\ny = x[0]",
        "opaque_access",
        (2, 5),
        "timer.Schedule",
    ),
    "registration with a variable": (
        "x = {}\nh = triggers.register(x)",
        "invalid_trigger_registration",
        (2, 5),
        "",
    ),
    "field that a registration lacks": (
        register("source: src, inputs: { }"),
        "invalid_trigger_registration",
        None,
        "target",
    ),
    "field that a registration has not": (
        register("source: src, target: on, inputs: { }, when: 1"),
        "invalid_trigger_registration",
        (3, 63),
        "when",
    ),
    "field of a registration twice": (
        register("source: src, target: on, inputs: { }, source: 1"),
        "invalid_trigger_registration",
        (3, 63),
        "source",
    ),
    "trigger source": (
        register("source: 5, target: src, inputs: { }"),
        "invalid_trigger_source",
        (3, 33),
        "source",
    ),
    "trigger target": (
        register("source: src, target: src, inputs: 1"),
        "invalid_trigger_target",
        (3, 46),
        "target",
    ),
    "trigger inputs": (
        register("source: src, target: on, inputs: src"),
        "invalid_trigger_inputs",
        (3, 58),
        "inputs",
    ),
    "trigger input twice": (
        register("source: src, target: on, inputs: { tag: 'a', tag: 'b' }"),
        "invalid_trigger_inputs",
        (3, 70),
        "tag",
    ),
    "unknown trigger input": (
        register("source: src, target: on, inputs: { tag: 1, x: 1 }"),
        "unknown_trigger_input",
        (3, 68),
        "on x",
    ),
    "type of a trigger input": (
        register("source: src, target: on, inputs: { tag: 1 }"),
        "incompatible_process_argument",
        (3, 65),
        "on tag",
    ),
    "type of the event": (
        register("source: src, target: on, inputs: { tag: trigger.event }"),
        "trigger_event_mismatch",
        (3, 65),
        "tag",
    ),
    "trigger input missing": (
        register("source: src, target: on, inputs: { ev: trigger.event }"),
        "missing_trigger_input",
        (3, 58),
        "on tag",
    ),
    "trigger without its event": (
        register("source: src, target: on, inputs: { ev: { at: '1' }, tag: 'a' }"),
        "missing_trigger_event",
        (3, 58),
        "trigger.event",
    ),
    "variable named trigger": (
        "trigger = { event: { at: '1' } }\n"
        + register("source: src, target: on, inputs: { ev: trigger.event, tag: 'a' }"),
        "missing_trigger_event",
        None,
        "trigger.event",
    ),
    "derived key": (
        register(
            "source: src, target: on, inputs: { ev: trigger.event, tag: '' }, key: 'derived/x'"
        ),
        "invalid_trigger_key",
        (3, 95),
        "key",
    ),
    "event elsewhere": ("x = [trigger.event]", "misplaced_trigger_event", (1, 6), ""),
    "field of the event": (
        register("source: src, target: on, inputs: { ev: trigger.event.at, tag: '' }"),
        "misplaced_trigger_event",
        (3, 64),
        "",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_program_is_refused_for(case: str) -> None:
    source, kind, place, mentions = REFUSED[case]
    first = problems(source, read_only=["history"])[0]
    assert (first.stage, first.kind) == ("link", kind), first
    assert place in (None, (first.line, first.column))
    for word in mentions.split():
        assert re.search(rf"(?<!\w){re.escape(word)}(?!\w)", first.message), first.message


IMPURE = {
    "await": "await 1",
    "start": "start p()",
    "sleep": "sleep for 1",
    "wait signal": "x = wait signal",
    "signal run": "signal run 1 with 2",
    "cancel": "cancel 1",
    "print": "print 1",
    "yield": "yield 1",
    "wake": "wake 1",
    "finish": "finish 1",
    "fail": "fail 1",
    "label": "@label(title: 'a')\n1",
    "echo": "tools.echo(1)",
    "lookup": "t.lookup(1)",
    "timer.schedule": "timer.schedule(1)",
    "p": "p",
    "tools": "tools",
    "far.away": "far.away",
}


@pytest.mark.parametrize("construct", IMPURE)
def test_a_function_does_not(construct: str) -> None:
    source = f"process p() {{ }}\nfn pure(t: Tools) -> any {{ {IMPURE[construct]} }}"
    first = problems(source)[0]
    assert first.kind == "forbidden_in_function"
    assert f"`{construct}`" in first.message
    assert "`pure`" in first.message


GATED = {
    "processes": ("process p() { }", "h = 1\ncancel h", "start p()"),
    "sleep": ("sleep for 1",),
    "process_signals": ("process p() { x = wait signal }", "signal run 1 with 2"),
    "triggers": ("x = triggers.list({})", "x = triggers"),
    "label_annotations": ("@label(title: 'a')\nx = nope",),
}


@pytest.mark.parametrize("ability", GATED)
def test_what_the_host_disabled_is_refused_first(ability: str) -> None:
    feature = ability.replace("_", " ")
    for source in GATED[ability]:
        first = problems(source, without(ability))[0]
        assert first.kind == "feature_disabled"
        assert first.message == f"lashlang feature `{feature}` is disabled by this host"


def test_a_cell_reports_every_statement_that_is_wrong() -> None:
    found = problems("x = nope\ny = x + 1\nz = frob(1)\nw = nope + nope")
    assert [(each.kind, each.line) for each in found] == [
        ("unknown_name", 1),
        ("unknown_function", 3),
    ]


def test_a_hint_suggests_a_correction() -> None:
    assert problems("total = 1\nfinish totl")[0].hint == "did you mean `total`?"
    assert problems("x = tools.lokup({})")[0].hint == "did you mean `lookup`?"
    assert problems("x = tools.zzz({})")[0].hint == "operations: `echo`, `lookup`"
    assert problems("x = { a: 1 }\ny = x.zzz")[0].hint == "fields: `a`"
    assert problems("x = None")[0].hint == "write `null`"
    assert problems('x = "a".upper()')[0].hint == "write `upper(…)`: values have no methods"
    assert problems("fn f(xs: list) -> int { 1 }")[0].hint == "write `list[any]`"


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("process p(a: int) -> int { if a > 1 { finish a } }", "end can be reached without a `finish`"),
        ("fn f(a: int) -> int { if a > 1 { 2 } }", "without an `else` its value can be null"),
        ("fn f(a: int) -> int { x = a }", "its last expression"),
        ('x = await tools.lookup("a")?', "takes a record: `tools.lookup({ key: … })`"),
        ('x = await tools.lookup("a", "b")?', "takes a record: `tools.lookup({ key: … })`"),
        ('x = await mail.send({ to: "a" })?', "the field `priority` is missing"),
        ("x = await tools.lookup({ key: 3 })?", "the field `key` must be `str`"),
        ("x = await tools.lookup({ kye: 3 })?", "the field `key` is missing: you wrote `kye`"),
        ("fn f(xs: list[int]) -> int { sum(xs) }", "`to_int(…)`"),
        ("fn f(n: int) -> { half: int } { { half: n / 2 } }", "the field `half` must be `int`: write `to_int(…)`"),
        ("limit = 3\nprocess p() { finish limit }", "a process can use only its parameters"),
        ("for limit in [1] { }\nfn f() -> any { limit }", "a function can use only its parameters"),
        ("x = max(1, 2)", "`max([1, 2])`"),
        ("process p() { sleep(5) }", "`sleep for"),
        ("assert(true)", "`if not test"),
        ("for k in { a: 1 } { }", "`keys(…)`"),
        ("process p() { }\nfn p() -> any { 1 }", "the first `p` is in line 1"),
    ],
)  # fmt: skip
def test_a_hint_suggests_what_to_do(source: str, hint: str) -> None:
    assert hint in (problems(source)[0].hint or "")


def test_a_hint_knows_the_variables_that_a_cell_finds() -> None:
    parsed = parse("fn f() -> any { limit }")
    with pytest.raises(LashlangError) as refused:
        link(parsed, surface_of({}), variables=["limit"])
    assert (
        refused.value.errors[0].hint
        == "a function can use only its parameters: pass `limit` as a parameter"
    )


def test_a_problem_is_four_lines_whatever_it_quotes() -> None:
    source = 'x = await mail.send({ to: "a", priority: "lo\\nw" })'
    assert len(show(problems(source)[0], source).split("\n")) == 4


def test_an_error_shows_the_line_and_carets() -> None:
    with pytest.raises(LashlangError) as refused:
        linked("total = 1\n\nfinish totl")
    assert str(refused.value).startswith(
        "unknown name `totl`\n"
        "  --> line 3, column 8\n"
        " 3 | finish totl\n"
        "   |        ^^^^ did you mean `total`?"
    )


# Valid programs

ACCEPTED = [
    "len = len('abc')",
    "tools = { a: 1 }\nx = tools.echo(1)",
    "if x == null { x = 1 }\nfinish x",
    "while false { y = x; x = 1 }\nfinish [x, y]",
    "if true { z = 1 }\nfinish z - 1",
    "x = { a: 1 }\nx['b'] = [1]\nfinish x.b - 1",
    "x = 1\nfor x in ['a'] { x = [] }\nfinish x - 1",
    "x = await tools.lookup({ key: 'k' })\nfinish x.nam",
    "x = await [1]\nfor y in x[0] { }",
    "fn even(n: int) -> bool { n == 0 ? true : odd(n - 1) }\nfn odd(n: int) -> bool { even(n) }",
    "type B = list[A]\ntype A = { x: int }\nfn f(b: B) -> int { b[0].x }",
    "process p(input: str) { finish input + inputs.input }",
    "process p(b: bool) -> int { if b { finish 1 } else { @label(title: 'a')\nfail 2 } }",
    "process p(t: Tools) { x = t.echo(1) }\nh = start p(t: tools)",
    "trigger = { event: 1 }\nfinish trigger.event",
    "x = 1 == 'a'\ny = null == [1]\nz = [] + 'a'",
    "fn f(x: enum['a'] | str) -> any { x }\nx = f('b')",
]


@pytest.mark.parametrize("source", ACCEPTED)
def test_a_program_is_linked(source: str) -> None:
    linked(source, variables=["x"])


def test_names_are_resolved() -> None:
    module = linked(
        "process p(t: Tools, a: int) { b = a; finish t.echo(f(b)) }\n"
        "fn f(n: int) -> int { n }\n"
        "x = [p, tools, far.away, far.away.x]\n"
        "s = timer.schedule({ every: 'x' })"
    ).module
    (process,) = module.processes
    assert process.body == (
        Assign("0", (), Variable("a")),
        Finish(
            ReceiverOperation(
                Variable("t"), "Tools", "echo", (CallFunction("f", (Variable("0"),)),)
            )
        ),
    )
    away = ModuleName("far.away")
    assert module.main[0] == Assign(
        "x", (), ListLiteral((ProcessName("p"), ModuleName("tools"), away, Field(away, "x")))
    )
    assert isinstance(module.main[1], Assign)
    assert isinstance(module.main[1].value, Construct)


def test_variables_are_numbered_as_they_come_and_keep_their_names_beside() -> None:
    program = linked(
        "process p(a: int) { for i in [a] { n = [k for k in [i]] } input = n; a = inputs }\n"
        "m = [k for k in [1]]"
    )
    (process,) = program.module.processes
    loop = process.body[0]
    assert isinstance(loop, For)
    assert program.names == {"process p": ("n", "i", "k"), "main": ("k",)}
    assert loop.name == "1"
    comprehension = Comprehension(Variable("2"), (Clause("2", ListLiteral((Variable("1"),)), ()),))
    assert loop.body == (Assign("0", (), comprehension),)
    assert process.body[1:] == (
        Assign("input", (), Variable("0")),
        Assign("a", (), Variable("inputs")),
    )


def test_a_type_value_names_variables_apart_from_types() -> None:
    module = linked(
        "type A = int\nt = Type { x: A, y: t1, z: timer.Tick }", variables=["t1"]
    ).module
    names = (("x", "A"), ("y", "$t1"), ("z", "timer.Tick"))
    fields = tuple(TypeField(key, TypeName(name), optional=False) for key, name in names)
    assert module.main == (Assign("t", (), TypeLiteral(RecordType(fields))),)


def test_only_leaves_of_an_aggregate_keep_their_parentheses() -> None:
    echo = Unwrap(Operation("tools", "echo", (Number(1.0),)))
    module = linked("await [(tools.echo(1)?)]\nawait (tools.echo(1)?)\n[(tools.echo(1)?)]").module
    assert module.main == (
        Evaluate(Await(ListLiteral((Group(echo),)))),
        Evaluate(Await(echo)),
        Evaluate(ListLiteral((echo,))),
    )


def test_the_default_signal_declares_itself() -> None:
    (process,) = linked("process p() signals { go: int } { x = wait signal }").module.processes
    assert process.signals[1] == Parameter("signal", TypeName("any"))


def test_an_event_is_a_value_only_where_a_trigger_gets_it() -> None:
    module = linked(
        register("source: src, target: on, inputs: { ev: trigger.event, tag: 'a' }")
    ).module
    assert TriggerEvent() in list(walk(module))


def test_every_linked_node_has_a_place() -> None:
    program = linked(
        "type T = { a: int }\nprocess p(t: T) signals { s: T } { x = wait signal s }\n\n  y = 1"
    )
    nodes = list(walk(program.module))
    assert {id(node) for node in nodes} == set(program.places)
    assert program.places[id(program.module.main[0])][:2] == (4, 3)


def test_only_what_is_used_is_required() -> None:
    required = linked(
        "process p(t: Mail, e: timer.Tick) { sleep for 1; x = t.send({ to: 'a', priority: 'low' }) }\n"
        "x = tools.lookup({ key: 'a' })\ny = far.away\nz = timer.schedule({ every: '1' })"
    ).required
    assert msgspec.to_builtins(required) == {
        "abilities": ("processes", "sleep"),
        "modules": {
            "tools": {
                "type": "Tools",
                "operations": {"lookup": ("lookup", "{ key: str }", "{ name: str, score: int }")},
            },
            "far.away": {"type": "Away", "operations": {}},
        },
        "resource_types": {
            "Mail": {"send": ('{ to: str, priority: enum["low", "high"] }', "{ id: str }")}
        },
        "types": {"timer.Tick": "{ at: str }"},
        "constructors": {"timer.schedule": ("{ every: str }", "timer.Schedule")},
        "trigger_sources": {},
    }


def test_a_type_brings_the_types_it_is_made_of() -> None:
    host = surface_of({**DOCUMENT, "types": {"A": "list[B]", "B": "{ c: C, t: Mail }", "C": "int"}})
    required = linked("process p(a: A) { }", host).required
    assert required.types == {"A": "list[B]", "B": "{ c: C, t: Mail }", "C": "int"}
    assert required.resource_types == {"Mail": {}}


def test_a_declared_type_hides_one_of_the_surface_but_not_from_the_surface() -> None:
    source = "type TriggerHandle = int\nx = await triggers.list({})?\nfinish x[0].nope"
    assert problems(source)[0].kind == "unknown_field"


# What grows


def test_types_that_double_with_every_line_are_let_go() -> None:
    linked("x = 1\n" + "x = { a: x, b: x }\n" * 80 + "finish x.a")
    linked("x = 1\n" + "x = [x]\n" * 500 + "for i in x { }")


def test_declared_types_that_double_are_compared_at_once() -> None:
    types = [
        f"type {name}{i} = {{ a: {name}{i - 1}, b: {name}{i - 1} }}"
        for name in "TU"
        for i in range(1, 40)
    ]
    source = "\n".join(("type T0 = int", "type U0 = int", *types, "fn f(x: T39) -> U39 { x }"))
    linked(source)


@pytest.mark.slow
def test_the_longest_chains_and_the_deepest_brackets_are_linked() -> None:
    inner = "a"
    for _ in range(28):
        inner = f"({'+'.join([inner, *'1' * 100])} or a and a < 1 + 2 * a)"
    linked(f"a = 1\nfinish {inner}")
    linked("a = 1\nif a { }" + " else if a { }" * 199)


def test_hosts_are_not_changed_by_linking() -> None:
    before = msgspec.json.encode(HOST)
    linked("x = tools.echo(1)")
    assert msgspec.json.encode(HOST) == before
