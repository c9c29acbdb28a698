"""Linking of statements, and the flow of types through them.

1. An assignment gives the variable the type of its value. After an `if`, a variable has the types of
   both arms; in and after a loop, a variable that the loop's body assigns has the type `any`.
2. After a refused statement the others are still checked, with its variable bound to `any`.
3. `else if` chains are walked in a loop, like chains of operators.
"""

from __future__ import annotations

from typing import NamedTuple

from pylash.lang.linking.body import Binding, Refusal, Value
from pylash.lang.linking.operators import item_type, with_field
from pylash.lang.linking.registrations import Registrations
from pylash.lang.static_types import ANY, NULL, bounded
from pylash.lang.tree import (
    Assign,
    Block,
    Break,
    Cancel,
    Continue,
    Evaluate,
    Expression,
    Fail,
    FieldStep,
    Finish,
    For,
    If,
    IndexStep,
    Labelled,
    Node,
    Null,
    Print,
    SendSignal,
    Sleep,
    Statement,
    Type,
    Wake,
    While,
    Yield,
)


class Linked(NamedTuple):
    """A linked block and its possible values."""

    block: Block
    values: tuple[Value, ...]


Bindings = dict[str, Binding]


class Statements(Registrations):
    """Links statements."""

    def block(self, block: Block, origin: Node) -> Linked:
        """Link the statements of a block, except those that are refused."""
        linked: list[Statement] = []
        values: tuple[Value, ...] = (Value(origin, NULL),)
        for node in block:
            try:
                statement, values = self._statement(node)
                linked.append(statement)
            except Refusal as refused:
                self.program.note(refused.problem)
                values = ()
                bare = node.statement if isinstance(node, Labelled) else node
                if isinstance(bare, Assign) and bare.name not in self.bindings:
                    self.bind(bare.name, ANY)
        return Linked(tuple(linked), values)

    def _statement(self, node: Statement) -> tuple[Statement, tuple[Value, ...]]:
        match node:
            case Evaluate(value):
                typed = self.expression(value)
                return self.program.put(Evaluate(typed.node), node), (Value(value, typed.type),)
            case If():
                return self._if(node)
            case Labelled():
                self.pure("label", node)
                inside, _ = self._statement(node.statement)
                linked = Labelled(self.program.keep(node.label), inside)
                return self.program.put(linked, node), (Value(node, NULL),)
        return self.program.put(self._plain(node), node), (Value(node, NULL),)

    def _plain(self, node: Statement) -> Statement:
        """Link a statement that has no value."""
        match node:
            case Assign():
                return self._assign(node)
            case For():
                return self._for(node)
            case While():
                return self._while(node)
            case Break():
                return Break()
            case Continue():
                return Continue()
        return self._effect(node)

    # Effects

    def _effect(self, node: Statement) -> Statement:
        match node:
            case Finish(value):
                self.pure("finish", node)
                typed = self.expression(value)
                self.finishes.append(Value(value, typed.type))
                return Finish(typed.node)
            case Cancel(handle):
                self.program.need("processes", node)
                self.pure("cancel", node)
                return Cancel(self.expression(handle).node)
            case Sleep(mode, value):
                self.program.need("sleep", node)
                self.pure("sleep", node)
                return Sleep(mode, self.expression(value).node)
            case SendSignal(handle, name, payload):
                self.program.need("process_signals", node)
                self.pure("signal run", node)
                target = self.expression(handle)
                return SendSignal(target.node, name, self.expression(payload).node)
            case Fail() | Print() | Yield() | Wake():
                self.pure(type(node).__name__.lower(), node)
                return type(node)(self.expression(node.value).node)
        raise AssertionError(f"{type(node).__name__} is linked elsewhere")

    # Assignments

    def _assign(self, node: Assign) -> Assign:
        if not node.steps:
            value = self.expression(node.value)
            self.may_bind(node.name, node)
            self.bind(node.name, bounded(value.type))
            return Assign(self.bindings[node.name].name, (), value.node)
        root = self.bindings.get(node.name)
        if root is None:
            raise self._no_root(node)
        steps = tuple(map(self._step, node.steps))
        value = self.expression(node.value)
        self.may_bind(node.name, node)
        self.transparent(node, root.type)
        self.bindings[node.name] = Binding(
            root.name, _after_path(self, node, root.type, value.type)
        )
        return Assign(root.name, steps, value.node)

    def _no_root(self, node: Assign) -> Refusal:
        if node.name in self.program.functions:
            return self.not_a_value(node.name, node)
        return self.unknown_name(node.name, self.program.root_place(node))

    def _step(self, node: FieldStep | IndexStep) -> FieldStep | IndexStep:
        match node:
            case FieldStep(name):
                return self.program.put(FieldStep(name), node)
            case IndexStep(index):
                return self.program.put(IndexStep(self.expression(index).node), node)

    # Branches and loops

    def _if(self, node: If) -> tuple[If, tuple[Value, ...]]:
        arms: list[tuple[If, Expression, Block]] = []
        values: list[Value] = []
        ends: list[Bindings] = []
        while True:
            test = self._test(node.test)
            before = dict(self.bindings)
            then = self.block(node.then, node)
            arms.append((node, test, then.block))
            ends.append(self.bindings)
            values.extend(then.values)
            self.bindings = before
            if (further := _else_if(node.otherwise)) is None:
                break
            node = further
        last = self.block(node.otherwise, node)
        self.bindings = self._merged([*ends, self.bindings])
        block = last.block
        for origin, test, then_block in reversed(arms):
            linked = self.program.put(If(test, then_block, block), origin)
            block = (linked,)
        return linked, (*values, *last.values)

    def _test(self, node: Expression) -> Expression:
        """Link a condition; a problem in it does not prevent the blocks from being checked."""
        try:
            return self.expression(node).node
        except Refusal as refused:
            self.program.note(refused.problem)
            return Null()

    def _merged(self, ends: list[Bindings]) -> Bindings:
        """Return the bindings after a branch: a name that some arm leaves unbound has the type `any`."""
        merged: Bindings = {}
        for end in ends:
            for name, bound in end.items():
                if name in merged:
                    continue
                if all(other.get(name) is bound for other in ends):
                    merged[name] = bound
                else:
                    types = (other[name].type if name in other else ANY for other in ends)
                    merged[name] = Binding(bound.name, bounded(self.types.union(types)))
        return merged

    def _for(self, node: For) -> For:
        source = self.iterated(node.source)
        self.may_bind(node.name, node)
        self._enter_loop(node.body, frozenset({node.name}))
        around = dict(self.bindings)
        self.bind(node.name, item_type(self.types, source.type))
        name = self.bindings[node.name].name
        body = self.block(node.body, node).block
        self.bindings = around
        return For(name, source.node, body)

    def _while(self, node: While) -> While:
        self._enter_loop(node.body, frozenset())
        around = dict(self.bindings)
        test = self._test(node.test)
        body = self.block(node.body, node).block
        self.bindings = around
        return While(test, body)

    def _enter_loop(self, body: Block, own: frozenset[str]) -> None:
        """Bind the names that a loop assigns, since it may iterate again. Its own variable ends with the loop."""
        for name, is_path in _assigned(body, own):
            if name in self.bindings:
                self.bindings[name] = Binding(self.bindings[name].name, ANY)
            elif not is_path:
                self.bind(name, ANY)


def _after_path(body: Statements, node: Assign, root: Type, value: Type) -> Type:
    """Return the type of a variable after an assignment into it."""
    match node.steps:
        case (FieldStep(name),):
            return bounded(with_field(body.types, root, name, value))
    return ANY


def _else_if(otherwise: Block) -> If | None:
    match otherwise:
        case (If() as further,):
            return further
    return None


def _assigned(block: Block, own: frozenset[str]) -> list[tuple[str, bool]]:
    """Return, for each assignment in a loop's body, its variable and whether it assigns only a part of it.

    They are in source order. Variables of inner loops are left out: each ends with its loop.
    """
    found: list[tuple[str, bool]] = []
    pending: list[tuple[Statement, frozenset[str]]] = [(each, own) for each in block[::-1]]
    while pending:
        node, own = pending.pop()
        match node:
            case Assign(name, steps):
                if name not in own:
                    found.append((name, bool(steps)))
            case If(_, then, otherwise):
                pending.extend((each, own) for each in (*then, *otherwise)[::-1])
            case For(name, _, body):
                pending.extend((each, own | {name}) for each in body[::-1])
            case While(_, body):
                pending.extend((each, own) for each in body[::-1])
            case Labelled(_, inside):
                pending.append((inside, own))
    return found
