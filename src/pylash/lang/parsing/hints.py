"""Hints for code that is written as in another language."""

from __future__ import annotations

from difflib import get_close_matches

from pylash.lang.parsing.tokens import Token
from pylash.lang.static_types import SPELLINGS

CONDITIONAL = "`if` is a statement; a conditional value is written `test ? a : b`"
INTERPOLATION = 'there is no interpolation: join texts with `+`, or use `format("{}", x)`'
BRACES = "a block is written in braces; its `{` is on this line"
DESTRUCTURING = (
    "Lashlang has no destructuring: assign the tuple to a variable and read its items, `t[0]`"
)
VALUES = "functions are not values: call one by its name"
ONE_NAME = "a loop has one variable, without destructuring: write `for key in keys(record)` and read `record[key]`"
NO_DEFAULTS = "parameters have no defaults: pass every argument"
NO_SPREAD = "Lashlang has no spread operator: write each field, and join lists with `+`"
ASSERT = 'write `if not test { fail "…" }`'
SLEEP = '`sleep` is a statement, without `await`: write `sleep for "5s"` or `sleep until time`'
SIGNAL = "write `signal run handle name with value`"

# Hints for a statement that begins with a word of another language and cannot be parsed after it.
FOREIGN = {
    "return": "a function returns the value of its last expression; a process ends with `finish`",
    "elif": "write `else if`",
    "elsif": "write `else if`",
    "try": "there is no `try`: without `?` a failure is data with `.ok` and `.error`",
    "catch": "there is no `try`: without `?` a failure is data with `.ok` and `.error`",
    "except": "there is no `try`: without `?` a failure is data with `.ok` and `.error`",
    "raise": "a process fails with `fail`",
    "throw": "a process fails with `fail`",
    "match": "there is no `match`: write `if` and `else if`",
    "switch": "there is no `switch`: write `if` and `else if`",
    "def": "a function is written `fn name(x: int) -> int { … }`",
    "function": "a function is written `fn name(x: int) -> int { … }`",
    "func": "a function is written `fn name(x: int) -> int { … }`",
    "lambda": VALUES,
    "async": "every process is asynchronous: `start` it, and `await` its handle",
    "const": "write `let`, or only `name = value`",
    "var": "write `let`, or only `name = value`",
    "mut": "write `let`, or only `name = value`",
    "import": "there are no imports: operations are called through module paths",
    "from": "there are no imports: operations are called through module paths",
    "unless": "write `if not`",
    "until": "write `while not`",
    "loop": "write `while true { … }`",
    "do": "write `while true { … }`",
    "let": DESTRUCTURING,
    "del": "there is no `delete`: assign `null`",
    "echo": "write `print`",
    "emit": "write `yield`",
    "sleep": "write `sleep for` or `sleep until`",
    "assert": ASSERT,
    "signal": SIGNAL,
}
SPELLED = {
    "None": "write `null`",
    "nil": "write `null`",
    "undefined": "write `null`",
    "True": "write `true`",
    "False": "write `false`",
    "return": FOREIGN["return"],
}
"""Hints for unknown names that other languages have."""

CALLED = {
    "sleep": SLEEP,
    "signal": SIGNAL,
    "assert": ASSERT,
    "str": "write `to_string(…)`",
    "int": "write `to_int(…)`",
    "float": "write `to_float(…)`",
    "append": "write `items = push(items, item)`",
}
"""Hints for unknown functions that other languages have."""

RECORDS = ("dict", "Dict", "map", "Map", "Record", "object", "Mapping")
LISTS = ("List", "Array", "array", "Sequence", "tuple", "Tuple", "set", "Set")
UNITS = {
    "ms": "ms",
    "millisecond": "ms",
    "s": "s",
    "sec": "s",
    "second": "s",
    "m": "m",
    "min": "m",
    "minute": "m",
    "h": "h",
    "hour": "h",
    "d": "d",
    "day": "d",
    "w": "w",
    "week": "w",
}
"""Units of time as people write them after a number."""

STATEMENTS = [
    "break",
    "cancel",
    "continue",
    "fail",
    "finish",
    "fn",
    "for",
    "if",
    "let",
    "print",
    "process",
    "signal",
    "sleep",
    "type",
    "wake",
    "while",
    "yield",
]

ASSIGNED = "an assignment has one target: a name, a field or an item, without destructuring"
NO_BITS = "there are no bit operators"
NO_NAMES = "an operation takes a record, `({ name: value })`; only `start` takes arguments by name"


def hint(tokens: list[Token], index: int, *, ended: bool = False) -> str | None:
    """Return a hint about a token that is not allowed here, or None.

    With `ended` the statement is complete before the token.
    """
    found = tokens[index]
    following = tokens[min(index + 1, len(tokens) - 1)]
    if index == 0:
        return _by_itself(found, None, following)
    before = tokens[index - 1]
    return (
        _doubled(found, before, tokens[max(index - 2, 0)])
        or _worded(found, before, following)
        or _in_type(tokens, index, ended=ended)
        or _foreign(tokens, index)
        or (
            _after_value(found, before, following)
            if ended
            else _by_itself(found, before, following)
        )
    )


