"""Cuts episodes of a source at gaps in time, each into several episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SchemaError, SourceError, located
from seqrecord.formats.converting.convert_jobs import BadEpisode
from seqrecord.in_place.boundary import boundary, check_unexpected
from seqrecord.in_place.file_types import explained
from seqrecord.in_place.remote_source import narrowed
from seqrecord.store.feature_kinds import size_in
from seqrecord.store.format.time_spans import CLOCKS, clock_of, is_plausible
from seqrecord.store.originals.protocol import EpisodeInfo, Source, blocks_of, timestamps_of
from seqrecord.store.originals.wrapping import Scope, SourceWrapper
from seqrecord.store.schema import Block, Frame, Schema
from seqrecord.store.text import counted, repr_of
from seqrecord.video.gops import Gop

_T = TypeVar("_T", Block, Gop)


@dataclass(frozen=True)
class _Part:
    """The frames `span` of an episode."""

    episode: EpisodeInfo
    span: range

    @property
    def is_last(self) -> bool:
        return self.span.stop == self.episode.num_frames


class SplitSource(SourceWrapper):
    """The episodes of `source`, with others in place of those in `parts`, which have their keys.

    The frames of an episode are read once if its parts are read in order.
    """

    unchanged = Scope.FEATURES

    def __init__(self, source: Source, parts: Mapping[str, _Part]) -> None:
        self.source, self._parts = source, parts
        self._open: tuple[str, int, Iterator[Block]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def schema(self) -> Schema:
        return self.source.schema()

    def episodes(self) -> Sequence[EpisodeInfo]:
        parts: dict[str, list[EpisodeInfo]] = {}
        for key, part in self._parts.items():
            part_info = replace(part.episode, key=key, num_frames=len(part.span))
            parts.setdefault(part.episode.key, []).append(part_info)
        return [
            episode for info in self.source.episodes() for episode in parts.get(info.key, [info])
        ]

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        for block in self.blocks(info):
            yield from block.frames()

    def blocks(self, info: EpisodeInfo) -> Iterator[Block]:
        part = self._parts.get(info.key)
        if part is None:
            yield from blocks_of(self.source, info)
            return
        (key, position, blocks), self._open = self._open or ("", 0, iter(())), None
        if key != part.episode.key or position > part.span.start:
            position, blocks = 0, blocks_of(self.source, part.episode)
        for begin, block, frames in _cut(blocks, part, position):
            if begin + frames.stop >= part.span.stop and not part.is_last:
                self._open = part.episode.key, begin, chain([block], blocks)
            frame_slice = slice(frames.start, frames.stop)
            columns = {name: column[frame_slice] for name, column in block.columns.items()}
            yield Block(len(frames), columns)

    def timestamps(self, info: EpisodeInfo) -> npt.NDArray[np.float64] | None:
        part = self._parts.get(info.key)
        times = timestamps_of(self.source, info if part is None else part.episode)
        return times if part is None or times is None else times[part.span.start : part.span.stop]


class _SplitVideoSource(SplitSource):
    """A source that also has encoded video."""

    def videos(self, info: EpisodeInfo) -> dict[str, Iterator[Any]]:
        part, source = self._parts.get(info.key), cast("Any", self.source)
        videos: dict[str, Iterator[Any]] = source.videos(info if part is None else part.episode)
        return videos if part is None else {name: _gops(videos[name], part) for name in videos}


def _gops(gops: Iterator[Gop], part: _Part) -> Iterator[Gop]:
    return (gop.select_frames(frames) for _, gop, frames in _cut(gops, part))


def _cut(items: Iterator[_T], part: _Part, position: int = 0) -> Iterator[tuple[int, _T, range]]:
    """The items with frames of a part: number of their first frame, and the frames inside."""
    for item in items:
        begin, position = position, position + item.num_frames
        stop = item.num_frames if part.is_last else min(part.span.stop - begin, item.num_frames)
        if (start := max(part.span.start - begin, 0)) < stop:
            yield begin, item, range(start, stop)
        if position >= part.span.stop and not part.is_last:
            return


@dataclass(frozen=True)
class _Clock:
    """Times of a source's frames: a feature, or the times that the source has beside features.

    With `is_recorded`, an episode's times are those beside features, if it has any.
    """

    source: Source
    schema: Schema
    feature: str | None
    is_recorded: bool

    @classmethod
    def of(cls, source: Source, schema: Schema, episodes: Sequence[EpisodeInfo]) -> _Clock:
        """Raises `SchemaError` without timestamps."""
        feature = clock_of(schema)
        # The only timestamp among selected features need not be the clock of all.
        is_recorded = feature not in CLOCKS and _has_times(source, episodes, feature)
        if feature is None and not is_recorded:
            raise SchemaError(
                "split_at_gaps needs timestamps; name the feature's kind (--kind "
                "FEATURE=timestamp)",
                expected="a feature of kind timestamp",
                got=", ".join(schema),
            )
        if feature is not None and not is_recorded:
            source = _clock_only(source, feature, episodes)
        return cls(source, schema, feature, is_recorded)

    def steps(self, info: EpisodeInfo) -> npt.NDArray[np.float64]:
        """Seconds between successive frames of an episode: [frames - 1]."""
        times = timestamps_of(self.source, info) if self.is_recorded else None
        if self.feature is None or times is not None:
            return _distances(_finite_times(times, info))
        values = _values(self.source, info, self.feature)
        return _distances(values) * _unit_size(self.schema, self.feature, values)


def split_at_gaps(
    source: Source,
    schema: Schema,
    episodes: Sequence[EpisodeInfo],
    seconds: float,
    *,
    skip_bad: bool = False,
) -> tuple[SplitSource, str, list[BadEpisode]]:
    """Cut episodes where timestamps of successive frames differ by more than `seconds`.

    Reads the timestamps of all episodes. `schema` has the kinds and units of the source's features.
    Part n of the episode `KEY` gets the key `KEY/n`, counted from 0; episodes without a gap keep
    their keys. Also returns a note for the inventory, and, with `skip_bad`, the episodes whose
    timestamps cannot be read.

    Raises `SchemaError` without timestamps or with a unit that is unknown, and `SourceError` for a
    dataset as the source, or a frame without a timestamp.
    """
    if type(seconds) not in (int, float) or not 0 < seconds < float("inf"):
        raise SourceError(
            "split_at_gaps is not valid", expected="seconds above 0", got=repr_of(seconds)
        )
    if hasattr(source, "stored"):
        raise SourceError(
            "a packed dataset cannot be split at gaps; split its original (write --split-at-gaps)"
        )
    clock = _Clock.of(source, schema, episodes)
    parts: dict[str, _Part] = {}
    num_cut, num_parts, first_gap = 0, 0, ""
    bad: list[BadEpisode] = []
    for info in episodes:
        try:
            with explained(), boundary(episode=info.key), located(SourceError, episode=info.key):
                steps = clock.steps(info)
        except SourceError as error:
            if not skip_bad:
                raise
            bad.append(BadEpisode.of(info, error))
            check_unexpected(episode.cause for episode in bad)
            continue
        if len(gaps := np.flatnonzero(steps > seconds) + 1):
            num_cut, num_parts = num_cut + 1, num_parts + len(gaps) + 1
            first_gap = (
                first_gap or f"{info.key} before frame {gaps[0]}, {steps[gaps[0] - 1]:.6g} s"
            )
        for number, (start, stop) in enumerate(pairwise([0, *gaps.tolist(), info.num_frames])):
            if start == stop:
                continue  # an episode without frames
            key = f"{info.key}/{number}" if len(gaps) else info.key
            if key in parts:
                raise SourceError("a part of an episode has the key of another one", episode=key)
            parts[key] = _Part(info, range(start, stop))
    if clash := next((episode.key for episode in bad if episode.key in parts), None):
        raise SourceError("a part of an episode has the key of another one", episode=clash)
    note = f"split at gaps of more than {seconds:g} s: no episode has one"
    if num_cut:
        note = (
            f"split at gaps of more than {seconds:g} s: {counted(num_cut, 'episode')} into "
            f"{num_parts}; the first gap: {first_gap}"
        )
    kind = _SplitVideoSource if hasattr(source, "videos") else SplitSource
    return kind(source, parts), note, bad


def _has_times(source: Source, episodes: Sequence[EpisodeInfo], feature: str | None) -> bool:
    """Whether the source has times of any episode beside its features.

    Errors count as times, which raise them again, unless a `feature` has times.
    """
    if getattr(source, "timestamps", None) is None:
        return False
    for info in episodes:
        try:
            with boundary(episode=info.key):
                if timestamps_of(source, info) is not None:
                    return True
        except SourceError:
            if feature is None:
                return True
    return not episodes


def _finite_times(
    times: npt.NDArray[np.float64] | None, info: EpisodeInfo
) -> npt.NDArray[np.float64]:
    """Return the times of an episode's frames; raises `SourceError` if a frame has none."""
    if times is None or not np.isfinite(times).all():
        raise SourceError(
            "the episode has no times, by which episodes are split",
            episode=info.key,
            expected=f"{info.num_frames} times",
            got="none" if times is None else f"{int(np.isfinite(times).sum())} finite numbers",
        )
    return times


