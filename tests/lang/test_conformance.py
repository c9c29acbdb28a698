"""Lashlang conformance cases: the shared ones, and our own for rules that those do not cover."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pylash.testing.lashlang import judge, read

HERE = Path(__file__).parent
LARGE = {
    "bounds/writing-places-of-a-record",
    "limits/199-operators-in-each-of-30-parentheses",
    "limits/many-statements",
}
"""Cases with long programs, which take as long as hundreds of others."""


def _parameters() -> Iterator[Any]:
    for name in ("conformance.json", "more.json"):
        for case in read(HERE / name):
            later = pytest.mark.xfail(reason="code mode is not built yet", strict=True)
            marks = [later] if case["kind"] == "model" else []
            marks += [pytest.mark.slow] if case["id"] in LARGE else []
            yield pytest.param(case, id=case["id"], marks=marks)


@pytest.mark.proves("L1")
@pytest.mark.parametrize("case", list(_parameters()))
def test_the_case_holds(case: dict[str, Any]) -> None:
    assert judge(case).problems == ()
