import pytest

from pylash.lang.parsing.tokens import RESERVED, scan


def spelled(source: str) -> list[str]:
    """The tokens of a text without the end of input; an end of line is shown as ⏎."""
    scanned = scan(source)
    assert not scanned.problems
    texts = [token.text for token in scanned.tokens]
    assert texts.pop() == "end of input"
    return ["⏎" if text == "end of line" else text for text in texts]


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        ("", ""),
        ("a=b", "a = b"),
        ("a==b!=c<=d>=e->f&&g||h", "a == b != c <= d >= e -> f && g || h"),
        ("{}()[],:;@?.+-*/%=!|<>", "{ } ( ) [ ] , : ; @ ? . + - * / % = ! | < >"),
        ("7 2.50 1. 1..2", "7 2.50 1. 1. . 2"),
        ("a.b.c", "a . b . c"),
        ("x # comment\ny // other", "x ⏎ y"),
        ("x\u00a0=\ufeff1\r\n", "x = 1 ⏎"),
        ("r'a' R\"b\" bar'c'", "r'a' R\"b\" bar 'c'"),
    ],
)
def test_a_text_is_split_into_these_tokens(source: str, tokens: str) -> None:
    assert spelled(source) == tokens.split()


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        ("a\nb", "a ⏎ b"),
        ("a\n\n\nb", "a ⏎ b"),
        ("\n\na", "a"),
        ("a +\nb", "a + b"),
        ("a\n+ b", "a ⏎ + b"),
        ("a =\n1", "a = 1"),
        ("a\n= 1", "a ⏎ = 1"),
        ("a\n.b", "a . b"),
        ("a\nand b\nor c", "a and b or c"),
        ("a ?\nb :\nc", "a ? b : c"),
        ("a\n? b\n: c", "a ? b : c"),
        ("a?\nb", "a ? ⏎ b"),
        ("}\nelse {", "} else {"),
        ("else\n{", "else ⏎ {"),
        ("await\na\nin\nb", "await a ⏎ in b"),
        ("a.in\nb", "a . in ⏎ b"),
        ("a.await\nb", "a . await ⏎ b"),
        ("finish\n1", "finish ⏎ 1"),
        ("->\nint |\nstr", "-> int | str"),
        ("a # c\n// d\n b", "a ⏎ b"),
    ],
)
def test_a_line_break_ends_a_statement_unless_a_neighbour_continues_it(
    source: str, tokens: str
) -> None:
    assert spelled(source) == tokens.split()


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ('"a\\tb"', "a\tb"),
        ("'it\\'s'", "it's"),
        ('"\\q\\\\\\""', 'q\\"'),
        ('r"\\n"', "\\n"),
        ('r"\\"', "\\"),
        ('"two\nlines"', "two\nlines"),
        ('"a\\\nb"', "a\nb"),
        ('"""say "hi" now"""', 'say "hi" now'),
        ("'''x'''", "x"),
        ('""', ""),
        ('""""""', ""),
        ('"""a\\""""', 'a"'),
        ("r'''a'b''c'''", "a'b''c"),
        ('"""a""b"""', 'a""b'),
    ],
)
def test_a_string_has_this_value(source: str, value: str) -> None:
    scanned = scan(source)
    assert not scanned.problems
    assert [token.value for token in scanned.tokens[:-1]] == [value]


@pytest.mark.parametrize(
    ("source", "problems"),
    [
        ("x = `a`", ["unexpected_character 1:5"]),
        ("a & b", ["unexpected_character 1:3"]),
        ("naïve", ["unexpected_character 1:3"]),
        ("a\n\x0b", ["unexpected_character 2:1"]),
        ("\u0661", ["unexpected_character 1:1"]),
        ("x\u2003y", ["unexpected_character 1:2"]),
        ("1e6", ["invalid_number 1:1"]),
        ("1_000 0x1F", ["invalid_number 1:1", "invalid_number 1:7"]),
        ("1.x", ["invalid_number 1:1"]),
        ("1" * 400, ["invalid_number 1:1"]),
        ('x\n "abc', ["unterminated_string 2:2"]),
        ("r'abc", ["unterminated_string 1:1"]),
        ('"""abc""', ["unterminated_string 1:1"]),
        ('"abc\\"', ["unterminated_string 1:1"]),
        (
            "$a ^ \n'abc",
            ["unexpected_character 1:1", "unexpected_character 1:4", "unterminated_string 2:1"],
        ),
        ('"\n\ud800"', ["unexpected_character 2:1"]),
    ],
)
def test_an_invalid_token_is_a_problem_at_its_position(source: str, problems: list[str]) -> None:
    found = scan(source).problems
    assert [f"{problem.kind} {problem.line}:{problem.column}" for problem in found] == problems


def test_a_problem_mentions_what_it_is_about() -> None:
    assert "`ï`" in scan("naïve").problems[0].message
    assert "1e6" in scan("1e6").problems[0].message
    assert scan("a & b").problems[0].hint == "write `and` or `&&`"


def test_columns_are_counted_in_code_points() -> None:
    token = scan('"🙂é" x').tokens[1]
    assert (token.text, token.line, token.column) == ("x", 1, 6)


def test_white_space_around_a_question_mark_is_known() -> None:
    marks = [token for token in scan("a? b ? c ?d ?#\n(?//\n?").tokens if token.text == "?"]
    assert [(mark.spaced, mark.roomy) for mark in marks] == [
        (False, True),
        (True, True),
        (True, False),
        (True, True),
        (False, True),
        (True, True),
    ]


def test_comments_are_kept_beside_the_tokens() -> None:
    comments = scan("# a\nx = 1 // b\n").comments
    assert comments == [("# a", 0), ("// b", 10)]


def test_reserved_words_are_words_and_all_others_names() -> None:
    kinds = {token.text: token.kind for token in scan("if finish null Type").tokens}
    assert kinds["if"] == kinds["null"] == "word"
    assert kinds["finish"] == kinds["Type"] == "name"
    assert len(RESERVED) == 13
