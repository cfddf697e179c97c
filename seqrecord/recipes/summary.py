"""Summary of a mix: sources, shares, features of batches, and changes to the stored features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from seqrecord.loader.mixing.agreement import meaning
from seqrecord.loader.mixing.batches import MixedBatches
from seqrecord.loader.mixing.loader import MixLoader
from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.runs import Shard
from seqrecord.store.text import counted, shape_text, shown_place, table_lines


@dataclass(frozen=True)
class MixSourceSummary:
    """A source: its share, its clips, and the changes to its features.

    Attributes:
        num_clips: clips in an epoch of the source.
        num_frames: frames of the selected episodes.
        left_out: numbers of skipped clips and episodes, with the reasons.
        renamed: stored names by name in batches.
        resized: stored height and width by feature.
        placed: places of a vector's values in batches, by feature.
        normalized: mode and statistics, by feature.
        missing: features and cameras of batches that the source lacks.
    """

    name: str
    location: str
    share: float
    num_clips: int
    num_episodes: int
    num_frames: int
    left_out: str
    renamed: Mapping[str, str]
    resized: Mapping[str, tuple[int | None, ...]]
    placed: Mapping[str, tuple[int, ...]]
    normalized: Mapping[str, str]
    missing: tuple[str, ...]

    def changes(self) -> list[str]:
        """A line for each kind of change."""
        found = {
            "renamed": [f"{old} to {new}" for new, old in self.renamed.items()],
            "resized": [f"{name} from {shape_text(size)}" for name, size in self.resized.items()],
            "placed": [f"{name} at {_places_text(one)}" for name, one in self.placed.items()],
            "normalized": [f"{name} by {text}" for name, text in self.normalized.items()],
            "missing": [f"{name}, 0 in batches" for name in self.missing],
            "left out": [self.left_out] if self.left_out else [],
        }
        return [f"{kind} {'; '.join(texts)}" for kind, texts in found.items() if texts]


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
    entries beside features, with dtype and shape for a clip. `tasks` are the texts that the column
    `task_index` numbers.

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
    tasks: tuple[str, ...]

    @classmethod
    def of(cls, mix: MixLoader) -> MixSummary:
        """Summarize a mix."""
        rows: dict[_Feature, list[str]] = {}
        columns = dict[str, str]()
        for batches in mix.batches:
            columns |= batches.column_texts
            for name in batches.specs:
                views = {batches.names[n]: one.view for n, one in batches.loaders.items()}
                having = {n: view for n, view in views.items() if name in view.batch_arrays}
                view, is_drawn = next(iter(having.values())), mix.options.draws is not None
                feature = _feature(batches, name, view, is_drawn=is_drawn)
                rows.setdefault(feature, []).extend(having)
        features = (MixFeatureSummary(*feature, tuple(some)) for feature, some in rows.items())
        return cls(
            mix.batch_size,
            mix.alternate,
            mix.plan(0, Shard()).num_batches,
            tuple(_source(mix, number, name) for number, name in enumerate(mix.loaders)),
            tuple(sorted(features, key=lambda feature: feature.name)),
            columns,
            () if mix.tasks is None else tuple(mix.tasks.numbers),
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
        rows: list[tuple[str, ...]] = [
            ("source", "location", "share", "clips", "episodes", "frames")
        ]
        for source in self.sources:
            counts = source.num_clips, source.num_episodes, source.num_frames
            numbers = (f"{count:,}" for count in counts)
            place = shown_place(source.location)
            rows.append((source.name, place, f"{source.share:.1%}", *numbers))
        yield from (f"  {line}" for line in table_lines(rows, num_left=2))
        yield ""
        heads = ("feature", "dtype", "shape", "kind", "unit", "sources")
        cells = [heads, *map(self._cells, self.features)]
        yield from (f"  {line}" for line in table_lines(cells, num_left=len(heads)))
        yield ""
        columns = (f"{name} ({text})" for name, text in self.columns.items())
        yield f"  {'columns':<13} {', '.join(columns)}"
        if self.tasks:
            yield f"  {'tasks':<13} {len(self.tasks):,}, numbered in task_index"
        for source in self.sources:
            yield from (f"  {source.name}: {change}" for change in source.changes())

    def _cells(self, feature: MixFeatureSummary) -> tuple[str, ...]:
        is_in_all = len(feature.sources) == len(self.sources)
        where = "all" if is_in_all else ", ".join(feature.sources)
        shape, kind, unit = shape_text(feature.shape), feature.kind or "", feature.unit or ""
        return feature.name, feature.dtype, shape, kind, unit, where


_Feature: TypeAlias = tuple[str, str, tuple[int | None, ...], str | None, str | None]


def _feature(batches: MixedBatches, name: str, view: View, *, is_drawn: bool) -> _Feature:
    """Name, dtype, shape, kind and unit of a feature. Sizes drawn for each batch are `None`."""
    spec, stored = batches.specs[name], meaning(view, name)
    frames: tuple[int | None, ...] = (None if is_drawn else batches.lengths[name],)
    shape: tuple[int | None, ...] = spec.shape
    crops = [one for one in view.draws.crops if name in one.features]
    if any(one.per_batch for one in crops):
        shape = (None, None, *shape[2:])
    if name in batches.squeezed:
        frames = ()
    dtype, shape = spec.value_kind.dtype_text(spec), (*frames, *spec.value_kind.value_shape(shape))
    kind, unit = (None, None) if stored is None else (stored.kind, stored.unit)
    return name, dtype, shape, kind, unit


def _places_text(places: tuple[int, ...]) -> str:
    first, last = places[0], places[-1]
    if places == tuple(range(first, last + 1)):
        return f"{first} to {last}"
    return ", ".join(map(str, places))


def _source(mix: MixLoader, number: int, name: str) -> MixSourceSummary:
    loader = mix.loaders[name]
    view = loader.view
    dataset = view.dataset
    contents, features, steps = dataset.contents, dataset.features, view.vectors
    stored = {name: contents.stored_name(name) for name in features}
    missing = {
        n for batches in mix.batches for n, some in batches.missing.items() if number in some
    }
    return MixSourceSummary(
        name,
        dataset.url,
        float(mix.order.schedule.shares(0)[name]),
        loader.order.clips(0).num_clips,
        len(view.episode_rows),
        int(contents.index.num_frames[view.episode_rows].sum()),
        view.left_out,
        renamed={name: old for name, old in stored.items() if name != old},
        resized={n: features[n].stored.shape[:2] for n in contents.sizes if n in features},
        placed={n: one.places for n, one in steps.items() if one.places is not None},
        normalized={
            name: f"{step.normalization.mode} of {step.normalization.source or 'an argument'}"
            for name, step in steps.items()
            if step.normalization is not None
        },
        missing=tuple(sorted(missing)),
    )
