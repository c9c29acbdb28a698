"""Files and folders beside a SQLite store, which only their owner may use.

Rule 1. Nothing is opened through a symbolic link: in a folder that others may write, a link could make us
        overwrite or lock a file of their choice.
Rule 2. The mode is set when a file or folder is created.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from pylash.values.errors import StorePathUnwritable

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700

_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # opening a pipe must not block


def open_private_file(path: Path, folder: int | None = None, *, create: bool = True) -> int:
    """Return a descriptor to read and write a file; with ``folder``, a descriptor, the name is opened in it.

    Raises StorePathUnwritable, and FileNotFoundError unless ``create``.
    """
    flags = os.O_RDWR | _FLAGS | (os.O_CREAT if create else 0)
    try:
        fd = os.open(path if folder is None else path.name, flags, FILE_MODE, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refusal(path, error, "not a regular file") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _wrong_kind(path, "not a regular file")
    return fd


def open_private_folder(path: Path, *, create: bool = True) -> int:
    """Return a descriptor of a folder. Raises StorePathUnwritable, and FileNotFoundError unless ``create``."""
    try:
        if create and not os.path.lexists(path):
            path.mkdir(FOLDER_MODE, exist_ok=True)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refusal(path, error, "no folder") from error


def make_private_file(path: Path) -> None:
    """Create a file that only its owner may open; raises FileExistsError if there is one.

    A symbolic link to a missing file is followed, as SQLite does: a store may be kept elsewhere.
    """
    os.close(os.open(path.resolve(), os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))


def _refusal(path: Path, error: OSError, kind: str) -> StorePathUnwritable:
    if path.is_symlink():
        return _wrong_kind(path, "a symbolic link")
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ENXIO, errno.EEXIST):
        return _wrong_kind(path, kind)
    return StorePathUnwritable(
        f"{str(path)!r} beside the store cannot be opened ({error.strerror}): check its permissions and its "
        "folder's."
    )


def _wrong_kind(path: Path, kind: str) -> StorePathUnwritable:
    return StorePathUnwritable(
        f"{str(path)!r} beside the store is {kind}: remove it; pylash creates its own."
    )
