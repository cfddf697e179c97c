"""Cameras in batches: rendered spots of known points are where poses and intrinsics put them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import seqrecord
from seqrecord import BatchResize, HorizontalFlip, RandomCrop, SeqRecordPipe, open_source
from seqrecord.sources import undistorted
from tests.formats.camera_originals import ORIGINALS, Original, write_tum
from tests.formats.cases import index_source
from tests.formats.format_cases.scenes import spot_errors
from tests.kit.lenses import project

Array = npt.NDArray[Any]

MODELS = ("opencv", "opencv", "opencv_fisheye")


FAST = ("tartanair", "euroc", "colmap")  # the others are as many cases of the same tests


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in ORIGINALS
    ]
)
def original(request: pytest.FixtureRequest) -> Original:
    return ORIGINALS[request.param]


def written(original: Original, folder: Path, *, in_place: bool = False) -> Path:
    """A dataset of the original."""
    original.write(folder / "original")
    source, place = open_source(folder / "original", **original.options), folder / "records"
    if in_place:
        index_source(source, place, workers=1)
    else:
        seqrecord.convert(source, place, workers=1)
    return place


def camera_points(batch: Any, image: str, clip: int, points: Array) -> Array:
    """Points [T, P, 3] in the cameras of a clip's frames, whose world is mirrored in flips."""
    is_flipped = "flipped" in batch and bool(batch["flipped"][clip])
    world = (points * [-1, 1, 1] if is_flipped else points) - batch["camera_offset"][clip].numpy()
    poses = batch[f"{image}_pose"][clip].double().numpy()
    poses = np.linalg.inv(np.where(poses.any(axis=(1, 2), keepdims=True), poses, np.eye(4)))
    seen: Array = world @ poses[:, :3, :3].swapaxes(1, 2) + poses[:, None, :3, 3]
    return seen


def pixels_of(batch: Any, image: str, clip: int, points: Array) -> Array:
    """Pixels [T, P, 2] of points, by the columns of a batch."""
    lens = batch[f"{image}_distortion"][clip].double().numpy()
    model = MODELS[int(batch[f"{image}_distortion_model"][clip])]
    pixels = []
    for t, seen in enumerate(camera_points(batch, image, clip, points)):
        matrix = batch[f"{image}_K"][clip, t].double().numpy()
        numbers = matrix[[0, 1, 0, 1], [0, 1, 2, 2]]
        pixels.append(project(seen, numbers, lens[t], model, matrix[0, 1]))
    return np.stack(pixels)


def errors_of(batch: Any, image: str, points: Array) -> list[float]:
    """Distances in pixels between spots and reprojected points, of all frames with a pose."""
    errors = []
    assert not batch[f"{image}_K_is_missing"].any()
    assert not batch[f"{image}_distortion_is_missing"].any()
    for clip, frames in enumerate(batch[image].numpy()):
        pixels = pixels_of(batch, image, clip, points)
        for t in np.flatnonzero(~batch[f"{image}_pose_is_missing"][clip].numpy()):
            frame = frames[t] if frames.ndim == 4 else frames[t, ..., None]
            errors += spot_errors(frame, pixels[t])
    return errors


def assert_rigid(batch: Any, image: str) -> None:
    """Assert that poses are rotations and translations, of determinant 1."""
    is_missing = batch[f"{image}_pose_is_missing"]
    poses = batch[f"{image}_pose"].double()
    assert not poses[is_missing].any()
    poses = poses[~is_missing]
    identity = torch.eye(3, dtype=torch.float64).expand(len(poses), 3, 3)
    rotations = poses[..., :3, :3]
    assert torch.allclose(rotations @ rotations.mT, identity, atol=1e-5)
    assert torch.allclose(torch.linalg.det(rotations), torch.tensor(1.0, dtype=torch.float64))
    assert (poses[..., 3, :] == torch.tensor([0, 0, 0, 1])).all()


IN_PLACE = pytest.mark.parametrize(
    "in_place", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["packed", "in place"]
)


@IN_PLACE
def test_points_reproject_to_their_spots(
    original: Original, in_place: bool, tmp_path: Path
) -> None:
    if in_place and not original.in_place:
        pytest.skip("its images are parts of chunks")
    place = written(original, tmp_path, in_place=in_place)
    images = list(original.images)
    pipe = SeqRecordPipe(place, clip_len=3, features=images, batch_size=2, camera=True)
    lacking = 0
    for batch in pipe:
        assert (batch["is_metric"] == original.is_metric).all()
        for image in images:
            assert batch[f"{image}_pose"].dtype == torch.float32
            assert_rigid(batch, image)
            errors = errors_of(batch, image, original.points)
            assert len(errors) >= 3
            is_missing = batch[f"{image}_pose_is_missing"]
            assert original.may_lack or not is_missing.any()
            lacking += int(is_missing.sum())
            assert max(errors) < 0.1
    assert bool(lacking) == original.may_lack


