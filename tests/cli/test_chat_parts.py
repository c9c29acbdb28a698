"""The parts of a chat that need no terminal: text, keys, the typed line, and rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylash.cli.chat.keys import Editor, Key, Keys, Typed
from pylash.cli.chat.lines import Lines
from pylash.cli.chat.screen import typed_rows
from pylash.cli.chat.text import clean, in_columns, shown_call, shown_seconds, wrapped
from pylash.turn.events import TurnEvent
from pylash.values.texts import cells

TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
LINES = st.text(st.sampled_from("ab -·日🎉é"), max_size=60)

# --- text ---


@given(TEXTS)
def test_cleaned_text_commands_no_terminal(text: str) -> None:
    assert not set(clean(text)) & set("\x1b\r\t\x07\x9b\u202e\u2028\x7f")


@given(LINES, LINES, st.integers(2, 30))
def test_more_text_changes_no_row_but_the_last(text: str, more: str, width: int) -> None:
    before, after = wrapped(text, width), wrapped(text + more, width)
    assert after[: len(before) - 1] == before[:-1]


@given(LINES, st.integers(4, 30))
def test_wrapped_rows_fit_and_lose_nothing(text: str, width: int) -> None:
    rows = wrapped(text, width)
    assert all(cells(row.rstrip()) <= width for row in rows)
    assert "".join("".join(rows).split()) == "".join(text.split())


def test_a_wide_character_fits_beside_the_margin_of_the_narrowest_screen() -> None:
    assert wrapped("- 界界", 2) == ["-", "界", "界"]
    assert wrapped(" 界界", 3) == [" 界", " 界"]


def test_an_item_of_a_list_goes_on_where_its_text_begins() -> None:
    assert wrapped("- one two three", 9) == ["- one two", "  three"]
    assert wrapped("10. one two", 8) == ["10. one", "    two"]


def test_pairs_stand_side_by_side_if_there_is_room() -> None:
    assert in_columns([("/a", "one"), ("/bcd", "two")], 40) == ["/a    one", "/bcd  two"]
    assert in_columns([("/a", "one")], 20) == ["/a", "    one"]


def test_calls_and_times_are_short() -> None:
    assert shown_call("look", {"order": "17", "n": [1]}) == 'look(order="17", n=[1])'
    assert shown_call("look", None) == "look()"
    assert [shown_seconds(s) for s in (0.04, 42, 600, 9000)] == ["0.0 s", "42 s", "10 min", "2 h"]


# --- keys ---

WIRE = "aé\x1b[A\x1b[200~x\r\ny\x1b[2J\rz\x1b[201~\x1bb\x1b[1;5D\x1bq\x7f\x03\x1b[99~🎉\r".encode()
KEYS = [
    Typed("a"),
    Typed("é"),
    Key("up"),
    Typed("x\ny\\x1b[2J\nz"),
    Key("word-left"),
    Key("word-left"),
    Typed("q"),
    Key("backspace"),
    Key("ctrl-c"),
    Typed("🎉"),
    Key("enter"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_any_split_of_the_wire_gives_the_same_keys(size: int) -> None:
    keys = Keys()
    found = [
        key for start in range(0, len(WIRE), size) for key in keys.feed(WIRE[start : start + size])
    ]
    assert found == KEYS
    assert [type(key) for key in found] == [type(key) for key in KEYS]


# --- the typed line ---


def edited(text: str, *keys: str) -> str:
    """Return a line after keys, with | where the cursor is."""
    editor = Editor()
    editor.insert(text)
    for key in keys:
        editor.press(key)
    return f"{editor.text[: editor.place]}|{editor.text[editor.place :]}"


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (["left", "backspace"], "one tw|o".replace("w", "")),
        (["home", "delete"], "|ne two"),
        (["word-left", "kill-rest", "yank", "yank"], "one twotwo|"),
        (["kill-word"], "one |"),
        (["kill-line"], "|"),
        (["home", "word-right"], "one| two"),
        (["word-left", "newline", "up", "end"], "one |\ntwo"),
        (["newline", "left", "down"], "one two\n|"),
        (["right", "nothing", "feed"], "one two|"),
    ],
)
def test_keys_edit_the_line(keys: list[str], line: str) -> None:
    assert edited("one two", *keys) == line


def test_what_was_typed_before_comes_back_and_the_draft_is_kept() -> None:
    editor = Editor()
    for line in ("one", "two", "two"):
        editor.insert(line)
        editor.take()
    editor.insert("draft")
    seen = []
    for key in ("up", "up", "up", "down", "down"):
        editor.press(key)
        seen.append(editor.text)
    assert seen == ["two", "one", "one", "two", "draft"]


@given(LINES, st.data(), st.integers(6, 30))
def test_the_cursor_is_where_the_next_letter_goes(
    text: str, data: st.DataObject, width: int
) -> None:
    place = data.draw(st.integers(0, len(text)))
    rows, (line, column) = typed_rows("› ", text, place, width)
    whole = "".join("".join(piece for piece, _ in row)[2:] for row in rows)
    assert whole == text
    before = sum(len("".join(piece for piece, _ in row)) - 2 for row in rows[:line])
    here = "".join(piece for piece, _ in rows[line])
    assert cells(here[: 2 + place - before]) == column
    assert all(cells("".join(piece for piece, _ in row)) <= width for row in rows)


# --- rows ---


def shown(lines: Lines) -> list[str]:
    return ["".join(piece for piece, _ in row) for row in [*lines.settled, *lines.live()]]


@given(st.lists(st.text(st.sampled_from("ab \n"), max_size=9), max_size=12))
def test_streamed_text_reads_the_same_in_whatever_pieces_it_comes(pieces: list[str]) -> None:
    one, many = (Lines(lambda: 10, lambda: 0.0) for _ in range(2))
    one.stream("".join(pieces), "text")
    for piece in pieces:
        many.stream(piece, "text")
    one.finish()
    many.finish()
    assert shown(one) == shown(many)


def test_what_was_streamed_of_an_answer_that_starts_anew_is_marked() -> None:
    lines = Lines(lambda: 40, lambda: 0.0)
    for event in (
        TurnEvent("text_reset", "i1.llm"),  # nothing was said yet
        TurnEvent("text_delta", "i1.llm", text="Half of"),
        TurnEvent("text_reset", "i1.llm"),
        TurnEvent("text_delta", "i1.llm", text="All of it."),
    ):
        lines.event(event)
    assert shown(lines) == ["↺ the answer starts again", "", "All of it."]


def test_a_result_that_does_not_fit_beside_its_call_has_a_row_of_its_own() -> None:
    clock = iter([0.0, 2.5, 2.5])
    lines = Lines(lambda: 20, lambda: next(clock))
    lines.event(TurnEvent("tool_started", "c", tool="look", data={"order": "17"}))
    lines.event(TurnEvent("tool_completed", "c", tool="look", text="a long result\nof two"))
    assert shown(lines) == ["✓ look(order=… 2.5 s", "  → a long result of two"]
