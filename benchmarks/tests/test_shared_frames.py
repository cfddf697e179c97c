"""The table of the frames that processes share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.training.shared_frames import (
    FIVE,
    Job,
    compare,
    measure,
    page,
    rows,
    write,
    write_five,
)


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


def test_clips_of_five_features_equal_those_by_hand(tmp_path: Path) -> None:
    write_five(tmp_path / "five", 2, 12, 80, 96)
    job = Job(str(tmp_path / "five"), "raw", clip_len=4, batch=4, features=tuple(FIVE))
    assert compare(job) == 2 * 9
    by_hand = [measure(replace(job, loader="memmap", threads=n))[0] for n in (0, 2)]
    [ours] = measure(job)
    assert [reading.total for reading in by_hand] == [ours.total, ours.total]


def test_other_frames_are_an_error(tmp_path: Path) -> None:
    write_five(tmp_path / "five", 1, 6, 80, 96)
    flow = np.load(tmp_path / "five" / "flow.npy", mmap_mode="r+")
    flow[0, 3, 40, 50, 1] += 1
    flow.flush()
    job = Job(str(tmp_path / "five"), "raw", clip_len=2, batch=4, features=tuple(FIVE))
    with pytest.raises(AssertionError, match="flow"):
        compare(job)


def test_a_page_keeps_its_text() -> None:
    text = "# T\n\nold settings\n\n| a |\n| --- |\n| 1 |\n| 2 |\n\n- words\n"
    lines = page(text, "| b |\n| --- |\n| 3 |", 7).splitlines()
    assert "--repeats 7`" in lines[2]
    assert [*lines[:2], *lines[3:]] == ["# T", "", "", "| b |", "| --- |", "| 3 |", "", "- words"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # 33 processes
def test_the_table_has_a_row_for_each_loader(tmp_path: Path) -> None:
    write(tmp_path, 1, 24, 80)
    write_five(tmp_path / "five", 1, 20, 32, 48)
    table = list(rows(tmp_path, 1, 2))
    assert [cells[1] for cells in table] == ["1", "2"] * 6 + ["1"] * 13
