import inspect
import sys

import pytest

from pylash.lang.parsing.parser import parse, parse_type
from pylash.lang.problems import LashlangError, show
from pylash.lang.tree import walk
from tests.lang.shapes import shape


def read(source: str) -> str:
    parsed = parse(source)
    assert not parsed.problems, show(parsed.problems[0], source)
    return shape(parsed.program)


def problems(source: str) -> list[str]:
    return [f"{p.kind} {p.line}:{p.column}" for p in parse(source).problems]


def message(source: str) -> str:
    first = parse(source).problems[0]
    return f"{first.message} ({first.hint})"


@pytest.mark.parametrize(
    ("source", "tree"),
    [
        ("1 + 2 * 3 - 4", "((1 + (2 * 3)) - 4)"),
        ("3 > 2 > 1", "((3 > 2) > 1)"),
        ("a or b and c or d", "((a or (b and c)) or d)"),
        ("a || b && c", "(a or (b and c))"),
        ("not a in b", "Not((a in b))"),
        ("!a in b", "(Not(a) in b)"),
        ("a not in b", "(a not in b)"),
        ("a not\nin b", "(a not in b)"),
        ("not not a and b", "(Not(Not(a)) and b)"),
        ("-a * -b", "(Negate(a) * Negate(b))"),
        ("-a.b", "Negate(Field(a, b))"),
        ("a == (not b)", "(a == Not(b))"),
        ("a ? b : c ? d : e", "Conditional(a, b, Conditional(c, d, e))"),
        ("a ? b ? c : d : e", "Conditional(a, Conditional(b, c, d), e)"),
        ("a\n? b\n: c", "Conditional(a, b, c)"),
        ("a.if.null[0]", "Index(Field(Field(a, if), null), 0)"),
        ("m.op(1, 2,).x", "Field(Method(m, op, [1, 2]), x)"),
        ("f()", "Call(f, [])"),
        ("f (x)", "Call(f, [x])"),
        ("finish(1)", "Finish(1)"),
        ("()", "TupleLiteral([])"),
        ("(a)", "a"),
        ("(a,)", "TupleLiteral([a])"),
        ("(a, b,)", "TupleLiteral([a, b])"),
        ("a, b", "TupleLiteral([a, b])"),
        ("[1, 2,]", "ListLiteral([1, 2])"),
        ("[]", "ListLiteral([])"),
        ("[\n1\n,\n2\n]", "ListLiteral([1, 2])"),
        ("{ a: 1, 'b c': 2, if: 3, a: 4, }", "RecordLiteral([RecordField(a, 1), RecordField(b c, 2), RecordField(if, 3), RecordField(a, 4)])"),
        ("[x for x in xs if a if b for y in x]", "Comprehension(x, [Clause(x, xs, [a, b]), Clause(y, x, [])])"),
        ("start p(a: 1, if: 2)", "Start(p, [Argument(a, 1), Argument(if, 2)])"),
        ("start", "start"),
        ("start(1)", "Call(start, [1])"),
        ("[start\n]", "ListLiteral([start])"),
        ("Type { a: str }", "TypeLiteral(RecordType([TypeField(a, str, False)]))"),
        ("Type.x", "Field(Type, x)"),
        ("r?", "Unwrap(r)"),
        ("r??", "Unwrap(Unwrap(r))"),
        ("r?.a?[0]", "Index(Unwrap(Field(Unwrap(r), a)), 0)"),
        ("-r?", "Negate(Unwrap(r))"),
        ("r? ? a : b", "Conditional(Unwrap(r), a, b)"),
        ("(r?)", "Group(Unwrap(r))"),
        ("((r?))", "Group(Unwrap(r))"),
        ("(r)?", "Unwrap(r)"),
        ("await r?", "Unwrap(Await(r))"),
        ("await r??", "Unwrap(Unwrap(Await(r)))"),
        ("(await r)?", "Unwrap(Await(r))"),
        ("await (r?)", "Await(Group(Unwrap(r)))"),
        ("await r?.a", "Await(Field(Unwrap(r), a))"),
        ("await r?.a?", "Unwrap(Await(Field(Unwrap(r), a)))"),
        ("await await r?", "Unwrap(Await(Await(r)))"),
        ("await -r?", "Unwrap(Await(Negate(r)))"),
        ("await (-r?)", "Await(Negate(Unwrap(r)))"),
        ("-await r?", "Negate(Unwrap(Await(r)))"),
        ("await a + await b?", "(Await(a) + Unwrap(Await(b)))"),
        ("await [a?, (b?)]?", "Unwrap(Await(ListLiteral([Unwrap(a), Group(Unwrap(b))])))"),
    ],
)  # fmt: skip
def test_an_expression_is_read_as_this_tree(source: str, tree: str) -> None:
    assert read(source) == tree


