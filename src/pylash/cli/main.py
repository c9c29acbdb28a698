"""The group of commands: each is imported when it is used.

Rule 1. ``pylash --help`` imports click and nothing else: the modules of commands are named here, not imported.
Rule 2. An error is one sentence with its code on stderr. Status 0 is success, 1 refused or failed, 2 wrong usage.
Rule 3. A traceback is shown only with ``PYLASH_DEBUG=1``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Any, Final

import click

from pylash import __version__
from pylash.cli.options import json_option, store_option

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

SECTIONS: Final = {
    "Inspect": {
        "ps": ("views.listing", "List processes and turns, the newest first."),
        "sessions": ("views.sessions", "List sessions, those that were created last first."),
        "show": (
            "views.show",
            "Show what one process, turn or session did, and what it waits for.",
        ),
        "events": ("views.events", "Print the log of a process, and follow it with -f."),
        "waits": ("waits", "List open waits, the oldest first."),
        "doctor": ("doctor", "Check the store and its surroundings."),
        "replay": (
            "replay",
            "Replay recorded runs with the code of an app, before it is deployed.",
        ),
        "export": ("exports", "Print a process or a session as JSON."),
    },
    "Act": {
        "resolve": ("waits", "Answer a wait."),
        "signal": ("control", "Send a signal to a process."),
        "cancel": ("control", "Ask a process, or the turn of a session, to end."),
        "retry": ("control", "Continue a blocked process or turn."),
        "fork": ("forks", "Continue a failed process as a new one, with what it recorded."),
    },
    "Run": {
        "chat": ("chat.command", "Talk to an agent."),
        "worker": ("worker", "Run a worker until it is stopped."),
    },
    "Write Lashlang": {
        "check": ("lashlang", "Find the mistakes in Lashlang programs."),
        "graph": ("lashlang", "Print what a Lashlang program can do as a graph, for Mermaid."),
        "fmt": ("lashlang", "Format Lashlang programs."),
    },
    "Maintain": {
        "migrate": ("maintenance", "Migrate the store to the current schema."),
        "import": ("exports", "Add an exported process or session to the store."),
        "prune": ("maintenance", "Delete the journals of runs that ended long ago."),
    },
}
"""Every command: its module, and its line in the help."""

COMMANDS: Final = {
    name: module for section in SECTIONS.values() for name, (module, _) in section.items()
}


class Commands(click.Group):
    """Commands that are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Return a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(
            import_module(f"pylash.cli.{COMMANDS[cmd_name]}"),
            f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name,
        )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the commands into the help."""
        longest = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(longest), text) for name, (_, text) in section.items()]
                )

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "pylash",
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - errors are always ours to show
        **extra: Any,
    ) -> Any:
        """Run a command, and end the program with its status."""
        _replace_unencodable()
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except Exception as error:
            if os.environ.get("PYLASH_DEBUG"):
                raise
            status = _report(error)
        sys.exit(status if isinstance(status, int) else DONE)


def _replace_unencodable() -> None:
    """Replace characters that the terminal's encoding cannot show."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _report(error: BaseException) -> int:
    """Print an error in one sentence; return the exit status."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    match error:
        case click.Abort():
            return INTERRUPTED
        case click.UsageError():
            _print_error(_usage(error))
            return USAGE
        case click.ClickException():
            _print_error(error.format_message())
            return FAILED
        case BrokenPipeError():
            return _exit_quietly()
        case _:
            _print_error(_sentence(error))
            return FAILED


def _usage(error: click.UsageError) -> str:
    command = "pylash" if error.ctx is None else error.ctx.command_path
    return f"{error.format_message()} Try {command} --help. [usage]"


def _sentence(error: BaseException) -> str:
    from pylash.values.errors import LashError  # noqa: PLC0415 - only errors need it

    if isinstance(error, LashError):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    return f"Internal error ({text}): set PYLASH_DEBUG=1 to see where. [internal]"


def _print_error(sentence: str) -> None:
    """Print an error. It may contain text of others and secrets, so it is escaped and searched for secrets."""
    from pylash.values.secrets import environment_secrets, hide_secrets  # noqa: PLC0415 - as above
    from pylash.values.texts import printable  # noqa: PLC0415 - as above

    shown = printable(hide_secrets(sentence, environment_secrets(os.environ)))
    click.echo(f"{click.style('pylash:', fg='red')} {shown}", err=True)


def _exit_quietly() -> int:
    """Exit silently, because the reader closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


@click.group(
    "pylash",
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="The store is that of --store, else the one in the code of an app that the command runs, else PYLASH_STORE, else "
    "sqlite:///pylash.db.",
)
@store_option
@json_option
@click.version_option(__version__, prog_name="pylash", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, /, **_: Any) -> None:
    """Inspect durable agents and processes, answer them, and run them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
