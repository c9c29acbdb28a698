"""A one-page description of Lashlang, for a model that writes workflows."""

from __future__ import annotations

from typing import Final

from pylash.lang import Surface, show_type

LANGUAGE: Final = """
A workflow is a Lashlang program: one or more processes that run in the background and survive restarts.

process watch(order: str, limit: int) signals { answer: bool } -> str {
  found = await tools.lookup({ order_id: order })?     # `?` takes the value of a result, or fails the process
  if found.cents > limit {
    wake "Refund " + order + "?"                       # tells this conversation
    if not (wait signal answer within "2d") { fail "nobody agreed" }
  }
  sleep for "1h"
  both = await [tools.a({ x: 1 })?, tools.b({ y: 2 })?]   # at once
  child = start other(n: 3)
  result = await child                                 # { ok: true, value } or { ok: false, error }
  finish "done " + order
}

Rules: operations are called through their module, with one record of arguments; without `?` a result is
`{ ok, value }` or `{ ok, error }`. Statements end at the end of the line. Values: null, true, false,
numbers, "texts", [lists], (tuples,), { records: 1 }. if / else if / else, for x in list, while, break,
continue; c ? a : b; [x * 2 for x in list if x > 1]; and, or, not, in, ==, <, +, -, *, /, %. Pure helpers:
fn double(n: int) -> int { n * 2 }. A process sees its parameters only. No try, return, lambda, classes,
imports, interpolation or +=. Builtins: len empty keys values trim to_string to_int to_float json_parse
contains grep_text starts_with ends_with split join validate ceil_div floor_div push slice find format
range sort sort_by min max sum replace lower upper unique reverse.
""".strip()


def operations(offered: Surface) -> str:
    """Return a line for each operation that programs may call."""
    return "\n".join(
        f"{path}.{name}({show_type(operation.input)}) -> {show_type(operation.output)}"
        for path, module in sorted(offered.modules.items())
        for name, operation in sorted(module.operations.items())
    )
