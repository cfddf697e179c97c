"""Clips of datasets whose features lie in several groups, with chunks of other lengths in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import SeqRecordDataset, SeqRecordPipe
from seqrecord.errors import ChecksumError, MemoryLimitError
from seqrecord.storage import LocalStorage, StorageLike, StorageWrapper
from tests.clip_data import (
    LARGE,
    check,
    digest,
    effective,
    leaves_nothing,
    names,
    possible_clips,
    write_numbered,
)
from tests.resume_contract import check_resume

FEATURES = ["image", "flow", "note", "id"]
FIXED = ["image", "flow", "id"]

KINDS: dict[str, dict[str, Any]] = {
    "two groups": {"groups": {"image": 0, "flow": 1, "note": 1, "id": 1}, "codecs": "raw"},
    "uneven chunks": {
        "groups": {"image": 0, "flow": 1, "note": 0, "id": 1},
        "codecs": "balanced",
        "flush_at": [2, 8, 9, 30],
    },
    "long chunks": {  # of 32 frames, and of whole episodes; images are read straight into place
        "groups": {"image": 0, "flow": 1, "note": 2, "id": 1},
        "codecs": {"image": "raw", "flow": "balanced", "note": "raw", "id": "raw"},
        "chunk_frames": None,
        "shape": LARGE,
    },
    "long and uneven": {
        "groups": {"image": 1, "flow": 0, "note": 0, "id": 2},
        "chunk_frames": None,
        "flush_at": [11, 25],
    },
}


@pytest.fixture(scope="module", params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    return write_numbered(folder / "records", **KINDS[request.param])


def test_chunks_of_groups_differ(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "records", **KINDS["long chunks"])
    lengths = [group.num_frames.tolist() for group in seqrecord.open(path).contents.index.groups]
    assert lengths == [[23, 9, 3, 32, 8], [23, 9, 3, 40], [23, 9, 3, 32, 8]]
    path = write_numbered(tmp_path / "uneven", **KINDS["uneven chunks"])
    for group in seqrecord.open(path).contents.index.groups:
        assert group.num_frames[:5].tolist() == [3, 4, 2, 1, 4]


@given(data=st.data())
def test_every_clip_is_right(path: Path, data: st.DataObject) -> None:
    clip_len, dilation = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    stride = data.draw(st.integers(1, 9))
    features = data.draw(st.lists(st.sampled_from(FEATURES), min_size=1, unique=True))
    locations: list[StorageLike] = [path, StorageWrapper(LocalStorage(path))]
    try:
        settings = {
            "batch_size": data.draw(st.none() | st.integers(1, 7)),
            "shuffle": data.draw(st.booleans()),
            "shuffle_buffer": data.draw(st.sampled_from([1, 5, 64])),
            "num_cursors": data.draw(st.none() | st.integers(1, 9)),
            "memory_limit": data.draw(st.sampled_from([30_000, 200_000, 4 << 20])),
            "num_threads": data.draw(st.integers(1, 3)),
            "seed": data.draw(st.integers(0, 9)),
            "device": data.draw(st.sampled_from([None, "cpu"])),
        }
        pipe = SeqRecordPipe(
            data.draw(st.sampled_from(locations)),
            clip_len=clip_len,
            stride=stride,
            dilation=dilation,
            features=features,
            **effective(settings),
        )
    except MemoryLimitError:
        return
    expected = possible_clips(features, clip_len, stride, dilation)
    clips = [name for batch in pipe for name in check(batch, features, clip_len, dilation)]
    assert sorted(clips) == sorted(expected)
    assert pipe.stats()["clips"] == len(expected)


def test_unshuffled_clips_come_in_canonical_order(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=4, stride=2, shuffle=False, batch_size=3)
    clips = [name for batch in pipe for name in names(batch)]
    assert clips == possible_clips(FEATURES, 4, 2)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("clip_len", [1, 4])
def test_clips_that_do_not_overlap(path: Path, clip_len: int, shuffle: bool) -> None:
    settings = {"batch_size": 3, "shuffle": shuffle, "shuffle_buffer": 16}
    pipe = SeqRecordPipe(
        path, clip_len=clip_len, stride=clip_len, features=FIXED, **effective(settings)
    )
    for _ in range(2):
        clips = [name for batch in pipe for name in check(batch, FIXED, clip_len)]
        expected = possible_clips(FIXED, clip_len, clip_len)
        assert (sorted(clips) if shuffle else clips) == expected


@pytest.mark.parametrize("settings", [{}, {"stride": 3}])
def test_resumes_anywhere(path: Path, settings: dict[str, Any]) -> None:
    chosen = {"clip_len": 3, "batch_size": 4, "shuffle_buffer": 64, "features": FIXED, **settings}
    check_resume(lambda: SeqRecordPipe(path, **effective(chosen)))


@pytest.mark.parametrize("stride", [1, 3])
def test_whole_frames_are_transformed(path: Path, stride: int) -> None:
    """With the features of all groups."""

    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        assert list(frame) == FEATURES
        note = np.zeros(5, np.uint16)
        note[: len(frame["note"])] = frame["note"]
        return {"note": note, "flow": frame["flow"], "sum": frame["image"].sum(), "id": frame["id"]}

    pipe = SeqRecordPipe(path, clip_len=3, stride=stride, batch_size=4, frame_transform=transform)
    dataset, found = seqrecord.open(path), []
    for batch in pipe:
        for i, (key, start) in enumerate(names(batch)):
            found.append((key, start))
            for k in range(3):
                number = int(key[4:])
                frame = dataset.episodes[key][start + k]
                assert frame["id"].tolist() == [number, start + k]
                made = transform({name: frame[name] for name in FEATURES})
                for name, value in made.items():
                    assert batch[name][i, k].tolist() == value.tolist()
    assert sorted(found) == sorted(possible_clips(FEATURES, 3, stride))


def test_map_style_reads_all_groups(path: Path) -> None:
    dataset = SeqRecordDataset(path, clip_len=4, stride=2)
    clips = [name for clip in dataset for name in check(clip, FEATURES, 4)]  # type: ignore[attr-defined]
    assert clips == possible_clips(FEATURES, 4, 2)


def test_same_batches_as_from_one_group(tmp_path: Path) -> None:
    """Where the leading group has the chunks that all features had, and all are raw."""
    one = write_numbered(tmp_path / "one")
    several = write_numbered(
        tmp_path / "several", groups={"image": 0, "flow": 1, "note": 1, "id": 2}
    )
    settings: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "seed": 5, "shuffle_buffer": 16}
    settings["features"] = ["image", "flow", "id"]
    batches = [[digest(b) for b in SeqRecordPipe(p, **effective(settings))] for p in (one, several)]
    assert batches[0] == batches[1]


def test_a_broken_page_of_a_small_group(tmp_path: Path) -> None:
    path = write_numbered(
        tmp_path / "records", codecs="raw", groups={"image": 0, "flow": 1, "note": 1, "id": 1}
    )
    dataset = seqrecord.open(path)
    group = dataset.contents.index.groups[1]
    row = int(group.first_chunk[3]) + 2
    file = path / dataset.contents.manifest.record_files[int(group.file[row])].path
    data = bytearray(file.read_bytes())
    data[int(group.offset[row]) + 5] ^= 1
    file.write_bytes(data)
    with leaves_nothing():
        with pytest.raises(ChecksumError) as caught:
            list(SeqRecordPipe(path, clip_len=3, batch_size=4))
        assert caught.value.file == str(file)
        assert caught.value.episode == "set/3 (frames 8 to 11)"
        assert caught.value.feature == "flow"
        del caught
