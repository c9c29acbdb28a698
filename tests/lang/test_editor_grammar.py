"""The grammar for editors has every keyword of the language."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pylash.lang.parsing.tokens import RESERVED, scan
from pylash.lang.running import builtins
from tests.lang.test_fuzz import PROGRAM

FOLDER = Path(__file__).parents[2] / "editors" / "lashlang"
GRAMMAR = json.loads((FOLDER / "syntaxes" / "lashlang.tmLanguage.json").read_text())


def rules(patterns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rules in their order, with what they include."""
    flat: list[dict[str, Any]] = []
    for pattern in patterns:
        if "include" in pattern:
            flat += rules([GRAMMAR["repository"][pattern["include"].removeprefix("#")]])
        elif "match" in pattern or "begin" in pattern:
            flat.append(pattern)
        else:
            flat += rules(pattern["patterns"])
    return flat


RULES = rules(GRAMMAR["patterns"])


def scopes(source: str) -> dict[int, str]:
    """The scope of each character, as an editor finds them: the earliest match, then the first rule."""
    found: dict[int, str] = {}
    at = 0
    while at < len(source):
        matches = [
            (match.start(), number, match)
            for number, rule in enumerate(RULES)
            if (
                match := re.compile(rule.get("match") or rule["begin"], re.MULTILINE).search(
                    source, at
                )
            )
        ]
        if not matches:
            break
        start, number, match = min(matches, key=lambda each: each[:2])
        rule, end = RULES[number], match.end()
        if "begin" in rule:
            inner = "|".join([*(one["match"] for one in rule.get("patterns", [])), rule["end"]])
            while (part := re.compile(inner, re.DOTALL).search(source, end)) and not re.fullmatch(
                rule["end"], part.group()
            ):
                end = part.end()
            end = part.end() if part else len(source)
        for place in range(start, end):
            found[place] = rule.get("name", "")
        for group, capture in rule.get("captures", {}).items():
            for place in range(*match.span(int(group))):
                found[place] = capture["name"]
        at = max(end, at + 1)
    return found


def scope_of(source: str, word: str) -> str:
    return scopes(source)[re.search(rf"(?<!\w){re.escape(word)}(?!\w)", source).start()]  # type: ignore[union-attr]


@pytest.mark.parametrize("word", sorted(RESERVED))
def test_a_reserved_word_has_a_scope_of_its_own_but_not_as_a_field(word: str) -> None:
    assert re.match(r"keyword|constant\.language", scope_of(f"x = {word} y", word))
    assert scope_of(f"x.{word}", word) == "variable.other.member.lashlang"
    assert scope_of(f"{{ {word}: 1 }}", word) == "variable.other.property.lashlang"


@pytest.mark.parametrize(
    "source",
    [
        "[while] a { [break]; [continue] }",
        "[finish] 1",
        "[fail] 1",
        "[yield] 1",
        "[wake] 1",
        "[let] x = 1",
        "[type] A = int",
        "[process] p() [signals] { go: bool } { }",
        "[fn] f() -> int { 1 }",
        "h = [start] p()",
        "[sleep for] 5",
        "[sleep until] t",
        "x = [wait signal] go [within] 5",
        "[signal run] h go [with] 1",
    ],
)
def test_a_contextual_word_is_a_keyword_at_its_place(source: str) -> None:
    for word in re.findall(r"\[(.+?)\]", source):
        assert scope_of(re.sub(r"[\[\]]", "", source), word).startswith("keyword."), word


@pytest.mark.parametrize("source", ["start = 1", "wait = 2", "signal = 3", "sleep = 4", "type = 5"])
def test_a_contextual_word_elsewhere_is_no_keyword(source: str) -> None:
    assert 0 not in scopes(source)


def test_builtins_are_those_of_the_language() -> None:
    [rule] = [rule for rule in RULES if rule.get("name", "").startswith("support.function")]
    named = re.search(r"\(\?:(.*?)\)", rule["match"])
    assert named is not None
    assert set(named[1].split("|")) == set(builtins.BUILTINS)


def test_texts_numbers_comments_and_marks_of_a_program_all_have_scopes() -> None:
    found = scopes(PROGRAM)
    for token in scan(PROGRAM).tokens:
        expected = {"string": "string.", "number": "constant.numeric", "mark": ""}
        if token.kind in expected and token.text:
            assert found[token.start].startswith(expected[token.kind])
    assert found[PROGRAM.index("# one")] == "comment.line.lashlang"


def test_the_extension_names_files_that_are_there() -> None:
    package = json.loads((FOLDER / "package.json").read_text())
    [language], [grammar] = package["contributes"]["languages"], package["contributes"]["grammars"]
    assert language["extensions"] == [".lash"]
    for path in (language["configuration"], grammar["path"]):
        assert (FOLDER / path).is_file()
