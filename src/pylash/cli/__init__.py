"""The command line."""

from __future__ import annotations

import sys


def command_line() -> None:
    """Run the command line, or print which extra it needs."""
    try:
        from pylash.cli.main import cli  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sentence = (
            "The command line needs the extra 'cli': install it with pip install 'pylash[cli]', or from a clone of "
            "pylash with pip install '.[cli]'."
        )
        sys.stderr.write(f"pylash: {sentence} [extra_missing]\n")
        sys.exit(2)
    cli()


__all__ = ("command_line",)
