"""Adds features to a dataset, and drops some, without a change of what was written before.

The frames of a new feature lie in record files of their own, as a group of its own. What a dropped
one takes in record files stays there until they are rewritten; files of nothing else are the
dataset's no more. Which features there are is kept in a file of edits.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from seqrecord.codecs.images import IMAGE
from seqrecord.edit.changes import Opened, opened_to_edit
from seqrecord.errors import (
    ClipError,
    FrameError,
    NotFoundError,
    SchemaError,
    SourceError,
    located,
)
from seqrecord.feature_kinds import check_kinds_and_units
from seqrecord.format.edits import Features
from seqrecord.format.footer import EpisodePart
from seqrecord.format.lags import has_lags
from seqrecord.indexing.opening import opened
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.episode import Episode, values_in_order
from seqrecord.reading.filters import EpisodeFilter
from seqrecord.reading.index_building import complete_episodes
from seqrecord.schema import Block, FeatureSpec, Schema
from seqrecord.sources.common.array_files import NPZ, NpyFile, npz_names
from seqrecord.statistics.by_feature import Statistics, num_channels
from seqrecord.statistics.collecting import StatisticsCollector
from seqrecord.writing.own_files import new_writer_id
from seqrecord.writing.rates import irregular_note
from seqrecord.writing.record_file import RecordFileWriter
from seqrecord.writing.stored_schema import (
    DEFAULT_MAX_FILE_SIZE,
    Codecs,
    check_sizes,
    infer_schema,
    stored_schema,
)
from seqrecord.writing.stored_statistics import stored_statistics

_logger = logging.getLogger("seqrecord")

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
    max_file_size: int | str = DEFAULT_MAX_FILE_SIZE,
    overwrite: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> FeatureSpec:
    """Add a feature to all episodes of a dataset; returns it as it is stored.

    `values` is called with each `Episode` and gives an array [frames, …], or an iterable of arrays,
    text or bytes, of which `None` is a frame without the feature. Dtype and shape are those of the
    first values, or of `spec`, whose name does not count; `codec`, `kind`, `unit` and
    `max_file_size` are as for `SeqRecordWriter`. The values are written into new record files;
    those that are there stay as they are, and nobody sees the feature until all of it is committed.
    Statistics of the dataset, if it has any, get those of the feature. With `overwrite` it comes in
    the place of the one of this name, which is dropped in the same commit. With `dry_run` nothing
    is written: `values` is called for all episodes, but only the first values are looked at.

    `values_of_dataset` and `values_of_files` make such functions.

    Raises `NotFoundError` where there is no dataset, `SchemaError` for a feature that is there and
    for what cannot be stored, `FrameError` for values that do not fit it or are not as many as the
    episode has frames, and `ConflictError` where another writer commits meanwhile. Then the
    dataset is as it was; `clean` removes the record files that were written.
    """
    size = check_sizes(None, max_file_size)
    with opened_to_edit(location, storage_options) as dataset:
        storage, manifest = dataset.storage, dataset.manifest
        if name in manifest.schema.active and not overwrite:
            raise SchemaError(
                "the dataset has the feature already; overwrite it, or choose another name",
                file=storage.url,
                feature=name,
            )
        episodes = Dataset(storage, manifest, dataset.index).episodes
        # Now: others who commit twice before this does remove them.
        known = stored_statistics(storage, manifest)
        found = _inferred(episodes, name, values) if spec is None else replace(spec, name=name)
        asked = Schema([replace(found, group=0)])
        said = {} if kind is None else {name: kind}, {} if unit is None else {name: unit}
        [new] = stored_schema(
            asked,
            {name: codec} if isinstance(codec, str) else codec,
            None,
            check_kinds_and_units(asked, *said, fits=False),
        ).values()
        writer = new_writer_id()
        new = replace(new, group=manifest.schema.num_groups, added=writer)
        schema = Schema([*_without(manifest.schema, {name}), new])
        schema.check_groups()
        if dry_run:
            for episode in episodes.values():
                _check_length(episode, values(episode), name)
            return new
        collector = StatisticsCollector(Schema([new]))
        files = RecordFileWriter(
            storage,
            schema,
            writer=writer,
            max_file_size=size,
            statistics=collector,
            only=[new.group],
        )
        parts = complete_episodes(list(dataset.footers.items()), manifest.schema)
        try:
            for episode in episodes.values():
                _add(files, parts[episode.uid], episode, name, values)
            files.close()
            if files.irregular:
                _logger.warning("%s: %s", storage.url, irregular_note(files.irregular))
        except BaseException:
            files.abort()
            raise
        if known is not None:
            known = Statistics(known.num_frames, {**known, **collector.statistics()})
        dataset.commit([Features(schema)], known, writer=writer)
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
    with opened_to_edit(location, storage_options) as dataset:
        before = dataset.manifest.schema
        dropped = before.select([names] if isinstance(names, str) else list(dict.fromkeys(names)))
        if len(dropped) == len(before.active):
            raise SchemaError(
                "no feature would be left",
                file=dataset.storage.url,
                expected="a dataset of at least one; to delete all, remove the folder",
            )
        if not dry_run:
            _commit_schema(dataset, Schema([*_without(before, dropped)]))
        return list(dropped)


def describe_features(
    location: str | PathLike[str],
    *,
    kinds: Mapping[str, str | None] | None = None,
    units: Mapping[str, str | None] | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[FeatureSpec]:
    """Change the kind or the unit of features; returns those that change, as they are then.

    No frame is read or written. `kinds` and `units` are by feature, `None` for unknown:
    `describe_features("records/", kinds={"seg": "segmentation"}, units={"depth": "mm"})`.
    Statistics of features whose channels depend on the kind are removed, with a warning. With
    `dry_run` nothing is changed.

    Raises `NotFoundError` where there is no dataset, `SchemaError` for a feature, a kind or a unit
    that does not exist, and for a feature that becomes a timestamp after it was written, and
    `ConflictError` where another writer commits meanwhile.
    """
    with opened_to_edit(location, storage_options) as dataset:
        before = dataset.manifest.schema
        with located(SchemaError, file=dataset.storage.url):
            described: Mapping[str, Any] = check_kinds_and_units(before, kinds, units)
            if not described:
                raise SchemaError("nothing to change", expected="kinds or units of features")
        schema = Schema([replace(s, **described.get(s.name, {})) for s in before.values()])
        changed = [spec for spec in schema.values() if spec != before[spec.name]]
        for spec in changed:
            _check_lags(dataset, spec)
        if changed and not dry_run:
            _commit_schema(dataset, schema)
        return changed


def _commit_schema(dataset: Opened, schema: Schema) -> None:
    """Commit other features, with the statistics of those that have the channels of before."""
    before, known = dataset.manifest.schema, stored_statistics(dataset.storage, dataset.manifest)
    if known is not None:
        left = [name for name in known if name in schema]
        kept = [n for n in left if num_channels(schema[n]) == num_channels(before[n])]
        if gone := [name for name in left if name not in kept]:
            _logger.warning(
                "%s: statistics of %s removed because its channels changed; run `seqrecord stats`",
                *(dataset.storage.url, ", ".join(gone)),
            )
        known = Statistics(known.num_frames, {name: known[name] for name in kept})
    dataset.commit([Features(schema)], known)


def _check_lags(dataset: Opened, spec: FeatureSpec) -> None:
    """`SchemaError` for a timestamp whose lags a record file lacks: they are made in writing."""
    if not has_lags(spec):
        return
    place = list(dataset.manifest.schema).index(spec.name)
    for footer in dataset.footers.values():
        if len(footer.schema) > place and not has_lags([*footer.schema.values()][place]):
            url, name = dataset.storage.url, spec.name
            raise SchemaError(
                "a feature becomes a timestamp when it is written; write it anew: "
                f"`seqrecord edit add {shlex.quote(url)} {name} --from {shlex.quote(url)} "
                f"--kind timestamp --unit {shlex.quote(spec.unit or 'UNIT')} --overwrite`",
                file=url,
                feature=name,
            )


def _without(schema: Schema, names: Collection[str]) -> Iterator[FeatureSpec]:
    """The features, of which these are dropped."""
    for place, spec in enumerate(schema.values()):
        yield replace(spec, name=f"~{place}") if spec.name in names else spec


def set_text(
    location: str | PathLike[str],
    episodes: EpisodeFilter,
    name: str,
    text: str,
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Make a feature of texts, such as `task`, this text on every frame of episodes.

    Returns the keys of those of which a frame had another or none. The feature is written anew, in
    the place of the old one: the texts of all episodes, in record files of their own. Datasets of
    which one was changed so have other schemas then. `set_metadata` changes metadata.

    Raises as `delete_episodes` does, and `SchemaError` where there is no such feature of texts.
    """
    with opened(location, storage_options=storage_options) as dataset:
        spec = dataset.features.select([name])[name]
        if spec.value != "text":
            raise SchemaError("not a feature of texts", feature=name, got=str(spec))
        keys = list(dataset.episodes)

        def old(episode: Episode) -> Iterator[Any]:
            return values_in_order(episode, name, range(len(episode)))

        chosen = [dataset.episodes[keys[n]] for n in dataset.find_episodes(episodes).tolist()]
        changed = {e.uid: e.key for e in chosen if any(value != text for value in old(e))}

    def new(episode: Episode) -> Iterable[Any]:
        return [text] * len(episode) if episode.uid in changed else old(episode)

    if changed:
        add_feature(
            *(location, name, new),
            spec=spec,
            overwrite=True,
            dry_run=dry_run,
            storage_options=storage_options,
        )
    return list(changed.values())


