"""Quality of demonstrations: numbers for each episode from vectors and times, without images."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.feature_kinds import size_in
from seqrecord.format.time_spans import clock_of
from seqrecord.indexing.source_opening import open_source
from seqrecord.originals.protocol import EpisodeInfo, Source, blocks_of
from seqrecord.schema import Schema
from seqrecord.statistics.moments import (
    FloatArray,
    Moments,
    coarsest_eps,
    moments_of,
    usable_scales,
)
from seqrecord.storage import StorageLike
from seqrecord.text import table_lines
from seqrecord.units import Progress

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
        lines = table_lines([names, *rows], left=1)
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
    chosen = [n for n, spec in schema.items() if spec.kind in ("action", "state", "pose")]
    if not chosen:
        raise SourceError(
            "no actions, states or poses, which --quality measures", file=str(location)
        )
    names = [*chosen, *([] if clock is None else [clock])]
    source = open_source(location, storage_options=storage_options, features=names)
    infos = source.episodes()
    totals: dict[str, list[Moments]] = {}
    found: list[EpisodeQuality] = []
    finals: dict[int, FloatArray] = {}
    for number, (info, is_second) in enumerate(
        [(info, is_second) for is_second in (False, True) for info in infos]
    ):
        try:
            vectors = _vectors(source, info, names)
            if is_second:
                measured = _Measured(schema, clock, vectors, totals)
                finals |= {len(found): measured.final} if len(measured.final) else {}
                found.append(measured.quality(info, still))
            else:
                for name in vectors.keys() & {*chosen}:
                    more = moments_of(np.ascontiguousarray(vectors[name]))
                    for one, other in zip(totals.setdefault(name, more), more, strict=True):
                        if one is not other:
                            one.add_moments(other)
        except SourceError as error:
            if is_second:
                found.append(EpisodeQuality(info.key, 0, info.num_frames, error=str(error)))
        if progress is not None:
            progress(Progress(number + 1, 2 * len(infos)))
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


class _Measured:
    """An episode's vectors in standard deviations, and its times in seconds."""

    def __init__(
        self,
        schema: Schema,
        clock: str | None,
        vectors: Mapping[str, FloatArray],
        totals: Mapping[str, Sequence[Moments]],
    ) -> None:
        self.times: FloatArray | None = None
        if clock is not None and clock in vectors:
            self.times = vectors[clock][:, 0] * (size_in(schema[clock].unit, "s") or 1.0)
        scaled: dict[bool, list[FloatArray]] = {True: [], False: []}
        self.not_finite = 0
        for name, values in vectors.items():
            if name == clock:
                continue
            self.not_finite += int((~np.isfinite(values)).sum())
            of = totals[name]
            std = [one.std for one in of]
            ends = [one.min or 0 for one in of], [one.max or 0 for one in of]
            scale, _ = usable_scales(std, std, *ends, eps=coarsest_eps([schema[name].dtype]))
            deviations = (values - np.array([one.mean for one in of])) / scale
            deviations[~np.isfinite(deviations)] = np.nan
            scaled[schema[name].kind == "action"].append(deviations)
        self.actions, self.states = (
            np.concatenate(one, axis=1) if one else np.zeros((0, 0)) for one in scaled.values()
        )
        self.final: FloatArray = self.states[-1] if len(self.states) else np.zeros(0)

    def quality(self, info: EpisodeInfo, still: float) -> EpisodeQuality:
        moving = self.states if self.states.size else self.actions
        steps = np.fmax.reduce(np.abs(np.diff(moving, axis=0)), axis=1, initial=np.nan)
        seconds = None if info.fps is None else info.num_frames / info.fps
        gap = None
        if self.times is not None and len(self.times) > 1:
            seconds = float(self.times[-1] - self.times[0])
            gap = float(np.diff(self.times).max())
        return EpisodeQuality(
            *(info.key, 0, info.num_frames, seconds),
            still=float((steps <= still).mean()) if len(steps) else None,
            jerk=_rms(np.diff(moving, 3, axis=0)),
            state_outlier=_greatest(self.states),
            action_outlier=_greatest(self.actions),
            gap=gap,
            not_finite=self.not_finite,
        )


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
