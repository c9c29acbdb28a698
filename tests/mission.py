"""docs/mission.md: the tests that prove each guarantee, with the hosts and stores they run on.

A test names the rows it proves with ``@pytest.mark.proves("E4")``; the laws that prove a row are in ``LAWS``. The last
column of its tables of guarantees is made from both: ``python -m tests.mission`` updates it, and a test checks that it is current.
The sections about the reference implementation are written by hand; tests check that what they name exists.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

PAGE: Final = Path(__file__).parents[1] / "docs" / "mission.md"
ROW: Final = re.compile(r"^\| ([A-Z]\d+) \| (.*?) \|(?: .*)? \|$", re.MULTILINE)

PLACES: Final = {
    "inline": "inline",
    "serial": "serial",
    "memory": "memory",
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "restate": "Restate",
}
"""The hosts and stores, by the words for them in names of tests, fixtures and parameters."""

LAWS: Final[Mapping[str, tuple[str, ...]]] = {
    "E1": ("a_blank_scope_id_is_refused",),
    "E2": (
        "a_scope_keeps_its_metadata",
        "a_static_scope_keeps_its_metadata",
    ),
    "E4": ("the_same_input_has_the_same_hash",),
    "E10": ("a_sleep_ends_or_is_cancelled",),
    "E13": ("a_host_and_its_controllers_agree_on_what_they_can_do",),
    "D1": ("a_blank_identity_is_refused_after_a_blank_scope",),
    "D2": ("the_key_of_a_wait_never_changes",),
    "D3": (
        "the_first_answer_wins",
        "of_many_answers_at_once_one_is_accepted",
    ),
    "D4": ("an_answer_that_comes_early_is_kept",),
    "D5": (
        "cancelling_the_waiter_ends_the_wait",
        "a_deadline_ends_the_wait",
        "an_end_that_is_there_beats_cancel_and_deadline",
        "an_answer_after_the_deadline_is_too_late",
    ),
    "D6": (
        "revoking_a_session_makes_its_keys_unknown",
        "revoking_a_session_wakes_who_waits",
        "a_session_that_is_made_again_has_live_waits",
    ),
    "D7": ("a_tampered_key_is_worth_nothing",),
    "P1": (
        "a_process_carries_its_references",
        "another_input_under_an_id_is_a_conflict",
        "a_process_started_by_many_at_once_is_started_once",
        "an_end_of_every_kind_is_in_the_log_the_record_and_the_run",
    ),
    "P2": (
        "an_event_is_validated",
        "an_event_is_appended_once_under_its_key",
        "sequences_have_no_gaps",
    ),
    "P4": (
        "handles_belong_to_a_session_and_a_frame",
        "handles_are_transferred",
        "what_a_run_started_is_never_written_as_a_grant",
    ),
    "P5": (
        "only_what_nobody_else_holds_is_cancelled",
        "the_last_of_two_that_let_go_cancels",
    ),
    "P6": (
        "a_run_is_claimed_once",
        "a_stale_owner_writes_nothing",
        "an_owner_that_was_paused_ends_nothing_after_the_takeover",
        "who_crashes_ten_times_without_progress_is_blocked",
        "giving_up_in_order_never_counts",
    ),
    "P8": (
        "cancelling_is_an_event_once",
        "no_cancel_is_lost_while_the_process_parks",
        "an_unknown_process_is_an_error",
    ),
    "P9": ("an_environment_never_changes",),
    "P10": (
        "a_blank_id_is_refused",
        "an_originator_without_a_session_is_refused",
    ),
    "P12": (
        "signals_are_received_in_order",
        "no_signal_is_lost_while_the_process_parks",
        "two_branches_never_take_the_same_signal",
    ),
    "P13": (
        "a_wake_is_an_event_and_one_message_for_its_session",
        "a_wake_without_a_target_is_only_an_event",
    ),
    "P14": ("deleting_a_session_reports_what_was_removed",),
    "P16": ("a_failure_keeps_its_class_code_message_and_raw_value",),
    "T10": ("what_came_after_a_fork_goes_with_its_origin",),
    "G1": (
        "an_occurrence_happens_once",
        "emitters_at_once_start_each_process_once",
        "a_sessions_subscriptions_go_with_it",
        "a_subscription_belongs_to_its_session",
    ),
}
"""The laws of pylash.testing.conformance that prove a row."""

CHOOSES_PLACE: Final = {"backend", "durable", "host", "inline", "serial"}
"""The fixtures whose parameter is a host or a store."""

COLLECTED: Final = pytest.StashKey[list[pytest.Item]]()
"""Where the configuration of pytest keeps all tests that were collected."""

Proofs = dict[str, dict[str, set[str]]]
"""By row, the tests and laws that prove it, each with its places."""


def proofs_of(items: Iterable[pytest.Item]) -> Proofs:
    """Return what the collected tests prove."""
    proofs: Proofs = {}
    rows_of_law: dict[str, list[str]] = {}
    for row, laws in LAWS.items():
        for law in laws:
            rows_of_law.setdefault(law, []).append(row)
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        test = item.nodeid.partition("[")[0]
        rows = {row: test for mark in item.iter_markers("proves") for row in mark.args}
        law = getattr(item.callspec.params.get("law"), "__name__", "") if _is_of_law(item) else ""
        rows |= dict.fromkeys(rows_of_law.get(law, ()), f"law {law}")
        for row, proof in rows.items():
            proofs.setdefault(row, {}).setdefault(proof, set()).update(_places(item))
    return proofs


def _is_of_law(item: pytest.Function) -> bool:
    return item.path.name == "test_conformance.py" and hasattr(item, "callspec")


def _places(item: pytest.Function) -> list[str]:
    """Return where a test runs: on a host without a journal the store does not matter."""
    words = {*item.fixturenames, *item.originalname.split("_")}
    if hasattr(item, "callspec") and CHOOSES_PLACE & item.callspec.params.keys():
        words.update(item.callspec.id.split("-"))
    hosts = words & {"inline", "serial"}
    return [PLACES[word] for word in hosts or words & set(PLACES)]


def with_proofs(page: str, proofs: Proofs) -> str:
    """Return the page with its last column made again."""

    def row(found: re.Match[str]) -> str:
        name, promise = found.group(1), found.group(2)
        return f"| {name} | {promise} | {_shown(proofs.get(name, {}))} |"

    return ROW.sub(row, page)


def _shown(proofs: Mapping[str, set[str]]) -> str:
    order = list(PLACES.values())
    shown = []
    for proof, places in sorted(proofs.items()):
        where = ", ".join(sorted(places, key=order.index))
        shown.append(f"`{proof}`" + (f" ({where})" if where else ""))
    return "<br>".join(shown) or "not yet"


class Collector:
    """Keeps what pytest has collected."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the items, before any are deselected."""
        self.items = list(items)


if __name__ == "__main__":
    collector = Collector()
    status = pytest.main(["--collect-only", "-qq", "-p", "no:xdist"], plugins=[collector])
    if status:
        sys.exit(status)
    PAGE.write_text(with_proofs(PAGE.read_text(), proofs_of(collector.items)))
