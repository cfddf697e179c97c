"""Quality of demonstrations: numbers for each episode from vectors and times, without images."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.formats.indexing.source_opening import open_source
from seqrecord.in_place.boundary import boundary, skipping_unreadable
from seqrecord.store.feature_kinds import size_in
from seqrecord.store.format.time_spans import clock_of
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
        state_outlier: greatest distance of a value of the state from its mean.
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

        names = [one.name for one in fields(EpisodeQuality)]
        columns = {name: [getattr(one, name) for one in self.episodes] for name in names}
        whole = ("episode", "error", "rank", "num_frames", "not_finite")
        table = {
            name: one if name in whole else np.array(one, "f8") for name, one in columns.items()
        }
        pq.write_table(pa.table(table), path)

    def __str__(self) -> str:
        names = [one.name for one in fields(EpisodeQuality)]
        rows = [[_shown(getattr(one, name)) for name in names] for one in self.episodes[:_SHOWN]]
        lines = table_lines([names, *rows], num_left=1)
        rest = len(self.episodes) - _SHOWN
        return "\n".join([*lines, *([f"and {rest:,} episodes that deviate less"] * (rest > 0))])


def check_replaceable(path: Path) -> None:
    """Raise `SourceError` unless `Quality.write` can create this file or replace an earlier one."""
    import pyarrow.parquet as pq

    if not path.exists() and path.absolute().parent.is_dir():
        return
    names: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        names = pq.read_schema(path).names
    if names != [one.name for one in fields(EpisodeQuality)]:
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
    names = [*sizes, *([] if clock is None else [clock])]
    source = open_source(location, storage_options=storage_options, features=names)
    infos = source.episodes()
    flat = [FeatureSpec(name, np.dtype("f8"), (size,)) for name, size in sizes.items()]
    collected = StatisticsCollector(Schema(flat))
    found: list[EpisodeQuality] = []
    finals: dict[int, FloatArray] = {}
    for number, info in enumerate(infos, 1):
        with skipping_unreadable():  # raised again
            vectors = _vectors(source, info, names)
            collected.begin(info.key)
            for name, values in vectors.items():
                collected.add_frames(name, values, np.arange(info.num_frames))
            collected.skip(info.num_frames)
            collected.keep()
        if progress is not None:
            progress(Progress(number, 2 * len(infos)))
    statistics = collected.statistics()
    for number, info in enumerate(infos, len(infos) + 1):
        try:
            with boundary(episode=info.key):
                vectors = _vectors(source, info, names)
            measured, final = _measured(info, vectors, schema, clock, statistics, still)
            finals |= {len(found): final} if len(final) else {}
            found.append(measured)
        except SourceError as error:
            found.append(EpisodeQuality(info.key, 0, info.num_frames, error=str(error)))
        if progress is not None:
            progress(Progress(number, 2 * len(infos)))
    most = max(map(len, finals.values()), default=0)
    whole = {at: final for at, final in finals.items() if len(final) == most}
    if whole:
        middle = np.nanmedian(np.stack([*whole.values()]), axis=0)
        for at, final in whole.items():
            found[at] = replace(found[at], final_pose=_rms(final - middle))
    return Quality(tuple(_ranked(found)))


def _vectors(source: Source, info: EpisodeInfo, names: Sequence[str]) -> dict[str, FloatArray]:
    """Features that all frames have, float64 [T, C] each; NaN in place of infinities."""
    parts: dict[str, list[FloatArray]] = {name: [] for name in names}
    for block in blocks_of(source, info):
        for name in block.columns.keys() & parts.keys():
            values = np.asarray(block.columns[name], np.float64)
            parts[name].append(values.reshape(block.num_frames, -1))
    found = {name: np.concatenate(one) for name, one in parts.items() if one}
    return {name: one for name, one in found.items() if len(one) == info.num_frames}


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
            times = values[:, 0] * (size_in(schema[name].unit, "s") or 1.0)
            if len(times) > 1:
                seconds, gap = float(times[-1] - times[0]), float(np.diff(times).max())
            continue
        deviations = statistics[name].normalize(values)
        scaled[schema[name].kind == "action"].append(
            np.where(np.isfinite(deviations), deviations, np.nan)
        )
    actions, states = (
        np.concatenate(one, axis=1) if one else np.zeros((0, 0)) for one in scaled.values()
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
        not_finite=sum(int((~np.isfinite(v)).sum()) for n, v in vectors.items() if n != clock),
    )
    return quality, states[-1] if len(states) else np.zeros(0)


def _rms(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(known**2))) if known.size else None


def _greatest(values: FloatArray) -> float | None:
    known = np.abs(values[np.isfinite(values)])
    return float(known.max()) if known.size else None


def _ranked(found: Sequence[EpisodeQuality]) -> list[EpisodeQuality]:
    """The episodes by rank: unreadable ones first."""
    known = [one for one in found if not one.error]
    columns = [[getattr(one, name) for one in known] for name in _RANKED]
    lengths = [one.seconds or one.num_frames for one in known]
    middle = float(np.median(lengths)) if lengths else 1.0
    columns.append([abs(np.log(max(one, 1e-9) / max(middle, 1e-9))) for one in lengths])
    places = np.zeros(len(known))
    for column in columns:
        numbers = np.array([np.nan if one is None else one for one in column], np.float64)
        numbers = np.where(np.isnan(numbers), -np.inf, numbers)
        places += np.searchsorted(np.sort(numbers), numbers)  # episodes that deviate less
    order = np.argsort(-places, kind="stable").tolist()
    every = [one for one in found if one.error] + [known[i] for i in order]
    return [replace(one, rank=rank) for rank, one in enumerate(every, 1)]


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else str(value)
