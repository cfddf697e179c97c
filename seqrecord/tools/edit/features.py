"""Edits of features: adding, dropping, names, kinds and units, texts.

A new feature gets record files and a group of its own. A dropped feature's bytes stay in record
files until these are rewritten; record files with dropped features only leave the dataset. The
schema is stored in a file of edits.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from seqrecord.errors import ClipError, FrameError, NotFoundError, SchemaError, SourceError, located
from seqrecord.formats.sources.common.array_files import NPZ, NpyFile, npz_names
from seqrecord.store.feature_kinds import check_kinds_and_units
from seqrecord.store.format.edits import Edit, Features
from seqrecord.store.format.footer import EpisodePart
from seqrecord.store.format.time_spans import is_timestamp
from seqrecord.store.reading.contents import Contents, Episodes
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.episode import Episode, values_in_order
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.reading.index_building import complete_episodes
from seqrecord.store.reading.metadata import read_edits
from seqrecord.store.reading.opening import opened
from seqrecord.store.schema import Block, FeatureSpec, Schema
from seqrecord.store.statistics.by_feature import Statistics, num_channels
from seqrecord.store.statistics.collecting import StatisticsCollector
from seqrecord.store.writing.committing import new_writer_id, recorded
from seqrecord.store.writing.rates import irregular_notes
from seqrecord.store.writing.record_file import RecordFileWriter
from seqrecord.store.writing.stored_schema import (
    Codecs,
    check_sizes,
    infer_schema,
    loses_data,
    stored_schema,
)
from seqrecord.store.writing.stored_statistics import stored_statistics
from seqrecord.tools.edit.changes import Change, EditedDataset, edit_dataset, open_for_edit

_logger = logging.getLogger("seqrecord")

_BY_FEATURE = ("camera", "columns", "files", "names")  # entries of metadata, by feature
_INFERRED_FROM = 32  # frames for inferring dtype and shape

Values: TypeAlias = "Callable[[Episode], Iterable[Any]]"
"""A function of an episode that returns a value for each frame, `None` for frames without one."""


@recorded
def add_feature(
    location: str | PathLike[str],
    name: str,
    values: Values,
    *,
    spec: FeatureSpec | None = None,
    codec: Codecs | None = None,
    kind: str | None = None,
    unit: str | None = None,
    max_file_size: int | str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    if_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> FeatureSpec:
    """Add a feature to all episodes of a dataset; returns its stored specification.

    Values are written into new record files, and readers see the feature after the commit. The
    dataset's statistics, if any, are extended.

    Args:
        location: local path or URL of the dataset.
        name: of the new feature.
        values: called with each `Episode`; returns an array [frames, …], or an iterable of arrays,
            `str` or `bytes`, with `None` for frames without the feature. `values_of_dataset` and
            `values_of_files` make such functions.
        spec: dtype, shape, codec, kind and unit; by default inferred from the first values.
        codec, kind, unit, max_file_size: as for `SeqRecordWriter`.
        overwrite: replace a feature of the same name in the same commit.
        dry_run: write nothing; calls `values` for all episodes, but only reads the first values.
        storage_options: for the filesystem that serves a URL.

    Raises `NotFoundError` if there is no dataset, `SchemaError` if the feature exists or cannot be
    stored, `FrameError` for values that do not fit it or whose number differs from the episode's
    frames, and `ConflictError` if another writer commits meanwhile. Then the dataset is unchanged;
    `clean` removes the new record files.

    Example:
        from seqrecord import edit

        edit.add_feature("records/", "step", lambda episode: np.arange(len(episode)), kind="state")
    """
    size = check_sizes(None, max_file_size)
    with open_for_edit(location, storage_options, if_version) as dataset:
        storage, manifest = dataset.storage, dataset.manifest
        if name in manifest.schema.active and not overwrite:
            raise SchemaError(
                "feature exists already; overwrite it (--overwrite), or choose another name",
                file=storage.url,
                feature=name,
            )
        episodes = Episodes(Contents.of(storage, manifest, dataset.index))
        # Read now: two commits of other writers would remove the file.
        known = stored_statistics(storage, manifest)
        found = _inferred(episodes, name, values) if spec is None else replace(spec, name=name)
        requested = Schema([replace(found, group=0)])
        kinds, units = ({} if each is None else {name: each} for each in (kind, unit))
        [new] = stored_schema(
            requested,
            {name: codec} if isinstance(codec, str) else codec,
            None,
            check_kinds_and_units(requested, kinds, units, fits=False),
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
        spans = read_edits(storage, manifest.edits).frames
        parts = complete_episodes(list(dataset.footers.items()), manifest.schema, spans)
        try:
            for episode in episodes.values():
                start, _ = spans.get(episode.uid, (0, 0))
                _write_values(files, parts[episode.uid], start, episode, name, values)
            files.close()
            for note in irregular_notes(files.irregular):
                _logger.warning("%s: %s", storage.url, note)
        except BaseException:
            files.abort()
            raise
        if known is not None:
            known = Statistics(known.num_frames, {**known, **collector.statistics()})
        dataset.commit([Features(schema)], known, writer=writer)
        return new


@recorded
def drop_features(
    location: str | PathLike[str],
    names: str | Sequence[str],
    *,
    dry_run: bool = False,
    if_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Drop one feature or several; returns their names.

    Readers that open the dataset afterwards do not see them, and `reindex` does not restore them.
    Record files with dropped features only leave the dataset: `clean` removes them. Other record
    files keep the bytes until `rewrite_files`. The names are free for new features. With `dry_run`
    nothing is changed.

    Raises `NotFoundError` if there is no dataset, `SchemaError` for an unknown feature or if none
    would remain, and `ConflictError` if another writer commits meanwhile.

    Example:
        from seqrecord import edit

        edit.drop_features("records/", ["depth", "flow"])
    """
    with open_for_edit(location, storage_options, if_version) as dataset:
        before = dataset.manifest.schema
        dropped = before.select([names] if isinstance(names, str) else list(dict.fromkeys(names)))
        if len(dropped) == len(before.active):
            raise SchemaError(
                "no feature would be left",
                file=dataset.storage.url,
                expected="at least one; to delete all, remove the folder",
            )
        if not dry_run:
            _commit_schema(dataset, Schema([*_without(before, dropped)]))
        return list(dropped)


