"""`LeRobotDataset`: a replacement of LeRobot's class, read by seqrecord."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from seqrecord.errors import ClipError, SourceError
from seqrecord.formats.sources.lerobot.language import EVENTS, PERSISTENT
from seqrecord.formats.sources.lerobot.layout import (
    number_columns,
    read_episodes,
    read_info,
    read_texts,
)
from seqrecord.formats.sources.video.streams import TOLERANCE
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.clips.windows import delta_timestamps
from seqrecord.loader.frames.array_specs import array_spec_of
from seqrecord.loader.pipes.collating import collate
from seqrecord.loader.pipes.frame_arrays import ragged_arrays
from seqrecord.loader.pipes.map_dataset import SeqRecordMapDataset
from seqrecord.loader.pipes.option_values import FrameCache
from seqrecord.robots.lerobot.items import Episodes, PlannedDataset
from seqrecord.robots.lerobot.planned import ClipPlanner, PlannedReader
from seqrecord.store.bfloat16 import dtype_name
from seqrecord.store.lazy import import_extra
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.reading.dataset import Dataset, DatasetLike, skipping_bad_episodes
from seqrecord.store.reading.opening import Check, Companion, dataset_of, open_joined
from seqrecord.store.reading.resizing import Sizes
from seqrecord.store.text import shown_place

_PACKAGE = "seqrecord.lerobot needs LeRobot's own package: pip install 'lerobot[dataset]'"


class LeRobotDataset(PlannedDataset):
    """Replacement of `lerobot.datasets.lerobot_dataset.LeRobotDataset` for reading.

    Items equal those of LeRobot's class up to the decoder (this one is PyAV). They have all
    features of `meta.features`: [T, …] and a mask `<feature>_is_pad`, bool [T], with a window.
    Images are float32 [C, H, W] in [0, 1], or uint8.

    Files are read in place, and downloaded completely from the Hub if LeRobot's
    class would download any. Features whose decoded frames all fit into `cache_limit` are kept in
    memory in each process: from the second epoch on, persistent workers and the main process decode
    nothing, in any order. In larger datasets each item decodes its own frames; in the order of
    `PlannedSampler` each frame is decoded about once per epoch.

    Raises `ClipError` (a `ValueError`) if a time in `delta_timestamps` misses every frame by more
    than `tolerance_s`; `SourceError` if the dataset contradicts its `meta`, or if a video frame is
    `tolerance_s` or more away from its time; and `MissingPackageError` without LeRobot. All checks
    run at once, not when an item is read.

    Usage::

        from seqrecord.lerobot import LeRobotDataset

        dataset = LeRobotDataset("user/name", root="lerobot/")
        item = dataset[0]

    Args:
        repo_id: name on the Hub. This argument and the others up to `token` are the same as in
            LeRobot's class.
        video_backend: ignored.
        records: the dataset as records of `seqrecord write`, read instead of its files: a path, a
            URL, or an open dataset. Required for images in tables.
        cache_limit: memory of each process for decoded frames that are kept, smallest features
            first, as bytes or text such as "512MiB".
        resize: height and width of images in pixels, `{"observation.images.top": (224, 224)}`, or
            `(224, 224)` for all. Default: the stored size. `meta.features` keeps the stored shapes.
        skip_bad_episodes: leave out selected episodes that cannot be read, instead of an error;
            `episodes` lists the others then. Nothing is downloaded if there is a folder `data`.
        frame_cache: folder for decoded frames, as for `SeqRecordPipe`.
        join: companions, as for `seqrecord.open`: items and `features` have their features too,
            `meta.features` does not.
        missing: as for `seqrecord.open`, but not `"drop"`, since items are numbered as in LeRobot's
            class.
        check: as for `seqrecord.open`.
        meta: LeRobot's metadata if already loaded, with statistics of depth in `depth_output_unit`.

    Attributes:
        meta: LeRobot's metadata.
        delta_indices: `delta_timestamps` in frames, or `None`.
        clips: the items as a `seqrecord.SeqRecordMapDataset`.
        first_items: the number of the first item of each episode that can be read, int64
            [episodes]; -1 for unselected episodes.
    """

    def __init__(
        self,
        repo_id: str,
        root: str | PathLike[str] | None = None,
        episodes: Sequence[int] | None = None,
        episode_filter: Callable[[dict[str, Any]], bool] | None = None,
        image_transforms: Callable[[torch.Tensor], torch.Tensor] | None = None,
        delta_timestamps: dict[str, list[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        video_backend: str | None = None,  # noqa: ARG002
        return_uint8: bool = False,
        depth_output_unit: str = "mm",
        *,
        token: str | bool | None = None,
        records: DatasetLike | None = None,
        cache_limit: int | str = "512MiB",
        resize: Sizes | None = None,
        skip_bad_episodes: bool = False,
        frame_cache: FrameCache | None = None,
        meta: Any = None,
        join: Sequence[Companion] | Companion = (),
        missing: Literal["error", "pad"] = "error",
        check: Check = "pages",
    ) -> None:
        login = {} if token is None else {"token": token}
        self.repo_id, self.tolerance_s = repo_id, tolerance_s
        self.delta_timestamps, self.image_transforms = delta_timestamps, image_transforms
        self.depth_output_unit = depth_output_unit
        self.meta = meta
        if meta is None:
            options = {"force_cache_sync": force_cache_sync, **login}
            self.meta = read_metadata(depth_output_unit, repo_id, root, revision, **options)
        depths = getattr(self.meta, "depth_keys", [])
        if episode_filter is not None:
            episodes = self.meta.filter_episodes(episode_filter, candidates=episodes)
        self.episodes = episodes
        how = root, login, skip_bad_episodes
        dataset = self._open(*how) if records is None else dataset_of(records)
        own_names = {*dataset.features}
        dataset = open_joined(
            lambda _: dataset,
            join,
            missing=missing,
            check=check,
            skip_bad_episodes=skip_bad_episodes,
        )
        self._joined = {
            name: {
                "dtype": "string" if spec.value == "text" else spec.dtype.name,
                "shape": spec.shape if spec.value == "array" else (1,),
                "names": None,
            }
            for name, spec in dataset.features.items()
            if name not in own_names
        }
        # Padded, as items are tensors of one shape, which any `collate_fn` joins.
        values = {name: array_spec_of(values) for name, values in dataset.dictionaries.items()}
        self._of_texts, _ = ragged_arrays("pad", values)
        self._joined |= {
            name: {"dtype": dtype_name(spec.dtype), "shape": spec.shape, "names": None}
            for name, spec in self._of_texts.items()
        }
        self.root, self.revision = self.meta.root, self.meta.revision
        self._images = {
            name: return_uint8 and self.features[name]["dtype"] == "video"
            for name in self.meta.camera_keys
            if name not in depths
        }
        self._depths = {
            n: self.features[n]["dtype"] == "video" or dataset.features[n].unit for n in depths
        }
        self._texts = self._find_texts()
        self.delta_indices = self._find_windows()
        loading: dict[str, Any] = {
            "memory_limit": cache_limit,
            "resize": resize,
            "frame_cache": frame_cache,
        }
        self.clips = self._select(dataset, skip_bad_episodes, loading)
        resident = self.clips.stats()["features_resident"]
        self._redecoded = {*self._images, *self._depths} - {*resident}
        clips = self.clips
        self.planner = ClipPlanner(clips.dataset, clips.options, self.first_items, self._items)
        self._reader = PerProcess(partial(PlannedReader, self.planner))

    def _open(
        self, root: str | PathLike[str] | None, login: dict[str, Any], skip_bad: bool
    ) -> Dataset:
        """Open the dataset's files, and download them if some are missing."""
        is_here = skip_bad and (self.meta.root / "data").exists()
        if not (is_here or has_all_files(self.meta.root, self.episodes)):
            hub: Any = import_extra("huggingface_hub", _PACKAGE)
            place: dict[str, Any] = {"local_dir": root}
            if root is None:
                constants: Any = import_extra("lerobot.utils.constants", _PACKAGE)
                place = {"cache_dir": constants.HF_LEROBOT_HUB_CACHE}
            place |= {"repo_type": "dataset", "revision": self.meta.revision, **login}
            self.meta.root = Path(hub.snapshot_download(self.repo_id, **place))
        return dataset_of(self.meta.root, tolerance=index_tolerance(self.tolerance_s))

    def _find_texts(self) -> dict[str, tuple[str, dict[str, int]]]:
        """Features stored as texts here and as numbers in LeRobot: number column, and number by
        text.
        """
        root, info = self.meta.root, read_info(self.meta.root)
        return {
            name: (column, {text: i for i, text in read_texts(root, info, column).items()})
            for name, column in number_columns(root, info).items()
        }

    def _find_windows(self) -> dict[str, list[int]] | None:
        """`delta_timestamps` in frames."""
        if self.delta_timestamps is None:
            return None
        columns = {PERSISTENT, EVENTS, *(column for column, _ in self._texts.values())}
        allowed_names = [name for name in self.features if name not in columns]
        if unknown_names := [name for name in self.delta_timestamps if name not in allowed_names]:
            raise ClipError(
                "windows of no such features",
                expected=", ".join(allowed_names),
                got=", ".join(unknown_names),
            )
        return delta_timestamps(self.delta_timestamps, self.fps, tolerance=self.tolerance_s)

    def _select(
        self, dataset: Dataset, skip_bad: bool, options: Mapping[str, Any]
    ) -> SeqRecordMapDataset:
        """Select the items of the episodes as clips."""
        index, bad, meta = dataset.contents.index, dataset.contents.bad.records, self.meta
        lengths = dict(zip(index.keys.to_pylist(), index.num_frames.tolist(), strict=True))
        lengths |= {record["key"]: record["num_frames"] for record in bad}
        keys, total = [f"episode_{i:06d}" for i in range(len(lengths))], sum(lengths.values())
        expected = meta.total_episodes, meta.total_frames, {*keys}
        if (len(keys), total, {*lengths}) != expected:
            raise SourceError(
                "the dataset contradicts its meta; `seqrecord doctor` finds the reason",
                file=str(self.meta.root),
                expected=f"{meta.total_frames} frames in {meta.total_episodes} episodes, numbered "
                "from 0",
                got=f"{total} frames in {len(keys)} episodes",
            )
        selected_keys = None
        if self.episodes is not None:
            numbers_here = {*range(len(keys))}.intersection(self.episodes)
            selected_keys = [keys[i] for i in sorted(numbers_here)]
        deltas = self.delta_indices or {}
        windows = {n: deltas[n] for n in filter(dataset.features.__contains__, deltas)}
        frames: dict[str, Any] = {"windows": windows, "pad": "edge"} if windows else {"clip_len": 1}
        names = self.features.keys() | self._texts.keys()
        clips = SeqRecordMapDataset(
            skipping_bad_episodes(dataset) if skip_bad else dataset,
            features=[*filter(names.__contains__, dataset.contents.value_names)],
            episodes=selected_keys,
            squeeze_time=True,
            metadata=[PERSISTENT] if PERSISTENT in self.features else None,
            ragged="pad" if self._of_texts else "list",
            **frames,
            **options,
        )
        rows = clips.clips.selected
        numbers = [_number(key) for key in index.keys.take(rows).to_pylist()]
        self._numbers = Episodes(
            np.array([lengths[key] for key in keys], np.int64), np.array(numbers, np.int64)
        )
        self.first_items = np.full(len(index.num_frames), -1)
        self.first_items[rows] = self._numbers.first_items[numbers]
        if skip_bad and bad:
            self.episodes = numbers
        return clips

    def __len__(self) -> int:
        return len(self.clips)

    def _read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return self._items(collate(self.clips.__getitems__(numbers)))

    def _task_numbers(self) -> list[int]:
        (_, numbers_of), dataset = self._texts["task"], self.clips.dataset.select(["task"])
        keys = self.clips.dataset.contents.index.keys.take(self.clips.clips.selected).to_pylist()
        return [numbers_of[text] for key in keys for text in dataset.episodes[key][:]["task"]]

    def _counted(self) -> Mapping[str, int]:
        return self.clips.stats()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.repo_id!r}, {self.num_episodes} episodes, "
            f"{self.num_frames} frames, read by seqrecord from "
            f"{shown_place(self.clips.dataset.url)!r})"
        )

    # ---- items of batches

    def _items(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        """Convert a batch of clips to items."""
        columns = {
            name: self._values(name, batch_column)
            for name, batch_column in batch.items()
            if name.removesuffix("_is_pad") in self.features
        }
        for name, (column, numbers_of) in self._texts.items():
            if name in batch:
                columns[column] = torch.tensor(
                    [numbers_of[text] for text in batch[name]], device="cpu"
                )
        if "task" in batch:
            columns["task"] = batch["task"]
        if EVENTS in columns:
            columns[EVENTS] = [json.loads(text) if text else [] for text in columns[EVENTS]]
        episode = np.array([_number(key) for key in batch["episode"]])
        columns |= self._places(episode, batch["start"].numpy())
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _places(self, episode: IntArray, start: IntArray) -> dict[str, torch.Tensor]:
        """The columns `episode_index`, `frame_index` and `index` of clips with these starts, int64
        [clips].
        """
        columns: dict[str, torch.Tensor] = {}
        deltas = self.delta_indices or {}
        for name in self.features.keys() & {"episode_index", "frame_index", "index"}:
            requested_frames = start[:, None] + np.array(deltas.get(name, [0]))
            frames = requested_frames.clip(0, self._numbers.lengths[episode, None] - 1)
            begins = {"episode_index": episode, "index": self._numbers.begins[episode]}
            begin = begins.get(name, 0 * episode)
            values = begin[:, None] + (frames if name != "episode_index" else 0 * frames)
            columns[name] = torch.from_numpy(values if name in deltas else values[:, 0])
            if name in deltas:
                columns[f"{name}_is_pad"] = torch.from_numpy(requested_frames != frames)
        return columns


def read_metadata(depth_output_unit: str, *args: Any, **options: Any) -> Any:
    """LeRobot's metadata of a dataset, with statistics of depth in this unit."""
    theirs: Any = import_extra("lerobot.datasets.lerobot_dataset", _PACKAGE)
    meta = theirs.LeRobotDatasetMetadata(*args, **options)
    if getattr(meta, "depth_keys", []):
        meta.rescale_depth_stats(depth_output_unit)
    return meta


def index_tolerance(tolerance_s: float) -> float | None:
    """The tolerance of the index: `None` for the default, so that `seqrecord.open` shares the
    index.
    """
    return None if tolerance_s == TOLERANCE else tolerance_s


def has_all_files(root: Path, episodes: Collection[int] | None = None) -> bool:
    """Whether the files of these episodes exist, by default all files named in `meta`."""
    files, numbers = set[str](), None if episodes is None else {*episodes}
    for episode in read_episodes(root, read_info(root)):
        if numbers is None or episode.index in numbers:
            files |= {episode.file, *(video.file for video in episode.videos.values())}
    return all((root / file).exists() for file in files)


def _number(key: str) -> int:
    """The number of an episode."""
    return int(key.rpartition("_")[2])
