"""What a dataset holds, counted from its manifest and index: no record file is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clips import ClipSpec
from seqrecord.format.index import GroupIndex, Index
from seqrecord.format.pages import table_bytes
from seqrecord.format.rows import num_absent
from seqrecord.reading.feature_table import described
from seqrecord.reading.reader import DatasetLike, SeqRecordReader, opened
from seqrecord.schema import FeatureSpec
from seqrecord.text import counted, table_lines
from seqrecord.units import format_size

__all__ = ["ClipSummary", "FeatureSummary", "GroupSummary", "Summary", "summarize"]


@dataclass(frozen=True)
class FeatureSummary:
    """One feature. `stored_bytes` are those of its pages.

    `raw_bytes` are those of its frames decoded, `None` where the index cannot tell: for a variable
    dimension under a codec.
    """

    spec: FeatureSpec
    num_frames: int  # that have it
    num_missing: int  # that lack it
    stored_bytes: int
    raw_bytes: int | None

    @property
    def ratio(self) -> float | None:
        """Raw bytes for each byte stored, `None` where there is nothing to compare."""
        return _ratio(self.raw_bytes, self.stored_bytes)

    def to_json(self) -> dict[str, Any]:
        counts = {k: v for k, v in vars(self).items() if k != "spec"}
        return {**self.spec.to_json(), **counts, "ratio": self.ratio}


@dataclass(frozen=True)
class GroupSummary:
    """Features that share chunks, and how many frames a chunk holds.

    The last chunks of episodes, which hold what is left, do not count where there are others.
    """

    number: int
    features: tuple[str, ...]
    num_chunks: int
    min_chunk_frames: int
    max_chunk_frames: int

    def __str__(self) -> str:
        chunks = counted(self.max_chunk_frames, "frame")
        if self.min_chunk_frames != self.max_chunk_frames:
            chunks = f"{self.min_chunk_frames:,} to {chunks}"
        return f"{counted(self.num_chunks, 'chunk')} of {chunks}"


@dataclass(frozen=True)
class ClipSummary:
    """The clips of all episodes, see `seqrecord.clips.ClipTable`. `span` is in frames."""

    length: int
    stride: int
    dilation: int
    span: int
    num_clips: int
    num_episodes: int  # that have a clip
    num_short_episodes: int  # shorter than the span
    num_incomplete: int  # clips left out: one of their frames lacks a feature


@dataclass(frozen=True)
class Summary:
    """What a dataset holds. Sizes are in bytes, lengths of episodes in frames.

    `commit` is the id of the commit that made it so, `earlier_commits` are those of the last ones
    before, newest first.
    """

    url: str
    created_by: str
    fingerprint: str
    num_episodes: int
    num_frames: int
    shortest_episode: int
    median_episode: float
    longest_episode: int
    fps: tuple[float, float] | None  # the least and the greatest; None where no episode says it
    groups: tuple[GroupSummary, ...]
    splits: Mapping[str, int]  # episodes by split
    num_record_files: int
    record_bytes: int
    index_bytes: int
    features: tuple[FeatureSummary, ...]
    clips: ClipSummary | None
    commit: str
    earlier_commits: tuple[str, ...]

    @property
    def stored_bytes(self) -> int:
        """Bytes of the features' pages."""
        return sum(feature.stored_bytes for feature in self.features)

    @property
    def raw_bytes(self) -> int | None:
        """Decoded bytes of the features, `None` where one of them does not tell."""
        known = [f.raw_bytes for f in self.features if f.raw_bytes is not None]
        return sum(known) if len(known) == len(self.features) else None

    @property
    def ratio(self) -> float | None:
        """Raw bytes for each byte stored, over the features whose raw bytes are known."""
        known = [f for f in self.features if f.raw_bytes is not None]
        return _ratio(sum(f.raw_bytes or 0 for f in known), sum(f.stored_bytes for f in known))

    def to_json(self) -> dict[str, Any]:
        special = ("features", "groups", "splits", "clips")
        return {
            **{k: v for k, v in vars(self).items() if k not in special},
            "groups": [asdict(group) for group in self.groups],
            "splits": dict(self.splits),
            "stored_bytes": self.stored_bytes,
            "raw_bytes": self.raw_bytes,
            "ratio": self.ratio,
            "features": [feature.to_json() for feature in self.features],
            "clips": None if self.clips is None else asdict(self.clips),
        }

    def __str__(self) -> str:
        lengths = f"{self.shortest_episode:,} to {self.longest_episode:,} frames"
        if self.shortest_episode == self.longest_episode:
            lengths = counted(self.longest_episode, "frame")
        several = len(self.groups) > 1
        frames = f"{self.num_frames:,}" + ("" if several else f" in {self.groups[0]}")
        facts = [
            ("episodes", f"{self.num_episodes:,} of {lengths}, median {self.median_episode:,.10g}"),
            *([("splits", self._splits())] if self.splits else []),
            ("frames", frames),
            *([(f"group {group.number}", str(group)) for group in self.groups] if several else []),
            *([] if self.fps is None else [("fps", _range(*self.fps))]),
            ("record files", f"{self.num_record_files:,}, {format_size(self.record_bytes)}"),
            ("index", format_size(self.index_bytes)),
            ("fingerprint", self.fingerprint),
            ("written by", self.created_by),
        ]
        lines = [self.url, *(f"  {name:<13} {value}" for name, value in facts)]
        lines += ["", *(f"  {line}" for line in table_lines(self._rows(), left=4))]
        if self.clips is not None:
            lines += ["", *_clip_lines(self.clips, self.num_episodes)]
        return "\n".join(lines)

    def _splits(self) -> str:
        counts = [f"{name} {count:,}" for name, count in self.splits.items()]
        return ", ".join([*counts, f"none {self.num_episodes - sum(self.splits.values()):,}"])

    def _rows(self) -> list[Sequence[str]]:
        what = described(feature.spec for feature in self.features)
        head = ("feature", *next(what), "raw", "stored", "ratio", "missing")
        rows: list[Sequence[str]] = [head]
        for feature, cells in zip(self.features, what, strict=True):
            rows.append(
                (
                    feature.spec.name,
                    *cells,
                    "?" if feature.raw_bytes is None else format_size(feature.raw_bytes),
                    format_size(feature.stored_bytes),
                    _times(feature.ratio),
                    f"{feature.num_missing:,}",
                )
            )
        if len(self.features) > 1:
            raw = "?" if self.raw_bytes is None else format_size(self.raw_bytes)
            stored = format_size(self.stored_bytes)
            blank = [""] * (len(head) - 5)
            rows.append(("total", *blank, raw, stored, _times(self.ratio), ""))
        return rows


