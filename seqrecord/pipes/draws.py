"""What is drawn for the clips of a selection, what it makes of them, and what batches say of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from seqrecord.clip_frames import ClipFrames, ClipSteps, FoundFrames
from seqrecord.clip_transforms import HorizontalFlip, WindowStep, chain_of
from seqrecord.clips import ClipTable, IntArray
from seqrecord.engine.arena import pad
from seqrecord.engine.calls import ClipFunctions, Drawn, read_only
from seqrecord.engine.crops import ClipCrops, Crop
from seqrecord.errors import ClipError
from seqrecord.reading.frames import (
    ArraySpec,
    FrameTransform,
    add_place,
    apply_transform,
    mask_name,
)
from seqrecord.reading.reader import Episode, SeqRecordReader
from seqrecord.sampling.random_order import hash64, key_of
from seqrecord.schema import FeatureSpec

__all__ = ["SAID", "ClipDraws", "ClipNumbers", "SelectedCrops", "SelectedSteps"]

SAID = ("crop", "flipped", "intrinsics")
"""What batches may tell of what was drawn."""


class ClipDraws:
    """What a `clip_transform` makes of a dataset's clips. Picklable if its functions are.

    Raises `ClipError` for a transform that does not fit the features, and what functions raise.

    Args:
        transform: see `clip_transforms.chain_of`.
        arrays: of the features of a frame, after `frame_transform`.
        clip_frames: which frames clips have of each feature.
        episode, start: the row of the episode, and the first frame, of one of the clips. Functions
            are called with it. Whether its episode has intrinsics decides for all.
    """

    made: Mapping[str, ArraySpec]  # dtype and shape of the features of a frame of batches
    lengths: Mapping[str, int]  # how many of them a clip has

    def __init__(
        self,
        transform: Any,
        arrays: Mapping[str, ArraySpec],
        dataset: SeqRecordReader,
        *,
        clip_frames: ClipFrames,
        episode: int,
        start: int,
        frame_transform: FrameTransform | None,
    ) -> None:
        self._numbers = ClipNumbers(dataset)
        self.crops: SelectedCrops | None = None
        self.functions: ClipFunctions | None = None
        self.made, self.lengths = arrays, clip_frames.lengths
        steps, functions = chain_of(transform)
        if steps:
            self.crops = SelectedCrops(steps, arrays, dataset, episode)
            self.made = self.crops.made
        if functions:
            row, first = np.array([episode]), np.array([start])
            frames = {name: clip_frames.find(name, row, first) for name in arrays}
            clip = _read_clip(dataset, episode, frames, arrays, frame_transform)
            crop = self.draw(0, 0, row, first).crop
            views = self.views(clip, 0, crop)
            self.functions = ClipFunctions.of(functions, dataset, views, episode, start, arrays)
            made = self.functions.made
            self.made = {name: replace(spec, shape=spec.shape[1:]) for name, spec in made.items()}
            self.lengths = {name: int(spec.shape[0] or 0) for name, spec in made.items()}
        if taken := [name for name in SAID if name in self.made]:
            raise ClipError(
                "a feature has the name of what clips tell of their crop",
                file=dataset.url,
                got=", ".join(taken),
            )

    @property
    def cropped(self) -> frozenset[str]:
        """The features that have windows."""
        return frozenset() if self.crops is None else self.crops.crops.features

    def draw(
        self,
        seed: int,
        epoch: int,
        episode: IntArray,
        start: IntArray,
        *,
        sequences: ClipTable | None = None,
    ) -> Drawn:
        """For clips by the rows of their episodes and first frames, int64[n] each.

        That depends on seed, epoch, the episode's key and the first frame alone: that of the clip,
        or of the first clip of its row in `sequences`, so that all clips of a row get the same.
        """
        first = start if sequences is None else sequences.first_starts(episode, start)
        numbers = self._numbers.of(episode, first)
        crop = calls = None
        if self.crops is not None:
            crop = self.crops.draw(seed, epoch, numbers)
        if self.functions is not None:
            calls = self.functions.calls(seed, epoch, numbers, episode, start)
        return Drawn(crop, calls)

    def said(self, drawn: Drawn, episode: IntArray) -> dict[str, torch.Tensor]:
        """What batches say of it, tensors [clips, …]: see `SelectedCrops.said`."""
        if self.crops is None or drawn.crop is None:
            return {}
        return self.crops.said(drawn.crop, episode)

    @staticmethod
    def views(clip: Mapping[str, Any], number: int, crop: Crop | None) -> dict[str, Any]:
        """What functions are called with of clip `number` of those with these windows.

        `clip` has arrays [frames, …], or lists of frames, which may be texts.
        """
        views: dict[str, Any] = {}
        for name, frames in clip.items():
            if isinstance(frames, list):
                views[name] = [read_only(f) if isinstance(f, np.ndarray) else f for f in frames]
            elif crop is not None and name in crop.features:
                whole = np.arange(len(frames))
                views[name] = read_only(crop.view(name, number, frames, whole))
            else:
                views[name] = read_only(frames)
        return views


def _read_clip(
    dataset: SeqRecordReader,
    episode: int,
    frames: Mapping[str, FoundFrames],
    arrays: Mapping[str, ArraySpec],
    transform: FrameTransform | None,
) -> dict[str, Any]:
    """The frames of a clip of an episode as clips have them: arrays [frames, …], or lists."""
    found = dataset.episodes[dataset.index.key(episode)]
    clip: dict[str, Any] = {}
    if transform is None:
        for name, some in frames.items():
            if arrays[name].mask_of is None:
                clip[name] = _read_feature(found, dataset.features[name], some)
            stored = dataset.features.get(name)
            if stored is not None and arrays[name].is_fixed and not stored.is_fixed:
                clip[name], clip[mask_name(name)] = pad(stored, clip[name], arrays[name].shape)
        return clip
    made: dict[int, dict[str, Any]] = {}
    numbers = {name: some.frames[0].tolist() for name, some in frames.items()}
    for number in sorted(set().union(*numbers.values())):
        try:
            made[number] = apply_transform(transform, dict(found[number]))
        except Exception as error:
            add_place(error, "frame_transform", file=dataset.url, episode=found.key, frame=number)
            raise
    for name, some_numbers in numbers.items():
        values = [made[number][name] for number in some_numbers]
        clip[name] = np.stack(values) if arrays[name].value == "array" else values
    return clip


def _read_feature(episode: Episode, spec: FeatureSpec, clip: FoundFrames) -> Any:
    """A feature of one clip: an array [frames, …], or a list; zeros where nothing is known."""
    frames = clip.frames[0]
    known = np.ones(len(frames), bool) if clip.age is None else clip.age[0] >= 0
    values = episode.read(frames[known].tolist(), features=[spec.name])[spec.name]
    if known.all():
        return values
    nothing: Any = np.zeros([size or 0 for size in spec.shape], spec.dtype)
    if spec.value != "array":
        nothing = "" if spec.value == "text" else b""
    given = iter(values)
    every = [next(given) if is_known else nothing for is_known in known]
    return np.stack(every) if spec.is_fixed else every


_CAMERA = ("fx", "fy", "cx", "cy")


class SelectedCrops:
    """The crops of a dataset's clips. Picklable.

    Raises `ClipError` for steps that do not fit the features.

    Args:
        episode: the row of one of the episodes; whether it has intrinsics decides for all.
    """

    def __init__(
        self,
        steps: tuple[WindowStep, ...],
        arrays: Mapping[str, ArraySpec],
        dataset: SeqRecordReader,
        episode: int,
    ) -> None:
        kinds = {name: spec.kind for name, spec in dataset.features.items()}
        self._dataset = dataset
        self.crops = ClipCrops.of(steps, arrays, kinds)
        self.made = self.crops.specs(arrays)
        """What the features of a frame look like in batches."""
        self._flips = any(isinstance(step, HorizontalFlip) for step in self.crops.steps)
        self._cameras: dict[int, tuple[float, ...]] = {}
        self._has_intrinsics = not np.isnan(self._camera(episode)).all()

    def draw(self, seed: int, epoch: int, numbers: IntArray) -> Crop:
        """The windows of clips by what tells them apart, int64[n]."""
        return Crop(self.crops, self.crops.windows(seed, epoch, numbers))

    @property
    def tensors(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Dtype and shape for a clip of what `said` gives, by name."""
        every = {
            "crop": (torch.int64, (4,)),
            "flipped": (torch.bool, ()),
            "intrinsics": (torch.float64, (4,)),
        }
        is_said = {"crop": True, "flipped": self._flips, "intrinsics": self._has_intrinsics}
        return {name: kind for name, kind in every.items() if is_said[name]}

    def said(self, crop: Crop, episode: IntArray) -> dict[str, torch.Tensor]:
        """`crop`, int64[n, 4], and if there are such `flipped`, bool[n], and `intrinsics`,
        float64[n, 4]: not a number where an episode has none."""
        windows = crop.windows
        said = {"crop": torch.from_numpy(windows.crops)}
        if self._flips:
            said["flipped"] = torch.from_numpy(windows.flipped)
        if self._has_intrinsics:
            cameras = np.array([self._camera(row) for row in episode.tolist()])
            said["intrinsics"] = torch.from_numpy(windows.intrinsics(cameras))
        return said

    def _camera(self, row: int) -> tuple[float, ...]:
        """fx, fy, cx, cy of an episode's metadata, if they are of frames of this size."""
        if row not in self._cameras:
            camera = self._dataset.index.episode_metadata(row).get("camera")
            self._cameras[row] = _intrinsics(camera, *self.crops.frame)
        return self._cameras[row]


