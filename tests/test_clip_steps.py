"""dilation=(1, 2, 4) and reverse=p: the clips that fit, and what is drawn for each.

Their frames in combinations with other arguments, resuming and clips by number:
`test_combinations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.nodes import Loader

import seqrecord
from seqrecord import (
    ClipError,
    RandomCrop,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordNode,
    SeqRecordPipe,
)
from tests.clip_data import expected_frame, possible_clips, write_numbered

FEATURES = ["image", "flow", "id"]
DRAWN: dict[str, Any] = {"clip_len": 4, "dilation": (1, 2, 5), "reverse": 0.5}
STEPS: dict[str, Any] = {**DRAWN, "features": FEATURES}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    groups = {"image": 0, "flow": 1, "id": 1, "note": 1}
    return write_numbered(tmp_path_factory.mktemp("steps") / "records", groups=groups)


def fitting(
    features: Sequence[str] = FEATURES, dilations: Sequence[int] = (1, 2, 5)
) -> dict[Any, set[int]]:
    """The dilations with which each clip lacks nothing, of clips of 4."""
    found: dict[Any, set[int]] = {}
    for dilation in dilations:
        for clip in possible_clips(features, 4, 1, dilation):
            found.setdefault(clip, set()).add(dilation)
    return found


def singles(item: dict[str, Any]) -> list[dict[str, Any]]:
    if isinstance(item["episode"], str):
        return [item]
    return [{name: value[i] for name, value in item.items()} for i in range(len(item["start"]))]


def check(clip: dict[str, Any], features: Sequence[str] = FEATURES) -> tuple[int, bool]:
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
    clips = [clip for item in items for clip in singles(item)]
    found = {(clip["episode"], int(clip["start"])): check(clip, features) for clip in clips}
    assert len(found) == len(clips)
    return found


def test_clips_are_all_that_fit_with_one_of_the_dilations(path: Path) -> None:
    expected = fitting()
    for settings in ({"batch_size": 4}, {"batch_size": 3, "device": "cpu"}, {"shuffle": False}):
        pipe = SeqRecordPipe(path, **STEPS, **settings)
        found = drawn(pipe)
        assert pipe.num_clips == len(expected)
        assert found.keys() == expected.keys()
        assert all(dilation in expected[clip] for clip, (dilation, _) in found.items())
        assert {dilation for dilation, _ in found.values()} == {1, 2, 5}
        assert 0.25 < np.mean([is_reversed for _, is_reversed in found.values()]) < 0.75
        assert drawn(pipe) != found  # another epoch


@pytest.mark.slow
def test_each_dilation_that_fits_is_as_likely(path: Path) -> None:
    options = {**STEPS, "dilation": (1, 2), "features": ["id"]}
    pipe = SeqRecordPipe(path, **options, batch_size=16)
    counts: dict[Any, list[int]] = {}
    for _ in range(60):
        for clip, (dilation, _) in drawn(pipe, ["id"]).items():
            counts.setdefault(clip, []).append(dilation)
    for clip, dilations in fitting(["id"], (1, 2)).items():
        share = np.mean(np.array(counts[clip]) == 1)
        assert share == 1 if dilations == {1} else 0.2 < share < 0.8


def test_draws_depend_on_seed_epoch_and_clip_alone(path: Path) -> None:
    more: dict[str, Any] = {**STEPS, "seed": 3}
    first = drawn(SeqRecordPipe(path, **more, batch_size=4))
    assert first == drawn(SeqRecordPipe(path, **more, shuffle=False))
    some = drawn(SeqRecordPipe(path, **more, batch_size=5, episodes="set/[13]"))
    assert some.items() <= first.items()
    assert first != drawn(SeqRecordPipe(path, **{**more, "seed": 4}, batch_size=4))
    assert first == drawn(Loader(SeqRecordNode(path, **more, batch_size=4)))
    stream = SeqRecordIterableDataset(path, **more, batch_size=3, even_batches=False)
    assert first == drawn(DataLoader(stream, batch_size=None, num_workers=2))

    dataset = SeqRecordMapDataset(path, **STEPS)  # by number: torch's generator alone
    every, expected = list(range(len(dataset))), fitting()
    torch.manual_seed(0)
    found = drawn(dataset.__getitems__(every))
    assert found.keys() == expected.keys()
    assert all(dilation in expected[clip] for clip, (dilation, _) in found.items())
    torch.manual_seed(0)
    assert drawn(dataset.__getitems__(every)) == found
    assert len({check(dataset[3]) for _ in range(40)}) > 3
    assert seqrecord.collate(dataset.__getitems__([0, 1]))["dilation"].dtype == torch.int64


def test_chosen_clips_and_phases(path: Path) -> None:
    expected = fitting()
    listed = [("set/0", 19), ("set/3", 17), ("set/3", 3)]
    table = {"episode": [key for key, _ in listed], "start": [start for _, start in listed]}
    pipe = SeqRecordPipe(path, **STEPS, batch_size=2, clips=table)
    assert drawn(pipe).keys() == set(listed[1:])  # frame 22 of set/0 lacks flow, whatever is drawn
    assert expected["set/3", 17] == {2, 5}  # not 1, for frame 20 lacks flow
    turns = SeqRecordPipe(path, **STEPS, batch_size=3, stride=3, rotate_phase=True)
    assert {clip for _ in range(3) for clip in drawn(turns)} == expected.keys()


def test_crops_and_functions_get_the_frames_that_are_drawn(path: Path) -> None:
    for device in (None, "cpu"):
        for clip in SeqRecordPipe(path, **STEPS, clip_transform=RandomCrop((3, 4)), device=device):
            top, left = clip["crop"].tolist()[:2]
            images = [expected_frame(*frame)["image"] for frame in clip["id"].tolist()]
            window = np.stack(images)[:, top : top + 3, left : left + 4]
            np.testing.assert_array_equal(clip["image"], window)

    def numbers(clip: dict[str, Any], _: np.random.Generator) -> Any:
        return {**clip, "frame": clip["id"][:, 1]}

    for clip in SeqRecordPipe(path, **STEPS, clip_transform=numbers):
        dilation, is_reversed = check(clip)
        assert (
            np.diff(clip["frame"].numpy()).tolist() == [-dilation if is_reversed else dilation] * 3
        )

    def double(frame: dict[str, Any]) -> dict[str, Any]:
        return {"id": frame["id"], "twice": frame["flow"] * 2}

    pipe = SeqRecordPipe(path, **DRAWN, frame_transform=double, batch_size=3)
    assert drawn(pipe, ["id"]).keys() == fitting(["id", "flow", "image", "note"]).keys()


def test_only_what_is_drawn_is_said(path: Path) -> None:
    def first(**options: Any) -> dict[str, Any]:
        batch: dict[str, Any] = next(iter(SeqRecordPipe(path, **options, clip_len=4, batch_size=2)))
        return batch

    batch = first(dilation=[2], reverse=np.int64(1))
    assert "dilation" not in batch
    assert batch["reversed"].tolist() == [True, True]
    assert (np.diff(batch["id"][..., 1].numpy(), axis=1) == -2).all()
    assert "reversed" not in first(dilation=[2, 1])
    # No clip is as long as the others would be.
    assert first(dilation=(1, 50))["dilation"].tolist() == [1, 1]


def test_what_is_refused(path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"dilation": ()}, "dilation is not valid"),
        ({"dilation": (2, 2)}, "several different ones"),
        ({"dilation": (1, 0)}, "dilation is too small"),
        ({"dilation": (1, 2.0)}, "dilation is not an integer"),
        ({"dilation": "12"}, "dilation is not an integer"),
        ({"dilation": (1, 1 << 31)}, "out of range"),
        *(({"reverse": p}, "reverse is not valid") for p in (1.5, True, float("nan"))),
        ({"dilation": (30, 40)}, "no clip has all of its frames"),
        ({"dilation": (1, 2), "windows": {"id": [0]}}, "are for clips of clip_len frames"),
        ({"reverse": 0.5, "windows": {"id": [0]}}, "are for clips of clip_len frames"),
        ({"reverse": 0.5, "order": "sequences", "batch_size": 2}, "takes neither several"),
    ]
    for settings, message in cases:
        with pytest.raises(ClipError, match=message):
            SeqRecordPipe(path, clip_len=4, **settings)

    def rename(frame: dict[str, Any]) -> dict[str, Any]:
        return {"dilation": frame["id"]}

    named: dict[str, Any] = {"clip_len": 4, "frame_transform": rename}
    assert "dilation" in next(iter(SeqRecordPipe(path, **named)))
    with pytest.raises(ClipError, match="name of a batch's extra column"):
        SeqRecordPipe(path, **named, dilation=(1, 2))
