"""dilation=(1, 2, 4) and reverse=p, against brute force: clips, their frames, and what is drawn.

Resuming and clips by number in combinations: `test_combinations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    ClipError,
    RandomCrop,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordNode,
    SeqRecordPipe,
)
from tests.clip_data import (
    LENGTHS,
    expected_frame,
    leaves_nothing,
    names,
    possible_clips,
    write_numbered,
)

FEATURES = ["image", "flow", "id"]
STEPS: dict[str, Any] = {"clip_len": 4, "dilation": (1, 2, 5), "reverse": 0.5}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    groups = {"image": 0, "flow": 1, "id": 1, "note": 1}
    return write_numbered(tmp_path_factory.mktemp("steps") / "records", groups=groups)


def fitting(features: Sequence[str], dilations: Sequence[int], stride: int = 1) -> dict[Any, Any]:
    """The dilations with which each clip lacks nothing, of clips of 4."""
    found: dict[Any, set[int]] = {}
    for dilation in dilations:
        for clip in possible_clips(features, 4, stride, dilation):
            found.setdefault(clip, set()).add(dilation)
    return found


def singles(item: dict[str, Any]) -> list[dict[str, Any]]:
    if isinstance(item["episode"], str):
        return [item]
    return [{name: value[i] for name, value in item.items()} for i in range(len(item["start"]))]


def check(clip: dict[str, Any], features: Sequence[str]) -> tuple[int, bool]:
    """A clip has the frames that it says. Returns what was drawn for it."""
    dilation, is_reversed = int(clip["dilation"]), bool(clip["reversed"])
    frames = [int(clip["start"]) + i * dilation for i in range(4)]
    for i, frame in enumerate(frames[::-1] if is_reversed else frames):
        whole = expected_frame(int(clip["episode"][4:]), frame)
        for name in features:
            np.testing.assert_array_equal(clip[name][i].numpy(), whole[name])
    return dilation, is_reversed


def drawn(items: Any, features: Sequence[str] = FEATURES) -> dict[Any, tuple[int, bool]]:
    """What was drawn for each clip, all of which are checked."""
    found: dict[Any, tuple[int, bool]] = {}
    for item in items:
        for clip in singles(item):
            assert (clip["episode"], int(clip["start"])) not in found
            found[clip["episode"], int(clip["start"])] = check(clip, features)
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 4},
        {"batch_size": 3, "shuffle": False, "memory_limit": "200KiB", "features": FEATURES},
        {"batch_size": 3, "stride": 3},
        {"batch_size": 2, "stride": 40},
        {"batch_size": 3, "device": "cpu"},
        {"features": ["flow", "id"]},
    ],
    ids=str,
)
def test_clips_are_all_that_fit_with_one_of_the_dilations(path: Path, settings: Any) -> None:
    features = settings.get("features", FEATURES)
    pipe = SeqRecordPipe(path, **STEPS, **{**settings, "features": features})
    expected = fitting(features, (1, 2, 5), settings.get("stride", 1))
    assert pipe.num_clips == len(expected)
    found = drawn(pipe, features)
    assert found.keys() == expected.keys()
    assert all(dilation in expected[clip] for clip, (dilation, _) in found.items())
    if settings.get("stride", 1) == 1:
        assert {dilation for dilation, _ in found.values()} == {1, 2, 5}
        share = np.mean([is_reversed for _, is_reversed in found.values()])
        assert 0.25 < share < 0.75
    assert drawn(pipe, features) != found or settings.get("stride") == 40  # another epoch


@pytest.mark.slow
def test_each_dilation_that_fits_is_as_likely(path: Path) -> None:
    pipe = SeqRecordPipe(path, **{**STEPS, "dilation": (1, 2)}, features=["id"], batch_size=16)
    counts: dict[Any, list[int]] = {}
    for _ in range(60):
        for clip, (dilation, _) in drawn(pipe, ["id"]).items():
            counts.setdefault(clip, []).append(dilation)
    for clip, dilations in fitting(["id"], (1, 2)).items():
        share = np.mean(np.array(counts[clip]) == 1)
        assert share == 1 if dilations == {1} else 0.2 < share < 0.8


def test_draws_depend_on_seed_epoch_and_clip_alone(path: Path) -> None:
    more: dict[str, Any] = {**STEPS, "features": FEATURES, "seed": 3}
    first = drawn(SeqRecordPipe(path, **more, batch_size=4))
    assert first == drawn(SeqRecordPipe(path, **more, shuffle=False))
    some = drawn(SeqRecordPipe(path, **more, batch_size=5, episodes="set/[13]"))
    assert some.items() <= first.items()
    assert first != drawn(SeqRecordPipe(path, **{**more, "seed": 4}, batch_size=4))
    node = SeqRecordNode(path, **more, batch_size=4)
    node.reset()
    assert first == drawn(_all_of(node))
    with leaves_nothing():
        stream = SeqRecordIterableDataset(path, **more, batch_size=3, even_batches=False)
        loader = DataLoader(stream, batch_size=None, num_workers=2)
        assert drawn(loader) == first
        del loader, stream, node


def _all_of(node: Any) -> Any:
    while True:
        try:
            yield node.next()
        except StopIteration:
            return


def test_clips_by_number(path: Path) -> None:
    dataset = SeqRecordMapDataset(path, **STEPS, features=FEATURES)
    expected = fitting(FEATURES, (1, 2, 5))
    assert len(dataset) == len(expected)
    torch.manual_seed(0)
    first = dataset.__getitems__(list(range(len(dataset))))
    found = drawn(first)
    assert all(dilation in expected[clip] for clip, (dilation, _) in found.items())
    torch.manual_seed(0)
    assert drawn(dataset.__getitems__(list(range(len(dataset))))) == found
    assert len({check(dataset[3], FEATURES) for _ in range(40)}) > 3
    assert seqrecord.collate(first[:3])["dilation"].dtype == torch.int64


def test_chosen_clips_and_phases(path: Path) -> None:
    expected = fitting(FEATURES, (1, 2, 5))
    listed = [("set/0", 19), ("set/3", 17), ("set/3", 3)]
    table = {"episode": [key for key, _ in listed], "start": [start for _, start in listed]}
    pipe = SeqRecordPipe(path, **STEPS, features=FEATURES, batch_size=2, clips=table)
    assert drawn(pipe).keys() == set(listed[1:])  # frame 22 of set/0 lacks flow, whatever is drawn
    assert expected["set/3", 17] == {2, 5}  # not 1, for frame 20 lacks flow
    turns = SeqRecordPipe(
        path, **STEPS, features=FEATURES, batch_size=3, stride=3, rotate_phase=True
    )
    found: set[Any] = set()
    for _ in range(3):
        found |= drawn(turns).keys()
    assert found == expected.keys()


def test_with_padding_every_frame_is_a_start(path: Path) -> None:
    pipe = SeqRecordPipe(path, **STEPS, pad="edge", features=["id"], batch_size=4)
    count = 0
    for batch in pipe:
        for clip in singles(batch):
            episode, dilation = int(clip["episode"][4:]), int(clip["dilation"])
            frames = int(clip["start"]) + np.arange(4) * dilation
            frames = frames[::-1] if clip["reversed"] else frames
            last = LENGTHS[episode] - 1
            assert clip["id"][:, 1].tolist() == np.minimum(frames, last).tolist()
            assert clip["id_is_pad"].tolist() == (frames > last).tolist()
            count += 1
    assert count == sum(LENGTHS)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_crops_and_functions_get_the_frames_that_are_drawn(path: Path, device: Any) -> None:
    crop = SeqRecordPipe(
        path, **STEPS, features=FEATURES, clip_transform=RandomCrop((3, 4)), device=device
    )
    for clip in crop:
        top, left = clip["crop"].tolist()[:2]
        for i, (episode, frame) in enumerate(clip["id"].tolist()):
            image = expected_frame(episode, frame)["image"]
            np.testing.assert_array_equal(clip["image"][i], image[top : top + 3, left : left + 4])

    def numbers(clip: dict[str, Any], _: np.random.Generator) -> Any:
        torch.from_numpy(clip["image"].copy())
        return {**clip, "frame": clip["id"][:, 1]}

    if device is None:
        pipe = SeqRecordPipe(path, **STEPS, features=FEATURES, clip_transform=numbers)
        for clip in pipe:
            check(clip, FEATURES)
            steps = np.diff(clip["frame"].numpy()).tolist()
            sign = -1 if clip["reversed"] else 1
            assert steps == [sign * int(clip["dilation"])] * 3


def test_frame_transform_makes_them(path: Path) -> None:
    def double(frame: dict[str, Any]) -> dict[str, Any]:
        return {"id": frame["id"], "twice": frame["flow"] * 2}

    pipe = SeqRecordPipe(path, **STEPS, frame_transform=double, batch_size=3)
    expected = fitting(["id", "flow", "image", "note"], (1, 2, 5))
    assert drawn(pipe, ["id"]).keys() == expected.keys()


def test_only_what_is_drawn_is_said(path: Path) -> None:
    options: Any = {"clip_len": 4, "dilation": [2], "reverse": np.int64(1)}
    batch = next(iter(SeqRecordPipe(path, **options, batch_size=2)))
    assert "dilation" not in batch
    assert batch["reversed"].tolist() == [True, True]
    steps = np.diff(batch["id"][..., 1].numpy(), axis=1)
    assert (steps == -2).all()
    batch = next(iter(SeqRecordPipe(path, clip_len=4, dilation=[2, 1], batch_size=2)))
    assert "reversed" not in batch
    assert names(batch)
    batch = next(iter(SeqRecordPipe(path, clip_len=4, dilation=(1, 50), batch_size=2)))
    assert batch["dilation"].tolist() == [1, 1]  # no clip is as long as the others would be


# ---- errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dilation": ()}, "dilation is not valid"),
        ({"dilation": (2, 2)}, "several different ones"),
        ({"dilation": (1, 0)}, "dilation is too small"),
        ({"dilation": (1, 2.0)}, "dilation is not an integer"),
        ({"dilation": "12"}, "dilation is not an integer"),
        ({"dilation": (1, 1 << 31)}, "out of range"),
        ({"reverse": 1.5}, "reverse is not valid; expected: a probability"),
        ({"reverse": True}, "reverse is not valid; expected: a probability"),
        ({"reverse": float("nan")}, "reverse is not valid; expected: a probability"),
        ({"dilation": (30, 40)}, "no clip has all of its frames"),
        ({"dilation": (1, 2), "windows": {"id": [0]}}, "are for clips of clip_len frames"),
        ({"reverse": 0.5, "windows": {"id": [0]}}, "are for clips of clip_len frames"),
        (
            {"reverse": 0.5, "order": "sequences", "batch_size": 2},
            'order="sequences" takes neither several dilations nor reverse',
        ),
    ],
)
def test_what_is_refused(path: Path, settings: Any, message: str) -> None:
    with pytest.raises(ClipError, match=message):
        SeqRecordPipe(path, clip_len=4, **settings)


def test_a_feature_with_the_name_of_a_column(path: Path) -> None:
    def rename(frame: dict[str, Any]) -> dict[str, Any]:
        return {"dilation": frame["id"]}

    settings: dict[str, Any] = {"clip_len": 4, "frame_transform": rename}
    assert "dilation" in next(iter(SeqRecordPipe(path, **settings)))
    with pytest.raises(ClipError, match="name of a batch's extra column"):
        SeqRecordPipe(path, **settings, dilation=(1, 2))
