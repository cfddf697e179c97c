"""Every clip of an epoch, bit for bit, against a loader that opens the original files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.raw_files import RawFilesDataset
from seqrecord import SeqRecordMapDataset, SeqRecordPipe, convert
from seqrecord.sources import TartanAirSource
from tests.clip_data import names
from tests.trees import REAL_DATA, make_frames, write_junk, write_v1, write_v2

PRESETS = ["raw", "fast", "balanced", "small"]


@pytest.fixture(scope="module", params=["v1", "v2"])
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes, the second too short for a clip of 4: rendered of V1, random of V2."""
    root = tmp_path_factory.mktemp("baseline") / str(request.param)
    if request.param == "v1":
        generate(root, episodes=[9, 3], height=64, width=96)
    else:
        for number, count in enumerate((9, 3)):
            every = make_frames(number, count, v2=True)
            frames = [{k: v for k, v in f.items() if not k.startswith("imu")} for f in every]
            write_v2(root / "env" / "Data_easy" / f"P{number:03d}", frames)
    return root


def pack(source: Path, destination: Path, *, codec: str | None, **settings: Any) -> Path:
    convert(
        TartanAirSource(source, **settings), destination, codecs=codec, workers=1, chunk_frames=4
    )
    return destination


def same(clip: dict[str, Any], original: dict[str, Any]) -> None:
    assert (clip["episode"], clip["start"]) == (original["episode"], original["start"])
    assert set(clip) == set(original)
    for name, expected in original.items():
        if isinstance(expected, torch.Tensor):
            assert clip[name].dtype == expected.dtype, name
            assert clip[name].shape == expected.shape, name
            assert clip[name].numpy().tobytes() == expected.numpy().tobytes(), name


def compare(records: Path, root: Path, clip_len: int, **settings: Any) -> None:
    """One epoch of each kind of loader against the original files."""
    features = list(SeqRecordMapDataset(records, clip_len=1).dataset.features)
    baseline = RawFilesDataset(root, clip_len=clip_len, features=features, **settings)
    originals = {
        (c["episode"], c["start"]): c for c in map(baseline.__getitem__, range(len(baseline)))
    }
    assert originals
    for shuffle in (False, True):
        for batch_size in (None, 3):
            seen = []
            pipe = SeqRecordPipe(
                records, clip_len=clip_len, shuffle=shuffle, batch_size=batch_size, **settings
            )
            for batch in pipe:
                for i, name in enumerate(names(batch)):
                    clip = batch
                    if batch_size is not None:
                        clip = {feature: batch[feature][i] for feature in batch}
                    same(clip, originals[name])
                    seen.append(name)
            assert sorted(seen) == sorted(originals)
            assert shuffle or seen == list(originals)
    dataset = SeqRecordMapDataset(records, clip_len=clip_len, **settings)
    for number, original in enumerate(originals.values()):
        same(dataset[number], original)


@pytest.mark.parametrize("codec", PRESETS)
def test_a_tree(tree: Path, tmp_path: Path, codec: str) -> None:
    records = pack(tree, tmp_path / "records", codec=codec)
    compare(records, tree, 4)
    compare(records, tree, 2, stride=2, dilation=2)


def test_a_tree_with_images_kept_encoded(tree: Path, tmp_path: Path) -> None:
    compare(pack(tree, tmp_path / "records", codec=None, keep_encoded=True), tree, 4)


@pytest.mark.parametrize("codec", [*PRESETS, "kept"])
@pytest.mark.parametrize(("version", "clip_len"), [("tartanair_v1", 1), ("tartanair_v2", 2)])
def test_real_data(tmp_path: Path, version: str, clip_len: int, codec: str) -> None:
    root = REAL_DATA / version
    if not root.is_dir():
        pytest.skip("the real samples are not on this machine")
    kept = codec == "kept"
    records = pack(root, tmp_path / "records", codec=None if kept else codec, keep_encoded=kept)
    compare(records, root, clip_len)


# The raw-file baseline gives the clips that were written, in canonical order


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    root = tmp_path / "tartanair"
    write_v1(root / "b" / "b" / "Easy" / "P001", make_frames(1, 5), first_id=7)
    write_v1(root / "a" / "Hard" / "P000", make_frames(2, 4))
    write_junk(root)
    return root


def _places(dataset: RawFilesDataset) -> list[tuple[str, int]]:
    samples = map(dataset.__getitem__, range(len(dataset)))
    return [(sample["episode"], sample["start"]) for sample in samples]


@pytest.mark.parametrize(
    ("clip_len", "stride", "dilation", "features", "starts"),
    [
        (2, 2, 1, ["image_left"], [0, 2]),
        (2, 1, 3, ["depth_left"], [0, 1]),
        (3, 1, 2, ["pose_left"], [0]),
        (2, 1, 1, ["image_left", "flow"], [0, 1, 2]),  # the last frame has no flow
        (5, 1, 1, ["mask"], []),
        (6, 1, 1, ["image_left"], []),
    ],
)
def test_starts(
    small_tree: Path,
    clip_len: int,
    stride: int,
    dilation: int,
    features: list[str],
    starts: list[int],
) -> None:
    dataset = RawFilesDataset(
        small_tree / "b", clip_len=clip_len, stride=stride, dilation=dilation, features=features
    )
    assert _places(dataset) == [("b/Easy/P001", start) for start in starts]


def test_an_episode_without_a_feature_gives_no_clips(small_tree: Path) -> None:
    frames = [{k: v for k, v in frame.items() if k != "seg_left"} for frame in make_frames(3, 5)]
    write_v1(small_tree / "c" / "Easy" / "P000", frames)
    dataset = RawFilesDataset(small_tree, clip_len=4, features=["seg_left"])
    assert {episode for episode, _ in _places(dataset)} == {"a/Hard/P000", "b/Easy/P001"}


@pytest.mark.parametrize("v2", [False, True])
def test_values(tmp_path: Path, v2: bool) -> None:
    frames = make_frames(4, 6, v2=v2)
    write = write_v2 if v2 else write_v1
    write(tmp_path / "env" / ("Data_easy" if v2 else "Easy") / "P003", frames, first_id=2)
    dataset = RawFilesDataset(tmp_path, clip_len=2, dilation=2, stride=2)
    names = {name for name in frames[0] if not name.startswith("imu")}
    assert set(dataset.features) == names
    assert len(dataset) == 2
    sample = dataset[1]
    assert sample.pop("episode") == f"env/{'Data_easy' if v2 else 'Easy'}/P003"
    assert sample.pop("start") == 2
    expected = {name: np.stack([frames[2][name], frames[4][name]]) for name in names}
    assert sample.keys() == expected.keys()
    for feature, value in expected.items():
        got = sample[feature].numpy()
        assert (got.dtype, got.shape) == (value.dtype, value.shape)
        assert got.tobytes() == value.tobytes(), feature
