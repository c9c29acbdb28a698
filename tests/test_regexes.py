"""Every regular expression of pylash takes time that is linear in the text, whatever the text.

The expressions are collected from the source, each with the methods it is called by. A child with bounded CPU
time runs them on texts made of what the expression itself looks for: one that backtracks over the
whole text at many places of it takes many seconds there, the others milliseconds.
"""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
LENGTH = 30_000
SECONDS = 2.0
"""How much CPU time one expression has for all its texts. The slowest of ours takes 0.1 s."""

METHODS = {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}

DYNAMIC = {
    "pylash.lang.linking.body": 1,  # `let`, space and a name, at one place
    "pylash.durable.waits": 1,  # signed keys, from a constant
    "pylash.engine.hosts.forked_effects": 1,  # signed keys, or an id, escaped
    "pylash.tools.docstrings": 1,  # one of the headers of sections and a colon
    "pylash.values.secrets": 2,  # a secret, escaped, and its base64 with breaks of lines
    "pylash.values.schemas": 1,  # the `pattern` of a JSON Schema, which a developer wrote
    "pylash.testing.lashlang.differences": 2,  # a word in a message, and a key: both from case files
}
"""How many expressions of a module are made while it runs, and why they are harmless."""


class Use(NamedTuple):
    """An expression and a method that it is called by."""

    where: str
    pattern: str
    flags: int
    method: str


def method_calls(tree: ast.Module) -> Iterator[tuple[ast.Call, ast.expr, str]]:
    """Yield the calls of methods: the call, the object and the method's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, node.func.value, node.func.attr


def compiled_by(node: ast.AST | None) -> ast.Call | None:
    """Return the call if a node is one of `re.compile`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node if is_re(node.func.value) and node.func.attr == "compile" else None
    return None


def is_re(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "re"


def collect() -> tuple[set[Use], dict[str, int]]:
    """Return the uses of constant expressions in our modules, and how many others there are in each."""
    texts = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): path.read_text()
        for path in sorted(SOURCE.rglob("*.py"))
    }
    shared = re.findall(r"(?m)^([A-Z]\w*)(?:: Final)? = re\.compile", "\n".join(texts.values()))
    trees = {
        module: ast.parse(text)
        for module, text in texts.items()
        if any(word in text for word in ("import re\n", *shared))
    }
    by_name: dict[str, set[str]] = {}
    for tree in trees.values():
        for _, value, method in method_calls(tree):
            if isinstance(value, ast.Name) and method in METHODS:
                by_name.setdefault(value.id, set()).add(method)
    found: set[Use] = set()
    dynamic: dict[str, int] = {}
    for module, tree in trees.items():
        for where, call, methods in expressions(tree, by_name):
            if not isinstance(call.args[0], ast.Constant):
                dynamic[module] = dynamic.get(module, 0) + 1
                continue
            given = [ast.unparse(one) for one in (*call.args, *(k.value for k in call.keywords))]
            flags = [eval(one, {"re": re}) for one in given if one.startswith("re.")]
            pattern, flag = str(call.args[0].value), int(flags[0]) if flags else 0
            found.update(Use(f"{module}:{where}", pattern, flag, method) for method in methods)
    return found, dynamic


