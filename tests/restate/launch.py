"""Replaces itself with a program that dies with the process that started it.

    python launch.py PARENT PROGRAM [ARGUMENT...]

A ``preexec_fn`` could do the same, but Python 3.12 and later warn about it in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program, *arguments = sys.argv[1:]
    if sys.platform == "linux":  # elsewhere the program is only ended by its fixture
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):  # it died before the call
            sys.exit(1)
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
