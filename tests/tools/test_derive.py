"""`seqrecord.derive`: values of a function as a dataset."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqrecord
from seqrecord import Latest, Next, Seconds, Vector, edit
from seqrecord.errors import ClipError, NotFoundError
from tests.kit.command_line import fail, run
from tests.kit.datasets import write_dataset
from tests.kit.lerobot_video_data import unpack
from tests.kit.processes import killed_at
from tests.loader import rank_jobs

RNG = np.random.default_rng(0)
LENGTHS = {"b/z": 9, "a": 14, "c": 5}
FRAMES: dict[str, list[dict[str, Any]]] = {
    key: [
        {
            "image": RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8),
            "task": f"task {len(key)}",
            "action": np.full(2, i, np.float32),
        }
        for i in range(length)
    ]
    for key, length in LENGTHS.items()
}


class Encoder:
    """Counts the rows of its calls; the latent of a row depends on the row alone."""

    def __init__(self, name: str = "latent") -> None:
        self.name, self.calls = name, list[int]()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        image = batch["image"].float()
        self.calls.append(len(image))
        return {self.name: image.flatten(1)[:, ::5].bfloat16()}


def latent(image: Any) -> torch.Tensor:
    return torch.tensor(image.tolist()).float().flatten()[::5].bfloat16()


@pytest.fixture
def records(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "records", FRAMES, metadata={"a": {"site": 1}}, fps=10.0)
    return tmp_path / "records"


def derive(records: Path, encoder: Any, **arguments: Any) -> Any:
    arguments = {"features": ["image"], "batch_size": 4, **arguments}
    return seqrecord.derive(records, encoder, records.parent / "latents", **arguments)


def check(records: Path, encoder: Any, **arguments: Any) -> Any:
    arguments = {"features": ["image"], **arguments}
    return seqrecord.check_derived(records, encoder, records.parent / "latents", **arguments)


def stored(records: Path) -> dict[str, list[dict[str, Any]]]:
    with seqrecord.open(records.parent / "latents") as dataset:
        return {
            key: [dict(episode[i]) for i in range(len(episode))]
            for key, episode in dataset.episodes.items()
        }


def assert_latents(frames: list[dict[str, Any]], images: list[Any]) -> None:
    for frame, image in zip(frames, images, strict=True):
        assert torch.equal(torch.from_numpy(np.array(frame["latent"])), latent(image).float())


def test_a_frame_per_frame(records: Path) -> None:
    encoder = Encoder()
    report = derive(records, encoder, keep=["task", "action"])
    assert encoder.calls == [4, 4, 4, 4, 4, 4, 4]  # batches span episodes
    assert report.written == (*LENGTHS,)
    for key, frames in stored(records).items():
        assert_latents(frames, [frame["image"] for frame in FRAMES[key]])
        for frame, source in zip(frames, FRAMES[key], strict=True):
            assert frame["task"] == source["task"]
            np.testing.assert_array_equal(frame["action"], source["action"])
    with seqrecord.open(records.parent / "latents") as dataset:
        assert dataset.features["latent"].dtype == seqrecord.types.BFLOAT16
        assert dataset.episodes["a"].fps == 10
        assert dataset.episodes["a"].metadata["site"] == 1
    joined = seqrecord.open(
        records, join=[seqrecord.open(records.parent / "latents", features=["latent"])]
    )
    pipe = seqrecord.SeqRecordPipe(joined, clip_len=3, features=["image", "latent"], batch_size=2)
    for batch in pipe:
        expected = torch.stack([torch.stack([*map(latent, clip)]) for clip in batch["image"]])
        assert torch.equal(batch["latent"], expected)


def test_a_frame_per_sample(records: Path) -> None:
    table = {"episode": ["c", "a", "a"], "start": [1, 7, 3], "label": ["x", "y", "z"]}
    windows = {"image": range(3), "action": [0, 2]}
    encoder = Encoder()
    derive(records, encoder, samples=table, windows=windows, keep=["action", "task"], batch_size=1)
    assert encoder.calls == [1, 1, 1]
    found = stored(records)
    assert [*found] == ["a", "c"]
    for key, start, label, frame in (
        ("a", 3, "z", found["a"][0]),
        ("a", 7, "y", found["a"][1]),
        ("c", 1, "x", found["c"][0]),
    ):
        clip = FRAMES[key][start : start + 3]
        assert frame["source_start"] == start
        assert frame["source_frames"].tolist() == [start, start + 1, start + 2]
        assert frame["label"] == label
        assert frame["task"] == clip[0]["task"]
        assert frame["action"][:, 0].tolist() == [start, start + 2]
        assert_latents([frame], [np.stack([one["image"] for one in clip])])


def test_the_entry_of_a_derived_source_is_kept(records: Path) -> None:
    derive(records, Encoder())
    latents, means = records.parent / "latents", records.parent / "means"

    def mean(batch: dict[str, Any]) -> dict[str, Any]:
        return {"mean": batch["latent"].float().mean(dim=1)}

    for _ in range(2):
        seqrecord.derive(latents, mean, means, features=["latent"], batch_size=4)
    with seqrecord.open(latents) as source, seqrecord.open(means) as dataset:
        for key, episode in dataset.episodes.items():
            entry = episode.metadata["derived_from"]
            assert entry["features"] == ["latent"]
            assert entry["derived_from"] == source.episodes[key].metadata["derived_from"]
    assert seqrecord.check_derived(latents, mean, means, features=["latent"]).is_current


def test_a_frame_cache_gets_the_decoded_inputs(tmp_path: Path) -> None:
    frames = {key: [{"image": frame["image"]} for frame in FRAMES[key]] for key in FRAMES}
    records = tmp_path / "records"
    write_dataset(records, frames, codecs="jpeg")
    cache = seqrecord.FrameCache(tmp_path / "cache", "64MiB")
    derive(records, Encoder(), frame_cache=cache)
    pipe = seqrecord.SeqRecordPipe(records, clip_len=1, batch_size=4, frame_cache=cache)
    assert sum(len(batch["start"]) for batch in pipe) >= sum(LENGTHS.values())
    stats = pipe.stats()
    assert stats["frames_decoded"] == 0
    assert stats["frames_from_cache"] == sum(LENGTHS.values())


def test_all_clips_by_default(records: Path) -> None:
    derive(records, Encoder(), clip_len=4, stride=2)
    lengths = {key: len(frames) for key, frames in stored(records).items()}
    assert lengths == {key: (length - 4) // 2 + 1 for key, length in LENGTHS.items()}


def test_windows_in_seconds_and_lists_of_frames(records: Path) -> None:
    derive(records, Encoder(), windows={"image": Seconds([0, 0.2])})
    frames = stored(records)["c"]
    assert [frame["source_frames"].tolist() for frame in frames] == [[0, 2], [1, 3], [2, 4]]
    encoder = Encoder("listed")
    table = {"episode": ["a", "a"], "frames": [[8, 2], [1, 1]]}
    seqrecord.derive(records, encoder, records.parent / "l", features=["image"], samples=table)
    with seqrecord.open(records.parent / "l") as dataset:
        episode = dataset.episodes["a"]
        rows = [episode[i]["source_frames"].tolist() for i in range(len(episode))]
    assert sorted(rows) == [[1, 1], [8, 2]]


def test_frames_without_an_input_have_no_value(tmp_path: Path) -> None:
    frames = {"a": [dict(frame) for frame in FRAMES["a"]]}
    for number in (0, 5, 6, 13):
        del frames["a"][number]["image"]
    write_dataset(tmp_path / "records", frames)
    derive(tmp_path / "records", Encoder())
    with seqrecord.open(tmp_path / "latents") as dataset:
        episode = dataset.episodes["a"]
        assert len(episode) == 14
        for number, frame in enumerate(frames["a"]):
            if "image" in frame:
                assert_latents([episode[number]], [frame["image"]])
            else:
                with pytest.raises(ClipError, match="lacks"):
                    episode.read([number], features=["latent"])


@pytest.mark.parametrize("clip_len", [None, 2])
def test_a_copy_has_the_form_of_batches(tmp_path: Path, clip_len: int | None) -> None:
    frames = [
        {"image": np.full((16, 16, 3), i, np.uint8), "state": np.arange(3.0) + i, "x": i}
        for i in range(5)
    ]
    kinds = {"image": {"kind": "image"}, "state": {"kind": "state"}}
    write_dataset(tmp_path / "records", {"a": frames}, features=kinds)
    options: dict[str, Any] = {"resize": {"image": (4, 8)}, "keep": ["image", "state"]}
    options["vectors"] = {"state": seqrecord.Vector(pad_to=4, normalize="mean_std")}
    for _ in range(2):
        derive(tmp_path / "records", dict, features=["x"], clip_len=clip_len, **options)
    with seqrecord.open(tmp_path / "latents") as dataset:
        image, state = dataset.features["image"], dataset.features["state"]
        assert (image.shape, image.kind) == ((4, 8, 3), "image")
        assert (state.dtype, state.shape, state.kind) == (np.dtype("f4"), (4,), "state")
        for number in range(4):
            frame = dataset.episodes["a"][number]
            assert (frame["image"] == number).all()
            assert frame["state"] == pytest.approx([*[(number - 2) / 2**0.5] * 3, 0])


def test_texts_lists_and_numbers(records: Path) -> None:
    def values(batch: dict[str, Any]) -> dict[str, Any]:
        lengths = batch["action"][:, 0].long().tolist()
        return {
            "caption": [f"frame {n}" for n in lengths],
            "tokens": [torch.arange(n % 3) for n in lengths],
            "score": np.array(lengths, np.float64),
            "count": lengths,
        }

    derive(records, values, features=["action", "task"])
    for frames in stored(records).values():
        for number, frame in enumerate(frames):
            assert frame["caption"] == f"frame {number}"
            assert frame["tokens"].tolist() == [*range(number % 3)]
            assert frame["score"] == frame["count"] == number


# Columns of kept features


COLUMNS_OF_KEPT: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "padded windows": (
        {"windows": {"image": [0], "action": range(6), "task": [-1, 0]}, "pad": "edge"},
        {"action_is_pad": "bool [6]", "task_is_pad": "bool [2]"},
    ),
    "padded sizes": (
        {"windows": {"action": range(3)}, "vectors": {"action": Vector(place=[4, 1])}},
        {"action_dim_is_pad": "bool [5]"},
    ),
    "ages": (
        {"windows": {"gps": Latest([-3, 0], unknown="zeros"), "action": Next([0, 1])}},
        {"gps_age": "int64 [2]", "action_wait": "int64 [2]"},
    ),
    "padded shapes": (
        {"windows": {"points": [0, 1]}, "ragged": "pad"},
        {"points_mask": "bool [2, 3]"},
    ),
    "lists": (
        {
            "samples": {"episode": ["a", "c"], "frames": [[3, 1, 0], [2]]},
            "ragged": {"points": (4,)},
        },
        {"points_mask": "bool [?, 4]"},
    ),
    "padded lists": (
        {"samples": {"episode": ["a", "c"], "frames": [[3, 1, 0], [2]]}, "ragged": "pad"},
        {"points_mask": "bool [3, 3]", "frames_is_pad": "bool [3]"},
    ),
    "frames": (
        {"ragged": "pad", "vectors": {"action": Vector(pad_to=3)}},
        {"points_mask": "bool [3]", "action_dim_is_pad": "bool [3]"},
    ),
}


@pytest.mark.parametrize("case", COLUMNS_OF_KEPT)
def test_columns_of_kept_features_are_stored(tmp_path: Path, case: str) -> None:
    """With the values that batches of the source have."""
    frames = {
        key: [
            {
                "image": np.full((4, 6, 3), i, np.uint8),
                "action": np.full(2, i, np.float32),
                "points": np.full((1 + i % 3, 2), i, np.float32),
                "task": f"task {i}",
                **({"gps": np.float64(i)} if i % 4 == 2 else {}),
            }
            for i in range(length)
        ]
        for key, length in LENGTHS.items()
    }
    points = {"points": {"shape": (None, 2)}}
    write_dataset(tmp_path / "records", frames, features=points)
    options, columns = COLUMNS_OF_KEPT[case]
    per_frame = case == "frames"
    keep = [*dict.fromkeys(name.partition("_")[0] for name in columns)]
    keep = [name for name in keep if name != "frames"]

    def nothing(batch: dict[str, Any]) -> dict[str, Any]:
        return {"latent": np.zeros(len(batch["image"]))}

    derive(tmp_path / "records", nothing, keep=keep, **options)
    windows: Any = {"image": [0], **{name: [0] for name in keep if per_frame}}
    windows = None if "samples" in options else {**windows, **options.get("windows", {})}
    loader_options = {**options, "windows": windows}
    pipe = seqrecord.SeqRecordPipe(
        *(tmp_path / "records",),
        features=["image", *keep],
        batch_size=4,
        shuffle=False,
        last_batch="keep",
        **loader_options,
    )
    with seqrecord.open(tmp_path / "latents") as dataset:
        shown = {
            name: f"{spec.dtype} [{', '.join('?' if n is None else str(n) for n in spec.shape)}]"
            for name, spec in dataset.features.items()
        }
        assert shown.items() >= columns.items()
        of_values = {"latent", "source_start", "source_frames", *keep}
        assert {*shown} - of_values == {*columns}
        places = dict.fromkeys(LENGTHS, 0)
        for batch in pipe:
            for row, key in enumerate(batch["episode"]):
                frame = dataset.episodes[key][places[key]]
                places[key] += 1
                for name in columns:
                    value = batch[name][row]
                    is_single = per_frame and name == "points_mask"
                    value = value[0] if is_single else value
                    np.testing.assert_array_equal(frame[name], np.asarray(value), strict=True)
        assert {key: n for key, n in places.items() if n} == {
            key: len(episode) for key, episode in dataset.episodes.items()
        }


def test_masks_and_kept_windows_in_loaders_and_mixes(tmp_path: Path) -> None:
    """Two robots share batches: one has repeated frames, the other fewer numbers."""
    sources = {}
    for name, size, pad in (("arm", 2, "edge"), ("hand", 3, None)):
        frames = [
            {"image": np.full((4, 6, 3), i, np.uint8), "action": np.full(size, i + 1, np.float32)}
            for i in range(8)
        ]
        folder = tmp_path / name
        write_dataset(folder / "records", {"a": frames})
        windows = {"image": [0], "action": range(4)}
        derive(folder / "records", Encoder(), keep=["action"], windows=windows, pad=pad)
        sources[name] = folder / "latents"
    form = {"action": Vector(place=[1, 3], pad_to=4)}
    for batch in seqrecord.SeqRecordPipe(sources["arm"], clip_len=1, batch_size=4, vectors=form):
        assert batch["action"].shape == (4, 1, 4, 4)
        expected = torch.minimum(batch["source_start"] + torch.arange(4) + 1, torch.tensor(8))
        assert torch.equal(batch["action"][:, 0, :, 1], expected.float())
        assert not batch["action"][..., [0, 2]].any()
        assert batch["action_dim_is_pad"].tolist() == [[True, False, True, False]] * 4
        behind = batch["source_start"] + torch.arange(4) > 7
        assert torch.equal(batch["action_is_pad"][:, 0], behind)
    for join in ("union", "intersection"):
        loaders = {
            name: seqrecord.SeqRecordIterableDataset(path, clip_len=1, squeeze_time=True)
            for name, path in sources.items()
        }
        mix = seqrecord.SeqRecordMix(
            loaders, batch_size=4, features=join, vectors={"action": Vector(pad_to=4)}
        )
        seen = set()
        for batch in mix:
            is_arm = torch.tensor([name == "arm" for name in batch["dataset"]])
            seen |= {*batch["dataset"]}
            behind = batch["source_start"][:, None] + torch.arange(4) > 7
            assert torch.equal(batch["action_is_pad"], behind & is_arm[:, None])
            assert torch.equal(batch["action_is_pad_is_missing"], ~is_arm)
            assert batch["action"].shape == (4, 4, 4)
            ends = torch.stack([is_arm, torch.ones(4, dtype=torch.bool)], dim=1)
            assert torch.equal(batch["action_dim_is_pad"][:, 2:], ends)
        assert seen == {"arm", "hand"}


def test_stored_masks_of_kept_features_are_not_lost(records: Path) -> None:
    """Of a source that was derived itself, also where windows have masks of their own."""
    latents, windows_of_three = records.parent / "latents", {"image": [0], "action": range(3)}
    derive(records, Encoder(), windows=windows_of_three, pad="edge", keep=["action"])

    def derive_again(*keep: str, **arguments: Any) -> None:
        place = records.parent / "again"
        arguments |= {"features": ["latent"], "keep": keep}
        seqrecord.derive(latents, lambda batch: {"x": batch["latent"]}, place, **arguments)

    for windows in (None, {"latent": [0], "action": [0, 1]}):
        with pytest.raises(ClipError, match="expected: keep with action_is_pad") as caught:
            derive_again("action", windows=windows)
        assert caught.value.feature == "action_is_pad"
    derive_again("action", "action_is_pad")
    with seqrecord.open(records.parent / "again") as again, seqrecord.open(latents) as dataset:
        for key, episode in dataset.episodes.items():
            expected = episode.read(range(len(episode)), features=["action_is_pad"])
            values = again.episodes[key].read(range(len(episode)), features=["action_is_pad"])
            np.testing.assert_array_equal(values["action_is_pad"], expected["action_is_pad"])
    with seqrecord.open(latents, features=["latent", "action"]) as without_masks:
        place = records.parent / "without"
        options: dict[str, Any] = {"features": ["latent"], "keep": ["action"]}
        seqrecord.derive(without_masks, lambda batch: {"x": batch["latent"]}, place, **options)


def test_stored_masks_are_no_masks_of_a_mix(records: Path) -> None:
    """A mix whose vectors have the size of stored ones would mark their padding as values."""
    options: dict[str, Any] = {"windows": {"image": [0], "action": range(3)}, "keep": ["action"]}
    derive(records, Encoder(), **options, vectors={"action": Vector(pad_to=4)})
    loaders = {
        name: seqrecord.SeqRecordIterableDataset(records.parent / "latents", clip_len=1)
        for name in ("stored", "also")
    }
    batch = next(iter(seqrecord.SeqRecordMix(loaders, batch_size=4)))
    assert batch["action_dim_is_pad"][:, 0].tolist() == [[False, False, True, True]] * 4
    with pytest.raises(ClipError, match=r"two entries of a mix.*action_dim_is_pad.*'stored'"):
        seqrecord.SeqRecordMix(loaders, batch_size=4, vectors={"action": Vector(pad_to=4)})


def test_columns_of_derive_have_their_names_alone(records: Path) -> None:
    table = {"episode": ["a", "c"], "start": [3, 1], "source_start": [7, 8]}
    with pytest.raises(ClipError, match=r"would have one name.*feature: source_start"):
        derive(records, Encoder(), samples=table, clip_len=1)
    derive(records, Encoder(), clip_len=1)
    again: dict[str, Any] = {"features": ["latent"], "keep": ["source_start"]}
    source, place = records.parent / "latents", records.parent / "again"
    with pytest.raises(ClipError, match=r"would have one name.*feature: source_start"):
        seqrecord.derive(source, lambda batch: {"x": batch["latent"]}, place, clip_len=1, **again)
    seqrecord.derive(source, lambda batch: {"x": batch["latent"]}, place, **again)  # per frame


def test_names_of_masks_are_taken(records: Path) -> None:
    """By results of the function, and by columns of a loader that pads itself."""
    options: dict[str, Any] = {"windows": {"action": range(3)}, "pad": "edge", "keep": ["action"]}
    with pytest.raises(ClipError, match="under the name of another one"):
        derive(records, Encoder("action_is_pad"), **options)
    derive(records, Encoder(), **options)
    with pytest.raises(ClipError, match=r"extra column.*rename={'action_is_pad'"):
        seqrecord.SeqRecordPipe(records.parent / "latents", clip_len=2, pad="edge")


def test_camera_columns_of_a_kept_image_are_refused(records: Path) -> None:
    edit.set_metadata(records, None, {"camera": CAMERA})
    options: dict[str, Any] = {"features": ["action"], "keep": ["image"], "camera": True}
    with pytest.raises(ClipError, match="no camera columns") as caught:
        derive(records, lambda batch: {"x": batch["action"]}, **options)
    assert caught.value.feature == "image"
    derive(records, Encoder(), keep=["action"], camera=True)


# Changes of the source


def test_again_computes_only_what_changed(records: Path) -> None:
    derive(records, Encoder())
    assert check(records, Encoder()).is_current
    edit.rename_episodes(records, {"b/z": "new/z"})
    edit.trim_episodes(records, ["a"], slice(2, 10))
    write_dataset(records, {"d": FRAMES["c"]}, mode="append")
    state = check(records, Encoder())
    assert (state.current, state.changed, state.new) == (("c",), ("a",), ("d",))
    assert state.renamed == {"b/z": "new/z"}
    encoder = Encoder()
    report = derive(records, encoder)
    assert sorted(report.written) == ["a", "d"]
    assert sum(encoder.calls) <= 8 + 9 + 5 + 5 + 4
    assert check(records, Encoder()).is_current
    assert_latents(stored(records)["a"], [frame["image"] for frame in FRAMES["a"][2:10]])
    assert_latents(stored(records)["new/z"], [frame["image"] for frame in FRAMES["b/z"]])
    edit.delete_episodes(records, ["d"])
    assert check(records, Encoder()).gone == ("d",)
    assert derive(records, Encoder()).written == ()
    assert sorted(stored(records)) == ["a", "c", "new/z"]


@pytest.mark.parametrize(
    "change",
    [
        {"version": "2"},
        {"features": ["image", "action"]},
        {"arguments": {"x": 1}},
        {"clip_len": 2},
        {"resize": (2, 3)},
    ],
)
def test_another_setting_is_no_current_value(records: Path, change: dict[str, Any]) -> None:
    derive(records, Encoder())
    state = check(records, Encoder(), **change)
    assert set(state.changed) == {*LENGTHS}
    with pytest.raises(ClipError, match="another folder"):
        derive(records, Encoder(), **change)


def test_other_statistics_change_normalized_values(tmp_path: Path) -> None:
    """All values have the offsets and scales of the same statistics."""
    episodes = {key: [{"state": np.arange(3.0) + i} for i in range(4)] for key in "ab"}
    write_dataset(tmp_path / "records", episodes)
    options: dict[str, Any] = {"features": ["state"]}
    options["vectors"] = {"state": seqrecord.Vector(normalize="mean_std")}

    def twice(batch: dict[str, Any]) -> dict[str, Any]:
        return {"twice": 2 * batch["state"]}

    for _ in range(2):
        derive(tmp_path / "records", twice, **options)
    assert check(tmp_path / "records", twice, **options).is_current
    writer = seqrecord.SeqRecordWriter(tmp_path / "records", mode="append")
    with writer, writer.episode("c") as episode:
        episode.append({"state": np.full(3, 100.0)})
    state = check(tmp_path / "records", twice, **options)
    assert (state.changed, state.new) == (("a", "b"), ("c",))
    with pytest.raises(ClipError, match="into another folder"):
        derive(tmp_path / "records", twice, **options)


# Results that are used again


class ListEncoder(Encoder):
    """Also of lists of frames that differ in length."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        images = [image.float().mean() for image in batch["image"]]
        return super().__call__({"image": torch.stack(images)[:, None]})


