"""The Lashlang of an app: what programs are offered, and where they run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Protocol

from pylash.durable import LashlangInput, ProcessRecord, Registration, Store
from pylash.lang import Surface
from pylash.runtime import Catalog, LiveRun, Services, Tool, TriggerType
from pylash.values import ProcessEventInvalid
from pylash.workflows.hosting import Sink, refused_signal, run_workflow
from pylash.workflows.modules import LashlangModule, linked_module
from pylash.workflows.surfaces import app_surface
from pylash.workflows.tools import MODULE, WorkflowTools

_REMEMBERED: Final = 1000
"""How many programs' events are remembered, so that a sink hears none of them twice."""


class WorkflowApp(Protocol):
    """What workflows need of the app."""

    @property
    def store(self) -> Store:
        """The open store."""
        ...

    @property
    def services(self) -> Services:
        """What the parts of the app share."""
        ...

    @property
    def template(self) -> Registration:
        """What every process of the app is registered with."""
        ...

    @property
    def catalog(self) -> Catalog:
        """What the app has by name."""
        ...

    @property
    def trigger_types(self) -> Mapping[str, TriggerType]:
        """The declared types of events."""
        ...


class Workflows:
    """Links programs against an app, and runs their processes."""

    def __init__(self, app: WorkflowApp) -> None:
        self._app = app
        self._offered: tuple[object, Surface] | None = None
        self._sinks: list[Sink] = []
        self._told: OrderedDict[str, set[str]] = OrderedDict()

    def surface(self, names: frozenset[str] | None = None) -> Surface:
        """Return what programs are offered, or those that may use only the tools of some names.

        It is made anew when there is another tool or type of trigger.
        """
        tools = self._app.catalog.tools.values()
        usable = [tool for tool in tools if tool.module != MODULE and not hasattr(tool, "within")]
        payloads = {name: declared.payload for name, declared in self._app.trigger_types.items()}
        if names is not None:
            return app_surface((tool for tool in usable if tool.name in names), payloads)
        known = (usable, tuple(payloads))
        if self._offered is None or self._offered[0] != known:
            self._offered = (known, app_surface(usable, payloads))
        return self._offered[1]

    def tools(self) -> list[Tool[..., Any]]:
        """Return the tools by which a model has workflows of its own."""
        return WorkflowTools(self._app, self._app.catalog, self.surface).tools()

    async def module(self, source: str) -> LashlangModule:
        """Link a program and store it; raises LashlangError."""
        for tool in self._app.catalog.tools.values():
            await tool.prepare()
        return await linked_module(source, self.surface, self._app.store.envs)

    async def run(self, run: LiveRun, given: LashlangInput) -> Any:
        """Run a process of a stored module."""
        sink = self._tell if self._sinks else None
        return await run_workflow(self._app.services, run, given, self.surface(), sink)

    async def check_signal(self, record: ProcessRecord, name: str, payload: Any) -> None:
        """Refuse a signal that a process does not declare, or not with such a payload."""
        envs = self._app.store.envs
        problem = await refused_signal(envs, record, name, payload, self.surface())
        if problem is not None:
            raise ProcessEventInvalid(record.registration.id, f"signal.{name}", problem)

    def add_sink(self, sink: Sink) -> None:
        """Tell the sink what programs do from now on."""
        self._sinks.append(sink)

    def _tell(self, event: dict[str, Any]) -> None:
        """Tell every sink, unless it was told: a replay comes to the same events again."""
        parts = (
            event["subject"],
            event["event"],
            event.get("node_id", ""),
            event.get("occurrence", 0),
        )
        key = ":".join(map(str, parts))
        told = self._told.setdefault(event["subject"], set())
        if key not in told:
            told.add(key)
            for sink in self._sinks:
                sink({"key": key, **event})
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
