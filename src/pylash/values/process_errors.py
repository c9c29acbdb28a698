"""The errors of the app, processes, triggers and the command line.

The tree is that of ``errors``: misuse first, then outcomes that are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pylash.values.errors import (
    DurabilityError,
    FormattedError,
    LashError,
    Misuse,
    NameInvalid,
    StoreError,
    WaitError,
)

TRACEBACK: Final = "Traceback (most recent call last):\n"


def split_reason(reason: str) -> tuple[str, str | None]:
    """Return why a run is blocked, and the traceback of its code, if that is in the reason."""
    stated, _, trace = reason.partition(f"\n{TRACEBACK}")
    return stated, trace or None


# --- misuse: the app ---


class AppNotOpen(Misuse):
    template = "The app is not open: use it inside 'async with app:'."


class AppInsideProcess(Misuse):
    template = "app.{name} was called inside a process, where every replay repeats it: use its ctx, or call it in a step."


class DurableStoreRequired(Misuse):
    template = (
        "A durable effect host needs a durable {facet}, and this one is lost when the program ends: use a sqlite:/// "
        "or postgresql:// store, or an inline host."
    )

    def __init__(self, facet: str) -> None:
        super().__init__(facet, data={"facet": facet})


class StaticScopesRequired(Misuse):
    template = (
        "The process worker's effect host must provide a static process scope: use a host that does, or open the app "
        "with worker=None."
    )


class EndpointInvalid(Misuse, fields="url reason"):
    template = (
        "The endpoint {url!r} cannot be used: {reason}. Give the address at which Restate reaches this worker, such as "
        "http://10.0.0.7:9080."
    )


class EndpointMissing(Misuse):
    template = (
        "Restate has no address for this worker: give one with --endpoint URL, or in the code with "
        "RestateHost(endpoint=...), such as http://10.0.0.7:9080."
    )


class EndpointTaken(Misuse, fields="address reason"):
    template = "The worker cannot listen at {address}: {reason}. Choose another address with --bind or bind=."


class EndpointUnreachable(StoreError, fields="url admin reason"):
    template = (
        "Restate at {admin} cannot reach this worker at {url}: {reason}. Give an endpoint that is right on the machine "
        "of Restate (localhost is not, if that is another one), and serve it with HTTP/2."
    )


class RestateUrlInvalid(Misuse, fields="option url reason"):
    template = (
        "{option}={url!r} is not that of a Restate server: {reason}. By default its ingress is http://localhost:8080, "
        "and its admin http://localhost:9070."
    )


class RestateUnavailable(StoreError, fields="url reason"):
    template = "Restate at {url} did not answer: {reason}. Is it running, and is the address right?"


class RestateRefused(StoreError, fields="url status reason"):
    template = "Restate refused a call of {url} with status {status}: {reason}"


class HostInUse(Misuse):
    template = "This RestateHost belongs to another app that is open: create one for each app."


class StoreOfOthers(DurabilityError, fields="run"):
    template = (
        "Run {run} belongs to another store: all workers of a Restate server must use one store, in a database that all of "
        "them reach."
    )


class NotSupported(Misuse, fields="what instead"):
    template = "{what} is not supported yet: {instead}."


class NameTaken(Misuse, fields="kind name option"):
    template = "There is already another {kind} {name!r}: records refer to it by name, so choose another with {option}."

    @staticmethod
    def by_rename(name: str) -> LashError:
        """Return the error of code that uses a name which ``renamed=`` gives as an old one."""
        message = (
            f"The code uses {name!r}, which renamed= gives as an old name: the order is {{old: new}}, so write the "
            "recorded name first; a new effect needs a name that is not recorded."
        )
        return LashError.restore(NameTaken.default_code, message)


class NameAmbiguous(Misuse, fields="new other shared"):
    template = "{new} and {other} are both {shared} in Lashlang: give one of them another name."


class ArgumentsInvalid(Misuse, fields="name reason"):
    template = "The arguments of {name} do not fit: {reason}."


class ToolUnknown(Misuse, fields="name known"):
    template = "There is no tool {name!r} (known: {known}): check the name."


# --- misuse: processes ---


class MissingProcessExecutionId(NameInvalid):
    """A process id is blank, or cannot be stored."""


class SignalNameInvalid(NameInvalid):
    """A signal name is blank, or cannot be stored."""


class NotAProcess(Misuse):
    template = (
        "Expected a process, got {given!r}: decorate an async function whose first parameter is a ProcessContext with "
        "@app.process, and pass the result (a name is not enough)."
    )


class ProcessContextMissing(Misuse, fields="name reason"):
    template = (
        "Process {name!r} takes no context ({reason}): make its first parameter a ProcessContext, as in "
        "async def {name}(ctx: ProcessContext[None], ...)."
    )


class ProcessUnknown(Misuse):
    template = "There is no process {process_id!r} in this store: check the id."


class ProcessEnded(Misuse):
    template = "Process {process_id!r} has ended, so it takes no more events."


class ProcessConflict(Misuse):
    template = "Process {process_id!r} was started before with other input: use another id, or the same target and arguments."


class ProcessOriginatorInvalid(Misuse):
    template = "Process {process_id!r} has an originator with a blank session id: name its session, or pass None."


class ProcessArgumentsInvalid(Misuse, fields="name reason"):
    template = "Process {name!r} cannot be started with these arguments: {reason}."


class ProcessNotInModule(Misuse, KeyError, fields="name known"):
    template = "The module has no process {name!r} (it has: {known})."


class ProcessEventInvalid(Misuse, fields="process_id kind reason"):
    template = "Process {process_id!r} does not accept the event {kind!r}: {reason}."


class ProcessEventConflict(Misuse, fields="process_id key"):
    template = "Process {process_id!r} has another event under the key {key!r}: use a new key for a new event."


class ProcessRegistryUnavailable(Misuse):
    template = "The process registry is unavailable: open the app with a store to use processes."


class ProcessNotVisible(Misuse, fields="process_id session_id"):
    template = "Session {session_id!r} has no handle of process {process_id!r}: grant it one, or transfer one to it."


class ReplayRefused(DurabilityError, fields="run reason"):
    template = (
        "The effects of {run} are not in the order in which they were recorded: {reason}. Deploy code that asks for the "
        "same effects in the same order, then retry it."
    )


class JournalGone(Misuse):
    template = "Restate has deleted what it recorded for {process_id!r}, as it does some time after the end of a process: start a new process."


class EffectOutsideStep(Misuse):
    template = (
        "The code of a process used the network, a file or a thread between two calls of ctx, which Restate cannot "
        "replay: do it in a step, await ctx.step(function, ...)."
    )


class EffectOutsideBranch(Misuse):
    template = (
        "{name} was called from a task that this process did not start, so its replay could differ: pass the coroutine "
        "to ctx.gather, ctx.race or ctx.task_group instead."
    )


class SurfaceInvalid(Misuse, fields="where reason"):
    template = "The surface cannot be used: {where}: {reason}."


class NotBlocked(Misuse):
    """Only a blocked run can be retried."""

    def __init__(self, name: str, state: str, kind: str = "Process") -> None:
        instead = ""
        if state == "failed" and kind == "Turn":
            instead = ": start it again under another turn_id"
        elif state == "failed":
            instead = (
                f": continue from what it recorded with pylash fork {name}, or app.fork_process"
            )
        super().__init__(
            f"{kind} {name!r} is {state}, not blocked, so there is nothing to retry{instead}."
        )


class ForkInvalid(Misuse, fields="process_id effect"):
    template = "Process {process_id!r} has no recorded effect {effect!r} to fork from: use a name in pylash show {process_id}, or a key."


class ExportInvalid(Misuse, fields="name reason"):
    template = "{name!r} cannot be used: {reason}."


class ImportConflict(Misuse, fields="kind id"):
    template = "The store has a {kind} {id!r} already, so nothing was imported: an import never changes what is there."


class ImportIncomplete(Misuse, fields="id missing"):
    template = "{id!r} needs {missing}, which is neither in the file nor in the store: export it with --children."


class ImportWithoutSecrets(Misuse, fields="name count"):
    template = (
        "{name!r} lacks {count} recorded values that looked like secrets, so it can be replayed and not continued: "
        "export it with --keep-secrets."
    )


# --- misuse: triggers ---


class TriggerUnknown(Misuse, fields="name known"):
    template = "There is no trigger {name!r} (declared: {known}): declare it with app.trigger(...)."


class TriggerConflict(Misuse, fields="what key"):
    template = "The key {key!r} belongs to another {what}: use a new key for a new {what}."


# --- misuse: the command line ---


class AppInvalid(Misuse, fields="named reason"):
    template = "The app {named!r} cannot be used: {reason}. Name a Lash as module:variable, such as shop:app."


class RunUnknown(Misuse):
    template = "There is no process, turn or session {text!r} in this store: see pylash ps."


class AppNeeded(Misuse, fields="id engine"):
    template = "The effects of {id!r} are recorded by {engine}: use its app, on the command line with --store MODULE:APP."


class RunAmbiguous(Misuse, fields="text found"):
    template = "{text!r} is ambiguous ({found}): write one of them in full."

    def __init__(self, text: str, found: Sequence[str]) -> None:
        super().__init__(text, ", ".join(map(repr, found[:5])) + (", …" if len(found) > 5 else ""))


class NothingToCancel(Misuse):
    template = "{name!r} has no turn that is running, waiting or blocked: nothing was cancelled."


class AlreadyResolved(WaitError):
    template = "The wait has already ended ({how}), so nothing was changed."


# --- durability: never recorded ---


class ProcessSurfaceIncompatible(DurabilityError, fields="name missing"):
    template = "Process {name!r} cannot run here: {missing}; run it in an app with the tools it was linked with."


class ProcessCodeError(DurabilityError, fields="process_id problem"):
    template = (
        "The code of process {process_id!r} cannot continue it ({problem}): deploy code that can, then retry; "
        "@app.process(block_on=()) fails the process instead."
    )


class ProcessDataInvalid(DurabilityError, fields="process_id what problem"):
    template = (
        "Process {process_id!r} has recorded {what} that its code does not accept ({problem}): deploy code that accepts "
        "it, then retry."
    )


class ProcessStumbled(DurabilityError, fields="process reason"):
    template = "{process} could not continue ({reason}): this is a bug in pylash."


# --- outcomes: recorded and replayed ---


class WorkflowFailed(LashError, category=True):
    """A Lashlang process ended in a failure, with a code of its own."""

    def __init__(self, code: str, message: str, raw: Any = None) -> None:
        super().__init__(message, code=code, data=raw)


class TriggerSourceNotGranted(FormattedError, fields="session_id name source_key"):
    template = (
        "The session {session_id!r} may not subscribe to {name} from {source_key!r}: the app has not granted it this "
        "source (app.trigger({name!r}, sessions=...))."
    )


class RuntimeEffectProcessTaskJoin(FormattedError):
    template = "The work on the process registry broke: {reason}."


class StepTimeout(FormattedError, fields="name seconds"):
    template = (
        "The step {name!r} took longer than {seconds:g} s: it was ended, or its thread left behind."
    )


class WaitTimeout(FormattedError):
    template = "Nobody answered the wait {name!r} in time."


class ProcessSignalWaitTimeout(WaitTimeout):
    template = "No signal {name!r} came in time."


class ProcessSignalWaitCancelled(FormattedError):
    template = "The wait for the signal {name!r} was cancelled."


class WaitFailed(LashError):
    """A wait was resolved with an error."""


class ProcessRecoveryFailed(FormattedError, fields="process_id reason"):
    template = "Process {process_id!r} cannot run: {reason}."


class ProcessTimeout(FormattedError):
    template = "Process {process_id!r} took longer than its timeout allows."


class ResultInvalid(FormattedError, fields="name reason"):
    template = "The result of {name} does not fit its annotation: {reason}."


class ProcessFailed(LashError):
    """The process failed; ``failure`` keeps its class, code, message and raw value."""

    def __init__(self, process_id: str, failure: Any) -> None:
        super().__init__(
            f"Process {process_id!r} failed with {failure.failure_class}: {failure.message}",
            code=failure.code,
            data=failure.payload,
        )
        self.failure = failure


class ProcessCancelled(LashError):
    """The process was cancelled."""

    def __init__(self, process_id: str, reason: str | None = None) -> None:
        why = f": {reason}" if reason else ""
        super().__init__(f"Process {process_id!r} was cancelled{why}.")
        self.reason = reason


class ProcessBlocked(FormattedError, fields="process_id reason advice"):
    """The process is still blocked at the end of the caller's timeout."""

    template = "Process {process_id!r} is blocked ({reason}): {advice}."

    def __init__(self, process_id: str, reason: str) -> None:
        reason = split_reason(reason)[0]
        if reason == "unknown_target":
            advice = "no live worker has its code: start one that does, and the process continues"
        elif reason == "crash_loop":
            advice = (
                "its worker died, or its event loop was blocked for longer than its lease, ten times "
                f"without progress: fix that, then call app.retry({process_id!r})"
            )
        else:
            advice = f"fix the cause, then call app.retry({process_id!r})"
        super().__init__(process_id, reason, advice)
        self.reason = reason
