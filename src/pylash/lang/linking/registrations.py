"""Linking of `triggers.register(…)`, the only operation whose argument the linker inspects.

1. The argument is a literal, so that the process that a trigger starts is known before anything runs.
2. `trigger.event` is valid only here, as the whole value of an input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pylash.lang.linking.body import Refusal, Typed, choice, nearest
from pylash.lang.linking.expressions import Expressions
from pylash.lang.static_types import ANY, NULL, STR, show_type
from pylash.lang.tree import (
    Expression,
    Field,
    Method,
    Name,
    Node,
    Parameter,
    ProcessName,
    RecordField,
    RecordLiteral,
    RecordType,
    Text,
    TriggerEvent,
    Type,
    TypeField,
    TypeName,
    UnionType,
)

_NEEDED = ("source", "target", "inputs")
_FIELDS = (*_NEEDED, "name", "key")
_TEXT = UnionType((STR, NULL))
_EXAMPLE = "write `{ source: …, target: …, inputs: { … } }`"


class Registrations(Expressions):
    """Links registrations of triggers."""

    def register(self, node: Method) -> tuple[Expression, ...]:
        """Return the linked argument of a registration."""
        if len(node.arguments) != 1 or not isinstance(node.arguments[0], RecordLiteral):
            for each in node.arguments:
                self.expression(each)
            raise self._invalid(node, "`triggers.register` takes one literal record", _EXAMPLE)
        record = node.arguments[0]
        linked = {id(field): self._value(field) for field in record.fields}
        given = {field.key: (field.value, linked[id(field)]) for field in record.fields}
        self._check_fields(record)
        event = self._check_source(*given["source"])
        process = self._check_target(*given["target"])
        self._check_inputs(*given["inputs"], process, event)
        self._check_texts(given)
        fields = tuple(
            self.program.put(RecordField(field.key, linked[id(field)].node), field)
            for field in record.fields
        )
        return (self.program.put(RecordLiteral(fields), record),)

    def _value(self, field: RecordField) -> Typed:
        """Link a field; in the literal of `inputs`, `trigger.event` may be a whole value."""
        if field.key != "inputs" or not isinstance(field.value, RecordLiteral):
            return self.expression(field.value)
        put = self.program.put
        given = [(each, self._mapped(each.value)) for each in field.value.fields]
        inputs = tuple(put(RecordField(each.key, value.node), each) for each, value in given)
        types = (TypeField(each.key, value.type, optional=False) for each, value in given)
        return Typed(put(RecordLiteral(inputs), field.value), RecordType(tuple(types)))

    def _mapped(self, node: Expression) -> Typed:
        if self._is_event(node):
            return Typed(self.program.put(TriggerEvent(), node), ANY)
        return self.expression(node)

    def _is_event(self, node: Expression) -> bool:
        match node:
            case Field(Name("trigger"), "event"):
                return "trigger" not in self.bindings
        return False

    def _invalid(self, at: Node, message: str, hint: str | None = None) -> Refusal:
        return self.refusal(at, "invalid_trigger_registration", message, hint)

    def _check_fields(self, record: RecordLiteral) -> None:
        for field in record.fields:
            if field.key not in _FIELDS:
                message = f"a trigger registration has no field `{field.key}`"
                hint = nearest(field.key, _FIELDS) or choice("fields", _FIELDS)
                raise self._invalid(field, message, hint)
        for field in _repeated(record.fields):
            message = f"the field `{field.key}` of a trigger registration is given twice"
            raise self._invalid(field, message)
        missing = set(_NEEDED) - {field.key for field in record.fields}
        for name in _NEEDED:
            if name in missing:
                message = f"a trigger registration needs the field `{name}`"
                raise self._invalid(record, message, _EXAMPLE)

    def _check_source(self, parsed: Expression, source: Typed) -> Type:
        """Return the type of the events of a source: `any` for an unknown source."""
        head = self.types.head(source.type)
        if ANY in self.types.members(source.type):
            return ANY
        sources = self.program.surface.trigger_sources
        if not isinstance(head, TypeName) or head.name not in sources:
            raise self.refusal(
                parsed,
                "invalid_trigger_source",
                f"the `source` of a trigger must be a trigger source, not `{show_type(source.type)}`",
                choice("trigger sources", sources),
            )
        self.program.requires.trigger_source(head.name)
        return self.program.seen(sources[head.name])

    def _check_target(self, parsed: Expression, target: Typed) -> str:
        if not isinstance(target.node, ProcessName):
            raise self.refusal(
                parsed,
                "invalid_trigger_target",
                "the `target` of a trigger must be the name of a process of this module",
                choice("processes", self.program.processes),
            )
        return target.node.name

    def _check_inputs(self, inputs: Expression, linked: Typed, process: str, event: Type) -> None:
        """Check that every parameter is given once, and that one of them is the event."""
        if not isinstance(inputs, RecordLiteral) or not isinstance(linked.type, RecordType):
            raise self.refusal(
                inputs,
                "invalid_trigger_inputs",
                "the `inputs` of a trigger must be a literal record",
                "write each parameter, as in `{ ev: trigger.event }`",
            )
        for field in _repeated(inputs.fields):
            message = f"the input `{field.key}` of a trigger is given twice"
            raise self.refusal(field, "invalid_trigger_inputs", message)
        parameters = {each.name: each for each in self.program.processes[process].parameters}
        for field in inputs.fields:
            if field.key not in parameters:
                message = f"process `{process}` has no parameter `{field.key}`"
                hint = nearest(field.key, parameters) or choice("parameters", parameters)
                raise self.refusal(field, "unknown_trigger_input", message, hint)
        for field, known in zip(inputs.fields, linked.type.fields, strict=True):
            if self._is_event(field.value):
                self._check_event(field, parameters[field.key], process, event)
            else:
                expected = parameters[field.key].type
                self.check_process_argument(process, field.key, field.value, known.type, expected)
        self._check_complete(inputs, parameters, process)

    def _check_event(
        self, field: RecordField, parameter: Parameter, process: str, event: Type
    ) -> None:
        if not self.types.assignable(event, parameter.type):
            raise self.refusal(
                field.value,
                "trigger_event_mismatch",
                f"parameter `{field.key}` of process `{process}` must be `{show_type(parameter.type)}`, "
                f"but the event is `{show_type(event)}`",
            )

    def _check_complete(
        self, inputs: RecordLiteral, parameters: Iterable[str], process: str
    ) -> None:
        given = {field.key for field in inputs.fields}
        for name in parameters:
            if name not in given:
                message = f"the inputs of the trigger do not include the parameter `{name}` of process `{process}`"
                raise self.refusal(inputs, "missing_trigger_input", message)
        if not any(self._is_event(field.value) for field in inputs.fields):
            message = "the inputs of the trigger do not include the event: pass `trigger.event` to a parameter"
            raise self.refusal(inputs, "missing_trigger_event", message)

    def _check_texts(self, given: dict[str, tuple[Expression, Typed]]) -> None:
        if "name" in given and not self.types.overlap(given["name"][1].type, _TEXT):
            raise self._invalid(given["name"][0], "the `name` of a trigger must be text")
        if "key" not in given:
            return
        parsed, key = given["key"]
        if isinstance(parsed, Text):
            wrong = not parsed.value or parsed.value.startswith("derived/")
        else:
            wrong = not self.types.overlap(key.type, _TEXT)
        if wrong:
            raise self.refusal(
                parsed,
                "invalid_trigger_key",
                "the `key` of a trigger must be text that is not empty and does not start with `derived/`",
            )


def _repeated(fields: Iterable[RecordField]) -> Iterator[RecordField]:
    seen: set[str] = set()
    for field in fields:
        if field.key in seen:
            yield field
        seen.add(field.key)
