"""Types hold: user code checks strictly, and its mistakes are reported where they are."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_user_code_checks_strictly_and_its_mistakes_are_reported(tmp_path: Path) -> None:
    source = (HERE / "user_code.py.txt").read_text()
    code = tmp_path / "user_code.py"
    code.write_text(source)
    options = ("--strict", "--no-error-summary", "--config-file=", f"--cache-dir={tmp_path / 'c'}")
    said, trouble, _ = api.run([*options, str(code)])
    assert not trouble
    found = re.findall(r"user_code\.py:(\d+): error: .*\[([\w-]+)\]", said)
    wanted = [
        (str(number), mistake[1])
        for number, line in enumerate(source.splitlines(), 1)
        if (mistake := re.search(r"# E: ([\w-]+)", line))
    ]
    assert [line for line, _ in wanted] == list(dict.fromkeys(line for line, _ in found)), said
    assert set(wanted) <= set(found), said
