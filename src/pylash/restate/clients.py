"""Calls of a Restate server: its ingress and its administration."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import httpx

from pylash.values.process_errors import RestateUnavailable

TIMEOUT_SECONDS: Final = 30.0

PROCESS_SERVICE: Final = "LashProcessWorkflow"
TURN_SERVICE: Final = "LashTurnWorkflow"


class RestateClient:
    """Sends runs to a server, rings their bells and registers workers."""

    def __init__(self, ingress: str, admin: str) -> None:
        self._ingress = httpx.AsyncClient(base_url=ingress, timeout=TIMEOUT_SECONDS)
        self._admin = httpx.AsyncClient(base_url=admin, timeout=TIMEOUT_SECONDS)

    async def close(self) -> None:
        """Close the connections."""
        await self._ingress.aclose()
        await self._admin.aclose()

    async def send(self, service: str, key: str, run: int) -> str | None:
        """Start the workflow of a key, unless it was started before; return its invocation if it was."""
        path = f"/{service}/{quote(key, safe='')}/run/send"
        answer = await self._call(self._ingress, "POST", path, json={"run": run})
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

    async def kill(self, invocation: str) -> None:
        """End an invocation without executing it again."""
        await self._call(self._admin, "PATCH", f"/invocations/{invocation}/kill", allow=(404, 409))

    async def register(self, url: str) -> None:
        """Register the services at a URL, so that new runs are executed there."""
        answer = await self._call(self._admin, "POST", "/deployments", json={"uri": url})
        # The server does not discover a known URL again, although other code may be there now, or another URL was
        # registered since.
        for name in (PROCESS_SERVICE, TURN_SERVICE):
            known = await self._call(self._admin, "GET", f"/services/{name}", allow=(404,))
            if known.get("deployment_id") != answer["id"]:
                body = {"uri": url, "force": True}
                await self._call(self._admin, "POST", "/deployments", json=body)
                return

    async def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query of the server's tables."""
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
        try:
            answer = await client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise RestateUnavailable(
                str(client.base_url), str(error) or type(error).__name__
            ) from error
        if answer.is_error and answer.status_code not in allow:
            raise RestateUnavailable(str(answer.url), f"{answer.status_code} {answer.text[:300]}")
        return answer.json() if answer.content and not answer.is_error else {}
