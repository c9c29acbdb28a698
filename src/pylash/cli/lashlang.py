"""``pylash check`` and ``pylash fmt``: mistakes in programs of Lashlang, and the one way to write them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from pylash.cli.options import json_option
from pylash.cli.output import paint, say, say_json
from pylash.lang.formatting import format_source
from pylash.lang.parser import parse
from pylash.lang.problems import LashlangError, Problem, show
from pylash.values import printable

INPUT: Final = "-"

files = click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
)


@click.command()
@files
@json_option
def check(files: tuple[str, ...], as_json: bool) -> int:
    """Find the mistakes in programs of Lashlang; - is what is piped in.

    Each is shown with its place and, if we can guess, with what to write instead. The status is 1 if there
    are any.
    """
    found = [(file, source, parse(source).problems) for file, source in _sources(files)]
    if _for_programs(as_json):
        problems = [_json(file, problem) for file, _, several in found for problem in several]
        say_json(problems)
        return int(bool(problems))
    for file, source, problems_here in found:
        _draw(file, source, problems_here)
    wrong = sum(1 for _, _, several in found if several)
    if not wrong:
        say(paint("ok", "green"))
    return int(wrong > 0)


@click.command()
@files
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Change nothing; the status is 1 if anything would change.",
)
@click.option("--stdout", "to_output", is_flag=True, help="Print the programs, and change no file.")
@json_option
def fmt(files: tuple[str, ...], only_check: bool, to_output: bool, as_json: bool) -> int:
    """Write programs of Lashlang the one way; - is what is piped in, and is printed.

    Comments and single blank lines stay. A program with mistakes is left alone, and its mistakes are shown.
    """
    status, as_json = 0, _for_programs(as_json)
    report: list[dict[str, object]] = []
    for file, source in _sources(files):
        try:
            formatted = format_source(source)
        except LashlangError as error:
            status = 1
            report += [_json(file, problem) for problem in error.errors]
            if not as_json:
                _draw(file, source, error.errors)
            continue
        changed = formatted != source
        status |= changed and only_check
        report.append({"file": file, "changed": changed})
        printed = (to_output or file == INPUT) and not only_check
        if changed and not (only_check or printed):
            Path(file).write_text(formatted, encoding="utf-8", newline="")
        if printed and not as_json:
            click.echo(formatted, nl=False)
        elif changed and not as_json:
            say(f"{'would change' if only_check else 'changed'} {printable(file)}")
    if as_json:
        say_json(report)
    return status


def _for_programs(as_json: bool) -> bool:
    """Return whether JSON is asked for, before or after the name of the command."""
    return as_json or bool(click.get_current_context().find_root().params.get("as_json"))


def _sources(files: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for file in files:
        content = sys.stdin.buffer.read() if file == INPUT else Path(file).read_bytes()
        try:
            yield file, content.decode()
        except UnicodeDecodeError as error:
            said = f"{printable(file)} is no text in UTF-8 (byte {error.start})."
            raise click.UsageError(said) from error


def _json(file: str, problem: Problem) -> dict[str, object]:
    names = ("stage", "kind", "message", "line", "column", "width", "hint")
    return {"file": file} | {name: getattr(problem, name) for name in names}


def _draw(file: str, source: str, problems: tuple[Problem, ...]) -> None:
    """Print problems below the name of their file, as they are shown everywhere."""
    for problem in problems:
        message, place, line, carets = map(_harmless, show(problem, source).split("\n"))
        say(paint(message, "red", bold=True))
        say(paint(f"{place} of {printable(file)}", "bright_black"))
        say(line)
        margin, bar, marks = carets.partition("|")
        say(f"{margin}{bar}{paint(marks, 'red')}")
        say()


def _harmless(line: str) -> str:
    # Tabs stand in the line and above the carets alike, so both move together.
    return printable(line.replace("\t", "    "))
