"""Adds features to a dataset, and drops some, without a change of what was written before.

The frames of a new feature lie in record files of their own, as a group of its own. What a dropped
one takes in record files stays there until they are rewritten; files of nothing else are the
dataset's no more. Which features there are is kept in a file of edits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

from seqrecord.collecting import StatisticsCollector
from seqrecord.errors import ConflictError, FormatError, FrameError, SchemaError
from seqrecord.format import EpisodePart, Footer
from seqrecord.format.edits import Features
from seqrecord.format.manifest import Manifest, RecordFile
from seqrecord.reading.episode import Episode
from seqrecord.reading.index_building import complete_episodes
from seqrecord.reading.metadata import read_footers, record_sizes
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.statistics import Statistics
from seqrecord.storage import Storage
from seqrecord.version import CREATED_BY
from seqrecord.writing.commits import Version, opened_to_edit, put_version, rebuilt
from seqrecord.writing.committing import Base
from seqrecord.writing.edit_files import put_edits
from seqrecord.writing.own_files import SmallFiles, new_writer_id, own_sizes
from seqrecord.writing.record_file import RecordFileWriter
from seqrecord.writing.statistics import stored_statistics
from seqrecord.writing.stored_schema import (
    DEFAULT_RECORD_BYTES,
    Codecs,
    check_sizes,
    infer_schema,
    stored_schema,
)

__all__ = ["Values", "add_feature", "drop_features"]

_LOOKED_AT = 32  # frames whose values tell a feature's dtype and shape

Values: TypeAlias = "Callable[[Episode], Iterable[Any]]"
"""A function of an episode that gives a value for each of its frames, or `None` for one without."""


def add_feature(
    location: str | PathLike[str],
    name: str,
    values: Values,
    *,
    spec: FeatureSpec | None = None,
    codec: Codecs | None = None,
    kind: str | None = None,
    unit: str | None = None,
    record_bytes: int | str = DEFAULT_RECORD_BYTES,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> FeatureSpec:
    """Add a feature to all episodes of a dataset; returns it as it is stored.

    `values` is called with each `Episode` and gives an array [frames, …], or an iterable of arrays,
    text or bytes, of which `None` is a frame without the feature. Dtype and shape are those of the
    first values, or of `spec`, whose name does not count; `codec`, `kind`, `unit` and
    `record_bytes` are as for `SeqRecordWriter`. The values are written into new record files; those
    that are there stay as they are, and nobody sees the feature until all of it is committed.
    Statistics of the dataset, if it has any, get those of the feature. With `dry_run` nothing is
    written: `values` is called for all episodes, but only the first values are looked at.

    `values_of_dataset` and `values_of_files` make such functions.

    Raises `NotFoundError` where there is no dataset, `SchemaError` for a feature that is there and
    for what cannot be stored, `FrameError` for values that do not fit it or are not as many as the
    episode has frames, and `ConflictError` where another writer commits meanwhile. Then the
    dataset is as it was; `clean` removes the record files that were written.
    """
    size = check_sizes(None, record_bytes)
    with _opened(location, storage_options) as dataset:
        manifest = dataset.manifest
        if name in manifest.schema.kept:
            raise SchemaError(
                "the dataset has the feature already; drop it first, or choose another name",
                file=dataset.storage.url,
                feature=name,
            )
        said = {"kind": kind, "unit": unit}
        found = _inferred(dataset, name, values) if spec is None else replace(spec, name=name)
        chains = codec if codec is None or isinstance(codec, str) else dict(codec)
        [new] = stored_schema(
            Schema([replace(found, group=0)]),
            {name: chains} if isinstance(chains, str) else chains,
            None,
            {name: {what: text for what, text in said.items() if text is not None}},
        ).values()
        writer = new_writer_id()
        new = replace(new, group=manifest.schema.num_groups, added=writer)
        schema = Schema([*manifest.schema.values(), new])
        schema.check_groups()
        if dry_run:
            for episode in dataset.reader.episodes.values():
                _check_length(episode, values(episode), name)
            return new
        collector = StatisticsCollector(Schema([new]))
        _write(dataset, schema, new, values, writer, size, collector)
        own = own_sizes(record_sizes(dataset.storage), writer)
        footers = read_footers(dataset.storage, own)
        old = dataset.statistics
        if old is not None:
            old = Statistics(old.num_frames, {**old, **collector.statistics()})
        _commit(dataset, schema, writer, footers, own, old)
        return new


def drop_features(
    location: str | PathLike[str],
    names: str | Sequence[str],
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Drop a feature, or several; returns their names.

    They are gone for every reader that opens the dataset from then on, and do not come back by
    `reindex`. Record files that hold nothing but frames of groups of which all features are dropped
    are not the dataset's any more: `clean` removes them. Others keep their bytes until
    `rewrite_files`. Another feature may be added under the name. With `dry_run` nothing is changed.

    Raises `NotFoundError` where there is no dataset, `SchemaError` for a feature that is not there
    and where none would be left, and `ConflictError` where another writer commits meanwhile.
    """
    with _opened(location, storage_options) as dataset:
        before = dataset.manifest.schema
        dropped = before.select([names] if isinstance(names, str) else list(dict.fromkeys(names)))
        if len(dropped) == len(before.kept):
            raise SchemaError(
                "no feature would be left",
                file=dataset.storage.url,
                expected="a dataset of at least one; to delete all, remove the folder",
            )
        schema = Schema(
            [
                replace(spec, name=f"~{place}") if spec.name in dropped else spec
                for place, spec in enumerate(before.values())
            ]
        )
        if not dry_run:
            old = dataset.statistics
            if old is not None:
                kept = {name: old[name] for name in old if name not in dropped}
                old = Statistics(old.num_frames, kept)
            _commit(dataset, schema, new_writer_id(), {}, {}, old)
        return list(dropped)


