"""The base of every error that this library raises on purpose, and the errors of effects, stores, waits and runs.

Rule 1. A leaf class *is* a code: its name in CamelCase, the code in snake_case.
Rule 2. The message is one sentence: what is wrong, with the value; then what to do.
Rule 3. A code, once released, is never renamed; ``docs/reference/errors.md`` lists them all.
Rule 4. The message of an outcome is data: code that catches it can pass it to its next effect, and a replay compares
        that effect with its record. Reword outcomes only where every replay reads the message from the record.

The tree shows where the cause is:

* LashError
  - Misuse            the caller: the call, the value or the configuration must change
  - StoreError        the database: it is unreachable, full, foreign or too new
  - WaitError         the waiting or the resolving side of a wait
  - DurabilityError   the run stops: another worker owns it, or its record differs; never recorded
  - (no category)     outcomes of effects: they are recorded and replayed

Most classes are only a template (see ``FormattedError``), which is also their documentation.
"""

from __future__ import annotations

import copyreg
import re
from string import Formatter
from typing import Any, ClassVar

from pylash.values.secrets import shown_url

_CODES: dict[str, type[LashError]] = {}


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class LashError(Exception):
    """An error with a stable ``code``, a ``message`` and optional ``data``.

    >>> raise LashError("The card was declined.", code="card_declined")
    Traceback (most recent call last):
    pylash.values.errors.LashError: The card was declined. [card_declined]
    """

    default_code: ClassVar[str] = "lash_error"
    final: bool = False
    """Whether the failed operation must not be retried."""

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

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies skip the constructor: it takes the values of the message, which are not kept.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    @staticmethod
    def restore(code: str, message: str, data: Any = None) -> LashError:
        """Return the error that a record describes, as the class that its code names."""
        cls = _CODES.get(code, LashError)
        error = cls.__new__(cls)
        LashError.__init__(error, message, code=code, data=data)
        return error

    @staticmethod
    def codes() -> dict[str, type[LashError]]:
        """Return every code of this library with its class."""
        return dict(_CODES)


class FormattedError(LashError, category=True):
    """An error whose class states its message as a format string, filled from the arguments.

    A class with several fields lists them in the order of its arguments, so that rewording a template cannot swap two
    of them: ``class LeaseHeld(DurabilityError, fields="scope reason")``.
    """

    template: ClassVar[str] = "{message}"
    fields: ClassVar[tuple[str, ...]] = ("message",)

    def __init_subclass__(cls, *, category: bool = False, fields: str = "") -> None:
        super().__init_subclass__(category=category)
        if "template" in vars(cls):
            used = dict.fromkeys(name for _, name, _, _ in Formatter().parse(cls.template) if name)
            cls.fields = tuple(fields.split() if len(used) > 1 else used)
            cls.__doc__ = cls.__doc__ or cls.template
            if set(cls.fields) != set(used):
                raise TypeError(
                    f"{cls.__name__} must list the fields of its template: {list(used)}"
                )

    def __init__(self, *values: object, data: Any = None) -> None:
        if len(values) != len(self.fields):
            wanted = ", ".join(self.fields)
            raise TypeError(f"{type(self).__name__}({wanted}) was called with {len(values)} values")
        named = dict(zip(self.fields, values, strict=True))
        super().__init__(self.template.format_map(named), data=data)


class Misuse(FormattedError, category=True):
    """The call, the value or the configuration must change."""


class StoreError(FormattedError, category=True):
    """The database is unreachable, full, foreign or too new."""


class WaitError(FormattedError, category=True):
    """A wait that cannot be opened, awaited or resolved."""


class DurabilityError(FormattedError, category=True):
    """Another worker owns the run, or its record differs.

    Never recorded as the outcome of an effect: the run stops, and another attempt continues it.
    """


# --- misuse ---


class MissingExecutionScopeId(Misuse, fields="scope_type field"):
    template = "The execution scope of type {scope_type!r} has a blank {field}: pass an id, because its effects are recorded under it."


class InvalidExecutionScope(Misuse):
    template = "Expected an execution scope such as ProcessScope or TurnScope, got {given!r}."


class InvalidResolution(Misuse):
    template = "Invalid resolution {given!r}: use Ok(…), Err(…), Timeout() or Cancelled()."


class EffectNested(Misuse, fields="inner outer"):
    template = "Effect {inner!r} was requested inside effect {outer!r}: run one after the other."


