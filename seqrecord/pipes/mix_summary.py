"""Summary of a mix: sources, shares, features of batches, and changes to the stored features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from seqrecord.pipes.mix_batches import MixedBatches, meaning
from seqrecord.pipes.mix_loader import MixLoader
from seqrecord.pipes.mix_sources import SourceLoader
from seqrecord.sampling import Shard
from seqrecord.text import counted, shape_text, shown_place, table_lines


@dataclass(frozen=True)
class MixSourceSummary:
    """A source: its share, the clips of its epoch, and how its features differ from stored ones.

    `changes` has texts by kind of change: `renamed`, `resized`, `missing`.
    """

    name: str
    location: str
    share: float
    num_clips: int
    num_episodes: int
    num_frames: int  # of the selected episodes
    left_out: str  # clips and episodes, with the reasons
    changes: Mapping[str, list[str]]


@dataclass(frozen=True)
class MixFeatureSummary:
    """A feature of batches. `shape` is without the batch axis; `None` marks a varying size."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    kind: str | None
    unit: str | None
    sources: tuple[str, ...]


@dataclass(frozen=True)
class MixSummary:
    """Sources and features of a mix, from indexes only: no frame is read.

    `epoch_batches` is the number of batches in an epoch of a single rank. `columns` are the batch
    entries beside features, with dtype and shape for a clip.

    Example:
        mix = seqrecord.SeqRecordMix(
            {"demo": seqrecord.SeqRecordIterableDataset("records/", clip_len=4)}, batch_size=4
        )
        print(mix.summarize())  # as `seqrecord info mix.yaml`
    """

    batch_size: int
    single_source_batches: bool
    epoch_batches: int
    sources: tuple[MixSourceSummary, ...]
    features: tuple[MixFeatureSummary, ...]
    columns: Mapping[str, str]

    @classmethod
    def of(cls, mix: MixLoader) -> MixSummary:
        """Summarize a mix."""
        sources = list(mix.loaders.values())
        rows: dict[MixFeatureSummary, list[str]] = {}
        columns = dict[str, str]()
        for batches in mix.batches:
            columns |= batches.column_texts
            for name in batches.specs:
                feature, having = _feature(batches, name)
                rows.setdefault(feature, []).extend(having)
        return cls(
            mix.batch_size,
            mix.alternate,
            mix.plan(0, Shard()).num_batches,
            tuple(_source(mix, number, source) for number, source in enumerate(sources)),
            tuple(
                MixFeatureSummary(**{**vars(feature), "sources": tuple(having)})
                for feature, having in sorted(rows.items(), key=lambda row: row[0].name)
            ),
            columns,
        )

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        whose = "one source each" if self.single_source_batches else "all sources"
        yield f"  {'batches':<13} {counted(self.batch_size, 'clip')} of {whose}"
        yield f"  {'epoch':<13} {self.epoch_batches:,} batches on a single rank"
        yield ""
        rows = [("source", "location", "share", "clips", "episodes", "frames")]
        for source in self.sources:
            counts = source.num_clips, source.num_episodes, source.num_frames
            numbers = (f"{count:,}" for count in counts)
            place = shown_place(source.location)
            rows.append((source.name, place, f"{source.share:.1%}", *numbers))
        yield from (f"  {line}" for line in table_lines(rows, left=2))
        yield ""
        heads = ("feature", "dtype", "shape", "kind", "unit", "sources")
        cells = [heads, *map(self._cells, self.features)]
        yield from (f"  {line}" for line in table_lines(cells, left=len(heads)))
        yield ""
        columns = (f"{name} ({text})" for name, text in self.columns.items())
        yield f"  {'columns':<13} {', '.join(columns)}"
        for source in self.sources:
            for kind, texts in source.changes.items():
                yield f"  {source.name}: {kind} {', '.join(texts)}"
            if source.left_out:
                yield f"  {source.name}: left out {source.left_out}"

    def _cells(self, feature: MixFeatureSummary) -> tuple[str, ...]:
        is_in_all = len(feature.sources) == len(self.sources)
        where = "all" if is_in_all else ", ".join(feature.sources)
        shape, kind, unit = shape_text(feature.shape), feature.kind or "", feature.unit or ""
        return feature.name, feature.dtype, shape, kind, unit, where


def _feature(batches: MixedBatches, name: str) -> tuple[MixFeatureSummary, list[str]]:
    """A feature without its sources, and their names."""
    spec = batches.specs[name]
    having = [one for one in batches.sources.values() if name in one.selection.made]
    stored = meaning(having[0].selection, name)
    frames = () if name in batches.squeezed else (batches.lengths[name],)
    is_array = spec.value == "array"
    return MixFeatureSummary(
        name,
        spec.dtype.name if is_array else spec.value,
        (*frames, *spec.shape) if is_array else frames,
        None if stored is None else stored.kind,
        None if stored is None else stored.unit,
        (),
    ), [one.name for one in having]


def _source(mix: MixLoader, number: int, source: SourceLoader) -> MixSourceSummary:
    selection = source.selection
    clip_set, dataset = selection.clip_set, selection.dataset
    contents, features = dataset.contents, dataset.features
    renamed = {name: contents.stored_name(name) for name in features}
    sizes = {name: size for name, size in contents.sizes.items() if name in features}
    changes = {
        "renamed": [f"{old} to {new}" for new, old in renamed.items() if new != old],
        "resized": [
            f"{name} from {shape_text(features[name].stored.shape[:2])} to {shape_text(size)}"
            for name, size in sizes.items()
        ],
        "missing": [
            f"{name} (0 in batches)"
            for batches in mix.batches
            for name, without in batches.missing.items()
            if number in without
        ],
    }
    return MixSourceSummary(
        source.name,
        dataset.url,
        float(mix.shares[source.name]),
        source.clips(0).num_clips,
        len(clip_set.selected),
        int(contents.index.num_frames[clip_set.selected].sum()),
        clip_set.left_out,
        {kind: texts for kind, texts in changes.items() if texts},
    )
