"""Programs that are killed at any point end as without the kill, and repeat only effects that were not recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pylash.testing import crash_everywhere
from tests.workflows.crash_apps import OUTCOME, log_of, make_app, story

pytestmark = pytest.mark.slow

ONCE = Counter(["Ann", "left", "right"])


@pytest.mark.proves("L1")
def test_it_ends_the_same_wherever_it_dies(tmp_path: Path) -> None:
    urls: list[str] = []

    def store() -> str:
        urls.append(f"sqlite:///{tmp_path / f'{len(urls)}.db'}")
        return urls[-1]

    report = crash_everywhere(make_app, story, store=store)
    assert report.outcome[0] == OUTCOME
    # A wait that is over before it is checked writes nothing, so a slow machine sometimes has one record less.
    assert len(report.missed) <= 2
    written = {(point.operation, point.kind) for point in report.points}
    assert written >= {
        ("start", ""),
        ("perform", ""),
        ("record", "tool_attempt"),
        ("record", "durable_step"),
        ("begin_sleep", "sleep"),
        ("take_signal", "process"),
        ("perform_for", "process"),
        ("watch", "process"),
        ("settle", ""),
    }
    calm, *crashed = urls
    assert Counter(log_of(calm).read_text().splitlines()) == ONCE
    repeats = [Counter(log_of(url).read_text().splitlines()) - ONCE for url in crashed]
    under_way: tuple[Counter[str], ...] = (Counter(), Counter(["Ann"]), Counter(["left", "right"]))
    for point, repeated in zip(report.points, repeats, strict=True):
        assert any(repeated <= one for one in under_way), (point, repeated)
    assert 0 < len([repeated for repeated in repeats if repeated]) <= 6


@pytest.mark.proves("L1")
@pytest.mark.timeout(120)
def test_another_process_goes_on_where_one_was_really_killed() -> None:
    points = [str(number) for number in range(5, 40, 11)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.workflows.killer", *points],
        capture_output=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr.decode()
    kinds = set()
    for killed, outcome, failure, ran in json.loads(done.stdout):
        assert failure is None
        assert outcome[0] == OUTCOME
        assert killed is not None
        kinds.add(killed[1])
        assert (Counter(ran) - ONCE).total() <= 2
    assert len(kinds) >= 3