def _inferred(episodes: Mapping[str, Episode], name: str, values: Values) -> FeatureSpec:
    """What the first values are: those of the first episode that has any."""
    for episode in episodes.values():
        first = islice(iter(values(episode)), _LOOKED_AT)
        if frames := [{name: value} for value in first if value is not None]:
            return infer_schema(frames)[name]
    raise SchemaError("no frame has a value of the feature", feature=name)


def _add(
    files: RecordFileWriter, part: EpisodePart, episode: Episode, name: str, values: Values
) -> None:
    found = values(episode)
    _check_length(episode, found, name)
    files.begin_part(part)
    count = 0
    for count, value in enumerate(found, start=1):
        if count > len(episode):
            raise _wrong_length(episode, f"more than {len(episode)}", name)
        files.append(Block.of({} if value is None else {name: value}))
    if count < len(episode):
        raise _wrong_length(episode, count, name)
    files.end()


def _check_length(episode: Episode, values: Any, name: str) -> None:
    if getattr(values, "shape", None) == ():
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


def spec_of_dataset(dataset: Dataset, feature: str) -> FeatureSpec:
    """The feature of another dataset, to be stored as it is there.

    Raises `SchemaError` for one that is not there, and for one whose codec loses data: encoding its
    frames once more would lose more, so a codec must be named.
    """
    spec = dataset.features.select([feature])[feature]
    if loses_data(spec):
        raise SchemaError(
            "the other dataset stores the feature with a codec that loses data; name the codec to "
            "encode its frames with, such as balanced, which loses nothing more",
            file=dataset.url,
            feature=feature,
            got=spec.codec[0],
        )
    return spec


