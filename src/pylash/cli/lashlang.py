"""``pylash check``, ``graph`` and ``fmt``: check, draw and format Lashlang programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from pylash.cli.options import json_option
from pylash.cli.output import paint, print_json, print_line
from pylash.cli.store_options import load_app, run
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
from pylash.values.texts import printable
from pylash.workflows.modules import LashlangModule
from pylash.workflows.workflows import Workflows

INPUT: Final = "-"

source_file = click.Path(exists=True, dir_okay=False, allow_dash=True)
files = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=source_file)
app_option = click.option(
    "--app",
    metavar="MODULE:APP",
    help="The app whose tools the programs use; by default every tool is assumed to exist.",
)


@click.command()
@files
@app_option
@json_option
def check(files: tuple[str, ...], app: str | None, as_json: bool) -> int:
    """Find the mistakes in Lashlang programs; - reads stdin.

    Each is shown with its position and, if it can be guessed, a correction. The status is 1 if there
    are any.
    """
    as_json = _is_json_wanted(as_json)
    surface = _surface(app)
    found = [(file, source, _problems(source, surface)) for file, source in _sources(files)]
    if as_json:
        print_json([_json(file, problem) for file, _, several in found for problem in several])
    else:
        for file, source, several in found:
            _draw(file, source, several)
    wrong = any(several for _, _, several in found)
    if not (wrong or as_json):
        print_line(paint("ok", "green"))
    return int(wrong)


@click.command()
@click.argument("file", metavar="FILE", type=source_file)
@app_option
@click.option("--process", metavar="NAME", help="The process; by default main, or the first one.")
@click.option("--svg", is_flag=True, help="Draw an SVG picture instead.")
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    type=click.Path(dir_okay=False, writable=True),
    help="Write to this file; a name that ends in .svg means --svg.",
)
@json_option
def graph(
    file: str, app: str | None, process: str | None, svg: bool, output: str | None, as_json: bool
) -> int:
    """Print what a Lashlang program can do as a graph, for Mermaid.

    The nodes are its effects, branches and labelled steps; - reads stdin.
    """
    as_json = _is_json_wanted(as_json)
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
        print_json(drawn.to_dict())
        return 0
    picture = svg or (output or "").endswith(".svg")
    text = (drawn.to_svg() if picture else drawn.to_mermaid()).rstrip("\n")
    if output is None:
        print_line(text)
    else:
        Path(output).write_text(f"{text}\n", encoding="utf-8")
    return 0


@click.command()
@files
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Change nothing; the status is 1 if a file would change.",
)
@click.option("--stdout", "to_output", is_flag=True, help="Print the programs, and change no file.")
@json_option
def fmt(files: tuple[str, ...], only_check: bool, to_output: bool, as_json: bool) -> int:
    """Format Lashlang programs; - reads stdin and prints.

    Comments and single blank lines stay. A program with syntax errors is left unchanged, and its mistakes are shown.
    """
    status, as_json = 0, _is_json_wanted(as_json)
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
            print_line(f"{'would change' if only_check else 'changed'} {printable(file)}")
    if as_json:
        print_json(report)
    return status


def _surface(app: str | None) -> Surface | None:
    """Return the surface that an app offers to programs: all abilities, its tools and triggers."""
    if app is None:
        return None
    found = load_app(app)

    async def load_surface() -> Surface:
        for tool in found.catalog.tools.values():
            await tool.prepare()
        return Workflows(found).surface()

    return run(load_surface())


def _problems(source: str, surface: Surface | None) -> tuple[Problem, ...]:
    try:
        parsed = parse(source)
        link(parsed, surface or assumed_surface(parsed.program))
    except LashlangError as error:
        return error.errors
    return ()


def _is_json_wanted(as_json: bool) -> bool:
    """Return whether --json was given, before or after the name of the command."""
    before = click.get_current_context().find_root().params
    if before.get("store"):
        raise click.UsageError("--store has no effect on Lashlang programs in files: leave it out.")
    return as_json or bool(before.get("as_json"))


def _sources(files: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for file in files:
        content = sys.stdin.buffer.read() if file == INPUT else Path(file).read_bytes()
        try:
            yield file, content.decode()
        except UnicodeDecodeError as error:
            named = "The input" if file == INPUT else printable(file)
            message = f"{named} is not UTF-8 text (byte {error.start})."
            raise click.UsageError(message) from error


def _json(file: str, problem: Problem) -> dict[str, object]:
    names = ("stage", "kind", "message", "line", "column", "width", "hint")
    return {"file": file} | {name: getattr(problem, name) for name in names}


def _draw(file: str, source: str, problems: tuple[Problem, ...]) -> None:
    """Print problems below the name of their file."""
    for problem in problems:
        message, place, line, carets = map(_escape, show(problem, source).split("\n"))
        print_line(paint(message, "red", bold=True))
        named = "the input" if file == INPUT else printable(file)
        print_line(paint(f"{place} of {named}", "bright_black"))
        print_line(line)
        margin, bar, marks = carets.partition("|")
        print_line(f"{margin}{bar}{paint(marks, 'red')}")
        print_line()


def _escape(line: str) -> str:
    # Tabs are in the line and above the carets alike, so both are shifted equally.
    return printable(line.replace("\t", "    "))
