"""Crops of episodes or cameras of different sizes, and resizing: equal to crops made of whole
frames, one by one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

import seqrecord
from seqrecord import (
    Camera,
    CenterCrop,
    ClipError,
    FeatureSpec,
    HorizontalFlip,
    Latest,
    Next,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Schema,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordPipe,
    SeqRecordWriter,
)
from seqrecord.samples import Samples, skip_first
from tests.kit.clip_data import names

SIZES = [(20, 31), (24, 28), (17, 40)]
CAMERA = {"fx": 10.0, "fy": 12.0, "cx": 9.5, "cy": 8.25}
SPECS = [
    FeatureSpec("image", np.dtype("u1"), (None, None, 3), kind="image"),
    FeatureSpec("depth", np.dtype("u2"), (None, None), kind="depth"),
    FeatureSpec("flow", np.dtype("f4"), (None, None, 2), kind="flow"),
    FeatureSpec("mask", np.dtype("?"), (None, None, 1), kind="mask"),
    FeatureSpec("pose", np.dtype("f8"), (3, 4)),
    FeatureSpec("points", np.dtype("f4"), (None, 4)),
]
IMAGES = ("image", "depth", "flow", "mask")


def frame_of(episode: int, number: int, size: tuple[int, int] | None = None) -> dict[str, Any]:
    rng = np.random.default_rng([episode, number])
    size = size or SIZES[episode]
    return {
        "image": rng.integers(0, 256, (*size, 3), np.uint8),
        "depth": rng.integers(0, 60000, size, np.uint16),
        "flow": rng.random((*size, 2), np.float32) - 0.5,
        "mask": rng.integers(0, 2, (*size, 1)).astype(bool),
        "pose": rng.random((3, 4)),
        "points": rng.random((1 + number, 4), np.float32),
    }


@pytest.fixture(scope="module", params=["raw", "balanced"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sizes") / "records"
    with SeqRecordWriter(
        folder, schema=Schema(SPECS), codecs=request.param, chunk_frames=4
    ) as writer:
        for episode, length in enumerate((9, 6, 7)):
            (height, width), camera = SIZES[episode], dict(CAMERA)
            camera |= {"width": width, "height": height}
            metadata = {"camera": camera} if episode < 2 else {}
            with writer.episode(f"set/{episode}", metadata=metadata) as written:
                for number in range(length):
                    written.append(frame_of(episode, number))
    return folder


CAMERAS = {"front_left": (24, 32), "front_right": (24, 32), "wrist": (12, 16)}


def camera_frame(episode: int, number: int) -> dict[str, npt.NDArray[np.uint8]]:
    rng = np.random.default_rng([episode, number])
    return {n: rng.integers(0, 256, (*s, 3), np.uint8) for n, s in CAMERAS.items()}


@pytest.fixture(scope="module")
def cameras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cameras") / "records"
    specs = [FeatureSpec(n, np.dtype("u1"), (*s, 3), kind="image") for n, s in CAMERAS.items()]
    camera = {"front_left": CAMERA, "wrist": {**CAMERA, "fx": 3.0}}
    with SeqRecordWriter(folder, schema=Schema(specs), codecs="raw") as writer:
        for episode in range(2):
            with writer.episode(f"set/{episode}", metadata={"camera": camera}) as written:
                for number in range(8):
                    written.append(camera_frame(episode, number))
    return folder


def seen(name: str, frame: npt.NDArray[Any], clip: dict[str, Any], size: Any) -> npt.NDArray[Any]:
    """The crop that a batch must contain, computed pixel by pixel."""
    top, left, height, width = clip["crop"].tolist()
    found = frame[top : top + height, left : left + width]
    if size is not None and name == "image":
        found = np.asarray(Image.fromarray(found).resize(size[::-1], Image.Resampling.BILINEAR))
    elif size is not None:
        made = np.empty((*size, *found.shape[2:]), found.dtype)
        for y in range(size[0]):
            for x in range(size[1]):
                made[y, x] = found[
                    int((y + 0.5) * height / size[0]), int((x + 0.5) * width / size[1])
                ]
        found = made
    if name == "flow" and size is not None:
        found = found * np.array([size[1] / width, size[0] / height], np.float32)
    if clip.get("flipped"):
        found = found[:, ::-1] * (np.array([-1, 1], "f4") if name == "flow" else 1)
    return found


def check(batch: dict[str, Any], length: int, size: Any, shape: tuple[int, int]) -> None:
    for i, (key, start) in enumerate(names(batch)):
        clip: dict[str, Any] = {n: batch[n][i] for n in ("crop", "flipped") if n in batch}
        for name in IMAGES:
            assert batch[name].shape[:4] == (len(batch["start"]), length, *shape)
            for t in range(length):
                whole = frame_of(int(key[4:]), start + t)[name]
                expected, got = seen(name, whole, clip, size), batch[name][i, t].numpy()
                assert got.dtype == whole.dtype
                is_near = name == "image" and size is not None
                tolerance = 1 if is_near else 1e-6 if name == "flow" else 0
                np.testing.assert_allclose(
                    got.astype("f8"), expected.astype("f8"), atol=tolerance, rtol=0
                )
        if "image_K" in batch:
            for t in range(length):
                check_matrix(key, clip, batch["image_K"][i, t], shape)


def check_matrix(key: str, clip: dict[str, Any], got: Any, shape: tuple[int, int]) -> None:
    """Compares pixel positions of projected camera points."""
    if key == "set/2":
        assert not got.any()
        return
    top, left, height, width = clip["crop"].tolist()
    for x, y in ((0.1, 0.2), (-0.5, 0.7)):
        along_x = CAMERA["fx"] * x + CAMERA["cx"] + 0.5 - left  # from the window's edge
        along_y = CAMERA["fy"] * y + CAMERA["cy"] + 0.5 - top
        along_x, along_y = along_x * shape[1] / width, along_y * shape[0] / height
        fx, fy, cx, cy = got[[0, 1, 0, 1], [0, 1, 2, 2]].tolist()
        if clip.get("flipped"):
            along_x, fx = shape[1] - along_x, -fx
        assert fx * x + cx + 0.5 == pytest.approx(along_x)
        assert fy * y + cy + 0.5 == pytest.approx(along_y)


CHAINS: dict[str, tuple[Any, Any, tuple[int, int]]] = {
    "random": (RandomCrop((9, 14)), None, (9, 14)),
    "center, flip": ([CenterCrop(11), HorizontalFlip(0.5)], None, (11, 11)),
    "resize": (Resize((10, 12)), (10, 12), (10, 12)),
    "flip, random, resize": (
        [HorizontalFlip(0.5), RandomCrop((15, 17)), Resize((20, 9))],
        (20, 9),
        (20, 9),
    ),
    "random resized": (
        [RandomResizedCrop((8, 12), (0.2, 0.9)), HorizontalFlip(0.5)],
        (8, 12),
        (8, 12),
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_episodes_of_other_sizes(path: Path, name: str) -> None:
    transform, size, shape = CHAINS[name]
    settings: dict[str, Any] = {"clip_len": 2, "batch_size": 4, "clip_transform": transform}
    for device, camera in ((None, None), ("cpu", None), (None, Camera(dtype="float64"))):
        pipe = SeqRecordPipe(path, **settings, device=device, ragged="list", camera=camera)
        crops = set()
        for batch in pipe:
            check(batch, 2, size, shape)
            assert isinstance(batch["points"], list)
            crops |= {tuple(crop) for crop in batch["crop"].tolist()}
        assert len(crops) > (8 if "random" in name else 1 if "center" in name else 2)


def test_windows_of_random_crops(path: Path) -> None:
    """The same for a seed in every version, and anywhere in their own episode."""
    options: dict[str, Any] = {"clip_len": 1, "batch_size": 9, "features": ["image"]}
    step = RandomResizedCrop(4, (0.05, 0.5))
    (batch,) = SeqRecordPipe(path, **options, clip_transform=step, episodes="set/0")
    found = dict(zip(batch["start"].tolist(), batch["crop"].tolist(), strict=True))
    # A scalar loop with the formulas of the docstring.
    windows = [[0, 13, 11, 9], [0, 5, 18, 16], [0, 10, 16, 18], [2, 15, 17, 14], [1, 9, 10, 11]]
    assert [found[i] for i in range(5)] == windows

    pipe = SeqRecordPipe(path, **options, clip_transform=RandomCrop(16))
    places: dict[str, set[int]] = {}
    for batch in (batch for _ in range(12) for batch in pipe):
        for key, crop in zip(batch["episode"], batch["crop"].tolist(), strict=True):
            places.setdefault(key, set()).add(crop[1])
    for key, lefts in places.items():
        room = SIZES[int(key[4:])][1] - 16
        assert lefts <= set(range(room + 1))
        assert min(lefts) < room / 5
        assert max(lefts) > room * 4 / 5


def test_by_number_and_for_functions(path: Path) -> None:
    transform, size, shape = CHAINS["flip, random, resize"]

    def function(clip: dict[str, Any], _: object) -> dict[str, Any]:
        assert clip["image"].shape == (2, 20, 9, 3)
        return {n: np.array(clip[n]) for n in IMAGES}

    for chain in (transform, [*transform, function]):
        dataset = SeqRecordMapDataset(path, clip_len=2, clip_transform=chain)
        for some in ([0, 9, 3], [7], [len(dataset) - 1, 0]):
            check(seqrecord.collate(dataset.__getitems__(some)), 2, size, shape)


def test_wrong_sizes_are_refused(path: Path, tmp_path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=1, batch_size=2, clip_transform=RandomCrop(18))
    with pytest.raises(ClipError, match="larger than the frame") as caught:
        list(pipe)
    assert (caught.value.episode, caught.value.expected) == ("set/2", "at most 17 x 40 pixels")
    with pytest.raises(ClipError, match="vary") as caught:
        SeqRecordPipe(path, clip_len=1, clip_transform=HorizontalFlip())
    assert "Resize" in str(caught.value.expected)
    with (
        SeqRecordWriter(tmp_path / "one", schema=Schema(SPECS)) as writer,
        writer.episode("a") as episode,
    ):
        for number in range(6):
            episode.append(frame_of(0, number, SIZES[number == 4]))
    pipe = SeqRecordPipe(tmp_path / "one", clip_len=2, batch_size=2, clip_transform=Resize((8, 8)))
    with pytest.raises(ClipError, match="differ in size") as caught:
        list(pipe)
    assert caught.value.episode == "a"


UNKNOWN = "a frame without a value has no size"
STEPS_OF_UNKNOWN: dict[str, Any] = {
    "crop": CenterCrop(8),
    "resize": [RandomCrop(8), Resize((4, 4))],
}


def write_sparse(path: Path, *, varies: bool, first: tuple[int, int] = (3, 3)) -> Path:
    """Two episodes with images in every other frame, from a first one to frame 7."""
    sides = (None, None, 3) if varies else (12, 16, 3)
    specs = [FeatureSpec("image", np.dtype("u1"), sides, kind="image")]
    specs.append(FeatureSpec("id", np.dtype("i8"), (), group=1))
    with SeqRecordWriter(path, schema=Schema(specs)) as writer:
        for number in range(2):
            size = (12 + 4 * number * varies, 16 + 2 * number * varies)
            with writer.episode(f"e{number}") as episode:
                for frame in range(10):
                    values: dict[str, Any] = {"id": np.int64(frame)}
                    if frame in range(first[number], 8, 2):
                        values["image"] = np.full((*size, 3), 10 * number + frame, np.uint8)
                    episode.append(values)
    return path


@pytest.mark.parametrize("window", [Latest(unknown="zeros"), Next(unknown="zeros")])
@pytest.mark.parametrize("name", STEPS_OF_UNKNOWN)
def test_an_unknown_frame_has_no_size(tmp_path: Path, name: str, window: Any) -> None:
    """If sizes vary; frames of one size are zeros of the crop's size."""
    options: dict[str, Any] = {"clip_len": 2, "clip_transform": STEPS_OF_UNKNOWN[name]}
    options["windows"] = {"image": window}
    start = 0 if isinstance(window, Latest) else 7
    varying = write_sparse(tmp_path / "varying", varies=True)
    for kind in (SeqRecordPipe, SeqRecordMapDataset, SeqRecordIterableDataset):
        with pytest.raises(ClipError, match=UNKNOWN) as caught:
            kind(varying, **options)
        assert caught.value.file == str(varying)
        assert (caught.value.episode, caught.value.feature) == ("e0", "image")
        assert caught.value.got == f"no value in the clip that starts at frame {start}"
    equal = write_sparse(tmp_path / "equal", varies=False)
    side = 8 if name == "crop" else 4
    for batch in SeqRecordPipe(equal, **options, batch_size=4):
        assert batch["image"].shape[1:] == (2, side, side, 3)
        ages = batch["image_age" if start == 0 else "image_wait"]
        assert not batch["image"][ages < 0].any()
        assert batch["image"][ages >= 0].all()


