"""Quality of demonstrations: numbers for each episode from vectors and times, without images."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.formats.indexing.source_opening import open_source
from seqrecord.in_place.boundary import boundary, skipping_unreadable
from seqrecord.store.feature_kinds import size_in
from seqrecord.store.format.time_spans import clock_of, is_plausible
from seqrecord.store.originals.protocol import EpisodeInfo, Source, blocks_of
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.statistics.collecting import StatisticsCollector
from seqrecord.store.statistics.moments import FloatArray
from seqrecord.store.storage.opening import StorageLike
from seqrecord.store.text import table_lines
from seqrecord.store.units import Progress

STILL = 0.01
_SHOWN = 20  # episodes


@dataclass(frozen=True)
class EpisodeQuality:
    """Numbers of an episode. Distances are in standard deviations of each value over all episodes.

    Attributes:
        episode: its key.
        rank: 1 for the episode that deviates most: by the mean of its places in the columns below,
            `seconds` by its ratio to the median.
        num_frames: its length in frames.
        seconds: duration by the timestamps, or by the frame rate.
        still: share of steps in which no value of the state moves by more than a threshold.
        jerk: root mean square of the state's third differences.
        state_outlier: greatest distance of a state value from its mean.
        action_outlier: the same for actions.
        final_pose: root mean square distance of the last state from the median of all last states.
        gap: longest time between two frames in seconds.
        not_finite: number of NaN and infinities.
        error: why the episode cannot be read; empty if it can.
    """

    episode: str
    rank: int
    num_frames: int
    seconds: float | None = None
    still: float | None = None
    jerk: float | None = None
    state_outlier: float | None = None
    action_outlier: float | None = None
    final_pose: float | None = None
    gap: float | None = None
    not_finite: int = 0
    error: str = ""


_RANKED = ("still", "jerk", "state_outlier", "action_outlier", "final_pose", "gap", "not_finite")


@dataclass(frozen=True)
class Quality:
    """Numbers of all episodes, by rank."""

    episodes: tuple[EpisodeQuality, ...]

    def write(self, path: str | PathLike[str]) -> None:
        """Write a Parquet table with a column for each number; NaN if it is unknown."""
        import pyarrow as pa
        import pyarrow.parquet as pq  # here, since it takes long to import

        names = [field.name for field in fields(EpisodeQuality)]
        columns = {name: [getattr(row, name) for row in self.episodes] for name in names}
        unconverted = ("episode", "error", "rank", "num_frames", "not_finite")
        table = {
            name: values if name in unconverted else np.array(values, "f8")
            for name, values in columns.items()
        }
        pq.write_table(pa.table(table), path)

    def __str__(self) -> str:
        names = [field.name for field in fields(EpisodeQuality)]
        rows = [[_shown(getattr(row, name)) for name in names] for row in self.episodes[:_SHOWN]]
        lines = table_lines([names, *rows], num_left=1)
        num_more = len(self.episodes) - _SHOWN
        return "\n".join(
            [*lines, *([f"and {num_more:,} episodes that deviate less"] * (num_more > 0))]
        )


def check_replaceable(path: Path) -> None:
    """Raise `SourceError` unless `Quality.write` can create this file or replace an earlier one."""
    import pyarrow.parquet as pq

    if not path.exists() and path.absolute().parent.is_dir():
        return
    names: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        names = pq.read_schema(path).names
    if names != [field.name for field in fields(EpisodeQuality)]:
        raise SourceError(
            "neither a new file in a folder nor an earlier table of --quality",
            file=str(path),
            expected="another path for --quality",
        )


def measure(
    location: StorageLike,
    *,
    still: float = STILL,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Quality:
    """Measure the episodes of an original or a dataset. Reads actions, states, poses and timestamps
    twice, and no images. Memory: the vectors of an episode.

    Args:
        location: local path or URL.
        still: least movement of a step, in standard deviations.
        progress: called from the calling thread, after every episode.
        storage_options: for the filesystem of the URL.

    Raises `SourceError` if there is no original, or if it has no actions, states and poses.
    """
    schema = open_source(location, storage_options=storage_options).schema()
    clock = clock_of(schema)
    sizes = {
        name: math.prod(n or 0 for n in spec.shape)
        for name, spec in schema.items()
        if spec.kind in ("action", "state", "pose") and spec.is_fixed
    }
    if not sizes:
        raise SourceError(
            "no actions, states or poses, which --quality measures", file=str(location)
        )
    names = [*sizes, *filter(None, [clock])]
    source = open_source(location, storage_options=storage_options, features=names)
    infos = source.episodes()
    report = progress or (lambda _: None)
    flat = [FeatureSpec(name, np.dtype("f8"), (size,)) for name, size in sizes.items()]
    collected = StatisticsCollector(Schema(flat))
    episodes: list[EpisodeQuality] = []
    finals: dict[int, FloatArray] = {}
    for number, info in enumerate(infos, 1):
        with skipping_unreadable():  # raised again
            vectors = _vectors(source, info, names)
            collected.begin(info.key)
            for name, values in vectors.items():
                collected.add_frames(name, values, np.arange(info.num_frames))
            collected.skip(info.num_frames)
            collected.keep()
        report(Progress(number, 2 * len(infos)))
    statistics = collected.statistics()
    for number, info in enumerate(infos, len(infos) + 1):
        try:
            with boundary(episode=info.key):
                vectors = _vectors(source, info, names)
            quality, final = _measured(info, vectors, schema, clock, statistics, still)
            finals |= {len(episodes): final} if len(final) else {}
            episodes.append(quality)
        except SourceError as error:
            episodes.append(EpisodeQuality(info.key, 0, info.num_frames, error=str(error)))
        report(Progress(number, 2 * len(infos)))
    for at, distance in _final_distances(finals):
        episodes[at] = replace(episodes[at], final_pose=distance)
    return Quality(tuple(_ranked(episodes)))


def _final_distances(finals: Mapping[int, FloatArray]) -> Iterator[tuple[int, float | None]]:
    """Distances of last states from their median, without incomplete ones."""
    max_size = max(map(len, finals.values()), default=0)
    complete_poses = {at: final for at, final in finals.items() if len(final) == max_size}
    if complete_poses:
        middle = np.nanmedian(np.stack([*complete_poses.values()]), axis=0)
        for at, final in complete_poses.items():
            yield at, _rms(final - middle)


def _vectors(source: Source, info: EpisodeInfo, names: Sequence[str]) -> dict[str, FloatArray]:
    """Features that all frames have, float64 [T, C] each; NaN in place of infinities."""
    parts: dict[str, list[FloatArray]] = {name: [] for name in names}
    for block in blocks_of(source, info):
        for name in block.columns.keys() & parts.keys():
            values = np.asarray(block.columns[name], np.float64)
            parts[name].append(values.reshape(block.num_frames, -1))
    vectors = {name: np.concatenate(arrays) for name, arrays in parts.items() if arrays}
    return {name: arrays for name, arrays in vectors.items() if len(arrays) == info.num_frames}


def _measured(
    info: EpisodeInfo,
    vectors: Mapping[str, FloatArray],
    schema: Schema,
    clock: str | None,
    statistics: Statistics,
    still: float,
) -> tuple[EpisodeQuality, FloatArray]:
    """The numbers of an episode, and its last state, in standard deviations."""
    scaled: dict[bool, list[FloatArray]] = {True: [], False: []}
    seconds, gap = None if info.fps is None else info.num_frames / info.fps, None
    for name, values in vectors.items():
        if name == clock:
            size, times = size_in(schema[name].unit, "s"), values[np.isfinite(values[:, 0]), 0]
            steps = np.diff(times)
            if len(steps) and (size is not None or is_plausible(float(np.median(abs(steps))))):
                times, steps = times * (size or 1.0), steps * (size or 1.0)
                seconds, gap = float(times[-1] - times[0]), float(steps.max())
            continue
        deviations = statistics[name].normalize(values)
        scaled[schema[name].kind == "action"].append(
            np.where(np.isfinite(deviations), deviations, np.nan)
        )
    actions, states = (
        np.concatenate(vectors_of_kind, axis=1) if vectors_of_kind else np.zeros((0, 0))
        for vectors_of_kind in scaled.values()
    )
    moving = states if states.size else actions
    steps = np.fmax.reduce(np.abs(np.diff(moving, axis=0)), axis=1, initial=np.nan)
    quality = EpisodeQuality(
        *(info.key, 0, info.num_frames, seconds),
        still=float((steps <= still).mean()) if len(steps) else None,
        jerk=_rms(np.diff(moving, 3, axis=0)),
        state_outlier=_greatest(states),
        action_outlier=_greatest(actions),
        gap=gap,
        not_finite=sum(int((~np.isfinite(v)).sum()) for v in vectors.values()),
    )
    return quality, states[-1] if len(states) else np.zeros(0)


def _rms(values: FloatArray) -> float | None:
    finite_values = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(finite_values**2))) if finite_values.size else None


def _greatest(values: FloatArray) -> float | None:
    magnitudes = np.abs(values[np.isfinite(values)])
    return float(magnitudes.max()) if magnitudes.size else None


def _ranked(episodes: Sequence[EpisodeQuality]) -> list[EpisodeQuality]:
    """The episodes by rank: unreadable ones first."""
    measured = [episode for episode in episodes if not episode.error]
    unreadable = [episode for episode in episodes if episode.error]
    columns = [[getattr(episode, name) for episode in measured] for name in _RANKED]
    lengths = [episode.seconds or episode.num_frames for episode in measured]
    middle = float(np.median(lengths)) if lengths else 1.0
    columns.append([abs(np.log(max(length, 1e-9) / max(middle, 1e-9))) for length in lengths])
    places = np.zeros(len(measured))
    for column in columns:
        numbers = np.array(column, np.float64)  # `None` becomes NaN
        numbers = np.where(np.isnan(numbers), -np.inf, numbers)
        places += np.searchsorted(np.sort(numbers), numbers)  # episodes that deviate less
    order = np.argsort(-places, kind="stable").tolist()
    ranking = [*unreadable, *(measured[i] for i in order)]
    return [replace(episode, rank=rank) for rank, episode in enumerate(ranking, 1)]


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else str(value)
