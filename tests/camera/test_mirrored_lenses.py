"""Distortion and skew of flipped clips describe the flipped image: points are projected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import seqrecord
from seqrecord import (
    Camera,
    CenterCrop,
    HorizontalFlip,
    Normalization,
    Resize,
    SeqRecordMapDataset,
    SeqRecordPipe,
    Vector,
)
from seqrecord.sources import undistorted
from tests.cuda.side_streams import STREAMS, device_of, on_host
from tests.kit.datasets import columns, write_dataset
from tests.kit.lenses import moved, project

Array = npt.NDArray[Any]

HEIGHT, WIDTH, LENGTH = 24, 40, 5
PINHOLE = {"fx": 30.0, "fy": 28.0, "cx": 19.25, "cy": 11.5}
NUMBERS = (0.1, -0.02, 0.01, 0.03, 0.004, 0.02, -0.01, 0.003, 0.02, -0.01, 0.015, 0.005, 0.1, -0.2)
LENSES = {
    **{f"opencv {count}": ("opencv", NUMBERS[:count]) for count in (4, 5, 8, 12, 14)},
    "radtan": ("radtan", NUMBERS[:4]),
    "opencv_fisheye": ("opencv_fisheye", NUMBERS[:4]),
    "equidistant": ("equidistant", NUMBERS[:4]),
}
STEPS: dict[str, Any] = {
    "flip": [HorizontalFlip(0.5)],
    "crop": [seqrecord.RandomCrop((16, 20)), HorizontalFlip(0.5)],
    "resize": [CenterCrop((20, 30)), Resize((10, 45)), HorizontalFlip(0.5)],
}


CAMERA = Camera(dtype="float64")
SCENE = np.random.default_rng(0).uniform([-0.6, -0.4, 1], [0.6, 0.4, 1.5], (20, 3))


def scene_of(batch: dict[str, Any], clip: int) -> Array:
    return SCENE * ([-1, 1, 1] if batch["flipped"][clip] else [1, 1, 1])


def numbers_of(matrix: Any) -> Array:
    """fx, fy, cx and cy of a camera matrix [3, 3]."""
    return np.asarray(matrix)[[0, 1, 0, 1], [0, 1, 2, 2]]


def write(path: Path, lens: dict[str, Any], features: Any = None, **values: Any) -> Path:
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    frames = columns(image=[image] * LENGTH, **values)
    write_dataset(
        path,
        dict.fromkeys("ab", frames),
        metadata={key: {"camera": {**PINHOLE, **lens}} for key in "ab"},
        features=features or {},
    )
    return path


def batches(path: Path, steps: Any, seed: int = 0) -> list[dict[str, Any]]:
    settings: dict[str, Any] = {"clip_len": 1, "clip_transform": steps, "camera": CAMERA}
    found = [*SeqRecordPipe(path, batch_size=4, seed=seed, **settings)]
    single = SeqRecordMapDataset(path, **settings)
    found += [seqrecord.collate([single[i] for i in range(len(single))])]
    sources = {"a": seqrecord.SeqRecordIterableDataset(path, **settings)}
    found += [*seqrecord.SeqRecordMix(sources, batch_size=4)]
    assert len({bool(flag) for batch in found for flag in batch["flipped"]}) == 2
    return found


@pytest.mark.parametrize("name", LENSES)
@pytest.mark.parametrize("has_kind", [True, False])
def test_distortion_per_frame(tmp_path: Path, name: str, has_kind: bool) -> None:
    model, numbers = LENSES[name]
    lenses = [np.array(numbers, "f8" if has_kind else "f4") * (1 + i / 9) for i in range(LENGTH)]
    features = {"distortion": {"kind": "distortion"}} if has_kind else None
    path = write(tmp_path / "r", {"distortion_model": model}, features, distortion=lenses)
    for batch in batches(path, STEPS["crop"]):
        for clip, start in enumerate(batch["start"].tolist()):
            lens = batch["distortion"][clip, 0]
            assert lens.numpy().dtype == lenses[0].dtype
            camera = numbers_of(batch["image_K"][clip, 0])
            got = project(scene_of(batch, clip), camera, lens, model)
            want = project(SCENE, PINHOLE.values(), lenses[start], model)
            assert np.allclose(got, moved(want, batch, clip), atol=1e-9 if has_kind else 1e-4)


@pytest.mark.parametrize("name", LENSES)
@pytest.mark.parametrize("steps", STEPS)
def test_distortion_and_skew_of_the_metadata(tmp_path: Path, name: str, steps: str) -> None:
    model, numbers = LENSES[name]
    lens = {"distortion_model": model, "distortion_coefficients": list(numbers), "skew": 1.5}
    path = write(tmp_path / "r", lens)
    want = project(SCENE, PINHOLE.values(), numbers, model, 1.5)
    for batch in batches(path, STEPS[steps]):
        assert batch["image_distortion"].shape == (len(batch["start"]), 1, 14)
        for clip in range(len(batch["start"])):
            matrix, lens_of_clip = batch["image_K"][clip, 0], batch["image_distortion"][clip, 0]
            camera = numbers_of(matrix), lens_of_clip, model, float(matrix[0, 1])
            got = project(scene_of(batch, clip), *camera)
            assert np.allclose(got, moved(want, batch, clip), atol=1e-9)


@pytest.mark.parametrize("stream", STREAMS)
def test_distortion_on_a_device(tmp_path: Path, stream: str) -> None:
    lenses = [np.array(NUMBERS[:5]) + i for i in range(LENGTH)]
    path = write(tmp_path / "r", {}, distortion=lenses)
    settings: dict[str, Any] = {"clip_len": 2, "batch_size": 2, "clip_transform": STEPS["flip"]}
    with device_of(stream) as device:
        found = [on_host(b) for b in SeqRecordPipe(path, device=device, **settings)]
    assert any(bool(batch["flipped"].any()) for batch in found)
    for got, want in zip(found, SeqRecordPipe(path, **settings), strict=True):
        torch.testing.assert_close(got["distortion"], want["distortion"])


@pytest.mark.parametrize("stream", [None, "cpu"])
def test_normalized_distortion_is_mirrored_before(tmp_path: Path, stream: str | None) -> None:
    lenses = [np.array(NUMBERS[:5]) + i for i in range(LENGTH)]
    path = write(tmp_path / "r", {}, distortion=lenses)
    settings: dict[str, Any] = {"clip_len": 2, "batch_size": 2, "clip_transform": STEPS["flip"]}
    vector = Vector(pad_to=7, normalize=Normalization("mean_std", np.ones(5), np.full(5, 2.0)))
    found = [*SeqRecordPipe(path, device=stream, vectors={"distortion": vector}, **settings)]
    assert any(bool(batch["flipped"].any()) for batch in found)
    for got, plain in zip(found, SeqRecordPipe(path, **settings), strict=True):
        want = torch.nn.functional.pad((plain["distortion"] - 1) / 2, (0, 2))
        torch.testing.assert_close(got["distortion"], want.float())


def test_stereo(tmp_path: Path) -> None:
    """Each camera has its own lens and its own flip."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    lens = np.array([0.1, 0.0, 0.01, 0.02])
    frames = columns(
        left=[image] * 4, right=[image] * 4, left_distortion=[lens] * 4, right_distortion=[lens] * 4
    )
    models = {"left": "opencv", "right": "opencv_fisheye"}
    camera = {name: {**PINHOLE, "distortion_model": model} for name, model in models.items()}
    kinds = {f"{name}_distortion": {"kind": "distortion"} for name in models}
    metadata = {"a": {"camera": camera}}
    write_dataset(tmp_path / "r", {"a": frames}, metadata=metadata, features=kinds)
    mirrored = [*lens[:3], -lens[3]]
    for steps in (HorizontalFlip(1), {n: HorizontalFlip(1) for n in models}):
        clip = SeqRecordMapDataset(tmp_path / "r", clip_len=1, clip_transform=steps)[0]
        assert clip["left_distortion"][0].tolist() == mirrored
        assert clip["right_distortion"][0].tolist() == lens.tolist()
    steps = {"left": HorizontalFlip(0), "right": HorizontalFlip(1)}
    clip = SeqRecordMapDataset(tmp_path / "r", clip_len=1, clip_transform=steps)[0]
    assert clip["left_distortion"][0].tolist() == lens.tolist()


