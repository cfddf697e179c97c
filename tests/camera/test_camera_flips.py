"""Flips with `camera=`: all of a clip moves into the mirrored world, or nothing does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import seqrecord
from seqrecord import (
    Camera,
    ClipError,
    HorizontalFlip,
    RandomCrop,
    RelativePose,
    SeqRecordPipe,
    Vector,
)
from tests.camera.test_camera import assert_rigid, camera_points, errors_of
from tests.cuda.side_streams import STREAMS, device_of, on_host
from tests.formats.camera_originals import POINTS, shifted, write_tartanair
from tests.kit.datasets import write_dataset

Array = npt.NDArray[Any]

IMAGES = ("image_left", "image_right")
STEREO = [*IMAGES, "depth_left", "depth_right"]
BASELINE = 0.25


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TartanAir with points of the world in each frame: of one number, and of varying ones."""
    folder = tmp_path_factory.mktemp("flips")
    write_tartanair(folder / "original", v2=False)
    source = seqrecord.open_source(folder / "original")
    (info,) = source.episodes()
    frames = [
        {**frame, "points": np.float32(POINTS), "scan": np.float32(POINTS[: 2 + t % 3])}
        for t, frame in enumerate(source.frames(info))
    ]
    kinds: dict[str, Any] = {
        name: {"kind": spec.kind, "unit": spec.unit} for name, spec in source.schema().items()
    }
    kinds |= {"points": {"kind": "points", "unit": "m"}}
    kinds["scan"] = {"kind": "points", "unit": "m", "shape": (None, 3)}
    metadata = {info.key: info.metadata}
    write_dataset(folder / "records", {info.key: frames}, metadata=metadata, features=kinds)
    return folder / "records"


def batches(records: Path, step: Any, features: Any = STEREO, **options: Any) -> list[Any]:
    options = {"clip_len": 2, "batch_size": 4, "camera": True, **options}
    pipe = SeqRecordPipe(records, features=[*features], clip_transform=step, **options)
    return [on_host(batch) for batch in pipe]


def relative(batch: Any) -> Array:
    """Poses of the right camera in the left one's frame, [clips, frames, 4, 4]."""
    left, right = (batch[f"{image}_pose"].double().numpy() for image in IMAGES)
    found: Array = np.linalg.inv(left) @ right
    return found


@pytest.mark.parametrize("kind", STREAMS)
def test_stereo_partners_are_exchanged(records: Path, kind: str) -> None:
    """The left camera of a flipped clip shows the mirrored image of the right one."""
    with device_of(kind) as device:
        stored = batches(records, HorizontalFlip(0), shuffle=False, device=device)
        flipped = batches(records, HorizontalFlip(1), shuffle=False, device=device)
    for before, after in zip(stored, flipped, strict=True):
        for name in STEREO:
            partner = name.replace("left", "LEFT").replace("right", "left").replace("LEFT", "right")
            assert torch.equal(after[name], before[partner].flip(3)), name
        for batch in (before, after):
            np.testing.assert_allclose(
                relative(batch)[..., :3, 3], np.broadcast_to((BASELINE, 0, 0), (4, 2, 3)), atol=1e-5
            )
            for image in IMAGES:
                assert_rigid(batch, image)


def test_a_partner_without_a_camera_is_exchanged_as_unknown(tmp_path: Path, records: Path) -> None:
    """Flipped clips of the left image show the right one, whose camera is unknown."""
    with seqrecord.open(records) as dataset:
        (episode,) = dataset.episodes.values()
        frames = [{n: episode[t][n] for n in (*IMAGES, "pose_left")} for t in range(4)]
    kinds = {"pose_left": {"kind": "pose", "unit": "m"}}
    write_dataset(tmp_path / "records", {"a": frames}, features=kinds)
    camera = Camera(poses={"image_left": "pose_left"}, axes="opencv")
    for p in (0, 1):
        for batch in batches(tmp_path / "records", HorizontalFlip(p), IMAGES, camera=camera):
            assert batch["image_left_pose_is_missing"].all() == bool(p)
            assert batch["image_left_pose"].any() != bool(p)
            assert "image_right_pose" not in batch


