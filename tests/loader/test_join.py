"""Loaders of joined datasets: the same clips as of the same features stored together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import At, FrameCache, SeqRecordMapDataset, SeqRecordPipe, edit
from seqrecord.store.reading.episode_identity import episode_identity
from tests.kit.datasets import columns, noise, write_dataset

Frames = dict[str, list[dict[str, Any]]]
LENGTHS = {"a": 31, "b": 9, "c": 1, "d": 40, "e": 17}


def frames_of(*names: str) -> Frames:
    """Frames of these features; every 11th frame of an episode lacks `latent`."""
    frames: Frames = {}
    for seed, (key, length) in enumerate(LENGTHS.items()):
        values: dict[str, list[Any]] = {
            "image": list(noise(length, 8, 8, 3, seed=seed)),
            "step": [np.int32(1000 * seed + i) for i in range(length)],
            "latent": list(noise(length, 6, dtype="f4", seed=seed + 50)),
            "mask": list(noise(length, 8, 8, 3, seed=seed + 90)),
            "text": [f"{key} {i}" for i in range(length)],
        }
        values["latent"] = [None if i % 11 == 10 else v for i, v in enumerate(values["latent"])]
        frames[key] = columns(**{name: values[name] for name in names})
    return frames


@pytest.fixture
def opening(tmp_path: Path) -> tuple[Callable[[], seqrecord.Dataset], Path, Path]:
    """Opens the joined dataset; the dataset of all features; and the joined one's folder."""
    source, latents, whole = (tmp_path / name for name in ("source", "latents", "whole"))
    jpeg = "jpeg:quality=95"
    write_dataset(source, frames_of("image", "step"), chunk_frames=4, codecs={"image": jpeg})
    with seqrecord.open(source) as dataset:
        identities = {
            key: {"derived_from": episode_identity(dataset, number)}
            for number, key in enumerate(dataset.episodes)
        }
    write_dataset(
        latents,
        frames_of("latent", "mask", "text"),
        metadata=identities,
        chunk_frames=7,
        codecs={"latent": "raw", "mask": jpeg},
    )
    write_dataset(
        whole,
        frames_of("image", "step", "latent", "mask", "text"),
        chunk_frames=4,
        codecs={"image": jpeg, "mask": jpeg},
    )
    return lambda: seqrecord.open(source, join=[latents]), whole, source


def plain(value: Any) -> Any:
    return value if isinstance(value, list | str) else np.asarray(value).tolist()


def clips_of(pipe: Any) -> dict[tuple[str, int], Any]:
    """Values of each clip, by episode and start."""
    clips = {}
    for clip in pipe:
        values = {name: plain(value) for name, value in clip.items()}
        clips[values["episode"], values["start"]] = values
    return clips


@pytest.mark.parametrize(
    "options",
    [
        {"clip_len": 5},
        {"clip_len": 4, "stride": 3, "dilation": 2, "features": ["mask", "step"]},
        {"clip_len": 5, "pad": "edge"},
        {"windows": {"image": [0], "latent": [-2, 0, 5], "text": [0]}, "pad": "edge"},
        {"clip_len": 5, "resize": {"image": (2, 3)}},
        {"clip_len": 5, "memory_limit": "2MiB"},
        {"clip_len": 3, "frame_transform": lambda frame: {**frame, "both": frame["step"] + 1}},
    ],
)
def test_clips_equal_those_stored_together(opening: Any, options: dict[str, Any]) -> None:
    open_joined, whole, _ = opening
    joined, together = SeqRecordPipe(open_joined(), **options), SeqRecordPipe(whole, **options)
    assert clips_of(joined) == clips_of(together)
    assert len(joined) == len(together)


def test_samples_refer_to_joined_features(opening: Any) -> None:
    open_joined, whole, _ = opening
    table = {"episode": ["a", "d", "a"], "start": [0, 5, 20], "goal": [12, 39, 30]}
    options: dict[str, Any] = {
        "samples": table,
        "windows": {"image": [0, 1], "latent": At("goal"), "mask": [0, At("goal")]},
    }
    assert clips_of(SeqRecordPipe(open_joined(), **options)) == clips_of(
        SeqRecordPipe(whole, **options)
    )


def test_random_access(opening: Any) -> None:
    open_joined, whole, _ = opening
    joined = SeqRecordMapDataset(open_joined(), clip_len=3)
    together = SeqRecordMapDataset(whole, clip_len=3)
    assert len(joined) == len(together)
    for number in (0, 7, len(joined) - 1):
        pair = ({n: plain(v) for n, v in data[number].items()} for data in (joined, together))
        first, second = pair
        assert first == second


def test_frame_cache_and_resident_frames(opening: Any, tmp_path: Path) -> None:
    open_joined, whole, _ = opening
    expected = clips_of(SeqRecordPipe(whole, clip_len=5))
    cache = FrameCache(tmp_path / "cache", "100MiB")
    filling = SeqRecordPipe(open_joined(), clip_len=5, frame_cache=cache)
    assert clips_of(filling) == expected
    pipe = SeqRecordPipe(open_joined(), clip_len=5, frame_cache=cache)
    assert clips_of(pipe) == expected
    assert pipe.stats()["frames_from_cache"]
    assert clips_of(pipe) == expected


def test_stats_count_joined_features(opening: Any) -> None:
    open_joined, _, source = opening
    pipe = SeqRecordPipe(open_joined(), clip_len=5, features=["step", "latent"])
    clips_of(pipe)
    alone = SeqRecordPipe(source, clip_len=5, features=["step"])
    clips_of(alone)
    num_values = sum(length - length // 11 for length in LENGTHS.values())
    assert pipe.stats()["bytes_read"] >= alone.stats()["bytes_read"] + 24 * (num_values - 1)


def test_a_state_needs_the_same_companions(opening: Any) -> None:
    open_joined, _, source = opening
    pipe = SeqRecordPipe(open_joined(), clip_len=5, features=["step", "latent"])
    iterator = iter(pipe)
    next(iterator)
    state = pipe.state_dict()
    rest = [plain(clip["step"]) for clip in iterator]
    again = SeqRecordPipe(open_joined(), clip_len=5, features=["step", "latent"])
    again.load_state_dict(state)
    assert [plain(clip["step"]) for clip in again] == rest
    edit.trim_episodes(source, ["a"], slice(1, None))
    trimmed = SeqRecordPipe(open_joined(), clip_len=5, features=["step", "latent"])
    with pytest.raises(seqrecord.StateError):
        trimmed.load_state_dict(state)