@pytest.mark.parametrize(
    ("source", "tree"),
    [
        ("x = 1", "Assign(x, [], 1)"),
        ("let x = 1", "Assign(x, [], 1)"),
        ("let let = 1", "Assign(let, [], 1)"),
        ("x.a[0].if = 1, 2", "Assign(x, [FieldStep(a), IndexStep(0), FieldStep(if)], TupleLiteral([1, 2]))"),
        ("start = 1; wake.x = 2; finish[0] = 3", "Assign(start, [], 1); Assign(wake, [FieldStep(x)], 2); Assign(finish, [IndexStep(0)], 3)"),
        ("finish [0]", "Finish(ListLiteral([0]))"),
        ("finish [0] == 1", "Finish((ListLiteral([0]) == 1))"),
        ("finish 1, 2", "Finish(TupleLiteral([1, 2]))"),
        ("let\nx", "let; x"),
        ("type\nx", "type; x"),
        ("sleep\nfor x in y {}", "sleep; For(x, y, [])"),
        ("sleep for 1; sleep until 'x'", "Sleep(for, 1); Sleep(until, 'x')"),
        ("sleep(1)", "Call(sleep, [1])"),
        ("signal run h with 1", "SendSignal(h, signal, 1)"),
        ("signal run h.a go with 1", "SendSignal(Field(h, a), go, 1)"),
        ("signal.run(h)", "Method(signal, run, [h])"),
        ("cancel h", "Cancel(h)"),
        ("if a {}", "If(a, [], [])"),
        ("if a { x } else { y }", "If(a, [x], [y])"),
        ("if a { x }\nelse if b { y }\nelse { z }", "If(a, [x], [If(b, [y], [z])])"),
        ("if { a: 1 } { x }", "If(RecordLiteral([RecordField(a, 1)]), [x], [])"),
        ("if a { x } y = 2", "If(a, [x], []); Assign(y, [], 2)"),
        ("for x in 1, 2 { break; continue }", "For(x, TupleLiteral([1, 2]), [Break(), Continue()])"),
        ("while a { x }", "While(a, [x])"),
        (";;\n;x;\n;", "x"),
        ("total = first\n- second", "Assign(total, [], first); Negate(second)"),
        ('@label(title: "t", description: "d",)\n\nx', "Labelled(Label(t, d), x)"),
        ("type A = { a: str?, 'b c': list[int | null] ?, m: mail.Msg | 'x' }",
         "TypeDeclaration(A, RecordType([TypeField(a, str, True), TypeField(b c, ListType(UnionType([int, null])), True), TypeField(m, UnionType([mail.Msg, EnumType([x])]), False)]))"),
        ("fn f(a: any,) -> enum['a', 'b',] { a }", "FunctionDeclaration(f, [Parameter(a, any)], EnumType([a, b]), [a])"),
        ("process p() { wait signal }", "ProcessDeclaration(p, [], [], None, None, [WaitSignal(signal, None)])"),
        ("@label(title: 't') process p(a: T) signals { go: bool, } -> str { x = wait signal go within 1 + 2 == 3 }",
         "ProcessDeclaration(p, [Parameter(a, T)], [Parameter(go, bool)], str, Label(t, None), [Assign(x, [], (WaitSignal(go, (1 + 2)) == 3))])"),
        ("process p() { yield 1; wake 2; fail 3 }",
         "ProcessDeclaration(p, [], [], None, None, [Yield(1), Wake(2), Fail(3)])"),
        ("fn f() -> any { print 1; yield 2; fail wait signal }", "FunctionDeclaration(f, [], any, [Print(1), Yield(2), Fail(WaitSignal(signal, None))])"),
    ],
)  # fmt: skip
def test_a_statement_is_read_as_this_tree(source: str, tree: str) -> None:
    assert read(source) == tree


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        # Unexpected tokens.
        ("x = ", "unexpected_token 1:5"),
        ("x = 5\n+ 3", "unexpected_token 2:1"),
        ("print = 1", "unexpected_token 1:7"),
        ("x = [1; 2]", "unexpected_token 1:7"),
        ("x = (1 2)", "unexpected_token 1:8"),
        ("x = { a }", "unexpected_token 1:9"),
        ("x.1 = 2", "unexpected_token 1:3"),
        ("a == not b", "unexpected_token 1:6"),
        ("if true\n{ x = 1 }", "unexpected_token 1:8"),
        ("if a { x } else\n{ y }", "unexpected_token 1:16"),
        ("if a", "unexpected_token 1:5"),
        ("if a { x = 1", "unexpected_token 1:13"),
        ("if a { x = 1\n", "unexpected_token 2:1"),
        ("for x y { }", "unexpected_token 1:7"),
        ("else { }", "unexpected_token 1:1"),
        ("}", "unexpected_token 1:1"),
        ("x = 1,", "unexpected_token 1:7"),
        ("x = (,)", "unexpected_token 1:6"),
        ("let x 1", "unexpected_token 1:7"),
        ("start p", "unexpected_token 1:8"),
        ("start p(1)", "unexpected_token 1:9"),
        ("sleep for\n10", "unexpected_token 1:10"),
        ("signal run h go", "unexpected_token 1:16"),
        ("signal run h within with 1", "unexpected_token 1:14"),
        ("fn f(x: int) { x }", "unexpected_token 1:14"),
        ("fn f(x) -> int { x }", "unexpected_token 1:7"),
        ("process p(a: int)\n{ }", "unexpected_token 1:18"),
        ("process p() signals { with: int } { }", "unexpected_token 1:23"),
        ("type A = ", "unexpected_token 1:10"),
        ("type A = enum[]", "unexpected_token 1:15"),
        ("type A = (int)", "unexpected_token 1:10"),
        ("@foo(title: 'a') x", "unexpected_token 1:2"),
        ("@label(title: 3) x", "unexpected_token 1:15"),
        ("x = print(1)", "unexpected_token 1:5"),
        # Text after a complete statement on its line.
        ("x = 1 y = 2", "expected_statement_end 1:7"),
        ("x = { a: 1 } y = 2", "expected_statement_end 1:14"),
        ("type A = { x: int } y = 2", "expected_statement_end 1:21"),
        ("h = start { finish 1 }", "expected_statement_end 1:11"),
        ("x = 1 }", "expected_statement_end 1:7"),
        ("finish [1, 2] = 3", "expected_statement_end 1:15"),
        ("cancel a, b", "expected_statement_end 1:9"),
        ("for x in y { break 1 }", "expected_statement_end 1:20"),
        ("process p() { x = wait signal with }", "expected_statement_end 1:31"),
        ("process p() { x = wait signal a? }", "expected_statement_end 1:32"),
        ("f(x)(y)", "expected_statement_end 1:5"),
        ("x = 1\nelse { }", "expected_statement_end 2:1"),
        # Question marks.
        ("y = x? 1 : 2", "ambiguous_question_mark 1:8"),
        ("y = x ?1 : 2", "ambiguous_question_mark 1:7"),
        ("c?a:b", "ambiguous_question_mark 1:3"),
        ("[r? 2]", "ambiguous_question_mark 1:5"),
        ("if r? 2 { }", "ambiguous_question_mark 1:7"),
        ("x = ?1", "ambiguous_question_mark 1:5"),
        ("if r?\n{ }", "unexpected_token 1:6"),
        ("x = r?\n: 2", "expected_statement_end 2:1"),
        # Keywords without a value, or where they are not allowed.
        ("finish\n1", "missing_value 1:1"),
        ("if a { print }", "missing_value 1:8"),
        ("cancel;", "missing_value 1:1"),
        ("process p() { wake }", "missing_value 1:15"),
        ("break", "misplaced_construct 1:1"),
        ("fn f() -> any { continue }", "misplaced_construct 1:17"),
        ("while a { fn = 1 }\ncontinue", "misplaced_construct 2:1"),
        ("while a { } process p() { break }", "misplaced_construct 1:27"),
        ("process p() { print 1 }", "misplaced_construct 1:15"),
        ("yield 1", "misplaced_construct 1:1"),
        ("wake 1", "misplaced_construct 1:1"),
        ("fail 1", "misplaced_construct 1:1"),
        ("fail", "misplaced_construct 1:1"),
        ("x = [wait signal]", "misplaced_construct 1:6"),
        ("if true { type A = int }", "misplaced_declaration 1:11"),
        ("process p() { fn f() -> any { 1 } }", "misplaced_declaration 1:15"),
        # Labels and types.
        ("@label() x", "invalid_label 1:1"),
        ("@label(description: 'd')\nx", "invalid_label 1:1"),
        ("@label(title: 'a', title: 'b') x", "invalid_label 1:20"),
        ("@label(title: 'a', name: 'b') x", "invalid_label 1:20"),
        ("@label(title: 'a')", "invalid_label 1:1"),
        ("@label(title: 'a'); x", "invalid_label 1:1"),
        ("if a { @label(title: 'a') }", "invalid_label 1:8"),
        ("@label(title: 'a') @label(title: 'b') x", "invalid_label 1:20"),
        ("@label(title: 'a') type A = int", "invalid_label 1:1"),
        ("@label(title: 'a') fn f() -> any { 1 }", "invalid_label 1:1"),
        ("T = Type { a: str, a: int }", "duplicate_type_field 1:20"),
        ("type A = { a: str, 'a': int }", "duplicate_type_field 1:20"),
    ],
)  # fmt: skip
def test_a_mistake_is_this_problem_at_this_place(source: str, problem: str) -> None:
    assert problems(source)[:1] == [problem]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("print = 1", "found `=`"),
        ("if true\n{ x = 1 }", "expected `{`, found end of line"),
        ("if true { x = 1", "expected `}`, found end of input"),
        ("fn f(x: int) { x }", "expected `->`, found `{`"),
        ("signal run h go", "expected `with`"),
        ("x = [1; 2]", "found `;`"),
        ("x = 1 'text'", "found `'text'`"),
        ("@label() x", "`title`"),
        ("x = wait signal", "`wait signal`"),
        ("x = [1,\n2\ny = 3", "the `[` of line 1 is still open"),
    ],
)
def test_a_problem_shows_what_was_found_and_expected(source: str, said: str) -> None:
    assert said in message(source)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("x = a if c else b", "`test ? a : b`"),
        ("x = if c { 1 } else { 2 }", "`test ? a : b`"),
        ('x = f"hello {y}"', "format"),
        ("total += 1", "`total = total + …`"),
        ("x++", "`x = x + 1`"),
        ("return 3", "`finish`"),
        ("try { x }", "`.ok` and `.error`"),
        ("if a { } elif b { }", "`else if`"),
        ("const x = 1", "`let`"),
        ("def f(x) { }", "`fn name"),
        ("match x { }", "`if`"),
        ("finsh 1", "did you mean `finish`?"),
        ("a, b = 1, 2", "destructuring"),
        ("for i, x in xs { }", "destructuring"),
        ("for (x in xs) { }", "`for item in items { … }`"),
        ("if x:\n  y", "braces"),
        ("if x = 1 { }", "`==`"),
        ("x === 1", "`==`"),
        ("x = a | b", "`||`"),
        ("x = (y) => y", "not values"),
        ("x = m.map(i => i.n)", "not values"),
        ("let { a, b } = r", "destructuring"),
        ("x = a ?? b", "`a == null ? b : a`"),
        ("x = .5", "`0.5`"),
        ("x = 2 ** 3", "power"),
        ("start p(1)", "start p(name: value)"),
        ('sleep "1d"', "`sleep for`"),
        ("sleep for 2d", '"2d"'),
        ('x = await mail.send(to: "ann")', "`({ name: value })`"),
        ("process p(h: Process) { signal h go with 1 }", "`signal run h go with …`"),
        ("process p(x: int?) { }", "`int | null`"),
        ("fn f() -> list[int]? { 1 }", "`… | null`"),
        ("type A = number?", "`float | null`"),
        ("type A = { a?: int }", "`a: type?`"),
        ("process p(x?: int) { }", "`x: type | null`"),
        ("process p(x: int = 3) { }", "no defaults"),
        ("process p(x: dict[str, int]) { }", "write `dict`"),
        ("process p(x: Optional[int]) { }", "`int | null`"),
        ("process p(x: List[string]) { }", "`list[str]`"),
        ("process p(x: string[]) { }", "`list[str]`"),
        ("x = xs[0:2]", "`slice(xs, 0, 2)`"),
        ("x = a.b[:n]", "`slice(a.b, 0, n)`"),
        ("x = xs[len(xs) - 1:]", "`slice(xs, len(xs) - 1, null)`"),
        ("x = { ...y }", "no spread"),
        ("x = [*y]", "no spread"),
        ("process p(n: int) { if (n == 1) finish 2 }", "braces"),
        ("for x in [1] print x", "braces"),
        ("process p() signals { go: int } { x = wait signal go within 2 days }", '`"2d"`'),
        ("sleep for 5 minutes", '`"5m"`'),
        ("if x is null { }", "`==`"),
        ("y = x is not null", "`!=`"),
        ("f = lambda x: x + 1", "not values"),
        ("assert x == 1", "`if not test"),
        ('process p() { await sleep for "1s" }', "without `await`"),
        ("for k, v in d { }", "`for key in keys(record)`"),
        ("x = [k for k, v in d]", "`for key in keys(record)`"),
    ],
)
def test_habits_from_other_languages_get_a_hint(source: str, hint: str) -> None:
    assert hint in message(source)


