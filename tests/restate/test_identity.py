"""An endpoint that accepts the calls of one server only."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylash import ArgumentsInvalid, EndpointUnreachable, Lash
from pylash.restate import RestateHost
from tests.restate.apps import sqlite_url
from tests.restate.ports import LOOPBACK, free_port
from tests.restate.server import RestateServer

OF_ANOTHER = "publickeyv1_w7YHemBctH5Ck2nQRQ47iBBqhNHy4FV7t2Usbye2A6f"


async def test_a_server_without_the_key_cannot_call_the_endpoint(
    restate: RestateServer, tmp_path: Path
) -> None:
    host = RestateHost(
        ingress=restate.ingress,
        admin=restate.admin,
        endpoint=f"http://{LOOPBACK}:{free_port()}",
        identity_keys=[OF_ANOTHER],
    )
    with pytest.raises(EndpointUnreachable, match="401 Unauthorized"):
        async with Lash(sqlite_url(tmp_path), host=host):
            pass


def test_a_key_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentsInvalid, match=r"identity_keys= .* publickeyv1_"):
        RestateHost(ingress="http://a:8080", admin="http://a:9070", identity_keys=["secret"])
