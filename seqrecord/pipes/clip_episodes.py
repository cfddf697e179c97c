"""The episodes of clips: for functions of samples, and for the columns and draws of batches."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.clips.frames import ClipKeys, offset_range
from seqrecord.clips.tables import ClipSpec, ClipTable, IntArray
from seqrecord.errors import ClipError
from seqrecord.pipes.clip_windows import SelectedWindows
from seqrecord.reading.dataset import Dataset
from seqrecord.sampling.random_order import hash64, key_of
from seqrecord.schema import FeatureSpec
from seqrecord.text import repr_of

if TYPE_CHECKING:
    import pyarrow as pa

    from seqrecord.clips.frame_lists import FrameLists

_MOST_EPISODES = 1 << 14  # with metadata in memory
_FRAMES = 0x66726D73  # separates numbers of frame lists from numbers of starts
_COPIES = 0x636F7079


@dataclass(frozen=True, eq=False)
class DatasetEpisodes:
    """The episodes of a dataset. Implements `SampleEpisodes`. Picklable.

    Values of features are read once for the `selected` episodes.
    """

    windows: SelectedWindows
    selected: IntArray
    excerpts: FrameLists | None = None
    _values: dict[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)

    @property
    def keys(self) -> pa.StringArray:
        """See `SampleEpisodes`."""
        return self.windows.dataset.contents.index.keys

    @property
    def num_frames(self) -> IntArray:
        """See `SampleEpisodes`."""
        return self.windows.dataset.contents.index.num_frames

    def stored(self, clips: ClipKeys) -> tuple[IntArray, IntArray]:
        """See `SampleEpisodes`."""
        if self.excerpts is None:
            return clips.episode, clips.start
        return self.excerpts.episode[clips.episode], self.excerpts.starts_of(clips.row)

    def from_row(self, row: int) -> DatasetEpisodes:
        """See `SampleEpisodes`."""
        if self.excerpts is None:
            return self
        return replace(self, excerpts=self.excerpts.from_row(row))

    def extent(self, clips: ClipKeys, dilation: IntArray) -> tuple[IntArray, IntArray]:
        """See `SampleEpisodes`."""
        if self.excerpts is not None:
            frames = self.excerpts.filled_of(clips.row)
            return frames.min(axis=1), frames.max(axis=1)
        windows, last = self.windows.stored.windows.values(), self.num_frames[clips.episode] - 1
        before, after = offset_range([window.frame_offsets for window in windows])
        reach = (clips.start - before * dilation, clips.start + after * dilation)
        return np.clip(reach[0], 0, last), np.clip(reach[1], 0, last)

    def complete(self, dilation: int) -> ClipTable:
        """See `SampleEpisodes`."""
        return self.windows.enumerate(ClipSpec(1), self.selected, [dilation])

    def metadata(self, name: str, episodes: IntArray) -> list[Any]:
        """See `SampleEpisodes`."""
        index = self.windows.dataset.contents.index
        return [index.episode_metadata(row).get(name) for row in episodes.tolist()]

    def values(
        self, feature: str, episode: IntArray, frame: IntArray, *, segments: bool = False
    ) -> npt.NDArray[Any]:
        """See `SampleEpisodes`."""
        if feature not in self._values:
            self._values[feature] = self._read(feature)
        values = self._values[feature]
        if segments:
            values = np.cumsum(np.append(False, values[1:] != values[:-1]))
        count = self.num_frames[self.selected]
        place = (np.cumsum(count) - count)[np.searchsorted(self.selected, episode)] + frame
        found: npt.NDArray[Any] = values[place]
        return found

    def _read(self, feature: str) -> npt.NDArray[Any]:
        """The values of all frames of the selected episodes."""
        dataset, problem = self.windows.dataset, "samples have no such value of each frame"
        features = ", ".join(n for n, one in dataset.features.items() if _is_scalar(one))
        spec = dataset.features.get(feature)
        if spec is None or not _is_scalar(spec) or len(dataset.contents.missing_frames([feature])):
            expected = f"text or number, in all frames and in features=; such: {features or 'none'}"
            raise ClipError(problem, expected=expected, got=repr_of(feature, 100))
        dataset = dataset.select([feature])
        keys = dataset.contents.index.keys_of(self.selected)
        found = [np.asarray(dataset.episodes[key][:][feature]).reshape(-1) for key in keys]
        return np.concatenate(found)


def _is_scalar(spec: FeatureSpec) -> bool:
    return spec.value == "text" or (spec.is_fixed and math.prod(spec.shape) == 1)  # type: ignore[arg-type]


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
                drawn = hash64(key_of(_FRAMES, number), start + frame) >> np.uint64(8)
                start = drawn.astype(np.int64)
        numbers = np.array([one.number for one in self.of(clips.episode)], np.int64) + start
        if self.repeats:
            numbers += (hash64(key_of(_COPIES), clips.sample) >> np.uint64(8)).astype(np.int64)
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
