"""The language's test host H1 as an app: the cases of processes, run by the engine that people use."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET

from pylash import Lash, LashError, LashlangError, ProcessContext, Tool, ToolError
from pylash.lang import shaped_id, surface_of
from pylash.testing import SimClock
from pylash.testing.lashlang.cases import Case, wanted_call
from pylash.testing.lashlang.differences import (
    call_differences,
    event_differences,
    key_differences,
    list_differences,
    outcome_differences,
    trace_differences,
)
from pylash.testing.lashlang.host import Failed, Operations
from pylash.testing.lashlang.scheduler import Scheduler
from pylash.testing.lashlang.surface import H1, patched
from pylash.testing.lashlang.world import FOREIGN, Event
from pylash.workflows.modules import LashlangModule, linked_module
from tests.workflows.scenes import LIVE

SECOND = 1_000_000
START = 1_767_225_600 * SECOND
MOMENT = 1000
"""How long before the start of a case its process is registered, so that signals can come early."""


COUNTED = ("yield", "wake", "completed", "failed", "cancelled")


class H1Tool(Tool[..., Any]):
    """A tool that accepts any argument."""

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {"args": {}}}

    def load(self, arguments: Any) -> dict[str, Any]:
        return {"payload": arguments}

    def dump(self, arguments: Any) -> Any:
        return arguments["payload"]


class H1App:
    """An app that offers what H1 offers, on a clock of its own."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.clock = SimClock(START - MOMENT)
        self.app = Lash("memory://", worker=LIVE, clock=self.clock)
        self.calls: list[dict[str, Any]] = []
        self.traced: list[dict[str, Any]] = []
        self._known = Operations(Scheduler(), {}).known
        self._meeting: list[Any] = []
        self.app.trace_lashlang(self.traced.append)
        for path, module in H1["modules"].items():
            if path != "triggers":
                for name, operation in module["operations"].items():
                    self._add(path, name, operation["id"])

        @self.app.process
        async def foreign(ctx: ProcessContext[None]) -> None:
            await ctx.wait_signal("never")

        self.foreign = foreign

    def _add(self, path: str, name: str, tool_id: str) -> None:
        async def work(payload: Any) -> Any:
            """Do it."""
            self.calls.append(
                {"op": f"{path}.{name}", "payload": payload, "node": "", "occurrence": 0}
            )
            if name == "meet":
                return await self._meet(payload["n"])
            try:
                return self._known[f"{path}.{name}"](payload)
            except Failed as failed:
                data = None if isinstance(failed.error, str) else failed.error
                raise ToolError(str(failed.error), data=data) from None

        self.app.add_tool(H1Tool(work, name=tool_id, module=path))

    async def _meet(self, number: int) -> Any:
        self._meeting.append(number)
        await self.clock.sleep(0)
        for _ in range(20):  # as long as the others take to begin
            if len(self._meeting) >= number:
                return {"met": number}
            await self.clock.sleep(0)
        raise ToolError("alone")

    async def differences(self) -> list[str]:
        """Carry out the case; return what differs."""
        case, app = self.case, self.app
        async with app:
            offered = surface_of(patched(H1, case.surface))
            worker = surface_of(patched(patched(H1, case.surface), case.run_surface))
            app._workflows.surface = lambda _=None: worker  # type: ignore[method-assign, assignment]
            await app.start(self.foreign.options(id=FOREIGN))
            try:
                linked = await linked_module(case.source, lambda: offered, app.store.envs)
                outcome = await self._outcome(LashlangModule(linked.artifact, lambda: worker))
            except LashlangError as error:
                outcome = {"error": error.errors[0]}
            return await self._compared(outcome)

    async def _outcome(self, module: LashlangModule) -> dict[str, Any]:
        case, app = self.case, self.app
        assert case.entry is not None
        target = module[case.entry].options(id=case.pid, delay=MOMENT / SECOND)
        try:
            handle = await app.start(target, **self._given(case.args))
        except LashError as error:
            return {"fail": {"code": error.code, "message": error.message, "raw": None}}
        for signal in sorted(case.signals, key=lambda one: one.at_ms or -1):
            if signal.at_ms is not None:
                until = START + signal.at_ms * 1000 - self.clock.now()
                await self.clock.advance(until / SECOND)
            with suppress(LashError):
                await handle.signal(signal.name, signal.payload)
        await self.clock.advance("400d")
        record = await app.store.processes.get(case.pid)
        assert record is not None
        if record.reason is not None:
            code, _, message = record.reason.partition(": ")
            return {"fail": {"code": code, "message": message, "raw": None}}
        match msgspec.to_builtins(record.state.output):
            case {"status": "completed", "value": value}:
                return {"finish": value}
            case {"status": "failed"} as failure:
                return {"fail": failure}
            case {"status": "cancelled"}:
                return {"cancelled": "the process was cancelled"}
            case _:
                return {"waiting": "signal"}

    def _given(self, args: Any) -> Any:
        """Return arguments in which every record that looks like a handle is one, as H1 specifies."""
        if isinstance(args, list):
            return [self._given(one) for one in args]
        if not isinstance(args, dict):
            return args
        found = shaped_id(args)
        if found is not None:
            return self.app.process_handle(found)
        return {name: self._given(one) for name, one in args.items()}

    async def _compared(self, outcome: dict[str, Any]) -> list[str]:
        expect, pid = self.case.expect, self.case.pid
        found = list(outcome_differences(expect, outcome))
        if isinstance(expect.calls, list):
            wanted = [
                msgspec.structs.replace(wanted_call(one), node=None, occurrence=None)
                for one in expect.calls
            ]
            found += call_differences(wanted, self.calls)
        if isinstance(expect.trace, list):
            told = [event for event in self.traced if event["subject"] == pid]
            found += trace_differences(expect.trace, told)
        log = await self._log()
        if isinstance(expect.events, list):
            found += event_differences(expect.events, log, pid)
        if expect.queued is not UNSET:
            woken = [event.payload["text"] for event in log if event.type == "process.wake"]
            found += list_differences("queued", expect.queued, woken)
        return found + await self._journal_differences()

    async def _log(self) -> list[Event]:
        """Return the events that cases count, of every process; at one moment, those of others first."""
        ids = [view.id for view in await self.app.processes()]
        logs = [(one, event) for one in ids for event in await self.app.store.processes.events(one)]
        logs.sort(key=lambda one: (one[1].at, one[0] == self.case.pid))
        return [
            Event(one, event.type, event.payload, event.key or "")
            for one, event in logs
            if event.type.startswith("signal.") or event.type.removeprefix("process.") in COUNTED
        ]

    async def _journal_differences(self) -> list[str]:
        expect, pid = self.case.expect, self.case.pid
        found: list[str] = []
        if isinstance(expect.keys, list):  # the clock does not advance, so their order is not known
            short = (entry.key.rpartition("/")[2] for entry in await self._effects(pid))
            whole = sorted(f"process:{pid}:{key}" for key in short)
            by_shape = sorted(expect.keys, key=lambda one: one.replace("{pid}", pid))
            found += key_differences(by_shape, whole, pid)
        if expect.sleeps is not UNSET:
            ids = [view.id for view in await self.app.processes()]
            effects = [entry for one in ids for entry in await self._effects(one)]
            sleeps = sorted(
                (one for one in effects if one.kind == "sleep"), key=lambda one: one.started
            )
            slept = [round((one.due - one.started) / 1000) for one in sleeps]
            found += list_differences("sleeps", expect.sleeps, slept)
        return found

    async def _effects(self, process_id: str) -> list[Any]:
        record = await self.app.store.processes.get(process_id)
        entries = [] if record is None else await self.app.store.journal.timeline(record.run)
        return [entry for entry in entries if entry.kind not in ("now", "decision")]
