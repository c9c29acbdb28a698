"""Lashlang in an app: modules that are linked against its tools, and run as its processes."""

from pylash.workflows.modules import (
    LashlangModule,
    LashlangProcess,
)
from pylash.workflows.surfaces import (
    app_surface,
)
from pylash.workflows.workflows import (
    Workflows,
)

__all__ = (
    "LashlangModule",
    "LashlangProcess",
    "Workflows",
    "app_surface",
)