def test_all_mistakes_of_a_program_are_reported_and_nothing_else() -> None:
    source = """\
if x = 1 {
  y = = 2
  z = 3
  w 4
} else {
  q = [1 2]
}
process p(a int) {
  print a
  r = f(
    1;
  )
  finish a
}
x = [1, 2
y = 3
last one
"""
    assert problems(source) == [
        "unexpected_token 1:6",
        "unexpected_token 2:7",
        "expected_statement_end 4:5",
        "unexpected_token 6:10",
        "unexpected_token 8:13",
        "misplaced_construct 9:3",
        "unexpected_token 11:6",
        "unexpected_token 16:1",
        "expected_statement_end 17:6",
    ]


def test_a_mistake_in_a_block_leaves_the_rest_of_the_program_alone() -> None:
    parsed = parse("process p() {\n  x = (1\n}\ny = 2\nprocess q() { yield 1 }\n")
    assert len(parsed.problems) == 1


def test_lexical_mistakes_are_reported_alone() -> None:
    assert problems("if { = `") == ["unexpected_character 1:8"]


def nested(count: int, opening: str, inside: str, closing: str) -> str:
    return f"{opening * count}{inside}{closing * count}"


@pytest.mark.parametrize(
    ("opening", "inside", "closing"),
    [
        ("(", "1", ")"),
        ("[", "1", "]"),
        ("{ a: ", "1", "}"),
        ("f(", "1", ")"),
        ("x[", "1", "]"),
        ("m.op(", "1", ")"),
        ("-", "1", ""),
        ("!", "1", ""),
        ("not ", "1", ""),
        ("await ", "1", ""),
        ("a ? ", "1", " : 2"),
        ("a ? 1 : ", "1", ""),
        ("if a { ", "x", " }"),
        ("for x in y { ", "x", " }"),
        ("1 or 1 and 1 == 1 + 1 * (", "1", ")"),
    ],
)
def test_at_most_thirty_levels_may_be_nested(opening: str, inside: str, closing: str) -> None:
    assert problems(nested(30, opening, inside, closing)) == []
    found = parse(nested(31, opening, inside, closing)).problems
    assert [problem.kind for problem in found] == ["nesting_too_deep"]
    assert "30" in found[0].message


