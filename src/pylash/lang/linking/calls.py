"""Everything that is called: functions, builtins, operations, constructors, processes.

1. A call is checked in this order: ability, purity, the callee's name, the operands from left to right,
   the call as a whole.
2. Variables never hide functions, and a variable that is not a resource never hides a module's operations.
"""

from __future__ import annotations

from collections.abc import Sequence

from pylash.lang.linking.body import Body, Refusal, Typed, choice, nearest
from pylash.lang.linking.literals import wrong_literal
from pylash.lang.linking.misfits import misfit
from pylash.lang.linking.operators import field_type
from pylash.lang.linking.signatures import SIGNATURES
from pylash.lang.parsing.hints import CALLED
from pylash.lang.parsing.tokens import MAX_SHOWN
from pylash.lang.static_types import ANY, NULL, show_type
from pylash.lang.surface import TRIGGERS, OperationSurface
from pylash.lang.tree import (
    Argument,
    Call,
    CallBuiltin,
    CallFunction,
    Construct,
    Expression,
    Field,
    FunctionDeclaration,
    ListType,
    Method,
    Name,
    Node,
    Operation,
    ReceiverOperation,
    RecordType,
    Start,
    TupleLiteral,
    Type,
    TypeName,
)

_FEW = 3
"""How many fields a hint lists."""


