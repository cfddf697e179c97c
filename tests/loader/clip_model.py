"""A dataset with many kinds of features, and a brute-force model of its clips for any arguments.

The model loops over frames and shares no code with the package. A `Case` has a loader's arguments,
and `cases` draws one. `check_case` iterates over a loader, reads clips by number, and compares both
with the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import FeatureSpec, Latest, Next, Schema, Seconds, SeqRecordPipe, collate
from seqrecord.samples import BuiltIn, SampleRandom, Samples, dilate, every, reverse, skip_last
from tests.kit.clip_data import minimum_memory

__all__ = ["FEATURES", "GROUPS", "IMAGES", "KINDS", "LENGTHS", "SPARSE", "Case", "check_case"]
__all__ += ["metadata_of", "stored_frame", "write_all"]

Clip = tuple[int, int]
"""Name of a clip: its episode and start; of a row of a table, the row and the start."""

HEIGHT, WIDTH = 12, 16
LENGTHS = (19, 9, 2, 30, 21)
FPS = (10, 20, 10, 30, 20)
"""FPS of each episode, in the order of `LENGTHS`."""

IMAGES = ("image", "flow")
SPARSE: dict[str, Any] = {"gps": np.zeros(3), "text": "", "force": np.zeros((0, 2), np.int16)}
"""Features that many frames lack, with their fill values."""

FEATURES = (*IMAGES, "action", "imu", "note", "blob", "grid", "id", *SPARSE)
GROUPS = {"flow": 1, "action": 2, "note": 2, "imu": 3, "gps": 4, "text": 4, "force": 4}
"""Group of each feature, for `write_all`; 0 for all others."""

RAGGED: dict[str, tuple[int, ...]] = {"imu": (4,), "force": (3,), "grid": (3, 3)}
"""Features with variable dimensions, and their maximum sizes."""


@lru_cache(1000)
def stored_frame(episode: int, number: int) -> dict[str, Any]:
    """The frame as written."""
    rng = np.random.default_rng([episode, number])
    frame: dict[str, Any] = {
        "image": rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8),
        "flow": rng.normal(size=(HEIGHT, WIDTH, 2)).astype(np.float32),
        "action": rng.normal(size=4).astype(np.float32),
        "imu": rng.normal(size=(1 + number % 4, 6)).astype(np.float32),
        "note": f"e{episode}.{number} Ürümqi 乌鲁木齐 🙂 " * (number % 3),
        "blob": bytes([episode, number]),
        "grid": rng.integers(1, 9, (1 + number % 3, 2, (episode + number) % 4), np.uint16),
        "id": np.array([episode, number]),
        "gps": rng.normal(size=3),
        "text": f"at {episode} {number} " * (number % 3),
        "force": rng.integers(1, 99, (number % 4, 2), np.int16),
    }
    lacks = {
        "gps": (number + episode) % 6 != 2,
        # Once for all of the first episode; never in the last one.
        "text": number > 0 if episode == 0 else (number + episode) % 7 > 1 or episode == 4,
        "force": episode != 3 and (number + 2 * episode) % 5 > 2,
        "flow": number == LENGTHS[episode] - 1 or (episode, number) == (3, 20),
    }
    return {name: value for name, value in frame.items() if not lacks.get(name)}


def key_of(episode: int) -> str:
    return f"{'kitchen' if episode % 2 else 'lab'}/{episode}"


def episode_of(clip: Mapping[str, Any]) -> int:
    """The number of a clip's episode."""
    return int(clip["episode"].split("/")[1])


def clamped(episode: int, frames: Sequence[int]) -> list[int]:
    """Frames inside an episode: its first or last one instead of others."""
    return [min(max(frame, 0), LENGTHS[episode] - 1) for frame in frames]


def metadata_of(episode: int) -> dict[str, Any]:
    rates = {0: 3, 1: 2.5, 3: True}
    found = {"task": f"task {episode}" if episode else None, "arm": [episode, {"left": True}]}
    return found | ({"rate": rates[episode]} if episode in rates else {})


