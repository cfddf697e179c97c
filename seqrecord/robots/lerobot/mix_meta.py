"""LeRobot's metadata of a mix, as of a merged dataset."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa

from seqrecord.errors import ClipError
from seqrecord.formats.export.lerobot_meta import (
    TASK,
    TIMESTAMP,
    dataset_info,
    describe_statistics,
    task_table,
)
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.mixing.mix import SeqRecordMix, mix_loader
from seqrecord.loader.mixing.tasks import episode_tasks
from seqrecord.loader.pipes.view_loader import ViewLoader
from seqrecord.recipes.mix_file import load_mix
from seqrecord.recipes.yaml_file import read_yaml
from seqrecord.robots.lerobot.dataset import read_metadata
from seqrecord.robots.lerobot.meta_folder import kept_folder
from seqrecord.robots.lerobot.mix_sources import (
    COMPUTED,
    MixEpisodes,
    MixSource,
    mix_sources,
)
from seqrecord.robots.lerobot.mix_statistics import MixStatistics, are_stored
from seqrecord.store.bfloat16 import dtype_name
from seqrecord.store.feature_kinds import OTHER_KINDS
from seqrecord.store.lazy import import_extra
from seqrecord.store.schema import FeatureSpec

_logger = logging.getLogger("seqrecord")

_AXES = ["height", "width", "channels"]
_CHANNELS = (1, 3, 4)
_DEPTH_FRAMES = 100  # of each source, for statistics


@dataclass(frozen=True, eq=False)
class MixMeta:
    """Metadata of a mix.

    Attributes:
        theirs: LeRobot's `LeRobotDatasetMetadata`.
        sources: the sources, without a policy's windows.
        images: the names of images, uint8 [H, W, C].
        depths: depth maps [H, W] by name: their unit, or `True` for metres of a video.
        tasks: number of each task, by text.
        first_tasks: the first task of each episode.
        statistics: statistics of vectors, and steps of sources.
    """

    theirs: Any
    sources: Sequence[MixSource]
    images: tuple[str, ...]
    depths: Mapping[str, str | bool | None]
    tasks: Mapping[str, int]
    first_tasks: Sequence[str]
    statistics: MixStatistics

    @classmethod
    def of(
        cls,
        mix: SeqRecordMix,
        repo_id: str,
        *,
        deploy: str | None = None,
        modes: Mapping[str, Any] | None = None,
        image_frames: int = 0,
        depth_output_unit: str = "mm",
    ) -> MixMeta:
        """Make the metadata of a mix; its files are in `SEQRECORD_HOME`.

        Frame rate and robot are those of the source `deploy`; by default those of all sources, and
        if rates differ, that of the first source. Statistics: see `mix_statistics`.

        Args:
            mix: the mix.
            repo_id: its name.
            deploy: name of the source whose statistics a checkpoint contains, for statistics
                "source" and "robot_type".
            modes: LeRobot's normalisation for each feature type, such as `{"ACTION": "MIN_MAX"}`.
                Default: MEAN_STD.
            image_frames: frames of each source to decode for statistics of images; 0: none.
            depth_output_unit: unit of depth in the statistics, "m" or "mm".

        Raises `ClipError` for options of sources that LeRobot's items exclude, for missing
        statistics, and if no source has a frame rate; `MissingPackageError` without LeRobot.
        """
        loader = mix_loader(mix)
        loaders = loader.loaders
        sources = mix_sources(loaders)
        mixed = _MixFeatures.of(loaders, sources)
        shown, images, depths = mixed.shown, mixed.images, mixed.depths
        shares = {name: float(share) for name, share in mix.shares.items()}
        mode_names = {
            kind: str(getattr(mode, "value", mode)) for kind, mode in (modes or {}).items()
        }
        statistics = MixStatistics.of(
            sources, loader.form, shares, mixed.vectors, deploy=deploy, modes=mode_names
        )
        entries = {**statistics.entries, **_of_images(sources, images, image_frames)}
        entries |= _of_images(sources, depths, _DEPTH_FRAMES, 1)
        texts = [*chain.from_iterable(map(source_tasks, sources))]
        distinct = sorted({*chain.from_iterable(texts)})
        tasks = {text: number for number, text in enumerate(distinct)}
        features = {n: _entry(n, s, sources, images, depths) for n, s in shown.items()}
        deployed = [source for source in sources if source.name == deploy] or sources
        robots = {next(source.metadata(), {}).get("robot_type") for source in deployed}
        [robot] = robots if len(robots) == 1 else [None]
        episodes = MixEpisodes(sources)
        info = dataset_info(features, _rate(deployed), episodes.lengths.tolist(), len(tasks), robot)
        folder = kept_folder(
            {
                "meta/info.json": _json(info),
                "meta/stats.json": _json(entries),
                "meta/tasks.parquet": _parquet(task_table(tasks)),
                "meta/episodes/chunk-000/file-000.parquet": _parquet(_table(episodes, texts)),
            }
        )
        theirs = read_metadata(depth_output_unit, repo_id, folder)
        for name in images:  # LeRobot sets those of ImageNet
            theirs.stats.setdefault(name, {})
        first_tasks = [episode[0] if episode else "" for episode in texts]
        return cls(theirs, sources, images, depths, tasks, first_tasks, statistics)


@dataclass(frozen=True)
class _MixFeatures:
    """Features of a mix by the way LeRobot has them; `shown` are all with numbers, by name."""

    shown: Mapping[str, ArraySpec]
    images: tuple[str, ...]
    depths: Mapping[str, str | bool | None]
    vectors: Sequence[str]

    @classmethod
    def of(cls, loaders: Mapping[str, ViewLoader], sources: Sequence[MixSource]) -> _MixFeatures:
        """Raises `ClipError` for a feature named like a column of LeRobot's items."""
        arrays = (loader.view.batch_arrays.items() for loader in loaders.values())
        specs = dict(chain.from_iterable(arrays))
        shown = {
            name: spec
            for name, spec in specs.items()
            if name != TIMESTAMP and spec.value_kind.number_dtype(spec) is not None
        }
        if reserved := [*filter(COMPUTED.__contains__, specs)]:
            names = ", ".join(f"'{name}': 'my_{name}'" for name in reserved)
            raise ClipError(
                "a feature has the name of a column of LeRobot's items",
                expected=f"rename={{{names}}}",
                got=", ".join(reserved),
            )
        images = tuple(n for n, spec in shown.items() if _is_image(spec, _declared(sources, n)))
        depths = {n: _unit(s) for n in shown if (s := _declared(sources, n)) and _is_depth(s)}
        vectors = [n for n, s in shown.items() if n not in images and _is_read(n, s, sources)]
        return cls(shown, images, depths, vectors)


