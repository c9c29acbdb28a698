"""``pylash doctor``: checks a store and its surroundings, with advice."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final

import click

from pylash import __version__
from pylash.cli.options import json_option, store_option
from pylash.cli.output import STATUS_COLOURS, paint, print_json, print_line, wrapped
from pylash.cli.store_options import (
    StoreOptions,
    choose_store,
    engine_of,
    load_app,
    root_options,
    run,
)
from pylash.cli.views.code_report import (
    StoredWork,
    describe_code,
    print_code,
    read_work,
    report_code,
)
from pylash.durable.waits import Signer
from pylash.engine.runner_parts import Engine
from pylash.engine.system import SystemClock, system_entropy
from pylash.stores.health import examine
from pylash.values.errors import SecretInvalid
from pylash.values.findings import Finding
from pylash.values.texts import cells, printable

COMPARED: Final = 10_000
"""How many open runs are compared with what their engine knows."""
MARKS: Final = {"ok": "✔", "warn": "!", "fail": "✗"}


@click.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@store_option
@json_option
def doctor(app: str | None, store: str | None, as_json: bool) -> int:
    """Check the store and its surroundings; nothing is changed.

    Versions, schema, permissions, secrets, clocks, effects of a connection pooler, workers, and blocked
    runs. The status is 1 if a check fails; warnings leave it at 0.

    With MODULE:APP, such as shop:app or ./shop.py:app, the code of an app is compared with the live runs too: which
    versions of its processes still have any, and how many runs lack each patch. The app's own store is used unless
    another is given. If the app runs on Restate, its server is checked too: whether each reaches the other, where new runs
    are sent, how many there are of each status, and which runs only the store or only the server knows.

    \b
      pylash doctor --store postgresql://…
      pylash doctor shop:app --json
    """
    given, as_json = root_options(store, as_json)
    chosen = None if app is None else load_app(app)
    options = StoreOptions(given if chosen is None else choose_store(chosen, given), as_json)
    if chosen is not None:
        options.secret = chosen.secret
    checks = examine(options.url, clock=SystemClock(), entropy=system_entropy)
    findings = [_versions(options.url), _secret(options.secret), *run(checks)]
    engine = None if chosen is None else engine_of(chosen)
    if engine is not None:
        findings += run(_examine_engine(options, engine, _has_failed(findings)))
    has_failed = _has_failed(findings)
    # A store that fails a check may not be readable; its failure is what to report then.
    code = (
        None
        if chosen is None or has_failed
        else report_code(chosen, run(_read_work(options, engine)))
    )
    if options.as_json:
        described = [finding._asdict() for finding in findings]
        nothing: dict[str, Any] = dict.fromkeys(("processes", "patches", "computed", "unread"))
        compared = nothing if code is None else describe_code(code)
        print_json(described if chosen is None else {"findings": described, **compared})
    else:
        _draw(findings)
        if code is not None:
            print_code(code)
        elif chosen is not None:
            print_line("\nThe code was not compared with the live runs, because a check failed.")
    return int(has_failed)


def _has_failed(findings: Sequence[Finding]) -> bool:
    return any(finding.status == "fail" for finding in findings)


async def _examine_engine(
    options: StoreOptions, engine: Engine, is_store_unreadable: bool
) -> list[Finding]:
    """Check the engine of the app; without its runs if the store fails a check, because it may not be readable."""
    if is_store_unreadable:
        return await engine.examine([])
    async with options.open_store() as (_, store):
        runs = await store.inspection.of_engine(engine.engine, COMPARED)
    return await engine.examine(runs)


async def _read_work(options: StoreOptions, engine: Engine | None) -> StoredWork:
    async with options.open_store() as (_, store):
        return await read_work(store, engine)


def _versions(url: str) -> Finding:
    names = ["msgspec", "pydantic", *(["asyncpg"] if url.startswith("postgres") else [])]
    python = ".".join(map(str, sys.version_info[:3]))
    others = ", ".join(f"{name} {_version(name)}" for name in names)
    return Finding("versions", "ok", f"pylash {__version__}, Python {python}, {others}")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def _secret(given: Any) -> Finding:
    """Check the secret that signs the keys of waits."""
    found = given or os.environ.get("PYLASH_SECRET")
    if not found:
        return Finding("secret", "ok", "the store's own secret signs the keys of waits")
    first = found[0] if isinstance(found, list | tuple) else found
    try:
        Signer([first.encode() if isinstance(first, str) else first])
    except SecretInvalid as error:
        return Finding("secret", "fail", error.message)
    source = "the app's secret" if given else "PYLASH_SECRET"
    return Finding("secret", "ok", f"{source} signs the keys of waits")


def _draw(findings: list[Finding]) -> None:
    longest = max(cells(finding.name) for finding in findings)
    for name, status, text, advice in findings:
        mark = paint(MARKS[status], STATUS_COLOURS[status], bold=True)
        shown = wrapped(printable(text), longest + 9)
        print_line(
            f"{mark} {paint(f'{status:4}', STATUS_COLOURS[status])}  {name:{longest}} {shown}"
        )
        if advice is not None:
            print_line(f"{'':{longest + 9}}→ {wrapped(printable(advice), longest + 11)}")