def test_known_frames_beside_unknown_ones(tmp_path: Path) -> None:
    """Samples without unknown frames have crops; where epochs differ, a later one is an error."""
    path = write_sparse(tmp_path / "records", varies=True, first=(0, 3))
    options: dict[str, Any] = {"clip_len": 2, "clip_transform": CenterCrop(8), "batch_size": 4}
    options["windows"] = {"image": Latest(unknown="zeros")}
    for more in ({"samples": skip_first(3)}, {"episodes": "e0"}):
        for batch in SeqRecordPipe(path, **options, **more):
            assert batch["image"].shape[1:] == (2, 8, 8, 3)
            assert (batch["image_age"] >= 0).all()

    def later(samples: Samples, epoch: int, _: object) -> Samples:
        return samples.filter(samples["start"] >= (0 if epoch else 3))

    pipe = SeqRecordPipe(path, **options, samples=later)
    assert all((batch["image_age"] >= 0).all() for batch in pipe)
    with pytest.raises(ClipError, match=UNKNOWN) as caught:
        list(pipe)
    assert caught.value.episode == "e1"


# ---- cameras


@pytest.mark.parametrize("shared", [True, False])
def test_cameras_of_two_sizes_have_separate_steps(cameras: Path, shared: bool) -> None:
    with pytest.raises(ClipError, match="different sizes") as caught:
        SeqRecordPipe(cameras, clip_len=2, clip_transform=RandomCrop(8))
    assert "wrist" in str(caught.value.expected)
    wrist = [RandomCrop((4, 4), shared=shared), HorizontalFlip(shared=shared)]
    front = [RandomCrop((16, 20)), HorizontalFlip()]
    chain: dict[str, Any] = {"front_left": front, "front_right": front, "wrist": wrist}
    stream = SeqRecordIterableDataset(cameras, clip_len=1, batch_size=4, clip_transform=chain)
    found = [batch for _ in range(3) for batch in stream]
    windows = {name: torch.cat([batch[f"{name}_crop"] for batch in found]) for name in chain}
    assert "crop" not in found[0]
    assert (windows["front_left"] == windows["front_right"]).all()
    assert (windows["wrist"][:, 2:] == 4).all()
    # 9 of 24 - 16 + 1 rows, and 9 of 12 - 4 + 1: the same draws are the same rows
    assert (windows["front_left"][:, 0] == windows["wrist"][:, 0]).all() == shared
    assert all((b["front_left_flipped"] == b["wrist_flipped"]).all() for b in found) == shared
    for batch in found:
        for i, (key, start) in enumerate(names(batch)):
            whole = camera_frame(int(key[4:]), start)
            for name in chain:
                clip = {n: batch[f"{name}_{n}"][i] for n in ("crop", "flipped")}
                expected = seen("other", whole[name], clip, None)
                np.testing.assert_array_equal(batch[name][i, 0].numpy(), expected)


