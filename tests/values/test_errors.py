"""Errors: a class is a code, the table in the docs is complete, a record gives the class back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pylash.lang  # noqa: F401 - which has errors of its own
from pylash.values import EffectReplayMismatch, LashError, LeaseLost

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def camel(code: str) -> str:
    return "".join(part.capitalize() for part in code.split("_"))


@pytest.mark.parametrize("code", LashError.codes())
def test_the_class_is_named_after_its_code(code: str) -> None:
    assert LashError.codes()[code].__name__ == camel(code)


def test_the_table_in_the_docs_lists_exactly_the_codes_there_are() -> None:
    documented = re.findall(r"^\| `([a-z_]+)` \|", DOCS.read_text(), re.MULTILINE)
    assert documented == sorted(LashError.codes())


def test_an_error_says_what_happened_and_its_code() -> None:
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
