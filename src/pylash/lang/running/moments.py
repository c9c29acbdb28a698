"""Parsing of durations and times."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import ROUND_FLOOR, Decimal
from typing import Final

from pylash.lang.running.data import RunError, Value, shown

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?)(ms|s|m|h|d|w)")
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}):([0-9]{2})(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_LONGEST: Final = 2**53


def milliseconds(duration: Value) -> int:
    """Return a duration in whole milliseconds, halves rounded up."""
    exact: Decimal | None = None
    if type(duration) is float and 0 <= duration <= _LONGEST:
        exact = Decimal(duration)
    elif type(duration) is str and (match := _DURATION.fullmatch(duration)):
        exact = Decimal(match.group(1)) * _UNITS[match.group(2)]
    if exact is None or exact > _LONGEST:
        raise RunError(
            "invalid_duration",
            f'`{shown(duration)}` is not a duration; use milliseconds, or text such as "90s" or "2d"',
        )
    return int((exact + Decimal("0.5")).to_integral_value(ROUND_FLOOR))


def instant(time: Value) -> int:
    """Return a time in milliseconds since 1970."""
    if type(time) is float and abs(time) <= _LONGEST:
        return int((Decimal(time) + Decimal("0.5")).to_integral_value(ROUND_FLOOR))
    if type(time) is str and (match := _TIME.fullmatch(time)):
        day, minute, second, fraction, offset = match.groups()
        try:
            zone = "+00:00" if offset in "Zz" else offset
            # A leap second counts as the first second of the next minute.
            whole = datetime.fromisoformat(f"{day}T{minute}:{min(int(second), 59):02}{zone}")
            extra = timedelta(seconds=1 if second == "60" else 0)
            if int(second) <= 60:
                since = whole - datetime.fromisoformat("1970-01-01T00:00:00+00:00") + extra
                ms = since // timedelta(milliseconds=1)
                return ms + int(Decimal(fraction or "0") * 1000)
        except (ValueError, OverflowError):
            pass
    raise RunError(
        "invalid_time",
        f"`{shown(time)}` is not a time; use text such as 2026-01-31T09:00:00Z, or milliseconds since 1970",
    )
