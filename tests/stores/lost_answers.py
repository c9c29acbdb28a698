"""Operations whose COMMIT succeeded, but whose answer was lost: the driver runs them again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pylash.stores.operation import Operation
from pylash.stores.store import SqlStore

Meanwhile = Callable[[], Awaitable[object]]


async def nothing() -> None:
    """Change nothing before the operation runs again."""


def answer_lost(store: SqlStore, name: str, meanwhile: Meanwhile = nothing) -> None:
    """Let the next operation of a name be committed and its answer lost, and others go on meanwhile."""
    honest = store.driver.run

    async def again(operation: Operation[Any]) -> Any:
        await honest(operation)
        await meanwhile()
        return await honest(operation)

    def run(operation: Operation[Any]) -> Awaitable[Any]:
        if operation.name != name:
            return honest(operation)
        store.driver.run = honest  # type: ignore[method-assign]
        return again(operation)

    store.driver.run = run  # type: ignore[method-assign]
