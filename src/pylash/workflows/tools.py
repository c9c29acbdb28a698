"""Tools with which a model checks, starts, signals, lists and cancels its workflows.

Rule 1. A program may use only the tools that its session's model may call, with those of the session's plugins; that is
        checked when it is linked. Its processes are started with the session's environment, so that any worker can
        build the plugins.
Rule 2. A session can access only the processes whose handles it holds, as everywhere.
Rule 3. The id of a start is derived from its call, so that a repeated attempt starts nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import msgspec

from pylash.durable.commands import (
    CancelProcess,
    ListProcesses,
    ProcessCommand,
    SignalProcess,
)
from pylash.durable.effects import RuntimeScope
from pylash.durable.processes import (
    Aborted,
    Failure,
    LashlangInput,
    Output,
    ProcessRecord,
    Registration,
    SessionRef,
    SessionTurnInput,
    Success,
)
from pylash.lang import LashlangError, Surface, shaped_id
from pylash.processes.environments import environment_of
from pylash.processes.triggers import AppParts
from pylash.tools.context import ToolContext
from pylash.tools.operation_names import check_tool_names
from pylash.tools.tool import Tool
from pylash.turn.asks import SessionOptions
from pylash.turn.requests import ToolManifest
from pylash.values.process_errors import ProcessNotVisible, ProcessUnknown
from pylash.workflows.guide import LANGUAGE, operations
from pylash.workflows.modules import LashlangModule, linked_module, with_handles

MODULE: Final = "workflows"


Offered = Callable[[Iterable[Tool[..., Any]]], Surface]
"""Returns the surface for programs that may use these tools."""


class WorkflowTools:
    """The tools of one app."""

    def __init__(self, app: AppParts, offered: Offered) -> None:
        self._app = app
        self._offered = offered

    def tools(self) -> list[Tool[..., Any]]:
        """Return the tools."""
        plain = (
            self.check_workflow,
            self.signal_workflow,
            self.list_workflows,
            self.cancel_workflow,
        )
        start = _Described(self.start_workflow, self._language)
        return [start, *(Tool(one, module=MODULE) for one in plain)]

    def _language(self, tools: Iterable[Tool[..., Any]] | None = None) -> str:
        """Return the description of the language with the operations of some tools, or of the app's."""
        if tools is None:
            catalog = self._app.catalog
            tools = [one for name, one in catalog.tools.items() if name not in catalog.private]
        return f"{LANGUAGE}\n\nOperations:\n{operations(self._offered(tools))}"

    async def check_workflow(self, ctx: ToolContext[Any], source: str) -> dict[str, Any]:
        """Check a program for start_workflow without starting it: its processes, or what is wrong."""
        try:
            module = await self._module(ctx, source)
        except LashlangError as error:
            return {"ok": False, "errors": error.message}
        return {"ok": True, "processes": list(module.processes)}

    async def start_workflow(
        self,
        ctx: ToolContext[Any],
        source: str,
        process: str,
        args: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Start a process of a program in the background, with its arguments by name; return its id.

        It outlives this turn.
        """
        module = await self._module(ctx, source)
        chosen = module[process]
        session = SessionRef(ctx.session_id)
        environment = environment_of(self._app.catalog, await self._options(ctx))
        template = msgspec.structs.replace(
            self._app.template,
            originator=session,
            wake_target=session,
            env=await self._app.running.environments.keep(environment),
        )
        process_id = f"{process}-{ctx.idempotency_key[:16]}"
        given = await self._with_granted(session, args or {})
        await self._perform(ctx, chosen.options(id=process_id).command((), given, str, template))
        return {"process_id": process_id}

    async def signal_workflow(
        self, ctx: ToolContext[Any], process_id: str, name: str, payload: Any = None
    ) -> str:
        """Send a signal to a workflow that waits for it."""
        session = SessionRef(ctx.session_id)
        command = SignalProcess(process_id, name, ctx.idempotency_key, payload, by=session)
        await self._use(ctx, command)
        return "sent"

    async def list_workflows(self, ctx: ToolContext[Any]) -> list[dict[str, Any]]:
        """List the workflows of this conversation, and the state of each."""
        command = ListProcesses(SessionRef(ctx.session_id), "all")
        found = await self._perform(ctx, command)
        records = [await self._app.running.store.processes.get(one["id"]) for one in found]
        return [
            {
                "process_id": one["id"],
                "process": _name(record.registration),
                "status": one["status"],
                **_end(record.state.output),
            }
            for one, record in zip(found, records, strict=True)
            if record is not None and _is_workflow(record)
        ]

    async def cancel_workflow(self, ctx: ToolContext[Any], process_id: str) -> str:
        """Ask a workflow of this conversation to end."""
        reason, session = "its conversation asked for it", SessionRef(ctx.session_id)
        await self._use(ctx, CancelProcess(process_id, reason, by=session))
        return "asked to end"

    async def _perform(self, ctx: ToolContext[Any], command: ProcessCommand) -> Any:
        """Perform a command for a call; it has the same key in every attempt of the call."""
        return await self._app.running.control.perform(
            command,
            parent=ctx.idempotency_key,
            within=RuntimeScope(ctx.session_id or None, ctx.turn_id),
        )

    async def _use(self, ctx: ToolContext[Any], command: SignalProcess | CancelProcess) -> None:
        """Perform a command on a process that the session may use."""
        try:
            await self._perform(ctx, command)
        except ProcessNotVisible:  # a model is not told whether it exists
            raise ProcessUnknown(command.process_id) from None

    async def _with_granted(self, holder: SessionRef, args: dict[str, Any]) -> dict[str, Any]:
        """Return arguments with handles in place of values that have the form of one, if the session holds that handle."""
        grants = await self._app.running.store.processes.grants(holder)
        held = {grant.process_id for grant in grants}
        given: dict[str, Any] = with_handles(
            args, lambda value: found if (found := shaped_id(value)) in held else None
        )
        return given

    async def _module(self, ctx: ToolContext[Any], source: str) -> LashlangModule:
        catalog, options = self._app.catalog, await self._options(ctx)
        plugins = catalog.build_plugins(ctx.session_id, catalog.plugin_options(options))
        tools = catalog.offered_tools(options, plugins.values()).values()
        for tool in tools:
            if catalog.tools.get(tool.name) is not tool:  # of a plugin, and not checked before
                check_tool_names(tool, tools)
            await tool.prepare()
        return await linked_module(
            source, lambda: self._offered(tools), self._app.running.store.envs
        )

    async def _options(self, ctx: ToolContext[Any]) -> SessionOptions:
        record = await self._app.running.store.sessions.get(ctx.session_id)
        given = {} if record is None or record.options is None else record.options
        return msgspec.convert(given, SessionOptions)


def _is_workflow(record: ProcessRecord) -> bool:
    """Return whether a model is shown a process: not subagents, and not the parts of workflows once they have ended."""
    registration = record.registration
    is_part = registration.parent is not None and record.state.status != "open"
    return not (is_part or isinstance(registration.input, SessionTurnInput))


def _name(registration: Registration) -> str:
    given = registration.input
    return given.process_name if isinstance(given, LashlangInput) else registration.program


def _end(output: Output | None) -> dict[str, Any]:
    match output:
        case Success(value=value):
            return {"result": value}
        case Failure(message=message):
            return {"error": message}
        case Aborted(reason=reason) if reason is not None:
            return {"error": reason}
        case _:
            return {}


class _Described(Tool[..., Any]):
    """A tool whose description explains the language, and lists the operations that a program may call."""

    def __init__(self, function: Callable[..., Any], language: Callable[..., str]) -> None:
        super().__init__(function, module=MODULE)
        self._language = language

    @property
    def description(self) -> str:
        """The description for the model."""
        return f"{super().description}\n\n{self._language()}"

    def manifest_among(self, offered: Collection[Tool[..., Any]]) -> ToolManifest:
        """Return the tool as a model sees it: with the operations of the tools that its session may use."""
        description = f"{super().description}\n\n{self._language(offered)}"
        return ToolManifest(self.name, description, self.schema, self.id)
