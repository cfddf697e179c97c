"""What is drawn for the clips of a selection, and what batches tell of clips beside features."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from seqrecord.clips.frames import ClipSteps
from seqrecord.clips.tables import ClipTable, IntArray
from seqrecord.clips.transforms import CropStep, HorizontalFlip
from seqrecord.engine.calls import ClipFunctions, Drawn
from seqrecord.engine.crops import ClipCrops, Crop
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.frames import ArraySpec
from seqrecord.sampling.random_order import hash64, key_of

__all__ = ["ClipDraws", "EpisodeFacts", "Facts", "SelectedSteps"]

_MOST_EPISODES = 1 << 14  # of which facts are in memory, of those that came last
_CAMERA = ("fx", "fy", "cx", "cy")
_SALT = 0x73746570  # the draws are not those of crops


class Facts(NamedTuple):
    """What batches need to know of an episode."""

    key: str
    number: int  # of its key; what is drawn depends on it, not on what else the dataset holds
    metadata: dict[str, Any]  # `None` where there is none


class EpisodeFacts:
    """The facts of episodes, with these entries of their metadata. Picklable."""

    def __init__(self, dataset: Dataset, metadata: Sequence[str]) -> None:
        self._dataset, self._metadata = dataset, metadata
        self._known: dict[int, Facts] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def of(self, episode: IntArray) -> list[Facts]:
        """Of the episodes in these rows, int64[n]."""
        return [self._known.get(row) or self._find(row) for row in episode.tolist()]

    def numbers(self, episode: IntArray, start: IntArray) -> IntArray:
        """Numbers of clips by the rows of their episodes and their starts; int64[n] each."""
        return np.array([facts.number for facts in self.of(episode)], np.int64) + start

    def _find(self, row: int) -> Facts:
        index, known = self._dataset.contents.index, self._known
        key, entries = index.key(row), index.episode_metadata(row) if self._metadata else {}
        digest = hashlib.blake2b(key.encode(), digest_size=7).digest()
        metadata = {name: entries.get(name) for name in self._metadata}
        if len(known) > _MOST_EPISODES:  # another thread may clear what is looked for here
            known.clear()
        known[row] = facts = Facts(key, int.from_bytes(digest, "little"), metadata)
        return facts


class ClipDraws:
    """What a `clip_transform` makes of a dataset's clips. Picklable if its functions are.

    Raises `ClipError` for steps that do not fit the features.

    Args:
        steps: crops and flips.
        arrays: of the features of a frame, after `frame_transform`.
        facts: of episodes, with the metadata `camera`.
        episode: the row of one of the episodes, int64[1]; whether it has intrinsics decides for
            all.

    Attributes:
        made: `arrays` after the crops.
        functions: called with the clips after these, once they are set.
    """

    crops: ClipCrops | None = None
    functions: ClipFunctions | None = None

    def __init__(
        self,
        steps: tuple[CropStep, ...],
        arrays: Mapping[str, ArraySpec],
        dataset: Dataset,
        facts: EpisodeFacts,
        episode: IntArray,
    ) -> None:
        self._facts, self.made = facts, arrays
        if steps:
            kinds = {name: spec.kind for name, spec in dataset.features.items()}
            self.crops = ClipCrops.of(steps, arrays, kinds)
            self.made = self.crops.specs(arrays)
            self._has_intrinsics = not np.isnan(self._cameras(facts.of(episode))).all()

    @property
    def is_any(self) -> bool:
        """Whether there is anything to draw."""
        return self.crops is not None or self.functions is not None

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
        if not self.is_any:
            return Drawn()
        first = start if sequences is None else sequences.first_starts(episode, start)
        numbers, crop, calls = self._facts.numbers(episode, first), None, None
        if self.crops is not None:
            crop = Crop(self.crops, self.crops.windows(seed, epoch, numbers))
        if self.functions is not None:
            calls = self.functions.calls(seed, epoch, numbers, episode, start)
        return Drawn(crop, calls)

    def told(self, drawn: Drawn, facts: Sequence[Facts]) -> dict[str, torch.Tensor]:
        """What batches tell of it: `crop`, int64[n, 4], and if there are such `flipped`, bool[n],
        and `intrinsics`, float64[n, 4], NaN where an episode has none."""
        if self.crops is None or drawn.crop is None:
            return {}
        windows = drawn.crop.windows
        told = {"crop": torch.from_numpy(windows.crops)}
        if any(isinstance(step, HorizontalFlip) for step in self.crops.steps):
            told["flipped"] = torch.from_numpy(windows.flipped)
        if self._has_intrinsics:
            told["intrinsics"] = torch.from_numpy(windows.intrinsics(self._cameras(facts)))
        return told

    def _cameras(self, facts: Sequence[Facts]) -> Any:
        """fx, fy, cx, cy of episodes whose camera is of frames of this size; float64[n, 4]."""
        assert self.crops is not None
        cameras = [_intrinsics(one.metadata["camera"], *self.crops.frame) for one in facts]
        return np.array(cameras, np.float64).reshape(-1, len(_CAMERA))


def _intrinsics(camera: Any, height: int, width: int) -> list[float]:
    if isinstance(camera, Mapping):
        values = [camera.get(name) for name in _CAMERA]
        fits = camera.get("width", width) == width and camera.get("height", height) == height
        if fits and all(type(value) in (int, float) for value in values):
            return values  # type: ignore[return-value]
    return [float("nan")] * len(_CAMERA)


@dataclass(frozen=True, eq=False)
class SelectedSteps:
    """The steps of a dataset's clips. Picklable.

    Args:
        dilations: of which one is drawn for each clip.
        reverse: the probability that a clip's frames come in reverse.
        whole: for each of the dilations the clips, with stride 1, that lack nothing with it. They
            are not needed of a single one.
    """

    dilations: Sequence[int]
    reverse: float
    whole: Sequence[ClipTable]
    facts: EpisodeFacts

    def draw(self, seed: int, epoch: int, episode: IntArray, start: IntArray) -> ClipSteps:
        """For clips by the rows of their episodes and their starts, int64[n] each.

        They depend on seed, epoch, the episode's key and the start alone, and on which dilations
        there are with which the clip lacks nothing: each of these is equally likely.
        """
        numbers = self.facts.numbers(episode, start)
        shares = [
            (hash64(key_of(_SALT, seed, epoch, i), numbers) >> np.uint64(11)) * 2.0**-53
            for i in range(2)
        ]
        dilation = np.full(len(start), self.dilations[0])
        if len(self.dilations) > 1:
            fits = np.stack([table.has(episode, start) for table in self.whole], axis=1)
            count = np.cumsum(fits, axis=1)
            chosen = (shares[0] * count[:, -1]).astype(np.int64)
            dilation = np.array(self.dilations)[np.argmax(count > chosen[:, None], axis=1)]
        return ClipSteps(dilation, shares[1] < self.reverse)

    def told(self, steps: ClipSteps) -> dict[str, torch.Tensor]:
        """What batches tell of it: `dilation`, int64[n], and `reversed`, bool[n], where drawn."""
        told = {}
        if len(self.dilations) > 1:
            told["dilation"] = torch.from_numpy(steps.dilation)
        if self.reverse:
            told["reversed"] = torch.from_numpy(steps.is_reversed)
        return told
