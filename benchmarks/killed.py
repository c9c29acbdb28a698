"""Measure G for contenders whose worker is a program of this project.

Rule 1. The first worker brings every process into its last step and is killed there. The second
        one is timed, from before it is started until it says that everything is done.
Rule 2. The contender itself touches no database: only the workers do.
"""

from __future__ import annotations

import itertools

from benchmarks.contender import Contender, Facts
from benchmarks.lines import Load
from benchmarks.programs import DONE, READY, Program, recovered


class KilledContender(Contender):
    """Workers that are started to be killed, and to recover from that.

    A worker is started with ``ready`` or ``done``, a name for the round, how many processes there
    are, how many steps each has, and the URL.
    """

    def __init__(self, module: str, url: str) -> None:
        super().__init__(url)
        self._module = module
        self._rounds = (f"round-{number}" for number in itertools.count())

    async def open(self) -> Facts:
        return {"versions": {}, "sync": {}}

    async def recovery(self, load: Load) -> list[float]:
        given = (next(self._rounds), load.scopes, load.steps, self.url)
        doomed = await Program.start(self._module, READY, *given)
        await doomed.said(READY)
        await doomed.kill()
        worker = await Program.start(self._module, DONE, *given)
        seconds = await recovered(worker, load.scopes)
        await worker.kill()
        return [seconds]
