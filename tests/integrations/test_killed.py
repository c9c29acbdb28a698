"""Agents that are killed: at every boundary, and resumed without repeating what was recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from pylash.testing import CrashReport, crash_everywhere
from tests.integrations import crash_apps
from tests.integrations.agents import ran

RESEARCH = {"topic": "cats", "facts": ["fact 1", "fact 2", "fact 4"], "used": [3, 3]}
CHAT = ["['Refund order 7'] ['refunded 7']", 4]


def every(points: Iterable[int]) -> Any:
    """Return points for ``make torture``: each costs the start of an agent, or of a server."""
    return pytest.param(list(points), marks=pytest.mark.torture)


def recorded(report: CrashReport) -> set[str]:
    return {point.key for point in report.points if point.operation == "record"}


def test_an_agent_ends_the_same_wherever_it_dies() -> None:
    report = crash_everywhere(crash_apps.make_research_app, crash_apps.research_story)
    assert report.outcome == RESEARCH
    tried = 1 + len(report.points)
    for request in ("model 0", "model 1", "model 2", "moody 4"):
        assert ran[request] == tried + 1, request  # again only where it died before its record
    for together in ("fact 1", "fact 2", "moody 3"):
        assert tried < ran[together] <= tried + 6, together
    assert recorded(report) == {
        "researcher/model",
        "researcher/fact c0.0",
        "researcher/fact c0.1",
        "researcher/moody c0.2",
        "researcher/model#2",
        "researcher/moody c1.0",
        "researcher/model#3",
    }


def test_an_agent_with_mcp_tools_ends_the_same_wherever_it_dies() -> None:
    report = crash_everywhere(crash_apps.make_near_shop_app, crash_apps.shop_story)
    assert report.outcome == "Prices: [3, 4]"
    tried = 1 + len(report.points)
    assert ran["model 0"] == ran["model 2"] == tried + 1
    assert ran["price tea"] <= tried + 4
    assert recorded(report) == {
        "shopper/shop tools",
        "shopper/model",
        "shopper/price tea",
        "shopper/price milk",
        "shopper/model#2",
    }


def test_a_conversation_ends_the_same_wherever_it_dies() -> None:
    report = crash_everywhere(crash_apps.make_chat_app, crash_apps.chat_story)
    assert report.outcome == CHAT
    tried = 1 + len(report.points)
    assert ran["refund 7"] == tried + 1


def killed(app: str, story: str, *points: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Kill a story at points, all unless given; return what came of the calm one and of the others."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integrations.killer", app, story, *map(str, points)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    calm, *reports = json.loads(done.stdout)
    return calm, reports


@pytest.mark.timeout(120)
@pytest.mark.parametrize("points", [[4, 9, 15], every(range(3, 17))])
def test_a_really_killed_agent_repeats_only_what_was_not_recorded(points: list[int]) -> None:
    calm, reports = killed("make_research_app", "research_story", *points)
    assert calm["outcome"] == RESEARCH
    assert set(calm["ran"].values()) == {1}
    for report in reports:
        assert "record of" in report["killed"], report
        assert report["outcome"] == RESEARCH, report
        again = {name for name, times in report["ran"].items() if times > 1}
        assert max(report["ran"].values()) <= 2, report
        # The three calls at once may all be under way; whatever else is repeated was alone.
        assert again <= {"fact 1", "fact 2", "moody 3"} or len(again) == 1, report


@pytest.mark.timeout(120)
@pytest.mark.parametrize("points", [[8], every([3, 8])])
def test_a_really_killed_agent_asks_its_mcp_server_again_only_for_what_was_not_recorded(
    points: list[int],
) -> None:
    calm, reports = killed("make_shop_app", "shop_story", *points)
    assert calm["outcome"] == "Prices: [3, 4]"
    assert set(calm["ran"].values()) == {1}
    for report in reports:
        assert report["killed"] is not None
        assert report["outcome"] == "Prices: [3, 4]", report
        assert max(report["ran"].values()) <= 2, report
        if "after record" in report["killed"]:
            assert report["ran"]["model 0"] == 1, report
