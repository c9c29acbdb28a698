"""Bodies that are stored under the hash of their content: captured environments, and attachments."""

from __future__ import annotations

from pylash.stores.operation import Driver, Port, Statement, Steps, operation

PUT_ENV = "insert into pylash_envs(ref, body) values (?, ?) on conflict do nothing"

GET_ENV = "select body from pylash_envs where ref = ?"

PUT_ATTACHMENT = "insert into pylash_attachments(digest, body) values (?, ?) on conflict do nothing"

GET_ATTACHMENT = "select body from pylash_attachments where digest = ?"


class SqlContents(Port):
    """The bodies of one table; ``put`` and ``get`` are its statements."""

    def __init__(self, driver: Driver, put: str, get: str) -> None:
        super().__init__(driver)
        self._put = put
        self._get = get

    @operation()
    def put(self, ref: str, body: bytes) -> Steps[None]:
        """Store a body under its hash."""
        yield Statement(self._put, (ref, body))

    @operation(read_only=True)
    def get(self, ref: str) -> Steps[bytes | None]:
        """Return the body of a hash."""
        rows = (yield Statement(self._get, (ref,))).rows
        return bytes(rows[0][0]) if rows else None