class InvalidAwaitEventWaitIdentity(Misuse):
    """A wait identity of a wrong type, with a blank part, or with an ordinal below 1."""

    def __init__(self, given: object, field: str | None = None) -> None:
        if field is None:
            wanted = "use ToolCompletion, ProcessSignal or CustomWait"
            super().__init__(f"Expected a wait identity, got {given!r}: {wanted}.")
        else:
            wanted = "at least 1" if field == "ordinal" else "text that is not blank"
            super().__init__(
                f"Invalid wait identity of type {given!r}: its {field} must be {wanted}."
            )


class NameInvalid(Misuse, fields="what name reason"):
    template = "Invalid {what} {name}: {reason}."

    def __init__(self, what: str, name: object, reason: str) -> None:
        shown = repr(name)
        if len(shown) > 100:
            shown = f"{shown[:80]}… ({len(shown):,} characters)"
        super().__init__(what, shown, reason)


class ReplayKeyInvalid(NameInvalid):
    """A replay key that no database can store."""


class MissingReplayKey(Misuse):
    template = "Effect {effect_id!r} has no replay key: durable hosts need one to find its record."


class RuntimeEffectWrongOutcome(Misuse, fields="expected actual"):
    template = "Expected the outcome of {expected}, got the outcome of {actual}."


class RuntimeEffectLocalExecutorMismatch(Misuse):
    """A local executor cannot run the command, or another object was passed as one."""

    def __init__(self, executor: object, kind: str) -> None:
        if isinstance(executor, str):
            super().__init__(f"The {executor} executor cannot run a {kind} command.")
        else:
            wrap = "wrap a function with step_executor(...)"
            super().__init__(
                f"Expected a local executor for a {kind} command, got {executor!r}: {wrap}."
            )


class RuntimeEffectLocalExecutorUnavailable(Misuse):
    template = "No local executor is available for a {kind} command."


class ValueNotJson(Misuse, fields="path reason"):
    template = "The value at {path} cannot be recorded: {reason}."

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason, data={"path": path})


class PayloadTooLarge(Misuse, fields="size limit"):
    template = "The payload has {size:,} bytes and the limit is {limit:,}: record a reference to large data instead."


class DurationInvalid(Misuse):
    template = (
        "Invalid duration {duration!r}: write '500ms', '30s', '5m', '2h', '3d' or '1w', or pass a non-negative "
        "number of seconds or timedelta."
    )


class StoreUrlInvalid(Misuse, fields="url reason"):
    template = (
        "The store URL {url!r} {reason}: use 'memory://', 'sqlite:///path/to/file.db' or "
        "'postgresql://user@host/database'."
    )

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(shown_url(url), reason)


class ExtraMissing(Misuse, fields="feature extra"):
    template = (
        "{feature} needs the extra {extra!r}: install it with pip install 'pylash[{extra}]', or from a clone of pylash "
        "with pip install '.[{extra}]'."
    )


class AgentNotDurable(Misuse):
    """An agent of another library that cannot be made durable as it is."""

    def __init__(self, agent: str | None, reason: str) -> None:
        which = "An agent without a name" if agent is None else f"Agent {agent!r}"
        super().__init__(f"{which} cannot be made durable: {reason}")


class SecretInvalid(Misuse):
    template = (
        "The secret that signs wait keys is too short: it needs at least {minimum} bytes. Generate one with "
        'python -c "import secrets; print(secrets.token_hex(32))".'
    )


class RecordingEffectHostUnsupportedCommand(Misuse):
    template = "The recording effect host cannot invent the outcome of a {kind} command."


# --- stores ---


class StoreUnavailable(StoreError):
    """The database is unreachable, or the connection was lost and did not come back."""


class StorePathUnwritable(StoreError):
    """The database file cannot be created or written."""


class StoreNotADatabase(StoreError):
    """The file exists and is not a database."""


class StoreMissing(StoreError, fields="path reason"):
    template = "There is no store at {path!r} ({reason}): check the path; an app creates its store when first opened, and pylash migrate an empty one."


class StoreFull(StoreError):
    """The disk, or the database's own limit, is full; nothing of the operation was written."""


class StoreBusy(StoreError):
    """Other connections hold a lock, or keep changing the same rows, for longer than we wait."""


class StoreRefused(StoreError):
    """The database rejected the operation and would reject it again; nothing of it was written."""


class StoreClosed(StoreError):
    template = "The store or its host is closed: use it inside its 'async with' block."


