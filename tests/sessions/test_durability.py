"""Durability: killed anywhere, a conversation ends as if nothing had happened."""

from __future__ import annotations

import pytest

from pylash.testing import crash_everywhere
from tests.sessions.crash_apps import (
    busy_story,
    make_app,
    make_busy_app,
    runs,
    story,
)

pytestmark = pytest.mark.slow

STORY = """
user       Where is 7?
assistant  i1.c0 look(n=7), i1.c1 look(n=8), i1.c2 nobody()
tool       i1.c0 look: order 7
tool       i1.c1 look: order 8
tool       i1.c2 nobody error: There is no tool 'nobody' (there are: ask, flaky, look, refund).
assistant  Heard 6.
user       Refund it.
assistant  i1.c0 refund(cents=5), i1.c1 ask(), i1.c2 flaky()
tool       i1.c0 refund: 5 cents
tool       i1.c1 ask: Monday
tool       i1.c2 flaky: back
assistant  Heard 12.
user       Thanks.
assistant  Heard 14.

wake       5 cents were refunded
assistant  Heard 2.
"""

BUSY = """
user       go
assistant  i1.c0 work()
tool       i1.c0 work: worked
user       hurry
assistant  Heard hurry.
user       and then
assistant  Heard and then.
"""


def test_turns_with_tools_waits_and_wakes_end_the_same_wherever_they_die() -> None:
    runs.clear()
    report = crash_everywhere(make_app, story)
    assert report.outcome == STORY
    tried = 1 + len(report.points)
    for name, count in runs.items():
        assert count <= 2 * tried, name
    operations = {point.operation for point in report.points}
    assert operations >= {
        "submit",
        "record",
        "commit",
        "open_for",
        "resolve",
        "begin_sleep",
        "emit",
    }


def test_messages_sent_meanwhile_are_delivered_once_wherever_it_dies() -> None:
    report = crash_everywhere(make_busy_app, busy_story)
    assert report.outcome == BUSY
    assert {point.operation for point in report.points} >= {"_enqueue", "_take", "commit"}


@pytest.mark.torture
def test_turns_end_the_same_wherever_they_are_really_killed() -> None:
    app, scenario = "tests.sessions.crash_apps:make_app", "tests.sessions.crash_apps:story"
    report = crash_everywhere(app, scenario, kill=True, timeout="60s")
    assert report.outcome == STORY
