"""Conversion of a source into a dataset, on many processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, cast

from seqrecord.errors import (
    ClipError,
    DestinationError,
    FormatError,
    SchemaError,
    SourceError,
)
from seqrecord.formats.converting.clusters import open_workers
from seqrecord.formats.converting.convert_jobs import (
    OTHER_FEATURES,
    BadEpisode,
    Job,
    JobResult,
    Meter,
    cut_in_jobs,
    frame_cost,
    run_jobs,
)
from seqrecord.formats.converting.gaps import split_at_gaps as cut_at_gaps
from seqrecord.formats.converting.source_resizing import SourceResizing
from seqrecord.formats.converting.source_video import notes_of_kept, with_videos
from seqrecord.in_place.boundary import boundary, check_unexpected
from seqrecord.in_place.external_lists import put_copied, put_lists
from seqrecord.in_place.file_types import explained
from seqrecord.store.feature_kinds import check_kinds_and_units, unknown_pose_kinds
from seqrecord.store.format.index import Index
from seqrecord.store.format.inventory import Inventory, LeftOut
from seqrecord.store.format.manifest import CopiedFiles, Manifest
from seqrecord.store.format.references import ExternalFile
from seqrecord.store.format.rows import num_absent
from seqrecord.store.format.text import check_key, encode_metadata
from seqrecord.store.originals.inventory import inventory_of
from seqrecord.store.originals.protocol import EpisodeInfo, Source, StoredSource
from seqrecord.store.processes.machine import usable_cores
from seqrecord.store.reading.metadata import DamagedFile
from seqrecord.store.reading.resizing import Sizes
from seqrecord.store.schema import Schema
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.storage.opening import StorageLike, open_storage
from seqrecord.store.text import counted
from seqrecord.store.units import Progress
from seqrecord.store.writing.destination import Destination, WriteMode, check_mode
from seqrecord.store.writing.edit_files import check_split_name
from seqrecord.store.writing.rates import irregular_notes
from seqrecord.store.writing.stored_schema import (
    DEFAULT_MAX_FILE_SIZE,
    Codecs,
    FeatureInfo,
    check_codecs,
    check_fps,
    check_passthrough,
    check_sizes,
    is_passthrough,
    stored_schema,
)

_logger = logging.getLogger("seqrecord")

_SHOWN_EPISODES = 5
_MIN_JOB_BYTES = 128 << 20  # decoded; smaller jobs are not worth a process


@dataclass(frozen=True)
class ConvertReport:
    """Result of a conversion, with keys of episodes.

    `written` are new, `skipped` existed before, and `bad` could not be packed. `inventory` is the
    source's account of its original. `damaged` are record files of which a resume could not recover
    everything; they stay on the storage.
    """

    manifest: Manifest
    written: tuple[str, ...]
    skipped: tuple[str, ...]
    bad: tuple[BadEpisode, ...]
    inventory: Inventory
    damaged: tuple[DamagedFile, ...] = ()


def convert(
    source: Source,
    destination: StorageLike,
    *,
    codecs: Codecs | None = None,
    kinds: Mapping[str, str | None] | None = None,
    units: Mapping[str, str | None] | None = None,
    fps: float | None = None,
    mode: WriteMode = "create",
    workers: int | None = None,
    executor: Executor | str | None = None,
    skip_bad_episodes: bool = False,
    strict: bool = False,
    chunk_frames: int | None = None,
    max_file_size: int | str = DEFAULT_MAX_FILE_SIZE,
    statistics: bool = True,
    in_place: bool = False,
    checksums: bool = False,
    check_video: bool = False,
    split_at_gaps: float | None = None,
    resize: Sizes | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ConvertReport:
    """Pack all episodes of a source into a dataset.

    The dataset exists when `convert` returns. After an error or a kill, `mode="resume"` continues
    after the episodes that had ended; if all chunks are copied, a kill loses the episodes of
    unfinished record files.

    Jobs of about one record file run on `workers`, each into record files of its own. The order of
    episodes is the source's, independent of `workers`. Memory: one chunk of frames per worker.

    If the source is a dataset, splits are kept, and also codecs and groups, unless `codecs` or the
    existing dataset under `mode="append"` replaces them. Chunks are copied without decoding if all
    their codecs are the same. `chunk_frames` turns that off, except for video and single encoded
    images. Statistics of copied features are kept.

    Args:
        source: the original, for example from `seqrecord.open_source(path)`.
        destination: local path, URL or open storage of the dataset.
        codecs: as for `SeqRecordWriter`.
        kinds, units: kinds and units by feature, instead of the source's: `kinds={"seg":
            "segmentation"}`, `units={"depth": "mm"}`.
        fps: frames per second of episodes whose rate the source lacks.
        mode: as for `SeqRecordWriter`; `append` and `resume` skip existing episodes.
        workers: number of processes, by default one per core; 1 runs in this process. Processes are
            spawned, so a script must call `convert` below `if __name__ == "__main__":`, or
            `DestinationError` is raised.
        executor: runs the jobs instead: an executor, or the address `dask://HOST:PORT` or
            `ray://HOST:PORT` (Ray's client server) of a cluster that shares source and destination.
            Then `progress` advances by whole jobs. With an executor, an interrupt waits for running
            jobs. `workers` is then only the number of parallel jobs, by default the cluster's.
        skip_bad_episodes: leave out and report episodes that raise `SourceError` or cannot be
            stored. Other errors of a reader count as `SourceError`; more than ten episodes with
            one type of them raise it at the end, because the reader may be wrong.
        strict: raise `SourceError` if the original has data that the source does not pack, and for
            video that would be encoded again with loss; see `Inventory`.
        chunk_frames, max_file_size, statistics, storage_options: as for `SeqRecordWriter`.
        in_place: keep packets of video, images and arrays in the original files, and store
            references. Other features are copied. The originals must remain, and other users must
            pass their place to `seqrecord.open(originals=…)`. A kill loses unfinished record files,
            except with `checksums`.
        check_video: decode all video whose packets are kept or referenced; an episode with a frame
            that cannot be decoded is bad. By default damage inside packets is found when they are
            read.
        checksums: with `in_place`, read all referenced data and store checksums, which also detect
            changes that preserve a file's size and time.
        split_at_gaps: seconds. An episode whose timestamps differ by more from one frame to the
            next becomes several episodes, `KEY/0`, `KEY/1` and so on, with its metadata, split and
            fps. Reads all timestamps first. Not with `in_place`, and not for packed datasets.
        resize: height and width in pixels, `{"camera": (224, 224)}` by feature, or `(224, 224)` for
            all images: frames are resized before they are stored, as by `resize=` of the loaders.
            Encoded images and video are decoded for it, and stored by `codecs`, not as they were.
            The metadata `camera` follows. Not with `in_place`.
        progress: called from this thread, several times per second.

    Raises `SchemaError` for an unknown kind or unit, for a feature that the source lacks, and for
    `split_at_gaps` without timestamps, `ClipError` for a `resize` that does not fit the features,
    `SourceError` for a broken original, `DestinationError` for a destination that does not fit
    `mode`, and `ConflictError` if another writer committed meanwhile; the episodes are then kept
    there for `mode="resume"`.

    Example:
        source = seqrecord.open_source("records/")
        report = seqrecord.convert(source, "small-records/", codecs="small", workers=1)
        print(len(report.written), "episodes written")
    """
    check_mode(mode)
    fps = check_fps(fps)
    file_bytes = check_sizes(chunk_frames, max_file_size)
    check_codecs(codecs)
    if workers is not None and workers < 1:
        raise DestinationError("invalid number of workers", expected="1 or more", got=workers)
    _check_source(source)
    if in_place:
        if not hasattr(source, "referring"):
            raise SourceError(
                "originals of this kind cannot be read in place; `seqrecord write --src` converts "
                "them"
            )
        source = source.referring()
    with explained(), _naming_features(), boundary():
        schema = source.schema()
        episodes = source.episodes()
        inventory = inventory_of(source)
    described: Mapping[str, Any] = check_kinds_and_units(schema, kinds, units)
    features = (replace(each, **described.get(each.name, {})) for each in inventory.features)
    notes: Iterable[str] = (note for note in inventory.notes if not _is_answered(note, described))
    notes = (*notes, *notes_of_kept(schema))
    inventory = replace(inventory, features=tuple(features), notes=notes)
    known_as = Schema([replace(s, **described.get(s.name, {})) for s in schema.values()])
    resizing = SourceResizing.of(known_as, resize)
    if resizing is not None:
        if in_place:
            raise SourceError(
                "frames of originals read in place stay as they are; the loaders resize them "
                "(resize=), or `seqrecord write --resize` stores resized ones"
            )
        episodes = [replace(info, metadata=resizing.metadata(info.metadata)) for info in episodes]
        inventory = inventory.extended(notes=resizing.notes)
        schema = resizing.schema
    if split_at_gaps is not None:
        if in_place:
            raise SourceError(
                "originals read in place cannot be split at gaps; `seqrecord write` splits them"
            )
        source, note = cut_at_gaps(source, known_as, episodes, split_at_gaps)
        episodes = source.episodes()
        inventory = inventory.extended(notes=[note])
    if strict and inventory.left_out_data:
        _refuse(inventory)
    episodes, unlisted = _checked(episodes, skip_bad_episodes)
    if fps is not None:
        episodes = [info if info.fps else replace(info, fps=fps) for info in episodes]
    with open_workers(executor) as runner:
        processes = workers or (runner and runner.count) or usable_cores()
        target = Destination(open_storage(destination, storage_options), mode)
        try:
            known: Statistics | None = None
            original = schema
            inventories: Sequence[Inventory] | None = None
            copied: CopiedFiles | None = None
            if hasattr(source, "stored"):
                dataset = cast("StoredSource", source)
                known, inventories = dataset.statistics, dataset.inventories
                schema = _schema_of(dataset.stored, schema, codecs, target.schema, described)
                changed = {} if resizing is None else resizing.intrinsics
                source = dataset = dataset.fitted(schema, chunk_frames, changed)
                work = frame_cost(source.schema(), copied=dataset.undecoded_features)
                copied = dataset.copy_lists(target.storage)
            else:
                work = frame_cost(schema, in_place=in_place)
                kept, schema = schema, stored_schema(schema, codecs, target.schema, described)
                check_passthrough(kept, schema, in_place=in_place)
            for note in _unknown_units(original, described, target.schema):
                _logger.warning("%s: %s", target.storage.url, note)
                inventory = inventory.extended(notes=[note])
            inventory = inventory.extended(notes=unknown_pose_kinds(schema))
            externals: dict[str, tuple[str, int]] = {}
            if in_place:
                files: dict[str, ExternalFile] = cast("Any", source).external_files()
                externals = put_lists(target.storage, files)
                copied = put_copied(target, source)
            todo = _pending(target, episodes)
            total_frames = sum(info.num_frames for _, info in todo)
            share = total_frames * work // (2 * processes)
            job_bytes = min(file_bytes, max(share, _MIN_JOB_BYTES))
            jobs = [
                Job(
                    source=source,
                    storage=target.storage,
                    schema=schema,
                    writer=target.writer,
                    episodes=part,
                    chunk_frames=chunk_frames,
                    max_file_size=file_bytes,
                    skip_bad_episodes=skip_bad_episodes,
                    statistics=statistics,
                    externals=externals,
                    resizing=resizing,
                    checksums=checksums,
                    check_video=check_video,
                    strict=strict,
                )
                for part in cut_in_jobs(todo, work, job_bytes)
            ]
            meter = Meter(total_frames, schema.frame_nbytes, progress)
            written = run_jobs(jobs, processes=processes, workers=runner, meter=meter)
            chosen = getattr(source, "features", None)  # any value in a user's own source
            requested = chosen if isinstance(chosen, list | tuple) else ()
            check = partial(_check_values, requested=requested, shown=target.storage.url)
            commit = partial(target.commit, check=check, copied=copied)
            return _report(
                *(target, episodes, todo, JobResult.joined(written), unlisted, known),
                *(inventory, commit),
                schema=schema,
                inventories=inventories,
            )
        except BaseException as error:
            target.give_up(error)
            raise
        finally:
            target.release()


@contextmanager
def _naming_features() -> Iterator[None]:
    """Add the remedy to an error about a single feature."""
    try:
        yield
    except SourceError as error:
        if error.feature is not None and "--features" not in error.message:
            error.message = f"{error.message}; {OTHER_FEATURES}"
            error.args = (error.message,)
        raise


def _unknown_units(
    original: Schema, described: Mapping[str, Any], there: Schema | None
) -> Iterator[str]:
    """Notes on units that only the source or only the existing dataset has."""
    for name, known in there.active.items() if there is not None else ():
        unit = described.get(name, {}).get("unit", original[name].unit)
        if (unit is None) != (known.unit is None):
            yield (
                f"feature {name}: unit {unit or 'unknown'} in the source, "
                f"{known.unit or 'unknown'} in the dataset, whose unit stays"
            )


def _is_answered(note: str, described: Mapping[str, Any]) -> bool:
    """Whether `described` has the unit that a note of the inventory asks for or assumes."""
    return any(
        (note.startswith(f"feature {name}: ") and "without a unit" in note)
        or note.startswith(f"unit of {name} assumed")
        for name, properties in described.items()
        if properties.get("unit") is not None
    )


def _refuse(inventory: Inventory) -> None:
    """Raise `SourceError` for the data that was left out."""
    left_out = inventory.left_out_data
    shown = "; ".join(map(str, left_out[:5])) + ("; …" if len(left_out) > 5 else "")
    raise SourceError(
        f"original of format {inventory.format} has data that is not packed; move it out of the "
        "original, choose features (--features), or leave out strict (--strict)",
        expected="every file and field packed",
        got=shown,
    )


def _check_source(source: object) -> None:
    """Raise `SourceError` for an object without the methods of a source."""
    methods = ("schema", "episodes", "frames")
    if not all(callable(getattr(source, name, None)) for name in methods):
        hint = ""
        if isinstance(source, str | PathLike):
            hint = "; seqrecord.open_source(path) finds the source of a path"
        raise SourceError(
            f"not a source{hint}",
            expected=f"an object with the methods {', '.join(methods)}",
            got=type(source).__name__,
        )


def _check_values(index: Index, *, requested: Collection[str], shown: str) -> None:
    """Raise `SourceError` if a requested feature has no value in any frame; warn about others."""
    for name, spec in index.schema.active.items():
        group = index.groups[spec.group]
        gaps = group.gaps[group.gaps["feature"] == index.schema.position(name)]
        if num_absent(gaps, group.num_frames).sum() < index.num_frames.sum():
            continue
        if name in requested:
            raise SourceError(
                "requested feature has no value in any frame; nothing was committed. Leave it "
                "out of features (--features), and pack into another folder",
                file=shown,
                feature=name,
                expected="a value in at least one frame",
                got=f"none in {int(index.num_frames.sum()):,} frames",
            )
        _logger.warning("%s: feature %s has no value in any frame", shown, name)


def _schema_of(
    dataset: Schema,
    schema: Schema,
    codecs: Codecs | None,
    there: Schema | None,
    described: FeatureInfo,
) -> Schema:
    """Schema of the new dataset if the source is a dataset.

    `dataset` has the source's stored features, `schema` the same features as the source yields
    them. Codecs and groups are the source's by default.
    """
    if there is not None or isinstance(codecs, str):
        return stored_schema(schema, codecs, there, described)
    own = {
        name: spec.codec
        for name, spec in dataset.items()
        if spec.shape == schema[name].shape or not is_passthrough(spec, spec)
    }
    if codecs is not None:
        return stored_schema(schema, {**own, **codecs}, None, described)
    groups = {
        name: {**described.get(name, {}), "group": spec.group} for name, spec in dataset.items()
    }
    return stored_schema(schema, own, None, groups)


def _pending(target: Destination, episodes: Sequence[EpisodeInfo]) -> list[tuple[int, EpisodeInfo]]:
    """The episodes to write, with their ordinals."""
    new = [info for info in episodes if info.key not in target.committed]
    ordinals = {info.key: target.first_ordinal + i for i, info in enumerate(new)}
    todo = [info for info in new if info.key not in target.finished]
    if all(ordinals.get(key) == ordinal for key, ordinal in target.recovered.items()):
        return [(ordinals[info.key], info) for info in todo]
    # The interrupted write listed other episodes: recovered episodes keep their ordinals, and
    # new episodes follow.
    return list(enumerate(todo, target.next_ordinal))


def _checked(
    episodes: Sequence[EpisodeInfo], skip_bad: bool
) -> tuple[list[EpisodeInfo], list[BadEpisode]]:
    """The episodes that can be packed, and the bad ones that `skip_bad` leaves out."""
    if not episodes:
        raise SourceError("the source has no episodes")
    seen: set[str] = set()
    good: list[EpisodeInfo] = []
    bad: list[BadEpisode] = []
    for info in episodes:
        try:
            check_key(info.key)
            encode_metadata(dict(info.metadata))
            check_fps(info.fps)
            if info.split is not None:
                check_split_name(info.split)
        except (FormatError, SchemaError, ClipError) as error:
            refused = SourceError(error.message, **{"episode": info.key, **error.context()})
            if not skip_bad:
                raise refused from error
            bad.append(BadEpisode(info, refused))
            continue
        if info.key in seen:
            raise SourceError("two episodes of one key", episode=info.key)
        seen.add(info.key)
        good.append(info)
    if not good:
        raise SourceError(f"no episode can be packed; the first failed with: {bad[0].error}")
    return good, bad


def _report(
    target: Destination,
    episodes: Sequence[EpisodeInfo],
    todo: Sequence[tuple[int, EpisodeInfo]],
    result: JobResult,
    unlisted: Sequence[BadEpisode],
    known: Statistics | None,
    inventory: Inventory,
    commit: Callable[..., Manifest],
    *,
    schema: Schema,
    inventories: Sequence[Inventory] | None,
) -> ConvertReport:
    """Commit and make the report. `inventories` replace `inventory` in the dataset."""
    order = {info.key: position for position, (_, info) in enumerate(todo)}
    bad = sorted(result.bad, key=lambda episode: order[episode.key])
    check_unexpected(episode.cause for episode in bad)
    left_out = {episode.key for episode in bad}
    written = tuple(key for key in order if key not in left_out)
    if not written and not target.finished:
        first = bad[0].cause
        raise SourceError(
            f"no episode can be read; the first error: {first.message}",
            **{"episode": bad[0].key, **first.context()},
        )
    statistics, every = result.statistics, (*unlisted, *bad)
    if known and statistics is not None and len(written) == len(episodes) and not unlisted:
        # Features that stayed encoded have no new statistics.
        statistics = Statistics(known.num_frames, {**known, **statistics})
    inventory = inventory.extended(left_out=_left_out(every, target.storage.url))
    videos, num_resumed = (result.changes, result.codecs, schema), len(target.finished)
    inventory = with_videos(inventory, *videos, num_resumed=num_resumed)
    warned = irregular_notes(result.irregular)
    warned += () if statistics is None else statistics.non_finite_notes()
    for note in warned:
        _logger.warning("%s: %s", target.storage.url, note)
    inventory = inventory.extended(notes=warned)
    splits = {info.key: info.split for info in episodes if info.split is not None}
    keys, stored = {*target.finished, *written}, [inventory] if inventories is None else inventories
    return ConvertReport(
        manifest=commit(keys, statistics, splits, stored),
        written=written,
        skipped=tuple(info.key for info in episodes if info.key not in order),
        bad=every,
        inventory=inventory,
        damaged=tuple(target.damaged),
    )


def _left_out(bad: Sequence[BadEpisode], url: str) -> Iterator[LeftOut]:
    """Rows of the inventory for bad episodes. Logs those with video of another size."""
    others = [episode for episode in bad if episode.is_other_size]
    broken = [episode for episode in bad if not episode.is_other_size]
    if broken:
        yield LeftOut("bad episodes", len(broken), "skip_bad_episodes", "episodes", False)
    for episode in broken[:_SHOWN_EPISODES]:
        yield LeftOut(f"episode {episode.key}", 1, episode.error, "episodes", False)
    if others:
        yield LeftOut("episodes", len(others), "video of another size", "episodes")
        _logger.warning(
            "%s: left out %s with video of another size; the first: %s",
            *(url, counted(len(others), "episode"), others[0].error),
        )
