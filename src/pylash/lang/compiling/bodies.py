"""Bodies as Python functions.

1. A variable of the program is a local variable of the function: `v3`. Other locals hold its size (`s3`),
   unless the variable only ever holds numbers, and its token (`t3`), if the body changes it in place.
2. A variable without a value is an unbound local: Python raises UnboundLocalError for it.
3. `m` is the meter, `h` the frame of effects.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from pylash.lang.compiling import pycode as py
from pylash.lang.compiling.inference import (
    grows,
    marked_parameters,
    numeric_variables,
    settled_in_main,
    variables_of,
)
from pylash.lang.compiling.loops import Loops, mentions
from pylash.lang.compiling.unit import Unit
from pylash.lang.tree import (
    Assign,
    Block,
    Break,
    CallBuiltin,
    Cancel,
    Continue,
    Evaluate,
    Expression,
    Fail,
    FieldStep,
    Finish,
    For,
    FunctionDeclaration,
    If,
    Labelled,
    Node,
    Print,
    ProcessDeclaration,
    SendSignal,
    Sleep,
    Statement,
    TypeName,
    Variable,
    Wake,
    While,
    Yield,
    walk,
)

_RESULT = "result"


class Body(Loops):
    """Compiles one body."""

    def __init__(
        self, unit: Unit, block: Block, *, kind: str, given: frozenset[str], unknown: Iterable[str]
    ) -> None:
        known = numeric_variables(block, given, unknown, unit.numeric_functions)
        super().__init__(unit, kind, block, known)

    # Blocks.

    def statements(self, block: Block, *, result: bool = False, taken: int = 0) -> list[ast.stmt]:
        """Return the Python statements of a block.

        With `result` the value of the block is left in a local; `taken` steps are counted with its first statement.
        """
        made: list[ast.stmt] = []
        counted = 0
        for position, statement in enumerate(block):
            last = result and position == len(block) - 1
            if counted:
                counted -= 1
            else:
                # The steps of quiet statements are counted together, unless variables stay visible after an error.
                quiet = 1 if self._kind == "main" else max(1, self._quiet(block, position))
                made += self.count(taken + quiet, statement)
                counted, taken = quiet - 1, 0
            made += [py.at(each, self.line(statement)) for each in self._statement(statement, last)]
        return made

    def _quiet(self, block: Block, start: int) -> int:
        """Return the number of consecutive statements from `start` that have no branches and no effects."""
        for position in range(start, len(block)):
            statement = block[position]
            if not isinstance(statement, Assign | Evaluate) or id(statement) in self._unit.waiting:
                return position - start
        return len(block) - start

    def _statement(self, node: Statement, result: bool) -> list[ast.stmt]:  # noqa: C901, PLR0911, PLR0912 (one for each kind)
        match node:
            case Assign():
                return self._assign(node)
            case Evaluate(value):
                made = self.expr(value)
                return [py.assign(_RESULT, made)] if result else [ast.Expr(made)]
            case If(test, then, otherwise):
                chosen = self.chosen(node, self.test(test))
                return [
                    py.branch(
                        chosen,
                        self.statements(then, result=result),
                        self.statements(otherwise, result=result),
                    )
                ]
            case While() | For():
                return self.loop(node)
            case Break():
                return [*self.leave_labels(self.labels_in_loop), ast.Break()]
            case Continue():
                return [*self.leave_labels(self.labels_in_loop), ast.Continue()]
            case Finish(value):
                method = "finish_cell" if self._kind == "main" else "finish"
                ended = py.method("h", method, self.site(node), self.expr(value))
                return self.returned(ended)
            case Fail(value):
                return [ast.Expr(py.method("h", "fail", self.site(node), self.expr(value)))]
            case Print(value):
                return [ast.Expr(py.method("h", "observe", self.expr(value)))]
            case Yield(value):
                return self._effect_statement(node, "emit", py.constant("yield"), self.expr(value))
            case Wake(value):
                return self._effect_statement(node, "emit", py.constant("wake"), self.expr(value))
            case Cancel(handle):
                return self._effect_statement(node, "cancel", self.expr(handle))
            case Sleep(mode, value):
                return self._effect_statement(node, f"sleep_{mode}", self.expr(value))
            case SendSignal(handle, name, payload):
                target, sent = self.expr(handle), self.expr(payload)
                return self._effect_statement(node, "send_signal", target, py.constant(name), sent)
            case Labelled(_, statement):
                return self._labelled(node, statement, result)

    def _labelled(self, node: Labelled, statement: Statement, result: bool) -> list[ast.stmt]:
        if not self._unit.traced:
            return self._statement(statement, result)
        begin = ast.Expr(py.method("h", "open_step", self.site(node)))
        self.labels += 1
        self.labels_in_loop += 1
        inner = [py.at(each, self.line(statement)) for each in self._statement(statement, result)]
        self.labels -= 1
        self.labels_in_loop -= 1
        return [begin, *inner, *self.leave_labels(1)]

    def _effect_statement(self, node: Node, method: str, *arguments: ast.expr) -> list[ast.stmt]:
        return [ast.Expr(py.awaited(py.method("h", method, self.site(node), *arguments)))]

    # Assignments.

    def _assign(self, node: Assign) -> list[ast.stmt]:
        if node.steps:
            return self._assign_path(node)
        if grows(node):
            return self._grow(node)
        if node.name in self._numeric:
            return [py.assign(self.local(node.name), self.expr(node.value))]
        value = py.at(py.assign("r", self.expr(node.value)), self.line(node))
        return [value, *self._release(node.value), *self.hold(node.name, node.value)]

    def _release(self, value: Expression) -> list[ast.stmt]:
        """Drop the tokens of the variables that may share parts with the list or record in `r`."""
        shared = sorted(self.slot(name) for name in variables_of(value) & self._mutable)
        if not shared or self.is_number(value):
            return []
        forgotten = ast.Assign(
            [ast.Name(f"t{slot}", py.store) for slot in shared], py.constant(None)
        )
        kept = py.compare(py.call("type", py.name("r")), ast.In(), py.name("CONTAINERS"))
        return [py.branch(kept, [forgotten])]

    def hold(self, variable: str, value: Expression | None) -> list[ast.stmt]:
        """Bind the variable to the value in `r`, and count the value's size."""
        size = f"s{self.slot(variable)}"
        held: ast.expr = py.method("m", "hold", py.name("r"), py.name(size))
        plain: ast.expr
        if value is None or not self.is_number(value):
            plain = py.compare(py.call("type", py.name("r")), ast.Is(), py.name("float"))
        else:
            plain = py.constant(True)
        unchanged = py.compare(py.name(size), ast.Eq(), py.constant(8))
        fast = ast.BoolOp(ast.And(), [plain, unchanged])
        skip = py.branch(ast.UnaryOp(ast.Not(), fast), [py.assign(size, held)])
        return [skip, py.assign(self.local(variable), py.name("r"))]

    def _token(self, variable: str) -> tuple[str, list[ast.stmt]]:
        token = f"t{self.slot(variable)}"
        absent = py.compare(py.name(token), ast.Is(), py.constant(None))
        return token, [py.branch(absent, [py.assign(token, py.call("object"))])]

    def _grow(self, node: Assign) -> list[ast.stmt]:
        call = node.value
        assert isinstance(call, CallBuiltin)
        item = call.arguments[1]
        token, owned = self._token(node.name)
        variable = py.name(self.local(node.name))
        grown = py.at(
            py.call("pushed", py.name("m"), variable, py.name(token), py.name("r")), self.line(call)
        )
        size = f"s{self.slot(node.name)}"
        return [
            py.assign("r", self.expr(item)),
            *self._release(item),
            *owned,
            py.assign(self.local(node.name), grown),
            py.assign(size, ast.Attribute(py.name(self.local(node.name)), "size", py.load)),
        ]

    def _assign_path(self, node: Assign) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        steps: list[ast.expr] = []
        for step in node.steps:
            if isinstance(step, FieldStep):
                steps.append(py.tuple_of([py.constant(True), py.constant(step.name)]))
            else:
                at = self.fresh()
                made.append(py.at(py.assign(at, self.expr(step.index)), self.line(step)))
                steps.append(py.tuple_of([py.constant(False), py.name(at)]))
        token, owned = self._token(node.name)
        root = py.name(self.local(node.name))
        changed = py.call(
            "assigned", py.name("m"), root, py.name(token), py.tuple_of(steps), py.name("r")
        )
        size = f"s{self.slot(node.name)}"
        return [
            *made,
            py.assign("r", self.expr(node.value)),
            *self._release(node.value),
            *owned,
            py.assign(self.local(node.name), changed),
            py.assign(size, ast.Attribute(py.name(self.local(node.name)), "size", py.load)),
        ]

    # Whole bodies.

    def define(self, identifier: str, parameters: list[str], block: list[ast.stmt]) -> ast.stmt:
        """Return the function around the statements of the body."""
        sizes = [slot for name, slot in self._slots.items() if name not in self._numeric]
        counters = [py.assign(f"s{slot}", py.constant(0)) for slot in sizes]
        tokens = [
            py.assign(f"t{self.slot(name)}", py.constant(None)) for name in sorted(self._mutable)
        ]
        bound: list[ast.stmt] = [
            py.assign(f"v{slot}", py.constant(None)) for slot in sorted(self.shared)
        ]
        known = [py.branch(py.constant(False), bound)] if bound else []
        body = [*known, *counters, *tokens, *self._definitions[0], *block]
        return py.function(identifier, parameters, body, asynchronous=not self._in_function)

    def held_parameters(self, names: Iterable[str]) -> list[ast.stmt]:
        """Count the sizes of the arguments."""
        return [
            py.assign(
                f"s{self.slot(name)}",
                py.method("m", "hold", py.name(self.local(name)), py.constant(0)),
            )
            for name in names
            if name not in self._numeric
        ]


