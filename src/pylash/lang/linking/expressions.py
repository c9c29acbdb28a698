"""Linking and typing of expressions.

1. Purity is checked first, then the operands from left to right, then the whole expression.
2. Chains (`a + b + …`, `a.b[0]?…`) are walked in a loop: only brackets and prefixes need recursion.
3. A leaf of an aggregate keeps its parentheses: they determine when it is unwrapped.
"""

from __future__ import annotations

from pylash.lang.linking.body import Binding, Typed, choice, nearest
from pylash.lang.linking.calls import Calls, dotted
from pylash.lang.linking.operators import (
    binary_type,
    field_type,
    indexed_type,
    item_type,
    negated,
)
from pylash.lang.static_types import (
    ANY,
    ANY_LIST,
    BOOL,
    BUILT_IN,
    DICT,
    FLOAT,
    INT,
    NULL,
    PROCESS,
    STR,
    is_record,
    show_type,
)
from pylash.lang.tree import (
    Await,
    Binary,
    Bool,
    Call,
    Clause,
    Comprehension,
    Conditional,
    EnumType,
    Expression,
    Field,
    Group,
    Index,
    ListLiteral,
    ListType,
    Method,
    ModuleName,
    Name,
    Negate,
    Node,
    Not,
    Null,
    Number,
    Operation,
    Parameter,
    ProcessName,
    ReceiverOperation,
    RecordField,
    RecordLiteral,
    RecordType,
    Start,
    Text,
    TupleLiteral,
    Type,
    TypeField,
    TypeLiteral,
    TypeName,
    UnionType,
    Unwrap,
    Variable,
    WaitSignal,
)

Literal = ListLiteral | TupleLiteral | RecordLiteral


