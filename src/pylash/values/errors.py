"""Every error this library raises on purpose.

Rule 1. A leaf class *is* a code: its name in CamelCase, the code in snake_case.
Rule 2. The message is one sentence: what was wrong, where, what to do.
Rule 3. A code, once released, is never renamed; ``docs/reference/errors.md`` lists them all.

The tree says who must act:

* LashError
  - Misuse            you: the call, the value or the configuration must change
  - StoreError        the world: the database is away, full, foreign or too new
  - WaitError         the other side of a wait
  - DurabilityError   someone else owns the work, or the record says otherwise; never recorded
  - (no category)     outcomes of effects: they are recorded and replayed
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from pylash.values.secrets import shown_url

_CODES: dict[str, type[LashError]] = {}


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class LashError(Exception):
    """An error with a stable ``code``, a sentence for people and optional ``data``.

    >>> raise LashError("The card was declined.", code="card_declined")
    Traceback (most recent call last):
    pylash.values.errors.LashError: The card was declined. [card_declined]
    """

    default_code: ClassVar[str] = "lash_error"
    final: bool = False

    def __init_subclass__(cls, *, category: bool = False) -> None:
        super().__init_subclass__()
        if not category:
            cls.default_code = _snake(cls.__name__)
            _CODES[cls.default_code] = cls

    def __init__(self, message: str, *, code: str | None = None, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    @staticmethod
    def restore(code: str, message: str, data: Any = None) -> LashError:
        """Return the error a record describes, as the class its code names."""
        cls = _CODES.get(code, LashError)
        error = cls.__new__(cls)
        LashError.__init__(error, message, code=code, data=data)
        return error

    @staticmethod
    def codes() -> dict[str, type[LashError]]:
        """Return every code of this library with its class."""
        return dict(_CODES)


class Misuse(LashError, category=True):
    """The call, the value or the configuration must change."""


class StoreError(LashError, category=True):
    """The database is away, full, foreign or too new."""


class WaitError(LashError, category=True):
    """A wait that cannot be opened, awaited or answered."""


class DurabilityError(LashError, category=True):
    """Someone else owns the work, or the record says otherwise.

    Never recorded as the outcome of an effect: the run stops, and another attempt continues it.
    """


# --- misuse ---


class MissingExecutionScopeId(Misuse):
    """A scope has a blank id."""

    def __init__(self, scope_type: str, field: str) -> None:
        super().__init__(
            f"An execution scope of type {scope_type!r} needs a {field} that is not blank: "
            "it is the stable name under which the work is recorded."
        )


class InvalidExecutionScope(Misuse):
    """Something else was given where a scope is needed."""

    def __init__(self, given: object) -> None:
        super().__init__(
            f"A scope is needed and {given!r} is none: use ProcessScope, TurnScope, QueueDrainScope, "
            "SessionDeleteScope or RuntimeOperationScope."
        )


class InvalidResolution(Misuse):
    """Something else was given where the end of a wait is needed."""

    def __init__(self, given: object) -> None:
        super().__init__(
            f"A wait is answered with Ok(value), Err(code, message), Timeout() or Cancelled(), "
            f"and {given!r} is none of them."
        )


class EffectNested(Misuse):
    """An effect was asked for inside another one."""

    def __init__(self, inner: str, outer: str) -> None:
        super().__init__(
            f"Effect {inner!r} was asked for inside effect {outer!r}, which is recorded as a whole: "
            "ask for them one after the other."
        )


class InvalidAwaitEventWaitIdentity(Misuse):
    """A wait identity is none, has a blank part, or an ordinal below 1."""

    def __init__(self, given: object, field: str | None = None) -> None:
        if field is None:
            sentence = f"{given!r} is none: use ToolCompletion, ProcessSignal or CustomWait."
        else:
            wanted = "of at least 1" if field == "ordinal" else "that is not blank"
            sentence = f"one of type {given!r} needs a {field} {wanted}."
        super().__init__(f"A wait needs an identity, and {sentence}")


class NameInvalid(Misuse):
    """A name is blank, too long, or holds what cannot be stored."""

    def __init__(self, what: str, name: object, reason: str) -> None:
        shown = repr(name)
        if len(shown) > 100:
            shown = f"{shown[:80]}… ({len(shown):,} characters)"
        super().__init__(f"Invalid {what} {shown}: {reason}.")


class ReplayKeyInvalid(NameInvalid):
    """A replay key that no database could hold."""


class MissingReplayKey(Misuse):
    """An envelope without a replay key reached a durable host."""

    def __init__(self, effect_id: str) -> None:
        super().__init__(
            f"Effect {effect_id!r} has no replay key, so a durable host could not find it again: "
            "build its invocation with one."
        )


class RuntimeEffectWrongOutcome(Misuse):
    """An executor answered a command with another command's outcome."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"Expected the outcome of {expected}, got the outcome of {actual}.")


