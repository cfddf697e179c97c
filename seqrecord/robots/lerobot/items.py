"""`PlannedDataset`: items in LeRobot's form, by number or in the order of a `PlannedSampler`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import Dataset as TorchDataset

from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.robots.lerobot.form import channels_first, depth_in, numbers
from seqrecord.robots.lerobot.planned import ItemPlanner, PlannedIndex, PlannedReader
from seqrecord.store.processes.forks import PerProcess, cached_property
from seqrecord.store.tables.grids import ragged_arange
from seqrecord.store.text import counted

STATISTICS = ("bytes_read", "frames_decoded", "video_frames_decoded")

ImageTransforms = Callable[[torch.Tensor], torch.Tensor]


class Episodes:
    """Numbers of episodes and frames, and of these episodes' items. Arrays are int64.

    Attributes:
        lengths: frames of each episode.
        begins: the number of the first frame of each episode.
        chosen: the episodes with items, in ascending order.
        first_items: the number of the first item of each episode; -1 without items.
        num_items: the number of items, one per frame.
    """

    def __init__(self, lengths: IntArray, chosen: IntArray) -> None:
        self.lengths, self.chosen = lengths, chosen
        self.begins: IntArray = np.cumsum(lengths) - lengths
        counts = lengths[chosen]
        self.num_items = int(counts.sum())
        self.first_items = np.full(len(lengths), -1)
        self.first_items[chosen] = np.cumsum(counts) - counts

    def frames(self) -> IntArray:
        """Each item's frame number."""
        owner, offset = ragged_arange(self.lengths[self.chosen])
        return self.begins[self.chosen][owner] + offset


class PlannedDataset(TorchDataset[dict[str, Any]]):
    """Base class of map-style datasets with LeRobot's items.

    Subclasses set the attributes and define the abstract methods.

    Attributes:
        meta: LeRobot's metadata, or an equivalent.
        episodes: numbers of the selected episodes; `None`: all.
        depth_output_unit: "m" or "mm".
        image_transforms: function called with each image, or `None`.
        delta_indices: the windows in frames, or `None`.
        planner: plans and reads the items in order.
    """

    meta: Any
    episodes: Sequence[int] | None
    depth_output_unit: str
    image_transforms: ImageTransforms | None
    delta_indices: dict[str, list[int]] | None
    planner: ItemPlanner

    _numbers: Episodes
    _joined: Mapping[str, dict[str, Any]] = MappingProxyType({})  # features of companions
    _images: Mapping[str, bool]  # the images that are transformed, and whether they stay uint8
    _depths: Mapping[str, str | bool | None]  # their units, see `depth_in`
    _redecoded: Collection[str]  # images that an item by number decodes anew
    _reader: PerProcess[PlannedReader]

    @abstractmethod
    def __len__(self) -> int:
        """The number of items."""

    @abstractmethod
    def _read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Read items by number."""

    @abstractmethod
    def _task_numbers(self) -> list[int]:
        """The task number of each item."""

    @abstractmethod
    def _counted(self) -> Mapping[str, int]:
        """`STATISTICS` of items read by number in this process."""

    @property
    def fps(self) -> int:
        """Frames per second."""
        fps: int = self.meta.fps
        return fps

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """`meta.features`, and the features of joined datasets."""
        return {**self.meta.features, **self._joined}

    @property
    def num_frames(self) -> int:
        """The number of frames in the selected episodes, one per item."""
        return len(self)

    @property
    def num_episodes(self) -> int:
        """The number of selected episodes."""
        return len(self._numbers.chosen)

    @cached_property
    def absolute_to_relative_idx(self) -> dict[int, int] | None:
        """Item numbers by `index` of their frames; `None` if all episodes are selected."""
        if self.episodes is None:
            return None
        return {number: item for item, number in enumerate(self._numbers.frames().tolist())}

    @property
    def hf_dataset(self) -> Any:
        """LeRobot's table, with the column `task_index` only, for samples of an evaluation."""
        return SimpleNamespace(data=pa.table({"task_index": self._task_numbers()}))

    def __getitem__(self, number: int | slice) -> Any:
        """Return an item by number, or the items of a slice."""
        if isinstance(number, slice):
            return list(self.__getitems__(range(*number.indices(len(self)))))
        return self._take_items([number])[0]

    def __getitems__(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Return the items of a batch; called by a `DataLoader`.

        Items of a `PlannedSampler` were read ahead. Others are read in one call, each frame once.
        """
        if self._redecoded and not all(isinstance(number, PlannedIndex) for number in items):
            windows = self.delta_indices or {}
            pictures = counted(sum(len(windows.get(n, [0])) for n in self._redecoded), "picture")
            warn_once(
                f"{self.planner.name}: items without "
                f"seqrecord.lerobot.PlannedSampler: each decodes its own {pictures}, from a "
                "keyframe on; with the sampler each picture is decoded about once per epoch, and a "
                "larger cache_limit keeps decoded pictures in memory"
            )
        return self._take_items(items)

    def _take_items(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        reader = self._reader.get()
        items = [reader.take(n) if isinstance(n, PlannedIndex) else None for n in numbers]
        unplanned_numbers = [
            number for number, item in zip(numbers, items, strict=True) if item is None
        ]
        if unplanned_numbers:
            unplanned_items = iter(self._read(unplanned_numbers))
            items = [next(unplanned_items) if item is None else item for item in items]
        return [self._transformed(item) for item in items if item is not None]

    def _values(self, name: str, value: Any) -> Any:
        """The values of a batch in LeRobot's form."""
        if name in self._images:
            return channels_first(value, return_uint8=self._images[name])
        if name in self._depths:
            return depth_in(self.depth_output_unit, value.unsqueeze(-3), self._depths[name])
        return numbers(value)

    def _transformed(self, item: dict[str, Any]) -> dict[str, Any]:
        item = dict(item)  # which may come again
        if self.image_transforms is not None:
            for name in self._images:
                item[name] = self.image_transforms(item[name])
        return item

    def stats(self) -> dict[str, int]:
        """Return statistics of this process: `bytes_read`, `frames_decoded` and
        `video_frames_decoded` of all cameras together, including reference frames; and
        `items_in_order`, items read ahead.
        """
        planned, alone = self._reader.get().stats.report(), self._counted()
        return {name: planned[name] + alone[name] for name in STATISTICS} | {
            "items_in_order": planned["clips"]
        }

    def set_image_transforms(self, image_transforms: ImageTransforms | None) -> None:
        """Replace the function called with each image."""
        self.image_transforms = image_transforms

    def clear_image_transforms(self) -> None:
        """Remove the function called with each image."""
        self.set_image_transforms(None)
