"""Programs that want more than they may have, and how each must end under the bounds of a cell."""

from __future__ import annotations

CASES: dict[str, tuple[str, str]] = {}
QUICK: set[str] = set()
"""Those that only the clock ends; they are given less of it."""
HEAVY = frozenset(
    ("JSON lists at once", "sort and reverse", "long numbers", "comprehension", "grep_text", "a long chain of types", "prints",
     "ranges in one sum", "tuple + tuple", "ranges", "ranges in one call", "items", "statements", "fields",
     "ranges in one literal", "list + list", "processes", "a ring of functions", "membership")
)  # fmt: skip
"""Those that take most of a second: they end as they must in `make torture`."""

STEPS, TIME = "step_budget_exceeded", "deadline_exceeded"
MEMORY, FRAMES, DEEP = "memory_exceeded", "frame_depth_exceeded", "value_too_deep"


def case(name: str, kind: str, source: str) -> None:
    CASES[name] = (source, kind)
    if kind == TIME:
        QUICK.add(name)


# Recursion and loops.
case("recursion", FRAMES, "fn f(n: int) -> any { f(n + 1) }\nfinish f(0)")
case(
    "mutual recursion",
    FRAMES,
    "fn f(n: any) -> any { g(n) }\nfn g(n: any) -> any { f(n) }\nfinish f(0)",
)
case(
    "recursion in comprehensions",
    FRAMES,
    f"fn f(n: any) -> any {{ {'[' * 20}f(n){' for x in [1]]' * 20} }}\nfinish f(0)",
)
case(
    "recursion in every operand",
    FRAMES,
    "fn f(n: any) -> any { { a: [f(n) + 1], b: -f(n) }[f(n)] ? f(n) : f(n) }\nx = f(0)",
)
case(
    "a ring of functions",
    FRAMES,
    "\n".join(f"fn f{n}(a: any) -> any {{ f{(n + 1) % 300}(a) }}" for n in range(300))
    + "\nx = f0(1)",
)
case("while", STEPS, "while true { }")
case("while in a function", STEPS, "fn f() -> any { while true { } }\nx = f()")
case("for over for", STEPS, "r = range(1000)\nfor i in r { for j in r { for k in r { } } }")
case(
    "comprehensions that keep nothing",
    STEPS,
    "r = range(1000)\nx = [1 for i in r for j in r if false]",
)
case("calls", STEPS, "fn f(n: int) -> any { if n > 0 { f(n - 1); f(n - 1) } }\nx = f(100)")

