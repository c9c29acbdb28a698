"""Errors: a class is a code, the table in the docs is complete, a record gives the class back."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

import pylash.lang  # noqa: F401 - which has errors of its own
from pylash.values.errors import (
    EffectReplayMismatch,
    FormattedError,
    LashError,
    LeaseLost,
    StepFailed,
)
from pylash.values.process_errors import ProcessNotInModule

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "reference" / "errors.md"


def camel(code: str) -> str:
    return "".join(part.capitalize() for part in code.split("_"))


@pytest.mark.parametrize("code", LashError.codes())
def test_the_class_is_named_after_its_code(code: str) -> None:
    assert LashError.codes()[code].__name__ == camel(code)


def test_the_table_in_the_docs_lists_exactly_the_codes_there_are() -> None:
    documented = re.findall(r"^\| `([a-z_]+)` \|", DOCS.read_text(), re.MULTILINE)
    assert documented == sorted(LashError.codes())


def test_an_error_shows_its_message_and_its_code() -> None:
    error = LeaseLost("process order-7")
    assert error.code == "lease_lost"
    assert str(error).startswith("The lease on process order-7 was lost")
    assert str(error).endswith("[lease_lost]")


def test_a_restored_error_is_of_the_class_its_code_names() -> None:
    error = LashError.restore("effect_replay_mismatch", "It differs.", {"key": "a"})
    assert type(error) is EffectReplayMismatch
    assert (error.message, error.data) == ("It differs.", {"key": "a"})


def test_an_unknown_code_is_kept() -> None:
    error = LashError.restore("card_declined", "No.")
    assert (type(error), error.code) == (LashError, "card_declined")


@pytest.mark.parametrize("kind", LashError.codes().values())
def test_every_error_is_documented_where_it_is_defined(kind: type[LashError]) -> None:
    assert kind.__doc__
    assert kind.__doc__.strip()


# --- templates ---


def calls(names: Collection[str]) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield the calls of functions that have one of the names: name, place, call."""
    called = re.compile(rf"\b({'|'.join(names)})\(")
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text()
        if not called.search(text):
            continue  # parsing it would take longer than everything else here
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in names:
                    yield name, f"{path.name}:{node.lineno}", node


def test_every_call_in_the_source_fills_the_template() -> None:
    """The type checker cannot see the fields of a template, so this test counts the arguments."""
    kinds = [kind for kind in LashError.codes().values() if issubclass(kind, FormattedError)]
    by_name = {kind.__name__: kind for kind in kinds if kind.__init__ is FormattedError.__init__}
    made = [(by_name[name], where, call) for name, where, call in calls(by_name)]
    for kind, where, call in made:
        assert len(call.args) == len(kind.fields), f"{where}: {kind.__name__}{kind.fields}"
    assert len(made) > 100


def test_an_error_needs_a_value_for_each_field() -> None:
    with pytest.raises(TypeError, match=r"LeaseLost\(scope\) was called with 2 values"):
        LeaseLost("process order-7", "worker-1")


def test_a_template_with_several_fields_lists_them() -> None:
    with pytest.raises(TypeError, match=r"must list the fields of its template: \['a', 'b'\]"):
        type("Unlisted", (LeaseLost,), {"template": "{a} {b}"}, category=True)


def test_a_template_documents_its_class() -> None:
    assert inspect.getdoc(LeaseLost) == LeaseLost.template


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
@pytest.mark.parametrize(
    "error",
    [
        LeaseLost("process order-7"),
        EffectReplayMismatch("a", "b"),
        ProcessNotInModule("a", "b"),
        StepFailed("card_declined", "No.", "CardDeclined", {"n": 1}),
        LashError.restore("card_declined", "No.", [1]),
    ],
)
def test_an_error_can_be_copied_and_pickled(error: LashError, copied: Any) -> None:
    twin = copied(error)
    assert type(twin) is type(error)
    assert (str(twin), twin.args, vars(twin)) == (str(error), error.args, vars(error))
