"""Summaries of datasets and episodes, from manifest and index. No record file is read."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError, NotFoundError, SeqRecordError
from seqrecord.store.areas import CLIPS, load_entry
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.format.encoded_pages import table_bytes
from seqrecord.store.format.frame_rates import MeasuredRate
from seqrecord.store.format.index import GroupIndex, Index
from seqrecord.store.format.inventory import Inventory
from seqrecord.store.format.rows import num_absent
from seqrecord.store.format.text import MEASURED_FPS
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.derivations import stored_identities
from seqrecord.store.reading.filters import EpisodeDescription, EpisodeFilter
from seqrecord.store.reading.text_dictionaries import open_dictionary
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.text import (
    codec_text,
    counted,
    printable,
    shown_place,
    table_lines,
)
from seqrecord.store.units import MAX_INT, check, format_size

_logger = logging.getLogger("seqrecord")

_MAX_METADATA = 100  # characters in a line; `info DATA KEY` and JSON are complete


@dataclass(frozen=True)
class FeatureSummary:
    """Counts and sizes of one feature. `stored_bytes` is the size of its pages.

    `raw_bytes` is the size of its decoded frames; `None` if unknown: for variable dimensions with a
    codec, or in episodes that were trimmed inside a page whose frames differ in size.
    """

    spec: FeatureSpec
    num_frames: int  # with the feature
    num_missing: int  # without it
    stored_bytes: int
    raw_bytes: int | None

    @property
    def ratio(self) -> float | None:
        """Compression ratio, raw by stored bytes; `None` if unknown."""
        return _ratio(self.raw_bytes, self.stored_bytes)

    def to_json(self) -> dict[str, Any]:
        counts = {name: value for name, value in vars(self).items() if name != "spec"}
        return {**self.spec.to_json(), **counts, "ratio": self.ratio}


@dataclass(frozen=True)
class GroupSummary:
    """Features that share chunks, and the frames per chunk.

    The shorter last chunks of episodes are ignored if there are others.
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
    """Clip counts of all episodes, without padding. `span` is in frames.

    `seqrecord info --batch-size` adds the predicted peak memory of a loader in one process.
    """

    length: int
    stride: int
    dilation: int
    span: int
    num_clips: int
    num_episodes: int  # with a clip
    num_short_episodes: int  # shorter than the span
    num_incomplete: int  # clips skipped because a frame lacks a feature
    batch_size: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Summary:
    """Summary of a dataset. Sizes are in bytes, lengths of episodes in frames.

    `commit` is the id of its last commit, `earlier_commits` are the preceding ids, newest first.

    Example:
        summary = seqrecord.summarize("records/")
        print(summary)  # as `seqrecord info records/`
        print({feature.spec.name: feature.ratio for feature in summary.features})
    """

    url: str
    created_by: str
    fingerprint: str
    num_episodes: int
    num_frames: int
    shortest_episode: int
    median_episode: float
    longest_episode: int
    fps: tuple[float, float] | None  # minimum and maximum; None if unknown for all episodes
    groups: tuple[GroupSummary, ...]
    splits: Mapping[str, int]  # episodes by split
    num_record_files: int
    record_bytes: int
    index_bytes: int
    features: tuple[FeatureSummary, ...]
    clips: ClipSummary | None
    commit: str
    earlier_commits: tuple[str, ...]
    external_bytes: int = 0  # referenced in external files
    originals: tuple[str, ...] = ()  # roots of these files
    num_slow: int = 0  # episodes recorded more slowly than their fps
    measured_fps: tuple[float, float] | None = None  # their rates, minimum and maximum
    inventories: tuple[Inventory, ...] = ()
    derivations: Mapping[str, int] = field(default_factory=dict)  # episodes by function
    companions: tuple[str, ...] = ()  # places of joined datasets and tables
    dictionaries: Mapping[str, str] = field(default_factory=dict)  # values of texts, by name

    @property
    def stored_bytes(self) -> int:
        """Size of the features' pages in bytes."""
        return sum(feature.stored_bytes for feature in self.features)

    @property
    def raw_bytes(self) -> int | None:
        """Size of the decoded features in bytes; `None` if unknown for one."""
        sizes = [f.raw_bytes for f in self.features if f.raw_bytes is not None]
        return sum(sizes) if len(sizes) == len(self.features) else None

    @property
    def ratio(self) -> float | None:
        """Compression ratio over the features with known raw size."""
        features = [f for f in self.features if f.raw_bytes is not None]
        return _ratio(
            sum(f.raw_bytes or 0 for f in features), sum(f.stored_bytes for f in features)
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "features": [feature.to_json() for feature in self.features],
            "stored_bytes": self.stored_bytes,
            "groups": [vars(group) for group in self.groups],
            "raw_bytes": self.raw_bytes,
            "ratio": self.ratio,
            "clips": None if self.clips is None else vars(self.clips),
            "inventories": [inventory.to_json() for inventory in self.inventories],
        }

    def __str__(self) -> str:
        lengths = f"{self.shortest_episode:,} to {self.longest_episode:,} frames"
        if self.shortest_episode == self.longest_episode:
            lengths = counted(self.longest_episode, "frame")
        frames = f"{self.num_frames:,}"
        groups = [(f"group {group.number}", str(group)) for group in self.groups]
        if len(groups) == 1:
            frames, groups = f"{frames} in {groups[0][1]}", []
        splits = [f"{name} {count:,}" for name, count in self.splits.items()]
        splits.append(f"none {self.num_episodes - sum(self.splits.values()):,}")
        facts = [
            ("episodes", f"{self.num_episodes:,} of {lengths}, median {self.median_episode:,.10g}"),
            ("splits", ", ".join(splits) if self.splits else None),
            *(("derived", f"{count:,} by {text}") for text, count in self.derivations.items()),
            *(("dictionary", f"{name}: {text}") for name, text in self.dictionaries.items()),
            ("joined with", ", ".join(self.companions) or None),
            ("frames", frames),
            *groups,
            ("fps", _span_text(self.fps)),
            (
                "measured fps",
                self.measured_fps
                and f"{_span_text(self.measured_fps)} in {counted(self.num_slow, 'episode')}",
            ),
            ("record files", f"{self.num_record_files:,}, {format_size(self.record_bytes)}"),
            ("index", format_size(self.index_bytes)),
            (
                "refers to",
                f"{format_size(self.external_bytes)} in {', '.join(self.originals)}"
                if self.originals
                else None,
            ),
            ("fingerprint", self.fingerprint),
            ("written by", self.created_by),
        ]
        rows = _table(self.features)
        if len(self.features) > 1:
            rows.append(("total", *[""] * (len(rows[0]) - 5), *_sizes(self), ""))
        clips = [] if self.clips is None else ["", *_clip_lines(self.clips, self.num_episodes)]
        origins = [
            f"  {line}" for inventory in self.inventories for line in ("", *inventory.lines())
        ]
        table = ["", *(f"  {line}" for line in table_lines(rows, num_left=4))]
        return "\n".join([shown_place(self.url), *_lines(facts), *table, *clips, *origins])