def test_types_parameters_and_labels_count_as_open_too() -> None:
    def declared(depth: int) -> str:
        return f"fn f(a: {nested(depth, 'list[', 'int', ']')}) -> any {{ 1 }}"

    assert problems(declared(29)) == []
    assert problems(declared(30)) == ["nesting_too_deep 1:158"]
    assert problems("type A = " + nested(31, "{ a: ", "int", " }")) == ["nesting_too_deep 1:160"]
    assert problems(nested(30, "if a {", "@label(title: 't') x", "}")) == ["nesting_too_deep 1:187"]


@pytest.mark.parametrize("step", [" + 1", ".a", "[0]", "?", ".op()", " and 1", " not in x"])
def test_an_expression_has_at_most_two_hundred_operators(step: str) -> None:
    assert problems("x = y" + step * 200) == []
    found = parse("x = y" + step * 201).problems
    assert [problem.kind for problem in found] == ["nesting_too_deep"]
    assert "200" in found[0].message


def test_operators_in_brackets_arms_and_operands_are_counted_apart() -> None:
    long = "1" + " + 1" * 200
    assert (
        problems(f"x = [{long}, {long}, ({long}), f({long}), -({long}), a ? {long} : {long}]") == []
    )
    assert problems(f"x = ({long}){' + 1' * 200}") == []
    assert problems(f"x = not {long}\ny = {long}") == []


