"""Crops and flips match the written frames and depend on seed, epoch and clip only."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    CenterCrop,
    ClipError,
    EngineOptions,
    FeatureSpec,
    HorizontalFlip,
    RandomCrop,
    Schema,
    SeqRecordMapDataset,
    SeqRecordPipe,
    SeqRecordWriter,
)
from seqrecord.errors import ChecksumError
from tests.kit.clip_data import begun, names, resumed
from tests.kit.datasets import write_dataset

HEIGHT, WIDTH = 10, 13
FLOW_SIGN = np.array([-1, 1], np.float32)
NOTE: Any = {"note": {"shape": (None,)}}
IMAGES = ["image", "depth", "flow", "mask", "wide"]


MIDDLE = (64, 64)  # clips of 4 frames are large enough to be loaded straight into batches
LARGE = (128, 128)  # a page of 24 such frames is read a few frames at a time


@lru_cache(40)  # all frames of a dataset
def frame_of(episode: int, number: int, size: tuple[int, int] = (HEIGHT, WIDTH)) -> dict[str, Any]:
    rng = np.random.default_rng([episode, number])
    arrays = {
        "image": rng.integers(0, 256, (*size, 3), np.uint8),
        "depth": rng.random(size, np.float32),
        "flow": rng.random((*size, 2), np.float32) - 0.5,
        "mask": rng.integers(0, 2, (*size, 1)).astype(bool),
        "wide": rng.integers(0, 9, (*size, 5, 1)),
        "small": rng.random((4, 5)),  # of another height and width
        "pose": rng.random(7),
        "note": np.arange(1 + number % 3, dtype=np.uint8),
    }
    for array in arrays.values():
        array.flags.writeable = False  # they are cached
    return arrays


def write(
    folder: Path,
    codecs: str = "balanced",
    lengths: tuple[int, ...] = (17, 9, 12),
    size: tuple[int, int] = (HEIGHT, WIDTH),
    chunk_frames: int = 4,
) -> Path:
    episodes = {
        f"set/{episode}": [frame_of(episode, number, size) for number in range(length)]
        for episode, length in enumerate(lengths)
    }
    write_dataset(folder, episodes, codecs=codecs, chunk_frames=chunk_frames, features=NOTE)
    return folder


@pytest.fixture(scope="module", params=["raw", "balanced"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    codecs, *size = request.param.split()
    folder = tmp_path_factory.mktemp("crops") / "records"
    return write(folder, codecs, size=MIDDLE if size else (HEIGHT, WIDTH))


CHAINS: dict[str, Any] = {
    "random": RandomCrop((4, 6)),
    "random, flip": [RandomCrop((4, 6)), HorizontalFlip(0.5)],
    "flip, random, flip, center": [
        HorizontalFlip(0.5),
        RandomCrop((7, 8)),
        HorizontalFlip(0.5),
        CenterCrop(3),
    ],
    "subset": RandomCrop((4, 6), features=["image", "depth"]),
}


def check_clips(
    batch: dict[str, Any],
    length: int,
    cropped: list[str],
    dilation: int = 1,
    size: tuple[int, int] = (HEIGHT, WIDTH),
) -> None:
    """Clips equal the written frames, cropped to `crop` and mirrored if `flipped`."""
    for i, (key, start) in enumerate(names(batch)):
        top, left, height, width = batch["crop"][i].tolist()
        for t in range(length):
            frame = frame_of(int(key[4:]), start + t * dilation, size)
            for name in frame.keys() & batch.keys():
                expected = frame[name]
                if name in cropped:
                    expected = expected[top : top + height, left : left + width]
                    if "flipped" in batch and batch["flipped"][i]:
                        expected = expected[:, ::-1]
                        expected = expected * FLOW_SIGN if name == "flow" else expected
                got = batch[name][i][t].numpy()
                assert got.dtype == expected.dtype
                assert np.array_equal(got, expected)


def check_resumed(path: Path, size: tuple[int, int], dilation: int = 1, **settings: Any) -> int:
    """Check an epoch's clips and the clips resumed after its first batch; returns their number."""
    make = partial(SeqRecordPipe, path, batch_size=2, dilation=dilation, **settings)
    pipe, first = make(), make()
    found = [*pipe]
    iterator = begun(first)
    later = [*resumed(make(), first.state_dict())]
    crops = [batch["crop"].tolist() for batch in found]
    assert [batch["crop"].tolist() for batch in later] == crops[1:]
    for batch in found + later:
        check_clips(batch, settings["clip_len"], IMAGES, dilation, size)
    del iterator
    assert sum(map(len, crops)) == pipe.num_clips
    return pipe.num_clips


