"""The language's cases of processes, once more: through an app instead of the test host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pylash.testing.lashlang import read
from pylash.testing.lashlang.cases import case
from tests.workflows.h1 import H1App

CASES = Path(__file__).parent.parent / "lang"


def _of_processes() -> list[Any]:
    found = [one for name in ("conformance.json", "more.json") for one in read(CASES / name)]
    return [
        pytest.param(one, id=one["id"])
        for one in found
        if one["kind"] in ("process", "trace") and "entry" in one and "bounds" not in one
    ]


@pytest.mark.slow
@pytest.mark.parametrize("document", _of_processes())
async def test_the_case_holds_in_an_app(document: dict[str, Any]) -> None:
    assert await H1App(case(document)).differences() == []
