"""The contenders: a module each, and what the parent calls them."""

from __future__ import annotations

from typing import Final

MODULES: Final = {
    "raw": "benchmarks.contenders.raw",
    "pylash": "benchmarks.contenders.pylash_contender",
    "pylash-processes": "benchmarks.contenders.pylash_processes",
    "pylash-parked": "benchmarks.contenders.pylash_parked",
    "pylash-crowd": "benchmarks.contenders.pylash_parked",
    "pylash-killed": "benchmarks.contenders.pylash_killed",
    "pylash-engine": "benchmarks.contenders.pylash_restate",
    "pylash-history": "benchmarks.contenders.pylash_history",
    "dbos": "benchmarks.contenders.dbos_contender",
    "dbos-killed": "benchmarks.contenders.dbos_killed",
    "absurd": "benchmarks.contenders.absurd_contender",
    "restate": "benchmarks.contenders.restate_contender",
    "pylash-agent": "benchmarks.contenders.pylash_agent",
    "pydantic-agent": "benchmarks.contenders.pydantic_agent",
    "pydantic-dbos-agent": "benchmarks.contenders.pydantic_dbos_agent",
    "langgraph-agent": "benchmarks.contenders.langgraph_agent",
    "computing": "benchmarks.contenders.computing",
    "openai-agent": "benchmarks.contenders.openai_agent",
}
"""Each module has a function ``contender(store, url)``. Only children import them.

Two names may share a module: the crowd has a process of its own, because its memory is measured.
"""
