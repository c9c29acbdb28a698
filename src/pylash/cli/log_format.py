"""The format of log records on the command line: one line each, without secrets."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Final

from pylash.values.secrets import environment_secrets, hide_and_cut
from pylash.values.texts import printable

INDENT: Final = "    "
LINE_CHARACTERS: Final = 10_000
TRACE_CHARACTERS: Final = 50_000


class LogFormatter(logging.Formatter):
    """Formats records that contain text of programs, tools and models.

    Control characters and line breaks are escaped, so that a text cannot forge a record or control the terminal.
    Only tracebacks and stacks have several lines, and all of them are indented.
    """

    def __init__(self, form: str, secrets: Iterable[str] = ()) -> None:
        super().__init__(form)
        self._secrets = tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        record.message = record.getMessage()
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        lines = [printable(self._hidden(self.formatMessage(record), LINE_CHARACTERS))]
        # Another handler may have cached its text of the traceback: it is always formatted again here.
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        for part in (trace, record.stack_info):
            if part:
                shown = self._hidden(part, TRACE_CHARACTERS)
                lines += [INDENT + printable(line) for line in shown.split("\n")]
        return "\n".join(lines)

    def _hidden(self, text: str, limit: int) -> str:
        return hide_and_cut(text, limit, (*self._secrets, *environment_secrets(os.environ)))


def log_handler(form: str, secrets: Iterable[str] = ()) -> logging.Handler:
    """Return a handler that writes to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(form, secrets))
    return handler
