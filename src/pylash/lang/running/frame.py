"""The effects of a running body, under keys that are the same in every execution.

1. Counters of occurrences, events, sleeps, waits and signals are only here: running the body again from its
   start produces the same counts.
2. Arguments are evaluated, counted and converted to plain JSON before the host is asked for an effect.
3. Another process can be reached only through a handle. Data from outside (results, signals, JSON) contains
   no handles, whatever it looks like.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple

from pylash.lang.running.data import (
    List,
    Record,
    Resource,
    RunError,
    Value,
    from_json,
    handle_id,
    handle_ids,
    kind_of,
    process_handle,
    shaped_id,
    size_of,
    text_of,
    to_json,
)
from pylash.lang.running.hosts import HostCall, HostFailed, Refused, Surroundings
from pylash.lang.running.meter import Meter, TooLong
from pylash.lang.running.moments import instant, milliseconds
from pylash.lang.running.operators import unwrap
from pylash.lang.stack import deep

_PATIENCE: Final = 16
"""How often a function may check the bounds before it is moved to a thread: some milliseconds."""


class Failed(Exception):
    """A process ended by `fail`."""

    def __init__(self, value: Value, text: str) -> None:
        super().__init__(text)
        self.value = value


class Site(NamedTuple):
    """A place in an entry that has an effect."""

    node: str
    kind: str
    label: str


class Leaf(NamedTuple):
    """A leaf of an aggregate: the index of its value, how often it is unwrapped, and its node."""

    number: int
    unwraps: int
    at: int


class Shape(NamedTuple):
    """An awaited literal: its kind, its parts, and for a record their keys."""

    kind: type
    parts: tuple[Shape | Leaf, ...]
    keys: tuple[str, ...] = ()


class Frame:
    """The effects of one execution of main or of a process."""

    def __init__(
        self,
        around: Surroundings,
        meter: Meter,
        scope: str,
        sites: Mapping[int, Site],
        children: Mapping[str, dict[str, str]],
        *,
        shapes_are_handles: bool = False,
    ) -> None:
        """Create the frame; with `shapes_are_handles` every record that looks like a handle is one.

        An execution that an older version began under this rule must continue under it.
        """
        self._host = around.host
        self._modules = around.modules
        self._traced = around.traced
        self._breathe = around.breathe
        self._apart = around.apart
        self._meter = meter
        self._scope = scope
        self._sites = sites
        self._children = children
        self._handle_id = shaped_id if shapes_are_handles else handle_id
        self._occurrences: dict[int, int] = {}
        self._waits: dict[str, int] = {}
        self._steps: list[tuple[int, int]] = []
        self._events = self._sleeps = self._signals = self._looks = 0

    # Sites.

    def _reach(self, site: int) -> int:
        occurrence = self._occurrences.get(site, 0) + 1
        self._occurrences[site] = occurrence
        return occurrence

    def _tell(self, event: str, site: int, occurrence: int, **more: Any) -> None:
        if self._traced:
            node, kind, label = self._sites[site]
            told = {
                "event": event,
                "node_id": node,
                "kind": kind,
                "label": label,
                "occurrence": occurrence,
            }
            self._host.trace({**told, **more})

    @contextmanager
    def _node(self, site: int) -> Iterator[int]:
        occurrence = self._reach(site)
        self._tell("node_started", site, occurrence)
        try:
            yield occurrence
        except RunError as error:
            self._tell("node_failed", site, occurrence, error=error.message)
            raise
        except HostFailed as error:
            self._tell("node_failed", site, occurrence, error=str(error))
            raise RunError("host_failed", str(error)) from error
        finally:
            self._meter.resume()
        self._tell("node_completed", site, occurrence)

    def open_step(self, site: int) -> None:
        """Begin a labelled statement."""
        occurrence = self._reach(site)
        self._steps.append((site, occurrence))
        self._tell("node_started", site, occurrence)

    def close_steps(self, number: int) -> None:
        """End labelled statements that control leaves, the innermost first."""
        for _ in range(number):
            self._tell("node_completed", *self._steps.pop())

    def leave(self, error: str | None) -> None:
        """End all labelled statements: the body ended in an error, or by `fail`."""
        while self._steps and error is not None:
            site, occurrence = self._steps.pop()
            self._tell("node_failed", site, occurrence, error=error)
        self.close_steps(len(self._steps))

    def branch(self, site: int, chosen: bool, then: str, otherwise: str) -> bool:
        """Report which arm is taken."""
        node = self._sites[site].node
        selected, arm = ("then", then) if chosen else ("else", otherwise)
        event = {"event": "branch_selected", "node_id": node, "occurrence": self._reach(site)}
        self._host.trace({**event, "selected": selected, "arm_id": arm})
        return chosen

    async def compute(self, function: Callable[..., Value], *arguments: Value) -> Value:
        """Call a function of the program; if it takes long, start it again outside the event loop.

        It is pure, so starting it again changes nothing.
        """
        meter = self._meter
        if self._apart is None:
            return deep(function, meter, *arguments)
        before = meter.state()
        meter.looks = _PATIENCE
        try:
            return deep(function, meter, *arguments)
        except TooLong:
            meter.back(before)
        finally:
            meter.looks = inf
        try:
            return await self._apart(partial(deep, function, meter, *arguments))
        except BaseException:
            meter.stop()
            raise

    async def tick(self) -> None:
        """Check the bounds, and sometimes let other tasks run."""
        self._meter.tick()
        self._looks += 1
        if self._breathe is not None and not self._looks % 32:
            await self._breathe()

    # Operations.

    def pending(self, site: int, path: str, name: str, arguments: tuple[Value, ...]) -> HostCall:
        """Return an operation whose arguments are evaluated."""
        if len(arguments) == 1 and type(arguments[0]) is Record:
            payload: Value = arguments[0]
        else:
            payload = Record(args=List(arguments))
        self._meter.leaving(payload)
        occurrence = self._reach(site)
        node = self._sites[site].node
        key = f"{self._scope}:op:{path}.{name}:{node}:{occurrence}"
        handles = handle_ids(payload)
        return HostCall(key, path, name, to_json(payload), node, occurrence, handles)

    def pending_on(
        self, site: int, receiver: Value, name: str, arguments: tuple[Value, ...]
    ) -> HostCall:
        """Return an operation of the module that a resource value names."""
        if type(receiver) is not Resource or self._modules.get(receiver.alias) != receiver.type:
            named = receiver.alias if type(receiver) is Resource else f"a {kind_of(receiver)}"
            raise RunError(
                "unknown_resource", f"`{name}` needs a module of this host, found {named}"
            )
        return self.pending(site, receiver.alias, name, arguments)

    async def operate(self, site: int, call: HostCall) -> Value:
        """Perform one operation and return its result."""
        return (await self._perform([(site, call)]))[0]

    async def _perform(self, calls: list[tuple[int, HostCall]]) -> list[Value]:
        for site, call in calls:
            self._tell("node_started", site, call.occurrence)
        try:
            answers = await self._host.call([call for _, call in calls])
            results = [_result(answer) for answer in answers]
        except (HostFailed, RunError) as error:
            for site, call in calls:
                self._tell("node_failed", site, call.occurrence, error=str(error))
            if isinstance(error, RunError):
                raise
            raise RunError("host_failed", str(error)) from error
        finally:
            self._meter.resume()
        for (site, call), result in zip(calls, results, strict=True):
            if result["ok"]:
                self._tell("node_completed", site, call.occurrence)
            else:
                self._tell("node_failed", site, call.occurrence, error=text_of(result["error"]))
        return results

    # Awaiting.

    async def aggregate(
        self, site: int, shape: Shape, leaves: tuple[Any, ...], sites: tuple[int, ...]
    ) -> Value:
        """Perform the calls among the leaves as one batch, await the handles in the other leaves, build the shape."""
        settled = list(leaves)
        calls = [number for number, leaf in enumerate(leaves) if type(leaf) is HostCall]
        if calls:
            results = await self._perform([(sites[number], leaves[number]) for number in calls])
            for number, result in zip(calls, results, strict=True):
                settled[number] = result
        others = List(leaf for leaf in leaves if type(leaf) is not HostCall)
        awaited = iter(await self.await_value(site, others))
        settled = [
            item if type(leaf) is HostCall else next(awaited)
            for leaf, item in zip(leaves, settled, strict=True)
        ]
        return _built(shape, settled)

    async def await_value(self, site: int, value: Value) -> Value:
        """Replace the handles in a value, at any depth, with the results of their processes."""
        self._meter.leaving(value)
        occurrence = self._reach(site)
        handles: list[str] = []
        self._find_handles(value, handles)
        if not handles:
            return value
        node = self._sites[site].node
        results: list[Value] = []
        for number, process_id in enumerate(handles):
            key = f"{self._scope}:await:{node}:{occurrence}:{number}"
            try:
                results.append(_result(await self._host.await_process(key, process_id)))
            except HostFailed as error:
                raise RunError("host_failed", str(error)) from error
            finally:
                self._meter.resume()
        return self._with_results(value, iter(results))

    def _find_handles(self, value: Value, found: list[str]) -> None:
        process_id = self._handle_id(value)
        if process_id is not None:
            found.append(process_id)
        elif type(value) is List or type(value) is tuple:
            for item in value:
                self._find_handles(item, found)
        elif type(value) is Record:
            for item in value.values():
                self._find_handles(item, found)

    def _with_results(self, value: Value, results: Iterator[Value]) -> Value:
        if self._handle_id(value) is not None:
            return next(results)
        if type(value) is List or type(value) is tuple:
            return type(value)([self._with_results(item, results) for item in value])
        if type(value) is Record:
            return Record({key: self._with_results(item, results) for key, item in value.items()})
        return value

    # Processes.

    async def start(self, site: int, process: str, arguments: Record) -> Value:
        """Start a process of this module and return its handle."""
        self._meter.leaving(arguments)
        with self._node(site) as occurrence:
            node = self._sites[site].node
            digest = hashlib.sha256(f"{self._scope}\n{node}\n{occurrence}".encode()).hexdigest()
            proposed = f"lash-{digest[:32]}"
            key = f"{self._scope}:start:{node}:{occurrence}"
            try:
                handles, args = handle_ids(arguments), to_json(arguments)
                process_id = await self._host.start(key, proposed, process, args, handles)
            except Refused as error:
                raise RunError("start_failed", f"could not start `{process}`: {error}") from error
            if self._traced:
                child = {"process_id": process_id, **self._children[process]}
                event = {"event": "child_started", "node_id": node, "occurrence": occurrence}
                self._host.trace({**event, "child": child})
        return process_handle(process_id)

    def _process_id(self, word: str, handle: Value) -> str:
        process_id = self._handle_id(handle)
        if process_id is None:
            found = f"a {kind_of(handle)}"
            if shaped_id(handle) is not None:
                found = (
                    "a record that looks like one; a handle comes from `start` or from an argument"
                )
            raise RunError("not_a_handle", f"`{word}` needs the handle of a process, found {found}")
        return process_id

    async def cancel(self, site: int, handle: Value) -> None:
        """Ask a process to stop."""
        process_id = self._process_id("cancel", handle)
        key = f"{self._scope}:cancel:{self._sites[site].node}:{self._reach(site)}"
        try:
            await self._host.cancel(key, process_id)
        except HostFailed as error:
            raise RunError("host_failed", str(error)) from error
        finally:
            self._meter.resume()

    async def emit(self, site: int, word: str, value: Value) -> None:
        """`yield` or `wake`."""
        self._meter.leaving(value)
        payload = {"value": to_json(value), "text": self._meter.text(value)}
        key = f"{self._scope}:event:{self._events}"
        self._events += 1
        with self._node(site):
            await self._host.event(key, f"process.{word}", payload)

    # Time and signals.

    async def sleep_for(self, site: int, duration: Value) -> None:
        """`sleep for`."""
        ms = milliseconds(duration)
        with self._node(site):
            await self._host.sleep(self._sleep_key(), ms=ms)

    async def sleep_until(self, site: int, time: Value) -> None:
        """`sleep until`."""
        until = instant(time)
        with self._node(site):
            await self._host.sleep(self._sleep_key(), until=until)

    def _sleep_key(self) -> str:
        self._sleeps += 1
        return f"{self._scope}:sleep:{self._sleeps - 1}"

    async def wait_signal(
        self, site: int, name: str, within: Value = None, limited: bool = False
    ) -> Value:
        """`wait signal`."""
        limit = milliseconds(within) if limited else None
        self._waits[name] = number = self._waits.get(name, 0) + 1
        with self._node(site):
            key = f"{self._scope}:wait:signal.{name}:{number}"
            taken, payload = await self._host.wait_signal(key, name, limit)
            return from_json(payload) if taken else None

    async def send_signal(self, site: int, handle: Value, name: str, payload: Value) -> None:
        """`signal run`."""
        process_id = self._process_id("signal run", handle)
        self._meter.leaving(payload)
        key = f"{self._scope}:signal:{self._signals}"
        self._signals += 1
        with self._node(site):
            try:
                await self._host.send_signal(key, process_id, name, to_json(payload))
            except Refused as error:
                raise RunError(
                    "signal_failed", f"could not send the signal `{name}`: {error}"
                ) from error

    # Ends and observations.

    def observe(self, value: Value) -> None:
        """`print`."""
        self._meter.leaving(value)
        size = size_of(value)
        self._meter.room(size)
        self._meter.used += size
        self._host.print(to_json(value))

    def finish(self, site: int, value: Value) -> Value:
        """`finish`."""
        self._meter.leaving(value)
        with self._node(site):
            return value

    def finish_cell(self, site: int, value: Value) -> tuple[bool, Value, str]:
        """`finish` in main: returns the value and its text for people."""
        self._meter.leaving(value)
        text = self._meter.text(value)
        return True, self.finish(site, value), text

    def fail(self, site: int, value: Value) -> None:
        """`fail`."""
        self._meter.leaving(value)
        text = self._meter.text(value)
        with self._node(site):
            pass
        raise Failed(value, text)


def _result(answer: Mapping[str, Any]) -> Record:
    if answer["ok"]:
        return Record(ok=True, value=from_json(answer["value"]))
    error = from_json(answer["error"])
    return Record(ok=False, error=text_of(error))


def _built(shape: Shape | Leaf, settled: list[Value]) -> Value:
    if isinstance(shape, Leaf):
        value = settled[shape.number]
        try:
            for _ in range(shape.unwraps):
                value = unwrap(value)
        except RunError as error:
            error.at = shape.at
            raise
        return value
    parts = [_built(part, settled) for part in shape.parts]
    return (
        Record(zip(shape.keys, parts, strict=True)) if shape.kind is Record else shape.kind(parts)
    )
