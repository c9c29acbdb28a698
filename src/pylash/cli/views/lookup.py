"""Lookup by id: a process, a turn, a session, or a unique prefix of an id."""

from __future__ import annotations

from pylash.stores.run_lists import RunRow
from pylash.stores.store import SqlStore
from pylash.values.process_errors import RunAmbiguous, RunUnknown


async def find_run(store: SqlStore, text: str) -> RunRow | str:
    """Return the process or turn that a text names, or the id of a session.

    A whole id takes precedence over a prefix, and a process over a session.
    """
    exact = await store.inspection.named(text)
    if len(exact) == 1:
        return exact[0]
    if not exact and await store.sessions.get(text) is not None:
        return text
    if not (exact or text.strip()):
        raise RunUnknown(text)  # an empty prefix matches everything
    runs = exact or await store.inspection.beginning(text)
    sessions = [] if exact else await store.inspection.sessions_beginning(text)
    whole = [run for run in runs if run.id.endswith(f"/{text}")]
    if len(whole) == 1:  # the whole id of a turn, without its session
        return whole[0]
    candidates: list[RunRow | str] = [*runs, *sessions]
    match candidates:
        case []:
            raise RunUnknown(text)
        case [only]:
            return only
        case _:
            names = [one if isinstance(one, str) else one.id for one in candidates]
            raise RunAmbiguous(text, names)
