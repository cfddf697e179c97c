"""Edits of features: adding, dropping, names, kinds and units, texts.

A new feature gets record files and a group of its own. A dropped feature's bytes remain in record
files until these are rewritten; record files with dropped features only leave the dataset. The
schema is stored in a file of edits.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import eq
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from seqrecord.errors import ClipError, FrameError, NotFoundError, SchemaError, SourceError, located
from seqrecord.formats.sources.common.array_files import NPZ, NpyFile, npz_names
from seqrecord.store.cameras.intrinsics import CAMERA_POSES
from seqrecord.store.feature_kinds import check_kinds_and_units
from seqrecord.store.format.edits import Edit, Features, Texts, Trim
from seqrecord.store.format.time_spans import is_timestamp
from seqrecord.store.reading.contents import Contents, Episodes
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.episode import Episode, values_in_order
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.reading.index_building import complete_episodes, declared_rates
from seqrecord.store.reading.metadata import read_edits
from seqrecord.store.reading.opening import opened
from seqrecord.store.schema import MAX_FEATURES, MAX_GROUPS, Block, FeatureSpec, Schema
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.statistics.collecting import StatisticsCollector
from seqrecord.store.text import shown_place
from seqrecord.store.units import are_names, check
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
from seqrecord.tools.edit.changes import (
    Change,
    EditedDataset,
    closing_or_aborting,
    edit_dataset,
    open_for_edit,
)

_logger = logging.getLogger("seqrecord")

_BY_FEATURE = ("camera", CAMERA_POSES, "columns", "files", "names")  # entries of metadata
_HAS_ENTRY = re.compile(f'"({"|".join(_BY_FEATURE)})"')  # in the text of metadata

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
        spec: dtype, shape, codec, kind and unit; by default inferred from the first value.
        codec: of the feature, as in `codecs` of `SeqRecordWriter`.
        kind: of the feature, as in `features` of `SeqRecordWriter`.
        unit: of the feature, as in `features` of `SeqRecordWriter`.
        max_file_size: as for `SeqRecordWriter`.
        overwrite: replace a feature of the same name in the same commit.
        dry_run: write nothing; calls `values` for all episodes, but reads the first value only.
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
    expected = "a function of an episode, such as lambda episode: values[episode.key]"
    check("values", values, callable(values), expected)
    with open_for_edit(location, storage_options, if_version) as dataset:
        storage, manifest = dataset.storage, dataset.manifest
        if name in manifest.schema.active and not overwrite:
            raise SchemaError(
                "feature exists already; overwrite it (--overwrite), or choose another name",
                file=storage.url,
                feature=name,
            )
        if name in {dictionary.name for dictionary in manifest.dictionaries}:
            raise SchemaError(
                "the dataset has values of texts with this name; choose another name",
                file=storage.url,
                feature=name,
            )
        episodes = Episodes(Contents.of(storage, manifest, dataset.index))
        requested_spec = (
            _inferred(episodes, name, values) if spec is None else replace(spec, name=name)
        )
        requested = Schema([replace(requested_spec, group=0)])
        kinds, units = ({} if entry is None else {name: entry} for entry in (kind, unit))
        new_features = stored_schema(
            requested,
            {name: codec} if isinstance(codec, str) else codec,
            None,
            check_kinds_and_units(requested, kinds, units, fits=False),
        )
        replacement = FeatureReplacement.of(dataset, {name}, new_features)
        [new_spec] = replacement.added
        if dry_run:
            for episode in episodes.values():
                _check_length(episode, values(episode), name)
            return new_spec
        replacement.commit(
            {key: partial(_blocks_of, episode, name, values) for key, episode in episodes.items()},
            max_file_size=size,
        )
        return new_spec


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
        old_schema = dataset.manifest.schema
        dropped_features = old_schema.select(
            [names]
            if isinstance(names, str)
            else list(dict.fromkeys(check("names", names, are_names(names), "names of features")))
        )
        if len(dropped_features) == len(old_schema.active):
            raise SchemaError(
                "no feature would be left",
                file=dataset.storage.url,
                expected="at least one; to delete all, remove the folder",
            )
        if not dry_run:
            _commit_schema(dataset, Schema([*_without(old_schema, dropped_features)]))
        return list(dropped_features)


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
        old_schema = dataset.manifest.schema
        with located(SchemaError, file=dataset.storage.url):
            changes: Mapping[str, Any] = check_kinds_and_units(old_schema, kinds, units)
            if not changes:
                raise SchemaError("nothing to change", expected="kinds or units of features")
        schema = Schema([replace(s, **changes.get(s.name, {})) for s in old_schema.values()])
        changed_specs = [spec for spec in schema.values() if spec != old_schema[spec.name]]
        for spec in changed_specs:
            _check_time_spans(dataset, spec)
        if changed_specs and not dry_run:
            _commit_schema(dataset, schema)
        return changed_specs


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

    No frame is read or written, and `reindex` keeps the new names. Statistics are kept. The
    metadata entries `camera`, `camera_poses`, `columns`, `files` and `names` are by feature and
    change too. Two features may swap their names. Saved states of loaders name the old features.
    With `dry_run` nothing is changed.

    Raises `NotFoundError` if there is no dataset, `SchemaError` for an unknown feature, an invalid
    name or one of another feature, and `ConflictError` if another writer commits meanwhile.

    Example:
        from seqrecord import edit

        edit.rename_features("records/", {"pose": "camera_pose"})
    """
    with open_for_edit(location, storage_options, if_version) as dataset:
        old_schema = dataset.manifest.schema
        with located(SchemaError, file=dataset.storage.url):
            old_schema.select(list(names))
            of_texts = {dictionary.name for dictionary in dataset.manifest.dictionaries}
            kept_names = (old_schema.active.keys() - names.keys()) | of_texts
            for old, new in names.items():
                if new in kept_names or [*names.values()].count(new) > 1:
                    raise SchemaError("two features would have the same name", feature=old, got=new)
            schema = old_schema.renamed(names)
        names = {old: new for old, new in names.items() if old != new}
        if names and not dry_run:
            _commit_schema(dataset, schema, names)
        return [schema[new] for new in names.values()]


