"""A module artifact as Python functions, built once for each reference."""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pylash.lang.artifacts import Artifact, definitions
from pylash.lang.compiling.bodies import function_code, main_code, process_code
from pylash.lang.compiling.inference import numeric_functions
from pylash.lang.compiling.unit import Unit, busy_nodes, long_functions, waiting_nodes
from pylash.lang.maps import label_of
from pylash.lang.running import operators, owned
from pylash.lang.running.builtins import BUILTINS, counted_range
from pylash.lang.running.data import (
    CONTAINERS,
    List,
    Record,
    RunError,
    Value,
    kind_of,
    shared_json,
    size_of,
    truth,
)
from pylash.lang.running.frame import Site
from pylash.lang.running.meter import Meter
from pylash.lang.sites import KINDS, arms, sites
from pylash.lang.stack import deep
from pylash.lang.static_types import schema_of
from pylash.lang.tree import Type, walk

FILENAME: Final = "<lashlang>"
_KEPT: Final = 256


class Compiled(NamedTuple):
    """The bodies of a module, ready to run."""

    main: Callable[..., Any]
    variables: dict[str, str]
    """The variables of main by the names of their locals."""
    processes: dict[str, Callable[..., Any]]
    sites: Mapping[int, Site]
    children: dict[str, dict[str, str]]


_compiled: OrderedDict[tuple[str, bool], Compiled] = OrderedDict()


def compiled(artifact: Artifact, *, traced: bool) -> Compiled:
    """Return the module's functions, from the cache if this module was compiled before."""
    key = (artifact.module_ref, traced)
    found = _compiled.get(key)
    if found is None:
        found = _compiled[key] = deep(_compile, artifact, traced)
        if len(_compiled) > _KEPT:
            _compiled.popitem(last=False)
    else:
        _compiled.move_to_end(key)
    return found


def _compile(artifact: Artifact, traced: bool) -> Compiled:
    module = artifact.canonical
    unit = _unit(artifact, traced)
    body: list[ast.stmt] = []
    for function in module.functions:
        body += function_code(unit, function)
    body += [process_code(unit, process, f"p{n}") for n, process in enumerate(module.processes)]
    main, variables = main_code(unit, module.main, "main")
    code = ast.fix_missing_locations(ast.Module([*body, main], []))
    space = {**_NAMES, **unit.constants}
    # The code was built node by node from the tree; the only texts of a program in it are constants.
    exec(compile(code, FILENAME, "exec"), space)  # noqa: S102
    return Compiled(
        main=space["main"],
        variables=variables,
        processes={process.name: space[f"p{n}"] for n, process in enumerate(module.processes)},
        sites=unit.sites,
        children={
            name: {"module_ref": artifact.module_ref, "process_ref": ref, "entry_name": name}
            for name, ref in artifact.processes.items()
        },
    )


def _unit(artifact: Artifact, traced: bool) -> Unit:
    """Return what the bodies of a module share."""
    module = artifact.canonical
    nodes = list(walk(module))
    numbers = {id(node): number for number, node in enumerate(nodes)}
    ids = dict(sites(artifact.module_ref, "main", "main", module.main))
    for process in module.processes:
        ids |= sites(artifact.module_ref, "process", process.name, process)
    unit = Unit(
        numbers=numbers,
        sites={
            numbers[key]: Site(ids[key], KINDS[type(node)], label_of(node))
            for node in nodes
            if (key := id(node)) in ids
        },
        arms={key: arms(site) for key, site in ids.items() if site.startswith("branch:")},
        resource_types={path: m.type for path, m in artifact.required_surface.modules.items()},
        process_values={name: _process_value(artifact, name) for name in artifact.processes},
        definitions=definitions(artifact),
        traced=traced,
    )
    unit.functions = {function.name: f"f{n}" for n, function in enumerate(module.functions)}
    unit.long = long_functions(module)
    unit.waiting = waiting_nodes(module, unit.long)
    unit.busy = busy_nodes(module)
    unit.numeric_functions = numeric_functions(module.functions)
    return unit


def _process_value(artifact: Artifact, name: str) -> dict[str, Any]:
    return {
        "$lash_process": True,
        "process_name": name,
        "module_ref": artifact.module_ref,
        "process_ref": artifact.processes[name],
        "required_surface_ref": artifact.required_surface_ref,
    }


def _gather(meter: Meter, out: List, item: Value) -> None:
    out.append(item)
    meter.used += 16 if type(item) is float else 8 + size_of(item)
    if meter.used > meter.limit:
        raise meter.full()


def _type_value(kept: tuple[Type, Mapping[str, Type]], variables: dict[str, Value]) -> Value:
    schemas: dict[str, Any] = {}
    for name, value in variables.items():
        if type(value) is not Record or list(value) != ["$lash_type"]:
            raise RunError("not_a_type", f"`{name}` holds a {kind_of(value)}, not a type value")
        schemas[name] = value["$lash_type"]
    wanted, known = kept
    return shared_json({"$lash_type": deep(schema_of, wanted, known, schemas)})


_NAMES: Final[dict[str, Any]] = {
    "__builtins__": {},
    "type": type,
    "float": float,
    "object": object,
    "locals": locals,
    "NameError": NameError,
    "CONTAINERS": CONTAINERS,
    "List": List,
    "Record": Record,
    "truth": truth,
    "size_of": size_of,
    "counted_range": counted_range,
    "gather": _gather,
    "type_value": _type_value,
    "pushed": owned.pushed,
    "assigned": owned.assigned,
    **{
        name: getattr(operators, name)
        for name in (
            *("add", "subtract", "multiply", "divide", "remainder", "negate"),
            *("same", "less", "at_most", "greater", "at_least", "contains"),
            *("field", "index", "unwrap", "iterated"),
        )
    },
    **{f"b_{name}": function for name, function in BUILTINS.items()},
}