def test_depth_of_points(records: Path) -> None:
    """Depth maps have the depths of points at their pixels."""
    for batch in batches(records, [RandomCrop((88, 120)), HorizontalFlip(0.5)]):
        for side in ("left", "right"):
            assert max(errors_of(batch, f"image_{side}", POINTS)) < 0.1
            for clip, depths in enumerate(batch[f"depth_{side}"].numpy()):
                matrices = batch[f"image_{side}_K"][clip].double().numpy()
                seen = camera_points(batch, f"image_{side}", clip, POINTS)
                pixels = seen @ matrices.swapaxes(1, 2)
                places = np.rint(pixels[..., :2] / pixels[..., 2:]).astype(int)
                for frame, (place, points) in enumerate(zip(places, seen, strict=True)):
                    inside = ((place >= 0) & (place < (120, 88))).all(axis=1)
                    x, y = place[inside].T
                    got = depths[frame][y, x]
                    is_near = np.abs(got - points[inside, 2]) < 1e-3
                    # A nearer spot may hide another one.
                    assert (is_near | (got < points[inside, 2])).all()
                    assert is_near.sum() >= 3


def test_a_point_is_placed_behind_the_flip(tmp_path: Path, records: Path) -> None:
    with seqrecord.open(records) as dataset:
        (episode,) = dataset.episodes.values()
        frames = [{n: episode[t][n] for n in ("image_left", "pose_left")} for t in range(4)]
    frames = [{**frame, "spot": np.array([1, 2, 3], np.float32)} for frame in frames]
    kinds = {"pose_left": {"kind": "pose", "unit": "m"}, "spot": {"kind": "points", "unit": "m"}}
    write_dataset(tmp_path / "records", {"a": frames}, features=kinds)
    options: dict[str, Any] = {"camera": Camera(poses={"image_left": "pose_left"}, axes="opencv")}
    options["vectors"] = {"spot": Vector(pad_to=4)}
    for device in (None, "cpu"):
        features = ["image_left", "spot"]
        for batch in batches(
            tmp_path / "records", HorizontalFlip(1), features, device=device, **options
        ):
            assert (batch["spot"] == torch.tensor([-1.0, 2, 3, 0])).all()


FORMS = ("list", "pad", "nested")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["host", *STREAMS])
def test_points_move_with_the_world(records: Path, kind: str, form: str) -> None:
    features = ["image_left", "points", "scan"]
    options: dict[str, Any] = {"ragged": {"scan": form}}
    with device_of("cpu" if kind == "host" else kind) as device:
        options["device"] = None if kind == "host" else device
        found = batches(records, HorizontalFlip(0.5), features, **options, seed=4)
    num_flipped = 0
    for batch in found:
        flipped = batch["flipped"]
        num_flipped += int(flipped.sum())
        sign = torch.where(flipped, -1.0, 1.0)[:, None, None]
        expected = torch.from_numpy(np.float32(POINTS)) * torch.tensor([1.0, 0, 0])
        assert torch.equal(batch["points"][:, 0, :, 0], sign[:, 0] * expected[:, 0])
        rest = torch.from_numpy(np.float32(POINTS[:, 1:])).expand(batch["points"][..., 1:].shape)
        assert torch.equal(batch["points"][..., 1:], rest)
        scans = batch["scan"]
        if form == "nested":
            values = scans.unbind()
            scans = [values[2 * clip : 2 * clip + 2] for clip in range(len(flipped))]
        for clip, is_flipped in enumerate(flipped.tolist()):
            for frame, scan in enumerate(scans[clip]):
                if form == "pad":
                    scan = scan[batch["scan_mask"][clip, frame]]
                want = np.float32(POINTS[: len(scan)]) * np.array(
                    [-1 if is_flipped else 1, 1, 1], np.float32
                )
                np.testing.assert_array_equal(scan, want)
            # The points of the batch are at their spots.
            points = batch["points"][clip, 0].double().numpy()
            points = points * [-1, 1, 1] if is_flipped else points  # as `errors_of` expects
            one = {
                name: value[clip : clip + 1]
                for name, value in batch.items()
                if name.startswith(("image", "flipped", "camera_offset"))
            }
            assert max(errors_of(one, "image_left", points)) < 0.1
    assert 0 < num_flipped < sum(len(batch["flipped"]) for batch in found)


