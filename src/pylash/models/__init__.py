"""Model providers: pydantic-ai's models behind the port ``Provider``, made when first used."""

from pylash.models.named import Models
from pylash.models.provider import PydanticProvider

__all__ = ("Models", "PydanticProvider")
