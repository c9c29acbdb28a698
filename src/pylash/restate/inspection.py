"""What a server knows about the runs of a store, for people: the effects of a run, and health checks.

Rule 1. Nothing is changed, except that a server which is asked for its deployments may call them.
Rule 2. A value that is large is not read: only its times are shown.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from pylash.durable.keys import PATCHED, patch_of
from pylash.durable.runs import SECOND, EngineRun, JournalEntry, RunState
from pylash.restate.clients import PROCESS_SERVICE, SERVICES, TURN_SERVICE, RestateClient
from pylash.restate.courier import process_of, service_and_key, without_epoch
from pylash.values.canonical import encode
from pylash.values.errors import LashError
from pylash.values.findings import Finding
from pylash.values.process_errors import EndpointUnreachable

PAGE: Final = 500
"""How many entries are read at a time: their results may be large."""
LARGEST: Final = 64 * 1024
"""The size in bytes of the largest result that is read."""
MILLISECOND: Final = SECOND // 1000
COMPARED: Final = 10_000
"""How many open runs are compared at most."""
NAMED, SHOWN = 3, 300
START: Final = "pylash worker MODULE:APP --restate"

INVOCATION: Final = """
select id from sys_invocation where target_service_name = :service and target_service_key = :key"""

JOURNAL: Final = """
select entry_type, name, appended_at,
       case when raw_length > :largest then entry_lite_json else entry_json end as entry
from sys_journal where id = :id and "index" >= :first and "index" < :end order by "index\""""

OPEN: Final = """
select target_service_name, target_service_key, status, pinned_deployment_id, last_failure from sys_invocation
where target_service_name in (:process, :turn) and status <> 'completed' order by created_at limit :limit"""

PATCHES: Final = """
select i.target_service_key as key, j.name from sys_journal j join sys_invocation i on i.id = j.id
where i.target_service_name = :process and i.status <> 'completed' and j.entry_type = 'Command: Run'
  and strpos(j.name, :mark) > 0"""

# --- the effects of a run ---


async def recorded_effects(client: RestateClient, service: str, key: str) -> list[JournalEntry]:
    """Return the effects that the server has recorded for the workflow of a key, in the order in which they started."""
    found = await client.query(INVOCATION, service=service, key=key)
    rows: list[dict[str, Any]] = []
    while found:
        page = await client.query(
            JOURNAL, id=found[0]["id"], largest=LARGEST, first=len(rows), end=len(rows) + PAGE
        )
        rows += page
        if len(page) < PAGE:
            break
    return list(_entries(rows).values())


def _entries(rows: Iterable[dict[str, Any]]) -> dict[str, JournalEntry]:
    """Return the effects in the rows of a journal, by key. A wait has several entries of the same name: it is one effect."""
    entries: dict[str, JournalEntry] = {}
    # The keys of the commands that are not completed yet, by the number of their completion.
    keys: dict[int, str] = {}
    for row in rows:
        what, at = json.loads(row["entry"]), _micros(row["appended_at"])
        match row["entry_type"]:
            case "Command: Run" if not _is_internal(name := row.get("name") or ""):
                keys[what["Command"]["Run"]["completion_id"]] = name
                entries.setdefault(name, JournalEntry(name, "", b"", started=at))
            case "Command: Sleep" if not _is_internal(name := row.get("name") or ""):
                due = what["Command"]["Sleep"]["wake_up_time"] * MILLISECOND
                key = name.rpartition(" ")[0] or name  # the name also has the hash of the command
                entries[key] = JournalEntry(key, "sleep", b"", due=due, started=at)
            case "Notification: Run":
                number, result = _completion(what["Notification"])
                if (completed := keys.pop(number, None)) is not None:
                    entries[completed] = _ended(entries[completed], at, result)
    return entries


def _is_internal(name: str) -> bool:
    """Return whether an entry is the engine's own, or a mark of a patch, and not an effect."""
    return name.startswith("!")


