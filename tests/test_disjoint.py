"""Clips that do not overlap."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from seqrecord import SeqRecordPipe
from seqrecord.errors import ChecksumError
from tests.clip_data import (
    STRAIGHT,
    check,
    digest,
    effective,
    leaves_nothing,
    possible_clips,
    write_numbered,
)
from tests.datasets import nth_chunk
from tests.resume_contract import check_resume

FIXED = ["image", "flow", "id"]


KINDS: dict[str, dict[str, Any]] = {
    "small": {"codecs": "raw"},
    "raw": {"codecs": "raw", "shape": STRAIGHT},  # its pages are read straight into rows
    "balanced": {"codecs": "balanced", "shape": STRAIGHT},
}


@pytest.fixture(scope="module", params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disjoint")
    return write_numbered(folder / "records", **KINDS[request.param])


def make(path: Path, clip_len: int, **settings: Any) -> SeqRecordPipe:
    chosen = {"features": FIXED, "stride": clip_len, "shuffle_buffer": 16, "batch_size": 3}
    return SeqRecordPipe(path, clip_len=clip_len, **effective({**chosen, **settings}))


def shapes_of_batches() -> Iterator[Any]:
    """Lengths of clips, sizes of batches, and whether to shuffle: in the fast tests each once."""
    quick = [(1, 1, True), (2, None, False), (4, 3, True), (8, 64, False)]
    for case in itertools.product((1, 2, 4, 8), (None, 1, 3, 64), (True, False)):
        yield pytest.param(*case, marks=() if case in quick else pytest.mark.slow)


@pytest.mark.parametrize(("clip_len", "batch_size", "shuffle"), list(shapes_of_batches()))
def test_every_clip_is_right(
    path: Path, clip_len: int, batch_size: int | None, shuffle: bool
) -> None:
    pipe = make(path, clip_len, batch_size=batch_size, shuffle=shuffle)
    for _ in range(2):
        clips = [name for batch in pipe for name in check(batch, FIXED, clip_len)]
        expected = possible_clips(FIXED, clip_len, clip_len)
        assert (sorted(clips) if shuffle else clips) == expected
        assert pipe.stats()["frames_decoded"] == len(expected) * clip_len


@pytest.mark.parametrize(
    "settings", [{"stride": 3}, {"stride": 5, "num_cursors": 1, "shuffle_buffer": 2}]
)
def test_frames_of_several_clips(path: Path, settings: dict[str, int]) -> None:
    pipe = make(path, 4, **settings)
    clips = [name for batch in pipe for name in check(batch, FIXED, 4)]
    expected = possible_clips(FIXED, 4, settings.get("stride", 4))
    assert sorted(clips) == sorted(expected)


def test_features_of_variable_shape(path: Path) -> None:
    pipe = make(path, 4, features=[*FIXED, "note"])
    clips = [name for batch in pipe for name in check(batch, [*FIXED, "note"], 4)]
    assert sorted(clips) == sorted(possible_clips(FIXED, 4, 4))


def test_transformed_frames(path: Path) -> None:
    def transform(frame: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        return {"twice": frame["id"] * 2, "image": frame["image"][::2]}

    pipe = make(path, 4, features=["id", "image"], frame_transform=transform)
    count = 0
    for batch in pipe:
        for clip, key, start in zip(batch["twice"], batch["episode"], batch["start"], strict=True):
            expected = [[2 * int(key[4:]), 2 * (int(start) + i)] for i in range(4)]
            assert clip.tolist() == expected
            count += 1
        assert batch["image"].shape[2] in (3, 210)
    assert count == len(possible_clips(["id", "image"], 4, 4))


def test_batches_that_are_kept_do_not_change(path: Path) -> None:
    pipe = make(path, 2)
    kept = list(pipe)
    list(pipe)
    for batch in kept:
        check(batch, FIXED, 2)


@pytest.mark.parametrize("settings", [{}, {"batch_size": None}, {"drop_last": True}])
def test_resumes_anywhere(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = write_numbered(tmp_path / "records")
    check_resume(lambda: make(path, 2, **settings))


def test_as_beside_a_feature_of_variable_shape(path: Path) -> None:
    """As where another feature is asked for, whose shape varies."""
    straight, other = make(path, 4, seed=3), make(path, 4, seed=3, features=[*FIXED, "note"])
    expected = [digest(batch) for batch in straight]
    found = []
    for batch in other:
        del batch["note"]
        found.append(digest(batch))
    assert found == expected


def test_leaving_early_leaves_nothing(path: Path) -> None:
    pipe = make(path, 2)
    list(pipe)
    with leaves_nothing():
        for _ in pipe:
            break
    assert len(list(pipe)) == len(pipe)


def test_a_damaged_page_ends_the_iteration_after_the_batches_before_it(
    tmp_path: Path,
) -> None:
    damaged = write_numbered(tmp_path / "records", codecs="raw", shape=STRAIGHT)
    pipe = make(damaged, 4, shuffle=False, batch_size=1)
    good = [digest(batch) for batch in pipe]
    chunk = nth_chunk(pipe.dataset, 0, 3)
    page = pipe.dataset.contents.chunks.pages(chunk)[0]
    file = damaged / chunk.path
    data = bytearray(file.read_bytes())
    data[page.start + 5] ^= 1
    file.write_bytes(data)
    pipe = make(damaged, 4, shuffle=False, batch_size=1)
    batches = iter(pipe)
    assert [digest(next(batches)) for _ in range(3)] == good[:3]
    with pytest.raises(ChecksumError, match=r"set/0 \(frames 12 to 15\)"):
        next(batches)


def test_what_is_read_is_the_page_to_the_byte(path: Path) -> None:
    pipe = make(path, 4, shuffle=False)
    list(pipe)
    reader, index = pipe.dataset.contents.chunks, pipe.dataset.contents.index
    expected = 0
    for key, start in possible_clips(FIXED, 4, 4):
        episode = index.positions[key]
        for page in reader.pages(nth_chunk(pipe.dataset, episode, start // 4)):
            expected += page.stop - page.start
    assert pipe.stats()["bytes_read"] == expected
    assert np.isfinite(pipe.stats()["fetch_seconds"])
