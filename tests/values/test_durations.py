"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pylash.values.durations import seconds
from pylash.values.errors import DurationInvalid


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7_200),
        ("3d", 259_200),
        ("1w", 604_800),
        ("1.5h", 5_400),
        (0, 0),
        (2.5, 2.5),
        (timedelta(minutes=1), 60),
    ],
)
def test_a_duration_is_understood(duration: Any, expected: float) -> None:
    assert seconds(duration) == expected


@pytest.mark.parametrize("duration", ["", "2", "d", "2 days", "-1s", -1, float("nan"), "1h30m"])
def test_anything_else_is_refused_with_what_to_write(duration: Any) -> None:
    with pytest.raises(DurationInvalid, match="'500ms', '30s'"):
        seconds(duration)
