"""``pylash doctor``: checks a store and its surroundings, with advice."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Any, Final

import click

from pylash import __version__
from pylash.cli.output import STATUS_COLOURS, paint, print_json, print_line, wrapped
from pylash.cli.store_options import StoreOptions, run, with_store_options
from pylash.durable.waits import Signer
from pylash.engine.system import SystemClock, system_entropy
from pylash.stores.health import Finding, examine
from pylash.values.errors import SecretInvalid
from pylash.values.texts import cells, printable

MARKS: Final = {"ok": "✔", "warn": "!", "fail": "✗"}


@click.command()
@with_store_options
def doctor(options: StoreOptions) -> int:
    """Check the store and its surroundings; nothing is changed.

    Versions, schema, permissions, secrets, clocks, effects of a connection pooler, workers, and blocked
    runs. The status is 1 if a check fails; warnings leave it at 0.
    """
    checks = examine(options.url, clock=SystemClock(), entropy=system_entropy)
    findings = [_versions(options.url), _secret(options.secret), *run(checks)]
    if options.as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        _draw(findings)
    return int(any(finding.status == "fail" for finding in findings))


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