def summarize(reader: Dataset, *, clip: ClipSpec | None = None) -> Summary:
    """Like `seqrecord.summarize`, for an open dataset."""
    is_spec = clip is None or isinstance(clip, ClipSpec)
    check("clip", clip, is_spec, "seqrecord.ClipSpec(…), such as ClipSpec(16)")
    index, manifest = reader.contents.index, reader.contents.manifest
    fps = index.fps[index.fps > 0]
    external_bytes = sum(int(group.external.sum(dtype=np.uint64)) for group in index.groups)
    measured = _measured_rates(index)
    roots: list[str] = []
    if external_bytes or manifest.copied:
        files = reader.contents.chunks.external.files.all_files()
        roots = sorted({file.root for file in files})
    return Summary(
        url=reader.url,
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
            if reader.features.keys() & group.schema.keys()
        ),
        splits={
            name: int(np.count_nonzero(index.split == number))
            for number, name in enumerate(manifest.splits)
        },
        num_record_files=len(manifest.record_files),
        record_bytes=sum(file.size for file in manifest.record_files),
        index_bytes=sum(file.size for file in manifest.index.values()),
        features=tuple(feature_summary(index, spec) for spec in reader.features.values()),
        derivations=_derivations(reader),
        companions=() if (join := reader.contents.join) is None else (*join.companion_places,),
        dictionaries=dict(_dictionaries(reader)),
        clips=None if clip is None else _count_clips(reader, clip),
        commit=manifest.commit,
        earlier_commits=manifest.earlier_commits,
        external_bytes=external_bytes,
        originals=tuple(roots),
        num_slow=len(measured),
        measured_fps=(min(measured), max(measured)) if measured else None,
        inventories=_inventories(reader),
    )