def _is_read(name: str, spec: ArraySpec, sources: Sequence[MixSource]) -> bool:
    """Whether LeRobot's processors need statistics of a feature, or have them."""
    dtype = spec.value_kind.number_dtype(spec)
    if dtype is None or dtype.kind not in "fiu" or len(spec.shape) > 1:
        return False
    is_needed = name.startswith(("action", "observation."))
    return is_needed or all(are_stored(source, name) for source in sources if source.has(name))


def _of_images(
    sources: Sequence[MixSource], images: Collection[str], count: int, max_value: int = 255
) -> dict[str, dict[str, Any]]:
    """Statistics of images: stored ones, or merged from `count` frames of each source."""
    merged_statistics: dict[str, Any] = {}
    for source in sources:
        names = [name for name in images if source.has(name)]
        statistics: Mapping[str, Any] = source.dataset.statistics
        if count and any(name not in statistics for name in names):
            subset = source.dataset.select(names)
            numbers = subset.contents.numbers_of(source.rows).tolist()
            statistics = subset.compute_statistics(episodes=numbers, max_frames=count)
        for name in names:
            if name in statistics:
                merged = merged_statistics.get(name)
                merged_statistics[name] = (
                    statistics[name] if merged is None else merged.merged(statistics[name])
                )
    return {
        name: describe_statistics(statistics_of_name, None, max_value)
        for name, statistics_of_name in merged_statistics.items()
    }


