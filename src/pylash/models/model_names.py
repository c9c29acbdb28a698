"""Models by name: the provider for a name in pydantic-ai's form, or for a model object of pydantic-ai.

Rule 1. Nothing is imported or built before the first model call: loading a vendor's library takes seconds.
Rule 2. A missing key or package is an error with a code, raised when the model is called, and checked again
        at the next call.
"""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from importlib import import_module
from typing import Any, Final

from pylash.models.provider import Model, PydanticProvider
from pylash.values.errors import ExtraMissing
from pylash.values.secrets import environment_secrets, hide_secrets
from pylash.values.turn_errors import ModelKeyMissing, ModelUnknown, ModelUnusable

VENDORS_IN_EXTRA: Final = ("anthropic", "google", "openai")
"""The vendors whose libraries are in the extra ``models``."""

_VARIABLE: Final = re.compile(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)`")


class Models:
    """The pydantic-ai models of one app. Their connections close with the app."""

    def __init__(self) -> None:
        self._providers: dict[str | int, PydanticProvider] = {}

    def adapt(self, given: Any) -> PydanticProvider | None:
        """Return the provider of a name or a model object; None for anything else."""
        if isinstance(given, str):
            if ":" not in given and given != "test":
                return None
            key: str | int = given
            provider = PydanticProvider(given, partial(named_model, given))
        elif _is_model(given):
            key = id(given)  # the provider keeps the object, so the id stays unique
            provider = PydanticProvider(given.model_id, lambda: given)
        else:
            return None
        return self._providers.setdefault(key, provider)

    async def close(self) -> None:
        """Close all connections; a later model call opens them again."""
        for provider in self._providers.values():
            await provider.close()


def _is_model(given: Any) -> bool:
    # Such an object exists only if its package has been imported.
    models = sys.modules.get("pydantic_ai.models")
    return models is not None and isinstance(given, models.Model)


def named_model(name: str) -> Model:
    """Build the model of a name. It blocks; the first model of a vendor takes seconds.

    Raises ModelUnknown, ModelKeyMissing, ExtraMissing or ModelUnusable.
    """
    try:
        models = import_module("pydantic_ai.models")
        providers = import_module("pydantic_ai.providers")
    except ImportError as error:
        raise ExtraMissing(f"Model {name!r}", "models") from error
    try:
        if name != "test":
            providers.infer_provider_class(name.partition(":")[0])
    except ValueError as error:
        known = (
            "models of app.model, and names such as 'openai:gpt-5' or 'anthropic:claude-haiku-5-5'"
        )
        raise ModelUnknown(name, known) from error
    except ImportError as error:
        raise _package_missing(name, error) from error
    try:
        return models.infer_model(name)
    except ImportError as error:
        raise _package_missing(name, error) from error
    except Exception as error:  # the vendor is known, so the error is about the connection
        found = _VARIABLE.search(str(error))
        if found is None:
            raise _unusable(name, error) from error
        raise ModelKeyMissing(name, found[1]) from error


def _package_missing(name: str, error: ImportError) -> ExtraMissing | ModelUnusable:
    if name.startswith(VENDORS_IN_EXTRA):
        return ExtraMissing(f"Model {name!r}", "models")
    return _unusable(name, error)


def _unusable(name: str, error: Exception) -> ModelUnusable:
    return ModelUnusable(name, hide_secrets(str(error), environment_secrets(os.environ)))