def expressions(
    tree: ast.Module, by_name: dict[str, set[str]]
) -> Iterator[tuple[int, ast.Call, Iterable[str]]]:
    """Yield the line of each expression, the call that has it, and the methods it is used by."""
    known: set[ast.Call] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and (call := compiled_by(node.value)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            known.add(call)
            yield node.lineno, call, by_name.get(ast.unparse(target), METHODS)
    for call, value, method in method_calls(tree):
        if is_re(value) and method in METHODS:
            yield call.lineno, call, [method]
        elif (inner := compiled_by(value)) is not None:
            known.add(inner)
            yield call.lineno, inner, [method]
    for node in ast.walk(tree):
        if (call := compiled_by(node)) is not None and call not in known:
            yield call.lineno, call, METHODS


# --- hostile texts ---


def parts(parsed: Any) -> Iterator[Any]:
    """Yield the parsed expressions right inside an argument of an operator."""
    if hasattr(parsed, "getwidth"):
        yield parsed
    elif isinstance(parsed, tuple | list):
        for part in parsed:
            yield from parts(part)


def sample(operator: Any, argument: Any) -> str:
    """Return a text that one operator matches, or something like it."""
    match str(operator):
        case "LITERAL":
            return chr(argument)
        case "RANGE":
            return chr(argument[0])
        case "CATEGORY":
            return {"DIGIT": "7", "SPACE": " ", "WORD": "a"}.get(str(argument)[9:], "!")
        case "IN":
            return "a" if str(argument[0][0]) == "NEGATE" else sample(*argument[-1])
        case _:
            first = next(parts(argument), ())
            return "".join(sample(*inner) for inner in first) or "a"


def alphabet(parsed: Any) -> Iterator[str]:
    """Yield what each operator of an expression matches, at any depth."""
    for operator, argument in parsed:
        yield sample(operator, argument)
        for inner in [one for one in argument if one[1]] if str(operator) == "IN" else ():
            yield sample(*inner)
        for inner in parts(argument):
            yield from alphabet(inner)


def hostile(use: Use) -> Iterator[str]:
    """Yield long texts of what the expression looks for, with an end that does not fit."""
    parsed = import_module("re._parser").parse(use.pattern, use.flags)
    found = [*dict.fromkeys((*alphabet(parsed), "a", " "))]
    chars = [one for one in found if len(one) == 1][:12]
    words = [one for one in found if len(one) > 1][:8]
    starts = [""]
    for operator, argument in parsed:
        starts.append(starts[-1] + sample(operator, argument))
    pumps = [*chars, *words, *map("".join, pairwise(chars)), *starts[1:], '\\"', " a"]
    for pump in dict.fromkeys(pumps):
        for start in dict.fromkeys(starts):
            yield start + pump * (LENGTH // len(pump)) + "\0"


def run(use: Use) -> None:
    compiled = re.compile(use.pattern, use.flags)
    for text in hostile(use):
        if use.method in ("sub", "subn"):
            compiled.sub("", text)
        elif use.method == "finditer":
            for _ in compiled.finditer(text):
                pass
        else:
            getattr(compiled, use.method)(text)


def run_bounded(chosen: Iterable[Use], seconds: float) -> None:
    """Print each use, then run it; whatever takes too much CPU time ends this process."""
    for use in chosen:
        print(use, flush=True)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        run(use)
        signal.setitimer(signal.ITIMER_PROF, 0)
    print("done", flush=True)


def last_line(*arguments: str) -> str:
    """Run the uses in a child; return the last line it printed."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.test_regexes", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode in (0, -signal.SIGPROF), ran.stderr
    return ran.stdout.splitlines()[-1]


def test_every_regular_expression_takes_linear_time_on_hostile_text() -> None:
    assert last_line() == "done"


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r'"(?:[^"\\]|\\.)*"', "sub"),
        (r":(?:param|arg)\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)", "match"),
        (r"(://[^:/@]*):[^@]*@", "sub"),
        (r"\S*\s*\Z", "sub"),
    ],
)
def test_a_regular_expression_that_backtracks_is_found(pattern: str, method: str) -> None:
    assert last_line(pattern, method) == str(Use("", pattern, 0, method))


def test_expressions_that_are_made_while_running_are_known() -> None:
    found, dynamic = collect()
    assert len(found) > 30
    assert dynamic == DYNAMIC


if __name__ == "__main__":
    given = sys.argv[1:]
    if given:
        run_bounded([Use("", given[0], 0, given[1])], 0.3)
    else:
        run_bounded(sorted(collect()[0]), SECONDS)
