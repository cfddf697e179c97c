"""The table of the frames that processes share."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.checks import faults
from benchmarks.timing import Results
from benchmarks.training.shared_frames import (
    FIVE,
    Job,
    Row,
    check_samples,
    compare,
    main,
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


@pytest.mark.slow
@pytest.mark.timeout(900)  # 33 processes
def test_one_command_writes_all_rows_and_their_page(tmp_path: Path) -> None:
    arguments = [str(tmp_path / "bench"), "--frames", "1", "24", "--side", "80"]
    arguments += ["--five", "1", "20", "32", "48", "--repeats", "1", "--draft"]
    main([*arguments, "--to", str(tmp_path)])
    document = json.loads((tmp_path / "shared_frames.json").read_text())
    expected = rows(Path("frames"), Path("five"), "cache")
    assert list(document["rows"]) == list(expected)
    assert [fault for fault in faults(document) if "CPU" in fault] == []
    text = (tmp_path / "SHARED_FRAMES.md").read_text()
    assert text == page(document)
    assert "1 episodes of 24 frames, two cameras at 80x80, 1 MB" in text
    for name in expected:
        assert f"\n| {name} | " in text


def test_rows_of_other_samples_are_refused(tmp_path: Path) -> None:
    made = {"a": Row(Job("x", "raw")), "b": Row(Job("x", "memmap")), "c": Row(Job("y", "raw"))}
    results: Results = {"a": [{"total": 3}], "b": [{"total": 3}], "c": [{"total": 4}]}
    check_samples(results, made)
    with pytest.raises(ValueError, match=r"different samples: .*'x', 1\)"):
        check_samples(results | {"b": [{"total": 4}]}, made)
