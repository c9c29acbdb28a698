"""Loopback ports that stay free while nothing listens on them."""

from __future__ import annotations

import itertools
import os
import socket

LOOPBACK = "127.0.0.1"

# Below the ports that the kernel gives to outgoing connections (32768 and up): one of those could take the
# port of a server that is killed and restarted, and a client that retries could connect to itself.
FIRST, COUNT = 10_000, 20_000

# Processes that run tests at the same time begin at different ports.
_offsets = itertools.count(os.getpid() * 64)

# Held until the process ends.
_reserved: list[socket.socket] = []


def free_port() -> int:
    """Return a port on which nothing listens."""
    for offset in itertools.islice(_offsets, COUNT):
        port = FIRST + offset % COUNT
        try:
            listen(port).close()
        except OSError:
            continue
        return port
    raise OSError(f"No port from {FIRST} to {FIRST + COUNT - 1} is free.")


def reserved_port() -> int:
    """Return a port for endpoints, which no other process gets while nothing listens on it."""
    port = free_port()
    holder = socket.socket()
    # Only sockets with the same option may have the port besides, as those of endpoints.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((LOOPBACK, port))
    _reserved.append(holder)
    return port


def listen(port: int) -> socket.socket:
    """Return a socket that accepts connections on a port."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener
