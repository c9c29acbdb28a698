"""What somebody probably meant who wrote another language."""

from __future__ import annotations

from difflib import get_close_matches

from pylash.lang.tokens import Token

CONDITIONAL = "`if` is a statement; a conditional value is written `test ? a : b`"
INTERPOLATION = 'there is no interpolation: join texts with `+`, or use `format("{}", x)`'
BRACES = "a block stands in braces, the first of them on this line"
DESTRUCTURING = "there is no destructuring: give the tuple a name and take its items, `t[0]`"
VALUES = "functions are not values: call one by its name"

# A statement that begins with one of these words, which mean nothing here, and then cannot go on.
FOREIGN = {
    "return": "a function's value is that of its last expression; a process ends with `finish`",
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
    "del": "nothing is deleted; assign `null`",
    "echo": "write `print`",
    "emit": "write `yield`",
}
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

# Where a value must stand and one of these does.
NO_VALUES = {
    "if": CONDITIONAL,
    "for": "a comprehension stands in brackets: `[x * 2 for x in items]`",
    "print": "`print` is a statement and has no value",
    "cancel": "`cancel` is a statement and has no value",
    "not": "put it in parentheses: `a == (not b)`",
    ".": "write `0.5`, not `.5`",
    "|": "write `or` or `||`",
}


def hint(tokens: list[Token], index: int) -> str | None:
    """Return what to do about the token that cannot stand here, if we can guess."""
    found = tokens[index]
    before = tokens[index - 1] if index else None
    earlier = tokens[index - 2] if index > 1 else None
    if before is None:
        return None
    return (
        _doubled(found, before, earlier)
        or _foreign(tokens, index, found, before)
        or _by_found(found, before, tokens[min(index + 1, len(tokens) - 1)])
    )


def _doubled(found: Token, before: Token, earlier: Token | None) -> str | None:
    """Operators of two marks that other languages have."""
    if found.spaced:
        return None
    pair = before.text + found.text
    if pair in ("+=", "-=", "*=", "/=", "%=", "||="):
        name = earlier.text if earlier and earlier.kind == "name" else "x"
        return f"there is no `{pair}`: write `{name} = {name} {before.text} …`"
    if pair in ("++", "--"):
        return f"there is no `{pair}`: write `x = x {found.text} 1`"
    if pair in ("===", "!=="):
        return f"write `{before.text}`"
    return {
        "=>": VALUES,
        "**": "there is no power operator",
        "<>": "write `!=`",
        "<<": "there are no bit operators",
        ">>": "there are no bit operators",
    }.get(pair)


def _foreign(tokens: list[Token], index: int, found: Token, before: Token) -> str | None:
    """Words that begin a statement, or would have."""
    if before.kind == "name" and found.kind == "string" and not found.spaced:
        return INTERPOLATION
    start = tokens[index - 2] if index > 1 else None
    begins = start is None or start.text in ("end of line", ";", "{", "}")
    if not (begins and before.kind == "name") or (found.kind == "mark" and found.text not in "{(-"):
        return None
    if before.text in FOREIGN:
        return FOREIGN[before.text]
    close = get_close_matches(before.text, STATEMENTS, 1, 0.75)
    return f"did you mean `{close[0]}`?" if close else None


def _by_found(found: Token, before: Token, following: Token) -> str | None:
    match found.text:
        case "if" | "for" | "print" | "cancel" | "not" | "|":
            return NO_VALUES[found.text]
        case "." if following.kind == "number" and not following.spaced:
            return NO_VALUES["."]
        case ":" if following.kind == "end of line":
            return BRACES
        case "(" if before.text in ("]", ")"):
            return VALUES
        case "else" if before.kind != "mark":
            return CONDITIONAL
        case _:
            return None