# Things that grow.
TWENTY = "for i in range({n}) {{ {what} }}\n"
case("text + text", STEPS, "s = 'abcdefgh'\nwhile true { s = s + s }")
case("wide text + text", STEPS, "s = '\U0001f600'\nwhile true { s = s + s }")
case("list + list", MEMORY, "s = [1]\nwhile true { s = s + s }")
case("tuple + tuple", MEMORY, "s = (1,)\nwhile true { s = s + s }")
case("list in list", MEMORY, "x = [1]\nfor i in range(64) { x = [x, x] }")
case("tuple in tuple", MEMORY, "x = (1,)\nfor i in range(64) { x = (x, x) }")
case("record in record", MEMORY, "x = {}\nfor i in range(60) { x = { a: x, b: x } }")
case(
    "path in path", MEMORY, "x = { a: [1, 1] }\nwhile true { x.a[0] = x.a[1]; x.a[1] = [x.a, x.a] }"
)
case("replace", STEPS, "s = 'aa'\nwhile true { s = replace(s, 'a', 'aaaa') }")
case("replace squared", STEPS, "s = 'aaaaaaaa'\nwhile true { s = replace(s, 'a', s) }")
case("replace nothing", STEPS, "s = 'aa'\nwhile true { s = replace(s, '', s) }")
case(
    "replace at once",
    MEMORY,
    "s = 'aaaaaaaa'\nfor i in range(11) { s = s + s }\nx = replace(s, '', s)",
)
case("join", STEPS, "s = 'aaaaaaaa'\nwhile true { s = join(split(s, ''), s) }")
case(
    "join at once",
    MEMORY,
    "s = 'aaaaaaaa'\nfor i in range(11) { s = s + s }\nx = join(split(s, ''), s)",
)
case("format", STEPS, "s = 'a'\nwhile true { s = format('{0}{0}{0}{0}', s) }")
case(
    "format at once",
    MEMORY,
    "s = '{0}'\nt = 'x'\nfor i in range(15) { s = s + s; t = t + t }\nx = format(s, t)",
)
case("split", STEPS, "s = 'a'\nfor i in range(23) { s = s + s }\nx = split(s, '')")
case("grep_text", MEMORY, "s = 'a\\n'\nfor i in range(19) { s = s + s }\nx = grep_text(s, 'a')")
case("slice", MEMORY, "x = range(500000)\nl = []\nwhile true { l = push(l, slice(x, 0, null)) }")
case("push", MEMORY, "x = range(500000)\nl = []\nwhile true { l = push(l, x) }")
case("values", MEMORY, "r = { a: range(1000000), b: range(1000000) }\nx = values(r) + values(r)")
case(
    "sort and reverse",
    MEMORY,
    "x = range(1000000)\ny = sort(x)\nz = reverse(y)\na = unique(z)\nb = reverse(a)",
)
case("range", "range_too_large", "x = range(9999999999999)")
case("ranges", MEMORY, "x = [range(1000000) for i in range(100)]")
case("ranges in one literal", MEMORY, f"x = [{', '.join(['range(1000000)'] * 14)}]")
case("ranges in one call", MEMORY, f"x = format('', {', '.join(['range(1000000)'] * 14)})")
case("ranges in one sum", "continue", f"x = {' + '.join(['range(1000000)'] * 3)}")
case("ranges on the stack", MEMORY, "fn f(n: any) -> any { [range(1000000), f(n)] }\nx = f(0)")
case(
    "ranges under loops",
    MEMORY,
    "fn f(n: any) -> any { for x in slice(n, 0, null) { f(n) } }\nx = f(range(500000))",
)
case(
    "hidden by loops",
    MEMORY,
    "fn f(x: any) -> any { for x in [1] { f(range(500000)) }\n  x }\ny = f(0)",
)
case(
    "comprehension",
    MEMORY,
    "r = range(1000)\ns = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'\nx = [[s, s] for i in r for j in r]",
)
case("prints", MEMORY, "x = range(300000)\nwhile true { print x }")
case(
    "upper",
    MEMORY,
    "s = 'ΐ'\nfor i in range(20) { s = s + s }\nx = [upper(s), upper(s)]\ny = [x, x, x, x, x, x]",
)

# Shared values.
MANY = ", ".join(["x"] * 1000)
SHARED = "x = [1]\nfor i in range(20) { x = [x, x] }\n"
for sink in ("finish [{}]", "print [{}]", "y = '' + [{}]", "y = to_string([{}])", "y = format('{{}}', [{}])",
             "y = [{0}] == [{0}]", "y = [[{0}]] == [[{0}]]", "y = [{0}] in [[{0}]]", "y = tools.echo([{}])", "y = await [[{}]]", "y = await ([{}])",
             "y = contains('a', [{}])", "y = validate([{}], Type {{ a: int }})"):  # fmt: skip
    case(f"shared: {sink}", MEMORY, SHARED + sink.format(MANY))
case("shared: process", MEMORY, f"process p(a: any) {{ finish a }}\n{SHARED}start p(a: [{MANY}])")
case(
    "shared: signal",
    MEMORY,
    f"process p(a: any) {{ finish a }}\n{SHARED}h = start p(a: 1)\nsignal run h x with [{MANY}]",
)
case(
    "long numbers",
    MEMORY,
    "x = [0.00001 / 10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000 for i in range(500000)]\nfinish x",
)
case(
    "control characters",
    MEMORY,
    "s = '\x01'\nfor i in range(21) { s = s + s }\nl = [s, s, s, s, s, s]\nfinish l",
)

