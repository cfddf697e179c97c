"""`python -m tests.tools.simulation`: runs many histories on all cores; see `make simulate`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter

from tests.tools.simulation.histories import BLOCK, run_block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began, done = time.monotonic(), 0
    commands: Counter[tuple[str, ...]] = Counter()
    failures: list[str] = []
    blocks = range(options.first, options.first + options.histories, BLOCK)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for counts, found in pool.imap_unordered(run_block, blocks):
            commands.update(counts)
            failures += found
            done += BLOCK
            for text in found:
                sys.stdout.write(f"{text}\n\n")
            if done % 1000 == 0 or done >= options.histories:
                rate = 60 * done / (time.monotonic() - began)
                sys.stdout.write(
                    f"{done:,} histories, {rate:,.0f} a minute, {len(commands)} sets of commands, "
                    f"{len(failures)} failed\n"
                )
                sys.stdout.flush()
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
