"""Coordination of processes on the same SQLite file: locks of workers, and pokes (change notifications).

Rule 1. A lock is an ``flock`` on the worker's own file: the kernel releases it when the process
        ends, however it ends.
Rule 2. A poke is a hint. A process increments its counter in a shared file after commits that publish a
        topic; another process that sees the change reads the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Final

from pylash.durable.runs import WorkerId
from pylash.stores.drivers.private_files import open_private_file, open_private_folder
from pylash.values.errors import StoreBusy

COUNTERS: Final = 512
"""Two processes with the same counter miss each other's pokes, and find changes by polling only."""

POLL_SECONDS: Final = 0.025
"""How often the poke file is read if the kernel does not report changes."""

_IN_MODIFY = 0x2


class NoLocks:
    """The locks of an in-memory database, which no other process can open."""

    async def acquire(self, worker: WorkerId) -> None:
        """Do nothing."""

    async def is_free(self, worker: WorkerId) -> bool:  # noqa: ARG002 - the port's signature
        """Return False: every worker is alive, as it is in this process."""
        return False

    async def release(self, worker: WorkerId) -> None:
        """Do nothing."""


class FileLocks:
    """Lock files in a folder beside the database."""

    def __init__(self, database: Path) -> None:
        self._database = database
        # The descriptors of the locks that this process holds. Closing one releases its lock.
        self._held: dict[WorkerId, int] = {}

    async def acquire(self, worker: WorkerId) -> None:
        """Take worker's lock for as long as this process lives; once taken, it is kept."""
        if worker not in self._held:
            self._held[worker] = await asyncio.to_thread(self._acquire, worker)

    async def is_free(self, worker: WorkerId) -> bool:
        """Return whether worker's lock is free; the file of a free lock is removed."""
        return await asyncio.to_thread(self._is_free, worker)

    async def release(self, worker: WorkerId) -> None:
        """Release worker's lock and remove its file. The folder stays: other processes may be adding files."""
        fd = self._held.pop(worker, None)
        if fd is not None:
            await asyncio.to_thread(self._release, worker, fd)

    @cached_property
    def _folder(self) -> Path:
        """The folder of the lock files; a symbolic link to the database has the same one."""
        return Path(f"{self._database.resolve()}-workers")

    def _path(self, worker: WorkerId) -> Path:
        """Return the file of a worker. The name is read from the database, so slashes and leading dots are escaped."""
        name = worker.replace("%", "%25").replace("/", "%2F")
        return self._folder / (f"%2E{name[1:]}" if name.startswith(".") else name)

    def _acquire(self, worker: WorkerId) -> int:
        with _descriptor(open_private_folder(self._folder)) as folder:
            fd = open_private_file(self._path(worker), folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise StoreBusy(f"The worker name {worker!r} is in use: choose another.") from error
        return fd

    def _is_free(self, worker: WorkerId) -> bool:
        path = self._path(worker)
        try:
            with _descriptor(open_private_folder(self._folder, create=False)) as folder:
                fd = open_private_file(path, folder, create=False)
        except FileNotFoundError:
            return True
        # The file is removed only while this process holds its lock, so the lock file of a live worker stays.
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def _release(self, worker: WorkerId, fd: int) -> None:
        # Removed before it is unlocked: otherwise another process could lock the file in between.
        self._path(worker).unlink(missing_ok=True)
        os.close(fd)


@contextlib.contextmanager
def _descriptor(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


class PokeFile:
    """Notifies other processes of commits, and watches for their notifications."""

    def __init__(self, database: Path, name: bytes) -> None:
        self._path = f"{database.resolve()}-poke"
        self._fd = open_private_file(Path(self._path))
        if os.fstat(self._fd).st_size < COUNTERS * 8:
            # At full size from the start: a later growth would look like a poke, and could fail on a full disk.
            os.pwrite(self._fd, bytes(COUNTERS * 8), 0)
        # The offset and the value of our own counter, which only the writer thread changes.
        self._offset = int.from_bytes(name, "big") % COUNTERS * 8
        self._count = int.from_bytes(os.pread(self._fd, 8, self._offset), "big")
        # The counters of the other processes at the last read.
        self._seen = self._others()
        self._stop: Callable[[], None] = lambda: None

    def poke(self) -> None:
        """Notify other processes of a commit."""
        self._count = (self._count + 1) % 2**64
        # It is only a hint, and a full disk is reported elsewhere.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, self._count.to_bytes(8, "big"), self._offset)

    def watch(self, loop: asyncio.AbstractEventLoop, on_poke: Callable[[], None]) -> None:
        """Call ``on_poke`` on the loop after pokes of other processes."""
        watch = _inotify(self._path)
        if watch is None:
            self._poll(loop, on_poke)
            return

        def modified() -> None:
            with contextlib.suppress(BlockingIOError):
                os.read(watch, 4096)
            self._check(on_poke)

        loop.add_reader(watch, modified)

        def stop() -> None:
            loop.remove_reader(watch)
            # The kernel takes some 10 ms to close a watch. Nothing depends on it, so nothing waits for it.
            threading.Thread(
                target=os.close, args=(watch,), name="pylash-close", daemon=True
            ).start()

        self._stop = stop

    def close(self) -> None:
        """Stop watching, and close the file."""
        self._stop()
        os.close(self._fd)

    def _poll(self, loop: asyncio.AbstractEventLoop, on_poke: Callable[[], None]) -> None:
        self._check(on_poke)
        timer = loop.call_later(POLL_SECONDS, self._poll, loop, on_poke)
        self._stop = timer.cancel

    def _check(self, on_poke: Callable[[], None]) -> None:
        seen = self._others()
        if seen != self._seen:
            self._seen = seen
            on_poke()

    def _others(self) -> bytes:
        """Return every counter but our own."""
        counters = os.pread(self._fd, COUNTERS * 8, 0)
        return counters[: self._offset] + counters[self._offset + 8 :]


def _inotify(path: str) -> int | None:
    """Return a descriptor that becomes readable when path is written, or None if the system has no inotify."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if watch < 0:  # the user has no instance left
        return None
    if libc.inotify_add_watch(watch, path.encode(), _IN_MODIFY) < 0:
        os.close(watch)
        return None
    return int(watch)