class Calls(Body):
    """Links calls."""

    def register(self, node: Method) -> tuple[Expression, ...]:
        """Return the linked arguments of a trigger registration."""
        raise NotImplementedError

    # name(…)

    def call(self, node: Call) -> Typed:
        """Link `name(…)`."""
        if node.name in self.program.functions:
            return self._function(node, self.program.functions[node.name])
        if node.name in SIGNATURES:
            return self._builtin(node)
        paths = sorted(
            f"{path}.{name}"
            for path, module in self.program.modules().items()
            for name, operation in module.operations.items()
            if node.name in (name, operation.id)
        )
        if paths:
            message = f"tools must be called through module paths, e.g. `{paths[0]}`"
            raise self.refusal(node, "bare_tool_call", message)
        hint = CALLED.get(node.name) or nearest(node.name, {*SIGNATURES, *self.program.functions})
        raise self.refusal(node, "unknown_function", f"unknown function `{node.name}`", hint)

    def _function(self, node: Call, declared: FunctionDeclaration) -> Typed:
        arguments = [self.expression(each) for each in node.arguments]
        if len(arguments) != len(declared.parameters):
            raise self._count(node, node.name, str(len(declared.parameters)))
        for parsed, given, parameter in zip(
            node.arguments, arguments, declared.parameters, strict=True
        ):
            self.check_fits(
                parsed,
                given.type,
                parameter.type,
                "incompatible_function_argument",
                f"argument `{parameter.name}` of function `{node.name}`",
            )
        linked = CallFunction(node.name, tuple(each.node for each in arguments))
        return Typed(self.program.put(linked, node), declared.result)

    def _builtin(self, node: Call) -> Typed:
        arguments = [self.expression(each) for each in node.arguments]
        signature = SIGNATURES[node.name]
        if not signature.takes(len(arguments)):
            raise self._count(node, node.name, signature.counts(), self._listed(node))
        for index, (parsed, given) in enumerate(zip(node.arguments, arguments, strict=True)):
            expected = signature.parameter(index)
            if not self.types.overlap(given.type, expected):
                raise self.refusal(
                    parsed,
                    "incompatible_builtin_argument",
                    f"argument {index + 1} of `{node.name}` must be `{show_type(expected)}`, "
                    f"not `{show_type(given.type)}`",
                )
        linked = CallBuiltin(node.name, tuple(each.node for each in arguments))
        return Typed(self.program.put(linked, node), signature.given(self.types, arguments[0].type))

    def _listed(self, node: Call) -> str | None:
        """Return how to call a builtin that takes one list but was given the items."""
        parameters = SIGNATURES[node.name].parameters
        if len(parameters) != 1 or not isinstance(parameters[0], ListType) or not node.arguments:
            return None
        written = self.program.written(node)
        whole = written.startswith(f"{node.name}(") and written.endswith(")")
        whole = whole and len(written) <= MAX_SHOWN
        items = written[len(node.name) + 1 : -1] if whole else "…"
        return f"write `{node.name}([{items}])`"

    def _count(
        self, node: Call | Method, callee: str, expected: str, hint: str | None = None
    ) -> Refusal:
        given = len(node.arguments)
        plural = "" if expected == "1" else "s"
        message = f"`{callee}` takes {expected} argument{plural}, not {given}"
        return self.refusal(node, "argument_count", message, hint)

    # receiver.name(…)

    def method(self, node: Method, base: Typed | None) -> Typed:
        """Link `base.name(…)`; base is already linked unless it is a dotted path."""
        path = dotted(node.base)
        if path is None or base is not None:
            assert base is not None  # only dotted paths are not linked yet
            return self._of_receiver(node, base)
        if self.resource_type(self._peek(path)):
            return self._of_receiver(node, self.expression(node.base))
        joined = ".".join(path)
        if f"{joined}.{node.name}" in self.program.surface.constructors:
            return self._construct(node, f"{joined}.{node.name}")
        if joined in self.program.surface.modules:
            return self._of_module(node, joined)
        if not self.is_bound(path[0]):
            raise self._unbound(node, path)
        return self._of_receiver(node, self.expression(node.base))

    def is_bound(self, name: str) -> bool:
        """Return whether a name has a meaning by itself."""
        program = self.program
        return (
            name in self.bindings
            or name in program.processes
            or name in program.functions
            or name in program.surface.modules
        )

    def resource_type(self, type_: Type | None) -> str | None:
        """Return the name of a resource type, or None if type_ is not one."""
        head = None if type_ is None else self.types.head(type_)
        if isinstance(head, TypeName) and head.name in self.program.resource_types:
            return head.name
        return None

    def _peek(self, path: Sequence[str]) -> Type | None:
        """Return the type of a path that starts at a variable, or None for a wrong path."""
        bound = self.bindings.get(path[0])
        type_ = None if bound is None else bound.type
        for name in path[1:]:
            type_ = None if type_ is None else field_type(self.types, type_, name)
        return type_

    def _unbound(self, node: Method, path: Sequence[str]) -> Refusal:
        joined = ".".join(path)
        inside = [p for p in self.program.surface.modules if p.startswith(f"{joined}.")]
        if inside:
            return self.refusal(
                node,
                "unknown_operation",
                f"`{joined}` is not a module, so it has no operation `{node.name}`",
                choice("modules", inside),
            )
        if path[:2] == ["trigger", "event"]:
            return self.misplaced_event(node)
        return self.unknown_name(path[0], _root(node.base))

    def misplaced_event(self, at: Node) -> Refusal:
        """Return the problem of a `trigger.event` that is not the whole value of a trigger's input."""
        return self.refusal(
            at,
            "misplaced_trigger_event",
            "`trigger.event` is the whole event and is allowed only as an input of "
            "`triggers.register`: read its fields in the process",
        )

    def _of_module(self, node: Method, path: str) -> Typed:
        module = self.program.surface.modules[path]
        if path == "triggers":
            self.program.need("triggers", node)
        self.pure(node.name, node)
        operation = module.operations.get(node.name)
        if operation is None:
            raise self._unknown_operation(node, module.type, module.operations)
        self.program.requires.operation(path, node.name)
        arguments = self._input(node, module.type, operation)
        linked = Operation(path, node.name, arguments)
        return Typed(self.program.put(linked, node), ANY, self.program.seen(operation.output))

    def _of_receiver(self, node: Method, base: Typed) -> Typed:
        type_ = self.resource_type(base.type)
        if type_ is None:
            raise self.refusal(
                node,
                "unresolved_receiver",
                f"`{node.name}` cannot be called here: its receiver is `{show_type(base.type)}`, "
                "not a module or a value of a resource type",
                f"write `{node.name}(…)`: values have no methods"
                if node.name in SIGNATURES
                else None,
            )
        if type_ == TRIGGERS:
            self.program.need("triggers", node)
        self.pure(node.name, node)
        operations = self.program.surface.operations_of(type_)
        operation = operations.get(node.name)
        if operation is None:
            raise self._unknown_operation(node, type_, operations)
        self.program.requires.receiver(type_, node.name)
        arguments = self._input(node, type_, operation)
        linked = ReceiverOperation(base.node, type_, node.name, arguments)
        return Typed(self.program.put(linked, node), ANY, self.program.seen(operation.output))

    def _unknown_operation(
        self, node: Method, type_: str, operations: dict[str, OperationSurface]
    ) -> Refusal:
        return self.refusal(
            node,
            "unknown_operation",
            f"`{type_}` has no operation `{node.name}`",
            nearest(node.name, operations) or choice("operations", operations),
        )

    def _input(
        self, node: Method, type_: str, operation: OperationSurface
    ) -> tuple[Expression, ...]:
        if type_ == TRIGGERS and node.name == "register":
            return self.register(node)
        arguments = [self.expression(each) for each in node.arguments]
        self._check_input(node, arguments, operation.input, f"operation `{node.name}`")
        return tuple(each.node for each in arguments)

    def _check_input(
        self, node: Method, arguments: Sequence[Typed], expected: Type, what: str
    ) -> None:
        """Check the input: no argument counts as null, several as a list."""
        kind = "incompatible_operation_input"
        expected = self.program.seen(expected)
        what = f"the input of {what}"
        hint = self._takes_record(node, expected)
        if len(node.arguments) == 1:
            self.check_fits(node.arguments[0], arguments[0].type, expected, kind, what, hint)
            return
        self.check_literal(TupleLiteral(node.arguments), expected)
        types = [each.type for each in arguments]
        given = ListType(self.types.union(types)) if types else NULL
        self.check_fits(node, given, expected, kind, what, hint)

    def _takes_record(self, node: Method, expected: Type) -> str | None:
        """Return a hint on how to call something that takes a record."""
        head = self.types.head(expected)
        if not isinstance(head, RecordType):
            return None
        callee = ".".join([*(dotted(node.base) or ["…"]), node.name])
        needed = [f"{field.key}: …" for field in head.fields if not field.optional]
        inside = ", ".join(needed) if 0 < len(needed) <= _FEW else "…"
        return f"it takes a record: `{callee}({{ {inside} }})`"

    def _construct(self, node: Method, path: str) -> Typed:
        self.pure(path, node)
        made = self.program.surface.constructors[path]
        self.program.requires.constructor(path)
        arguments = [self.expression(each) for each in node.arguments]
        self._check_input(node, arguments, made.input, f"constructor `{path}`")
        if len(arguments) != 1:
            raise self._count(node, path, "1")
        linked = Construct(path, made.type, arguments[0].node)
        return Typed(self.program.put(linked, node), TypeName(made.type))

    # start name(…)

    def start(self, node: Start) -> Typed:
        """Link the start of a process."""
        self.program.need("processes", node)
        self.pure("start", node)
        processes = self.program.processes
        if node.process not in processes:
            hint = nearest(node.process, processes) or choice("processes", processes)
            raise self.refusal(node, "unknown_process", f"unknown process `{node.process}`", hint)
        given = [self.expression(each.value) for each in node.arguments]
        parameters = {each.name: each.type for each in processes[node.process].parameters}
        seen: set[str] = set()
        for argument, value in zip(node.arguments, given, strict=True):
            self._check_argument(node.process, argument, value, parameters, seen)
        for name in parameters:
            if name not in seen:
                message = f"process `{node.process}` needs the argument `{name}`"
                raise self.refusal(node, "missing_process_argument", message)
        arguments = tuple(
            self.program.put(Argument(argument.name, value.node), argument)
            for argument, value in zip(node.arguments, given, strict=True)
        )
        return Typed(self.program.put(Start(node.process, arguments), node), ANY)

    def _check_argument(
        self,
        process: str,
        argument: Argument,
        value: Typed,
        parameters: dict[str, Type],
        seen: set[str],
    ) -> None:
        name = argument.name
        if name in seen:
            message = f"argument `{name}` of process `{process}` is given twice"
            raise self.refusal(argument, "duplicate_process_argument", message)
        seen.add(name)
        if name not in parameters:
            message = f"process `{process}` has no parameter `{name}`"
            hint = nearest(name, parameters) or choice("parameters", parameters)
            raise self.refusal(argument, "unexpected_process_argument", message, hint)
        self.check_process_argument(process, name, argument.value, value.type, parameters[name])

    def check_process_argument(
        self, process: str, name: str, parsed: Expression, given: Type, expected: Type
    ) -> None:
        """Check an argument of a process start."""
        what = f"argument `{name}` of process `{process}`"
        self.check_fits(parsed, given, expected, "incompatible_process_argument", what)

    def check_fits(
        self,
        parsed: Node,
        given: Type,
        expected: Type,
        kind: str,
        what: str,
        hint: str | None = None,
    ) -> None:
        """Refuse a value that is not assignable; check literals against enums first.

        `hint` is used if the two types do not explain the problem.
        """
        self.check_literal(parsed, expected)
        if not self.types.assignable(given, expected):
            message = f"{what} must be `{show_type(expected)}`, not `{show_type(given)}`"
            hint = misfit(self.types, given, expected) or hint
            raise self.refusal(parsed, kind, message, hint)

    def check_literal(self, parsed: Node, expected: Type) -> None:
        """Refuse literals that an enum does not list."""
        if wrong := wrong_literal(self.types, parsed, expected):
            allowed = ", ".join(f'"{text}"' for text in wrong.allowed)
            raise self.refusal(
                wrong.node,
                "incompatible_literal",
                f'"{wrong.node.value}" is not allowed here: write one of {allowed}',
            )


def dotted(node: Expression) -> list[str] | None:
    """Return the names of a path such as `a.b.c`, or None if node is not a path."""
    names: list[str] = []
    while isinstance(node, Field):
        names.append(node.name)
        node = node.base
    return [*names, node.name][::-1] if isinstance(node, Name) else None


def _root(node: Expression) -> Node:
    while isinstance(node, Field):
        node = node.base
    return node