class StoreSchemaTooNew(StoreError, fields="min_code known"):
    template = "The database needs code for schema {min_code}, and this pylash knows up to {known}: upgrade pylash."


class StoreSchemaOutdated(StoreError, fields="found wanted"):
    template = "The database has schema {found}, not {wanted}: run pylash migrate, or open the store with migrate=True."


class StoreSchemaUnknown(StoreError, fields="schema table column"):
    template = (
        "The database claims schema {schema}, but its table {table} has no column {column}: a pylash between two "
        "releases created it, or another program changed it. Use the version that created it, or start with a new "
        "store."
    )


# --- waits ---


class AwaitEventUnsupported(WaitError):
    template = "This effect host does not support waits for external events."


class AnswerInvalid(WaitError):
    template = "The answer does not fit: {reason}; the wait stays open, so correct the answer."


class WaitKeyInvalid(WaitError):
    template = (
        "{given!r} is not the key of a wait: pass the whole key, such as the key of app.waits(), which begins with v1. "
        "On the command line, the ID that pylash waits shows is enough."
    )


class AwaitEventUnknownOrRevoked(WaitError):
    template = "The wait key is unknown, was tampered with or has been revoked: app.waits() and pylash waits list the open ones."


# --- durability: never recorded ---


class LeaseLost(DurabilityError):
    template = "The lease on {scope} was lost: another worker owns the run; nothing was written."


class LeaseHeld(DurabilityError, fields="scope reason"):
    template = "The run of {scope} cannot be taken over: {reason}."


class RunSettled(DurabilityError):
    template = "The run of {scope} has ended, so nothing new can be started in it."


class EffectReplayMismatch(DurabilityError, fields="key difference"):
    # ``read`` parses stored messages: everything up to "): deploy " must stay as it is.
    template = (
        "The effect {key!r} was recorded for something else ({difference}): deploy code that requests the same effect "
        "under this key, or use a new key for a new effect."
    )

    def __init__(self, key: str, difference: str) -> None:
        super().__init__(key, difference, data={"key": key, "difference": difference})

    @staticmethod
    def read(message: str) -> dict[str, str] | None:
        """Return the key and the difference in a message of this error, None if it is not one."""
        start, quote = "The effect ", message[11:12]
        middle, end = f"{quote} was recorded for something else (", message.rfind("): deploy ")
        key_end = message.rfind(middle, len(start) + 1, max(end, 0))
        if not message.startswith(start) or quote not in ("'", '"') or key_end < 0:
            return None
        return {
            "key": message[len(start) + 1 : key_end],
            "difference": message[key_end + len(middle) : end],
        }


class EffectReplayDiverged(DurabilityError, fields="requested expected recorded advice"):
    template = "The code {requested} where {expected} is expected, which was recorded at {recorded}: {advice}."

    def __init__(
        self, requested: str, expected: str, recorded: str, advice: str, *, key: str
    ) -> None:
        data = {"expected": key, "recorded": recorded}
        super().__init__(requested, expected, recorded, advice, data=data)


class EffectAbandoned(DurabilityError):
    template = (
        "The code cancelled its wait for {name!r}, as asyncio.timeout and wait_for do, and a replay cannot repeat that: "
        "use timeout= of the call, or ctx.race with ctx.sleep, then deploy and retry."
    )


class JournalFull(DurabilityError, fields="scope limit"):
    template = "{scope} has recorded {limit:,} effects, the limit of one run: continue the work in a new run earlier."


# --- outcomes of effects: recorded and replayed ---


class RuntimeEffectSleepCancelled(FormattedError):
    template = "The sleep was cancelled before its time was over."


class Plugin(LashError):
    """A plugin failed inside an effect."""


class RuntimeStore(LashError):
    """A store failed inside an effect."""


class EffectFailed(LashError):
    """An effect other than a step failed with an exception that has no code of its own."""


class AgentCallFailed(LashError):
    """A model or a tool of another library's agent failed with an exception that cannot be rebuilt."""


class StepFailed(LashError):
    """A step failed with an exception of its own; live and replayed it is always this class.

    Its code is that of the exception, if it has one. ``type_name`` is the class of the exception.
    """

    type_name = "StepFailed"

    def __init__(self, code: str, message: str, type_name: str, data: Any = None) -> None:
        super().__init__(message, code=code, data=data)
        self.type_name = type_name

    def __str__(self) -> str:
        return f"{self.type_name}: {super().__str__()}"


class PluginError(Exception):
    """Raised by a plugin; an effect that fails with it is recorded under the code ``plugin``."""