def _table(episodes: MixEpisodes, tasks: Sequence[Sequence[str]]) -> pa.Table:
    """The table of episodes."""
    return pa.table(
        {
            "episode_index": pa.array(range(len(tasks)), pa.int64()),
            "tasks": pa.array(tasks, pa.list_(pa.string())),
            "length": episodes.lengths,
            "dataset_from_index": episodes.begins,
            "dataset_to_index": episodes.begins + episodes.lengths,
        }
    )


def source_tasks(source: MixSource) -> list[list[str]]:
    """The tasks of a source's episodes: from metadata, else from the feature `task`."""
    spec, rows = source.dataset.features.get(TASK), source.rows.tolist()
    has_feature = spec is not None and spec.value == "text"
    return [episode_tasks(source.dataset, row, has_feature=has_feature) for row in rows]


def _rate(sources: Sequence[MixSource]) -> float:
    rates = {source.name: source.fps for source in sources}
    known_rates = [rate for rate in rates.values() if rate is not None]
    if not known_rates:
        raise ClipError(
            "LeRobot needs a frame rate, and no source of the mix has one",
            expected="frames per second: `seqrecord write --src SRC --dst DST --fps 30`",
        )
    if len({*rates.values()}) > 1:
        _logger.warning(
            "frame rates of the mix differ: %s; a policy's windows are in steps of each source, "
            "and meta.fps is %g",
            ", ".join(f"{name} {rate}" for name, rate in rates.items()),
            known_rates[0],
        )
    return int(known_rates[0]) if known_rates[0] == int(known_rates[0]) else known_rates[0]


def _declared(sources: Sequence[MixSource], name: str) -> FeatureSpec | None:
    specs = (source.dataset.features.get(name) for source in sources)
    return next((spec for spec in specs if spec is not None), None)


def _is_image(spec: ArraySpec, declared: FeatureSpec | None) -> bool:
    if declared is not None and declared.kind in OTHER_KINDS:
        return False
    return spec.dtype == "uint8" and len(spec.shape) == 3 and spec.shape[-1] in _CHANNELS


def _is_depth(spec: FeatureSpec) -> bool:
    return spec.kind == "depth" and len(spec.shape) == 2 and spec.dtype.kind in "fu"


def _unit(spec: FeatureSpec) -> str | bool | None:
    return True if spec.is_video else spec.unit


def _entry(
    name: str,
    spec: ArraySpec,
    sources: Sequence[MixSource],
    images: Sequence[str],
    depths: Mapping[str, str | bool | None],
) -> dict[str, Any]:
    """The entry of a feature in `info.json`."""
    if name in images or name in depths:
        shape = [*spec.shape] if name in images else [*spec.shape, 1]
        info: dict[str, Any] = {"is_depth_map": name in depths}
        if (unit := depths.get(name)) is not None:
            info["depth_unit"] = "m" if unit is True else unit
        return {"dtype": "video", "shape": shape, "names": _AXES, "info": info}
    channel_names = []
    for source in sources:
        if name in source.dataset.features:
            names = next(source.metadata(), {}).get("names")
            channel_names.append(names.get(name) if isinstance(names, dict) else None)
    names = (
        channel_names[0]
        if channel_names
        and all(names_of_source == channel_names[0] for names_of_source in channel_names)
        else None
    )
    kind = dtype_name(spec.dtype).replace("float64", "float32")
    return {"dtype": kind, "shape": [*spec.shape] or [1], "names": names}


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()


def _parquet(table: pa.Table) -> bytes:
    pq: Any = import_extra("pyarrow.parquet", "pyarrow")
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


def open_mix(path: str | PathLike[str]) -> SeqRecordMix:
    """Create the mix of a file for a policy, which determines windows and batch size.

    If sources have `splits` and the file chooses none, the split is "train".
    """
    split = None
    if Path(path).is_file():  # otherwise an error of `load_mix`
        root = read_yaml(Path(path))
        entries = root.get("sources")
        source_entries = entries.values() if isinstance(entries, dict) else ()
        has_splits = any(
            isinstance(source_entry, dict) and "splits" in source_entry
            for source_entry in source_entries
        )
        split = "train" if has_splits and "split" not in root else None
    fallbacks = {"batch_size": 1, "clip_len": 1}
    mix: SeqRecordMix = load_mix(SeqRecordMix, path, split, {}, fallbacks)
    return mix