def _renamed_entries(names: Mapping[str, str], metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata with the new names of features in its entries by feature."""
    changes = {
        entry: {names.get(name, name): value for name, value in by_feature.items()}
        for entry in _BY_FEATURE
        if isinstance(by_feature := metadata.get(entry), dict)
    }
    if CAMERA_POSES in changes:  # whose values are features, too
        poses = changes[CAMERA_POSES].items()
        changes[CAMERA_POSES] = {image: names.get(pose, pose) for image, pose in poses}
    return {**metadata, **changes}


def _commit_schema(
    dataset: EditedDataset, schema: Schema, names: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Commit a schema; statistics of features with the same channels are kept.

    `names` are the new names of renamed features, by their old ones.
    """
    statistics = stored_statistics(dataset.storage, dataset.manifest)
    edits: list[Edit] = [Features(schema)]
    if names:
        dictionaries = dataset.manifest.dictionaries
        if texts := {d.name: names[d.text] for d in dictionaries if d.text in names}:
            edits.append(Texts(texts))
        dictionaries = tuple(replace(d, text=names.get(d.text, d.text)) for d in dictionaries)
        manifest = replace(dataset.manifest, dictionaries=dictionaries)
        dataset = replace(dataset, manifest=manifest)
        # Parse only metadata that may have such an entry.
        metadata = enumerate(dataset.index.metadata)
        numbers = [i for i, text in metadata if _HAS_ENTRY.search(text.as_py())]
        changed_numbers, relabels = dataset.relabel(partial(_renamed_entries, names), numbers)
        edits += relabels if changed_numbers else []
    if statistics is not None:
        features = {names.get(name, name): moments for name, moments in statistics.items()}
        remaining = {name: moments for name, moments in features.items() if name in schema}
        statistics = Statistics(statistics.num_frames, remaining)
    dataset.commit(edits, statistics)


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

        def old_values(episode: Episode) -> Iterator[Any]:
            return values_in_order(episode, name, range(len(episode)))

        is_text = partial(eq, text)
        selection = [
            dataset.episodes[keys[n]] for n in dataset.contents.find_episodes(episodes).tolist()
        ]
        changed_uids = {e.uid for e in selection if not all(map(is_text, old_values(e)))}

    def new_values(episode: Episode) -> Iterable[Any]:
        return [text] * len(episode) if episode.uid in changed_uids else old_values(episode)

    if changed_uids:
        add_feature(
            *(location, name, new_values),
            spec=spec,
            overwrite=True,
            dry_run=dry_run,
            if_version=if_version,
            storage_options=storage_options,
        )
        if_version = None  # the commit made another version

    def relabel(dataset: EditedDataset) -> Change:
        places = dataset.index.positions

        def with_text(metadata: dict[str, Any]) -> dict[str, Any]:
            changes: dict[str, Any] = {name: text} if isinstance(metadata.get(name), str) else {}
            changes |= {"tasks": [text]} if name == "task" and "tasks" in metadata else {}
            return metadata | changes

        # Two commits, so another writer may have removed an episode meanwhile.
        return dataset.relabel(with_text, [places[e.key] for e in selection if e.key in places])

    relabelled_keys = {*edit_dataset(location, relabel, dry_run, storage_options, if_version)}
    return [e.key for e in selection if e.uid in changed_uids or e.key in relabelled_keys]


@dataclass(frozen=True)
class FeatureReplacement:
    """New features of an existing dataset, which replace others in one commit.

    Attributes:
        dataset: the dataset.
        replaced: names of features that the dataset loses, if it has them.
        added: the new features, in groups of their own.
        schema: all features of the new version.
        writer: id of the writer of the new record files.
    """

    dataset: EditedDataset
    replaced: Collection[str]
    added: Sequence[FeatureSpec]
    schema: Schema
    writer: str

    @classmethod
    def of(
        cls, dataset: EditedDataset, replaced: Collection[str], features: Schema | None
    ) -> FeatureReplacement:
        """Choose groups for new features, if there are any.

        Raises `SchemaError` if the dataset has no room.
        """
        old_schema, writer = dataset.manifest.schema, new_writer_id()
        added = list[FeatureSpec]()
        if features is not None:
            _check_room(old_schema, dataset.storage.url, features)
            added = [
                replace(spec, group=old_schema.num_groups + spec.group, added=writer)
                for spec in features.values()
            ]
        schema = Schema([*_without(old_schema, replaced), *added])
        schema.check_groups()
        return cls(dataset, replaced, added, schema, writer)

    def commit(
        self,
        blocks: Mapping[str, Callable[[], Iterable[Block]]],
        edits: Sequence[Edit] = (),
        *,
        trims: Mapping[str, range] = MappingProxyType({}),
        max_file_size: int | None = None,
    ) -> None:
        """Write the values of new features into new record files, and commit them with `edits`.

        `blocks` has a function for each episode with values, by key, which returns all its frames.
        They are called in this order. Other episodes lack the features. Of episodes in `trims`
        these frames remain, and `blocks` has their values. The dataset's statistics, if any, are
        extended, but without any trims only.
        """
        dataset, names = self.dataset, {spec.name for spec in self.added}
        storage, manifest = dataset.storage, dataset.manifest
        # Read now: two commits of other writers would remove the file.
        statistics = stored_statistics(storage, manifest)
        if not self.added:
            dataset.commit([Features(self.schema), *edits], statistics)
            return
        collector = StatisticsCollector(Schema(self.added))
        files = RecordFileWriter(
            storage,
            self.schema,
            writer=self.writer,
            max_file_size=max_file_size,
            statistics=collector,
            only=sorted({spec.group for spec in self.added}),
        )
        spans = read_edits(storage, manifest.edits).frames
        parts = complete_episodes(list(dataset.footers.items()), manifest.schema, spans)
        rates = declared_rates(dataset.footers.values())
        index, new_spans = dataset.index, dict[str, tuple[int, int]]()
        with closing_or_aborting(files):
            for key in dict.fromkeys((*blocks, *index.positions)):
                number = index.positions[key]
                uid = index.uid(number)
                start, _ = spans.get(uid, (0, 0))
                rows = trims.get(key, range(int(index.num_frames[number])))
                num_frames, start = len(rows), start + rows.start
                if key in trims:
                    new_spans[uid] = start, start + num_frames
                # Other timestamps may contradict the fps now, but be dropped later.
                part = replace(parts[uid], fps=rates.get(uid))
                files.begin_part(part, key=key, start=start)
                _append_empty(files, start)
                if key in blocks:
                    for block in blocks[key]():
                        files.append(block)
                else:
                    _append_empty(files, num_frames)
                # Outside of a trimmed episode frames lack the features.
                _append_empty(files, (part.num_frames or 0) - start - num_frames)
                files.end()
        for note in irregular_notes(files.irregular):
            _logger.warning("%s: %s", storage.url, note)
        if new_spans:  # the statistics are of all frames
            edits, statistics = [*edits, Trim(new_spans)], None
        if statistics is not None:
            kept = {n: m for n, m in statistics.items() if n not in {*self.replaced, *names}}
            statistics = Statistics(statistics.num_frames, {**kept, **collector.statistics()})
        dataset.commit([Features(self.schema), *edits], statistics, writer=self.writer)


def _append_empty(files: RecordFileWriter, count: int) -> None:
    """Append frames that lack all features of the files."""
    if count:
        files.append(Block(count, {}))


def _inferred(episodes: Mapping[str, Episode], name: str, values: Values) -> FeatureSpec:
    """Specification inferred from the first value of all; later values are not read."""
    for episode in episodes.values():
        episode_values = values(episode)
        _check_length(episode, episode_values, name)
        for value in islice(episode_values, len(episode)):
            if value is not None:
                return infer_schema([{name: value}])[name]
    raise SchemaError("no frame has a value of the feature", feature=name)


def _check_room(schema: Schema, url: str, features: Schema) -> None:
    """Raise `SchemaError` if a dataset of this schema cannot have more features or groups.

    Record files have the places of dropped features, so only packing again frees them.
    """
    num_dropped = len(schema) - len(schema.active)
    numbers = {
        "groups": (schema.num_groups, MAX_GROUPS - features.num_groups),
        "features": (len(schema), MAX_FEATURES - len(features)),
    }
    for noun, (count, max_count) in numbers.items():
        if count > max_count:
            raise SchemaError(
                f"no room for another feature; dropped and replaced ones count ({num_dropped}), "
                "also after `seqrecord clean`: pack the dataset again, without them, by "
                f"`seqrecord write --src {shlex.quote(url)} --dst DST`",
                file=url,
                feature=next(iter(features)),
                expected=f"at most {max_count} {noun}",
                got=count,
            )


def _blocks_of(episode: Episode, name: str, values: Values) -> Iterator[Block]:
    """The values of an episode as blocks of one frame."""
    episode_values = values(episode)
    _check_length(episode, episode_values, name)
    count = 0
    for count, value in enumerate(episode_values, start=1):
        if count > len(episode):
            raise _wrong_length(episode, f"more than {len(episode)}", name)
        yield Block.of({} if value is None else {name: value})
    if count < len(episode):
        raise _wrong_length(episode, count, name)


def _check_length(episode: Episode, values: Any, name: str) -> None:
    if getattr(values, "shape", None) == () or not hasattr(values, "__iter__"):
        got = "None" if values is None else "one value"
        raise _wrong_length(episode, got, name)
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
    length. A WARNING if keys and lengths are all that episodes have in common: values of a derived
    dataset are compared by `seqrecord.open("records/", join=["latents/"])`.

    Example:
        from seqrecord import edit

        with seqrecord.open("records/") as other:
            edit.add_feature("records/", "copy", edit.values_of_dataset(other, "action"))
    """
    is_reported = False

    def values(episode: Episode) -> Iterator[Any]:
        nonlocal is_reported
        if episode.key not in dataset.episodes:
            raise NotFoundError(
                "the other dataset lacks an episode", file=dataset.url, episode=episode.key
            )
        other_episode = dataset.episodes[episode.key]
        if len(other_episode) != len(episode):
            raise ClipError(
                "episode has a different number of frames in the other dataset",
                file=dataset.url,
                episode=episode.key,
                expected=len(episode),
                got=len(other_episode),
            )
        if other_episode.uid != episode.uid and not is_reported:
            is_reported = True
            _logger.warning(
                "%s: %s is added by key and length alone, for example to %s. If episodes were "
                "renumbered or exchanged since, its values are those of other recordings. "
                "seqrecord edit add --from, or values_of_dataset of "
                "seqrecord.open(…, join=[…]), compares them",
                shown_place(dataset.url),
                feature,
                episode.key,
            )
        return values_in_order(other_episode, feature, range(len(other_episode)))

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