# Depth.
case(
    "deep results",
    DEEP,
    f"fn f(n: int) -> any {{ if n == 0 {{ [] }} else {{ {'[' * 25}f(n - 1){']' * 25} }} }}\nfn g() -> any {{ to_string(f(1000)) == f(1000) }}\nx = g()",
)
case("deep variables", DEEP, "x = []\nwhile true { x = [x] }")
case("deep paths", DEEP, "x = { a: 1 }\nwhile true { x.a = { a: x } }")
case("deep lists grown", DEEP, "x = []\nwhile true { x = push([], x) }")
case("deep JSON", DEEP, "s = '['\nfor i in range(20) { s = s + s }\nx = json_parse(s)")
case("deep tuples", DEEP, "x = ()\nwhile true { x = (x,) }")
case("brackets", "nesting_too_deep", f"x = {'[' * 500}{']' * 500}")
case("blocks", "nesting_too_deep", "if true { " * 100 + "}" * 100)
case("operators", "nesting_too_deep", "x = " + "1 + " * 1000 + "1")
case("clauses", "nesting_too_deep", f"x = [1 {'for a in [1] ' * 1000}]")
case("arms", "nesting_too_deep", "if true { }" + " else if true { }" * 1000)
case(
    "loops in loops",
    "continue",
    "".join(f"for a{n} in [1] {{ " for n in range(29)) + "x = 1 " + "}" * 29,
)
case(
    "clauses after clauses",
    "finish",
    f"finish [1 {' '.join(f'for a{n} in [1]' for n in range(200))}]",
)

# JSON.
case(
    "JSON lists at once",
    MEMORY,
    "x = range(2000000 / 2)\ns = '[],'\nfor i in range(18) { s = s + s }\ny = json_parse('[' + s + s + '1]')\nz = [y, y, y]",
)
case("JSON digits", "continue", "s = '1'\nfor i in range(16) { s = s + s }\nx = json_parse(s)")
case("JSON quotes", "invalid_json", "s = '\"'\nfor i in range(20) { s = s + s }\nx = json_parse(s)")
case(
    "JSON backslashes",
    "invalid_json",
    "s = '\\\\\\\\'\nfor i in range(20) { s = s + s }\nx = json_parse('\"' + s)",
)
case(
    "JSON escaped quotes",
    "invalid_json",
    "s = '\\\\\"'\nfor i in range(18) { s = s + s }\nx = json_parse(s)",
)
case(
    "a JSON text of escaped quotes",
    "continue",
    "s = '\\\\\"'\nfor i in range(18) { s = s + s }\nx = json_parse('\"' + s + '\"')",
)
case(
    "a JSON text that ends in an escape",
    "invalid_json",
    "s = '\\\\\"'\nfor i in range(18) { s = s + s }\nx = json_parse(s + '\\\\')",
)
case("JSON halves", "invalid_json", "x = json_parse('\"\\\\ud800\"')")
case(
    "JSON images",
    MEMORY,
    's = \'a\'\nfor i in range(16) { s = s + s }\nt = \'{"type":"image","id":"\' + s + \'","mime":1,"label":1,"size":1,"width":1,"height":1}\'\nx = json_parse(t)\nfor i in range(12) { x = [x, x] }',
)

