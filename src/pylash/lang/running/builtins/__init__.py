"""The 33 builtin functions.

1. Arguments are never changed in place; a returned sequence is always a list, also if a tuple was given.
"""

from pylash.lang.running.builtins import conversions, lists, numbers, texts
from pylash.lang.running.builtins.counting import BUILTINS
from pylash.lang.running.builtins.numbers import counted_range

__all__ = ("BUILTINS", "conversions", "counted_range", "lists", "numbers", "texts")