KEPT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"keep": ["task", "action"]}),
    ({"keep": ["task", "action"]}, {}),
    ({"keep": ["task"]}, {"keep": ["action"], "vectors": {"action": Vector(pad_to=3)}}),
    (
        {"keep": ["action"], "windows": {"image": [0], "action": [-1]}, "pad": "edge"},
        {"keep": ["action"], "windows": {"image": [0], "action": range(3)}, "pad": "after"},
    ),
    (
        {"windows": {"image": [0, 1]}, "samples": {"episode": ["a", "c"], "start": [3, 1]}},
        {
            "windows": {"image": [0, 1], "task": [0, 2]},
            "samples": {"episode": ["a", "c"], "start": [3, 1], "label": [1, 2]},
            "keep": ["task"],
        },
    ),
    # Samples at both ends of episodes are left out.
    (
        {"windows": {"image": [0, 1]}, "samples": seqrecord.samples.every(1)},
        {
            "windows": {"image": [0, 1], "action": range(-1, 4)},
            "samples": seqrecord.samples.every(1),
            "keep": ["action"],
        },
    ),
    (
        {"samples": {"episode": ["a", "a", "c", "c"], "frames": [[0, 2], [5], [1, 3, 2], [4]]}},
        {"samples": {"episode": ["a", "c"], "frames": [[5], [1, 3, 2]]}, "keep": ["task"]},
    ),
]


