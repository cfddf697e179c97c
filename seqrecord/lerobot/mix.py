"""`LeRobotMixDataset`: the clips of a mix as items of LeRobot's dataset class."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import torch

from seqrecord.clips.windows import delta_timestamps as windows_in_frames
from seqrecord.errors import ClipError
from seqrecord.lerobot.form import channels_first, millimetres, numbers
from seqrecord.lerobot.items import STATISTICS, ImageTransforms, PlannedDataset
from seqrecord.lerobot.mix_meta import MixMeta, mix_meta
from seqrecord.lerobot.mix_planner import MixPlanner
from seqrecord.lerobot.mix_sources import TASK, TIMESTAMP, MixSource, mix_sources
from seqrecord.lerobot.planned import Order, PlannedReader
from seqrecord.pipes.clip_reader import ClipReader
from seqrecord.pipes.collating import collate
from seqrecord.pipes.loaders import SeqRecordIterableDataset
from seqrecord.pipes.mix import SeqRecordMix
from seqrecord.pipes.mix_loader import MixLoader
from seqrecord.pipes.mix_sources import StoppingStrategy
from seqrecord.processes.forks import PerProcess

_FLAGS = ("_is_pad", "_is_missing", "_padding_mask", "_dim_is_pad")  # ends of names of masks


class LeRobotMixDataset(PlannedDataset):
    """Items of several datasets, mixed by weight, in the form of LeRobot's dataset class.

    An item is a frame of a source with the windows of a policy. Items have the features of the mix:
    a feature missing in a source is 0, and `<feature>_is_missing` marks it. `index`,
    `episode_index` and `task_index` count over all sources, as in a merged dataset; `dataset` is
    the name of the source. `PlannedSampler` gives the items in the order of `SeqRecordMix`, with
    its shares; each frame is decoded about once per epoch.

    `delta_timestamps` are steps of a policy at the rate `meta.fps`. Each source has equally many of
    its own steps, whatever its rate. A window of a source's own, for example in seconds, is kept if
    it has as many frames.

    Raises `ClipError` if a window of a source has another number of frames, or if the sources'
    features have different shapes; and `MissingPackageError` without LeRobot.

    Usage::

        from seqrecord.lerobot import LeRobotMixDataset, PlannedSampler

        mix = seqrecord.SeqRecordMix(sources, batch_size=8)
        dataset = LeRobotMixDataset(mix, delta_timestamps={"action": [i / 30 for i in range(16)]})
        sampler = PlannedSampler(dataset, batch_size=8, num_workers=2)
        loader = torch.utils.data.DataLoader(dataset, 8, sampler=sampler, num_workers=2)

    Args:
        mix: the mix. Its batch size, seed, ranks and device are ignored; its sources have no
            `clip_len` above 1, no dilation and no `clips`.
        repo_id: a name, for messages and checkpoints.
        episodes: numbers of episodes in the mix. Default: all.
        image_transforms: function called with each image.
        delta_timestamps: windows in seconds by feature.
        return_uint8: images stay uint8; default: float32 in [0, 1].
        cache_limit: memory of each process for decoded frames of items by number, of each source.
        stopping_strategy: end of an epoch; see `SeqRecordMix`. Default: that of the mix.
        meta: metadata of the same mix, if already made.

    Attributes:
        meta: LeRobot's metadata of the mix, as of a merged dataset.
        delta_indices: `delta_timestamps` in frames, or `None`.
        sources: the sources.
    """

    def __init__(
        self,
        mix: SeqRecordMix,
        *,
        repo_id: str = "mix",
        episodes: Sequence[int] | None = None,
        image_transforms: ImageTransforms | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        return_uint8: bool = False,
        tolerance_s: float = 1e-4,
        depth_output_unit: str = "mm",
        cache_limit: int | str = "512MiB",
        stopping_strategy: StoppingStrategy | None = None,
        meta: MixMeta | None = None,
    ) -> None:
        self.repo_id, self.episodes = repo_id, None if episodes is None else sorted({*episodes})
        self.image_transforms, self.delta_timestamps = image_transforms, delta_timestamps
        self.depth_output_unit = depth_output_unit
        loader = mix._mix
        self._mix = loader
        self._stop = loader.stop if stopping_strategy is None else stopping_strategy
        made = mix_meta(loader, repo_id) if meta is None else meta
        self.made, self.meta = made, made.theirs
        self.delta_indices = None
        if delta_timestamps is not None:
            deltas = {name: list(times) for name, times in delta_timestamps.items()}
            self.delta_indices = windows_in_frames(deltas, self.fps, tolerance=tolerance_s)
        self.sources = mix_sources(loader.loaders, self.delta_indices or {})
        self._images = {name: return_uint8 for name in made.images}
        self._redecoded = {*self._images, *made.depths}
        self._number_episodes()
        names = ", ".join(loader.loaders)
        chosen = {one.name: self._chosen_of(one) for one in self.sources}
        first, first_items = 0, {}
        for one in self.sources:
            first_items[one.name] = one.first_items(chosen[one.name], first)
            first += int(one.lengths[[*chosen[one.name]]].sum())
        self.planner = MixPlanner(f"mix of {names}", self._loader, first_items, self._items)
        self._reader = PerProcess(partial(PlannedReader, self.planner))
        self._readers = {one.name: ClipReader(one.selection, cache_limit) for one in self.sources}
