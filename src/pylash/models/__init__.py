"""Model providers: pydantic-ai's models behind the port ``Provider``, made when first used."""