class RuntimeEffectLocalExecutorMismatch(Misuse):
    """A local executor was given a command that is not its own."""

    def __init__(self, executor: object, kind: str) -> None:
        if isinstance(executor, str):
            sentence = f"The {executor} executor cannot run a {kind} command."
        else:
            sentence = (
                f"A {kind} command needs a local executor and {executor!r} is none: "
                "wrap a function with step_executor(...)."
            )
        super().__init__(sentence)


class RuntimeEffectLocalExecutorUnavailable(Misuse):
    """Nothing here can run the command."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"No local executor is available for a {kind} command.")


class ValueNotJson(Misuse):
    """A value would not come back from its JSON as it was."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"The value at {path} cannot be recorded: {reason}.", data={"path": path})


class PayloadTooLarge(Misuse):
    """A payload is over the limit."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"The payload has {size:,} bytes and the limit is {limit:,}: "
            "keep large data outside and record a reference to it."
        )


class DurationInvalid(Misuse):
    """A duration that is no text such as '2d', no number of seconds and no timedelta."""

    def __init__(self, duration: object) -> None:
        super().__init__(
            f"The duration {duration!r} is not understood: write '500ms', '30s', '5m', '2h', '3d' or "
            "'1w', or give seconds or a timedelta that are not negative."
        )


class StoreUrlInvalid(Misuse):
    """A store URL that no driver understands."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"The store URL {shown_url(url)!r} {reason}: use 'memory://', 'sqlite:///path/to/file.db' "
            "or 'postgresql://user@host/database'."
        )


class ExtraMissing(Misuse):
    """A feature needs a package of an extra that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the extra {extra!r}: install it with pip install 'pylash[{extra}]'."
        )


class AgentNotDurable(Misuse):
    """An agent of another library that cannot be made durable as it is."""

    def __init__(self, agent: str | None, reason: str) -> None:
        which = "An agent without a name" if agent is None else f"Agent {agent!r}"
        super().__init__(f"{which} cannot be made durable: {reason}")


class SecretInvalid(Misuse):
    """A signing secret that is empty or too short."""

    def __init__(self, minimum: int) -> None:
        super().__init__(
            f"A secret that signs wait keys needs at least {minimum} bytes: "
            'make one with python -c "import secrets; print(secrets.token_hex(32))".'
        )


class RecordingEffectHostUnsupportedCommand(Misuse):
    """The recording host was asked for an outcome it cannot invent."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"The recording effect host cannot make up the outcome of a {kind} command."
        )


# --- the world ---


class StoreUnavailable(StoreError):
    """The database cannot be reached, or went away and did not come back."""


class StorePathUnwritable(StoreError):
    """The database file cannot be created or written."""


class StoreNotADatabase(StoreError):
    """The file exists and is something else."""


class StoreMissing(StoreError):
    """There is no store where one was to be looked at."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"There is no store at {path!r}, {reason}: check the path; an app makes its store when it "
            "is opened for the first time."
        )


class StoreFull(StoreError):
    """The disk, or the database's own limit, is full; nothing of the operation was written."""


class StoreBusy(StoreError):
    """Others hold the database, or keep changing the same rows, for longer than we wait."""


class StoreRefused(StoreError):
    """The database refused what it was asked, as it would again; nothing of it was written."""


class StoreClosed(StoreError):
    """The store was used before it was opened or after it was closed."""

    def __init__(self) -> None:
        super().__init__("The store or its host is closed: use it inside its async with block.")


class StoreSchemaTooNew(StoreError):
    """The database was written by newer code that this code must not touch."""

    def __init__(self, min_code: int, known: int) -> None:
        super().__init__(
            f"The database needs code that knows schema {min_code}, and this pylash knows up to "
            f"{known}: upgrade pylash."
        )


