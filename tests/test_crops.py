"""Crops and flips: equal to those of the whole clip, and drawn from seed, epoch and clip."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    CenterCrop,
    ClipError,
    EngineOptions,
    HorizontalFlip,
    RandomCrop,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordPipe,
    SeqRecordWriter,
)
from seqrecord.clips.transforms import Camera, CropWindows
from seqrecord.engine.crops import ClipCrops, copy_window
from seqrecord.errors import ChecksumError
from seqrecord.reading.frames import ArraySpec
from tests.clip_data import leaves_nothing, names

HEIGHT, WIDTH = 10, 13
IMAGES = ["image", "depth", "flow", "mask", "wide"]
CAMERA = {"fx": 5.0, "fy": 6.0, "cx": 6.5, "cy": 4.0, "width": WIDTH, "height": HEIGHT}


MIDDLE = (64, 64)  # clips of 4 frames are large enough to be loaded straight into batches
LARGE = (128, 128)  # 24 such frames are a page that is read a few frames at a time


def frame_of(episode: int, number: int, size: tuple[int, int] = (HEIGHT, WIDTH)) -> dict[str, Any]:
    rng = np.random.default_rng([episode, number])
    return {
        "image": rng.integers(0, 256, (*size, 3), np.uint8),
        "depth": rng.random(size, np.float32),
        "flow": rng.random((*size, 2), np.float32) - 0.5,
        "mask": rng.integers(0, 2, (*size, 1)).astype(bool),
        "wide": rng.integers(0, 9, (*size, 5, 1)),
        "small": rng.random((4, 5)),  # no image of this size
        "pose": rng.random(7),
        "note": np.arange(1 + number % 3, dtype=np.uint8),
    }


def write(
    folder: Path,
    codecs: str = "balanced",
    lengths: tuple[int, ...] = (17, 9, 12),
    size: tuple[int, int] = (HEIGHT, WIDTH),
    chunk_frames: int = 4,
    cameras: int = 2,
) -> Path:
    """The first `cameras` episodes have a camera."""
    note: Any = {"note": {"shape": (None,)}}
    with SeqRecordWriter(folder, codecs=codecs, chunk_frames=chunk_frames, features=note) as writer:
        for episode, length in enumerate(lengths):
            metadata = {"camera": CAMERA} if episode < cameras else {}
            with writer.episode(f"set/{episode}", metadata=metadata) as written:
                for number in range(length):
                    written.append(frame_of(episode, number, size))
    return folder


@pytest.fixture(scope="module", params=["raw", "balanced"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("crops") / "records", request.param)


@pytest.fixture(scope="module", params=["raw", "balanced"])
def middle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("crops") / "middle", request.param, size=MIDDLE)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Raw frames of which a chunk's pages take more than 1 MiB each."""
    return write(tmp_path / "large", "raw", (24, 30), LARGE, chunk_frames=24)


CHAINS: dict[str, Any] = {
    "random": RandomCrop((4, 6)),
    "center": CenterCrop((5, 6)),
    "flip": HorizontalFlip(0.5),
    "random, flip": [RandomCrop((4, 6)), HorizontalFlip(0.5)],
    "flip, random, flip, center": [
        HorizontalFlip(0.5),
        RandomCrop((7, 8)),
        HorizontalFlip(0.5),
        CenterCrop(3),
    ],
    "whole": RandomCrop((HEIGHT, WIDTH)),
    "some": [RandomCrop((4, 6), features=["image", "depth"])],
}


def check_clip(
    clip: dict[str, Any],
    length: int,
    dilation: int,
    cropped: list[str],
    size: tuple[int, int] = (HEIGHT, WIDTH),
) -> None:
    """A clip is what its names, `crop` and `flipped` say."""
    episode = int(clip["episode"][4:])
    frames = [frame_of(episode, int(clip["start"]) + i * dilation, size) for i in range(length)]
    top, left, height, width = clip["crop"].tolist()
    for name in frames[0]:
        if name not in clip:
            continue
        for i, frame in enumerate(frames):
            expected = frame[name]
            if name in cropped:
                expected = expected[top : top + height, left : left + width]
                if clip.get("flipped"):
                    expected = expected[:, ::-1].copy()
                    if name == "flow":
                        expected[..., 0] *= -1
            got = clip[name][i].numpy()
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)


def singles(batch: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value[i] for name, value in batch.items()} for i in range(len(batch["start"]))]