@recorded
def describe_features(
    location: str | PathLike[str],
    *,
    kinds: Mapping[str, str | None] | None = None,
    units: Mapping[str, str | None] | None = None,
    dry_run: bool = False,
    if_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[FeatureSpec]:
    """Change kinds or units of features; returns the changed features.

    No frame is read or written. `None` stands for an unknown kind or unit. Statistics of a feature
    whose channels depend on its kind are removed, with a warning. With `dry_run` nothing is
    changed.

    Raises `NotFoundError` if there is no dataset, `SchemaError` for an unknown feature, kind or
    unit and for a feature that was not written as a timestamp but becomes one, and `ConflictError`
    if another writer commits meanwhile.

    Example:
        from seqrecord import edit

        edit.describe_features("records/", kinds={"depth": "depth"}, units={"depth": "mm"})
    """
    with open_for_edit(location, storage_options, if_version) as dataset:
        before = dataset.manifest.schema
        with located(SchemaError, file=dataset.storage.url):
            described: Mapping[str, Any] = check_kinds_and_units(before, kinds, units)
            if not described:
                raise SchemaError("nothing to change", expected="kinds or units of features")
        schema = Schema([replace(s, **described.get(s.name, {})) for s in before.values()])
        changed = [spec for spec in schema.values() if spec != before[spec.name]]
        for spec in changed:
            _check_time_spans(dataset, spec)
        if changed and not dry_run:
            _commit_schema(dataset, schema)
        return changed


@recorded
def rename_features(
    location: str | PathLike[str],
    names: Mapping[str, str],
    *,
    dry_run: bool = False,
    if_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[FeatureSpec]:
    """Rename features, `{old name: new name}`; returns the features under their new names.

    No frame is read or written, and `reindex` keeps the new names. Statistics stay. The metadata
    entries `camera`, `columns`, `files` and `names` are by feature and change too. Two features may
    swap their names. Saved states of loaders name the old features. With `dry_run` nothing is
    changed.

    Raises `NotFoundError` if there is no dataset, `SchemaError` for an unknown feature, an invalid
    name or one of another feature, and `ConflictError` if another writer commits meanwhile.

    Example:
        from seqrecord import edit

        edit.rename_features("records/", {"pose": "camera_pose"})
    """
    with open_for_edit(location, storage_options, if_version) as dataset:
        before = dataset.manifest.schema
        with located(SchemaError, file=dataset.storage.url):
            before.select(list(names))
            kept = before.active.keys() - names.keys()
            for old, new in names.items():
                if new in kept or [*names.values()].count(new) > 1:
                    raise SchemaError("two features would have the same name", feature=old, got=new)
            schema = before.renamed(names)
        names = {old: new for old, new in names.items() if old != new}
        if names and not dry_run:
            _commit_schema(dataset, schema, names)
        return [schema[new] for new in names.values()]


def _renamed_entries(names: Mapping[str, str], metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata with the new names of features in its entries by feature."""
    changed = {
        entry: {names.get(name, name): value for name, value in found.items()}
        for entry in _BY_FEATURE
        if isinstance(found := metadata.get(entry), dict)
    }
    return {**metadata, **changed}


def _commit_schema(
    dataset: EditedDataset, schema: Schema, names: Mapping[str, str] | None = None
) -> None:
    """Commit a schema; statistics of features with the same channels stay.

    `names` are the new names of renamed features, by their old ones.
    """
    before, known = dataset.manifest.schema, stored_statistics(dataset.storage, dataset.manifest)
    edits: list[Edit] = [Features(schema)]
    if names:
        before = before.renamed(names)
        texts = enumerate(dataset.index.metadata)  # parsed where they may have such an entry
        some = [i for i, t in texts if any(f'"{entry}"' in t.as_py() for entry in _BY_FEATURE)]
        changed, relabels = dataset.relabelled(partial(_renamed_entries, names), some)
        edits += relabels if changed else []
    if known is not None:
        known = Statistics(known.num_frames, {(names or {}).get(n, n): s for n, s in known.items()})
        left = [name for name in known if name in schema]
        kept = [n for n in left if num_channels(schema[n]) == num_channels(before[n])]
        if gone := [name for name in left if name not in kept]:
            _logger.warning(
                "%s: statistics of %s removed because its channels changed; run `seqrecord stats`",
                *(dataset.storage.url, ", ".join(gone)),
            )
        known = Statistics(known.num_frames, {name: known[name] for name in kept})
    dataset.commit(edits, known)


def _check_time_spans(dataset: EditedDataset, spec: FeatureSpec) -> None:
    """Raise `SchemaError` for a timestamp without time spans in a record file.

    Only writers compute them.
    """
    if not is_timestamp(spec):
        return
    place = list(dataset.manifest.schema).index(spec.name)
    for footer in dataset.footers.values():
        if len(footer.schema) > place and not is_timestamp([*footer.schema.values()][place]):
            url, name = dataset.storage.url, spec.name
            raise SchemaError(
                "cannot turn a written feature into a timestamp; write it again: "
                f"`seqrecord edit add {shlex.quote(url)} {name} --from {shlex.quote(url)} "
                f"--kind timestamp --unit {shlex.quote(spec.unit or 'UNIT')} --overwrite`",
                file=url,
                feature=name,
            )


def _without(schema: Schema, names: Collection[str]) -> Iterator[FeatureSpec]:
    """The features, with these marked as dropped."""
    for place, spec in enumerate(schema.values()):
        yield replace(spec, name=f"~{place}") if spec.name in names else spec


@recorded
def set_text(
    location: str | PathLike[str],
    episodes: EpisodeFilter,
    name: str,
    text: str,
    *,
    dry_run: bool = False,
    if_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Set a text feature such as `task` to this text, on every frame of these episodes.

    Returns the keys of the episodes that had another text or none in a frame, or in the metadata:
    an entry with the feature's name becomes the text, and a list `tasks` beside the feature `task`
    becomes a list of it. The feature is replaced by a new one, with the texts of all episodes in
    new record files; so two edited copies of a dataset have different schemas. The metadata change
    in a second commit; after an error between the two, repeat the call. For other metadata, use
    `set_metadata`.

    Arguments and errors as for `delete_episodes`; also raises `SchemaError` if there is no such
    text feature.

    Example:
        from seqrecord import edit

        edit.add_feature("records/", "task", lambda episode: ["stack"] * len(episode))
        edit.set_text("records/", None, "task", "stack the cubes")
    """
    with opened(location, storage_options=storage_options) as dataset:
        spec = dataset.features.select([name])[name]
        if spec.value != "text":
            raise SchemaError("not a text feature", feature=name, got=str(spec))
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
            if_version=if_version,
            storage_options=storage_options,
        )

    def relabelled(dataset: EditedDataset) -> Change:
        places = dataset.index.positions

        def changed(metadata: dict[str, Any]) -> dict[str, Any]:
            own: dict[str, Any] = {name: text} if isinstance(metadata.get(name), str) else {}
            own |= {"tasks": [text]} if name == "task" and "tasks" in metadata else {}
            return metadata | own

        # Another writer may have removed an episode meanwhile.
        return dataset.relabelled(changed, [places[e.key] for e in chosen if e.key in places])

    at = None if changed else if_version  # the feature's commit made another version
    found = {*edit_dataset(location, relabelled, dry_run, storage_options, at)}
    return [e.key for e in chosen if e.uid in changed or e.key in found]


def _inferred(episodes: Mapping[str, Episode], name: str, values: Values) -> FeatureSpec:
    """Specification inferred from the first values of the first episode that has any."""
    for episode in episodes.values():
        first = islice(iter(values(episode)), _INFERRED_FROM)
        if frames := [{name: value} for value in first if value is not None]:
            return infer_schema(frames)[name]
    raise SchemaError("no frame has a value of the feature", feature=name)


def _write_values(
    files: RecordFileWriter,
    part: EpisodePart,
    start: int,
    episode: Episode,
    name: str,
    values: Values,
) -> None:
    """Write an episode's values; frames outside of a trimmed episode, from `start`, lack them."""
    found = values(episode)
    _check_length(episode, found, name)
    files.begin_part(part)
    if start:
        files.append(Block(start, {}))
    count = 0
    for count, value in enumerate(found, start=1):
        if count > len(episode):
            raise _wrong_length(episode, f"more than {len(episode)}", name)
        files.append(Block.of({} if value is None else {name: value}))
    if count < len(episode):
        raise _wrong_length(episode, count, name)
    if after := (part.num_frames or 0) - start - count:
        files.append(Block(after, {}))
    files.end()


def _check_length(episode: Episode, values: Any, name: str) -> None:
    if getattr(values, "shape", None) == ():
        raise _wrong_length(episode, "one value", name)
    if hasattr(values, "__len__") and len(values) != len(episode):
        raise _wrong_length(episode, len(values), name)


def _wrong_length(episode: Episode, got: object, name: str) -> FrameError:
    return FrameError(
        "number of values differs from the number of frames",
        episode=episode.key,
        feature=name,
        expected=len(episode),
        got=got,
    )


def spec_of_dataset(dataset: Dataset, feature: str) -> FeatureSpec:
    """Specification of another dataset's feature, for storing it unchanged.

    Raises `SchemaError` for an unknown feature, and for a lossy codec: encoding again would lose
    more, so a codec must be named.
    """
    spec = dataset.features.select([feature])[feature]
    if loses_data(spec):
        raise SchemaError(
            "the other dataset stores the feature with a lossy codec; pass codec (--codec) to "
            "encode its frames again, for example balanced, which loses nothing more",
            file=dataset.url,
            feature=feature,
            got=spec.codec[0],
        )
    return spec


def values_of_dataset(dataset: Dataset, feature: str) -> Values:
    """A function for `add_feature` that reads a feature of another dataset.

    Episodes need the same keys and lengths; frames without the feature there lack it. The function
    raises `NotFoundError` for an episode that the other dataset lacks, and `ClipError` for another
    length.

    Example:
        from seqrecord import edit

        with seqrecord.open("records/") as other:
            edit.add_feature("records/", "copy", edit.values_of_dataset(other, "action"))
    """

    def values(episode: Episode) -> Iterator[Any]:
        if episode.key not in dataset.episodes:
            raise NotFoundError(
                "the other dataset lacks an episode", file=dataset.url, episode=episode.key
            )
        other = dataset.episodes[episode.key]
        if len(other) != len(episode):
            raise ClipError(
                "episode has a different number of frames in the other dataset",
                file=dataset.url,
                episode=episode.key,
                expected=len(episode),
                got=len(other),
            )
        return values_in_order(other, feature, range(len(other)))

    return values


def values_of_files(path: str | PathLike[str], name: str) -> Values:
    """A function for `add_feature` that reads arrays [frames, …] of NumPy files.

    `path` is a folder of `KEY.npy` or `KEY.npz`, or one `.npz` file with an array for each episode
    key. A file `KEY.npz` has a single array, or one named `name`. Pickled data is refused. The
    function raises `NotFoundError` for an episode without an array, and `FormatError` for a file
    without one.

    Example:
        from pathlib import Path
        from seqrecord import edit

        with seqrecord.open("records/") as dataset:
            for key, episode in dataset.episodes.items():
                path = Path("arrays", f"{key}.npy")
                path.parent.mkdir(parents=True, exist_ok=True)
                np.save(path, np.zeros((len(episode), 3), np.float32))
        edit.add_feature("records/", "gravity", edit.values_of_files("arrays/", "gravity"))
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
