"""`LeRobotMixDataset`: the clips of a mix as items of LeRobot's dataset class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import torch

from seqrecord.errors import ClipError
from seqrecord.formats.export.lerobot_meta import TASK, TIMESTAMP
from seqrecord.loader.clips.windows import delta_timestamps as windows_in_frames
from seqrecord.loader.engine.arena import FORMS
from seqrecord.loader.mixing.agreement import differing_shapes, joined_features
from seqrecord.loader.mixing.mix import SeqRecordMix, mix_loader
from seqrecord.loader.mixing.order import StoppingStrategy
from seqrecord.loader.pipes.collating import collate
from seqrecord.loader.pipes.map_clips import MapClips
from seqrecord.robots.lerobot.items import STATISTICS, ImageTransforms, PlannedDataset
from seqrecord.robots.lerobot.mix_meta import MixMeta
from seqrecord.robots.lerobot.mix_planner import MixPlanner
from seqrecord.robots.lerobot.mix_sources import MixEpisodes, MixSource
from seqrecord.robots.lerobot.planned import PlannedReader
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.statistics.moments import FloatArray

_FLAGS = ("_dim_is_pad", "_is_pad", "_is_missing", "_padding_mask")  # ends of names of masks


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
            `clip_len` above 1, no dilation and no `samples`.
        repo_id: a name, for messages and checkpoints.
        episodes: numbers of episodes in the mix. Default: all.
        image_transforms: function called with each image.
        delta_timestamps: windows in seconds by feature.
        return_uint8: keep images as uint8; default: float32 in [0, 1].
        tolerance_s: seconds by which `delta_timestamps` may be off the steps of `meta.fps`.
        depth_output_unit: "mm" (default) or "m": the unit of depth in items and `meta`.
        cache_limit: memory of each process for decoded frames of items by number, of each source.
        stopping_strategy: end of an epoch; see `SeqRecordMix`. Default: that of the mix.
        deploy: name of the source whose statistics `meta.stats` has, and to whose values the
            others' are mapped; required with statistics "source" or "robot_type".
        normalization_mapping: that of the policy, which determines this map. Default: MEAN_STD.
        meta: metadata of the same mix, if already made with `MixMeta.of`, which has its own
            `deploy` and `normalization_mapping`.

    Attributes:
        meta: LeRobot's metadata of the mix, as of a merged dataset.
        delta_indices: `delta_timestamps` in frames, or `None`.
        sources: the sources.
    """

    _numbers: MixEpisodes

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
        deploy: str | None = None,
        normalization_mapping: Mapping[str, Any] | None = None,
        meta: MixMeta | None = None,
    ) -> None:
        self._loader, self._stop = mix_loader(mix), stopping_strategy
        self.repo_id, self.depth_output_unit = repo_id, depth_output_unit
        self.image_transforms, self.delta_timestamps = image_transforms, delta_timestamps
        if meta is None:
            meta = MixMeta.of(
                mix,
                repo_id,
                deploy=deploy,
                modes=normalization_mapping,
                depth_output_unit=depth_output_unit,
            )
        self.mix_meta = meta
        sources = self.mix_meta.sources
        self.meta, self.delta_indices = self.mix_meta.theirs, None
        if delta_timestamps is not None:
            self.delta_indices = windows_in_frames(
                delta_timestamps, self.fps, tolerance=tolerance_s
            )
        steps_of = self.mix_meta.statistics.normalizations
        deltas = self.delta_indices or {}
        self.sources = [source.with_windows(deltas, steps_of[source.name]) for source in sources]
        self._episode_numbers = {source.name: source.numbers for source in self.sources}
        rates = np.concatenate([source.rates for source in self.sources])
        self._rates = np.where(rates > 0, rates, self.fps)  # of each episode
        views = {source.name: source.view for source in self.sources}
        names = joined_features(views, self._loader.join)
        differing_shapes(views, views, names, alternate=False, own_units=None)
        self._names = {*names}
        self._missing = {
            n for n in names if any(n not in source.batch_arrays for source in views.values())
        }
        self._images = dict.fromkeys(self.mix_meta.images, return_uint8)
        self._depths = self.mix_meta.depths
        self._redecoded = {*self._images, *self._depths}
        self._readers = [MapClips(source.view, cache_limit) for source in self.sources]
        self._select(episodes)

    def _select(self, episodes: Sequence[int] | None) -> None:
        """Choose the episodes with items."""
        self.episodes = None if episodes is None else sorted({*episodes})
        self._numbers = MixEpisodes(self.sources, self.episodes)
        self._planner = MixPlanner(
            self.sources, self._numbers, self._loader, self._stop, self._items
        )
        self.planner = self._planner
        self._reader = PerProcess(partial(PlannedReader, self.planner))

    @property
    def order_identity(self) -> str:
        """A digest of the sources, episodes, features and shares that determine the order."""
        return self._planner.identity()

    def split(self, share: float) -> tuple[LeRobotMixDataset, LeRobotMixDataset]:
        """Hold out each source's last episodes for each task, rounded up.

        Returns the dataset of the other episodes, and that of the held-out ones, which has no image
        transforms. Raises `ClipError` if a source keeps no episode.
        """
        by_task: dict[tuple[str, str], list[int]] = {}
        numbers = self._numbers.chosen
        for source in self.sources:
            is_of_source = (numbers >= source.first_episode) & (
                numbers < source.first_episode + len(source.rows)
            )
            for number in numbers[is_of_source].tolist():
                task = self.mix_meta.first_tasks[number]
                by_task.setdefault((source.name, task), []).append(number)
        train_numbers, test_numbers = list[int](), list[int]()
        for task_numbers in by_task.values():
            count = len(task_numbers) - math.ceil(len(task_numbers) * share)
            train_numbers, test_numbers = (
                train_numbers + task_numbers[:count],
                test_numbers + task_numbers[count:],
            )
        if lacking := {name for name, _ in by_task} - {
            self._source_of(n).name for n in train_numbers
        }:
            raise ClipError(
                f"eval_split={share:g} leaves no episode of source {min(lacking)!r}",
                expected="a smaller share, or more episodes for each task",
            )
        parts = copy(self), copy(self)
        for part, episodes in zip(parts, (train_numbers, test_numbers), strict=True):
            part.__dict__.pop("absolute_to_relative_idx", None)
            part._loader = self._loader
            part._select(episodes)
        parts[1].image_transforms = None
        return parts

    def _source_of(self, episode: int) -> MixSource:
        return next(s for s in reversed(self.sources) if s.first_episode <= episode)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader": None}  # whose ranks are others; only `split` needs it

    def __len__(self) -> int:
        return self._numbers.num_items

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.repo_id!r}, {self.num_episodes} episodes, "
            f"{self.num_frames} frames, read by seqrecord: {self._planner.shown()})"
        )

    # ---- items

    def _read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = [{}] * len(numbers)
        source_numbers, frames = self._numbers.locate(numbers)
        for number in np.unique(source_numbers).tolist():
            [places] = np.nonzero(source_numbers == number)
            _check_numbered(self.sources[number])
            clips = self._filled(collate(self._readers[number].read(frames[places], 0)), number)
            for place, item in zip(places.tolist(), self._items(clips), strict=True):
                items[place] = item
        return items

    def _filled(self, clips: Mapping[str, Any], number: int) -> dict[str, Any]:
        """A batch of one source, with the features and masks of the others."""
        count = len(clips["start"])
        view = self.sources[number].view
        columns = {**clips, "dataset": [self.sources[number].name] * count}
        for other_view in (source.view for source in self.sources):
            for name in self._missing & other_view.batch_arrays.keys() - columns.keys():
                spec, length = other_view.batch_arrays[name], other_view.lengths[name]
                shape = (count, *(() if name in other_view.squeezed else (length,)))
                columns[name] = FORMS[spec.value_kind].missing(spec, shape)
            for column in other_view.columns.in_table(other_view.samples.in_epoch(0).samples):
                if column.name not in columns and column.dtype is not None:
                    is_all_padding = column.name.endswith("_dim_is_pad")  # of a missing feature
                    default = True if is_all_padding else None
                    columns[column.name] = column.missing(count, default=default)
        masks = {f"{name}_is_missing": name not in view.batch_arrays for name in self._missing}
        if self._planner.has_camera_masks:
            masks |= {f"{name}_padding_mask": name in view.batch_arrays for name in self._images}
        return columns | {n: torch.full((count,), flag, device="cpu") for n, flag in masks.items()}

    def _items(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        """Convert a batch to items."""
        columns = {
            name: self._values(name, batch_column)
            for name, batch_column in batch.items()
            if not self._names.isdisjoint((name, _described(name)))
        }
        for name, batch_column in columns.items():
            if isinstance(batch_column, list):  # without texts of sources that lack the feature
                columns[name] = ["" if text is None else text for text in batch_column]
        for name, fill in self.mix_meta.statistics.fills.items():
            columns[name] = _padded(columns[name], name, batch, fill)
        pairs = zip(batch["dataset"], batch["episode"], strict=True)
        episode = np.array([self._episode_numbers[name][key] for name, key in pairs])
        start = batch["start"].numpy()
        columns["dataset"] = batch["dataset"]
        columns["frame_index"] = torch.from_numpy(start)
        columns["episode_index"] = torch.from_numpy(episode)
        columns["index"] = torch.from_numpy(self._numbers.begins[episode] + start)
        if TIMESTAMP not in columns:
            columns[TIMESTAMP] = torch.from_numpy((start / self._rates[episode]).astype(np.float32))
        first_tasks = self.mix_meta.first_tasks
        batch_texts = batch.get(TASK, [None] * len(start))
        texts = [
            text or first_tasks[at] for text, at in zip(batch_texts, episode.tolist(), strict=True)
        ]
        columns[TASK] = texts
        columns["task_index"] = torch.tensor(
            [self.mix_meta.tasks.get(t, -1) for t in texts], device="cpu"
        )
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _task_numbers(self) -> list[int]:
        task_numbers: list[int] = []
        for number in self._numbers.chosen.tolist():
            source = self._source_of(number)
            count, texts = int(self._numbers.lengths[number]), list[str | None]()
            if TASK in source.dataset.features:
                key = source.keys[number - source.first_episode]
                texts = source.dataset.select([TASK]).episodes[key][:][TASK]
            first_task = self.mix_meta.first_tasks[number]
            task_numbers += [
                self.mix_meta.tasks.get(text or first_task, -1) for text in texts or [None] * count
            ]
        return task_numbers

    def _counted(self) -> Mapping[str, int]:
        reports = [report.stats.report() for report in self._readers]
        return {name: sum(report[name] for report in reports) for name in STATISTICS}


def _padded(
    values: torch.Tensor, name: str, batch: Mapping[str, Any], fill: FloatArray
) -> torch.Tensor:
    """Fill padding, and features that a source lacks, with values normalised to 0."""
    is_pad = torch.zeros(len(values), len(fill), dtype=torch.bool, device="cpu")
    if (mask := batch.get(f"{name}_dim_is_pad")) is not None:
        is_pad |= mask
    if (mask := batch.get(f"{name}_is_missing")) is not None:
        is_pad |= mask[:, None]
    if not fill.any() or not is_pad.any():
        return values
    # A feature of one value may have no axis for it.
    shape = (len(values), *(1,) * (values.ndim - 2), *([len(fill)] if values.ndim > 1 else []))
    filled = torch.from_numpy(fill.astype(np.float32)).to(values.dtype)
    return torch.where(is_pad.reshape(shape), filled, values)


def _described(name: str) -> str:
    """The feature that a mask describes; a name that is no mask's, unchanged."""
    for end in _FLAGS:
        if name.endswith(end):
            return name.removesuffix(end)
    return name


def _check_numbered(source: MixSource) -> None:
    clips = source.view.samples.common.clips
    if clips.num_clips != int(source.lengths.sum()):
        raise ClipError(
            f"source {source.name!r} has frames without a feature, so its items have no numbers",
            file=source.dataset.url,
            expected=f"PlannedSampler; or other features: {clips.num_incomplete} frames lack one",
        )
