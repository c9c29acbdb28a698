"""Lashlang by its cases: the shared ones, and ours for the rules that those do not reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pylash.testing.lashlang import judge, read

HERE = Path(__file__).parent
NOT_YET = {"model": "code mode is not built yet"}


def _parameters() -> list[Any]:
    return [
        pytest.param(
            case,
            id=case["id"],
            marks=[pytest.mark.xfail(reason=NOT_YET[case["kind"]], strict=True)]
            if case["kind"] in NOT_YET
            else [],
        )
        for name in ("conformance.json", "more.json")
        for case in read(HERE / name)
    ]


@pytest.mark.parametrize("case", _parameters())
def test_the_case_holds(case: dict[str, Any]) -> None:
    assert judge(case).problems == ()
