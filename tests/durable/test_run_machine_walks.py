"""Random walks of the machine of a run, and programs that are replayed from every prefix of their records.

The seed of a walk that fails is in the message; SEED=n repeats the long walks.
"""

from __future__ import annotations

import os
import random  # noqa: TID251 - a seed repeats a walk
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylash.durable.machines.run_state import Phase
from pylash.durable.machines.run_table import TABLE
from tests.durable.machine_programs import check_replays
from tests.durable.machine_world import Seeded, walk

FACTS = 50
RARE = {("withdrawn", Phase.PARKING)}
"""Cells that a long walk may miss; they have plain tests."""


class Drawn:
    """Choices that hypothesis draws, so that it can shrink a walk that fails."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def below(self, number: int) -> int:
        return self._data.draw(st.integers(0, number - 1))


def walks(seeds: range) -> Counter[tuple[str, Phase, str]]:
    """Walk with every seed; return what followed from which fact in which phase."""
    seen: Counter[tuple[str, Phase, str]] = Counter()
    for seed in seeds:
        try:
            seen += walk(Seeded(seed), FACTS).seen
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    return seen


def test_the_machine_keeps_its_properties_on_some_random_walks() -> None:
    walks(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_the_machine_keeps_its_properties_on_random_walks(first: int) -> None:
    walks(range(first, first + 250))


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_machine_keeps_its_properties_on_walks_that_hypothesis_draws(
    data: st.DataObject,
) -> None:
    walk(Drawn(data), 20)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 100))
def test_a_program_gets_the_same_answers_and_cancels_from_every_prefix_of_its_records(
    first: int,
) -> None:
    for seed in range(first, first + 100):
        try:
            check_replays(Seeded(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.torture
def test_long_walks_reach_every_cell_of_the_table() -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**9))
    print(f"\nSEED={seed}")
    seen = walks(range(seed, seed + 12_000))
    reached = {(fact, phase) for fact, phase, _ in seen}
    cells = {(fact, phase) for fact, cells in TABLE.items() for phase in cells}
    assert cells - reached <= RARE
    for number in range(seed, seed + 3_000):
        check_replays(Seeded(number))
