"""The raw-file baseline gives the clips that were written, in canonical order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.tartanair.loaders.raw_files import RawFilesDataset
from tests.trees import make_frames, write_junk, write_v1, write_v2


@pytest.fixture
def tree(tmp_path: Path) -> Path:
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
    tree: Path, clip_len: int, stride: int, dilation: int, features: list[str], starts: list[int]
) -> None:
    dataset = RawFilesDataset(
        tree / "b", clip_len=clip_len, stride=stride, dilation=dilation, features=features
    )
    assert _places(dataset) == [("b/Easy/P001", start) for start in starts]


def test_an_episode_without_a_feature_gives_no_clips(tree: Path) -> None:
    frames = [{k: v for k, v in frame.items() if k != "seg_left"} for frame in make_frames(3, 5)]
    write_v1(tree / "c" / "Easy" / "P000", frames)
    dataset = RawFilesDataset(tree, clip_len=4, features=["seg_left"])
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
