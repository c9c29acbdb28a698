"""`python -m pylash.testing.lashlang FILE.json [--only ID]`.

Prints each failing case with what differs, and a summary by section. Exits with 0 if all hold, 1 if some do
not, 2 if the file cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from pylash.testing.lashlang import BadCases, Verdict, judge, read


def main(arguments: Sequence[str], out: TextIO) -> int:
    """Run the cases of a file; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pylash.testing.lashlang",
        description="Run Lashlang's cases on the test host H1.",
    )
    parser.add_argument("file", type=Path, metavar="FILE.json")
    parser.add_argument("--only", metavar="ID", help="run this case alone")
    asked = parser.parse_args(arguments)
    try:
        cases = [
            case for case in read(asked.file) if asked.only is None or case.get("id") == asked.only
        ]
    except BadCases as problem:
        out.write(f"{problem}\n")
        return 2
    if not cases:
        out.write(f"{asked.file} has no case {asked.only!r}\n" if asked.only else "no cases\n")
        return 2
    verdicts = []
    for case in cases:
        verdict = judge(case)
        verdicts.append(verdict)
        if verdict.problems:
            out.write(f"FAIL {verdict.id}\n" + "".join(f"  {line}\n" for line in verdict.problems))
    out.write(summary(verdicts))
    return 1 if any(verdict.problems for verdict in verdicts) else 0


def summary(verdicts: Iterable[Verdict]) -> str:
    """Return how many cases of each section hold, and of all."""
    counts: dict[str, list[int]] = {}
    for verdict in verdicts:
        for section in (verdict.section, "all"):
            row = counts.setdefault(section, [0, 0])
            row[1] += 1
            row[0] += not verdict.problems
    counts["all"] = counts.pop("all")  # last
    width = max(map(len, counts))
    return "".join(
        f"{section:<{width}}  {passed:>4} of {total:>4}{'' if passed == total else '  FAILED'}\n"
        for section, (passed, total) in counts.items()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdout))
