"""`python -m tests.simulation`: runs many histories on all cores; see `make simulate`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter

from tests.simulation.histories import BrokenPromiseError, drawn, run, shrunk

_BLOCK = 50


def _tried(first: int) -> tuple[Counter[tuple[str, ...]], list[str]]:
    pairs: Counter[tuple[str, ...]] = Counter()
    failures = []
    for seed in range(first, first + _BLOCK):
        case = drawn(seed)
        pairs[tuple(sorted(case.commands))] += 1
        try:
            run(case)
        except BrokenPromiseError as failure:
            failures.append(f"seed {seed}: {shrunk(failure)}")
    return pairs, failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began, done = time.monotonic(), 0
    commands: Counter[tuple[str, ...]] = Counter()
    failures: list[str] = []
    blocks = range(options.first, options.first + options.histories, _BLOCK)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for counts, found in pool.imap_unordered(_tried, blocks):
            commands.update(counts)
            failures += found
            done += _BLOCK
            for text in found:
                sys.stdout.write(f"{text}\n\n")
            if done % 1000 == 0:
                rate = 60 * done / (time.monotonic() - began)
                sys.stdout.write(
                    f"{done:,} histories, {rate:,.0f} a minute, {len(commands)} sets of commands, "
                    f"{len(failures)} failed\n"
                )
                sys.stdout.flush()
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