def _dictionaries(dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield names and descriptions of dictionaries."""
    for place in dataset.contents.dictionaries:
        try:
            with closing(open_dictionary(place)) as dictionary:
                count, spec = counted(len(dictionary), "text"), dictionary.spec
                yield place.name, f"{count} of {place.text}, {spec.value_kind.describe(spec)}"
        except SeqRecordError as error:
            yield place.name, str(error)


def _derivations(dataset: Dataset) -> dict[str, int]:
    """Return numbers of derived episodes by function, version and inputs."""
    counts: Counter[str] = Counter()
    for entry in stored_identities(dataset).values():
        version = f", version {entry['version']}" if entry.get("version") else ""
        inputs = entry.get("features")
        of = f" of {', '.join(map(str, inputs))}" if isinstance(inputs, list) else ""
        counts[printable(f"{entry.get('function')}{version}, per {entry.get('per')}{of}")] += 1
    return dict(counts)


def _measured_rates(index: Index) -> list[float]:
    """Rates of the episodes that a recorder found slower than their fps."""
    import pyarrow.compute as pc  # only here: it takes long

    slow_flags = pc.match_substring(index.metadata, f'"{MEASURED_FPS}":').to_pylist()
    entries = (
        index.episode_metadata(number) for number, is_slow in enumerate(slow_flags) if is_slow
    )
    rates: list[Any] = [entry.get(MEASURED_FPS) for entry in entries]
    return [float(rate) for rate in rates if type(rate) in (int, float) and 0 < rate < MAX_INT]


def _span_text(span: tuple[float, float] | None) -> str | None:
    return None if span is None else " to ".join(f"{fps:g}" for fps in sorted({*span}))


def _inventories(reader: Dataset) -> tuple[Inventory, ...]:
    """Return the dataset's inventories; empty with a warning if the file is damaged."""
    try:
        return reader.inventories
    except (FormatError, NotFoundError) as error:
        _logger.warning("inventories not shown: %s", error)
        return ()


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


def _trimmed_chunks(index: Index, group: GroupIndex) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Yield rows of chunks with hidden frames, and which frames are hidden: bool [frames]."""
    last_row = group.first_chunk + group.num_chunks - 1
    stop = group.first_frame[last_row].astype(np.int64) + group.num_frames[last_row]
    is_trimmed = (group.first_frame[group.first_chunk] < 0) | (stop > index.num_frames)
    for episode in np.flatnonzero(is_trimmed).tolist():
        for row in {int(group.first_chunk[episode]), int(last_row[episode])}:
            number = int(group.first_frame[row]) + np.arange(int(group.num_frames[row]))
            yield row, (number < 0) | (number >= int(index.num_frames[episode]))


def _num_missing(index: Index, group: GroupIndex, feature: int) -> int:
    """Count the frames of episodes without a feature."""
    gaps = group.gaps[group.gaps["feature"] == feature]
    count = int(num_absent(gaps, group.num_frames).sum())
    for row, is_hidden in _trimmed_chunks(index, group):
        if (present := group.present(row, feature)) is not None:
            count -= int((~present & is_hidden).sum())
    return count


def _hidden_bytes(index: Index, spec: FeatureSpec) -> int | None:
    """Bytes of hidden frames in pages without a codec, for a feature with a variable dimension.

    `None` if unknown: the index only has the size of each page, and its largest frame's.
    """
    group, feature = index.groups[spec.group], index.schema.position(spec.name)
    lengths = index.lengths(spec.name)
    column = [variable.name for variable in group.schema.variable].index(spec.name)
    nbytes = 0
    for row, is_hidden in _trimmed_chunks(index, group):
        present = group.present(row, feature)
        is_stored = np.ones(len(is_hidden), np.bool_) if present is None else present
        num_stored, num_hidden = int(is_stored.sum()), int((is_stored & is_hidden).sum())
        if not num_hidden:
            continue
        frame_bytes = int(lengths[row]) - table_bytes(spec, num_stored)
        if num_hidden < num_stored:
            largest_bytes = int(group.largest_frame[row, column])
            if frame_bytes != num_stored * largest_bytes:
                return None
            frame_bytes = num_hidden * largest_bytes
        nbytes += frame_bytes + table_bytes(spec, num_hidden) - table_bytes(spec, 0)
    return nbytes


def feature_summary(index: Index, spec: FeatureSpec) -> FeatureSummary:
    """Counts and sizes of a feature, from the index."""
    group, lengths = index.groups[spec.group], index.lengths(spec.name)
    num_missing = _num_missing(index, group, index.schema.position(spec.name))
    stored_bytes = int(lengths.sum(dtype=np.uint64))
    num_frames = int(index.num_frames.sum()) - num_missing
    raw_bytes, nbytes = None, spec.value_kind.constant_nbytes(spec)
    if nbytes is not None:
        raw_bytes = num_frames * nbytes
    elif not spec.codec and (hidden_bytes := _hidden_bytes(index, spec)) is not None:
        # Each page with frames begins with a table.
        pages = int(np.count_nonzero(lengths))
        tables = table_bytes(spec, 1) - table_bytes(spec, 0)
        raw_bytes = stored_bytes - hidden_bytes - num_frames * tables
        raw_bytes -= pages * table_bytes(spec, 0)
    return FeatureSummary(spec, num_frames, num_missing, stored_bytes, raw_bytes)


def _count_clips(dataset: Dataset, spec: ClipSpec) -> ClipSummary:
    table = load_entry(CLIPS)(dataset.contents, spec)
    return ClipSummary(
        *(spec.length, spec.stride, spec.dilation, spec.span),
        num_clips=table.num_clips,
        num_episodes=len(np.unique(table.episode)),
        num_short_episodes=table.num_short_episodes,
        num_incomplete=table.num_incomplete,
    )


def _clip_lines(clips: ClipSummary, num_episodes: int) -> list[str]:
    apart = "" if clips.dilation == 1 else f", {clips.dilation} frames apart (span {clips.span})"
    lines = [
        f"  clips of {counted(clips.length, 'frame')}{apart}, stride {clips.stride}",
        f"    clips        {clips.num_clips:,} in {counted(clips.num_episodes, 'episode')}",
        f"    left out     {clips.num_incomplete:,}, for a frame that lacks a feature",
        f"    too short    {clips.num_short_episodes:,} of {counted(num_episodes, 'episode')}",
    ]
    if clips.memory_bytes is not None and clips.batch_size is not None:
        batches = f"batches of {counted(clips.batch_size, 'clip')}"
        lines.append(f"    memory       at most {format_size(clips.memory_bytes)}, in {batches}")
    return lines


def _ratio(raw_bytes: int | None, stored_bytes: int) -> float | None:
    return raw_bytes / stored_bytes if raw_bytes is not None and stored_bytes else None


def _sizes(summary: Summary | FeatureSummary) -> tuple[str, str, str]:
    raw_bytes, ratio = summary.raw_bytes, summary.ratio
    return (
        "?" if raw_bytes is None else format_size(raw_bytes),
        format_size(summary.stored_bytes),
        "?" if ratio is None else f"{ratio:.2f}x",
    )


def _lines(facts: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """Format facts that are not `None`."""
    return (f"  {name:<13} {value}" for name, value in facts if value is not None)


_COLUMNS: Mapping[str, Callable[[FeatureSpec], str]] = {
    "feature": lambda spec: spec.name,
    "dtype": lambda spec: spec.value_kind.dtype_text(spec),
    "shape": lambda spec: spec.value_kind.shape_text(spec),
    "codec": lambda spec: codec_text(spec.codec),
    "group": lambda spec: str(spec.group),
    "kind": lambda spec: spec.kind or "",
    "unit": lambda spec: spec.unit or "",
}
_OPTIONAL_COLUMNS: Mapping[str, Callable[[list[str]], bool]] = {
    "group": lambda texts: len({*texts}) > 1,
    "kind": any,
    "unit": any,
}
"""Whether a column is shown, by the texts in it."""


def _table(features: Sequence[FeatureSummary]) -> list[tuple[str, ...]]:
    """Return table rows: headings, then a row for each feature.

    The first columns are those of `_COLUMNS`.
    """
    columns = {}
    for name, text_of in _COLUMNS.items():
        texts = [text_of(feature.spec) for feature in features]
        if name not in _OPTIONAL_COLUMNS or _OPTIONAL_COLUMNS[name](texts):
            columns[name] = texts
    lines = zip(features, *columns.values(), strict=True)
    rows = [(*texts, *_sizes(feature), f"{feature.num_missing:,}") for feature, *texts in lines]
    return [(*columns, "raw", "stored", "ratio", "missing"), *rows]


@dataclass(frozen=True)
class EpisodeRow:
    """One row of an episode list. `num_clips` is `None` unless requested.

    `measured` is the rate of its timestamps, if these were read.
    """

    key: str
    num_frames: int
    fps: float | None
    split: str | None
    num_clips: int | None
    metadata: dict[str, Any]
    measured: MeasuredRate | None = None

    def to_json(self) -> dict[str, Any]:
        values = dict(vars(self))
        measured = values.pop("measured")
        return values if measured is None else {**values, "measured": vars(measured)}

    def __str__(self) -> str:
        measured = self.measured
        facts = [
            ("frames", f"{self.num_frames:,}"),
            ("fps", None if self.fps is None else f"{self.fps:g}"),
            ("measured fps", None if measured is None else f"{measured.mean_fps:.6g} (mean)"),
            ("longest step", None if measured is None else f"{measured.max_step:.4g} s"),
            ("time error", None if measured is None else f"up to {measured.max_deviation:.3g} s"),
            ("split", self.split),
            ("clips", None if self.num_clips is None else f"{self.num_clips:,}"),
        ]
        metadata = json.dumps(self.metadata, indent=1, ensure_ascii=False).splitlines()
        metadata = [f"  {printable(line)}" for line in metadata]
        return "\n".join([printable(self.key), *_lines(facts), "", "  metadata", *metadata])


def list_episodes(
    dataset: Dataset, episodes: EpisodeFilter = None, *, clip: ClipSpec | None = None
) -> Iterator[EpisodeRow]:
    """Yield a row for each selected episode, in dataset order.

    Clips are counted without padding. Raises `ClipError` like `Dataset.find_episodes`.
    """
    return _rows(dataset, *_counts(dataset, episodes, clip))


def listing_lines(
    dataset: Dataset, episodes: EpisodeFilter = None, *, clip: ClipSpec | None = None
) -> Iterator[str]:
    """Format `list_episodes` as an aligned table with a total."""
    numbers, clips = _counts(dataset, episodes, clip)
    index = dataset.contents.index
    frames, keys = index.num_frames[numbers], index.keys_of(numbers)
    widths = [
        max(len("episode"), *map(len, keys)),
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


def _counts(
    dataset: Dataset, episodes: EpisodeFilter, clip: ClipSpec | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """Return numbers of the selected episodes, and their clip counts if requested: int64 [n]."""
    numbers = dataset.contents.find_episodes(episodes)
    if clip is None:
        return numbers, None
    table = load_entry(CLIPS)(dataset.contents, clip, episodes)
    counts = np.zeros(len(dataset.contents.index.num_frames), np.int64)
    np.add.at(counts, table.episode, table.count)
    return numbers, counts[numbers]


def _rows(
    dataset: Dataset, numbers: npt.NDArray[np.int64], clips: npt.NDArray[np.int64] | None
) -> Iterator[EpisodeRow]:
    index, manifest = dataset.contents.index, dataset.contents.manifest
    for place, number in enumerate(numbers.tolist()):
        description = EpisodeDescription(index, manifest.splits, number)
        num_clips = None if clips is None else int(clips[place])
        yield EpisodeRow(**vars(description), num_clips=num_clips, metadata=dict(description))