@pytest.mark.parametrize(
    "settings",
    [
        {"stride": 4, "features": IMAGES},
        {"stride": 4, "frame_transform": lambda f: {n: f[n] for n in IMAGES}},
        # Half of the frames are in no clip: they are not read.
        {"stride": 8, "shuffle": False, "features": IMAGES},
        {"stride": 12, "dilation": 3, "features": IMAGES},
    ],
    ids=["apart", "transformed", "far apart", "dilated"],
)
@pytest.mark.parametrize("path", ["raw middle", "balanced middle"], indirect=True)
def test_clips_that_do_not_overlap(path: Path, settings: dict[str, Any]) -> None:
    check_resumed(path, MIDDLE, clip_len=4, **settings, clip_transform=CHAINS["random, flip"])


def test_large_raw_frames(tmp_path: Path) -> None:
    """Of pages that take more than 1 MiB each."""
    large = write(tmp_path / "large", "raw", (24, 30), LARGE, chunk_frames=24)
    clips: dict[str, Any] = {"clip_len": 5, "stride": 5, "features": IMAGES}
    assert check_resumed(large, LARGE, **clips, clip_transform=CHAINS["random, flip"]) == 10

    (file,) = (large / "records").iterdir()
    data = bytearray(file.read_bytes())
    at = data.find(frame_of(0, 17, LARGE)["image"].tobytes())  # not read with the first frames
    assert at > 0
    data[at + 5] ^= 1
    file.write_bytes(data)
    pipe = SeqRecordPipe(large, **clips, batch_size=1, clip_transform=CHAINS["random"])
    with pytest.raises(ChecksumError, match="not match"):
        list(pipe)


def draws(pipe: Any, epoch: int = 0) -> dict[tuple[str, int], Any]:
    """The crop of each clip."""
    if epoch:
        pipe.set_epoch(epoch)
    found = dict[tuple[str, int], Any]()
    for batch in pipe:
        drawn = zip(batch["crop"].tolist(), batch["flipped"].tolist(), strict=True)
        found.update(zip(names(batch), drawn, strict=True))
    return found


def test_windows_depend_on_seed_epoch_and_clip_only(path: Path) -> None:
    class Renamed(RandomCrop):
        """The name of a class has no effect."""

    def pipe(**changes: Any) -> SeqRecordPipe:
        chain = CHAINS["random, flip"]
        settings = {"clip_len": 3, "batch_size": 3, "clip_transform": chain, **changes}
        return SeqRecordPipe(path, **settings)

    first = draws(pipe())
    assert first == draws(pipe(clip_transform=[Renamed((4, 6)), HorizontalFlip()]))
    assert first == draws(pipe(batch_size=4, shuffle=False))
    assert first == draws(pipe(features=["image"], engine=EngineOptions(num_threads=1)))
    assert draws(pipe(episodes="set/[12]")).items() <= first.items()
    loader = DataLoader(pipe(), batch_size=None, num_workers=2)
    assert draws(loader).items() <= first.items()
    second = draws(pipe(), epoch=1)
    assert second.keys() == first.keys()
    assert second != first != draws(pipe(seed=5))
    assert len({str(drawn) for drawn in first.values()}) > 10
    # Fixed for all versions: the crop draws twice, then the flip once.
    found = draws(pipe(seed=5), epoch=1)
    assert [found["set/0", start] for start in range(4)] == [
        ([6, 3, 4, 6], True),
        ([0, 1, 4, 6], True),
        ([6, 6, 4, 6], False),
        ([1, 5, 4, 6], True),
    ]


# ---- map-style access


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n == "random, flip" else n for n in CHAINS],
)
def test_clips_by_number(path: Path, name: str) -> None:
    """`test_crops_sizes` and `test_combinations` check batches."""
    cropped = ["image", "depth"] if name == "subset" else IMAGES
    dataset = SeqRecordMapDataset(path, clip_len=3, clip_transform=CHAINS[name])
    torch.manual_seed(0)
    first = dataset.__getitems__([3, 9, 0, 9])
    torch.manual_seed(0)
    again = dataset.__getitems__([3, 9, 0, 9])
    assert [c["crop"].tolist() for c in again] == [c["crop"].tolist() for c in first]
    assert len({str(dataset[3]["crop"].tolist()) for _ in range(20)}) > 1
    for clip in [*first, dataset[5], *SeqRecordPipe(path, clip_len=3, clip_transform=CHAINS[name])]:
        check_clips(seqrecord.collate([clip]), 3, cropped)
    # Regression: an IndexError in a batch smaller than the largest.
    images = SeqRecordMapDataset(
        path, clip_len=3, clip_transform=CHAINS[name], features=IMAGES, episodes="set/0"
    )
    assert len(images) % 4
    for batch in DataLoader(images, batch_size=4, collate_fn=seqrecord.collate):
        check_clips(batch, 3, cropped)


