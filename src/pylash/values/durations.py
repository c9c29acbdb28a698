"""Durations as people write them: ``"500ms"``, ``"30s"``, ``"5m"``, ``"2h"``, ``"3d"``, ``"1w"``."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from pylash.values.errors import DurationInvalid

Duration = str | float | timedelta
"""A text such as ``"2d"``, seconds, or a timedelta."""

MICROSECONDS = 1_000_000

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def seconds(duration: Duration) -> float:
    """Return duration in seconds.

    >>> seconds("1.5h")
    5400.0
    """
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|[smhdw])\s*", duration)
        if found is None:
            raise DurationInvalid(duration)
        value = float(found[1]) * _UNITS[found[2]]
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        value = float(duration)
    else:
        raise DurationInvalid(duration)
    if not math.isfinite(value) or value < 0:
        raise DurationInvalid(duration)
    return value


def micros(duration: Duration) -> int:
    """Return duration in microseconds.

    >>> micros("2s")
    2000000
    """
    return round(seconds(duration) * MICROSECONDS)
