"""The benchmark's arithmetic: epochs are compared with those at the same level of the machine."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import numpy as np
import pytest

import seqrecord
from benchmarks.tartanair.throughput.__main__ import share_of
from benchmarks.tartanair.throughput.limits import copying
from benchmarks.tartanair.throughput.measure import scaling
from benchmarks.tartanair.throughput.rows import ROWS


def test_shares_are_of_the_same_level() -> None:
    results = {
        "copy": [{"epochs": [(100.0, 1.1, 1.1), (200.0, 1.8, 1.8), (7.0, 1.1, 1.8)]}],
        "raw": [{"epochs": [(90.0, 1.1, 1.1)]}, {"epochs": [(100.0, 1.8, 1.8), (7.0, 1.8, 1.1)]}],
    }
    assert share_of(results, "raw", "copy") == pytest.approx((0.9 + 0.5) / 2)
    assert share_of({**results, "raw": results["raw"][:1]}, "raw", "copy") == pytest.approx(0.9)
    assert share_of({"raw": results["raw"]}, "raw", "copy") is None


def test_every_row_is_compared_with_a_row() -> None:
    assert {row.of for row in ROWS.values()} <= {"", *ROWS}


def test_scaling_of_two_threads() -> None:
    ours, theirs = multiprocessing.Pipe()
    threading.Thread(target=scaling, args=(theirs,)).start()
    with ours:
        ours.send(None)
        assert ours.recv() > 0


def test_windows_are_copied_of_frames_that_were_read_and_checked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 1 << 30, (n, 7, 9)).astype("i4") for n in (6, 9)]
    with seqrecord.SeqRecordWriter(tmp_path / "raw", codecs="raw", chunk_frames=4) as writer:
        for number, images in enumerate(frames):
            with writer.episode(str(number)) as episode:
                for at, image in enumerate(images):  # the last frame has no flow
                    flow = {"flow": np.stack((image, image), 2)} if at + 1 < len(images) else {}
                    episode.append({"image": image, **flow})
    epochs = [copying("raw", 3, 2, side=4, reads=reads)(tmp_path) for reads in (False, True)]
    seen = 0
    for one, other in zip(*(epoch() for epoch in epochs), strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
        for image, flow in zip(one["image"], one["flow"], strict=True):
            np.testing.assert_array_equal(np.stack((image, image), 3), flow)
            pixel = image[0, 0, 0]
            ((number, (start, top, left)),) = [
                (number, np.argwhere(images == pixel)[0])
                for number, images in enumerate(frames)
                if (images == pixel).any()
            ]
            window = frames[number][start : start + 3, top : top + 4, left : left + 4]
            np.testing.assert_array_equal(window, image)
            seen += 1
    assert seen == 3 + 6 - 1  # the last batch is left out

    (file,) = (tmp_path / "raw" / "records").iterdir()
    data = bytearray(file.read_bytes())
    data[data.index(frames[0][0].tobytes())] ^= 1
    file.write_bytes(data)
    with pytest.raises(seqrecord.SeqRecordError, match="checksum"):
        list(epochs[1]())
