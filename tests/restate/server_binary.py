"""The program of the Restate server, for tests and benchmarks: a named one, or one that npm installs.

It is here and not in ``benchmarks`` because types are checked here. It imports the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

VERSION = "1.7.12"
CACHE = Path(__file__).parents[2] / ".cache"
INSTALL_SECONDS = 150.0
NPM_OPTIONS = (
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--no-package-lock",
    "--fetch-retries=1",  # without a network, fail in seconds
    "--fetch-retry-mintimeout=1000",
)


class ServerUnavailable(Exception):
    """There is no server program, and it could not be installed. The message says why."""


def find_server() -> Path:
    """Return the program that ``RESTATE_SERVER`` names, else the pinned version, installed if necessary.

    The installation takes seconds, and blocks; other processes that call this meanwhile wait for it.
    """
    named = os.environ.get("RESTATE_SERVER")
    if named:
        if not Path(named).is_file():
            raise ServerUnavailable(f"RESTATE_SERVER is {named!r}, which is not a file.")
        return Path(named).absolute()
    package = f"@restatedev/restate-server-{_platform()}"
    folder = CACHE / f"restate-{VERSION}"
    program = folder / "node_modules" / package / "bin" / "restate-server"
    if program.is_file():
        return program
    CACHE.mkdir(exist_ok=True)
    with _locked(CACHE / f"{folder.name}.lock"):
        if not program.is_file():  # another process may have installed it meanwhile
            _install(package, folder)
    if not program.is_file():
        raise ServerUnavailable(f"The npm package {package} {VERSION} has no {program.name}.")
    return program


def _platform() -> str:
    machines = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{machines.get(machine, machine)}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file. The kernel releases it if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(package: str, folder: Path) -> None:
    """Install into a temporary folder and rename it, so that ``folder`` is always complete."""
    npm = shutil.which("npm")
    if npm is None:
        raise ServerUnavailable(
            "There is no npm to install the Restate server; set RESTATE_SERVER."
        )
    with TemporaryDirectory(dir=CACHE, prefix=f"{folder.name}-") as temporary:
        made = Path(temporary) / "installed"
        command = [npm, "install", *NPM_OPTIONS, "--prefix", str(made), f"{package}@{VERSION}"]
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise ServerUnavailable(
                f"npm did not install {package} in {INSTALL_SECONDS:.0f} s; set RESTATE_SERVER."
            ) from error
        except subprocess.CalledProcessError as error:
            raise ServerUnavailable(
                f"npm could not install {package}; set RESTATE_SERVER. It printed: {error.stderr[-500:]}"
            ) from error
        made.rename(folder)


@cache
def reason_to_skip() -> str | None:
    """Return why there is no server program; install it if necessary."""
    try:
        find_server()
    except ServerUnavailable as error:
        return f"Restate tests need its server. {error}"
    return None