def loses_data(spec: FeatureSpec) -> bool:
    """Whether frames of a feature are not what they were before they were encoded."""
    config = spec.codec[0] if spec.codec else {"id": "none"}
    return (config["id"] == "video" and config.get("codec") != "ffv1") or (
        config["id"] == IMAGE and config.get("format") in ("jpeg", "any")
    )


def values_of_dataset(dataset: Dataset, feature: str) -> Values:
    """The values of a feature of another dataset, of episodes with the same keys and lengths.

    Frames that lack the feature there lack it. The function raises `NotFoundError` for an episode
    that the other dataset does not have, and `ClipError` for one of another length there.
    """

    def values(episode: Episode) -> Iterator[Any]:
        if episode.key not in dataset.episodes:
            raise NotFoundError(
                "the other dataset lacks an episode", file=dataset.url, episode=episode.key
            )
        other = dataset.episodes[episode.key]
        if len(other) != len(episode):
            raise ClipError(
                "the episode has another number of frames in the other dataset",
                file=dataset.url,
                episode=episode.key,
                expected=len(episode),
                got=len(other),
            )
        return values_in_order(other, feature, range(len(other)))

    return values


def values_of_files(path: str | PathLike[str], name: str) -> Values:
    """The arrays [frames, …] of NumPy files: of a folder of `KEY.npy` or `KEY.npz`, or of one .npz.

    A file `KEY.npz` has one array, or one of the feature's `name`; a single `.npz` file has an
    array for each key of an episode. Nothing in the files is run. The function raises
    `NotFoundError` for an episode without an array, and `FormatError` for a file that has none.
    """
    root = Path(path)
    if not root.exists():
        raise NotFoundError("no such file or folder", file=str(root))

    def values(episode: Episode) -> Iterable[Any]:
        if not root.is_dir():
            return _array(root, episode.key, episode.key)
        for suffix in (".npy", NPZ):
            if (file := root / f"{episode.key}{suffix}").is_file():
                is_named = suffix == NPZ and len(npz_names(file)) > 1
                return _array(file, name if is_named else None, episode.key)
        raise NotFoundError(
            "no array for an episode",
            file=str(root),
            episode=episode.key,
            expected=f"{episode.key}.npy or {episode.key}.npz",
        )

    return values


def _array(file: Path, member: str | None, key: str) -> NpyFile:
    with located(SourceError, episode=key):
        return NpyFile(file, member)
