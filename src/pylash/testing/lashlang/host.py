"""The operations of the test host H1."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from pylash.lang.running.hosts import HostCall
from pylash.lang.triggers import InvalidTrigger, Subscription, subscription
from pylash.testing.lashlang.scheduler import Promise, Scheduler

PATIENCE = 500
"""How long a call of `tools.meet` waits for the others, in milliseconds."""


class Failed(Exception):
    """The operation answers with this text or data."""

    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        self.error = error


class Operations:
    """The operations of H1, and a record of their calls."""

    def __init__(self, scheduler: Scheduler, trigger_sources: dict[str, Any]) -> None:
        self.calls: list[HostCall] = []
        self.subscriptions: dict[str, Subscription] = {}
        self._scheduler = scheduler
        self._sources = trigger_sources
        self._meeting: list[Promise] = []
        self._mails = itertools.count(1)
        self._triggers = itertools.count(1)
        self.known: dict[str, Callable[[Any], Any]] = {
            "tools.echo": _echo,
            "tools.add": _add,
            "tools.boom": _boom,
            "tools.crash": _crash,
            "tools.lookup": _lookup,
            "tools.process_echo": _process_echo,
            "mail.send": self._send,
            "triggers.register": self._register,
            "triggers.list": self._list,
            "triggers.cancel": self._cancel,
        }

    def begin(self, call: HostCall) -> Promise:
        """Begin an operation; the promise is kept with its result."""
        self.calls.append(call)
        name = f"{call.path}.{call.operation}"
        if name == "tools.meet":
            return self._meet(call.payload)
        answer = Promise()
        operation = self.known.get(name)
        if operation is None:
            self._scheduler.keep(answer, _failure(f"H1 does not know the operation {name}"))
            return answer
        try:
            self._scheduler.keep(answer, _success(operation(call.payload)))
        except Failed as failed:
            self._scheduler.keep(answer, _failure(failed.error))
        return answer

    def _meet(self, payload: Any) -> Promise:
        answer = Promise()
        wanted = payload.get("n")
        self._meeting.append(answer)
        if len(self._meeting) >= wanted:
            for met in self._meeting:
                self._scheduler.keep(met, _success({"met": wanted}))
            self._meeting.clear()

        def give_up() -> None:
            if not answer.kept:
                self._meeting.remove(answer)
                self._scheduler.keep(answer, _failure("alone"))

        self._scheduler.at(self._scheduler.now + PATIENCE, give_up)
        return answer

    def _send(self, payload: Any) -> Any:
        del payload
        return {"id": f"m-{next(self._mails)}"}

    def _register(self, payload: Any) -> Any:
        try:
            made = subscription(payload, self._sources, f"trigger-{next(self._triggers)}")
        except InvalidTrigger as problem:
            raise Failed(problem.message) from problem
        known = self.subscriptions.get(made.key)
        kept = made.with_id(known.id) if known is not None else made
        self.subscriptions[kept.key] = kept
        return kept.handle()

    def _list(self, payload: Any) -> Any:
        return [each.handle() for each in self.subscriptions.values() if each.listed(payload)]

    def _cancel(self, payload: Any) -> Any:
        key = payload.get("key")
        return {"key": key, "cancelled": self.subscriptions.pop(key, None) is not None}


def _success(value: Any) -> dict[str, Any]:
    return {"ok": True, "value": value}


def _failure(error: Any) -> dict[str, Any]:
    return {"ok": False, "error": error}


def _echo(payload: Any) -> Any:
    if payload.keys() == {"args"}:
        return next(iter(payload["args"]), None)
    return payload


def _add(payload: Any) -> Any:
    left, right = payload.get("a"), payload.get("b")
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        raise Failed("a and b must be numbers")
    return {"sum": left + right}


def _boom(payload: Any) -> Any:
    del payload
    raise Failed("boom")


def _crash(payload: Any) -> Any:
    del payload
    raise Failed({"code": "E1", "n": 2})


def _lookup(payload: Any) -> Any:
    key = payload.get("key")
    if not isinstance(key, str):
        raise Failed("key must be text")
    return {"name": key.upper(), "score": 7}


def _process_echo(payload: Any) -> Any:
    value = payload.get("value")
    return {"payload": f"raw:{value if isinstance(value, str) else ''}"}