def _completion(notification: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the number of a completion, and its result as far as it was read."""
    if "Completion" not in notification:  # of a large one, only this much is read
        return notification["id"]["CompletionId"], {}
    run = notification["Completion"]["Run"]
    try:
        result = json.loads(bytes(run["result"]["Success"]))
    except (KeyError, ValueError):
        result = {}
    return run["completion_id"], result if isinstance(result, dict) else {}


def _ended(entry: JournalEntry, at: int, result: dict[str, Any]) -> JournalEntry:
    """Return an entry with its result."""
    outcome = encode(result.get("outcome"))
    inner = (result.get("outcome") or {}).get("outcome") or {}
    return JournalEntry(
        entry.key,
        result.get("kind") or inner.get("kind") or "step",
        b"",
        b64decode(result["command"]) if result.get("command") else None,
        outcome,
        len(outcome),
        started=entry.started,
        ended=at,
        label=result.get("label"),
    )


def _micros(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * SECOND)


async def recorded_patches(client: RestateClient) -> dict[str, set[str]]:
    """Return the patches that the open processes have recorded, by the ids of the processes."""
    found: dict[str, set[str]] = {}
    for row in await client.query(PATCHES, process=PROCESS_SERVICE, mark=PATCHED):
        if (patch := patch_of(row["name"])) is not None:
            found.setdefault(process_of(row["key"]), set()).add(patch)
    return found


# --- health ---


async def examine(
    client: RestateClient, endpoint: str | None, runs: Sequence[EngineRun]
) -> list[Finding]:
    """Check both directions between a server and its workers, and compare what it knows with the runs of the store."""
    try:
        version = await client.check()
    except LashError as error:
        return [Finding("restate", "fail", error.message)]
    text = f"Restate {version} answers at {client.ingress} and {client.admin}"
    findings = [Finding("restate", "ok", text)]
    try:
        known = await _invocations(client)
        findings.append(await _registration(client, endpoint))
        findings += await _workers(client, known)
        findings += [
            _statuses(known),
            _unknown_runs(known, runs),
            _unknown_invocations(known, runs),
        ]
    except LashError as error:
        findings.append(Finding("restate", "fail", error.message))
    return findings


class Invocation(NamedTuple):
    """A run of ours that the server has not ended."""

    service: str
    key: str
    status: str
    deployment: str | None
    failure: str | None


async def _invocations(client: RestateClient) -> list[Invocation]:
    rows = await client.query(OPEN, process=PROCESS_SERVICE, turn=TURN_SERVICE, limit=COMPARED)
    return [
        Invocation(
            row["target_service_name"],
            without_epoch(row["target_service_key"]),
            row["status"],
            row.get("pinned_deployment_id"),
            row.get("last_failure"),
        )
        for row in rows
    ]


async def _registration(client: RestateClient, endpoint: str | None) -> Finding:
    """Check that the services of an app are registered, and at its endpoint."""
    name, registered = "registered", await client.deployment_ids()
    if len(registered) < len(SERVICES):
        return Finding(name, "fail", "no worker is registered, so no run begins", START)
    urls = {one["id"]: one.get("uri", "?") for one in await client.deployments()}
    shown = sorted({urls.get(one, one) for one in registered.values()})
    text = f"new runs are sent to {' and '.join(shown)}"
    if endpoint is not None and [endpoint.rstrip("/")] != [one.rstrip("/") for one in shown]:
        advice = f"start a worker there if they belong to this app: its endpoint is {endpoint}"
        return Finding(name, "warn", text, advice)
    return Finding(name, "ok", text)


async def _workers(client: RestateClient, known: Sequence[Invocation]) -> list[Finding]:
    """Check that the server reaches each deployment that has runs, or gets new ones."""
    current = set((await client.deployment_ids()).values())
    used = Counter(one.deployment for one in known if one.deployment is not None)
    findings = []
    for deployment in await client.deployments():
        number, url = used[deployment["id"]], deployment.get("uri")
        if url is None or (not number and deployment["id"] not in current):
            continue
        has = f"{number} run{'' if number == 1 else 's'} that ha{'s' if number == 1 else 've'} not ended"
        try:
            await client.deploy(url, dry_run=True)
        except EndpointUnreachable as error:
            advice = f"{START} --endpoint {url}"
            text = f"Restate cannot reach {url}, which has {has}: {error.data['reason']}"
            findings.append(Finding("worker", "fail", text, advice))
        else:
            findings.append(Finding("worker", "ok", f"Restate reaches {url}, which has {has}"))
    return findings


def _statuses(known: Sequence[Invocation]) -> Finding:
    """Count the invocations by their status, and name the failures of those that are repeated."""
    counted = Counter(one.status for one in known)
    text = ", ".join(f"{number} {status}" for status, number in sorted(counted.items()))
    failing = [one for one in known if one.status == "backing-off"]
    if not failing:
        return Finding("invocations", "ok", text or "none is open")
    first = failing[0]
    reason = f"{first.key} fails and is tried again: {first.failure}"
    return Finding("invocations", "warn", text, reason[:SHOWN])


def _unknown_runs(known: Sequence[Invocation], runs: Sequence[EngineRun]) -> Finding:
    """Find runs that wait for the server, and which it does not execute."""
    keys = {(one.service, one.key) for one in known}
    # One that is queued may not have been sent yet: the courier does that again.
    lost = [
        one.scope.id
        for one in runs
        if one.state in (RunState.RUNNING, RunState.WAITING, RunState.BLOCKED)
        and service_and_key(one.scope) not in keys
    ]
    if not lost:
        return Finding("runs", "ok", f"Restate knows all {len(runs)} open runs of the store")
    text = f"Restate does not know {_named(lost)}: was its data lost, or is this another server?"
    return Finding(
        "runs", "warn", text, "pylash cancel ID --force ends a process; then start it again"
    )


def _unknown_invocations(known: Sequence[Invocation], runs: Sequence[EngineRun]) -> Finding:
    """Find invocations of runs that are not open in the store."""
    keys = {service_and_key(one.scope) for one in runs}
    others = [one.key for one in known if (one.service, one.key) not in keys]
    if not others:
        return Finding("others", "ok", "every open run of Restate is one of the store")
    text = (
        f"the store has no open run for {_named(others)}: is another store used with this server?"
    )
    return Finding("others", "warn", text, "give each store a server of its own")


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