def schema_of(groups: Mapping[str, int]) -> Schema:
    shapes: dict[str, tuple[int | None, ...]] = {"imu": (None, 6), "force": (None, 2)}
    shapes["grid"] = (None, 2, None)
    found, values = [], stored_frame(0, 2) | SPARSE | stored_frame(0, 0)
    for name in FEATURES:
        group = groups.get(name, 0)
        if isinstance(value := values[name], np.ndarray):
            shape = shapes.get(name) or value.shape
            found.append(FeatureSpec(name, value.dtype, shape, group=group))
        else:
            kind: Any = "text" if isinstance(value, str) else "bytes"
            found.append(FeatureSpec(name, np.dtype("u1"), (None,), group=group, value=kind))
    return Schema(found)


def write_all(
    folder: Path,
    groups: Mapping[str, int] | None = None,
    more_metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write the dataset: `groups` with different chunk lengths, other features in one group.

    All episodes have `more_metadata`.
    """
    with seqrecord.SeqRecordWriter(
        folder,
        schema=schema_of(groups or {}),
        codecs={"image": "png", "flow": "raw", "action": "raw", "id": "raw"},
        chunk_frames=5,
        max_file_size=40_000,
    ) as writer:
        for number, length in enumerate(LENGTHS):
            metadata, fps = metadata_of(number) | dict(more_metadata or {}), FPS[number]
            with writer.episode(key_of(number), metadata=metadata, fps=fps) as episode:
                for frame in range(length):
                    episode.append(stored_frame(number, frame))
                    if frame == 13:
                        episode.flush()
    return folder


@dataclass(frozen=True)
class Copies:
    """A function of samples: `repeat` by the start of a clip."""

    times: tuple[int, ...]
    name = "copies"

    def __call__(self, samples: Samples, _epoch: int, _rng: SampleRandom) -> Samples:
        return samples.with_columns(repeat=np.resize(self.times, 99)[samples["start"]])


@dataclass(frozen=True)
class Case:
    """A loader's arguments, and the clips expected from them."""

    options: dict[str, Any]
    _ages: dict[tuple[str, int, int], int | None] = field(default_factory=dict)

    @property
    def features(self) -> list[str]:
        return list(self.options.get("features", FEATURES))

    @property
    def batch_size(self) -> int | None:
        size: int | None = self.options.get("batch_size")
        return size

    @property
    def in_rows(self) -> bool:
        return self.options.get("order") == "sequences"

    @property
    def dilations(self) -> tuple[int, ...]:
        usual = (self.options.get("dilation", 1),)
        return tuple(self.function("dilate", "dilations", usual))

    def function(self, name: str, argument: str, default: Any) -> Any:
        """An argument of a built-in function of samples."""
        for one in self.options.get("samples") or ():
            if isinstance(one, BuiltIn) and one.name == name:
                return one.arguments[argument]
        return default

    @property
    def every(self) -> int:
        """Clips start at multiples of this number, plus a remainder if `every` rotates."""
        n: int = self.function("every", "n", 1)
        return n

    @cached_property
    def remainders(self) -> set[int]:
        """Remainders of starts by `every`: as many epochs have one each."""
        return {start % self.every for _, start in self.clips}

    def clips_of(self, remainder: int) -> list[Clip]:
        """The clips of an epoch, in order."""
        return [clip for clip in self.clips if clip[1] % self.every == remainder]

    def repeated(self, clips: list[Clip]) -> list[Clip]:
        """Each of `clips` as often as an epoch has it."""
        for one in self.options.get("samples") or ():
            if isinstance(one, Copies):
                times = one.times
                return [clip for clip in clips for _ in range(times[clip[1] % len(times)])]
        return clips

    @property
    def stride(self) -> int:
        usual = self.options.get("clip_len", 1) * self.dilations[0] if self.in_rows else 1
        stride: int = self.options.get("stride", usual)
        return stride

    def nearest(self, name: str) -> Latest | Next | None:
        window = (self.options.get("windows") or {}).get(name)
        return window if isinstance(window, (Latest, Next)) else None

    def window(self, name: str) -> Any:
        """The requested window: `None`, offsets or `Seconds`."""
        nearest = self.nearest(name)
        return nearest.window if nearest else (self.options.get("windows") or {}).get(name)

    @property
    def has_windows(self) -> bool:
        return any(self.window(name) is not None for name in self.features)

    def offsets(self, name: str, episode: int, dilation: int) -> list[int]:
        """Frame offsets of a feature from the clip's start."""
        window = self.window(name)
        if window is None:
            return [i * dilation for i in range(self.options.get("clip_len", 1))]
        if isinstance(window, Seconds):
            return [round(time * FPS[episode]) for time in window.times or ()]
        return list(window)

    @property
    def padded(self) -> set[str]:
        """Features with a padding mask."""
        if "pad" not in self.options:
            return set()
        return {
            n for n in self.features if "clip_len" in self.options or self.window(n) is not None
        }

    def form(self, name: str) -> str | tuple[int, ...]:
        """ "list", "nested" or the sizes to which a feature is padded."""
        ragged: Any = self.options.get("ragged", "list")
        form = ragged.get(name, "list") if isinstance(ragged, dict) else ragged
        sizes: tuple[int, ...] = RAGGED[name] if form == "pad" else form
        return sizes

    def wanted(self, name: str, episode: int, start: int, dilation: int) -> list[int]:
        """The requested frames of a feature, also beyond the ends of the episode."""
        return [start + offset for offset in self.offsets(name, episode, dilation)]

    def frames(self, name: str, episode: int, start: int, dilation: int) -> list[int]:
        """The requested frames, clamped to their episode."""
        return clamped(episode, self.wanted(name, episode, start, dilation))

    def step(self, name: str) -> int:
        """Direction to another frame's value: 1 for `Next`."""
        return 1 if isinstance(self.nearest(name), Next) else -1

    def age(self, name: str, episode: int, frame: int) -> int | None:
        """Frames to the nearest one with the feature in its direction; `None` if there is none."""
        at = name, episode, frame
        if at not in self._ages:
            nearest, most, step = self.nearest(name), 0, self.step(name)
            if nearest:
                limit = nearest.max_wait if isinstance(nearest, Next) else nearest.max_age
                most = LENGTHS[episode] if limit is None else limit
            room = frame if step < 0 else LENGTHS[episode] - 1 - frame
            ages = range(min(most, room) + 1)
            found = (age for age in ages if name in stored_frame(episode, frame + step * age))
            self._ages[at] = next(found, None)
        return self._ages[at]

    def fits_inside(self, episode: int, start: int, dilation: int) -> bool:
        every = [f for name in self.features for f in self.wanted(name, episode, start, dilation)]
        pad = self.options.get("pad")
        return (min(every) >= 0 or pad in ("edge", "before")) and (
            max(every) < LENGTHS[episode] or pad in ("edge", "after")
        )

    def is_whole(self, episode: int, start: int, dilation: int) -> bool:
        """Whether the episode has this clip."""
        return self.fits_inside(episode, start, dilation) and all(
            self.age(name, episode, frame) is not None
            for name in self.features
            if not ((nearest := self.nearest(name)) and nearest.unknown)
            for frame in self.frames(name, episode, start, dilation)
        )

    @cached_property
    def starts(self) -> list[Clip]:
        """Candidate clip starts."""
        chosen = self.options.get("episodes", "*")
        found = []
        for episode, length in enumerate(LENGTHS):
            key, last = key_of(episode), length - self.function("skip_last", "n", 0)
            is_listed = isinstance(chosen, list) and (key in chosen or episode in chosen)
            if is_listed or (isinstance(chosen, str) and key.startswith(chosen.rstrip("*"))):
                found += [(episode, start) for start in range(0, last, self.stride)]
        return found

    @cached_property
    def clips(self) -> list[Clip]:
        """All clips, in order."""
        n = 1 if self.function("every", "rotate", True) else self.every
        starts = [clip for clip in self.starts if not clip[1] % n]
        return [c for c in starts if any(self.is_whole(*c, d) for d in self.dilations)]

    def check(self, clip: Mapping[str, Any], epoch: int | None = None) -> tuple[int, int]:
        """Compare a clip, of an epoch if it is known, with the stored frames; returns its name."""
        name_of_clip, expected = self.check_place(clip, epoch)
        episode, dilation = episode_of(clip), int(clip.get("dilation", self.dilations[0]))
        assert [name for name in clip if name in self.features] == self.features
        for name in self.features:
            order = slice(None, None, -1 if clip.get("reversed", False) else 1)
            wanted = self.requested(name, clip, dilation)[order]
            frames = clamped(episode, wanted)
            if name in self.padded:
                is_pad = [a != f for a, f in zip(wanted, frames, strict=True)]
                assert clip[f"{name}_is_pad"].tolist() == is_pad, name
                expected.add(f"{name}_is_pad")
            ages = [self.age(name, episode, frame) for frame in frames]
            if self.nearest(name):
                column = f"{name}_{'age' if self.step(name) < 0 else 'wait'}"
                assert clip[column].dtype == torch.int64
                assert clip[column].tolist() == [-1 if a is None else a for a in ages]
                expected.add(column)
            want = [
                SPARSE[name]
                if age is None
                else stored_frame(episode, frame + self.step(name) * age)[name]
                for frame, age in zip(frames, ages, strict=True)
            ]
            expected |= self.check_values(name, clip, want)
        for name in self.options.get("metadata", ()):
            assert clip[name] == metadata_of(episode).get(name)
            assert type(clip[name]) is type(metadata_of(episode).get(name))
            expected.add(name)
        assert set(clip) <= expected | {*self.features}
        return name_of_clip

    def check_place(
        self, clip: Mapping[str, Any], epoch: int | None
    ) -> tuple[tuple[int, int], set[str]]:
        """Check that the epoch has this clip; returns its name and the names of its columns."""
        del epoch
        episode, start = episode_of(clip), int(clip["start"])
        assert (episode, start) in self.clips
        self.check_draws(clip)
        assert self.is_whole(episode, start, int(clip.get("dilation", self.dilations[0])))
        columns = {"episode", "start", "crop", "flipped", "is_first", "is_last"}
        return (episode, start), columns | {"dilation", "reversed"}

    def check_draws(self, clip: Mapping[str, Any]) -> None:
        """Check a drawn dilation and direction."""
        is_reversed = bool(clip.get("reversed", False))
        assert int(clip.get("dilation", self.dilations[0])) in self.dilations
        probability = self.function("reverse", "probability", 0)
        assert not is_reversed or probability
        assert is_reversed or probability != 1

    def requested(self, name: str, clip: Mapping[str, Any], dilation: int) -> list[int]:
        """The requested frames of a feature in a clip, before a reversal."""
        return self.wanted(name, episode_of(clip), int(clip["start"]), dilation)

    # ---- epochs, for histories of loaders

    @property
    def draws_lengths(self) -> bool:
        """Whether `clip_len` is drawn for each batch."""
        return isinstance(self.options.get("clip_len"), tuple)

    @property
    def smallest(self) -> int:
        """The number of clips of the shortest epoch."""
        return min(len(self.clips_of(remainder)) for remainder in self.remainders)

    def epoch(self, epoch: int) -> list[Clip] | None:
        """The clips of an epoch in order, with copies; `None` if the seed decides."""
        del epoch
        return self.repeated(self.clips) if len(self.remainders) == 1 else None

    def drawn_epoch(
        self, epoch: int, clips: list[Clip], drawn: Mapping[int, list[Clip]]
    ) -> list[Clip]:
        """The clips of an epoch that the seed decides, after a check of the clips delivered.

        `drawn` has clips of other epochs, by epoch.
        """
        expected = self.clips_of(clips[0][1] % self.every)
        turns = len(self.remainders)
        for number, others in drawn.items():  # a turn has every remainder once
            assert number // turns != epoch // turns or others != expected
        return expected

    def in_order(self, clips: Sequence[Clip]) -> list[Clip]:
        """Clips in the order of an epoch that is not shuffled."""
        return sorted(clips)

    def numbered(self, clips: Sequence[Clip]) -> list[Clip]:
        """The clips of an epoch in the order of a map-style dataset."""
        return list(clips)

    def full_size(self, batch: Mapping[str, Any]) -> int:
        """The number of clips of a batch that is not the last one."""
        del batch
        assert self.batch_size is not None
        return self.batch_size

    def copies(self) -> bool:
        """Whether an epoch may have a clip several times."""
        return any(isinstance(one, Copies) for one in self.options.get("samples") or ())

    def incomplete(self) -> tuple[int | None, int | None]:
        """Numbers of clips without a feature, and outside their episode; `None` if not counted."""
        skips = self.function("skip_last", "n", 0) or not self.function("every", "rotate", True)
        if skips:
            return None, None
        inside = [c for c in self.starts if any(self.fits_inside(*c, d) for d in self.dilations)]
        outside = len(self.starts) - len(inside) if self.has_windows else None
        return len(inside) - len(self.clips), outside

    def check_values(self, name: str, clip: Mapping[str, Any], want: list[Any]) -> set[str]:
        """Compare a feature's frames; returns the names of its additional entries."""
        is_alone = self.window(name) is self.nearest(name) is None
        is_fixed = name not in RAGGED or isinstance(self.form(name), tuple)
        if self.options.get("squeeze_time") and is_alone and is_fixed:
            is_array = isinstance(clip[name], (torch.Tensor, np.ndarray))
            clip = {
                one: clip[one][None] if is_array else [clip[one]]
                for one in (name, f"{name}_mask")
                if one in clip
            }
        got = clip[name]
        if isinstance(want[0], (str, bytes)):
            assert list(got) == want
        elif name in RAGGED and isinstance(sizes := self.form(name), tuple):
            check_padded(got, clip[f"{name}_mask"], want, sizes)
            return {f"{name}_mask"}
        elif name in RAGGED:
            is_nested = isinstance(got, torch.Tensor)
            assert is_nested <= (self.form(name) == "nested")
            parts = list(got.unbind() if is_nested else got)
            for part, array in zip(parts, want, strict=True):
                assert np.asarray(part).dtype == array.dtype
                np.testing.assert_array_equal(np.asarray(part), array)
        else:
            if name in IMAGES and "crop" in clip:
                top, left, height, width = clip["crop"].tolist()
                want = [array[top : top + height, left : left + width] for array in want]
            if name in IMAGES and bool(clip.get("flipped", False)):
                sign = np.array([-1, 1] if name == "flow" else 1)
                want = [(array[:, ::-1] * sign).astype(array.dtype) for array in want]
            assert np.asarray(got).dtype == want[0].dtype
            np.testing.assert_array_equal(np.asarray(got), np.stack(want))
        return set()

    def clips_in(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The clips of a batch; a single clip yields itself."""
        if isinstance(batch["episode"], str):
            yield dict(batch)
            return
        count, columns = len(batch["episode"]), dict(batch)
        for name, value in batch.items():
            if isinstance(value, torch.Tensor) and value.is_nested:
                parts = list(value.unbind())
                length = len(parts) // count
                columns[name] = [parts[i * length : (i + 1) * length] for i in range(count)]
        for i in range(count):
            yield {name: column[i] for name, column in columns.items()}


def check_padded(got: Any, mask: Any, want: list[Any], sizes: tuple[int, ...]) -> None:
    """Compare padded frames: one mask for each variable dimension, zeros outside it."""
    varies = (0,) if want[0].ndim == 2 else (0, 2)
    assert mask.dtype == torch.bool
    assert tuple(mask.shape) == (len(want), *sizes)
    assert tuple(got.shape[1 + axis] for axis in varies) == sizes
    for array, true, expected in zip(got.numpy(), mask.numpy(), want, strict=True):
        np.testing.assert_array_equal(array[tuple(map(slice, expected.shape))], expected)
        assert np.count_nonzero(array) == np.count_nonzero(expected)
        assert true[tuple(slice(expected.shape[axis]) for axis in varies)].all()
        assert true.sum() == np.prod([expected.shape[axis] for axis in varies])


def equal(one: Any, two: Any) -> bool:
    """Whether two batches are equal, to the last bit."""
    if isinstance(one, torch.Tensor):
        if one.is_nested:
            return equal(list(one.unbind()), list(two.unbind()))
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[name], two[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(equal, one, two))
    return bool(one == two)


SPAN = 16
"""Maximum frames of drawn windows before and after a clip's start."""


@st.composite
def cases(draw: st.DrawFn, *, rated: bool = False, has_copies: bool = False) -> Case:
    """Loader arguments without a rank; `rated` are windows in seconds of different frame rates.

    With `has_copies`, functions may repeat clips.
    """

    def maybe(tenths: int) -> bool:
        return draw(st.integers(1, 10)) > 10 - tenths

    def choose(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    def some(values: Sequence[Any], least: int, most: int) -> list[Any]:
        kinds = st.lists(st.sampled_from(values), min_size=least, max_size=most, unique=True)
        return draw(kinds)

    features = [*dict.fromkeys([*some(FEATURES, 0, 5), "id"])]
    options: dict[str, Any] = {
        "features": features,
        "seed": draw(st.integers(0, 99)),
        "shuffle": not maybe(2),
        "batch_size": choose(None, 1, 3, 4, 7),
    }
    windows: dict[str, Any] = {}
    if rated:
        rates = [n for n in features if n == "id" or maybe(6)]
        windows = {n: Seconds([i / 10 for i in some(range(-3, 6), 1, 3)]) for n in rates}
    elif maybe(5):
        chosen = [name for name in features if maybe(6)] or ["id"]
        windows = {
            name: some(range(-SPAN // 2, SPAN), 1, 4)
            if maybe(5)
            else range(draw(st.integers(-4, 0)), draw(st.integers(1, 5)))
            for name in chosen
        }
    is_plain = not windows
    if is_plain or maybe(5):
        options["clip_len"] = draw(st.integers(1, 6))
        options["dilation"] = choose(1, 1, 2, 3)
    if maybe(4):
        options["stride"] = draw(st.integers(1, 11))
    if maybe(4):
        options["pad"], is_plain = choose("edge", "before", "after"), False
    for name in (name for name in SPARSE if name in features and maybe(9)):
        age, unknown, window = choose(None, 2, 40), choose(None, "zeros"), windows.get(name)
        windows[name] = Latest(window, max_age=age, unknown=unknown)
        if maybe(5):
            windows[name] = Next(window, max_wait=age, unknown=unknown)
    if windows:
        options["windows"] = windows
    if maybe(4):
        options["metadata"] = some(["task", "arm", "rate"], 1, 3)
    if maybe(6):
        forms = {name: choose("list", "pad", "nested", (5,)) for name in ("imu", "force")}
        forms["grid"] = choose("list", (3, 3), (3, 4))
        ragged = {name: form for name, form in forms.items() if name in features}
        is_one_word = "grid" not in ragged and maybe(3)
        options["ragged"] = choose("list", "pad", "nested") if is_one_word else ragged
    if maybe(3):
        options["episodes"] = choose("lab/*", ["kitchen/1", "kitchen/3"], [3, 0])
    if maybe(4) and {*IMAGES} & {*features}:
        crop = choose(seqrecord.RandomCrop((5, 7)), seqrecord.CenterCrop((12, 3)))
        options["clip_transform"] = some([crop, seqrecord.HorizontalFlip(0.5)], 1, 2)
    functions: list[Any] = [skip_last(draw(st.integers(1, 5)))] if maybe(3) else []
    engine: dict[str, Any] = {"num_threads": draw(st.integers(1, 3))}
    if options["batch_size"] and maybe(3):
        options["order"] = "sequences"
    else:
        if is_plain and maybe(4):
            options["dilation"] = 1
            functions += [dilate(*choose((1, 2), (3, 1, 2), (2,))), reverse(choose(0.0, 0.5, 1.0))]
        if options["shuffle"] and maybe(5):
            engine |= {"num_cursors": choose(1, 5), "shuffle_buffer": choose(1, 5, 64)}
    if maybe(3):
        functions.append(every(choose(2, 3, 4, 25), rotate=maybe(7)))
    options["last_batch"] = choose("repeat", "keep", "drop")
    # A clip that evens out ranks would look like a copy.
    if has_copies and "order" not in options and options["last_batch"] != "repeat" and maybe(5):
        functions = [one for one in functions if one.name != "every"]
        functions.append(Copies(choose((1, 2), (2,), (9, 1, 1), (1, 1, 40, 1, 1, 1, 1))))
    if functions:
        options["samples"] = functions
    options["engine"] = seqrecord.EngineOptions(**engine)
    if maybe(2):
        options["device"] = "cpu"
    if maybe(3):
        options["memory_limit"] = "least"
    return Case(options)


def _worker(path: Any, **options: Any) -> Any:
    stream = seqrecord.SeqRecordIterableDataset(path, **options)
    return DataLoader(stream, batch_size=None, num_workers=1 if options.get("order") else 2)


def _map_style(path: Any, **options: Any) -> Any:
    dataset = seqrecord.SeqRecordMapDataset(path, **options)
    return DataLoader(dataset, batch_size=4, collate_fn=collate)


KINDS: dict[str, Callable[..., Any]] = {
    "pipe": SeqRecordPipe,
    "workers": _worker,
    "map style": _map_style,
    "collated": lambda path, **given: SeqRecordPipe(path, **given).batch(4).collate(collate),
}
"""Ways to iterate over the options of a case, by name."""


def check_case(path: Any, case: Case, *, kind: str = "pipe") -> None:
    """Check an epoch, or two of a pipe, and single clips by number."""
    options, batches = dict(case.options), list[Any]()
    make = partial(KINDS[kind], path)
    if options.get("memory_limit") == "least":
        options["memory_limit"] = minimum_memory(partial(make, **options))
    loader = make(**options)
    for _ in range(2 if kind == "pipe" else 1):  # the second epoch reads frames in memory
        batches = list(loader)  # all are compared later: batches must not share memory
    yielded = [case.check(clip) for batch in batches for clip in case.clips_in(batch)]
    most = case.batch_size if case.in_rows else 2 if kind == "workers" else 1
    assert len(yielded) - len(set(yielded)) <= (most or 1)
    assert sorted(set(yielded)) == case.clips
    is_in_order = not options.get("shuffle", True) and kind != "workers" and not case.in_rows
    assert not is_in_order or yielded == case.clips
    if case.in_rows and kind != "workers":
        check_rows(case, batches)
    if kind != "map style":
        check_by_number(path, case, random.Random(0), case.clips)


def check_rows(case: Case, batches: list[Any]) -> None:
    """Check that rows of batches follow episodes, and their `is_first` and `is_last`."""
    rows: list[list[tuple[str, int]]] = [[] for _ in range(case.batch_size or 0)]
    flags: list[list[tuple[bool, bool]]] = [[] for _ in rows]
    for batch in batches:
        for row, flag, clip in zip(rows, flags, case.clips_in(batch), strict=False):
            row.append((clip["episode"], int(clip["start"])))
            flag.append((bool(clip["is_first"]), bool(clip["is_last"])))
    for row, flag in zip(rows, flags, strict=True):
        step = lcm(case.stride, case.every)
        ends = [b != (a[0], a[1] + step) for a, b in pairwise(row)]
        assert flag == [*zip([True, *ends], [*ends, True], strict=True)][: len(row)]
    if case.options.get("last_batch") == "keep":  # whole episodes in each row
        return
    if not case.options.get("shuffle", True) and case.options.get("rank", 1) == 1:
        assert [clip for row in rows for clip in row] == [(key_of(e), s) for e, s in case.clips]
    assert max(map(len, rows)) - min(map(len, rows)) <= 1


def check_by_number(
    path: Any, case: Case, rng: random.Random, clips: Sequence[Clip], epoch: int = 0
) -> None:
    """Check an epoch's clips by number."""
    of_streams = {"shuffle", "batch_size", "engine", "order", "device", "memory_limit", "rank"}
    of_streams |= {"last_batch"}
    options = {name: value for name, value in case.options.items() if name not in of_streams}
    if case.stride > 1:
        options["stride"] = case.stride
    single, dataset = type(case)(options), seqrecord.SeqRecordMapDataset(path, **options)
    dataset.set_epoch(epoch)
    assert len(dataset) == len(clips)
    numbers = [rng.randrange(len(dataset)) for _ in range(5)]
    wanted = [clips[number] for number in numbers]
    assert [single.check(dataset[number]) for number in numbers] == wanted
    assert [single.check(clip) for clip in dataset.__getitems__(numbers)] == wanted
