"""Calls of a Restate server: its ingress and its administration."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import httpx

from pylash.values.process_errors import (
    EndpointUnreachable,
    RestateRefused,
    RestateUnavailable,
    RestateUrlInvalid,
)
from pylash.values.secrets import shown_url

TIMEOUT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 5.0
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
UNKNOWN, FAILURE = 404, 500
SHOWN: Final = 300
"""How many characters of an answer are part of an error."""

PROCESS_SERVICE: Final = "LashProcessWorkflow"
TURN_SERVICE: Final = "LashTurnWorkflow"
SERVICES: Final = (PROCESS_SERVICE, TURN_SERVICE)
CODE: Final = "pylash"
"""The field in the metadata of a service that has the version of the code."""

DISCOVERY_FAILED: Final = ("META0003", "META0012", "META0013", "META0014")
"""The codes with which the server says that it cannot read the services of an endpoint."""


_CODES: Final = re.compile(r"^(\[[A-Z]+\d+\] )+")
"""The codes at the beginning of the server's messages."""
_NAME: Final = re.compile(r":([a-z]+)\b")


class BackOff:
    """Pauses after failures in a row: the first is short, and each one is twice as long as the one before."""

    def __init__(self) -> None:
        self.failures = 0

    def seconds(self) -> float:
        """Count a failure; return how long to wait."""
        self.failures += 1
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (self.failures - 1))


class Service(NamedTuple):
    """A service as far as it must be registered again if it changes: its handlers, and the code that defines them."""

    name: str
    handlers: tuple[str, ...]
    code: str

    @staticmethod
    def of(described: dict[str, Any]) -> Service:
        """Return a service in an answer of the server."""
        handlers = sorted(handler["name"] for handler in described["handlers"])
        code = (described.get("metadata") or {}).get(CODE, "")
        return Service(described["name"], tuple(handlers), code)