def test_functions_receive_the_mirrored_world(records: Path) -> None:
    def function(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Array]:
        del generator
        assert clip["image_left_pose"].shape == (2, 4, 4)
        points = np.stack([*clip["scan"]][:1])[:, :2]
        return {"left": clip["image_left"], "points": clip["points"], "scan_points": points}

    features = ["image_left", "image_right", "points", "scan"]
    with_function = partial(batches, records, features=features, shuffle=False)
    for plain, made in zip(
        with_function(HorizontalFlip(1)), with_function([HorizontalFlip(1), function]), strict=True
    ):
        assert torch.equal(made["left"], plain["image_left"])
        assert torch.equal(made["points"], plain["points"])
        assert torch.equal(made["scan_points"][:, 0], plain["points"][:, 0, :2])
        assert torch.equal(made["image_left_pose"], plain["image_left_pose"])


def test_clips_by_number(records: Path) -> None:
    dataset = seqrecord.SeqRecordMapDataset(
        records,
        clip_len=2,
        features=["image_left", "image_right", "points"],
        clip_transform=HorizontalFlip(1),
        camera=True,
    )
    (plain,) = batches(records, HorizontalFlip(1), IMAGES, shuffle=False)
    for number in range(len(dataset)):
        for image in IMAGES:
            assert torch.equal(dataset[number][image], plain[image][number])
            assert torch.equal(dataset[number][f"{image}_pose"], plain[f"{image}_pose"][number])
        assert (
            dataset[number]["points"][..., 0] == -torch.from_numpy(np.float32(POINTS[:, 0]))
        ).all()


# Results of wrong implementations, which the checks above must reject.


def translated_only(batch: Any) -> None:
    """T S instead of S T S: a reflection, which reprojects as well."""
    for image in IMAGES:
        batch[f"{image}_pose"] = batch[f"{image}_pose"] @ torch.diag(torch.tensor([-1.0, 1, 1, 1]))


def unmoved(batch: Any) -> None:
    """Poses of the world that is not mirrored."""
    mirror = torch.diag(torch.tensor([-1.0, 1, 1, 1]))
    for image in IMAGES:
        batch[f"{image}_pose"] = mirror @ batch[f"{image}_pose"] @ mirror


def one_camera(batch: Any) -> None:
    """A left camera that is not mirrored."""
    mirror = torch.diag(torch.tensor([-1.0, 1, 1, 1]))
    batch["image_left_pose"] = mirror @ batch["image_left_pose"] @ mirror


def not_exchanged(batch: Any) -> None:
    left, right = (f"{image}_pose" for image in IMAGES)
    batch[left], batch[right] = batch[right], batch[left]


def principal_point(batch: Any) -> None:
    """K of the image that is not mirrored, whose width is 128."""
    for image in IMAGES:
        batch[f"{image}_K"][..., 0, 2] = 127 - batch[f"{image}_K"][..., 0, 2]


MUTANTS = (translated_only, unmoved, one_camera, not_exchanged, principal_point)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_checks_reject_mutants(records: Path, mutant: Callable[[Any], None]) -> None:
    (batch,) = batches(records, HorizontalFlip(1))

    def passes() -> bool:
        try:
            for image in IMAGES:
                assert_rigid(batch, image)
        except AssertionError:
            return False
        errors = [errors_of(batch, image, POINTS) for image in IMAGES]
        return max(map(max, errors)) < 0.1 and bool((relative(batch)[..., 0, 3] > 0).all())

    assert passes()
    mutant(batch)
    assert not passes()


