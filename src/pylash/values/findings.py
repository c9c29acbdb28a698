"""Findings of health checks."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """The result of one check, and advice if there is a problem."""

    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    advice: str | None = None
