"""The columns of batches beside features: episode, start, random parameters, padding, metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import ClipError
from seqrecord.loader.engine.batches import ClipDraws
from seqrecord.loader.pipes.clip_windows import FeatureWindows
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of
from seqrecord.store.clips.frames import ClipFrames, ClipKeys, SampleValues, WindowFrames
from seqrecord.store.clips.tables import IntArray
from seqrecord.store.reading.array_specs import ArraySpec
from seqrecord.store.reading.dataset import Dataset

if TYPE_CHECKING:
    from seqrecord.loader.clips.frame_lists import FrameLists
    from seqrecord.loader.engine.calls import ClipFunctions
    from seqrecord.loader.engine.crops import ClipCrops, DrawBatch

_MOST_EPISODES = 1 << 14  # with metadata in memory

FRAMES_IS_PAD = "frames_is_pad"
"""Name of the mask of lists of frames that differ in length: true behind a shorter list."""

DIM_IS_PAD = "_dim_is_pad"
"""End of the names of masks: values of the last axis that the source lacks."""


class EpisodeMetadata(NamedTuple):
    """Key, number and metadata of an episode."""

    key: str
    number: int  # a hash of the key: draws do not depend on other episodes
    metadata: dict[str, Any]  # `None` where there is none


@dataclass(frozen=True, eq=False)
class ClipEpisodes:
    """Looks up keys, numbers and metadata of episodes. Picklable.

    `metadata` has the names of entries. With `excerpts`, episode rows are rows of excerpts. If an
    epoch `repeats` clips, copies of a clip have different numbers.
    """

    dataset: Dataset
    metadata: Sequence[str]
    excerpts: FrameLists | None
    repeats: bool
    _known: dict[int, EpisodeMetadata] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def of(self, episode: IntArray) -> list[EpisodeMetadata]:
        """The metadata of episodes by row, int64[n]."""
        return [self._known.get(row) or self._find(row) for row in self.rows(episode).tolist()]

    def rows(self, episode: IntArray) -> IntArray:
        """The rows of episodes in the index, int64[n]."""
        return episode if self.excerpts is None else self.excerpts.episode[episode]

    def key(self, row: int) -> str:
        """The key of the episode in this row of the index."""
        return self.dataset.contents.index.key(row)

    def frames(self, clips: ClipKeys) -> IntArray | None:
        """The frames of clips from frame lists, int64[n, T]; `None` for other clips."""
        return None if self.excerpts is None else self.excerpts.frames_of(clips.row)

    @property
    def lists_differ(self) -> bool:
        """Whether clips are lists of frames that differ in length."""
        return self.excerpts is not None and self.excerpts.length_of is not None

    def starts(self, clips: ClipKeys) -> IntArray:
        """The first frames of clips in their stored episodes, int64[n]."""
        return clips.start if self.excerpts is None else self.excerpts.starts_of(clips.row)

    def numbers(self, clips: ClipKeys) -> IntArray:
        """Numbers of clips, int64[n], which depend on the keys of episodes and the starts, and on
        the samples if an epoch repeats clips."""
        start = clips.start
        if (frames := self.frames(clips)) is not None:
            start = np.zeros_like(start)
            for number, frame in enumerate(frames.T):
                drawn = hash64(key_of(Purpose.LISTED_FRAMES, number), start + frame) >> np.uint64(8)
                start = drawn.astype(np.int64)
        numbers = np.array([one.number for one in self.of(clips.episode)], np.int64) + start
        if self.repeats:
            numbers += (hash64(key_of(Purpose.COPIES), clips.sample) >> np.uint64(8)).astype(
                np.int64
            )
        return numbers

    def _find(self, row: int) -> EpisodeMetadata:
        index, known = self.dataset.contents.index, self._known
        key, entries = index.key(row), index.episode_metadata(row) if self.metadata else {}
        digest = hashlib.blake2b(key.encode(), digest_size=7).digest()
        metadata = {name: entries.get(name) for name in self.metadata}
        if len(known) > _MOST_EPISODES:  # another thread may clear it meanwhile
            known.clear()
        known[row] = found = EpisodeMetadata(key, int.from_bytes(digest, "little"), metadata)
        return found


class NoDraws:
    """No random parameters of clips; `draws.AugmentationSampler` has those of a `clip_transform`.

    Attributes:
        made: arrays of a frame in batches, before functions.
        crops: the crops of each camera.
        functions: functions called after the crops.
        is_any: whether there is anything to draw.
        is_random: whether the draws of a clip differ by epoch.
    """

    crops: tuple[ClipCrops, ...] = ()
    functions: ClipFunctions | None = None
    is_any = is_random = False

    def __init__(self, made: Mapping[str, ArraySpec]) -> None:
        self.made = made

    def draw(self, *_: Any, **_settings: Any) -> ClipDraws:
        """Draw parameters for clips; see `AugmentationSampler.draw`."""
        return ClipDraws()

    def sizes(self, draw_batch: DrawBatch) -> dict[str, tuple[int, int]]:  # noqa: ARG002
        """Height and width of features in a batch, if batches differ in size."""
        return {}

    def columns(
        self,
        drawn: ClipDraws,  # noqa: ARG002
        metadata: Sequence[EpisodeMetadata],  # noqa: ARG002
        episode: IntArray,  # noqa: ARG002
    ) -> dict[str, Any]:
        """Columns of the parameters."""
        return {}


@dataclass(frozen=True, eq=False)
class BatchColumns:
    """Makes the columns of batches beside features. Picklable.

    `span` is the number of frames from which a clip's frames are drawn. `metadata` has the names of
    metadata entries that become columns, and `constants` the columns that are the same for all
    clips.
    """

    episodes: ClipEpisodes
    windows: FeatureWindows
    draws: NoDraws
    span: int | None
    metadata: tuple[str, ...] = ()
    constants: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def of(
        self, clips: ClipKeys, frames: ClipFrames, drawn: ClipDraws
    ) -> tuple[dict[str, Any], int]:
        """The columns of n clips, each a list or a tensor, and the number of window times without a
        frame nearby.

        Columns: `episode`, a list of keys; `start`, int64[n]; random parameters;
        `<feature>_is_pad`, bool[n, T]; `<feature>_age`, int64[n, T]; `<feature>_dim_is_pad`,
        bool[n, size]; columns of the table of samples; and lists of metadata, `None` if an episode
        lacks an entry.

        Args:
            clips: the clips.
            frames: the frames of each feature, and the samples of the epoch.
            drawn: the random parameters.
        """
        metadata, windows, num_far = self.episodes.of(clips.episode), self.windows, 0
        steps, length = None, None
        if frames.draw is not None:
            steps = frames.draw(clips)
            if steps.num_frames is not None and len(metadata):  # equal in a batch
                length = int(steps.num_frames[0])
        columns: dict[str, Any] = {"episode": [one.key for one in metadata]}
        listed = self.episodes.frames(clips)
        columns["start"] = torch.from_numpy(self.episodes.starts(clips))
        if listed is not None:
            columns["frames"] = torch.from_numpy(listed)
            if self.episodes.lists_differ:
                columns[FRAMES_IS_PAD] = torch.from_numpy(listed < 0)
        elif self.span is not None:
            found = windows.selected.usual.find(clips, frames).frames
            columns["frames"] = torch.from_numpy(found[:, :length])
        columns |= self.draws.columns(drawn, metadata, clips.episode)
        by_window: dict[object, WindowFrames] = {}
        for name in dict.fromkeys((*windows.padded, *windows.distant)):
            key = frames.windows[name].key
            if key not in by_window:
                by_window[key] = frames.find(name, clips)
            of_window = by_window[key]
            if name in windows.padded:  # users may change the copies
                columns[f"{name}_is_pad"] = torch.from_numpy(of_window.is_pad[:, :length].copy())
                num_far += of_window.num_far
            if of_window.age is not None:
                columns[windows.distant[name]] = torch.from_numpy(of_window.age[:, :length].copy())
        if steps is not None and frames.samples is not None:
            if "dilation" in frames.samples.columns:
                columns["dilation"] = torch.from_numpy(steps.dilation)
            if "reverse" in frames.samples.columns:
                columns["reversed"] = torch.from_numpy(steps.is_reversed)
        for name, constant in self.constants.items():
            columns[name] = torch.from_numpy(np.tile(constant, (len(metadata), 1)))
        for name in self.metadata:  # users may change the copy
            columns[name] = [deepcopy(one.metadata[name]) for one in metadata]
        return {**columns, **_own(clips, frames.samples, columns)}, num_far


def _own(
    clips: ClipKeys, samples: SampleValues | None, others: Mapping[str, Any]
) -> dict[str, Any]:
    """The columns of the table of samples."""
    found: dict[str, Any] = {}
    if samples is None:
        return found
    for name in samples.own:
        if name in others:
            problem = "samples has the name of another column of batches"
            raise ClipError(problem, expected="another name", got=name)
        values = samples.values(name, clips)
        found[name] = values if isinstance(values, list) else torch.from_numpy(values)
    return found
