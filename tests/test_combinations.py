"""Options of the loaders in random combinations, against a reader that knows none of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqrecord
from seqrecord import (
    CenterCrop,
    EngineOptions,
    HorizontalFlip,
    RandomCrop,
    Seconds,
    SeqRecordWriter,
)
from tests.clip_data import with_latest

HEIGHT, WIDTH = 12, 16
LENGTHS = (23, 9, 2, 40, 31)
FPS = (10, 20, 10, 30, 20)  # of each episode
SPAN = 16  # frames that windows reach at most, before and after a clip's start
IMAGES = ("image", "flow")
FEATURES = ("image", "flow", "action", "imu", "note", "blob", "id", "gps")
GPS = 3  # values


def stored_frame(episode: int, number: int) -> dict[str, Any]:
    """Of an episode's frame: features of all sorts, of which some are missing now and then."""
    rng = np.random.default_rng([episode, number])
    frame: dict[str, Any] = {
        "image": rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8),
        "flow": rng.normal(size=(HEIGHT, WIDTH, 2)).astype(np.float32),
        "action": rng.normal(size=4).astype(np.float32),
        "imu": rng.normal(size=(1 + number % 4, 6)).astype(np.float32),
        "note": f"{episode}.{number}" if number % 3 else "",
        "blob": bytes([episode, number]),
        "id": np.array([episode, number]),
        "gps": rng.normal(size=3),
    }
    if (number + episode) % 6 != 2:
        del frame["gps"]
    if number == LENGTHS[episode] - 1 or (episode, number) == (3, 20):
        del frame["flow"]
    return frame


def key_of(episode: int) -> str:
    return f"{'kitchen' if episode % 2 else 'lab'}/{episode}"


