"""Map-style random access to clips."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset

from seqrecord.clips import ClipTable
from seqrecord.frames import FrameTransform, add_place, apply_transform, check_arrays
from seqrecord.pipes.selection import ClipSelection
from seqrecord.reader import Dataset, EpisodeFilter
from seqrecord.storage import StorageLike

__all__ = ["SeqRecordDataset"]


class SeqRecordDataset(TorchDataset[dict[str, Any]]):
    """Clips by their number, for map-style training: `dataset[i]` is a clip as `SeqRecordPipe`'s.

    Clips are numbered episode by episode, front to back. Random order reads and decodes a frame
    for every clip that it is in: streaming is much faster. The arguments are those of
    `SeqRecordPipe`.
    """

    def __init__(
        self,
        location: StorageLike | Dataset,
        *,
        clip_len: int,
        stride: int = 1,
        dilation: int = 1,
        features: Sequence[str] | None = None,
        episodes: EpisodeFilter = None,
        frame_transform: FrameTransform | None = None,
        verify: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | PathLike[str] | None = None,
        cache_limit: int | str | None = None,
    ) -> None:
        self._selection = ClipSelection(
            location,
            clip_len=clip_len,
            stride=stride,
            dilation=dilation,
            features=features,
            episodes=episodes,
            frame_transform=frame_transform,
            verify=verify,
            storage_options=storage_options,
            cache_dir=cache_dir,
            cache_limit=cache_limit,
        )

    @property
    def dataset(self) -> Dataset:
        """The dataset that the clips come from, with the requested features."""
        return self._selection.dataset

    @property
    def clips(self) -> ClipTable:
        """All clips, and how many were left out."""
        return self._selection.clips

    def __len__(self) -> int:
        return self.clips.num_clips

    def __getitem__(self, number: int) -> dict[str, Any]:
        number = operator.index(number)
        if not -len(self) <= number < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        selection = self._selection
        row, start = selection.locate(number % len(self))
        key = selection.key(row)
        frames = range(start, start + selection.spec.span, selection.spec.dilation)
        arrays: dict[str, Any] = dict(self.dataset.episodes[key].read(frames))
        if selection.frame_transform is not None:
            arrays = self._transform(arrays, key, frames, selection.frame_transform)
        clip: dict[str, Any] = {
            name: [torch.from_numpy(frame) for frame in array]
            if isinstance(array, list)
            else torch.from_numpy(array)
            for name, array in arrays.items()
        }
        return {**clip, "episode": key, "start": start}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._selection.describe()})"

    def _transform(
        self, arrays: Mapping[str, Any], key: str, frames: range, transform: FrameTransform
    ) -> dict[str, Any]:
        """The arrays of a clip, each of its frames transformed."""
        stacked: dict[str, Any] = {
            name: np.empty((len(frames), *spec.shape), spec.dtype)
            for name, spec in self._selection.arrays.items()
        }
        for i, frame in enumerate(frames):
            try:
                made = apply_transform(transform, {name: a[i] for name, a in arrays.items()})
                check_arrays(made, self._selection.arrays)
            except Exception as error:
                url = self.dataset.url
                add_place(error, "frame_transform", file=url, episode=key, frame=frame)
                raise
            for name, array in made.items():
                stacked[name][i] = array
        return stacked