@pytest.mark.parametrize("name", CHAINS)
def test_batches_are_crops_of_whole_clips(path: Path, name: str) -> None:
    cropped = ["image", "depth"] if name == "some" else IMAGES
    more = {"batch_size": 5, "dilation": 2, "shuffle": False}
    on_device = {"batch_size": 3, "dilation": 2, "device": "cpu"}  # by the steps of a device
    for settings in ({"batch_size": 3}, more, on_device):
        dilation: Any = settings.get("dilation", 1)
        pipe = SeqRecordPipe(path, clip_len=3, clip_transform=CHAINS[name], seed=1, **settings)
        count = 0
        for batch in pipe:
            assert batch["crop"].dtype == torch.int64
            assert batch["crop"].shape == (len(batch["start"]), 4)
            assert ("flipped" in batch) == ("flip" in name)
            for clip in singles(batch):
                check_clip(clip, 3, dilation, cropped)
                count += 1
        assert count == pipe.num_clips


def check_resumed(
    path: Path, clip_len: int, size: tuple[int, int], dilation: int = 1, **settings: Any
) -> int:
    """Clips of an epoch, and of one that goes on after its first batch, are right; their number."""

    def make() -> SeqRecordPipe:
        return SeqRecordPipe(path, clip_len=clip_len, batch_size=2, dilation=dilation, **settings)

    pipe = make()
    found = [clip for batch in pipe for clip in singles(batch)]
    assert len(found) == pipe.num_clips
    first, rest = make(), make()
    next(iter(first))
    rest.load_state_dict(first.state_dict())
    later = [clip for batch in rest for clip in singles(batch)]
    assert [clip["crop"].tolist() for clip in later] == [c["crop"].tolist() for c in found[2:]]
    for clip in found + later:
        check_clip(clip, clip_len, dilation, IMAGES, size)
    return len(found)


@pytest.mark.parametrize(
    "settings",
    [
        {"stride": 4},
        {"stride": 6, "shuffle": False},
        {"stride": 4, "frame_transform": lambda f: {n: f[n] for n in IMAGES}},
        {"stride": 8},  # half of the frames are in no clip: they are not read
        {"stride": 12, "dilation": 3},
    ],
    ids=["apart", "in order", "transformed", "far apart", "dilated"],
)
def test_clips_that_do_not_overlap(middle: Path, settings: dict[str, Any]) -> None:
    chosen: dict[str, Any] = {} if "frame_transform" in settings else {"features": IMAGES}
    check_resumed(middle, 4, MIDDLE, **settings, **chosen, clip_transform=CHAINS["random, flip"])


def test_large_raw_frames(large: Path) -> None:
    more: dict[str, Any] = {"features": IMAGES, "clip_transform": CHAINS["random, flip"]}
    assert check_resumed(large, 5, LARGE, stride=5, **more) == 10


def test_a_damaged_page_is_told(large: Path) -> None:
    (file,) = (large / "records").iterdir()
    data = bytearray(file.read_bytes())
    at = data.find(frame_of(0, 17, LARGE)["image"].tobytes())  # not read with the first frames
    assert at > 0
    data[at + 5] ^= 1
    file.write_bytes(data)
    settings: dict[str, Any] = {"features": IMAGES, "clip_transform": CHAINS["random"]}
    pipe = SeqRecordPipe(large, clip_len=5, stride=5, batch_size=1, **settings)
    with pytest.raises(ChecksumError, match="not match"):
        list(pipe)


def draws(pipe: Any, epoch: int = 0) -> dict[tuple[str, int], tuple[Any, ...]]:
    """The crop of each clip."""
    if epoch:
        pipe.set_epoch(epoch)
    found: dict[tuple[str, int], tuple[Any, ...]] = {}
    for batch in pipe:
        flipped = batch["flipped"].tolist()
        found.update(
            zip(names(batch), zip(batch["crop"].tolist(), flipped, strict=True), strict=True)
        )
    return found


def test_windows_depend_on_seed_epoch_and_clip_alone(path: Path) -> None:
    chain = CHAINS["random, flip"]
    settings: dict[str, Any] = {"clip_len": 3, "clip_transform": chain}
    first = draws(SeqRecordPipe(path, **settings, batch_size=3))
    assert first == draws(SeqRecordPipe(path, **settings, batch_size=4, shuffle=False))
    assert first == draws(
        SeqRecordPipe(
            path, **settings, batch_size=3, features=["image"], engine=EngineOptions(num_threads=1)
        )
    )
    some = draws(SeqRecordPipe(path, **settings, batch_size=3, episodes="set/[12]"))
    assert some.items() <= first.items()
    with leaves_nothing():
        stream = SeqRecordIterableDataset(path, **settings, batch_size=3)
        loader = DataLoader(stream, batch_size=None, num_workers=2)
        assert draws(loader).items() <= first.items()
        del loader, stream
    pipe = SeqRecordPipe(path, **settings, batch_size=3)
    second = draws(pipe, epoch=1)
    assert second.keys() == first.keys()
    assert second != first
    assert draws(SeqRecordPipe(path, **settings, batch_size=3, seed=5)) != first
    assert len({str(drawn) for drawn in first.values()}) > 10