SHARED: dict[str, dict[str, list[Any]]] = {
    "a crop before": {
        "front_left": [HorizontalFlip()],
        "wrist": [RandomCrop(8), CenterCrop(6), HorizontalFlip()],
    },
    "resized": {
        "front_left": [HorizontalFlip(), RandomResizedCrop(8)],
        "wrist": [Resize((8, 8)), HorizontalFlip()],
    },
    "a flip of its own": {
        "front_left": [RandomCrop(16), HorizontalFlip()],
        "wrist": [HorizontalFlip(0, shared=False), HorizontalFlip()],
    },
}


@pytest.mark.parametrize("name", SHARED)
def test_cameras_share_flips_whatever_comes_before(cameras: Path, name: str) -> None:
    settings: dict[str, Any] = {"clip_len": 1, "clip_transform": SHARED[name], "seed": 3}
    torch.manual_seed(0)
    dataset = SeqRecordMapDataset(cameras, clip_len=1, clip_transform=SHARED[name])
    kinds: list[Any] = [
        SeqRecordPipe(cameras, **settings),
        SeqRecordPipe(cameras, **settings, device="cpu", batch_size=1),
        SeqRecordPipe(cameras, **settings, order="sequences", batch_size=2),
        SeqRecordMix(
            {"a": SeqRecordIterableDataset(cameras, clip_len=1, clip_transform=SHARED[name])},
            batch_size=1,
        ),
        [dataset[i % len(dataset)] for i in range(40)],
    ]
    found = {
        (i, bool(front), bool(wrist))
        for i, clips in enumerate(kinds)
        for clip in clips
        for front, wrist in zip(
            clip["front_left_flipped"].reshape(-1), clip["wrist_flipped"].reshape(-1), strict=True
        )
    }
    assert not [one for one in found if one[1] != one[2]]
    assert len(found) >= 2 * len(kinds) - 1  # both, but maybe of the two sequences


