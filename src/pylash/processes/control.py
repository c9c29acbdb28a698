"""Process control: commands to the process registry from outside a run, each as an effect.

Rule 1. Each command has a scope of its own: the deletion of its session, or an operation of the runtime. Its replay key
        begins with the id of the operation.
Rule 2. A command is completed even if its caller is cancelled, on every host; an await ends with its caller.
Rule 3. The registry makes a command idempotent, not a record: the same command again, under a new operation, is the
        same start or the same signal because of its process id or signal id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import msgspec

from pylash.durable.commands import (
    AwaitProcess,
    By,
    CancelTurn,
    CancelUnreferenced,
    DeleteSessionProcesses,
    EmitTrigger,
    EnqueueMessage,
    ForkProcess,
    ListProcesses,
    ProcessCommand,
    StartProcess,
    SubmitTurn,
    TransferHandles,
    process_key,
)
from pylash.durable.effects import Outcome, Process, ProcessOutcome, RuntimeScope, envelope, expect
from pylash.durable.ports import EffectHost, Runner
from pylash.durable.processes import HeldProcess, Output, Registration, SessionRef, output_from
from pylash.durable.scopes import ExecutionScope, RuntimeOperationScope, SessionDeleteScope
from pylash.durable.sessions import DeleteReport
from pylash.durable.stores import Processes, Store
from pylash.durable.triggers import Upgrade, as_registered
from pylash.engine.executors import process_executor
from pylash.tasks import GRACE_SECONDS, TaskOwner
from pylash.values.canonical import decode, write
from pylash.values.errors import Misuse
from pylash.values.process_errors import ProcessRegistryUnavailable

T = TypeVar("T")

ResultOf = Callable[[str], Awaitable[Output]]
"""Waits for the end of a process and returns its output."""


class AskedBy(TypedDict, total=False):
    """The effect that asks for a command.

    ``parent`` is its key; without one, the operation gets a new id. ``within`` is its place in the runtime.
    """

    scope: ExecutionScope
    parent: str
    within: RuntimeScope


class ProcessControl:
    """The process registry for code outside a run.

    >>> control = ProcessControl(host, host.store, host.new_token)
    >>> await control.perform(CancelProcess("onboard-ann"))
    """

    def __init__(
        self,
        effects: EffectHost,
        store: Store | None,
        new_id: Callable[[], str],
        runner: Runner | None = None,
        result_of: ResultOf | None = None,
        upgrade: Upgrade = as_registered,
    ) -> None:
        self.effects = effects
        self._store = store
        # Ids of operations: a random part for this object and a number, since random bytes are a system call each.
        self._operations = map(f"{new_id()}-{{}}".format, count(1))
        # The runner of an app executes a process that is started here at once, if it can.
        self._runner = runner
        self._result_of = result_of
        self._upgrade = upgrade
        self._local = process_executor(self._work)
        self._calls = TaskOwner()

    # --- calls ---

    def complete(self, call: Awaitable[T]) -> Awaitable[T]:
        """Return the outcome of a call that is completed even if its caller is cancelled."""
        return self._calls.complete(call, quiet=Misuse)

    async def close(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the calls whose callers were cancelled, within the grace period; not if closing the app was cancelled."""
        await self._calls.finish(GRACE_SECONDS if kind is None else 0)

    # --- commands ---

    async def perform(self, command: ProcessCommand, **options: Unpack[AskedBy]) -> Any:
        """Perform a command as an effect; return the registry's answer.

        Cancellation: the command is completed.
        """
        outcome = await self.complete(self._execute(command, **options))
        return expect(outcome, ProcessOutcome).result

    async def perform_in_call(self, command: ProcessCommand) -> None:
        """Perform a command inside a call that is completed anyway."""
        expect(await self._execute(command), ProcessOutcome)

    def _execute(
        self,
        command: ProcessCommand,
        *,
        scope: ExecutionScope | None = None,
        parent: str | None = None,
        within: RuntimeScope | None = None,
    ) -> Awaitable[Outcome]:
        if self._store is None:
            raise ProcessRegistryUnavailable
        operation = next(self._operations) if parent is None else parent
        scope = RuntimeOperationScope(operation) if scope is None else scope
        effect_id = command.effect_id
        asked = envelope(
            Process(decode(write(command))),
            scope=RuntimeScope.of(scope) if within is None else within,
            effect_id=effect_id,
            replay_key=process_key(operation, effect_id),
            causal_parent=parent,
        )
        # A host without static scopes has none to keep; this one is used only while the caller waits.
        boundary = self.effects.scoped_static(scope) or self.effects.scoped(scope)
        return boundary.execute(asked, self._local)

    def _work(  # noqa: PLR0911 - one line a command
        self, command: ProcessCommand, _timeout: int | None
    ) -> Awaitable[Any]:
        """Perform a command with the registry; the answer is plain JSON."""
        match command:
            case StartProcess() if self._runner is not None:
                return self._runner.start(command)
            case SubmitTurn() if self._runner is not None:
                return self._runner.submit(command.new_turn())
            case AwaitProcess() if self._result_of is not None:
                return self._wait(command, self._result_of)
            case ForkProcess(process_id=process, registration=registration, keys=keys):
                return self.registry.fork(process, registration, keys)
            case EmitTrigger():
                return self._emit(command)
            case EnqueueMessage():
                return self._enqueue(command)
            case CancelTurn():
                return self._cancel_turn(command)
            case DeleteSessionProcesses(session_id=session):
                return self._delete(session)
            case _:
                return self.registry.perform(command)

    async def _wait(self, command: AwaitProcess, result_of: ResultOf) -> Any:
        process, holder = command.process_id, command.by
        if isinstance(holder, msgspec.UnsetType):
            return {"output": decode(write(await result_of(process)))}
        await self.registry.check_visible(holder, [process])
        output = await result_of(process)
        # Again: a session that lost access while it waited does not get the result.
        await self.registry.check_visible(holder, [process])
        return {"output": decode(write(output))}

    async def _emit(self, command: EmitTrigger) -> Any:
        emitted = await self.store.triggers.emit(command.occurrence, self._upgraded)
        return msgspec.to_builtins(emitted)

    def _upgraded(self, registration: Registration) -> Registration:
        """Return what a subscription starts now: it may be older than the code, or than the engine."""
        upgraded = self._upgrade(registration)
        return upgraded if self._runner is None else self._runner.own(upgraded)

    async def _enqueue(self, command: EnqueueMessage) -> Any:
        sessions, session_id = self.store.sessions, command.session_id
        await sessions.open(session_id, command.options)
        return await sessions.enqueue(session_id, command.key, command.body, command.policy)

    async def _cancel_turn(self, command: CancelTurn) -> Any:
        turn = await self.store.sessions.cancel(command.session_id, command.reason)
        return {"turn": None if turn is None else turn.id}

    async def _delete(self, session_id: str) -> Any:
        """Delete a session with everything it has: its handles are deleted in the same transaction as the rest."""
        return msgspec.to_builtins(await self.store.sessions.delete(session_id))

    @property
    def store(self) -> Store:
        """The store; raises ProcessRegistryUnavailable."""
        if self._store is None:
            raise ProcessRegistryUnavailable
        return self._store

    @property
    def registry(self) -> Processes:
        """The process registry; raises ProcessRegistryUnavailable."""
        return self.store.processes

    async def result_of(self, process_id: str, by: By = msgspec.UNSET) -> Output:
        """Return the output of a process, once it has ended.

        Cancellation: safe, the process goes on.
        """
        outcome = await self._execute(AwaitProcess(process_id, by))
        return output_from(expect(outcome, ProcessOutcome).result["output"])

    async def delete_session(self, session_id: str) -> DeleteReport:
        """Delete a session with everything it has; return what was removed."""
        scope = SessionDeleteScope(session_id)
        answer = await self.perform(DeleteSessionProcesses(session_id), scope=scope)
        return msgspec.convert(answer, DeleteReport)

    # --- handles of sessions ---

    async def listed(
        self, holder: SessionRef, mode: Literal["live", "all"] = "live"
    ) -> list[HeldProcess]:
        """Return the processes whose handles a session holds."""
        found = await self.perform(ListProcesses(holder, mode))
        return msgspec.convert(found, list[HeldProcess])

    async def transfer(
        self, source: SessionRef, target: SessionRef, process_ids: Sequence[str]
    ) -> None:
        """Give handles of one session to another; refuse those that it does not hold."""
        if process_ids:
            await self.perform(TransferHandles(source, target, tuple(process_ids)))

    async def cancel_unreferenced(self, holder: SessionRef, keep: Sequence[str] = ()) -> list[str]:
        """Release every handle except those in ``keep``; return the processes that were cancelled because of it."""
        cancelled: list[str] = await self.perform(CancelUnreferenced(holder, tuple(keep)))
        return cancelled

    async def check_visible(self, holder: SessionRef, process_ids: Sequence[str]) -> None:
        """Raise ProcessNotVisible for a process that a session has no handle of."""
        await self.registry.check_visible(holder, process_ids)