@pytest.mark.parametrize(("before", "after"), KEPT)
def test_other_kept_features_compute_nothing(
    records: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """The result is that of a call into another folder."""
    samples = {"samples": seqrecord.samples.every(2)} if "windows" in before else {}
    derive(records, ListEncoder(), **{**samples, **before})
    edit.set_metadata(records.parent / "latents", None, {"own": 1})
    state = check(records, ListEncoder(), **{**samples, **after})
    assert {*state.changed} == {*stored(records)}
    encoder = ListEncoder()
    report = derive(records, encoder, **{**samples, **after})
    assert (encoder.calls, report.written) == ([], ())
    assert check(records, ListEncoder(), **{**samples, **after}).is_current
    again = {"features": ["image"], "batch_size": 4, **samples, **after}
    seqrecord.derive(records, ListEncoder(), records.parent / "new", **again)
    with (
        seqrecord.open(records.parent / "latents") as used,
        seqrecord.open(records.parent / "new") as new,
    ):
        assert {*map(str, used.features.values())} == {*map(str, new.features.values())}
        for key, episode in new.episodes.items():
            metadata = dict(used.episodes[key].metadata)
            assert metadata.pop("own") == 1
            assert metadata == dict(episode.metadata)
            for row in range(len(episode)):
                values = used.episodes[key][row]
                assert {*values} == {*episode[row]}
                for name, value in episode[row].items():
                    np.testing.assert_array_equal(values[name], value, strict=True)
    assert seqrecord.verify(records.parent / "latents").ok


def test_another_kept_feature_of_a_changed_source(records: Path) -> None:
    """Results of changed and new episodes alone are computed; renamed ones are used again."""
    derive(records, Encoder(), keep=["task"])
    edit.rename_episodes(records, {"b/z": "x"})
    edit.trim_episodes(records, ["a"], slice(2, 10))
    write_dataset(records, {"d": FRAMES["c"]}, mode="append")
    encoder = Encoder()
    report = derive(records, encoder, keep=["action"], batch_size=1)
    assert sorted(report.written) == ["a", "d"]
    assert sum(encoder.calls) == 8 + 5
    expected = {"x": FRAMES["b/z"], "a": FRAMES["a"][2:10], "c": FRAMES["c"], "d": FRAMES["c"]}
    found = stored(records)
    assert found.keys() == expected.keys()
    for key, frames in expected.items():
        assert_latents(found[key], [frame["image"] for frame in frames])
        actions = [frame["action"].tolist() for frame in found[key]]
        assert actions == [frame["action"].tolist() for frame in frames]
        assert all("task" not in frame for frame in found[key])


def gray(frame: dict[str, Any]) -> dict[str, Any]:
    return {**frame, "image": frame["image"] + np.uint8(frame.get("action", [0])[0])}


CHANGED_INPUTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # The first input has the same frames, the second one others.
    (
        {"windows": {"image": [0], "action": [0]}, "features": ["image", "action"]},
        {"windows": {"image": [0], "action": [1]}, "features": ["image", "action"]},
    ),
    ({"windows": {"image": [0]}}, {"windows": {"image": [0]}, "squeeze_time": True}),
    ({"samples": {"episode": ["a"], "start": [0]}}, {"windows": {"image": [0]}}),
    # Equal frames one after another, in other samples.
    (
        {"samples": {"episode": ["a", "a"], "frames": [[0, 1], [2, 3]]}},
        {"samples": {"episode": ["a"], "frames": [[0, 1, 2, 3]]}},
    ),
    # The function gets longer padding.
    (
        {"samples": {"episode": ["a", "a"], "frames": [[0], [2, 3]]}, "ragged": "pad"},
        {"samples": {"episode": ["a", "a"], "frames": [[0], [2, 3, 3]]}, "ragged": "pad"},
    ),
    (
        {"features": ["action"], "vectors": {"action": Vector(place=[0, 1], pad_to=3)}},
        {"features": ["action"], "vectors": {"action": Vector(place=[1, 0], pad_to=3)}},
    ),
    (
        {"features": ["gps"], "windows": {"gps": Latest([0], unknown="zeros")}},
        {"features": ["gps"], "windows": {"gps": Latest([0], max_age=0, unknown="zeros")}},
    ),
    # A transform gets all features, also kept ones.
    ({"frame_transform": gray, "keep": ["action"]}, {"frame_transform": gray, "keep": []}),
    (
        {"clip_len": 2, "clip_transform": seqrecord.CenterCrop(2)},
        {"clip_len": 2, "clip_transform": seqrecord.CenterCrop(2), "keep": ["task"]},
    ),
]