def function_code(unit: Unit, declaration: FunctionDeclaration) -> list[ast.stmt]:
    """Return a function of the program as Python functions.

    If parameters are declared as numbers there are two: one assumes numbers, and calls the other one if
    an argument is not a number.
    """
    identifier = unit.functions[declaration.name]
    names = [parameter.name for parameter in declaration.parameters]
    marks = zip(names, marked_parameters(declaration), strict=True)
    numbers = frozenset(name for name, number in marks if number)
    if not numbers:
        return [_function(unit, declaration, identifier, numbers, [])]
    other = f"{identifier}_any"
    locals_ = [f"v{slot}" for slot in range(len(names))]
    tests: list[ast.expr] = [
        py.compare(py.call("type", py.name(local)), ast.IsNot(), py.name("float"))
        for local, name in zip(locals_, names, strict=True)
        if name in numbers
    ]
    test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.Or(), tests)
    onward = ast.Return(py.call(other, py.name("m"), *map(py.name, locals_)))
    return [
        _function(unit, declaration, other, frozenset(), []),
        _function(unit, declaration, identifier, numbers, [py.branch(test, [onward])]),
    ]


def _function(
    unit: Unit,
    declaration: FunctionDeclaration,
    identifier: str,
    numbers: frozenset[str],
    guard: list[ast.stmt],
) -> ast.stmt:
    names = [parameter.name for parameter in declaration.parameters]
    unknown = [name for name in names if name not in numbers]
    body = Body(unit, declaration.body, kind="function", given=numbers, unknown=unknown)
    parameters = ["m", *(body.local(name) for name in names)]
    frames = ast.Attribute(py.name("m"), "frames", py.load)
    used = ast.Attribute(py.name("m"), "used", py.load)
    too_many = ast.Raise(py.method("m", "too_many_frames"), None)
    # No variable holds the result yet, so its depth is checked here: a recursion could nest it without limit.
    gives_number = bool(numbers) and declaration.name in unit.numeric_functions
    large = py.compare(py.call("type", py.name(_RESULT)), ast.In(), py.name("CONTAINERS"))
    deep_enough = py.method("m", "returned", py.name(_RESULT))
    statements = [
        *guard,
        ast.AugAssign(ast.Attribute(py.name("m"), "frames", py.store), ast.Sub(), py.constant(1)),
        py.branch(py.compare(frames, ast.Lt(), py.constant(0)), [too_many]),
        py.assign("before", used),
        *body.held_parameters(names),
        py.assign(_RESULT, py.constant(None)),
        *(body.statements(declaration.body, result=True, taken=1) or body.count(1, declaration)),
        *([] if gives_number else [py.branch(large, [ast.Expr(deep_enough)])]),
        ast.AugAssign(ast.Attribute(py.name("m"), "frames", py.store), ast.Add(), py.constant(1)),
        ast.Assign([ast.Attribute(py.name("m"), "used", py.store)], py.name("before")),
        ast.Return(py.name(_RESULT)),
    ]
    return body.define(identifier, parameters, statements)


