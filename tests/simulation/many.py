"""Many histories, tried in blocks by processes that import this by its name."""

from __future__ import annotations

from collections import Counter

from tests.simulation.histories import BrokenPromiseError, drawn, run, shrunk

__all__ = ["BLOCK", "tried"]

BLOCK = 50


def tried(first: int) -> tuple[Counter[tuple[str, ...]], list[str]]:
    """The commands of the histories from this seed on, counted; and those that failed."""
    pairs: Counter[tuple[str, ...]] = Counter()
    failures = []
    for seed in range(first, first + BLOCK):
        case = drawn(seed)
        pairs[tuple(sorted(case.commands))] += 1
        try:
            run(case)
        except BrokenPromiseError as failure:
            failures.append(f"seed {seed}: {shrunk(failure)}")
    return pairs, failures
