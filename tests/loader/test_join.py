"""Loaders of joined datasets: the same clips as of the same features stored together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import At, SeqRecordIterableDataset, SeqRecordMapDataset, SeqRecordPipe, edit
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
    seqrecord.derive(source, lambda rows: rows, tmp_path / "steps", features=["step"])
    with seqrecord.open(tmp_path / "steps") as steps:
        identities = {key: episode.metadata for key, episode in steps.episodes.items()}
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
    cache = seqrecord.FrameCache(tmp_path / "cache", "100MiB")
    filling = SeqRecordPipe(open_joined(), clip_len=5, frame_cache=cache)
    assert clips_of(filling) == expected
    pipe = SeqRecordPipe(open_joined(), clip_len=5, frame_cache=cache)
    assert clips_of(pipe) == expected
    assert pipe.stats()["frames_from_cache"]
    assert clips_of(pipe) == expected


def test_functions_of_samples_and_metadata(opening: Any) -> None:
    open_joined, whole, _ = opening
    options: dict[str, Any] = {
        "clip_len": 3,
        "samples": [seqrecord.samples.every(4)],
        "features": ["latent", "step"],
        "episodes": lambda episode: episode.num_frames > 10,
    }
    assert clips_of(SeqRecordPipe(open_joined(), **options)) == clips_of(
        SeqRecordPipe(whole, **options)
    )


@pytest.mark.parametrize("clock", ["source", "companion"])
def test_windows_in_seconds(tmp_path: Path, clock: str) -> None:
    lengths = {"a": 20, "b": 7}
    parts: dict[str, Frames] = {"source": {}, "companion": {}, "whole": {}}
    for seed, (key, length) in enumerate(lengths.items()):
        times = np.cumsum(np.where(np.arange(length) % 5, 0.1, 0.3)) + seed
        values = {"x": np.arange(length, dtype="f4"), "z": np.arange(length, dtype="f4") * 2}
        owned = {"source": {"x": values["x"]}, "companion": {"z": values["z"]}}
        owned[clock]["timestamp"] = times
        for name, features in owned.items():
            parts[name][key] = columns(**features)
        parts["whole"][key] = columns(**values, timestamp=times)
    for name, frames in parts.items():
        has_clock = "timestamp" in frames["a"][0]
        kinds = {"timestamp": {"kind": "timestamp", "unit": "s"}} if has_clock else None
        write_dataset(tmp_path / name, frames, features=kinds)
    windows = {
        "x": seqrecord.Seconds([-0.3, 0.0], tolerance=0.3),
        "z": seqrecord.Seconds([0.0, 0.2], tolerance=0.3),
    }
    options: dict[str, Any] = {"windows": windows, "pad": "edge", "features": ["x", "z"]}
    dataset = seqrecord.open(tmp_path / "source", join=[tmp_path / "companion"])
    joined = clips_of(SeqRecordPipe(dataset, **options))
    assert joined == clips_of(SeqRecordPipe(tmp_path / "whole", **options))


@pytest.mark.parametrize("names", [["state", "timestamp"], ["timestamp"], ["state", "log_time"]])
def test_windows_in_seconds_beside_a_clock_that_is_not_selected(
    tmp_path: Path, names: list[str]
) -> None:
    """The companion's clocks are nanoseconds and seconds."""
    steps = np.where(np.arange(30) % 5, 0.1, 0.3)
    times = np.cumsum(steps)
    write_dataset(tmp_path / "base", {"a": columns(x=np.arange(30.0))})
    frames = columns(log_time=np.int64(times * 1e9), timestamp=times, state=np.arange(30.0))
    kinds = {"log_time": {"kind": "timestamp", "unit": "ns"}}
    kinds["timestamp"] = {"kind": "timestamp", "unit": "s"}
    write_dataset(tmp_path / "companion", {"a": frames}, features=kinds)
    companion = seqrecord.open(tmp_path / "companion", features=names)
    dataset = seqrecord.open(tmp_path / "base", join=[companion])
    [clock] = {*names} - {"state"}
    whole = columns(x=np.arange(30.0), **{clock: [frame[clock] for frame in frames]})
    write_dataset(tmp_path / "whole", {"a": whole}, features={clock: kinds[clock]})
    windows = {"x": seqrecord.Seconds([-0.5, 0.0, 1.0], tolerance=0.3)}
    options: dict[str, Any] = {"windows": windows, "features": ["x"], "pad": "edge"}
    joined = clips_of(SeqRecordPipe(dataset, **options))
    assert joined == clips_of(SeqRecordPipe(tmp_path / "whole", **options))


def test_mixes(opening: Any) -> None:
    open_joined, whole, _ = opening
    names = ["step", "latent", "text"]

    def steps(sources: list[Any]) -> list[Any]:
        pipes = {
            str(number): SeqRecordIterableDataset(source, clip_len=4, features=names)
            for number, source in enumerate(sources)
        }
        mix = seqrecord.SeqRecordMix(pipes, weights={"0": 1, "1": 1}, batch_size=4, seed=3)
        return sorted(
            (plain(step), plain(latent), *text)
            for batch in mix
            for step, latent, text in zip(
                batch["step"], batch["latent"], batch["text"], strict=True
            )
        )

    found = steps([open_joined(), whole])
    every = {tuple(plain(c["step"])) for c in SeqRecordPipe(whole, clip_len=4, features=names)}
    assert {tuple(step) for step, *_ in found} <= every
    texts = {tuple(step): text for step, _, *text in found}
    for step, text in texts.items():
        key = "abcde"[step[0] // 1000]
        assert text == [f"{key} {number % 1000}" for number in step]


def test_resume_on_three_ranks(opening: Any) -> None:
    open_joined, _, _ = opening
    options: dict[str, Any] = {"clip_len": 3, "features": ["step", "latent"], "batch_size": 2}

    def pipes(count: int) -> list[SeqRecordPipe]:
        return [SeqRecordPipe(open_joined(), **options, rank=(r, count)) for r in range(count)]

    def clips(batches: Any) -> list[Any]:
        return [clip for batch in batches for clip in plain(batch["step"])]

    before, states = list[Any](), []
    for pipe in pipes(2):
        batches = iter(pipe)
        before += clips(next(batches) for _ in range(3))
        states.append(pipe.state_dict())
    after = list[Any]()
    for pipe in pipes(3):
        pipe.load_state_dict(states[0])
        after += clips(pipe)
    whole = list(SeqRecordPipe(open_joined(), **(options | {"batch_size": None})))
    every = {tuple(plain(clip["step"])) for clip in whole}
    assert not {*map(tuple, before)} & {*map(tuple, after)}
    left_out = every - {*map(tuple, before)} - {*map(tuple, after)}
    assert len(left_out) < 6  # fewer than a batch of each rank


@pytest.mark.slow
def test_workers_that_are_spawned(opening: Any) -> None:
    open_joined, whole, _ = opening
    dataset = SeqRecordIterableDataset(open_joined(), clip_len=4, features=["step", "mask"])
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    together = SeqRecordPipe(whole, clip_len=4, features=["step", "mask"])
    assert clips_of(loader) == clips_of(together)


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
