"""What is kept under the hash of its content, in SQL: captured environments, and attachments."""

from __future__ import annotations

from pylash.stores.operation import Port, Statement, Steps, operation

_PUT = "insert into pylash_envs(ref, body) values (?, ?) on conflict do nothing"

_GET = "select body from pylash_envs where ref = ?"


class SqlEnvs(Port):
    """The environments in SQL."""

    @operation()
    def put(self, ref: str, body: bytes) -> Steps[None]:
        """Keep an environment under its hash."""
        yield from keep_env(ref, body)

    @operation(read_only=True)
    def get(self, ref: str) -> Steps[bytes | None]:
        """Return an environment."""
        rows = (yield Statement(_GET, (ref,))).rows
        return bytes(rows[0][0]) if rows else None


_PUT_BODY = "insert into pylash_attachments(digest, body) values (?, ?) on conflict do nothing"

_GET_BODY = "select body from pylash_attachments where digest = ?"


class SqlAttachments(Port):
    """The attachments in SQL."""

    @operation()
    def put(self, digest: str, body: bytes) -> Steps[None]:
        """Keep bytes under their hash."""
        yield from keep_body(digest, body)

    @operation(read_only=True)
    def get(self, digest: str) -> Steps[bytes | None]:
        """Return the bytes of a hash."""
        rows = (yield Statement(_GET_BODY, (digest,))).rows
        return bytes(rows[0][0]) if rows else None


def keep_env(ref: str, body: bytes) -> Steps[None]:
    """Keep an environment under its hash."""
    yield Statement(_PUT, (ref, body))


def keep_body(digest: str, body: bytes) -> Steps[None]:
    """Keep bytes under their hash."""
    yield Statement(_PUT_BODY, (digest, body))
