"""``pylash check``, ``graph`` and ``fmt``: the mistakes in programs of Lashlang, what they do, how they are written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from pylash.cli.asking import loaded, run
from pylash.cli.options import json_option
from pylash.cli.output import paint, say, say_json
from pylash.lang import (
    LashlangError,
    Problem,
    Surface,
    artifact,
    assumed_surface,
    format_source,
    link,
    parse,
    show,
)
from pylash.values import printable
from pylash.workflows import LashlangModule, Workflows

INPUT: Final = "-"

source_file = click.Path(exists=True, dir_okay=False, allow_dash=True)
files = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=source_file)
app_option = click.option(
    "--app",
    metavar="MODULE:APP",
    help="The app whose tools the programs use; otherwise what they use is taken to be there.",
)


@click.command()
@files
@app_option
@json_option
def check(files: tuple[str, ...], app: str | None, as_json: bool) -> int:
    """Find the mistakes in programs of Lashlang; - is what is piped in.

    Each is shown with its place and, if we can guess, with what to write instead. The status is 1 if there
    are any.
    """
    as_json = _for_programs(as_json)
    surface = _surface(app)
    found = [(file, source, _problems(source, surface)) for file, source in _sources(files)]
    if as_json:
        say_json([_json(file, problem) for file, _, several in found for problem in several])
    else:
        for file, source, several in found:
            _draw(file, source, several)
    wrong = any(several for _, _, several in found)
    if not (wrong or as_json):
        say(paint("ok", "green"))
    return int(wrong)


@click.command()
@click.argument("file", metavar="FILE", type=source_file)
@app_option
@click.option("--process", metavar="NAME", help="The process; otherwise main, or the first one.")
@click.option("--svg", is_flag=True, help="Draw a picture instead.")
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    type=click.Path(dir_okay=False, writable=True),
    help="Write it there; a name that ends in .svg asks for a picture.",
)
@json_option
def graph(
    file: str, app: str | None, process: str | None, svg: bool, output: str | None, as_json: bool
) -> int:
    """Print what a program of Lashlang can do as a graph, for Mermaid.

    The nodes are its effects, branches and labelled steps; - is what is piped in.
    """
    as_json = _for_programs(as_json)
    if as_json and (svg or output):
        raise click.UsageError("--json prints the graph as JSON: leave --svg and --output out.")
    [(_, source)] = _sources((file,))
    try:
        parsed = parse(source)
        surface = _surface(app) or assumed_surface(parsed.program)
        module = LashlangModule(artifact(link(parsed, surface)), lambda: surface)
    except LashlangError as error:
        _draw(file, source, error.errors)
        return 1
    drawn = module.graph(process)
    if as_json:
        say_json(drawn.to_dict())
        return 0
    picture = svg or (output or "").endswith(".svg")
    text = (drawn.to_svg() if picture else drawn.to_mermaid()).rstrip("\n")
    if output is None:
        say(text)
    else:
        Path(output).write_text(f"{text}\n", encoding="utf-8")
    return 0


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

    Comments and single blank lines stay. A program that cannot be read is left alone, and its mistakes are shown.
    """
    status, as_json = 0, _for_programs(as_json)
    if to_output and (only_check or as_json):
        raise click.UsageError("--stdout prints the programs: leave --check and --json out.")
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


def _surface(app: str | None) -> Surface | None:
    """Return what programs are offered by an app: all abilities, its tools and triggers."""
    if app is None:
        return None
    found = loaded(app)

    async def prepared() -> Surface:
        for tool in found.catalog.tools.values():
            await tool.prepare()
        return Workflows(found).surface()

    return run(prepared())


def _problems(source: str, surface: Surface | None) -> tuple[Problem, ...]:
    try:
        parsed = parse(source)
        link(parsed, surface or assumed_surface(parsed.program))
    except LashlangError as error:
        return error.errors
    return ()


def _for_programs(as_json: bool) -> bool:
    """Return whether JSON is asked for, before or after the name of the command."""
    before = click.get_current_context().find_root().params
    if before.get("store"):
        raise click.UsageError("--store is not for programs of Lashlang: they are in files.")
    return as_json or bool(before.get("as_json"))


def _sources(files: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for file in files:
        content = sys.stdin.buffer.read() if file == INPUT else Path(file).read_bytes()
        try:
            yield file, content.decode()
        except UnicodeDecodeError as error:
            named = "The input" if file == INPUT else printable(file)
            said = f"{named} is no text in UTF-8 (byte {error.start})."
            raise click.UsageError(said) from error


def _json(file: str, problem: Problem) -> dict[str, object]:
    names = ("stage", "kind", "message", "line", "column", "width", "hint")
    return {"file": file} | {name: getattr(problem, name) for name in names}


def _draw(file: str, source: str, problems: tuple[Problem, ...]) -> None:
    """Print problems below the name of their file, as they are shown everywhere."""
    for problem in problems:
        message, place, line, carets = map(_harmless, show(problem, source).split("\n"))
        say(paint(message, "red", bold=True))
        named = "the input" if file == INPUT else printable(file)
        say(paint(f"{place} of {named}", "bright_black"))
        say(line)
        margin, bar, marks = carets.partition("|")
        say(f"{margin}{bar}{paint(marks, 'red')}")
        say()


def _harmless(line: str) -> str:
    # Tabs stand in the line and above the carets alike, so both move together.
    return printable(line.replace("\t", "    "))