def _intrinsics(camera: Any, height: int, width: int) -> tuple[float, ...]:
    none = (float("nan"),) * len(_CAMERA)
    if not isinstance(camera, Mapping):
        return none
    if camera.get("width", width) != width or camera.get("height", height) != height:
        return none
    values = [camera.get(name) for name in _CAMERA]
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        return none
    return tuple(float(value) for value in values)  # type: ignore[arg-type]


_SALT = 0x73746570  # the draws are not those of crops


class SelectedSteps:
    """The steps of a dataset's clips. Picklable.

    Args:
        dilations: of which one is drawn for each clip.
        reverse: the probability that a clip's frames come in reverse.
        whole: for each of the dilations the clips, with stride 1, that lack nothing with it. They
            are not needed of a single one.
    """

    def __init__(
        self,
        dilations: Sequence[int],
        reverse: float,
        whole: Sequence[ClipTable],
        numbers: ClipNumbers,
    ) -> None:
        self._dilations = np.array(dilations)
        self._reverse = reverse
        self._whole = whole
        self._numbers = numbers
        self.names = self._names()
        """What batches say of them."""

    def draw(self, seed: int, epoch: int, episode: IntArray, start: IntArray) -> ClipSteps:
        """For clips by the rows of their episodes and their starts, int64[n] each.

        They depend on seed, epoch, the episode's key and the start alone, and on which dilations
        there are with which the clip lacks nothing: each of these is equally likely.
        """
        numbers = self._numbers.of(episode, start)
        shares = [
            (hash64(key_of(_SALT, seed, epoch, i), numbers) >> np.uint64(11)) * 2.0**-53
            for i in range(2)
        ]
        dilation = np.full(len(start), self._dilations[0])
        if len(self._dilations) > 1:
            fits = np.stack([table.has(episode, start) for table in self._whole], axis=1)
            count = np.cumsum(fits, axis=1)
            chosen = (shares[0] * count[:, -1]).astype(np.int64)
            dilation = self._dilations[np.argmax(count > chosen[:, None], axis=1)]
        return ClipSteps(dilation, shares[1] < self._reverse)

    def said(self, steps: ClipSteps) -> dict[str, torch.Tensor]:
        """`dilation`, int64[n], and `reversed`, bool[n], where they are drawn."""
        columns = {"dilation": steps.dilation, "reversed": steps.is_reversed}
        return {name: torch.from_numpy(columns[name]) for name in self.names}

    @property
    def tensors(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Dtype and shape for a clip of what `said` gives, by name."""
        every = {"dilation": (torch.int64, ()), "reversed": (torch.bool, ())}
        return {name: every[name] for name in self.names}

    def _names(self) -> tuple[str, ...]:
        drawn = {"dilation": len(self._dilations) > 1, "reversed": self._reverse > 0}
        return tuple(name for name, is_drawn in drawn.items() if is_drawn)


class ClipNumbers:
    """Numbers of the clips of a dataset, by the keys of their episodes. Picklable.

    What is drawn for clips depends on these, and so not on what else the dataset holds.
    """

    def __init__(self, dataset: SeqRecordReader) -> None:
        self._dataset = dataset
        self._known: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def of(self, episode: IntArray, start: IntArray) -> IntArray:
        """Of clips by the rows of their episodes and their starts; int64[n] each."""
        return np.array([self._number(row) for row in episode.tolist()], np.int64) + start

    def _number(self, row: int) -> int:
        if row not in self._known:
            key = self._dataset.index.key(row).encode()
            digest = hashlib.blake2b(key, digest_size=7).digest()
            self._known[row] = int.from_bytes(digest, "little")
        return self._known[row]
