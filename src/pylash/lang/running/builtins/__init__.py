"""The 33 functions that every program has.

1. Nothing is changed in place; every sequence that comes back is a list, also where a tuple went in.
"""

from pylash.lang.running.builtins import conversions, lists, numbers, texts
from pylash.lang.running.builtins.counting import BUILTINS
from pylash.lang.running.builtins.numbers import counted_range

__all__ = ("BUILTINS", "conversions", "counted_range", "lists", "numbers", "texts")
