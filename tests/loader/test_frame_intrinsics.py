"""Intrinsics of each frame change with the crops, sizes and flips of their camera."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

import seqrecord
from seqrecord import (
    CenterCrop,
    ClipError,
    HorizontalFlip,
    Normalization,
    RandomCrop,
    SeqRecordMapDataset,
    SeqRecordPipe,
    Vector,
)
from seqrecord.errors import SchemaError
from tests.cuda.side_streams import STREAMS, device_of, on_host
from tests.kit import command_line
from tests.kit.datasets import columns, write_dataset

Array = npt.NDArray[Any]

_HEIGHT, _WIDTH, _LENGTH = 24, 40, 9


def _camera(i: int) -> Array:
    return np.array([30 + i, 28 + i / 2, 19.5 + i / 4, 11.5 - i / 8])


def _matrix(i: int) -> Array:
    fx, fy, cx, cy = _camera(i)
    return np.array([[fx, 0.5, cx], [0, fy, cy], [0, 0, 1]])


def _write(path: Path, names: dict[str, Any], **images: tuple[int, int]) -> Path:
    """Images with coordinates as pixels, and intrinsics with these names and dtypes."""
    values: dict[str, Any] = {}
    for name, (height, width) in (images or {"image": (_HEIGHT, _WIDTH)}).items():
        picture = np.stack([*np.mgrid[:height, :width], np.zeros((height, width))], -1)
        values[name] = [picture.astype("u1")] * _LENGTH
    for name, dtype in names.items():
        camera = _matrix if "matrix" in name else _camera
        values[name] = [camera(i).astype(dtype) for i in range(_LENGTH)]
    episodes = dict.fromkeys("ab", columns(**values))
    metadata = {key: {"camera": {"fx": 1, "fy": 1, "cx": 0, "cy": 0}} for key in "ab"}
    kinds = {name: {"kind": "intrinsics"} for name in names}
    write_dataset(path, episodes, metadata=metadata, codecs="raw", features=kinds)
    return path


def _expected(batch: Any, clip: int, value: Array, before: tuple[int, int] | None) -> Array:
    """Brute force: points of a scene are projected and moved according to the batch's columns."""
    fx, fy, cx, cy = value if value.shape == (4,) else np.zeros(4)
    matrix = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]]) if value.shape == (4,) else value
    size = batch["image"].shape[2:4]
    scene = np.random.default_rng(0).uniform(0.5, 2, (20, 3))
    x, y, z = matrix @ scene.T
    whole = before or (_HEIGHT, _WIDTH)
    x = (x / z + 0.5) * whole[1] / _WIDTH - 0.5
    y = (y / z + 0.5) * whole[0] / _HEIGHT - 0.5
    top, left, height, width = batch["crop"][clip].tolist() if "crop" in batch else (0, 0, *whole)
    x = (x - left + 0.5) * size[1] / width - 0.5
    y = (y - top + 0.5) * size[0] / height - 0.5
    if "flipped" in batch and batch["flipped"][clip]:  # the scene is mirrored
        x, scene = size[1] - 1 - x, scene * [-1, 1, 1]
    found, *_ = np.linalg.lstsq(scene / scene[:, 2:], np.stack((x, y), 1), rcond=None)
    (fx, skew, cx), (zero, fy, cy) = found.T
    assert abs(zero) < 1e-9
    whole_matrix = np.array([[fx, skew, cx], [0, fy, cy], [0, 0, 1]])
    return whole_matrix if value.shape == (3, 3) else np.array([fx, fy, cx, cy])


_STEPS = {
    "crop": [RandomCrop((16, 20))],
    "crop, flip": [RandomCrop((16, 20)), HorizontalFlip(0.5)],
    "resize": [CenterCrop((20, 30)), seqrecord.Resize((10, 45)), HorizontalFlip(1)],
    "resized crop": [seqrecord.RandomResizedCrop((12, 18)), HorizontalFlip(0.5)],
    "flip": [HorizontalFlip(0.5)],
    "none": None,
}


