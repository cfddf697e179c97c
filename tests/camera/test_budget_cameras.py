"""Cameras in batches of a budget: poses and intrinsics of each list's own frames."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch.utils.data import DataLoader

from seqrecord import Budget, CenterCrop, SeqRecordIterableDataset, SeqRecordNode, SeqRecordPipe
from tests.kit.datasets import columns, write_dataset, written_once

LENGTHS = {"a": 14, "b": 23, "c": 31, "d": 17}
OPENCV = {"pose": "camera-to-world, OpenCV axes: x right, y down, z forward"}
PINHOLE = {"fx": 30.0, "fy": 28.0, "cx": 10.25, "cy": 8.5}
SIZE = 22
FORMS = ("list", "nested", "pad")


def pose_of(key: str, frame: int) -> npt.NDArray[np.float64]:
    """A pose with the frame and the episode as its position."""
    pose = np.eye(4)
    pose[:3, 3] = frame, ord(key), -frame
    return pose


def write(path: Path) -> Path:
    episodes = {
        key: columns(
            image=[np.full((18, 22, 3), frame, np.uint8) for frame in range(count)],
            pose=[pose_of(key, frame) for frame in range(count)],
        )
        for key, count in LENGTHS.items()
    }
    write_dataset(
        path,
        episodes,
        metadata={key: {"convention": OPENCV, "camera": PINHOLE} for key in LENGTHS},
        features={"pose": {"kind": "pose", "unit": "m"}},
        chunk_frames=4,
    )
    return path


records = written_once(write)


def table() -> dict[str, Any]:
    """Lists of 1 to 9 frames, some in falling order."""
    rows = [
        (key, [*range(start, min(start + 1 + start % 9, count))][:: 1 if start % 2 else -1])
        for key, count in LENGTHS.items()
        for start in range(count)
    ]
    return {"episode": [key for key, _ in rows], "frames": [frames for _, frames in rows]}


def count_rows(batches: Iterable[Any], offset: int = 0) -> Counter[Any]:
    """The rows of batches, after a check of each frame's pose and intrinsics.

    Images are cropped by `offset` pixels from the top and the left.
    """
    rows = Counter[Any]()
    for batch in batches:
        lengths = [flags.count(False) for flags in batch["frames_is_pad"].tolist()]
        assert batch["image_pose"].shape[:2] == (len(lengths), max(lengths))
        assert batch["image_K_is_missing"].shape == (len(lengths), max(lengths))
        names = ("image", "image_pose", "image_K", "image_pose_is_missing")
        for number, length in enumerate(lengths):
            key, frames = batch["episode"][number], batch["frames"][number, :length].tolist()
            image, poses, intrinsics, missing = (batch[name][number][:length] for name in names)
            assert [int(picture[0, 0, 0]) for picture in image] == frames
            assert not missing.any()
            expected = np.array([pose_of(key, frame) for frame in frames], np.float32)
            np.testing.assert_allclose(poses.numpy(), expected, atol=1e-6)
            matrix = np.array([[30, 0, 10.25 - offset], [0, 28, 8.5 - offset], [0, 0, 1]])
            matrices = np.broadcast_to(matrix, intrinsics.shape)
            np.testing.assert_allclose(intrinsics.numpy(), matrices, atol=1e-5)
            row = (key, *frames)
            rows[row] += 1
    return rows


def options(ragged: str, **others: Any) -> dict[str, Any]:
    """Arguments of loaders of all rows."""
    of_rows = {"samples": table(), "features": ["image"], "camera": True}
    return {**of_rows, "ragged": ragged, "batch_size": Budget(SIZE), **others}


def all_rows() -> Counter[Any]:
    columns = table()
    pairs = zip(columns["episode"], columns["frames"], strict=True)
    return Counter((key, *frames) for key, frames in pairs)


@pytest.mark.parametrize("ragged", FORMS)
@pytest.mark.parametrize("cls", [SeqRecordPipe, SeqRecordIterableDataset, SeqRecordNode])
def test_poses_are_of_the_frames(records: Path, cls: Any, ragged: str) -> None:
    assert count_rows(cls(records, **options(ragged))) == all_rows()


@pytest.mark.parametrize("ragged", FORMS)
def test_crops_move_cameras(records: Path, ragged: Any) -> None:
    loader = SeqRecordPipe(records, **options(ragged, clip_transform=CenterCrop((14, 18))))
    assert count_rows(loader, offset=2) == all_rows()


@pytest.mark.parametrize("ragged", ["list", "pad"])
def test_workers_and_resuming_on_other_ranks(records: Path, ragged: Any) -> None:
    """Each row once, in parts of 3 ranks, 2 ranks with 2 workers, and one."""
    rows, state = Counter[Any](), None
    for ranks, workers, number in ((3, 0, 3), (2, 2, 4), (1, 0, 1 << 20)):
        states = set[str]()
        for rank in range(ranks):
            loader = SeqRecordIterableDataset(records, **options(ragged, rank=(rank, ranks)))
            if state is not None:
                loader.load_state_dict(json.loads(state))
            batches: Any = DataLoader(loader, None, num_workers=workers) if workers else loader
            rows += count_rows(batch for _, batch in zip(range(number), batches, strict=False))
            saved = loader.state_dict(batches=number) if workers else loader.state_dict()
            states.add(json.dumps(saved))
        [state] = states
    assert rows == all_rows()
