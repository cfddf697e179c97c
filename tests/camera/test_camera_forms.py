"""Columns of cameras have the frames of their image, in every loader, order, window and mix."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    Camera,
    CenterCrop,
    ClipError,
    HorizontalFlip,
    RandomCrop,
    RelativePose,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordPipe,
)
from seqrecord.camera.conventions import image_poses, pose_matrices
from seqrecord.store.cameras.distortion import COEFFICIENTS, MODEL
from seqrecord.store.cameras.distortion import OPENCV as OPENCV_LENS
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.opening import open_storage
from tests.formats.cases import index_source
from tests.kit.datasets import columns, write_dataset, written_once
from tests.kit.faults import CountingStorage
from tests.kit.lerobot_video_data import CAMERAS, unpack, with_video

Array = npt.NDArray[Any]

OPENCV = {"pose": "camera-to-world, OpenCV axes: x right, y down, z forward"}
PINHOLE = {"fx": 30.0, "fy": 28.0, "cx": 10.25, "cy": 8.5}
LENGTHS = {"a": 9, "b": 12}
HEIGHT, WIDTH = 18, 22


def pose_of(key: str, frame: int) -> Array:
    """A pose with the episode and the frame as its position."""
    pose = np.eye(4)
    turn = np.array([[0.6, -0.8, 0], [0.8, 0.6, 0], [0, 0, 1]])
    pose[:3, :3] = np.linalg.matrix_power(turn, frame)
    pose[:3, 3] = frame, ord(key), -frame
    return pose


def frames_of(key: str, count: int) -> list[dict[str, Any]]:
    numbers = range(count)
    return columns(
        image=[np.full((HEIGHT, WIDTH, 3), frame, np.uint8) for frame in numbers],
        state=[np.full(1, frame, np.float32) for frame in numbers],
        pose=[pose_of(key, frame) for frame in numbers],
    )


SCHEMA = {"pose": {"kind": "pose", "unit": "m"}, "state": {"kind": "state"}}


def write(path: Path, lengths: Mapping[str, int] = LENGTHS, **options: Any) -> Path:
    metadata: dict[str, Any] = {"convention": OPENCV, "camera": PINHOLE}
    metadata |= options.pop("metadata", {})
    write_dataset(
        path,
        {key: frames_of(key, count) for key, count in lengths.items()},
        metadata=dict.fromkeys(lengths, metadata),
        features=options.pop("features", SCHEMA),
        **options,
    )
    return path


records = written_once(write, chunk_frames=4)


def check(batch: Mapping[str, Any], image: str = "image") -> int:
    """Assert that poses are of the frames in the image; returns the number of frames."""
    keys, count = batch["episode"], 0
    images, poses = np.asarray(batch[image]), np.asarray(batch[f"{image}_pose"])
    if isinstance(keys, str):
        keys, images, poses = [keys], images[None], poses[None]
    for key, pictures, of_clip in zip(keys, images, poses, strict=True):
        expected = [pose_of(key, int(picture.flat[0])) for picture in pictures]
        np.testing.assert_allclose(of_clip, np.array(expected, np.float32), rtol=1e-6, atol=1e-6)
        count += len(pictures)
    return count


def forms(records: Path, **options: Any) -> Iterator[tuple[str, Any]]:
    """Batches or clips of each loader."""
    options = {"clip_len": 3, "features": ["image"], "camera": True, **options}
    batched = {**options, "batch_size": 2}
    yield "pipe", SeqRecordPipe(records, **batched)
    yield "single clips", SeqRecordPipe(records, **options)
    yield "iterable", seqrecord.SeqRecordIterableDataset(records, **batched)
    yield "node", seqrecord.SeqRecordNode(records, **batched)
    yield "device", SeqRecordPipe(records, **batched, device="cpu")
    yield "numpy", SeqRecordPipe(records, **batched, output="numpy")
    dataset = SeqRecordMapDataset(records, **options)
    yield "map", [dataset[number] for number in range(len(dataset))]
    yield "map, several", dataset.__getitems__([0, 5, 3])
    yield "collated", [seqrecord.collate(dataset.__getitems__([4, 1]))]
    yield "sequences", SeqRecordPipe(records, **batched, order="sequences")
    yield "mix", SeqRecordMix({"x": SeqRecordPipe(records, **options)}, batch_size=2)


def test_every_loader(records: Path) -> None:
    for name, loader in forms(records):
        counts = [check(batch) for batch in loader]
        assert sum(counts) >= 6, name


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes(records: Path, context: str) -> None:
    options: dict[str, Any] = {"clip_len": 3, "features": ["image"], "camera": True}
    workers: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": context}
    pipe = SeqRecordPipe(records, **options, batch_size=2)
    assert sum(map(check, pipe)) > 0  # blocks of the parent are not the workers'
    assert sum(map(check, DataLoader(pipe, batch_size=None, **workers))) >= 42
    dataset = SeqRecordMapDataset(records, **options)
    loader = DataLoader(dataset, batch_size=4, collate_fn=seqrecord.collate, **workers)
    assert sum(map(check, loader)) == 3 * len(dataset)


WINDOWS: dict[str, dict[str, Any]] = {
    "window": {"windows": {"image": [-2, 0, 1], "state": [0]}, "features": ["image", "state"]},
    "pads": {"clip_len": 4, "pad": "edge"},
    "dilation": {"clip_len": 3, "dilation": 2},
    "drawn lengths": {"clip_len": (2, 4)},
    "drawn steps": {
        "clip_len": 3,
        "samples": [
            seqrecord.samples.dilate(1, 2),
            seqrecord.samples.reverse(0.5),
        ],
    },
    "lists": {"clip_len": None, "samples": {"episode": ["a", "b"], "frames": [[5, 2], [11, 0]]}},
    "lists that differ": {
        "clip_len": None,
        "samples": {"episode": ["a", "b"], "frames": [[5, 2, 8], [11, 0]]},
        "ragged": "pad",
    },
    "anchor": {
        "clip_len": None,
        "windows": {"image": [0, seqrecord.At("goal")]},
        "samples": {"episode": ["a", "b"], "start": [1, 2], "goal": [7, 11]},
    },
    "frame transform": {
        "clip_len": 3,
        "frame_transform": lambda frame: {"image": frame["image"].astype(np.float32)},
    },
    "renamed": {"clip_len": 3, "rename": {"pose": "T"}},
}


@pytest.mark.parametrize("name", WINDOWS)
def test_poses_have_the_frames_of_their_image(records: Path, name: str) -> None:
    options = {"features": ["image"], **WINDOWS[name]}
    pipe = SeqRecordPipe(records, batch_size=2, camera=True, **options)
    assert sum(map(check, pipe)) >= 4
    if not isinstance(options.get("clip_len"), tuple):
        dataset = SeqRecordMapDataset(records, camera=True, **options)
        assert sum(map(check, map(dataset.__getitem__, range(len(dataset))))) >= 4


def test_renamed_images(records: Path) -> None:
    assert check(first_batch(records, rename={})) == 4  # nothing is renamed
    pipe = SeqRecordPipe(
        records,
        clip_len=2,
        batch_size=2,
        features=["image"],
        rename={"image": "rgb"},
        camera=True,
    )
    assert sum(check(batch, "rgb") for batch in pipe) >= 38
    camera = Camera(poses={"rgb": "T"}, axes="opencv")
    names = {"image": "rgb", "pose": "T"}
    dataset = SeqRecordMapDataset(
        records, clip_len=2, features=["image"], rename=names, camera=camera
    )
    assert check(dataset[3], "rgb") == 2


SWAPPED = {"front": "back", "back": "front"}


@pytest.mark.parametrize("names", [{}, {"front": "image"}, SWAPPED])
@pytest.mark.parametrize("per_frame", [False, True])
def test_cameras_of_renamed_images(tmp_path: Path, names: dict[str, str], per_frame: bool) -> None:
    """A camera, of the metadata or of each frame, is that of the image as it is stored."""
    lengths = {"front": 30.0, "back": 60.0}
    frames, cameras = dict[str, Any](), {n: {**PINHOLE, "fx": fx} for n, fx in lengths.items()}
    for name, camera in cameras.items():
        frames[name] = [np.full((HEIGHT, WIDTH, 3), camera["fx"], np.uint8)] * 5
        if per_frame:
            frames[f"{name}_intrinsics"] = [np.array([*camera.values()])] * 5
    metadata = {"a": {} if per_frame else {"camera": cameras}}
    kinds = {name: {"kind": "intrinsics"} for name in frames if name not in cameras}
    write_dataset(tmp_path, {"a": columns(**frames)}, metadata=metadata, features=kinds)
    front, back = (names.get(name, name) for name in lengths)
    crops = {name: [CenterCrop((9, 11))] for name in (front, back)}
    steps: dict[str, dict[str, Any]] = {
        "none": {},
        "one crop": {"clip_transform": {front: crops[front]}},
        "crops": {"clip_transform": crops},
    }
    for step, options in steps.items():
        batch = first_batch(tmp_path, features=[*frames], rename=names, **options)
        for name in (front, back):
            fx = float(batch[name].flatten()[0])
            is_cropped = step == "crops" or (step == "one crop" and name == front)
            cy = PINHOLE["cy"] - (4 if is_cropped else 0)
            assert (batch[f"{name}_K"][..., 0, 0] == fx).all(), (step, name)
            assert (batch[f"{name}_K"][..., 1, 2] == cy).all(), (step, name)
            if per_frame:
                stored = {new: old for old, new in names.items()}.get(name, name)
                matrix = batch[f"{stored}_intrinsics"]
                assert (matrix[..., 0] == fx).all(), (step, name)
                assert (matrix[..., 3] == cy).all(), (step, name)


EXCHANGED = {"image_left": "image_right", "image_right": "image_left"}


@pytest.mark.parametrize(
    "names",
    [
        EXCHANGED,
        EXCHANGED | {"depth_left": "depth_right", "depth_right": "depth_left"},
        {"image_left": "left", "image_right": "right"},
        {"image_left": "rgb_left", "image_right": "rgb_right"},
    ],
)
def test_depth_maps_of_renamed_images(tmp_path: Path, names: dict[str, str]) -> None:
    """The scale is that of the first image's depth, whatever the images are called now."""
    frames = dict[str, Any](pose=[pose_of("a", frame) for frame in range(5)])
    for side, depth in (("left", 2.0), ("right", 5.0)):
        frames[f"image_{side}"] = [np.zeros((HEIGHT, WIDTH, 3), np.uint8)] * 5
        frames[f"depth_{side}"] = [np.full((HEIGHT, WIDTH), depth, np.float32)] * 5
    kinds = {**SCHEMA, **{n: {"kind": "depth", "unit": "m"} for n in frames if n[0] == "d"}}
    del kinds["state"]
    poses = {"image_left": "pose", "image_right": "pose"}
    metadata = {"a": {"convention": OPENCV, "camera_poses": poses}}
    write_dataset(tmp_path, {"a": columns(**frames)}, metadata=metadata, features=kinds)
    camera = Camera(relative=RelativePose("first", scale="median_depth"))
    batch = first_batch(tmp_path, camera, features=[n for n in frames if n != "pose"], rename=names)
    assert batch["camera_scale"].tolist() == [2, 2]


