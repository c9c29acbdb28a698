"""Programs that link and run: every statement and expression, builtins with right and wrong kinds."""
# ruff: noqa: C901, PLR0911, PLR0912 (a case a form)

from __future__ import annotations

import random  # noqa: TID251 (programs by their seeds)
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

FUNCTIONS = """\
fn same(x: any) -> any { x }
fn twice(n: float) -> float { n * 2 }
fn count(n: int) -> any { if n <= 0 { [] } else { push(count(n - 1), n) } }
fn nest(n: int, x: any) -> any { if n > 0 { y = [x]; nest(n - 1, (y, { k: y })) } else { x } }
fn grown(xs: any) -> any { for x in [1, 2] { xs = push(xs, x); xs[0] = xs }
  xs }
fn total(xs: any, from: float) -> any { sum = from; for x in xs { if x == 3 { continue }
    if x == 5 { break }
    sum = sum + x }
  sum }
"""
NAMES = ("a", "b", "c", "d", "e")
KEYS = ("k", "n", "xs", "__class__", "ok", "value", "if")
TEXTS = (
    "",
    "a",
    "abc",
    "b,c",
    " 7 ",
    "1e3",
    "x\\ny",
    "{}",
    "{0}{{}}",
    "é√",
    "0.50",
    "-.5",
    "[1,{}]",
    "k",
    "k.n",
)
NUMBERS = (
    "0",
    "1",
    "1",
    "2",
    "4",
    "7",
    "2",
    "3",
    "5",
    "0.5",
    "1.",
    "10000000000000000000000",
    "(1 / 0)",
    "(0 / 0)",
    "(-0)",
    "-1",
    "-2.5",
)
SEQUENCES = ("[0 / 0, 0 / 0, -0, 0]", "range(3)", "[]", "()", "(1,)", "[1, 2, 3]", '["b", "a", "b"]', "[[1], [1], 1, true]", "count(4)", '[{ k: { n: 2 } }, { k: { n: 1 } }]')  # fmt: skip
RECORDS = (
    "{}",
    "{ k: 1 }",
    '{ "k": [1, 2], n: { k: 0 } }',
    "{ ok: true, value: 3 }",
    '{ ok: false, error: "no" }',
)
VALUES: tuple[Any, ...] = (
    {"xs": [1.0, 2.0], "k": 1.0, "n": {"k": 2.0, "s": "abc"}}, {"xs": [[0.0], [1.0]], "k": "k", "n": {"k": -0.0, "s": "7"}},
    {"xs": ["b", "a"], "k": 0.5, "n": {"k": float("nan"), "s": ""}}, {"xs": [{}, {"k": ()}], "k": True, "n": {"k": 3.0}},
    {"xs": (1.0, "x"), "k": 2.0, "n": {"k": 1e300, "s": "a\nab\r\n"}}, {"xs": [None], "k": None, "n": {}}, None, [1.0, [2.0]],
)  # fmt: skip
"""What a session may hold; everything is a value of Python as the reference has it."""
ARITHMETIC = ("-", "*", "/", "%", "<", "<=", ">", ">=")


