"""Exports of processes and sessions to files, and imports from them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from pylash.durable.exports import (
    Export,
    ExportedEffect,
    read_export,
    signed_again,
    without_secrets,
    without_values,
)
from pylash.durable.processes import REGISTRATIONS, split_carrier
from pylash.durable.runs import MOVES
from pylash.durable.stores import Store
from pylash.durable.waits import Signer
from pylash.engine.runner_parts import Engine, collect
from pylash.stores.store import SqlStore
from pylash.values.canonical import write
from pylash.values.process_errors import (
    AppNeeded,
    ExportInvalid,
    ImportWithoutSecrets,
    NotSupported,
)
from pylash.values.secrets import environment_secrets, hide_secrets

PRIVATE: Final = 0o600
"""The mode of an exported file: it has everything that a process was given and did."""


async def export(
    store: Store,
    *,
    process_id: str | None = None,
    session_id: str | None = None,
    children: bool = False,
    redact: bool = False,
    keep_secrets: bool = False,
    engine: object = None,
) -> Export:
    """Return a process or a session as a document. ``engine``: the one that has the records of its own processes, if any."""
    read = partial(_exports_of(store).exports.read, process_id, session_id, children=children)
    found = await read()
    if await _collect_all(store, found, engine):
        found = await read()
    if redact:
        return without_values(found)
    if keep_secrets:
        return found
    secrets = tuple(environment_secrets(os.environ))
    return without_secrets(found, partial(hide_secrets, secrets=secrets))


async def _collect_all(store: Store, found: Export, engine: object) -> bool:
    """Add what other engines have recorded for the runs of an export to the store; return whether there are such runs."""
    for session in found.sessions:
        for turn in session.turns:
            if turn.settled is None and split_carrier(turn.target)[0]:
                what = f"An export of {session.id!r}, whose turn {turn.id!r} is on another engine than its store,"
                raise NotSupported(what, "wait until the turn has ended")
    carried = [one for one in found.processes if split_carrier(one.target)[0]]
    for process in carried:
        record = await store.processes.get(process.id)
        if record is None:
            continue
        if not isinstance(engine, Engine) or record.registration.carrier != engine.engine:
            raise AppNeeded(process.id, record.registration.carrier)
        await collect(engine, store, record)
    return bool(carried)


async def write_export(path: str | Path, exporting: Awaitable[Export]) -> None:
    """Write a process or a session to a file that only its owner may read."""
    found = await exporting
    await asyncio.to_thread(_write, Path(path), found.to_json())


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
    with open(descriptor, "wb") as file:
        file.write(data)


async def import_file(
    store: Store,
    signer: Signer,
    path: str | Path,
    *,
    kind: Literal["process", "session"] | None = None,
    for_replay: bool = False,
    engine: object = None,
    now: int = 0,
) -> Export:
    """Add the processes and sessions of a file to a store, all or nothing; return the document.

    ``engine``: the one that continues them from ``now`` on, if it is not a worker of the store.
    ``for_replay``: the runs are replayed and not continued, so that they may lack secrets, and what they wait for.
    """
    name = os.fspath(path)
    try:
        data = await asyncio.to_thread(Path(path).read_bytes)
    except OSError as error:
        raise ExportInvalid(
            name, f"it cannot be read ({error.strerror}): check the path"
        ) from error
    found = read_export(data, name)
    if kind is not None and found.kind != kind:
        raise ExportInvalid(
            name,
            f"it is the export of a {found.kind}, not of a {kind}: use app.import_{found.kind}",
        )
    if found.hidden and not for_replay:
        raise ImportWithoutSecrets(name, found.hidden)
    signed = read_export(signed_again(data, found, signer), name)
    carrier = engine.engine if isinstance(engine, Engine) else ""
    await _exports_of(store).exports.write(_carried_by(carrier, signed, now), partial=for_replay)
    return found


def _carried_by(carrier: str, export: Export, now: int) -> Export:
    """Return an export whose processes an engine continues; of turns it continues none that have begun.

    The engine may know a process by its id, from before it was exported. So it gets a new number there.
    """
    number = ExportedEffect(
        key=MOVES, kind="now", hash="", started=0, outcome=msgspec.Raw(str(now).encode())
    )
    for session in export.sessions:
        for turn in session.turns:
            if carrier and turn.settled is None and turn.effects:
                what = f"The import of {session.id!r}, whose turn {turn.id!r} has begun, for another engine than its store"
                raise NotSupported(what, "import it with an app without host=")
    processes = []
    for process in export.processes:
        given = REGISTRATIONS.decode(bytes(process.registration))
        registration = replace(given, carrier=carrier)
        data = msgspec.Raw(write(registration))
        effects = tuple(one for one in process.effects if one.key != MOVES)
        if carrier and process.settled is None:
            effects = (*effects, number)
        changes = {"registration": data, "target": registration.target, "effects": effects}
        processes.append(replace(process, **changes))
    return replace(export, processes=tuple(processes))


def _exports_of(store: Store) -> SqlStore:
    if not isinstance(store, SqlStore):
        raise NotSupported("An export from this store", "use a sqlite:/// or postgresql:// store")
    return store
