"""Lashlang: a small, safe language for durable workflows, from source to compiled artifact."""

from pylash.lang.artifacts import (
    Artifact,
    artifact,
    encode_artifact,
    incompatibility,
)
from pylash.lang.assumed import (
    assumed_surface,
)
from pylash.lang.linker import (
    LinkedProgram,
    link,
)
from pylash.lang.maps import (
    ExecutionMap,
    static_map,
)
from pylash.lang.parsing.parser import (
    Parsed,
    parse,
)
from pylash.lang.printing.formatting import (
    format_source,
)
from pylash.lang.problems import (
    LashlangError,
    Problem,
    show,
)
from pylash.lang.running.data import (
    TRIGGER_EVENT,
    Resource,
    from_json,
    shaped_id,
    text_of,
    to_json,
)
from pylash.lang.running.execution import (
    CellOutcome,
    ProcessOutcome,
    run_cell,
    run_process,
)
from pylash.lang.running.hosts import (
    Host,
    HostCall,
    HostFailed,
    Refused,
    Surroundings,
)
from pylash.lang.running.meter import (
    CELL_BOUNDS,
    PROCESS_BOUNDS,
    Bounds,
)
from pylash.lang.starting import (
    Registration,
    StartProblem,
    bad_arguments,
    declaration,
    signal_schemas,
    startable,
    stored,
)
from pylash.lang.static_types import (
    show_type,
)
from pylash.lang.surface import (
    ABILITIES,
    Surface,
    surface_of,
    type_of_schema,
)
from pylash.lang.tree import (
    TypeName,
)
from pylash.lang.triggers import (
    InvalidTrigger,
    subscription,
)

__all__ = (
    "ABILITIES",
    "CELL_BOUNDS",
    "PROCESS_BOUNDS",
    "TRIGGER_EVENT",
    "Artifact",
    "Bounds",
    "CellOutcome",
    "ExecutionMap",
    "Host",
    "HostCall",
    "HostFailed",
    "InvalidTrigger",
    "LashlangError",
    "LinkedProgram",
    "Parsed",
    "Problem",
    "ProcessOutcome",
    "Refused",
    "Registration",
    "Resource",
    "StartProblem",
    "Surface",
    "Surroundings",
    "TypeName",
    "artifact",
    "assumed_surface",
    "bad_arguments",
    "declaration",
    "encode_artifact",
    "format_source",
    "from_json",
    "incompatibility",
    "link",
    "parse",
    "run_cell",
    "run_process",
    "shaped_id",
    "show",
    "show_type",
    "signal_schemas",
    "startable",
    "static_map",
    "stored",
    "subscription",
    "surface_of",
    "text_of",
    "to_json",
    "type_of_schema",
)
