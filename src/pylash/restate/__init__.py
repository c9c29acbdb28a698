"""Restate as the engine of an app: ``RestateHost``. It needs the extra ``restate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pylash.values.errors import ExtraMissing

if TYPE_CHECKING:
    from pylash.restate.host import RestateHost

__all__ = ["RestateHost"]


def __getattr__(name: str) -> Any:
    """Load the host when it is used: the modules of the stage need no library."""
    if name != "RestateHost":
        raise AttributeError(name)
    try:
        from pylash.restate.host import RestateHost  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("restate", "hypercorn", "httpx"):
            raise
        raise ExtraMissing("RestateHost", "restate") from error
    return RestateHost
