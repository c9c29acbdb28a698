"""Lashlang by its cases: runs files of the format `lashlang-cases/1` on the test host H1.

From a shell: `python -m pylash.testing.lashlang FILE.json [--only ID]`.
"""

from pylash.testing.lashlang.cases import BadCases, read
from pylash.testing.lashlang.verdicts import Verdict, judge

__all__ = ("BadCases", "Verdict", "judge", "read")