DRAWN = {
    ("set/0", 0): ([1, 0, 4, 6], False),
    ("set/0", 1): ([1, 5, 4, 6], True),
    ("set/0", 2): ([6, 4, 4, 6], True),
    ("set/0", 3): ([2, 4, 4, 6], False),
}


def test_what_a_seed_draws_is_the_same_in_every_version(path: Path) -> None:
    """Two steps draw, the first one twice, in the second epoch of a seed."""
    settings: dict[str, Any] = {"clip_len": 3, "clip_transform": CHAINS["random, flip"], "seed": 5}
    found = draws(SeqRecordPipe(path, **settings, batch_size=3), epoch=1)
    assert {clip: found[clip] for clip in sorted(found)[:4]} == DRAWN


def test_intrinsics_are_those_of_the_window(path: Path) -> None:
    pipe = SeqRecordPipe(
        path, clip_len=2, batch_size=4, features=["image"], clip_transform=CHAINS["random, flip"]
    )
    for batch in pipe:
        for clip in singles(batch):
            if clip["episode"] == "set/2":
                assert clip["intrinsics"].isnan().all()
                continue
            top, left, _, width = clip["crop"].tolist()
            cx = 6.5 - left
            expected = [5.0, 6.0, width - 1 - cx if clip["flipped"] else cx, 4.0 - top]
            assert clip["intrinsics"].tolist() == expected
    alone = SeqRecordPipe(path, clip_len=2, episodes="set/2", clip_transform=CHAINS["random"])
    assert "intrinsics" not in next(iter(alone))


# ---- by number


def test_clips_by_number(path: Path) -> None:
    dataset = SeqRecordMapDataset(path, clip_len=3, clip_transform=CHAINS["random, flip"])
    torch.manual_seed(0)
    first = dataset.__getitems__([3, 9, 0, 9])
    for clip in [*first, dataset[5]]:
        check_clip(clip, 3, 1, IMAGES)
    torch.manual_seed(0)
    again = dataset.__getitems__([3, 9, 0, 9])
    assert [c["crop"].tolist() for c in again] == [c["crop"].tolist() for c in first]
    later = [dataset[3]["crop"].tolist() for _ in range(20)]
    assert len({str(crop) for crop in later}) > 1


@pytest.mark.parametrize("path", ["raw"], indirect=True)
@pytest.mark.parametrize("name", CHAINS)
def test_batches_of_fewer_clips_than_one_before(path: Path, name: str) -> None:
    """A window was copied for each clip of the largest batch: an IndexError."""
    cropped = ["image", "depth"] if name == "some" else IMAGES
    dataset = SeqRecordMapDataset(path, clip_len=3, features=IMAGES, clip_transform=CHAINS[name])
    assert len(dataset) % 5
    for size in (5, 4):
        found = 0
        for batch in DataLoader(dataset, batch_size=size, collate_fn=seqrecord.collate):
            for clip in singles(batch):
                check_clip(clip, 3, 1, cropped)
                found += 1
        assert found == len(dataset)


# ---- the arithmetic, against brute force

STEP = st.one_of(
    st.builds(RandomCrop, st.tuples(st.integers(1, 4), st.integers(1, 4))),
    st.builds(CenterCrop, st.tuples(st.integers(1, 4), st.integers(1, 4))),
    st.builds(HorizontalFlip, st.sampled_from([0, 0.5, 1])),
)


@given(st.lists(STEP, min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 1 << 40))
def test_a_chain_is_its_steps_one_after_the_other(steps: list[Any], epoch: int, clip: int) -> None:
    frames = np.arange(2 * 9 * 7).reshape(2, 9, 7)
    windows = CropWindows.whole(np.array([9]), np.array([7]))
    seen = frames
    rng = np.random.default_rng([epoch, clip])
    try:
        for step in steps:
            draws = rng.random((step.num_draws, 1))
            windows = step.apply(windows, draws)
            height, width = seen.shape[1:]
            if isinstance(step, HorizontalFlip):
                seen = seen[:, :, ::-1] if draws[0, 0] < step.p else seen
                continue
            h, w = step.size(height, width)
            assert h is not None
            assert w is not None
            if isinstance(step, RandomCrop):
                top, left = (
                    int(d * n)
                    for d, n in zip(draws[:, 0], (height - h + 1, width - w + 1), strict=True)
                )
            else:
                top, left = (height - h) // 2, (width - w) // 2
            seen = seen[:, top : top + h, left : left + w]
    except ClipError:
        return
    out = np.empty((2, int(windows.height[0]), int(windows.width[0])), np.int64)
    corner = int(windows.top[0]), int(windows.left[0])
    copy_window(frames, out, corner, flipped=bool(windows.flipped[0]))
    np.testing.assert_array_equal(out, seen)