@pytest.mark.parametrize(("before", "after"), CHANGED_INPUTS)
def test_results_of_other_inputs_are_not_used(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    frames = {
        key: [
            {**frame, **({"gps": np.float64(i)} if i % 3 == 1 else {})}
            for i, frame in enumerate(FRAMES[key])
        ]
        for key in LENGTHS
    }
    write_dataset(tmp_path / "records", frames)

    def count(batch: dict[str, Any]) -> dict[str, Any]:
        [values, *_] = batch.values()
        return {"rows": np.arange(len(values))}

    derive(tmp_path / "records", count, **before)
    assert check(tmp_path / "records", count, **before).is_current
    with pytest.raises(ClipError, match="no episode of the derived dataset is current"):
        derive(tmp_path / "records", count, **after)
    assert check(tmp_path / "records", count, **before).is_current


def test_other_units_change_values(records: Path) -> None:
    """Transforms and resizing decide by units and kinds."""
    derive(records, Encoder(), features=["image"], keep=["action"])
    edit.describe_features(records, units={"action": "m"})
    encoder = Encoder()
    derive(records, encoder, keep=["action"])
    assert encoder.calls == []
    edit.describe_features(records, kinds={"image": "segmentation"})
    assert {*check(records, Encoder(), keep=["action"]).changed} == {*LENGTHS}
    with pytest.raises(ClipError, match="another folder"):
        derive(records, Encoder(), keep=["action"])


def test_frames_of_kept_features_are_compared(tmp_path: Path) -> None:
    """Their times are in another feature."""
    frames = {
        "a": [
            {"image": np.full((4, 6, 3), i, np.uint8), "step": i, "time": i / 10} for i in range(9)
        ]
    }
    features = {"time": {"kind": "timestamp", "unit": "s"}}
    write_dataset(tmp_path / "records", frames, features=features)
    windows = {"image": [0], "step": Seconds([0.2], timestamps="time", tolerance=1)}
    options: dict[str, Any] = {"windows": windows, "keep": ["step"], "pad": "edge"}
    derive(tmp_path / "records", Encoder(), **options)
    times = [0.2 * i for i in range(9)]
    edit.add_feature(
        *(tmp_path / "records", "time", lambda _: np.array(times)),
        kind="timestamp",
        unit="s",
        overwrite=True,
    )
    encoder = Encoder()
    derive(tmp_path / "records", encoder, **options)
    assert encoder.calls == []
    steps = [frame["step"].tolist() for frame in stored(tmp_path / "records")["a"]]
    assert steps == [[min(i + 1, 8)] for i in range(9)]


def test_frames_that_only_a_kept_feature_lacked(tmp_path: Path) -> None:
    frames = {
        key: [
            {"image": frame["image"], **({"gps": i} if i % 2 else {})}
            for i, frame in enumerate(FRAMES[key])
        ]
        for key in LENGTHS
    }
    write_dataset(tmp_path / "records", frames)
    derive(tmp_path / "records", Encoder(), keep=["gps"])
    with pytest.raises(ClipError, match="no episode of the derived dataset is current"):
        derive(tmp_path / "records", Encoder())


def test_a_longer_list_changes_no_other_sample(records: Path) -> None:
    def mean(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(batch["image"]))
        return {"mean": [image.float().mean() for image in batch["image"]]}

    calls = list[int]()
    frames = {"a": [[0, 1], [3]], "b/z": [[2, 8, 1], [4]], "c": [[0, 1, 2, 3, 4], [2]]}

    def table(*keys: str) -> dict[str, Any]:
        return {
            "episode": [key for key in keys for _ in frames[key]],
            "frames": [listed for key in keys for listed in frames[key]],
        }

    for keys in (["a"], ["a", "b/z"], ["a", "b/z", "c"]):
        calls.clear()
        report = derive(records, mean, samples=table(*keys), keep=["action"], batch_size=2)
        assert report.written == (keys[-1],)
        assert calls == [2]
        found = stored(records)
        assert [*found] == keys
        width = max(len(listed) for key in keys for listed in frames[key])
        for key in keys:
            for row, listed in zip(found[key], sorted(frames[key], key=min), strict=True):
                assert row["source_frames"].tolist() == listed + [-1] * (width - len(listed))
                assert row["action"][:, 0].tolist() == listed
                images = [FRAMES[key][number]["image"] for number in listed]
                assert row["mean"] == pytest.approx(np.mean(images), rel=1e-5)
    calls.clear()
    assert derive(records, mean, samples=table("a", "b/z"), keep=["action"]).written == ()
    assert ([*stored(records)], calls) == (["a", "b/z"], [])


def test_a_shorter_horizon_with_more_samples_is_refused(records: Path) -> None:
    windows = [{"image": [0, 1], "action": range(n)} for n in (4, 3)]
    derive(records, Encoder(), keep=["action"], windows=windows[0])
    expected = stored(records)
    with pytest.raises(ClipError, match="derive into another folder"):
        derive(records, Encoder(), keep=["action"], windows=windows[1])
    assert sorted_values(stored(records)) == sorted_values(expected)


def test_samples_between_others_are_not_left_out(records: Path) -> None:
    """Their results are one after another: a trim cannot leave one out."""
    tables = [{"episode": ["a"] * len(starts), "start": starts} for starts in ([1, 4, 6], [1, 6])]
    options: dict[str, Any] = {"windows": {"image": [0, 1]}, "keep": ["task"]}
    derive(records, Encoder(), samples=tables[0], **options)
    with pytest.raises(ClipError, match="derive into another folder"):
        derive(records, Encoder(), samples=tables[1], **options)


def test_episodes_that_wait_for_new_values_are_not_current(records: Path) -> None:
    """An error leaves them with results of before and without features beside them."""
    tables = [{"episode": ["a", "c"], "start": [n, 1]} for n in (3, 4)]
    options: dict[str, Any] = {"windows": {"image": [0], "action": [0, 1]}, "keep": ["action"]}
    derive(records, Encoder(), samples=tables[0], **options)
    expected = stored(records)

    def failing(batch: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("out of luck")

    failing.__module__, failing.__qualname__ = Encoder.__module__, Encoder.__qualname__
    others = {**options, "windows": {"image": [0], "action": [0]}}
    with pytest.raises(ValueError, match="out of luck"):
        derive(records, failing, samples=tables[1], **others)
    assert stored(records)["c"][0]["action"].shape == (1, 2)
    assert check(records, Encoder(), samples=tables[0], **options).current == ()
    encoder = Encoder()
    derive(records, encoder, samples=tables[0], **options)
    assert encoder.calls == []
    assert sorted_values(stored(records)) == sorted_values(expected)


def test_a_selection_cannot_change_other_episodes(records: Path) -> None:
    derive(records, Encoder())
    with pytest.raises(ClipError, match="derive all episodes") as caught:
        derive(records, Encoder(), episodes=["a"], keep=["task"])
    assert caught.value.episode in ("b/z", "c")
    assert check(records, Encoder()).is_current


def test_a_kept_feature_under_the_name_of_a_result(records: Path) -> None:
    derive(records, Encoder("action"))
    with pytest.raises(ClipError, match="under the name of another one"):
        derive(records, Encoder("action"), keep=["action"])
    assert check(records, Encoder("action")).is_current


def as_earlier(path: Path) -> None:
    """Leave out what earlier versions of the package did not store."""

    def entry(metadata: dict[str, Any]) -> dict[str, Any]:
        earlier = dict(metadata["derived_from"])
        earlier.pop("windows", None)
        earlier.pop("columns", None)
        return {**metadata, "derived_from": earlier}

    with seqrecord.open(path) as dataset:
        entries = {key: entry(dict(e.metadata)) for key, e in dataset.episodes.items()}
        masks = [name for name in dataset.features if name.endswith("_is_pad")]
    for key, metadata in entries.items():
        edit.set_metadata(path, [key], metadata)
    if masks:
        edit.drop_features(path, masks)


@pytest.mark.parametrize(
    "options",
    [
        {"keep": ["task"]},
        {"keep": ["action"], "windows": {"image": [0], "action": range(3)}},
        {"keep": ["action"], "windows": {"image": [0], "action": range(3)}, "pad": "edge"},
    ],
)
def test_a_dataset_of_an_earlier_version_is_continued(
    records: Path, options: dict[str, Any]
) -> None:
    """Without calls for its episodes; it gets the masks that it lacks."""
    derive(records, Encoder(), **options)
    expected = stored(records)
    as_earlier(records.parent / "latents")
    is_padded = "pad" in options
    assert check(records, Encoder(), **options).is_current == (not is_padded)
    write_dataset(records, {"d": FRAMES["c"]}, mode="append")
    encoder = Encoder()
    assert derive(records, encoder, **{"batch_size": 1, **options}).written == ("d",)
    assert sum(encoder.calls) == (3 if "windows" in options and not is_padded else 5)
    found = stored(records)
    assert len(found.pop("d")) == sum(encoder.calls)
    assert sorted_values(found) == sorted_values(expected)
    # Which results have which inputs is not known.
    as_earlier(records.parent / "latents")
    with pytest.raises(ClipError, match="derive into another folder"):
        derive(records, Encoder(), **{**options, "keep": ["task", "action"]})


def test_lists_of_an_earlier_version_are_refused(records: Path) -> None:
    def count(batch: dict[str, Any]) -> dict[str, Any]:
        return {"count": [len(image) for image in batch["image"]]}

    table = {"episode": ["a", "a"], "frames": [[0, 1, 2], [5]]}
    derive(records, count, samples=table)
    entry = seqrecord.open(records.parent / "latents").episodes["a"].metadata["derived_from"]
    rows = hashlib.sha256(np.array([[0, 1, 2], [5, -1, -1]], "<i8").tobytes()).hexdigest()
    metadata = {"derived_from": {**entry, "rows": rows}}
    edit.set_metadata(records.parent / "latents", None, metadata)
    as_earlier(records.parent / "latents")
    with pytest.raises(ClipError, match="derive into another folder"):
        derive(records, count, samples=table)


# Other tables and selections


def test_another_table_changes_its_episodes_alone(records: Path) -> None:
    tables = [{"episode": ["a", "c"], "start": [n, 1], "label": [1, 2]} for n in (3, 4)]
    derive(records, Encoder(), samples=tables[0], clip_len=2)
    state = check(records, Encoder(), samples=tables[1], clip_len=2)
    assert (state.current, state.changed) == (("c",), ("a",))
    assert derive(records, Encoder(), samples=tables[1], clip_len=2).written == ("a",)
    assert stored(records)["a"][0]["source_start"] == 4


def test_a_new_episode_under_the_former_key_of_another(records: Path) -> None:
    derive(records, Encoder())
    edit.rename_episodes(records, {"a": "x"})
    write_dataset(records, {"a": FRAMES["c"]}, mode="append")
    state = check(records, Encoder())
    assert (state.renamed, state.new, state.changed, state.gone) == ({"a": "x"}, ("a",), (), ())
    assert derive(records, Encoder()).written == ("a",)
    assert_latents(stored(records)["x"], [frame["image"] for frame in FRAMES["a"]])
    assert_latents(stored(records)["a"], [frame["image"] for frame in FRAMES["c"]])


def test_numbers_that_move_up_compute_nothing(records: Path) -> None:
    """An episode is deleted, and another one gets its key, as where keys are numbers."""
    derive(records, Encoder())
    edit.delete_episodes(records, ["a"])
    edit.rename_episodes(records, {"c": "a"})
    state = check(records, Encoder())
    assert (state.renamed, state.changed, state.gone) == ({"c": "a"}, (), ("a",))
    encoder = Encoder()
    derive(records, encoder)
    assert encoder.calls == []
    assert {*stored(records)} == {"a", "b/z"}
    assert_latents(stored(records)["a"], [frame["image"] for frame in FRAMES["c"]])


def labels(path: Path) -> dict[str, Any]:
    """Splits, and the metadata of episodes but for their origin."""
    with seqrecord.open(path) as dataset:
        metadata = {key: {**episode.metadata} for key, episode in dataset.episodes.items()}
        splits = {name: {*keys} for name, keys in dataset.splits.items() if keys}
    for entries in metadata.values():
        entries.pop("derived_from", None)
    return {**metadata, "splits": splits}


@pytest.mark.parametrize("keep", [[], ["action"]])
def test_changed_labels_are_copied_again(records: Path, keep: list[str]) -> None:
    """Splits and metadata, also the camera of a kept image, with another keep or without."""
    options: dict[str, Any] = {"features": ["action"], "keep": ["image"]}

    def encode(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(batch["action"]))
        return {"sum": batch["action"].sum(1)}

    calls: list[int] = []
    edit.set_metadata(records, None, {"camera": CAMERA})
    derive(records, encode, **options)
    latents = records.parent / "latents"
    assert labels(latents) == labels(records)
    edit.set_metadata(records, ["a"], {"site": None, "robot": "x"})
    edit.set_metadata(records, ["c"], {"camera": {**CAMERA, "fx": 7.0}})
    edit.split_episodes(records, ["a"], "val")
    edit.split_episodes(records, ["c"], "train")
    assert check(records, encode, **options).changed == ("a", "c")
    calls.clear()
    options["keep"] = [*options["keep"], *(["task"] if keep else [])]
    derive(records, encode, **options)
    assert calls == []
    assert labels(latents) == labels(records)
    assert check(records, encode, **options).is_current
    # Of the user's own, until those of the source change
    edit.set_metadata(latents, ["a"], {"note": "mine"})
    edit.split_episodes(latents, ["b/z"], "test")
    derive(records, encode, **options)
    assert labels(latents)["a"]["note"] == "mine"
    assert labels(latents)["splits"]["test"] == {"b/z"}
    edit.rename_episodes(records, {"b/z": "new"})
    edit.split_episodes(records, None, None)
    edit.set_metadata(records, None, {"site": 5})
    derive(records, encode, **options, episodes=["a", "new"])
    now = labels(latents)
    assert now["new"] == labels(records)["new"]
    assert now["splits"] == {"train": {"c"}}
    derive(records, encode, **options)
    assert labels(latents) == labels(records)
    assert calls == []


def test_a_selection_keeps_the_values_of_other_episodes(records: Path) -> None:
    derive(records, Encoder(), episodes=["a"])
    assert [*stored(records)] == ["a"]
    assert derive(records, Encoder(), episodes=["c"]).written == ("c",)
    assert sorted(stored(records)) == ["a", "c"]
    derive(records, Encoder())
    edit.delete_episodes(records, ["a"])
    assert check(records, Encoder(), episodes=["c"]).gone == ("a",)
    derive(records, Encoder(), episodes=["c"])
    assert sorted(stored(records)) == ["b/z", "c"]


def test_another_dataset_is_no_destination(records: Path) -> None:
    write_dataset(records.parent / "latents", FRAMES)
    with pytest.raises(ClipError, match=r"episodes that derive has not written.*another folder"):
        derive(records, Encoder())
    assert {*stored(records)} == {*LENGTHS}


CAMERA = {"fx": 5.0, "fy": 5.0, "cx": 2.5, "cy": 1.5, "width": 6, "height": 4}


@pytest.mark.parametrize("camera", [CAMERA, {"view": CAMERA, "wide": {**CAMERA, "fx": 9.0}}])
def test_the_camera_of_a_copied_image(records: Path, camera: dict[str, Any]) -> None:
    edit.rename_features(records, {"image": "view"})
    columns = {"action": ["x", "y"], "lost": ["z"]}
    edit.set_metadata(records, None, {"camera": camera, "columns": columns})

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        values = batch.get("action")
        return {"x": [0] * len(batch["task"]) if values is None else values * 2}

    def metadata(dataset: Any, name: str, **arguments: Any) -> dict[str, Any]:
        path = records.parent / name
        arguments = {"features": ["action"], "batch_size": 4, **arguments}
        seqrecord.derive(dataset, double, path, **arguments)
        with seqrecord.open(path) as derived:
            [metadata, *others] = (episode.metadata for episode in derived.episodes.values())
            assert all(other.get("camera") == metadata.get("camera") for other in others)
            return metadata

    with seqrecord.open(records) as dataset:
        renamed = dataset.renamed({"view": "image", "action": "steps"})
        assert "camera" not in metadata(dataset, "none")
        copied = metadata(dataset, "copied", keep=["view"])
        assert copied["camera"] == (CAMERA if camera == CAMERA else {"view": CAMERA})
        assert "columns" not in copied
        arguments: dict[str, Any] = {"keep": ["image", "steps"], "features": ["task"]}
        copied = metadata(renamed.select(["image", "steps", "task"]), "renamed", **arguments)
        assert copied["camera"] == (CAMERA if camera == CAMERA else {"image": CAMERA})
        assert copied["columns"] == {"steps": ["x", "y"]}
        renamed = dataset.renamed({"view": "wide"})  # as a camera whose image is not stored
        copied = metadata(renamed, "wide", keep=["wide"])
        assert copied["camera"] == (CAMERA if camera == CAMERA else {"wide": CAMERA})
        for name, more in (
            ("resized", {"resize": {"view": (2, 3)}}),
            ("window", {"windows": {"view": range(2), "action": [0]}}),
        ):
            assert "camera" not in metadata(dataset, name, keep=["view"], **more)
    with seqrecord.open(records.parent / "resized") as dataset:
        assert dataset.episodes["a"][3]["view"].shape == (2, 3, 3)


def test_arguments_of_the_function(records: Path) -> None:
    def scaled(batch: dict[str, Any], scale: float) -> dict[str, Any]:
        return {"x": batch["action"] * scale}

    derive(records, scaled, features=["action"], arguments={"scale": 2})
    assert stored(records)["a"][3]["x"].tolist() == [6, 6]
    state = check(records, scaled, features=["action"], arguments={"scale": 3})
    assert {*state.changed} == {*LENGTHS}
    with pytest.raises(ClipError, match=r"missing a required argument: .scale."):
        seqrecord.derive(records, scaled, records.parent / "x", features=["action"])


def test_command(records: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "encoders_of_a_test.py").write_text(
        "class Means:\n"
        "    @staticmethod\n"
        "    def of(batch, scale=1):\n"
        "        return {'mean': scale * batch['image'].float().mean(dim=(-1, -2, -3))}\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["derive", records, "encoders_of_a_test:Means.of", "-o", tmp_path / "means"]
    arguments += ["--features", "image", "--argument", "scale=2", "--keep", "task,action"]
    options = ["--quiet", "--batch-size", 8]
    run(*arguments, *options, "--clip-len", 3, "--samples", "{every: 2}", "--codec", "mean=raw")
    with seqrecord.open(tmp_path / "means") as dataset:
        assert dataset.features["mean"].shape == (3,)
        assert {key: len(episode) for key, episode in dataset.episodes.items()} == {
            key: (length - 1) // 2 for key, length in LENGTHS.items()
        }
        mean = 2 * FRAMES["a"][5]["image"].mean()
        assert dataset.episodes["a"][2]["mean"][1] == pytest.approx(mean, rel=1e-5)
    same = ["--clip-len", 3, "--samples", "{every: 2}", "--check"]
    assert "3 episodes current" in run(*arguments, *same).stdout
    shown = "encoders_of_a_test:Means.of, per sample of image"
    assert f"3 by {shown}" in " ".join(run("info", tmp_path / "means").stdout.split())
    info = json.loads(run("info", tmp_path / "means", "--json").stdout)
    assert info["derivations"] == {shown: 3}
    assert "derived" not in run("info", records).stdout
    edit.delete_episodes(records, ["c"])
    assert "gone: c" in run(*arguments, *same, code=1).stdout
    assert json.loads(run(*arguments, *same, "--json", code=1).stdout)["gone"] == ["c"]
    assert "MODULE:FUNCTION" in fail("derive", records, "os", "-o", "x", "--features", "a", code=2)
    bad = fail("derive", records, "os:no_such", "-o", "x", "--features", "a", code=2)
    assert "cannot be imported" in bad


def test_each_argument_of_a_command_is_given_once(
    records: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "encoders_given_once.py").write_text(
        "def mean(batch):\n    return {'mean': batch['image'].float().flatten(1).mean(dim=1)}\n"
    )
    monkeypatch.chdir(tmp_path)
    command = ["derive", records, "encoders_given_once:mean", "-o", tmp_path / "means", "--quiet"]
    command += ["--features", "image"]
    options: list[Any] = ["--clip-len", 3, "--samples", "{every: 2}", "--batch-size", 2]
    options += ["--device", "cpu"]
    repeated = ("clip_len=4", "samples={every: 3}", "batch_size=4", "features=[task]", "device=cpu")
    for argument in repeated:
        message = fail(*command, *options, "--loader", argument, code=2)
        assert f"{argument.partition('=')[0]} is given as an option and with --loader" in message
    loader = ["--loader", "clip_len=4", "--loader", "batch_size=3"]
    run(*command, *loader)
    with seqrecord.open(tmp_path / "means") as dataset:
        lengths = {key: len(episode) for key, episode in dataset.episodes.items()}
    assert lengths == {key: length - 3 for key, length in LENGTHS.items()}
    assert "3 episodes current" in run(*command, *loader, "--check").stdout


def test_a_check_takes_all_arguments(records: Path) -> None:
    arguments: dict[str, Any] = {"batch_size": 2, "device": "cpu", "ranks": False}
    arguments |= {"codecs": "raw", "max_file_size": "1MiB", "statistics": False, "progress": print}
    derive(records, Encoder(), **arguments)
    assert check(records, Encoder(), **arguments).is_current


def test_no_dataset_to_check(records: Path) -> None:
    with pytest.raises(NotFoundError):
        check(records, Encoder())


# Interruptions


@pytest.mark.usefixtures("users_boundary")
@pytest.mark.parametrize("calls", range(1, 7))
def test_an_error_in_any_call_loses_nothing(records: Path, calls: int) -> None:
    class Failing(Encoder):
        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            if len(self.calls) == calls:
                raise ValueError("out of luck")
            return super().__call__(batch)

    with pytest.raises(ValueError, match="out of luck") as caught:
        derive(records, Failing())
    assert caught.type is ValueError  # as loaders raise it
    text = "".join(traceback.format_exception_only(caught.value))
    assert re.search(r"in the function of derive of episode \S+, frame \d", text)
    assert ("call derive again, which continues" in text) == (calls > 2)  # what ended is kept
    assert "--resume" not in text
    encoder = Encoder()
    report = derive(records, encoder)
    num_finished = sum(length <= 4 * calls - 4 for length in np.cumsum([*LENGTHS.values()]))
    assert len(report.skipped) >= num_finished  # their values are not computed again
    assert {*report.skipped, *report.written} == {*LENGTHS}
    for key, frames in stored(records).items():
        assert_latents(frames, [frame["image"] for frame in FRAMES[key]])


def unlucky(*_: Any) -> Any:
    raise ValueError("out of luck")


@pytest.mark.usefixtures("users_boundary")
@pytest.mark.parametrize(
    ("function", "options"),
    [
        (unlucky, {}),
        (Encoder(), {"frame_transform": unlucky}),
        (Encoder(), {"clip_transform": unlucky, "clip_len": 1}),
        (Encoder(), {"samples": unlucky}),
    ],
)
def test_errors_of_functions_are_raised_as_loaders_do(
    records: Path, function: Any, options: dict[str, Any]
) -> None:
    """They are no fault of the source: no request to report them."""
    with pytest.raises(ValueError, match="out of luck") as caught:
        derive(records, function, **options)
    assert caught.type is ValueError


def every_second_row(samples: Any, _epoch: int, _rng: Any) -> Any:
    """Which rows of an episode these are depends on the episodes before it."""
    return samples.filter(np.arange(len(samples)) % 2 == 0)


@pytest.mark.parametrize(
    "options",
    [
        {"clip_len": 2, "samples": every_second_row, "batch_size": 4},
        {"clip_len": 2, "samples": every_second_row, "batch_size": seqrecord.Budget(6)},
        {"features": ["points"], "ragged": "pad", "batch_size": 4},
        {
            "samples": {
                "episode": ["a", "a", "b/z", "b/z", "c", "c"],
                "frames": [[0, 1], [2, 3, 4], [1], [2, 3, 4, 5], [0], [3, 1]],
            },
            "batch_size": seqrecord.Budget(7),
        },
    ],
)
def test_a_continued_call_has_the_samples_of_a_whole_one(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Of a table of all episodes, in equal batches, padded equally."""
    frames = {
        key: [{"x": np.float32(i), "points": np.ones((len(key) + 1, 2), "f4")} for i in range(n)]
        for key, n in LENGTHS.items()
    }
    write_dataset(tmp_path / "records", frames, features={"points": {"shape": (None, 2)}})
    options = {"features": ["x"], **options}

    def place(batch: dict[str, Any]) -> dict[str, Any]:
        [values] = batch.values()
        sizes = [len(value) for value in values]
        return {
            "row": np.arange(len(values)),
            "size": sizes,
            "first": [v.ravel()[0] for v in values],
        }

    derive(tmp_path / "records", place, **options)
    expected = plain(stored(tmp_path / "records"))
    for key in LENGTHS:
        edit.delete_episodes(tmp_path / "latents", key)
        assert derive(tmp_path / "records", place, **options).written == (key,)
        assert plain(stored(tmp_path / "records")) == expected
    for rows in expected.values():
        for row in rows:
            assert row["first"] == row.get("source_frames", [1])[0]


def sorted_values(frames: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [repr(sorted(row.items())) for rows in frames.values() for row in rows]


def plain(frames: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {
        key: [{name: value.tolist() for name, value in frame.items()} for frame in rows]
        for key, rows in frames.items()
    }


@pytest.mark.slow
def test_a_kill_in_an_update_loses_no_value(tmp_path: Path) -> None:
    """Values of changed and deleted episodes are there until the commit of the new ones."""
    write_dataset(tmp_path / "records", FRAMES, fps=10.0)
    derive(tmp_path / "records", Encoder())
    before = tmp_path / "latents"
    edit.trim_episodes(tmp_path / "records", ["a"], slice(0, 7))
    edit.delete_episodes(tmp_path / "records", ["c"])
    for at in range(1, 1000):
        folder = tmp_path / str(at)
        shutil.copytree(before, folder)

        def work(folder: Path = folder) -> None:
            arguments: dict[str, Any] = {"features": ["image"], "batch_size": 4}
            seqrecord.derive(tmp_path / "records", Encoder(), folder, **arguments)

        is_killed = killed_at(at, work)
        with seqrecord.open(folder) as dataset:
            lengths = {key: len(episode) for key, episode in dataset.episodes.items()}
        assert lengths in (LENGTHS, {"b/z": 9, "a": 7})
        work()
        with seqrecord.open(folder) as dataset:
            assert {key: len(e) for key, e in dataset.episodes.items()} == {"b/z": 9, "a": 7}
            images = [frame["image"] for frame in FRAMES["a"][:7]]
            assert_latents([dataset.episodes["a"][i] for i in range(7)], images)
        assert seqrecord.verify(folder).ok
        shutil.rmtree(folder)
        if not is_killed:
            break
    assert at > 10


@pytest.mark.slow
def test_a_kill_with_another_kept_feature_computes_nothing_twice(tmp_path: Path) -> None:
    """Readers see the features of before or of after; results stay."""
    write_dataset(tmp_path / "records", FRAMES, fps=10.0)
    derive(tmp_path / "records", Encoder(), keep=["task"])
    before = tmp_path / "latents"
    write_dataset(tmp_path / "records", {"d": FRAMES["c"]}, mode="append", fps=10.0)
    for at in range(1, 1000, 5):  # of about 240 calls
        folder, encoder = tmp_path / str(at), Encoder()
        shutil.copytree(before, folder)

        def work(folder: Path = folder, encoder: Encoder = encoder) -> None:
            arguments: dict[str, Any] = {"features": ["image"], "keep": ["action"]}
            seqrecord.derive(tmp_path / "records", encoder, folder, batch_size=1, **arguments)

        is_killed = killed_at(at, work)
        with seqrecord.open(folder) as dataset:
            names = {*dataset.features}
            assert names in ({"task", "latent"}, {"action", "latent"})
            assert {*dataset.episodes} in ({*LENGTHS}, {*LENGTHS, "d"})
        work()
        assert sum(encoder.calls) <= 5
        with seqrecord.open(folder) as dataset:
            for key, frames in {**FRAMES, "d": FRAMES["c"]}.items():
                rows = [dataset.episodes[key][i] for i in range(len(frames))]
                assert_latents(rows, [frame["image"] for frame in frames])
                assert [row["action"][0] for row in rows] == [*range(len(frames))]
        assert seqrecord.verify(folder).ok
        shutil.rmtree(folder)
        if not is_killed:
            break
    assert at > 10


# Mistakes


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (lambda batch: batch["image"], {}, "no values by name.*dict"),
    (lambda _: {}, {}, "no values by name"),
    (lambda batch: {"x": batch["image"][1:]}, {}, "another number of values.*expected: 4.*got: 3"),
    (lambda batch: {"start": batch["image"]}, {}, "under the name of another one"),
    (lambda batch: {"task": batch["image"]}, {"keep": ["task"]}, "under the name of another one"),
    (lambda batch: {"x": [np.zeros((1, i)) for i in range(4)]}, {}, "more than their first axis"),
    (lambda batch: {"x": batch["image"].to_sparse()}, {}, "no array.*feature: x.*dense"),
    (lambda batch: {"x": [batch["image"][0].to("meta")] * 4}, {}, "no array.*feature: x.*dense"),
    (lambda _: {"x": [[[1], [2, 3]]] * 4}, {}, "no array.*feature: x.*dense"),
    (Encoder(), {"clip_len": 2, "frame_transform": lambda _: {"x": np.zeros(1)}}, "no such input"),
    (Encoder(), {"shuffle": True}, "no argument shuffle"),
    (Encoder(), {"order": "sequences"}, "cannot use this order"),
    (Encoder(), {"output": "numpy"}, "cannot use this output"),
    (Encoder(), {"rename": {"image": "view"}, "clip_len": 2}, "cannot use this rename"),
    (Encoder(), {"batch_size": None}, "batch_size is not an integer"),
    (Encoder(), {"features": "image"}, "not names"),
    (Encoder(), {"keep": ["image"]}, "an input and kept"),
    (Encoder(), {"arguments": {"x": {1, 2}}}, "no JSON"),
]


@pytest.mark.parametrize(("function", "arguments", "match"), WRONG)
def test_mistakes(records: Path, function: Any, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ClipError, match=match):
        derive(records, function, **arguments)
    with pytest.raises(NotFoundError):
        seqrecord.open(records.parent / "latents")


def test_padding_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    sizes = (2, 5, 3, 7)
    frames = [{"x": np.float32(n), "points": np.ones((n, 2), "f4")} for n in sizes]
    write_dataset(tmp_path / "records", {"a": frames}, features={"points": {"shape": (None, 2)}})

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": 2 * batch["x"]}

    options: dict[str, Any] = {"features": ["x"], "keep": ["points"]}
    options["batch_size"] = seqrecord.Budget(3)
    with pytest.raises(ClipError, match=r"padded to their longest.*feature: points.*in ragged"):
        derive(tmp_path / "records", double, ragged="pad", **options)
    derive(tmp_path / "records", double, ragged={"points": 7}, **options)
    with seqrecord.open(tmp_path / "latents") as dataset:
        stored_frames = [dataset.episodes["a"][number] for number in range(4)]
    assert [f["points_mask"].tolist() for f in stored_frames] == [
        [place < n for place in range(7)] for n in sizes
    ]


def test_arguments_with_their_defaults(records: Path) -> None:
    options: dict[str, Any] = {"order": "clips", "output": "torch", "rename": {}}
    derive(records, Encoder(), batch_size=seqrecord.Budget(4), **options)
    for key, frames in stored(records).items():
        assert_latents(frames, [frame["image"] for frame in FRAMES[key]])


def test_samples_that_change_are_refused(records: Path) -> None:
    def moving(samples: Any, epoch: int, _rng: Any) -> Any:
        return samples.filter(samples["start"] % 2 == epoch % 2)

    table = {"episode": ["a", "a"], "start": [0, 3]}
    drawn: list[dict[str, Any]] = [
        {"samples": moving, "clip_len": 2},
        {"samples": seqrecord.samples.subset(of=4), "clip_len": 2},
        {"samples": {**table, "repeat": [1.5, 0.5]}, "clip_len": 2},
        {"clip_len": (2, 4)},
    ]
    for arguments in drawn:
        with pytest.raises(ClipError, match="change from epoch to epoch"):
            derive(records, Encoder(), **arguments)
    derive(records, Encoder(), samples=seqrecord.samples.every(3), clip_len=2)
    assert [frame["source_start"] for frame in stored(records)["c"]] == [0, 3]


@pytest.mark.parametrize(
    ("samples", "num_samples"),
    [(seqrecord.samples.subset(of=2), 13), (seqrecord.samples.dilate(3), 11)],
)
def test_samples_that_do_not_change(records: Path, samples: Any, num_samples: int) -> None:
    derive(records, Encoder(), clip_len=2, episodes=["a"], samples=samples)
    step = LENGTHS["a"] - num_samples
    assert [frame["source_frames"].tolist() for frame in stored(records)["a"]] == [
        [start, start + step] for start in range(num_samples)
    ]


def test_clips_inside_spans(records: Path) -> None:
    spans = seqrecord.samples.segments({"episode": ["a"], "start": [1], "stop": [5], "label": [7]})
    for samples in (spans, [spans, seqrecord.samples.every(2)]):
        frames = {"a": [1, 2, 3]} if samples is spans else {"a": [2]}
        folder = records.parent / f"spans-{len(frames['a'])}"
        options: dict[str, Any] = {"features": ["image"], "samples": samples, "clip_len": 2}
        seqrecord.derive(records, Encoder(), folder, **options)
        with seqrecord.open(folder) as dataset:
            episode = dataset.episodes["a"]
            rows = [(episode[i]["source_start"], episode[i]["label"]) for i in range(len(episode))]
        assert rows == [(start, 7) for start in frames["a"]]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_copies_of_lists_of_frames(tmp_path: Path, batch_size: int) -> None:
    """Lists of different lengths, of numbers, vectors and texts."""
    frames = [{"x": i, "state": np.arange(3.0) + i, "task": f"task {i}"} for i in range(6)]
    write_dataset(tmp_path / "records", {"a": frames})
    table = {"episode": ["a"] * 3, "frames": [[1], [4, 2, 5], [5, 3]]}
    options: dict[str, Any] = {"features": ["task"], "keep": ["x", "state"], "samples": table}

    def first(batch: dict[str, Any]) -> dict[str, Any]:
        return {"first": [texts[0] for texts in batch["task"]]}

    seqrecord.derive(
        *(tmp_path / "records", first, tmp_path / "latents"), batch_size=batch_size, **options
    )
    with seqrecord.open(tmp_path / "latents") as dataset:
        assert dataset.features["state"].shape == (None, 3)
        episode = dataset.episodes["a"]
        samples = [episode[i] for i in range(3)]
    assert [sample["x"].tolist() for sample in samples] == [[1], [4, 2, 5], [5, 3]]
    for sample in samples:
        assert sample["state"].tolist() == [frames[i]["state"].tolist() for i in sample["x"]]
        assert sample["first"] == f"task {sample['x'][0]}"


@pytest.mark.parametrize("ragged", ["list", "pad"])
def test_a_list_that_repeats_its_last_frame_is_another_one(records: Path, ragged: str) -> None:
    def count(batch: dict[str, Any]) -> dict[str, Any]:
        return {"count": [len(image) for image in batch["image"]]}

    table = {"episode": ["a", "a", "c"], "frames": [[0, 1, 2], [5], [1]]}
    longer_table = {**table, "frames": [[0, 1, 2], [5, 5], [1]]}
    derive(records, count, samples=table, ragged=ragged)
    state = check(records, count, samples=longer_table, ragged=ragged)
    assert (state.current, state.changed) == (("c",), ("a",))
    derive(records, count, samples=longer_table, ragged=ragged)
    frames = [frame["source_frames"].tolist() for frame in stored(records)["a"]]
    assert frames == [[0, 1, 2], [5, 5, -1] if ragged == "list" else [5, 5, 5]]
    counts = [int(frame["count"]) for frame in stored(records)["a"]]
    assert counts == ([3, 2] if ragged == "list" else [3, 3])


def test_columns_that_choose_frames(records: Path) -> None:
    """As batches have them: `repeat` is not stored."""
    table = {"episode": ["a", "a"], "start": [1, 4], "label": [7, 8]}
    table |= {"dilation": [2, 1], "reverse": [True, False], "repeat": [1, 2]}
    derive(records, Encoder(), samples=table, clip_len=2)
    names = ("source_start", "source_frames", "dilation", "reversed", "label")
    frames = stored(records)["a"]
    assert [[frame[name].tolist() for name in names] for frame in frames] == [
        [1, [3, 1], 2, True, 7],
        *[[4, [4, 5], 1, False, 8]] * 2,
    ]
    assert all("repeat" not in frame for frame in frames)
    assert check(records, Encoder(), samples=table, clip_len=2).is_current


def test_samples_with_nan_do_not_change(records: Path) -> None:
    table = {"episode": ["c", "c"], "start": [0, 3], "score": [math.nan, 1.0]}
    samples: Any = [table, seqrecord.samples.every(1)]
    derive(records, Encoder(), samples=samples, clip_len=2)
    assert [frame["source_start"] for frame in stored(records)["c"]] == [0, 3]


# Processes


def start_rank(records: Path, out: Path, rank: int, ranks: int, last_call: int = 0) -> Any:
    arguments = [records, out, rank, ranks, out.with_suffix(".store"), last_call]
    return rank_jobs.start(["-m", "tests.tools.derive_rank", *map(str, arguments)])


def assert_means(out: Path) -> None:
    with seqrecord.open(out) as dataset:
        assert [*dataset.episodes] == [*LENGTHS]
        for key, episode in dataset.episodes.items():
            means = [frame["image"].mean() for frame in FRAMES[key]]
            assert episode.read(range(len(means)))["mean"] == pytest.approx(means, rel=1e-5)


@pytest.mark.slow
def test_ranks_share_the_episodes(records: Path, tmp_path: Path) -> None:
    out = tmp_path / "means"
    reports = rank_jobs.finish([start_rank(records, out, rank, 2) for rank in range(2)])
    assert all(report["calls"] for report in reports)
    assert_means(out)
    assert all(report["texts"] for report in reports)
    assert sorted(text for report in reports for text in {*report["texts"]}) == [
        f"task {length}" for length in (1, 3)
    ]
    with seqrecord.open(records, join=[out]) as dataset:
        lengths = {text: len(v) for text, v in dataset.dictionaries["task_embedding"].items()}
    assert lengths == {"task 1": 6, "task 3": 6}


@pytest.mark.slow
@pytest.mark.parametrize("last_call", [2, 4, 7])
def test_a_kill_loses_no_finished_episode(records: Path, tmp_path: Path, last_call: int) -> None:
    out = tmp_path / "means"
    process = start_rank(records, out, 0, 1, last_call)
    process.communicate(timeout=rank_jobs.PATIENCE)
    assert process.returncode == 7
    with pytest.raises(NotFoundError):
        seqrecord.open(out)
    [report] = rank_jobs.finish([start_rank(records, out, 0, 1)])
    # The first call determines the features.
    num_finished = sum(length <= 4 * (last_call - 1) for length in np.cumsum([*LENGTHS.values()]))
    assert len(report["skipped"]) >= num_finished - 1
    assert_means(out)


@pytest.mark.slow
def test_ranks_of_a_launcher_share_a_command(records: Path, tmp_path: Path) -> None:
    (tmp_path / "encoders_of_ranks.py").write_text(
        "def means(batch):\n    return {'mean': batch['image'].float().mean(dim=(1, 2, 3))}\n"
    )
    command = [sys.executable, "-m", "seqrecord", "derive", str(records)]
    command += ["encoders_of_ranks:means", "-o", str(tmp_path / "means"), "--features", "image"]
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    folders = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    shared = {**os.environ, "PYTHONPATH": folders, "WORLD_SIZE": "2"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert "3 episodes written" in outputs[0]
    assert outputs[1] == ""
    assert_means(tmp_path / "means")


def test_an_original_in_place_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values depend on the content of its files: not on their index, place or times."""
    root, features = unpack(tmp_path, "lerobot_video_v3"), ["observation.images.front"]
    calls, texts = list[int](), list[str]()

    def mean(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(batch[features[0]]))
        return {"mean": batch[features[0]].float().mean(dim=(1, 2, 3))}

    def embed(text: str) -> Any:
        texts.append(text)
        return np.zeros((len(text), 2), np.float32)

    def again(source: Path = root) -> Any:
        calls.clear()
        options: dict[str, Any] = {"features": features, "per_text": {"task": embed}}
        return seqrecord.derive(source, mean, tmp_path / "means", **options)

    assert len(again().written) == 3
    assert texts == ["look"]
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "another home"))
    assert again().written == ()
    moved = tmp_path / "moved"
    shutil.copytree(root, moved)
    shutil.rmtree(root)
    assert again(moved).written == ()
    assert (calls, texts) == ([], ["look"])
    joined = seqrecord.open(moved, join=[tmp_path / "means"])
    windows = {"mean": [0], "task": [0]}
    for batch in seqrecord.SeqRecordPipe(joined, windows=windows, batch_size=4, ragged="pad"):
        assert batch["task_embedding"].shape == (4, 1, 4, 2)
