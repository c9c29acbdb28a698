"""The function of a tool: what its docstring and its annotations declare.

Names that are not defined yet, and pydantic if it is not imported yet, are resolved in ``prepare``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

from pylash.tasks import in_thread
from pylash.tools.annotations import (
    default_of,
    has_unknown,
    hints_of,
    innermost,
    is_context,
    locals_around,
    mentions_struct,
    tool_signature,
)
from pylash.tools.arguments import Field, Parameters
from pylash.tools.docstrings import ToolDoc, read_docstring
from pylash.tools.signatures import Shape
from pylash.values.process_errors import ArgumentsInvalid
from pylash.values.turn_errors import ToolDefinitionInvalid

_NOT_YET: Final = frozenset({"class-not-fully-defined", "undefined-annotation"})


class ToolFunction:
    """The parameters and the result of a tool's function."""

    def __init__(self, function: Callable[..., Any], tool: str) -> None:
        self.signature = tool_signature(function, tool)
        self._function = function
        self._tool = tool
        self._hints = hints_of(function, {})
        if has_unknown(self._hints):
            self._hints = hints_of(function, locals_around(function))
        self._prepared = False

    @cached_property
    def doc(self) -> ToolDoc:
        """The descriptions in its docstring."""
        return read_docstring(innermost(self._function).__doc__)

    @cached_property
    def contexts(self) -> list[str]:
        """The parameters that are passed by the runtime."""
        hints = self._known_hints
        return [name for name in self.signature.parameters if is_context(hints.get(name))]

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters that a model passes."""
        fields = {
            name: Field(self._annotation(name), default_of(one), self.doc.parameters.get(name))
            for name, one in self.signature.parameters.items()
            if name not in self.contexts
        }
        return Parameters(self._tool, fields)

    @cached_property
    def result(self) -> Shape:
        """Its result."""
        hint = self._known_hints.get("return", Any)
        return Shape(Any if isinstance(hint, str) or mentions_struct(hint) else hint)

    async def prepare(self) -> None:
        """Prepare the checks of arguments and result, once."""
        if self._prepared:
            return
        if "pydantic" in sys.modules:
            self.parameters.schema  # noqa: B018 - made once, and refused if it cannot be
        else:
            await in_thread(lambda: self.parameters.schema)
        try:
            await self.result.prepare(self._tool)
        except ArgumentsInvalid:
            shown = inspect.formatannotation(self.result.annotation)
            reason = f"its return type ({shown}) cannot be encoded as JSON"
            raise ToolDefinitionInvalid(self._tool, reason) from None
        self._prepared = True

    def check_early(self) -> None:
        """Refuse annotations that pydantic cannot describe, if it is imported and all names are known."""
        if "pydantic" not in sys.modules or has_unknown(self._hints):
            return
        try:
            self.parameters.schema  # noqa: B018 - made once, and refused if it cannot be
        except ToolDefinitionInvalid as error:
            if getattr(error.__cause__, "code", None) not in _NOT_YET:
                raise
            del self.parameters

    @property
    def _known_hints(self) -> Mapping[str, Any]:
        """The annotations, with names that were defined since."""
        if not has_unknown(self._hints):
            return self._hints
        known = {name: hint for name, hint in self._hints.items() if not isinstance(hint, str)}
        return {**hints_of(self._function, {}), **known}

    def _annotation(self, name: str) -> Any:
        hint = self._known_hints.get(name, Any)
        if isinstance(hint, str):
            reason = f"the annotation {hint!r} of its parameter {name!r} means nothing here"
            raise ToolDefinitionInvalid(self._tool, reason)
        return hint