def summarize(
    dataset: DatasetLike,
    *,
    clip: ClipSpec | None = None,
    features: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Summary:
    """Count a dataset's episodes, frames, bytes and, with `clip`, its clips.

    Args:
        dataset: local path or URL, or an open dataset.
        clip: which clips to count, if any.
        features: names of the features that are described, and that clips must have; by default
            those that the dataset was opened with, or all. Record files are counted whole.
        storage_options: for the filesystem that serves the dataset's URL.

    Raises what `seqrecord.open` raises.
    """
    with opened(dataset, features=features, storage_options=storage_options) as reader:
        return _summarize(reader, clip)


def _summarize(dataset: SeqRecordReader, clip: ClipSpec | None) -> Summary:
    index, manifest = dataset.index, dataset.manifest
    missing = _count_missing(index)
    fps = index.fps[index.fps > 0]
    return Summary(
        url=dataset.url,
        created_by=manifest.created_by,
        fingerprint=manifest.fingerprint,
        num_episodes=manifest.num_episodes,
        num_frames=manifest.num_frames,
        shortest_episode=int(index.num_frames.min()),
        median_episode=float(np.median(index.num_frames)),
        longest_episode=int(index.num_frames.max()),
        fps=(float(fps.min()), float(fps.max())) if len(fps) else None,
        groups=tuple(
            _group(number, group)
            for number, group in enumerate(index.groups)
            if any(name in dataset.features for name in group.schema)
        ),
        splits={
            name: int(np.count_nonzero(index.split == number))
            for number, name in enumerate(manifest.splits)
        },
        num_record_files=len(manifest.record_files),
        record_bytes=sum(file.size for file in manifest.record_files),
        index_bytes=sum(file.size for file in manifest.index.values()),
        features=tuple(
            _feature(index, spec, int(missing[index.schema.position(spec.name)]))
            for spec in dataset.features.values()
        ),
        clips=None if clip is None else _count_clips(dataset, clip),
        commit=manifest.commit,
        earlier_commits=manifest.earlier_commits,
    )


def _group(number: int, group: GroupIndex) -> GroupSummary:
    full = np.ones(len(group.file), np.bool_)
    full[group.first_chunk + group.num_chunks - 1] = False
    frames = group.num_frames[full] if full.any() else group.num_frames
    return GroupSummary(
        number=number,
        features=tuple(group.schema),
        num_chunks=len(group.file),
        min_chunk_frames=int(frames.min()),
        max_chunk_frames=int(frames.max()),
    )


def _feature(index: Index, spec: FeatureSpec, num_missing: int) -> FeatureSummary:
    lengths = index.lengths(spec.name)
    stored = int(lengths.sum(dtype=np.uint64))
    num_frames = int(index.num_frames.sum()) - num_missing
    raw = None
    if spec.is_fixed:
        raw = num_frames * spec.nbytes
    elif not spec.codec:
        # Each page that holds frames has a table in front of them.
        pages = int(np.count_nonzero(lengths))
        tables = table_bytes(spec, 1) - table_bytes(spec, 0)
        raw = stored - num_frames * tables - pages * table_bytes(spec, 0)
    return FeatureSummary(spec, num_frames, num_missing, stored, raw)


def _count_missing(index: Index) -> npt.NDArray[np.int64]:
    """Frames that lack each feature: int64 [F]."""
    missing = np.zeros(len(index.schema), np.int64)
    for group in index.groups:
        np.add.at(missing, group.gaps["feature"], num_absent(group.gaps, group.num_frames))
    return missing


def _count_clips(dataset: SeqRecordReader, spec: ClipSpec) -> ClipSummary:
    table = dataset.clips(spec)
    return ClipSummary(
        length=spec.length,
        stride=spec.stride,
        dilation=spec.dilation,
        span=spec.span,
        num_clips=table.num_clips,
        num_episodes=len(np.unique(table.episode)),
        num_short_episodes=table.num_short_episodes,
        num_incomplete=table.num_incomplete,
    )


def _clip_lines(clips: ClipSummary, num_episodes: int) -> list[str]:
    apart = "" if clips.dilation == 1 else f", {clips.dilation} frames apart (span {clips.span})"
    return [
        f"  clips of {counted(clips.length, 'frame')}{apart}, stride {clips.stride}",
        f"    clips        {clips.num_clips:,} in {counted(clips.num_episodes, 'episode')}",
        f"    left out     {clips.num_incomplete:,}, for a frame that lacks a feature",
        f"    too short    {clips.num_short_episodes:,} of {counted(num_episodes, 'episode')}",
    ]


def _ratio(raw: int | None, stored: int) -> float | None:
    return raw / stored if raw is not None and stored else None


def _range(least: float, greatest: float) -> str:
    return f"{least:g}" if least == greatest else f"{least:g} to {greatest:g}"


def _times(ratio: float | None) -> str:
    return "?" if ratio is None else f"{ratio:.2f}x"