@pytest.mark.parametrize(("old", "new"), [("front", "back"), ("back", "front")])
@pytest.mark.parametrize("has_own", [True, False])
def test_a_renamed_image_has_no_camera_of_its_name(
    tmp_path: Path, old: str, new: str, has_own: bool
) -> None:
    """The metadata names a camera whose image is not stored, and another image gets its name."""
    cameras = {new: PINHOLE} | ({old: {**PINHOLE, "fx": 150.0}} if has_own else {})
    frames = columns(**{old: [np.zeros((HEIGHT, WIDTH, 3), np.uint8)] * 5})
    metadata = {"a": {"camera": cameras, "convention": OPENCV}}
    write_dataset(tmp_path, {"a": frames}, metadata=metadata)
    options: dict[str, Any] = {"features": [old], "rename": {old: new}}
    options["clip_transform"] = CenterCrop((9, 11))
    if not has_own:
        with pytest.raises(ClipError, match="no image has a pose or intrinsics"):
            first_batch(tmp_path, **options)
        return
    assert (first_batch(tmp_path, **options)[f"{new}_K"][..., 0, 0] == 150).all()


@pytest.mark.parametrize("names", [{"width": "w"}, {"number": "width"}, {"number": "skew"}])
def test_a_shared_camera_has_no_features(tmp_path: Path, names: dict[str, str]) -> None:
    """Features may be called as the entries of a `camera`."""
    image, (name,) = [np.zeros((HEIGHT, WIDTH, 3), np.uint8)] * 5, names
    frames = columns(image=image, **{name: [*range(5)]})
    cameras = {"a": {**PINHOLE, "width": WIDTH}, "b": {**PINHOLE, "width": WIDTH + 1}}
    metadata = {key: {"camera": camera} for key, camera in cameras.items()}
    write_dataset(tmp_path, {"a": frames, "b": frames}, metadata=metadata)
    options: dict[str, Any] = {"features": ["image", name], "rename": names, "clip_len": 5}
    batch = first_batch(tmp_path, camera=True, **options)
    assert batch["image_K_is_missing"].tolist() == [[False] * 5, [True] * 5]
    assert batch["image_K"][0, 0].tolist() == [[30, 0, 10.25], [0, 28, 8.5], [0, 0, 1]]


def first_batch(path: Path, camera: Any = True, **options: Any) -> dict[str, Any]:
    options = {"clip_len": 2, "batch_size": 2, "shuffle": False, "features": ["image"], **options}
    return dict(next(iter(SeqRecordPipe(path, camera=camera, **options))))


def test_inverse_and_dtype(records: Path) -> None:
    batch = first_batch(records, Camera(dtype="float64", inverse=True))
    assert batch["image_pose"].dtype == torch.float64
    expected = np.linalg.inv(np.stack([pose_of("a", frame) for frame in (0, 1)]))
    np.testing.assert_allclose(batch["image_pose"][0], expected, atol=1e-12)
    assert batch["image_K"].tolist()[1][1] == [[30, 0, 10.25], [0, 28, 8.5], [0, 0, 1]]


