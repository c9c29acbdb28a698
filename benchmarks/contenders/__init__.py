"""The contenders: a module each, and what the parent calls them."""

from __future__ import annotations

from typing import Final

MODULES: Final = {
    "raw": "benchmarks.contenders.raw",
    "pylash": "benchmarks.contenders.pylash_contender",
    "dbos": "benchmarks.contenders.dbos_contender",
    "dbos-killed": "benchmarks.contenders.dbos_killed",
    "absurd": "benchmarks.contenders.absurd_contender",
    "restate": "benchmarks.contenders.restate_contender",
}
"""Each module has a function ``contender(store, url)``. Only children import them."""