def test_lenses_of_unknown_models(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Four coefficients may be a fisheye's. Other steps than flips need no model."""
    kind = {"distortion": {"kind": "distortion"}}
    lenses = [np.array(NUMBERS[:4])] * LENGTH
    for number, lens in enumerate([{}, {"distortion_model": "fov"}]):
        path = write(tmp_path / f"{number}", lens, kind, distortion=lenses)
        clip = SeqRecordMapDataset(path, clip_len=1, clip_transform=CenterCrop(8))[0]
        assert np.array_equal(clip["distortion"][0], lenses[0])
        flipped = SeqRecordMapDataset(path, clip_len=1, clip_transform=HorizontalFlip(1))
        with pytest.raises(seqrecord.ClipError, match="unknown lens model") as caught:
            flipped[0]
        assert (caught.value.episode, caught.value.feature) == ("a", "distortion")
    path = write(tmp_path / "named", {}, distortion=lenses)
    clip = SeqRecordMapDataset(path, clip_len=1, clip_transform=HorizontalFlip(1))[0]
    assert np.array_equal(clip["distortion"][0], lenses[0])
    assert any("distortion is unchanged" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("model", "sign"),
    [("OPENCV", -1), ("RadTan", -1), ("Brown Conrady", -1), ("Kannala-Brandt", 1), ("FISHEYE", 1)],
)
def test_names_of_models(tmp_path: Path, model: str, sign: int) -> None:
    lens = {"distortion_model": model, "distortion_coefficients": list(NUMBERS[:4])}
    clips = SeqRecordMapDataset(
        write(tmp_path / "r", lens), clip_len=1, clip_transform=HorizontalFlip(1), camera=CAMERA
    )
    expected = [*NUMBERS[:3], sign * NUMBERS[3]]
    assert clips[0]["image_distortion"][0, :4].tolist() == expected


@pytest.mark.parametrize("lens", [{}, {"distortion_model": "fov"}])
def test_metadata_of_unknown_models(tmp_path: Path, lens: dict[str, Any]) -> None:
    path = write(tmp_path / "r", {**lens, "distortion_coefficients": list(NUMBERS[:4])})
    clips = SeqRecordMapDataset(path, clip_len=1, clip_transform=HorizontalFlip(1), camera=CAMERA)
    assert clips[0]["image_distortion_is_missing"].all()
    assert not clips[0]["image_distortion"].any()


def test_episodes_without_a_lens(tmp_path: Path) -> None:
    lens = {"distortion_model": "opencv", "distortion_coefficients": [0.1, 0, 0.01, 0.02]}
    cameras: dict[str, Any] = {"a": {**PINHOLE, **lens}, "b": PINHOLE, "c": None}
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    metadata = {key: {"camera": camera} for key, camera in cameras.items() if camera}
    frames = dict.fromkeys(cameras, columns(image=[image]))
    write_dataset(tmp_path / "r", frames, metadata=metadata)
    options: dict[str, Any] = {"clip_len": 1, "camera": CAMERA}
    clips = SeqRecordMapDataset(tmp_path / "r", clip_transform=HorizontalFlip(1), **options)
    found = {clips[i]["episode"]: clips[i]["image_distortion"][0] for i in range(3)}
    assert found["a"][:5].tolist() == [0.1, 0, 0.01, -0.02, 0]
    assert not found["b"].any()
    assert [bool(clips[i]["image_distortion_is_missing"]) for i in range(3)] == [0, 0, 1]
    assert [bool(clips[i]["image_K_is_missing"]) for i in range(3)] == [0, 0, 1]


def test_a_lens_that_the_first_episode_lacks(tmp_path: Path) -> None:
    lens = {"distortion_model": "opencv", "distortion_coefficients": [0.1, 0, 0.01, 0.02]}
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    cameras = {"a": PINHOLE, "b": {**PINHOLE, **lens}}
    metadata = {key: {"camera": camera} for key, camera in cameras.items()}
    write_dataset(tmp_path / "r", dict.fromkeys("ab", columns(image=[image])), metadata=metadata)
    options: dict[str, Any] = {"clip_len": 1, "camera": CAMERA}
    clips = SeqRecordMapDataset(tmp_path / "r", clip_transform=HorizontalFlip(1), **options)
    found = [clips[i]["image_distortion"][0, :4].tolist() for i in range(2)]
    assert found == [[0, 0, 0, 0], [0.1, 0, 0.01, -0.02]]
    assert not any(clips[i]["image_distortion_is_missing"] for i in range(2))


def test_skew_of_resized_images(tmp_path: Path) -> None:
    """The same from stored and from loaded sizes."""
    lens = {"skew": 1.5, "width": WIDTH, "height": HEIGHT}
    path, size = write(tmp_path / "r", lens), (12, 10)
    source = seqrecord.open_source(path)
    seqrecord.convert(source, tmp_path / "small", resize={"image": size}, workers=1)
    options: dict[str, Any] = {"clip_len": 1, "camera": CAMERA}
    whole = SeqRecordMapDataset(path, clip_transform=Resize(size), **options)[0]
    loaded = SeqRecordMapDataset(path, resize=size, **options)[0]
    small = SeqRecordMapDataset(tmp_path / "small", clip_transform=HorizontalFlip(1), **options)
    assert float(whole["image_K"][0, 0, 1]) == float(loaded["image_K"][0, 0, 1]) == 1.5 / 4
    assert float(small[0]["image_K"][0, 0, 1]) == -1.5 / 4


@pytest.mark.parametrize("count", [4, 5, 8, 12, 14])
def test_long_lenses_are_removed(tmp_path: Path, count: int) -> None:
    """An undistorted image of coordinates has the places to which the lens maps its pixels."""
    rows, columns_ = np.mgrid[:HEIGHT, :WIDTH].astype("f4")
    image = np.stack([columns_, rows, rows], axis=-1)
    lens = {"distortion_model": "opencv", "distortion_coefficients": list(NUMBERS[:count])}
    camera = {**PINHOLE, "width": WIDTH, "height": HEIGHT, **lens}
    write_dataset(
        tmp_path / "r",
        {"a": columns(image=[image])},
        metadata={"a": {"camera": camera}},
        features={"image": {"kind": "image"}},
    )
    source = undistorted(seqrecord.open_source(tmp_path / "r"))
    seqrecord.convert(source, tmp_path / "made", workers=1)
    got = seqrecord.open(tmp_path / "made").episodes["a"][0]["image"][..., :2].reshape(-1, 2)
    x = (columns_ - PINHOLE["cx"]) / PINHOLE["fx"]
    y = (rows - PINHOLE["cy"]) / PINHOLE["fy"]
    plane = np.stack([x, y, np.ones_like(x)], axis=-1).reshape(-1, 3)
    want = project(plane, PINHOLE.values(), NUMBERS[:count], "opencv")
    inside = ((want > 0) & (want < [WIDTH - 1, HEIGHT - 1])).all(axis=1)
    assert inside.sum() > 300
    assert np.allclose(got[inside], want[inside], atol=1e-4)
