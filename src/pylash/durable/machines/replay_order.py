"""The order of a replay: when code may execute an effect that is not recorded.

A run that is executed again may have other code than the one that recorded its journal. Its keys name *which* recorded
effect answers; this module decides *when something new may execute*, so that a renamed step is not executed twice.

Rule 1. A line is a sequence of effects whose order the code decides: the root of a run, a branch, a call with parts of
        its own. Lines form a tree, and the key of an effect names its line.
Rule 2. An effect is requested when its method is called. A recorded effect that was not requested is passed over once
        a later one of its line, or of a line above it, is requested.
Rule 3. A new effect executes when every recorded effect of its line, of the lines above it, and of the lines below those
        which are not open, was requested or was passed over before the new effect was requested.
Rule 4. The line of an agent has an order of model requests only. Its other effects, such as tool calls, are between two
        requests: a new one needs the recorded requests, a new request needs everything.
Rule 5. Notes (decisions, times, messages from the queue), repeated attempts and their delays are never expected: the
        first attempt stands for its step.

"Later" is by the time at which an effect was started. Those times are unique and increase within a run.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Final, TypeAlias

import msgspec

from pylash.durable.effects import EffectKind

ROOT: Final = ""
"""The line of the code of the run itself."""

_COMMAND: Final = ":process:"
_REPEATED: Final = re.compile(
    r"(?:^|[./])(?:delay\.\d+|attempt\.(?!1$)\d+|llm\.\d+|llm(?:\.\d+)?\.pause)$"
)
_TURN_CALL: Final = re.compile(r"i\d+\.c\d+(?=[.:]|$)")

_EXPECTED: Final = frozenset(EffectKind) - {EffectKind.SYNC_EXECUTION_ENVIRONMENT}


class Expected(msgspec.Struct, frozen=True):
    """A recorded effect, in the order of the replay."""

    started: int
    key: str
    # Whether it is a model request: only those are ordered in the line of an agent.
    is_request: bool = False
    # The name for people, None if it is the key.
    name: str | None = None


def is_expected(key: str, kind: str) -> bool:
    """Return whether a recorded effect must be requested or passed over before something new executes."""
    # Most keys have no dot, and a replay reaches thousands of them.
    return kind in _EXPECTED and ("." not in key or _REPEATED.search(key) is None)


def line_of(key: str) -> str:
    """Return the line of an effect. The keys of a turn's tool calls begin with the call.

    >>> line_of("gather.0/fetch#2"), line_of("gather.0:process:wait_signal:go"), line_of("root:process:start:child")
    ('gather.0', 'gather.0', '')
    >>> line_of("i2.c0.attempt.1"), line_of("i2.llm")
    ('i2.c0', '')
    """
    if (call := _TURN_CALL.match(key)) is not None:
        return call[0]
    branch, found, _ = key.partition(_COMMAND)
    if found:
        return ROOT if branch == "root" else branch
    return key.rpartition("/")[0]


class Line:
    """One line: its recorded effects that were not requested yet, and the lines below it."""

    def __init__(self, above: Line | None, *, is_call: bool = False) -> None:
        self.above = above
        # A call has no order among the other calls of its line: a new effect in it does not look at them.
        self.is_call = is_call
        # Whether it is a run of an agent: only its model requests are ordered, and its tool calls run in parallel.
        self.is_agent = False
        # Whether its code runs. An open line is replayed on its own, so the lines above and beside it do not wait for it.
        self.is_open = False
        # The recorded effects, the latest last. Requested ones are removed from the end only, when the end is looked at.
        self.recorded: list[Expected] = []
        # The model requests among them.
        self.requests: list[Expected] = []
        # When the latest effect was started that was requested, 0 before the first. In the line of an agent: request.
        self.reached = 0
        # The lines below that are not open and may have recorded effects which were not requested.
        self.closed: dict[str, Line] = {}
        # Those among them whose effects were all started before ``reached``, which only grows: they are passed over, and
        # matter only to a new effect that was requested before that. Without this, each new effect would look at them.
        self.passed: dict[str, Line] = {}


Missing: TypeAlias = dict[str, tuple[Expected, Line]]
"""Recorded effects and their lines by key, in the order of their starts."""


class ReplayOrder:
    """The recorded effects of a run that its code has not requested yet.

    The run reports what its code asks for and which lines are open, and asks before it executes something new.
    """

    def __init__(self, recorded: Iterable[Expected], known: Container[str] = ()) -> None:
        # The keys of all recorded effects, also of those that are never expected.
        self._known = known
        self._lines: dict[str, Line] = {ROOT: Line(None)}
        self._lines[ROOT].is_open = True
        # The recorded effects that were not requested, and their lines. One that was passed over stays here: it may
        # still be requested.
        self._missing: Missing = {}
        # What was reached in its line when an effect that is not recorded was requested.
        self._reached: dict[str, int] = {}
        # Counts what was requested and which lines were opened and closed: a replay that makes progress changes it.
        self.progress = 0
        # How often each name is recorded in its line, by the key of the first; counted at its first request.
        self._counts: dict[str, int] = {}
        for effect in sorted(recorded, key=_start):
            line = self._line(line_of(effect.key))
            self._missing[effect.key] = effect, line
            line.recorded.append(effect)
            if effect.is_request:
                line.requests.append(effect)
        self._recorded_lines = frozenset(self._lines)
        # The lines that may still have effects which the code reaches.
        self._behind = {name: line for name, line in self._lines.items() if line.recorded}

    @property
    def is_over(self) -> bool:
        """Whether everything that is recorded was requested."""
        return not self._missing

    @property
    def is_behind(self) -> bool:
        """Whether recorded effects are left that the code may still request: neither requested nor passed over."""
        # What a line has reached only grows, so a line that is not behind any more is not looked at again.
        while self._behind:
            name, line = next(iter(self._behind.items()))
            if _latest_of(line.recorded, self._missing) > _reached(line):
                return True
            del self._behind[name]
        return False

    def passed_over(self) -> list[str]:
        """Return the keys of the recorded effects that were passed over, in their order."""
        missing = self._missing.values()
        return [effect.key for effect, line in missing if effect.started < _reached(line)]

    def ask(self, key: str) -> None:
        """Note that the code asks for an effect, recorded or new. Asking again changes nothing."""
        found = self._missing.pop(key, None)
        if found is not None:
            effect, line = found
            if effect.started > line.reached and (effect.is_request or not line.is_agent):
                line.reached = effect.started
            self.progress += 1
        elif key not in self._known:  # else it was requested before, or is never expected
            self._reached.setdefault(key, self._line(line_of(key)).reached)

    def is_recorded(self, key: str) -> bool:
        """Return whether an effect is recorded, so that it is answered at any time and in any order."""
        return key in self._known

    def recorded_count(self, key: str) -> int:
        """Return the number of the last recorded effect whose first one has a key: 3 if ``charge#3`` is recorded, 0 if none is."""
        if not self._counts:
            for one in self._missing:
                first, mark, number = one.rpartition("#")
                counted = (first, int(number)) if mark and number.isdecimal() else (one, 1)
                self._counts[counted[0]] = max(self._counts.get(counted[0], 0), counted[1])
        return self._counts.get(key, 0)

    def has_recorded(self, name: str) -> bool:
        """Return whether an effect of a line, or of a line below it, was recorded before this execution."""
        return name in self._recorded_lines

    def clear(self) -> None:
        """Expect nothing any more."""
        self._missing.clear()

    def open(self, name: str, *, is_call: bool = False, is_agent: bool = False) -> None:
        """Note that the code of a line begins."""
        line = self._line(name)
        line.is_open, line.is_call = True, is_call or line.is_call
        line.is_agent = is_agent
        if line.above is not None:
            line.above.closed.pop(name, None)
            line.above.passed.pop(name, None)
        self.progress += 1

    def close(self, name: str) -> None:
        """Note that the code of a line has ended."""
        line = self._line(name)
        line.is_open = False
        if line.above is not None and _latest(line, self._missing) > 0:
            line.above.closed[name] = line
        self.progress += 1

    def may_execute(self, key: str, *, is_request: bool = False) -> bool:
        """Return whether a new effect may execute now."""
        if self._overdue_for(key, is_request=is_request) is not None:
            return False
        self._reached.pop(key, None)  # it executes: it is not requested again
        return True

    def expected_before(self, key: str, *, is_request: bool = False) -> Expected | None:
        """Return the first recorded effect that must be requested before a new one executes, None if it may execute."""
        # It looks at everything that was not requested, so it is called only where the run stops.
        overdue = self._overdue_for(key, is_request=is_request)
        if overdue is None:
            return None
        line, reached, beside_calls = overdue
        if line.is_agent and not is_request and line is self._line(line_of(key)):
            return self._overdue_request(line, reached)
        return self._overdue(line, reached, beside_calls=beside_calls)

    def _overdue_for(self, key: str, *, is_request: bool) -> tuple[Line, int, bool] | None:
        """Return the line in which something is overdue for a new effect, what it had reached, and if calls count."""
        line = self._line(line_of(key))
        reached = self._reached.get(key, line.reached)
        if line.is_agent and not is_request:
            is_overdue = _latest_of(line.requests, self._missing) > reached
        else:
            is_overdue = self._is_overdue(line, reached, beside_calls=False)
        if is_overdue:
            return line, reached, False
        while line.above is not None:
            beside_calls, line = line.is_call, line.above
            if self._is_overdue(line, line.reached, beside_calls=beside_calls):
                return line, line.reached, beside_calls
        return None

    def expected_at_end(self) -> Expected | None:
        """Return the first recorded effect that must be requested before the run ends, None if it may end."""
        root = self._lines[ROOT]
        return self._overdue(root, root.reached, beside_calls=False)

    def expected_at_rest(self) -> Expected | None:
        """Return a recorded effect that must be requested before any open line executes something new, None if there is none."""
        for line in tuple(self._lines.values()):
            if line.is_open:
                found = self._overdue(line, line.reached, beside_calls=False)
                if found is not None:
                    return found
        return None

    def _overdue_request(self, line: Line, reached: int) -> Expected | None:
        """Return the first model request of an agent that was not requested."""
        if _latest_of(line.requests, self._missing) <= reached:
            return None
        missing = (one for one in line.requests if one.key in self._missing)
        return next(one for one in missing if one.started > reached)

    def _is_overdue(self, line: Line, reached: int, *, beside_calls: bool) -> bool:
        """Return whether a line, or a line below it that is not open, has something that was not requested."""
        if _latest_of(line.recorded, self._missing) > reached:
            return True
        if reached < line.reached and any(
            _latest(below, self._missing) > reached for below in line.passed.values()
        ):
            return True
        for name, below in list(line.closed.items()):
            late = _latest(below, self._missing)
            if late <= line.reached:
                del line.closed[name]
                if late > 0:
                    line.passed[name] = below
            if late > reached and not (beside_calls and below.is_call):
                return True
        return False

    def _overdue(self, line: Line, reached: int, *, beside_calls: bool) -> Expected | None:
        if not self._is_overdue(line, reached, beside_calls=beside_calls):
            return None
        # Only here, where the run stops: otherwise a replay would look at all of them for each new effect.
        return next(
            effect
            for effect, at in self._missing.values()
            if effect.started > reached and _is_in(at, line, beside_calls=beside_calls)
        )

    def _line(self, name: str) -> Line:
        line = self._lines.get(name)
        if line is None:
            is_call = _TURN_CALL.fullmatch(name) is not None
            above = self._line(name.rpartition("/")[0])
            line = self._lines[name] = above.closed[name] = Line(above, is_call=is_call)
        return line


def _start(effect: Expected) -> int:
    return effect.started


def _reached(line: Line) -> int:
    """Return when the latest effect was started that was requested in a line, or in a line above it."""
    reached, above = line.reached, line.above
    while above is not None:
        reached, above = max(reached, above.reached), above.above
    return reached


def _is_in(at: Line | None, line: Line, *, beside_calls: bool) -> bool:
    """Return whether ``at`` is a line, or is below it and not open."""
    while at is not None and at is not line:
        if at.is_open or (beside_calls and at.is_call):
            return False
        at = at.above
    return at is line


def _latest(line: Line, missing: Missing) -> int:
    """Return when the latest effect was started that a line which is not open left behind, 0 if there is none."""
    latest = _latest_of(line.recorded, missing)
    for below in line.closed.values():
        latest = max(latest, _latest(below, missing))
    return latest if latest > line.reached else 0


def _latest_of(recorded: list[Expected], missing: Missing) -> int:
    while recorded and recorded[-1].key not in missing:
        recorded.pop()
    return recorded[-1].started if recorded else 0