def _clock_only(source: Source, clock: str, episodes: Sequence[EpisodeInfo]) -> Source:
    """The source with only its timestamps, if it has the same episodes then."""
    try:
        clock_source = narrowed(source, [clock])
        episode_sizes = [(info.key, info.num_frames) for info in clock_source.episodes()]
        is_same = episode_sizes == [(info.key, info.num_frames) for info in episodes]
        return clock_source if is_same and [*clock_source.schema()] == [clock] else source
    except (SourceError, SchemaError):
        return source


def _values(source: Source, info: EpisodeInfo, clock: str) -> npt.NDArray[Any]:
    """The timestamps of an episode, in their own unit: int64 or float64 [frames]."""
    values: list[Any] = []
    for block in blocks_of(source, info):
        if clock not in block.columns:
            raise SourceError(
                "frame lacks its timestamp, by which episodes are split",
                episode=info.key,
                frame=len(values),
                feature=clock,
            )
        values += [np.asarray(value).item() for value in block.columns[clock]]
    times = np.array(values)
    if len(times) != info.num_frames or not np.isfinite(times).all():
        raise SourceError(
            "timestamps do not fit the episode",
            episode=info.key,
            feature=clock,
            expected=f"{info.num_frames} finite numbers",
            got=f"{int(np.isfinite(times).sum())} of {len(times)}",
        )
    return times


def _distances(times: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Absolute differences of successive timestamps; no integers overflow."""
    # `np.diff` of int64 overflows for timestamps of opposite signs: see
    # tests/formats/test_own_source.py::test_extreme_timestamps_are_split.
    if times.dtype.kind in "iu":  # modulo 2**64, the larger minus the smaller is exact
        low, high = (f(times[1:], times[:-1]).astype(np.uint64) for f in (np.minimum, np.maximum))
        steps: npt.NDArray[np.float64] = (high - low).astype(np.float64)
    else:
        with np.errstate(over="ignore"):
            steps = np.abs(np.diff(times.astype(np.float64)))
    return steps


def _unit_size(schema: Schema, clock: str, times: npt.NDArray[Any]) -> float:
    """The clock's unit in seconds. Raises `SchemaError` if it is unknown and implausible as s."""
    size = size_in(schema[clock].unit, "s")
    step = float(np.median(_distances(times))) if len(times) > 1 else 1.0
    if size is None and not is_plausible(step):
        raise SchemaError(
            f"the unit of timestamps is unknown; name it (--unit {clock}=ns)",
            feature=clock,
            expected="a unit such as s, ms, us or ns",
            got=f"frames {step:g} apart",
        )
    return size or 1.0