def steps_of(height: int, width: int) -> dict[str, dict[str, Any]]:
    """Options of a loader of images of this size, by what they do."""
    crop = RandomCrop((height * 5 // 6, width * 7 // 8))
    flip, resize = HorizontalFlip(1.0), seqrecord.Resize((height * 4 // 5, width * 3 // 4))
    sizes = [(height // 2, width * 2 // 3), (height * 3 // 4, width // 2)]
    decoded = {"resize": (height * 3 // 4, width * 5 // 6)}
    return {
        "crop": {"clip_transform": crop},
        "resize": {"clip_transform": resize},
        "flip": {"clip_transform": flip},
        "resize as decoded": decoded,
        "a resize per batch": {"clip_transform": BatchResize(sizes)},
        "crop, resize": {"clip_transform": [crop, resize]},
        "crop, flip": {"clip_transform": [crop, HorizontalFlip(0.5)]},
        "flip, crop": {"clip_transform": [flip, crop]},
        "resize, flip": {"clip_transform": [resize, flip]},
        "resize as decoded, flip": {**decoded, "clip_transform": flip},
        "resize as decoded, resize": {**decoded, "clip_transform": resize},
        "random resized crop, flip": {
            "clip_transform": [
                seqrecord.RandomResizedCrop((height * 2 // 3, width * 2 // 3), scale=(0.7, 1.0)),
                flip,
            ]
        },
        "a resize per batch, flip": {"clip_transform": [BatchResize(sizes), flip]},
    }


@pytest.mark.slow
@IN_PLACE
def test_cameras_move_with_their_images(original: Original, in_place: bool, tmp_path: Path) -> None:
    if in_place and not original.in_place:
        pytest.skip("its images are parts of chunks")
    place, images = written(original, tmp_path, in_place=in_place), list(original.images)
    with seqrecord.open(place) as dataset:
        height, width = (int(side or 0) for side in dataset.features[images[0]].shape[:2])
    for name, options in steps_of(height, width).items():
        pipe = SeqRecordPipe(
            place, clip_len=2, features=images, batch_size=2, camera=True, **options
        )
        errors, num_flipped = list[float](), 0
        for batch in pipe:
            num_flipped += int(batch["flipped"].sum()) if "flipped" in batch else 0
            for image in images:
                assert_rigid(batch, image)
                errors += errors_of(batch, image, original.points)
        assert len(errors) >= 6, name
        assert max(errors) < 0.1, name
        assert bool(num_flipped) == ("flip" in name), name


MIXED_STEPS: dict[str, list[Any]] = {
    "crop, flip": [RandomCrop((64, 80)), HorizontalFlip(0.5)],
    "a resize per batch, flip": [BatchResize([(64, 80), (60, 90)]), HorizontalFlip(0.5)],
}


@pytest.mark.slow
@pytest.mark.parametrize("steps", MIXED_STEPS.values(), ids=MIXED_STEPS)
def test_a_mix_of_originals(tmp_path: Path, steps: list[Any]) -> None:
    """TartanAir, COLMAP and a bag, in other conventions and sizes, in the batches of one mix."""
    names = {"tartanair": "image_left", "colmap": "image", "bag": "left.image_raw"}
    sources = dict[str, SeqRecordPipe]()
    for name, image in names.items():
        place = written(ORIGINALS[name], tmp_path / name)
        sources[name] = SeqRecordPipe(
            place,
            clip_len=2,
            features=[image],
            rename={image: "image"} if image != "image" else None,
            clip_transform=steps,
            camera=True,
        )
    seen = set[str]()
    for batch in seqrecord.SeqRecordMix(sources, batch_size=6):
        assert_rigid(batch, "image")
        for clip, name in enumerate(batch["dataset"]):
            seen.add(name)
            one = {key: value[clip : clip + 1] for key, value in batch.items()}
            assert max(errors_of(one, "image", ORIGINALS[name].points)) < 0.1
            assert bool(batch["is_metric"][clip]) == (name != "colmap")
    assert seen == {*names}


def test_a_camera_without_calibration(tmp_path: Path) -> None:
    """TUM's poses are there; K is 0 and missing, as no path names a camera."""
    write_tum(tmp_path / "original", "office")
    seqrecord.convert(open_source(tmp_path / "original"), tmp_path / "records", workers=1)
    options: dict[str, Any] = {"clip_len": 2, "features": ["image"], "batch_size": 2}
    for batch in SeqRecordPipe(tmp_path / "records", **options, camera=True):
        assert_rigid(batch, "image")
        assert not batch["image_pose_is_missing"].any()
        for noun in ("K", "distortion"):
            assert batch[f"image_{noun}_is_missing"].all()
            assert not batch[f"image_{noun}"].any()


CONVERTED: dict[str, tuple[str, bool]] = {
    "undistorted EuRoC": ("euroc", True),
    "undistorted TUM": ("tum", True),
    "an undistorted bag": ("bag", True),
    "a resized EuRoC": ("euroc", False),
    "a resized KITTI": ("kitti", False),
    "a resized COLMAP scene": ("colmap", False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVERTED)
def test_cameras_of_images_that_convert_changes(tmp_path: Path, name: str) -> None:
    """Images without distortion, or of another size, when they are stored."""
    key, is_undistorted = CONVERTED[name]
    original, images = ORIGINALS[key], list(ORIGINALS[key].images)
    original.write(tmp_path / "original")
    source = open_source(tmp_path / "original", **original.options)
    if is_undistorted:
        seqrecord.convert(undistorted(source), tmp_path / "records", workers=1)
    else:
        sizes = dict.fromkeys(images, (72, 88))
        seqrecord.convert(source, tmp_path / "records", resize=sizes, workers=1)
    pipe = SeqRecordPipe(
        tmp_path / "records", clip_len=2, features=images, batch_size=2, camera=True
    )
    for batch in pipe:
        for image in images:
            assert max(errors_of(batch, image, original.points)) < 0.1
            is_distorted = bool(batch[f"{image}_distortion_model"].any())
            assert is_distorted == (key == "euroc" and not is_undistorted)