@dataclass(frozen=True)
class _Dataset:
    storage: Storage
    base: Base
    manifest: Manifest
    reader: SeqRecordReader
    footers: Mapping[str, Footer]
    statistics: Statistics | None


@contextmanager
def _opened(
    location: str | PathLike[str], storage_options: Mapping[str, Any] | None
) -> Iterator[_Dataset]:
    with opened_to_edit(location, storage_options) as found:
        reader = SeqRecordReader(found.storage, found.manifest, found.index)
        # Now: others who commit twice before this does remove them.
        statistics = stored_statistics(found.storage, found.manifest)
        yield _Dataset(found.storage, found.base, found.manifest, reader, found.footers, statistics)


def _inferred(dataset: _Dataset, name: str, values: Values) -> FeatureSpec:
    """What the first values are: those of the first episode that has any."""
    for episode in dataset.reader.episodes.values():
        first = islice(iter(values(episode)), _LOOKED_AT)
        if frames := [{name: value} for value in first if value is not None]:
            return infer_schema(frames)[name]
    raise SchemaError("no frame has a value of the feature", feature=name)


def _write(
    dataset: _Dataset,
    schema: Schema,
    new: FeatureSpec,
    values: Values,
    writer: str,
    record_bytes: int,
    collector: StatisticsCollector,
) -> None:
    """Write the values of all episodes into record files of their own."""
    parts = complete_episodes(list(dataset.footers.items()), dataset.manifest.schema)
    files = RecordFileWriter(
        dataset.storage,
        schema,
        writer=writer,
        record_bytes=record_bytes,
        statistics=collector,
        only=[new.group],
    )
    try:
        for episode in dataset.reader.episodes.values():
            _add(files, parts[episode.uid], episode, new.name, values)
        files.close()
    except BaseException:
        files.abort()
        raise


def _add(
    files: RecordFileWriter, part: EpisodePart, episode: Episode, name: str, values: Values
) -> None:
    found = values(episode)
    _check_length(episode, found, name)
    files.begin_again(part)
    count = 0
    for value in found:
        if count == len(episode):
            raise _wrong_length(episode, f"more than {count}", name)
        files.append({} if value is None else {name: value})
        count += 1
    if count < len(episode):
        raise _wrong_length(episode, count, name)
    files.end()


def _check_length(episode: Episode, values: Any, name: str) -> None:
    if isinstance(values, np.ndarray) and values.ndim == 0:
        raise _wrong_length(episode, "one value", name)
    if hasattr(values, "__len__") and len(values) != len(episode):
        raise _wrong_length(episode, len(values), name)


def _wrong_length(episode: Episode, got: object, name: str) -> FrameError:
    return FrameError(
        "not one value for each frame of the episode",
        episode=episode.key,
        feature=name,
        expected=len(episode),
        got=got,
    )


def _commit(
    dataset: _Dataset,
    schema: Schema,
    writer: str,
    footers: Mapping[str, Footer],
    sizes: Mapping[str, int],
    statistics: Statistics | None,
) -> None:
    """Make `schema` that of the dataset, with these new record files."""
    storage, base, manifest = dataset.storage, dataset.base, dataset.manifest
    with SmallFiles(storage, writer) as own:
        files = put_edits(own, [Features(schema)], len(manifest.edits))
        new = [RecordFile(path, size, footers[path].file_id) for path, size in sizes.items()]
        changed = replace(
            manifest,
            schema=schema,
            edits=(*manifest.edits, *files),
            record_files=(*manifest.record_files, *new),
        )
        every = {**dataset.footers, **footers}
        lengths = {file.path: file.size for file in changed.record_files}
        version = rebuilt(storage, replace(base, manifest=changed), every, lengths)
        if not np.array_equal(version.index.uids, dataset.reader.index.uids):
            raise FormatError(
                "the record files do not give the episodes of the index; see `seqrecord verify`",
                file=storage.url,
            )
        version = _without_dropped(version, every)
        try:
            put_version(own, base, version, CREATED_BY, statistics)
        except ConflictError as error:
            raise ConflictError(
                "another writer committed meanwhile; nothing was changed: try again",
                file=storage.url,
            ) from error


def _without_dropped(version: Version, footers: Mapping[str, Footer]) -> Version:
    """Without record files that hold nothing but chunks of groups that were dropped.

    A file stays that alone says how many frames an episode has, for its last chunk lies there.
    """
    index = version.index
    gone = [all(spec.is_dropped for spec in group.values()) for group in index.schema.groups]
    used = {number for group in index.groups for number in np.unique(group.file).tolist()}
    lengths = {index.uid(i): int(n) for i, n in enumerate(index.num_frames)}

    def holds_frames(number: int, file: RecordFile) -> bool:
        held = [len(rows) > 0 for rows in footers[file.path].chunks]
        return number in used or any(
            has and not is_gone for has, is_gone in zip(held, gone, strict=False)
        )

    def told(file: RecordFile) -> set[str]:
        parts = footers[file.path].episodes
        return {part.uid for part in parts if part.num_frames == lengths.get(part.uid, -1)}

    files = version.record_files
    kept = {file.path for i, file in enumerate(files) if holds_frames(i, file)}
    known = {uid for file in files if file.path in kept for uid in told(file)}
    for file in files:
        if file.path not in kept and not told(file) <= known:
            kept.add(file.path)
            known |= told(file)
    return replace(version, record_files=tuple(file for file in files if file.path in kept))