def test_random_crops_come_to_every_place() -> None:
    arrays = {"a": ArraySpec(np.dtype("u1"), (4, 5))}
    crops = ClipCrops.of(Camera((RandomCrop((2, 2)),), None), arrays, {})
    windows = crops.windows(0, 0, np.arange(2000))
    places, counts = np.unique(windows.crops[:, :2], axis=0, return_counts=True)
    assert len(places) == 3 * 4
    assert counts.min() > 100
    flips = ClipCrops.of(Camera((HorizontalFlip(0.25),), None), arrays, {})
    share = flips.windows(3, 1, np.arange(4000)).flipped.mean()
    assert 0.2 < share < 0.3


def test_flow_is_found_by_kind_or_name() -> None:
    flow = ArraySpec(np.dtype("f4"), (4, 5, 2))
    arrays = {
        "flow_left": flow,
        "motion": flow,
        "flow_mask": ArraySpec(np.dtype("u1"), (4, 5)),
        "flow_image": flow,
    }
    kinds = {"motion": "flow", "flow_image": "image"}
    crops = ClipCrops.of(Camera((HorizontalFlip(1.0),), None), arrays, kinds)
    assert crops.flows == {"flow_left", "motion"}


# ---- errors

BAD: list[tuple[Any, str]] = [
    (RandomCrop((HEIGHT + 1, 3)), "larger than the frame"),
    ([CenterCrop((4, 4)), RandomCrop((4, 5))], "larger than the frame"),
    (RandomCrop(3, features=["nothing"]), "not read"),
    (RandomCrop(3, features=["image", "small"]), "one common height and width"),
    (RandomCrop(3, features=["pose"]), "one common height and width"),
    (RandomCrop(3, features=["note"]), "one common height and width"),
    ([], "is not valid"),
    (RandomCrop, "is not valid"),
    ([lambda clip, _: clip, RandomCrop(3)], "a function before a step"),
    ([RandomCrop(3), "flip"], "is not valid"),
    ([RandomCrop(3, features=["image"]), HorizontalFlip()], "different features"),
]


@pytest.mark.parametrize("path", ["raw"], indirect=True)
@pytest.mark.parametrize(("transform", "message"), BAD)
def test_what_is_refused(path: Path, transform: Any, message: str) -> None:
    for loader in (SeqRecordPipe, SeqRecordMapDataset):
        with pytest.raises(ClipError, match=message):
            loader(path, clip_len=3, clip_transform=transform)


@pytest.mark.parametrize(
    "size", [0, -1, (3,), (3, 0), "3", None, True, (1.5, 2), (True, 3), range(10**12)]
)
def test_sizes_that_are_none(size: Any) -> None:
    for crop in (RandomCrop, CenterCrop):
        with pytest.raises(ClipError, match="invalid size"):
            crop(size)


@pytest.mark.parametrize("p", [-0.1, 1.1, "1", None, True, float("nan")])
def test_probabilities_that_are_none(p: Any) -> None:
    with pytest.raises(ClipError, match="not a probability"):
        HorizontalFlip(p)


@pytest.mark.parametrize("features", ["image", 3, [3], [], True, np.array("image")])
def test_names_that_are_none(features: Any) -> None:
    for make in (partial(RandomCrop, 3), partial(CenterCrop, 3), HorizontalFlip):
        with pytest.raises(ClipError, match="features"):
            make(features=features)


def test_a_step_for_other_features() -> None:
    for step in (RandomCrop(3), CenterCrop((2, 3), features=["b"]), HorizontalFlip(0.2)):
        before = repr(step)
        made = step.of_features(("a",))
        assert repr(step) == before
        assert repr(made) == before.replace(", features=['b']", "")[:-1] + ", features=['a'])"


def test_numbers_of_numpy() -> None:
    assert (
        repr(RandomCrop(np.int64(3))) == repr(RandomCrop((np.uint8(3), 3))) == "RandomCrop((3, 3))"
    )
    assert HorizontalFlip(np.float32(0.5)).p == 0.5


def test_a_feature_with_a_name_of_crops(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path / "r") as writer, writer.episode("a") as episode:
        episode.append({"crop": np.zeros((4, 4), np.uint8)})
    with pytest.raises(ClipError, match="name of a batch's extra column"):
        SeqRecordPipe(tmp_path / "r", clip_len=1, clip_transform=RandomCrop(2))
