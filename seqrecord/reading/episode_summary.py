"""What one episode holds, and a list of episodes: one row each, made when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seqrecord.clips import ClipSpec
from seqrecord.format.index import NO_SPLIT
from seqrecord.reading.feature_table import described
from seqrecord.reading.filters import EpisodeFilter
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.schema import FeatureSpec
from seqrecord.text import counted, printable, table_lines
from seqrecord.units import format_size

__all__ = [
    "EpisodeFeature",
    "EpisodeRow",
    "EpisodeSummary",
    "list_episodes",
    "listing_lines",
    "summarize_episode",
]

_MAX_METADATA = 100  # characters in a line; `info DATA KEY` and JSON show all
_MAX_RUNS = 4  # of missing frames, in a line of text; JSON has all


@dataclass(frozen=True)
class EpisodeFeature:
    """One feature of an episode. `stored_bytes` are those of its pages.

    `missing` are the runs of frames, `[start, stop)`, that lack the feature.
    """

    spec: FeatureSpec
    num_frames: int  # that have it
    stored_bytes: int
    missing: tuple[tuple[int, int], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.spec.to_json(),
            "num_frames": self.num_frames,
            "stored_bytes": self.stored_bytes,
            "missing": [list(run) for run in self.missing],
        }


@dataclass(frozen=True)
class EpisodeSummary:
    """What one episode holds. `num_clips` is `None` unless clips were asked for."""

    url: str
    key: str
    uid: str
    num_frames: int
    fps: float | None
    split: str | None
    num_chunks: tuple[int, ...]  # of each group of features
    record_files: tuple[str, ...]
    num_clips: int | None
    features: tuple[EpisodeFeature, ...]
    metadata: dict[str, Any]

    @property
    def stored_bytes(self) -> int:
        """Bytes of the features' pages."""
        return sum(feature.stored_bytes for feature in self.features)

    def to_json(self) -> dict[str, Any]:
        return {
            **{k: v for k, v in vars(self).items() if k not in ("features", "metadata")},
            "stored_bytes": self.stored_bytes,
            "features": [feature.to_json() for feature in self.features],
            "metadata": self.metadata,
        }

    def __str__(self) -> str:
        chunks = " and ".join(f"{count:,}" for count in self.num_chunks)
        facts = [
            ("dataset", self.url),
            ("uid", self.uid),
            ("frames", f"{self.num_frames:,} in {chunks} chunk{'s' * (chunks != '1')}"),
            *([] if self.fps is None else [("fps", f"{self.fps:g}")]),
            *([] if self.split is None else [("split", self.split)]),
            *([] if self.num_clips is None else [("clips", f"{self.num_clips:,}")]),
            ("stored", format_size(self.stored_bytes)),
            ("record files", ", ".join(self.record_files)),
        ]
        lines = [printable(self.key), *(f"  {name:<13} {value}" for name, value in facts)]
        lines += ["", *(f"  {line}" for line in table_lines(self._rows(), left=4)), ""]
        metadata = json.dumps(self.metadata, indent=1, ensure_ascii=False).splitlines()
        return "\n".join([*lines, "  metadata", *(f"  {printable(line)}" for line in metadata)])

    def _rows(self) -> list[Sequence[str]]:
        what = described(feature.spec for feature in self.features)
        rows: list[Sequence[str]] = [("feature", *next(what), "stored", "missing")]
        rows += [
            (
                feature.spec.name,
                *cells,
                format_size(feature.stored_bytes),
                _missing_text(feature, self.num_frames),
            )
            for feature, cells in zip(self.features, what, strict=True)
        ]
        return rows


def summarize_episode(
    dataset: SeqRecordReader, key: str, *, clip: ClipSpec | None = None
) -> EpisodeSummary:
    """Count an episode's frames, chunks, bytes and, with `clip`, its clips.

    Features and clips are those of the features that the dataset was opened with. Raises
    `ClipError` for a key that is not there.
    """
    [number] = dataset.find_episodes([key]).tolist()
    index, manifest, episode = dataset.index, dataset.manifest, dataset.episodes[key]
    chunks = {
        group: table.rows_of(number)
        for group, table in enumerate(index.groups)
        if any(name in dataset.features for name in table.schema)
    }
    features = []
    for name, spec in dataset.features.items():
        present = episode.present(name)
        stored = int(index.lengths(name)[chunks[spec.group]].sum(dtype=np.uint64))
        features.append(EpisodeFeature(spec, int(present.sum()), stored, _runs(~present)))
    files = np.concatenate([index.groups[group].file[rows] for group, rows in chunks.items()])
    split = int(index.split[number])
    return EpisodeSummary(
        url=dataset.url,
        key=key,
        uid=episode.uid,
        num_frames=len(episode),
        fps=episode.fps,
        split=None if split == NO_SPLIT else manifest.splits[split],
        num_chunks=tuple(rows.stop - rows.start for rows in chunks.values()),
        record_files=tuple(manifest.record_files[n].path for n in np.unique(files)),
        num_clips=None if clip is None else dataset.clips(clip, [key]).num_clips,
        features=tuple(features),
        metadata=episode.metadata,
    )