_NAMES = ("intrinsics", "image_intrinsics", "matrix", "image_matrix")


def _cases() -> Iterator[Any]:
    """The fast run has each step with one name, with a resize or without."""
    for number, (steps, name, resize) in enumerate(
        itertools.product(_STEPS, _NAMES, (False, True))
    ):
        is_fast = number % 8 == 3 * (number // 8) % 8 or steps == "resized crop"
        yield pytest.param(steps, name, resize, marks=() if is_fast else pytest.mark.slow)


@pytest.mark.parametrize(("steps", "name", "resized"), list(_cases()))
def test_intrinsics_match_the_crop_and_size(
    tmp_path: Path, steps: str, name: str, resized: bool
) -> None:
    resize = None
    if resized:
        resize = (22, 36) if steps in ("crop", "crop, flip", "resize") else (12, 30)
    stored = {"image_matrix": "matrix"}.get(name, name)
    path = _write(tmp_path / "r", {stored: "<f4" if name == "matrix" else "<f8"})
    settings: dict[str, Any] = {"clip_len": 3, "clip_transform": _STEPS[steps], "resize": resize}
    if name == "image_matrix":
        settings["rename"] = {"matrix": "image_intrinsics"}
        name = "image_intrinsics"
    single = SeqRecordMapDataset(path, **settings)
    batches = [*SeqRecordPipe(path, batch_size=4, seed=1, **settings)]
    batches += [seqrecord.collate([single[i]]) for i in range(0, len(single), 5)]
    for batch in batches:
        for clip, t in itertools.product(range(len(batch[name])), range(3)):
            frame = int(batch["start"][clip]) + t
            value = _matrix(frame) if "matrix" in stored else _camera(frame)
            want, got = _expected(batch, clip, value, resize), batch[name][clip, t].numpy()
            assert got.dtype == np.dtype("<f4" if stored == name == "matrix" else "<f8")
            assert np.allclose(got, want, atol=2e-5 if got.dtype == np.float32 else 1e-9)
    assert sum(len(batch[name]) for batch in batches) == 2 * (_LENGTH - 2) + 3


def test_functions_and_mixes_get_the_changed_intrinsics(tmp_path: Path) -> None:
    records = _write(tmp_path / "records", {"image_intrinsics": "<f4"})

    def double(clip: dict[str, Any], _: Any) -> dict[str, Any]:
        return {"twice": 2 * clip["image_intrinsics"], **clip}

    steps: Any = [RandomCrop((16, 20)), HorizontalFlip(0.5), double]
    for batch in SeqRecordPipe(records, clip_len=2, batch_size=2, clip_transform=steps):
        found = batch["image_intrinsics"]
        assert torch.equal(batch["twice"], 2 * found)
        cx = 19.5 + (found[..., 0] - 30) / 4 - batch["crop"][:, 1:2]
        assert torch.allclose(found[..., 2], torch.where(batch["flipped"][:, None], 19 - cx, cx))

    crop: dict[str, Any] = {"clip_transform": CenterCrop((20, 30))}
    sources = {
        name: seqrecord.SeqRecordIterableDataset(records, clip_len=2, **crop) for name in "ab"
    }
    for batch in seqrecord.SeqRecordMix(sources, batch_size=4):
        frame = batch["start"][:, None] + torch.arange(2)
        assert torch.equal(batch["image_intrinsics"][..., 2], (14.5 + frame / 4).float())
    # A feature named `intrinsics` follows the only image.
    path = _write(tmp_path / "r", {"intrinsics": "<f8"})
    clip = SeqRecordMapDataset(path, clip_len=1, **crop)[3]
    assert clip["intrinsics"].tolist() == [[33, 29.5, 15.25, 9.125]]
    assert clip["crop"].tolist() == [2, 5, 20, 30]


def test_intrinsics_of_several_cameras(tmp_path: Path) -> None:
    sizes = {"front": (_HEIGHT, _WIDTH), "wrist": (20, 20)}
    path = _write(tmp_path / "r", {"front_intrinsics": "<f8", "wrist_intrinsics": "<f8"}, **sizes)
    steps: Any = {"front": [CenterCrop((20, 30))], "wrist": [seqrecord.Resize((10, 10))]}
    clip = SeqRecordMapDataset(path, clip_len=1, clip_transform=steps)[0]
    assert clip["front_intrinsics"][0].tolist() == [30, 28, 14.5, 9.5]
    assert clip["wrist_intrinsics"][0].tolist() == [15, 14, 9.5, 5.5]
    clip = SeqRecordMapDataset(path, clip_len=1, resize={"wrist": (10, 10)})[0]
    assert clip["front_intrinsics"][0].tolist() == _camera(0).tolist()
    assert clip["wrist_intrinsics"][0].tolist() == [15, 14, 9.5, 5.5]
    features = ["front", "wrist_intrinsics"]
    with pytest.raises(ClipError, match="does not read"):
        SeqRecordMapDataset(path, clip_len=1, features=features, clip_transform=CenterCrop(8))
    assert len(SeqRecordMapDataset(path, clip_len=1, features=features)) == 2 * _LENGTH
    alone = _write(tmp_path / "alone", {"k": "<f8"}, **sizes)
    with pytest.raises(ClipError, match="front_intrinsics"):
        SeqRecordMapDataset(alone, clip_len=1, clip_transform=steps)
    shared = _write(tmp_path / "shared", {"k": "<f8"}, left=(24, 40), right=(24, 40))
    clip = SeqRecordMapDataset(shared, clip_len=1, clip_transform=CenterCrop((20, 30)))[0]
    assert clip["k"][0].tolist() == [30, 28, 14.5, 9.5]
    two = _write(tmp_path / "two", {"k": "<f8", "l": "<f8"}, left=(24, 40), right=(24, 40))
    with pytest.raises(ClipError, match="left_intrinsics"):
        SeqRecordMapDataset(two, clip_len=1, clip_transform=CenterCrop((20, 30)))


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("name", ["intrinsics", "matrix"])
def test_intrinsics_on_a_device(tmp_path: Path, stream: str, name: str) -> None:
    path = _write(tmp_path / "r", {name: "<f4"})
    settings: dict[str, Any] = {
        "clip_len": 3,
        "batch_size": 4,
        "clip_transform": [seqrecord.RandomResizedCrop((12, 18)), HorizontalFlip(0.5)],
        "resize": (22, 36),
    }
    with device_of(stream) as device:
        found = [on_host(b) for b in SeqRecordPipe(path, device=device, **settings)]
    host = [*SeqRecordPipe(path, **settings)]
    assert len(found) == len(host)
    for got, want in zip(found, host, strict=True):
        assert torch.equal(got["start"], want["start"])
        torch.testing.assert_close(got[name], want[name])


_VECTORS = {
    "place": Vector(place=[1, 0, 3, 2]),
    "pad_to": Vector(pad_to=6),
    "blocks": Vector(pad_to=50_000),  # of 3 clips
    "normalize": Vector(normalize=Normalization("mean_std", np.ones(4), np.arange(2.0, 6.0))),
    "both": Vector(
        place=[5, 0, 3, 2], normalize=Normalization("quantiles", np.ones(4), np.full(4, 2.0))
    ),
}


def _as_vector(values: torch.Tensor, vector: Vector) -> torch.Tensor:
    """The values of batches without `vectors`, normalized and placed."""
    if isinstance(vector.normalize, Normalization):
        offset, scale = map(torch.tensor, (vector.normalize.offset, vector.normalize.scale))
        values = ((values - offset) / scale).float()
    places = vector.place or range(4)
    placed = values.new_zeros((*values.shape[:-1], vector.pad_to or max(places) + 1))
    placed[..., list(places)] = values
    return placed


@pytest.mark.parametrize("stream", [None, *STREAMS])
@pytest.mark.parametrize("name", _VECTORS)
def test_vectors_of_changed_intrinsics(tmp_path: Path, name: str, stream: str | None) -> None:
    """`vectors` come behind crops, flips and sizes, also in blocks of clips and in mixes."""
    path = _write(tmp_path / "r", {"intrinsics": "<f8"})
    vectors = {"intrinsics": _VECTORS[name]}
    with device_of(stream) if stream else nullcontext() as device:
        for more in ({"clip_transform": _STEPS["resized crop"]}, {"resize": (12, 30)}):
            settings: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "device": device, **more}
            moved = SeqRecordPipe(path, **settings, vectors=vectors)
            for batch, other in zip(moved, SeqRecordPipe(path, **settings), strict=True):
                want = _as_vector(on_host(other)["intrinsics"], _VECTORS[name])
                torch.testing.assert_close(on_host(batch)["intrinsics"], want)
    if stream:
        return
    settings = {"clip_len": 3, "clip_transform": CenterCrop((16, 20))}
    single = SeqRecordMapDataset(path, **settings)
    placed = SeqRecordMapDataset(path, **settings, vectors=vectors)
    for i in range(0, len(single), 3):
        want = _as_vector(single[i]["intrinsics"], _VECTORS[name])
        torch.testing.assert_close(placed[i]["intrinsics"], want)
    moved_settings = {**settings, "vectors": vectors}
    plain_mix, mix = (
        seqrecord.SeqRecordMix({"a": SeqRecordPipe(path, **options)}, batch_size=4)
        for options in (settings, moved_settings)
    )
    for batch, other in zip(mix, plain_mix, strict=True):
        want = _as_vector(other["intrinsics"], _VECTORS[name])
        torch.testing.assert_close(batch["intrinsics"], want)