def process_code(unit: Unit, declaration: ProcessDeclaration, identifier: str) -> ast.stmt:
    """Return a process as a coroutine function of its parameters, `inputs` and `input`."""
    names = [parameter.name for parameter in declaration.parameters]
    names += [name for name in ("inputs", "input") if name not in names]
    numbers = frozenset(
        parameter.name
        for parameter in declaration.parameters
        if parameter.type in (TypeName("int"), TypeName("float"))
    )
    unknown = [name for name in names if name not in numbers]
    body = Body(unit, declaration.body, kind="process", given=numbers, unknown=unknown)
    parameters = ["m", "h", *(body.local(name) for name in names)]
    used = [name for name in names if mentions(declaration.body, name)]
    statements = [*body.held_parameters(used), *body.statements(declaration.body)]
    return body.define(identifier, parameters, statements)


def main_code(unit: Unit, block: Block, identifier: str) -> tuple[ast.stmt, dict[str, str]]:
    """Return main as a coroutine function of the session's variables, and the variable of each local.

    It loads the variables that it mentions, and stores them again however it ends.
    """
    settled = settled_in_main(block)
    named = [
        node.name
        for part in block
        for node in walk(part)
        if isinstance(node, Variable | Assign | For)
    ]
    names = [name for name in dict.fromkeys(named) if not name.isdigit()]
    body = Body(
        unit,
        block,
        kind="main",
        given=frozenset(),
        unknown=[name for name in names if name not in settled],
    )
    locals_ = {body.local(name): name for name in names}
    load: list[ast.stmt] = []
    for name in names:
        if name in settled and name in body._numeric:  # noqa: SLF001 (a body of the same class)
            continue
        held = ast.Subscript(py.name("variables"), py.constant(name), py.load)
        known = py.compare(py.constant(name), ast.In(), py.name("variables"))
        taken: list[ast.stmt] = [py.assign(body.local(name), held)]
        if name not in body._numeric:  # noqa: SLF001
            taken.append(
                py.assign(f"s{body.slot(name)}", py.call("size_of", py.name(body.local(name))))
            )
        load.append(py.branch(known, taken))
    statements = [
        *load,
        ast.Try(
            [
                *body.statements(block),
                ast.Return(py.constant((False, None, ""))),
            ],
            [],
            [],
            [ast.Expr(py.call("save", py.call("locals"), py.name("variables")))],
        ),
    ]
    return body.define(identifier, ["m", "h", "variables", "save"], statements), locals_
