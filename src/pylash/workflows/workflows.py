"""The Lashlang programs of an app: linking, storing and running them."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from pylash.durable.processes import LashlangInput
from pylash.engine.runs.run import LiveRun
from pylash.engine.user_code import current_task, is_failure
from pylash.lang import Artifact, StartProblem, Surface, stored
from pylash.processes.environments import rebuild
from pylash.processes.triggers import AppParts
from pylash.sessions.tool_calls import TurnTool
from pylash.tools.catalog import Catalog
from pylash.tools.tool import Tool
from pylash.workflows.hosting import Offered, Sink, run_workflow
from pylash.workflows.modules import LashlangModule, linked_module
from pylash.workflows.surfaces import app_surface
from pylash.workflows.tools import MODULE, WorkflowTools

_TRACED_PROCESSES: Final = 10_000
"""For how many processes the number of sent events is kept, so that no event is sent twice."""

_CACHED_MODULES: Final = 256
"""How many decoded modules are cached: a process that was parked needs its module again."""

_log = logging.getLogger("pylash")


class Workflows:
    """Links programs against an app, and runs their processes."""

    def __init__(self, app: AppParts) -> None:
        self._app = app
        self._offered: tuple[object, Surface] | None = None
        self._sinks: list[Sink] = []
        self._sent_events: OrderedDict[str, int] = OrderedDict()
        self._artifacts: OrderedDict[str, Artifact] = OrderedDict()

    def session_surface(self, tools: Iterable[Tool[..., Any]]) -> Surface:
        """Return the surface for programs of a session, which may use these tools."""
        types = self._app.trigger_types.items()
        granted = {name: declared.payload for name, declared in types if declared.sessions}
        return app_surface(_usable(tools), granted)

    def surface(self, catalog: Catalog | None = None) -> Surface:
        """Return the surface for programs of the app, or of a process whose plugins add tools to the catalog.

        The former is cached until a tool or a type of trigger is added.
        """
        usable = _usable((catalog or self._app.catalog).tools.values())
        payloads = {name: one.payload for name, one in self._app.trigger_types.items()}
        if catalog is not None and catalog is not self._app.catalog:
            return app_surface(usable, payloads)
        known = (usable, tuple(payloads))
        if self._offered is None or self._offered[0] != known:
            self._offered = (known, app_surface(usable, payloads))
        return self._offered[1]

    def tools(self) -> list[Tool[..., Any]]:
        """Return the tools with which a model manages its workflows."""
        return WorkflowTools(self._app, self.session_surface).tools()

    async def module(self, source: str) -> LashlangModule:
        """Link a program and store it; raises LashlangError."""
        for tool in self._app.catalog.tools.values():
            await tool.prepare()
        return await linked_module(source, self.surface, self._app.running.store.envs)

    async def run(self, run: LiveRun, given: LashlangInput) -> Any:
        """Run a process of a stored module."""
        services = self._app.running
        load = partial(services.environments.load, run.process.registration)
        catalog = rebuild(run.id, await run.read(load), self._app.catalog)
        for tool in catalog.tools.values():
            await tool.prepare()
        made = await run.read(partial(self._artifact, given.module_ref))
        sink = self._trace_sink() if self._sinks else None
        offered = Offered(self.surface(catalog), catalog, self._app.trigger_types, sink)
        return await run_workflow(services, run, given, made, offered)

    async def _artifact(self, module_ref: str) -> Artifact | StartProblem:
        made = self._artifacts.get(module_ref)
        if made is None:
            found = stored(await self._app.running.store.envs.get(module_ref), module_ref)
            if isinstance(found, StartProblem):
                return found
            made = self._artifacts[module_ref] = found
            if len(self._artifacts) > _CACHED_MODULES:
                self._artifacts.popitem(last=False)
        return made

    def add_sink(self, sink: Sink) -> None:
        """Send the events of programs to a sink from now on."""
        self._sinks.append(sink)

    def _trace_sink(self) -> Sink:
        """Return the sink of one execution, which leaves out the events that an earlier execution sent.

        A replay produces the same events in the same order, so the number of sent events identifies them.
        """
        number = 0

        def send(event: dict[str, Any]) -> None:
            nonlocal number
            number += 1
            subject = event["subject"]
            if number <= self._sent_events.get(subject, 0):
                return
            self._sent_events[subject] = number
            if len(self._sent_events) > _TRACED_PROCESSES:
                self._sent_events.popitem(last=False)
            node, occurrence = event.get("node_id", ""), event.get("occurrence", 0)
            key = f"{subject}:{event['event']}:{node}:{occurrence}"
            for sink in self._sinks:
                task = current_task()
                try:
                    sink({"key": key, **event})
                except BaseException as error:
                    if not is_failure(error, task):
                        raise
                    _log.exception("a sink of Lashlang's execution events failed")

        return send


def _usable(tools: Iterable[Tool[..., Any]]) -> list[Tool[..., Any]]:
    """Return the tools that a program can call: not those for workflows, and none that only a turn can call."""
    return [tool for tool in tools if tool.module != MODULE and not isinstance(tool, TurnTool)]
