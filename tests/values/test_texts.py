"""Texts on a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylash.values.texts import cells, clipped, padded, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("naïve 注文 🫖", "naïve 注文 🫖"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b31m", r"\x9b31m"),
        ("left\u202eright", r"left\u202eright"),
        ("\ud800", r"\ud800"),
        ("family 👨\u200d👩", "family 👨\u200d👩"),
    ],
)
def test_what_would_command_a_terminal_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("注文", 4), ("e\u0301", 1), ("\uff57", 2), ("", 0), ("🫖", 2)]
)
def test_wide_characters_take_two_columns_and_marks_none(text: str, width: int) -> None:
    assert cells(text) == width


@given(st.text(), st.integers(0, 40))
def test_a_clipped_text_fits(text: str, width: int) -> None:
    shown = clipped(printable(text), width)
    assert cells(shown) <= width
    assert cells(padded(shown, width)) == width