# Types.
DOUBLING = "type T0 = { a: int }\n" + "".join(
    f"type T{n + 1} = {{ a: T{n}, b: T{n} }}\n" for n in range(60)
)
case("a doubling type", DEEP, DOUBLING + "x = Type { a: T60 }")
case("a doubling type of less depth", MEMORY, DOUBLING + "x = Type { a: T25 }")
case(
    "a doubling type as schema",
    "continue",
    DOUBLING + "process p(a: T60) signals { s: T60 } { finish a }",
)
case(
    "doubling types compared",
    "incompatible_function_return",
    DOUBLING + DOUBLING.replace("T", "U").replace("int", "str") + "fn f(x: T60) -> U60 { x }",
)
case(
    "doubling unions",
    "incompatible_function_return",
    "type T0 = int\n"
    + "".join(f"type T{n + 1} = {{ a: T{n} }} | {{ a: T{n}, b: int }}\n" for n in range(60))
    + "fn f(x: T60) -> T59 { x }",
)
case("a doubling type value", MEMORY, "t = Type { a: int }\n" + "t = Type { a: t, b: t }\n" * 24)
UNIONS = "type T0 = { a: int }\n" + "".join(
    f"type T{n + 1} = {{ a: T{n}, b: int? }} | {{ a: T{n}, c: int? }} | {{ a: T{n}, d: int? }} | {{ a: T{n} }}\n"
    for n in range(60)
)
"""A value of `T60` could be of 4^60 forms."""
case(
    "a union that fails everywhere",
    "validation_failed",
    UNIONS + "x = { a: 'x' }\nfor i in range(14) { x = { a: x } }\nvalidate(x, Type { a: T13 })",
)
case(
    "a long chain of types",
    "value_too_deep",
    "type T0 = int\n"
    + "".join(f"type T{n + 1} = {{ a: T{n} }}\n" for n in range(600))
    + "fn f(x: T600) -> T600 { x }\nx = Type { a: T600 }",
)

# Work that is not counted in steps.
BIG = "x = [1]\nfor i in range(18) { x = [x, x] }\ny = [1]\nfor i in range(18) { y = [y, y] }\n"
SPACES = "s = ' '\nfor i in range(21) { s = s + s }\n"
case("equality", TIME, BIG + "for i in range(2000) { z = x == y }")
case("membership", TIME, BIG + "l = [x]\nfor i in range(2000) { z = y in l }")
case("unique", TIME, BIG + f"z = unique([{', '.join(f'[x, {n}]' for n in range(100))}])")
case(
    "validate",
    TIME,
    "x = {}\nfor i in range(16) { x = { a: x, b: x } }\nt = Type { a: dict, b: dict }\nfor i in range(15) { t = Type { a: t, b: t } }\nfor i in range(2000) { z = validate(x, t) }",
)
case("numbers of texts", TIME, SPACES + "for i in range(3000) { z = -s }")
case(
    "texts in texts",
    TIME,
    "s = 'a'\nfor i in range(21) { s = s + s }\nt = slice(s, 0, 500000) + 'b'\nfor i in range(3000) { z = t in s }",
)
case(
    "texts before texts",
    TIME,
    SPACES + "t = slice(s, 1, null) + ' '\nfor i in range(30000) { z = s < t }",
)
case(
    "tuples held",
    TIME,
    "x = (1,)\nfor i in range(18) { x = x + x }\nfor i in range(30000) { y = x }",
)

# Width.
case("items", "continue", f"x = [{', '.join(['1'] * 20_000)}]")
case("fields", "continue", f"x = {{ {', '.join(f'a{n}: 1' for n in range(5_000))} }}")
case("statements", "continue", "\n".join(f"x{n} = {n}" for n in range(3_000)))
case("processes", "continue", "\n".join(f"process p{n}(a: int) {{ finish a }}" for n in range(500)))
case(
    "arguments", "invalid_format", f"x = format({', '.join(['1'] * 1_000)})".replace("1", "'a'", 1)
)
case("clauses alike", "finish", f"finish [a {'for a in [1] ' * 40}]")
case(
    "clauses within clauses",
    "finish",
    f"finish [a {' '.join('for a in [[a]]' if n else 'for a in [1]' for n in range(40))}]",
)
