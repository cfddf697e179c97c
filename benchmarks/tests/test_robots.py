"""Both sides of the comparison make the same batches."""

from __future__ import annotations

from pathlib import Path

from benchmarks.robots import SIZES, VECTORS, measure, write


def test_both_sides_are_measured(tmp_path: Path) -> None:
    for name, size in SIZES.items():
        write(tmp_path / name, size, episodes=2, length=40)
    found = measure(tmp_path, [*VECTORS], repeats=1)
    assert found.keys() == {"arguments", "clip_transform"}
    assert all(cpu > 0 and wall > 0 for cpu, wall in found.values())
