"""`benchmarks.derived`: both ways deliver the same values, and one encodes once."""

from __future__ import annotations

from pathlib import Path

from benchmarks.derived import measure, write


def test_both_ways(tmp_path: Path) -> None:
    write(tmp_path / "records", episodes=2, length=24)
    rows = measure(tmp_path, epochs=2)
    assert [row[:2] for row in rows] == [
        *(("encoded at each step", epoch) for epoch in ("1", "2")),
        *(("derived once", epoch) for epoch in ("derive", "1", "2")),
    ]
    assert [row[3] for row in rows] == ["4", "4", "4", "0", "0"]