def test_a_chain_has_at_most_two_hundred_arms() -> None:
    assert problems("if a { x }" + " else if a { x }" * 199 + " else { y }") == []
    found = parse("if a { x }" + " else if a { x }" * 200).problems
    assert [problem.kind for problem in found] == ["nesting_too_deep"]
    assert "200" in found[0].message


@pytest.mark.slow
def test_the_deepest_program_needs_little_of_the_stack() -> None:
    deepest = "x = " + nested(30, "1 or 1 and 1 == 1 + 1 * f(", "1", ")" + " + 1" * 190)
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(450 + len(inspect.stack(0)))
    try:
        assert problems(deepest) == []
    finally:
        sys.setrecursionlimit(usual)


def test_every_node_knows_its_place() -> None:
    source = "x = a.b(c)\nif (1 + 2) > y {\n  f([1,\n  2])\n}\n"
    parsed = parse(source)
    lines = source.split("\n")
    found = {
        lines[place.line - 1][place.column - 1 : place.column - 1 + place.width]
        for node in walk(parsed.program)
        if (place := parsed.places[id(node)])
    }
    assert found == {
        "x = a.b(c)",
        "a.b(c)",
        "a",
        "c",
        "if (1 + 2) > y {",
        "(1 + 2) > y",
        "1 + 2",
        "1",
        "2",
        "y",
        "f([1,",
        "[1,",
    }


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("string", "str"),
        ("{ a: integer?, b: number|boolean }", "RecordType([TypeField(a, int, True), TypeField(b, UnionType([float, bool]), False)])"),
        ("list[\n object\n]", "ListType(dict)"),
        ("timer.Tick", "timer.Tick"),
        ("'a' | null", "UnionType([EnumType([a]), null])"),
    ],
)  # fmt: skip
def test_a_type_alone_is_read_as_this_tree(text: str, tree: str) -> None:
    assert shape(parse_type(text)) == tree


@pytest.mark.parametrize("text", ["", "int x", "list[int", "{ a: int, a: str }", "1", "`", "int;"])
def test_a_text_that_is_not_a_type_raises(text: str) -> None:
    with pytest.raises(LashlangError) as raised:
        parse_type(text)
    assert raised.value.errors[0].stage == "parse"