class RestateClient:
    """Sends runs to a server, rings their bells and registers workers."""

    def __init__(self, ingress: str, admin: str) -> None:
        timeout = httpx.Timeout(TIMEOUT_SECONDS, connect=CONNECT_SECONDS)
        self._ingress = httpx.AsyncClient(base_url=ingress, timeout=timeout)
        self._admin = httpx.AsyncClient(base_url=admin, timeout=timeout)
        # For people: without passwords.
        self.ingress, self.admin = shown_url(ingress), shown_url(admin)

    async def close(self) -> None:
        """Close the connections."""
        await self._ingress.aclose()
        await self._admin.aclose()

    async def check(self) -> str:
        """Return the version of the server; raises RestateUnavailable or RestateUrlInvalid if an address is wrong."""
        version = await self._identify("admin", self._admin, "/version", "version")
        await self._identify("ingress", self._ingress, "/restate/health", "services")
        return str(version)

    async def check_ready(self) -> None:
        """Raise an error unless the server answers, and workers are registered."""
        await self.check()
        if missing := set(SERVICES) - set(await self.deployment_ids()):
            url = shown_url(str(self._admin.base_url))
            raise _refusal(
                url, UNKNOWN, f"no worker is registered for {' and '.join(sorted(missing))}"
            )

    async def _identify(self, option: str, client: httpx.AsyncClient, path: str, field: str) -> Any:
        """Return a field of an answer that only this part of a server gives."""
        url = shown_url(str(client.base_url)).rstrip("/")
        try:
            answer = await self._call(client, "GET", path)
        except RestateRefused as error:
            raise RestateUrlInvalid(
                option, url, f"{path} answers {error.data['status']}"
            ) from error
        if not isinstance(answer, dict) or field not in answer:
            raise RestateUrlInvalid(option, url, f"{path} answers something else")
        return answer[field]

    async def send(self, service: str, key: str, given: dict[str, Any]) -> str | None:
        """Start the workflow of a key, unless it was started before; return its invocation if it was."""
        path = f"/{service}/{quote(key, safe='')}/run/send"
        answer = await self._call(self._ingress, "POST", path, json=given)
        is_known = answer["status"] == "PreviouslyAccepted"
        return str(answer["invocationId"]) if is_known else None

    async def ring(self, bell: str) -> None:
        """Resolve an awakeable; a second time changes nothing."""
        await self._call(self._ingress, "POST", f"/restate/awakeables/{bell}/resolve", json=None)

    async def pause(self, invocation: str) -> None:
        """Pause an invocation after its current attempt."""
        await self._call(self._admin, "PATCH", f"/invocations/{invocation}/pause", allow=(404, 409))

    async def resume(self, invocation: str) -> None:
        """Resume a paused invocation; any other is left alone."""
        path = f"/invocations/{invocation}/resume?deployment=latest"
        await self._call(self._admin, "PATCH", path, allow=(404, 409))

    async def input_of(self, invocation: str) -> dict[str, Any]:
        """Return the input of an invocation; {} if the server has forgotten it."""
        rows = await self.query(
            f"select entry_json from sys_journal where id = '{invocation}' and \"index\" = 0"  # noqa: S608 - its own id
        )
        if not rows:
            return {}
        payload = json.loads(rows[0]["entry_json"])["Command"]["Input"]["payload"]
        given: dict[str, Any] = json.loads(bytes(payload))
        return given

    async def purge(self, invocation: str) -> None:
        """Forget an invocation that has completed, so that its key can be used again."""
        await self._call(self._admin, "PATCH", f"/invocations/{invocation}/purge", allow=(404, 409))

    async def kill(self, invocation: str) -> None:
        """End an invocation without executing it again."""
        await self._call(self._admin, "PATCH", f"/invocations/{invocation}/kill", allow=(404, 409))

    # --- deployments ---

    async def register(self, url: str, own: Sequence[Service]) -> None:
        """Register the services at a URL, so that new runs are executed there.

        Raises EndpointUnreachable if the server cannot reach it.
        """
        answer = await self.deploy(url)
        # The server does not read a known URL again, although other code may be there now, or another URL was
        # registered since.
        is_same = sorted(map(Service.of, answer["services"])) == sorted(own)
        if not is_same or set((await self.deployment_ids()).values()) != {answer["id"]}:
            await self.deploy(url, force=True)

    async def deploy(
        self, url: str, *, force: bool = False, dry_run: bool = False
    ) -> dict[str, Any]:
        """Register a URL, and read its services if it is new or ``force`` is set; ``dry_run`` only reads them."""
        body = {"uri": url, "force": force or dry_run, "dry_run": dry_run}
        try:
            answer: dict[str, Any] = await self._call(
                self._admin, "POST", "/deployments", json=body
            )
        except RestateRefused as error:
            if error.data["code"] in DISCOVERY_FAILED:
                reason = error.data["reason"]
                raise EndpointUnreachable(url, self.admin, reason, data=error.data) from error
            raise
        return answer

    async def deployment_ids(self) -> dict[str, str]:
        """Return the deployment that new runs of each of our services are sent to, of those that are registered."""
        services = [
            await self._call(self._admin, "GET", f"/services/{name}", allow=(404,))
            for name in SERVICES
        ]
        return {one["name"]: one["deployment_id"] for one in services if one}

    async def deployments(self) -> list[dict[str, Any]]:
        """Return all deployments."""
        found: list[dict[str, Any]] = (await self._call(self._admin, "GET", "/deployments"))[
            "deployments"
        ]
        return found

    async def query(self, sql: str, **values: str | int) -> list[dict[str, Any]]:
        """Return the rows of a query of the server's tables; ``:name`` in it is replaced by the value of that name."""
        sql = _NAME.sub(lambda found: _literal(values[found[1]]), sql)
        headers = {"accept": "application/json"}
        answer = await self._call(
            self._admin, "POST", "/query", json={"query": sql}, headers=headers
        )
        rows: list[dict[str, Any]] = answer["rows"]
        return rows

    async def _call(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        *,
        allow: tuple[int, ...] = (),
        **options: Any,
    ) -> Any:
        """Return the JSON that the server answers; {} for nothing, and for a status that is allowed."""
        url = shown_url(str(client.base_url)).rstrip("/")
        try:
            # The timeouts of httpx are for each read, and this one is for all of them.
            async with asyncio.timeout(TIMEOUT_SECONDS):
                answer = await client.request(method, path, **options)
        except TimeoutError as error:
            raise RestateUnavailable(url, f"no answer in {TIMEOUT_SECONDS:.0f} s") from error
        except httpx.HTTPError as error:
            raise RestateUnavailable(url, str(error) or type(error).__name__) from error
        if answer.is_success:
            try:
                return answer.json() if answer.content else {}
            except ValueError:
                return {}
        if answer.status_code in allow:
            return {}
        raise _refusal_in(f"{url}{path}", answer)


def _literal(value: str | int) -> str:
    """Return a value in the language of the server, which has no parameters of queries."""
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _refusal(url: str, status: int, reason: str, code: str | None = None) -> RestateRefused:
    # Another call of the same kind would be refused too if the server fails, or does not know our services.
    is_general = status >= FAILURE or status == UNKNOWN
    data = {"status": status, "reason": reason, "code": code, "is_general": is_general}
    return RestateRefused(url, status, reason, data=data)


def _refusal_in(url: str, answer: httpx.Response) -> RestateRefused:
    """Return the refusal in an answer of the server."""
    try:
        said = answer.json()
    except ValueError:
        said = None
    if not isinstance(said, dict):
        said = {"message": answer.text}
    message = _CODES.sub("", str(said.get("message", ""))).strip()[:SHOWN]
    code = said.get("restate_code")
    return _refusal(url, answer.status_code, message or answer.reason_phrase, code)


def check_url(option: str, url: Any) -> str:
    """Return the address of a server, or raise RestateUrlInvalid."""
    if not isinstance(url, str):
        raise RestateUrlInvalid(option, url, "it is not a text")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise RestateUrlInvalid(option, url, str(error)) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise RestateUrlInvalid(option, url, "it does not begin with http://HOST or https://HOST")
    return url