class Writer:
    """Writes programs; `below` chooses a number, `effects` allows operations."""

    def __init__(self, below: Callable[[int], int], *, effects: bool = False) -> None:
        self.below = below
        self.effects = effects
        self.loops = 0

    def one(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chance(self, among: int) -> bool:
        return self.below(among) == 0

    # Expressions by the kind they should have, so that most programs link; `same(…)` hides the kind.

    def any(self, deep: int) -> str:
        if deep <= 0:
            return self.one(
                (*NAMES, "i", "l", self.one(NUMBERS), repr_of(self.one(TEXTS)), "null", "true")
            )
        return self.one(
            (self.number, self.text, self.items, self.record, self.truth, self.other, self.other)
        )(deep - 1)

    def wanted(self, make: Callable[[int], str], deep: int) -> str:
        """What it should be, or anything."""
        if self.chance(24):
            return f"same({self.any(deep - 1)})"
        return self.held(make) if self.chance(4) else make(deep)

    def held(self, make: Callable[[int], str]) -> str:
        """A place in a variable that often holds something of the kind."""
        name = self.one(NAMES)
        if make == self.items:
            return f"{name}.xs"
        if make == self.number:
            return self.one((f"{name}.n.k", f"{name}.k", "i"))
        return f"{name}.n.s" if make == self.text else f"{name}.n"

    def number(self, deep: int) -> str:
        if deep <= 0:
            return self.one((*NUMBERS, "i"))
        one = self.wanted(self.number, deep - 1)
        match self.below(10):
            case 9:
                return f"({self.one(('-7', '7', '-7.5'))} {self.one(('%', '/'))} {self.one(('3', '-2', 'i'))})"
            case 0:
                return f"-{one}"
            case 1:
                return f"len({self.wanted(self.items, deep - 1)})"
            case 2:
                return f"twice({one})" if not one.startswith('"') else "twice(2)"
            case 3:
                return f"{self.one(('sum', 'min', 'max'))}({self.wanted(self.items, deep - 1)})"
            case 4:
                return f"{self.one(('to_int', 'to_float'))}({self.wanted(self.text, deep - 1)})"
            case 5:
                return f"{self.one(('floor_div', 'ceil_div'))}({one}, {self.wanted(self.number, deep - 1)})"
            case 6:
                return f"total({self.wanted(self.items, deep - 1)}, {self.one(NUMBERS)})"
            case _:
                return f"({one} {self.one((*ARITHMETIC[:4], '+', '+'))} {self.wanted(self.number, deep - 1)})"

    def text(self, deep: int) -> str:
        if deep <= 0:
            return repr_of(self.one(TEXTS))
        one, two = self.wanted(self.text, deep - 1), self.wanted(self.text, deep - 1)
        match self.below(8):
            case 0:
                return f"({one} + {self.any(deep - 1)})"
            case 1:
                return f"{self.one(('trim', 'lower', 'upper', 'to_string'))}({one})"
            case 2:
                return f"replace({one}, {two}, {self.wanted(self.text, deep - 1)})"
            case 3:
                return f"join({self.wanted(self.items, deep - 1)}, {one})"
            case 4:
                template = self.one(("{}", "<{0}{0}>", "{{{}}}", self.one(TEXTS)))
                return f"format({repr_of(template)}, {self.any(deep - 1)})"
            case 5:
                return f"slice({one}, {self.bound(deep)}, {self.bound(deep)})"
            case 6:
                return f"to_string({self.any(deep - 1)})"
            case _:
                return f"{one}[{self.one(('0', '-1', '9', 'i'))}]"

    def bound(self, deep: int) -> str:
        return self.one(("null", "0", "1", "-1", "2", f"same({self.any(deep - 2)})"))

    def items(self, deep: int) -> str:
        if deep <= 0:
            return self.one(SEQUENCES)
        one = self.wanted(self.items, deep - 1)
        inner = [self.any(deep - 1) for _ in range(self.below(4))]
        match self.below(11):
            case 0:
                return f"[{', '.join(inner)}]"
            case 1:
                return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
            case 2:
                return f"{self.one(('reverse', 'unique', 'sort'))}({one})"
            case 3:
                return f"push({one}, {self.any(deep - 1)})"
            case 4:
                return f"({one} + {self.wanted(self.items, deep - 1)})"
            case 5:
                return f"{self.one(('keys', 'values'))}({self.wanted(self.record, deep - 1)})"
            case 6:
                return f"{self.one(('split', 'grep_text'))}({self.wanted(self.text, deep - 1)}, {self.wanted(self.text, deep - 1)})"
            case 7:
                return f"sort_by({self.one((one, SEQUENCES[-1]))}, {repr_of(self.one(('k', 'k.n', 'k.n')))})"
            case 8:
                return f"slice({one}, {self.bound(deep)}, {self.bound(deep)})"
            case 9:
                return f"range({', '.join(self.one(('0', '1', '3', '-2', '2.5', 'i')) for _ in range(1 + self.below(3)))})"
            case _:
                return self.comprehension(deep)

    def comprehension(self, deep: int) -> str:
        clauses = f"for i in {self.wanted(self.items, deep - 1)}"
        if self.chance(2):
            clauses += f" if {self.truth(deep - 1)}"
        if self.chance(3):
            clauses += f" for {self.one(('i', 'j'))} in {self.wanted(self.items, deep - 2)}"
        return f"[{self.any(deep - 1)} {clauses}]"

    def record(self, deep: int) -> str:
        if deep <= 0:
            return self.one(RECORDS)
        fields = [f"{self.one(KEYS)}: {self.any(deep - 1)}" for _ in range(self.below(4))]
        return f"{{ {', '.join(fields)} }}"

    def truth(self, deep: int) -> str:
        if deep <= 0:
            return self.one(("true", "false", "null", *NAMES))
        one, two = self.any(deep - 1), self.any(deep - 1)
        match self.below(8):
            case 0:
                return f"({one} {self.one(('and', 'or'))} {two})"
            case 1:
                return f"{self.one(('not ', '!'))}({one})"
            case 2:
                return f"(same({one}) {self.one(('==', '!='))} {two})"
            case 3:
                return f"({one} {self.one(('in', 'not in'))} same({two}))"
            case 4:
                return f"contains({self.wanted(self.items, deep - 1)}, {one})"
            case 5:
                return f"{self.one(('starts_with', 'ends_with'))}({self.wanted(self.text, deep - 1)}, 'a')"
            case 6:
                return f"empty({self.wanted(self.record, deep - 1)})"
            case _:
                return f"({self.wanted(self.number, deep - 1)} {self.one(ARITHMETIC[4:])} {self.wanted(self.text, deep - 1)})"

    def other(self, deep: int) -> str:
        if deep <= 0:
            return self.any(0)
        match self.below(9 if self.effects else 7):
            case 0:
                return f"({self.truth(deep - 1)} ? {self.any(deep - 1)} : {self.any(deep - 1)})"
            case 1:
                return f"same({self.record(deep - 1)}).{self.one(KEYS)}"
            case 2:
                return f"same({self.wanted(self.items, deep - 1)})[{self.wanted(self.number, deep - 1)}]"
            case 3:
                return f"same({{ ok: {self.one(('true', 'true', 'i'))}, value: {self.any(deep - 1)} }})?"
            case 4:
                given = ("'[1, {}, [2e400]]'", "'7'", "to_string(a)", self.text(deep - 1))
                return f"json_parse({self.one(given)})"
            case 5:
                return f"find({self.wanted(self.text, deep - 1)}, 'a'{self.one(('', ', 0', ', 1', ', same(i)'))})"
            case 6:
                return f"nest({self.one(('0', '1', '9', '30'))}, {self.any(deep - 1)})"
            case 7:
                leaves = [
                    f"{self.operation(deep)}{self.one(('', '?'))}" for _ in range(self.below(3))
                ]
                return (
                    self.one(("[{}]", "({},)", "{{ k: [{}] }}"))
                    .format(", ".join([*leaves, self.any(deep - 1)]))
                    .join(("(await ", ")"))
                )
            case _:
                return (
                    f"{self.one(('await ', ''))}{self.operation(deep)}{self.one(('', '?'))}".join(
                        "()"
                    )
                )

    def operation(self, deep: int) -> str:
        name = self.one(("echo", "echo", "boom"))
        return f"tools.{name}({', '.join(self.any(deep - 2) for _ in range(self.below(3)))})"

    # Statements.

    def block(self, deep: int, most: int = 3) -> str:
        return "\n".join(self.statement(deep) for _ in range(1 + self.below(most)))

    def statement(self, deep: int) -> str:
        name = self.one(NAMES)
        match self.below(15 if deep > 0 else 9):
            case 0 | 1:
                return f"{self.one((name, 'l', 'x', 'y'))} = {self.any(3)}"
            case 2:
                return self.shared(name)
            case 3:
                return (
                    f"{name}.xs = push({name}.xs, {self.any(2)})"
                    if self.chance(2)
                    else f"l = push(l, {self.any(2)})"
                )
            case 4 | 5:
                return f"{name}{self.path()} = {self.any(2)}"
            case 6:
                return f"print {self.any(2)}"
            case 7:
                return self.any(2)
            case 8:
                return f"finish {self.any(2)}" if self.chance(3) else f"i = {self.number(1)}"
            case 9 | 10:
                other = f" else {{\n{self.block(deep - 1)}\n}}" if self.chance(2) else ""
                return f"if {self.truth(2)} {{\n{self.block(deep - 1)}\n}}{other}"
            case 11 | 12:
                return self.loop(
                    f"for {self.one((*NAMES, 'i'))} in {self.wanted(self.items, 2)}", deep
                )
            case 13:
                return "w = 0\n" + self.loop("while w < 3", deep, "w = w + 1\n")
            case _:
                return f'@label(title: "t")\n{self.statement(0)}'

    def shared(self, name: str) -> str:
        """A value that two variables hold, changed in one of them: before, afterwards, or in a loop."""
        other, path = self.one(NAMES), self.one((".xs[0]", ".k", ".n.k"))
        held = self.one(
            (name, name, f"{name}.xs", f"[{name}]", f"{{ k: {name}.xs, xs: [0] }}", f"same({name})")
        )
        lines = (
            f"{name}{path} = {self.number(1)}",
            f"{other} = {held}",
            f"{name}{path} = {self.number(1)}",
        )
        return "\n".join(lines[self.below(2) :])

    def path(self) -> str:
        if self.chance(8):
            return "".join(self.one((".k", "[0]", "[i]", f"[{self.any(0)}]")) for _ in range(3))
        return self.one(
            (".xs[0]", ".xs[-1]", ".k", ".n.k", ".n", '["n"].k', '["k"]', ".n[a.k]", ".n[i]")
        )

    def loop(self, head: str, deep: int, first: str = "") -> str:
        leap = self.one(("", "\nbreak", "\nif i { continue }", "\nif a { break }"))
        return f"{head} {{\n{first}{self.block(deep - 1)}{leap}\n}}"

    def program(self, size: int = 6) -> str:
        lines = [self.statement(3) for _ in range(1 + self.below(size))]
        return f"{FUNCTIONS}i = 1\nl = []\n" + "\n".join(lines)


def repr_of(text: str) -> str:
    """A text as a literal; those above hold their escapes already."""
    return f'"{text}"'


@st.composite
def programs(draw: st.DrawFn, *, effects: bool = False) -> str:
    return Writer(lambda n: draw(st.integers(0, n - 1)), effects=effects).program()


def program_of(seed: int, *, effects: bool = True) -> str:
    """The program of a seed."""
    chosen = random.Random(seed)
    return Writer(chosen.randrange, effects=effects).program()
