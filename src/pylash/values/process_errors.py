"""The errors of processes, triggers and the app.

The tree is that of ``errors``: what you must change first, then outcomes that are recorded.
"""

from __future__ import annotations

from typing import Any

from pylash.values.errors import DurabilityError, LashError, Misuse, NameInvalid

# --- misuse ---


class MissingProcessExecutionId(NameInvalid):
    """A process's id is blank, or cannot be stored."""


class ProcessOriginatorInvalid(Misuse):
    """A process was created by a session without a name."""

    def __init__(self, process_id: str) -> None:
        super().__init__(
            f"Process {process_id!r} is missing a structured owner scope: name the session it was "
            "started by, or none."
        )


class ProcessConflict(Misuse):
    """The id belongs to a process with other input."""

    def __init__(self, process_id: str) -> None:
        super().__init__(
            f"Process {process_id!r} was started before with other input: use another id, or the same "
            "target and arguments."
        )


class ProcessArgumentsInvalid(Misuse):
    """The arguments of a Lashlang process are not its parameters, or do not fit their types."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"Process {name!r} can't be started with these arguments: {reason}.")


class ProcessNotInModule(Misuse, KeyError):
    """A Lashlang module has no process of that name."""

    def __init__(self, name: str, known: str) -> None:
        super().__init__(f"The module has no process {name!r} (it has: {known}).")


class SurfaceInvalid(Misuse):
    """The description of what a host offers to Lashlang programs cannot be used."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"The surface cannot be used: {where}: {reason}.")


class ProcessSurfaceIncompatible(DurabilityError):
    """A Lashlang process needs tools that this app does not have, or has otherwise."""

    def __init__(self, name: str, missing: str) -> None:
        super().__init__(
            f"Process {name!r} can't run here: {missing}; run it where the tools it was linked with are."
        )


class ProcessStumbled(DurabilityError):
    """The runtime failed while it executed a process, and the process's code is not to blame."""

    def __init__(self, process: str, reason: str) -> None:
        super().__init__(f"{process} could not go on ({reason}): this is a fault of pylash.")


class WorkflowFailed(LashError, category=True):
    """A Lashlang process ended in a failure, with a code of its own."""

    def __init__(self, code: str, message: str, raw: Any = None) -> None:
        super().__init__(message, code=code, data=raw)


class ProcessUnknown(Misuse):
    """There is no process of that id."""

    def __init__(self, process_id: str) -> None:
        super().__init__(f"There is no process {process_id!r} in this store: check the id.")


class ProcessEnded(Misuse):
    """The process has ended and takes nothing more."""

    def __init__(self, process_id: str) -> None:
        super().__init__(f"Process {process_id!r} has ended, so it takes no more events.")


class ProcessEventInvalid(Misuse):
    """An event that the process never declared, or whose payload does not fit."""

    def __init__(self, process_id: str, kind: str, reason: str) -> None:
        super().__init__(f"Process {process_id!r} takes no event {kind!r}: {reason}.")


class ProcessEventConflict(Misuse):
    """The key of an event belongs to another payload."""

    def __init__(self, process_id: str, key: str) -> None:
        super().__init__(
            f"Process {process_id!r} has another event under the key {key!r}: use a new key for a new "
            "event."
        )


class SignalNameInvalid(NameInvalid):
    """A signal's name is blank, or cannot be stored."""


class ProcessRegistryUnavailable(Misuse):
    """There is no process registry here."""

    def __init__(self) -> None:
        super().__init__(
            "The process registry is unavailable: open the app with a store before using processes."
        )


class ProcessNotVisible(Misuse):
    """A session has no handle of the process."""

    def __init__(self, process_id: str, session_id: str) -> None:
        super().__init__(
            f"Session {session_id!r} has no handle of process {process_id!r}: grant or transfer it one."
        )


class DurableStoreRequired(Misuse):
    """A durable effect host over a store that is not durable."""

    def __init__(self, facet: str) -> None:
        super().__init__(
            f"A durable effect host needs a durable {facet}, and this one ends with the process: use a "
            "sqlite:/// or postgresql:// store, or an inline host.",
            data={"facet": facet},
        )


class StaticScopesRequired(Misuse):
    """A worker cannot use a host without static scopes."""

    def __init__(self) -> None:
        super().__init__(
            "The process worker's effect host must provide a static process scope: use a host that does, "
            "or open the app with worker=None."
        )


class EffectOutsideBranch(Misuse):
    """A context was used from a task that its run did not start."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was called from a task that this process did not start, so its replay could differ: "
            "pass the coroutine to ctx.gather, ctx.race or ctx.task_group instead."
        )


class AppInsideProcess(Misuse):
    """The app was used inside a process."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"app.{name} was called inside a process, where it would run again on every replay: "
            f"use the process's ctx, or call it in a step."
        )


class AppNotOpen(Misuse):
    """The app was used before it was opened or after it was closed."""

    def __init__(self) -> None:
        super().__init__("The app is not open: use it inside 'async with app:'.")


class NotAProcess(Misuse):
    """Something else was given where a process is needed."""

    def __init__(self, given: object) -> None:
        super().__init__(
            f"{given!r} is no process: decorate an async function whose first parameter is "
            "a ProcessContext with @app.process, and use what that gives (a name is not enough)."
        )


