"""Lashlang by its cases: the shared ones, and ours for the rules that those do not reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pylash.testing.lashlang import judge, read

HERE = Path(__file__).parent
NESTED = "the compiled code nests more blocks than Python takes"
NOT_YET = {
    "limits/28-nested-fors": NESTED,
    "limits/29-nested-whiles": NESTED,
    "limits/40-clauses": NESTED,
    "limits/nested-labels-and-loops": NESTED,
}
"""What does not hold yet, by id and why."""


def _parameters() -> Iterator[Any]:
    for name in ("conformance.json", "more.json"):
        for case in read(HERE / name):
            model = "code mode is not built yet" if case["kind"] == "model" else None
            reason = NOT_YET.get(case["id"], model)
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            yield pytest.param(case, id=case["id"], marks=marks)


@pytest.mark.parametrize("case", list(_parameters()))
def test_the_case_holds(case: dict[str, Any]) -> None:
    assert judge(case).problems == ()
