"""The tables: each module owns every statement that writes the rows of its tables."""