def test_large_offsets_are_subtracted(tmp_path: Path) -> None:
    """Float32 would round positions in UTM coordinates to half a metre."""
    far = np.array([448262.25, 5411932.0625, 117.5])
    frames = [dict(frame) for frame in frames_of("a", 6)]
    for frame in frames:
        frame["pose"] = frame["pose"].copy()
        frame["pose"][:3, 3] += far
    metadata = {"a": {"convention": OPENCV, "camera": PINHOLE}}
    write_dataset(tmp_path, {"a": frames}, metadata=metadata, features=SCHEMA)
    expected = np.stack([frame["pose"][:3, 3] for frame in frames])
    for recenter in ("large", "first", None):
        batch = first_batch(tmp_path, Camera(recenter=recenter))
        positions = batch["image_pose"][..., :3, 3].double().numpy()
        if recenter is None:
            assert "camera_offset" not in batch
            assert np.abs(positions[1] - expected[1:3]).max() > 0.01
            continue
        offset = batch["camera_offset"].numpy()
        np.testing.assert_allclose(positions[1] + offset[1], expected[1:3], atol=5e-4)
        if recenter == "first":
            assert not positions[:, 0].any()
        else:
            assert (offset % 8192 == 0).all()
            assert (np.abs(positions[:, 0]) <= 4096).all()
    flipped = first_batch(tmp_path, clip_transform=HorizontalFlip(1.0))
    positions = flipped["image_pose"][..., :3, 3].double() + flipped["camera_offset"][:, None]
    np.testing.assert_allclose(positions[1], expected[1:3] * [-1, 1, 1], atol=5e-4)


def test_missing_values(tmp_path: Path) -> None:
    """0 and a mask: frames without a pose, NaN, and episodes without a camera."""
    frames = [dict(frame) for frame in frames_of("a", 4)]
    del frames[1]["pose"]
    frames[2]["pose"] = np.full((4, 4), np.nan)
    metadata: dict[str, Any] = {"a": {"convention": OPENCV, "camera": PINHOLE}}
    metadata["b"] = {"convention": OPENCV}
    episodes = {"a": frames, "b": frames_of("b", 4)}
    write_dataset(tmp_path, episodes, metadata=metadata, features=SCHEMA)
    pipe = SeqRecordPipe(
        tmp_path, clip_len=4, batch_size=2, features=["image"], camera=True, shuffle=False
    )
    batch = next(iter(pipe))
    assert batch["image_pose_is_missing"].tolist() == [[False, True, True, False], [False] * 4]
    assert batch["image_K_is_missing"].tolist() == [[False] * 4, [True] * 4]
    assert batch["image_distortion_is_missing"].tolist() == [[False] * 4, [True] * 4]
    for noun in ("pose", "K", "distortion"):
        values = batch[f"image_{noun}"]
        assert not values[batch[f"image_{noun}_is_missing"]].any()
        assert torch.isfinite(values).all()
    np.testing.assert_allclose(batch["image_pose"][0, 3], pose_of("a", 3), atol=1e-6)
    with_inverse = first_batch(tmp_path, Camera(inverse=True), clip_len=4)
    assert not with_inverse["image_pose"][0, 1].any()


def test_values_of_latest_images(tmp_path: Path) -> None:
    """An image that no frame has yet has no pose."""
    frames = [dict(frame) for frame in frames_of("a", 6)]
    for number in (0, 1, 3):
        del frames[number]["image"]
    metadata = {"a": {"convention": OPENCV, "camera": PINHOLE}}
    write_dataset(tmp_path, {"a": frames}, metadata=metadata, features=SCHEMA)
    pipe = SeqRecordPipe(
        tmp_path,
        windows={"image": seqrecord.Latest([0, 1], unknown="zeros"), "state": [0]},
        features=["image", "state"],
        batch_size=1,
        shuffle=False,
        camera=True,
    )
    num_unknown = 0
    for batch in pipe:
        is_known = ~batch["image_pose_is_missing"][0]
        num_unknown += int((~is_known).sum())
        assert is_known.tolist() == (batch["image_age"][0] >= 0).tolist()
        pictures = batch["image"][0, is_known, 0, 0, 0].tolist()
        expected = np.reshape([pose_of("a", number) for number in pictures], (-1, 4, 4))
        np.testing.assert_allclose(batch["image_pose"][0, is_known], expected, atol=1e-6)
    assert num_unknown == 3


NED: Array = np.array([[0.0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]])


def test_a_mix_of_sources(tmp_path: Path) -> None:
    """In other conventions, without poses, without cameras, and without `camera=`."""
    write(tmp_path / "a", {"a": 9})
    frames = [dict(frame) for frame in frames_of("b", 9)]
    for frame in frames:
        frame["pose"] = (frame["pose"] @ np.linalg.inv(NED))[:3]  # its camera looks along x
    write_dataset(tmp_path / "b", {"b": frames}, metadata={"b": {"camera": PINHOLE}})
    images = [{"image": frame["image"]} for frame in frames]
    write_dataset(tmp_path / "c", {"b": images}, metadata={"b": {"camera": PINHOLE}})
    write_dataset(tmp_path / "d", {"b": images})
    options: dict[str, Any] = {"clip_len": 3, "features": ["image"]}
    ned = Camera(poses={"image": "pose"}, axes="ned")
    sources = {
        "a": SeqRecordPipe(tmp_path / "a", **options, camera=True),
        "b": SeqRecordPipe(tmp_path / "b", **options, camera=ned),
        "c": SeqRecordPipe(tmp_path / "c", **options, camera=True),
        "d": SeqRecordPipe(tmp_path / "d", **options),
    }
    seen = set[str]()
    for batch in SeqRecordMix(sources, batch_size=8):
        for clip, name in enumerate(batch["dataset"]):
            seen.add(name)
            has_pose, has_matrix = name in "ab", name in "abc"
            assert batch["image_pose_is_missing"][clip].tolist() == [not has_pose] * 3
            assert batch["image_K_is_missing"][clip].tolist() == [not has_matrix] * 3
            assert batch["image_distortion_is_missing"][clip].tolist() == [not has_matrix] * 3
            assert bool(batch["is_metric"][clip]) == (name == "a")
            assert bool(batch["image_pose"][clip].any()) == has_pose
            assert bool(batch["image_K"][clip].any()) == has_matrix
            if has_pose:
                one = {n: batch[n][clip : clip + 1] for n in ("image", "image_pose")}
                check({**one, "episode": batch["episode"][clip : clip + 1]})
    assert seen == {*"abcd"}


