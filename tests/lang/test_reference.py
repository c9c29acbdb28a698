"""The tables of the reference match the implementation: builtins, kinds of errors, bounds, public names."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from pylash import lang
from pylash.lang import CELL_BOUNDS, PROCESS_BOUNDS, Bounds, from_json, text_of
from pylash.lang.running.builtins import BUILTINS
from pylash.testing.lashlang.cases import case
from pylash.testing.lashlang.execution import Session
from pylash.workflows.guide import LANGUAGE

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "pylash" / "lang").rglob("*.py"))
REFERENCE = (ROOT / "docs" / "reference" / "lashlang.md").read_text()
CASE = {"id": "reference", "section": "docs", "title": "docs", "kind": "cell"}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the rows of the first table under a heading."""
    section = REFERENCE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def code(cell: str) -> str:
    assert cell.startswith("`"), cell
    assert cell.endswith("`"), cell
    return cell[1:-1].replace("\\|", "|")


def outcome(source: str) -> Any:
    return Session(case({**CASE, "source": source, "expect": {"continue": True}})).run(source)


# --- builtins ---


def test_every_builtin_has_a_row() -> None:
    names = [code(call).split("(")[0] for call, _, _ in rows("Builtins")]
    assert sorted(names) == sorted(BUILTINS)


def test_the_description_for_models_has_every_builtin() -> None:
    told = LANGUAGE.split("Builtins: ")[1].rstrip(".").split()
    assert sorted(told) == sorted(BUILTINS)


@pytest.mark.parametrize("row", rows("Builtins"), ids=lambda row: code(row[0]))
def test_an_example_of_a_builtin_gives_its_documented_result(row: list[str]) -> None:
    example, given = (code(part) for part in row[2].split(" → "))
    assert example.replace("len(grep", "grep").startswith(code(row[0]).split("(")[0])
    assert text_of(from_json(outcome(f"finish {example}")["finish"])) == given


# --- kinds of errors ---

HOLDERS = {
    "RunError": 0,
    "complain": 0,
    "fail": 0,
    "note": 0,
    "problem": 0,
    "refusal": 1,
    "_check_once": 1,
}
"""What makes a problem, and which of its arguments is the kind."""


def raised() -> set[str]:
    """Return the kinds that stand in the sources as such."""
    found: set[str] = set()
    for call in (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            at = HOLDERS.get(name)
            if at is not None and len(call.args) > at:
                found.update(_text(call.args[at]))
    return found


def texts() -> set[str]:
    return {
        text
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        for text in _text(node)
    }


def _text(node: ast.AST) -> list[str]:
    known = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return [node.value] if known else []  # type: ignore[attr-defined]


def test_every_kind_of_error_has_a_row() -> None:
    documented = {code(kind) for kind, *_ in rows("Errors")}
    assert raised() <= documented
    assert documented <= texts(), "the reference has kinds that nothing raises"


@pytest.mark.parametrize(
    "row",
    [row for row in rows("Errors") if row[3].startswith("`")],
    ids=lambda row: f"{row[1]}-{code(row[0])}",
)
def test_an_example_of_an_error_makes_it(row: list[str]) -> None:
    kind, stage, _, example = row
    found = outcome(code(example)).get("error")
    assert found is not None
    assert (found.stage, found.kind) == (stage, code(kind))


# --- bounds and names ---


def test_the_bounds_are_those_there_are() -> None:
    table = {code(name): (cells, processes) for name, cells, processes, _ in rows("Bounds")}
    assert list(table) == list(Bounds.__struct_fields__)
    for name, stated in table.items():
        real = (getattr(CELL_BOUNDS, name), getattr(PROCESS_BOUNDS, name))
        assert tuple(int(number.replace(",", "")) for number in stated) == real


def test_every_public_name_is_listed_with_its_docstring() -> None:
    listed = dict(
        re.findall(r"^\| `(\w+)` \| (.*) \|$", REFERENCE.split("`pylash.lang` is")[1], re.MULTILINE)
    )
    assert tuple(listed) == lang.__all__
    for name, told in listed.items():
        value = getattr(lang, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert (value.__doc__ or "").strip().splitlines()[0] == told, name