def test_the_second_step_of_a_type_shares_with_the_second_one(cameras: Path) -> None:
    # The first crops leave everything, the second ones have 5 rows and one column.
    chain: dict[str, Any] = {
        "front_left": [RandomCrop((24, 32)), RandomCrop((20, 32))],
        "wrist": [
            CenterCrop((12, 16)),
            RandomCrop((12, 16)),
            HorizontalFlip(),
            RandomCrop((8, 16)),
        ],
    }
    tops = [
        (int(clip["front_left_crop"][0]), int(clip["wrist_crop"][0]))
        for clip in SeqRecordPipe(cameras, clip_len=1, clip_transform=chain)
    ]
    assert all(front == wrist for front, wrist in tops)
    assert len(set(tops)) > 2
    twice = [RandomCrop((24, 28)), RandomCrop((24, 24))]  # independent random draws
    steps = [int(c["crop"][1]) for c in SeqRecordPipe(
        cameras, clip_len=1, features=["front_left"], clip_transform=twice)]  # fmt: skip
    assert any(step % 2 for step in steps)


def test_cameras_with_a_shared_window_have_their_own_intrinsics(cameras: Path) -> None:
    pair = ["front_left", "front_right"]
    options: dict[str, Any] = {"clip_len": 1, "batch_size": 4, "camera": True}
    for features, cams in ((pair, ["front_left"]), (["wrist"], ["wrist"])):
        chain = RandomCrop(8)
        batch = next(
            iter(SeqRecordPipe(cameras, **options, features=features, clip_transform=chain))
        )
        assert [key for key in batch if key.endswith("_K")] == [f"{n}_K" for n in cams]
        for name in cams:
            expected = torch.tensor([CAMERA[n] for n in ("fx", "fy", "cx", "cy")]).repeat(4, 1)
            expected[:, 0] = 3 if name == "wrist" else 10
            expected[:, 2:] -= batch["crop"][:, [1, 0]]
            matrices = batch[f"{name}_K"][:, 0]
            assert matrices[:, [0, 1, 0, 1], [0, 1, 2, 2]].tolist() == expected.tolist()