def test_a_mix_of_some_features(tmp_path: Path) -> None:
    """Cameras of the images that a mix reads, in the intersection of its sources."""
    write(tmp_path / "a", {"a": 6})
    frames = [{**frame, "wrist": frame["image"]} for frame in frames_of("b", 6)]
    metadata = {"b": {"convention": OPENCV, "camera": PINHOLE}}
    write_dataset(tmp_path / "b", {"b": frames}, metadata=metadata, features=SCHEMA)
    sources = {
        "a": SeqRecordPipe(tmp_path / "a", clip_len=2, camera=True),
        "b": SeqRecordPipe(
            tmp_path / "b",
            clip_len=2,
            camera=Camera(poses={"image": "pose", "wrist": "pose"}, axes="opencv"),
        ),
    }
    batch = next(iter(SeqRecordMix(sources, batch_size=4, features="intersection")))
    assert check(batch) == 8
    assert "wrist_pose" not in batch
    sources["b"] = SeqRecordPipe(tmp_path / "b", clip_len=2, features=["state"])
    batch = next(iter(SeqRecordMix(sources, batch_size=4, features="intersection")))
    assert "state" in batch
    assert not any(name.startswith("image") for name in batch)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no flag": ({"camera": "yes"}, r"camera is not valid.*True, False or a seqrecord.Camera"),
    "unknown image": (
        {"camera": Camera(poses={"rgb": "pose"})},
        r"not an image of the loader; .*feature: rgb; expected: one of image",
    ),
    "no poses": (
        {"camera": Camera(poses={"image": "state"})},
        r"not a feature of poses; .*expected: a feature of floats \[7\].*pose",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_arguments(records: Path, name: str) -> None:
    options, problem = REFUSED[name]
    with pytest.raises(ClipError, match=problem):
        SeqRecordPipe(records, clip_len=2, features=["image"], **options)


@pytest.mark.parametrize(
    "fields",
    [{"dtype": "float16"}, {"inverse": 1}, {"recenter": "no"}, {"axes": "up"}, {"poses": ["a"]}],
)
def test_refused_values(fields: dict[str, Any]) -> None:
    with pytest.raises(ClipError, match=f"{next(iter(fields))} of a Camera"):
        Camera(**fields)


def test_cameras_that_are_unknown(tmp_path: Path) -> None:
    """Refused with the reason, never an identity matrix."""
    frames = frames_of("a", 4)
    options: dict[str, Any] = {"clip_len": 2, "features": ["image"]}
    write_dataset(tmp_path / "unknown", {"a": frames}, features=SCHEMA)
    with pytest.raises(ClipError, match=r"poses of feature pose without a convention") as error:
        SeqRecordPipe(tmp_path / "unknown", **options, camera=True)
    for part in ("feature: image", "episode: a", "Camera(axes=…)", "opencv, opengl, ned, ros"):
        assert part in str(error.value)
    assert SeqRecordPipe(tmp_path / "unknown", **options, camera=Camera(axes="opencv"))
    images = [{"image": frame["image"]} for frame in frames]
    write_dataset(tmp_path / "neither", {"a": images})
    with pytest.raises(ClipError, match="no image has a pose or intrinsics"):
        SeqRecordPipe(tmp_path / "neither", **options, camera=True)
    metadata: dict[str, Any] = {"a": {"camera": {**PINHOLE, "width": 7}}}  # of another size
    write_dataset(tmp_path / "other size", {"a": images}, metadata=metadata)
    with pytest.raises(ClipError, match="of frames of this size"):
        SeqRecordPipe(tmp_path / "other size", **options, camera=True)
    bent = [{**frame, "pose": np.diag([2.0, 1, 1, 1])} for frame in frames]
    metadata = {"a": {"convention": OPENCV}}
    write_dataset(tmp_path / "bent", {"a": bent}, metadata=metadata, features=SCHEMA)
    problem = "not a rigid pose; .*bent; episode: a; feature: pose; frame: 0"
    with pytest.raises(ClipError, match=problem):
        list(SeqRecordPipe(tmp_path / "bent", **options, camera=True, shuffle=False))


def test_intrinsics_beside_poses_of_something_else(tmp_path: Path) -> None:
    """A robot's only image and only poses, which are not the camera's."""
    write_dataset(
        *(tmp_path, {"a": frames_of("a", 4)}),
        features=SCHEMA,
        metadata={"a": {"camera": PINHOLE}},
    )
    with pytest.raises(ClipError, match=r"camera=Camera\(poses=\{\}\) for none"):
        first_batch(tmp_path)
    batch = first_batch(tmp_path, Camera(poses={}))
    assert batch["image_K"][0, 0].tolist() == [[30, 0, 10.25], [0, 28, 8.5], [0, 0, 1]]
    assert not batch["image_K_is_missing"].any()
    assert batch["image_pose_is_missing"].all()


def test_resized_frames_of_varying_size_need_the_size_of_their_camera(tmp_path: Path) -> None:
    frames = columns(image=[np.zeros((HEIGHT, WIDTH, 3), np.uint8)] * 4)
    shape = {"image": {"shape": (None, None, 3), "kind": "image"}}
    metadata: dict[str, Any] = {"a": {"camera": PINHOLE}}
    write_dataset(tmp_path / "no size", {"a": frames}, features=shape, metadata=metadata)
    resize = HEIGHT * 2, WIDTH * 2
    with pytest.raises(ClipError, match='"cy": …, "height": …, "width": …}'):
        first_batch(tmp_path / "no size", resize=resize)
    metadata["a"]["camera"] = {**PINHOLE, "height": HEIGHT, "width": WIDTH}
    write_dataset(tmp_path / "sizes", {"a": frames}, features=shape, metadata=metadata)
    assert first_batch(tmp_path / "sizes", resize=resize)["image_K"][0, 0, 0, 0] == 60


def test_axes_of_datasets_that_tell_them(records: Path) -> None:
    """One `Camera` serves all sources of a mix: metadata has precedence, named poses have not."""
    assert check(first_batch(records, Camera(axes="ned"))) == 4
    batch = first_batch(records, Camera(axes="ned", poses={"image": "pose"}))
    expected = np.stack([pose_of("a", frame) @ NED for frame in (1, 2)])
    np.testing.assert_allclose(batch["image_pose"][1], expected, atol=1e-6)


def test_a_feature_with_the_name_of_a_column(tmp_path: Path) -> None:
    frames = [{**frame, "image_K": np.eye(3)} for frame in frames_of("a", 4)]
    metadata = {"a": {"convention": OPENCV, "camera": PINHOLE}}
    write_dataset(tmp_path, {"a": frames}, metadata=metadata, features=SCHEMA)
    with pytest.raises(ClipError, match=r"name of a batch's extra column.*image_K"):
        SeqRecordPipe(tmp_path, clip_len=2, camera=True)
    assert "image_K" in first_batch(tmp_path, camera=True)


def test_crops_add_no_columns_of_cameras(records: Path) -> None:
    steps = [CenterCrop(12), seqrecord.Resize((6, 6))]
    without = first_batch(records, camera=None, clip_transform=steps)
    assert without.keys() == {"episode", "start", "crop", "image"}
    assert first_batch(records, clip_transform=steps)["crop"].tolist() == [[3, 5, 12, 12]] * 2


WITHOUT_POSES: dict[str, dict[str, Any]] = {
    "an image and its camera": {"image": (HEIGHT, WIDTH, 3)},
    "depth alone": {"depth": (HEIGHT, WIDTH)},
    "intrinsics per frame": {"image": (HEIGHT, WIDTH, 3), "intrinsics": (4,)},
    "depth with intrinsics per frame": {"depth": (HEIGHT, WIDTH), "depth_intrinsics": (4,)},
}


@pytest.mark.parametrize("name", WITHOUT_POSES)
@pytest.mark.parametrize("has_kind", [True, False])
def test_datasets_without_poses(tmp_path: Path, name: str, has_kind: bool) -> None:
    """Columns of K and distortion, none of poses and positions."""
    shapes, numbers = WITHOUT_POSES[name], [*PINHOLE.values()]
    dtypes = {"image": "u1", "depth": "f4"}
    frame = {
        feature: np.zeros(shape, dtypes.get(feature, "f8")) for feature, shape in shapes.items()
    }
    (image, *intrinsics) = shapes
    frame |= dict.fromkeys(intrinsics, np.array(numbers))
    kinds: dict[str, Any] = {feature: {"kind": "intrinsics"} for feature in intrinsics}
    if has_kind and image == "depth":
        kinds["depth"] = {"kind": "depth"}
    metadata: Any = {} if intrinsics else {"camera": PINHOLE}
    write_dataset(tmp_path, {"a": [frame] * 4}, metadata={"a": metadata}, features=kinds)
    steps = [CenterCrop((HEIGHT, WIDTH - 4)), HorizontalFlip(1)]
    for more in ({}, {"camera": Camera(relative=RelativePose("first"))}):
        batch = first_batch(tmp_path, features=[image], clip_transform=steps, **more)
        matrix = [[30, 0, WIDTH - 5 - (10.25 - 2)], [0, 28, 8.5], [0, 0, 1]]
        assert batch[f"{image}_K"].tolist() == [[matrix] * 2] * 2
        columns_of_image = ("K", "K_is_missing", "distortion")
        more_columns = ("distortion_is_missing", "distortion_model")
        expected = {f"{image}_{noun}" for noun in (*columns_of_image, *more_columns)}
        assert batch.keys() == {"episode", "start", image, "crop", "flipped", *expected}


def off_centre(path: Path, **options: Any) -> Path:
    """Frames of 18 x 22 pixels, with the principal point at (7.25, 10.5)."""
    return write(path, metadata={"camera": {**PINHOLE, "cx": 7.25, "cy": 10.5}}, **options)


def principal_points(path: Path, step: Any, **options: Any) -> tuple[Array, Array]:
    """Principal points and windows of all clips."""
    options = {"clip_len": 2, "batch_size": 2, "features": ["image"], "camera": True, **options}
    batches = list(SeqRecordPipe(path, clip_transform=step, **options))
    matrices = np.concatenate([batch["image_K"][:, 0] for batch in batches])
    return matrices[:, :2, 2], np.concatenate([batch["crop"] for batch in batches])


def test_crops_around_the_principal_point(tmp_path: Path) -> None:
    off_centre(tmp_path)
    centre = CenterCrop((10, 12), around="principal_point")
    points, _ = principal_points(tmp_path, centre)
    assert np.abs(points - (5.5, 4.5)).max() <= 0.5
    points, _ = principal_points(tmp_path, [HorizontalFlip(1), centre])
    assert np.abs(points - (5.5, 4.5)).max() <= 0.5
    points, crops = principal_points(tmp_path, RandomCrop((10, 12), around="principal_point"))
    assert len({*map(tuple, crops.tolist())}) > 4
    # The largest windows around it: rows 4 to 18, columns 0 to 15 or so.
    assert crops[:, 0].min() >= 4
    assert (crops[:, 1] + crops[:, 3]).max() <= 16
    points, crops = principal_points(tmp_path, RandomCrop((18, 20), around="principal_point"))
    assert {*map(tuple, crops.tolist())} == {(0, 0, 18, 20)}  # as near as the frame allows
    points, _ = principal_points(tmp_path, centre, resize={"image": (27, 33)})
    assert np.abs(points - (5.5, 4.5)).max() <= 0.5


def test_crops_around_principal_points_of_frames(tmp_path: Path) -> None:
    """Of features of intrinsics: of the frame at which the clip starts."""
    frames = [dict(frame) for frame in frames_of("a", 6)]
    for t, frame in enumerate(frames):
        frame["intrinsics"] = np.array([30.0, 28, 8 + t, 9])
    kinds: dict[str, Any] = {**SCHEMA, "intrinsics": {"kind": "intrinsics"}}
    write_dataset(tmp_path, {"a": frames}, metadata={"a": {"convention": OPENCV}}, features=kinds)
    step = CenterCrop(8, around="principal_point")
    points, crops = principal_points(tmp_path, step, shuffle=False)
    assert np.abs(points - 3.5).max() <= 0.5
    assert np.diff(crops[:, 1]).min() == 1


@pytest.mark.parametrize("resize", [None, (2 * HEIGHT, 2 * WIDTH)])
def test_episodes_with_a_camera_beside_others_with_cameras_per_frame(
    tmp_path: Path, resize: tuple[int, int] | None
) -> None:
    """As of COLMAP, where a scene has a camera per image, and another scene one."""
    frames = {"a": frames_of("a", 4), "b": frames_of("b", 4)}
    for frame in frames["a"]:
        frame["intrinsics"] = np.array([20.0, 20, 10.25, 8.5])
    camera = {**PINHOLE, MODEL: OPENCV_LENS, COEFFICIENTS: [0.5, 0, 0, 0]}
    write_dataset(
        *(tmp_path, frames),
        metadata={"a": {"convention": OPENCV}, "b": {"convention": OPENCV, "camera": camera}},
        features={**SCHEMA, "intrinsics": {"kind": "intrinsics"}},
    )
    batch = first_batch(tmp_path, clip_len=4, batch_size=2, shuffle=False, resize=resize)
    factor = 1 if resize is None else 2
    assert batch["episode"] == ["a", "b"]
    assert not batch["image_K_is_missing"].any()
    assert batch["image_K"][:, :, 0, 0].tolist() == [[20 * factor] * 4, [30 * factor] * 4]
    assert not batch["image_distortion_is_missing"].any()
    assert batch["image_distortion"][:, :, 0].tolist() == [[0] * 4, [0.5] * 4]
    step = CenterCrop(8, around="principal_point")
    points, _ = principal_points(tmp_path, step, shuffle=False)
    assert np.abs(points - 3.5).max() <= 0.5


def test_crops_around_unknown_principal_points(tmp_path: Path, records: Path) -> None:
    step = RandomCrop(10, around="principal_point")
    assert repr(step) == "RandomCrop((10, 10), around='principal_point')"
    with pytest.raises(ClipError, match=r"takes the intrinsics of camera=.*no camera="):
        SeqRecordPipe(records, clip_len=2, clip_transform=step)
    with pytest.raises(ClipError, match="RandomCrop: around is not valid"):
        RandomCrop(10, around="centre")
    write(tmp_path, metadata={"camera": {}})
    with pytest.raises(ClipError, match=r"the intrinsics of a clip are unknown.*episode: a"):
        principal_points(tmp_path, step, shuffle=False)


def test_a_frame_transform_that_resizes(records: Path) -> None:
    def half(frame: dict[str, Any]) -> dict[str, Any]:
        return {"image": frame["image"][::2, ::2]}

    with pytest.raises(ClipError, match=r"frame_transform changes the size of an image.*image"):
        SeqRecordPipe(records, clip_len=2, features=["image"], frame_transform=half, camera=True)


def scaled(change: Callable[[Any], Any]) -> Callable[..., dict[str, Any]]:
    """A function of clips that changes its images."""
    return lambda clip, generator: {**clip, "image": change(clip["image"])}


def larger(image: Any) -> Any:
    return np.pad(image, ((0, 0), (0, 4), (0, 4), (0, 0)))


RESIZING: dict[str, Any] = {
    "half": scaled(lambda image: image[:, ::2, ::2]),
    "one side": scaled(lambda image: image[:, :, 1:]),
    "transposed": scaled(lambda image: image.swapaxes(1, 2)),
    "half, channels first": scaled(lambda image: np.moveaxis(image[:, ::2, ::2], -1, 1)),
    "half, one frame": scaled(lambda image: image[0, ::2, ::2]),
    "tokens": scaled(lambda image: image.reshape(len(image), -1, 12)),
    "in a chain": [scaled(lambda image: image[:, 4:, 4:]), scaled(larger)],
    "after a crop": [CenterCrop(12), scaled(lambda image: image[:, ::2, ::2])],
}


@pytest.mark.parametrize("name", RESIZING)
def test_a_function_of_clips_that_resizes(records: Path, name: str) -> None:
    """K would describe the image before. Each function of a chain is asked."""
    options: dict[str, Any] = {"clip_len": 2, "features": ["image"]}
    for make in (SeqRecordPipe, SeqRecordMapDataset):
        with pytest.raises(ClipError, match=r"clip_transform changes the size.*image") as caught:
            make(records, clip_transform=RESIZING[name], camera=True, **options)
        assert "resize=" in str(caught.value)
        make(records, clip_transform=RESIZING[name], **options)  # nobody asks for a camera


def test_functions_of_clips_that_keep_the_size(records: Path) -> None:
    """Other axes, dtypes and names are not the business of cameras."""
    changes: dict[str, Callable[[Any], Any]] = {
        "float": lambda image: image.astype(np.float32) / 255,
        "channels first": lambda image: np.moveaxis(image, -1, 1),
        "grey": lambda image: image.mean(-1),
        "one frame": lambda image: image[0],
        "one frame, channels first": lambda image: np.moveaxis(image[0], -1, 0),
        "channels before frames": lambda image: np.moveaxis(image, -1, 0),
        "tensor": lambda image: torch.from_numpy(image).float(),
        "flipped twice": lambda image: image[:, :, ::-1][:, :, ::-1],
    }
    expected = first_batch(records, shuffle=False)["image_K"]
    for name, change in changes.items():
        batch = first_batch(records, clip_transform=scaled(change), shuffle=False)
        assert torch.equal(batch["image_K"], expected), name
    renamed = lambda clip, _: {"small": clip["image"][:, ::2, ::2], "pose": clip["pose"]}  # noqa: E731
    batch = first_batch(records, features=["image", "pose"], clip_transform=renamed, shuffle=False)
    assert torch.equal(batch["image_K"], expected)


@pytest.mark.parametrize(
    "camera",
    [
        Camera(),
        Camera(inverse=True),
        Camera(recenter="first"),
        Camera(relative=RelativePose("first")),
        Camera(relative=RelativePose("first", scale="mean_translation")),
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_positions_beyond_float32_are_missing(tmp_path: Path, camera: Camera) -> None:
    """Columns are float32: the positions would be infinite, and known."""
    poses = np.tile(np.eye(4), (4, 1, 1))
    poses[:, 0, 3] = 1, 5, 1e40, 1e200
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    frames = [{"image": image, "pose": pose} for pose in poses]
    metadata: Any = {"a": {"convention": OPENCV, "camera": {**PINHOLE, "cx": 1e39}}}
    features: dict[str, Any] = {"pose": SCHEMA["pose"]}
    write_dataset(tmp_path, {"a": frames}, metadata=metadata, features=features)
    batch = next(iter(SeqRecordPipe(tmp_path, clip_len=4, batch_size=1, camera=camera)))
    assert batch["image_pose_is_missing"].tolist() == [[False, False, True, True]]
    assert bool(batch["image_pose"].isfinite().all())
    assert float((batch["image_pose"][0, 1] - batch["image_pose"][0, 0]).abs().max()) == 4
    assert bool(batch["image_K_is_missing"].all())
    assert bool((batch["image_K"] == 0).all())


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image[::2],
        lambda image: image[[0, 1, 2, 3, 3]],
        lambda image: np.moveaxis(image[1:], -1, 1),
        lambda image: image.reshape(2, 2, *image.shape[1:]),
        lambda image: image[:3],  # as many as there are channels
    ],
)
def test_a_function_of_clips_that_drops_frames(records: Path, change: Callable[[Any], Any]) -> None:
    """Frame t of the image would be another one than pose t of its columns."""
    options: dict[str, Any] = {"clip_len": 4, "features": ["image"]}
    for make in (SeqRecordPipe, SeqRecordMapDataset):
        with pytest.raises(ClipError, match=r"changes the number of an image's frames") as caught:
            make(records, clip_transform=scaled(change), camera=True, **options)
        assert "expected: 4 frames" in str(caught.value)
        assert "windows=" in str(caught.value)
        make(records, clip_transform=scaled(change), **options)  # nobody asks for a camera


def test_functions_of_images_whose_size_varies(tmp_path: Path) -> None:
    """Results have one size: of the first clip it is the size before, of others it is not."""
    sizes = {"a": (18, 22), "b": (26, 30)}
    episodes = {
        key: [{"image": np.zeros((*size, 3), np.uint8), "pose": pose_of(key, 0)}] * 3
        for key, size in sizes.items()
    }
    metadata = {
        key: {"convention": OPENCV, "camera": {**PINHOLE, "height": size[0], "width": size[1]}}
        for key, size in sizes.items()
    }
    kinds: dict[str, Any] = {"pose": SCHEMA["pose"], "image": {"shape": (None, None, 3)}}
    write_dataset(tmp_path, episodes, metadata=metadata, features=kinds)
    options: dict[str, Any] = {"clip_len": 2, "features": ["image"], "camera": True}

    def fitted(clip: dict[str, Any], _: Any) -> dict[str, Any]:
        return {"image": np.stack([frame[:18, :22] for frame in clip["image"]])}

    pipe = SeqRecordPipe(tmp_path, clip_transform=fitted, shuffle=False, batch_size=1, **options)
    with pytest.raises(ClipError, match=r"changes the size of an image.*episode: b") as caught:
        list(pipe)
    assert "26 x 30" in str(caught.value)

    def fitted_frame(frame: dict[str, Any]) -> dict[str, Any]:
        return {"image": frame["image"][:18, :22]}

    # Of the first frame it changes nothing, and nobody calls it for frames of a cache.
    with pytest.raises(ClipError, match="frame_transform of images whose stored size varies"):
        SeqRecordPipe(tmp_path, frame_transform=fitted_frame, **options)
    pipe = SeqRecordPipe(tmp_path, frame_transform=fitted_frame, resize=(18, 22), **options)
    assert len(list(pipe)) == 4


def test_frames_of_several_sizes(tmp_path: Path) -> None:
    """Each episode has a camera of its own size; crops are of that size."""
    metadata, episodes = dict[str, Any](), dict[str, Any]()
    sizes = {"a": (18, 22), "b": (26, 30)}
    for key, (height, width) in sizes.items():
        episodes[key] = [
            {"image": np.full((height, width, 3), frame, np.uint8), "pose": pose_of(key, frame)}
            for frame in range(5)
        ]
        camera = {**PINHOLE, "cx": width / 2, "cy": height / 2, "height": height, "width": width}
        metadata[key] = {"convention": OPENCV, "camera": camera}
    kinds: dict[str, Any] = {"pose": SCHEMA["pose"], "image": {"shape": (None, None, 3)}}
    write_dataset(tmp_path, episodes, metadata=metadata, features=kinds)
    views: tuple[dict[str, Any], ...] = ({}, {"resize": (18, 22)})
    for options in views:
        pipe = SeqRecordPipe(
            tmp_path,
            clip_len=2,
            batch_size=2,
            clip_transform=[CenterCrop(12), HorizontalFlip(1.0)],
            camera=True,
            **options,
        )
        seen = set[str]()
        for batch in pipe:
            for clip, key in enumerate(batch["episode"]):
                seen.add(key)
                height, width = sizes[key]
                scale = (18 / height, 22 / width) if options else (1.0, 1.0)
                cx = (width / 2 + 0.5) * scale[1] - 0.5 - batch["crop"][clip, 1].item()
                cy = (height / 2 + 0.5) * scale[0] - 0.5 - batch["crop"][clip, 0].item()
                want = [[30 * scale[1], 0, 11 - cx], [0, 28 * scale[0], cy], [0, 0, 1]]
                np.testing.assert_allclose(batch["image_K"][clip, 0], want, atol=1e-4)
        assert seen == {*sizes}


class MeetingStorage(CountingStorage):
    """Requests for cameras wait until there are four at a time."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.meeting, self.num_met = threading.Barrier(4), 0

    def read_ranges(self, path: str, ranges: Any, buffers: Any) -> None:
        if threading.current_thread().name.startswith("seqrecord-cameras"):
            self.meeting.wait(30)
            self.num_met += 1
        super().read_ranges(path, ranges, buffers)


def test_poses_of_several_episodes_are_requested_together(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys("abcd", 3))
    storage = MeetingStorage(open_storage(str(tmp_path)))
    dataset = SeqRecordMapDataset(
        seqrecord.open(storage), clip_len=3, features=["state", "image"], camera=True
    )
    assert sum(map(check, dataset.__getitems__([0, 1, 2, 3]))) == 12
    assert storage.num_met == 4


def test_remote_storage(records: Path) -> None:
    """Poses are read in blocks of frames: a few requests, not one for each clip."""
    storage = CountingStorage(open_storage(str(records)))
    options: dict[str, Any] = {"clip_len": 2, "features": ["image"], "batch_size": 2}
    requests = dict[bool, int]()
    for camera in (False, True):
        storage.reset()
        pipe = SeqRecordPipe(seqrecord.open(storage), **options, camera=camera)
        for batch in pipe:
            assert not camera or check(batch)
        requests[camera] = sum(map(len, storage.ranges.values()))
    assert requests[True] <= requests[False] + 6  # chunks of poses


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
def test_cameras_of_lerobot(tmp_path: Path, in_place: bool) -> None:
    """Its videos have the calibration that the metadata gets; there are no poses."""
    root, (name, _) = unpack(tmp_path), CAMERAS
    with_video(root, (5, 3, 7), name)
    source = seqrecord.open_source(root, features=[name, "action"])
    if in_place:
        index_source(source, tmp_path / "records", workers=1)
    else:
        seqrecord.convert(source, tmp_path / "records", workers=1)
    options: dict[str, Any] = {"clip_len": 2, "batch_size": 2, "features": [name], "camera": True}
    with pytest.raises(ClipError, match="no image has a pose or intrinsics"):
        SeqRecordPipe(tmp_path / "records", **options)
    seqrecord.edit.set_metadata(tmp_path / "records", None, {"camera": PINHOLE})
    for batch in SeqRecordPipe(tmp_path / "records", **options):
        assert batch[f"{name}_K"][1, 1].tolist() == [[30, 0, 10.25], [0, 28, 8.5], [0, 0, 1]]
        assert not any("pose" in column for column in batch)


def test_poses_of_a_companion(tmp_path: Path) -> None:
    frames = frames_of("a", 6)
    images = [{"image": frame["image"]} for frame in frames]
    poses = [{"pose": frame["pose"]} for frame in frames]
    metadata = {"a": {"convention": OPENCV, "camera": PINHOLE}}
    write_dataset(tmp_path / "images", {"a": images}, metadata=metadata)
    write_dataset(tmp_path / "poses", {"a": poses}, features={"pose": SCHEMA["pose"]})
    dataset = seqrecord.open(tmp_path / "images", join=[tmp_path / "poses"])
    pipe = SeqRecordPipe(dataset.select(["image"]), clip_len=3, batch_size=2, camera=True)
    assert sum(map(check, pipe)) == 12


def test_edited_datasets(tmp_path: Path) -> None:
    """Frames of trimmed episodes; dropped poses are missing, and renamed ones must be named."""
    write(tmp_path, {"a": 9})
    seqrecord.edit.trim_episodes(tmp_path, None, slice(3, 8))
    assert sum(check(batch) for batch in [first_batch(tmp_path, clip_len=5, batch_size=1)]) == 5
    seqrecord.edit.rename_features(tmp_path, {"pose": "T"})
    with pytest.raises(ClipError, match=r"a feature pose; or camera=.*got: features of poses: T"):
        first_batch(tmp_path)
    assert first_batch(tmp_path, Camera(poses={}))["image_pose_is_missing"].all()
    assert check(first_batch(tmp_path, Camera(poses={"image": "T"}))) == 4
    seqrecord.edit.drop_features(tmp_path, ["T", "state"])
    assert "image_pose" not in first_batch(tmp_path)
    with pytest.raises(ClipError, match=r"\[4, 4\]: this dataset has none; got: T"):
        first_batch(tmp_path, Camera(poses={"image": "T"}))


def test_poses_that_the_metadata_names(tmp_path: Path) -> None:
    """Of two cameras with poses of their own, also after features are renamed."""
    frames = [
        dict.fromkeys(("front", "back"), frame["image"])
        | {"pose.f": frame["pose"], "pose.b": other["pose"]}
        for frame, other in zip(frames_of("a", 5), frames_of("b", 5), strict=True)
    ]
    metadata = {"camera": PINHOLE, "camera_poses": {"front": "pose.f", "back": "pose.b"}}
    kinds = {f"pose.{name}": SCHEMA["pose"] for name in "fb"}
    write_dataset(tmp_path, {"a": frames}, metadata={"a": metadata}, features=kinds)
    for image in ("front", "image"):
        if image == "image":
            seqrecord.edit.rename_features(tmp_path, {"front": "image", "pose.f": "P"})
        batch = first_batch(tmp_path, features=[image, "back"])
        assert check(batch, image) == 4
        assert check({**batch, "episode": ["b", "b"]}, "back") == 4


def test_depth_maps(tmp_path: Path) -> None:
    """Without images, depth maps have cameras; beside images, if `poses` names them."""
    frames = [
        {**frame, "depth": np.full((HEIGHT, WIDTH), 1 + frame["state"][0], np.float32)}
        for frame in frames_of("a", 5)
    ]
    kinds: dict[str, Any] = {**SCHEMA, "depth": {"kind": "depth", "unit": "m"}}
    metadata = {"a": {"convention": OPENCV, "camera": PINHOLE}}
    write_dataset(tmp_path, {"a": frames}, metadata=metadata, features=kinds)
    alone = first_batch(tmp_path, features=["depth"])
    both = first_batch(
        tmp_path, Camera(poses={"depth": "pose", "image": "pose"}), features=["image", "depth"]
    )
    assert "depth_pose" not in first_batch(tmp_path, features=["image", "depth"])
    for batch in (alone, both):
        expected = [pose_of("a", frame) for frame in (1, 2)]
        np.testing.assert_allclose(batch["depth_pose"][1], expected, atol=1e-6)
        assert not batch["depth_K_is_missing"].any()
    assert check(both) == 4


@pytest.mark.parametrize("skew", [None, "none", [0.5]])
def test_an_unknown_skew_is_an_unknown_camera(tmp_path: Path, skew: Any) -> None:
    """K is 0 and masked, not NaN."""
    write(tmp_path, {"a": 3}, metadata={"camera": {**PINHOLE, "skew": skew}})
    batch = first_batch(tmp_path, Camera(dtype="float64"))
    assert batch["image_K_is_missing"].all()
    assert not batch["image_K"].any()


LENSES = {"opencv": (0.1, -0.2, 0.01, 0.02, 0.05), "opencv_fisheye": (0.1, -0.2, 0.01, 0.02)}


@pytest.mark.parametrize("model", LENSES)
def test_distortion_and_skew_of_flipped_clips(tmp_path: Path, model: str) -> None:
    """OpenCV's p2 is odd in x, and so is the skew; fisheye lenses have no such terms."""
    lens = LENSES[model]
    more = {"skew": 0.5, "distortion_model": model, "distortion_coefficients": [*lens]}
    write(tmp_path, {"a": 3}, metadata={"camera": {**PINHOLE, **more}})
    for p in (0.0, 1.0):
        batch = first_batch(tmp_path, Camera(dtype="float64"), clip_transform=HorizontalFlip(p))
        assert batch["image_distortion_model"].tolist() == [1 + list(LENSES).index(model)] * 2
        expected = np.pad(lens, (0, 14 - len(lens)))
        expected[3] *= -1 if p and model == "opencv" else 1
        np.testing.assert_array_equal(batch["image_distortion"][1, 1], expected)
        cx = 21 - 10.25 if p else 10.25
        skew = -0.5 if p else 0.5
        want: Any = [[30, skew, cx], [0, 28, 8.5], [0, 0, 1]]
        np.testing.assert_allclose(batch["image_K"][1, 1], want, atol=1e-12)


def quaternion_pose(pose: Array) -> Array:
    """x y z and a quaternion of a rotation about z."""
    half = np.arctan2(pose[1, 0], pose[0, 0]) / 2
    return np.array([*pose[:3, 3], 0, 0, np.sin(half), np.cos(half)])


SHAPES: dict[str, Callable[[Array], Array]] = {
    "[7]": quaternion_pose,
    "[7], not normalized": lambda pose: quaternion_pose(pose) * ([1] * 3 + [2] * 4),
    "[12]": lambda pose: pose[:3].reshape(-1),
    "[16]": lambda pose: pose.reshape(-1),
    "[3, 4]": lambda pose: pose[:3],
    "float32 [4, 4]": lambda pose: pose.astype(np.float32),
}


def write_poses(path: Path, make: Callable[[Array], Array], unit: str | None = "m") -> None:
    frames = [{**frame, "pose": make(frame["pose"])} for frame in frames_of("a", 4)]
    kinds = {"pose": {"kind": "pose", "unit": unit}}
    metadata = {"a": {"camera": PINHOLE}}
    write_dataset(path, {"a": frames}, metadata=metadata, features=kinds)


@pytest.mark.parametrize("shape", SHAPES)
def test_forms_of_stored_poses(tmp_path: Path, shape: str) -> None:
    write_poses(tmp_path, SHAPES[shape])
    assert check(first_batch(tmp_path, Camera(axes="opencv"))) == 4


# Columns of stored rotations: the directions of the camera's axes in the world, of which OpenCV's
# are right, down and forward.
AXES: dict[str, Callable[[Array], Array]] = {
    "opencv": lambda right_down_forward: right_down_forward,
    "opengl": lambda a: np.stack([a[:, 0], -a[:, 1], -a[:, 2]], axis=1),  # right, up, backward
    "ned": lambda a: np.stack([a[:, 2], a[:, 0], a[:, 1]], axis=1),  # forward, right, down
    "ros": lambda a: np.stack([a[:, 2], -a[:, 0], -a[:, 1]], axis=1),  # forward, left, up
}


@pytest.mark.parametrize("axes", AXES)
def test_axes_of_stored_poses(tmp_path: Path, axes: str) -> None:
    def stored(pose: Array) -> Array:
        changed: Array = pose.copy()
        changed[:3, :3] = AXES[axes](pose[:3, :3])
        return changed

    write_poses(tmp_path, stored)
    assert check(first_batch(tmp_path, Camera(axes=axes))) == 4


@pytest.mark.parametrize("unit", ["mm", "m, m, m, 1, 1, 1, 1", None, "px"])
def test_units_of_poses(tmp_path: Path, unit: str | None) -> None:
    """Lengths become metres; others stay, and are not metric."""
    factor = 1000.0 if unit == "mm" else 1.0

    def stored(pose: Array) -> Array:
        scaled = quaternion_pose(pose)
        scaled[:3] *= factor
        return scaled

    write_poses(tmp_path, stored, unit)
    batch = first_batch(tmp_path, Camera(axes="opencv"))
    assert check(batch) == 4
    assert batch["is_metric"].tolist() == [unit in ("mm", "m, m, m, 1, 1, 1, 1")] * 2


def test_images_without_the_name_of_a_camera() -> None:
    """Of TartanAir, where poses have the name of their camera."""
    metadata = {"dataset": "TartanAir V2"}
    poses = ["pose_left"]
    with pytest.raises(ClipError) as caught:
        image_poses("image", metadata, poses, ["image"])
    assert str(caught.value.expected).startswith('camera=Camera(poses={"image": "…"})')
    with pytest.raises(ClipError) as caught:
        image_poses("image_right", metadata, poses, ["image_right"])
    assert str(caught.value.expected).startswith("a feature pose_right; or camera=")


def test_poses_with_a_number_that_is_not_finite() -> None:
    """Of seven numbers and of matrices; a quaternion of 0 is missing, too."""
    values = np.array([[1.0, 2, 3, 0, 0, 0, 1]] * 4)
    values[1, 0], values[2, 5], values[3, 3:] = np.nan, np.inf, 0
    matrices = np.array([np.eye(4)] * 3)
    matrices[1, 0, 3], matrices[2, 3, 3] = np.nan, np.nan
    for poses, missing in (pose_matrices(values), pose_matrices(matrices)):
        assert missing.tolist() == [False, *[True] * (len(missing) - 1)]
        assert (poses[missing] == 0).all()
        assert np.isfinite(poses[0]).all()


def test_poses_of_an_optical_frame() -> None:
    """Of a bag with one camera; other frames' poses are not its own."""
    names = ["pose.base", "pose.camera_optical_frame", "pose.gripper"]
    poses = image_poses("camera", {}, names, ["camera"])
    assert poses is not None
    assert poses.feature == "pose.camera_optical_frame"
    assert image_poses("camera", {}, names, ["camera", "wrist"], may_lack=True) is None