def _doubled(found: Token, before: Token, earlier: Token) -> str | None:
    """Return a hint about an operator of two marks from another language."""
    pair = before.text + found.text
    if found.spaced:
        return None
    if pair in ("+=", "-=", "*=", "/=", "%="):
        name = earlier.text if earlier.kind == "name" else "x"
        return f"there is no `{pair}`: write `{name} = {name} {before.text} …`"
    if pair in ("++", "--"):
        return f"there is no `{pair}`: write `x = x {found.text} 1`"
    if pair in ("===", "!=="):
        return f"write `{before.text}`"
    return {
        "=>": VALUES,
        "**": "there is no power operator",
        "<>": "write `!=`",
        "<<": NO_BITS,
        ">>": NO_BITS,
    }.get(pair)


def _worded(found: Token, before: Token, following: Token) -> str | None:
    """Return a hint about a word that is an operator or a unit in another language."""
    if found.text == "is":
        return f"write `{'!=' if following.text == 'not' else '=='}`"
    if before.text == "lambda":
        return VALUES
    if before.text == "sleep" and found.text in ("for", "until"):
        return SLEEP
    if before.kind == "number" and found.kind == "name":
        unit = UNITS.get(found.text) or UNITS.get(found.text.removesuffix("s"))
        return unit and f'a duration is text: write `"{before.text}{unit}"`'
    return None


def _in_type(tokens: list[Token], index: int, *, ended: bool) -> str | None:
    """Return a hint about a type of another language; None after a value, where these marks are allowed."""
    found, before = tokens[index], tokens[index - 1]
    named = SPELLINGS.get(before.text, before.text) if before.kind == "name" else "…"
    if found.spaced or not (before.kind == "name" or before.text in ("]", "}")):
        return None
    if found.text == "?" and (not ended or _first_of_line(tokens, index).text == "type"):
        return f"write `{named} | null`"
    if found.text != "[":
        return None
    inner = SPELLINGS.get(tokens[index + 1].text, tokens[index + 1].text)
    if inner == "]":
        return f"write `list[{named}]`"
    if before.text in RECORDS:
        return "a `dict` has no item type: write `dict`, or `{ name: type }`"
    if before.text == "Optional":
        return f"write `{inner} | null`"
    return f"write `list[{inner}]`" if before.text in LISTS else None


def _first_of_line(tokens: list[Token], index: int) -> Token:
    while index and tokens[index - 1].text not in ("end of line", ";"):
        index -= 1
    return tokens[index]


def _foreign(tokens: list[Token], index: int) -> str | None:
    """Return a hint about a word that begins a statement in another language, or is a misspelt keyword."""
    found, before = tokens[index], tokens[index - 1]
    if before.kind != "name":
        return None
    if found.kind == "string" and not found.spaced:
        return INTERPOLATION
    begins = index == 1 or tokens[index - 2].text in ("end of line", ";", "{", "}")
    if not begins or (found.kind == "mark" and found.text not in ("{", "(", "-")):
        return None
    if before.text == "signal" and found.kind == "name":
        named = tokens[index + 1]
        name = f"{named.text} " if named.kind == "name" and named.text != "with" else ""
        return f"write `signal run {found.text} {name}with …`"
    if before.text in FOREIGN:
        return FOREIGN[before.text]
    if before.text in STATEMENTS:
        return None
    close = get_close_matches(before.text, STATEMENTS, 1, 0.75)
    return f"did you mean `{close[0]}`?" if close else None


ALONE = {
    "if": CONDITIONAL,
    "for": "a comprehension is written in brackets: `[x * 2 for x in items]`",
    "print": "`print` is a statement and has no value",
    "cancel": "`cancel` is a statement and has no value",
    "not": "put it in parentheses: `a == (not b)`",
    "else": "`else` follows the block of its `if`, with no `;` between",
}


def _by_itself(found: Token, before: Token | None, following: Token) -> str | None:
    """Return a hint about a token in the place of a value or a statement."""
    if found.text == "." and following.kind == "number" and not following.spaced:
        return "write `0.5`, not `.5`"
    if found.text == "." and following.text == ".":
        return NO_SPREAD
    if found.text == "*" and before is not None and before.text in ("{", "[", "(", ","):
        return NO_SPREAD
    if found.text == ":" and following.kind == "end of line":
        return BRACES
    if found.text == ":" and before is not None and before.kind == "name":
        return NO_NAMES
    if found.text == "=" and following.text == ">" and not following.spaced:
        return VALUES
    return ALONE.get(found.text)


def _after_value(found: Token, before: Token, following: Token) -> str | None:
    """Return a hint about a token after a complete statement."""
    match found.text:
        case "if" | "else":
            return CONDITIONAL
        case "|":
            return "write `or` or `||`"
        case "=":
            lambda_ = following.text == ">" and not following.spaced
            return VALUES if lambda_ else ASSIGNED
        case "?" if not found.spaced:
            return "put the unwrapped expression in parentheses: `(…)?`"
        case "(" if before.text in ("]", ")"):
            return VALUES
        case ":" if following.kind == "end of line":
            return BRACES
        case _:
            return None