def _runs(flags: npt.NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """The runs `[start, stop)` of true values."""
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False)).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def _missing_text(feature: EpisodeFeature, num_frames: int) -> str:
    count = num_frames - feature.num_frames
    if count in (0, num_frames):
        return "all" if count and count == num_frames else "0"
    runs = [str(a) if b - a == 1 else f"{a}-{b - 1}" for a, b in feature.missing[:_MAX_RUNS]]
    more = ", …" if len(feature.missing) > _MAX_RUNS else ""
    return f"{count:,}: {', '.join(runs)}{more}"


@dataclass(frozen=True)
class EpisodeRow:
    """One episode of a list. `num_clips` is `None` unless clips were asked for."""

    key: str
    num_frames: int
    num_clips: int | None
    metadata: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def list_episodes(
    dataset: SeqRecordReader, episodes: EpisodeFilter = None, *, clip: ClipSpec | None = None
) -> Iterator[EpisodeRow]:
    """The selected episodes in the dataset's order, one at a time.

    Clips are counted as in `SeqRecordReader.clips`. Raises `ClipError` where
    `SeqRecordReader.find_episodes` does.
    """
    numbers = dataset.find_episodes(episodes)
    return _rows(dataset, numbers, _clips(dataset, episodes, numbers, clip))


def listing_lines(
    dataset: SeqRecordReader, episodes: EpisodeFilter = None, *, clip: ClipSpec | None = None
) -> Iterator[str]:
    """`list_episodes` as lines of an aligned table, with a total at its end."""
    numbers = dataset.find_episodes(episodes)
    clips = _clips(dataset, episodes, numbers, clip)
    frames = dataset.index.num_frames[numbers]
    keys = pc.utf8_length(dataset.index.keys.take(pa.array(numbers)))
    widths = [
        max(len("episode"), pc.max(keys).as_py()),
        max(len("frames"), len(f"{frames.max():,}")),
        0 if clips is None else max(len("clips"), len(f"{clips.max():,}")),
    ]

    def line(key: str, frame_count: str, clip_count: str, metadata: str) -> str:
        cells = [key.ljust(widths[0]), frame_count.rjust(widths[1])]
        cells += [] if clips is None else [clip_count.rjust(widths[2])]
        return "  ".join([*cells, metadata]).rstrip()

    yield line("episode", "frames", "clips", "metadata")
    for row in _rows(dataset, numbers, clips):
        metadata = printable(json.dumps(row.metadata, ensure_ascii=False)) if row.metadata else ""
        if len(metadata) > _MAX_METADATA:
            metadata = f"{metadata[: _MAX_METADATA - 1]}…"
        yield line(printable(row.key), f"{row.num_frames:,}", f"{row.num_clips or 0:,}", metadata)
    total = f"{counted(len(numbers), 'episode')}, {counted(int(frames.sum()), 'frame')}"
    yield total if clips is None else f"{total}, {counted(int(clips.sum()), 'clip')}"


def _clips(
    dataset: SeqRecordReader,
    episodes: EpisodeFilter,
    numbers: npt.NDArray[np.int64],
    clip: ClipSpec | None,
) -> npt.NDArray[np.int64] | None:
    """Clips of each of the episodes, int64[n]."""
    if clip is None:
        return None
    table = dataset.clips(clip, episodes)
    counts = np.zeros(len(dataset.index.num_frames), np.int64)
    np.add.at(counts, table.episode, table.count)
    return counts[numbers]


def _rows(
    dataset: SeqRecordReader, numbers: npt.NDArray[np.int64], clips: npt.NDArray[np.int64] | None
) -> Iterator[EpisodeRow]:
    index = dataset.index
    for place, number in enumerate(numbers.tolist()):
        yield EpisodeRow(
            key=index.key(number),
            num_frames=int(index.num_frames[number]),
            num_clips=None if clips is None else int(clips[place]),
            metadata=index.episode_metadata(number),
        )
