"""The table of the frames that processes share."""

from __future__ import annotations

from pathlib import Path

from benchmarks.training.shared_frames import Job, measure, rows, write


def test_processes_share_the_frames_of_a_cache(tmp_path: Path) -> None:
    write(tmp_path, 2, 20, 224)
    size = 2 * 40 * 224 * 224 * 3 / (1 << 20)
    folder, cache = str(tmp_path), str(tmp_path / "cache")
    [alone] = measure(Job(folder, "encoded"))
    measure(Job(folder, "encoded", cache), epochs=1)
    for reading in measure(Job(folder, "encoded", cache), 2):
        assert reading.total == alone.total
        assert reading.own < alone.own - size / 2


def test_processes_share_raw_frames(tmp_path: Path) -> None:
    write(tmp_path, 2, 20, 224)
    [copied] = measure(Job(str(tmp_path), "raw, not mapped"))
    for reading in measure(Job(str(tmp_path), "raw", clip_len=1), 2):
        assert reading.total == copied.total
        assert reading.own < copied.own


def test_the_table_has_a_row_for_each_loader(tmp_path: Path) -> None:
    write(tmp_path, 1, 24, 80)
    table = list(rows(tmp_path, 1, 2))
    assert [cells[1] for cells in table] == ["1", "2"] * 5 + ["1"] * 6