REFUSED: dict[str, tuple[list[str], Any, str]] = {
    "some features": (
        STEREO,
        HorizontalFlip(features=["image_left", "depth_left"]),
        r"a flip of one camera alone.*feature: image_right, depth_right",
    ),
    "one camera": (
        ["image_left", "image_right"],
        {"image_left": HorizontalFlip(0.5), "image_right": RandomCrop(60)},
        r"a flip of one camera alone.*feature: image_right",
    ),
    "other probabilities": (
        ["image_left", "image_right"],
        {"image_left": HorizontalFlip(0.5), "image_right": HorizontalFlip(0.25)},
        r"a flip of one camera alone",
    ),
    "draws of their own": (
        ["image_left", "image_right"],
        {name: HorizontalFlip(0.5, shared=False) for name in IMAGES},
        r"draws of their own.*HorizontalFlip without shared=False",
    ),
    "no partner": (
        ["image_left", "image_right", "depth_left"],
        HorizontalFlip(0.5),
        r"no partner; .*feature: depth_left.*got: image_left and image_right",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_flips_of_a_part_are_refused(records: Path, name: str) -> None:
    features, step, problem = REFUSED[name]
    options: dict[str, Any] = {"clip_len": 2, "features": features, "clip_transform": step}
    with pytest.raises(ClipError, match=problem):
        SeqRecordPipe(records, **options, camera=True)
    assert SeqRecordPipe(records, **options)


@pytest.mark.parametrize("noun", ["intrinsics", "distortion"])
@pytest.mark.parametrize("names", [("left", "right"), IMAGES[::-1], ("image_left", "image_right")])
def test_values_per_frame_of_renamed_partners(
    tmp_path: Path, names: tuple[str, str], noun: str
) -> None:
    """They would remain with their image, which is exchanged."""
    values = [f"{image}_{noun}" for image in IMAGES]
    frame: dict[str, Any] = {image: np.zeros((6, 8, 3), np.uint8) for image in IMAGES}
    frame |= {name: np.arange(4.0) + 3 for name in values}
    camera = {"distortion_model": "opencv", "fx": 9.0, "fy": 9.0, "cx": 4.0, "cy": 3.0}
    kinds = {name: {"kind": noun} for name in values}
    write_dataset(tmp_path, {"a": [frame] * 4}, metadata={"a": {"camera": camera}}, features=kinds)
    renamed = dict(zip(IMAGES, names, strict=True))
    options: dict[str, Any] = {"clip_len": 2, "features": [*frame], "rename": renamed}
    with pytest.raises(ClipError, match=rf"no partner; .*feature: image_left_{noun}"):
        SeqRecordPipe(tmp_path, **options, camera=True, clip_transform=HorizontalFlip(0.5))
    assert SeqRecordPipe(tmp_path, **options, clip_transform=HorizontalFlip(0.5))
    options["features"] = [*IMAGES]
    assert SeqRecordPipe(tmp_path, **options, camera=True, clip_transform=HorizontalFlip(0.5))


def test_a_single_camera_of_a_pair_is_mirrored(records: Path) -> None:
    """Also with features that have no partner; stored poses come as they are."""
    features = ["image_left", "depth_left", "pose_left"]
    with seqrecord.open(records) as dataset:
        (episode,) = dataset.episodes.values()
        for batch in batches(records, HorizontalFlip(1), features):
            assert_rigid(batch, "image_left")
            assert max(errors_of(batch, "image_left", POINTS)) < 0.1
            for start, poses in zip(batch["start"].tolist(), batch["pose_left"], strict=True):
                np.testing.assert_array_equal(poses, episode[start : start + 2]["pose_left"])


def test_cameras_with_steps_of_their_own(records: Path) -> None:
    steps = {name: [RandomCrop((80, 110)), HorizontalFlip(0.5)] for name in IMAGES}
    seen = set[bool]()
    for batch in batches(records, steps, IMAGES, seed=1):
        seen.update(batch["image_left_flipped"].tolist())
        batch["flipped"] = batch["image_left_flipped"]
        for image in IMAGES:
            assert max(errors_of(batch, image, POINTS)) < 0.1
        np.testing.assert_allclose(
            relative(batch),
            np.tile(shifted(BASELINE), (*batch["image_left"].shape[:2], 1, 1)),
            atol=1e-5,
        )
    assert seen == {True, False}


_WIDTH = 20
_CROP = RandomCrop((8, 9))
_PAIRS: dict[str, Any] = {
    "one window": [_CROP, HorizontalFlip(0.5)],
    "own draws": {name: [RandomCrop((8, 9), shared=False), HorizontalFlip(0.5)] for name in IMAGES},
    "own steps": {
        "image_left": [seqrecord.CenterCrop((8, 9)), HorizontalFlip(0.5)],
        "image_right": [_CROP, HorizontalFlip(0.5)],
    },
    "own sizes": {
        "image_left": [_CROP, HorizontalFlip(0.5)],
        "image_right": [seqrecord.CenterCrop((6, 7)), HorizontalFlip(0.5)],
    },
}


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("name", _PAIRS)
def test_columns_of_partners_with_other_cameras(
    tmp_path: Path, name: str, device: str | None
) -> None:
    """K and crops describe the pixels, which tell their image and column."""
    cameras = {
        "image_left": {"fx": 10.0, "fy": 10.0, "cx": 7.0, "cy": 4.0},
        "image_right": {"fx": 20.0, "fy": 20.0, "cx": 11.0, "cy": 5.0},
    }
    frame = {
        image: np.broadcast_to(
            (first + np.arange(_WIDTH, dtype=np.uint8))[:, None], (12, _WIDTH, 3)
        )
        for image, first in zip(IMAGES, (0, 100), strict=True)
    }
    write_dataset(tmp_path / "records", {"a": [frame] * 24}, metadata={"a": {"camera": cameras}})
    shown = set[tuple[str, str]]()
    for batch in batches(tmp_path / "records", _PAIRS[name], IMAGES, clip_len=1, device=device):
        for image in IMAGES:
            crops = batch.get(f"{image}_crop", batch.get("crop"))
            places = batch[f"{image}_K"][:, 0], crops
            for pixels, matrix, crop in zip(batch[image], *places, strict=True):
                row = pixels[0, 0, :, 0].int()
                seen = IMAGES[int(row[0] >= 100)]
                camera, first = cameras[seen], int(row[0]) % 100
                sign = int(row[1] - row[0])
                expected = [camera["fx"], sign * (camera["cx"] - first)]
                assert [float(matrix[0, 0]), float(matrix[0, 2])] == expected
                assert [int(crop[1]), int(crop[3])] == [int(row.min()) % 100, len(row)]
                shown.add((image, seen))
    assert len(shown) == 4


def test_intrinsics_of_resized_partners_of_other_sizes(tmp_path: Path) -> None:
    """Flipped clips have the intrinsics of their partner's frames."""
    sizes = {"image_left": (16, 32), "image_right": (8, 16)}
    frame = {
        name: np.full((*size, 3), number, np.uint8)
        for number, (name, size) in enumerate(sizes.items())
    }
    intrinsics = {"fx": 10.0, "fy": 10.0, "cx": 7.5, "cy": 4.5}
    camera = dict.fromkeys(sizes, intrinsics)
    write_dataset(tmp_path / "records", {"a": [frame] * 24}, metadata={"a": {"camera": camera}})
    resized = dict.fromkeys(sizes, (4, 4))
    shown = set[tuple[str, int]]()
    for batch in batches(tmp_path / "records", HorizontalFlip(0.5), IMAGES, resize=resized):
        for name in sizes:
            for pixels, matrices in zip(batch[name], batch[f"{name}_K"], strict=True):
                number = int(pixels.max())
                height, width = sizes[IMAGES[number]]
                lengths = matrices[:, [0, 1], [0, 1]]
                assert (lengths == torch.tensor([10 * 4 / width, 10 * 4 / height])).all()
                shown.add((name, number))
    assert len(shown) == 4


def test_unlike_partners_are_refused(tmp_path: Path) -> None:
    sizes = {"image_left": (12, 20), "image_right": (8, 16)}
    frame = {name: np.zeros((*size, 3), np.uint8) for name, size in sizes.items()}
    camera = {"fx": 10.0, "fy": 10.0, "cx": 7.5, "cy": 4.5}
    write_dataset(tmp_path / "records", {"a": [frame] * 6}, metadata={"a": {"camera": camera}})
    steps = {name: HorizontalFlip(0.5) for name in sizes}
    resized = {"resize": dict.fromkeys(sizes, (4, 4))}
    windows = {"image_left": [0, 1], "image_right": [0, 2]}
    for options, got in (
        ({}, "uint8 [12, 20, 3]"),
        ({"windows": windows, **resized}, "a window of other frames"),
    ):
        with pytest.raises(ClipError, match="and these differ") as caught:
            batches(tmp_path / "records", steps, IMAGES, **options)
        assert caught.value.got == got


def test_masks_of_partners_are_exchanged(tmp_path: Path) -> None:
    """Padded images of several sizes."""
    sizes = {"image_left": (6, 10), "image_right": (4, 8)}
    frame = {name: np.full((*size, 3), 9, np.uint8) for name, size in sizes.items()}
    shape = {"shape": (None, None, 3), "kind": "image"}
    camera = {"fx": 10.0, "fy": 10.0, "cx": 4.0, "cy": 2.0}
    write_dataset(
        tmp_path / "records",
        {"a": [frame] * 3},
        metadata={"a": {"camera": camera}},
        features=dict.fromkeys(IMAGES, shape),
    )
    ragged = dict.fromkeys(IMAGES, (6, 10))
    for batch in batches(tmp_path / "records", HorizontalFlip(1), IMAGES, ragged=ragged):
        for image, partner in zip(IMAGES, IMAGES[::-1], strict=True):
            assert torch.equal(batch[image][..., 0] > 0, batch[f"{image}_mask"])
            assert int(batch[f"{image}_mask"][0, 0].sum()) == np.prod(sizes[partner])


def relative_batches(records: Path, to: str, scale: str, p: float, **options: Any) -> list[Any]:
    camera = Camera(dtype="float64", relative=RelativePose(to, scale=scale), **options)
    options = {"clip_len": 3, "shuffle": False}
    return batches(records, HorizontalFlip(p), IMAGES, camera=camera, **options)


@pytest.mark.parametrize("p", [0, 1])
@pytest.mark.parametrize("to", ["first", "consecutive"])
def test_relative_poses(records: Path, to: str, p: float) -> None:
    """Of a world that moves from frame to frame; both cameras keep their distance."""
    absolute = batches(
        records, HorizontalFlip(p), IMAGES, camera=Camera(dtype="float64"), clip_len=3,
        shuffle=False,
    )  # fmt: skip
    for plain, batch in zip(absolute, relative_batches(records, to, "metric", p), strict=True):
        assert "camera_offset" not in batch
        assert batch["camera_scale"].tolist() == [1.0] * len(batch["episode"])
        assert not batch["camera_scale_is_missing"].any()
        left, right = (plain[f"{image}_pose"].numpy() for image in IMAGES)
        for image, poses in zip(IMAGES, (left, right), strict=True):
            found = batch[f"{image}_pose"].numpy()
            is_missing = batch[f"{image}_pose_is_missing"]
            if to == "first":
                expected = np.linalg.inv(left[:, :1]) @ poses
                assert not is_missing.any()
            else:
                expected = np.linalg.inv(poses[:, :-1]) @ poses[:, 1:]
                assert is_missing.tolist() == [[True, False, False]] * len(found)
                assert not found[:, 0].any()
                found = found[:, 1:]
            np.testing.assert_allclose(found, expected, atol=1e-9)
            np.testing.assert_allclose(np.linalg.det(found[..., :3, :3]), 1, atol=1e-9)


def test_the_scale_of_relative_poses(records: Path) -> None:
    """Positions times the scale are metres; inverse poses are inverses of the scaled ones."""
    for p in (0, 1):
        (metric,) = relative_batches(records, "first", "metric", p)
        for scale in ("mean_translation", "median_depth"):
            (batch,) = relative_batches(records, "first", scale, p)
            (inverse,) = relative_batches(records, "first", scale, p, inverse=True)
            factor = batch["camera_scale"]
            for image in IMAGES:
                positions = batch[f"{image}_pose"][..., :3, 3]
                want = metric[f"{image}_pose"][..., :3, 3]
                torch.testing.assert_close(positions * factor[:, None, None], want)
                eye = torch.eye(4, dtype=torch.float64).expand(*positions.shape[:2], 4, 4)
                product = inverse[f"{image}_pose"] @ batch[f"{image}_pose"]
                torch.testing.assert_close(product, eye)
            if scale == "mean_translation":
                lengths = [batch[f"{image}_pose"][..., :3, 3].norm(dim=-1) for image in IMAGES]
                lengths[0] = lengths[0][:, 1:]
                torch.testing.assert_close(
                    torch.cat(lengths, dim=1).mean(dim=1), torch.ones_like(factor)
                )
                continue
            with seqrecord.open(records) as dataset:
                (episode,) = dataset.episodes.values()
                name = "depth_right" if p else "depth_left"
                for start, got in zip(batch["start"].tolist(), factor.tolist(), strict=True):
                    depth = episode[start][name]
                    assert got == pytest.approx(float(np.median(depth[depth > 0])))


@pytest.mark.parametrize("p", [0, 1])
@pytest.mark.parametrize("to", ["first", "consecutive"])
def test_the_scale_without_padding(records: Path, to: str, p: int) -> None:
    """A padded clip has the scale of its frames alone."""
    camera = Camera(dtype="float64", relative=RelativePose(to, scale="mean_translation"))
    options: dict[str, Any] = {"shuffle": False, "features": [*IMAGES], "batch_size": 1}
    options |= {"camera": camera, "clip_transform": HorizontalFlip(p)}
    scales = {
        (batch["start"].item(), length): batch["camera_scale"].item()
        for length in (1, 2, 3, 4)
        for batch in SeqRecordPipe(records, clip_len=length, **options)
    }
    num_padded = 0
    for batch in SeqRecordPipe(records, clip_len=4, pad="edge", **options):
        is_pad = batch["image_left_is_pad"][0]
        start = batch["start"].item() + int(is_pad.int().argmin())
        scale = scales[start, int((~is_pad).sum())]
        assert batch["camera_scale"].item() == pytest.approx(scale, rel=1e-12)
        num_padded += bool(is_pad.any())
    assert num_padded > 2


@pytest.mark.parametrize("p", [0, 1])
def test_the_scale_behind_a_padded_reference(records: Path, p: int) -> None:
    """The first frame behind the padding counts, unless it is the reference again."""
    windows = dict.fromkeys(IMAGES, (-2, 0, 1))
    options: dict[str, Any] = {"shuffle": False, "features": [*IMAGES], "batch_size": 1}
    options |= {"windows": windows, "pad": "before", "clip_transform": HorizontalFlip(p)}
    metric, scaled = (
        SeqRecordPipe(
            records, **options, camera=Camera(dtype="float64", relative=RelativePose(scale=scale))
        )
        for scale in ("metric", "mean_translation")
    )
    for plain, batch in zip(metric, scaled, strict=True):
        start = plain["start"].item()
        frames = np.maximum([start - 2, start, start + 1], 0)
        is_counted = np.array([frames != frames[0], [start >= 2, True, True]])
        is_counted[0] &= is_counted[1]
        lengths = [plain[f"{image}_pose"][0, :, :3, 3].norm(dim=-1).numpy() for image in IMAGES]
        mean = np.array(lengths)[is_counted].mean()
        assert batch["camera_scale"].item() == pytest.approx(mean, rel=1e-12), start


def test_the_scale_without_repeated_frames(records: Path) -> None:
    """A frame in the camera of the same frame is no step."""
    options: dict[str, Any] = {"features": [*IMAGES], "windows": dict.fromkeys(IMAGES, (0, 0, 1))}
    metric, scaled = (
        seqrecord.SeqRecordMapDataset(
            records,
            **options,
            camera=Camera(dtype="float64", relative=RelativePose("consecutive", scale=scale)),
        )
        for scale in ("metric", "mean_translation")
    )
    for number in range(len(metric)):
        steps = [metric[number][f"{image}_pose"][2, :3, 3].norm().item() for image in IMAGES]
        assert scaled[number]["camera_scale"].item() == pytest.approx(np.mean(steps), rel=1e-12)


@pytest.mark.parametrize("p", [0, 1])
@pytest.mark.parametrize("to", ["first", "consecutive"])
def test_scales_that_are_unknown(tmp_path: Path, records: Path, to: str, p: int) -> None:
    """1 and a mask for cameras that stay or only turn; a dataset without depth is refused."""
    rng = np.random.default_rng(0)
    with seqrecord.open(records) as dataset:
        (episode,) = dataset.episodes.values()
        image, metadata = episode[0]["image_left"], episode.metadata
    episodes = {}
    for number in range(40):
        position, turns = rng.normal(size=3) * 10.0 ** (number % 6), rng.normal(size=(4, 4))
        turns = turns if number % 2 else turns[:1].repeat(4, axis=0)
        poses = [np.array([*position, *turn], np.float32) for turn in turns]
        episodes[f"{number}"] = [{"image_left": image, "pose_left": pose} for pose in poses]
    kinds = {"pose_left": {"kind": "pose", "unit": "m"}}
    metadata_of = dict.fromkeys(episodes, metadata)
    write_dataset(tmp_path, episodes, metadata=metadata_of, features=kinds)
    options: dict[str, Any] = {"clip_len": 4, "clip_transform": HorizontalFlip(p)}
    camera = Camera(relative=RelativePose(to, scale="mean_translation"))
    pipe = SeqRecordPipe(tmp_path, batch_size=8, shuffle=False, **options, camera=camera)
    for batch in pipe:
        assert batch["camera_scale"].tolist() == [1.0] * 8
        assert batch["camera_scale_is_missing"].all()
        assert not batch["image_left_pose"][..., :3, 3].any()
    depth = Camera(relative=RelativePose(scale="median_depth"))
    with pytest.raises(ClipError, match=r"needs a depth map.*got: no depth map"):
        SeqRecordPipe(tmp_path, batch_size=8, **options, camera=depth)
    for fields in ({"to": "last"}, {"scale": "unit"}):
        with pytest.raises(ClipError, match="of a RelativePose"):
            RelativePose(**fields)
