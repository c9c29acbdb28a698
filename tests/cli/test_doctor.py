"""The doctor: its findings on healthy and on damaged stores."""

from __future__ import annotations

import asyncio
import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pylash.engine.system import SystemClock, system_entropy
from pylash.stores import health, postgres_health
from pylash.stores.health import examine
from pylash.stores.migrations import SCHEMA
from tests.cli.conftest import Call, ask, filled
from tests.stores.test_migrations import next_schema


def found(pylash: Call) -> dict[str, dict[str, Any]]:
    done = pylash("doctor", "--json")
    findings = json.loads(done.stdout)
    assert done.exit_code == int(any(one["status"] == "fail" for one in findings))
    return {one["name"]: one for one in findings}


def test_a_healthy_store_has_no_failures(place: str, pylash: Call) -> None:
    filled(place)
    findings = found(pylash)
    assert {one["status"] for one in findings.values()} <= {"ok", "warn"}
    assert findings["workers"]["text"] == "none is alive"
    expected = {
        "versions",
        "secret",
        "store",
        "permissions",
        "schema",
        "workers",
        "blocked",
        "clock",
    }
    assert expected <= set(findings)
    if place.startswith("postgres"):
        assert {"pooling", "clock skew", "durability", "role", "settings"} <= set(findings)
        assert findings["pooling"]["status"] == "ok"
    text = pylash("doctor").stdout
    assert "✔ ok    schema" in text
    assert "→ start one: pylash worker MODULE:APP" in text


def test_a_file_that_others_may_read_is_a_warning(file: str, pylash: Call) -> None:
    filled(file)
    path = Path(file.removeprefix("sqlite:///"))
    path.chmod(0o644)
    assert found(pylash)["secrecy"]["status"] == "warn"
    path.chmod(0o600)
    assert found(pylash)["secrecy"]["status"] == "ok"
    folder = Path(f"{path}-workers")
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    assert found(pylash)["secrecy"]["advice"] == f"chmod go-rwx {folder}"
    folder.chmod(0o700)
    assert found(pylash)["secrecy"]["status"] == "ok"


def test_a_store_that_is_not_there_fails_and_is_not_made(file: str, pylash: Call) -> None:
    assert found(pylash)["store"]["status"] == "fail"
    assert not Path(file.removeprefix("sqlite:///")).exists()


def test_an_empty_file_or_server_fails_with_what_to_do(place: str, pylash: Call) -> None:
    if place.startswith("sqlite"):
        Path(place.removeprefix("sqlite:///")).touch()
        assert "holds nothing of pylash" in found(pylash)["store"]["text"]
    else:
        assert found(pylash)["schema"]["advice"] == "run pylash migrate"


def test_an_older_schema_fails(file: str, pylash: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(file)
    next_schema(monkeypatch)
    monkeypatch.setattr(health, "SCHEMA", SCHEMA + 1)
    assert found(pylash)["schema"] == {
        "name": "schema",
        "status": "fail",
        "text": f"schema {SCHEMA}, and this pylash needs {SCHEMA + 1}",
        "advice": "run pylash migrate",
    }


def test_a_short_secret_fails(file: str, pylash: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(file)
    monkeypatch.setenv("PYLASH_SECRET", "short")
    assert found(pylash)["secret"]["status"] == "fail"
    monkeypatch.setenv("PYLASH_SECRET", "long enough to be a secret")
    assert found(pylash)["secret"]["text"] == "PYLASH_SECRET signs the keys of waits"


class Everything:
    """Stands for the kinds of file systems, as if the local one were on the network."""

    def __contains__(self, _: object) -> bool:
        return True


def test_a_network_file_system_fails(
    file: str, pylash: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(file)
    assert "nfs4" in health.NETWORK
    monkeypatch.setattr(health, "NETWORK", Everything())
    assert found(pylash)["file system"]["status"] == "fail"


def test_a_server_that_is_away_fails(pylash: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLASH_STORE", "postgresql://nobody:word@127.0.0.1:1/x")
    findings = found(pylash)
    assert "cannot be reached" in findings["store"]["text"]
    assert "word" not in json.dumps(findings)


class Swallower:
    """A proxy before PostgreSQL that swallows notifications, as some poolers do."""

    def __init__(self, server: Path, folder: Path) -> None:
        self._server = server
        self._folder = folder

    async def serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        reader, requests = await asyncio.open_unix_connection(self._server / ".s.PGSQL.5432")
        with suppress(ConnectionError, asyncio.IncompleteReadError, ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(client, requests))
                group.create_task(self._answers(reader, answers))
        requests.close()
        answers.close()

    async def _requests(self, client: asyncio.StreamReader, requests: asyncio.StreamWriter) -> None:
        while data := await client.read(65536):
            requests.write(data)
        requests.write_eof()

    async def _answers(self, reader: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        if await reader.read(0) == b"" and reader.at_eof():
            return
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)
            if head[:1] != b"A":
                answers.write(head + body)

    async def examine(self, url: str) -> Any:
        listener = await asyncio.start_unix_server(self.serve, self._folder / ".s.PGSQL.5432")
        async with listener:
            return await examine(url, clock=SystemClock(), entropy=system_entropy)


def test_a_pooler_that_swallows_notifications_fails(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_health, "NOTIFY_SECONDS", 0.2)
    server = Path(postgres.partition("host=")[2])
    url = postgres.replace(str(server), str(tmp_path))
    findings = asyncio.run(Swallower(server, tmp_path).examine(url))
    pooling = next(one for one in findings if one.name == "pooling")
    assert pooling.status == "fail"
    assert "notifications do not arrive" in pooling.text


def test_blocked_and_overdue_runs_are_listed(
    file: str, pylash: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(file)
    pylash("cancel", "chat-42")  # it is ready now, and nobody is there to end it
    backlog = found(pylash)["backlog"]
    assert backlog["status"] == "warn"
    assert backlog["text"] == "1 run is ready, and no live worker has its code"
    monkeypatch.setattr(health, "OVERDUE_SECONDS", 0)
    findings = found(pylash)
    assert findings["blocked"]["text"] == "chat-42/refund-7 (unknown_target)"
    assert findings["backlog"]["status"] == "warn"
    assert len(ask(pylash, "ps", "--status", "blocked")) == 1
