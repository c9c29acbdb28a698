"""Runs that earlier versions recorded, stopped at every point, continue to their recorded end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay.programs import DRIVERS
from tests.replay.snapshots import NAMES, drive, fixture, load, restore, same_names


def test_every_program_is_recorded() -> None:
    assert [name for name in DRIVERS if not fixture(name).exists()] == []


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_run_goes_on_to_its_recorded_end(name: str, tmp_path: Path) -> None:
    recorded = load(name)
    for number, snapshot in enumerate(recorded.snapshots):
        async with restore(snapshot, tmp_path / f"{number}.db") as app:
            outcome, journals = await drive(app, DRIVERS[name])
        assert outcome == recorded.outcome, snapshot.after
        if snapshot.decided:
            assert same_names(journals) == recorded.journals, snapshot.after