class Expressions(Calls):
    """Links expressions."""

    def expression(self, node: Expression) -> Typed:
        """Return a linked expression and its type."""
        chain: list[Expression] = []
        while (base := _base(node)) is not None:
            chain.append(node)
            node = base
        typed = self._first(node)
        for step in reversed(chain):
            typed = self._next(step, typed)
        return typed

    def _next(self, node: Expression, base: Typed) -> Typed:
        """Link one step of a chain; the steps before it are linked as `base`."""
        match node:
            case Binary():
                return self._binary(node, base)
            case Field():
                return self._field(node, base)
            case Index():
                return self._index(node, base)
            case Method():
                return self.method(node, base)
            case Unwrap():
                return self._typed(Unwrap(base.node), node, base.output or ANY)
        raise AssertionError(f"{type(node).__name__} is not a step")

    def _first(self, node: Expression) -> Typed:  # noqa: C901, PLR0911, PLR0912 - a line a node
        match node:
            case Null() | Bool() | Number() | Text():
                return self._constant(node)
            case ListLiteral() | TupleLiteral() | RecordLiteral():
                return self._literal(node, leaves_of_aggregate=False)
            case Name():
                return self._name(node)
            case Field():
                return self._path(node)
            case Call():
                return self.call(node)
            case Method():
                return self.method(node, None)
            case Start():
                return self.start(node)
            case Await():
                return self._await(node)
            case Negate():
                return self._negate(node)
            case Not():
                return self._typed(Not(self.expression(node.value).node), node, BOOL)
            case Group():
                return self.expression(node.value)
            case Conditional():
                return self._conditional(node)
            case Comprehension():
                return self._comprehension(node)
            case TypeLiteral():
                return self._type_literal(node)
            case WaitSignal():
                return self._wait(node)
        raise AssertionError(f"{type(node).__name__} is not parsed")

    def _typed(self, linked: Expression, origin: Node, type_: Type) -> Typed:
        return Typed(self.program.put(linked, origin), type_)

    # Literals

    def _constant(self, node: Null | Bool | Number | Text) -> Typed:
        match node:
            case Null():
                return self._typed(Null(), node, NULL)
            case Bool(value):
                return self._typed(Bool(value), node, BOOL)
            case Number(value):
                return self._typed(Number(value), node, INT if value.is_integer() else FLOAT)
            case Text(value):
                return self._typed(Text(value), node, STR)

    def _literal(self, node: Literal, *, leaves_of_aggregate: bool) -> Typed:
        link = self._leaf if leaves_of_aggregate else self.expression
        if isinstance(node, RecordLiteral):
            fields = [(field, link(field.value)) for field in node.fields]
            linked = tuple(
                self.program.put(RecordField(field.key, value.node), field)
                for field, value in fields
            )
            types = {field.key: value.type for field, value in fields}
            shape = RecordType(tuple(TypeField(k, t, optional=False) for k, t in types.items()))
            return self._typed(RecordLiteral(linked), node, shape)
        items = [link(item) for item in node.items]
        nodes = tuple(item.node for item in items)
        kind = ListLiteral if isinstance(node, ListLiteral) else TupleLiteral
        type_ = ListType(self.types.union(item.type for item in items)) if items else ANY_LIST
        return self._typed(kind(nodes), node, type_)

    def _leaf(self, node: Expression) -> Typed:
        """Link a part of an aggregate; only calls under `?` have a known type."""
        match node:
            case ListLiteral() | TupleLiteral() | RecordLiteral():
                return self._literal(node, leaves_of_aggregate=True)
            case Group(value):
                return self._typed(Group(self.expression(value).node), node, ANY)
        typed = self.expression(node)
        match typed.node:
            case Unwrap(Operation() | ReceiverOperation()):
                return typed
        return Typed(typed.node, ANY)

    def _comprehension(self, node: Comprehension) -> Typed:
        outside = dict(self.bindings)
        try:
            clauses = tuple(map(self._clause, node.clauses))
            element = self.expression(node.element)
        finally:
            self.bindings = outside
        return self._typed(Comprehension(element.node, clauses), node, ListType(element.type))

    def _clause(self, node: Clause) -> Clause:
        source = self.iterated(node.source)
        self.may_bind(node.name, node)
        name = self.fresh(node.name)
        self.bindings[node.name] = Binding(name, item_type(self.types, source.type))
        conditions = tuple(self.expression(each).node for each in node.conditions)
        return self.program.put(Clause(name, source.node, conditions), node)

    def iterated(self, node: Expression) -> Typed:
        """Link the value that a loop iterates over."""
        source = self.expression(node)
        if not self.types.overlap(source.type, ANY_LIST):
            raise self.refusal(
                node,
                "incompatible_iteration",
                f"only lists and tuples can be iterated, not `{show_type(source.type)}`",
                self._iterable(source.type),
            )
        return source

    def _iterable(self, type_: Type) -> str | None:
        if type_ == STR:
            return 'use `split(text, "")` for characters'
        return "use `keys(…)` or `values(…)`" if is_record(self.types.head(type_)) else None

    def _type_literal(self, node: TypeLiteral) -> Typed:
        shape = self._written(node.type)
        assert isinstance(shape, RecordType)  # unchanged
        return self._typed(TypeLiteral(shape), node, DICT)

    def _written(self, node: Type) -> Type:
        """Return a type inside a `Type { … }`, where names can be variables."""
        put = self.program.put
        match node:
            case TypeName():
                return put(TypeName(self._type_name(node)), node)
            case EnumType(members):
                return put(EnumType(members), node)
            case ListType(item):
                return put(ListType(self._written(item)), node)
            case UnionType(types):
                return put(UnionType(tuple(map(self._written, types))), node)
            case RecordType(fields):
                linked = (TypeField(f.key, self._written(f.type), f.optional) for f in fields)
                placed = tuple(put(new, old) for new, old in zip(linked, fields, strict=True))
                return put(RecordType(placed), node)

    def _type_name(self, node: TypeName) -> str:
        if node.name not in BUILT_IN | self.program.declared:
            if node.name in self.bindings:
                return f"${self.bindings[node.name].name}"
            self.program.use_type(node)
        return node.name

    # Names and paths

    def _name(self, node: Name) -> Typed:
        name = node.name
        if bound := self.bindings.get(name):
            return self._typed(Variable(bound.name), node, bound.type)
        if name in self.program.functions:
            raise self.not_a_value(name, node)
        if name in self.program.processes:
            self.pure(name, node)
            return self._typed(ProcessName(name), node, PROCESS)
        if name in self.program.surface.modules:
            return self._module(name, node)
        raise self.unknown_name(name, node)

    def _module(self, path: str, node: Node) -> Typed:
        if path == "triggers":
            self.program.need("triggers", node)
        self.pure(path, node)
        self.program.requires.module(path)
        type_ = self.program.surface.modules[path].type
        return self._typed(ModuleName(path), node, TypeName(type_))

    def _path(self, node: Field) -> Typed:
        """Link `a.b.c`: a variable or process and its fields, or a module by the longest path."""
        names = dotted(node)
        assert names is not None  # other fields are steps of a chain
        steps: list[Field] = []
        at: Expression = node
        while isinstance(at, Field):
            steps.append(at)
            at = at.base
        first = names[0]
        if first in self.bindings or first in self.program.processes:
            typed = self._first(at)
        elif names[:2] == ["trigger", "event"]:
            raise self.misplaced_event(node)
        else:
            typed = self._longest_module(names, steps) or self._first(at)
        for step in reversed(steps):
            typed = self._field(step, typed)
        return typed

    def _longest_module(self, names: list[str], steps: list[Field]) -> Typed | None:
        """Consume the steps that are part of a module's path, if there are any."""
        for taken in range(len(steps), 0, -1):
            path = ".".join(names[: taken + 1])
            if path in self.program.surface.modules:
                last = steps[len(steps) - taken]
                del steps[len(steps) - taken :]
                return self._module(path, last)
        return None

    def _field(self, node: Field, base: Typed) -> Typed:
        self.transparent(node, base.type)
        type_ = field_type(self.types, base.type, node.name)
        if type_ is None:
            fields = {
                field.key
                for head in self.types.members(base.type)
                if isinstance(head, RecordType)
                for field in head.fields
            }
            raise self.refusal(
                node,
                "unknown_field",
                f"`{show_type(base.type)}` has no field `{node.name}`",
                nearest(node.name, fields) or choice("fields", fields),
            )
        return self._typed(Field(base.node, node.name), node, type_)

    def _index(self, node: Index, base: Typed) -> Typed:
        index = self.expression(node.index)
        self.transparent(node, base.type)
        linked = Index(base.node, index.node)
        return self._typed(linked, node, indexed_type(self.types, base.type))

    def transparent(self, node: Node, type_: Type) -> None:
        """Refuse access to the contents of a host value."""
        head = self.types.head(type_)
        if isinstance(head, TypeName) and head.name in self.program.host_types:
            message = f"a `{head.name}` is opaque: only the host can read its contents"
            raise self.refusal(node, "opaque_access", message)

    # Operators

    def _binary(self, node: Binary, left: Typed) -> Typed:
        right = self.expression(node.right)
        type_ = binary_type(self.types, node.operator, left.type, right.type)
        if type_ is None:
            raise self.refusal(
                node,
                "incompatible_operands",
                f"`{node.operator}` does not accept `{show_type(left.type)}` and `{show_type(right.type)}`",
            )
        return self._typed(Binary(node.operator, left.node, right.node), node, type_)

    def _negate(self, node: Negate) -> Typed:
        value = self.expression(node.value)
        type_ = negated(self.types, value.type)
        if type_ is None:
            message = f"`-` does not accept `{show_type(value.type)}`"
            raise self.refusal(node, "incompatible_operands", message)
        return self._typed(Negate(value.node), node, type_)

    def _conditional(self, node: Conditional) -> Typed:
        test = self.expression(node.test)
        then = self.expression(node.then)
        otherwise = self.expression(node.otherwise)
        linked = Conditional(test.node, then.node, otherwise.node)
        return self._typed(linked, node, self.types.union((then.type, otherwise.type)))

    # Effects

    def _await(self, node: Await) -> Typed:
        self.pure("await", node)
        match node.value:
            case ListLiteral() | TupleLiteral() | RecordLiteral():
                whole = self._literal(node.value, leaves_of_aggregate=True)
                return self._typed(Await(whole.node), node, whole.type)
        value = self.expression(node.value)
        return Typed(self.program.put(Await(value.node), node), ANY, value.output)

    def _wait(self, node: WaitSignal) -> Typed:
        self.program.need("process_signals", node)
        self.pure("wait signal", node)
        if node.name not in self.signals and node.name == "signal":
            type_ = self.program.put(TypeName("any"), node)
            self.signals["signal"] = self.program.put(Parameter("signal", type_), node)
        if node.name not in self.signals:
            raise self.refusal(
                node,
                "undeclared_signal",
                f"process `{self.name}` does not declare the signal `{node.name}`",
                nearest(node.name, self.signals) or f"write `signals {{ {node.name}: any }}`",
            )
        given = self.signals[node.name].type
        if node.within is None:
            return self._typed(WaitSignal(node.name, None), node, given)
        within = self.expression(node.within)
        linked = WaitSignal(node.name, within.node)
        return self._typed(linked, node, self.types.union((given, NULL)))


def _base(node: Expression) -> Expression | None:
    """Return the chain without its last step, or None if node is not a chain."""
    match node:
        case Binary():
            return node.left
        case Index():
            return node.base
        case Unwrap():
            return node.value
        case Field():
            return None if dotted(node) else node.base
        case Method():
            return None if dotted(node.base) else node.base
    return None
