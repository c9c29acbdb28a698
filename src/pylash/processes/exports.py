"""Exports of processes and sessions to files, and imports from them."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Final, Literal

from pylash.durable.exports import (
    Export,
    read_export,
    signed_again,
    without_secrets,
    without_values,
)
from pylash.durable.stores import Store
from pylash.durable.waits import Signer
from pylash.stores.store import SqlStore
from pylash.values.process_errors import ExportInvalid, ImportWithoutSecrets, NotSupported
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
) -> Export:
    """Return a process or a session as a document."""
    found = await _exports_of(store).exports.read(process_id, session_id, children=children)
    if redact:
        return without_values(found)
    if keep_secrets:
        return found
    secrets = tuple(environment_secrets(os.environ))
    return without_secrets(found, partial(hide_secrets, secrets=secrets))


async def export_to_file(
    store: Store,
    path: str | Path,
    *,
    process_id: str | None = None,
    session_id: str | None = None,
    children: bool = False,
    redact: bool = False,
    keep_secrets: bool = False,
) -> None:
    """Write a process or a session to a file that only its owner may read."""
    found = await export(
        store,
        process_id=process_id,
        session_id=session_id,
        children=children,
        redact=redact,
        keep_secrets=keep_secrets,
    )
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
) -> Export:
    """Add the processes and sessions of a file to a store, all or nothing; return the document.

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
    await _exports_of(store).exports.write(signed, partial=for_replay)
    return found


def _exports_of(store: Store) -> SqlStore:
    if not isinstance(store, SqlStore):
        raise NotSupported("An export from this store", "use a sqlite:/// or postgresql:// store")
    return store
