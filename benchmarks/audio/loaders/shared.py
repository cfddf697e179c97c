"""Loaders that know nothing of what a frame is: the same as for TartanAir."""

from __future__ import annotations

from benchmarks.tartanair.loaders import memmap, records

LOADERS = [*records.LOADERS, *memmap.LOADERS]
