"""What one episode holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clips import ClipSpec
from seqrecord.reader import Dataset
from seqrecord.schema import FeatureSpec
from seqrecord.summary.text import table_lines
from seqrecord.units import format_size
from seqrecord.wording import codec_text, counted, printable, shape_text

__all__ = ["EpisodeFeature", "EpisodeSummary", "summarize_episode"]

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
    num_frames: int
    chunk_frames: int  # frames of every chunk but the last
    num_chunks: int
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
        chunks = f"{counted(self.num_chunks, 'chunk')} of {counted(self.chunk_frames, 'frame')}"
        facts = [
            ("dataset", self.url),
            ("frames", f"{self.num_frames:,} in {chunks}"),
            *([] if self.num_clips is None else [("clips", f"{self.num_clips:,}")]),
            ("stored", format_size(self.stored_bytes)),
            ("record files", ", ".join(self.record_files)),
        ]
        lines = [printable(self.key), *(f"  {name:<13} {value}" for name, value in facts)]
        lines += ["", *(f"  {line}" for line in table_lines(self._rows(), left=4)), ""]
        metadata = json.dumps(self.metadata, indent=1, ensure_ascii=False).splitlines()
        return "\n".join([*lines, "  metadata", *(f"  {printable(line)}" for line in metadata)])

    def _rows(self) -> list[Sequence[str]]:
        rows: list[Sequence[str]] = [("feature", "dtype", "shape", "codec", "stored", "missing")]
        rows += [
            (
                feature.spec.name,
                feature.spec.dtype.name,
                shape_text(feature.spec.shape),
                codec_text(feature.spec.codec),
                format_size(feature.stored_bytes),
                _missing_text(feature, self.num_frames),
            )
            for feature in self.features
        ]
        return rows


def summarize_episode(
    dataset: Dataset, key: str, *, clip: ClipSpec | None = None
) -> EpisodeSummary:
    """Count an episode's frames, chunks, bytes and, with `clip`, its clips.

    Features and clips are those of the features that the dataset was opened with. Raises
    `ClipError` for a key that is not there.
    """
    [number] = dataset.find_episodes([key]).tolist()
    index, manifest, episode = dataset.index, dataset.manifest, dataset.episodes[key]
    first = int(index.first_chunk[number])
    chunks = slice(first, first + int(index.num_chunks[number]))
    features = []
    for name, spec in dataset.features.items():
        present = episode.present(name)
        lengths = index.page_length[chunks, index.schema.position(name)]
        stored = int(lengths.sum(dtype=np.uint64))
        features.append(EpisodeFeature(spec, int(present.sum()), stored, _runs(~present)))
    return EpisodeSummary(
        url=dataset.url,
        key=key,
        num_frames=len(episode),
        chunk_frames=int(index.chunk_frames[number]),
        num_chunks=int(index.num_chunks[number]),
        record_files=tuple(manifest.record_files[n].path for n in np.unique(index.file[chunks])),
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