def test_cameras_without_valid_intrinsics(tmp_path: Path) -> None:
    cameras: list[tuple[Any, bool]] = [
        (None, False),
        ({**CAMERA, "width": 32, "height": 24}, True),
        ("zed", False),
        ({"K": [[10, 0, 9], [0, 12, 8], [0, 0, 1]]}, False),
        ({**CAMERA, "width": 640, "height": 480}, False),
        ({"front": CAMERA}, False),
    ]
    for number, (camera, is_valid) in enumerate(cameras):
        path, metadata = tmp_path / str(number), {} if camera is None else {"camera": camera}
        with SeqRecordWriter(path) as writer, writer.episode("a", metadata=metadata) as written:
            written.append({"image": np.zeros((24, 32, 3), np.uint8)})
        options: dict[str, Any] = {"clip_len": 1, "clip_transform": CenterCrop(8)}
        assert "intrinsics" not in next(iter(SeqRecordPipe(path, **options)))
        if is_valid:
            assert not next(iter(SeqRecordPipe(path, **options, camera=True)))["image_K_is_missing"]
            continue
        with pytest.raises(ClipError, match="no image has a pose or intrinsics"):
            SeqRecordPipe(path, **options, camera=True)


def test_cameras_in_a_mix_and_before_a_function(cameras: Path) -> None:
    steps = {"front_left": RandomCrop(8), "wrist": Resize((8, 8))}
    source = SeqRecordIterableDataset(cameras, clip_len=1, clip_transform=steps)
    other = SeqRecordIterableDataset(
        cameras, clip_len=1, features=["wrist"], clip_transform=Resize((8, 8))
    )
    mix = SeqRecordMix({"a": source, "b": other}, batch_size=4, features="intersection")
    batch = next(iter(mix))
    assert {name for name in batch if "wrist" in name} >= {"wrist"}
    assert batch["wrist"].shape == (4, 1, 8, 8, 3)
    chain: list[Any] = [steps, lambda clip, _: {"sum": clip["front_left"].sum(axis=(1, 2))}]
    pipe = SeqRecordPipe(cameras, clip_len=1, batch_size=4, clip_transform=chain)
    assert next(iter(pipe))["sum"].shape == (4, 1, 3)


