"""Answers of the store that an execution needs although the store is away for the moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pylash.values.errors import LeaseLost, StoreError, StoreRefused

T = TypeVar("T")

STORE_AWAY_SECONDS: Final = 0.2
"""The pause before the next call to a store that could not be reached."""

_log = logging.getLogger("pylash")


class Unanswered(Exception):
    """The run belongs to another worker, or this one closed before the store answered: its lease informs the others."""


async def answer_of(name: str, ask: Callable[[], Awaitable[T]], is_open: Callable[[], bool]) -> T:
    """Return the store's answer for a run whose code has ended, asking again while ``is_open``.

    Raises Unanswered, and StoreRefused if it can never be answered.
    """
    # The operations are safe to repeat: an answer that was lost does not make them happen twice.
    while True:
        try:
            return await ask()
        except LeaseLost as error:
            # Final: the fence refuses every other write of ours for the run.
            _log.info("%s continues on another worker: %s", name, error.message)
            raise Unanswered from error
        except StoreRefused:  # before StoreError, of which it is one: asking again would not help
            raise
        except StoreError as error:
            # After an attempt and not before it: a worker that has closed still tries each last write once.
            if not is_open():
                raise Unanswered from error
            _log.warning("the end of %s cannot be written yet: %s", name, error)
            await asyncio.sleep(STORE_AWAY_SECONDS)