def test_random_positions_are_equally_likely_and_flow_is_negated(tmp_path: Path) -> None:
    """Flow is recognised by its kind or name."""
    sizes = {"a": (4, 5, 1), "motion": (4, 5, 2), "flow_left": (4, 5, 2)}
    sizes |= {"flow_mask": (4, 5, 1), "flow_image": (4, 5, 2)}
    kinds = {"motion": "flow", "flow_image": "image"}
    specs = [FeatureSpec(n, np.dtype("f4"), s, kind=kinds.get(n)) for n, s in sizes.items()]
    with SeqRecordWriter(tmp_path / "r", schema=Schema(specs)) as writer:
        for key in "ab":
            with writer.episode(key) as episode:
                for _ in range(100):
                    episode.append({name: np.ones(size, "f4") for name, size in sizes.items()})
    make = partial(SeqRecordPipe, tmp_path / "r", clip_len=1, batch_size=50)
    pipe, places = make(clip_transform=RandomCrop((2, 2))), Counter[tuple[int, ...]]()
    for batch in (batch for _ in range(5) for batch in pipe):
        places.update((top, left) for top, left, *_ in batch["crop"].tolist())
    assert len(places) == 3 * 4
    assert min(places.values()) > 50
    pipe = make(clip_transform=HorizontalFlip(0.25))
    flipped = torch.cat([batch["flipped"] for _ in range(5) for batch in pipe])
    assert 0.2 < flipped.float().mean() < 0.3
    for batch in make(clip_transform=HorizontalFlip(1.0)):
        signs = {name: batch[name].flatten()[0].item() for name in sizes}
        assert [name for name, sign in signs.items() if sign < 0] == ["motion", "flow_left"]


# ---- errors


@pytest.mark.parametrize("path", ["raw"], indirect=True)
def test_invalid_chains_and_steps_are_refused(path: Path, tmp_path: Path) -> None:
    chains: list[tuple[Any, str]] = [
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
    for chain, message in chains:
        for loader in (SeqRecordPipe, SeqRecordMapDataset):
            with pytest.raises(ClipError, match=message):
                loader(path, clip_len=3, clip_transform=chain)
    sizes = [0, -1, (3,), (3, 0), "3", None, True, (1.5, 2), (True, 3), range(10**12)]
    names = ["image", 3, [3], [], True, np.array("image")]
    steps: list[tuple[Any, Any, str]] = [
        *((make, size, "invalid size") for make in (RandomCrop, CenterCrop) for size in sizes),
        *((HorizontalFlip, p, "p is not valid") for p in (-0.1, 1.1, "1", None, True, np.nan)),
        *((partial(RandomCrop, 3), {"features": one}, "features") for one in names),
        *((partial(CenterCrop, 3), {"features": one}, "features") for one in names),
        *((HorizontalFlip, {"features": one}, "features") for one in names),
    ]
    for make, value, message in steps:
        with pytest.raises(ClipError, match=message):
            make(**value) if isinstance(value, dict) else make(value)
    with SeqRecordWriter(tmp_path / "r") as writer, writer.episode("a") as episode:
        episode.append({"crop": np.zeros((4, 4, 3), np.uint8)})
    with pytest.raises(ClipError, match="name of a batch's extra column"):
        SeqRecordPipe(tmp_path / "r", clip_len=1, clip_transform=RandomCrop(2))


def test_steps_are_immutable_values() -> None:
    """`of_features` returns a copy; sizes and probabilities may be NumPy numbers."""
    for step in (RandomCrop(3), CenterCrop((2, 3), features=["b"]), HorizontalFlip(0.2)):
        before = repr(step)
        made = step.of_features(("a",))
        assert repr(step) == before
        assert repr(made) == before.replace(", features=['b']", "")[:-1] + ", features=['a'])"
    for size in (np.int64(3), (np.uint8(3), 3)):
        assert repr(RandomCrop(size)) == "RandomCrop((3, 3))"
    assert HorizontalFlip(np.float32(0.5)).p == 0.5