def test_a_flipped_stereo_pair_is_logged(
    cameras: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cameras = Path(
        shutil.copytree(cameras, tmp_path / "records")
    )  # not logged before in this process
    SeqRecordPipe(cameras, clip_len=1, clip_transform=HorizontalFlip(features=["wrist"]))
    assert not caplog.records
    pair = ["front_left", "front_right"]
    SeqRecordPipe(cameras, clip_len=1, clip_transform=HorizontalFlip(features=pair))
    (message,) = caplog.messages
    assert "exchange" in message
    assert "front_left and front_right" in message


def test_wrong_cameras_are_refused(cameras: Path) -> None:
    small = Resize((8, 8), features=["wrist"])
    chains: list[tuple[Any, str]] = [
        ({}, "is not valid|mixes a dict"),
        ({"wrist": 3}, "of camera .* is not valid"),
        ({3: Resize((2, 2))}, "of camera .* is not valid"),
        ({"wrist": [Resize((2, 2)), lambda c, _: c]}, "of camera .* is not valid"),
        ({"wrist": small}, "has the argument features"),
        ({"wrist": [RandomCrop(4), small]}, "has the argument features"),
        ([{"wrist": Resize((2, 2))}, Resize((2, 2))], "mixes a dict"),
        ({"none": Resize((2, 2))}, "not read"),
        ([small, RandomCrop(4, features=["wrist"])], "crops or resizes after Resize"),
        ([small, small], "crops or resizes after Resize"),
    ]
    for chain, message in chains:
        with pytest.raises(ClipError, match=message):
            SeqRecordPipe(cameras, clip_len=1, clip_transform=chain)
    values: list[Any] = [0, (0, 1), (1, 0.5), "ab", (0.1, 0.2, 0.3), (float("nan"), 1)]
    for value in values:
        for name in ("scale", "ratio"):
            with pytest.raises(ClipError, match=name):
                RandomResizedCrop(8, **{name: value})
        for step in (RandomCrop, RandomResizedCrop, lambda _, **more: HorizontalFlip(**more)):
            with pytest.raises(ClipError, match="shared"):
                step(8, shared=value)
