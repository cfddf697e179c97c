"""Merging of datasets into one, with the features of the first."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from os import PathLike
from typing import Any

from seqrecord.errors import DestinationError, NotFoundError, SchemaError, located
from seqrecord.formats.converting.convert import convert
from seqrecord.formats.converting.dataset_source import DatasetSource, MergedSource
from seqrecord.store.feature_kinds import differences
from seqrecord.store.format.text import check_key
from seqrecord.store.originals.protocol import EpisodeInfo
from seqrecord.store.reading.dataset import Dataset, open_packed
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.opening import StorageLike, open_storage
from seqrecord.store.storage.url import parse_location
from seqrecord.store.text import codec_text, counted, first_of
from seqrecord.store.units import Progress, check, check_names
from seqrecord.store.writing.destination import Destination, WriteMode
from seqrecord.store.writing.stored_schema import has_same_pages, loses_data, stored_schema
from seqrecord.tools.edit.changes import naming_originals

_logger = logging.getLogger("seqrecord")

_SHOWN = 500  # characters of a list of only_names
_SHOWN_EPISODES = 20


@dataclass(frozen=True)
class MergeReport:
    """Result of a merge, or its forecast with `dry_run`.

    `num_episodes` and `num_frames` are added by the call; with `dry_run`, a resume counts all.
    `num_bytes` is the size of the record files of the datasets with these episodes. `skipped` are
    keys of episodes that the destination had already.
    """

    num_episodes: int
    num_frames: int
    num_bytes: int
    skipped: tuple[str, ...] = ()


def merge_datasets(
    sources: Sequence[StorageLike],
    destination: StorageLike,
    *,
    prefixes: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    mode: WriteMode = "create",
    max_file_size: int | str | None = None,
    dry_run: bool = False,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> MergeReport:
    """Make a dataset with all episodes of several datasets, which do not change.

    Chunks are copied without decoding, after a check of their checksums; references to external
    files are kept. Codecs and groups come from the first dataset, or from the dataset under
    `mode="append"`; features in other codecs are encoded again. Splits of the same name become one
    split. Statistics are merged if all datasets have them. Episodes keep the order of the datasets.
    Runs in this process.

    Args:
        sources: local paths, URLs or open storages, which are closed at the end.
        destination: local path, URL or open storage; a place without a dataset and record files.
        prefixes: text before the keys of the episodes, one for each dataset: `["", "b/"]`.
        features: names of the features to merge, by default all.
        mode: `create`, `append` to a dataset, or `resume` an interrupted merge: ended episodes are
            kept, except those in unfinished record files after a kill.
        max_file_size: as for `SeqRecordWriter`.
        dry_run: check everything, write nothing.
        progress: called from this thread, several times per second.
        storage_options: for the filesystems that serve URLs.

    Raises `NotFoundError` if a source is not a dataset. Raises `SchemaError` if the datasets differ
    in features, or in their dtypes, shapes, kinds or units, and if a feature would be encoded again
    with a lossy codec; with `append`, also for differences from the destination. Raises
    `DestinationError` for two episodes with the same key, and for a destination that is not empty.
    An append skips episodes whose keys are there, and logs them; it raises `DestinationError` for
    one that has another number of frames there, unless it was trimmed. Raises `ConflictError` if
    another writer has committed there meanwhile; the episodes are then kept there for
    `mode="resume"`.

    Example:
        from seqrecord import edit

        report = edit.merge_datasets(["records/", "more-records/"], "merged/")
        print(report.num_episodes, "episodes")
    """
    argument: object = sources
    is_list = isinstance(argument, Sequence) and not isinstance(argument, str)
    check("sources", sources, is_list, 'a list of datasets, such as ["a/", "b/"]')
    check_names("prefixes", prefixes)
    check_names("features", features)
    *locations, opening = _with_options([*sources, destination], storage_options)
    with ExitStack() as stack:
        target = open_storage(*opening)
        stack.callback(target.close)
        if not sources:
            raise DestinationError("no datasets to merge", file=target.url, expected="one or more")
        key_prefixes = [""] * len(sources) if prefixes is None else prefixes
        if len(key_prefixes) != len(sources):
            message = "wrong number of prefixes, one for each dataset"
            raise DestinationError(
                message, file=target.url, expected=len(sources), got=len(key_prefixes)
            )
        readers = [
            stack.enter_context(_opened(location, options, features=features))
            for location, options in locations
        ]
        parts = [
            DatasetSource(reader, prefix=prefix, keeps_references=True)
            for reader, prefix in zip(readers, key_prefixes, strict=True)
        ]
        source = MergedSource(tuple(parts))
        _check_schemas(parts, target.url)
        has_statistics = _has_statistics(readers, target.url)
        infos = source.episodes()
        for info in infos:
            check_key(info.key)
        skipped: Sequence[str] = ()
        if mode == "append" or (dry_run and mode != "resume"):  # a resume would begin to copy
            skipped = _skipped(parts, infos, Destination(target, mode))
        added = {info.key for info in infos}.difference(skipped)
        if not dry_run:
            conversion = convert(
                source,
                target,
                mode=mode,
                workers=1,
                max_file_size=max_file_size,
                statistics=has_statistics,
                progress=progress,
            )
            added, skipped = {*conversion.written}, conversion.skipped
        added_infos = [info for info in infos if info.key in added]
        return _report(parts, added_infos, skipped)


def _report(
    parts: Sequence[DatasetSource], infos: Sequence[EpisodeInfo], skipped: Sequence[str]
) -> MergeReport:
    """The report of a merge that adds these episodes."""
    used_parts = [part for part in parts if any(part.has(info.key) for info in infos)]
    files = [file for part in used_parts for file in part.reader.contents.manifest.record_files]
    num_frames = sum(info.num_frames for info in infos)
    return MergeReport(len(infos), num_frames, sum(file.size for file in files), tuple(skipped))


def _skipped(
    parts: Sequence[DatasetSource], infos: Sequence[EpisodeInfo], destination: Destination
) -> list[str]:
    """Keys of the episodes that the destination has already; the log names them.

    Raises `SchemaError` for features that cannot be appended there, and `DestinationError` for an
    episode that has another number of frames there.
    """
    url, schema = destination.storage.url, destination.schema
    if schema is not None:
        for part in parts:
            for name in filter(part.stored.__contains__, schema.active):
                _check_feature(part.stored[name], schema[name], part.reader.url, url, url)
        with located(SchemaError, file=url):
            stored_schema(parts[0].schema(), None, schema)
    num_frames = {info.key: info.num_frames for info in infos}
    if changed := destination.other_lengths(num_frames):
        key, present_frames = next(iter(changed.items()))
        raise DestinationError(
            "the destination has an episode of this key with another number of frames; give its "
            "dataset a prefix (--prefix), or delete the old one (`seqrecord edit delete`)",
            file=url,
            episode=key,
            expected=f"{present_frames} frames",
            got=f"{num_frames[key]} frames",
        )
    skipped = [key for key in num_frames if key in destination.committed]
    if skipped:
        _logger.warning(
            "%s: skipped %s with keys that the dataset has already: %s",
            *(url, counted(len(skipped), "episode"), first_of(skipped, _SHOWN_EPISODES)),
        )
    return skipped


def _opened(location: StorageLike, storage_options: Any, **options: Any) -> Dataset:
    """Open a dataset of record files. Raises `NotFoundError` that names an original as such."""
    try:
        return open_packed(
            location, storage_options=storage_options, check_originals=False, **options
        )
    except NotFoundError:
        if isinstance(location, Storage):  # closed by now
            raise
        with closing(open_storage(location, storage_options)) as storage, naming_originals(storage):
            raise


def _with_options(
    locations: Sequence[StorageLike], storage_options: Mapping[str, Any] | None
) -> list[tuple[StorageLike, Mapping[str, Any] | None]]:
    """Each location with its options: URLs get them, or all locations if none is a URL."""
    is_url = [
        isinstance(location, str | PathLike) and parse_location(location).protocol != "file"
        for location in locations
    ]
    return [
        (location, storage_options if takes or not any(is_url) else None)
        for location, takes in zip(locations, is_url, strict=True)
    ]


def _has_statistics(readers: Sequence[Dataset], url: str) -> bool:
    """Whether all datasets have statistics; warns if only some do."""
    lacking = [reader.url for reader in readers if not reader.statistics]
    if 0 < len(lacking) < len(readers):
        _logger.warning(
            "%s: statistics not stored: %d of %d datasets lack them, as %s; run `seqrecord stats`",
            *(url, len(lacking), len(readers), lacking[0]),
        )
    return not lacking


def _check_schemas(parts: Sequence[DatasetSource], destination: str) -> None:
    """Raise `SchemaError` unless all datasets can be stored with the features of the first."""
    base, *datasets = (part.reader for part in parts)
    common = [n for n in base.features if all(n in part.reader.features for part in parts)]
    for dataset in datasets:
        urls = dict.fromkeys([*base.features, *dataset.features], dataset.url)
        urls |= dict.fromkeys(base.features, base.url)
        if differing := [f"{n} only in {url}" for n, url in urls.items() if n not in common]:
            remedy = "they have no feature in common"
            if common:
                command = [*("seqrecord", "merge"), *(part.reader.url for part in parts)]
                command += ["-o", destination, "--features", ",".join(common)]
                command += [f"--prefix={p.reader.url}={p.prefix}" for p in parts if p.prefix]
                remedy = (
                    "add or drop features with `seqrecord edit`, or merge the common features: "
                    f"{shlex.join(command)}"
                )
            raise SchemaError(
                f"datasets cannot be merged: they have different features; {remedy}",
                file=dataset.url,
                expected=f"the features of {base.url}",
                got="; ".join(differing)[:_SHOWN],
            )
        for name in common:
            specs = dataset.features[name], base.features[name]
            _check_feature(*specs, dataset.url, base.url, destination)


def _check_feature(
    spec: FeatureSpec, base_spec: FeatureSpec, url: str, base_url: str, destination: str
) -> None:
    """Raise `SchemaError` unless values of `spec` can be stored as `base_spec`, without loss."""

    def refuse(reason: str, expected: object, got: object) -> SchemaError:
        return SchemaError(
            f"datasets cannot be merged: {reason}",
            file=url,
            feature=spec.name,
            expected=f"{expected}, as in {base_url}",
            got=got,
        )

    base_form, form = (str(feature).partition(": ")[2] for feature in (base_spec, spec))
    if base_form != form:
        raise refuse("a feature has different dtypes or shapes", base_form, form)
    for name, contradict in differences(spec, base_spec).items():
        entries = getattr(base_spec, name), getattr(spec, name)
        if contradict:
            reason = f"a feature has different {name}s"
            raise refuse(f"{reason}; correct a wrong one with `seqrecord edit describe`", *entries)
        _logger.warning(
            "%s: feature %s has %s %s, and %s in %s, which the merged dataset keeps",
            *(url, spec.name, name, entries[1] or "unknown", entries[0] or "unknown", base_url),
        )
    # Never lossy in silence: tests/tools/test_merge.py::test_a_codec_that_loses_data_is_asked_for
    if not has_same_pages(spec, base_spec) and loses_data(base_spec):
        sources = [url] if base_url == destination else [base_url, url]  # or an append
        commands = [
            ["seqrecord", "write", "--src", source, "--dst", destination] for source in sources
        ]
        commands[-1].append("--append")
        raise refuse(
            "a feature would be encoded again with a lossy codec; to do so, run: "
            + " && ".join(map(shlex.join, commands)),
            *(codec_text(base_spec.codec), codec_text(spec.codec)),
        )
