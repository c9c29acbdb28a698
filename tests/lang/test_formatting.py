import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylash.lang import tree
from pylash.lang.parsing.parser import parse
from pylash.lang.parsing.tokens import scan
from pylash.lang.printing.formatting import format_source, print_program
from pylash.lang.problems import LashlangError
from tests.lang.programs import PROGRAMS
from tests.lang.test_fuzz import PROGRAM


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROGRAMS)
def test_what_is_printed_is_read_as_the_same_tree(program: tree.Program) -> None:
    text = print_program(program)
    parsed = parse(text)
    assert parsed.problems == ()
    assert parsed.program == program
    formatted = format_source(text)
    assert parse(formatted).program == program
    assert format_source(formatted) == formatted


@pytest.mark.parametrize(
    ("source", "formatted"),
    [
        ("x=1;y  =  2", "x = 1\ny = 2\n"),
        ("", ""),
        ("\n\n# only\n\n", "# only\n"),
        ("let x = 'a'", 'x = "a"\n'),
        ("""x = 'say "hi"'""", """x = 'say "hi"'\n"""),
        ("x = r'\\n' + \"\"\"a\nb\"\"\"", "x = r'\\n' + \"\"\"a\nb\"\"\"\n"),
        ("x = 2.50", "x = 2.50\n"),
        ("x = ((a && (b))) || !c", "x = a and b or not c\n"),
        ("x = (not a) == b", "x = !a == b\n"),
        ("x = (await r)?", "x = await r?\n"),
        ("x = (await r)?.a + (r?)", "x = (await r)?.a + (r?)\n"),
        ("t = 1,2", "t = 1, 2\n"),
        ("t = (1,2)", "t = (1, 2)\n"),
        ("x = {'a':1,'b c':2}", 'x = { a: 1, "b c": 2 }\n'),
        ("type A={a:string?}", "type A = { a: str? }\n"),
        ("if a{x}else{y}", "if a { x } else { y }\n"),
        ("if a { x; y }", "if a {\n  x\n  y\n}\n"),
        ("if a { x }\nelse { if b { y } }", "if a {\n  x\n} else if b {\n  y\n}\n"),
        ("if (Type){x}", "if (Type) { x }\n"),
        ("if a==(Type){x}", "if a == (Type) { x }\n"),
        ("(finish)+1", "(finish) + 1\n"),
        ("(finish(1)).a?", "(finish(1)).a?\n"),
        ("signal run (start)with 1", "signal run (start) with 1\n"),
        ("x=await(-r?)", "x = await (-r?)\n"),
        ("x=await[(r?),-(r?)]", "x = await [(r?), -(r?)]\n"),
        ("fn f()->any{1-(wait signal s within 2)+3}", "fn f() -> any { 1 - (wait signal s within 2) + 3 }\n"),
        ("fn f()->any{(wait signal s within 2)==3}", "fn f() -> any { wait signal s within 2 == 3 }\n"),
        ("a\n\n\n\nb", "a\n\nb\n"),
        ("fn f() -> any { 1 }\nx", "fn f() -> any { 1 }\n\nx\n"),
        ("@label(title:'t') x = 1", '@label(title: "t")\nx = 1\n'),
        ("x=(1).a", "x = (1).a\n"),
    ],
)  # fmt: skip
def test_a_program_is_written_like_this(source: str, formatted: str) -> None:
    assert format_source(source) == formatted
    assert format_source(formatted) == formatted


UNTIDY = """\
# about p
@label(title: "P") # on the label
process p( # open
  a: str, # first
  # before b
  b: int
  # dangling
) signals { answer: bool # yes
} -> str { # body opens
  x = [1, # one
    # two
    2
  ] # after the list


  # after a gap
  y = a + # in the midst
    b
  if x { # then
    z = 1
    # end
  } # between
  else {
    // lost?
  }
  if q {
  # nothing
  }
  r = await tools.echo({ a: 1, # aa
     b: f( # inner
       ) })?
  # last
}
t = 1, 2 # tuple
# the end
"""
TIDY = """\
# about p
# on the label
@label(title: "P")
process p(  # open
  a: str,  # first
  # before b
  b: int,
  # dangling
) signals {
  answer: bool,  # yes
} -> str {  # body opens
  x = [
    1,  # one
    # two
    2,
  ]  # after the list

  # after a gap
  # in the midst
  y = a + b
  # between
  // lost?
  if x {  # then
    z = 1
    # end
  }
  if q {
    # nothing
  }
  r = await tools.echo({
    a: 1,  # aa
    b: f(  # inner
    ),
  })?
  # last
}

t = 1, 2  # tuple
# the end
"""


def test_every_comment_stays_with_what_it_is_about() -> None:
    assert format_source(UNTIDY) == TIDY
    assert format_source(TIDY) == TIDY


def test_long_lines_are_broken_where_a_line_break_ends_nothing() -> None:
    source = (
        "total = some_long_name_number_one + some_long_name_number_two * a_third_long_name - the_last_one\n"
        "v = condition_number_one and condition_number_two and condition_three ? 'the first' : 'the second'\n"
        f"xs = [{', '.join(map(str, range(40)))}]\n"
        "found = await tools.search({ query: 'a long question', limit: 10, language: 'en', more: [1, 2] })?\n"
    )
    assert format_source(source) == (
        "total = some_long_name_number_one +\n"
        "  some_long_name_number_two * a_third_long_name -\n"
        "  the_last_one\n"
        "v = condition_number_one and condition_number_two and condition_three\n"
        '  ? "the first"\n'
        '  : "the second"\n'
        "xs = [\n"
        "  0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23,\n"
        "  24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39,\n"
        "]\n"
        "found = await tools.search({\n"
        '  query: "a long question",\n'
        "  limit: 10,\n"
        '  language: "en",\n'
        "  more: [1, 2],\n"
        "})?\n"
    )


def test_long_chains_are_printed() -> None:
    for chain in ("x = y" + ".a[0]?" * 66 + "\n", "x = " + "-(" * 15 + "y" + ")" * 15 + "\n"):
        assert parse(format_source(chain)).program == parse(chain).program


def test_parentheses_without_which_an_expression_is_too_long_are_left_alone() -> None:
    source = "x = (1" + " + 1" * 200 + ")" + " + 1" * 200 + "\n"
    assert format_source(source) == source


def test_what_cannot_be_read_is_not_formatted() -> None:
    with pytest.raises(LashlangError, match="expected a value"):
        format_source("x = ")


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_comment_is_lost_wherever_it_stands(data: st.DataObject) -> None:
    source = PROGRAM
    starts = [token.start for token in scan(source).tokens]
    places = data.draw(st.lists(st.sampled_from(starts), min_size=1, max_size=5, unique=True))
    for place in sorted(places, reverse=True):
        before = data.draw(st.sampled_from([" ", "\n", "\n\n"]))
        source = f"{source[:place]}{before}#c{place}\n{source[place:]}"
    program = parse(source)
    if not program.problems:
        formatted = format_source(source)
        assert parse(formatted).program == program.program
        assert sorted(c.text for c in scan(formatted).comments) == sorted(
            c.text for c in scan(source).comments
        )
        assert format_source(formatted) == formatted