@pytest.fixture(scope="module", params=["one", "several"])
def records(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All features in one group, or in four, with chunks that do not match."""
    folder = tmp_path_factory.mktemp("combinations") / "records"
    groups = dict.fromkeys(FEATURES, 0)
    if request.param == "several":
        groups |= {"flow": 1, "action": 2, "note": 2, "imu": 3, "gps": 4}
    features: dict[str, Any] = {name: {"group": group} for name, group in groups.items()}
    features["imu"]["shape"] = (None, 6)
    codecs = {"flow": "raw", "action": "raw", "id": "raw"}
    with SeqRecordWriter(
        folder, features=features, codecs=codecs, chunk_frames=5, record_bytes=40_000
    ) as writer:
        for number, length in enumerate(LENGTHS):
            metadata = {"task": f"task {number}", "arm": [number, {"left": True}]}
            with writer.episode(key_of(number), metadata=metadata, fps=FPS[number]) as episode:
                for frame in range(length):
                    episode.append(stored_frame(number, frame))
                    if frame == 13:
                        episode.flush()
    return folder


@dataclass(frozen=True)
class Case:
    """Options, and what follows from them."""

    options: dict[str, Any]

    @classmethod
    def drawn(cls, rng: random.Random, *, rated: bool = False) -> Case:
        """With `rated`, windows are in seconds, of episodes of several rates."""

        def maybe(share: float) -> bool:
            return rng.random() < share

        names = rng.sample(FEATURES, len(FEATURES))
        options: dict[str, Any] = {
            "features": sorted({"id", *names[: rng.randrange(1, len(names))]}),
            "seed": rng.randrange(100),
            "shuffle": maybe(0.8),
            "batch_size": rng.choice([None, 1, 3, 4, 7]),
            "engine": EngineOptions(num_threads=rng.choice([1, 2])),
        }
        if maybe(0.6):
            options["windows"] = {
                name: rng.sample(range(-SPAN // 2, SPAN), rng.randrange(1, 5))
                if maybe(0.5)
                else range(rng.randrange(-4, 1), rng.randrange(1, 6))
                for name in options["features"]
                if maybe(0.6)
            } or {"id": [0, 1]}
        if rated:
            tenths = {name: rng.sample(range(-3, 6), rng.randrange(1, 4)) for name in FEATURES}
            options["windows"] = {
                name: Seconds([i / 10 for i in tenths[name]])
                for name in options["features"]
                if name == "id" or maybe(0.6)
            }
        if "windows" not in options or maybe(0.5):
            options["clip_len"] = rng.randrange(1, 7)
            options["dilation"] = rng.choice([1, 1, 2, 3])
        is_plain = "windows" not in options
        if maybe(0.4):
            options["stride"] = rng.randrange(1, 12)
        if maybe(0.4):
            options["pad"], is_plain = rng.choice(["edge", "before", "after"]), False
        if maybe(0.3):
            options["drop_last_frames"] = rng.randrange(1, 6)
        if "gps" in options["features"] and maybe(0.9):
            options["last_known"] = rng.choice([["gps"], {"gps": 2}, {"gps": 40}])
            options["unknown"] = rng.choice([None, "zeros"])
        if maybe(0.5):
            options["metadata"] = rng.sample(["task", "arm"], rng.randrange(1, 3))
        if maybe(0.6):
            options["ragged"] = rng.choice(["list", "pad", "nested"])
        if maybe(0.3):
            options["episodes"] = rng.choice(["lab/*", ["kitchen/1", "kitchen/3"], [3, 0]])
        if maybe(0.4) and set(IMAGES) & set(options["features"]):
            crop = rng.choice([RandomCrop((5, 7)), CenterCrop((12, 3))])
            options["clip_transform"] = rng.sample([crop, HorizontalFlip(0.5)], rng.randrange(1, 3))
        if options["batch_size"] and maybe(0.3):
            options["order"] = "sequences"
        elif is_plain and maybe(0.5):
            options["dilation"] = rng.choice([(1, 2), (3, 1, 2), 2])
            options["reverse"] = rng.choice([0.0, 0.5, 1.0])
        if maybe(0.2):
            options["device"] = "cpu"
        if maybe(0.3):
            options["rank"], options["world_size"] = rng.choice([(0, 2), (1, 2), (2, 3)])
        return cls(options)

    @property
    def features(self) -> list[str]:
        names: list[str] = self.options["features"]
        return names

    @property
    def dilations(self) -> tuple[int, ...]:
        dilation = self.options.get("dilation", 1)
        return dilation if isinstance(dilation, tuple) else (dilation,)

    def offsets(self, name: str, episode: int, dilation: int) -> list[int]:
        """The frames of a feature that a clip has, counted from its start."""
        whole = [i * dilation for i in range(self.options.get("clip_len", 1))]
        window = self.options.get("windows", {}).get(name, whole)
        if isinstance(window, Seconds):
            return [round(time * FPS[episode]) for time in window.times or ()]
        return list(window)

    @property
    def padded(self) -> set[str]:
        """The features that have a mask of padding."""
        if "pad" not in self.options:
            return set()
        return set(self.features if "clip_len" in self.options else self.options["windows"])

    @property
    def stride(self) -> int:
        usual = 1
        if self.options.get("order") == "sequences":
            usual = self.options.get("clip_len", 1) * self.dilations[0]
        stride: int = self.options.get("stride", usual)
        return stride

    def asked(self, name: str, episode: int, start: int, dilation: int) -> list[int]:
        """The frames of a feature, also beyond the ends of the episode."""
        return [start + offset for offset in self.offsets(name, episode, dilation)]

    def frames(self, name: str, episode: int, start: int, dilation: int) -> list[int]:
        """Those of a feature, in their episode."""
        last = LENGTHS[episode] - 1
        return [min(max(frame, 0), last) for frame in self.asked(name, episode, start, dilation)]

    def age(self, name: str, episode: int, frame: int) -> int | None:
        """How many frames before it the newest is that has the feature; `None` if none has."""
        known = self.options.get("last_known", ())
        most = 0
        if name in known:
            most = known[name] if isinstance(known, dict) else LENGTHS[episode]
        for age in range(min(most, frame) + 1):
            if name in stored_frame(episode, frame - age):
                return age
        return None

    def is_whole(self, episode: int, start: int) -> bool:
        """Whether there is such a clip."""
        return any(self.is_whole_with(episode, start, dilation) for dilation in self.dilations)

    def is_whole_with(self, episode: int, start: int, dilation: int) -> bool:
        every = [f for name in self.features for f in self.asked(name, episode, start, dilation)]
        pad = self.options.get("pad")
        if min(every) < 0 and pad not in ("edge", "before"):
            return False
        if max(every) >= LENGTHS[episode] and pad not in ("edge", "after"):
            return False
        may_lack = self.options.get("last_known", ()) if self.options.get("unknown") else ()
        return all(
            self.age(name, episode, frame) is not None
            for name in self.features
            if name not in may_lack
            for frame in self.frames(name, episode, start, dilation)
        )

    @cached_property
    def clips(self) -> list[tuple[int, int]]:
        """All of them."""
        chosen = self.options.get("episodes", "*")
        found = []
        for episode, length in enumerate(LENGTHS):
            key, last = key_of(episode), length - self.options.get("drop_last_frames", 0)
            is_listed = isinstance(chosen, list) and (key in chosen or episode in chosen)
            if is_listed or (isinstance(chosen, str) and key.startswith(chosen.rstrip("*"))):
                found += [(episode, start) for start in range(0, last, self.stride)]
        return [clip for clip in found if self.is_whole(*clip)]


def clips_of(case: Case, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A batch's clips one by one; a single clip is one."""
    if case.options["batch_size"] is None:
        yield dict(batch)
        return
    count = len(batch["episode"])
    nested = {}
    for name, value in batch.items():
        if isinstance(value, torch.Tensor) and value.is_nested:
            parts = list(value.unbind())
            length = len(parts) // count
            nested[name] = [parts[i * length : (i + 1) * length] for i in range(count)]
    for i in range(count):
        yield {
            name: nested[name][i] if name in nested else value[i] for name, value in batch.items()
        }


def check(case: Case, clip: Mapping[str, Any]) -> tuple[int, int]:
    """Compare a clip with what is stored; returns its episode and start."""
    episode, start = int(clip["episode"].split("/")[1]), int(clip["start"])
    assert (episode, start) in case.clips
    dilation = int(clip.get("dilation", case.dilations[0]))
    is_reversed = bool(clip.get("reversed", False))
    assert dilation in case.dilations
    assert case.is_whole_with(episode, start, dilation)
    assert not (is_reversed and not case.options["reverse"])
    assert is_reversed or case.options.get("reverse") != 1.0
    known = {"episode", "start"}
    for name in case.features:
        frames = case.frames(name, episode, start, dilation)
        if is_reversed:
            frames.reverse()
        got = clip[name]
        known.add(name)
        if name in case.padded:
            asked = case.asked(name, episode, start, dilation)
            is_pad = [a != f for a, f in zip(asked, frames, strict=True)]
            assert clip[f"{name}_is_pad"].tolist() == is_pad, name
            known.add(f"{name}_is_pad")
        ages = [case.age(name, episode, frame) for frame in frames]
        if name in case.options.get("last_known", ()):
            assert clip[f"{name}_age"].tolist() == [-1 if a is None else a for a in ages]
            known.add(f"{name}_age")
        want = [
            np.zeros(GPS) if age is None else stored_frame(episode, frame - age)[name]
            for frame, age in zip(frames, ages, strict=True)
        ]
        if name in ("note", "blob"):
            assert list(got) == want
            continue
        if name == "imu":
            known |= check_ragged(case.options.get("ragged", "list"), clip, got, want)
            continue
        if name in IMAGES and "crop" in clip:
            top, left, height, width = clip["crop"].tolist()
            want = [array[top : top + height, left : left + width] for array in want]
        if name in IMAGES and bool(clip.get("flipped", False)):
            want = [array[:, ::-1] for array in want]
            if name == "flow":
                want = [array * np.array([-1, 1], np.float32) for array in want]
        np.testing.assert_array_equal(np.asarray(got), np.stack(want))
    for name in case.options.get("metadata", ()):
        assert clip[name] == {"task": f"task {episode}", "arm": [episode, {"left": True}]}[name]
        known.add(name)
    assert set(clip) - known <= {
        "crop", "flipped", "is_first", "is_last", "dilation", "reversed"
    }  # fmt: skip
    return episode, start


def check_ragged(mode: str, clip: Mapping[str, Any], got: Any, want: list[Any]) -> set[str]:
    """Frames whose lengths differ; returns the names of what else the clip has for them."""
    if mode != "pad":
        parts = list(got.unbind()) if isinstance(got, torch.Tensor) else list(got)
        assert len(parts) == len(want)
        for part, array in zip(parts, want, strict=True):
            np.testing.assert_array_equal(np.asarray(part), array)
        return set()
    mask = np.asarray(clip["imu_mask"])
    assert mask.shape == got.shape[:2]
    for frame, present, array in zip(np.asarray(got), mask, want, strict=True):
        np.testing.assert_array_equal(frame[present], array)
        assert present.sum() == len(array)
        assert not frame[~present].any()
    return {"imu_mask"}


def equal(one: Any, two: Any) -> bool:
    """Whether two batches are."""
    if isinstance(one, torch.Tensor):
        if one.is_nested:
            return equal(list(one.unbind()), list(two.unbind()))
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[name], two[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(equal, one, two))
    return bool(one == two)


def copied(value: Any) -> Any:
    """What a batch holds, for good."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: copied(each) for name, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


def run(records: Path, seed: int, *, rated: bool = False) -> None:
    rng = random.Random(seed)
    case = Case.drawn(rng, rated=rated)
    if not case.clips:
        with pytest.raises(seqrecord.ClipError):
            seqrecord.SeqRecordStream(records, **with_latest(case.options))
        return
    stream = seqrecord.SeqRecordStream(records, **with_latest(case.options))
    batches, states, given = [], [], []
    for batch in stream:
        batches.append(copied(batch))
        states.append(stream.state_dict())
        given += [check(case, clip) for clip in clips_of(case, batch)]
    if "world_size" not in case.options and case.options.get("order") != "sequences":
        assert sorted(given) == case.clips
    assert set(given) <= set(case.clips)
    repeated = len(given) - len(set(given))
    in_rows = case.options.get("order") == "sequences"
    assert repeated <= (case.options["batch_size"] if in_rows else 1)
    if len(batches) > 1:
        at = rng.randrange(len(batches) - 1)
        again = seqrecord.SeqRecordStream(records, **with_latest(case.options))
        again.load_state_dict(states[at])
        rest = [copied(batch) for batch in again]
        assert equal(rest, batches[at + 1 :])
    check_map_style(records, case, rng)


def check_map_style(records: Path, case: Case, rng: random.Random) -> None:
    """The same clips by their numbers."""
    of_streams = ("seed", "shuffle", "batch_size", "engine", "order", "device")
    options = {
        name: value
        for name, value in case.options.items()
        if name not in (*of_streams, "rank", "world_size")
    }
    single = Case({**options, "stride": case.stride, "batch_size": None})
    options["stride"] = case.stride
    dataset = seqrecord.SeqRecordDataset(records, **with_latest(options))
    assert len(dataset) == len(case.clips)
    numbers = [rng.randrange(len(dataset)) for _ in range(5)]
    for number in numbers:
        assert check(single, dataset[number]) == case.clips[number]
    for number, clip in zip(numbers, dataset.__getitems__(numbers), strict=True):
        assert check(single, clip) == case.clips[number]


# 1049: windows wholly behind the ends of short episodes, of values known before these.
@pytest.mark.parametrize("seed", [*range(12), 1049])
def test_some(records: Path, seed: int) -> None:
    run(records, seed)


@pytest.mark.parametrize("seed", range(2000, 2005))
def test_episodes_of_several_rates(records: Path, seed: int) -> None:
    run(records, seed, rated=True)


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(5))
def test_many(records: Path, tens: int) -> None:
    for seed in range(1000 + 10 * tens, 1010 + 10 * tens):
        run(records, seed)
