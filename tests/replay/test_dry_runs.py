"""Recorded runs fit the code that recorded them, wherever they were stopped; a dry run leaves the database as it is."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pylash import Lash
from pylash.app import open_host
from pylash.cli.replay import recorded_runs
from pylash.engine.dry_runs import ReplayReport, Verdict
from tests.replay.programs import GATE
from tests.replay.snapshots import NAMES, load, restore


def contents(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


async def replayed(app: Lash) -> list[ReplayReport]:
    async with app.open_for_replay() as dry_runs:
        runs = await recorded_runs(dry_runs, None, None, ended=True)
        return await dry_runs.replay(runs)


@pytest.mark.parametrize("name", NAMES)
async def test_a_run_fits_the_code_that_recorded_it(name: str, tmp_path: Path) -> None:
    seen = 0
    GATE[:] = [asyncio.Event()]
    GATE[0].set()
    for number, snapshot in enumerate(load(name).snapshots):
        path = tmp_path / f"{number}.db"
        app = restore(snapshot, path)
        async with open_host(app.url, member=False):  # migrates it
            before = contents(path)
        reports = await replayed(app)
        assert [one for one in reports if one.verdict is not Verdict.FITS] == [], snapshot.after
        assert contents(path) == before
        seen += len(reports)
    assert seen > 0