class NameTaken(Misuse):
    """Two processes, or two tools, are declared under one name."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"There is another {kind} {name!r} already: what is recorded finds it by its name, so "
            "give one of them another with name=."
        )


class NameAmbiguous(Misuse):
    """Two tools, or two triggers, have the same name in Lashlang."""

    def __init__(self, new: str, other: str, shared: str) -> None:
        super().__init__(
            f"{new} and {other} are both {shared} in Lashlang: give one of them another name."
        )


class ArgumentsInvalid(Misuse):
    """Arguments do not fit the signature they are for."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"The arguments of {name} do not fit: {reason}.")


class NotSupported(Misuse):
    """Something that the interface names and this version does not do yet."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"{what} is not supported yet: {instead}.")


class ToolUnknown(Misuse):
    """There is no tool of that name."""

    def __init__(self, name: str, known: str) -> None:
        super().__init__(f"There is no tool {name!r} (known: {known}): check the name.")


class TriggerUnknown(Misuse):
    """An event type that no trigger declares."""

    def __init__(self, name: str, known: str) -> None:
        super().__init__(
            f"There is no trigger {name!r} (declared: {known}): declare it with app.trigger(...)."
        )


class TriggerSourceNotGranted(LashError):
    """A program of a session subscribes to a source that the app has not granted to the session."""

    def __init__(self, session_id: str, name: str, source_key: str) -> None:
        super().__init__(
            f"The session {session_id!r} may not subscribe to {name} from {source_key!r}: the app has not "
            f"granted it this source (app.trigger({name!r}, sessions=...))."
        )


class TriggerConflict(Misuse):
    """The key of a subscription or occurrence belongs to another one."""

    def __init__(self, what: str, key: str) -> None:
        super().__init__(
            f"The key {key!r} belongs to another {what}: use a new key for what is new."
        )


class NotBlocked(Misuse):
    """Only a blocked run can be retried."""

    def __init__(self, name: str, state: str, kind: str = "Process") -> None:
        another = "another turn_id" if kind == "Turn" else "another id"
        instead = f": do it again under {another}" if state == "failed" else ""
        super().__init__(
            f"{kind} {name!r} is {state}, not blocked, so there is nothing to retry{instead}."
        )


class ForkInvalid(Misuse):
    """A fork from an effect that the process never recorded."""

    def __init__(self, process_id: str, effect: str) -> None:
        super().__init__(
            f"Process {process_id!r} has no recorded effect {effect!r} to fork from: take a key of its "
            "timeline."
        )


# --- outcomes: recorded and replayed ---


class RuntimeEffectProcessTaskJoin(LashError):
    """The task that worked on the process registry broke."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The work on the process registry broke: {reason}.")


class StepTimeout(LashError):
    """A step took longer than its timeout."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(
            f"The step {name!r} took longer than {seconds:g} s: it was ended, or its thread left behind."
        )


class WaitTimeout(LashError):
    """Nobody answered a wait in time."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Nobody answered the wait {name!r} in time.")


class ProcessSignalWaitTimeout(WaitTimeout):
    """No signal of the name came in time."""

    def __init__(self, name: str) -> None:
        LashError.__init__(self, f"No signal {name!r} came in time.")


class ProcessSignalWaitCancelled(LashError):
    """A wait for a signal was cancelled."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The wait for the signal {name!r} was cancelled.")


class WaitFailed(LashError):
    """A wait was answered with an error."""


class ProcessRecoveryFailed(LashError):
    """A process that can never run: what it was captured with is missing or damaged."""

    def __init__(self, process_id: str, reason: str) -> None:
        super().__init__(f"Process {process_id!r} cannot run: {reason}.")


class ProcessTimeout(LashError):
    """A process took longer than its timeout."""

    def __init__(self, process_id: str) -> None:
        super().__init__(f"Process {process_id!r} took longer than its timeout allows.")


class ResultInvalid(LashError):
    """A process or step returned something other than it declares."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"The result of {name} does not fit its annotation: {reason}.")


class ProcessFailed(LashError):
    """The process failed; ``failure`` keeps its class, code, message and raw value."""

    def __init__(self, process_id: str, failure: Any) -> None:
        super().__init__(
            f"Process {process_id!r} failed with {failure.failure_class}: {failure.message}",
            code=failure.code,
            data={
                "class": failure.failure_class,
                "code": failure.code,
                "message": failure.message,
                "raw": failure.raw,
            },
        )
        self.failure = failure


class ProcessCancelled(LashError):
    """The process was cancelled."""

    def __init__(self, process_id: str, reason: str | None = None) -> None:
        why = f": {reason}" if reason else ""
        super().__init__(f"Process {process_id!r} was cancelled{why}.")
        self.reason = reason


class ProcessBlocked(LashError):
    """The process is blocked, and the time to wait for it is over."""

    def __init__(self, process_id: str, reason: str) -> None:
        if reason == "unknown_target":
            advice = (
                "no worker that is alive knows it: start one that does, and it goes on by itself"
            )
        elif reason == "crash_loop":
            advice = (
                "its worker died, or its event loop was blocked for longer than its lease, ten times "
                f"without progress: mend that, then call app.retry({process_id!r})"
            )
        else:
            advice = f"mend the cause, then call app.retry({process_id!r})"
        super().__init__(f"Process {process_id!r} is blocked ({reason}): {advice}.")
        self.reason = reason