class StoreSchemaOutdated(StoreError):
    """The database must be migrated first."""

    def __init__(self, found: int, wanted: int) -> None:
        super().__init__(
            f"The database has schema {found} and this pylash needs {wanted}: "
            "run pylash migrate, or open the store once with migrate=True."
        )


class StoreSchemaUnknown(StoreError):
    """The database has not the columns of the schema that it says it has."""

    def __init__(self, schema: int, table: str, column: str) -> None:
        super().__init__(
            f"The database says that it has schema {schema}, and its table {table} has no column {column}: "
            "it was made by a version of pylash between two releases, or changed by other means. Use the "
            "version that made it, or begin with a new store."
        )


# --- waits ---


class AwaitEventUnsupported(WaitError):
    """The host has no waits."""

    def __init__(self) -> None:
        super().__init__("This effect host does not support waits for outside events.")


class AwaitEventUnknownOrRevoked(WaitError):
    """The key is not ours, was tampered with, or its session revoked it."""

    def __init__(self) -> None:
        super().__init__("The wait key is unknown, was tampered with or has been revoked.")


# --- durability: never recorded ---


class LeaseLost(DurabilityError):
    """Another worker owns the run now; nothing was written."""

    def __init__(self, scope: str) -> None:
        super().__init__(
            f"The lease on {scope} was lost: another worker owns the run, and nothing was written."
        )


class LeaseHeld(DurabilityError):
    """The scope is being executed by a live worker elsewhere."""

    def __init__(self, scope: str, owner: str) -> None:
        super().__init__(
            f"The run of {scope} belongs to worker {owner!r}, which is alive: try again when it has "
            "ended, or stop that process."
        )


class RunSettled(DurabilityError):
    """The run has ended: what is recorded can be read, and nothing new is started."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"The run of {scope} has ended, so nothing new can be started in it.")


class EffectReplayMismatch(DurabilityError):
    """The journal remembers another effect under this key."""

    def __init__(self, key: str, difference: str) -> None:
        super().__init__(
            f"The effect {key!r} was recorded for something else ({difference}): deploy code that asks "
            "for the same thing under this key, or give what is new a new key.",
            data={"key": key, "difference": difference},
        )

    @staticmethod
    def read(message: str) -> dict[str, str] | None:
        """Return the key and the difference that a message of this error tells of."""
        start, quote = "The effect ", message[11:12]
        middle, end = f"{quote} was recorded for something else (", message.rfind("): deploy ")
        key_end = message.rfind(middle, len(start) + 1, max(end, 0))
        if not message.startswith(start) or quote not in ("'", '"') or key_end < 0:
            return None
        return {
            "key": message[len(start) + 1 : key_end],
            "difference": message[key_end + len(middle) : end],
        }


class JournalFull(DurabilityError):
    """A run has recorded more effects than one journal may hold."""

    def __init__(self, scope: str, limit: int) -> None:
        super().__init__(
            f"{scope} has recorded {limit:,} effects, the most one run may hold: "
            "continue it as a fresh run before it grows this long."
        )


# --- outcomes of effects: recorded and replayed ---


class RuntimeEffectSleepCancelled(LashError):
    """A sleep was cancelled before its time."""

    def __init__(self) -> None:
        super().__init__("The sleep was cancelled before its time was over.")


class Plugin(LashError):
    """A plugin failed inside an effect."""


class RuntimeStore(LashError):
    """A store failed inside an effect."""


class EffectFailed(LashError):
    """An effect other than a step failed with an exception that has no code of its own."""


class AgentCallFailed(LashError):
    """A model or a tool of another library's agent failed with an exception that cannot be made again."""


class StepFailed(LashError):
    """A step failed with an exception of its own; live and replayed it is always this class.

    It has the failure's own code if that has one. ``type_name`` is the class of the exception the step raised.
    """

    type_name = "StepFailed"

    def __init__(self, code: str, message: str, type_name: str, data: Any = None) -> None:
        super().__init__(message, code=code, data=data)
        self.type_name = type_name

    def __str__(self) -> str:
        return f"{self.type_name}: {super().__str__()}"


class PluginError(Exception):
    """Raised by a plugin; an effect that fails with it is recorded under the code ``plugin``."""
