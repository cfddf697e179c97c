"""The file in memory that records executed statements; see `instrumenting`."""

from __future__ import annotations

import mmap
import os

HITS: mmap.mmap | bytearray
"""A byte for each line of the package."""

if file := os.environ.get("MUTATION_HITS"):
    _file = os.open(file, os.O_RDWR)
    HITS = mmap.mmap(_file, 0)
    os.close(_file)
else:  # a process with another environment
    HITS = bytearray(int(os.environ.get("MUTATION_COUNT", 1 << 22)))