def test_stored_statistics_are_not_of_changed_intrinsics(tmp_path: Path) -> None:
    path = _write(tmp_path / "r", {"intrinsics": "<f8"})
    vectors = {"intrinsics": Vector(normalize="mean_std")}
    settings: dict[str, Any] = {"clip_len": 1, "vectors": vectors}
    assert len(SeqRecordMapDataset(path, **settings)) == 2 * _LENGTH
    for more in ({"clip_transform": CenterCrop(8)}, {"resize": (12, 30)}):
        with pytest.raises(ClipError, match="crop, flip or resize changes this feature") as caught:
            SeqRecordMapDataset(path, **settings, **more)
        assert caught.value.feature == "intrinsics"


def test_features_of_other_shapes_or_dtypes_are_no_intrinsics(tmp_path: Path) -> None:
    shapes: list[Any] = [(3,), (4,), (3, 4), (None,)]
    for number, (shape, dtype) in enumerate(zip(shapes, ("f4", "i4", "f8", "f4"), strict=True)):
        path, spec = tmp_path / str(number), seqrecord.FeatureSpec("k", np.dtype(dtype), shape)
        writer = seqrecord.SeqRecordWriter(path, schema=seqrecord.Schema([spec]))
        with writer, writer.episode("a") as episode:
            episode.append({"k": np.ones([n or 4 for n in shape], dtype)})
        with pytest.raises(SchemaError, match="kind intrinsics does not fit"):
            seqrecord.edit.describe_features(path, kinds={"k": "intrinsics"})


def test_a_matrix_per_frame_in_text_files(tmp_path: Path) -> None:
    for i in range(4):
        for name in ("rgb", "K"):
            (tmp_path / "raw/a" / name).mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(np.zeros((_HEIGHT, _WIDTH, 3), np.uint8))
        image.save(tmp_path / f"raw/a/rgb/{i:03d}.png")
        np.savetxt(tmp_path / f"raw/a/K/{i:03d}.txt", _matrix(i))
    write = ["write", "--src", tmp_path / "raw", "--dst", tmp_path / "r", "--workers", 1]
    command_line.run(*write, "--kind", "K=intrinsics")
    clip = SeqRecordMapDataset(tmp_path / "r", clip_len=4, clip_transform=CenterCrop((20, 30)))[0]
    want = np.stack([_matrix(i) for i in range(4)])
    want[:, :2, 2] -= [5, 2]
    assert np.allclose(clip["K"], want, atol=1e-12)
